# Who may talk to the agent, over the host's vsock.
# suite: vsock
# limit: 120
import os
import socket
import struct
import threading
import time

from harness import Failure
from host import berth, expect, expect_error, expect_nothing_left, shim_of, shims, wait_for

READ_ONLY_MAY = {shims.TASK: ("State", "Pids", "Wait", "Stats", "Connect"),
                 shims.GUEST: ("Info", "List", "Subscribe", "WatchMemoryEvents"), shims.EVENTS: ("Subscribe",)}
ALL = {shims.TASK: ("State", "Create", "Start", "Delete", "Pids", "Pause", "Resume", "Checkpoint", "Kill", "Exec", "ResizePty",
                    "CloseIO", "Update", "Wait", "Stats", "Connect", "Shutdown"),
       shims.GUEST: ("Info", "List", "Subscribe", "WatchMemoryEvents", "OpenStream"), shims.EVENTS: ("Subscribe",)}


def _expect_refused(shim, n, key, what, ticket=bytes(32)):
    sock = shim.dial()
    try:
        berth.handshake(sock, key, n, ticket)
    except berth.Refused:
        return
    finally:
        sock.close()
    raise Failure(f"{what}: accepted")


def _expect_closed(sock, what):
    try:
        data = sock.recv(1)
    except ConnectionError:
        data = b""
    except TimeoutError:
        raise Failure(f"{what}: the connection stays open") from None
    expect(data == b"", f"{what}: got {data!r}, not the end")


def case_the_guests_own_loopback_is_refused(guest):
    # This suite's guests are booted without berth.allow_local.
    done = guest.sh("BERTH_ADDRESS=vsock://1:1023 BERTH_SECRET_FILE=/tests/secret timeout 20 berthctl info")
    expect(done.status != 0, "CID 1 was served")
    expect(len(done.err.strip().splitlines()) == 1, f"not one line: {done.err!r}")


def case_wrong_secrets(guest):
    shim = shim_of(guest)
    for name, secret in (("another", os.urandom(32)), ("zero", bytes(32)), ("one bit", bytes([shim.secret[0] ^ 1]) + shim.secret[1:])):
        for n in (berth.CONTROL, berth.READ_ONLY):
            _expect_refused(shim, n, berth.class_key(secret, n), f"the {name} secret, class {n}")
    for key_class, n in ((2, 1), (3, 1), (1, 3), (2, 3)):
        _expect_refused(shim, n, berth.class_key(shim.secret, key_class), f"the key of class {key_class} for class {n}")
    _expect_refused(shim, 2, berth.class_key(shim.secret, 1), "the key of class 1 for class 2", os.urandom(32))
    shim.info()


def case_a_proof_is_good_for_one_connection(guest):
    # What one connection proved is worth nothing on another, and the agent's own proof is none of the client's.
    shim = shim_of(guest)
    key = berth.class_key(shim.secret, 1)

    def half(reflect):
        sock = shim.dial()
        first = berth.hello(1, bytes(32))
        sock.sendall(first)
        second = berth.receive(sock, 80)
        if reflect:
            return sock, second
        kc = berth.hkdf(key, second[48:64], b"berth/1 client")
        return sock, berth.mac(kc, b"berth/1 client" + berth.hashlib.sha256(first + second).digest())

    sock, proof = half(False)
    other, _ = half(False)
    other.sendall(proof)
    _expect_closed(other, "the proof of another connection")
    sock.sendall(proof)
    server_proof = berth.receive(sock, 32)
    third, _ = half(False)
    third.sendall(server_proof)
    _expect_closed(third, "the agent's own proof")
    reflected, challenge = half(True)
    reflected.sendall(challenge[16:48])
    _expect_closed(reflected, "the agent's nonce")


def case_bad_hellos(guest):
    shim = shim_of(guest)
    good = bytearray(berth.hello(berth.CONTROL, bytes(32)))
    for offset, value in [(i, good[i] ^ 0x20) for i in range(8)] + [(8, n) for n in (0, 4, 5, 255)] + \
            [(9, n) for n in (0, 2, 4, 5, 129)] + [(n, 1) for n in range(10, 16)] + [(48, 1), (79, 255)]:
        bad = bytearray(good)
        bad[offset] = value
        sock = shim.dial()
        sock.sendall(bad)
        _expect_closed(sock, f"byte {offset} = {value}")
    sock = shim.dial()
    sock.sendall(berth.hello(berth.STREAM, bytes(32)))
    _expect_closed(sock, "class 2 without a ticket")
    for first in (b"\0", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\xff" * 80):
        sock = shim.dial()
        sock.sendall(first)
        _expect_closed(sock, repr(first[:16]))


def case_truncated_handshakes(guest):
    shim = shim_of(guest)
    good = berth.hello(berth.CONTROL, bytes(32))
    for length in range(1, 80, 6):
        sock = shim.dial()
        sock.sendall(good[:length])
        sock.close()
    for length in range(0, 32, 5):
        sock = shim.dial()
        sock.sendall(good)
        berth.receive(sock, 80)
        sock.sendall(bytes(length))
        sock.close()
    # One byte at a time is as good as all at once.
    sock = shim.dial()
    key = berth.class_key(shim.secret, 1)
    for byte in good:
        sock.sendall(bytes([byte]))
    second = berth.receive(sock, 80)
    kc = berth.hkdf(key, second[48:64], b"berth/1 client")
    for byte in berth.mac(kc, b"berth/1 client" + berth.hashlib.sha256(good + second).digest()):
        sock.sendall(bytes([byte]))
    berth.receive(sock, 32)
    expect(len(berth.fields(berth.Control(sock).call(shims.GUEST, "Info"))[2]) == 16, "the call behind it")
    # A half that never becomes a whole is ended by the agent.
    for data in (b"", good[:1], good[:79]):
        sock = shim.dial()
        sock.sendall(data)
        _expect_closed(sock, f"a hello of {len(data)} bytes")


def case_silent_connections_keep_nobody_out(guest):
    shim = shim_of(guest)
    silent = [shim.dial() for _ in range(40)]
    for _ in range(5):
        shim.client().call(shims.GUEST, "Info")
        silent += [shim.dial() for _ in range(20)]
    for sock in silent:
        sock.close()


def case_control_connections_are_bounded(guest):
    shim = shim_of(guest)
    shim.info()  # one
    clients = [shim.client() for _ in range(63)]
    _expect_refused(shim, 1, berth.class_key(shim.secret, 1), "the 65th control connection")
    _expect_refused(shim, 3, berth.class_key(shim.secret, 3), "the 65th control connection, of class 3")
    for client in clients:
        client.call(shims.GUEST, "Info")
    clients.pop().close()
    wait_for(lambda: _gets_in(shim), 10, "the place of a closed one is free again")
    for client in clients:
        client.close()


def _gets_in(shim):
    sock = shim.dial()
    try:
        berth.handshake(sock, berth.class_key(shim.secret, 1), 1)
        return True
    except berth.Refused:
        return False
    finally:
        sock.close()


def case_class_3_reads_and_changes_nothing(guest):
    shim = shim_of(guest)
    shim.run("seen", ["/bin/sleep", "100000"], stdout="stream://")
    monitor = shim.client(berth.READ_ONLY)
    seen = shims.message((1, "seen"))
    for task in (shims.TASK, shims.TASK2):
        for method in ALL[shims.TASK]:
            if method in READ_ONLY_MAY[shims.TASK]:
                if method == "Wait":
                    waiting = monitor.start(task, method, seen)
                    continue
                monitor.call(task, method, seen)
            else:
                expect_error(shims.PERMISSION_DENIED, monitor.call, task, method, seen, part=method)
    for service in (shims.GUEST, shims.EVENTS):
        for method in ALL[service]:
            if method not in READ_ONLY_MAY[service]:
                expect_error(shims.PERMISSION_DENIED, monitor.call, service, method, seen, part=method)
            elif method in ("Subscribe", "WatchMemoryEvents"):
                subscription = monitor.start(service, method, flags=1)
                if service == shims.GUEST:
                    expect(subscription.next() is not None, method)
            else:
                monitor.call(service, method)
    expect(shim.state("seen")[0] == shims.RUNNING, "the container is not what it was")
    shim.kill("seen")
    expect(berth.fields(waiting.wait())[1] == 137, "Wait on the read-only connection")
    shim.remove("seen")
    expect_nothing_left(guest, shim)


def case_tickets(guest):
    shim = shim_of(guest)
    shim.run("ticket", ["/bin/cat"], stdin="stream://", stdout="stream://")
    key = berth.class_key(shim.secret, 2)
    _expect_refused(shim, 2, key, "a made-up ticket", os.urandom(32))
    ticket = shim.ticket("ticket")
    # A wrong proof does not use it up.
    _expect_refused(shim, 2, berth.class_key(os.urandom(32), 2), "a right ticket, a wrong secret", ticket)
    first = shims.Stream(shim.handshake(berth.STREAM, ticket))
    _expect_refused(shim, 2, key, "a used ticket", ticket)
    expect(first.is_silent(0.5), "the first attachment was disturbed")
    # It opens the stream that it was asked for and no other: what the client sends does not matter.
    stdin = shims.Stream(shim.handshake(berth.STREAM, shim.ticket("ticket", kind=shims.STDIN)))
    stdin.write(b"in")
    expect(first.read_exactly(2) == b"in", "the streams are mixed up")
    # A ticket in a class that has none.
    for n in (1, 3):
        sock = shim.dial()
        sock.sendall(berth.hello(n, shim.ticket("ticket")))
        _expect_closed(sock, f"a ticket with class {n}")
    # Ten seconds by the guest's clock.
    old = shim.ticket("ticket")
    guest.check("sleep 11")
    _expect_refused(shim, 2, key, "a ticket of 11 seconds ago", old)
    # The stream is gone before its ticket is used.
    old = shim.ticket("ticket")
    shim.remove("ticket")
    try:
        stream = shims.Stream(shim.handshake(berth.STREAM, old))
        while stream.closed is None:
            stream.read()
    except berth.Refused:
        pass
    expect_nothing_left(guest, shim)


def case_the_local_socket_is_roots(guest):
    out = guest.check("stat -c '%a %u %F' /run/berth/berth.sock").strip()
    expect(out == "600 0 socket", f"the local socket is {out!r}")
    guest.check("grep -q ^other: /etc/passwd || echo other:x:1000:1000::/:/bin/sh >>/etc/passwd")
    expect(guest.check("su other -c 'id -u'").strip() == "1000", "the test's own mistake")
    guest.check("""
    . /tests/lib.sh
    mode=$(stat -c %a /run/berth)
    berthctl info >/dev/null || fail 'root is refused'
    expect_refused berth.sock su other -c 'berthctl info'
    # With the modes out of the way: another uid, and one that is 0 in a user namespace of its own.
    chmod 711 /run/berth
    chmod 666 /run/berth/berth.sock
    su other -c 'timeout 10 berthctl info' >/dev/null 2>&1 && fail 'uid 1000 is served'
    su other -c 'timeout 10 unshare -Ur sh -c "id -u; berthctl info"' >$work/out 2>&1 && fail 'the root of a user namespace is served'
    expect_has 'the user namespace' "$(head -n 1 $work/out)" 0
    chmod 600 /run/berth/berth.sock
    chmod $mode /run/berth
    berthctl info >/dev/null || fail 'root is refused afterwards'
    """)


def own_host_cid_mode_and_ready(boot):
    # Without handshake, for shims that cannot do it; and the agent's knock at the host when it serves.
    with boot("--append", "berth.auth=host-cid", "--append", "berth.ready=4321") as guest:
        knocks = None
        if guest.address.startswith("hvsock://"):
            # The unix socket of a host's port, as vhost-device-vsock and Firecracker name it.
            path = guest.address[len("hvsock://"):].rsplit(":", 1)[0] + "_4321"
            knocks = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            knocks.bind(path)
        else:
            knocks = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
            knocks.bind((socket.VMADDR_CID_HOST, 4321))
        knocks.listen(4)
        knocks.settimeout(110)
        knock = knocks.accept()[0]
        knock.settimeout(20)
        expect(knock.recv(1) == b"", "the knock carries something")
        knocks.settimeout(2)
        guest.wait_ready()
        shim = shim_of(guest)
        sock = shim.dial()
        bare = shims.Client(sock)
        expect(berth.fields(bare.call(shims.GUEST, "Info"))[4] == b"host-cid", "Info does not tell the mode")
        bare.call(shims.TASK, "Create", shim.create_payload("bare", ["/bin/echo", "hello"], stdout="stream://"))
        bare.call(shims.TASK, "Start", shims.message((1, "bare")))
        ask = shims.message((1, "bare"), (3, shims.STDOUT))
        ticket = berth.fields(bare.call(shims.GUEST, "OpenStream", ask))[1]
        sock = shim.dial()
        sock.sendall(berth.hello(berth.STREAM, ticket))
        expect(shims.Stream(sock).read_all() == b"hello\n", "the bare stream")
        sock = shim.dial()
        sock.sendall(berth.hello(berth.STREAM, ticket))
        _expect_closed(sock, "a used ticket on a bare stream")
        # The handshake is still there, and a wrong one still refused.
        expect(len(shim.info()[2]) == 16, "the full handshake")
        _expect_refused(shim, 1, berth.class_key(os.urandom(32), 1), "a wrong secret")
        sock = shim.dial()
        sock.sendall(b"Z")
        _expect_closed(sock, "a first byte of nobody")
        # CID 2 stays required.
        done = guest.sh("BERTH_ADDRESS=vsock://1:1023 BERTH_SECRET_FILE=/tests/secret timeout 20 berthctl info")
        expect(done.status != 0, "CID 1 was served")
        # Silent for longer than a handshake may take, then ttrpc.
        sock = shim.dial()
        time.sleep(4)
        shims.Client(sock).call(shims.GUEST, "Info")
        shim.remove("bare")
        # A restarted agent serves in the same mode.
        guest.check(". /tests/lib.sh; kill -HUP 1; sleep 1; wait_for 20 berthctl info >/dev/null")
        shims.Client(shim.dial()).call(shims.GUEST, "Info")


def own_without_a_secret_everything_is_refused(boot):
    with boot("--secret-by", "none") as guest:
        guest.wait_ready()
        shim = shims.of_guest(guest)
        for n in (1, 3):
            sock = shim.dial()
            try:
                berth.handshake(sock, berth.class_key(shim.secret, n), n)
            except (OSError, EOFError, berth.Refused):
                continue
            raise Failure(f"class {n}: accepted by a guest without a secret")
        line = next((line for line in guest.console().splitlines() if "handshake.no_secret" in line), "")
        expect("every connection is refused" in line, "the console does not say so")
        expect(guest.console().count("handshake.no_secret") == 1, "it says so for each connection")
        # The local socket needs none.
        guest.check("berthctl info >/dev/null")


def case_handshakes_at_once(guest):
    # More than there are places, all honest: who is dropped before message 2 dials again, as the page says.
    shim = shim_of(guest)
    failures = []

    def knock():
        try:
            for _ in range(4):
                client = shim.client(limit_s=60)
                client.call(shims.GUEST, "Info")
                client.close()
        except Exception as error:  # told below
            failures.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=knock) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect(not failures, "; ".join(failures[:3]))


def case_generation_and_peer_are_what_they_are(guest):
    shim = shim_of(guest)
    seen = set()
    for _ in range(3):
        sock = shim.dial()
        sock.sendall(berth.hello(1, bytes(32)))
        second = berth.receive(sock, 80)
        version, suite, generation = struct.unpack(">HHI", second[8:16])
        cid, port = struct.unpack(">II", second[64:72])
        expect((version, suite, generation, cid) == (1, 1, 1, 2), f"{version} {suite} {generation} {cid}")
        expect(second[48:64] == shim.info()[2], "the instance id is not Info's")
        seen |= {second[16:48], port}
        sock.close()
    expect(len(seen) == 6, "a nonce or a port came twice")
