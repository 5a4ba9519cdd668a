"""Alignment: the first collective of each group or communicator on which the ranks disagree.

Sources, the strongest first: the Flight Recorder's comparison of all dumps; torch's watchdog, fingerprints and
reports; NCCL's COLL lines; RAS.  Of one group the earliest collective that any source finds stands.  No rank is the
truth: most ranks decide, then those that came further.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ncclkit.analysis import call_counts, watchdog
from ncclkit.analysis.clocks import Clock, clocks
from ncclkit.analysis.communicators import communicators
from ncclkit.analysis.disagreement import Disagreement
from ncclkit.analysis.once import once
from ncclkit.core import text
from ncclkit.core.case import Case
from ncclkit.core.model import Event

__all__ = ["Clock", "Disagreement", "align", "clocks"]

Data = Mapping[str, Any]
Parts = tuple[str, Iterable[int], Iterable[int], str]
"""`what`, `majority`, `odd` and `say` of a `Disagreement`."""
FIELDS = {
    "op": ("op", "operations"),
    "sizes": ("size", "sizes"),
    "dtypes": ("dtype", "data types"),
    "splits": ("size", "sizes"),
}
"""Fields in which dumps and fingerprints differ → `Disagreement.what`, and in words."""


@once
def disagreements(case: Case) -> list[Disagreement]:
    """The first disagreement of each group and communicator of a case."""
    return align(case.events)


@once
def clocks_of(case: Case) -> list[Clock]:
    """The clock of each host of a case against the reference host's."""
    return clocks(case.events)


def align(events: Sequence[Event]) -> list[Disagreement]:
    """The first disagreement of each group and communicator that any line or dump shows; [] where all agree."""
    found: dict[str, Disagreement] = {}
    for source in (_dumps, watchdog.compare, _fingerprints, _named, call_counts.compare, _ras):
        for one in source(events):
            held = found.get(one.group)
            if not one.group and any(one.seq == other.seq for other in found.values()):
                continue  # it names no group, and one is known to have failed there
            if held is None or 0 <= one.seq < held.seq:
                found[one.group] = one
    return list(found.values())


def _dumps(events: Iterable[Event]) -> Iterator[Disagreement]:
    """What the analysis over all Flight Recorder dumps found."""
    tellers = {
        "flight.mismatch": _mismatch,
        "flight.missing": _missing,
        "flight.stuck": _stuck,
        "flight.p2p": _unpaired,
    }
    for event in events:
        if tell := tellers.get(event.kind):
            data = event.data
            what, majority, odd, say = tell(data)
            if data.get("root"):
                say += f"; it only waits for group {data['root']}"
            name, desc, seq = data["group"], data["desc"], data.get("seq", -1)
            yield Disagreement(name, desc, seq, what, tuple(sorted(majority)), tuple(sorted(odd)), say, (event,))


def _mismatch(data: Data) -> Parts:
    what, field = FIELDS.get(data["field"], ("op", data["field"]))
    first, others = data["majority"], list(data["odd"])
    odd = {rank for side in others for rank in side["ranks"]}
    name = "" if what == "op" else str(data.get("op") or "")
    say = f"{text.start(field)} differ in {text.collective(name, data['seq'], data['group'], data['desc'])}: "
    if data["field"] == "splits":
        say += f"{first['value']} elements are sent, {others[0]['value']} expected"
        say += f"; the splits of {text.ranks(odd)} do not fit" if odd else ""
    else:
        say += "; ".join(f"{text.ranks(side['ranks'])}: {side['value']}" for side in (first, *others[:3]))
    return what, set(first["ranks"]) - odd, odd, say


def _missing(data: Data) -> Parts:
    lacks = (
        ("missing", "never entered it"),
        ("no_dump", "left no dump"),
        ("overwritten", "overwrote the record of it"),
    )
    odd, lack = next(((data[name], lack) for name, lack in lacks if data.get(name)), ([], "is missing"))
    return "missing", data["waiting"], odd, f"{_waiting(data, data['waiting'])}; {text.ranks(odd)} {lack}"


def _stuck(data: Data) -> Parts:
    done = {int(rank) for rank, state in data["states"].items() if state == "completed"}
    rest = f"; {text.ranks(done)} finished it" if done else ": all entered it and none finished it"
    waiting = set(data["ranks"]) - done
    return "stuck", waiting, done, f"{_waiting(data, waiting)}{rest}"


def _unpaired(data: Data) -> Parts:
    pair = f"rank {data['src']} to rank {data['dst']} in {text.group(data['group'], data['desc'])}"
    if data["sizes"]:
        return (
            "size",
            [data["src"]],
            [data["dst"]],
            f"From {pair} {data['sizes'][0]} elements are sent, {data['sizes'][1]} expected",
        )
    side, call = (data["dst"], "recv") if data["received"] > data["sent"] else (data["src"], "send")
    posted = f"{data['sent']:,} sends and {data['received']:,} receives were posted"
    return "missing", data["waiting"], data["lacking"], f"Rank {side} waits in {call}: from {pair} {posted}"


def _waiting(data: Data, ranks: Iterable[int]) -> str:
    held = sorted(ranks)
    where = text.collective(str(data["op"]), data["seq"], data["group"], data["desc"])
    return f"{text.start(text.ranks(held))} {text.verb(held, 'waits', 'wait')} in {where}"


def _fingerprints(events: Iterable[Event]) -> Iterator[Disagreement]:
    """``TORCH_DISTRIBUTED_DEBUG=DETAIL`` compares two ranks before each collective; neither is the odd one."""
    for event in events:
        if event.kind == "c10d.mismatch":
            data, a, b = event.data, event.data["a"], event.data["b"]
            seq = min((number for number in (data.get("a_seq"), data.get("b_seq")) if number is not None), default=-1)
            what, field = next((FIELDS[name] for name in data["differs"] if name in FIELDS), FIELDS["op"])
            runs = f"rank {a} runs {text.op(data['a_op'])}, rank {b} {text.op(data['b_op'])}"
            say = f"{text.start(field)} differ in {text.collective('', seq, '', '')}: {runs}"
            yield Disagreement("", "", seq, what, (a,), (b,), say, (event,))


def _named(events: Iterable[Event]) -> Iterator[Disagreement]:
    """Reports that name the missing ranks themselves: torch's desync report, monitored barrier, Horovod."""
    for event in events:
        data = event.data
        if event.kind == "c10d.desync" and data.get("missing"):
            seq = -1 if data["seq"] is None else data["seq"]
            waits = f", {text.ranks(data['waiting'])} did" if data["waiting"] else ""
            say = (
                f"{text.start(text.ranks(data['missing']))} did not join collective {max(seq, 0) or ''}".rstrip()
                + waits
            )
            yield Disagreement("", "", seq, "missing", tuple(data["waiting"]), tuple(data["missing"]), say, (event,))
        elif event.kind in ("gloo.barrier", "horovod.stalled") and data["ranks"]:
            what = "a monitored barrier" if event.kind == "gloo.barrier" else str(data["op"])
            say = f"{text.start(text.ranks(data['ranks']))} did not come to {what}"
            yield Disagreement(event.kind, "", -1, "missing", (), tuple(sorted(data["ranks"])), say, (event,))


def _ras(events: Sequence[Event]) -> Iterator[Disagreement]:
    """Ranks of which RAS says that they launched fewer operations than the others of their communicator."""
    reports = [event for event in events if event.kind == "ras.communicator" and event.data["behind"]]
    known = {_number(made.id): made for made in communicators(events)} if reports else {}
    for event in reports:
        data, made = event.data, known.get(_number(event.data["hash"]))
        least = [
            (count, op)
            for op, launched in data["counts"].items()
            for rank, count in launched.items()
            if rank.isdigit() and int(rank) in data["behind"]
        ]
        seq, op = min(least, default=(-2, ""))
        where = made.ranks if made else {}
        odd = sorted(where.get(rank, rank) for rank in data["behind"])
        most = sorted({where.get(rank, rank) for rank in range(min(data["size"] or 0, 1 << 16))} - set(odd))
        name = made.id if made else str(data["hash"])
        say = f"RAS: {text.ranks(odd)} did not launch {text.op(op)} {seq + 1} of communicator {name}, others did"
        yield Disagreement(name, f"{data['size']} ranks", seq + 1, "missing", tuple(most), tuple(odd), say, (event,))


def _number(name: str) -> int | None:
    """A communicator's hash, with and without leading zeros."""
    digits = name.removeprefix("0x")
    return int(digits, 16) if 0 < len(digits) <= 16 and not set(digits.lower()) - set("0123456789abcdef") else None
