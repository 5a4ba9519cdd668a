"""The verdict of a rehearsal as the events that Flight Recorder dumps give.

``rehearsal.json`` of a run folder holds for each rank the call at which it stands, or how it ended.
A rehearsal knows every rank, so what it shows is complete: nobody is merely late.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ncclkit.agent import redact
from ncclkit.agent.digits import is_whole
from ncclkit.core import text
from ncclkit.core.model import Event
from ncclkit.evidence.grammars.grammar import clip

MARK = "ncclkit_rehearsal"
"""The key by which the file is known."""
OF_ALL = "world"
"""The group of calls that all ranks make outside of any group: ``init_process_group`` and
``new_group``."""
EXIT = re.compile(r"exit status (\d{1,3})$")
SIGNAL = re.compile(r"signal (\d{1,2})$")


class RehearsedCall(msgspec.Struct, frozen=True):
    """The call at which a rank stands."""

    op: str
    place: str
    words: str
    group: str
    members: tuple[int, ...]
    seq: int = 0
    """Its number among the collectives of the group."""
    root: int | None = None
    reduce: str = ""
    owner: str = ""
    dtypes: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    gives: tuple[int, ...] = ()
    takes: tuple[int, ...] = ()
    peer: int | None = None
    gpu: str = ""
    gpu_place: str = ""

    @property
    def is_pair(self) -> bool:
        """Whether it is of two ranks alone."""
        return self.op in ("send", "recv")

    @property
    def said(self) -> str:
        """The call and its line."""
        return f"{self.words} at {self.place}"


class RehearsedEnding(msgspec.Struct, frozen=True):
    """How a rank ended."""

    how: str
    say: str = ""
    place: str = ""
    function: str = ""

    @property
    def said(self) -> str:
        """How, and its line where it is known."""
        if self.place:
            return f"{self.say} at {self.place}"
        return self.say


class RehearsedFigures(msgspec.Struct, frozen=True):
    """What was counted, of which one is read here."""

    fake: bool = False
    """Whether tensors had shapes and types, and no values."""


class RehearsedVerdict(msgspec.Struct, frozen=True):
    """The file."""

    kind: str
    world: int
    ranks: tuple[int, ...] = ()
    calls: dict[int, RehearsedCall] = {}
    endings: dict[int, RehearsedEnding] = {}
    field: str = ""
    waits: dict[int, tuple[int, ...]] = {}
    why: str = ""
    pairs: tuple[tuple[int, int, int, int], ...] = ()
    """(from, to, elements sent, expected) of splits that differ."""
    later: dict[int, RehearsedCall] = {}
    """Of `order`: the call that a rank makes after that of `calls`."""
    shared: dict[int, RehearsedCall] = {}
    """Calls from a GPU that another rank of the host uses, too."""
    figures: RehearsedFigures = RehearsedFigures()
    notes: tuple[str, ...] = ()
    """What was seen besides, a sentence each."""


def is_rehearsal(value: Any) -> bool:
    """Whether a JSON document is the verdict of a rehearsal."""
    return isinstance(value, dict) and MARK in value


def events_of_rehearsal(value: Mapping[str, Any], path: str) -> list[Event]:
    """What a verdict says, as events; none where it holds something else than it should."""
    try:
        verdict = msgspec.convert(redact.clean(value), RehearsedVerdict, strict=False)
    except msgspec.ValidationError:
        return []
    made = [_verdict_event(verdict, path)]
    if verdict.kind in ("mismatch", "differs"):
        made += _mismatch_events(verdict, path)
    elif verdict.kind in ("left", "deadlock"):
        made += _wait_events(verdict, path)
        made += _ending_events(verdict, path)
    return made


def _verdict_event(verdict: RehearsedVerdict, path: str) -> Event:
    why = ""
    if verdict.kind == "unknown":
        why = _why_undecided(verdict)
    said = {
        "agree": f"all {verdict.world} ranks of the rehearsal agreed{_of_fake(verdict)}",
        "unknown": f"a rehearsal of {verdict.world} ranks could not tell: {why}",
    }
    if verdict.why == "interrupted":
        said["unknown"] = f"a rehearsal of {verdict.world} ranks was interrupted: could not tell"
    words = said.get(verdict.kind, f"a rehearsal of {verdict.world} ranks: {verdict.kind}")
    lines = [words]
    if verdict.kind == "first_use":
        lines = [*lines, *_lines_of_calls(verdict)]
    if verdict.kind == "order":
        lines = _lines_of_order(verdict)
    if verdict.kind == "same_gpu" or verdict.why == "gpus":
        lines = _lines_of_gpus(verdict)
    lines += verdict.notes
    data = {
        "verdict": verdict.kind,
        "ranks": verdict.world,
        "odd": list(verdict.ranks),
        "why": verdict.why,
        "fake": verdict.figures.fake,
        "notes": list(verdict.notes),
    }
    return Event("rehearsal.verdict", clip("\n".join(lines)), path, 0, data=data)


def _why_undecided(verdict: RehearsedVerdict) -> str:
    """Why a rehearsal could not tell."""
    said = verdict.why
    ends = []
    for rank in verdict.ranks:
        if rank in verdict.endings:
            ends.append(f"rank {rank}: {verdict.endings[rank].said}")
    if verdict.why == "failed" and ends:
        said = "; ".join(ends)
    elif verdict.why == "deadline":
        said = f"at the deadline {text.ranks(verdict.ranks)} had not ended, which may be slow work"
    elif verdict.why == "threads":
        said = "ranks communicate from two threads, of which one may free the other"
    if verdict.figures.fake:
        return f"{said} (tensors had no values)"
    return said


def _of_fake(verdict: RehearsedVerdict) -> str:
    """What ranks that had no values agreed on."""
    if verdict.figures.fake:
        return " on the shapes and types of their tensors, which had no values"
    return ""


def _lines_of_order(verdict: RehearsedVerdict) -> list[str]:
    """Which of two calls each rank makes first."""
    together: dict[str, list[int]] = defaultdict(list)
    for rank, call in sorted(verdict.calls.items()):
        later = verdict.later.get(rank)
        if later is not None:
            together[f"{call.said}, then {later.said}"].append(rank)
    lines = []
    for said, ranks in together.items():
        lines.append(f"{text.ranks(ranks)}: {said}")
    return lines


def _lines_of_gpus(verdict: RehearsedVerdict) -> list[str]:
    """Which GPU each rank uses, and the line that chose it."""
    together: dict[str, list[int]] = defaultdict(list)
    for rank, call in sorted(verdict.shared.items()):
        together[f"GPU {call.gpu}, chosen at {call.gpu_place}, for {call.said}"].append(rank)
    lines = []
    for said, ranks in together.items():
        lines.append(f"{text.ranks(ranks)}: {said}")
    return lines


# ---------------------------------------------------------------- calls that do not fit


def _mismatch_events(verdict: RehearsedVerdict, path: str) -> Iterator[Event]:
    first = next(iter(verdict.calls.values()), None)
    if first is None:
        return
    if first.is_pair and verdict.field == "sizes":
        yield _pair_of_sizes(verdict, path)
    elif verdict.field == "splits":
        yield _splits_event(verdict, path)
    else:
        yield _sides_event(verdict, path)


def _sides_event(verdict: RehearsedVerdict, path: str) -> Event:
    """Ranks with equal calls are one side; the most ranks first."""
    sides: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for rank, call in sorted(verdict.calls.items()):
        value = getattr(call, verdict.field, "")
        sides[call.op, value].append(rank)
    ordered = sorted(sides.values(), key=len, reverse=True)
    field = "op"
    if verdict.field in ("sizes", "dtypes"):
        field = verdict.field
    shown = []
    sites = []
    for ranks in ordered:
        call = verdict.calls[ranks[0]]
        shown.append({"value": _value_of(call, field), "ranks": ranks})
        sites.append(call.place)
    common = verdict.calls[ordered[0][0]]
    data = {
        "seq": common.seq,
        "op": common.op,
        "group": common.group,
        "field": field,
        "majority": shown[0],
        "odd": shown[1:],
        "sites": sites,
        "rehearsed": True,
    }
    return _event("flight.mismatch", _lines_of_calls(verdict), path, ordered[-1], data)


def _value_of(call: RehearsedCall, field: str) -> Any:
    if field == "op":
        return call.said
    if field == "dtypes":
        return list(call.dtypes)
    shapes = []
    for shape in call.shapes:
        extents = re.findall(r"\d+", shape)
        shapes.append([int(extent) for extent in extents])
    return shapes


def _splits_event(verdict: RehearsedVerdict, path: str) -> Event:
    sent = 0
    expected = 0
    for call in verdict.calls.values():
        sent += sum(call.gives)
        expected += sum(call.takes)
    common = next(iter(verdict.calls.values()))
    data = {
        "seq": common.seq,
        "op": common.op,
        "group": common.group,
        "field": "splits",
        "majority": {"value": sent, "ranks": sorted(verdict.calls)},
        "odd": [{"value": expected, "ranks": list(verdict.ranks)}],
        "pairs": [list(pair) for pair in verdict.pairs],
        "rehearsed": True,
    }
    lines = _lines_of_calls(verdict)
    for sender, receiver, given, taken in verdict.pairs:
        lines.append(f"rank {sender} sends {given} to rank {receiver}, which expects {taken}")
    return _event("flight.mismatch", lines, path, verdict.ranks, data)


def _pair_of_sizes(verdict: RehearsedVerdict, path: str) -> Event:
    sender = 0
    receiver = 0
    sizes = [0, 0]
    for rank, call in verdict.calls.items():
        if call.op == "send":
            sender = rank
            sizes[0] = sum(call.sizes)
        elif call.op == "recv":
            receiver = rank
            sizes[1] = sum(call.sizes)
    data = {
        "op": "send",
        "src": sender,
        "dst": receiver,
        "sent": 1,
        "received": 1,
        "sizes": sizes,
        "rehearsed": True,
    }
    return _event("flight.p2p", _lines_of_calls(verdict), path, (sender, receiver), data)


# ---------------------------------------------------------------- who waits for whom


def _wait_events(verdict: RehearsedVerdict, path: str) -> list[Event]:
    together: dict[tuple[str, int], list[int]] = defaultdict(list)
    made = []
    outside = False
    for rank in sorted(verdict.waits):
        call = verdict.calls.get(rank)
        if call is None:
            continue
        outside = outside or call.group == OF_ALL
        if call.is_pair:
            made.append(_unpaired_event(verdict, rank, call, path))
        else:
            together[call.group, call.seq].append(rank)
    # a group that only some make is no order of groups: the ranks made different calls
    if outside and verdict.kind == "deadlock":
        return [_sides_event(verdict, path)]
    for waiting in together.values():
        made.append(_missing_event(verdict, waiting, path))
    return made


def _unpaired_event(
    verdict: RehearsedVerdict,
    rank: int,
    call: RehearsedCall,
    path: str,
) -> Event:
    peers = verdict.waits[rank]
    peer = rank
    if peers:
        peer = peers[0]
    is_send = call.op == "send"
    data = {
        "op": call.op,
        "group": call.group,
        "src": rank if is_send else peer,
        "dst": peer if is_send else rank,
        "sent": int(is_send),
        "received": int(not is_send),
        "waiting": [rank],
        "lacking": [peer],
        "rehearsed": True,
    }
    return _event("flight.p2p", [f"rank {rank}: {call.said}"], path, [rank], data)


def _missing_event(verdict: RehearsedVerdict, waiting: list[int], path: str) -> Event:
    call = verdict.calls[waiting[0]]
    missing: set[int] = set()
    lines = []
    for rank in waiting:
        missing.update(verdict.waits[rank])
        lines.append(f"rank {rank}: {verdict.calls[rank].said}")
    for rank in sorted(missing):
        if rank in verdict.calls:
            lines.append(f"rank {rank}: {verdict.calls[rank].said}")
        elif rank in verdict.endings:
            ending = verdict.endings[rank]
            lines.append(f"rank {rank}: {ending.said}")
    data = {
        "seq": call.seq,
        "op": call.op,
        "group": call.group,
        "missing": sorted(missing),
        "waiting": waiting,
        "rehearsed": True,
    }
    return _event("flight.missing", lines, path, sorted(missing), data)


def _ending_events(verdict: RehearsedVerdict, path: str) -> Iterator[Event]:
    """How ranks ended for which others wait."""
    for rank in verdict.ranks:
        ending = verdict.endings.get(rank)
        if ending is None:
            continue
        line = f"rank {rank}: {ending.said}"
        if ending.how == "failed":
            yield _exception_event(rank, ending, line, path)
        elif ending.how == "died":
            code = EXIT.search(ending.say)
            number = SIGNAL.search(ending.say)
            data = {
                "exitcode": int(code[1]) if code else None,
                "signal": int(number[1]) if number else None,
            }
            yield Event("elastic.exit", clip(line), path, 0, rank=rank, data=data)
        else:
            said = f"{line} (exit code 0)"
            data_of_end = {"message": said}
            yield Event("job.done", clip(said), path, 0, rank=rank, data=data_of_end)


def _exception_event(rank: int, ending: RehearsedEnding, line: str, path: str) -> Event:
    kind, _, message = ending.say.partition(": ")
    file, _, number = ending.place.rpartition(":")
    frames = []
    if is_whole(number):
        frames.append({"file": file, "line": int(number), "func": ending.function})
    data = {"type": kind, "message": message, "frames": frames, "until": 0}
    return Event("python.exception", clip(line), path, 0, rank=rank, data=data)


# ---------------------------------------------------------------- records


def _lines_of_calls(verdict: RehearsedVerdict) -> list[str]:
    """Who stands where; ranks with the same call on one line."""
    together: dict[str, list[int]] = defaultdict(list)
    for rank, call in sorted(verdict.calls.items()):
        together[call.said].append(rank)
    lines = []
    for said, ranks in together.items():
        lines.append(f"{text.ranks(ranks)}: {said}")
    return lines


def _event(
    kind: str,
    lines: list[str],
    path: str,
    ranks: Sequence[int],
    data: Mapping[str, Any],
) -> Event:
    """An event; of one rank alone it is that rank's."""
    rank = None
    if len(ranks) == 1:
        rank = ranks[0]
    return Event(kind, clip("\n".join(lines)), path, 0, rank=rank, data=dict(data))
