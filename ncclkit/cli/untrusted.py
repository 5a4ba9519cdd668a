"""Text of logs within sentences of ours, marked for a coding agent.

The agent may follow instructions that stand in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import ncclkit
from ncclkit.agent.digits import is_whole
from ncclkit.core.case import Case
from ncclkit.core.model import fields_of

MARK = "untrusted-log-text"
LONGEST = 160
"""Characters of a log that a sentence of ours quotes at most."""
FEWEST = 3
"""Words in a row that make a quotation; fewer instruct nobody, and names of hosts stay readable."""
WHOLE = frozenset(
    {"evidence", "errors", "inputs", "logs", "path", "run", "cause", "verdict", "strength"}
)
"""Keys whose values are no sentences: cited lines, which are marked as a whole, paths and ids."""
_WRITTEN_TOGETHER = "\u2e80-\ud7ff\uf900-\ufaff"
"""Chinese, Japanese and Korean letters; each counts as a word."""
_WORD = re.compile(rf"[{_WRITTEN_TOGETHER}]|[^\W_{_WRITTEN_TOGETHER}]+")
_OWN_MARK = re.compile(rf"(?i)</?\s*{MARK}\s*>")

Triple = tuple[str, ...]


def fence(text: str, longest: int = LONGEST) -> str:
    """The text between marks that it cannot end itself, cut."""
    own = _OWN_MARK.sub("", text)
    rest = len(own) - longest
    more = ""
    if rest > 0:
        more = f" ({rest:,} more characters)"
    return f"<{MARK}>{own[:longest]}</{MARK}>{more}"


def mark_quotations(answer: Mapping[str, Any], case: Case) -> dict[str, Any]:
    """An answer on a case in which every sentence marks what it repeats of the logs."""
    wanted = set()
    for sentence in _sentences(answer):
        for triple in _triples(_words(sentence)):
            wanted.add(triple)
    known: set[Triple] = set()
    for text in _log_texts(case):
        known.update(wanted.intersection(_triples(_words(text))))
    marked: dict[str, Any] = _changed(answer, known)
    return marked


def _sentences(value: Any, key: str = "") -> Iterator[str]:
    if key in WHOLE:
        return
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _sentences(inner, str(name))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _sentences(inner)


def _changed(value: Any, known: set[Triple], key: str = "") -> Any:
    if key in WHOLE:
        return value
    if isinstance(value, str):
        return _marked(value, known)
    if isinstance(value, Mapping):
        return {name: _changed(inner, known, str(name)) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_changed(inner, known) for inner in value]
    return value


def _log_texts(case: Case) -> set[str]:
    """All that a case holds of logs and of hosts; equal texts of many ranks count once."""
    found: set[str] = set()
    for event in case.events:
        found.add(event.host)
        if event.line:  # of what has no lines we wrote the text ourselves, from the data
            found.add(event.text)
        found.update(_strings(fields_of(event)))
    for fact in case.facts:
        found.update(_strings(fact.value))
    for file in case.inputs:  # lines that no grammar knows: a bare symptom stands there
        for row in (*file.get("quiet", ()), *file.get("abnormal", ())):
            found.add(str(row.get("text", "")))
    return found


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield str(name)
            yield from _strings(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _strings(inner)


def _words(text: str) -> list[str]:
    return [match.group().casefold() for match in _WORD.finditer(text)]


def _triples(words: list[str]) -> Iterator[Triple]:
    for first in range(len(words) - FEWEST + 1):
        yield tuple(words[first : first + FEWEST])


def _marked(sentence: str, known: set[Triple]) -> str:
    sentence = _OWN_MARK.sub("", sentence)
    matches = list(_WORD.finditer(sentence))
    words = [match.group().casefold() for match in matches]
    parts, end = [], 0
    for first, last in _runs(words, known):
        begin = matches[first].start()
        parts += [sentence[end:begin], fence(sentence[begin : matches[last].end()])]
        end = matches[last].end()
    return "".join([*parts, sentence[end:]])


def _runs(words: list[str], known: set[Triple]) -> Iterator[tuple[int, int]]:
    """First and last word of each quotation."""
    first = last = -1
    starts = [at for at, triple in enumerate(_triples(words)) if triple in known]
    for at in [*starts, len(words) + FEWEST]:
        if at <= last + 1:
            last = at + FEWEST - 1
            continue
        if first >= 0 and _is_foreign(words[first : last + 1]):
            yield first, last
        first = at
        last = at + FEWEST - 1


def _is_foreign(words: list[str]) -> bool:
    """Whether only a log says this.

    Numbers with units instruct nobody, our own phrases are ours.
    """
    letters = {word for word in words if not is_whole(word)}
    return len(letters) >= FEWEST and f" {' '.join(words)} " not in _own_words()


@cache
def _own_words() -> str:
    """The words of our own sources in their order, from which sentences are made."""
    package = Path(ncclkit.__file__).parent
    places = ("causes/**/*.py", "experiments/*.py", "analysis/*.py", "core/*.py")
    sources = [path for place in places for path in package.glob(place)]
    texts = (path.read_text(encoding="utf-8") for path in sources)
    return f" {' '.join(word for text in texts for word in _words(text))} "
