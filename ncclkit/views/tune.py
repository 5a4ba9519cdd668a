"""Settings compared with the default.

It shows the form, what is better by message size, what carries it, and before and after.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ipywidgets as W
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ncclkit.core import tuning
from ncclkit.core.case import Case
from ncclkit.core.model import safe
from ncclkit.core.recommendation import answer_lines, is_undecided, nothing_in_words
from ncclkit.core.text import format_bytes, format_time, parse_size, percent, plural
from ncclkit.core.tuning import Advantage, Comparison, Setting, Sweep
from ncclkit.live import scheduler, tune
from ncclkit.live.options import ProbeOptions
from ncclkit.views import plots
from ncclkit.views._answer import MeasuredAnswer
from ncclkit.views._base import Chart, Drawn, View, page_frame
from ncclkit.views._form import Form, complaints, row, text_field, trail, wide
from ncclkit.views._html import Markup, badge, code, el, fit, fold, join, pre, table
from ncclkit.views._html import sentence as sentence_with_code
from ncclkit.views._page import Evidence
from ncclkit.views.cluster import login_card

SHOWN = 6
"""Settings that a figure draws: those that make the largest difference."""
PANELS = 3
"""Collectives that a figure draws: those with the largest difference."""
WIDEST = 3.0
"""How far bars of intervals may widen a panel, as a multiple of what its marks span."""
FLOOR = -150.0
"""Gain in percent below which a mark is not drawn.

It would flatten the others: its number stands there.
"""
PANEL = 210
"""Pixels of the panel of one collective."""
LONGER = "ncclkit tune --budget 300"
"""What measures again for as long as noise usually asks for: ten times the default over gloo."""
DODGE = 1.15
"""How much farther right each setting stands than the one before, on an axis of logarithms.

Else their intervals lie on each other.
"""
PICTURE = "No setting gains beyond chance, by message size"
"""Title of the figure where the answer stands above it."""
UNDECIDED = "Nothing could be told from chance, by message size"
"""The same of a sweep that was too noisy."""
SYMBOLS = {"better": "circle", "worse": "x", "": "circle-open"}
"""Verdict → shape of a mark; its colour is that of the setting."""
FILES = {
    "nccl.env": "lines for the job's script",
    "nccl.conf": "the same as ~/.nccl.conf, or named by NCCL_CONF_FILE",
    "sbatch.txt": "a line for an sbatch script",
    "process_group.py": "options of a process group, for messages of these sizes",
    "tuner.csv": "NCCL's example tuner plugin, by collective and message size",
}


SHOWN_SETTINGS = 6
"""Settings that the answer names; the tables below it name all."""


class SweepView(Drawn):
    """What a sweep found.

    It shows gain against message size, then where which setting is better, with interval and risk.
    Where nothing was measured it is the sentence that says why.
    """

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        """The sweep itself."""
        answer = " ".join(answer_lines(sweep))
        figure = None
        if sweep.comparisons or sweep.seen:
            # the picture says the best range, where the answer above it does not say so already
            title = sweep.headline
            if sweep.best is None and not sweep.harmful:
                title = PICTURE
            if is_undecided(sweep) and not sweep.harmful:
                title = UNDECIDED
            figure = gains(sweep, title)
        above = Markup("")
        if figure is not None:
            above = sweep_answer(sweep).banner()
        super().__init__(answer, figure, _tables(sweep), above=above)


def sweep_answer(sweep: Sweep) -> MeasuredAnswer:
    """What to set, and how many settings were tried, faster and refused."""
    faster = {str(one.setting) for one in sweep.comparisons if one.better}
    numbers = (
        (f"{sweep.tried:,}", "tried"),
        (f"{len(faster):,}", "faster on some size"),
        (f"{len(sweep.refused):,}", "refused"),
    )
    sentence, *more = answer_lines(sweep)
    rows = _measured_rows(sweep)
    if sweep.harmful:
        mark = badge("▲", "only costs", "likely")
        return MeasuredAnswer(sentence, mark, "slow", numbers, tuple(more), rows)
    if sweep.best is not None:
        mark = badge("✓", "faster", "checked")
        return MeasuredAnswer(sentence, mark, "healthy", numbers, tuple(more), rows)
    nothing = nothing_in_words(sweep)
    # of no gain the sentence also says how small a one would have been seen
    more = [sentence.removeprefix(nothing).strip(), *more]
    mark = badge("–", "nothing faster", "none")
    advised = "Keep the default."
    longer = Markup("")
    if is_undecided(sweep):
        mark = badge("–", "cannot tell", "none")
        advised = "Keep the default, and measure again for longer, while nobody else computes here."
        longer = pre(LONGER)
    first = join(el("p", el("b", "First: "), advised), longer)
    return MeasuredAnswer(nothing, mark, "none", numbers, (*filter(None, more), first), rows)


def _measured_rows(sweep: Sweep) -> tuple[tuple[str, object], ...]:
    """Where it was measured, what was compared, and what was left out."""
    hosts = plural(sweep.hosts, "host")
    rows: list[tuple[str, object]] = [
        ("Tested", f"{plural(sweep.ranks, 'rank')} over {sweep.backend} on {hosts}")
    ]
    settings = set()
    for one in (*sweep.comparisons, *sweep.seen):
        settings.add(str(one.setting))
    if settings:
        compared = join("the default with ", _codes(sorted(settings)))
        rows.append(("Compared", compared))
    if sweep.seconds:
        rows.append(("Measured", f"for {sweep.seconds:.0f} s"))
    for note in sweep.notes:
        rows.append(("Note", sentence_with_code(note)))
    return tuple(rows)


def _codes(settings: Sequence[str]) -> Markup:
    """The first settings as they are written; of more, how many."""
    parts: list[str] = []
    for name in settings[:SHOWN_SETTINGS]:
        parts.append(el("code", name))
    left = len(settings) - SHOWN_SETTINGS
    if left > 0:
        parts.append(f"{left:,} more")
    return Markup(", ").join(parts)


class TuneForm(Form):
    """The form that compares settings with the default.

    ``tuned = await form.run()`` does what its button does.  `settings` are space-separated, such as
    ``NCCL_PROTO=LL channels=32`` (default: what this hardware can have); `sizes` are those of the
    messages, such as ``8,64KB,256MB``; `job` is a case folder, a log, Flight Recorder dumps or a
    model, whose message sizes are measured; `inherited`: compare each variable that is set here, or
    in the job's log, with its absence; `budget` is seconds at most (0: 30 over gloo, 120 on GPUs,
    and what named settings with jobs of their own take); `options` are those of
    `ncclkit.live.options.ProbeOptions`, where every collective is the default.  Raises NcclkitError
    for what is none.
    """

    BUSY = "Measuring …"
    CANCELLED = "Cancelled; nothing was changed on this machine"

    def __init__(
        self,
        case: Case,
        settings: str = "",
        sizes: str = "",
        job: str = "",
        inherited: bool = False,
        budget: float = 0.0,
        **options: Any,
    ) -> None:
        # every collective, unless the user names one
        self._case, self._options, self._budget = case, replace(tune.DEFAULTS, **options), budget
        self._known: Sweep | None = None
        self._planned = ""
        look = {"style": {"description_width": "11em"}}
        self.words = {
            "settings": text_field("Settings", settings, "what this hardware can have", **look),
            "sizes": text_field("Message sizes", sizes, "from 8 B to the largest", **look),
            "job": text_field(
                "Sizes of a job", job, "case folder, log, dumps, model.safetensors", **look
            ),
        }
        asked = "What do the variables that are set cost?"
        self.inherited = W.Checkbox(value=inherited, description=asked, layout=wide(), **look)
        start = W.Button(description="Measure", icon="play", button_style="primary")
        super().__init__("", [*self.words.values(), self.inherited], start)

    def layout(self) -> list[W.Widget]:
        """The fields, on a login node below what runs where."""
        return [*login_card(self._case, "tune"), *super().layout()]

    @property
    def summary(self) -> str:
        """What the button will do."""
        what = self.words["settings"].value.strip() or "the settings that this hardware can have"
        if self.inherited.value:
            what = "each variable that is set"
        return f"This compares {what} with the default, in turn, on process groups of one small job"

    def asks(self) -> bool:
        """True: what is left open follows from the hardware."""
        # looked at here, so that a wrong word is refused before a job is started
        self._settings(), self._sizes()
        return True

    def wrong(self) -> Mapping[W.Widget, str]:
        """Fields that hold no settings, and no sizes."""
        return complaints(
            {self.words["settings"]: self._settings, self.words["sizes"]: self._sizes}
        )

    async def prepare(self) -> SweepView:
        """The sweep as the fields say."""
        what = self._settings()
        job = self.words["job"].value.strip()
        inherited = self.inherited.value
        asked = (
            self._case,
            what,
            self._options,
            self._sizes(),
            inherited,
            self.observe,
            job,
            self._budget,
            self._keep_known,
        )
        self._known, self._planned = None, ""
        return SweepView(await tune.sweep(*asked))

    def observe(self, record: dict[str, Any]) -> None:
        """Take one record of what runs, and what is said of the plan."""
        if record.get("kind") == "sweep.say":
            self._planned = str(record["say"])
        super().observe(record)

    def draw(self) -> None:
        """Show the plan, which size is measured now, and the table as far as it is known."""
        parts = [el("p", _doing_in_words(self.progress)), trail(self.progress)]
        if self._planned:
            parts.insert(0, el("p", self._planned, cls="nk-dim"))
        if self._known is not None:
            parts.append(_tables(self._known))
        self._show(page_frame(self.BUSY, *parts))

    def failed(self, why: str, cancelled: bool) -> None:
        """Show why nothing came out, or what a cancelled sweep had measured."""
        super().failed(why, cancelled)
        if cancelled and self._known is not None:
            self.finished(SweepView(self._known))

    def _keep_known(self, known: Sweep) -> None:
        self._known = known

    def _settings(self) -> list[Setting]:
        return [tuning.setting(words) for words in self.words["settings"].value.split()]

    def _sizes(self) -> list[int]:
        sizes = []
        for word in self.words["sizes"].value.replace(" ", "").split(","):
            if word:
                sizes.append(parse_size(word))
        return sizes


def _doing_in_words(progress: Any) -> str:
    """``Now all_reduce of 64 KiB``; what the ranks do before the first size."""
    if progress.now is None or progress.errors:
        return str(progress.words())
    return f"Now {progress.op} of {format_bytes(progress.now)}"


def gains(sweep: Sweep, title: str = "") -> go.Figure:
    """Gain in percent against message size with its interval.

    There is a panel for each collective and a colour for each setting.  The dashed line is the
    default.  `title` is what the figure says (default: the conclusion of the sweep).
    """
    # a sweep that was cut off has only the rounds that chose
    rows = sweep.comparisons or sweep.seen
    ops = _collectives_to_draw(rows, _panels_of(sweep))
    named = _settings_to_draw(rows)
    made = make_subplots(rows=len(ops), cols=1, vertical_spacing=56 / (PANEL + 56) / len(ops))
    height = (PANEL + 56) * len(ops) - 56
    figure = plots.frame(title or sweep.headline, plots.entries(named), height, made)
    unlisted = set(named)
    for place, op in enumerate(ops, 1):
        mine = [one for one in rows if one.op == op]
        mine.sort(key=lambda one: one.bytes)
        for index, name in enumerate(named):
            of_setting = [one for one in mine if str(one.setting) == name]
            if of_setting:
                # one entry for a setting, however many panels it is drawn in
                _draw_setting(figure, of_setting, index, place, listed=name in unlisted)
                unlisted.discard(name)
        axis = plots.size_axis([one.bytes for one in mine])
        axis = axis | {"title": {"text": f"message size, {op}", "standoff": 8}}
        figure.update_xaxes(axis, row=place, col=1)
        figure.update_yaxes(title={"text": "gain, %"}, range=_range(mine, named), row=place, col=1)
        figure.add_hline(
            y=0, line={"color": plots.INK, "width": 2, "dash": "dash"}, row=place, col=1
        )
    return figure


def _settings_to_draw(rows: Sequence[Comparison]) -> list[str]:
    """The settings that are drawn.

    Better or worse ones come first, then they stand by the size of their difference.
    """
    return _by_difference((str(one.setting), one) for one in rows)[:SHOWN]


def _panels_of(sweep: Sweep) -> int:
    """How many collectives are drawn: of one that was too noisy, noise is shown once."""
    if is_undecided(sweep):
        return 1
    return PANELS


def _collectives_to_draw(rows: Sequence[Comparison], most: int) -> list[str]:
    """The collectives that are drawn, chosen the same way, in the order of the rows."""
    chosen = _by_difference((one.op, one) for one in rows)[:most]
    ops = []
    for op in dict.fromkeys(one.op for one in rows):
        if op in chosen:
            ops.append(op)
    return ops


def _by_difference(rows: Iterable[tuple[str, Comparison]]) -> list[str]:
    effects: dict[str, tuple[bool, float]] = {}
    for name, one in rows:
        # a difference beyond chance counts before the size of one that is not
        effects[name] = max(
            effects.get(name, (False, 0.0)), (one.better or one.worse, abs(one.gain))
        )
    return sorted(effects, key=lambda name: effects[name], reverse=True)


def _draw_setting(
    figure: go.Figure, rows: Sequence[Comparison], index: int, place: int, listed: bool
) -> None:
    """One setting in one panel: its gain at each size, and the interval as a bar."""
    symbols = []
    for one in rows:
        if one.better:
            symbols.append(SYMBOLS["better"])
        elif one.worse:
            symbols.append(SYMBOLS["worse"])
        else:
            symbols.append(SYMBOLS[""])
    colour = plots.LINES[index % len(plots.LINES)]
    low = [100 * one.interval[0] for one in rows]
    high = [100 * one.interval[1] for one in rows]
    gain = [100 * one.gain for one in rows]
    drawn = [max(at, FLOOR) for at in gain]
    name = safe(rows[0].setting)
    hover_rows = []
    for one, at in zip(rows, gain, strict=True):
        hover_rows.append([format_bytes(one.bytes), _interval(one), _verdict(one), at])
    figure.add_scatter(
        x=[one.bytes * DODGE**index for one in rows],
        y=drawn,
        text=[_number_below_floor(at) for at in gain],
        textposition="top center",
        cliponaxis=False,
        name=name,
        legendgroup=name,
        showlegend=listed,
        # nothing was measured between two sizes, so nothing joins them
        mode="markers+text",
        marker={
            "symbol": symbols,
            "size": 10,
            "color": colour,
        },
        error_y={
            "array": [max(top - at, 0) for top, at in zip(high, drawn, strict=True)],
            "arrayminus": _bars_downwards(low, drawn),
            "color": colour,
            "thickness": 1,
        },
        customdata=hover_rows,
        hovertemplate=name + ", %{customdata[0]}<br>gain %{customdata[3]:.1f} %"
        " (%{customdata[1]})<br>%{customdata[2]}",
        row=place,
        col=1,
    )


def _number_below_floor(gain: float) -> str:
    """The gain of a mark that is not at its place; empty where it is."""
    if gain < FLOOR:
        return f"{gain:,.0f} %"
    return ""


def _bars_downwards(low: Sequence[float], drawn: Sequence[float]) -> list[float]:
    """How long the lower bar of each mark is, in percent of gain."""
    bars = []
    for bottom, at in zip(low, drawn, strict=True):
        # a mark at the floor has no place for an interval
        if at > FLOOR:
            bars.append(max(at - bottom, 0))
        else:
            bars.append(0)
    return bars


def _range(rows: Sequence[Comparison], named: Sequence[str]) -> list[float]:
    """The range that holds each mark, and its interval unless that is many times wider.

    An interval of a size with few rounds would flatten the others.
    """
    # a span of ten per cent at least: less is noise, and would look like much
    low, high = -5.0, 5.0
    lowest_bar, highest_bar = low, high
    for one in rows:
        if str(one.setting) not in named:
            continue
        gain = max(100 * one.gain, FLOOR)
        low = min(low, gain)
        high = max(high, gain)
        bar_bottom, bar_top = one.interval
        lowest_bar = min(lowest_bar, gain, 100 * bar_bottom)
        highest_bar = max(highest_bar, gain, 100 * bar_top)
    reach = WIDEST * (high - low)
    margin = 0.1 * (high - low)
    bottom = max(lowest_bar, low - reach, min(FLOOR, low))
    return [bottom - margin, min(highest_bar, high + reach) + margin]


def _interval(one: Comparison) -> str:
    low, high = one.interval
    # an interval without a lower end is -inf
    return f"{100 * max(low, -9.99):.0f} to {100 * high:.0f} %"


def _verdict(one: Comparison) -> str:
    if one.wrong:
        return f"{plural(one.wrong, 'value')} wrong"
    if one.better:
        return "better"
    if one.worse:
        return "worse"
    return "no difference beyond chance"


def _tables(sweep: Sweep) -> Markup:
    """Where a setting is better, what each one does, and what was refused."""
    better = [_advantage(sweep, found) for found in sweep.advantages]
    head = ("Collective", "Message size", "Setting", "Gain", "Under computation", "Risk")
    named = {str(one.setting): one.setting for one in (*sweep.comparisons, *sweep.seen)}
    effects = []
    # settings that the last rounds did not decide stand in the figure alone
    for name, setting in named.items():
        if _decided(sweep, setting):
            effects.append((code(name), sweep.effect_of(setting)))
    refused = [(code(name), why) for name, why in sweep.refused.items()]
    how = ""
    if named or sweep.notes:
        how = el("p", _method(sweep), cls="nk-dim")
    return join(
        fit(table(head, better)),
        how,
        fold("Each setting in one sentence", table(("Setting", "What it does"), effects)),
        fold("Every comparison in numbers", fit(table(NUMBERS, _numbers(sweep), "nk-numbers"))),
        fold("Refused", table(("Setting", "Why"), refused)),
    )


def _decided(sweep: Sweep, setting: Setting) -> bool:
    return any(one.setting == setting for one in sweep.comparisons)


def _advantage(sweep: Sweep, found: Advantage) -> tuple[object, ...]:
    low = min(one.interval[0] for one in found.comparisons)
    saved = sweep.saved(found.setting)
    gain = f"{percent(found.gain, 1)}, at least {percent(max(low, 0), 1)}"
    gain += "" if saved is None else f"; of your job {percent(saved, 1)}"
    if found.lost:
        mark = badge("✕", "loses there", "likely")
    else:
        mark = Markup("")
    beside = join(mark, " " if found.lost else "", found.under_computation or "–")
    return (
        found.op,
        found.sizes,
        code(found.setting),
        gain,
        beside,
        found.setting.risk or "none known",
    )


def _method(sweep: Sweep) -> str:
    said = (
        f"{plural(sweep.tried, 'setting')} over {sweep.backend} on {plural(sweep.ranks, 'rank')},"
        f" compared round by round in {sweep.seconds:.0f} s. A bar is the interval of the gain,"
        f" corrected for all {len(sweep.comparisons)} comparisons; a filled circle is better, a"
        " cross is worse, and an open circle cannot be told from chance or from"
        f" {100 * tuning.WORTH:g} %."
    )
    without = ""
    if sweep.cleared:
        without = f"The default is without {', '.join(sweep.cleared)}."
    ops = {one.op for one in sweep.comparisons or sweep.seen}
    drawn = ""
    panels = _panels_of(sweep)
    if len(ops) > panels:
        which = "the one with the largest difference is"
        if panels > 1:
            which = f"the {panels} with the largest difference are"
        drawn = f"Of {len(ops)} collectives {which} drawn."
    # the answer above the figure has the notes
    notes = sweep.notes
    if ops:
        notes = ()
    return " ".join(filter(None, (said, drawn, without, *notes)))


NUMBERS = ("Collective", "Size", "Setting", "Default", "With it", "Gain", "Interval", "Verdict")


def _numbers(sweep: Sweep) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    # what was measured under computation stands with what was measured alone
    for one in (*sweep.comparisons, *sweep.beside):
        rows.append(
            (
                f"{one.op} {tuning.BESIDE.get(one.beside, '')}".strip(),
                format_bytes(one.bytes),
                code(one.setting),
                format_time(statistics.median(one.default_us)),
                format_time(statistics.median(one.with_us)),
                percent(one.gain, 1),
                _interval(one),
                _verdict(one),
            )
        )
    return rows


def carriers_view(tuned: SweepView) -> View:
    """Every file that carries the answer of a sweep into a job.

    With each comes the command that measures it again.
    """
    files = tuning.config_files(tuned.sweep)
    if not files:
        nothing = "Nothing is to be set: no setting is better than the default here"
        if not tuned.sweep.tried:
            nothing = "Nothing is to be set: no setting was measured"
        if is_undecided(tuned.sweep):
            nothing = "Nothing is to be set: the sweep was too noisy to tell"
        return View(tuning.uncarried(tuned.sweep).rstrip(".") or nothing, Markup(""))
    parts = []
    for name, file in files.items():
        parts.append(
            el(
                "section",
                el("h5", code(name), f": {FILES[name]}"),
                pre(file.text),
                el("p", "Measure it again:"),
                pre(file.verify),
                cls="nk-card",
            )
        )
    return View(
        f"{plural(len(files), 'file')} can carry this into a job; one of them is enough",
        join(*parts),
    )


class ApplyForm(Form):
    """The form that applies what a sweep found to the small job.

    ``await form.run()`` measures before and after.  That may be to take away an inherited variable
    which only costs.  Where nothing is better than what is there, nothing is done.
    """

    IDLE = "Nothing is applied: no setting is better than the default for every size"
    UNMEASURED = "Nothing is applied: no setting was measured"
    ON_NODES = "Nothing is applied on a login node: `ncclkit submit tune` measures {} on nodes"
    ELSEWHERE = (
        "Nothing is applied here: {} of that job, which only cost, are not set in this environment"
    )
    ASK = IDLE
    BUSY = "Measuring before and after, in turn …"
    CANCELLED = "Cancelled; nothing was changed on this machine"

    def __init__(self, case: Case, tuned: SweepView, **options: Any) -> None:
        self._case, self._options = case, ProbeOptions(**options)
        self._take_sweep(tuned)
        super().__init__(
            "",
            [],
            W.Button(description="Apply and measure", icon="check", button_style="primary"),
        )

    @property
    def summary(self) -> str:
        """What the button will do."""
        if self._setting:
            return f"This applies {self._setting} to the small job"
        return self.IDLE

    def _take_sweep(self, tuned: SweepView) -> None:
        """Apply what this sweep found from now on."""
        self._tuned, self._sweep = tuned, tuned.sweep
        self._setting = tuning.applied(self._sweep)
        self.IDLE = self.ASK = type(self).IDLE
        if not self._sweep.tried:
            self.IDLE = self.ASK = self.UNMEASURED
        if self._setting:
            gone = self._setting.without
        else:
            gone = ()
        # taking away what is not set here would compare the default with itself
        if gone and not any(name in os.environ for name in gone):
            self._setting, self.IDLE = None, self.ELSEWHERE.format(", ".join(gone))
            self.ASK = self.IDLE
        if self._setting and not self._options.here and scheduler.is_login_node():
            self.IDLE = self.ASK = self.ON_NODES.format(self._setting)
            self._setting = None

    def rests_on(self, form: Form) -> bool:
        """Whether the other form made the sweep that is applied here."""
        return any(self._tuned is sweep for sweep in form.handed_out)

    def take_evidence(self, evidence: Evidence) -> None:
        """Apply the newest sweep."""
        self._take_sweep(evidence.newer(self._tuned))
        if self._answer is None:
            self._show(page_frame(self.summary))
        self.review()

    def asks(self) -> bool:
        """Whether there is anything to apply."""
        return self._setting is not None

    def layout(self) -> list[W.Widget]:
        """The button and what came out."""
        return [row(*self._buttons, self.cancel), self.notice, self.result, self.drawing]

    async def prepare(self) -> View:
        """The setting against the default once more, on the sizes of the sweep."""
        # Setting() is never measured: `asks` refuses first
        setting = self._setting or Setting()
        sizes = sorted({one.bytes for one in self._sweep.seen})
        options = replace(
            self._options, op=",".join(dict.fromkeys(one.op for one in self._sweep.seen))
        )
        return before_after(
            await tune.sweep(self._case, [setting], options, sizes, on_record=self.observe)
        )


def before_after(sweep: Sweep) -> View:
    """What the one setting of a sweep changes.

    It is by collective and message size, with both times of each.
    """
    rows = sweep.comparisons
    if not rows:
        return View(sweep.headline, Markup(""))
    setting = rows[0].setting
    if setting.env or setting.config:
        changed = f"With {setting}"
    else:
        changed = f"Without {', '.join(setting.without)}"
    better = sum(one.better for one in rows)
    worse = sum(one.worse for one in rows)
    verb = "are"
    if len(rows) == 1:
        verb = "is"
    summary = (
        f"{changed} {better} of {plural(len(rows), 'size')} {verb} faster than before, and {worse}"
        " slower"
    )
    return Chart(gains(sweep, summary), fit(table(NUMBERS, _numbers(sweep), "nk-numbers")))
