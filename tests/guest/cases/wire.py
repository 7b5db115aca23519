# Hostile bytes on the control channel: a named error or a closed connection, and the agent lives on.
# suite: vsock
# limit: 180
import json
import random
import struct

from harness import Failure
from host import agent_pid, berth, counts, expect, expect_error, expect_nothing_left, shim_of, shims, wait_for


def _frame(stream_id, kind, flags, body, length=None):
    return struct.pack(">IIBB", len(body) if length is None else length, stream_id, kind, flags) + body


def _request(service, method, payload=b""):
    return shims.message((1, service), (2, method), (3, payload or None))


def _ended(sock):
    """What the agent still says before it closes. Failure when it does not close."""
    data = b""
    try:
        while piece := sock.recv(65536):
            data += piece
    except ConnectionError:
        pass
    except TimeoutError:
        raise Failure("the connection stays open") from None
    return data


def _lives_on(guest, shim, pid):
    shim.info()
    expect(agent_pid(guest) == pid, "the agent was restarted")


def case_frames(guest):
    shim = shim_of(guest)
    pid = agent_pid(guest)
    info = _request(shims.GUEST, "Info")
    # Truncated anywhere, then the end.
    whole = _frame(1, 1, 0, info)
    for length in range(0, len(whole), 3):
        sock = shim.handshake()
        sock.sendall(whole[:length])
        sock.close()
    # Refused, and the connection goes on.
    control = berth.Control(shim.handshake())
    for number, kind, flags, body in ((2, 1, 0, info), (0, 1, 0, info), (101, 1, 0, b"\x0a\xff"), (101, 1, 0, b"\xff" * 64),
                                      (101, 1, 3, info), (101, 1, 255, info), (101, 1, 0, _request("", "")[:-1]), (7, 3, 0, b"x"),
                                      (101, 1, 0, b"\x22\x01x"), (101, 1, 0, b"\x0b")):
        control.sock.sendall(_frame(number, kind, flags, body))
        try:
            control.answer()
            raise Failure(f"stream {number}, type {kind}, flags {flags}: accepted")
        except berth.CallError as error:
            expect(error.args[0] in (shims.INVALID_ARGUMENT, shims.UNIMPLEMENTED) and "\n" not in error.args[1],
                   f"stream {number}, type {kind}, flags {flags}: {error.args}")
    for kind in (0, 2, 4, 127, 255):
        control.sock.sendall(_frame(9, kind, 255, b"of another version"))
    control.last_id = 199
    control.call(shims.GUEST, "Info")
    # A frame whose length no one would send: told, closed, and not read.
    for length in (4 * 1024 * 1024 + 1, 0x7fffffff, 0xffffffff):
        sock = shim.handshake()
        sock.sendall(_frame(1, 1, 0, b"", length))
        data = _ended(sock)
        expect(len(data) > 10, f"a frame of {length} bytes: closed without an answer")
        status = berth.fields(berth.fields(data[10:])[1])
        expect(status[1] == shims.RESOURCE_EXHAUSTED, f"a frame of {length} bytes: status {status}")
    _lives_on(guest, shim, pid)


def case_noise(guest):
    # Noise behind the handshake, with a seed that a failure names.
    shim = shim_of(guest)
    pid = agent_pid(guest)
    for seed in range(60):
        dice = random.Random(seed)
        sock = shim.handshake()
        try:
            for number in range(20):
                body = dice.randbytes(dice.randrange(200))
                if dice.random() < 0.5:
                    body = _request(dice.choice((shims.GUEST, shims.TASK, shims.EVENTS)),
                                    dice.choice(("Create", "Info", "Exec", "Update", "Subscribe", "OpenStream", "Delete", "Wait")), body)
                if dice.random() < 0.2:
                    sock.sendall(body)
                else:
                    sock.sendall(_frame(2 * number + 1, dice.choice((1, 1, 1, 2, 3)), dice.choice((0, 0, 1, 2, 4, 5)), body))
        except ConnectionError:
            pass
        sock.close()
        if agent_pid(guest) != pid:
            raise Failure(f"seed {seed}: the agent was restarted")
    expect_nothing_left(guest, shim)


def case_specs(guest):
    shim = shim_of(guest)
    pid = agent_pid(guest)
    good = json.dumps(shim.spec(["/bin/true"]))

    def create(text, type_url=shims.SPEC_TYPE + "Spec", container="hostile"):
        mount = shims.message((1, "bind"), (2, "/run/rootfs"), (4, "rbind"))
        text = text.encode() if isinstance(text, str) else text
        options = shims.message((1, type_url), (2, text))
        shim.call(shims.TASK, "Create", shims.message((1, container), (2, "/bundle"), (3, mount), (10, options)))

    bad = {"truncated": good[:-1], "half": good[:len(good) // 2], "not JSON": "{]", "an array": "[]", "null": "null", "a number": "1",
           "a NUL": good + "\0", "two documents": good + good, "deep": "[" * 100000, "deep objects": '{"a":' * 10000,
           "not UTF-8": good.replace("runc", "\udcff").encode("utf-8", "surrogateescape"),
           "a doubled key": good.replace('"ociVersion":', '"ociVersion": "1.0.2", "ociVersion":', 1),
           "args that are no list": good.replace('"args": ["/bin/true"]', '"args": "/bin/true"'),
           "no args": good.replace('"args": ["/bin/true"]', '"args": []'),
           "a NUL in args": good.replace('"/bin/true"', '"/bin/true\\u0000x"'),
           "a huge number": good.replace('"linux": {', '"linux": {"resources": {"memory": {"limit": 1e99}}, "x": {', 1),
           "an uid of -1": good.replace('"uid": 0', '"uid": -1'), "version 9": good.replace('"ociVersion": "1.', '"ociVersion": "9.')}
    for what, text in bad.items():
        expect(text != good, f"{what}: the test's own mistake")
        try:
            create(text)
        except shims.CallError as error:
            code, words = error.args
            expect(code in (shims.INVALID_ARGUMENT, shims.UNIMPLEMENTED, shims.RESOURCE_EXHAUSTED, shims.FAILED_PRECONDITION),
                   f"{what}: status {code}: {words}")
            expect("\n" not in words and len(words) < 2000, f"{what}: {words[:300]!r}")
            continue
        raise Failure(f"{what}: accepted")
    for name in ("", "../x", "a/b", ".", "..", ".x", "x" * 129, "x\n", "x\0", "berth.agent/x", "x y"):
        try:
            create(good, container=name)
        except shims.CallError as error:
            expect(error.args[0] == shims.INVALID_ARGUMENT, f"id {name[:20]!r}: {error.args}")
            continue
        raise Failure(f"id {name[:20]!r}: accepted")
    expect_error(shims.INVALID_ARGUMENT, create, good, "types.containerd.io/opencontainers/runtime-spec/1/Process")
    # 4 MiB of spec is a spec; its argument list is what the kernel does not take.
    for size in (1 << 20, 3 << 20):
        spec = json.loads(good)
        spec["process"]["args"] = ["/bin/true", "x" * size]
        try:
            create(json.dumps(spec))
            shim.remove("hostile")
        except shims.CallError as error:
            expect(error.args[0] in (shims.INVALID_ARGUMENT, shims.FAILED_PRECONDITION, shims.RESOURCE_EXHAUSTED), str(error))
    _lives_on(guest, shim, pid)
    expect_nothing_left(guest, shim)


def case_a_reader_that_does_not_read(guest):
    # Thousands of answers that nobody takes: bounded, and nobody else waits.
    shim = shim_of(guest)
    pid = agent_pid(guest)
    before = counts(guest)[2]
    sock = shim.handshake()
    sock.settimeout(20)
    request = _request(shims.GUEST, "Info")
    sent = 0
    try:
        for number in range(60000):
            sock.sendall(_frame(2 * number + 1, 1, 0, request))
            sent += 1
    except (OSError, TimeoutError):
        pass
    expect(counts(guest)[2] - before < 32 << 10, f"{counts(guest)[2] - before} KiB more after {sent} calls")
    _lives_on(guest, shim, pid)
    sock.close()
    wait_for(lambda: counts(guest)[2] - before < 4 << 10, 20, "the memory is given back")


def case_open_calls_are_bounded(guest):
    shim = shim_of(guest)
    shim.run("parked", ["/bin/sleep", "100000"])
    client = shim.client()
    parked = [client.start(shims.TASK, "Wait", shims.message((1, "parked"))) for _ in range(1024)]
    expect_error(shims.RESOURCE_EXHAUSTED, client.call, shims.GUEST, "Info", part="1024")
    shim.info()
    shim.kill("parked")
    for call in parked:
        expect(berth.fields(call.wait())[1] == 137, "the exit status")
    client.call(shims.GUEST, "Info")
    # A closed connection ends its calls, and no process.
    shim.remove("parked")
    shim.run("parked", ["/bin/sleep", "100000"])
    client.start(shims.TASK, "Wait", shims.message((1, "parked")))
    client.close()
    expect(shim.state("parked")[0] == shims.RUNNING, "the process went with the connection")
    shim.remove("parked")
    expect_nothing_left(guest, shim)


def case_deadlines(guest):
    shim = shim_of(guest)
    shim.run("late", ["/bin/sleep", "100000"])
    seen = shims.message((1, "late"))
    for method in ("Wait",):
        call = shim.control.start(shims.TASK, method, seen, timeout_ns=200_000_000)
        expect_error(shims.DEADLINE_EXCEEDED, call.wait, part=method)
    # 1 ns: the creation is undone.
    for _ in range(5):
        payload = shim.create_payload("late2", ["/bin/sleep", "100000"])
        call = shim.control.start(shims.TASK, "Create", payload, timeout_ns=1)
        try:
            call.wait()
            shim.remove("late2")
        except shims.CallError as error:
            expect(error.args[0] == shims.DEADLINE_EXCEEDED, str(error))
            expect_error(shims.NOT_FOUND, shim.state, "late2")
    shim.remove("late")
    expect_nothing_left(guest, shim)


def case_a_create_after_a_deadline_waits_until_the_first_is_undone(guest):
    def with_hooks(spec):
        spec["hooks"] = {"createRuntime": [{"path": "/bin/sleep", "args": ["sleep", "1000"]}],
                         "poststop": [{"path": "/bin/sleep", "args": ["sleep", "5"]}]}
    shim = shim_of(guest)
    slow = shim.create_payload("again", ["/bin/true"], change=with_hooks)
    call = shim.control.start(shims.TASK, "Create", slow, timeout_ns=500_000_000)
    expect_error(shims.DEADLINE_EXCEEDED, call.wait)
    # poststop runs now. One call waits for its end, until its own deadline; for a second there is no place.
    plain = shim.create_payload("again", ["/bin/sleep", "100000"])
    waiting = shim.control.start(shims.TASK, "Create", plain, timeout_ns=1_000_000_000)
    second = shim.control.start(shims.TASK, "Create", plain)
    expect_error(shims.ALREADY_EXISTS, second.wait)
    expect_error(shims.DEADLINE_EXCEEDED, waiting.wait)
    expect_error(shims.NOT_FOUND, shim.state, "again")
    shim.control.start(shims.TASK, "Create", plain).wait()
    shim.start("again")
    shim.remove("again")
    expect_nothing_left(guest, shim)
