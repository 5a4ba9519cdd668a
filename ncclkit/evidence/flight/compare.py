"""Compares the Flight Recorder dumps of all ranks.

What differs, and who is missing, becomes events.  No rank is the truth, and no dump needs the
others.  A mismatch is the first collective that ranks disagree on: another operation, other sizes,
other types.  Of different values the one that most ranks hold is taken as meant, then the one of
the ranks that came further.  Whole stretches of columns are compared at once; single calls only
where a stretch differs.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from ncclkit.core.kinds import Stack
from ncclkit.core.model import Event
from ncclkit.evidence.flight.dumps import Calls, Dump, Kind
from ncclkit.evidence.flight.hang import (
    SHOWN,
    Group,
    GroupFinding,
    crossed,
    find_hang,
    find_straggler,
    groups,
    listed,
    roots,
    unpaired,
)
from ncclkit.evidence.grammars.grammar import Data, clip

EQUAL_BOTH = frozenset(
    "_all_gather_base _allgather_base _broadcast_oop _reduce_oop _reduce_scatter_base all_gather"
    " all_gather_into_tensor all_gather_into_tensor_coalesced all_reduce all_reduce_barrier"
    " allgather allreduce allreduce_coalesced broadcast reduce reduce_scatter reduce_scatter_tensor"
    " reduce_scatter_tensor_coalesced".split()
)
"""Operations to which every rank brings as many elements, and from which it takes as many."""
EQUAL_INPUT = EQUAL_BOTH | {"gather"}
"""Of a gather the root alone takes all parts; the others name a list of none, or a placeholder."""
ROOT_SENDS = "scatter"
"""The operation to which the root alone brings all parts."""
Terms = tuple[Any, ...]
"""(op, elements in, elements out, types in, types out); None where a difference would mean
nothing."""


def terms(kind: Kind) -> Terms:
    """What must be the same on all ranks of a call."""
    if kind.closes and kind.op not in EQUAL_BOTH or not kind.op:
        return (None,) * 5
    if kind.op == ROOT_SENDS:
        return _part_taken(kind)
    ins = kind.op in EQUAL_INPUT
    outs = kind.op in EQUAL_BOTH
    return (
        kind.op,
        kind.inputs.total if ins else None,
        kind.outputs.total if outs else None,
        kind.dtypes if ins and kind.inputs.total else None,
        kind.output_dtypes if outs and kind.outputs.total else None,
    )


def _part_taken(kind: Kind) -> Terms:
    """The terms of a scatter: the part that each rank takes.

    What is brought is the root's alone.  torch records that part for NCCL as the input, and as the
    output either the root's list or a placeholder; for gloo it records the two sides as the program
    names them.
    """
    if kind.library == "nccl":
        taken = kind.inputs.total or None
        return kind.op, taken, None, kind.dtypes if taken else None, None
    taken = kind.outputs.total or None
    return kind.op, None, taken, None, kind.output_dtypes if taken else None


def mismatch(group: Group) -> tuple[Data, list[str], list[int]] | None:
    """(data, text, odd ranks) of the first disagreement in a group; None where all agree."""
    seq = _first_mismatch(group)
    if seq is None:
        return None
    for place in range(_most_calls(group, seq)):
        held = {rank: _place_of_nth(calls, seq, place) for rank, calls in group.calls.items()}
        found = _first_difference(
            group, seq, {rank: at for rank, at in held.items() if at is not None}
        )
        if found is not None:
            return found
    return None


def _first_mismatch(group: Group) -> int | None:
    """The lowest sequence number of which two ranks hold different terms."""
    numbers: dict[Terms, int] = {}
    whole: tuple[array[int], array[int]] = (array("q"), array("I"))
    worst: int | None = None
    for rank, calls in sorted(
        group.calls.items(), key=lambda item: (item[1].seqs[:1].tolist(), -len(item[1]))
    ):
        dump = group.sources[rank]
        table = [numbers.setdefault(terms(kind), len(numbers)) for kind in dump.kinds]
        mine = (calls.seqs, array("I", map(table.__getitem__, calls.kinds)))
        # the first may be half overwritten
        start = 0
        if dump.dropped and mine[0]:
            start = bisect_right(mine[0], mine[0][0])
        bad = _compare_calls(whole, mine, start, numbers)
        if worst is None or bad is not None and bad < worst:
            worst = bad
        after = 0
        if whole[0]:
            after = bisect_right(mine[0], whole[0][-1])
        whole[0].extend(mine[0][after:])
        whole[1].extend(mine[1][after:])
    return worst


def _compare_calls(
    whole: tuple[array[int], array[int]],
    mine: tuple[array[int], array[int]],
    start: int,
    numbers: dict[Terms, int],
) -> int | None:
    """The first sequence number in which `mine` differs from earlier ranks.

    They are compared from `start` on.
    """
    if start >= len(mine[0]) or not whole[0]:
        return None
    low = bisect_left(whole[0], mine[0][start])
    high = bisect_right(whole[0], mine[0][-1])
    if low < high:
        start = bisect_left(mine[0], whole[0][low], start)
    end = bisect_right(mine[0], whole[0][-1])
    if whole[1][low:high] == mine[1][start:end] and whole[0][low:high] == mine[0][start:end]:
        return None
    silent = numbers.get((None,) * 5, -1)
    for a, b, x, y in zip(
        whole[0][low:high], mine[0][start:end], whole[1][low:high], mine[1][start:end], strict=False
    ):
        if a != b:
            return min(a, b)
        if x != y and silent not in (x, y):
            return a
    return None


def _most_calls(group: Group, seq: int) -> int:
    """The most calls that one rank recorded under one number.

    There are several in a coalesced batch.
    """
    return max(
        bisect_right(calls.seqs, seq) - bisect_left(calls.seqs, seq)
        for calls in group.calls.values()
    )


def _place_of_nth(calls: Calls, seq: int, number: int) -> int | None:
    place = bisect_left(calls.seqs, seq) + number
    if place < len(calls) and calls.seqs[place] == seq:
        return place
    return None


def _first_difference(
    group: Group, seq: int, held: dict[int, int]
) -> tuple[Data, list[str], list[int]] | None:
    """The first of operation, sizes, types in which calls differ.

    The calls are those at these places.
    """
    known = {}
    for rank, place in held.items():
        known[rank] = terms(group.kind(rank, place))
    for number, field in enumerate(("op", "sizes", "sizes", "dtypes", "dtypes")):
        values = {rank: term[number] for rank, term in known.items()}
        different = set(values.values())
        if None in different or len(different) < 2:
            continue
        # of sizes and types the inputs come first, then the outputs
        is_output = number in (2, 4)
        return _sides_of_mismatch(group, seq, field, is_output, values, held)
    return None


def _sides_of_mismatch(
    group: Group, seq: int, field: str, output: bool, values: dict[int, Any], held: dict[int, int]
) -> tuple[Data, list[str], list[int]]:
    sides: dict[Any, list[int]] = {}
    for rank, value in sorted(values.items()):
        sides.setdefault(value, []).append(rank)
    ordered = sorted(
        sides.values(),
        key=lambda ranks: (-len(ranks), -max(_last_sequence(group, rank) for rank in ranks), ranks),
    )
    shown = [
        {"value": _shown_value(group.kind(ranks[0], held[ranks[0]]), field, output), "ranks": ranks}
        for ranks in ordered
    ]
    op = group.kind(ordered[0][0], held[ordered[0][0]]).op
    sites = [group.site(ranks[0], held[ranks[0]]) for ranks in ordered]
    stacks = []
    for ranks in ordered[:SHOWN]:
        stacks.append(group.stack(ranks[0], held[ranks[0]]))
    data = {
        "seq": seq,
        "field": field,
        "op": op,
        "majority": shown[0],
        "odd": shown[1:],
        "sites": sites,
        "stacks": stacks,
    }
    text = [f"{group.title}: collective {seq} differs in {field}"]
    text += [
        f"  {listed(ranks)}: {group.word(ranks[0], held[ranks[0]])}" for ranks in ordered[:SHOWN]
    ]
    return data, text, ordered[1]


def _last_sequence(group: Group, rank: int) -> int:
    seqs = group.calls[rank].seqs
    if seqs:
        return seqs[-1]
    return -1


def _shown_value(kind: Kind, field: str, output: bool) -> Any:
    if field == "op":
        return kind.op
    if field == "dtypes":
        return list(kind.output_dtypes if output else kind.dtypes)
    return [list(shape) for shape in (kind.outputs if output else kind.inputs).shapes]


def splits(group: Group) -> tuple[Data, list[str], list[int]] | None:
    """(data, text, ranks) of the first all_to_all whose sizes do not fit.

    It is None where all fit, or a dump is missing.
    """
    held = {}
    for rank, calls in group.calls.items():
        if len(calls):
            held[rank] = calls
    if len(held) < max(2, len(group.members)):
        return None
    if not any(map(_exchanges, chain.from_iterable(group.sources[rank].kinds for rank in held))):
        return None
    low = max(calls.seqs[0] for calls in held.values())
    high = min(calls.seqs[-1] for calls in held.values())
    # a number that is far from the others must not be counted up to
    fewest = min(held.values(), key=len)
    for seq in fewest.seqs:
        if low <= seq <= high:
            found = _splits_of_call(group, held, seq)
            if found is not None:
                return found
    return None


def _exchanges(kind: Kind) -> bool:
    return kind.op.startswith("all_to_all")


def _splits_of_call(
    group: Group, held: Mapping[int, Calls], seq: int
) -> tuple[Data, list[str], list[int]] | None:
    """The same for one number; None where not all ranks exchange there."""
    places: dict[int, int] = {}
    totals: dict[int, tuple[Any, Any]] = {}
    op = ""
    for rank, calls in held.items():
        place = calls.at(seq)
        if place is None:
            return None
        kind = group.sources[rank].kinds[calls.kinds[place]]
        if not _exchanges(kind):
            return None
        op = op or kind.op
        places[rank] = place
        totals[rank] = (kind.inputs.total, kind.outputs.total)
    pairs = _unequal_pairs(group, places)
    sums = _sums_of_totals(totals.values())
    if pairs or sums[0] != sums[1]:
        odd = outlying_splits(totals, pairs)
        return _splits_of_group(group, seq, op, sums, pairs, odd)
    return None


def _sums_of_totals(totals: Iterable[tuple[Any, Any]]) -> tuple[int, int]:
    """Elements that all ranks send and take; two zeros where one of them is not known."""
    all_sent, all_taken = 0, 0
    for sent, taken in totals:
        if sent is None or taken is None:
            return 0, 0
        all_sent += sent
        all_taken += taken
    return all_sent, all_taken


def _unequal_pairs(group: Group, places: dict[int, int]) -> list[list[int]]:
    """[from, to, elements sent, elements expected] of each pair that disagrees.

    It needs known sizes for each peer.
    """
    size = len(group.members)
    found = []
    per_peer = {}
    for rank, place in places.items():
        details = group.calls[rank].details.get(place)
        if details and len(details.sends) == size == len(details.receives):
            per_peer[rank] = details
    if size < 2 or len(per_peer) < size:
        return []
    for own_place, source in enumerate(group.members):
        for place, target in enumerate(group.members):
            sent = per_peer[source].sends[place]
            expected = per_peer[target].receives[own_place]
            if sent != expected:
                found.append([source, target, sent, expected])
    return found


def outlying_splits(
    totals: Mapping[int, tuple[Any, Any]], pairs: Sequence[Sequence[int]]
) -> list[int]:
    """The ranks whose splits do not fit.

    They are those in every pair that disagrees, else those unlike most others.  `totals` is rank →
    elements that it sends and takes in all.  Of a single pair it is the one that takes, unless the
    one that sends has another total than most: what is to come is computed from what was sent.
    """
    if pairs:
        shared = set.intersection(*({pair[0], pair[1]} for pair in pairs))
    else:
        shared = set()
    if len(shared) == 2:
        sender, taker = pairs[0][:2]
        sums = Counter(total[0] for total in totals.values())
        usual, many = sums.most_common(1)[0]
        return [sender if 2 * many > len(totals) and totals[sender][0] != usual else taker]
    if pairs:
        return sorted(shared or {rank for pair in pairs for rank in pair[:2]})
    usual_total, many = Counter(totals.values()).most_common(1)[0]
    if 2 * many > len(totals):
        return sorted(rank for rank, total in totals.items() if total != usual_total)
    return []


def _splits_of_group(
    group: Group, seq: int, op: str, sums: tuple[int, int], pairs: list[list[int]], odd: list[int]
) -> tuple[Data, list[str], list[int]]:
    sent, taken = sums
    most = {"value": sent, "ranks": group.members}
    few = {"value": taken, "ranks": odd}
    data = {"seq": seq, "field": "splits", "op": op, "majority": most, "odd": [few], "sites": []}
    data["pairs"] = pairs[:SHOWN]
    text = [
        f"{group.title}: collective {seq} {op} sends {sent} elements in all, but {taken} are"
        " expected"
    ]
    text += [f"  rank {a} sends {n} to rank {b}, which expects {m}" for a, b, n, m in pairs[:SHOWN]]
    return data, text, odd


OPEN = 64
"""Calls in flight that a summary lists."""
LAST, SPREAD = 8, 24
"""Calls whose times a summary holds: the last ones, and so many spread over those before."""
MANY = 1024
"""Dumps from which on each holds fewer times: no picture of so many ranks shows all."""


def dump_event(dump: Dump, of: int = 1) -> Event:
    """The `flight.dump` event of one file, of so many dumps."""
    by_group: dict[str, Data] = {}
    lines: list[str] = []
    for key in dict.fromkeys((*dump.members, *dump.collectives)):
        calls = dump.collectives.get(key, Calls())
        closed = calls.open.rfind(b"\0")
        by_group[key[0] or "0"] = {
            "desc": key[1],
            "ranks": _listed_ranks(dump.members.get(key, ())),
            "last_seq": calls.seqs[-1] if calls.seqs else None,
            "last_completed": calls.seqs[closed] if closed >= 0 else None,
            "in_flight": [seq for seq, mark in zip(calls.seqs, calls.open, strict=True) if mark][
                :OPEN
            ],
            "times": _dated_calls(calls, max(1, of // MANY)),
            "sizes": _sizes_of_calls(dump, calls),
        }
        name = key[0] or "0"
        group = by_group[key[0] or "0"]
        gloo = len(calls) > 0 and dump.kinds[calls.kinds[0]].library == "gloo"
        # gloo records no more, and retires what timed out as well
        closed_as = "completed"
        if gloo:
            closed_as = "retired"
        lines.append(
            f"{name} {key[1]}: last {group['last_seq']}, {closed_as} {group['last_completed']}, in"
            " flight"
        )
        lines[-1] += f" {group['in_flight'][:8]}"
    text = "\n".join([f"{dump.form} {dump.version}, {dump.total} entries", *lines])
    data = {"version": dump.version, "entries": dump.total, "groups": by_group}
    data["newest"] = dump.newest_time()
    return Event("flight.dump", clip(text), dump.path, 0, host=dump.host, rank=dump.rank, data=data)


def _dated_calls(calls: Calls, fewer: int) -> list[list[float]]:
    """Number of a call, and when it was made, in seconds since the epoch.

    Calls that the dump does not date are left out.  By `fewer` the usual numbers are divided; the
    first and the last call always count.
    """
    last = max(1, LAST // fewer)
    spread = max(1, SPREAD // fewer)
    first = max(0, len(calls) - last)
    places = [*range(0, first, max(1, -(-first // spread))), *range(first, len(calls))]
    return [[calls.seqs[at], calls.created[at] / 1e9] for at in places if calls.created[at]]


ITEM = {
    "Float": 4,
    "Double": 8,
    "Half": 2,
    "BFloat16": 2,
    "Long": 8,
    "Int": 4,
    "Short": 2,
    "Char": 1,
    "Byte": 1,
    "Bool": 1,
}
"""Data type as torch writes it → bytes of an element."""
SIZES = 64
"""Sizes of a group's messages that a summary holds, the most frequent ones."""


def _sizes_of_calls(dump: Dump, calls: Calls) -> list[list[Any]]:
    """``[operation, bytes of the larger side, calls]``, the most frequent first.

    Calls of unknown size are left out.
    """
    counts = Counter(calls.kinds)
    sizes: Counter[tuple[str, int]] = Counter()
    for number, count in counts.items():
        kind = dump.kinds[number]
        item = ITEM.get((kind.dtypes or kind.output_dtypes or ("",))[0], 0)
        size = item * max(kind.inputs.total or 0, kind.outputs.total or 0)
        if size:
            sizes[kind.op, size] += count
    return _rows_of_sizes(tuple(sizes.most_common(SIZES)))


@lru_cache(maxsize=1024)
def _rows_of_sizes(sizes: tuple[tuple[tuple[str, int], int], ...]) -> list[list[Any]]:
    """One list for all events that name the same sizes."""
    return [[op, size, count] for (op, size), count in sizes]


@lru_cache(maxsize=1024)
def _listed_ranks(ranks: tuple[int, ...]) -> list[int]:
    """One list for all events that name the same members.

    A thousand lists of a thousand ranks fill memory.
    """
    return list(ranks)


def analyse(
    dumps: Iterable[Dump], world: int | None = None, events: Sequence[Event] = ()
) -> list[Event]:
    """Cross-rank events, group by group.

    Those that only follow from another group's hang say so.  Of a running job whose ranks made
    calls while it was looked at it tells only who came late, and which calls differ though they
    are completed: its dumps are of different moments.
    `world` is the number of ranks of the job, where something else shows it; `events` are those of
    other files: stacks, hosts, and moments of looks are taken from them.
    """
    given = list(dumps)
    hosts = {dump.rank: dump.host for dump in given if dump.rank is not None and dump.host}
    hosts |= {event.rank: event.host for event in events if event.rank is not None and event.host}
    stacks = {
        event.rank: event for event in events if event.kind == "stack" and event.rank is not None
    }
    found: list[GroupFinding] = []
    goes_on = _called_meanwhile(given, events)
    for group in groups(given, world):
        found += _completed_difference(group) if goes_on else _findings_of_group(group)
        found += [stop] if (stop := find_straggler(group, hosts, goes_on)) is not None else []
    crossed(found)
    roots(
        stop
        for stop in found
        if stop.kind in ("flight.missing", "flight.mismatch", "flight.stuck", "flight.p2p")
    )
    return [_event_of_finding(stop, stacks) for stop in found]


def _called_meanwhile(dumps: Iterable[Dump], events: Iterable[Event]) -> bool:
    """Whether a rank made a call after `ncclkit attach` had begun to look at it."""
    looks = {event.rank: event.data.snapshots for event in events if event.kind == "attach.rank"}
    begun = {rank: shots[0]["t"] for rank, shots in looks.items() if shots}
    known = []
    for dump in dumps:
        if dump.rank in begun:
            known.append(dump)
    return any((dump.newest_time() or 0.0) > begun[dump.rank] for dump in known)


def _completed_difference(group: Group) -> list[GroupFinding]:
    """The first call that differs though all ranks that recorded it have completed it.

    Small messages of two different collectives may pair up over NCCL: the job goes on.
    """
    difference = mismatch(group)
    if difference is None:
        return []
    data, text, odd = difference
    seq = data["seq"]
    for rank, calls in group.calls.items():
        place = calls.at(seq)
        if place is None:
            continue
        state = group.state(rank, place)
        if state != "completed":
            return []
    data["completed"] = True
    finding = GroupFinding("flight.mismatch", group, data, text, odd)
    return [finding]


def _findings_of_group(group: Group) -> list[GroupFinding]:
    """Everything about one group but lateness."""
    found: list[GroupFinding] = []
    for difference in (mismatch(group), splits(group)):
        if difference is not None:
            data, text, odd = difference
            found.append(
                GroupFinding("flight.mismatch", group, data, text, odd, waiting=list(group.waits()))
            )
            break
    for stop in find_hang(group):
        # all ranks of a job at work are inside a call now and then
        if stop.kind != "flight.stuck" or not (found or _is_growing(group)):
            found.append(stop)
    return found + list(unpaired(group))


def _is_growing(group: Group) -> bool:
    return any(dump.is_growing for dump in group.sources.values())


def _event_of_finding(stop: GroupFinding, stacks: Mapping[int, Event]) -> Event:
    data: dict[str, Any] = {"group": stop.group.name, "desc": stop.group.desc, **stop.fields}
    if stop.kind != "flight.late":
        data["growing"] = _is_growing(stop.group)
    text = list(stop.text)
    if stop.kind in ("flight.missing", "flight.p2p"):
        frames = {}
        for missing in stop.missing[:SHOWN]:
            if missing in stacks:
                frames[str(missing)] = stacks[missing].data.frames
                text.append(f"    rank {missing} stood {_innermost_place(stacks[missing])}")
        data["stacks"] = frames
    dumps = stop.group.dumps
    dumped = []
    for rank in stop.ranks:
        if rank in dumps:
            dumped.append(rank)
    # a rank that is missing may have left no dump: then that of any other one is cited
    cited = dumps[dumped[0]] if dumped else next(iter(dumps.values()))
    alone = stop.ranks[0] if len(stop.ranks) == 1 else None
    return Event(stop.kind, clip("\n".join(text)), cited.path, 0, rank=alone, data=data)


def _innermost_place(event: Event[Stack]) -> str:
    """The innermost line of a stack that is not torch's own."""
    frames = event.data.frames
    own = next((frame for frame in frames if "/torch/" not in frame["file"]), frames[0])
    return f"in {own['func']} at {own['file']}:{own['line']} ({event.data.tool})"
