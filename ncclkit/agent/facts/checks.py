"""Checks of one variable by its name and value alone: misspelt, renamed, not a number, out of range, not a choice."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any

from . import names

Problem = dict[str, Any]


def problem(kind: str, name: str, value: str, what: str, hint: str) -> Problem:
    """One row of ``env.problems`` or ``env.notes``; docs/facts.md lists the kinds."""
    return {"kind": kind, "name": name, "value": value, "problem": what, "hint": hint}


def check(name: str, value: str) -> Iterator[Problem]:
    """What is wrong with one setting; at most one row."""
    if name in names.RENAMED:
        yield problem("renamed", name, value, "an old name", "today's name is %s" % names.RENAMED[name])
    elif name.startswith(("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "GLOO_")) and name not in names.KNOWN:
        yield from _unknown(name, value)
    elif name in names.KNOWN and re.fullmatch(r"(['\"]).*\1", value):
        yield problem("value", name, value, "the quotation marks belong to the value", "write it without them")
    elif name in names.FLAGS | names.NUMBERS:
        yield from _integer(name, value)
    elif name in names.TORCH_FLAGS and value.strip().lower() not in names.TORCH_WORDS:
        what = "no switch value: torch ends with 'Invalid value for environment variable'"
        yield problem("value", name, value, what, "write 0 or 1")
    elif name in names.TORCH_NUMBERS and not re.match(r"\s*[-+]?\d", value):
        what = "no number: torch ends with 'Invalid value for environment variable'"
        yield problem("value", name, value, what, "write a whole number")
    elif name in names.TORCH_NUMBERS:
        yield from _range(name, value, int(re.findall(r"[-+]?\d{1,20}", value)[0]))
    elif name in names.CHOICES:
        yield from _choice(name, value)


def integer(value: str) -> int | None:
    """A whole number as strtoll reads it (``10``, ``0x1f``, octal ``010``); None for anything else."""
    if not re.fullmatch(r"\s*[-+]?(?:0x[0-9a-fA-F]{1,16}|\d{1,20})\s*", value):
        return None
    return int(value, 8) if re.fullmatch(r"\s*[-+]?0[0-7]+\s*", value) else int(value, 16 if "x" in value else 10)


def _integer(name: str, value: str) -> Iterator[Problem]:
    """Switches and numbers of NCCL and the launcher."""
    found, switch = integer(value), name in names.FLAGS
    if found is None:
        hint = "write 0 or 1" if switch else "write a whole number"
        yield problem("value", name, value, "no number, so it is refused or has no effect", hint)
    elif switch and not -2 <= found <= 2:
        yield problem("value", name, value, "not a switch value", "write 0 or 1")
    else:
        yield from _range(name, value, found)


def _range(name: str, value: str, found: int) -> Iterator[Problem]:
    low, high, why = names.RANGES.get(name, (found, found, ""))
    if not low <= found <= high:
        yield problem("value", name, value, "outside %d to %d" % (low, high), why or "write a number between the two")


def _unknown(name: str, value: str) -> Iterator[Problem]:
    if name.startswith(names.FAMILIES):
        return
    close = difflib.get_close_matches(name, names.KNOWN, 1, 0.88)
    if close:
        yield problem("misspelt", name, value, "unknown name, so it has no effect", "did you mean %s?" % close[0])
    else:
        yield problem(
            "unknown",
            name,
            value,
            "not among the variables known to ncclkit",
            "unknown names are ignored silently: check it against the documentation of your version",
        )


def _choice(name: str, value: str) -> Iterator[Problem]:
    allowed = names.CHOICES[name].split()
    if re.fullmatch(r"-?\d+", value.strip()) and not name.startswith("TORCH_D"):
        return  # levels may be numbers
    # NCCL_ALGO=allreduce:tree,ring;broadcast:^ring   NCCL_DEBUG_SUBSYS=^NET,INIT
    lists = [part.split(":", 1)[-1].strip().lstrip("^") for part in value.split(";")]
    words = [word.strip() for part in lists for word in part.split(",") if word.strip()]
    for word in words or [value]:
        if word.upper() not in allowed:
            close = difflib.get_close_matches(word.upper(), allowed, 1)
            hint = "did you mean %s? known: " % close[0] if close else "known: "
            yield problem("value", name, value, "no value it takes", hint + ", ".join(allowed))
