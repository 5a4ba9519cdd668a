"""Runs of a case, and the case folder.

It shows curve and table of one run, the advice drawn from it, and cases of several times side by
side.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from ncclkit.analysis.history import Change, History, beside_baseline, compare_cases
from ncclkit.causes import catalogue, page
from ncclkit.core import bandwidth, storage
from ncclkit.core.bandwidth import Judgement, judge_curve
from ncclkit.core.case import Case
from ncclkit.core.experiment_records import FOLDER, experiments
from ncclkit.core.model import Advice, Measurement, NcclkitError, safe
from ncclkit.core.run_choice import measured_runs
from ncclkit.core.runs import Run, read_plan
from ncclkit.core.text import format_bytes, format_number, format_time, percent, plural
from ncclkit.live import tune
from ncclkit.live.probe import reread
from ncclkit.views import plots
from ncclkit.views._base import Chart, View, shows_runs
from ncclkit.views._missing import NoData
from ncclkit.views._html import Markup, badge, code, el, fit, fold, join, pre, table
from ncclkit.views.experiments import cards
from ncclkit.views.findings import advice_part

FILES = {
    "case.json": "what was asked, when and with which versions",
    "facts.jsonl": "what is known about each host, and where it was read",
    "events.jsonl": "what the logs say, line by line",
    "measurements.jsonl": "every timed collective",
    "findings.json": "the verdict on each cause",
    "inputs.json": "which files were read (they stay where they are)",
    "report.html": "this investigation as one page that needs no network",
}
"""The files of a case folder, each with one line of explanation (docs/design.md, Contracts)."""

HEAD = (
    "Collective",
    "Size",
    "busbw GB/s",
    "At most GB/s",
    "Ratio",
    "Wrong",
    "{median}",
    "{p99}",
    "algbw GB/s",
)
TIMES, BATCHED = ("Time, median", "Time, p99"), ("Median, batches", "p99, single calls")
TWO = (
    "The median is of batches of calls and p99 of single calls, timed one after the other: on a"
    " busy machine either can be the longer one."
)
OPTIONAL = {"busbw GB/s", "At most GB/s", "Ratio", "In a CUDA graph", "Run"}
"""Columns that are left out where no row has a value."""
MAIL = (
    "A colleague can run `ncclkit diagnose FILE.tar.gz`, unpack and open it (ncclkit.Case.open), or"
    " read report.html in any browser."
)


def measurement_table(rows: Iterable[Measurement], expected: float | None = None) -> Markup:
    """One row per measurement: size, times, bandwidths.

    `expected` (busbw, GB/s) is that of rows that carry none.  On paper and on a phone a wide table
    would be cut: collective, run and bound stand in it only where there are several, algbw where it
    is not busbw.
    """
    rows = list(rows)
    # of mixed rows the words that hold for both
    single = bool(rows) and all(m.singles for m in rows)
    if single:
        median, tail = BATCHED
    else:
        median, tail = TIMES
    head = [name.format(median=median, p99=tail) for name in (*HEAD, "In a CUDA graph", "Run")]
    several = len({m.run for m in rows}) > 1
    body: list[tuple[object, ...]] = []
    for m in rows:
        run = "–"
        if several:
            run = m.run
        measured = _measured(m, m.expected or expected)
        body.append((m.op, *measured, format_time(m.graph_us), run))
    shown = []
    for place, name in enumerate(head):
        is_filled = any(row[place] != "–" for row in body)
        shown.append(is_filled or name not in OPTIONAL)
    bounds = {m.expected or expected for m in rows}
    shown[0] = len({m.op for m in rows}) > 1
    shown[head.index("At most GB/s")] &= len(bounds) > 1
    # where both are the same number the column says it twice
    shown[head.index("algbw GB/s")] = any(m.algbw != m.busbw for m in rows)
    columns = list(compress(head, shown))
    wide = table(columns, [list(compress(row, shown)) for row in body], "nk-numbers")
    if single:
        return join(fit(wide), el("p", TWO, cls="nk-dim"))
    return fit(wide)


def case_view(case: Case) -> View:
    """Where everything of this case is, what each file holds, and how to mail it."""
    if case.path is None:
        return View(
            "This case is in memory only; Case.open(folder) makes one that stays", Markup("")
        )
    here = []
    for name, words in FILES.items():
        if (case.path / name).is_file():
            here.append((case.path / name, words))
    for path in sorted(case.path.glob("report-*.html")):
        here.append((path, "the page of another notebook"))
    kept = [(code(path.name), words, format_bytes(path.stat().st_size)) for path, words in here]
    runs = []
    for run in case.runs():
        runs.append((code(f"runs/{run.name}/"), _run_words(run), plural(_files(run), "file")))
    made = experiments(case)
    asked = []
    for one in made:
        asked.append((code(f"{FOLDER}/{one.folder.name}/"), f"{one.kind}: {one.summary}", "–"))
    # by `-C` and a name, so that the archive holds no path of this machine
    pack = shlex.join(
        ["tar", "czf", f"{case.path.name}.tar.gz", "-C", str(case.path.parent), case.path.name]
    )
    body = join(
        table(("Where", "What it holds", "Size"), [*kept, *runs, *asked]),
        fold(plural(len(made), "experiment"), cards(made)),
        el("h5", "To mail it"),
        pre(pack),
        el("p", MAIL, cls="nk-dim"),
        fold("What the case counts", el("p", repr(case))),
    )
    return View(f"Everything is in {case.path}", body)


def _measured(m: Measurement, expected: float | None) -> tuple[object, ...]:
    share = None
    if m.busbw is not None and expected:
        share = m.busbw / expected
    if share is None:
        ratio = "–"
    elif share > bandwidth.ABOVE:
        ratio = "above"
    else:
        ratio = percent(share)
    wrong = el("b", f"✕ {m.wrong:,}", cls="nk-bad") if m.wrong else "–" if m.wrong is None else "0"
    return (
        format_bytes(m.bytes),
        _speed(m.busbw),
        _speed(expected),
        ratio,
        wrong,
        format_time(m.time_us),
        format_time(m.p99_us),
        _speed(m.algbw),
    )


def _speed(value: float | None) -> str:
    """A bandwidth in GB/s.

    Of the smallest messages it says nothing that their time does not.
    """
    if value is None:
        return "–"
    if 0 < value < 0.001:
        return "< 0.001"
    return format_number(value)


def _files(folder: Path) -> int:
    return sum(1 for path in folder.iterdir() if path.is_file())


def _run_words(folder: Path) -> str:
    """What a run's own ``status.json`` says of its end.

    A run without one was cut off, unless nothing was run.
    """
    # facts that were only collected have neither
    if not any((folder / name).exists() for name in ("plan.json", "status.json")):
        return "collected from hosts and processes; nothing was run"
    try:
        status = storage.parse_json(storage.content(folder / "status.json"))
    except (OSError, ValueError, NcclkitError) as error:
        return (
            f"run without a readable status.json ({type(error).__name__}): still running, or"
            " cut off"
        )
    said = None
    if isinstance(status, dict):
        said = status.get("say") or status.get("reason")
    if said:
        return f"run: {said}"
    return "run: plan, wire records, one log per rank"


def compare_view(*cases: Case | str | Path) -> View:
    """The same test of several cases, the oldest first, and what changed between.

    One alone stands beside the baseline.  `cases` are case folders, or cases.  Raises NcclkitError
    for one case where this cluster has no baseline.
    """
    return _history_view(compare_cases(cases))


def _history_view(found: History) -> View:
    rows = []
    for one in found.changes:
        rows.append(
            (
                _mark(one),
                one.op,
                format_bytes(one.bytes),
                format_time(one.before),
                format_time(one.after),
            )
        )
    head = ("Verdict", "Collective", "Size", found.labels[0], found.labels[-1])
    changed = table(("What changed on the hosts",), [(one,) for one in found.differences])
    if rows:
        sizes = fold("Every size", fit(table(head, rows, "nk-numbers")), is_open=len(rows) <= 12)
    else:
        sizes = Markup("")
    body = join(el("h5", "Between them") if found.differences else "", fit(changed), sizes)
    curves = []
    for label in found.labels:
        for m in found.curves.get(label, ()):
            curves.append(m)
    if curves:
        return Chart(plots.bandwidth(curves, summary=found.summary), body)
    return View(found.summary, body)


def _mark(one: Change) -> Markup:
    if not one.matters:
        return badge("○", "as before", "possible")
    slow = one.slower > 0
    words = f"{percent(abs(one.slower))} {'slower' if slow else 'faster'}"
    return badge("✕" if slow else "✓", words, "state-failed" if slow else "state-done")


def with_baseline(figure: go.Figure, curve: Sequence[Measurement]) -> go.Figure:
    """The figure of a live test with a baseline's curve in it, dotted.

    It is unchanged where there is none.
    """
    rows = sorted(curve, key=lambda m: m.bytes)
    if not rows:
        return figure
    speeds = [m.busbw if m.busbw is not None else m.algbw for m in rows]
    figure.add_scatter(
        x=[m.bytes for m in rows],
        y=speeds,
        name=safe(rows[0].run),
        mode="lines+text",
        line={"color": plots.INK, "width": 2, "dash": "dot"},
        text=[*[""] * (len(rows) - 1), safe(rows[0].run)],
        textposition="bottom left",
        textfont={"color": plots.INK},
        showlegend=False,
        hovertemplate=f"{safe(rows[0].run)}: %{{y:.3g}} GB/s<extra></extra>",
    )
    # a baseline that was faster must not leave the picture
    low, high = figure.layout.yaxis.range
    return figure.update_layout(yaxis_range=[low, max(high, 1.14 * max(speeds))])


def judged(expectation: bandwidth.Expectation | None) -> tuple[float | None, str]:
    """An expectation as `plots.bandwidth` takes it.

    It is busbw in GB/s and the words of the title.
    """
    if expectation is None or expectation.value is None:
        return None, bandwidth.why_no_reference(expectation)
    return expectation.value, expectation.allows


def _run_of(case: Case, folder: Path) -> Run:
    """An earlier run, read back from its folder.  Raises NcclkitError where its plan is gone."""
    try:
        plan = storage.parse_json(storage.content(folder / "plan.json"))
    except (OSError, ValueError) as error:
        raise NcclkitError(f"{folder.name} has no readable plan.json ({error}).") from error
    if not isinstance(plan, dict):
        raise NcclkitError(f"{folder.name} has no readable plan.json.")
    return reread(case, folder, read_plan(plan))


def _curve_of(case: Case, folder: Path) -> View:
    return curve_view(_run_of(case, folder))


def _measurements_of(case: Case, folder: Path) -> View:
    return measurements_view(_run_of(case, folder))


@shows_runs(measured_runs, _curve_of)
def curve_view(run: Run) -> Chart:
    """Bandwidth against message size, with the expectation drawn.

    Under it stands where that comes from.  For one rank it is time.  The baseline of this cluster
    is drawn, too, where there is one.
    """
    # one rank sends nothing, so only times mean anything
    if run.measurements and run.plan.ranks == 1:
        return Chart(plots.latency(run.measurements))
    judgement = None
    if run.measurements:
        judgement = judge_curve(run.curve, run.expectation)
    derived = ""
    if run.expectation:
        derived = el("p", el("b", "Expected: "), run.expectation.words)
    beside = ""
    if judgement:
        beside = "; ".join(f"{ref} = {percent(ratio)}" for ref, ratio in judgement.ratios)
    # a run that ended early has no whole curve to compare
    measured: Sequence[Measurement] = ()
    if run.reason == "done":
        measured = run.measurements
    against, curve = beside_baseline(measured)
    notes = []
    if run.expectation:
        notes.append(run.expectation.note)
    if beside:
        notes.append(f"Measured elsewhere: {beside}.")
    notes.append(against)
    said = " ".join(filter(None, notes))
    caption = join(derived)
    if said:
        caption = join(derived, el("p", said, cls="nk-dim"))
    figure = plots.bandwidth(run.measurements, *judged(run.expectation), _cut_short(run))
    return Chart(with_baseline(figure, curve), caption)


@shows_runs(measured_runs, _measurements_of)
def measurements_view(source: Any) -> View:
    """Size, times and bandwidths, one row per measurement.

    `source` is an iterable of `Measurement`, or what has them as ``measurements`` (a case, a run).
    """
    rows = sorted(getattr(source, "measurements", source), key=lambda m: (m.run, m.op, m.bytes))
    expected, words = judged(getattr(source, "expectation", None))
    if isinstance(source, Run) and rows:
        normal = _normal(judge_curve(source.curve, source.expectation))
    else:
        normal = Markup("")
    summary = _cut_short(source) or plots.bandwidth_summary(rows, expected, words)
    return View(summary, join(measurement_table(rows, expected), normal))


def _normal(judgement: Judgement | None) -> Markup:
    """Measured / expected = ratio, and the same beside other systems.

    It tells also what could explain a low one.
    """
    if judgement is None:
        return Markup("")
    best = format_number(judgement.best.busbw or 0.0)
    name = judgement.bound.allows
    bound = (
        f"what {name} allows" if name else "expected here",
        judgement.bound.value,
        judgement.ratio,
    )
    others = [(str(ref), ref.busbw, ratio) for ref, ratio in judgement.ratios]
    # a bound that was exceeded is none to compare with
    rows = others if judgement.exceeds else [bound, *others]
    if not rows:
        return el(
            "p", f"{best} GB/s busbw, {bandwidth.no_maximum(judgement.bound.value or 0.0, name)}."
        )
    compared = [
        (name, best, format_number(value or 0.0), percent(ratio)) for name, value, ratio in rows
    ]
    known = catalogue()
    suspects = [
        (code(name), page(name)[""], known[name].experiment(Case()).question)
        for name in judgement.suspects
    ]  # a case of its own: which experiment it is, not with which variables
    low = "This is low. These could explain it; the diagnosis checks each:"
    return join(
        el("h5", "Is this number as expected?"),
        fit(table(("Reference", "Measured, GB/s", "Expected, GB/s", "Ratio"), compared)),
        el("p", low) if suspects else "",
        fit(table(("Cause", "What it is", "The experiment that decides"), suspects)),
    )


def _cut_short(source: Any) -> str:
    """The summary of a run that failed; else empty.

    The speeds of such a run are of what came before.
    """
    if isinstance(source, Run) and source.reason != "done":
        return source.summary
    return ""


def tuning_view(source: Run | Iterable[Advice]) -> View:
    """What to set, with its reason, its check and its risk.

    It is drawn from a run's numbers, or is advice as it is given.
    """
    # its speeds are of what came before it failed
    if isinstance(source, Run) and source.reason != "done":
        said = "Nothing is advised from a live test that failed"
        return NoData("what to set", "the live test failed", said)
    if isinstance(source, Run):
        source = tune.advise(source.curve, source.expectation)
    rows = list(source)
    cards = (el("section", advice_part(advice), cls="nk-card") for advice in rows)
    return View(
        f"{plural(len(rows), 'piece')} of advice" if rows else "These numbers ask for no change",
        join(*cards),
    )
