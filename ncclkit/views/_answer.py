"""The answer of a measurement, as large as a verdict: a sentence, and a strip of numbers.

A report makes the sentence its title (`ncclkit.report.page`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ncclkit.views._html import Markup, el, fit, join, table

Number = tuple[str, str]
"""A figure in words, and what it counts."""


@dataclass(frozen=True, slots=True)
class MeasuredAnswer:
    """What a measurement says, before all details."""

    sentence: str
    badge: Markup
    edge: str
    """Which colour its edge has: a verdict of `ncclkit.views.banner`, or ``none``."""
    numbers: tuple[Number, ...]
    more: tuple[object, ...] = ()
    """What a reader needs besides, in sentences."""
    rows: tuple[tuple[str, object], ...] = ()
    """What was measured and how, as the table below a verdict has it."""

    def banner(self, *classes: str, fold: str = "") -> Markup:
        """The card that stands above the details.

        fold: what a report writes on it where the answer is for who opens it.
        """
        how = Markup("")
        if self.rows:
            how = fit(table(("", "What was measured"), self.rows))
        body = join(
            el("div", self.badge, cls="nk-card-head"),
            el("p", self.sentence, cls="nk-say"),
            number_strip(self.numbers),
            *(el("div", each) for each in self.more),
            how,
        )
        named = " ".join(("nk-card nk-banner nk-answer", f"nk-edge-{self.edge}", *classes))
        return el("section", body, cls=named, data_fold=fold or False)


def number_strip(numbers: Iterable[Number], *more: object) -> Markup:
    """Figures in a row, by which a page is known again among others."""
    shown = [el("span", el("b", figure), f" {name}") for figure, name in numbers]
    return el("p", *shown, *more, cls="nk-strip")
