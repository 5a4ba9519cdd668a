"""The numbers that an option takes, as a type of argparse.

They are finite, in bounds, and refused in one sentence.
"""

from __future__ import annotations

import argparse
import math
import re
from dataclasses import dataclass

from ncclkit.core.model import NcclkitError
from ncclkit.core.text import format_bytes, parse_size

DIGITS = 20
"""Most digits of a number.

No number that anything here counts has more, and `int` refuses some thousand.
"""
SHOWN = 40
"""Characters of what was typed that a sentence repeats."""
WHOLE = re.compile(r"[+-]?[0-9]{1,%d}" % DIGITS)
DECIMAL = re.compile(
    r"[+-]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][+-]?[0-9]{1,3})?"
)


@dataclass(frozen=True, slots=True)
class NumberRange:
    """A type of argparse: least and largest number of an option."""

    low: float
    high: float
    kind: str = "a whole number"
    """What is asked for: "a whole number", "a number" or "a size".

    "a number" may have a fraction; "a size" is in bytes, such as 64MB.
    """

    def __call__(self, text: str) -> float:
        """The number that was typed; raises ArgumentTypeError with what is taken instead."""
        value = self._read(text)
        if value is None or not self.low <= value <= self.high:
            if len(text) <= SHOWN:
                typed = text
            else:
                typed = f"{text[:SHOWN]}…"
            raise argparse.ArgumentTypeError(f"must be {self}, but it is {typed!r}")
        return value

    def __str__(self) -> str:
        """What is taken, for a sentence."""
        if self.kind == "a size":
            most = format_bytes(self.high)
            return f"a number of bytes such as 4096, 64MB or 1GiB, at most {most}"
        return f"{self.kind} between {self.low:,} and {self.high:,}"

    def _read(self, text: str) -> float | None:
        """The number, out of bounds or not; None for what is not one."""
        if self.kind == "a size":
            return _size_or_none(text)
        if self.kind == "a whole number":
            if WHOLE.fullmatch(text):
                return int(text)
            return None
        # by its form first, as float() also takes nan, inf and 1_000
        if DECIMAL.fullmatch(text):
            value = float(text)
        else:
            value = math.nan
        if math.isfinite(value):
            return value
        return None


def _size_or_none(text: str) -> int | None:
    try:
        return parse_size(text)
    except NcclkitError:
        return None
