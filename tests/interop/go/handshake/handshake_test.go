package handshake

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"testing"
)

// The published vector of proto/handshake.md.
func vector(t *testing.T) (key Key, nonce [32]byte, challenge []byte, client, server []byte) {
	t.Helper()
	for i := range key.bytes {
		key.bytes[i] = byte(i)
		nonce[i] = 0x11
	}
	challenge = append(challenge, magic...)
	challenge = append(challenge, 0, 1, 0, 1, 0, 0, 0, 1)
	challenge = append(challenge, bytes.Repeat([]byte{0x22}, 32)...)
	for i := 0; i < 16; i++ {
		challenge = append(challenge, byte(i))
	}
	challenge = append(challenge, 0, 0, 0, 2, 0, 0, 0x04, 0xd2, 0, 0, 0, 0, 0, 0, 0, 0)
	client, _ = hex.DecodeString("741bef5857e1fe526df892a598071e82f14e26b94f510eb2f7b02486499f8103")
	server, _ = hex.DecodeString("ff529da1d60c4552f36f764f2dc7ab3214776636fcef53bddcdf11e80487f5bf")
	return key, nonce, challenge, client, server
}

// Plays an agent that says exactly what it is told to, and returns what the client sent as its proof.
func playAgent(conn net.Conn, challenge, answer []byte) <-chan []byte {
	got := make(chan []byte, 1)
	go func() {
		defer conn.Close()
		hello := make([]byte, 80)
		if _, err := io.ReadFull(conn, hello); err != nil {
			got <- nil
			return
		}
		conn.Write(challenge)
		if len(challenge) < 80 {
			got <- nil
			return
		}
		proof := make([]byte, 32)
		io.ReadFull(conn, proof)
		conn.Write(answer)
		got <- proof
		io.Copy(io.Discard, conn)
	}()
	return got
}

func TestPublishedVector(t *testing.T) {
	key, nonce, challenge, client, server := vector(t)
	near, far := net.Pipe()
	got := playAgent(far, challenge, server)
	conn, err := Client(near, key, Options{nonce: &nonce, OwnCID: 2, OwnPort: 1234, MinimumGeneration: 1})
	if err != nil {
		t.Fatal(err)
	}
	if proof := <-got; !bytes.Equal(proof, client) {
		t.Errorf("message 3 is %x", proof)
	}
	if conn.Generation != 1 || conn.InstanceID[15] != 15 {
		t.Errorf("generation %d, instance %x", conn.Generation, conn.InstanceID)
	}
	conn.Close()
}

func TestBadAgentsAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(challenge, answer []byte) ([]byte, []byte)
		options Options
		want    error
	}{
		"magic":      {change: func(c, a []byte) ([]byte, []byte) { c[0] ^= 1; return c, a }},
		"version":    {change: func(c, a []byte) ([]byte, []byte) { c[9] = 2; return c, a }},
		"suite":      {change: func(c, a []byte) ([]byte, []byte) { c[11] = 2; return c, a }},
		"reserved":   {change: func(c, a []byte) ([]byte, []byte) { c[79] = 1; return c, a }},
		"generation": {options: Options{MinimumGeneration: 2}},
		"cid":        {options: Options{OwnCID: 1}},
		"port":       {options: Options{OwnPort: 1235}},
		"proof":      {change: func(c, a []byte) ([]byte, []byte) { a[31] ^= 1; return c, a }},
		"instance":   {change: func(c, a []byte) ([]byte, []byte) { c[48] ^= 1; return c, a }},
		"short":      {change: func(c, a []byte) ([]byte, []byte) { return c[:79], a }, want: ErrNotReady},
		"silent":     {change: func(c, a []byte) ([]byte, []byte) { return nil, a }, want: ErrNotReady},
		"refusing":   {change: func(c, a []byte) ([]byte, []byte) { return c, nil }, want: ErrRefused},
	} {
		t.Run(name, func(t *testing.T) {
			key, nonce, challenge, _, server := vector(t)
			if c.change != nil {
				challenge, server = c.change(challenge, server)
			}
			near, far := net.Pipe()
			if name == "refusing" {
				go func() {
					io.ReadFull(far, make([]byte, 80))
					far.Write(challenge)
					io.ReadFull(far, make([]byte, 32))
					far.Close()
				}()
			} else {
				playAgent(far, challenge, server)
			}
			c.options.nonce = &nonce
			conn, err := Client(near, key, c.options)
			if err == nil {
				conn.Close()
				t.Fatal("accepted")
			}
			if c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestKeys(t *testing.T) {
	digits := bytes.Repeat([]byte("ab"), 32)
	for name, content := range map[string][]byte{
		"raw": bytes.Repeat([]byte{7}, 32), "hex": digits, "newline": append(bytes.Clone(digits), '\n'),
	} {
		if _, err := ParseKey(content); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, content := range map[string][]byte{
		"empty": nil, "short": digits[:63], "long": append(bytes.Clone(digits), 'a'), "zero": make([]byte, 32),
		"newlines": append(bytes.Clone(digits), "\n\n"...), "raw class 3": append([]byte("class3:"), make([]byte, 32)...),
	} {
		if _, err := ParseKey(content); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	key, err := ParseKey(append([]byte("class3:"), digits...))
	if err != nil {
		t.Fatal(err)
	}
	near, far := net.Pipe()
	defer far.Close()
	if _, err := Client(near, key, Options{Class: Control}); err == nil {
		t.Error("a read-only key was used for control")
	}
	secret, _ := ParseKey(bytes.Repeat([]byte{7}, 32))
	monitor, err := secret.ReadOnlyKey()
	if err != nil || !monitor.readOnly || monitor.bytes == secret.bytes {
		t.Errorf("monitor's key: %v %v", monitor, err)
	}
}
