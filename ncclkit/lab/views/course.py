"""Views of what a run of the course measured, as a table and a figure."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from ncclkit.analysis.loader_sweeps import LoaderSweep, measured_sweep
from ncclkit.analysis.resumes import Resume, resumes
from ncclkit.core import budgets
from ncclkit.core.case import Case
from ncclkit.core.model import safe
from ncclkit.core.runs import Run
from ncclkit.core.text import format_bytes, format_number, format_time, plural
from ncclkit.lab.course import runs
from ncclkit.lab.course.checkpoints import Checkpoint, read_checkpoints
from ncclkit.lab.course.runs import Stage, Step
from ncclkit.views import plots
from ncclkit.views._base import Drawn, View
from ncclkit.views._draw import BLUE, blank, of_name, panels, titled
from ncclkit.views._html import Markup, badge, el, fit, join, table
from ncclkit.views.experiments import ENDS

Columns = Mapping[str, Sequence[object]]
"""Name of a column → its cells, from the top."""


def _measured(
    summary: str,
    columns: Columns,
    *notes: object,
    heading: object = "",
    figure: go.Figure | None = None,
) -> View:
    """The one shape of all measurements below.

    It is conclusion, figure, table (column → its cells), and notes.
    """
    shown = table(tuple(columns), zip(*columns.values(), strict=True), "nk-numbers")
    return Drawn(summary, figure, join(heading, fit(shown), *notes))


def _dim_note(words: str) -> Markup:
    return el("p", words, cls="nk-dim")


def _format_seconds(seconds: float | None) -> str:
    return format_time(None if seconds is None else 1e6 * seconds)


def checkpoints_view(path: str | Path) -> View:
    """Each checkpoint file at `path`, a file or a folder.

    It shows size, whole or not, and whether a loader's place is in it.  Raises NcclkitError where
    there is none.
    """
    found = read_checkpoints(path)
    base = os.path.commonpath([file.path.parent for file in found])
    head = ("File", "Size", "Is it whole?", "Where the loaders stood")
    rows = []
    for file in found:
        name = el("code", os.path.relpath(file.path, base))
        size = el("span", format_bytes(file.bytes), cls="nk-whole")
        state = join(badge(*WHOLE[file.whole]), " ", file.words)
        rows.append((name, size, state, badge(*POSITION[file.position])))
    return View(_checkpoints_summary(found), fit(table(head, rows)))


WHOLE = {
    True: ("✓", "whole", "state-done"),
    False: ("✕", "damaged", "state-failed"),
    None: ("○", "unknown", "possible"),
}
POSITION = {
    True: ("✓", "kept", "state-done"),
    False: ("✕", "not kept", "likely"),
    None: ("○", "cannot be read", "possible"),
}


def _checkpoints_summary(found: Sequence[Checkpoint]) -> str:
    files = plural(len(found), "file")
    bad = sum(file.whole is False for file in found)
    if bad:
        return f"{bad} of {files} cannot be used: resume from the checkpoint before"
    with_position = sum(file.position is True for file in found)
    readable = sum(file.position is not None for file in found)
    if not with_position:
        return (
            f"No file of {len(found)} says where the loaders stood: whoever resumes from here reads"
            " the data again"
        )
    return f"{with_position} of {readable} files that can be read say where the loaders stood"


ROUNDING = 1e-4
"""Relative difference of two losses that the order of additions explains.

It is that of float32 with a few thousand terms.
"""


def stages_view(stages: Sequence[Stage]) -> View:
    """One row per stage of a staged run, the first one on top.

    It tells how the stage ended, what it took, and its last loss.
    """
    if not stages:
        return View("No stage was run yet", Markup(""))
    apart = loss_difference(stages)
    most = "none"
    if apart:
        most = f"{apart:.1e} of the loss"
    option_texts = []
    for s in stages:
        option_texts.append(
            ", ".join(f"{name} {value}" for name, value in s.options.items()) or "as it is"
        )
    columns: Columns = {
        "Ranks": [stage.run.plan.ranks for stage in stages],
        "Asked": option_texts,
        "Ended": [
            badge(*ENDS.get(stage.run.reason, ("•", stage.run.reason, ""))) for stage in stages
        ],
        "First step": [
            "–" if stage.ready is None else f"{format_number(stage.ready)} s" for stage in stages
        ],
        "Memory, at most": [
            "–" if stage.peak is None else format_bytes(stage.peak) for stage in stages
        ],
        "Last loss": [f"{stage.losses[-1]:.5f}" if stage.losses else "–" for stage in stages],
    }
    cells_of_name = {}
    for name, cells in columns.items():
        if any(cell != "–" for cell in cells):
            cells_of_name[name] = cells
    columns = cells_of_name
    if apart is None:
        note = ""
    else:
        note = f"Largest difference between losses that should be equal: {most}."
    return _measured(_stages_summary(stages, apart), columns, _dim_note(note))


def _stages_summary(stages: Sequence[Stage], apart: float | None) -> str:
    last = stages[-1].run
    if last.reason != "done":
        return f"Stop here, before more data or more ranks are used: {last.summary}"
    if len(stages) == 1:
        well = "The stage succeeded"
    else:
        well = f"All {plural(len(stages), 'stage')} succeeded"
    if apart is None:
        return well
    return f"{well}, and equal batches gave {'equal' if apart < ROUNDING else 'DIFFERENT'} losses"


def loss_difference(stages: Sequence[Stage]) -> float | None:
    """Largest relative difference between losses of stages with equal data and batch.

    It is None where no two are alike.  Neither ranks nor micro-batches may change what a step
    learns.
    """
    alike = defaultdict(list)
    for stage in stages:
        asked = {}
        for name, value in stage.options.items():
            if name != "accumulate":
                asked[name] = value
        if stage.losses:
            alike[tuple(sorted(asked.items()))].append(stage.losses)
    differences = []
    for first_losses, *others in alike.values():
        for losses in others:
            for first, value in zip(first_losses, losses, strict=True):
                # a loss may be 0
                differences.append(abs(value - first) / max(abs(first), 1e-12))
    return max(differences, default=None)


def loader_sweep_view(case: Case) -> View:
    """Step time, waits and the queue for the cores in the last sweep.

    It shows them for each choice of workers that the sweep measured.
    """
    found = measured_sweep(case)
    if found is None:
        return View(
            "Nothing was measured yet; nk.sweep_loaders(case) trains once for each choice",
            Markup(""),
        )
    columns: Columns = {
        "Workers": [f"{row['workers']:.0f}" for row in found.rows],
        "Ahead": [f"{row['prefetch']:.0f}" if row["prefetch"] else "–" for row in found.rows],
        "Half of the steps": [_between_repeats(row) for row in found.rows],
        "First batch": [format_time(1e3 * row["first_ms"]) for row in found.rows],
        "Wait for data": [format_time(1e3 * row["data_ms"]) for row in found.rows],
        "Wait for ranks": [format_time(1e3 * row["others_ms"]) for row in found.rows],
        "Queue for a core": [f"{row['queue']:.1f}" for row in found.rows],
        "Preempted": [f"{row['preempted']:.0f} /s" for row in found.rows],
    }
    rules = _dim_note(
        f"Measured: {found.knee.words} The rule, (workers + 1) x ranks <= cores: {found.rule.words}"
    )
    return _measured(_sweep_summary(found), columns, rules, figure=_sweep_figure(found))


def _between_repeats(row: Mapping[str, float]) -> str:
    """``19 to 22 ms``."""
    return f"{row['low_ms']:.3g} to {row['high_ms']:.3g} ms"


def _sweep_summary(found: LoaderSweep) -> str:
    knee = int(found.knee.value)
    most = max(found.rows, key=lambda row: row["workers"])
    best = next(row for row in found.rows if row["workers"] == knee)
    on = f"{plural(found.ranks, 'rank')} on {plural(found.cores, 'core')}"
    if not _has_knee(found):
        # from the back, so that of several choices with as many workers the first one stays
        rows = {int(row["workers"]): row for row in reversed(found.rows)}
        steps = ", ".join(f"{_between_repeats(rows[count])} with {count}" for count in found.alike)
        return (
            f"{on}: no knee, the workers per rank cannot be told apart: half of the steps take"
            f" {steps}"
        )
    enough = f"{on}: {plural(knee, 'worker')} per rank {'is' if knee == 1 else 'are'}"
    if most["workers"] == knee:
        return f"{enough} not yet too many, half of the steps take {_between_repeats(best)}"
    rest = (
        f"with them half of the steps take {_between_repeats(best)}, with {most['workers']:.0f}"
        f" {_between_repeats(most)}"
    )
    first = (
        f"and the first batch comes after {most['first_ms']:.0f} ms instead of"
        f" {best['first_ms']:.0f} ms"
    )
    return f"{enough} enough; {rest}, {first}"


def _has_knee(found: LoaderSweep) -> bool:
    """Whether steps get faster up to a count of workers.

    They do not where the fewest that were tried are among the fastest.
    """
    return len(found.alike) == 1 or found.knee.value > min(row["workers"] for row in found.rows)


CURVES = (
    ("step_ms", "step", 1),
    ("data_ms", "wait for data", 1),
    ("others_ms", "wait for other ranks", 1),
    ("first_ms", "first batch", 2),
    ("queue", "processes in the queue", 3),
)
"""Measured, its name, and its row of the figure."""


def _sweep_figure(found: LoaderSweep) -> go.Figure:
    """Three rows over the same choices: the step and its waits, the first batch, the queue."""
    steps = titled("ms", [name for _, name, row in CURVES if row == 1])
    others = titled("first batch, ms", ()), titled("processes in the queue for a core", ())
    figure = panels([steps, *others], "workers per rank", 130)
    for index, (field, name, place) in enumerate(CURVES):
        look = of_name(name, index)
        figure.add_scatter(
            x=[_choice_of_row(row, found) for row in found.rows],
            y=[row[field] for row in found.rows],
            name=name,
            mode="lines+markers",
            line=look | {"width": 2},
            marker={"symbol": plots.MARKS[index], "size": 8, "color": look["color"]},
            hovertemplate=f"{name}: %{{y:.4g}} with %{{x}} workers<extra></extra>",
            error_y=_error_bars(found) if field == "step_ms" else None,
            row=place,
            col=1,
        )
    figure.update_yaxes(rangemode="tozero")
    # choices, not numbers: 0, 2 and 16 workers stand at equal distances
    figure.update_xaxes(type="category")
    if _has_knee(found):
        figure.add_vline(
            x=next(at for at, row in enumerate(found.rows) if row["workers"] == found.knee.value),
            line={"color": plots.VERMILLION, "width": 1.5, "dash": "dot"},
            annotation={"text": "knee", "font": {"color": plots.VERMILLION, "size": 11}},
        )
    return figure


def _error_bars(found: LoaderSweep) -> dict[str, Any]:
    """Bars over which half of the steps lay."""
    above = [max(0.0, row["high_ms"] - row["step_ms"]) for row in found.rows]
    below = [max(0.0, row["step_ms"] - row["low_ms"]) for row in found.rows]
    return {
        "type": "data",
        "symmetric": False,
        "array": above,
        "arrayminus": below,
        "thickness": 1.5,
    }


def _choice_of_row(row: Mapping[str, float], found: LoaderSweep) -> str:
    """``8``; ``8, 4 ahead`` where another choice has as many workers."""
    alike = [other for other in found.rows if other["workers"] == row["workers"]]
    ahead = ""
    if len(alike) > 1 and alike[0] is not row:
        ahead = f", {row['prefetch']:.0f} ahead"
    return f"{row['workers']:.0f}{ahead}"


def backend_view(measured: Sequence[Run]) -> View:
    """Latency and bandwidth of the same all_reduce over each backend that was measured."""
    rows = {}
    for run in measured:
        if run.curve:
            rows[run.plan.backend] = run.curve
    if not rows:
        return View(
            "No backend was measured: " + "; ".join(run.summary for run in measured), Markup("")
        )
    best = {name: max(curve, key=lambda m: m.busbw or 0.0) for name, curve in rows.items()}
    lines = []
    for curve in rows.values():
        lines.append(f"{format_bytes(curve[0].bytes)} in {format_time(curve[0].time_us)}")
    columns: Columns = {
        "Backend": list(rows),
        "Smallest message": lines,
        "Best busbw": [
            f"{format_number(m.busbw or 0.0)} GB/s at {format_bytes(m.bytes)}"
            for m in best.values()
        ],
    }
    said = "; ".join(f"{name} {format_number(m.busbw or 0.0)} GB/s" for name, m in best.items())
    alone = "NCCL needs a GPU for each rank, so it was not measured here."
    if "nccl" in rows:
        alone = ""
    return _measured(
        f"all_reduce on {measured[0].plan.ranks} ranks: {said}", columns, _dim_note(alone)
    )


LAYOUTS = {"one": "one communicator for all", "pairs": "one for each pair as well"}
"""Field of `Step` → how a line of the figure is named."""


def scaling_view(steps: Sequence[Step], ranks: int = 32) -> View:
    """Correctness, speed and open files for each count of ranks.

    It tells also the files that a rank needs on `ranks` of them.
    """
    if not steps:
        return View("No scaling run was made yet", Markup(""))
    files: dict[str, dict[int, int]] = {}
    for layout in LAYOUTS:
        files[layout] = {}
        for step in steps:
            open_files = getattr(step, layout)
            if open_files is not None:
                files[layout][step.ranks] = open_files
    # one point gives no straight line
    known = len(files["one"]) > 1
    plans = {}
    if known:
        for layout, counts in files.items():
            plans[layout] = budgets.open_files_budget(counts, ranks)
    limits = []
    for step in steps:
        if step.limit is not None:
            limits.append(step.limit)
    # where hosts differ, the smallest limit is reached first
    limit = min(limits, default=None)
    columns: Columns = {
        "Ranks": [str(step.ranks) for step in steps],
        "Wrong": [_wrong_values(step) for step in steps],
        "Wrong, uneven shares": [
            "–" if step.uneven is None else f"{step.uneven:,}" for step in steps
        ],
        "By hand, GB/s": [_busbw_of(step, runs.BY_HAND) for step in steps],
        "Library, GB/s": [_busbw_of(step, runs.LIBRARY) for step in steps],
        "Files, one": ["–" if step.one is None else f"{step.one:,}" for step in steps],
        "Files, pairs": ["–" if step.pairs is None else f"{step.pairs:,}" for step in steps],
    }
    return _measured(
        _scaling_summary(steps, plans, ranks),
        columns,
        *(
            _dim_note(f"{LAYOUTS[layout].capitalize()}: {plan.words}")
            for layout, plan in plans.items()
        ),
        (
            el(
                "p",
                _limit_advice({layout: plan.value for layout, plan in plans.items()}, ranks, limit),
            )
            if plans
            else ""
        ),
        heading=el("h5", "Bus bandwidth of the largest message, and open files of a rank"),
        figure=_scaling_figure(files, plans, ranks, limit) if plans else None,
    )


def _scaling_summary(steps: Sequence[Step], plans: Mapping[str, budgets.Budget], ranks: int) -> str:
    last = steps[-1]
    if last.run.reason != "done":
        return f"Stop here, before more ranks are used: {last.run.summary}"
    wrong_counts = []
    for step in steps:
        for m in step.run.measurements:
            wrong_counts.append(m.wrong or 0)
    wrong = sum(wrong_counts) + sum(step.uneven or 0 for step in steps)
    if not wrong:
        same = "every value is right"
    else:
        same = f"{wrong:,} values are WRONG"
    counts = " and ".join(str(step.ranks) for step in steps)
    summary = f"On {counts} ranks {same}, by hand and by the library"
    if not plans:
        return summary
    one, pairs = (plans[layout].value for layout in LAYOUTS)
    return (
        f"{summary}; on {ranks} ranks one communicator needs {one:,.0f} open files of a rank, and"
        f" pairs {pairs:,.0f}"
    )


def _limit_advice(needs: Mapping[str, float], ranks: int, limit: int | None) -> str:
    """How the need compares with what a rank may open.

    It tells the ranks at which pairs would exceed it.
    """
    # negative: unlimited
    if limit is None or limit < 0:
        return (
            "How many files a rank may open is unlimited or not known: ask ulimit -n inside the"
            " job."
        )
    room = f"A rank may open {plural(limit, 'file')} (ulimit -n inside the job)"
    short = []
    for layout, need in needs.items():
        if need > limit:
            short.append(LAYOUTS[layout])
    if short:
        return (
            f"{room}: too few on {ranks} ranks for {' and for '.join(short)}. Raise it in the job"
            " script."
        )
    return f"{room}: enough on {ranks} ranks, before any data-loader worker has opened its own."


def _wrong_values(step: Step) -> object:
    """How many values were wrong.

    Where the run did not come to both ways it is how it ended.
    """
    both = [step.speed(op) for op in (runs.BY_HAND, runs.LIBRARY)]
    wrong_counts = []
    for m in both:
        if m:
            wrong_counts.append(m.wrong or 0)
    wrong = sum(wrong_counts)
    if wrong:
        return badge("✕", f"{wrong:,}", "state-failed")
    if all(both):
        return "0"
    return step.run.reason


def _busbw_of(step: Step, op: str) -> str:
    speed = step.speed(op)
    if speed and speed.busbw:
        return format_number(speed.busbw)
    return "–"


def _scaling_figure(
    files: Mapping[str, Mapping[int, int]],
    plans: Mapping[str, budgets.Budget],
    ranks: int,
    limit: int | None,
) -> go.Figure:
    """Open files against ranks.

    What was measured is drawn as marks, continued as a dotted line, the limit as a dashed one.
    """
    figure = blank(height=300)
    for (layout, counts), colour in zip(files.items(), (BLUE, plots.VERMILLION), strict=True):
        most = max(counts)
        marks = []
        for at in (*counts, ranks):
            if at <= most:
                marks.append("circle")
            else:
                marks.append("circle-open")
        figure.add_scatter(
            x=[*counts, ranks],
            y=[*counts.values(), plans[layout].value],
            name=LAYOUTS[layout],
            mode="lines+markers",
            line={"color": colour, "width": 2, "dash": "dot"},
            marker={"size": 9, "color": colour, "symbol": marks},
            hovertemplate="%{y:,.0f} open files on %{x} ranks<extra></extra>",
        )
    if limit is not None and limit > 0:
        figure.add_scatter(
            x=[min(files["one"]), ranks],
            y=[limit, limit],
            name="what a rank may open",
            mode="lines",
            line={"color": plots.INK, "width": 1.5, "dash": "dash"},
            hovertemplate="%{y:,.0f} are allowed<extra></extra>",
        )
    figure.update_xaxes(title={"text": "ranks"}, tickvals=sorted({*files["one"], ranks}))
    # pairs take many times the files of one communicator, so only a logarithmic axis shows both
    return figure.update_yaxes(title={"text": "open files of a rank"}, type="log", dtick=1)


UNEVEN = 3.0
"""Times the middle rank's time from which on a rank sets the pace.

It needs so long for its batch.
"""


def resume_view(case: Case) -> View:
    """One row per rank of every start from a checkpoint.

    The starts are those in the case and in its experiments.
    """
    found = resumes(case)
    if not found:
        return View("No run of this case was resumed from a checkpoint", Markup(""))
    named = []
    for number, run in enumerate(found, 1):
        for s in run.starts:
            named.append((f"{number}. {_how_it_resumed(run)}, limit {run.limit:g} s", s))
    starts = [start for _, start in named]
    never = badge("✕", "never", "state-failed")
    read_shares = []
    for start in starts:
        read_shares.append(f"{start.read:,} of {start.of:,}" if start.of else "nothing")
    columns: Columns = {
        "Start": [name for name, _ in named],
        "Rank": [start.rank for start in starts],
        "Read again": read_shares,
        "All of it": [_format_seconds(start.whole) if start.of else "–" for start in starts],
        "First step after": [
            never if start.first is None else _format_seconds(start.first) for start in starts
        ],
        "Reads a batch": [_format_seconds(start.batch) for start in starts],
        "A step": [_format_seconds(start.step) for start in starts],
    }
    version = found[0].lightning
    by = "Trained with plain torch; Lightning is missing."
    if version:
        by = f"Trained with Lightning Fabric {version}."
    summary = "; ".join(dict.fromkeys(_resume_summary(run) for run in found))
    return _measured(
        f"First step after the resume: {summary}",
        columns,
        _dim_note(f"{_load_balance(found)} {by}"),
        figure=_resume_figure(found),
    )


def _how_it_resumed(run: Resume) -> str:
    batches = max(start.of for start in run.starts)
    if batches:
        return f"{batches:,} batches read again"
    return "loaders' state restored"


def _resume_summary(run: Resume) -> str:
    case = f"limit {run.limit:g} s, {_how_it_resumed(run)}"
    if run.first is not None:
        return f"{case}: after {_format_seconds(run.first)}"
    return (
        f"{case}: never, as rank {run.last.rank} needs {_format_seconds(run.last.whole)} for that"
    )


def _load_balance(found: Sequence[Resume]) -> str:
    """Load balance in training.

    One rank that reads slowly makes every step slow, on all ranks.
    """
    for run in found:
        reading = sorted(
            (start for start in run.starts if start.batch is not None),
            key=lambda start: start.batch or 0,
        )
        if not reading:
            continue
        # the lower middle, so that of two ranks the slow one is not compared with itself
        slow, middle = reading[-1], reading[(len(reading) - 1) // 2]
        if len(reading) == 1 or (slow.batch or 0) <= UNEVEN * (middle.batch or 0):
            return "In training, all ranks read their batches equally fast."
        return (
            f"In training, rank {slow.rank} reads a batch in {_format_seconds(slow.batch)} and rank"
            f" {middle.rank} in {_format_seconds(middle.batch)}: every step takes"
            f" {_format_seconds(slow.step)} on all ranks, as the others wait for it."
        )
    return "No run came far enough to tell how evenly the ranks are loaded."


def _resume_figure(found: Sequence[Resume]) -> go.Figure:
    """One bar per start: the time to the first step.

    Without one it is what the slowest rank would have needed.
    """
    longest = [run.last.whole if run.first is None else run.first for run in found]
    figure = blank(height=110 + 46 * len(found))
    for came, name, colour in (
        (True, "first step done after", plots.LINES[0]),
        (False, "never: the replay alone needs", plots.VERMILLION),
    ):
        shown = [number for number, run in enumerate(found, 1) if (run.first is not None) == came]
        times = [longest[number - 1] for number in shown]
        lines = []
        for number in shown:
            run = found[number - 1]
            lines.append(f"{number}. {safe(_how_it_resumed(run))}<br>limit {run.limit:g} s")
        figure.add_bar(
            x=times,
            y=lines,
            name=name,
            orientation="h",
            marker={"color": colour, "pattern": {"shape": "" if came else "/"}},
            text=[_format_seconds(time) for time in times],
            textposition="outside",
            cliponaxis=False,
            hovertemplate=f"{name} %{{text}}<extra></extra>",
        )
    # room for the words behind the bars
    figure.update_xaxes(title={"text": "seconds since the start"}, range=[0, 1.2 * max(longest)])
    return figure.update_yaxes(
        autorange="reversed", automargin=True, categoryorder="category ascending", showgrid=False
    )
