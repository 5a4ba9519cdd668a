"""Floods: a line that says what one before it said, but for numbers that do not matter, is only counted.

Logs in which every line counts (a million warnings, every collective, every channel) are long, and say little.  The
first line of its kind is read by the grammars.  The lines after it need no grammar, as all that their event would be
merged by (see `merge`) stands in the `key` made here.
"""

from __future__ import annotations

import re
from typing import Any

from ncclkit.evidence.grammars.families import classify
from ncclkit.evidence.merge import Flood, Merger, merges
from ncclkit.evidence.scanner.engine import SHORT, Choice
from ncclkit.evidence.scanner.scan import Block, Lines

KEPT = 1 << 15
"""How many keys, beginnings and texts are remembered."""

# [rank3]:[2026-11-21 00:28:00] node-1:7186:7190 [3] misc/socket.cc:49 (func) NCCL
HEAD = re.compile(
    rb"((?:\x1b\[[\d;]*m|\[[A-Za-z_]+\d{1,7}\]: ?|\[\d{1,7},\d{1,7}\]<std(?:out|err)>:|\d{1,5}: "
    rb"|\(\w+ pid=\d{1,10}(?:, ip=[\d.]+)?\) )*)"
    rb"(?:\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]? )?"
    rb"([^\s:\[\]()<>]{1,255}:\d{1,10}):-?\d{1,20} "
    rb"((?:\[-?\d{1,4}\])?(?: ?[\w./-]{1,200}\.\w{1,4}:\d{0,7}(?: \([^()]{1,200}\))?)?)"
)
CHANNEL = re.compile(rb"INFO (?:Channel|Ring) (\d{1,9})(?:/\d{1,9})?")
HEX = b"0123456789abcdef"

STAMP = b"[0000-00-00 00:00:00] "
"""The clock of a warning; a new one each second."""
DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
NAMED = re.compile(rb"[A-Za-z_]\d|\d\.\d")
"""A digit that may be part of a name: ``mlx5_0``, ``FP8``, an address."""
VOID = re.compile(rb"0x[0-9a-f]+|<\d+>")
"""Pointers and ports."""

Key = tuple[Any, ...]


class Deduplication:
    """Puts what the lines of one file say into a `Merger`, the repeated ones without reading them."""

    def __init__(self, merger: Merger) -> None:
        self.merger = merger
        self.floods: dict[Key | None, list[Flood]] = {}
        """What such a line says; nothing, for most that only hold an anchor."""
        self.heads: dict[bytes, Key] = {}
        self.channels: dict[bytes, bytes] = {}
        self.plain: dict[bytes, bool] = {}

    def read(self, block: Block) -> None:
        """Take what the block's own lines say, in their order; floods of lines are only counted."""
        for start, raw, number, choice in block.shown():
            self.take(block, start, raw, number, choice)
        block.lines.clear()  # they know this block
        block.speakers = Lines()

    def take(self, block: Block, start: int, raw: bytes, number: int, choice: Choice) -> None:
        """Take a line of a block that begins at `start`."""
        key, value = self._key(raw, choice) if len(raw) <= SHORT else (None, b"")
        if (floods := self.floods.get(key)) is not None:
            for flood in floods:
                flood.again(value)
            return
        events, ahead = block.line_events(start, start + len(raw), number, choice)
        floods = [new for event in events if (new := self.merger.add(event))]
        if key is not None and not ahead and (key[0] or not events) and all(map(merges, events)):
            _keep(self.floods, key, floods)

    def _key(self, raw: bytes, choice: Choice) -> tuple[Key | None, bytes]:
        """What the event of a line is merged by, and the number in which such lines differ.

        Without a known beginning it tells only lines apart that say nothing from those that may.
        """
        start, _, said = raw.partition(b" NCCL ")
        if start[20:22] == b"] " and start[:22].translate(DIGITS) == STAMP:
            start = start[22:]
        head = (self.heads.get(start) or _keep(self.heads, start, _head(start))) if said else ()
        if not head:
            return (None if choice.literal else (None, raw.translate(DIGITS))), b""
        if said.startswith(b"WARN "):
            return (head, self._text(said, choice)), b""
        if choice.flood == "nccl.op":
            name, _, rest = said.partition(b": opCount ")
            value, _, rest = rest.partition(b" sendbuff ")
            if 0 < len(value) <= 16 and not value.strip(HEX):
                return (head, name, rest.partition(b" count ")[2]), value
        if choice.flood == "nccl.channel":
            name, _, rest = said.partition(b" : ")
            if value := self.channels.get(name) or self._channel(name):
                return ("nccl.channel", head[1], rest), value
        return (head, said), b""

    def _channel(self, name: bytes) -> bytes:
        match = CHANNEL.fullmatch(name)
        number: bytes = _keep(self.channels, name, match[1] if match else b"")
        return number

    def _text(self, said: bytes, choice: Choice) -> bytes:
        """A warning without its numbers, or only without pointers and ports where numbers may matter."""
        shape = said.translate(DIGITS)
        plain = self.plain.get(shape)
        if plain is None:
            plain = _keep(self.plain, shape, _is_plain(said, choice))
        return shape if plain else VOID.sub(b"<0>", said)


def _keep(known: dict[Any, Any], key: Any, value: Any) -> Any:
    if len(known) >= KEPT:
        known.clear()
    known[key] = value
    return value


def _head(start: bytes) -> Key:
    """Launcher's label, host and process, place; without clock and thread.  Nothing for any other beginning."""
    match = HEAD.fullmatch(start)
    return match.groups() if match else ()


def _is_plain(said: bytes, choice: Choice) -> bool:
    """True for a warning whose numbers are no part of its event, and of no rule."""
    if choice.literal or NAMED.search(said):
        return False
    return len(classify(said.decode("utf-8", "replace"))) == 1
