"""The answer before all details.

It is three sentences (what, who, what first) and one table of the job and the evidence.
"""

from __future__ import annotations

import re
import shlex

from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.causes.order import is_risk
from ncclkit.causes.summary import LINES, CitedLine, Summary, summarize
from ncclkit.core.bandwidth import expect, first_judgement, recorded_bound, why_no_reference
from ncclkit.core.case import Case
from ncclkit.core.model import Finding
from ncclkit.core.text import percent, plural, some
from ncclkit.evidence.logs import is_example, read_logs
from ncclkit.live import scheduler
from ncclkit.views._answer import number_strip
from ncclkit.views._base import View
from ncclkit.views._html import Markup, badge, el, fit, join, location, pre, table, unbroken_ranges
from ncclkit.views.findings import NOT_EVALUATED, meaning, strength_part
from ncclkit.views.plots import bandwidth_summary

VERDICTS = {
    "unexplained": ("▲", "unexplained", "likely"),
    "slow": ("▲", "slower than it should be", "likely"),
    "healthy": ("✓", "healthy", "checked"),
    "running": ("▶", "at work", "checked"),
    "no_job": ("–", "no job", "none"),
}
"""Badge of each verdict that names no cause."""
ANCHOR = "nk-answer"
"""Where a link to the answer leads."""
EXAMPLE = (
    "Example: a recording that comes with ncclkit, of somebody else's job; it says nothing of this"
    " machine."
)
PASTED = "It came by standard input, which cannot be read again: judge it alone."
"""What stands for the verdict on another job that no file holds."""
WELL, WENT = "Nothing found: the job was seen to go well", "The job went well"
"""In the sentence of a healthy verdict, and in the title of a page that cites what shows it."""
READ_PAGE = "ncclkit causes "
"""How a command begins that does nothing but print what is known of a cause."""
OTHERS = 3
"""Further findings of facts that the answer names; the cards below it hold all."""
SEEN = "Seen in"
"""Row of the line that shows that a job went well."""
SQUARES = 64
"""Ranks that are drawn as squares; more would be a carpet."""
WHOLE = 36
"""Letters of a command that no line breaks: they fit on a phone."""
MAX_CHARS = 400
"""Letters that are shown of the line that decides; the card below holds all of it."""


def banner_view(case: Case, diagnosis: Diagnosis | None = None) -> View:
    """The verdict on a case as a reader of the ticket wants it first.

    Its sentence is `Diagnosis.headline`.  Without `diagnosis` the case is judged now.
    """
    diagnosis = diagnosis or diagnose(case)
    known = summarize(case, diagnosis)
    sentence = known.sentence
    if known.verdict == "no_job" and case.facts and not case.inputs:
        sentence = f"No job ran here: {diagnosis.checks}"
    speed = measured(case)
    rows = _rows(known, speed, linked=bool(diagnosis.unknown) and not is_example(case))
    title = unbroken_ranges(_title_of_page(sentence, diagnosis, speed))
    body = join(
        el("p", EXAMPLE, cls="nk-dim") if is_example(case) else "",
        el("p", scheduler.scheduler_sentence(case), cls="nk-dim")
        if scheduler.is_login_node()
        else "",
        _others(case),
        _head(known, diagnosis, speed),
        el("p", title, cls="nk-say"),
        _strip(known, diagnosis),
        _who(known),
        _first(known),
        *_others_by_facts(known, diagnosis),
        *_risks(known, diagnosis),
        fit(table(("", "The job, and what was judged"), rows)),
    )
    example = ""
    if is_example(case):
        example = " nk-example"
    edge = known.strength or known.verdict
    # the job went well, but the page is not all green while something waits for the next one
    if known.verdict == "healthy" and diagnosis.risks:
        edge = diagnosis.risks[0].strength or "possible"
    cls = f"nk-card nk-banner nk-edge-{edge}{example}"
    section = el("section", body, cls=cls, id=ANCHOR, data_case=case.path or "")
    return View(sentence, section, titled=False)


def _title_of_page(sentence: str, diagnosis: Diagnosis, speed: str) -> str:
    """The sentence without what the strip counts, and with the speed of a job that is well."""
    title = sentence.replace(f" ({diagnosis.checks})", "")
    # without what it is compared with, which stands in the table
    figure = re.split("[,;:]", speed)[0]
    if not figure or diagnosis.verdict != "healthy":
        return title
    # what was measured beside others is no speed of the machine
    if _is_busy(diagnosis):
        figure += " on a busy host"
    return title.replace(WELL, f"{WENT}: {figure}")


def _is_busy(diagnosis: Diagnosis) -> bool:
    """Whether others used the cores while the job ran."""
    return any(risk.cause == "cpu_contention" for risk in diagnosis.risks)


def _others(case: Case) -> Markup:
    """What is said of logs of several jobs.

    It is which one this page is about, and the verdict on each of the others.
    """
    rows: list[tuple[object, ...]] = []
    for paths in case.about.get("other_jobs") or ():
        # standard input has been read to its end
        if "-" in paths:
            rows.append((el("code", shlex.join(paths)), "–", PASTED))
            continue
        other = read_logs(shlex.join(paths))
        verdict = _short(diagnose(other))
        rows.append((el("code", other.about["logs"]), *verdict))
    if not rows:
        return Markup("")
    says = f"The logs are of {plural(len(rows) + 1, 'job')}. This page is about "
    head = ("Other job", "Verdict", "What is wrong")
    return join(el("p", says, el("code", case.about["logs"])), fit(table(head, rows)))


def _short(diagnosis: Diagnosis) -> tuple[object, str]:
    if diagnosis.verdict == "found":
        return strength_part(diagnosis.findings[0]), diagnosis.headline
    return badge(*VERDICTS[diagnosis.verdict]), diagnosis.headline


def _head(known: Summary, diagnosis: Diagnosis, speed: str) -> Markup:
    # a list of suspects is not the first of them: what they resemble stands in the sentence
    if known.verdict != "found":
        marks = [badge(*VERDICTS[known.verdict])]
        if known.verdict == "healthy" and speed and _is_busy(diagnosis):
            marks.append(badge("○", "speed uncertain: busy host", "possible"))
        return el("div", *marks, cls="nk-card-head")
    first = diagnosis.findings[0]
    return el(
        "div", strength_part(first), el("span", meaning(first), cls="nk-dim"), cls="nk-card-head"
    )


def _strip(known: Summary, diagnosis: Diagnosis) -> Markup:
    """How many causes were found, passed and not evaluated.

    With it comes a square for each rank.  It is the shape by which a page is known again among
    others.
    """
    found = 0
    if known.verdict == "found":
        found = len(diagnosis.findings)
    numbers = [(f"{found:,}", "found")]
    risks = len(diagnosis.risks)
    if risks:
        noun = "risk" if risks == 1 else "risks"
        numbers.append((f"{risks:,}", noun))
    numbers.append((f"{len(diagnosis.clear):,}", "passed"))
    numbers.append((f"{len(diagnosis.unknown):,}", "not evaluated"))
    return number_strip(numbers, _rank_squares(known))


def _rank_squares(known: Summary) -> Markup:
    """One square a rank, those at fault dark.

    It is nothing where ranks are not known or too many.
    """
    count = known.job.ranks or 0
    if not 1 < count <= SQUARES:
        return Markup("")
    at_fault = set()
    if known.culprit:
        at_fault = {place.rank for place in known.culprit.ranks}
    squares = []
    for rank in range(count):
        squares.append(el("i", cls="nk-at-fault" if rank in at_fault else "nk-rank"))
    label = plural(count, "rank")
    if at_fault:
        label += f", at fault: {some(sorted(at_fault))}"
    drawn = el("span", *squares, cls="nk-squares", role="img", aria_label=label, title=label)
    return el("span", drawn, " ", el("span", plural(count, "rank"), aria_hidden="true"))


def _who(known: Summary) -> Markup:
    """The culprit and the line that decides.

    Of what nobody can explain it is the errors.  What shows that a job is well stands in the table.
    """
    if known.verdict == "healthy":
        return el("p", el("b", "At fault: "), "nobody")
    at = Markup("")
    if known.culprit:
        at = el("p", el("b", "At fault: "), known.culprit.sentence)
    if known.line:
        lines = [known.line]
    else:
        lines = list(known.errors)
    return join(at, *map(_cited, lines))


def _cited(line: CitedLine) -> Markup:
    """The line, or the beginning of what a tool said in several.

    Of a traceback it is the last one.
    """
    trace = "most recent call" in line.text
    if trace:
        said = line.short
    else:
        said = "\n".join(line.text.splitlines()[:LINES])
    return el(
        "figure",
        el("figcaption", location(line.path, line.line)),
        pre(said[:MAX_CHARS]),
        cls="nk-cite",
    )


def _first(known: Summary) -> Markup:
    """The first thing to do, or to collect."""
    if not known.first_step:
        return Markup("")
    said = el("p", el("b", "First: "), known.first_step)
    if known.command.startswith(READ_PAGE):
        return join(said, el("p", el("b", "Read more: "), el("code", known.command)))
    command = Markup("")
    if known.command:
        command = pre(known.command)
    return join(said, command)


def _others_by_facts(known: Summary, diagnosis: Diagnosis) -> list[Markup]:
    """What else the facts of a machine say: each stands for itself, none explains the first."""
    said: list[Markup] = []
    if known.verdict != "found" or not is_risk(diagnosis.findings[0]):
        return said
    for other in diagnosis.findings[1 : 1 + OTHERS]:
        if is_risk(other):
            named = el("b", f"Also ({other.strength}): ")
            said.append(el("p", named, *_with_fix(other)))
    return said


def _risks(known: Summary, diagnosis: Diagnosis) -> list[Markup]:
    """A sentence for each risk and its fix, but for the fix that was named as the first step."""
    said = []
    for risk in diagnosis.risks:
        sentence = _with_fix(risk)
        fixes = [advice.do for advice in risk.advice[:1]]
        if known.first_step.startswith(tuple(fixes)):
            sentence = [risk.say]
        named = el("b", f"Risk ({risk.strength}): ")
        said.append(el("p", named, *sentence))
    return said


def _with_fix(finding: Finding) -> list[object]:
    """The sentence of a finding and the first thing to do about it, with what to paste as code."""
    if not finding.advice:
        return [finding.say]
    first = finding.advice[0]
    parts: list[object] = [finding.say, el("b", " Fix: "), first.do]
    for line in first.exports:
        shown = el("code", line)
        if len(line) <= WHOLE:
            shown = el("span", shown, cls="nk-whole")
        parts.append(" ")
        parts.append(shown)
    return parts


def measured(case: Case) -> str:
    """The fastest collective of the last run; empty without a run.

    It stands beside what was expected, as the curve says it.
    """
    last = [row for row in case.measurements if row.run == case.measurements[-1].run]
    known = next((row for row in last if row.expected), None)
    if known is None:
        if not last:
            return ""
        row = last[0]
        expected = expect(row.op, row.backend, row.ranks, case.facts, row.hosts)
        return bandwidth_summary(last, words=why_no_reference(expected))
    bound = recorded_bound(known, case.facts)
    said = bandwidth_summary(last, known.expected, bound.allows if bound else "")
    compared = first_judgement([row for row in last if row.op == known.op], bound)
    # neither: the message is too small for its speed to say anything of the links
    if compared is None or compared.exceeds or not (compared.low or compared.normal):
        return said
    if compared.slow:
        verdict = "slower than it should be"
    elif compared.low:
        verdict = "low"
    else:
        verdict = "normal"
    return f"{said}: {verdict}, as {percent(compared.least)} and more is usual"


def _rows(known: Summary, measured: str, linked: bool) -> list[tuple[object, object]]:
    """The rows of the summary.

    What was measured stands before what was judged.
    """
    rows = known.rows()
    place = next((number for number, (name, _) in enumerate(rows) if name == "Judged"), len(rows))
    if known.verdict == "healthy" and known.line:
        rows[place:place] = [(SEEN, "")]
    if measured:
        rows[place:place] = [("Measured", measured)]
    link = ""
    if linked:
        link = join(" ", el("a", "Which ones?", href=f"#{NOT_EVALUATED}"))
    times = re.split(r" (?=to \d)|(?<=,) ", known.job.when)  # a date is never broken at its hyphens
    seen = Markup("")
    line = known.line
    if line:
        said = el("code", line.short)
        where = location(line.path, line.line)
        seen = join(said, " in ", where)
    shown = {
        SEEN: seen,
        "When": Markup(" ").join(el("span", part, cls="nk-whole") for part in times),
        "Missing": join(
            *(
                el("div", sentence, link * (sentence == known.missing[-1]))
                for sentence in known.missing
            )
        ),
        "Reproduce": el("code", known.reproduce, cls="nk-reproduce"),
    }
    return [(name, shown.get(name, said)) for name, said in rows]
