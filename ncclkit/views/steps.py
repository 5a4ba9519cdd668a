"""Where a training step's time goes on each rank.

It is the form that runs the user's script, and the picture.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ipywidgets as W
import plotly.graph_objects as go

from ncclkit.analysis.steps import NAMES, PARTS, SettingEffect, StepTimes, last_steps
from ncclkit.causes import page
from ncclkit.core.case import Case
from ncclkit.core.run_choice import step_runs
from ncclkit.core.text import format_time, percent, split_words
from ncclkit.live import scheduler, step
from ncclkit.live.options import StepOptions
from ncclkit.views import _draw, plots
from ncclkit.views._answer import MeasuredAnswer
from ncclkit.views._base import Drawn, View, shows_runs
from ncclkit.views._form import Form, complaints, text_field
from ncclkit.views._html import Markup, badge, code, el, fit, join, sentence, table
from ncclkit.views._missing import NoData

EVALUATION = "#8c8c00"
"""A seventh colour, as dark as the others."""
COLOURS = dict(
    zip(
        PARTS,
        (
            *(_draw.GREEN, _draw.ORANGE, _draw.BLUE, plots.VERMILLION),
            *(_draw.PURPLE, EVALUATION, _draw.SKY),
        ),
        strict=True,
    )
)
PATTERNS = dict(zip(PARTS, ("", "/", "\\", "x", "-", "+", "."), strict=True))
"""Patterns of the parts.

A part is told by its pattern, too, not by its colour alone.
"""
PATTERN = {"fillmode": "overlay", "fgcolor": "#fff", "fgopacity": 0.5, "size": 7, "solidity": 0.25}
SHOWN = 24
"""Ranks that the picture holds; of more those that wait least and those that wait most."""
DONE = {True: ("✓", "shorter", "state-done"), False: ("○", "no difference", "possible")}


@shows_runs(step_runs)
def step_view(case: Case) -> View:
    """Where a step's time goes on each rank, and what holds it back.

    It shows also what was tried, all of the last run in a case.
    """
    times, effects = last_steps(case)
    if times is None:
        how = el(
            "p",
            "In a terminal: ",
            code("ncclkit step -- python train.py"),
            "; it ends the script after 40 steps, or more where they are short.",
        )
        said = "No step was measured yet"
        return NoData("where a step's time goes", "no step was measured yet", said, how)
    summary = " ".join([times.summary, *([step.compared(effects)] if effects else [])])
    details = join(_brakes(times), _effects(effects), _notes(times))
    return Drawn(summary, _figure(times), details, above=step_answer(times, effects).banner())


def step_answer(times: StepTimes, effects: Sequence[SettingEffect]) -> MeasuredAnswer:
    """What holds a step back most, with its line, its time and the share of waiting."""
    waiting = max(one.parts["waiting"] / (one.seconds or 1.0) for one in times.ranks)
    numbers = [
        (format_time(1e6 * times.seconds), "a step"),
        (percent(min(waiting, 1.0)), "waiting for a rank"),
    ]
    more = []
    if effects:
        more.append(step.compared(effects))
    if not times.brakes:
        mark = badge("✓", "nothing stands out", "checked")
        return MeasuredAnswer(times.summary, mark, "healthy", tuple(numbers), tuple(more))
    first = times.brakes[0]
    if first.lines:
        numbers.append((first.lines[0], "most of it"))
    mark = badge("▲", "slower than it could be", "likely")
    return MeasuredAnswer(times.summary, mark, "slow", tuple(numbers), tuple(more))


class StepForm(Form):
    """The form that runs a script for some steps.

    ``await form.run()`` does what its Measure button does.  `command` is as in a terminal, such as
    ``python train.py``; `options` are those of `ncclkit.live.options.StepOptions`.  Where no
    command is named, nothing is done.
    """

    IDLE = (
        "No script is named; write its command as your job has it, such as torchrun"
        " --nproc-per-node 8 train.py"
    )
    ASK = "Name the command of the script"
    ON_LOGIN_NODE = (
        "Nothing was started, as this is a login node: `ncclkit submit step -- python train.py`"
        " runs the script on nodes"
    )
    BUSY = "The script runs …"
    CANCELLED = "Cancelled; everything that was started has been ended"

    def __init__(self, case: Case, command: str = "", **options: Any) -> None:
        self._case, self._options = case, StepOptions(**options)
        self.command = text_field("Command", command, "python train.py")
        settings = " ".join(self._options.tries)
        self.tries = text_field("Compare", settings, "workers=4 bucket_cap_mb=50 OMP_NUM_THREADS=2")
        start = W.Button(description="Measure", icon="play", button_style="primary")
        super().__init__(step.WHAT.format(self._options.steps), [self.command, self.tries], start)

    def asks(self) -> bool:
        """Whether a command is named that may start here."""
        words = self._words(self.command)
        if not words or self._options.here or step.starts_on_nodes(words):
            return bool(words)
        self.IDLE, self.ASK = type(self).IDLE, type(self).ASK
        if scheduler.is_login_node():
            self.IDLE = self.ASK = self.ON_LOGIN_NODE
            return False
        return True

    def wrong(self) -> Mapping[W.Widget, str]:
        """A line that no shell could read, and what is not a setting."""
        return complaints(
            {self.command: lambda: self._words(self.command), self.tries: lambda: self.options}
        )

    @property
    def options(self) -> StepOptions:
        """What the fields say; raises NcclkitError for what is not a setting."""
        return replace(self._options, tries=tuple(self._words(self.tries)))

    def prepare(self) -> Coroutine[Any, Any, View]:
        """The run of the script, and its picture."""
        return self._measured(self._words(self.command), self.options)

    async def _measured(self, words: Sequence[str], options: StepOptions) -> View:
        run = await step.measure_steps(self._case, words, options, self.observe)
        if run.times is None:
            return View(run.summary, Markup(""))
        return step_view(self._case)

    def _words(self, field: W.Text) -> list[str]:
        return split_words(field.value, field.description)


def _figure(times: StepTimes) -> go.Figure:
    """A bar for each rank, stacked of the parts of its mean step."""
    # who waits least is late, and who waits most is held up: both ends tell the most
    ranks = sorted(times.ranks, key=lambda one: one.parts["waiting"])
    if len(ranks) > SHOWN:
        ranks = [*ranks[: SHOWN // 2], *ranks[-SHOWN // 2 :]]
    # chosen by their waiting, shown by their number
    ranks.sort(key=lambda one: one.rank)
    names = [f"rank {one.rank}" for one in ranks]
    # a narrow page has each name in a row of its own
    figure = _draw.blank(height=174 + 26 * len(ranks))
    for part in PARTS:
        # what no bar would show needs no place in the legend
        # 5e-5: a twentieth of a millisecond
        if all(one.parts[part] < 5e-5 for one in ranks):
            continue
        figure.add_bar(
            y=names,
            x=[1e3 * one.parts[part] for one in ranks],
            name=NAMES[part],
            orientation="h",
            marker={"color": COLOURS[part], "pattern": PATTERN | {"shape": PATTERNS[part]}},
            customdata=[[format_time(1e6 * one.parts[part]), one.host] for one in ranks],
            hovertemplate=f"%{{y}}: {NAMES[part]} %{{customdata[0]}}<extra></extra>",
        )
    figure.update_layout(
        barmode="stack", margin={"t": 116, "b": 48}, legend={"traceorder": "normal"}
    )
    figure.update_yaxes(autorange="reversed", type="category", ticks="", showgrid=False)
    figure.update_xaxes(title={"text": "mean step, ms"}, rangemode="tozero")
    return figure


def _brakes(times: StepTimes) -> Markup:
    rows = []
    for brake in times.brakes:
        rows.append(
            (
                brake.summary,
                join(
                    el("p", sentence(brake.advice)),
                    *(join(code(f"--try {one}"), " ") for one in brake.settings),
                ),
                join(*(el("p", code(name), f" {page(name)['']}") for name in brake.causes)) or "–",
            )
        )
    return fit(
        table(
            (
                "What holds a step back",
                "What to do, and to compare",
                "Causes that may lie behind it",
            ),
            rows,
        )
    )


def _effects(effects: Sequence[SettingEffect]) -> Markup:
    rows = []
    for one in effects:
        rows.append(
            (
                code(one.setting),
                badge("✕", "longer", "state-failed") if one.worse else badge(*DONE[one.better]),
                percent(one.gain, 1),
                f"{percent(one.interval[0], 1)} to {percent(one.interval[1], 1)}",
                format_time(1e6 * one.default),
                format_time(1e6 * one.changed),
            )
        )
    head = ("Setting", "A step becomes", "Gain", "Interval", "A batch as it is", "With the setting")
    if rows:
        return join(el("h5", "What was tried"), fit(table(head, rows, "nk-numbers")))
    return Markup("")


def _notes(times: StepTimes) -> Markup:
    if times.cost is None:
        cost = ""
    else:
        cost = f" Measuring took {percent(times.cost, 1)} of a step."
    said = (
        f"{times.steps} steps of {len(times.ranks)} ranks over"
        f" {times.backend or 'no process group'}.{cost}"
    )
    return join(
        el("p", said, cls="nk-dim"), *(el("p", one, cls="nk-bad") for one in times.problems)
    )
