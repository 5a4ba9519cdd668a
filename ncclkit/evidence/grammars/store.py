"""The grammar of start-up: TCPStore, sockets of c10d, rendezvous, ``env://``."""

from __future__ import annotations

import re

from ncclkit.evidence.grammars.grammar import Data, Line, Rule, rule


def _seconds(match: re.Match[str], data: Data, line: Line) -> Data:
    """``60000ms`` and ``60 s`` of a time limit, both as milliseconds."""
    amount = data.pop("amount")
    unit = data.pop("unit")
    return data | {"timeout_ms": None if amount is None else amount * (1 if unit == "ms" else 1000)}


def _port(match: re.Match[str], data: Data, line: Line) -> Data:
    found = re.search(r"port: (\d{1,5})\b|bind to \S*:(\d{1,5})\b", line.text)
    return data | {"port": int(found[1] or found[2]) if found else None}


ADDRESS = r"[(\[]?(?P<host>(?<=[(\[])[^,()\]]{0,255}|[\w.-]{1,255})(?:, ?|\]?:)(?P<port>\d{1,5})\b"
"""``(node-1, 29500)``, ``[node-1]:29500`` and ``node-1:29500``."""


RULES: tuple[Rule, ...] = (
    # The client socket has timed out after 60000ms while trying to connect to (node-1, 29500).
    # … while trying to connect to node-1:29500       … to [fd00::1]:29500
    rule(
        "store.connect_timeout",
        "client socket has",
        r"client socket has timed out after (?P<amount>\d+) ?(?P<unit>ms|s)\S* while trying to"
        rf" connect to {ADDRESS}",
        span=2,
        make=_seconds,
    ),
    # [c10d] The client socket has failed to connect to any network address of (node-1, 29500).
    rule(
        "store.connect_timeout",
        "client socket has",
        rf"client socket has failed to connect to any network address of {ADDRESS}",
    ),
    # [W socket.cpp:601] [c10d] The client socket has failed to connect to [node-1]:29500 (errno: \
    #   111 - Connection …).
    # One of many tries: the client knocks until its time is up.
    rule(
        "store.retry",
        "client socket has",
        rf"client socket has failed to connect to (?!any network){ADDRESS}",
    ),
    # RuntimeError: connect() timed out. Original timeout was 60000 ms.
    rule(
        "store.connect_timeout",
        "Original timeout was",
        r"connect\(\) timed out\. Original timeout was (?P<timeout_ms>\d+) ms",
        host="",
    ),
    # TCP client failed to connect/validate to host 10.0.0.1:29500 - timed out (try=9, \
    #   timeout=60000ms): …
    rule(
        "store.connect_timeout",
        "failed to connect/validate",
        r"failed to connect/validate to host (?P<host>[^\s]+):(?P<port>\d+) - timed out"
        r"(?:.*?timeout=(?P<timeout_ms>\d+)ms)?",
    ),
    # TCP client failed to connect/validate to host 10.0.0.1:29500 - retrying (try=3, \
    #   timeout=60000ms, delay=4040ms): …
    rule(
        "store.retry",
        "failed to connect/validate",
        r"failed to connect/validate to host (?P<host>[^\s]+):(?P<port>\d+) - retrying"
        r" \(try=(?P<tries>\d+)",
    ),
    # The IPv6 network addresses of (node-1, 29500) cannot be retrieved (gai error: -2 - Name or \
    #   service not known).
    rule(
        "store.resolve",
        "cannot be retrieved (gai",
        rf"network addresses of {ADDRESS}\)? cannot be retrieved "
        r"\(gai error: (?P<error>-?\d{1,9} - [^)]{0,200})\)",
    ),
    # ssh: Could not resolve hostname gpu-17: Name or service not known
    rule(
        "store.resolve",
        "Could not resolve hostname",
        r"Could not resolve hostname (?P<host>[^\s:]+): (?P<error>.*)",
    ),
    # gcs_rpc_client.h:151: Failed to connect to GCS at address 10.1.1.4:6379 within 5 seconds.
    # RuntimeError: … Unable to connect to GCS (ray head) at 10.1.1.4:6379.
    rule(
        "store.connect_timeout",
        "connect to GCS",
        r"(?:Failed|Unable) to connect to GCS (?:\(ray head\) )?at (?:address"
        r" )?(?P<host>[\w.-]+):(?P<port>\d+)",
    ),
    # socket.gaierror: [Errno -2] Name or service not known
    rule("store.resolve", "gaierror", r"gaierror: \[Errno (?P<error>-?\d+\] .*)", host=""),
    # The server socket has failed to listen on any local network address. port: 29500, useIpv6: \
    #   0, code: -98, name: EADDRINUSE, message: address already in use
    # [c10d] The server socket has failed to bind to [::]:29400 (errno: 98 - Address already in \
    #   use).
    rule(
        "store.bind",
        "server socket has failed",
        r"server socket has failed to (?:listen|bind).{0,400}?"
        r"(?P<error>EADDRINUSE|\(errno: [^)]{0,100}\)|[Aa]ddress already in use|any local network"
        r" address\.?\s{0,9}$)",
        make=_port,
    ),
    # DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cuda//…
    rule(
        "store.wait",
        "wait timeout after",
        r"wait timeout after (?P<timeout_ms>\d+) ?ms, keys: ?(?P<keys>\S+)",
    ),
    # Timed out initializing process group in store based barrier on rank: 1, for key: \
    #   store_based_barrier_key:1 (world_size=4, worker_count=2, timeout=0:30:00)
    rule(
        "store.clients",
        "store based barrier",
        r"store based barrier (?:on|to initialize process group for) rank:? (?P<_rank>\d+), (?:for"
        r" )?key: (?P<key>\S+) "
        r"\(world_size=(?P<expected>\d+), (?:worker_count|num_workers_joined)=(?P<joined>\d+)",
    ),
    # Rank 2: Completed store-based barrier for key:store_based_barrier_key:1 with 4 nodes.
    rule(
        "store.clients",
        "Completed store-based barrier",
        r"Rank (?P<_rank>\d+): Completed store-based barrier for key:(?P<key>\S+) with"
        r" (?P<expected>\d+) nodes",
        make=lambda match, data, line: data | {"joined": data["expected"]},
    ),
    # barrier timeout after 300000ms, key: …
    rule(
        "store.wait",
        "barrier timeout after",
        r"barrier timeout after (?P<timeout_ms>\d+) ?ms, key: ?(?P<keys>\S+)",
    ),
    # Timed out after 601 seconds waiting for clients. 2/3 clients joined.
    rule(
        "store.clients",
        "clients joined",
        r"Timed out after (?P<timeout_s>\d+) seconds waiting for clients\. (?P<joined>\d+)/"
        r"(?P<expected>\d+) clients joined",
    ),
    # Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or \
    #   crash?
    rule(
        "store.lost", "Failed to recv, got 0 bytes", r"(?P<message>Failed to recv, got 0 bytes.*)"
    ),
    # sendBytes failed on SocketImpl(fd=4, addr=[localhost]:54321, remote=[localhost]:29500): \
    #   Broken pipe
    rule(
        "store.lost",
        "failed on SocketImpl",
        r"(?P<message>\w{1,60} failed on SocketImpl\(.{0,400}?\): (?:Broken pipe|Connection reset"
        r" by peer).*)",
    ),
    # RuntimeError: Connection reset by peer  (torch <= 2.5, store)       RuntimeError: Broken pipe
    # RuntimeError: Socket Timeout
    *(
        rule("store.lost", f"RuntimeError: {text}", rf"RuntimeError: (?P<message>{text}.*)")
        for text in ("Connection reset by peer", "Broken pipe", "Socket Timeout")
    ),
    # Miscellaneous client with incorrect VALIDATE query is detected
    # Ping failed, invalid value returned from server
    # Miscellaneous client without VALIDATE query is detected
    rule("store.foreign", "VALIDATE query", r"^(?P<message>.*VALIDATE query.*)"),
    rule("store.foreign", "Ping failed", r"(?P<message>Ping failed.*)"),
    # Error initializing torch.distributed using env:// rendezvous: environment variable RANK \
    #   expected, but not set
    rule(
        "rendezvous.error",
        "expected, but not set",
        r"(?P<message>environment variable (?P<name>\w+) expected, but not set)",
    ),
    # DistStoreError: use_libuv was requested but PyTorch was built without libuv support
    rule(
        "rendezvous.error",
        "was requested but PyTorch was built without",
        r"(?P<message>(?P<name>use_libuv) was requested but PyTorch was built without.*)",
    ),
    # torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError
    # RendezvousConnectionError: The connection to the C10d store has failed.
    rule(
        "rendezvous.error",
        "Rendezvous",
        r"(?P<name>Rendezvous\w{0,60}?Error)(?:: (?P<message>[^\\\n\"]*))?",
    ),
)
