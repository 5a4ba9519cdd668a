"""A staged run as a table: how each stage ended, what it took, and whether equal data gave equal loss."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ncclkit.core.text import format_bytes, format_number, plural
from ncclkit.lab.course.staged_run import Stage
from ncclkit.views._base import View
from ncclkit.views._html import Markup, badge, el, fit, join, table
from ncclkit.views.experiments import ENDS

HEAD = ("Ranks", "Asked", "Ended", "First step", "Memory, at most", "Last loss")
ROUNDING = 1e-4
"""Relative difference of two losses that the order of additions explains (float32, a few thousand terms)."""


def stages_view(stages: Sequence[Stage]) -> View:
    """One row per stage, the first one on top."""
    if not stages:
        return View("No stage was run yet", Markup(""))
    apart = apart_by(stages)
    equal = apart is not None and apart < ROUNDING
    most = f"{apart:.1e} of the loss" if apart else "none"
    told = "" if apart is None else f"Largest difference between losses that should be equal: {most}."
    body = join(fit(table(HEAD, [_row(stage) for stage in stages], "nk-numbers")), el("p", told, cls="nk-dim"))
    last = stages[-1].run
    if last.reason != "done":
        return View(f"Stop here, before more data or more ranks are used: {last.summary}", body)
    well = "The stage succeeded" if len(stages) == 1 else f"All {plural(len(stages), 'stage')} succeeded"
    loss = "" if apart is None else f", and equal batches gave {'equal' if equal else 'DIFFERENT'} losses"
    return View(well + loss, body)


def apart_by(stages: Sequence[Stage]) -> float | None:
    """Largest relative difference between losses of stages with equal data and batch; None where no two are alike.

    Neither ranks nor micro-batches may change what a step learns.
    """
    alike = defaultdict(list)
    for stage in stages:
        asked = {name: value for name, value in stage.options.items() if name != "accumulate"}
        if stage.losses:
            alike[tuple(sorted(asked.items()))].append(stage.losses)
    differences = [
        abs(value - first) / max(abs(first), 1e-12)
        for first_losses, *others in alike.values()
        for losses in others
        for first, value in zip(first_losses, losses, strict=True)
    ]
    return max(differences, default=None)


def _row(stage: Stage) -> tuple[object, ...]:
    symbol, words, kind = ENDS.get(stage.run.reason, ("•", stage.run.reason, ""))
    return (
        stage.run.plan.ranks,
        ", ".join(f"{name} {value}" for name, value in stage.options.items()) or "as it is",
        badge(symbol, words, kind),
        "–" if stage.ready is None else f"{format_number(stage.ready)} s",
        "–" if stage.peak is None else format_bytes(stage.peak),
        f"{stage.losses[-1]:.5f}" if stage.losses else "–",
    )
