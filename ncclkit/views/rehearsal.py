"""The form that rehearses a script, and what came out of it: who stands where, line by line."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import ipywidgets as W
import msgspec

from ncclkit.agent.rehearsal.lanes import LETTERS, OTHER
from ncclkit.core import text
from ncclkit.core.case import Case
from ncclkit.core.text import split_words
from ncclkit.rehearsal.example import example_in
from ncclkit.rehearsal.rehearsal_options import RehearsalOptions
from ncclkit.rehearsal.rehearse import rehearse_script
from ncclkit.rehearsal.verdict import Rehearsal
from ncclkit.views._answer import MeasuredAnswer
from ncclkit.views._base import View, page_frame
from ncclkit.views._form import Form, complaints, text_field
from ncclkit.views._html import Markup, badge, code, el, fit, fold, join, table

MARKS = {
    0: ("✓", "all ranks agree", "checked", "healthy"),
    1: ("✕", "would go wrong", "proven", "found"),
    2: ("?", "could not tell", "possible", "unexplained"),
}
"""Exit status → symbol and words of the badge, its class, and the colour of the edge."""


class RehearsalForm(Form):
    """The form that rehearses a script on all its ranks.

    ``await form.run()`` does what its Rehearse button does.  `command` is as in a terminal, such as
    ``python train.py``; without one a small example in the case folder is rehearsed.
    """

    ASK = "Name the command of the script"
    BUSY = "The ranks run …"
    CANCELLED = "Cancelled; all ranks have been ended"

    def __init__(
        self,
        case: Case,
        command: str = "",
        ranks: int = 4,
        steps: int = 20,
        timeout: float = 120.0,
    ) -> None:
        self._case = case
        self._options = RehearsalOptions(ranks, steps, timeout)
        self.command = text_field("Command", command or self.usual_command(), "python train.py")
        self.ranks = W.BoundedIntText(value=ranks, min=2, max=256, description="Ranks")
        start = W.Button(description="Rehearse", icon="play", button_style="primary")
        self._lanes: Sequence[Any] = ()
        said = "All ranks of the script run on this machine, and none needs a GPU"
        super().__init__(said, [self.command, self.ranks], start)

    def usual_command(self) -> str:
        """What stands in the field where no command was named: that of the example."""
        return _example_of(self._case)

    def asks(self) -> bool:
        """Whether a command is named."""
        return bool(self._words())

    def wrong(self) -> Mapping[W.Widget, str]:
        """A line that no shell could read."""
        return complaints({self.command: self._words})

    def started(self) -> None:
        """Show that it begins."""
        self._lanes = ()
        super().started()

    def observe(self, record: dict[str, Any]) -> None:
        """Keep how far the ranks have come."""
        if record.get("kind") == "lanes":
            self._lanes = record.get("lanes") or ()
        super().observe(record)

    def draw(self) -> None:
        """Show how far each rank has come."""
        self._show(page_frame(self.BUSY, lanes_of(self._lanes)))

    def prepare(self) -> Coroutine[Any, Any, View]:
        """The rehearsal, and where its ranks stand."""
        usual = self._options
        options = RehearsalOptions(int(self.ranks.value), usual.steps, usual.timeout)
        return self._rehearsed(self._words(), options)

    async def _rehearsed(self, words: Sequence[str], options: RehearsalOptions) -> View:
        rehearsed = await rehearse_script(self._case, words, options, self.observe)
        return rehearsal_view(rehearsed)

    def _words(self) -> list[str]:
        return split_words(self.command.value, self.command.description)


def _example_of(case: Case) -> str:
    """The command of the example, which lies in the folder of the case."""
    folder = case.path or Path.cwd()
    return shlex.join([sys.executable, str(example_in(folder))])


def rehearsal_view(rehearsed: Rehearsal) -> View:
    """Whether all ranks agree, and the lines at which they do not, side by side."""
    symbol, word, mark, edge = MARKS[rehearsed.status]
    figures = rehearsed.figures
    numbers = (
        (str(rehearsed.ranks), "ranks"),
        (str(figures.get("calls", 0)), "calls that all came to"),
        (f"{figures.get('seconds', 0.0):.1f} s", "until the verdict"),
    )
    answer = MeasuredAnswer(
        rehearsed.sentence,
        badge(symbol, word, mark),
        edge,
        numbers,
        (*rehearsed.wait_lines, *rehearsed.remarks),
    )
    lanes = lanes_of(rehearsed.lanes)
    if lanes:
        lanes = fold("The last calls of each rank", lanes)
    body = join(answer.banner(), _stands_table(rehearsed), _first_step(rehearsed), lanes)
    return View(rehearsed.sentence, body, titled=False)


class RankLane(msgspec.Struct):
    """How far a rank has come; see `ncclkit.agent.rehearsal.lanes`."""

    rank: int
    calls: int
    letters: str
    waits: str
    end: str

    def marks(self) -> Markup:
        """A mark for each of the last calls; in brackets where not all have come."""
        marks = []
        for place, letter in enumerate(self.letters):
            if self.waits[place : place + 1] == "?":
                marks.append(el("b", f"[{letter}]", cls="nk-lane-open"))
            else:
                marks.append(el("span", letter, cls="nk-lane-made"))
        return el("span", *marks, cls="nk-lane")

    def words(self) -> str:
        """What it does now."""
        if self.end:
            return self.end
        if self.waits.endswith("?"):
            return "waits for others"
        return "runs"


def lanes_of(records: Sequence[Any]) -> Markup:
    """One line a rank, a mark a call; nothing of records that cannot be read."""
    try:
        lanes = msgspec.convert(records, list[RankLane])
    except msgspec.ValidationError:
        return Markup("")
    if not lanes:
        return Markup("")
    rows = [[lane.rank, lane.calls, lane.marks(), lane.words()] for lane in lanes]
    names = [f"{letter} {op}" for op, letter in LETTERS.items()]
    legend = f"{', '.join(names)}, {OTHER} others; [ ] not all ranks have come"
    head = ["Rank", "Calls", "The last ones", "Now"]
    return join(fit(table(head, rows)), el("p", legend, cls="nk-dim"))


def _stands_table(rehearsed: Rehearsal) -> Markup:
    rows = []
    for stand in rehearsed.stands:
        ranks = text.start(text.ranks(stand.ranks))
        rows.append([ranks, stand.words, stand.place, code(stand.code)])
    if not rows or rehearsed.status == 0:
        return Markup("")
    return fit(table(["Ranks", "Where they are", "Line", "Its code"], rows))


def _first_step(rehearsed: Rehearsal) -> Markup:
    if not rehearsed.first_step:
        return Markup("")
    return el("p", f"First: {rehearsed.first_step}")
