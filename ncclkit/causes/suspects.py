"""The findings that the differential makes.

Each is a suspect with its reason, its count, and the look that decides.  None of them is more than
``possible``: they say what such a text usually turns out to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ncclkit.causes import catalogue, page
from ncclkit.causes.differential import Differential, Suspect
from ncclkit.causes.looks.record import Look
from ncclkit.causes.resemblance import LEAST, MOST, SAYS, SHOWN, Text, weights
from ncclkit.causes.symptoms import page_of
from ncclkit.core.case import Case
from ncclkit.core.model import Advice, Event, Evidence, Finding, found


def suspect_finding(
    suspect: Suspect,
    suspects: Differential,
    by_rule: Finding | None,
    case: Case,
    text: Text,
    signs: Sequence[Event],
) -> Finding:
    """One suspect as a finding.

    What a rule says of it stays, with the look before its advice.  `signs` are the lines that say
    failure or complaint.
    """
    look = look_advice(suspect.look)
    # a rule has read the very lines: it says more than a count
    if by_rule is not None:
        return replace(by_rule, advice=(look, *by_rule.advice))
    title = page(suspect.cause)[""].rstrip(".")
    evidence, like = _heaviest_lines(suspect.cause, suspects, text, signs)
    return found(
        suspect.cause,
        "possible",
        _suspect_sentence(suspect, suspects, title, like),
        evidence,
        # a remedy of what nobody has seen would be a guess: its page has it
        advice=(look,),
        next=catalogue()[suspect.cause].experiment(case),
    )


LOOK_FIRST = "Look first: "
"""How an advice begins that only looks; its answers tell whether it is the cause."""


def look_advice(look: Look) -> Advice:
    """The look that decides, as the first thing to do.

    It is to be done now, and at the next run.
    """
    next_time = ""
    if look.next_time:
        next_time = f"For the next run, a line of the job script: {look.next_time}"
    return Advice(
        f"{LOOK_FIRST}{look.question}",
        command=look.now,
        check=f"Yes, it is this cause: {look.yes}. No: {look.no}.",
        why=next_time,
        risk="None: it only looks.",
    )


def _suspect_sentence(suspect: Suspect, suspects: Differential, title: str, like: str) -> str:
    """The sentence on a suspect that no rule decides.

    It is ``No rule decides it; a usual suspect is "…": why (9 of 31 settled cases like this).``
    """
    say = f'{SAYS}; a usual suspect is "{title}"'
    if like:
        say = f'{SAYS}, but it resembles "{title}" (like: {like})'
    place = _place_sentence(suspect)
    if not suspects.seen:
        return f"{say}.{place}"
    symptom = page_of(suspects.seen[0].symptom)[""].rstrip(".")
    why = ""
    if suspect.why:
        why = f": {suspect.why}"
    counted = ""
    if suspect.settled:
        counted = (
            f' Of {suspects.settled} settled cases with "{symptom}" it was the cause of'
            f" {suspect.settled}."
        )
    return f"{say}{why}.{counted}{place}"


def _place_sentence(suspect: Suspect) -> str:
    """Why a suspect stands where it stands, in a sentence; nothing where no voice lifts it."""
    if not suspect.place_reason:
        return ""
    return f" Its place: {suspect.place_reason}."


def _heaviest_lines(
    cause: str, suspects: Differential, text: Text, signs: Sequence[Event]
) -> tuple[list[Evidence], str]:
    """The lines that weigh most for a cause, and the failure they are like.

    Where there are none it is the line of the symptom.
    """
    if text.shares.get(cause, 0.0) < LEAST and suspects.seen:
        return [suspects.seen[0].line], ""
    heavy = text.heaviest(cause, MOST, signs)
    most, heaviest_line, _ = heavy[0]
    # where each line speaks against the cause, the first is cited all the same
    least = min(most, SHOWN * most)
    cited: list[Evidence] = [event for weight, _, event in heavy if weight >= least]
    return cited, weights().like(cause, heaviest_line)
