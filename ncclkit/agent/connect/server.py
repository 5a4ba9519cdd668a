"""The listening side of a connection test: says who it is, echoes, counts bytes, tells which datagrams came.

It serves only who knows the token of this test; to anybody else it says nothing.
"""

import json
import socket
import threading
import time

from . import iperf

PATIENCE = 5.0
"""Seconds that a connection may be silent before it is given up."""
PING = 8
"""Bytes of one ping; its answer holds two clock readings of this size."""


TRIES = 16
"""How often the kernel is asked for a TCP port whose number is also free for UDP: it does not look at that."""


def _pair(port):
    """A TCP socket that listens and a UDP socket, on the same port of all addresses."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    stream = socket.create_server(("", port), family=family, dualstack_ipv6=dual, backlog=256)
    datagram = socket.socket(family, socket.SOCK_DGRAM)
    try:
        if dual:
            datagram.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        datagram.bind(("", stream.getsockname()[1]))
    except OSError:
        stream.close()
        datagram.close()
        raise
    return stream, datagram


class Listener:
    """A TCP port, and the UDP port of the same number, on all addresses of this host."""

    def __init__(self, name, token, port=0):
        """name: what this host calls itself; port: 0 lets the kernel choose.  Raises OSError where it is taken."""
        self.name, self.token = name, token
        for left in reversed(range(1 if port else TRIES)):
            try:
                self.stream, self.datagram = _pair(port)
                break
            except OSError:
                if not left:
                    raise
        self.port = self.stream.getsockname()[1]
        for work in (self._accept, self._datagrams):
            threading.Thread(target=work, daemon=True).start()

    def close(self):
        """Listen no more; connections that stand go on."""
        self.stream.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts, which closing does not
        self.stream.close()

    def _accept(self):
        while True:
            try:
                connection = self.stream.accept()[0]
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection:
            try:
                self._answer(connection)
            except (OSError, ValueError, KeyError):
                return  # a stranger, or a host that gave up: it is the one that reports it

    def _answer(self, connection):
        connection.settimeout(PATIENCE)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = connection.makefile("rb")
        asked = json.loads(stream.readline(1024))
        if not isinstance(asked, dict) or asked.get("token") != self.token:
            return
        connection.sendall(json.dumps({"name": self.name}).encode() + b"\n")
        if asked.get("do") == "echo":
            _echo(connection, stream)
        elif asked.get("do") == "sink":
            connection.sendall(json.dumps(_sink(stream)).encode() + b"\n")
        elif asked.get("do") == "iperf3":
            iperf.serve(float(asked["seconds"]), lambda port: connection.sendall(b"%d\n" % port))

    def _datagrams(self):
        """Answer each datagram that knows the token with its beginning and its size."""
        token, start = self.token.encode(), len(self.token) + len(" 000001 ")
        while True:
            data, sender = self.datagram.recvfrom(1 << 16)
            if data.startswith(token):
                try:
                    self.datagram.sendto(b"%s%d" % (data[:start], len(data)), sender)
                except OSError:
                    continue  # no way back: the sender sees that no answer comes


def _echo(connection, stream):
    """Answer each ping with the clock at its arrival and at the answer (doubles, in nanoseconds of the epoch)."""
    while len(stream.read(PING)) == PING:
        arrived = time.time_ns()
        connection.sendall(arrived.to_bytes(PING, "big") + time.time_ns().to_bytes(PING, "big"))


def _sink(stream):
    """{bytes, seconds} from the first byte to the last."""
    block, count, begun = memoryview(bytearray(1 << 20)), 0, None
    while True:
        size = stream.readinto1(block)
        begun = begun or time.perf_counter()
        if not size:
            return {"bytes": count, "seconds": time.perf_counter() - begun}
        count += size
