"""Phrases that logs and people use, as one pattern: one idea a line."""

from __future__ import annotations

import re


def any_of(*phrases: str, small_letters: bool = False) -> re.Pattern[str]:
    """A pattern that finds any of these phrases, each a regular expression.

    `small_letters`: capitals and small letters are one.
    """
    return re.compile("|".join(phrases), re.IGNORECASE if small_letters else 0)


def any_word(*words: str, more: tuple[str, ...] = ()) -> re.Pattern[str]:
    """A pattern that finds any of these as whole words, in any case.

    `more` are phrases that need not begin and end with a letter.
    """
    whole = r"\b(?:" + "|".join(words) + r")\b"
    return re.compile("|".join((whole, *more)), re.IGNORECASE)
