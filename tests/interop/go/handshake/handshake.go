// Package handshake opens authenticated connections to a Berth agent. This one file is all that a host shim needs to
// copy: it depends on the standard library alone. proto/handshake.md is the contract.
//
//	key, err := handshake.ReadKey("/path/to/secret")
//	conn, err := handshake.Client(rawConn, key, handshake.Options{})
//	client := ttrpc.NewClient(conn)
//
// What follows the handshake is neither encrypted nor authenticated: it proves who is at both ends of the connection,
// and whoever controls the transport owns the session.
package handshake

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

// Class is what a connection is for.
type Class byte

// The three classes.
const (
	Control  Class = 1 // ttrpc, every call
	Stream   Class = 2 // one stdio stream, with a ticket of Guest.OpenStream
	ReadOnly Class = 3 // ttrpc, calls that change nothing
)

// ErrRefused means that the agent ended the connection after it saw our proof: a wrong secret, a bad ticket, or too many
// connections. Dialing again at once does not help.
var ErrRefused = errors.New("authentication refused")

// ErrNotReady means that the connection ended before the agent spoke: it is starting. Dial again, for up to 5 seconds.
var ErrNotReady = errors.New("the agent closed the connection before its challenge")

var (
	magic = []byte("BERTH/1\n")
	zero  [32]byte
)

// Key is the secret of a guest, or the key of class 3 alone.
type Key struct {
	bytes    [32]byte
	readOnly bool
}

// ReadKey reads a key file: 32 bytes, or 64 hex digits and at most one newline, or the latter behind "class3:".
func ReadKey(path string) (Key, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return Key{}, err
	}
	key, err := ParseKey(content)
	if err != nil {
		return Key{}, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

// ParseKey is ReadKey for a file's content.
func ParseKey(content []byte) (Key, error) {
	var key Key
	text, found := strings.CutPrefix(string(content), "class3:")
	key.readOnly = found
	if !found && len(content) == 32 {
		copy(key.bytes[:], content)
	} else {
		decoded, err := hex.DecodeString(strings.TrimSuffix(text, "\n"))
		if err != nil || len(decoded) != 32 {
			return Key{}, errors.New("a key is 32 bytes or 64 hex digits")
		}
		copy(key.bytes[:], decoded)
	}
	if key.bytes == zero {
		return Key{}, errors.New("the key is all zeros")
	}
	return key, nil
}

// ReadOnlyKey is what to hand to a monitor: it can never be used for Control.
func (k Key) ReadOnlyKey() (Key, error) {
	class, err := k.class(ReadOnly)
	if err != nil {
		return Key{}, err
	}
	out := Key{readOnly: true}
	copy(out.bytes[:], class)
	return out, nil
}

func (k Key) class(class Class) ([]byte, error) {
	if !k.readOnly {
		return hkdf.Key(sha256.New, k.bytes[:], nil, "berth/1 class"+string([]byte{byte(class)}), 32)
	}
	if class != ReadOnly {
		return nil, errors.New("this key is for read-only connections")
	}
	return k.bytes[:], nil
}

// Options of Client. The zero value is a control connection.
type Options struct {
	Class             Class         // 0: Control
	Ticket            [32]byte      // Stream only
	MinimumGeneration uint32        // an older guest is refused
	OwnPort           uint32        // AF_VSOCK only: our port as getsockname tells; 0: not compared
	OwnCID            uint32        // AF_VSOCK only: 2, or 1 on the loopback; 0: not compared
	Timeout           time.Duration // 0: 10 seconds
	nonce             *[32]byte     // tests
}

// Conn is a connection whose ends have proved that they know the key.
type Conn struct {
	net.Conn
	InstanceID [16]byte // new at each boot of the guest
	Generation uint32   // 1, and one more for each restore from a snapshot
}

// Client proves the key to the agent at the other end of conn and demands the same proof. On an error conn is closed.
func Client(conn net.Conn, key Key, options Options) (*Conn, error) {
	if options.Timeout == 0 {
		options.Timeout = 10 * time.Second
	}
	if options.Class == 0 {
		options.Class = Control
	}
	conn.SetDeadline(time.Now().Add(options.Timeout))
	out, err := shake(conn, key, options)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("berth handshake: %w", err)
	}
	conn.SetDeadline(time.Time{})
	return out, nil
}

func shake(conn net.Conn, key Key, options Options) (*Conn, error) {
	classKey, err := key.class(options.Class)
	if err != nil {
		return nil, err
	}
	hello := make([]byte, 80)
	copy(hello, magic)
	hello[8] = byte(options.Class)
	hello[9] = 1 // the suite HMAC-SHA256
	if options.nonce != nil {
		copy(hello[16:48], options.nonce[:])
	} else if _, err := rand.Read(hello[16:48]); err != nil {
		return nil, err
	}
	copy(hello[48:80], options.Ticket[:])
	if _, err := conn.Write(hello); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrNotReady, err)
	}

	challenge := make([]byte, 80)
	if _, err := io.ReadFull(conn, challenge); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrNotReady, err)
	}
	if err := check(challenge, options); err != nil {
		return nil, err
	}
	out := &Conn{Conn: conn, Generation: binary.BigEndian.Uint32(challenge[12:16])}
	copy(out.InstanceID[:], challenge[48:64])

	proof, err := prove(classKey, out.InstanceID[:], "berth/1 client", hello, challenge)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(proof); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrRefused, err)
	}
	answer := make([]byte, 32)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrRefused, err)
	}
	expected, err := prove(classKey, out.InstanceID[:], "berth/1 server", hello, challenge, proof)
	if err != nil {
		return nil, err
	}
	if !hmac.Equal(answer, expected) {
		return nil, errors.New("the peer does not know the key")
	}
	return out, nil
}

func check(challenge []byte, options Options) error {
	u16, u32 := binary.BigEndian.Uint16, binary.BigEndian.Uint32
	switch {
	case !bytes.Equal(challenge[:8], magic):
		return errors.New("the peer is no Berth agent")
	case u16(challenge[8:]) != 1 || u16(challenge[10:]) != 1:
		return errors.New("the agent chose a version or suite that was not offered")
	case u32(challenge[12:]) < options.MinimumGeneration:
		return fmt.Errorf("generation %d is older than %d", u32(challenge[12:]), options.MinimumGeneration)
	case options.OwnCID != 0 && u32(challenge[64:]) != options.OwnCID:
		return fmt.Errorf("the agent sees CID %d, not %d: somebody is in between", u32(challenge[64:]), options.OwnCID)
	case options.OwnPort != 0 && u32(challenge[68:]) != options.OwnPort:
		return fmt.Errorf("the agent sees port %d, not %d: somebody is in between", u32(challenge[68:]), options.OwnPort)
	case !bytes.Equal(challenge[72:80], zero[:8]):
		return errors.New("reserved bytes of the challenge are set")
	}
	return nil
}

// prove is HMAC(HKDF(class key, instance id, label), label ‖ SHA-256(all messages so far)).
func prove(classKey, instance []byte, label string, messages ...[]byte) ([]byte, error) {
	key, err := hkdf.Key(sha256.New, classKey, instance, label, 32)
	if err != nil {
		return nil, err
	}
	transcript := sha256.New()
	for _, message := range messages {
		transcript.Write(message)
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(label))
	mac.Write(transcript.Sum(nil))
	return mac.Sum(nil), nil
}
