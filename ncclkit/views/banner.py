"""The answer before all details: three sentences (what, who, what first) and one table of the job and the evidence."""

from __future__ import annotations

from ncclkit.causes.engine import Diagnosis, diagnose
from ncclkit.causes.summary import CitedLine, Summary, summarize
from ncclkit.core.case import Case
from ncclkit.core.text import plural
from ncclkit.evidence.logs import is_example
from ncclkit.views._base import View
from ncclkit.views._html import Markup, badge, el, fit, join, place, pre, table
from ncclkit.views.findings import meaning, strength_part

VERDICTS = {
    "unexplained": ("▲", "unexplained", "likely"),
    "healthy": ("✓", "healthy", "checked"),
    "no_job": ("–", "no job", "none"),
}
"""Badge of each verdict that names no cause."""
EXAMPLE = "Example: a recording that comes with ncclkit, of somebody else's job; it says nothing of this machine."
LINES, LETTERS = 4, 400
"""What is shown of the evidence that decides; the card below holds all of it."""


def banner_view(case: Case, diagnosis: Diagnosis | None = None) -> View:
    """The verdict on a case as a reader of the ticket wants it first; without `diagnosis` the case is judged now."""
    diagnosis = diagnosis or diagnose(case)
    known = summarize(case, diagnosis)
    sentence = known.sentence
    if known.verdict == "no_job" and case.facts and not case.inputs:
        checks = f"{plural(len(diagnosis.clear), 'check')} of this machine passed"
        sentence = f"No job ran here: {checks}, {len(diagnosis.unknown)} could not be evaluated for want of evidence"
    body = join(
        el("p", EXAMPLE, cls="nk-dim") if is_example(case) else "",
        _head(known, diagnosis),
        el("p", sentence, cls="nk-say"),
        _who(known),
        _first(known),
        fit(table(("", "The job, and what was judged"), _rows(known))),
    )
    example = " nk-example" if is_example(case) else ""
    return Banner(
        sentence, el("section", body, cls=f"nk-card nk-banner nk-edge-{known.strength or known.verdict}{example}")
    )


class Banner(View):
    """See `banner_view`."""

    def static(self) -> Markup:
        """The section alone: it holds the sentence."""
        return el("div", self.body, cls="nk")


def _head(known: Summary, diagnosis: Diagnosis) -> Markup:
    if not diagnosis.findings:
        return el("div", badge(*VERDICTS[known.verdict]), cls="nk-card-head")
    first = diagnosis.findings[0]
    return el("div", strength_part(first), el("span", meaning(first), cls="nk-dim"), cls="nk-card-head")


def _who(known: Summary) -> Markup:
    """The culprit and the line that decides; of what nobody can explain, the errors."""
    at = el("p", el("b", "At fault: "), known.culprit.sentence) if known.culprit else ""
    lines = [known.line] if known.line else list(known.errors)
    return join(at, *map(_cited, lines))


def _cited(line: CitedLine) -> Markup:
    """The line, or the beginning of what a tool said in several; of a traceback the last one."""
    trace = "most recent call" in line.text
    said = line.short if trace else "\n".join(line.text.splitlines()[:LINES])
    return el("figure", el("figcaption", place(line.path, line.line)), pre(said[:LETTERS]), cls="nk-cite")


def _first(known: Summary) -> Markup:
    """The first thing to do, or to collect."""
    said = el("p", el("b", "First: "), known.first_step) if known.first_step else ""
    return join(said, pre(known.command) if known.command else "")


def _rows(known: Summary) -> list[tuple[object, object]]:
    shown = {
        "Missing": join(*(el("div", sentence) for sentence in known.missing)),
        "Reproduce": el("code", known.reproduce, cls="nk-reproduce"),
    }
    return [(name, shown.get(name, said)) for name, said in known.rows()]
