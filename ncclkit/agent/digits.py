"""Whole numbers in text from outside.

`str.isdigit` does not guard `int`: it accepts ``²``, which `int` refuses, and digits of every
script; and `int` refuses some thousand digits, which `isdigit` accepts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LONGEST = 20
"""Digits of the largest number of 64 bits, which is the largest that a kernel or a driver
writes."""
WHOLE = re.compile("[0-9]{1,%d}" % LONGEST)


def is_whole(text: str) -> bool:
    """Whether a text is one whole number in ASCII digits, and nothing else."""
    return WHOLE.fullmatch(text) is not None


def whole_number(text: str) -> int | None:
    """The whole number that a text writes in ASCII digits; None for any other text."""
    if is_whole(text):
        return int(text)
    return None


def whole_numbers(texts: Iterable[str]) -> list[int]:
    """The numbers among some texts, in their order."""
    return [int(text) for text in texts if is_whole(text)]
