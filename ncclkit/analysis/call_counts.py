"""Ranks compared by NCCL's COLL lines (``NCCL_DEBUG_SUBSYS=COLL``): who called what on a communicator, and how often.

opCount cannot be compared: since 2.27 it stalls on communicators that need no proxy, and grouped calls share it.
Events keep equal calls as one with a count, so what ranks have in common is known as a set with counts: the first call
they disagree on is the next one, or one before it where they ran the same calls in another order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ncclkit.analysis.calls import POINT_TO_POINT, op_of
from ncclkit.analysis.disagreement import Disagreement, cited, sides
from ncclkit.analysis.members import Index
from ncclkit.core import text
from ncclkit.core.model import Event

Call = tuple[str, int, int, int]
"""Operation, elements, data type, root."""
DTYPES = "int8 uint8 int32 uint32 int64 uint64 float16 float32 float64 bfloat16 float8e4m3 float8e5m2".split()
"""Names of ncclDataType_t, by number."""
FIELDS = (("op", 0), ("size", 1), ("dtype", 2), ("op", 3))
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
        count, dtype, root = (-1 if data[name] is None else int(data[name]) for name in ("count", "dtype", "root"))
        call = str(data["op"]), count, dtype, root
        self.counts[rank][call] += event.count
        self.lines.setdefault((rank, call), event)


def compare(events: Sequence[Event]) -> Iterator[Disagreement]:
    """The first call of each communicator that its ranks do not share; only of ranks that a line ties to it."""
    lines = [e for e in events if e.kind == "nccl.op" and op_of(e).upper() not in POINT_TO_POINT]
    for name, book in (_books(events, lines) if lines else {}).items():
        if len(book.counts) > 1 and (one := _disagree(name, book)):
            yield one


def _books(events: Sequence[Event], lines: list[Event]) -> dict[str, _Book]:
    index, books = Index(events), dict[str, _Book]()
    if not index.all:
        return _without_init(lines)
    for event in lines:
        if place := index.of(event):
            made, rank = place
            book = books.setdefault(made.id, _Book(f"{made.size} ranks"))
            book.add(made.ranks.get(rank, rank), event)
    for made in index.all:
        if made.id in books:
            for rank in made.done:  # its log is there, even where it holds no call
                books[made.id].counts[made.ranks.get(rank, rank)] += Counter()
    return books


def _without_init(lines: list[Event]) -> dict[str, _Book]:
    """Logs that hold COLL lines only: the whole job's communicator, if every rank knows just one of that size."""
    books: dict[str, _Book] = {}
    handles: dict[int, set[tuple[int, str]]] = defaultdict(set)
    for event in lines:
        if event.rank is not None and event.data.get("nranks"):
            books.setdefault(f"{event.data['nranks']} ranks", _Book("")).add(event.rank, event)
            handles[event.data["nranks"]].add((event.rank, str(event.data["comm"])))
    sole = {size for size, held in handles.items() if len({rank for rank, _ in held}) == len(held) == size}
    return {f"{size} ranks": books[f"{size} ranks"] for size in sorted(sole)}


def _disagree(name: str, book: _Book) -> Disagreement | None:
    shared = Counter(next(iter(book.counts.values())))
    for counts in book.counts.values():
        shared &= counts
    rests = {rank: counts - shared for rank, counts in book.counts.items()}
    owners: dict[Call, set[int]] = defaultdict(set)
    for rank, rest in rests.items():
        for call in rest:
            owners[call].add(rank)
    if not owners:
        return None
    usual = max(owners, key=lambda call: (len(owners[call]), call))
    first = {rank: usual if usual in rest else min(rest, default=None) for rank, rest in rests.items()}
    called = {rank: call for rank, call in first.items() if call is not None}
    differs = len(set(called.values())) > 1
    came = {rank: sum(counts.values()) for rank, counts in book.counts.items()}
    (call, most), *others = sides(called if differs else first, came)
    held = [(call, most), *others]
    odd = sorted(rank for _, ranks in others for rank in ranks)
    lines = [[book.lines[rank, call] for rank in ranks if (rank, call) in book.lines] for call, ranks in reversed(held)]
    common = sum(shared.values())
    what = _field(call, others[0][0]) if differs else "missing"
    say = _summary(name, book.desc, common, held)
    return Disagreement(name, book.desc, common + 1, what, tuple(most), tuple(odd), say, cited(*lines))


def _field(one: Call, other: Call) -> str:
    return next(what for what, place in FIELDS if one[place] != other[place])


def _summary(name: str, desc: str, common: int, held: list[tuple[Call | None, list[int]]]) -> str:
    said = "; ".join(f"{text.ranks(ranks)}: {_word(call)}" for call, ranks in held[:4])
    where = f"communicator {name}" if desc else f"the communicator of {name}"
    return f"After {common} calls that all ranks share on {where} come {said}"


def _word(call: Call | None) -> str:
    if call is None:
        return "no further call"
    op, count, dtype, root = call
    kind = DTYPES[dtype] if 0 <= dtype < len(DTYPES) else f"datatype {dtype}"
    return f"{text.op(op)} of {count} {kind}{f', root {root}' if op in ROOTED else ''}"
