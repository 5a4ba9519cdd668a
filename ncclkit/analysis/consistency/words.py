"""What hosts have, in few words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ncclkit.analysis.picks import amount

LONGEST = 120
"""Characters of a value; the facts hold the whole."""

Places = Mapping[str, Any]
"""Number of the GPU (empty: of the host) → what it has."""


def value_words(groups: Sequence[Sequence[Places]], unit: str) -> list[str]:
    """For each group of hosts that agree, what they have; of sets only what not all groups share."""
    sets = [value for group in groups for value in group[0].values() if isinstance(value, frozenset)]
    shared = frozenset.intersection(*sets) if sets else frozenset()
    said = (_group(group, unit, shared) for group in groups)
    return [text if len(text) <= LONGEST else f"{text[:LONGEST]} …" for text in said]


def _group(hosts: Sequence[Places], unit: str, shared: frozenset[str]) -> str:
    """``16``; or what most GPUs have, and which have something else: ``16 (GPU 5: 8)``."""
    known = Counter(repr(value) for places in hosts for value in places.values())
    if len(known) == 1:
        return words(next(iter(hosts[0].values())), unit, shared)
    usual = known.most_common(1)[0][0]
    others: dict[str, set[tuple[str, ...]]] = {}
    shown = {repr(value): words(value, unit, shared) for value in hosts[0].values()}
    for places in hosts:
        for odd in {repr(value) for value in places.values()} - {usual}:
            others.setdefault(odd, set()).add(tuple(at for at, value in places.items() if repr(value) == odd))
    said = [f"{_gpus(where)}: {shown[odd]}" for odd, where in sorted(others.items())]
    return f"{shown[usual]} ({', '.join(said)})"


def _gpus(where: set[tuple[str, ...]]) -> str:
    """``GPU 5``, ``GPUs 2, 5``; ``some GPUs`` where the hosts do not agree in which."""
    if len(where) > 1:
        return "some GPUs"
    numbers = next(iter(where))
    return f"GPU{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"


def words(value: Any, unit: str = "", shared: frozenset[str] = frozenset()) -> str:
    """One normal form for people: yes, unlimited, 64 MiB, 0.2–4.9 ms, mlx5_0, mlx5_1."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, frozenset):
        return ", ".join(map(str, sorted(value - shared))) or ("none of these" if shared or not value else "")
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(end, (int, float)) for end in value):
        ends = list(dict.fromkeys(_number(end, unit) for end in value))
        return "–".join(ends)
    if isinstance(value, (tuple, list)):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {held}" for key, held in value.items()) or "none"
    return _number(value, unit) if isinstance(value, (int, float)) else str(value) or "empty"


def _number(value: float, unit: str) -> str:
    if unit and value == -1:  # how the agent writes a limit that is not there
        return "unlimited"
    if unit in ("bytes", "MiB"):
        return amount(value * (1 if unit == "bytes" else 1 << 20))
    return f"{value:.4g} {unit}".strip() if isinstance(value, float) else f"{value} {unit}".strip()
