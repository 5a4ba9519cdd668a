"""The values of the live test's form: checked in one place, whoever gave them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from ncclkit.agent.run import operations
from ncclkit.core.model import NcclkitError
from ncclkit.views import plots

DEFAULTS: dict[str, Any] = {
    "python": "",
    "ranks": 0,
    "split": 1,
    "largest": 0,
    "repeats": 10,
    "deadline": 120.0,
    "backend": "auto",
    "op": "all_reduce",
    "dtype": "float32",
    "ladder": False,
    "env": {},
}
"""Every value of the form, named as `probe.plan` names them: training interpreter (empty: the workbook's own), ranks
(0: by what the host has), hosts that NCCL takes each host for, largest size in bytes (0: by what the host has), timed
batches per size, deadline in seconds, backend, collective (or ``all``), type of its elements, whether to climb the
ladder first, and the variables to set."""

LABELS = {
    "python": "Training Python",
    "ranks": "Ranks (0: auto)",
    "split": "Pretended hosts",
    "largest": "Largest size",
    "repeats": "Batches per size",
    "deadline": "Deadline (s)",
    "backend": "Backend",
    "op": "Collective",
    "dtype": "Elements",
    "ladder": "Ladder: first each rank alone, pairs, each node",
    "env": "Variables",
}
LIMITS = {
    "ranks": (0, 4096),
    "split": (1, 64),
    "largest": (0, 2**36),
    "repeats": (1, 10_000),
    "deadline": (1.0, 86_400.0),
}
CHOICES = {"backend": ("auto", "nccl", "gloo"), "op": (*operations.NAMES, "all"), "dtype": tuple(operations.DTYPES)}
SIZES = tuple(4**power for power in range(5, 18))
"""1 KiB to 16 GiB in factors of four."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check(given: Mapping[str, Any]) -> dict[str, Any]:
    """A full set of values with the defaults filled in; NcclkitError names the value that is wrong."""
    if strange := sorted(set(given) - set(DEFAULTS)):
        raise NcclkitError(f"The live test has no value {strange[0]!r}; it takes {', '.join(DEFAULTS)}.")
    values = DEFAULTS | dict(given)
    for name, (low, high) in LIMITS.items():
        values[name] = _bounded(name, values[name], low, high)
    for name, known in CHOICES.items():
        if values[name] not in known:
            raise NcclkitError(f"{LABELS[name]} must be one of {', '.join(known)}, but it is {values[name]!r}.")
    if not isinstance(values["ladder"], bool):
        raise NcclkitError(f"The ladder must be True or False, but it is {values['ladder']!r}.")
    values["python"] = _interpreter(values["python"])
    values["env"] = variables(values["env"])
    return values


def variables(given: Any) -> dict[str, str]:
    """Variables from a mapping, or from text as a shell reads it: NAME=VALUE by blanks or lines, ``#`` comments."""
    if isinstance(given, Mapping):
        words = [f"{name}={chosen}" for name, chosen in given.items()]
    elif isinstance(given, str):
        words = _words(given)
    else:
        raise NcclkitError(f"The variables must be text of NAME=VALUE, but are {given!r} ({type(given).__name__}).")
    pairs = [word.partition("=") for word in words]
    for (name, equals, chosen), word in zip(pairs, words, strict=True):
        if not equals or not _NAME.fullmatch(name) or "\0" in chosen:
            raise NcclkitError(f"The variable {word!r} is not NAME=VALUE; write for example NCCL_DEBUG=INFO.")
    return {name: chosen for name, _, chosen in pairs}


def lines(env: Mapping[str, str]) -> str:
    """The reverse of `variables`, one a line, for the text area."""
    return "\n".join(f"{name}={shlex.quote(chosen)}" for name, chosen in env.items())


def choices(largest: int) -> list[tuple[str, int]]:
    """Labels and bytes of the size list, with the given size among them; 0 lets the host decide."""
    return [(plots.size(count) if count else "auto", count) for count in sorted({0, *SIZES, largest})]


def _words(given: str) -> list[str]:
    try:
        return shlex.split(given, comments=True)
    except ValueError as error:
        raise NcclkitError(f"The variables {given!r} cannot be read ({error}); close the quotes.") from error


def _bounded(name: str, value: Any, low: float, high: float) -> Any:
    kinds = (int, float) if isinstance(low, float) else (int,)
    if isinstance(value, bool) or not isinstance(value, kinds):
        what = "a number" if float in kinds else "a whole number"
        raise NcclkitError(f"{LABELS[name]} must be {what}, but it is {value!r} ({type(value).__name__}).")
    if not low <= value <= high:
        raise NcclkitError(f"{LABELS[name]} must lie between {low:,} and {high:,}, but it is {value}.")
    return value


def _interpreter(path: Any) -> str:
    if not isinstance(path, str) or "\0" in path or "\n" in path:
        raise NcclkitError(f"The training Python must be a path in quotes, but it is {path!r} ({type(path).__name__}).")
    return path.strip()
