"""The asking side of a connection test: is it open, how fast, how large may a packet be, what does the clock say."""

import errno
import json
import select
import shutil
import socket
import statistics
import struct
import subprocess
import time
from typing import Any

from . import iperf
from .server import PING

CONNECT = 2.5
"""Seconds for a connection; the second SYN is sent after one second, the third after three."""
STALL = 3.0
"""Seconds after which a stream that takes no byte stands still."""
PINGS, PING_SECONDS = 100, 0.2
BLOCK = bytes(256 << 10)
GRACE = 0.02
"""Seconds to wait for datagrams that another one overtook."""
SMALLEST = 256
"""Bytes of the smallest packet that is tried."""
NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EINVAL, errno.EACCES)
"""EINVAL and EACCES: routes of type blackhole and prohibit."""

# header bytes, level, and the options IP(V6)_MTU_DISCOVER and IP(V6)_MTU, which Python does not name
IPV4, IPV6 = (28, socket.IPPROTO_IP, 10, 14), (48, socket.IPPROTO_IPV6, 23, 24)
PROBE = 3
"""IP_PMTUDISC_PROBE: never fragment, and send whatever the interface takes."""

RETRANS, SEGMENTS = 100, 136
"""Where struct tcp_info counts the packets sent again, and all that were sent (linux/tcp.h; since Linux 4.2)."""


def reach(address, port, token, own, wanted):
    """How a connection ends: open, itself, other host, foreign, refused, silent, no route, or failed (with the reason).

    foreign: something answers there that is no part of this test; silent: no answer within `CONNECT` seconds.
    """
    try:
        with socket.create_connection((address, port), CONNECT) as connection:
            name = _introduce(connection, {"token": token, "do": "hello"})
    except socket.timeout:
        return "silent"
    except ConnectionRefusedError:
        return "refused"
    except (OSError, ValueError) as error:
        route = isinstance(error, OSError) and error.errno in NO_ROUTE
        return "no route" if route else "failed: %s" % (getattr(error, "strerror", "") or error)
    return "open" if name == wanted else "itself" if name == own else "other host" if name else "foreign"


def _introduce(connection, asked):
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


def measure(address, port, token, seconds):
    """What the path to an open port is worth; `why` has the reason for each number that could not be had."""
    found: dict[str, Any] = {"why": {}}
    for name, ask in (("latency", pings), ("mtu", path_mtu), ("bandwidth", bandwidth)):
        try:
            found.update(ask(address, port, token, seconds))
        except (OSError, ValueError, KeyError, TypeError) as error:
            found["why"][name] = str(getattr(error, "strerror", "") or error) or type(error).__name__
    return found


def _connected(address, port, **asked):
    connection = socket.create_connection((address, port), CONNECT)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(STALL)
    if not _introduce(connection, asked):
        connection.close()
        raise OSError("the other host no longer answers")
    return connection


def pings(address, port, token, seconds):
    """Round trip (median, µs), and how far the other clock is ahead (s) with its uncertainty, as NTP reckons it.

    Both ends of a trip are read from the wall clock: a process put aside between any two readings makes the trip longer
    and never the offset wrong, since the true one lies within half the trip (RFC 5905, section 8).
    """
    trips = []  # type: list[int]
    clocks = []  # type: list[tuple[float, float]]
    with _connected(address, port, token=token, do="echo") as connection:
        reader, until = connection.makefile("rb"), time.monotonic() + PING_SECONDS
        while len(trips) < PINGS and (time.monotonic() < until or not trips):
            begun, sent = time.perf_counter_ns(), time.time_ns()
            connection.sendall(bytes(PING))
            answer = reader.read(2 * PING)
            back = time.time_ns()
            trips.append(time.perf_counter_ns() - begun)
            if len(answer) < 2 * PING:
                raise OSError("the connection was closed")
            arrived, answered = (int.from_bytes(half, "big") for half in (answer[:PING], answer[PING:]))
            clocks.append((abs(back - sent - (answered - arrived)) / 2, (arrived - sent + answered - back) / 2))
    error, ahead = min(clocks)
    return {"latency": statistics.median(trips) / 1e3, "offset": ahead / 1e9, "offset_error": error / 1e9}


def bandwidth(address, port, token, seconds):
    """Of one TCP stream (GB/s), as the other host counts it: by iperf3 where both hosts have it."""
    try:
        if shutil.which("iperf3"):
            return _by_iperf(address, port, token, seconds)
    except (OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError):
        return stream(address, port, token, seconds)  # the other host has none, an old one, or a firewall
    return stream(address, port, token, seconds)


def _by_iperf(address, port, token, seconds):
    with _connected(address, port, token=token, do="iperf3", seconds=iperf.whole(seconds)) as connection:
        connection.settimeout(STALL + iperf.START)
        listens = int(connection.makefile("rb").readline(16))
        if not listens:
            raise OSError("there is no iperf3")
        return iperf.ask(address, listens, seconds) | {"tool": "iperf3"}


def stream(address, port, token, seconds):
    """The same by our own probe."""
    with _connected(address, port, token=token, do="sink") as connection:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            connection.sendall(BLOCK)
        connection.shutdown(socket.SHUT_WR)
        told = json.loads(connection.makefile("rb").readline(1024))
        resent = _resent(connection)
    return {"bandwidth": told["bytes"] / told["seconds"] / 1e9, "tool": "ncclkit", "resent": resent}


def _resent(connection):
    """Share of the packets of a connection that were sent again, by the kernel's own count; None where it has none."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    if len(info) < SEGMENTS + 4:
        return None
    again, sent = (struct.unpack_from("I", info, place)[0] for place in (RETRANS, SEGMENTS))
    return again / sent if sent else None


def path_mtu(address, port, token, seconds):
    """The largest IP packet (bytes) that arrives whole, and the largest that this host believes may be sent."""
    header, level, discover, mtu = IPV6 if ":" in address else IPV4
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(level, discover, PROBE)
        probe.connect((address, port))
        believed = min(probe.getsockopt(level, mtu), 65535)
        sizes = Sizes(probe, token, header)
        low, high = SMALLEST, believed + 1
        while high - low > 1:
            middle = believed if high > believed else (low + high) // 2  # mostly all that is believed passes
            low, high = (middle, high) if sizes.pass_through(middle) else (low, middle)
        return {"mtu": low, "mtu_own": min(probe.getsockopt(level, mtu), 65535)}


class Sizes:
    """Packets of some size, each with a small one behind it: once that is answered, the first one will not be any more.

    So it is not a question of how fast anybody is.
    """

    def __init__(self, probe, token, header):
        self.probe, self.start, self.header = probe, token.encode(), header
        self.number = 0

    def pass_through(self, size):
        """True where a packet of this size is answered; raises OSError where even the small one is not."""
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
        while size not in answered and select.select([self.probe], [], [], GRACE)[0]:  # it may have been overtaken
            answered.add(self._answer(start))
        return size in answered

    def _answer(self, start):
        """The size of the packet that is answered; 0 for an answer to an earlier one, or an error."""
        try:
            answer = self.probe.recv(1024)
        except ConnectionRefusedError:
            raise
        except OSError:
            return 0  # an ICMP error for one of them; the others may have passed
        return int(answer[len(start) :]) + self.header if answer.startswith(start) else 0
