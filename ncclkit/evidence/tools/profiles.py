"""Files of profilers.

They are those of NCCL's Inspector plugin, ``steps_rank<N>.json`` of `ncclkit step`, and traces of
torch's profiler.  Inspector writes one completed collective a line, as JSON; equal calls become one
event.  Where a step's time goes on one rank becomes one event a rank, `step.rank`.  A trace may be
of any size: it is read in pieces, and only the beginning and end of what computes, communicates or
loads data are kept.
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
    """`nccl.calls`: calls of each rank, by collective and size, with their median time.

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


PARTS = ("data", "computation", "communication", "checkpoint", "evaluation", "script")
PART_OF_PHASE = {
    "forward": "computation",
    "backward": "computation",
    "optimizer": "computation",
    "checkpoint": "checkpoint",
    "data": "data",
}
"""What the hook saw of the main thread → the part that it belongs to.

All else is the script's own.
"""
EVERY_STEP = 0.8
"""Share of the steps from which on a forward pass without gradients belongs to training, as that of
a teacher does."""
SITES = 12
"""Lines that are kept of a part."""
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

    It is None where something lacks that the hook writes.
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
    spots = value.get("spots", ())
    steps = [_HookStep.of(row, spots) for row in rows]
    evaluating = sum(bool(step.evaluations) for step in steps)
    if evaluating > EVERY_STEP * len(steps):
        for step in steps:
            step.evaluations = []
    usual = _usual_shares(steps)
    made = [_row_of_step(step, usual) for step in steps]
    data = {
        "source": "hook",
        "world": int(value["world"]),
        "backend": str(value["backend"]),
        "gpus": bool(value["gpus"]),
        "steps": made,
        "plain": plain,
        "cost": float(value["spent"]) / len(rows) if rows else 0.0,
        "batches": float(value["batches"]),
        "sites": redact.clean(_costly_sites(steps, made)),
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


@dataclass
class _Look:
    """Where the main thread stood once, and the seconds that it stands for."""

    time: float
    seconds: float
    entered: str
    """`data`, `checkpoint` or `collective`, where it was in one."""
    phase: str | None
    """What libraries did; None where the hook did not tell."""
    lines: Sequence[str]
    """Of the script, the innermost first."""
    called: str


@dataclass
class _HookStep:
    """One measured step: what is known to the microsecond, and the looks that tell the rest."""

    row: Mapping[str, Any]
    looks: list[_Look]
    evaluations: list[Span]
    """Forward passes without gradients."""
    gaps: list[Span]

    @classmethod
    def of(cls, row: Mapping[str, Any], spots: Sequence[Mapping[str, Any]]) -> _HookStep:
        """One row of the hook's file."""
        looks = []
        before = row["begin"]
        for sample in row["samples"]:
            look = _look_of_sample(sample, before, spots)
            looks.append(look)
            before = look.time
        evaluations = []
        for since, until in row.get("gradless", ()):
            if any(look.phase == "forward" and since <= look.time <= until for look in looks):
                evaluations.append((since, until))
        gaps = _gaps_of_loader(row)
        if not gaps and "ddp" in row and looks and looks[0].phase is not None:
            # without a loader the batch is made between the step before and the forward pass
            gaps = [(row["begin"], max(row["begin"], row["ddp"][0]))]
        return cls(row, looks, evaluations, gaps)

    @property
    def exposed(self) -> Span:
        """When DDP's gradients were all ready, and when the last had arrived."""
        if "ddp" not in self.row:
            return 0.0, 0.0
        _, _, computed, sent = self.row["ddp"]
        return computed, max(computed, sent)

    def busy(self, kind: str) -> list[Sequence[Any]]:
        """What was done of one kind outside of evaluations."""
        found = []
        for one in self.row["busy"]:
            if one[0] == kind and not _is_within(one[1], self.evaluations):
                found.append(one)
        return found

    def gap_seconds(self) -> float:
        """Seconds in which nothing else is known.

        They lie between the steps, or before a forward pass.
        """
        seconds = 0.0
        for since, until in self.gaps:
            known = _covered_seconds(self.row["busy"], since, until)
            seconds += max(0.0, until - since - known - _overlap(self.evaluations, since, until))
        return seconds

    def shares(self, in_gaps: bool) -> dict[str, float]:
        """Part → seconds, by the looks within the gaps, or outside of them."""
        found: dict[str, float] = defaultdict(float)
        for look in self.looks:
            known = look.entered or _is_within(look.time, [*self.evaluations, self.exposed])
            if not known and _is_within(look.time, self.gaps) == in_gaps:
                found[_part_of_look(look, in_gaps)] += look.seconds
        return found


def _look_of_sample(
    sample: Sequence[Any], before: float, spots: Sequence[Mapping[str, Any]]
) -> _Look:
    time, entered, place, *phase = sample
    since = max(0.0, time - before)
    if not phase:  # of an older hook, which kept one line and nothing else
        return _Look(time, since, entered, None, [place] if place else [], "")
    spot = spots[place]
    lines = [str(line) for line in spot["lines"]]
    return _Look(time, since, entered, str(phase[0]), lines, str(spot["called"]))


def _part_of_look(look: _Look, in_gaps: bool) -> str:
    """The part of a step that a look saw.

    Where the look does not tell, it is what usually is there.
    """
    if look.phase is None:
        return "script" if in_gaps else "computation"
    return PART_OF_PHASE.get(look.phase, "script")


def _is_within(time: float, spans: Iterable[Span]) -> bool:
    return any(since <= time <= until for since, until in spans)


def _overlap(spans: Iterable[Span], since: float, until: float) -> float:
    seconds = 0.0
    for begin, end in spans:
        seconds += max(0.0, min(end, until) - max(begin, since))
    return seconds


def _usual_shares(steps: Iterable[_HookStep]) -> dict[bool, dict[str, float]]:
    """Whether in gaps → part → share of all looks.

    It is for a step too short to be looked at.
    """
    usual = {}
    for in_gaps, part in ((True, "script"), (False, "computation")):
        total: dict[str, float] = defaultdict(float)
        for step in steps:
            for name, seconds in step.shares(in_gaps).items():
                total[name] += seconds
        usual[in_gaps] = _normalized(total) or {part: 1.0}
    return usual


def _normalized(seconds: Mapping[str, float]) -> dict[str, float]:
    whole = sum(seconds.values())
    if not whole:
        return {}
    return {name: one / whole for name, one in seconds.items()}


def _row_of_step(step: _HookStep, usual: Mapping[bool, Mapping[str, float]]) -> dict[str, Any]:
    """Seconds of one step and of its parts, and when each collective began and ended."""
    row = step.row
    parts = dict.fromkeys(PARTS, 0.0)
    for kind, part in (("data", "data"), ("checkpoint", "checkpoint"), ("gc", "script")):
        parts[part] += sum(one[2] - one[1] for one in step.busy(kind))
    calls = [(one[1], one[2], one[4]) for one in step.busy("collective")]
    own = sum(until - since for since, until, _ in calls)
    computed, sent = step.exposed
    parts["communication"] = own + sent - computed
    parts["evaluation"] = sum(until - since for since, until in step.evaluations)
    seconds = row["end"] - row["begin"]
    rest = max(0.0, seconds - sum(parts.values()))
    between = min(rest, step.gap_seconds())
    for in_gaps, left in ((True, between), (False, rest - between)):
        shares = _normalized(step.shares(in_gaps)) or usual[in_gaps]
        for part, share in shares.items():
            parts[part] += share * left
    points = _points_of_step(step)
    made = {
        "seconds": seconds,
        "parts": parts,
        "points": points[:POINTS],
        "own": own,
        "bytes": sum(call[2] for call in calls),
        "calls": len(calls),
        "queued": float(row.get("queued", 0.0)),
    }
    return made | ({"loading": float(row["loading"])} if "loading" in row else {})


def _points_of_step(step: _HookStep) -> list[list[float]]:
    """Begin, end and exposed seconds of each collective, and of DDP's last wait.

    They come in order.  Those of an evaluation are kept, as ranks are compared call by call, but
    cost nothing here.
    """
    points = []
    for kind, since, until, *_ in step.row["busy"]:
        if kind == "collective":
            hidden = _is_within(since, step.evaluations)
            points.append([since, until, 0.0 if hidden else until - since])
    computed, sent = step.exposed
    if "ddp" in step.row:
        points.append([computed, sent, sent - computed])
    return sorted(points)


def _gaps_of_loader(row: Mapping[str, Any]) -> list[Span]:
    """The times in which a loader may be waited for.

    They go from the end of the step before to the next batch, and from the only batch to the
    forward pass.
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


def _costly_sites(steps: Sequence[_HookStep], made: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """What a step does, the longest of each part first.

    A row is [part, line of the script, seconds of a step, calls of a step, function, phase, lines
    that called it].
    """
    seconds: dict[tuple[Any, ...], float] = defaultdict(float)
    calls: dict[tuple[Any, ...], int] = defaultdict(int)
    for step, values in zip(steps, made, strict=True):
        for kind in ("collective", "gc"):
            for _, since, until, name, _, place in step.busy(kind):
                if place:
                    part = "script" if kind == "gc" else kind
                    key = (part, place, name, kind, ())
                    seconds[key] += until - since
                    calls[key] += name != "wait"
        for key, spent in _looked_sites(step, values["parts"]).items():
            seconds[key] += spent
    count = max(1, len(steps))
    kept: dict[str, int] = defaultdict(int)
    rows = []
    for key in sorted(seconds, key=lambda key: -seconds[key]):
        part, place, name, phase, callers = key
        kept[part] += 1
        if kept[part] <= SITES:
            spent = seconds[key] / count
            rows.append([part, place, spent, calls[key] / count, name, phase, [*callers]])
    return rows


def _looked_sites(step: _HookStep, parts: Mapping[str, float]) -> dict[tuple[Any, ...], float]:
    """Lines that the looks of a step saw → seconds.

    Those of a part share the seconds that the part has.
    """
    spent: dict[tuple[Any, ...], float] = defaultdict(float)
    whole: dict[str, float] = defaultdict(float)
    for look in step.looks:
        if _is_within(look.time, step.evaluations):
            part = "evaluation"
        elif look.entered == "collective" or _is_within(look.time, [step.exposed]):
            continue
        else:
            in_gaps = _is_within(look.time, step.gaps)
            part = look.entered or _part_of_look(look, in_gaps)
        whole[part] += look.seconds
        if look.lines:
            place, *callers = look.lines
            key = (part, place, look.called, look.phase or "", tuple(callers))
            spent[key] += look.seconds
    made = {}
    for key, one in spent.items():
        if whole[key[0]]:
            made[key] = one / whole[key[0]] * parts.get(key[0], 0.0)
    return made


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

    Raises NcclkitError in one sentence where it holds no step.  `number` is that of the rank, where
    the trace does not say it.
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
    """The events of a trace one after the other.

    What stands before them is put into `about`.
    """
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
