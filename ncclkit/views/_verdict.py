"""The verdict beside a picture: a headline that points at one rank says so when the verdict names another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ncclkit.core.case import Case
from ncclkit.core.text import the

SURE = ("proven", "likely")
"""Strengths of a verdict that a headline must not contradict."""


class Culprits(NamedTuple):
    """Whom the first finding names."""

    cause: str
    strength: str
    ranks: frozenset[int]


def of_case(case: Case) -> Culprits | None:
    """The ranks that the first finding of a judged case names; None where it names none or is merely possible."""
    first = next((finding for finding in case.findings if finding.verdict == "found"), None)
    return _sure(first.cause, first.strength, first.culprits.get("ranks")) if first else None


def of_rows(rows: Sequence[Mapping[str, Any]]) -> Culprits | None:
    """The same of findings as ``ncclkit diagnose --json`` prints them."""
    first = next(iter(rows), {})
    return _sure(first.get("cause"), first.get("strength"), first.get("culprits", {}).get("ranks"))


def _sure(cause: Any, strength: Any, ranks: Iterable[int] | None) -> Culprits | None:
    return Culprits(str(cause), str(strength), frozenset(ranks)) if ranks and strength in SURE else None


def beside(culprits: Culprits | None, sentence: str, ranks: Iterable[int]) -> str:
    """`sentence`, which points at `ranks`, behind the culprits where the verdict names none of these ranks."""
    pointed = set(ranks)
    if culprits is None or not pointed or culprits.ranks & pointed:
        return sentence
    verb = "is the culprit" if len(culprits.ranks) == 1 else "are the culprits"
    return f"{the('Rank', culprits.ranks)} {verb} ({culprits.cause}, {culprits.strength}). {sentence}"
