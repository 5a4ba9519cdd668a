"""What a grammar is made of: a line, and rules that make events.

A rule costs nothing until its literal anchor stands in the line; only then its regular expression
runs.  Grammar modules declare `RULES`, each pattern under a specimen line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ncclkit.agent import redact
from ncclkit.core import secrets
from ncclkit.core.kinds import KINDS, Frame
from ncclkit.core.model import Event
from ncclkit.evidence.grammars.sentence import sentence_of

TEXT = 2000
"""Longest text of an event in characters."""

LABEL = re.compile(r"(\[\w{1,300}\]|\(\w{1,120} pid=\d{1,10}[^()]{0,100}\)):?$", re.ASCII)
"""What all lines of a speaker hold, if its name ends so."""

Data = dict[str, Any]
Make = Callable[["re.Match[str]", Data, "Line"], "Data | None"]


@dataclass(frozen=True, slots=True)
class LabelledEvent(Event):
    """An event whose rank is a launcher's label.

    The label is right on one host, and perhaps a local rank on many.  Such events exist only while
    files are read; what is handed on is an `Event`.
    """


@dataclass(slots=True)
class Line:
    """One line that something was found in, without colours and launcher prefix."""

    text: str
    """What the event will cite: only ANSI codes and the launcher's prefix are gone."""
    body: str = ""
    """`text` without ``[rank3]:`` and leading timestamps, for line-by-line parsers."""
    path: str = ""
    number: int = 0
    rank: int | None = None
    local: bool = False
    """True when `rank` is only a launcher's label: right on one host, perhaps a local rank on
    many."""
    host: str = ""
    pid: int | None = None
    time: float | None = None
    end: int = 0
    """Where the line ends in its block."""
    speaker: str = ""
    """The launcher prefix itself; lines of one process share it."""
    said: str = ""
    """What stands in the log, where `text` is its English (see `refusals`): both are cited."""
    core: str | None = None
    """What `sentence` keeps once it was asked for."""
    following: Callable[[bytes, str], Iterator[Line]] = field(
        default=lambda label, speaker: iter(())
    )
    """The lines after this one that hold a label (or, without one, of a speaker), as far as the
    scanner looks ahead."""

    def own(self, limit: int) -> Iterator[Line]:
        """The next `limit` lines of the same speaker."""
        label = LABEL.search(self.speaker)
        for line in self.following(label[1].encode() if label else b"", self.speaker):
            if line.speaker == self.speaker:
                if limit == 0:
                    return
                limit -= 1
                yield line

    @property
    def sentence(self) -> str:
        """`text` without the frames of log libraries, services and viewers."""
        if self.core is None:
            self.core = sentence_of(self.text)
        return self.core

    @property
    def quote(self) -> str:
        """What is cited of the line."""
        if self.said:
            return f"{self.said}\n{self.text}"
        return self.text

    def event(self, kind: str, data: Mapping[str, Any], *, text: str = "", **known: Any) -> Event:
        """An event on this line; `known` (rank, host, pid) wins over the prefix."""
        is_labelled = self.local and known.get("rank") is None
        found: Data = {"host": self.host, "pid": self.pid, "rank": self.rank, "time": self.time}
        found |= {key: value for key, value in known.items() if value not in (None, "")}
        if text in ("", self.text):
            quoted = _short_text(self.quote)
        else:
            quoted = clip(text)
        if redact.REDACTED in quoted:  # what only several lines together tell
            data = redact.texts(data, secrets.text)
        make = LabelledEvent if is_labelled else Event
        return make(kind, text=quoted, path=self.path, line=self.number, data=data, **found)


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of line: a literal anchor, a pattern whose named groups become `data`."""

    kind: str
    anchor: bytes
    pattern: re.Pattern[str]
    integers: frozenset[str]
    """Groups of digits only."""
    span: int
    make: Make | None
    fixed: Mapping[str, Any]
    digits_matter: bool = False
    """True when the pattern asks for certain digits, not for any."""

    def read(self, line: Line) -> Event | None:
        """The event of this rule on `line`, or None.

        A wrapped message is looked for over `span` lines.
        """
        match = self.pattern.search(line.sentence)
        if match is None and line.sentence != line.text:
            match = self.pattern.search(line.text)
        text = line.text
        if match is None and self.span > 1:
            lines = [line.text, *(later.body for later in line.own(self.span - 1))]
            match = self.pattern.search(" ".join(part.strip() for part in lines))
            text = "\n".join(lines)
        if match is None:
            return None
        caught = {
            **self.fixed,
            **{key: self._value(key, value) for key, value in match.groupdict().items()},
        }
        if self.make is not None:
            data = self.make(match, caught, line)
        else:
            data = caught
        if data is None:
            return None
        known = {key: data.pop("_" + key, None) for key in ("rank", "host", "pid", "time")}
        cited = data.pop("_line", None)
        told = {key: value for key, value in data.items() if value is not None}
        return (cited or line).event(self.kind, told, text=cited.text if cited else text, **known)

    def _value(self, key: str, value: str | None) -> Any:
        if key in self.integers:
            return parse_int(value)
        return value


def rule(
    kind: str, anchor: str, pattern: str, *, span: int = 1, make: Make | None = None, **fixed: Any
) -> Rule:
    """Make a rule.

    Groups of digits become integers, and `fixed` adds constant data.  A field that a line lacks is
    None.  Groups named ``_rank``, ``_host``, ``_pid`` and ``_time`` fill the event's own fields
    instead of `data`; a `make` that returns ``_line`` cites that line.
    """
    digits_matter = re.search(r"\d", NO_DIGIT.sub("", pattern)) is not None
    compiled = re.compile(pattern, re.ASCII)
    known = dict.fromkeys(KINDS[kind].__struct_fields__) | fixed
    return Rule(
        kind,
        anchor.encode(),
        compiled,
        frozenset(WHOLE.findall(pattern)),
        span,
        make,
        known,
        digits_matter,
    )


def up_to_first(pattern: str) -> str:
    """A pattern that leads to the first match of `pattern` in a line.

    It never leads to a later one.  So it guards against quadratic time: ``X.*Y`` would be tried
    from each ``X`` of a line that has many and no ``Y``.
    """
    return rf"^(?=(.*?{pattern}))\1"


WHOLE = re.compile(r"\(\?P<(\w+)>(?:-\?)?\\d(?:\+|\{[\d,]+\})?\)")
"""A named group of digits and a sign."""
NO_DIGIT = re.compile(r"\{\d{0,9},?\d{0,9}\}|\\1|0x|0-9")
"""Digits of a pattern that stand for no certain digit of a text.

They are those of counts, groups, ``0x`` before numbers, and ranges.
"""


NAMED = re.compile(r"\b[Rr]ank[ =:#]{0,2}(\d{1,7})\b")
"""The rank that a line names in its own words: ``rank 3``, ``Rank=3``, ``rank #3``."""


def parse_int(text: str | None) -> int | None:
    """The integer in a text.

    It is None for none and for numbers that cannot be meant (more than 18 digits).
    """
    if text and len(text) < 19 and re.fullmatch(r"-?\d+", text, re.ASCII):
        return int(text)
    return None


def parse_float(text: str | None) -> float | None:
    """The number in a text such as ``12.5``.

    It is None for none and for what is no number (``1.2.3``).
    """
    if text and re.fullmatch(r"\d{1,15}(?:\.\d{1,15})?", text, re.ASCII):
        return float(text)
    return None


def clip(text: str) -> str:
    """What is quoted: without secrets, and at most `TEXT` characters of it.

    Both ends stay, as both name the fault.
    """
    return _short_text(secrets.text(text))


def _short_text(text: str) -> str:
    if len(text) <= TEXT:
        return text
    return f"{text[:600]}\n[...]\n{text[-(TEXT - 607) :]}"


def frame(file: str, line: str | int | None, func: str) -> Frame:
    """One stack frame, as it stands among the `frames` of an event."""
    return {"file": file, "line": parse_int(str(line)) or 0, "func": func}
