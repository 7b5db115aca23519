"""A client of the agent, written from proto/handshake.md and nothing else."""
import hashlib, hmac, os, socket, struct
MAGIC, CONTROL, STREAM, READ_ONLY = b"BERTH/1\n", 1, 2, 3
DATA, EOF, ACK, LOST, CLOSED, ATTACHED = range(1, 7)
class Refused(Exception): "the agent closed the connection after our proof"
class CallError(Exception): "a call's status: (code, message)"
def mac(key, text): return hmac.new(key, text, hashlib.sha256).digest()
def hkdf(key, salt, info): return mac(mac(salt or bytes(32), key), info + b"\x01")
def class_key(secret, n): return hkdf(secret, b"", b"berth/1 class" + bytes([n]))
def parse_secret(content):
    return content if len(content) == 32 else bytes.fromhex(content.decode().removesuffix("\n"))
def receive(sock, count):
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece: raise EOFError(f"closed after {len(data)} of {count} bytes")
        data += piece
    return data
def dial(address):
    scheme, rest = address.split("://", 1)
    path, port = (rest, "") if scheme == "unix" else rest.rsplit(":", 1)
    sock = socket.socket(socket.AF_VSOCK if scheme == "vsock" else socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect((int(path), int(port)) if scheme == "vsock" else path)
    if scheme == "hvsock":
        sock.sendall(f"CONNECT {port}\n".encode())
        line = b""
        while not line.endswith(b"\n"): line += receive(sock, 1)
        if not line.startswith(b"OK"): raise EOFError(f"hvsock: {line!r}")
    return sock
def hello(n, ticket): return MAGIC + bytes([n, 1]) + bytes(6) + os.urandom(32) + ticket
def handshake(sock, key, n, ticket=bytes(32), oldest_generation=0):
    first = hello(n, ticket)
    sock.sendall(first)
    second = receive(sock, 80)
    version, suite, generation = struct.unpack(">HHI", second[8:16])
    cid, port = struct.unpack(">II", second[64:72])
    if second[:8] + second[72:] != MAGIC + bytes(8) or (version, suite) != (1, 1) or generation < oldest_generation:
        raise ValueError("not an answer to this hello")
    if sock.family == socket.AF_VSOCK and (port != sock.getsockname()[1] or cid not in (1, 2)): raise ValueError("relayed")
    kc, ks = (hkdf(key, second[48:64], b"berth/1 " + role) for role in (b"client", b"server"))
    third = mac(kc, b"berth/1 client" + hashlib.sha256(first + second).digest())
    sock.sendall(third)
    try: fourth = receive(sock, 32)
    except (EOFError, ConnectionError): raise Refused("authentication refused")
    if not hmac.compare_digest(fourth, mac(ks, b"berth/1 server" + hashlib.sha256(first + second + third).digest())):
        raise ValueError("the agent does not know the secret")
def varint(n): return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)
def field(n, value):
    return varint(n << 3) + varint(value) if isinstance(value, int) else varint(n << 3 | 2) + varint(len(value)) + value
def fields(data):
    def number(i, value=0, shift=0):
        value |= (data[i] & 127) << shift
        return (value, i + 1) if data[i] < 128 else number(i + 1, value, shift + 7)
    found, i = {}, 0
    while i < len(data):
        tag, i = number(i)
        size, i = number(i) if tag & 7 in (0, 2) else (4 if tag & 7 == 5 else 8, i)
        found[tag >> 3], i = (size, i) if tag & 7 == 0 else (data[i:i + size], i + size)
    return found
class Control:
    def __init__(self, sock): self.sock, self.last_id = sock, -1
    def call(self, service, method, payload=b""):
        self.last_id += 2
        body = field(1, service.encode()) + field(2, method.encode()) + field(3, payload)
        self.sock.sendall(struct.pack(">IIBB", len(body), self.last_id, 1, 0) + body)
        return self.answer()
    def answer(self):
        response = fields(receive(self.sock, struct.unpack(">I6x", receive(self.sock, 10))[0]))
        status = fields(response.get(1, b""))
        if status.get(1, 0): raise CallError(status[1], status.get(2, b"").decode())
        return response.get(2, b"")
def read_stream(sock):
    """Yields (type, payload) up to CLOSED; what was yielded is acknowledged when the next is asked for."""
    kind, offset = 0, 0
    while kind != CLOSED:
        kind, length = struct.unpack(">BxxxI", receive(sock, 8))
        yield kind, (payload := receive(sock, length))
        if kind in (ATTACHED, LOST): offset = int.from_bytes(payload[:8], "big") + (offset if kind == LOST else 0)
        if kind == DATA: offset += length
        if kind in (DATA, LOST, EOF): sock.sendall(struct.pack(">BBHIQ", ACK, 0, 0, 8, offset))
