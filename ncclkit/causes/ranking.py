"""The one order of the causes: what each voice says of a cause, and what that weighs.

A voice is a number for each cause: what rules say, which cause the wording resembles, how often
settled cases with these symptoms had it, how usual it is.  Their weighted sum is the logarithm of
the cause's odds.  `tests/bench/ranking.py` fits the weights (``ranking.json``) to posted failures,
each judged by what was learned from other owners.  Whatever the sum is, a cause is never more than
``possible`` by it alone: ``likely`` and ``proven`` are words of rules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

FILE = Path(__file__).with_name("ranking.json")
LEAST_RESEMBLANCE = 1e-3
"""What is added to a share before its logarithm is taken: no wording excludes a cause."""
TOLD = 0.7
"""How much more a voice adds to a cause than to the average one where it is told as a reason."""


class Voices(msgspec.Struct, frozen=True):
    """What each voice says of one cause."""

    resembled: float = 0.0
    """The logarithm of its share of the resemblance."""
    counted: float = 0.0
    """How much more often settled cases with these symptoms and contexts had it, as a logarithm."""
    usual: float = 0.0
    """How often any settled case had it, as a logarithm."""
    on_page: float = 0.0
    """1 where the page of a symptom names it."""
    stated: float = 0.0
    """What the stated ratios add, as logarithms."""
    excluded: float = 0.0
    """How many contexts rule it out."""
    possible: float = 0.0
    """1 where a rule calls it possible."""
    place: float = 0.0
    """Its place among those that rules call possible; the first is 0."""
    cleared: float = 0.0
    """1 where a rule has cleared it."""
    ruled_out: float = 0.0
    """1 where it has, and nothing brings it into doubt; only a person's answer outweighs that."""


REASONS: Mapping[str, str] = {
    "possible": "a rule saw signs of it",
    "resembled": "the wording resembles it",
    "counted": "settled cases with such symptoms had it",
    "on_page": "the symptom is known for it",
    "usual": "it is usual in such jobs",
}
"""Voice → the reason that it gives for a cause's place."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """The odds of every cause, and the reasons of each for its place."""

    odds: Mapping[str, float]
    """Cause → the logarithm of its odds."""
    reasons: Mapping[str, Sequence[str]]
    """Cause → why it stands where it stands, the weightiest reason first."""


@cache
def fitted_weights() -> Voices:
    """The weight of each voice, as it was fitted."""
    return msgspec.json.decode(FILE.read_bytes(), type=Voices)


def log_resemblance(share: float) -> float:
    """What a share of the resemblance says."""
    return math.log(share + LEAST_RESEMBLANCE)


def ranked_causes(voices: Mapping[str, Voices]) -> Ranked:
    """The odds of causes, by what the voices say of each."""
    weights = fitted_weights()
    added: dict[str, dict[str, float]] = {}
    for cause, said in voices.items():
        added[cause] = _weighed_voices(said, weights)
    odds: dict[str, float] = {}
    for cause, parts in added.items():
        odds[cause] = sum(parts.values())
    return Ranked(odds, _reasons(added))


def _weighed_voices(said: Voices, weights: Voices) -> dict[str, float]:
    parts = {}
    for voice in Voices.__struct_fields__:
        weight = getattr(weights, voice)
        parts[voice] = weight * getattr(said, voice)
    return parts


def _reasons(added: Mapping[str, Mapping[str, float]]) -> dict[str, tuple[str, ...]]:
    """The voices that lift each cause above the average one."""
    average = _average_parts(added)
    reasons = {}
    for cause, parts in added.items():
        lifts = []
        for voice, reason in REASONS.items():
            lift = parts[voice] - average[voice]
            if lift >= TOLD:
                lifts.append((lift, reason))
        lifts.sort(reverse=True)
        told = []
        for _, reason in lifts:
            told.append(reason)
        reasons[cause] = tuple(told)
    return reasons


def _average_parts(added: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """What each voice adds to the average cause."""
    sums = dict.fromkeys(REASONS, 0.0)
    for parts in added.values():
        for voice in REASONS:
            sums[voice] += parts[voice]
    for voice in REASONS:
        sums[voice] /= len(added)
    return sums
