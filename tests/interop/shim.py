"""A small host shim over berth_client.py, for tests: concurrent calls, event subscriptions, containers and streams."""
import json
import os
import select
import socket
import struct
import threading
import time
import weakref

import berth_client as berth

TASK, TASK2 = "containerd.task.v3.Task", "containerd.task.v2.Task"
GUEST, EVENTS = "berth.v1.Guest", "containerd.services.events.v1.Events"
SPEC_TYPE = "types.containerd.io/opencontainers/runtime-spec/1/"
STDIN, STDOUT, STDERR = 1, 2, 3
(CANCELLED, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, ALREADY_EXISTS, PERMISSION_DENIED, RESOURCE_EXHAUSTED,
 FAILED_PRECONDITION, ABORTED, OUT_OF_RANGE, UNIMPLEMENTED, INTERNAL, UNAVAILABLE) = (1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14)
CREATED, RUNNING, STOPPED, PAUSED = 1, 2, 3, 4
EVENT_NAMES = {10: "created", 11: "started", 12: "exec_added", 13: "exec_started", 14: "exited", 15: "deleted",
               16: "paused", 17: "resumed", 18: "memory", 19: "stdio_lost", 20: "agent_restarted"}
CallError = berth.CallError


def all_fields(data):
    """[(number, value)] in wire order: bytes, or an int."""
    def number(i):
        value = shift = 0
        while True:
            value |= (data[i] & 127) << shift
            shift += 7
            i += 1
            if data[i - 1] < 128:
                return value, i
    found, i = [], 0
    while i < len(data):
        tag, i = number(i)
        if tag & 7 == 0:
            value, i = number(i)
        else:
            size, i = number(i) if tag & 7 == 2 else (4 if tag & 7 == 5 else 8, i)
            value, i = data[i:i + size], i + size
        found.append((tag >> 3, value))
    return found


def message(*pairs):
    """message((number, value), ...): str, bytes and int fields; None is left out."""
    return b"".join(berth.field(n, value.encode() if isinstance(value, str) else value) for n, value in pairs if value is not None)


class Event:
    """One berth.v1.Event."""

    def __init__(self, data):
        self.sequence = self.time_ns = self.pid = self.status = 0
        self.stream = self.lost = 0
        self.container = self.exec_id = ""
        self.kind, self.total, self.increase, self.reason = None, {}, {}, ""
        for number, value in all_fields(data):
            if number == 1:
                self.sequence = value
            elif number == 2:
                self.time_ns = value
            elif number == 3:
                self.container = value.decode()
            elif number == 4:
                self.exec_id = value.decode()
            elif number in EVENT_NAMES:
                self.kind = EVENT_NAMES[number]
                inner = berth.fields(value)
                if number in (10, 11, 13, 14):
                    self.pid, self.status = inner.get(1, 0), inner.get(2, 0)
                if number == 18:
                    self.total, self.increase = berth.fields(inner.get(1, b"")), berth.fields(inner.get(3, b""))
                if number == 19:
                    self.stream, self.lost = inner.get(1, 0), inner.get(2, 0)
                if number == 20:
                    self.reason = inner.get(1, b"").decode()

    def __repr__(self):
        return f"{self.sequence} {self.kind} {self.container}/{self.exec_id} pid {self.pid} status {self.status}"


class Pending:
    """A call under way."""

    def __init__(self, client, stream_id):
        self.client, self.stream_id = client, stream_id
        self.messages, self.done, self.error, self.payload = [], False, None, b""

    def wait(self, limit_s=60):
        """The response's payload. CallError, ConnectionError, TimeoutError."""
        self.client.wait_until(lambda: self.done, limit_s, f"stream {self.stream_id} is not answered")
        if self.error:
            raise self.error
        return self.payload

    def next(self, limit_s=60):
        """The next message of a server stream, or None at its good end."""
        self.client.wait_until(lambda: self.messages or self.done, limit_s, f"stream {self.stream_id} says nothing")
        if self.messages:
            return self.messages.pop(0)
        if self.error:
            raise self.error
        return None


class Client:
    """A control connection with any number of calls at once."""

    every = weakref.WeakSet()  # its thread keeps one alive until it is closed

    def __init__(self, sock):
        Client.every.add(self)
        self.sock = sock
        sock.settimeout(None)
        self._condition = threading.Condition()
        self._send_lock = threading.Lock()
        self._pending, self._last_id, self._gone = {}, -1, None
        threading.Thread(target=self._read, daemon=True).start()

    def start(self, service, method, payload=b"", flags=0, timeout_ns=0, namespace=None):
        body = message((1, service), (2, method), (3, payload), (4, timeout_ns or None))
        if namespace:
            body += berth.field(5, message((1, "containerd-namespace-ttrpc"), (2, namespace)))
        with self._send_lock:
            with self._condition:
                if self._gone:
                    raise ConnectionError(str(self._gone))
                self._last_id += 2
                pending = self._pending[self._last_id] = Pending(self, self._last_id)
            self.sock.sendall(struct.pack(">IIBB", len(body), pending.stream_id, 1, flags) + body)
        return pending

    def call(self, service, method, payload=b"", limit_s=60, **options):
        return self.start(service, method, payload, **options).wait(limit_s)

    def close(self):
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.sock.close()

    def is_closed(self):
        return self._gone is not None

    def wait_until(self, condition, limit_s, what):
        with self._condition:
            if not self._condition.wait_for(condition, limit_s):
                raise TimeoutError(what)

    def _read(self):
        try:
            while True:
                length, stream_id, kind, flags = struct.unpack(">IIBB", berth.receive(self.sock, 10))
                body = berth.receive(self.sock, length)
                with self._condition:
                    self._take(stream_id, kind, flags, body)
                    self._condition.notify_all()
        except (OSError, EOFError, ValueError) as error:
            with self._condition:
                self._gone = error
                for pending in self._pending.values():
                    pending.done, pending.error = True, ConnectionError(f"the connection ended: {error}")
                self._pending.clear()
                self._condition.notify_all()

    def _take(self, stream_id, kind, flags, body):
        pending = self._pending.get(stream_id)
        if pending is None:
            return
        if kind == 3:
            if not flags & 4:
                pending.messages.append(body)
            if not flags & 1:
                return
        else:
            response = berth.fields(body)
            status = berth.fields(response.get(1, b""))
            pending.payload = response.get(2, b"")
            if status.get(1, 0):
                pending.error = CallError(status[1], status.get(2, b"").decode())
        pending.done = True
        del self._pending[stream_id]


class Subscription:
    """Guest.Subscribe: all events with a number above `since`, in order, for a thread that collects them."""

    def __init__(self, client, instance, since):
        payload = message((1, instance), (2, since)) if since is not None else b""
        self.pending = client.start(GUEST, "Subscribe", payload, flags=1)

    def next(self, limit_s=60):
        """Event, ("subscribed", last) or ("lost", first)."""
        data = self.pending.next(limit_s)
        if data is None:
            raise ConnectionError("the subscription ended")
        fields = berth.fields(data)
        if 1 in fields:
            return "subscribed", berth.fields(fields[1]).get(2, 0)
        if 3 in fields:
            return "lost", berth.fields(fields[3]).get(1, 0)
        return Event(fields[2])


class Shim:
    """One guest's agent. Dials again while it restarts; keeps one control connection."""

    def __init__(self, address, secret, template):
        self.address, self.secret, self.template = address, secret, template
        self._client = None

    def dial(self, limit_s=5):
        wait, deadline = 0.01, time.monotonic() + limit_s
        while True:
            try:
                sock = berth.dial(self.address)
                sock.settimeout(30)
                return sock
            except (OSError, EOFError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(wait)
                wait = min(2 * wait, 0.2)

    def handshake(self, n=berth.CONTROL, ticket=bytes(32), limit_s=30, secret=None):
        """A socket behind the handshake; dials again when the agent was not there yet."""
        deadline = time.monotonic() + limit_s
        while True:
            sock = None
            try:
                sock = self.dial(limit_s)
                berth.handshake(sock, berth.class_key(secret or self.secret, n), n, ticket)
                return sock
            except berth.Refused:
                sock.close()
                raise
            except (OSError, EOFError):
                if sock:
                    sock.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def client(self, n=berth.CONTROL, limit_s=30):
        """A connection; one that the agent's end cut off during the proof is dialled again."""
        deadline = time.monotonic() + limit_s
        while True:
            try:
                return Client(self.handshake(n))
            except berth.Refused:
                # An agent that is killed between messages 3 and 4 looks like this, too.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    @property
    def control(self):
        if self._client is None or self._client.is_closed():
            self._client = self.client()
        return self._client

    def call(self, service, method, payload=b"", limit_s=60, again=False, **options):
        """`again`: asks again when the connection ends; only for what may be asked twice."""
        deadline = time.monotonic() + limit_s
        while True:
            try:
                return self.control.call(service, method, payload, limit_s, **options)
            except (OSError, EOFError):
                if not again or time.monotonic() > deadline:
                    raise

    # ---- the Guest service ----

    def info(self):
        return berth.fields(self.call(GUEST, "Info", again=True))

    def list(self):
        """{id: (status, pid, execs)}"""
        found = {}
        for number, value in all_fields(self.call(GUEST, "List", again=True)):
            if number == 1:
                fields = all_fields(value)
                first = dict(reversed(fields))
                found[first[1].decode()] = (first.get(2, b"").decode(), first.get(3, 0),
                                            [v.decode() for n, v in fields if n == 11])
        return found

    def subscribe(self, since=None, client=None):
        return Subscription(client or self.control, self.info()[2], since)

    def events(self, since=0, until=None, limit_s=60):
        """All logged events above `since`, up to a last one that until(event) knows (default: what is there now)."""
        client = self.client()
        try:
            subscription = Subscription(client, self.info()[2], since)
            events, last = [], None
            deadline = time.monotonic() + limit_s
            while True:
                got = subscription.next(max(0.1, deadline - time.monotonic()))
                if isinstance(got, Event):
                    events.append(got)
                elif got[0] == "lost":
                    raise AssertionError(f"events were lost: kept from {got[1]} on")
                else:
                    last = got[1]
                if until is None and last is not None and (last <= since or events and events[-1].sequence >= last):
                    return events
                if until is not None and events and until(events[-1]):
                    return events
        finally:
            client.close()

    def ticket(self, container, exec_id="", kind=STDOUT, resume=None, again=True):
        payload = message((1, container), (2, exec_id or None), (3, kind), (4, resume))
        return berth.fields(self.call(GUEST, "OpenStream", payload, again=again))[1]

    def stream(self, container, exec_id="", kind=STDOUT, resume=None, again=True):
        """An attached Stream. `again`: also over the agent's restarts."""
        deadline = time.monotonic() + 60
        while True:
            try:
                return Stream(self.handshake(berth.STREAM, self.ticket(container, exec_id, kind, resume, again)))
            except (berth.Refused, OSError, EOFError):
                # A restart of the agent loses tickets.
                if not again or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    # ---- the Task service ----

    def spec(self, argv, change=None, terminal=False):
        spec = json.loads(json.dumps(self.template))
        spec["process"].update(args=list(argv), terminal=terminal)
        spec["root"] = {"path": "rootfs", "readonly": False}
        if change:
            change(spec)
        return spec

    def create_payload(self, container, argv, stdin="", stdout="", stderr="", terminal=False, change=None, rootfs="/run/rootfs"):
        spec = json.dumps(self.spec(argv, change, terminal)).encode()
        mount = message((1, "bind"), (2, rootfs), (4, "rbind"), (4, "ro"))
        return message((1, container), (2, "/bundle/" + container), (3, mount), (4, 1 if terminal else None), (5, stdin or None),
                       (6, stdout or None), (7, stderr or None), (10, message((1, SPEC_TYPE + "Spec"), (2, spec))))

    def create(self, container, argv, **options):
        """The init's pid."""
        return berth.fields(self.call(TASK, "Create", self.create_payload(container, argv, **options)))[1]

    def start(self, container, exec_id=""):
        return berth.fields(self.call(TASK, "Start", message((1, container), (2, exec_id or None)))).get(1, 0)

    def run(self, container, argv, **options):
        self.create(container, argv, **options)
        return self.start(container)

    def exec_payload(self, container, exec_id, argv, stdin="", stdout="", stderr="", terminal=False):
        process = dict(self.template["process"], args=list(argv), terminal=terminal)
        spec = message((1, SPEC_TYPE + "Process"), (2, json.dumps(process).encode()))
        return message((1, container), (2, exec_id), (3, 1 if terminal else None), (4, stdin or None), (5, stdout or None),
                       (6, stderr or None), (7, spec))

    def add_exec(self, container, exec_id, argv, **options):
        self.call(TASK, "Exec", self.exec_payload(container, exec_id, argv, **options))

    def run_exec(self, container, exec_id, argv, **options):
        self.add_exec(container, exec_id, argv, **options)
        return self.start(container, exec_id)

    def state(self, container, exec_id=""):
        """(status, pid, exit status)"""
        fields = berth.fields(self.call(TASK, "State", message((1, container), (2, exec_id or None)), again=True))
        return fields.get(4, 0), fields.get(3, 0), fields.get(9, 0)

    def wait(self, container, exec_id="", limit_s=60):
        payload = message((1, container), (2, exec_id or None))
        return berth.fields(self.call(TASK, "Wait", payload, limit_s, again=True)).get(1, 0)

    def kill(self, container, number=9, exec_id="", everyone=False):
        self.call(TASK, "Kill", message((1, container), (2, exec_id or None), (3, number), (4, 1 if everyone else None)))

    def delete(self, container, exec_id=""):
        """(pid, exit status)"""
        fields = berth.fields(self.call(TASK, "Delete", message((1, container), (2, exec_id or None))))
        return fields.get(1, 0), fields.get(2, 0)

    def close_io(self, container, exec_id=""):
        self.call(TASK, "CloseIO", message((1, container), (2, exec_id or None), (3, 1)))

    def resize(self, container, width, height, exec_id=""):
        self.call(TASK, "ResizePty", message((1, container), (2, exec_id or None), (3, width), (4, height)))

    def remove(self, container):
        """Whatever its state, and whether it is there or not."""
        deadline = time.monotonic() + 60
        while True:
            try:
                status, _, _ = self.state(container)
                if status != STOPPED:
                    try:
                        self.kill(container, 9, everyone=True)
                    except CallError as error:
                        if error.args[0] != NOT_FOUND:
                            raise
                    self.wait(container)
                self.delete(container)
                return
            except CallError as error:
                if error.args[0] == NOT_FOUND:
                    return
                raise
            except (OSError, EOFError):
                if time.monotonic() > deadline:
                    raise


class Stream:
    """One attached stdio stream."""

    def __init__(self, sock):
        self.sock = sock
        sock.settimeout(60)
        self.eof, self.closed, self.lost = False, None, 0
        kind, payload = self.frame()
        if kind == berth.CLOSED:
            self.closed = int.from_bytes(payload, "big")
            self.offset = self.window = 0
            return
        assert kind == berth.ATTACHED and len(payload) == 12, f"frame {kind} came first"
        self.offset, self.window = struct.unpack(">QI", payload)
        self.acked = self.offset  # of stdin: by the agent

    def frame(self):
        kind, flags, zero, length = struct.unpack(">BBHI", berth.receive(self.sock, 8))
        assert flags == 0 and zero == 0 and length <= 65536, (kind, flags, zero, length)
        return kind, berth.receive(self.sock, length)

    def read(self, ack=True):
        """The next output: bytes, b"" for LOST (counted), None at EOF or CLOSED."""
        kind, payload = self.frame()
        if kind == berth.DATA:
            assert payload, "an empty DATA frame"
            self.offset += len(payload)
        elif kind == berth.LOST:
            count = int.from_bytes(payload, "big")
            self.offset, self.lost, payload = self.offset + count, self.lost + count, b""
        elif kind == berth.EOF:
            self.eof, payload = True, None
        elif kind == berth.CLOSED:
            self.closed = int.from_bytes(payload, "big")
            return None
        else:
            raise AssertionError(f"frame {kind} from the agent")
        if ack:
            self.ack()
        return payload

    def ack(self, offset=None):
        self.sock.sendall(struct.pack(">BBHIQ", berth.ACK, 0, 0, 8, self.offset if offset is None else offset))

    def read_exactly(self, count, ack=True):
        data = b""
        while len(data) < count:
            piece = self.read(ack)
            assert piece is not None, f"the end after {len(data)} of {count} bytes (CLOSED {self.closed})"
            data += piece
        return data

    def read_until(self, part, ack=True):
        data = b""
        while part not in data:
            piece = self.read(ack)
            assert piece is not None, f"the end, and no {part!r} in {data[-500:]!r} (CLOSED {self.closed})"
            data += piece
        return data

    def read_all(self, sink=None):
        """Everything up to CLOSED 0, given to sink(bytes), or returned."""
        data = []
        take = data.append if sink is None else sink
        while self.closed is None:
            piece = self.read()
            if piece:
                take(piece)
        assert self.closed == 0, f"CLOSED {self.closed}"
        assert self.eof, "CLOSED without EOF"
        return b"".join(data)

    def is_silent(self, seconds):
        return not select.select([self.sock], [], [], seconds)[0]

    # ---- stdin ----

    def write(self, data):
        """Sends within the window, taking ACKs as they come."""
        view = memoryview(data)
        while view:
            room = self.acked + self.window - self.offset
            if room == 0 or select.select([self.sock], [], [], 0)[0]:
                self.take_ack()
                continue
            piece = view[:min(room, 65536)]
            self.sock.sendall(struct.pack(">BBHI", berth.DATA, 0, 0, len(piece)) + piece)
            self.offset += len(piece)
            view = view[len(piece):]

    def take_ack(self):
        kind, payload = self.frame()
        if kind == berth.CLOSED:
            self.closed = int.from_bytes(payload, "big")
            raise ConnectionError(f"CLOSED {self.closed}")
        assert kind == berth.ACK, f"frame {kind} on stdin"
        acked = int.from_bytes(payload, "big")
        assert self.acked <= acked <= self.offset, f"ACK of {acked}, of {self.acked} to {self.offset}"
        self.acked = acked

    def flush(self):
        while self.acked < self.offset:
            self.take_ack()

    def end(self):
        self.sock.sendall(struct.pack(">BBHI", berth.EOF, 0, 0, 0))

    def close(self):
        self.sock.close()


def of_guest(guest, address=None):
    """The shim of a tests/guest guest."""
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    with open(os.path.join(top, "tests/guest/data/runc-spec.json"), encoding="utf-8") as source:
        template = json.load(source)
    return Shim(address or guest.address, guest.secret, template)
