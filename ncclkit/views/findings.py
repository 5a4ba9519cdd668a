"""Findings as cards: the culprit first, the very lines that prove it, what to do, how to be sure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from ncclkit.core.model import Advice, Event, Evidence, Experiment, Fact, Finding, cite
from ncclkit.core.text import plural, some
from ncclkit.views._base import View
from ncclkit.views._html import Markup, badge, code, el, fold, join, pre, table, text, value

STRENGTH = {
    "proven": ("●", "proven", "a line or an experiment says so"),
    "likely": ("◐", "likely", "the evidence is indirect"),
    "possible": ("○", "possible", "only the symptom fits"),
}
RISK = {"likely": "by facts alone: a job here would suffer", "possible": "by facts alone: a job here may suffer"}
"""The same of what only facts tell: it explains no job, it warns of one."""
MOST = 20
"""Errors without a known cause that are cited."""
SHOWN = 4
"""Pieces of evidence shown at once; the others are folded."""


def findings_view(source: Any) -> View:
    """Cards of findings, best first, as `source` orders them.

    `source`: an iterable of `Finding`; or what has them as ``findings``, and
    perhaps ``unknown`` and ``clear`` (a case, a diagnosis).
    """
    held = hasattr(source, "findings")
    parts = [getattr(source, name, ()) for name in ("findings", "unknown", "clear")] if held else [source]
    rows = [finding for part in parts for finding in part]
    found, unknown, clear = (_of(rows, verdict) for verdict in ("found", "unknown", "clear"))
    errors, risks = getattr(source, "errors", ()), getattr(source, "risks", ())
    body = join(
        *(card(finding, number) for number, finding in enumerate(found, 1)),
        evidence_part(errors[:MOST]),
        el("h5", "Risks that this job did not suffer") if risks else "",
        *(fold(f"{risk.cause} ({risk.strength}): {risk.say}", *map(advice_part, risk.advice)) for risk in risks),
        fold(
            f"Not evaluated: evidence missing for {plural(len(unknown), 'cause')}",
            table(("Cause", "What is missing"), [(code(f.cause), _missing(f)) for f in unknown]),
        ),
        fold(
            f"{plural(len(clear), 'check')} passed",
            table(("Cause", "Why it is clear"), [(code(f.cause), f.say or "no sign of it") for f in clear]),
        ),
    )
    summary = getattr(source, "headline", "") if not found else ""
    return View(summary.rstrip(".") or findings_summary(rows), body)


def findings_summary(rows: Iterable[Finding]) -> str:
    """The conclusion over all verdicts, in one sentence."""
    rows = list(rows)
    found, unknown = _of(rows, "found"), _of(rows, "unknown")
    rest = f"{plural(len(unknown), 'cause')} could not be judged" if unknown else ""
    if found:
        more = f" (and {plural(len(found) - 1, 'further finding')})" if len(found) > 1 else ""
        return f"{(found[0].say or found[0].cause).rstrip('.')}{more}"
    if not rows:
        return "No cause has been judged yet"
    looked = f"Nothing found: {plural(len(rows) - len(unknown), 'cause')} looked and saw no sign"
    return f"{looked}; {rest}" if rest else looked


def card(finding: Finding, number: int) -> Markup:
    """One found cause: verdict, culprits, evidence, advice, next experiment."""
    symbol, word, means = STRENGTH[finding.strength or "possible"]
    if all(isinstance(piece, Fact) for piece in finding.evidence):
        means = RISK.get(word, means)
    head = el(
        "div", badge(symbol, word, word), code(finding.cause), el("span", means, cls="nk-dim"), cls="nk-card-head"
    )
    return el(
        "section",
        head,
        el("h4", f"{number}. {finding.say or finding.cause}"),
        _culprits(finding),
        evidence_part(finding.evidence),
        *(advice_part(advice) for advice in finding.advice),
        _experiment(finding.next),
        cls=f"nk-card nk-edge-{word}",
    )


def _of(rows: Iterable[Finding], verdict: str) -> list[Finding]:
    return [finding for finding in rows if finding.verdict == verdict]


def _culprits(finding: Finding) -> Markup:
    named = {key: some(names) for key, names in finding.culprits.items() if names}
    chips = (el("span", el("b", key), " ", names, cls="nk-chip") for key, names in named.items())
    return el("p", *chips) if named else Markup("")


def evidence_part(evidence: tuple[Evidence, ...]) -> Markup:
    """The very lines, each with its place; the first few at once, the others folded."""
    lines = [_line(piece) for piece in evidence]
    rest = lines[SHOWN:]
    return join(el("h5", "Evidence"), *lines[:SHOWN], fold(f"{len(rest)} more", *rest)) if lines else Markup("")


def _line(piece: Evidence) -> Markup:
    cited = cite(piece)
    where = f"{cited['path']}:{cited['line']}" if cited["line"] else cited["path"] or type(piece).__name__.lower()
    times = f" × {piece.count:,}" if isinstance(piece, Event) and piece.count > 1 else ""
    rank = f"rank {piece.rank}" if isinstance(piece, Event) and piece.rank is not None else ""
    caption = el("figcaption", el("span", where, cls="nk-path"), times, " ", rank)
    return el("figure", caption, pre(cited["text"]), cls="nk-cite")


def advice_part(advice: Advice) -> Markup:
    """One advice: what to do, what to copy, why, how to know that it worked, the risk."""
    setting = "\n".join(f"export {name}={shlex.quote(str(chosen))}" for name, chosen in advice.env.items())
    notes = [("Why", advice.why), ("How to know it worked", advice.check), ("Risk", advice.risk)]
    return el(
        "div",
        el("h5", "What to do"),
        el("p", advice.do, cls="nk-do"),
        *(pre(block) for block in (setting, advice.command, advice.code) if block),
        el("dl", *(join(el("dt", name), el("dd", note)) for name, note in notes if note), cls="nk-pairs"),
        cls="nk-advice",
    )


def _experiment(experiment: Experiment | None) -> Markup:
    if experiment is None:
        return Markup("")
    rows = [(code(cause), seen) for cause, seen in experiment.predicts.items()]
    plan = fold("What it runs", value(dict(experiment.plan))) if experiment.plan else ""
    return el(
        "div",
        el("h5", "Next experiment"),
        el("p", experiment.question),
        table(("If the cause is", "you will see"), rows),
        plan,
        cls="nk-next",
    )


def _missing(finding: Finding) -> Markup:
    needs = el("ul", *(el("li", need) for need in finding.missing)) if finding.missing else text("not said")
    return join(needs, _experiment(finding.next))
