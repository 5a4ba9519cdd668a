"""The exchange on few ranks and on more: the same values, its speed, and the open files that it will need on many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from ncclkit.core import budgets
from ncclkit.core.text import format_number, plural
from ncclkit.lab.course.scaling_run import BY_HAND, LIBRARY, Step
from ncclkit.views import plots
from ncclkit.views._base import Drawn, View
from ncclkit.views._draw import BLUE, blank
from ncclkit.views._html import Markup, badge, el, fit, join, table

LAYOUTS = {"one": "one communicator for all", "pairs": "one for each pair as well"}
"""Field of `Step` → how a line of the figure is named."""
COLOURS = {"one": BLUE, "pairs": plots.VERMILLION}
HEAD = ("Ranks", "Wrong", "By hand, GB/s", "Library, GB/s", "Files, one", "Files, pairs")


def scaling_view(steps: Sequence[Step], ranks: int = 32) -> View:
    """Correctness, speed and open files for each count of ranks, and the files that a rank needs on `ranks` of them."""
    if not steps:
        return View("No scaling run was made yet", Markup(""))
    files = {way: {step.ranks: value for step in steps if (value := getattr(step, way)) is not None} for way in LAYOUTS}
    known = len(files["one"]) > 1
    plans = {way: budgets.open_files(counts, ranks) for way, counts in files.items()} if known else {}
    limit = min((step.limit for step in steps if step.limit is not None), default=None)
    body = join(
        el("h5", "Bus bandwidth of the largest message, and open files of a rank"),
        fit(table(HEAD, [_row(step) for step in steps], "nk-numbers")),
        *(el("p", f"{LAYOUTS[way].capitalize()}: {plan.words}", cls="nk-dim") for way, plan in plans.items()),
        el("p", _advice({way: plan.value for way, plan in plans.items()}, ranks, limit)) if plans else "",
    )
    return Drawn(_summary(steps, plans, ranks), _figure(files, plans, ranks, limit) if plans else None, body)


def _summary(steps: Sequence[Step], plans: Mapping[str, budgets.Budget], ranks: int) -> str:
    last = steps[-1]
    if last.run.reason != "done":
        return f"Stop here, before more ranks are used: {last.run.summary}"
    wrong = sum(m.wrong or 0 for step in steps for m in step.run.measurements)
    same = "every value is right" if not wrong else f"{wrong:,} values are WRONG"
    counts = " and ".join(str(step.ranks) for step in steps)
    summary = f"On {counts} ranks {same}, by hand and by the library"
    if not plans:
        return summary
    one, pairs = (plans[way].value for way in LAYOUTS)
    return f"{summary}; on {ranks} ranks one communicator needs {one:,.0f} open files of a rank, and pairs {pairs:,.0f}"


def _advice(needs: Mapping[str, float], ranks: int, limit: int | None) -> str:
    """How the need compares with what a rank may open, and the ranks at which pairs would exceed it."""
    if limit is None or limit < 0:
        return "How many files a rank may open is unlimited or not known: ask ulimit -n inside the job."
    room = f"A rank may open {plural(limit, 'file')} (ulimit -n inside the job)"
    short = [LAYOUTS[way] for way, need in needs.items() if need > limit]
    if short:
        return f"{room}: too few on {ranks} ranks for {' and for '.join(short)}. Raise it in the job script."
    return f"{room}: enough on {ranks} ranks, before any data-loader worker has opened its own."


def _row(step: Step) -> tuple[object, ...]:
    speeds = [step.speed(op) for op in (BY_HAND, LIBRARY)]
    wrong = sum(m.wrong or 0 for m in speeds if m)
    cell = badge("✕", f"{wrong:,}", "state-failed") if wrong else "0" if all(speeds) else step.run.reason
    return (
        str(step.ranks),
        cell,
        *(format_number(m.busbw) if m and m.busbw else "–" for m in speeds),
        *("–" if value is None else f"{value:,}" for value in (step.one, step.pairs)),
    )


def _figure(
    files: Mapping[str, Mapping[int, int]], plans: Mapping[str, budgets.Budget], ranks: int, limit: int | None
) -> go.Figure:
    """Open files against ranks: measured as marks, continued as a dotted line, the limit as a dashed one."""
    figure = blank(height=300)
    for way, counts in files.items():
        most = max(counts)
        look = {"color": COLOURS[way], "width": 2}
        figure.add_scatter(
            x=[*counts, ranks],
            y=[*counts.values(), plans[way].value],
            name=LAYOUTS[way],
            mode="lines+markers",
            line=look | {"dash": "dot"},
            marker={
                "size": 9,
                "color": COLOURS[way],
                "symbol": ["circle" if at <= most else "circle-open" for at in (*counts, ranks)],
            },
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
    figure.update_yaxes(title={"text": "open files of a rank"}, type="log", dtick=1)
    return figure
