"""Cases of several times side by side: their curves, what became slower, and what changed on the hosts between."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go

from ncclkit.analysis.history import Change, History, compare_cases
from ncclkit.core.case import Case
from ncclkit.core.model import Measurement, safe
from ncclkit.core.text import format_bytes, format_time, percent
from ncclkit.views import plots
from ncclkit.views._base import Chart, View
from ncclkit.views._html import Markup, badge, el, fit, fold, join, table


def compare_view(*cases: Case | str | Path) -> View:
    """The same test of several cases, the oldest first, and what changed between; one alone stands beside the baseline.

    cases: case folders, or cases.  Raises NcclkitError for one case where this cluster has no baseline.
    """
    return _drawn(compare_cases(cases))


def _drawn(found: History) -> View:
    rows = [
        (_mark(one), one.op, format_bytes(one.bytes), format_time(one.before), format_time(one.after))
        for one in found.changes
    ]
    head = ("Verdict", "Collective", "Size", found.labels[0], found.labels[-1])
    changed = table(("What changed on the hosts",), [(one,) for one in found.differences])
    sizes = fold("Every size", fit(table(head, rows, "nk-numbers")), is_open=len(rows) <= 12) if rows else Markup("")
    body = join(el("h5", "Between them") if found.differences else "", fit(changed), sizes)
    curves = [m for label in found.labels for m in found.curves.get(label, ())]
    return Chart(plots.bandwidth(curves, summary=found.summary), body) if curves else View(found.summary, body)


def _mark(one: Change) -> Markup:
    if not one.matters:
        return badge("○", "as before", "possible")
    slow = one.slower > 0
    words = f"{percent(abs(one.slower))} {'slower' if slow else 'faster'}"
    return badge("✕" if slow else "✓", words, "state-failed" if slow else "state-done")


def with_baseline(figure: go.Figure, curve: Sequence[Measurement]) -> go.Figure:
    """The figure of a live test with a baseline's curve in it, dotted; unchanged where there is none."""
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
    low, high = figure.layout.yaxis.range
    return figure.update_layout(yaxis_range=[low, max(high, 1.14 * max(speeds))])
