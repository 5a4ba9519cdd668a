"""Findings as cards, and the catalogue.

The culprit comes first, then the very lines that prove it, what to do, and how to be sure.  The
verdict also stands beside pictures: a headline that points at one rank says so when the verdict
names another.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from ncclkit.causes import TO_COPY, catalogue, page
from ncclkit.causes.diagnosis import LOOKS_LIKE
from ncclkit.causes.order import is_risk
from ncclkit.causes.resemblance import is_resembling
from ncclkit.causes.suspects import LOOK_FIRST
from ncclkit.core.model import Advice, Event, Evidence, Experiment, Finding, cite
from ncclkit.core.text import numbered, plural, some, start
from ncclkit.evidence import samples
from ncclkit.views._base import View
from ncclkit.views._html import (
    Markup,
    badge,
    code,
    common,
    el,
    fold,
    join,
    location,
    pre,
    sentence,
    table,
    escaped_text,
    value,
)

SURE = ("proven", "likely")
"""Strengths of a verdict that a headline must not contradict."""


Headline = tuple[str, Sequence[int]]
"""A sentence, and the ranks that it blames."""


class Culprits(NamedTuple):
    """The ranks and hosts that the first finding names."""

    cause: str
    strength: str
    ranks: frozenset[int]


def culprits(findings: Iterable[Finding]) -> Culprits | None:
    """The ranks that the first finding names.

    It is None where it names none or is merely possible.
    """
    first = sure_finding(findings)
    if first is None or not first.culprits.get("ranks"):
        return None
    return Culprits(first.cause, first.strength or "", frozenset(first.culprits["ranks"]))


def sure_finding(findings: Iterable[Finding]) -> Finding | None:
    """The first finding; None where it is merely possible."""
    first = next((finding for finding in findings if finding.verdict == "found"), None)
    # what is only possible must not contradict a picture
    if first is None or first.strength not in SURE:
        return None
    return first


def silence_beside(
    findings: Iterable[Finding], silent: Sequence[int], others: Sequence[int], gap: float
) -> str:
    """Who stopped logging first, in words that blame nobody whom the verdict does not name.

    Ranks that fell `silent`, seconds before the `others`.
    """
    before = f"{gap:,.1f} s before any other"
    first = sure_finding(findings)
    # where most fell silent it is the others that are odd
    if first is None and len(silent) > len(others):
        longer = f"{gap:,.1f} s longer than {numbered('rank', silent)}"
        return f"Only {numbered('rank', others)} logged on, {longer}"
    named = set()
    if first is not None:
        named = {*first.culprits.get("ranks", ())}
    if first is None or named & {*silent}:
        return f"{numbered('Rank', silent)} stopped logging first, {before}"
    verdict = f"({first.cause}, {first.strength})"
    who = f"The verdict names no rank {verdict}"
    if named:
        verb = "are the culprits"
        if len(named) == 1:
            verb = "is the culprit"
        who = f"{numbered('Rank', named)} {verb} {verdict}"
    return f"{who}, whoever fell silent first: {numbered('rank', silent)}, {before}"


def headline_beside(verdict: Culprits | None, sentence: str, ranks: Iterable[int]) -> str:
    """`sentence` behind the culprits where the verdict names none of its ranks.

    It points at `ranks`.
    """
    pointed = set(ranks)
    if verdict is None or not pointed or verdict.ranks & pointed:
        return sentence
    verb = "are the culprits"
    if len(verdict.ranks) == 1:
        verb = "is the culprit"
    return (
        f"{numbered('Rank', verdict.ranks)} {verb} ({verdict.cause}, {verdict.strength})."
        f" {sentence}"
    )


STRENGTH = {
    "proven": ("●", "proven", "a line or an experiment says so"),
    "likely": ("◐", "likely", "the evidence is indirect"),
    "possible": ("○", "possible", "only the symptom fits"),
}
RISK = {
    "likely": "by facts alone: a job here would suffer",
    "possible": "by facts alone: a job here may suffer",
}
"""The same of what only facts tell: it explains no job, it warns of one."""
MOST = 20
"""Errors without a known cause that are cited."""
SHOWN = 4
"""Pieces of evidence shown at once; the others are folded."""
NOT_EVALUATED = "not-evaluated"
"""Where a banner links to: the list of the causes whose evidence is missing."""
PARTS = ("findings", "unknown", "clear")
MARKS = re.compile(r"^(?:\[[\w.-]+\]:? ?)+", re.MULTILINE)
"""What torch and launchers write before the lines of a rank."""
NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


def findings_view(source: Any, headline: bool = True) -> View:
    """Cards of findings, best first, as `source` orders them.

    The first one is open, the others are one line each.  `source` is an iterable of `Finding`; what
    has them as ``findings``, and perhaps ``unknown`` and ``clear`` (a case, a diagnosis); or the
    name of each of several runs and recordings → one of these, and then each stands under its name.
    `headline` is False where a banner above has said the verdict; the first card then has the title
    of its cause.
    """
    # before any attribute is asked for: a mapping is no case, whatever its keys are called
    if isinstance(source, Mapping):
        return _several_findings(source, headline)
    rows = _rows_of(source)
    found = _of(rows, "found")
    unknown = _of(rows, "unknown")
    clear = _of(rows, "clear")
    errors = getattr(source, "errors", ())
    risks = getattr(source, "risks", ())
    cited = chain.from_iterable(finding.evidence for finding in found)
    lines = CitedLines(cited)
    known = [finding for finding in found if not is_resembling(finding)]
    suspects = [finding for finding in found if is_resembling(finding)]
    parts = []
    for number, finding in enumerate(known, 1):
        # a banner above has said the first one's sentence
        parts.append(card(finding, number, lines, headline or number > 1))
    parts.append(_suspect_list(suspects, lines, first=1 + len(known)))
    parts.append(evidence_part(errors[:MOST]))
    if risks:
        parts.append(el("h5", "Risks that this job did not suffer"))
        parts += map(_risk_card, risks)
    missing = [(code(finding.cause), _missing(finding)) for finding in unknown]
    listed = table(("Cause", "What is missing"), missing)
    # the banner, which stands above only then, links to this list
    if listed and not headline:
        listed = el("div", listed, id=NOT_EVALUATED)
    causes = plural(len(unknown), "cause")
    parts.append(fold(f"Not evaluated: evidence missing for {causes}", listed))
    passed = [(code(finding.cause), finding.say or "no sign of it") for finding in clear]
    checks = plural(len(clear), "check")
    parts.append(fold(f"{checks} passed", table(("Cause", "Why it is clear"), passed)))
    body = join(*parts)
    # a job that is only slow has findings as well, and its own sentence
    decided = found and getattr(source, "verdict", "found") == "found"
    summary = ""
    if not decided:
        summary = getattr(source, "headline", "")
    titled = bool(headline and not decided)  # the first card begins with the sentence
    return View(summary.rstrip(".") or findings_summary(rows), body, titled=titled)


def _several_findings(sources: Mapping[str, Any], headline: bool) -> View:
    """Each source under its name.

    The name says whether it is a recording or a run.
    """
    bundled = samples.list_samples()
    parts = []
    said = []
    for name, source in sources.items():
        view = findings_view(source, headline)
        if name in bundled:
            heading = el("h4", "Recording ", code(name))
        else:
            heading = el("h4", start(str(name)))
        parts.append(join(heading, view.body))
        said.append(f"{name}: {view.summary}")
    return View("; ".join(said), join(*parts), titled=False)


def _rows_of(source: Any) -> list[Finding]:
    """The findings of a case or a diagnosis, or the findings themselves."""
    if not hasattr(source, "findings"):
        return list(source)
    rows: list[Finding] = []
    for name in PARTS:
        rows += getattr(source, name, ())
    return rows


def findings_summary(rows: Iterable[Finding]) -> str:
    """The conclusion over all verdicts, in one sentence."""
    rows = list(rows)
    found = _of(rows, "found")
    unknown = _of(rows, "unknown")
    rest = ""
    if unknown:
        rest = f"evidence is missing for {plural(len(unknown), 'cause')}"
    if found:
        more = ""
        if len(found) > 1:
            more = f" (and {plural(len(found) - 1, 'further finding')})"
        return f"{(found[0].say or found[0].cause).rstrip('.')}{more}"
    if not rows:
        return "No cause has been judged yet"
    looked = f"Nothing found: {plural(len(rows) - len(unknown), 'check')} passed"
    if rest:
        return f"{looked}; {rest}"
    return looked


def card(finding: Finding, number: int, lines: CitedLines, headline: bool = True) -> Markup:
    """One found cause: verdict, culprits, evidence, what to do and how to be sure.

    The first card is open.  `headline`: its sentence stands in it, or the title of its cause in the
    place of it.
    """
    word = finding.strength or "possible"
    named = strength_part(finding)
    said = page(finding.cause)[""]
    if headline:
        said = finding.say or finding.cause
    sentence = f"{number}. {said}"
    steps = [_advice(finding.advice), _experiment(finding.next)]
    # what only fits the symptom has to be made sure of first; a fix would be a guess
    if finding.experiment_first:
        steps.reverse()
    evidence = evidence_part(finding.evidence, lines)
    edge = f"nk-card nk-edge-{word}"
    if not headline and number == 1:
        # the banner above has said how sure it is and who is at fault
        return el("section", el("h4", sentence), evidence, *steps, cls=edge)
    body = join(_culprits(finding), evidence, *steps)
    if number > 1:
        head = el("summary", named, " ", el("span", sentence, cls="nk-line"))
        return el("details", head, el("p", meaning(finding), cls="nk-dim"), body, cls=edge)
    head = el("div", named, el("span", meaning(finding), cls="nk-dim"), cls="nk-card-head")
    return el("section", head, el("h4", sentence), body, cls=edge)


def _suspect_list(suspects: Sequence[Finding], lines: CitedLines, first: int) -> Markup:
    """What it looks like, as one list.

    It is for a case where nothing shows which it is.
    """
    if not suspects:
        return Markup("")
    rows = [_suspect(finding, lines) for finding in suspects]
    listed = el("ol", *rows, start=str(first), cls="nk-suspects")
    return el("section", el("h4", LOOKS_LIKE), listed, cls="nk-card nk-edge-possible")


def _suspect(finding: Finding, lines: CitedLines) -> Markup:
    """A suspect: why it is one, and the look that decides.

    It tells what either answer means.
    """
    look = finding.advice[0]
    notes = [el("p", sentence(look.check))]
    if look.why:
        notes.append(el("p", sentence(look.why)))
    return el(
        "li",
        el("p", strength_part(finding), " ", finding.say),
        el("p", sentence(look.do), cls="nk-do"),
        *(pre(block) for block in ("\n".join(look.exports), look.command) if block),
        fold(
            "What the answers mean, the lines that it rests on, and the experiment",
            *notes,
            evidence_part(finding.evidence, lines),
            _experiment(finding.next),
        ),
    )


def _risk_card(risk: Finding) -> Markup:
    head = el("summary", strength_part(risk), " ", risk.say)
    return el("details", head, *map(advice_part, risk.advice), cls="nk-card")


def strength_part(finding: Finding) -> Markup:
    """How sure a finding is, and its cause."""
    symbol, word, _ = STRENGTH[finding.strength or "possible"]
    return join(badge(symbol, word, word), " ", code(finding.cause))


def meaning(finding: Finding) -> str:
    """What its strength means."""
    _, word, means = STRENGTH[finding.strength or "possible"]
    if is_risk(finding):
        return RISK.get(word, means)
    return means


def _of(rows: Iterable[Finding], verdict: str) -> list[Finding]:
    return [finding for finding in rows if finding.verdict == verdict]


def _culprits(finding: Finding) -> Markup:
    named = {}
    for key, names in finding.culprits.items():
        if names:
            named[key] = some(names)
    chips = (el("span", el("b", key), " ", names, cls="nk-chip") for key, names in named.items())
    if named:
        return el("p", *chips)
    return Markup("")


class CitedLines:
    """The lines of evidence on a page.

    Each text stands there once, each place from the folder that holds them all.
    """

    def __init__(self, evidence: Iterable[Evidence]) -> None:
        # facts and measurements have no file, and would leave no folder in common
        paths = (cite(piece)["path"] for piece in evidence if isinstance(piece, Event))
        self._base = common(path for path in paths if path)
        self._shown: dict[str, Markup] = {}

    def show(self, pieces: Sequence[Evidence]) -> Markup:
        """The pieces that say the same in one figure, with the place of each."""
        first = cite(pieces[0])
        places = [self._place(piece) for piece in pieces]
        said = _text_of(pieces[0])
        # a traceback that all ranks print stands once, in full
        if said not in self._shown:
            text = pre(first["text"])
        else:
            text = el("p", "as at ", self._shown[said], cls="nk-dim")
        self._shown.setdefault(said, location(first["path"], first["line"], self._base))
        rest = fold(
            f"The same at {plural(len(places) - 1, 'other place')}",
            *(el("div", each) for each in places[1:]),
        )
        return el("figure", el("figcaption", places[0]), text, rest, cls="nk-cite")

    def _place(self, piece: Evidence) -> Markup:
        cited = cite(piece)
        where = location(cited["path"] or type(piece).__name__.lower(), cited["line"], self._base)
        if not isinstance(piece, Event):
            return where
        times = ""
        if piece.count > 1:
            times = f" × {piece.count:,}"
        return join(where, times, "" if piece.rank is None else f" rank {piece.rank}")


def _text_of(piece: Evidence) -> str:
    """What a piece of evidence says, whoever printed it.

    A traceback is the same on every rank, other lines differ.
    """
    # launchers put each rank's own mark before the same line
    text = MARKS.sub("", str(cite(piece)["text"]))
    # addresses and line numbers in a traceback differ from rank to rank
    if "most recent call" in text:
        return NUMBERS.sub("#", text)
    return text


def evidence_part(evidence: Sequence[Evidence], lines: CitedLines | None = None) -> Markup:
    """The very lines, each with its place.

    The first few are shown at once, the others are folded.
    """
    lines = lines or CitedLines(evidence)
    alike: dict[str, list[Evidence]] = {}
    for piece in evidence:
        # by what they say, as the same line of 64 ranks is one piece of evidence
        alike.setdefault(_text_of(piece), []).append(piece)
    shown = [lines.show(pieces) for pieces in alike.values()]
    rest = shown[SHOWN:]
    if shown:
        return join(el("h5", "Evidence"), *shown[:SHOWN], fold(f"{len(rest)} more", *rest))
    return Markup("")


def _advice(advice: Sequence[Advice]) -> Markup:
    """The first thing to do, and the others a line each."""
    rest = (fold(sentence(_other(each)), advice_part(each)) for each in advice[1:])
    return join(*map(advice_part, advice[:1]), *rest)


def advice_part(advice: Advice) -> Markup:
    """One advice as a part of a page.

    It is what to do, what to copy, why, how to know that it worked, and the risk.
    """
    notes = [("Why", advice.why), ("How to know it worked", advice.check), ("Risk", advice.risk)]
    if advice.do.startswith(LOOK_FIRST):
        notes = [("What the answers mean", advice.check), ("Next time", advice.why)]
    return el(
        "div",
        el("h5", "What to do"),
        el("p", sentence(advice.do), cls="nk-do"),
        *(
            pre(block)
            for block in ("\n".join(advice.exports), advice.command, advice.code)
            if block
        ),
        el(
            "dl",
            *(join(el("dt", name), el("dd", sentence(note))) for name, note in notes if note),
            cls="nk-pairs",
        ),
        cls="nk-advice",
    )


def _other(advice: Advice) -> str:
    if advice.do.startswith("Or "):
        return advice.do
    return f"Or: {advice.do}"


def _experiment(experiment: Experiment | None) -> Markup:
    if experiment is None:
        return Markup("")
    rows = [(code(cause), sentence(seen)) for cause, seen in experiment.predicts.items()]
    plan = ""
    if experiment.plan:
        plan = fold("What it runs", value(dict(experiment.plan)))
    return el(
        "div",
        el("h5", "Next experiment"),
        el("p", sentence(experiment.question)),
        table(("If the cause is", "you will see"), rows),
        plan,
        cls="nk-next",
    )


def _missing(finding: Finding) -> Markup:
    if finding.missing:
        needs = el("ul", *(el("li", sentence(need)) for need in finding.missing))
    else:
        needs = escaped_text("not said")
    return join(needs, _experiment(finding.next))


def catalogue_view(only: str = "") -> View:
    """The pages of all causes, or of those that match `only`.

    They hold the word (any case) in their name or text.
    """
    pages = {name: page(name) for name in catalogue()}
    wanted = only.casefold()
    shown = {}
    for name, parts in pages.items():
        text = " ".join([name, *parts.values()])
        if wanted in text.casefold():
            shown[name] = parts
    single = len(shown) == 1
    folds = [_page(name, parts, is_open=single) for name, parts in shown.items()]
    about = " known"
    if only:
        speak = "speak"
        if single:
            speak = "speaks"
        about = f" of {len(pages)} {speak} of “{only}”"
    return View(f"{plural(len(shown), 'cause')}{about}", join(*folds))


def _page(name: str, parts: dict[str, str], is_open: bool) -> Markup:
    sections = (
        join(el("h5", heading), *_paragraphs(words)) for heading, words in parts.items() if heading
    )
    return fold(
        join(code(name), " ", parts.get("", "")),
        el("div", *sections, cls="nk-card"),
        is_open=is_open,
    )


def _paragraphs(words: str) -> list[Markup]:
    """Hard-wrapped lines flow again.

    Blank lines part paragraphs, and what can be copied stays as it is.
    """
    paragraphs = []
    for block in words.split("\n\n"):
        if block.startswith(TO_COPY):
            paragraphs.append(pre(textwrap.dedent(block)))
        elif block.strip():
            paragraphs.append(el("p", sentence(" ".join(block.split()))))
    return paragraphs
