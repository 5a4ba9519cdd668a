"""A run of the live test: the form that makes one, its curve, its table, and the advice drawn from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ncclkit.analysis.history import beside_baseline
from ncclkit.causes import catalogue, page
from ncclkit.core import bandwidth
from ncclkit.core.bandwidth import Judgement, judge
from ncclkit.core.case import Case
from ncclkit.core.model import Advice
from ncclkit.core.runs import Run
from ncclkit.core.text import format_number, percent, plural
from ncclkit.live import tune
from ncclkit.views import plots
from ncclkit.views._base import Chart, View
from ncclkit.views._html import Markup, code, el, fit, join, table
from ncclkit.views.findings import advice_part
from ncclkit.views.history import with_baseline
from ncclkit.views.tables import measurement_table


def judged(expectation: bandwidth.Expectation | None) -> tuple[float | None, str]:
    """An expectation as `plots.bandwidth` takes it: busbw in GB/s and the words of the title."""
    if expectation is None or expectation.value is None:
        return None, ""
    return expectation.value, expectation.allows


def curve_view(run: Run) -> Chart:
    """Bandwidth against message size, the expectation drawn, and under it where that comes from; time for one rank.

    The baseline of this cluster is drawn, too, where there is one.
    """
    if run.measurements and run.plan.ranks == 1:
        return Chart(plots.latency(run.measurements))
    judgement = judge(run.curve, run.expectation) if run.measurements else None
    derived = el("p", el("b", "Expected: "), run.expectation.words) if run.expectation else ""
    beside = "; ".join(f"{ref} = {percent(ratio)}" for ref, ratio in judgement.ratios) if judgement else ""
    against, curve = beside_baseline(run.measurements if run.reason == "done" else ())
    elsewhere = f"Measured elsewhere: {beside}." if beside else ""
    notes = (run.expectation.note if run.expectation else "", elsewhere, against)
    caption = join(derived, el("p", " ".join(filter(None, notes)), cls="nk-dim") if any(notes) else "")
    figure = plots.bandwidth(run.measurements, *judged(run.expectation), _cut_short(run))
    return Chart(with_baseline(figure, curve), caption)


def measurements_view(source: Any) -> View:
    """Size, times and bandwidths, one row per measurement.

    `source`: an iterable of `Measurement`, or what has them as ``measurements`` (a case, a run).
    """
    rows = sorted(getattr(source, "measurements", source), key=lambda m: (m.run, m.op, m.bytes))
    expected, words = judged(getattr(source, "expectation", None))
    normal = _normal(judge(source.curve, source.expectation)) if isinstance(source, Run) and rows else Markup("")
    summary = _cut_short(source) or plots.bandwidth_summary(rows, expected, words)
    return View(summary, join(measurement_table(rows, expected), normal))


def _normal(judgement: Judgement | None) -> Markup:
    """Measured / expected = ratio, the same beside other systems, and what could explain a low one."""
    if judgement is None:
        return Markup("")
    best = format_number(judgement.best.busbw or 0.0)
    name = judgement.bound.allows
    bound = (f"what {name} allows" if name else "expected here", judgement.bound.value, judgement.ratio)
    rows = [bound, *((str(ref), ref.busbw, ratio) for ref, ratio in judgement.ratios)]
    compared = [(name, best, format_number(value or 0.0), percent(ratio)) for name, value, ratio in rows]
    known = catalogue()
    suspects = [
        (code(name), page(name)[""], known[name].experiment(Case()).question) for name in judgement.suspects
    ]  # a case of its own: which experiment it is, not with which variables
    low = "This is low. These could explain it; the diagnosis checks each:"
    return join(
        el("h5", "Is this number normal?"),
        fit(table(("Reference", "Measured, GB/s", "Expected, GB/s", "Ratio"), compared)),
        el("p", low) if suspects else "",
        fit(table(("Cause", "What it is", "The experiment that decides"), suspects)),
    )


def _cut_short(source: Any) -> str:
    """The summary of a run that failed, as its speeds are of what came before; else empty."""
    return source.summary if isinstance(source, Run) and source.reason != "done" else ""


def tuning_view(source: Run | Iterable[Advice]) -> View:
    """What to set, with its reason, its check and its risk: drawn from a run's numbers, or advice as it is given."""
    if isinstance(source, Run) and source.reason != "done":
        return View("Nothing is advised from a live test that failed", Markup(""))
    if isinstance(source, Run):
        source = tune.advise(source.curve, source.expectation)
    rows = list(source)
    cards = (el("section", advice_part(advice), cls="nk-card") for advice in rows)
    return View(f"{plural(len(rows), 'piece')} of advice" if rows else "These numbers ask for no change", join(*cards))
