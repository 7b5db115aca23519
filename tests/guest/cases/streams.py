# Stdio of containers and execs, over the host's vsock.
# suite: vsock
# limit: 180
import hashlib
import os
import socket
import threading
import time

from harness import Failure
from host import (DATA, berth, calm, expect, expect_error, expect_nothing_left, restart, sha256, shim_of, shims,
                  wait_for)

STREAM = "stream://"
SH = ["/bin/sh", "-c"]


class Sum:
    def __init__(self):
        self.hash, self.count = hashlib.sha256(), 0

    def __call__(self, data):
        self.hash.update(data)
        self.count += len(data)

    def expect(self, digest, count):
        expect(self.count == count, f"{self.count} bytes instead of {count}")
        expect(self.hash.hexdigest() == digest, f"{count} bytes, and others than were written")


def _sleeper(shim, name):
    shim.run(name, ["/bin/sleep", "100000"])


def case_64_mib_out(guest):
    shim = shim_of(guest)
    loop = "i=0; while [ $i -lt 16 ]; do cat /data; i=$((i + 1)); done"
    wanted = sha256(DATA * 16)
    shim.create("out", SH + [loop], stdout=STREAM, stderr=STREAM)
    shim.start("out")
    got = Sum()
    shim.stream("out").read_all(got)
    got.expect(wanted, 64 << 20)
    expect(shim.stream("out", kind=shims.STDERR).read_all() == b"", "something came on stderr")
    expect(shim.wait("out") == 0, "the exit status")
    shim.remove("out")
    expect_nothing_left(guest, shim)


def case_16_mib_in_of_init_and_exec(guest):
    shim = shim_of(guest)
    with open("/dev/urandom", "rb") as source:
        noise = source.read(1 << 20)
    wanted = hashlib.sha256(noise * 16).hexdigest()
    shim.create("in", SH + ["sha256sum; sleep 100000"], stdin=STREAM, stdout=STREAM)
    shim.start("in")
    shim.add_exec("in", "e", ["sha256sum"], stdin=STREAM, stdout=STREAM)
    shim.start("in", "e")
    for exec_id in ("", "e"):
        stdin = shim.stream("in", exec_id, shims.STDIN)
        for _ in range(16):
            stdin.write(noise)
        stdin.end()
        stdin.flush()
        out = shim.stream("in", exec_id).read_until(b"\n")
        expect(out.split()[0].decode() == wanted, f"{exec_id or 'init'}: another checksum: {out!r}")
    shim.remove("in")


def case_one_byte_writes_nobody_attached(guest):
    # Far more writes than a pipe has buffers.
    shim = shim_of(guest)
    wanted = sha256(DATA[:60000])
    shim.run("bytes", SH + ["dd if=/data bs=1 count=60000 2>/dev/null"], stdout=STREAM)
    expect(shim.wait("bytes") == 0, "the writer did not end")
    got = Sum()
    shim.stream("bytes").read_all(got)
    got.expect(wanted, 60000)
    shim.remove("bytes")


def case_one_byte_writes_attached(guest):
    shim = shim_of(guest)
    wanted = sha256(DATA[:60000])
    shim.create("bytes", SH + ["dd if=/data bs=1 count=60000 2>/dev/null"], stdout=STREAM)
    stream = shim.stream("bytes")
    shim.start("bytes")
    got = Sum()
    stream.read_all(got)
    got.expect(wanted, 60000)
    shim.remove("bytes")


def case_back_pressure_loses_nothing(guest):
    shim = shim_of(guest)
    wanted = sha256(DATA)
    pid = shim.run("blocked", ["/bin/cat", "/data"], stdout=STREAM)
    # /proc/PID/syscall: 40 is sendfile, 1 write: it sits in one of them, with an unchanging position.
    wait_for(lambda: guest.check(f"cut -d' ' -f1 /proc/{pid}/syscall").strip() in ("1", "40"), 30, "the writer waits")
    before = guest.check(f"grep -E 'wchar|rchar' /proc/{pid}/io")
    time.sleep(1)
    expect(guest.check(f"grep -E 'wchar|rchar' /proc/{pid}/io") == before, "the writer goes on with nobody attached")
    expect(shim.state("blocked")[0] == shims.RUNNING, "it does not run any more")
    got = Sum()
    shim.stream("blocked").read_all(got)
    got.expect(wanted, 4 << 20)
    shim.remove("blocked")


def case_an_unread_window_stops_the_writer(guest):
    # Attached, but without an ACK: at most the window and what the pipes hold is taken from the process.
    shim = shim_of(guest)
    shim.create("window", ["/bin/cat", "/data"], stdout=STREAM)
    stream = shim.stream("window")
    pid = shim.start("window")
    got = 0
    while not stream.is_silent(2):
        got += len(stream.read(ack=False))
    expect(0 < got <= stream.window, f"{got} bytes came, of a window of {stream.window}")
    expect(guest.check(f"cat /proc/{pid}/comm").strip() == "cat", "the writer is gone")
    stream.ack()
    rest = Sum()
    stream.read_all(rest)
    expect(got + rest.count == 4 << 20, f"{got} + {rest.count} bytes")
    shim.remove("window")


def case_detach_and_resume(guest):
    shim = shim_of(guest)
    wanted = sha256(DATA)
    shim.run("again", ["/bin/cat", "/data"], stdout=STREAM)
    got, resume = Sum(), None
    for step in range(12):
        stream = shim.stream("again", resume=resume)
        expect(stream.offset == got.count, f"attached at {stream.offset} instead of {got.count}")
        for number in range(1 + step // 2):
            got(stream.read(ack=number % 3 == 0))
        if step % 2:
            # Read, not acknowledged: asked for again from there.
            resume = got.count
        else:
            stream.ack()
            resume = None
            # The ACK has to arrive for the default to be right.
            time.sleep(0.3)
        stream.close()
    stream = shim.stream("again", resume=got.count)
    stream.read_all(got)
    got.expect(wanted, 4 << 20)
    shim.remove("again")


def case_resume_offsets_that_are_not_kept(guest):
    shim = shim_of(guest)
    shim.run("offsets", SH + ["head -c 100000 /data; sleep 100000"], stdout=STREAM)
    stream = shim.stream("offsets")
    stream.read_exactly(100000)
    stream.close()
    time.sleep(0.3)
    expect_error(shims.OUT_OF_RANGE, shim.ticket, "offsets", "", shims.STDOUT, 99999, part="100000")
    expect_error(shims.OUT_OF_RANGE, shim.ticket, "offsets", "", shims.STDOUT, 100001)
    expect_error(shims.NOT_FOUND, shim.ticket, "offsets", "", shims.STDERR)
    expect_error(shims.NOT_FOUND, shim.ticket, "offsets", "nobody", shims.STDOUT)
    expect_error(shims.INVALID_ARGUMENT, shim.ticket, "offsets", "", 0)
    expect_error(shims.INVALID_ARGUMENT, shim.ticket, "offsets", "", 4)
    expect(shim.stream("offsets", resume=100000).offset == 100000, "attached elsewhere")
    shim.remove("offsets")


def case_take_over(guest):
    shim = shim_of(guest)
    shim.run("taken", ["/bin/cat"], stdin=STREAM, stdout=STREAM)
    first_in, first_out = shim.stream("taken", kind=shims.STDIN), shim.stream("taken")
    first_in.write(b"one")
    expect(first_out.read_exactly(3, ack=False) == b"one", "the echo")
    second_in, second_out = shim.stream("taken", kind=shims.STDIN), shim.stream("taken")
    while first_out.closed is None:
        first_out.read(ack=False)
    expect(first_out.closed == shims.ABORTED, f"the older output ended with {first_out.closed}")
    try:
        while True:
            first_in.take_ack()
    except ConnectionError:
        expect(first_in.closed == shims.ABORTED, f"the older input ended with {first_in.closed}")
    expect((second_in.offset, second_out.offset) == (3, 0), f"attached at {second_in.offset}, {second_out.offset}")
    second_in.write(b"two")
    second_in.end()
    expect(second_out.read_all() == b"onetwo", "other bytes")
    shim.remove("taken")


def case_drop_keeps_the_newest(guest):
    shim = shim_of(guest)

    def drop(spec):
        spec["annotations"] = {"berth.stdio": "drop"}

    since = shim.info().get(14, 0)
    shim.run("drop", SH + ["cat /data; cat /data"], stdout=STREAM, change=drop)
    expect(shim.wait("drop") == 0, "the writer waited for a reader")
    stream = shim.stream("drop")
    first, data = stream.offset, stream.read_all()
    expect(stream.offset == 8 << 20, f"the end is at {stream.offset}")
    expect(first == 0 and stream.lost > 0, f"attached at {first}, {stream.lost} lost")
    expect(len(data) + stream.lost == 8 << 20, f"{len(data)} bytes and {stream.lost} lost")
    expect(len(data) >= 64 << 10, f"only {len(data)} bytes were kept")
    expect(data == (DATA * 2)[-len(data):], "they are not the newest")
    shim.remove("drop")
    told = [event for event in shim.events(since) if event.kind == "stdio_lost" and event.container == "drop"]
    expect({event.stream for event in told} == {shims.STDOUT}, f"told of {told}")
    expect(sum(event.lost for event in told) == stream.lost, f"{[event.lost for event in told]} are told, {stream.lost} were lost")


def case_exit_is_told_while_a_child_holds_the_pipe(guest):
    shim = shim_of(guest)
    _sleeper(shim, "holder")
    guest.check("rm -f /run/rootfs/go; mkfifo /run/rootfs/go")
    shim.run_exec("holder", "e", SH + ["(read line </go; echo late) & echo early; exit 3"], stdout=STREAM)
    expect(shim.wait("holder", "e") == 3, "the exit status")
    stream = shim.stream("holder", "e")
    expect(stream.read_until(b"\n") == b"early\n", "other output")
    expect(stream.is_silent(1), "the end came while a child holds the pipe")
    guest.check("echo go >/run/rootfs/go")
    expect(stream.read_all() == b"late\n", "not what the child wrote")
    shim.delete("holder", "e")
    shim.remove("holder")


def case_close_io(guest):
    shim = shim_of(guest)
    shim.run("stdin", ["/bin/cat"], stdin=STREAM, stdout=STREAM)
    # A connection that breaks closes nothing.
    for number, word in enumerate((b"one ", b"two ", b"three")):
        stdin = shim.stream("stdin", kind=shims.STDIN)
        expect(stdin.offset == 4 * number, f"goes on at {stdin.offset}")
        stdin.write(word)
        stdin.flush()
        stdin.close()
    expect(shim.state("stdin")[0] == shims.RUNNING, "it ended")
    shim.close_io("stdin")
    expect(shim.wait("stdin") == 0, "the exit status")
    expect(shim.stream("stdin").read_all() == b"one two three", "other bytes")
    shim.remove("stdin")
    # Before Start, and for an exec.
    _sleeper(shim, "stdin")
    shim.add_exec("stdin", "e", ["/bin/cat"], stdin=STREAM, stdout=STREAM)
    shim.close_io("stdin", "e")
    shim.start("stdin", "e")
    expect(shim.wait("stdin", "e") == 0, "an exec whose stdin was closed before")
    shim.remove("stdin")


def case_large_stdin_and_close_io_at_once(guest):
    # CloseIO overtakes nothing that was sent before it.
    shim = shim_of(guest)
    shim.run("fast", ["wc", "-c"], stdin=STREAM, stdout=STREAM)
    stdin = shim.stream("fast", kind=shims.STDIN)
    stdin.write(bytes(500_000))
    stdin.flush()
    shim.close_io("fast")
    expect(shim.stream("fast").read_all().strip() == b"500000", "bytes were cut off")
    shim.remove("fast")


def case_a_process_that_closes_its_stdin(guest):
    shim = shim_of(guest)
    shim.run("deaf", SH + ["exec <&-; sleep 100000"], stdin=STREAM)
    stdin = shim.stream("deaf", kind=shims.STDIN)
    stdin.write(bytes(4 << 20))  # more than any pipe: it is discarded, and holds up nobody
    stdin.flush()
    shim.remove("deaf")


def case_terminal(guest):
    shim = shim_of(guest)

    def size(spec):
        spec["process"]["consoleSize"] = {"height": 33, "width": 111}

    shim.create("tty", SH + ["stty size; trap 'stty size' WINCH; while :; do read -r line && echo \"<$line>\"; done"],
                terminal=True, stdin=STREAM, stdout=STREAM, change=size)
    out, stdin = shim.stream("tty"), shim.stream("tty", kind=shims.STDIN)
    shim.start("tty")
    expect(b"33 111\r\n" in out.read_until(b"111\r\n"), "the initial size")
    stdin.write(b"hello\n")
    text = out.read_until(b"<hello>\r\n")
    expect(text == b"hello\r\n<hello>\r\n", f"no echo as a terminal's: {text!r}")
    shim.resize("tty", 132, 43)
    out.read_until(b"43 132\r\n")
    # Resized between Exec and Start.
    shim.add_exec("tty", "e", ["stty", "size"], terminal=True, stdout=STREAM)
    shim.resize("tty", 90, 20, "e")
    shim.start("tty", "e")
    expect(shim.stream("tty", "e").read_all() == b"20 90\r\n", "the size that was set before Start")
    # ^C reaches the foreground process, as on a terminal.
    shim.run_exec("tty", "c", ["/bin/sleep", "100000"], terminal=True, stdin=STREAM, stdout=STREAM)
    shim.stream("tty", "c", shims.STDIN).write(b"\x03")
    expect(shim.wait("tty", "c") == 130, "^C")
    # The end of input is the terminal's EOF character, or its hang-up: a reader ends.
    shim.run_exec("tty", "h", ["/bin/cat"], terminal=True, stdin=STREAM, stdout=STREAM)
    stdin = shim.stream("tty", "h", shims.STDIN)
    stdin.write(b"x\n\x04")
    expect(shim.wait("tty", "h") == 0, "^D")
    expect(shim.stream("tty", "h").read_all().startswith(b"x\r\nx\r\n"), "what cat said")
    # Or the stream's end, which is typed into the terminal; CloseIO is the same. Also in the middle of a line.
    shim.run_exec("tty", "eof", ["/bin/cat"], terminal=True, stdin=STREAM, stdout=STREAM)
    stdin = shim.stream("tty", "eof", shims.STDIN)
    stdin.write(b"y\nz")
    stdin.end()
    expect(shim.wait("tty", "eof") == 0, "the end of a terminal's stream")
    expect(b"z" in shim.stream("tty", "eof").read_all(), "what cat said")
    shim.add_exec("tty", "close", ["/bin/cat"], terminal=True, stdin=STREAM, stdout=STREAM)
    shim.close_io("tty", "close")
    shim.start("tty", "close")
    expect(shim.wait("tty", "close") == 0, "CloseIO of a terminal")
    shim.remove("tty")
    expect_nothing_left(guest, shim)


class _Port:
    """A port of the host that a guest connects to."""

    def __init__(self, guest, number):
        if guest.address.startswith("hvsock://"):
            # The unix socket of a host's port, as vhost-device-vsock and Firecracker name it.
            self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            path = f"{guest.address[len('hvsock://'):].rsplit(':', 1)[0]}_{number}"
            if os.path.exists(path):
                os.unlink(path)
            self.listener.bind(path)
        else:
            self.listener = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
            self.listener.bind((socket.VMADDR_CID_HOST, number))
        self.listener.listen(4)
        self.listener.settimeout(60)
        self.uri = f"vsock://{number}"

    def accept(self):
        connection = self.listener.accept()[0]
        connection.settimeout(60)
        return connection

    def close(self):
        self.listener.close()


def _read_to_end(connection, pieces=None):
    got = b""
    while True:
        piece = connection.recv(65536)
        if not piece:
            connection.close()
            return got
        got += piece
        if pieces is not None:
            pieces(len(got))


def case_stdio_over_connections_to_the_host(guest):
    shim = shim_of(guest)
    ports = [_Port(guest, number) for number in (5101, 5102, 5103)]
    uris = dict(zip(("stdin", "stdout", "stderr"), (port.uri for port in ports)))
    shim.create("dial", SH + ["cat; echo late >&2; exit 7"], **uris)
    # Create answers when they stand.
    stdin, stdout, stderr = (port.accept() for port in ports)
    shim.start("dial")
    writer = threading.Thread(target=lambda: (stdin.sendall(DATA), stdin.close()))
    writer.start()
    expect(_read_to_end(stdout) == DATA, "other bytes than were sent")
    expect(_read_to_end(stderr) == b"late\n", "stderr")
    writer.join()
    expect(shim.wait("dial") == 7, "the exit status")
    expect(shim.state("dial")[0] == shims.STOPPED, "not stopped")
    expect_error(5, shim.ticket, "dial", "", shims.STDOUT, None, False)
    shim.delete("dial")
    # /dev/stdout can be opened again, as through any pipe; Delete leaves on its way what was written.
    shim.create("dial", SH + ["echo again >/dev/stdout; cat /data | head -c 60000"], stdout=ports[1].uri)
    stdout = ports[1].accept()
    shim.start("dial")
    expect(shim.wait("dial") == 0, "the exit status")
    shim.delete("dial")
    expect(_read_to_end(stdout) == b"again\n" + DATA[:60000], "what came after Delete")
    # An exec's are begun by Exec.
    _sleeper(shim, "dial")
    shim.add_exec("dial", "e", ["/bin/cat"], stdin=ports[0].uri, stdout=ports[1].uri)
    stdin, stdout = ports[0].accept(), ports[1].accept()
    shim.start("dial", "e")
    stdin.sendall(b"and back")
    expect(stdout.recv(100) == b"and back", "cat of an exec")
    shim.close_io("dial", "e")
    expect(_read_to_end(stdout) == b"", "after CloseIO")
    expect(shim.wait("dial", "e") == 0, "the exit status of the exec")
    for port in ports:
        port.close()
    # Nobody listens: Create fails and leaves nothing, an exec's Start fails.
    for wrong, code in (("vsock://2:5101", 3), ("vsock://", 3), ("vsock://0", 3)):
        expect_error(code, lambda: shim.create("none", ["/bin/true"], stdout=wrong), part="no port of the host")
    expect_error(12, lambda: shim.create("none", ["/bin/true"], stdout="vsock://5101", terminal=True), part="with a terminal")
    refused = []
    for call in (lambda: shim.create("none", ["/bin/true"], stdout="vsock://5199"), lambda: shim.start("dial", "none")):
        if refused:
            shim.add_exec("dial", "none", ["/bin/true"], stderr="vsock://5199")
        try:
            call()
        except shims.CallError as error:
            refused.append(error.args[1])
    expect(len(refused) == 2 and all("vsock://5199: connect: " in text for text in refused), f"refused as {refused}")
    shim.remove("dial")
    expect_nothing_left(guest, shim)


def case_connections_to_the_host_survive_the_agent(guest):
    shim = shim_of(guest)
    calm(guest)
    stdin_port, stdout_port = _Port(guest, 5111), _Port(guest, 5112)
    shim.create("keep", ["/bin/cat"], stdin=stdin_port.uri, stdout=stdout_port.uri)
    stdin, stdout = stdin_port.accept(), stdout_port.accept()
    shim.start("keep")

    def feed():
        for at in range(0, len(DATA), 65536):
            if at >= 3 * 65536:
                flows.wait()  # so that there is something to come after each restart
            stdin.sendall(DATA[at:at + 65536])
        stdin.close()

    flows = threading.Event()
    feeder = threading.Thread(target=feed)
    feeder.start()
    got = b""
    for kills in range(3):
        while len(got) < (kills + 1) * 32768:
            got += stdout.recv(4096)
        # Full buffers everywhere, and nobody in between.
        restart(guest)
        calm(guest)
        if kills == 1:
            flows.set()
    got += _read_to_end(stdout)
    feeder.join()
    expect(got == DATA, f"{len(got)} bytes, and not those that were sent")
    expect(shim.wait("keep") == 0, "the exit status")
    shim.remove("keep")
    for port in (stdin_port, stdout_port):
        port.close()
    calm(guest)
    expect_nothing_left(guest, shim)


def case_terminal_hangs_up(guest):
    # The session's leader ends: whoever is left on the terminal gets SIGHUP, and the stream ends.
    shim = shim_of(guest)
    _sleeper(shim, "hang")
    shim.run_exec("hang", "e", SH + ["sh -c 'trap \"echo hup >/tmp/hup; exit\" HUP; echo up; while :; do sleep 1; done' & "
                                     "read -r line; exit 0"],
                  terminal=True, stdin=STREAM, stdout=STREAM)
    out = shim.stream("hang", "e")
    out.read_until(b"up")
    shim.stream("hang", "e", shims.STDIN).write(b"\n")
    expect(shim.wait("hang", "e") == 0, "the exit status")
    out.read_all()
    shim.remove("hang")


def case_delete_leaves_undrained_output_readable(guest):
    shim = shim_of(guest)
    shim.run("gone", SH + ["head -c 50000 /data"], stdout=STREAM)
    shim.wait("gone")
    shim.delete("gone")
    expect_error(shims.NOT_FOUND, shim.state, "gone")
    expect_nothing_left(guest, shim)
    got = Sum()
    shim.stream("gone").read_all(got)
    got.expect(sha256(DATA[:50000]), 50000)
    wait_for(lambda: _is_unknown(shim, "gone"), 10, "the drained stream goes")
    # Attached while it is deleted.
    shim.run("gone", SH + ["head -c 50000 /data"], stdout=STREAM)
    stream = shim.stream("gone")
    stream.read(ack=False)
    shim.wait("gone")
    shim.delete("gone")
    stream.close()
    expect(len(shim.stream("gone", resume=0).read_all()) == 50000, "bytes are missing")


def _is_unknown(shim, name):
    try:
        shim.ticket(name)
        return False
    except shims.CallError as error:
        expect(error.args[0] == shims.NOT_FOUND, str(error))
        return True


def case_undrained_output_of_a_namesake(guest):
    # A new container takes the id over at once; the old one's output is not mixed into the new one's.
    shim = shim_of(guest)
    for word in ("old", "new"):
        shim.run("twice", SH + ["echo " + word], stdout=STREAM)
        shim.wait("twice")
        if word == "old":
            shim.delete("twice")
    expect(shim.stream("twice").read_all() == b"new\n", "the old one's output")
    shim.remove("twice")


def case_a_slow_reader_delays_nobody(guest):
    shim = shim_of(guest)
    shim.run("slow", ["yes"], stdout=STREAM)
    stuck = shim.stream("slow")
    stuck.read(ack=False)  # and nothing more of it, for ever
    silent_caller = shim.client()
    silent_caller.start(shims.GUEST, "Subscribe", flags=1)
    shim.run_exec("slow", "e", ["/bin/cat", "/data"], stdout=STREAM)
    got = Sum()
    shim.stream("slow", "e").read_all(got)
    got.expect(sha256(DATA), 4 << 20)
    expect(shim.state("slow")[0] == shims.RUNNING, "the slow one's state")
    silent_caller.close()
    stuck.close()
    shim.remove("slow")


def case_many_streams_at_once(guest):
    shim = shim_of(guest)
    _sleeper(shim, "many")
    wanted = sha256(DATA[:300000])
    failures = []

    def drive(number):
        try:
            name = f"e{number}"
            shim.run_exec("many", name, SH + ["head -c 300000 /data; head -c 1000 >&2"], stdin=STREAM, stdout=STREAM, stderr=STREAM)
            stdin = shim.stream("many", name, shims.STDIN)
            stdin.write(b"e" * 1000)
            got, errors = Sum(), Sum()
            shim.stream("many", name).read_all(got)
            shim.stream("many", name, shims.STDERR).read_all(errors)
            got.expect(wanted, 300000)
            expect(errors.count == 1000, f"{errors.count} bytes on stderr")
            expect(shim.wait("many", name) == 0, "the exit status")
            shim.delete("many", name)
        except Exception as error:  # told below, of whatever kind
            failures.append(f"exec {number}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=drive, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect(not failures, "; ".join(failures[:3]))
    shim.remove("many")
    expect_nothing_left(guest, shim)


def case_hostile_frames_on_a_stream(guest):
    shim = shim_of(guest)
    shim.run("hostile", SH + ["head -c 1000 /data; cat >/dev/null"], stdin=STREAM, stdout=STREAM)
    frames = {
        "an unknown type": bytes([9, 0, 0, 0, 0, 0, 0, 0]), "type 0": bytes(8), "flags": bytes([3, 1, 0, 0, 0, 0, 0, 8]) + bytes(8),
        "a byte that is not zero": bytes([3, 0, 1, 0, 0, 0, 0, 8]) + bytes(8), "a long DATA": bytes([1, 0, 0, 0, 0, 1, 0, 1]),
        "an empty DATA": bytes([1, 0, 0, 0, 0, 0, 0, 0]), "4 GiB": bytes([1, 0, 0, 0, 255, 255, 255, 255]),
        "a short ACK": bytes([3, 0, 0, 0, 0, 0, 0, 7]) + bytes(7), "EOF with a payload": bytes([2, 0, 0, 0, 0, 0, 0, 1, 0]),
        "the agent's ATTACHED": bytes([6, 0, 0, 0, 0, 0, 0, 12]) + bytes(12), "the agent's CLOSED": bytes([5, 0, 0, 0, 0, 0, 0, 4]) + bytes(4),
        "the agent's LOST": bytes([4, 0, 0, 0, 0, 0, 0, 8]) + bytes(7) + b"\x01",
    }
    only_out = {"DATA towards output": bytes([1, 0, 0, 0, 0, 0, 0, 1, 65]), "EOF towards output": bytes([2, 0, 0, 0, 0, 0, 0, 0]),
                "an ACK of what was not sent": bytes([3, 0, 0, 0, 0, 0, 0, 8]) + b"\xff" * 8}
    only_in = {"an ACK towards input": bytes([3, 0, 0, 0, 0, 0, 0, 8]) + bytes(8)}
    for kind, known in ((shims.STDOUT, {**frames, **only_out}), (shims.STDIN, {**frames, **only_in})):
        for what, data in known.items():
            if kind == shims.STDIN and what in ("an ACK of what was not sent",):
                continue
            stream = shim.stream("hostile", kind=kind)
            stream.sock.sendall(data)
            _expect_closed(stream, what)
    # After all of that the stream is what it was.
    stream = shim.stream("hostile")
    expect(stream.offset == 0, f"bytes were taken for acknowledged: {stream.offset}")
    stream.read_exactly(1000)
    shim.remove("hostile")
    expect_nothing_left(guest, shim)


def _expect_closed(stream, what):
    try:
        while stream.sock.recv(65536):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        raise Failure(f"{what}: the connection stays open") from None
