"""all_to_all: what all ranks send must be what all ranks take, and rank by rank where the call tells it."""

from __future__ import annotations

from ncclkit.evidence.flight.groups import SHOWN, Group
from ncclkit.evidence.grammars.grammar import Data


def splits(group: Group) -> tuple[Data, list[str], list[int]] | None:
    """(data, text, ranks) of the first all_to_all whose sizes do not fit; None where all fit, or a dump is missing."""
    held = {rank: calls for rank, calls in group.calls.items() if len(calls)}
    if len(held) < max(2, len(group.members)):
        return None
    kinds = {rank: group.sources[rank].kinds for rank in held}
    if not any(kind.op.startswith("all_to_all") for known in kinds.values() for kind in known):
        return None
    low, high = max(calls.seqs[0] for calls in held.values()), min(calls.seqs[-1] for calls in held.values())
    fewest = min(held.values(), key=len)  # a number that is far from the others must not be counted up to
    for seq in (seq for seq in fewest.seqs if low <= seq <= high):
        places = {rank: calls.at(seq) for rank, calls in held.items()}
        calls = {rank: kinds[rank][held[rank].kinds[at]] for rank, at in places.items() if at is not None}
        if len(calls) == len(held) and all(kind.op.startswith("all_to_all") for kind in calls.values()):
            sent, taken = ([getattr(kind, side).total for kind in calls.values()] for side in ("inputs", "outputs"))
            pairs = _pairs(group, {rank: at for rank, at in places.items() if at is not None})
            if pairs or None not in sent + taken and sum(sent) != sum(taken):
                return _told(group, seq, next(iter(calls.values())).op, sum(sent), sum(taken), pairs)
    return None


def _pairs(group: Group, places: dict[int, int]) -> list[list[int]]:
    """[from, to, elements sent, elements expected] of each pair that disagrees, where sizes for each peer are told."""
    size, found = len(group.members), []
    details = {rank: group.calls[rank].details.get(at) for rank, at in places.items()}
    told = {rank: d for rank, d in details.items() if d and len(d.sends) == size == len(d.receives)}
    if size < 2 or len(told) < size:
        return []
    for i, source in enumerate(group.members):
        for j, target in enumerate(group.members):
            sent, expected = told[source].sends[j], told[target].receives[i]
            found += [[source, target, sent, expected]] if sent != expected else []
    return found


def _told(
    group: Group, seq: int, op: str, sent: int, taken: int, pairs: list[list[int]]
) -> tuple[Data, list[str], list[int]]:
    odd = sorted({rank for pair in pairs for rank in pair[:2]})
    most, few = {"value": sent, "ranks": group.members}, {"value": taken, "ranks": odd}
    data = {"seq": seq, "field": "splits", "op": op, "majority": most, "odd": [few], "pairs": pairs[:SHOWN]}
    text = [f"{group.title}: collective {seq} {op} sends {sent} elements in all, but {taken} are expected"]
    text += [f"  rank {a} sends {n} to rank {b}, which expects {m}" for a, b, n, m in pairs[:SHOWN]]
    return data, text, odd
