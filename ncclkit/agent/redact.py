"""Secrets never leave.

They are known by their name, by what they look like, and by what this environment holds. What is
replaced keeps its lines, so that line numbers still point to the same place.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Callable

from .secret_patterns import (
    FOREIGN_PATTERNS,
    PATTERNS,
    REDACTED,
    TORN,
    Instead,
    SecretPattern,
    is_over_lines,
    is_secret,
)

__all__ = ["REDACTED", "clean", "file", "is_secret", "text", "texts", "words"]


def _own_secrets() -> list[str]:
    """Values of variables here that are secrets by their names, and their lines.

    The longest come first.  Paths and words that anything may contain are no secrets, whatever
    their variable is called.
    """
    plain = []
    for name, value in os.environ.items():
        if is_secret(name):
            plain.append(value)
            plain += value.splitlines()
    spelled = set(plain)
    # as JSON writes it, with its quotes and line breaks escaped
    for value in plain:
        spelled.add(json.dumps(value)[1:-1])
    random = re.compile(r"(?=.*\d)(?=.*[A-Za-z]).{8,}|.{16,}", re.S)
    found = []
    for value in spelled:
        if random.fullmatch(value) and value[0] not in "/~.":
            found.append(value)
    # the longest first: a part of it that was replaced would leave the rest readable
    return sorted(found, key=len, reverse=True)


OWN = _own_secrets()


def _any_of(signs: Iterable[str]) -> str:
    """A pattern for one of many words, as a tree.

    To try each word in turn costs five times as much.
    """
    tree: dict[str, Any] = {}
    for sign in signs:
        branch = tree
        for letter in sign:
            branch = branch.setdefault(letter, {})
        branch[""] = {}
    return _branches(tree)


def _branches(tree: dict[str, Any]) -> str:
    if "" in tree:  # a word ends here, and longer ones begin with it
        return ""
    found = [re.escape(letter) + _branches(branch) for letter, branch in sorted(tree.items())]
    if len(found) == 1:
        return found[0]
    return "(?:%s)" % "|".join(found)


class _Patterns:
    """Patterns in their order; a text needs only those whose signs it holds."""

    def __init__(self, patterns: Sequence[SecretPattern], own: Iterable[str] = ()):
        known = [(sign, number) for number, one in enumerate(patterns) for sign in one.signs]
        known += [(sign, -1) for sign in own]  # which no pattern needs, but a text that holds it
        self._patterns = patterns
        self.holds_sign = re.compile(_any_of(sign for sign, _ in known)).search
        # of signs that begin alike the shortest is found, which stands for all of them
        self._by_sign = {
            short: {number for sign, number in known if number >= 0 and sign.startswith(short)}
            for short, _ in known
        }

    def replace(self, value: str, lower: str) -> str:
        """The text with what these patterns match replaced."""
        for number in self._numbers(lower):
            one = self._patterns[number]
            if not one.beside or any(map(lower.__contains__, one.beside)):
                value = one.pattern.sub(partial(_kept_apart, one.instead), value)
        return value

    def _numbers(self, lower: str) -> list[int]:
        """Which patterns have a sign in the text, in their order."""
        found: set[str] = set()
        match = self.holds_sign(lower)
        while match is not None:
            found.add(match.group())
            match = self.holds_sign(lower, match.start() + 1)
        return sorted(set().union(*(self._by_sign[sign] for sign in found)))


_ALL, _FOREIGN = _Patterns(PATTERNS, map(str.lower, OWN)), _Patterns(FOREIGN_PATTERNS)


def text(value: str) -> str:
    """The text with every secret in it replaced; costs microseconds where there is none."""
    if len(value) >= 64:
        value = TORN.sub(REDACTED, value)
    lower = value.lower()
    if not value.isascii():
        value = _FOREIGN.replace(value, lower)
    if _ALL.holds_sign(lower) is None:  # most texts end here
        return value
    value = _ALL.replace(value, lower)
    for secret in OWN:
        value = value.replace(secret, REDACTED + "\n" * secret.count("\n"))
    return value


def _kept_apart(instead: Instead, match: re.Match[str]) -> str:
    """What stands for a match; lines stay lines, and words of a command stay words."""
    if callable(instead):
        shown = instead(match)
    else:
        shown = match.expand(instead)
    for end in "\n\0":
        shown += end * (match[0].count(end) - shown.count(end))
    return shown


def words(value: Iterable[str]) -> list[str]:
    """The words of a command with every secret replaced: flag and value are seen together."""
    plain = list(value)
    parts = text("\0".join(plain)).split("\0")
    cleaned = []
    for word in plain:  # a word may hold a NUL of its own, and none of them is ever replaced
        count = word.count("\0") + 1
        cleaned.append(_whole_value(word, "\0".join(parts[:count])))
        del parts[:count]
    return cleaned


def _whole_value(word: str, cleaned: str) -> str:
    """A secret word ends where it ends, whatever blanks or zeros are in its value."""
    if cleaned.startswith(REDACTED + "\0"):
        return REDACTED + "\0" * word.count("\0")
    name, equals, _ = word.partition("=")
    begins = name + equals + REDACTED
    if equals and cleaned.startswith(begins):
        return begins
    return cleaned


def texts(value: Any, change: Callable[[str], str] = text) -> Any:
    """The nested value with `change` applied to every text in it, whatever its key."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {texts(key, change): texts(inner, change) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(texts(inner, change) for inner in value)
    return value


def clean(value: Any, name: str = "") -> Any:
    """A plain JSON value with every secret in it replaced.

    `name` is the key it stands under.
    """
    if value and isinstance(value, str):
        if is_secret(name):
            return REDACTED
        return text(value)
    if isinstance(value, dict):
        variable = ""
        if "value" in value:
            variable = str(value.get("name", "")).replace("env.", "", 1)
        hidden = variable.isidentifier() and is_secret(
            variable
        )  # a row {"name": "HF_TOKEN", "value": …}
        names = {key: "secret" if hidden and key == "value" else str(key) for key in value}
        return {texts(key): clean(inner, names[key]) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        if value and not is_secret(name) and all(isinstance(inner, str) for inner in value):
            return words(value)
        return [clean(inner, name) for inner in value]
    return value


def file(path: str) -> None:
    """Replace the secrets in a text file; one without any is not touched.

    Raises OSError.
    """
    with _open_text(path) as source:
        found = any(lines != cleaned for lines, cleaned in _blocks_of_file(source))
    if found:
        with _open_text(path) as source, _open_text(path + ".part", "w") as out:
            out.writelines(cleaned for _, cleaned in _blocks_of_file(source))
        os.replace(path + ".part", path)


def _open_text(path: str, mode: str = "r") -> Any:
    return open(path, mode, encoding="utf-8", errors="surrogateescape", newline="")


def _blocks_of_file(source: Any) -> Iterable[tuple[str, str]]:
    """(as it is, without secrets) of a file's text, about a MiB of lines at a time."""
    while lines := source.readlines(1 << 20):
        whole = "".join(lines)
        yield whole, text(whole) if is_over_lines(whole) else "".join(map(text, lines))
