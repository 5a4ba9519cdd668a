"""The worker of one host in a connection test.

It answers questions from standard input, and leaves nothing behind.

It opens connections only to the addresses that the coordinator names, and ends when its input is
closed, at the latest after the time that it was given.  As client it asks whether an address is
open, how fast, how large a packet may be and what the clock there says; as server it answers only
those who know the token of this test.
"""

import errno
import json
import os
import select
import signal
import socket
import statistics
import struct
import sys
import threading
import time
from itertools import chain
from typing import Any

from .. import wire
from ..facts import network, variables
from ..facts.machine import Machine
from ..threads import side_by_side

NETWORK = (
    "net.interfaces",
    "net.default",
    "net.hostname.addresses",
    "net.nccl.interface",
    "net.gloo.interface",
)
"""The facts that a connection test looks at."""
RESOLVE = 5.0
"""Seconds that the resolver gets for all names together."""


def main():
    """Answer each line of standard input with a record ``answer``, to its end.

    A line is ``{"id": n, "do": verb, …}``.
    """
    host = None
    threading.Thread(target=_end_with_the_coordinator, daemon=True).start()
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        if asked["do"] == "begin":
            host = Worker(asked)
        wire.send("answer", id=asked["id"], **getattr(host, asked["do"])(asked))
    return 0


def _end_with_the_coordinator():
    """End this process once the other end of its input is closed.

    That may be in the middle of any measurement.
    """
    line = select.poll()
    line.register(0, select.POLLRDHUP)  # and POLLHUP, which is always told
    line.poll()
    os._exit(0)


class Worker:
    """The state of this host during the test: its open ports, and its verbs."""

    def __init__(self, asked):
        # whatever happens to the coordinator and to the connection to it
        signal.alarm(int(asked["lifetime"]))
        os.environ.update(asked["env"])
        self.name = asked["name"]
        self.token = asked["token"]
        self.facts = list(facts_for_connection())
        self.addresses = addresses_to_test(self.facts)
        self.data = Listener(self.name, self.token, self.addresses)
        self.rendezvous = None

    def begin(self, asked):
        """Open the ports, and tell the facts of this host's network.

        Tell also which interfaces NCCL and gloo would use.
        """
        answer = {"hostname": socket.gethostname(), "port": self.data.port, "refused": ""}
        try:
            self.rendezvous = Listener(self.name, self.token, self.addresses, asked["rendezvous"])
        except OSError as error:
            if error.errno:
                answer["refused"] = os.strerror(error.errno)
            else:
                answer["refused"] = str(error)
        by_name = {}
        for fact in self.facts:
            wire.send("fact", host=answer["hostname"], **fact)
            by_name[fact["name"]] = fact
        return dict(
            answer,
            **{name[4:]: {key: by_name[name][key] for key in ("value", "why")} for name in NETWORK},
        )

    def end_rendezvous(self, asked):
        """Close the rendezvous port once every host has tried it.

        A job may want to listen there.
        """
        if self.rendezvous:
            self.rendezvous.close()
        return {}

    def resolve(self, asked):
        """{name: its addresses, or the resolver's error}."""
        return {"names": resolve_names(asked["names"])}

    def reach(self, asked):
        """How a connection to each of ``targets`` [name, address, port] ends, in their order."""
        return {"ends": side_by_side(self._reach, asked["targets"], CONNECT * 3, "silent")}

    def _reach(self, target):
        name, address, port = target
        return reach(address, port, self.token, self.name, name)

    def measure(self, asked):
        """Latency, clock, path MTU and bandwidth to one open port."""
        return measure_path(asked["address"], asked["port"], self.token, asked["stream"])


def facts_for_connection():
    """The facts of this host's network, without measurements, and of its environment variables."""
    machine = Machine()
    return chain(
        _facts_until(network.network_facts(machine), set(NETWORK)),
        variables.variable_facts(machine),
    )


def addresses_to_test(facts):
    """The addresses of this host that a test may try.

    They are those of its interfaces and those that its own name stands for.
    """
    known = {fact["name"]: fact["value"] or () for fact in facts}
    every = [address for row in known["net.interfaces"] for address in row.get("addresses") or ()]
    every += ["127.0.0.1", *known["net.hostname.addresses"]]
    plain = dict.fromkeys(address.split("/")[0].split("%")[0] for address in every)
    return [address for address in plain if not address.startswith("fe80:")]


def _facts_until(facts, wanted):
    """These facts, up to the last one that is wanted: those that take time come later."""
    for fact in facts:
        yield fact
        wanted.discard(fact["name"])
        if not wanted:
            return


def resolve_names(names):
    """{name: its addresses in the resolver's order, or the error as text}.

    A resolver that hangs is an error, too.
    """
    late = "the resolver did not answer within %g s" % RESOLVE
    return dict(zip(names, side_by_side(_addresses_of_name, names, RESOLVE, late)))


def _addresses_of_name(name):
    try:
        found = socket.getaddrinfo(name, None, 0, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", "") or str(error)
    return list(dict.fromkeys(entry[4][0] for entry in found))


# ---------------------------------------------------------------- client

CONNECT = 2.5
"""Seconds for a connection; the second SYN is sent after one second, the third after three."""
STALL = 3.0
"""Seconds after which a stream that takes no byte counts as stalled."""
PINGS, PING_SECONDS = 100, 0.2
BLOCK = bytes(256 << 10)
GRACE = 0.02
"""Seconds to wait for datagrams that another one overtook."""
SMALLEST = 256
"""Bytes of the smallest packet that is tried."""
NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EINVAL, errno.EACCES)
"""EINVAL and EACCES: routes of type blackhole and prohibit."""

# header bytes, level, and the options IP(V6)_MTU_DISCOVER and IP(V6)_MTU, which Python does not
# name
IPV4, IPV6 = (28, socket.IPPROTO_IP, 10, 14), (48, socket.IPPROTO_IPV6, 23, 24)
PROBE = 3
"""IP_PMTUDISC_PROBE: never fragment, and send whatever the interface takes."""

RETRANS, SEGMENTS = 100, 136
"""Where struct tcp_info counts the packets sent again, and all that were sent (linux/tcp.h; since
Linux 4.2)."""


def reach(address, port, token, own, wanted):
    """How a connection attempt ends, in one word or with a reason.

    It is open, itself, other host, foreign, refused, silent, no route, or failed: and why.  Foreign
    means that something else answers there, silent that no answer came within `CONNECT` seconds.
    """
    try:
        with socket.create_connection((address, port), CONNECT) as connection:
            name = _introduce_us(connection, {"token": token, "do": "hello"})
    except socket.timeout:
        return "silent"
    except ConnectionRefusedError:
        return "refused"
    except (OSError, ValueError) as error:
        route = isinstance(error, OSError) and error.errno in NO_ROUTE
        if route:
            return "no route"
        return "failed: %s" % (getattr(error, "strerror", "") or error)
    if name == wanted:
        return "open"
    if name == own:
        return "itself"
    if name:
        return "other host"
    return "foreign"


def _introduce_us(connection, asked):
    """The name of the host that answers; empty where it does not speak our language."""
    connection.sendall(json.dumps(asked).encode() + b"\n")
    try:
        line = b""
        while not line.endswith(b"\n") and len(line) < 1024:
            piece = connection.recv(1)  # what follows belongs to another reader
            if not piece:
                return ""
            line += piece
        return str(json.loads(line)["name"])
    except (socket.timeout, ConnectionResetError, ValueError, KeyError, TypeError):
        return ""


def measure_path(address, port, token, seconds):
    """Latency, clock offset, path MTU and bandwidth to an open port.

    Where a number is missing, `why` says the reason.
    """
    found: dict[str, Any] = {"why": {}}
    for name, ask in (("latency", round_trip), ("mtu", path_mtu), ("bandwidth", bandwidth)):
        try:
            found.update(ask(address, port, token, seconds))
        except (OSError, ValueError, KeyError, TypeError) as error:
            found["why"][name] = (
                str(getattr(error, "strerror", "") or error) or type(error).__name__
            )
    return found


def _connected_socket(address, port, **asked):
    connection = socket.create_connection((address, port), CONNECT)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(STALL)
    if not _introduce_us(connection, asked):
        connection.close()
        raise OSError("the other host no longer answers")
    return connection


def round_trip(address, port, token, seconds):
    """Median round trip (µs), and how far the other clock is ahead (s).

    The offset comes with its uncertainty, as NTP reckons it.

    Both ends of a trip are read from the wall clock: a process put aside between any two readings
    makes the trip longer and never the offset wrong, since the true one lies within half the trip
    (RFC 5905, section 8).
    """
    trips = []  # type: list[int]
    clocks = []  # type: list[tuple[float, float]]
    with _connected_socket(address, port, token=token, do="echo") as connection:
        reader = connection.makefile("rb")
        until = time.monotonic() + PING_SECONDS
        while len(trips) < PINGS and (time.monotonic() < until or not trips):
            begun = time.perf_counter_ns()
            sent = time.time_ns()
            connection.sendall(bytes(PING))
            answer = reader.read(2 * PING)
            back = time.time_ns()
            trips.append(time.perf_counter_ns() - begun)
            if len(answer) < 2 * PING:
                raise OSError("the connection was closed")
            arrived, answered = (
                int.from_bytes(half, "big") for half in (answer[:PING], answer[PING:])
            )
            clocks.append(
                (
                    abs(back - sent - (answered - arrived)) / 2,
                    (arrived - sent + answered - back) / 2,
                )
            )
    error, ahead = min(clocks)
    return {
        "latency": statistics.median(trips) / 1e3,
        "offset": ahead / 1e9,
        "offset_error": error / 1e9,
    }


def bandwidth(address, port, token, seconds):
    """Bandwidth of one TCP stream in GB/s, and the share of retransmitted packets.

    The bandwidth is as the receiver counts it.
    """
    with _connected_socket(address, port, token=token, do="sink") as connection:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            connection.sendall(BLOCK)
        connection.shutdown(socket.SHUT_WR)
        reply = json.loads(connection.makefile("rb").readline(1024))
        resent = _resent_share(connection)
    return {"bandwidth": reply["bytes"] / reply["seconds"] / 1e9, "resent": resent}


def _resent_share(connection):
    """The share of a connection's packets that were sent again.

    It is the kernel's own count; None where it has none.
    """
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    if len(info) < SEGMENTS + 4:
        return None
    again, sent = (struct.unpack_from("I", info, place)[0] for place in (RETRANS, SEGMENTS))
    if sent:
        return again / sent
    return None


def path_mtu(address, port, token, seconds):
    """The largest IP packet (bytes) that arrives whole.

    It comes with the largest that this host believes may be sent.
    """
    if ":" in address:
        header, level, discover, mtu = IPV6
        family = socket.AF_INET6
    else:
        header, level, discover, mtu = IPV4
        family = socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(level, discover, PROBE)
        probe.connect((address, port))
        believed = min(probe.getsockopt(level, mtu), 65535)
        sizes = PacketSizes(probe, token, header)
        low = SMALLEST
        high = believed + 1
        while high - low > 1:
            # mostly all that is believed passes
            if high > believed:
                middle = believed
            else:
                middle = (low + high) // 2
            if sizes.pass_through(middle):
                low, high = middle, high
            else:
                low, high = low, middle
        return {"mtu": low, "mtu_own": min(probe.getsockopt(level, mtu), 65535)}


class PacketSizes:
    """Probes that tell how large a packet may be.

    Each is followed by a small packet, whose answer shows that the probe was lost.  So the result
    does not depend on how fast anybody is.
    """

    def __init__(self, probe, token, header):
        self.probe, self.start, self.header = probe, token.encode(), header
        self.number = 0

    def pass_through(self, size):
        """Whether a packet of this size is answered.

        Raises OSError where even the small one is not.
        """
        self.number += 1
        start = b"%s %06d " % (self.start, self.number)
        for each in (size, size, SMALLEST, SMALLEST):  # twice, as any network may lose one packet
            try:
                self.probe.send(start.ljust(each - self.header, b"."))
            except ConnectionRefusedError:  # the answer to one before: nobody listens
                raise
            except OSError:
                continue  # larger than the interface takes, or an ICMP error for one before
        answered = set()  # type: set[int]
        until = time.monotonic() + STALL
        while not answered & {size, SMALLEST}:
            if not select.select([self.probe], [], [], max(0.0, until - time.monotonic()))[0]:
                raise OSError("no datagram of %d bytes was answered: is UDP blocked?" % SMALLEST)
            answered.add(self._answer(start))
        # it may have been overtaken
        while size not in answered and select.select([self.probe], [], [], GRACE)[0]:
            answered.add(self._answer(start))
        return size in answered

    def _answer(self, start):
        """The size of the packet that is answered.

        It is 0 for an answer to an earlier one, or an error.
        """
        try:
            answer = self.probe.recv(1024)
        except ConnectionRefusedError:
            raise
        except OSError:
            return 0  # an ICMP error for one of them; the others may have passed
        if answer.startswith(start):
            return int(answer[len(start) :]) + self.header
        return 0


# ---------------------------------------------------------------- server

STRANGER, PATIENCE = 1.0, 5.0
"""Seconds in which a connection must tell the token; and that one which knows it may be silent."""
PING = 8
"""Bytes of one ping; its answer holds two clock readings of this size."""


TRIES = 16
"""How often the kernel is asked for a TCP port whose number is also free for UDP: it does not look
at that."""


def _open_sockets(addresses, port):
    """TCP sockets that listen, and UDP sockets, all on one port.

    There is one of each for each address.  Raises OSError where the port is taken.
    """
    streams, datagrams = [], []
    try:
        for address in addresses:
            if ":" in address:
                family = socket.AF_INET6
            else:
                family = socket.AF_INET
            try:
                streams.append(socket.create_server((address, port), family=family, backlog=256))
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                continue  # a name of this host that stands for an address of another
            port = streams[0].getsockname()[1]
            datagrams.append(socket.socket(family, socket.SOCK_DGRAM))
            datagrams[-1].bind((address, port))
    except OSError:
        for each in streams + datagrams:
            each.close()
        raise
    return streams, datagrams


class Listener:
    """A TCP port, and the UDP port of the same number.

    They are opened on the addresses of this host that are tested.
    """

    def __init__(self, name, token, addresses, port=0):
        """Open the ports under the name that this host calls itself.

        With `port` 0 the kernel chooses one.  Raises OSError where the port is taken.
        """
        self.name = name
        self.token = token
        for left in reversed(range(1 if port else TRIES)):
            try:
                self.streams, datagrams = _open_sockets(addresses, port)
                break
            except OSError:
                if not left:
                    raise
        self.port = self.streams[0].getsockname()[1]
        for work, each in ((self._accept, self.streams), (self._datagrams, datagrams)):
            for one in each:
                threading.Thread(target=work, args=(one,), daemon=True).start()

    def close(self):
        """Stop listening; connections that are open stay open."""
        for stream in self.streams:
            # wakes the thread that accepts, which closing does not
            stream.shutdown(socket.SHUT_RDWR)
            stream.close()

    def _accept(self, stream):
        while True:
            try:
                connection = stream.accept()[0]
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
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = connection.makefile("rb")
        asked = json.loads(_first_line(connection, stream))
        if not isinstance(asked, dict) or asked.get("token") != self.token:
            return
        connection.settimeout(PATIENCE)
        connection.sendall(json.dumps({"name": self.name}).encode() + b"\n")
        if asked.get("do") == "echo":
            _echo_pings(connection, stream)
        elif asked.get("do") == "sink":
            connection.sendall(json.dumps(_sink_stream(stream)).encode() + b"\n")

    def _datagrams(self, datagram):
        """Answer each datagram that knows the token with its beginning and its size."""
        token = self.token.encode()
        start = len(self.token) + len(" 000001 ")
        while True:
            data, sender = datagram.recvfrom(1 << 16)
            if data.startswith(token):
                try:
                    datagram.sendto(b"%s%d" % (data[:start], len(data)), sender)
                except OSError:
                    continue  # no way back: the sender sees that no answer comes


def _first_line(connection, stream):
    """What a client says first, within `STRANGER` seconds altogether.

    Raises OSError for one who says nothing, or drips.
    """
    end = time.monotonic() + STRANGER
    line = b""
    while not line.endswith(b"\n") and len(line) < 1024:
        connection.settimeout(max(0.001, end - time.monotonic()))
        byte = stream.read(1)
        if not byte:
            break
        line += byte
    return line


def _echo_pings(connection, stream):
    """Answer each ping with the clock at its arrival and at the answer.

    Both are doubles, in nanoseconds of the epoch.
    """
    while len(stream.read(PING)) == PING:
        arrived = time.time_ns()
        connection.sendall(arrived.to_bytes(PING, "big") + time.time_ns().to_bytes(PING, "big"))


def _sink_stream(stream):
    """{bytes, seconds} from the first byte to the last."""
    block = memoryview(bytearray(1 << 20))
    count = 0
    begun = None
    while True:
        size = stream.readinto1(block)
        begun = begun or time.perf_counter()
        if not size:
            return {"bytes": count, "seconds": time.perf_counter() - begun}
        count += size
