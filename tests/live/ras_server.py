"""A small RAS: a thread that speaks NCCL's line protocol on a socket of its own, well or badly."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Reply = Callable[[str], "bytes | None"]
"""Answer to one line: bytes, or None to close the connection."""


@dataclass
class Server:
    """What was asked, line by line, over all connections."""

    address: tuple[str, int]
    asked: list[str] = field(default_factory=list)
    connections: int = 0


def speak(reports: list[bytes], *, json: bool = True, diagnostics: bytes | None = None) -> Reply:
    """NCCL 2.28.7 and later (`json`) or before; each STATUS gets the next report, and the connection ends after it.

    `diagnostics` is what 2.31 and later answer to that command; earlier ones refuse it and stay connected.
    """
    left = iter(reports)

    def reply(line: str) -> bytes | None:
        word = line.strip().lower()
        if word.startswith("client protocol"):
            return b"SERVER PROTOCOL 2\n"
        if word.startswith("timeout ") and word[8:].isdigit():
            return b"OK\n"
        if word == "set format json" and json:
            return b"OK\n"
        if word in ("status", "verbose status"):
            return next(left) + END
        if word == "diagnostics" and diagnostics is not None:
            return diagnostics + END
        return b"ERROR: Unknown command " + line.strip().encode() + b"\n"

    return reply


END = b"\0END"
"""After a report: the server closes."""


@contextmanager
def serve(reply: Reply) -> Iterator[Server]:
    """Listen on a free port of this machine until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(listener.getsockname())
        thread = threading.Thread(target=_accept, args=(listener, server, reply), daemon=True)
        thread.start()
        yield server
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def _accept(listener: socket.socket, server: Server, reply: Reply) -> None:
    while True:
        try:
            link, _ = listener.accept()
        except OSError:
            return
        server.connections += 1
        with link:
            link.settimeout(10)
            _talk(link, server, reply)


def _talk(link: socket.socket, server: Server, reply: Reply) -> None:
    try:
        for raw in link.makefile("rb"):
            server.asked.append(raw.decode("utf-8", "replace"))
            answer = reply(server.asked[-1])
            if answer is None:
                return
            link.sendall(answer.removesuffix(END))
            if answer.endswith(END):
                return
    except OSError:  # the client has had enough
        return
