"""Flight Recorder dumps of all schema versions, brought to one form.  Format: REFERENCE of torch 2.2 to 2.15."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ncclkit.evidence import pickles
from ncclkit.evidence.grammar import Data, frame

ENTRIES = 200_000
"""Entries read of one dump."""
FRAMES = 24

GroupKey = tuple[str, str]
"""(name, description) of a process group."""


@dataclass(slots=True)
class Entry:
    """One collective of one rank."""

    group: GroupKey
    seq: int
    op: str
    sizes: tuple[int, ...]
    """Elements of each input tensor."""
    shapes: Any
    dtypes: tuple[str, ...]
    state: str
    open: bool
    """True while the rank still waits for it, as far as the dump tells."""
    frames: list[Data]


@dataclass(slots=True)
class Dump:
    """What one rank recorded."""

    path: str
    rank: int | None
    version: str
    members: dict[GroupKey, tuple[int, ...]] = field(default_factory=dict)
    """Global ranks of each group, where the dump tells them."""
    entries: list[Entry] = field(default_factory=list)
    total: int = 0
    """Entries in the file, point-to-point ones included."""

    @property
    def groups(self) -> dict[GroupKey, list[Entry]]:
        """Entries by group, in order of their sequence numbers."""
        found: dict[GroupKey, list[Entry]] = {}
        for entry in sorted(self.entries, key=lambda e: e.seq):
            found.setdefault(entry.group, []).append(entry)
        return found


def load(data: bytes, path: str, rank: int | None) -> Dump | None:
    """Read one dump, pickle or JSON; None when it is something else.  Raises pickles.Refused on damage."""
    if data[:1] == b"\x80":
        value = pickles.loads(data)
    else:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise pickles.Refused(f"damaged JSON ({type(error).__name__})") from error
    if isinstance(value, list):
        value = {"version": "1.0", "entries": value}
    if not is_dump(value):
        return None
    told = value.get("rank")
    dump = Dump(path, told if isinstance(told, int) else rank, str(value.get("version", ""))[:20])
    dump.members = dict(_members(value.get("pg_config")))
    raw = value["entries"][:ENTRIES]
    dump.total = len(value["entries"])
    pushes = any(isinstance(entry, dict) and entry.get("state") == "completed" for entry in raw)
    names = {str(key[0]): key for key in dump.members}
    dump.entries = [entry for entry in (_entry(item, names, pushes) for item in raw) if entry is not None]
    return dump


def is_dump(value: Any) -> bool:
    """True for the plain value of a Flight Recorder dump."""
    if not isinstance(value, dict) or not isinstance(value.get("entries"), list):
        return False
    first = value["entries"][0] if value["entries"] else None
    return (
        ("pg_config" in value or "pg_status" in value)
        if first is None
        else isinstance(first, dict) and "profiling_name" in first
    )


def _members(config: Any) -> Iterator[tuple[GroupKey, tuple[int, ...]]]:
    """``{name: {name, desc, ranks: "[0, 1]"}}`` (2.1 and later) and ``{0: [0, 1]}`` (1.4)."""
    if not isinstance(config, dict):
        return
    for name, group in config.items():
        desc, ranks = "", group
        if isinstance(group, dict):
            desc, ranks = str(group.get("desc", "")), group.get("ranks", "")
        if isinstance(ranks, str):
            ranks = [int(number) for number in re.findall(r"\d{1,8}", ranks)]
        if isinstance(ranks, (list, tuple)) and all(isinstance(rank, int) for rank in ranks):
            yield (str(name), desc), tuple(ranks)


def _entry(item: Any, names: dict[str, GroupKey], pushes: bool) -> Entry | None:
    """One collective; None for point-to-point operations and for what cannot be understood."""
    if not isinstance(item, dict):
        return None
    library, _, op = str(item.get("profiling_name", "")).rpartition(":")
    seq = item.get("collective_seq_id", item.get("seq_id"))
    if not isinstance(seq, int) or item.get("is_p2p") is True or op.startswith(("send ", "recv ", "send", "recv")):
        return None
    group = item.get("process_group")
    if isinstance(group, (list, tuple)) and len(group) == 2:
        key = (str(group[0]), str(group[1]))
    else:
        name = str(item.get("pg_id", "0"))
        key = names.get(name, (name, ""))
    shapes = item.get("input_sizes")
    state = str(item.get("state", ""))
    retired = item.get("retired") is True
    return Entry(
        key,
        seq,
        op,
        tuple(_elements(shapes)),
        shapes,
        _texts(item.get("input_dtypes")),
        state,
        _is_open(library, state, retired, pushes),
        list(_frames(item.get("frames"))),
    )


def _is_open(library: str, state: str, retired: bool, pushes: bool) -> bool:
    """gloo never leaves ``scheduled``, nccl2 only if it reports completion: there `retired` tells, else the state."""
    if state == "completed":
        return False
    if library == "gloo" or (library not in ("nccl", "") and not pushes):
        return not retired
    return True


def _elements(shapes: Any) -> Iterator[int]:
    for shape in shapes if isinstance(shapes, (list, tuple)) else ():
        count = 1
        for size in shape if isinstance(shape, (list, tuple)) else (shape,):
            count *= size if isinstance(size, int) and abs(size) < 1 << 48 else 1
        yield min(count, 1 << 62)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(item)[:40] for item in value[:64]) if isinstance(value, (list, tuple)) else ()


def _frames(value: Any) -> Iterator[Data]:
    for item in value[:FRAMES] if isinstance(value, list) else ():
        if isinstance(item, dict):
            number = item.get("line")
            yield frame(
                str(item.get("filename", ""))[:300],
                number if isinstance(number, int) else None,
                str(item.get("name", ""))[:200],
            )
