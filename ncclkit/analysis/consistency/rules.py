"""How one fact is compared between the hosts of a job."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ncclkit.analysis.consistency.normalizers import Form, same

Effect = Literal["breaks", "slows", "differs"]
"""A difference can break a job, can slow it down, or is only worth knowing."""

ANY = "env.<NAME>"
"""The general name of the facts that are variables."""


@dataclass(frozen=True, slots=True)
class ConsistencyRule:
    """How one fact is compared."""

    fact: str
    """General name, as in docs/facts.md."""
    title: str
    effect: Effect
    why: str
    """Why a difference matters, one sentence."""
    form: Form = same
    apart: tuple[float, float] | None = None
    """Numbers count as different where the next larger one is that many times as large, and larger by that much."""
    among: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    """Host → form becomes host → what is compared, where that depends on the other hosts."""


def fatal(fact: str, title: str, why: str, form: Form = same, **more: Any) -> ConsistencyRule:
    """A rule of a difference that can break a job."""
    return ConsistencyRule(fact, title, "breaks", why, form, **more)


def slows(fact: str, title: str, why: str, form: Form = same, **more: Any) -> ConsistencyRule:
    """A rule of a difference that can slow a job down."""
    return ConsistencyRule(fact, title, "slows", why, form, **more)


def differs(fact: str, title: str, why: str, form: Form = same, **more: Any) -> ConsistencyRule:
    """A rule of a difference that is only worth knowing."""
    return ConsistencyRule(fact, title, "differs", why, form, **more)


def general(name: str) -> str:
    """``gpu.3.model`` → ``gpu.<i>.model``, as docs/facts.md has it."""
    first, _, rest = name.partition(".")
    if first == "gpu":
        return re.sub(r"^\d+\.", "gpu.<i>.", rest) if rest[:1].isdigit() else name
    if first == "storage":
        return f"storage.<label>.{rest.partition('.')[2]}"
    return ANY if first == "env" and name not in ("env.problems", "env.notes") else name
