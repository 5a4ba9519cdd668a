"""What a person reads.

It is cards and tables on a terminal, plain text anywhere else, and progress on standard error.

Text of logs and names passes `plain` before it is printed, and is never read as markup of rich.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from ncclkit.causes import TO_COPY
from ncclkit.core import themes
from ncclkit.core.model import Advice, Event, Evidence, Fact, Finding, cite
from ncclkit.core.text import some

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress, ProgressColumn
    from rich.text import Text

    from ncclkit.causes.diagnosis import Diagnosis
    from ncclkit.causes.summary import Summary

CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters but for newline and tab, marks that turn the writing direction, bytes that are
no UTF-8."""
MARKS = {
    "proven": ("●", "red"),
    "likely": ("◐", "yellow"),
    "possible": ("○", "cyan"),
    "unexplained": ("▲", "yellow"),
    "slow": ("▲", "yellow"),
    "healthy": ("✓", "green"),
    "running": ("▶", "green"),
    "no_job": ("–", "cyan"),
}
"""Strength of a finding, or verdict without one → its symbol, as in the notebooks, and its
colour."""
NAMES = {"no_job": "no job", "slow": "slower than it should be"}
"""Verdict → how a banner says it, where that is not its name."""
SHOWN = 4
"""Pieces of evidence on a card."""
LARGE = 64 << 20
"""Bytes that take a second or more to read."""


def plain(words: object) -> str:
    """Text in which whatever could steer a terminal is written as its code, as JSON does."""
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", str(words))


def show(text: str, file: TextIO | None = None) -> None:
    """Print text that may quote logs or names."""
    file = file or sys.stdout
    # a terminal of another language lacks letters of ours
    known = getattr(file, "encoding", None) or "utf-8"
    print(plain(text).encode(known, "backslashreplace").decode(known), file=file)


def console(file: TextIO) -> Console | None:
    """The console of rich for a terminal that knows our letters.

    It is None for anything else, which gets plain text.
    """
    known = (file.encoding or "").lower().replace("-", "") == "utf8"
    if not (file.isatty() and known) or os.environ.get("TERM", "dumb") == "dumb":
        return None
    from rich.console import Console

    return Console(file=file, markup=False, highlight=False, emoji=False, force_terminal=True)


def verdict(found: Diagnosis, about: Summary | None = None, is_whole: bool = False) -> None:
    """Print what was found, the verdict first.

    On a terminal it is a banner, the first finding as a card, and a line for each other one;
    `is_whole`: a card for each, with all evidence.  Anywhere else it is all of it as text.
    """
    screen = console(sys.stdout)
    if screen is None or not (about or found.findings):
        return show(_plain_verdict(found, about))
    if about:
        screen.print(_banner(found, about))
    cards = int(found.verdict in ("found", "slow"))  # what a job merely resembles gets a line
    shown = SHOWN
    if is_whole:
        cards = len(found.findings)
        shown = sys.maxsize
    for number, finding in enumerate(found.findings[:cards], 1):
        is_alone = about is None or number > 1 or found.verdict not in ("found", "slow")
        screen.print(_card(number, finding, is_alone, shown))
    for number, finding in enumerate(found.findings[cards:], 1 + cards):
        for row in _one_finding(number, finding, found.findings):
            screen.print(row)
    more = _what_is_not_shown(found, cards, shown)
    if more:
        screen.print(_text((f"{more}: `ncclkit diagnose --all` shows them.", "dim")))
    return None


def _one_finding(number: int, finding: Finding, all_of: Sequence[Finding]) -> list[RenderableType]:
    """A finding in a line; of a suspect also the look that decides it."""
    from ncclkit.causes.diagnosis import suspect_heading
    from ncclkit.causes.resemblance import is_resembling

    symbol, colour = MARKS[finding.strength or "possible"]
    line = _text(
        (f"{number}. ", ""),
        (f"{symbol} {finding.strength} ", colour),
        (f"{finding.cause}  ", "bold"),
        (finding.say, ""),
    )
    if not is_resembling(finding):
        return [line]
    heading = suspect_heading(all_of, number).strip()
    look = finding.advice[0]
    shown: list[RenderableType] = []
    if heading:
        shown.append(_text((f"\n{heading}", "bold")))
    shown += [line, _indented(_text((look.do, "")), 3)]
    for each in look.to_copy:
        shown.append(_indented(_text((each, "green")), 7))
    return shown


def _what_is_not_shown(found: Diagnosis, cards: int, shown: int) -> str:
    """How many pieces of advice and of evidence are on no card."""
    advice = sum(len(finding.advice) for finding in found.findings[cards:])
    evidence = sum(len(finding.evidence) for finding in found.findings[cards:])
    for finding in found.findings[:cards]:
        evidence += max(0, len(finding.evidence) - shown)
    counts = []
    if advice:
        counts.append(f"{advice:,} of advice")
    if evidence:
        counts.append(f"{evidence:,} of evidence")
    if counts:
        return f"More pieces: {' and '.join(counts)}"
    return ""


def _plain_verdict(found: Diagnosis, about: Summary | None) -> str:
    """The banner as text, then everything else."""
    everything = found.text()
    if about is None:
        return everything
    name, rows = _banner_rows(found, about)
    lines = [f"{name}: {about.sentence}"]
    for label, value in rows:
        first, *more = value.splitlines() or [""]
        lines.append(f"  {label:9}  {first}")
        lines += [f"{'':13}{line}" for line in more]
    # the banner has said the first line, where that is the verdict
    rest = everything.removeprefix(found.headline).strip("\n")
    if rest:
        lines += ["", rest]
    return "\n".join(lines)


def _banner_rows(found: Diagnosis, about: Summary) -> tuple[str, list[tuple[str, str]]]:
    """How sure the verdict is, and the rows below it.

    Who is at fault, what to do first, which job it is, and what was judged.
    """
    from ncclkit.causes.diagnosis import with_fix

    name = NAMES.get(about.verdict, about.strength or about.verdict)
    rows = []
    if about.culprit:
        rows = [("At fault", about.culprit.sentence)]
    for line in (about.line, *about.errors):
        if line:
            rows.append(("Line", f"{middle(line.place)}  {line.short}"))
    first = about.first_step
    if about.command:
        first = f"{first} `{about.command}`"
    rows += [("First", first), ("Collect", "\n".join(about.would_tell))]
    rows += [("Risk", f"{risk.cause} ({risk.strength}): {with_fix(risk)}") for risk in found.risks]
    return name, [row for row in rows if row[1]] + about.rows()


def _banner(found: Diagnosis, about: Summary) -> RenderableType:
    """The verdict and its rows in a frame."""
    from rich.console import Group
    from rich.panel import Panel

    symbol, colour = MARKS[about.strength or about.verdict]
    name, rows = _banner_rows(found, about)
    head = _text((f"{symbol} {name}  ", colour), (about.sentence, "bold"))
    return Panel(Group(head, _text(("", "")), _grid(rows, "dim")), border_style=colour)


def _text(*parts: tuple[object, str]) -> Text:
    from rich.text import Text

    return Text.assemble(*((plain(words), style) for words, style in parts))


def _indented(text: Text, by: int) -> RenderableType:
    from rich.padding import Padding

    return Padding(text, (0, 0, 0, by))


def _card(number: int, finding: Finding, alone: bool, shown: int) -> RenderableType:
    """One finding.

    `alone`: no banner above has said its sentence, its strength and who is at fault; `shown` are
    the pieces of evidence on it.
    """
    from rich.console import Group
    from rich.panel import Panel

    symbol, colour = MARKS[finding.strength or "possible"]
    named = {key: some(names) for key, names in finding.culprits.items() if names and alone}
    groups: list[list[RenderableType]] = [[_text((finding.say, "bold"))] * alone]
    groups[0] += (
        [_text(*((f"{key} {names}   ", colour) for key, names in named.items()))] if named else []
    )
    groups += [_evidence(piece) for piece in finding.evidence[:shown]]
    rest = len(finding.evidence) - shown
    groups += [[_text((f"and {rest} more", "dim"))]] if rest > 0 else []
    steps = [_advice(advice) for advice in finding.advice]
    if finding.next:
        seen = [
            _indented(_text((f"{cause}: {words}", "")), 4)
            for cause, words in finding.next.predicts.items()
        ]
        asked: list[RenderableType] = [
            _text(("Next experiment: ", "bold"), (finding.next.question, "")),
            *seen,
        ]
        steps.insert(0 if finding.experiment_first else len(steps), asked)
    groups += steps
    body = [line for group in groups if group for line in (_text(("", "")), *group)][1:]
    title = _text(
        (f"{number}. ", ""),
        (f"{symbol} {finding.strength} " * alone, colour),
        (finding.cause, "bold"),
    )
    return Panel(Group(*body), title=title, title_align="left", border_style=colour)


def _evidence(piece: Evidence) -> list[RenderableType]:
    from ncclkit.causes.diagnosis import clip

    row = cite(piece)
    if row["line"]:
        place = f"{row['path']}:{row['line']}"
    else:
        place = row["path"]
    rank = ""
    if isinstance(piece, Event) and piece.rank is not None:
        rank = f"  rank {piece.rank}"
    times = ""
    if isinstance(piece, Event) and piece.count > 1:
        times = f"  × {piece.count:,}"
    lines = [_indented(_text((line, "")), 2) for line in clip(row["text"])]
    return [_text((f"{middle(place)}{rank}{times}", "dim")), *lines]


def middle(path: str, width: int = 60) -> str:
    """A path in at most so many characters; what it leaves out is in the middle."""
    if len(path) <= width:
        return path
    return f"{path[: width // 3]}…{path[-(width - width // 3 - 1) :]}"


def _advice(advice: Advice) -> list[RenderableType]:
    notes = [
        f"{name}: {note}" for name, note in (("Check", advice.check), ("Risk", advice.risk)) if note
    ]
    return [
        _text(("Do: ", "bold green"), (advice.do, "")),
        *(_indented(_text((line, "green")), 4) for line in advice.to_copy),
        *(_indented(_text((note, "dim")), 4) for note in notes),
    ]


def fact_tables(known: Sequence[Fact]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Title and rows of each theme.

    They are facts with their units, then what could not be read with the reason.
    """
    for title, group in themes.by_theme(known).items():
        unread = [(names, f"unknown: {why}") for names, why in themes.unread_rows(group)]
        yield title, [*themes.known_rows(group), *unread]


def rows(title: str, pairs: Iterable[tuple[str, str]]) -> None:
    """Print a table of two columns: names, and what is to be said of each."""
    held = list(pairs)
    screen = console(sys.stdout)
    if screen is None:
        wide = min(40, max((len(name) for name, _ in held), default=0))
        lines = [f"{name:{wide}}  {value}" for name, value in held]
        return show("\n".join([f"\n{title}", *(f"  {line}" for line in lines)] if title else lines))
    if title:
        screen.print(_text((f"\n{title}", "bold")))
    return screen.print(_grid(held, "cyan", max(20, screen.width // 2)))


def _grid(pairs: Iterable[tuple[str, str]], style: str, wide: int | None = None) -> RenderableType:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(max_width=wide, no_wrap=wide is None)
    table.add_column()
    for name, value in pairs:
        table.add_row(
            _text((name, style)), _text((value, "dim" if value.startswith("unknown: ") else ""))
        )
    return table


def print_page(name: str, sections: Mapping[str, str]) -> None:
    """Print a page of the catalogue: its title (key ""), then each heading with its text."""
    screen = console(sys.stdout)
    title = f"{name}: {sections['']}"
    parts = [(heading, body) for heading, body in sections.items() if heading]
    if screen is None:
        return show(
            "\n\n".join(
                [title, *(f"{heading}\n{textwrap.indent(body, '    ')}" for heading, body in parts)]
            )
        )
    screen.print(_text((title, "bold")))
    for heading, body in parts:
        screen.print(_text((f"\n{heading}", "bold")))
        for place, block in enumerate(body.split("\n\n")):
            if place:
                screen.print()
            if block.startswith(TO_COPY):
                screen.print(_indented(_text((textwrap.dedent(block), "green")), 8))
            else:
                screen.print(_indented(_text((" ".join(block.split()), "")), 4))
    return None


class Activity:
    """What a verb that takes seconds does now, on standard error.

    On a terminal it is elapsed and remaining time in one line.  Elsewhere each step is a line of
    text.  Use it as a context manager; the line goes away at the end.
    """

    def __init__(self, what: str, limit: float | None = None, is_long: bool = True) -> None:
        """Prepare the line.

        `what` is done; `limit` is the seconds after which it is ended in any case; `is_long` is
        False until `amount` says so.
        """
        self.what = what
        self.limit = limit
        self.is_long = is_long
        self.bar: Progress | None = None
        self.shown: set[str] = set()
        """The lines that were shown, as standard error has them where it is no terminal."""

    def __enter__(self) -> Activity:
        if self.is_long:
            self._start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar:
            self.bar.stop()

    def _start(self) -> None:
        if self.bar or not (screen := console(sys.stderr)):
            return
        from rich.progress import BarColumn, Progress, TextColumn

        columns = TextColumn("{task.description}", markup=False), BarColumn(20), _times(self)
        together = sys.stdout.isatty()  # a result that goes elsewhere must not land on the terminal
        how: dict[str, Any] = {
            "transient": True,
            "redirect_stdout": together,
            "speed_estimate_period": 3600,
        }
        self.bar = Progress(*columns, console=screen, **how)
        self.task = self.bar.add_task(self.what, total=None)
        self.bar.start()

    def within(self, seconds: float) -> None:
        """Say that what runs now is ended after so many seconds in any case."""
        if self.bar is not None:
            self.limit = (self.bar.tasks[0].elapsed or 0.0) + seconds

    def amount(self, done: int, total: int) -> None:
        """Say how many bytes of how many are read; it takes time from `LARGE` ones on."""
        if total >= LARGE:
            self._start()
            self.step("", done, total)

    def note(self, text: str) -> None:
        """Print a line that stays."""
        self.shown.add(text)
        show(text, sys.stderr)

    def step(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """Say what is done now, and how much of everything that is."""
        self.shown.add(f"  {text}")
        if self.bar is None:
            if text:
                return self.note(f"  {text}")
            return None
        if text:
            words = f"{self.what}: {plain(text)}"
        else:
            words = self.what
        at_once = bool(text)  # the next picture may come after the step is over
        return self.bar.update(
            self.task, description=words[:60], completed=done, total=total, refresh=at_once
        )


def _times(activity: Activity) -> ProgressColumn:
    """The column that says how long it takes already, and how much longer it will."""
    from rich.progress import ProgressColumn, Task

    class Times(ProgressColumn):
        def render(self, task: Task) -> Text:
            elapsed = task.elapsed or 0.0
            left = ""
            if task.time_remaining:
                left = f", about {_clock(task.time_remaining)} left"
            if not left and activity.limit is not None and not task.finished:
                left = f", at most {_clock(max(0.0, activity.limit - elapsed))} left"
            return _text((f"{_clock(elapsed)}{left}", "dim"))

    return Times()


def _clock(seconds: float) -> str:
    return time.strftime(
        "%H:%M:%S" if seconds >= 3600 else "%M:%S", time.gmtime(seconds)
    ).removeprefix("0")
