"""The answer before all details: three sentences (what, who, what first) and one table of the job and the evidence."""

from __future__ import annotations

import time

from ncclkit.causes.engine import diagnose
from ncclkit.causes.summary import CitedLine, JobSummary, Summary, summarize
from ncclkit.core.case import Case
from ncclkit.core.text import host_list, plural
from ncclkit.evidence.logs import is_example
from ncclkit.views._base import View
from ncclkit.views._html import Markup, badge, code, el, fit, join, place, pre, table
from ncclkit.views.findings import STRENGTH

VERDICTS = {
    "unexplained": ("▲", "unexplained", "likely"),
    "healthy": ("✓", "healthy", "checked"),
    "no_job": ("–", "no job", "none"),
}
"""Badge of each verdict that names no cause."""
EXAMPLE = "Example: a recording that comes with ncclkit, of somebody else's job; it says nothing of this machine."
LINES, LETTERS = 4, 400
"""What is shown of the evidence that decides; the card below holds all of it."""


def banner_view(case: Case) -> View:
    """The verdict on a case as a reader of the ticket wants it first; the case is judged anew."""
    diagnosis = diagnose(case)
    known = summarize(case, diagnosis)
    sentence = known.sentence
    if known.verdict == "no_job" and case.facts and not case.inputs:
        checks = f"{plural(len(diagnosis.clear), 'check')} of this machine passed"
        sentence = f"No job ran here: {checks}, {len(diagnosis.unknown)} could not be evaluated for want of evidence"
    body = join(
        el("p", EXAMPLE, cls="nk-dim") if is_example(case) else "",
        _head(known),
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


def _head(known: Summary) -> Markup:
    if known.strength:
        symbol, word, means = STRENGTH[known.strength]
        return el(
            "div", badge(symbol, word, word), code(known.cause), el("span", means, cls="nk-dim"), cls="nk-card-head"
        )
    return el("div", badge(*VERDICTS[known.verdict]), cls="nk-card-head")


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
    collect = f"Collect: {known.would_tell[0]}" if known.would_tell else ""
    step = known.first_step or collect
    said = el("p", el("b", "First: "), step) if step else ""
    return join(said, pre(known.command) if known.command else "")


def _rows(known: Summary) -> list[tuple[object, object]]:
    heard = f", lines of {plural(len(known.ranks), 'rank')}" if known.ranks else ""
    rows = [
        ("Job", _job(known.job)),
        ("Versions", _versions(known.job)),
        ("When", _when(known.job)),
        ("Judged", f"{plural(known.files, 'file')}{heard}" if known.files else ""),
        ("Missing", join(*(el("div", sentence) for sentence in known.missing))),
        ("Reproduce", el("code", known.reproduce, cls="nk-reproduce") if known.reproduce else ""),
    ]
    return [(name, said) for name, said in rows if said]


def _job(job: JobSummary) -> str:
    """``4711: train.py, 16 ranks × 2 hosts (node-[1-2])``."""
    size = plural(job.ranks, "rank") if job.ranks else ""
    hosts = f"{plural(len(job.hosts), 'host')} ({host_list(job.hosts)})" if job.hosts else ""
    parts = [job.command, " on ".join(filter(None, (size, hosts)))]
    said = ", ".join(filter(None, parts))
    return f"{job.id}: {said}" if job.id and said else job.id or said


def _versions(job: JobSummary) -> str:
    named = (("NCCL", job.nccl), ("torch", job.torch), ("CUDA", job.cuda))
    return ", ".join(f"{name} {version}" for name, version in named if version)


def _when(job: JobSummary) -> str:
    if job.started is None or job.ended is None:
        return ""
    first, last = (time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(moment)) for moment in (job.started, job.ended))
    took = f", {job.ended - job.started:.0f} s" if job.ended > job.started else ""
    return f"{first} to {last} UTC{took}" if took else f"{first} UTC"
