"""Traces of PyTorch's profiler: only what stands before their events is read, however large they are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from ncclkit.core.model import Event
from ncclkit.evidence.grammars.grammar import clip

LONGEST = 16 << 20
"""Bytes before the events; a job with thousands of process groups writes a few MiB."""
EVENTS, INFO = b'"traceEvents"', re.compile(rb'"distributedInfo"\s*:\s*(?=\{)')
TRACE = re.compile(rb'\s*\{\s*"(?:schemaVersion|traceEvents|deviceProperties|distributedInfo)"')
GROUPS = 4096
"""Process groups that are kept."""


def is_trace(head: bytes) -> bool:
    """True for the beginning of a trace of PyTorch's profiler."""
    return bool(TRACE.match(head))


def read(head: bytes, more: Callable[[int], bytes], path: str) -> list[Event]:
    """The `kineto.info` event of a trace that begins with `head` and goes on with `more(size)`; none without one.

    Only the part before ``traceEvents`` is read, as that is where the profiler writes it.
    """
    data = bytearray(head)
    while EVENTS not in data and len(data) < LONGEST and (chunk := more(1 << 20)):
        data += chunk
    text = bytes(data).partition(EVENTS)[0]
    match = INFO.search(text)
    if match is None:
        return []
    try:
        info, end = json.JSONDecoder().raw_decode(text[match.end() :].decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return []
    raw = text[match.start() : match.end()].decode() + text[match.end() :].decode("utf-8", "replace")[:end]
    line = text.count(b"\n", 0, match.start()) + 1
    return [_event(info, clip(" ".join(raw.split())), path, line)] if isinstance(info, dict) else []


def _event(info: Mapping[str, Any], text: str, path: str, line: int) -> Event:
    rank, world = _whole(info.get("rank")), _whole(info.get("world_size"))
    groups = info.get("pg_config")
    version = info.get("nccl_version")
    data = {
        "backend": str(info.get("backend") or "")[:100],
        "rank": rank,
        "world": world,
        "groups": groups[:GROUPS] if isinstance(groups, list) else [],
        "nccl": str(version)[:40] if version else None,
    }
    return Event("kineto.info", text, path, line, rank=rank, data=data)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 24 else None
