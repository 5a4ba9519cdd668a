"""Patterns of grammars and redaction, and texts on which an engine that backtracks would take quadratic time."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]

import ncclkit.evidence
from ncclkit.agent.secret_patterns import SecretPattern
from ncclkit.evidence.grammars.grammar import Rule

CATEGORIES = {
    sre.CATEGORY_DIGIT: "7",
    sre.CATEGORY_SPACE: " ",
    sre.CATEGORY_WORD: "w",
    sre.CATEGORY_NOT_DIGIT: "d",
    sre.CATEGORY_NOT_SPACE: "x",
    sre.CATEGORY_NOT_WORD: "-",
}
COMPILED = {"match", "search", "fullmatch", "findall", "finditer", "sub", "split"}


def patterns() -> dict[str, tuple[re.Pattern[str] | re.Pattern[bytes], bool]]:
    """Where it stands → pattern, and whether it is searched for: of rules and constants of evidence and redaction."""
    found: dict[str, tuple[re.Pattern[str] | re.Pattern[bytes], bool]] = {}
    walked = [info.name for info in pkgutil.walk_packages(ncclkit.evidence.__path__, "ncclkit.evidence.")]
    own = ("ncclkit.agent.secret_patterns", "ncclkit.agent.anonymize", "ncclkit.core.secrets")
    for full in (*walked, *own):
        module = importlib.import_module(full)
        anchored = _anchored(Path(str(module.__file__)))
        for name, value in vars(module).items():
            for number, one in enumerate(_within(value)):
                found[f"{full.removeprefix('ncclkit.').removeprefix('evidence.')}.{name}[{number}]"] = (
                    one,
                    name not in anchored,
                )
    unique = {(one.pattern, one.flags, searched): name for name, (one, searched) in reversed(found.items())}
    return {name: found[name] for name in sorted(unique.values())}


def _anchored(path: Path) -> set[str]:
    """Names of constants of a module that are only ever matched at the start of a text, never searched for."""
    used: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used.setdefault(node.value.id, set()).add(node.attr)
    return {name for name, how in used.items() if how & COMPILED and not how & (COMPILED - {"match", "fullmatch"})}


def _within(value: object) -> Iterator[re.Pattern[str] | re.Pattern[bytes]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, (Rule, SecretPattern)):
        yield value.pattern
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _within(item)
    elif type(value).__name__ == "Tool":
        yield value.start  # type: ignore[attr-defined]


def attacks(pattern: re.Pattern[str] | re.Pattern[bytes]) -> list[tuple[str, str]]:
    """(what stands before, what is repeated): each repeat of the pattern pumped, and each of its beginnings."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    tree = parser.parse(source, pattern.flags & ~re.UNICODE)
    found: dict[tuple[str, str], None] = {}
    _pump(tree, "", found)
    return [pair for pair in found if pair[1]]


def _pump(items: object, before: str, found: dict[tuple[str, str], None]) -> str:
    for op, value in items:  # type: ignore[attr-defined]
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            low, high, body = value
            text = _sample(body)
            if high is sre.MAXREPEAT or high > 16:
                found[before, text] = None  # the repeat itself, after what leads to it
                found["", before + text] = None  # and everything up to it, again and again
            _pump(body, before, found)
            before += text * max(low, 1 if before == "" else low)
        elif op is sre.SUBPATTERN:
            before = _pump(value[3], before, found)
        elif op is sre.BRANCH:
            for branch in value[1]:
                _pump(branch, before, found)
            before += _sample(value[1][0])
        else:
            before += _one(op, value)
    return before


def _sample(items: object) -> str:
    return "".join(_one(op, value) for op, value in items)  # type: ignore[attr-defined]


def _one(op: object, value: object) -> str:  # a short text that a node matches
    if op is sre.LITERAL:
        return chr(value)  # type: ignore[arg-type]
    if op is sre.NOT_LITERAL:
        return "x" if value != ord("x") else "y"
    if op is sre.ANY:
        return "x"
    if op is sre.IN:
        return _member(value)
    if op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
        return _sample(value[2]) * max(1, min(value[0], 4))  # type: ignore[index]
    if op is sre.SUBPATTERN:
        return _sample(value[3])  # type: ignore[index]
    if op is sre.ATOMIC_GROUP:
        return _sample(value)
    if op is sre.BRANCH:
        return _sample(value[1][0])  # type: ignore[index]
    return ""  # places and what is looked at around them


def _member(value: object) -> str:
    negated = value[0][0] is sre.NEGATE  # type: ignore[index]
    if negated:
        made = parser.parse("x")
        made.data = [(sre.IN, value)]
        test = re.compile("[" + "".join(_written(item) for item in value) + "]")  # type: ignore[attr-defined]
        return next(char for char in "x 7-:.=,\"'(" if test.match(char))
    op, first = value[0]  # type: ignore[index]
    if op is sre.RANGE:
        return chr(first[0])
    return CATEGORIES[first] if op is sre.CATEGORY else chr(first)


def _written(item: tuple[object, object]) -> str:
    op, value = item
    if op is sre.NEGATE:
        return "^"
    if op is sre.RANGE:
        return f"\\x{value[0]:02x}-\\x{value[1]:02x}"  # type: ignore[index]
    if op is sre.CATEGORY:
        names = {sre.CATEGORY_DIGIT: r"\d", sre.CATEGORY_SPACE: r"\s", sre.CATEGORY_WORD: r"\w"}
        names |= {sre.CATEGORY_NOT_DIGIT: r"\D", sre.CATEGORY_NOT_SPACE: r"\S", sre.CATEGORY_NOT_WORD: r"\W"}
        return names[value]
    return f"\\x{value:02x}" if value < 256 else re.escape(chr(value))  # type: ignore[operator, arg-type]
