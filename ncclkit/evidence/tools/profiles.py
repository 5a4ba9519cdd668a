"""Files of profilers: NCCL's Inspector plugin, ``steps_rank<N>.json`` of `ncclkit step`, traces of
torch's profiler.

Inspector writes one completed collective a line, as JSON; equal calls become one event.  Where a
step's time goes on one rank becomes one event a rank, `step.rank`.  A trace may be of any size: it
is read in pieces, and only the beginning and end of what computes, communicates or loads data are
kept.
"""

from __future__ import annotations

import json
import re
import statistics
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from ncclkit.agent import redact
from ncclkit.core import secrets, storage
from ncclkit.core.model import Event, NcclkitError
from ncclkit.evidence.sources.streams import Readable

HEAD = re.compile(rb'\A\s*\{\s*"header"\s*:\s*\{')
"""How such a file begins."""
MARK = b'"coll_perf"'
LARGEST, MOST_RANKS = 1 << 40, 1 << 20
"""Bytes of a message and ranks that a line can claim."""
LONGEST_LINE = 1 << 16
"""Bytes of a line; the plugin writes 500."""


def events(data: bytes, path: str) -> list[Event]:
    """`nccl.calls`: calls of each rank, by collective and message size, with their median time.

    Torn lines are left out.
    """
    times: defaultdict[tuple[int | None, str, int], list[float]] = defaultdict(list)
    first: dict[tuple[int | None, str, int], tuple[int, str]] = {}
    for number, (raw, row) in enumerate(_rows_of_lines(data), 1):
        key = _key_of_row(row)
        if key is None:
            continue
        took = row["coll_perf"].get("coll_exec_time_us")
        if isinstance(took, (int, float)):
            times[key].append(float(took))
        else:
            times[key].append(0.0)
        if key not in first:
            quoted = raw[:2000].decode("utf-8", "replace")
            first[key] = number, secrets.text(quoted)
    made = []
    for key, laps in times.items():
        rank, op, size = key
        line, text = first[key]
        record = {"op": op, "bytes": size, "time_us": statistics.median(laps)}
        made.append(Event("nccl.calls", text, path, line, rank=rank, data=record, count=len(laps)))
    return made


def _rows_of_lines(data: bytes) -> Iterator[tuple[bytes, Any]]:
    for line in data.splitlines():
        try:
            yield line, storage.parse_json(line) if 0 < len(line) <= LONGEST_LINE else None
        except ValueError:
            yield line, None  # the line that the plugin was writing when the job ended


def _key_of_row(row: Any) -> tuple[int | None, str, int] | None:
    """Rank, collective and bytes of a line; None for one that is none."""
    if isinstance(row, dict):
        perf, header = (row.get(name) for name in ("coll_perf", "header"))
    else:
        perf, header = None, None
    if not isinstance(perf, dict) or not isinstance(perf.get("coll"), str):
        return None
    size = perf.get("coll_msg_size_bytes")
    rank = None
    if isinstance(header, dict):
        rank = header.get("rank")
    if type(size) is not int or not 0 <= size < LARGEST:
        return None
    return (rank if type(rank) is int and 0 <= rank < MOST_RANKS else None), perf["coll"][:60], size


PARTS = ("data", "computation", "communication", "checkpoint", "script")
POINTS = 64
"""Collectives of a step whose arrivals are compared over the ranks."""
MOST = 4_000_000
"""Intervals of one kind that are kept of a trace: 64 MB."""
PIECE = 1 << 20
RANKS = 1 << 31
"""Ranks are numbered below."""
LONGEST_EVENT = 8 << 20
"""Bytes of one event of a trace at most."""
OPTIMIZER, LOADER, MARKED = "Optimizer.step#", "enumerate(DataLoader)#", "ProfilerStep#"

Span = tuple[float, float]


def from_hook(value: Mapping[str, Any], path: str) -> Event | None:
    """The event of one rank from what `ncclkit.agent.monitor.step_hook` wrote.

    None where it lacks what that writes.
    """
    try:
        return _event_of_hook(value, path)
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


def _event_of_hook(value: Mapping[str, Any], path: str) -> Event:
    if not 0 <= int(value["rank"]) < RANKS:
        raise ValueError(f"there is no rank {value['rank']}")
    rows = [row for row in value["rows"] if row["on"]]
    plain = [row["end"] - row["begin"] for row in value["rows"] if not row["on"]]
    made = [_row_of_step(row) for row in rows]
    data = {
        "source": "hook",
        "world": int(value["world"]),
        "backend": str(value["backend"]),
        "gpus": bool(value["gpus"]),
        "steps": made,
        "plain": plain,
        "cost": float(value["spent"]) / len(rows) if rows else 0.0,
        "batches": float(value["batches"]),
        "sites": redact.clean(_costly_sites(rows)),
        "buckets": [int(size) for sizes in value["buckets"] for size in sizes],
        "loaders": [[int(workers), *more] for workers, *more in value["loaders"]],
        "threads": value["threads"],
        "problems": redact.clean(value["problems"]),
    }
    return _step_event(int(value["rank"]), str(value["host"]), path, data)


def _step_event(rank: int, host: str, path: str, data: Mapping[str, Any]) -> Event:
    steps = data["steps"]
    usual = median([row["seconds"] for row in steps] or [0.0])
    text = f"rank {rank}: {len(steps)} steps measured, {1e3 * usual:.1f} ms each"
    for part in PARTS:
        seconds = fmean([row["parts"].get(part, 0.0) for row in steps] or [0.0])
        if seconds >= 5e-5:  # less is 0.0 ms
            text += f", {part} {1e3 * seconds:.1f} ms"
    return Event("step.rank", text, path, 0, None, host, None, rank, data)


def _row_of_step(row: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds of one step and of its parts, and when each collective began and ended."""
    begin, end, busy = row["begin"], row["end"], row["busy"]
    spent = {
        kind: sum(one[2] - one[1] for one in busy if one[0] == kind)
        for kind in ("data", "checkpoint")
    }
    calls = [(one[1], one[2], one[4]) for one in busy if one[0] == "collective"]
    own = sum(until - since for since, until, _ in calls)
    exposed = 0.0
    if "ddp" in row:
        _, _, computed, sent = row["ddp"]
        exposed = max(0.0, sent - computed)
        calls = sorted([*calls, (computed, sent, 0)])
    gaps = sum(
        until - since - _covered_seconds(busy, since, until)
        for since, until in _gaps_of_loader(row)
    )
    parts = spent | {"communication": own + exposed, "script": gaps}
    parts["computation"] = max(0.0, end - begin - sum(parts.values()))
    points = [[since, until, until - since] for since, until, _ in calls[:POINTS]]
    made = {
        "seconds": end - begin,
        "parts": parts,
        "points": points,
        "own": own,
        "bytes": sum(c[2] for c in calls),
    }
    return made | ({"loading": float(row["loading"])} if "loading" in row else {})


def _gaps_of_loader(row: Mapping[str, Any]) -> list[Span]:
    """From the end of the step before to the next batch, and from the only batch to the forward
    pass.
    """
    loads = [(one[1], one[2]) for one in row["busy"] if one[0] == "data"]
    if not loads:
        return []
    if "ddp" in row and len(loads) == 1:
        forward = row["ddp"][0]
    else:
        forward = loads[0][1]
    return [(row["begin"], loads[0][0]), (loads[0][1], max(forward, loads[0][1]))]


def _covered_seconds(busy: Iterable[Sequence[Any]], since: float, until: float) -> float:
    """Seconds between two times in which something was done that is counted by itself."""
    return float(sum(max(0.0, min(one[2], until) - max(one[1], since)) for one in busy))


def _costly_sites(rows: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """[part, line of the script, seconds of a step, calls of a step, function] of what is not
    computing.
    """
    seconds: dict[tuple[str, str, str], float] = defaultdict(float)
    calls: dict[tuple[str, str, str], int] = defaultdict(int)
    for row in rows:
        for kind, since, until, name, _, place in row["busy"]:
            if kind == "collective" and place:
                seconds[kind, place, name] += until - since
                calls[kind, place, name] += name != "wait"
        gaps = _gaps_of_loader(row)
        seen = [
            (_phase_of_sample(time, phase, gaps), place)
            for time, phase, place in row["samples"]
            if place
        ]
        each = (row["end"] - row["begin"]) / max(1, len(row["samples"]))
        for phase, place in seen:
            if phase:
                seconds[phase, place, ""] += each
    count = max(1, len(rows))
    ordered = sorted(seconds, key=lambda key: -seconds[key])[:12]
    return [[*key[:2], seconds[key] / count, calls[key] / count, key[2]] for key in ordered]


def _phase_of_sample(time: float, phase: str, gaps: Sequence[Span]) -> str:
    """What a look at the main thread belongs to; empty for computation and collectives."""
    if phase in ("data", "checkpoint"):
        return phase
    if not phase and any(since <= time <= until for since, until in gaps):
        return "script"
    return ""


# ---------------------------------------------------------------- traces


@dataclass
class Spans:
    """Intervals of one kind."""

    begins: array[float] = field(default_factory=lambda: array("d"))
    ends: array[float] = field(default_factory=lambda: array("d"))

    def add(self, begin: float, end: float) -> None:
        """One more; what is beyond `MOST` is left out."""
        if len(self.begins) < MOST:
            self.begins.append(begin)
            self.ends.append(end)

    def union(self) -> list[Span]:
        """Intervals that do not touch, in order."""
        made: list[Span] = []
        for begin, end in sorted(zip(self.begins, self.ends, strict=True)):
            if made and begin <= made[-1][1]:
                made[-1] = made[-1][0], max(end, made[-1][1])
            else:
                made.append((begin, end))
        return made


def from_trace(stream: Readable, path: str, number: int) -> Event:
    """The event of one rank from a Kineto trace.

    Raises NcclkitError in one sentence where it holds no step.

    number: of the rank, where the trace does not say it.
    """
    kinds: dict[str, Spans] = defaultdict(Spans)
    marks: dict[str, list[Span]] = defaultdict(list)
    about: dict[str, Any] = {}
    for event in _events_of_trace(stream, about):
        began = event.get("ts")
        took = event.get("dur")
        if (
            event.get("ph") == "X"
            and isinstance(began, (int, float))
            and isinstance(took, (int, float))
        ):
            _take_event(event, (began / 1e6, (began + took) / 1e6), kinds, marks)
    steps = _step_boundaries(marks)
    if len(steps) < 2:
        raise NcclkitError(
            f"{path} holds no two steps of an optimizer; profile more steps, or call prof.step() in"
            " each."
        )
    gpu = bool(kinds["kernel"].begins)
    sent = kinds["nccl" if gpu else "gloo"]
    spans = kinds["kernel" if gpu else "op"].union(), sent.union(), kinds["data"].union()
    calls = sorted(zip(sent.begins, sent.ends, strict=True))
    base = _base_second(about)
    rows = [
        _parts_of_step(begin, end, spans) | _calls_of_step(begin, end, calls, spans[0], base)
        for begin, end in steps
    ]
    group = {}
    if isinstance(about.get("distributedInfo"), dict):
        group = about["distributedInfo"]
    data = {
        "source": "trace",
        "world": _number_or_default(group.get("world_size"), 1),
        "backend": str(group.get("backend", "")),
    }
    data |= {
        "gpus": gpu,
        "steps": rows,
        "plain": [],
        "cost": None,
        "batches": 0.0,
        "sites": [],
        "buckets": [],
    }
    data |= {"loaders": [], "threads": 0, "problems": []}
    return _step_event(
        _number_or_default(group.get("rank"), number), str(about.get("host_name", "")), path, data
    )


def _base_second(about: Mapping[str, Any]) -> float:
    """The second since the epoch from which a trace counts; 0 where it does not say it."""
    nanoseconds = about.get("baseTimeNanoseconds")
    if isinstance(nanoseconds, (int, float)):
        return nanoseconds / 1e9
    return 0.0


def _number_or_default(value: Any, otherwise: int) -> int:
    """A number that is not negative, else the other one."""
    if isinstance(value, int) and 0 <= value < RANKS:
        return value
    return otherwise


def _take_event(
    event: Mapping[str, Any],
    span: Span,
    kinds: Mapping[str, Spans],
    marks: Mapping[str, list[Span]],
) -> None:
    """Keep what one event of a trace says."""
    kind = event.get("cat")
    name = str(event.get("name"))
    if kind in ("kernel", "gpu_memcpy", "gpu_memset"):
        kinds["nccl" if name.startswith(("nccl", "rccl")) else "kernel"].add(*span)
    elif kind == "user_annotation" and name.startswith(LOADER):
        kinds["data"].add(*span)
    elif kind == "user_annotation" and name.startswith((OPTIMIZER, MARKED)):
        marks[name if name.startswith(OPTIMIZER) else MARKED].append(span)
    elif kind == "user_annotation" and name.startswith("gloo:"):
        kinds["gloo"].add(*span)
    elif kind == "cpu_op" and not name.startswith(("c10d::", "nccl:")):
        kinds["op"].add(*span)


def _step_boundaries(marks: Mapping[str, list[Span]]) -> list[Span]:
    """From the end of each optimizer's step to the next one's.

    Of several optimizers the first one's count.
    """
    named = min(
        (name for name in marks if name != MARKED),
        key=lambda name: min(marks[name]),
        default=MARKED,
    )
    ends = sorted(end for _, end in marks.get(named, ()))
    return [*zip(ends, ends[1:], strict=False)]


def _parts_of_step(
    begin: float, end: float, spans: tuple[list[Span], list[Span], list[Span]]
) -> dict[str, Any]:
    """Seconds of the parts of one step.

    What communicates or loads while something computes costs nothing.
    """
    work, sent, loads = (_spans_within(one, begin, end) for one in spans)
    exposed = _spans_without(sent, work)
    waited = _spans_without(_spans_without(loads, work), sent)
    parts = {
        "computation": _length_of_spans(work),
        "communication": _length_of_spans(exposed),
        "data": _length_of_spans(waited),
    }
    parts |= {"checkpoint": 0.0, "script": max(0.0, end - begin - sum(parts.values()))}
    return {"seconds": end - begin, "parts": parts, "own": 0.0, "bytes": 0}


def _calls_of_step(
    begin: float, end: float, calls: Sequence[Span], work: Sequence[Span], base: float
) -> dict[str, Any]:
    """When the collectives of a step began and ended, and how much of each nothing hides."""
    mine = calls[bisect_left(calls, (begin, begin)) : bisect_left(calls, (end, end))][:POINTS]
    return {
        "points": [
            [since + base, until + base, _length_of_spans(_spans_without([(since, until)], work))]
            for since, until in mine
        ]
    }


def _spans_within(spans: Sequence[Span], begin: float, end: float) -> list[Span]:
    first = max(0, bisect_right(spans, (begin, begin)) - 1)
    chosen = spans[first : bisect_left(spans, (end, end))]
    return [(max(since, begin), min(until, end)) for since, until in chosen if until > begin]


def _spans_without(spans: Sequence[Span], taken: Sequence[Span]) -> list[Span]:
    """What of intervals is outside of others; both are in order."""
    left: list[Span] = []
    for since, until in spans:
        for start, stop in _spans_within(taken, since, until):
            left += [(since, start)] if start > since else []
            since = max(since, stop)
        left += [(since, until)] if until > since else []
    return left


def _length_of_spans(spans: Iterable[Span]) -> float:
    return float(sum(until - since for since, until in spans))


def _events_of_trace(stream: Readable, about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of a trace one after the other; what stands before them is put into `about`."""
    read, text, start = json.JSONDecoder().raw_decode, "", None
    while chunk := stream.read(PIECE):
        text += chunk.decode("utf-8", "replace")
        if start is None:
            found = re.search(r'"traceEvents"\s*:\s*\[', text)
            if found is None and len(text) < LONGEST_EVENT:
                continue
            if found is None:
                return
            about.update(_head_of_trace(text[: found.start()]))
            start = found.end()
        at = start
        while (brace := text.find("{", at)) >= 0 and "]" not in text[at:brace]:
            try:
                event, at = read(text, brace)
            except json.JSONDecodeError:  # the rest of it is in the next piece
                break
            yield event
        if brace >= 0 and "]" in text[at:brace]:
            return
        text, start = text[at:], 0
        if len(text) > LONGEST_EVENT:
            return


def _head_of_trace(text: str) -> dict[str, Any]:
    """What a trace says of itself before its events."""
    try:
        return dict(json.loads(text.rstrip().rstrip(",") + "}"))
    except ValueError:
        # of a torch that wrote it otherwise: the rank is then that of the file's name
        return {}
