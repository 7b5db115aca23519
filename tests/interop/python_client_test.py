#!/usr/bin/env python3
"""Drives a running agent with berth_client.py: what must work, and what must be refused, over the wire.

BERTH_ADDRESS and BERTH_SECRET_FILE say which agent; it must have nothing else to do meanwhile. With the id of a
container whose output is to be read in BERTH_STREAM_CONTAINER, streams are tested too."""
import os, struct, sys, time
import berth_client as berth

ADDRESS, SECRET = os.environ["BERTH_ADDRESS"], berth.parse_secret(open(os.environ["BERTH_SECRET_FILE"], "rb").read())
GUEST, TASK = "berth.v1.Guest", "containerd.task.v3.Task"
INVALID_ARGUMENT, PERMISSION_DENIED, RESOURCE_EXHAUSTED, NOT_FOUND, UNIMPLEMENTED = 3, 7, 8, 5, 12


def dial():
    """Dials for up to 5 s, as the page says of an agent that is starting."""
    wait, deadline = 0.01, time.monotonic() + 5
    while True:
        try:
            sock = berth.dial(ADDRESS)
            sock.settimeout(10)
            return sock
        except (OSError, EOFError):
            if time.monotonic() > deadline:
                raise
            time.sleep(wait)
            wait = min(2 * wait, 0.2)


def connect(n=berth.CONTROL):
    sock = dial()
    berth.handshake(sock, berth.class_key(SECRET, n), n)
    return berth.Control(sock)


def expect_end(sock, what):
    """The agent closes without another byte."""
    try:
        data = sock.recv(1)
    except ConnectionError:
        data = b""
    assert data == b"", f"{what}: got {data!r}, wanted the connection closed"


def expect_error(code, call, *arguments):
    try:
        call(*arguments)
    except berth.CallError as error:
        got, message = error.args
        assert got == code, f"{arguments}: got status {got} ({message}), wanted {code}"
        assert message and "\n" not in message, f"{arguments}: {message!r} is no line of text"
        return
    raise AssertionError(f"{arguments}: succeeded, wanted status {code}")


def frame(stream_id, kind, flags, body, length=None):
    return struct.pack(">IIBB", len(body) if length is None else length, stream_id, kind, flags) + body


def request(service, method):
    return berth.field(1, service.encode()) + berth.field(2, method.encode())


class Recorded:
    """Plays what an agent said, and keeps what the client says."""
    family = None

    def __init__(self, incoming): self.incoming, self.sent = incoming, b""

    def sendall(self, data): self.sent += data

    def recv(self, count):
        data, self.incoming = self.incoming[:count], self.incoming[count:]
        return data


def test_published_vector():
    """Vector A of the page, by the client's own code."""
    challenge = (berth.MAGIC + struct.pack(">HHI", 1, 1, 1) + b"\x22" * 32 + bytes(range(16)) +
                 struct.pack(">II", 2, 1234) + bytes(8))
    server_proof = bytes.fromhex("ff529da1d60c4552f36f764f2dc7ab3214776636fcef53bddcdf11e80487f5bf")
    sock, urandom = Recorded(challenge + server_proof), os.urandom
    os.urandom = lambda count: b"\x11" * count
    try:
        berth.handshake(sock, berth.class_key(bytes(range(32)), berth.CONTROL), berth.CONTROL)
    finally:
        os.urandom = urandom
    assert sock.sent[80:].hex() == "741bef5857e1fe526df892a598071e82f14e26b94f510eb2f7b02486499f8103"


def test_stream_frames():
    sock = Recorded(bytes.fromhex("060000000000000c" "0000000000000005" "00100000" "0100000000000002" "6869"
                                  "0400000000000008" "0000000000000003" "0200000000000000" "0500000000000004" "00000000"))
    kinds = [kind for kind, payload in berth.read_stream(sock)]
    assert kinds == [berth.ATTACHED, berth.DATA, berth.LOST, berth.EOF, berth.CLOSED], kinds
    acks = [int.from_bytes(sock.sent[i + 8:i + 16], "big") for i in range(0, len(sock.sent), 16)]
    assert acks == [7, 10, 10], acks


def test_info():
    info = berth.fields(connect().call(GUEST, "Info"))
    assert len(info[2]) == 16, "instance id"


def test_wrong_secret():
    for n in (berth.CONTROL, berth.READ_ONLY):
        sock = dial()
        try:
            berth.handshake(sock, berth.class_key(bytes(31) + b"\x01", n), n)
        except berth.Refused:
            continue
        raise AssertionError(f"class {n}: a wrong secret was accepted")


def test_wrong_class():
    sock = dial()
    try:
        berth.handshake(sock, berth.class_key(SECRET, berth.READ_ONLY), berth.CONTROL)
    except berth.Refused:
        return
    raise AssertionError("the key of class 3 opened class 1")


def test_unknown_ticket():
    sock = dial()
    try:
        berth.handshake(sock, berth.class_key(SECRET, berth.STREAM), berth.STREAM, b"\x05" * 32)
    except berth.Refused:
        return
    raise AssertionError("a made-up ticket was accepted")


def test_no_handshake():
    sock = dial()
    sock.sendall(frame(1, 1, 0, request(GUEST, "Info")))
    expect_end(sock, "ttrpc without a handshake")
    sock = dial()
    sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
    expect_end(sock, "another protocol")


def test_bad_hello():
    good = bytearray(berth.hello(berth.CONTROL, bytes(32)))
    for offset, value in ((7, 0), (8, 0), (8, 2), (8, 4), (9, 0), (9, 2), (9, 5), (10, 1), (15, 1), (48, 1), (79, 1)):
        bad = bytearray(good)
        bad[offset] = value
        sock = dial()
        sock.sendall(bad)
        expect_end(sock, f"hello with byte {offset} = {value}")


def test_truncated_handshake():
    good = berth.hello(berth.CONTROL, bytes(32))
    for length in range(0, 80, 13):
        sock = dial()
        sock.sendall(good[:length])
        sock.close()
    for length in (1, 31):
        sock = dial()
        sock.sendall(good)
        berth.receive(sock, 80)
        sock.sendall(bytes(length))
        sock.close()
    silent = dial()
    silent.sendall(good[:79])
    started = time.monotonic()
    expect_end(silent, "a hello without its last byte")
    assert 1.5 < time.monotonic() - started < 5, "2 s are the time for a handshake"


def test_silent_connections_keep_nobody_out():
    silent = [dial() for _ in range(100)]
    test_info()
    for sock in silent:
        sock.close()


def test_read_only():
    monitor = connect(berth.READ_ONLY)
    monitor.call(GUEST, "Info")
    monitor.call(GUEST, "List")
    expect_error(PERMISSION_DENIED, monitor.call, TASK, "Kill", berth.field(1, b"web") + berth.field(3, 9))
    expect_error(PERMISSION_DENIED, monitor.call, TASK, "Create", berth.field(1, b"web"))
    expect_error(PERMISSION_DENIED, monitor.call, GUEST, "OpenStream")
    expect_error(NOT_FOUND, monitor.call, TASK, "State", berth.field(1, b"no-such-container"))


def test_bad_calls():
    control = connect()
    expect_error(UNIMPLEMENTED, control.call, "no.such.Service", "Info")
    expect_error(UNIMPLEMENTED, control.call, GUEST, "NoSuchMethod")
    expect_error(INVALID_ARGUMENT, control.call, TASK, "State", b"\x0a\xff")
    for number, kind, flags, body in ((2, 1, 0, request(GUEST, "Info")), (1, 1, 0, request(GUEST, "Info")),
                                      (101, 1, 8, request(GUEST, "Info")), (101, 1, 0, b"\x0a"),
                                      (101, 1, 0, b"\x20" + b"\xff" * 9 + b"\x01"), (1, 3, 0, b"x"), (99, 3, 5, b"")):
        control.sock.sendall(frame(number, kind, flags, body))
        expect_error(INVALID_ARGUMENT, control.answer)
    control.sock.sendall(frame(7, 200, 0xff, b"of a later version"))
    control.call(GUEST, "Info")


def test_oversized_frame():
    control = connect()
    largest = berth.field(3, bytes(4 * 1024 * 1024 - 5))
    control.sock.sendall(frame(1, 1, 0, largest))
    expect_error(UNIMPLEMENTED, control.answer)
    control.sock.sendall(frame(3, 1, 0, b"", 4 * 1024 * 1024 + 1))
    expect_error(RESOURCE_EXHAUSTED, control.answer)
    expect_end(control.sock, "after an oversized frame")
    test_info()


def test_stream():
    container = os.environ.get("BERTH_STREAM_CONTAINER")
    if not container:
        return "skipped: BERTH_STREAM_CONTAINER is not set"
    ask = berth.field(1, container.encode()) + berth.field(3, 2)
    ticket = berth.fields(connect().call(GUEST, "OpenStream", ask))[1]
    sock = dial()
    berth.handshake(sock, berth.class_key(SECRET, berth.STREAM), berth.STREAM, ticket)
    frames = list(berth.read_stream(sock))
    assert frames[0][0] == berth.ATTACHED, frames[0]
    assert (berth.EOF, b"") in frames, "no EOF"
    assert frames[-1] == (berth.CLOSED, bytes(4)), frames[-1]
    again = dial()
    try:
        berth.handshake(again, berth.class_key(SECRET, berth.STREAM), berth.STREAM, ticket)
    except berth.Refused:
        return f"{sum(len(payload) for kind, payload in frames if kind == berth.DATA)} bytes"
    raise AssertionError("a ticket was good twice")


def main():
    failures = 0
    for name, test in [entry for entry in globals().items() if entry[0].startswith("test_")]:
        try:
            print(f"ok      {name} {test() or ''}", flush=True)
        except Exception as error:  # every failure is one line; the others still run
            failures += 1
            print(f"FAILED  {name}: {type(error).__name__}: {error}", flush=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
