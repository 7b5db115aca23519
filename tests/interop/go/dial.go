package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"berth/interop/handshake"

	"golang.org/x/sys/unix"
)

// dialer connects to one agent, by the addresses of proto/handshake.md.
type dialer struct {
	address string
	key     handshake.Key
	isLocal bool
}

func newDialer(address, secretFile string) (*dialer, error) {
	d := &dialer{address: address, isLocal: strings.HasPrefix(address, "/")}
	if d.isLocal {
		return d, nil
	}
	if secretFile == "" {
		return nil, errors.New("BERTH_SECRET_FILE is not set")
	}
	var err error
	d.key, err = handshake.ReadKey(secretFile)
	return d, err
}

// control dials again while the agent is starting, for up to 5 seconds.
func (d *dialer) control() (net.Conn, *handshake.Conn, error) {
	return d.dial(d.key, handshake.Options{Class: handshake.Control})
}

func (d *dialer) stream(ticket [32]byte) (net.Conn, error) {
	if d.isLocal {
		conn, err := net.Dial("unix", d.address)
		if err != nil {
			return nil, err
		}
		hello := make([]byte, 80)
		copy(hello, "BERTH/1\n\x02\x01")
		hello[16] = 1 // the nonce is compared with nothing here
		copy(hello[48:], ticket[:])
		_, err = conn.Write(hello)
		return conn, err
	}
	conn, _, err := d.dial(d.key, handshake.Options{Class: handshake.Stream, Ticket: ticket})
	return conn, err
}

func (d *dialer) dial(key handshake.Key, options handshake.Options) (net.Conn, *handshake.Conn, error) {
	if d.isLocal {
		conn, err := net.Dial("unix", d.address)
		return conn, nil, err
	}
	deadline := time.Now().Add(5 * time.Second)
	for pause := 10 * time.Millisecond; ; pause = min(pause*2, 500*time.Millisecond) {
		raw, err := d.raw(&options)
		if err == nil {
			var conn *handshake.Conn
			if conn, err = handshake.Client(raw, key, options); err == nil {
				return conn, conn, nil
			}
			if !errors.Is(err, handshake.ErrNotReady) {
				return nil, nil, err
			}
		}
		if time.Now().Add(pause).After(deadline) {
			return nil, nil, err
		}
		time.Sleep(pause)
	}
}

func (d *dialer) raw(options *handshake.Options) (net.Conn, error) {
	scheme, rest, found := strings.Cut(d.address, "://")
	if !found {
		return nil, fmt.Errorf("address %q", d.address)
	}
	switch scheme {
	case "unix":
		return net.Dial("unix", rest)
	case "hvsock":
		colon := strings.LastIndex(rest, ":")
		if colon < 0 {
			return nil, fmt.Errorf("address %q", d.address)
		}
		return dialHybrid(rest[:colon], rest[colon+1:])
	case "vsock":
		cid, port, _ := strings.Cut(rest, ":")
		return dialVsock(cid, port, options)
	}
	return nil, fmt.Errorf("address %q", d.address)
}

// dialHybrid asks a VMM's unix socket for the guest's port.
func dialHybrid(path, port string) (net.Conn, error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(conn, "CONNECT %s\n", port); err != nil {
		conn.Close()
		return nil, err
	}
	// One byte at a time would be the safe way for a peer that speaks first; this one waits for the hello.
	line, err := bufio.NewReaderSize(conn, 64).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "OK") {
		conn.Close()
		return nil, fmt.Errorf("%s: CONNECT %s: %q %v", path, port, line, err)
	}
	return conn, nil
}

type vsockAddr struct{ cid, port uint32 }

func (a vsockAddr) Network() string { return "vsock" }
func (a vsockAddr) String() string  { return fmt.Sprintf("%d:%d", a.cid, a.port) }

// vsockConn lets an AF_VSOCK socket be a net.Conn: os.File has the deadlines, once it is non-blocking.
type vsockConn struct {
	*os.File
	local, remote vsockAddr
}

func (c vsockConn) LocalAddr() net.Addr  { return c.local }
func (c vsockConn) RemoteAddr() net.Addr { return c.remote }

func dialVsock(cidText, portText string, options *handshake.Options) (net.Conn, error) {
	cid, err1 := strconv.ParseUint(cidText, 10, 32)
	port, err2 := strconv.ParseUint(portText, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	remote := vsockAddr{uint32(cid), uint32(port)}
	if err := unix.Connect(fd, &unix.SockaddrVM{CID: remote.cid, Port: remote.port}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("connect", err)
	}
	var local vsockAddr
	if name, err := unix.Getsockname(fd); err == nil {
		if vm, ok := name.(*unix.SockaddrVM); ok {
			local = vsockAddr{vm.CID, vm.Port}
		}
	}
	options.OwnPort = local.port
	options.OwnCID = 2
	if remote.cid == 1 {
		options.OwnCID = 1
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return vsockConn{os.NewFile(uintptr(fd), "vsock"), local, remote}, nil
}
