"""The first collective of each group on which the ranks disagree.

It is sought in each communicator as well.  Sources, the strongest first: the Flight Recorder's
comparison of all dumps; torch's watchdog (its timeouts and status lines need no dump), fingerprints
and reports; NCCL's COLL lines; RAS.  Of one group the earliest collective that any source finds
stands.  No rank is the truth: most ranks decide, then those that came further.  How far the clocks
of the hosts are apart follows from things that happened on all of them at once.

opCount of COLL lines cannot be compared: since 2.27 it stalls on communicators that need no proxy,
and grouped calls share it.  Events keep equal calls as one with a count, so what ranks have in
common is known as a set with counts: the first call they disagree on is the next one, or one before
it where they ran the same calls in another order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

from ncclkit.agent.digits import whole_number
from ncclkit.analysis.calls import (
    POINT_TO_POINT,
    DifferingTimeouts,
    counted,
    differing_timeouts,
    grouped,
    op_of,
    unlike_calls,
)
from ncclkit.analysis.communicators import Index, communicators
from ncclkit.analysis.once import once
from ncclkit.core import text
from ncclkit.core.case import Case
from ncclkit.core.event_list import known_ranks
from ncclkit.core.kinds import FlightFinding, FlightMismatch, FlightMissing, FlightP2p, FlightStuck
from ncclkit.core.model import Event
from ncclkit.core.summary import ranks

CITED = 8
"""Events that one disagreement cites at most."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """The first collective of one group or communicator on which its ranks disagree."""

    group: str
    """Name of the process group, or `id` of the communicator."""
    desc: str
    seq: int
    """Its number: c10d's own, or the how-manieth call on the communicator; -1 where nothing shows
    it."""
    what: str
    """``missing`` (the minority is not in it), ``op``, ``size``, ``dtype``, or ``stuck`` (all are
    in it)."""
    majority: tuple[int, ...]
    minority: tuple[int, ...]
    summary: str
    evidence: tuple[Event, ...]

    @property
    def culprits(self) -> tuple[int, ...]:
        """The ranks that it points at: both sides where neither is the larger."""
        tie = self.what not in ("missing", "stuck") and len(self.minority) >= len(self.majority)
        if tie:
            return (*self.minority, *self.majority)
        return self.minority or self.majority


def sides(
    values: Mapping[int, Hashable], came: Mapping[int, int] | None = None
) -> list[tuple[Any, list[int]]]:
    """Values with the ranks that hold them.

    The one of most ranks comes first, of equals the one of those that came further.  `values` is
    rank → value, `came` rank → how far it came.
    """
    held: dict[Hashable, list[int]] = {}
    for rank, value in sorted(values.items()):
        held.setdefault(value, []).append(rank)
    far = came or {}
    return sorted(
        held.items(),
        key=lambda side: (-len(side[1]), -max(far.get(r, 0) for r in side[1]), side[1]),
    )


def _ranks_of_sides(found: Iterable[tuple[Any, list[int]]]) -> list[int]:
    """All ranks of some of the `sides`, sorted."""
    together = []
    for _, side in found:
        together += side
    return sorted(together)


def cited(*groups: Iterable[Event]) -> tuple[Event, ...]:
    """The first few events of each group in turn.

    So every side has its word.
    """
    rows = [list(group)[:CITED] for group in groups]
    turns = []
    for turn in range(CITED):
        for row in rows:
            if turn < len(row):
                turns.append(row[turn])
    chosen = {id(event): event for event in turns}
    return tuple(chosen.values())[:CITED]


LEAST = 3
"""Shared events that an offset must rest on."""

Key = tuple[object, ...]
Times = Mapping[Key, Mapping[str, list[float]]]
"""What happened → host → when its ranks say so."""


@dataclass(frozen=True, slots=True)
class Clock:
    """One host's clock against the reference host's."""

    host: str
    offset: float
    """Seconds that this host's clock is ahead; 0 for the reference."""
    spread: float
    """Seconds between the lower and the upper quartile of what the shared events say."""
    shared: int
    """Events that it shares with the reference."""


def clocks(events: Sequence[Event]) -> list[Clock]:
    """Offset of every host that shares enough with the reference, by log lines.

    Dumps are aligned in `evidence.flight.hang`, steps in `analysis.steps`.  The reference is the
    host that shares most; [] where none does.  The end of an init, a destroy, and steps of our own
    jobs happen on all ranks at once.  Only where these are too few watchdog timeouts help: they
    come a fixed time after each rank's own call, so lateness shows in them as well.
    """
    hosts = _hosts(events)
    exact = _times(_exact(events), hosts)
    return _offsets(exact) or _offsets({**exact, **_times(_timeouts(events), hosts)})


def _hosts(events: Iterable[Event]) -> dict[int, str]:
    """Global rank → host, from the lines that tell both."""
    host_of_rank = {}
    for event in events:
        if event.rank is not None and event.host:
            host_of_rank[event.rank] = _short(event.host)
    return host_of_rank


def _short(host: str) -> str:
    return host.partition(".")[0]


def _exact(events: Sequence[Event]) -> Iterator[tuple[Key, Event]]:
    index = Index(events)
    for event in events:
        if event.time is None:
            continue
        data = event.data
        if (
            event.kind == "nccl.init"
            and data.phase == "done"
            or event.kind == "nccl.destroy"
            and data.how == "destroy"
        ):
            place = index.of(event)
            if place:
                yield (event.kind, place[0].id), event
        elif event.kind == "worker.phase" and data.phase in ("init", "step", "size"):
            yield (event.kind, data.phase, str(data.step), str(data.bytes)), event


def _timeouts(events: Sequence[Event]) -> Iterator[tuple[Key, Event]]:
    for event, group, _ in grouped(events):
        if event.kind == "c10d.timeout" and event.time is not None:
            yield (event.kind, group, event.data.seq), event


def _times(
    shared: Iterable[tuple[Key, Event]], hosts: Mapping[int, str]
) -> dict[Key, dict[str, list[float]]]:
    times: dict[Key, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for key, event in shared:
        host = _short(event.host)
        if not host and event.rank is not None:
            host = hosts.get(event.rank, "")
        if host and event.time is not None:
            times[key][host].append(event.time)
    return times


def _offsets(times: Times) -> list[Clock]:
    common: list[dict[str, float]] = []
    for by_host in times.values():
        if len(by_host) > 1:
            # of a host's ranks the middle one, as a single one may be late
            common.append({host: median(said) for host, said in by_host.items()})
    seen: Counter[str] = Counter()
    for by in common:
        seen.update(by.keys())
    if not seen:
        return []
    # of equals the first by name, so that the order of files decides nothing
    reference = min(seen, key=lambda host: (-seen[host], host))
    apart: dict[str, list[float]] = defaultdict(list)
    for by in common:
        for host, time in by.items():
            if host != reference and reference in by:
                apart[host].append(time - by[reference])
    known = []
    for host, gaps in sorted(apart.items()):
        # with fewer shared events no offset is claimed
        if len(gaps) >= LEAST:
            known.append(Clock(host, median(gaps), _spread(gaps), len(gaps)))
    if known:
        return [Clock(reference, 0.0, 0.0, seen[reference]), *known]
    return []


def _spread(gaps: list[float]) -> float:
    # inclusive, as of three values the other method would reach beyond them
    low, _, high = quantiles(gaps, n=4, method="inclusive")
    return high - low


@dataclass(slots=True)
class _Wait:
    """One rank in one group, as its watchdog reports it."""

    said: list[Event] = field(default_factory=list)
    last: int = 0
    """The last collective that it enqueued."""
    seq: int | None = None
    """The one that it waits for."""
    op: str = ""

    def take(self, event: Event) -> None:
        """Take one line; of several timeouts the first collective counts."""
        data, seq = event.data, event.data.seq
        self.said.append(event)
        if event.kind == "c10d.status":
            done = counted(data.completed)
            enqueued = counted(data.enqueued)
            self.last = max(self.last, enqueued)
            if self.seq is None and done < enqueued:
                self.seq = done + 1
            return
        self.last = max(self.last, seq)
        # a timeout names its call; a status line only shows that some are in flight
        if self.seq is None or seq < self.seq or not self.op:
            self.seq, self.op = seq, text.op(str(data.op or ""))


def compare_watchdogs(events: Sequence[Event]) -> Iterator[Disagreement]:
    """The first collective of each process group in which its ranks disagree.

    One rank waits in it and another does not, or not for the same.
    """
    groups: dict[str, dict[int, _Wait]] = defaultdict(lambda: defaultdict(_Wait))
    descs: dict[str, str] = {}
    for event, name, desc in grouped(events):
        # sends and receives have numbers of their own
        if event.rank is not None and op_of(event).upper() not in POINT_TO_POINT:
            descs[name] = desc
            groups[name][event.rank].take(event)
    differing = {}
    if groups:
        differing = {(one.group, one.seq): one for one in differing_timeouts(events)}
    spoke = known_ranks(events)
    if groups:
        world = set(ranks(events))
    else:
        world = set()
    for name, waits in groups.items():
        if any(wait.seq is not None for wait in waits.values()):
            # only of the default group all ranks of the job are members
            whole = descs[name] in ("", "default_pg") and name in ("", "0", "default_pg")
            group = _Group(name, descs[name], waits, spoke, world if whole else set())
            yield from group.disagree(differing.get((name, group.seq)))


class _Group:
    """The ranks of one process group at the first collective that one of them waits for."""

    def __init__(
        self, name: str, desc: str, waits: Mapping[int, _Wait], spoke: set[int], members: set[int]
    ) -> None:
        self.name = name
        self.desc = desc
        self.waits = waits
        self.spoke = spoke
        self.members = members
        seqs = []
        for wait in waits.values():
            if wait.seq is not None:
                seqs.append(wait.seq)
        self.seq = min(seqs)
        wait_of_rank = {}
        for rank, wait in sorted(waits.items()):
            if wait.seq == self.seq:
                wait_of_rank[rank] = wait
        self.inside = wait_of_rank
        self.behind = sorted(rank for rank, wait in waits.items() if wait.last < self.seq)
        self.beyond = sorted(waits.keys() - self.inside.keys() - set(self.behind))
        self.op = next((wait.op for wait in self.inside.values() if wait.op), "")
        """Empty where only status lines speak: these show works in flight, as a healthy job has
        them."""

    def disagree(self, differing: DifferingTimeouts | None) -> Iterator[Disagreement]:
        """What they disagree in, or that they are stuck together."""
        if differing is not None and len(set(differing.values.values())) > 1:
            yield self._differ(differing)
            return
        absent = sorted((self.members & self.spoke) - self.inside.keys())
        gone = sorted(self.members - self.inside.keys())
        # a rank that is known to be behind says more than one without a line
        if self.behind:
            yield self._lack(self.behind, f"did not come to it: {self._last(self.behind)}")
        elif not self.op:
            return
        elif self.beyond:
            yield self._past()
        elif absent:
            if len(absent) < len(self.inside):
                yield self._lack(
                    absent, text.verb(absent, "says nothing of it", "say nothing of it")
                )
        elif gone:
            yield self._lack(gone, "left no line")
        elif len(inside := list(self.inside)) > 1:
            yield self._made("stuck", inside, [], f"{self._wait(inside)}: all that any line names")

    def _differ(self, one: DifferingTimeouts) -> Disagreement:
        (value, most), *others = sides(one.values)
        odd = _ranks_of_sides(others)
        word, name, start = (
            ("{} elements".format, self.op, "Sizes")
            if one.what == "size"
            else (text.op, "", "Operations")
        )
        said = "; ".join(
            f"{text.ranks(ranks)}: {word(value)}" for value, ranks in [(value, most), *others][:4]
        )
        where = text.collective(name, self.seq, self.name, self.desc)
        return self._made(one.what, most, odd, f"{start} differ in {where}: {said}")

    def _lack(self, odd: list[int], lack: str) -> Disagreement:
        inside = list(self.inside)
        return self._made("missing", inside, odd, f"{self._wait(inside)}; {text.ranks(odd)} {lack}")

    def _past(self) -> Disagreement:
        """Whether some wait for what others have behind them.

        One side ran something else under this number.
        """
        inside = list(self.inside)
        beyond = self.beyond
        if len(inside) > len(beyond):
            most, odd = inside, beyond
        else:
            most, odd = beyond, inside
        behind = f"{text.ranks(beyond)} {text.verb(beyond, 'has', 'have')} it behind"
        return self._made("missing", most, odd, f"{self._wait(inside)}; {behind}")

    def _last(self, ranks: list[int]) -> str:
        last = sorted({self.waits[rank].last for rank in ranks})
        if len(last) == 1:
            return f"the last one enqueued there is {last[0]}"
        return f"there the last are {last[0]}-{last[-1]}"

    def _wait(self, ranks: list[int]) -> str:
        where = text.collective(self.op, self.seq, self.name, self.desc)
        return text.start(f"{text.ranks(ranks)} {text.verb(ranks, 'waits', 'wait')} in {where}")

    def _made(self, what: str, majority: list[int], odd: list[int], say: str) -> Disagreement:
        lines = cited(self._lines_of(odd), self._lines_of(majority))
        return Disagreement(
            self.name, self.desc, self.seq, what, tuple(majority), tuple(odd), say, lines
        )

    def _lines_of(self, side: list[int]) -> list[Event]:
        lines = []
        for rank in side:
            if rank in self.waits:
                lines += self.waits[rank].said
        return lines


Call = tuple[str, int, int, int]
"""Operation, elements, data type, root."""
DTYPES = (
    "int8 uint8 int32 uint32 int64 uint64 float16 float32 float64 bfloat16 float8e4m3 float8e5m2"
).split()
"""Names of ncclDataType_t, by number."""
CALL_FIELDS = (("op", 0), ("size", 1), ("dtype", 2), ("op", 3))
"""Words of `Disagreement.what` and their place in a `Call`; another root is another operation."""
ROOTED = ("Broadcast", "Reduce", "Gather", "Scatter")


@dataclass(slots=True)
class _Book:
    """The calls on one communicator: rank → call → how often."""

    desc: str
    counts: dict[int, Counter[Call]] = field(default_factory=lambda: defaultdict(Counter))
    lines: dict[tuple[int, Call], Event] = field(default_factory=dict)

    def add(self, rank: int, event: Event) -> None:
        """Take one line, which may stand for many."""
        data = event.data
        numbers = (data.count, data.dtype, data.root)
        count, dtype, root = (-1 if number is None else int(number) for number in numbers)
        call = str(data.op), count, dtype, root
        # equal calls are one event with a count, and opCount does not rise since 2.27
        self.counts[rank][call] += event.count
        self.lines.setdefault((rank, call), event)


def compare_call_counts(events: Sequence[Event]) -> Iterator[Disagreement]:
    """The first call of each communicator that its ranks do not share.

    Only ranks count that a line ties to it.
    """
    lines = []
    for event in events:
        # a send has its counterpart on one rank only, so ranks need not share it
        if event.kind == "nccl.op" and op_of(event).upper() not in POINT_TO_POINT:
            lines.append(event)
    # a torn one could be any call
    lines = [e for e in lines if None not in (e.data.count, e.data.dtype)]
    for name, book in (_books(events, lines) if lines else {}).items():
        if len(book.counts) > 1 and (one := _disagree(name, book)):
            yield one


def _books(events: Sequence[Event], lines: list[Event]) -> dict[str, _Book]:
    index = Index(events)
    books = dict[str, _Book]()
    if not index.all:
        return _without_init(lines)
    for event in lines:
        place = index.of(event)
        if place:
            made, rank = place
            book = books.setdefault(made.id, _Book(f"{made.size} ranks"))
            book.add(made.ranks.get(rank, rank), event)
    for made in index.all:
        if made.id in books:
            for rank in made.done:  # its log is there, even where it holds no call
                books[made.id].counts[made.ranks.get(rank, rank)] += Counter()
    return books


def _without_init(lines: list[Event]) -> dict[str, _Book]:
    """Logs that hold COLL lines only.

    They are of the whole job's communicator, if every rank knows just one of that size.
    """
    books: defaultdict[int, _Book] = defaultdict(lambda: _Book(""))
    handles: defaultdict[int, dict[int, set[str]]] = defaultdict(dict)
    for event in lines:
        size = event.data.nranks
        if event.rank is not None and size:
            books[size].add(event.rank, event)
            handles[size].setdefault(event.rank, set()).add(str(event.data.comm))
    found = {}
    for size in sorted(handles):
        held = handles[size]
        # a rank with two of one size mixes calls that are not the same ranks'
        if len(held) == size and all(len(known) == 1 for known in held.values()):
            found[f"{size} ranks"] = books[size]
    return found


def _disagree(name: str, book: _Book) -> Disagreement | None:
    shared = Counter(next(iter(book.counts.values())))
    for counts in book.counts.values():
        shared &= counts
    rests = {rank: counts - shared for rank, counts in book.counts.items()}
    first = _first_calls(rests)
    called = {rank: call for rank, call in first.items() if call is not None}
    if not called:
        return None
    differs = len(set(called.values())) > 1
    came = {rank: sum(counts.values()) for rank, counts in book.counts.items()}
    (call, most), *others = sides(called if differs else first, came)
    held = [(call, most), *others]
    odd = _ranks_of_sides(others)
    lines = []
    # the odd ones first, as only some lines are cited
    for call, side in reversed(held):
        lines.append([book.lines[rank, call] for rank in side if (rank, call) in book.lines])
    common = sum(shared.values())
    what = "missing"
    if differs:
        what = _field(call, others[0][0])
    say = _summary(name, book.desc, common, held)
    return Disagreement(
        name, book.desc, common + 1, what, tuple(most), tuple(odd), say, cited(*lines)
    )


def _first_calls(rests: Mapping[int, Counter[Call]]) -> dict[int, Call | None]:
    """Rank → the call of its own that stands for what the ranks do not share, None for none."""
    owners: dict[Call, set[int]] = defaultdict(set)
    for rank, rest in rests.items():
        for call in rest:
            owners[call].add(rank)
    if not owners:
        return {}
    # of equals the same one each time, whatever the order of the files
    usual = max(owners, key=lambda call: (len(owners[call]), call))
    first: dict[int, Call | None] = {}
    for rank, rest in rests.items():
        if usual in rest:
            first[rank] = usual
        else:
            first[rank] = min(rest, default=None)
    for made in owners.values():
        # both sides made one call, so a line is lost or one side is ahead
        if len({first[rank] for rank in made}) > 1:
            return {rank: usual if usual in rest else None for rank, rest in rests.items()}
    return first


def _field(one: Call, other: Call) -> str:
    return next(what for what, place in CALL_FIELDS if one[place] != other[place])


def _summary(name: str, desc: str, common: int, held: list[tuple[Call | None, list[int]]]) -> str:
    ordered = sorted([*held[1:4], held[0]], key=lambda side: side[0] is None)
    called = "; ".join(f"{text.ranks(ranks)} {_word(call)}" for call, ranks in ordered)
    if desc:
        where = f"communicator {name}"
    else:
        where = f"the communicator of {name}"
    return f"{text.start(called)}, after {common:,} calls that all ranks share on {where}"


def _word(call: Call | None) -> str:
    if call is None:
        return "did not"
    op, count, dtype, root = call
    if 0 <= dtype < len(DTYPES):
        kind = DTYPES[dtype]
    else:
        kind = f"datatype {dtype}"
    return f"called {text.op(op)} of {count:,} {kind}{f', root {root}' if op in ROOTED else ''}"


Parts = tuple[str, Iterable[int], Iterable[int], str]
"""`what`, `majority`, `minority` and `say` of a `Disagreement`."""
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
def differing_calls(case: Case) -> list[Disagreement]:
    """Where NCCL's COLL lines show other operations, sizes or types on some ranks.

    Only communicators count that are seen from INIT on: logs without their INIT lines may begin at
    different calls, so these say nothing.
    """
    differing = []
    for one in compare_call_counts(case.events):
        if one.desc and one.what != "missing":
            differing.append(one)
    return differing


def of_different_calls(one: Disagreement) -> bool:
    """Whether the sizes in NCCL's lines are of different calls of a program.

    They are, as `unlike_calls` says.
    """
    op = op_of(one.evidence[0]).upper()
    shards = ""
    if op in ("ALLGATHER", "REDUCESCATTER"):
        shards = "_BASE"
    return one.what == "size" and unlike_calls(
        op + shards, [event.data.count for event in one.evidence]
    )


@once
def clocks_of(case: Case) -> list[Clock]:
    """The clock of each host of a case against the reference host's."""
    return clocks(case.events)


def align(events: Sequence[Event]) -> list[Disagreement]:
    """The first disagreement of each group and communicator by any line or dump.

    It is [] where all agree.
    """
    found: dict[str, Disagreement] = {}
    numbers: Counter[int] = Counter()
    for source in (_dumps, compare_watchdogs, _fingerprints, _named, compare_call_counts, _ras):
        for one in source(events):
            held = found.get(one.group)
            if not one.group and numbers[one.seq]:
                continue  # it names no group, and one is known to have failed there
            if held is None or 0 <= one.seq < held.seq:
                found[one.group] = one
                numbers[one.seq] += 1
                numbers[held.seq if held else -1] -= 1
    return list(found.values())


def _dumps(events: Iterable[Event]) -> Iterator[Disagreement]:
    """What the analysis over all Flight Recorder dumps found."""
    describers: dict[str, Callable[[Any], Parts]] = {
        "flight.mismatch": _mismatch,
        "flight.missing": _missing,
        "flight.stuck": _stuck,
        "flight.p2p": _unpaired,
    }
    for event in events:
        describe = describers.get(event.kind)
        if describe:
            data = event.data
            what, majority, odd, say = describe(data)
            if data.root:
                say += f"; it only waits for group {data.root}"
            name, desc, seq = data.group, data.desc, data.seq
            # stacks know no number
            if seq is None:
                seq = -1
            yield Disagreement(
                name, desc, seq, what, tuple(sorted(majority)), tuple(sorted(odd)), say, (event,)
            )


def _mismatch(data: FlightMismatch) -> Parts:
    what, field = FIELDS.get(data.field, ("op", data.field))
    first = data.majority
    others = list(data.odd)
    odd = set()
    for side in others:
        odd.update(side["ranks"])
    if what == "op":
        name = ""
    else:
        name = str(data.op or "")
    say = (
        f"{text.start(field)} differ in {text.collective(name, data.seq, data.group, data.desc)}: "
    )
    if data.field == "splits":
        say += f"{first['value']} elements are sent, {others[0]['value']} expected"
        say += f"; the splits of {text.ranks(odd)} do not fit" if odd else ""
    else:
        lines = []
        for side in (first, *others[:3]):
            lines.append(f"{text.ranks(side['ranks'])}: {side['value']}")
        say += "; ".join(lines)
    return what, set(first["ranks"]) - odd, odd, say


def _missing(data: FlightMissing) -> Parts:
    lacks = (
        (data.missing, "never entered it"),
        (data.no_dump, "left no dump"),
        (data.overwritten, "overwrote the record of it"),
    )
    odd, lack = next(((ranks, lack) for ranks, lack in lacks if ranks), ([], "is missing"))
    return (
        "missing",
        data.waiting,
        odd,
        f"{_waiting(data, data.waiting)}; {text.ranks(odd)} {lack}",
    )


def _stuck(data: FlightStuck) -> Parts:
    done = set()
    for rank, state in data.states.items():
        if state == "completed":
            done.add(int(rank))
    rest = ": all entered it and none finished it"
    if done:
        rest = f"; {text.ranks(done)} finished it"
    waiting = set(data.ranks) - done
    return "stuck", waiting, done, f"{_waiting(data, waiting)}{rest}"


def _unpaired(data: FlightP2p) -> Parts:
    pair = f"rank {data.src} to rank {data.dst} in {text.group(data.group, data.desc)}"
    if data.sizes:
        return (
            "size",
            [data.src],
            [data.dst],
            f"From {pair} {data.sizes[0]} elements are sent, {data.sizes[1]} expected",
        )
    if data.received > data.sent:
        side, call = data.dst, "recv"
    else:
        side, call = data.src, "send"
    posted = f"{data.sent:,} sends and {data.received:,} receives were posted"
    return (
        "missing",
        data.waiting,
        data.lacking,
        f"Rank {side} waits in {call}: from {pair} {posted}",
    )


def _waiting(data: FlightFinding, ranks: Iterable[int]) -> str:
    held = sorted(ranks)
    where = text.collective(str(data.op), data.seq, data.group, data.desc)
    return f"{text.start(text.ranks(held))} {text.verb(held, 'waits', 'wait')} in {where}"


def _fingerprints(events: Iterable[Event]) -> Iterator[Disagreement]:
    """Disagreements by ``TORCH_DISTRIBUTED_DEBUG=DETAIL``.

    It compares two ranks before each collective; neither is the odd one.
    """
    for event in events:
        if event.kind == "c10d.mismatch":
            data, a, b = event.data, event.data.a, event.data.b
            seq = min(
                (number for number in (data.a_seq, data.b_seq) if number is not None),
                default=-1,
            )
            what, field = next(
                (FIELDS[name] for name in data.differs if name in FIELDS), FIELDS["op"]
            )
            runs = f"rank {a} runs {text.op(data.a_op)}, rank {b} {text.op(data.b_op)}"
            say = f"{text.start(field)} differ in {text.collective('', seq, '', '')}: {runs}"
            yield Disagreement("", "", seq, what, (a,), (b,), say, (event,))


def _named(events: Iterable[Event]) -> Iterator[Disagreement]:
    """Reports that name the missing ranks themselves.

    They are torch's desync report, monitored barrier, and Horovod's.
    """
    for event in events:
        data = event.data
        if event.kind == "c10d.desync" and data.missing:
            if data.seq is None:
                seq = -1
            else:
                seq = data.seq
            waits = ""
            if data.waiting:
                waits = f", {text.ranks(data.waiting)} did"
            say = (
                f"{text.start(text.ranks(data.missing))} did not join collective"
                f" {max(seq, 0) or ''}".rstrip()
                + waits
            )
            yield Disagreement(
                "",
                "",
                seq,
                "missing",
                tuple(data.waiting),
                tuple(data.missing),
                say,
                (event,),
            )
        elif event.kind in ("gloo.barrier", "horovod.stalled") and data.ranks:
            if event.kind == "gloo.barrier":
                what = "a monitored barrier"
            else:
                what = str(data.op)
            say = f"{text.start(text.ranks(data.ranks))} did not come to {what}"
            yield Disagreement(
                event.kind, "", -1, "missing", (), tuple(sorted(data.ranks)), say, (event,)
            )


def _ras(events: Sequence[Event]) -> Iterator[Disagreement]:
    """Ranks that launched fewer operations than others, by RAS.

    The others are those of their communicator.
    """
    reports = []
    for event in events:
        if event.kind == "ras.communicator" and event.data.behind:
            reports.append(event)
    known = {}
    if reports:
        known = {_number(made.id): made for made in communicators(events)}
    for event in reports:
        data = event.data
        made = known.get(_number(event.data.hash))
        least = []
        for op, launched in data.counts.items():
            for rank, count in launched.items():
                if whole_number(rank) in data.behind:
                    least.append((count, op))
        # -2, so that the number of the call is -1, which is unknown
        seq, op = min(least, default=(-2, ""))
        where = made.ranks if made else {}
        odd = sorted(where.get(rank, rank) for rank in data.behind)
        # a torn size must not fill the memory
        most = sorted(
            {where.get(rank, rank) for rank in range(min(data.size or 0, 1 << 16))} - set(odd)
        )
        if made:
            name = made.id
        else:
            name = str(data.hash)
        say = (
            f"RAS: {text.ranks(odd)} did not launch {text.op(op)} {seq + 1} of communicator {name},"
            " others did"
        )
        yield Disagreement(
            name,
            f"{data.size} ranks",
            seq + 1,
            "missing",
            tuple(most),
            tuple(odd),
            say,
            (event,),
        )


def _number(name: str) -> int | None:
    """A communicator's hash, with and without leading zeros."""
    digits = name.removeprefix("0x")
    if 0 < len(digits) <= 16 and not set(digits.lower()) - set("0123456789abcdef"):
        return int(digits, 16)
    return None
