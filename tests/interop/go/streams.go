package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"

	task3 "github.com/containerd/containerd/api/runtime/task/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Stream frames, as proto/handshake.md has them.
const (
	frameData     = 1
	frameEOF      = 2
	frameAck      = 3
	frameClosed   = 5
	frameAttached = 6
)

func readFrame(conn net.Conn) (kind byte, payload []byte) {
	header := make([]byte, 8)
	must(io.ReadFull(conn, header))
	payload = make([]byte, binary.BigEndian.Uint32(header[4:]))
	must(io.ReadFull(conn, payload))
	return header[0], payload
}

func writeFrame(conn net.Conn, kind byte, payload []byte) {
	frame := binary.BigEndian.AppendUint32([]byte{kind, 0, 0, 0}, uint32(len(payload)))
	must(conn.Write(append(frame, payload...)))
}

// openStream asks for a ticket (stream: 1 stdin, 2 stdout, 3 stderr) and attaches with it.
func (s *suite) openStream(ctx context.Context, id string, stream uint64) (net.Conn, uint64) {
	var request, response emptypb.Empty
	message := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), id)
	message = protowire.AppendVarint(protowire.AppendTag(message, 3, protowire.VarintType), stream)
	request.ProtoReflect().SetUnknown(message)
	if err := s.client.Call(ctx, "berth.v1.Guest", "OpenStream", &request, &response); err != nil {
		panic(err)
	}
	var ticket [32]byte
	expect(copy(ticket[:], bytesFields(response.ProtoReflect().GetUnknown())[1]) == 32, "the ticket is too short")
	conn := must(s.dialer.stream(ticket))
	kind, payload := readFrame(conn)
	expect(kind == frameAttached && len(payload) == 12, "frame %d came first", kind)
	return conn, binary.BigEndian.Uint64(payload)
}

func (s *suite) streams() {
	s.check("stdin, stdout and stderr by stream channels", func(ctx context.Context) {
		request := s.request("streams", s.spec("cat; echo problem >&2"))
		request.Stdin, request.Stdout, request.Stderr = "stream://", "stream://", "stream://"
		must(s.v3.Create(ctx, request))
		defer s.remove(request.ID)
		in, _ := s.openStream(ctx, request.ID, 1)
		out, _ := s.openStream(ctx, request.ID, 2)
		errs, _ := s.openStream(ctx, request.ID, 3)
		must(s.v3.Start(ctx, &task3.StartRequest{ID: request.ID}))
		sent := bytes.Repeat([]byte("0123456789abcdef"), 4096*5)
		go func() {
			// Within the window: 320 KiB at a time is less than a stored pipe.
			for rest := sent; len(rest) > 0; {
				n := min(len(rest), 65536)
				writeFrame(in, frameData, rest[:n])
				rest = rest[n:]
			}
			writeFrame(in, frameEOF, nil)
		}()
		got, problem := readOutput(out), readOutput(errs)
		expect(bytes.Equal(got, sent), "%d bytes came of %d", len(got), len(sent))
		expect(string(problem) == "problem\n", "stderr %q", problem)
		waited := must(s.v3.Wait(ctx, &task3.WaitRequest{ID: request.ID}))
		expect(waited.ExitStatus == 0, "exit status %d", waited.ExitStatus)
	})
	s.check("output that was not acknowledged is sent again", func(ctx context.Context) {
		request := s.request("again", s.spec("echo first; echo second; sleep 1000"))
		request.Stdout = "stream://"
		must(s.v3.Create(ctx, request))
		defer s.remove(request.ID)
		must(s.v3.Start(ctx, &task3.StartRequest{ID: request.ID}))
		conn, offset := s.openStream(ctx, request.ID, 2)
		expect(offset == 0, "the first attachment is at %d", offset)
		readExactly(conn, "first\nsecond\n")
		writeFrame(conn, frameAck, binary.BigEndian.AppendUint64(nil, 6))
		// Another attachment takes over, and begins where the ACK was, or before if that had not arrived.
		conn, offset = s.openStream(ctx, request.ID, 2)
		expect(offset == 0 || offset == 6, "the second attachment is at %d", offset)
		readExactly(conn, "first\nsecond\n"[offset:])
		conn.Close()
	})
}

func readExactly(conn net.Conn, want string) {
	var got []byte
	for len(got) < len(want) {
		kind, payload := readFrame(conn)
		expect(kind == frameData, "frame %d", kind)
		got = append(got, payload...)
	}
	expect(string(got) == want, "%q, not %q", got, want)
}

func readOutput(conn net.Conn) (out []byte) {
	defer conn.Close()
	for {
		kind, payload := readFrame(conn)
		switch kind {
		case frameData:
			out = append(out, payload...)
			writeFrame(conn, frameAck, binary.BigEndian.AppendUint64(nil, uint64(len(out))))
		case frameEOF:
			writeFrame(conn, frameAck, binary.BigEndian.AppendUint64(nil, uint64(len(out))))
		case frameClosed:
			expect(binary.BigEndian.Uint32(payload) == 0, "closed with %d", payload)
			return out
		default:
			panic(fmt.Errorf("frame %d", kind))
		}
	}
}
