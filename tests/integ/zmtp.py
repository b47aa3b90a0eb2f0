"""Enough of ZMTP 3 (ZeroMQ's wire protocol, NULL mechanism) to play a daemon, or a stranger, without our code."""
import socket
import struct
import threading

VERSION = 5  # of our protocol: field 1 of every header
GREETING = b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + b"\0" * 31


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, value):
    """A protobuf field: a number, or bytes (strings and messages)."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(data):
    """[(field number, value)] of one protobuf message."""
    out, at = [], 0

    def number():
        nonlocal at
        n = shift = 0
        while True:
            b = data[at]
            at += 1
            n |= (b & 127) << shift
            shift += 7
            if b < 128:
                return n

    while at < len(data):
        key = number()
        if key & 7 == 0:
            out.append((key >> 3, number()))
            continue
        size = number() if key & 7 == 2 else 4 if key & 7 == 5 else 8
        out.append((key >> 3, data[at:at + size]))
        at += size
    return out


def parse(data):
    """Field number -> last value."""
    return dict(fields(data))


class Connection:
    def __init__(self, sock, socket_type):
        self.s = sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as ZeroMQ does; else a large message waits 40 ms for an ACK
        self.s.sendall(GREETING)
        self._read(64)
        ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(socket_type)) + socket_type
        self.s.sendall(b"\x04" + bytes([len(ready)]) + ready)
        flags, _ = self._frame()
        assert flags & 4

    def _read(self, n):
        data = b""
        while len(data) < n:
            more = self.s.recv(n - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def _frame(self):
        flags = self._read(1)[0]
        size = struct.unpack(">Q", self._read(8))[0] if flags & 2 else self._read(1)[0]
        return flags, self._read(size)

    def recv(self):
        """The frames of a message."""
        frames = []
        while True:
            flags, data = self._frame()
            if flags & 4:
                continue  # a command
            frames.append(data)
            if not flags & 1:
                return frames

    def send(self, *frames):
        out = b""
        for i, f in enumerate(frames):
            more = 1 if i + 1 < len(frames) else 0
            out += bytes([more | 2]) + struct.pack(">Q", len(f)) + f
        self.s.sendall(out)


def connect(port, socket_type=b"DEALER"):
    return Connection(socket.create_connection(("127.0.0.1", port), timeout=600), socket_type)


class FakeDaemon:
    """Listens as a ROUTER does and hands every connection to serve(connection) on a thread of its own."""

    def __init__(self, serve):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.role = "worker"
        self.serve = serve
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                s, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(s,), daemon=True).start()

    def _one(self, s):
        try:
            self.serve(Connection(s, b"ROUTER"))
        except (EOFError, OSError):
            pass

    def close(self):
        self.listener.close()
