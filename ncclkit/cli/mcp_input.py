"""Requests of a coding agent as they come in.

Each gets an answer, whatever its text holds.
"""

from __future__ import annotations

import io
import json
import re
from typing import Any, BinaryIO

from ncclkit.agent import redact

LOST = "\ufffd"
"""What stands in a request for bytes and half letters that are no UTF-8."""
HALF_LETTER = re.compile(r"\\u[dD][89a-fA-F]", re.ASCII)
"""How JSON writes a code that is only half of a letter."""


class Requests(io.RawIOBase):
    """Lines of JSON without half letters, to which the `mcp` package gives no answer."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._rest = b""

    def readable(self) -> bool:
        """They are read alone."""
        return True

    def readinto(self, buffer: Any) -> int:
        """The next bytes, at most to the end of a line."""
        self._rest = self._rest or whole_letters(self._source.readline())
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def whole_letters(line: bytes) -> bytes:
    """A line of JSON with `LOST` for half letters, and for bytes of no letter."""
    text = line.decode("utf-8", "replace")
    if HALF_LETTER.search(text) is None:
        return text.encode()
    try:
        request = json.loads(text)
    except (ValueError, RecursionError):
        return text.encode()  # it is no JSON, and said to be none
    repaired = redact.texts(request, _with_lost)
    return json.dumps(repaired).encode() + b"\n"


def _with_lost(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
