"""What a job merely resembles: of each cause why, and the one look that tells.

No advice stands here, as nothing says that it is this cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ncclkit.causes import page
from ncclkit.causes.differential import Differential, Suspect
from ncclkit.causes.looks.record import Look
from ncclkit.causes.resemblance import SAYS, is_resembling
from ncclkit.causes.symptoms import page_of
from ncclkit.core.model import Finding

TITLE = "Looks like"
WITHOUT_PROOF = "No line proves one of these. Each look tells it from the others."
"""What stands above the list."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """One cause that a job resembles."""

    finding: Finding
    title: str
    """The title of its page."""
    why: str
    """In one clause; empty where neither a page nor a known failure says it."""
    settled: str
    """``1 of 5 settled cases``; empty where none is known."""
    look: Look
    """The look that tells it from its rivals."""

    @property
    def reason(self) -> str:
        """Why, and how often it was that, in one line."""
        return "; ".join(filter(None, (self.why, self.settled)))


def likenesses(
    findings: Sequence[Finding], differential: Differential | None
) -> tuple[Likeness, ...]:
    """What these findings merely resemble, in their order; what a rule found is left out."""
    if differential is None:
        return ()
    by_cause = {one.cause: one for one in differential.suspects}
    listed = []
    for finding in findings:
        if is_resembling(finding) and finding.cause in by_cause:
            listed.append(_likeness(finding, by_cause[finding.cause], differential))
    return tuple(listed)


def _likeness(finding: Finding, suspect: Suspect, differential: Differential) -> Likeness:
    title = page(finding.cause)[""].rstrip(".")
    why = suspect.why if differential.seen else ""
    like = _known_failure(finding, title, reason_words(suspect, differential))
    if like:
        why = "; ".join(filter(None, (why, f"like “{like}”")))
    settled = ""
    if differential.seen and suspect.settled:
        settled = f"{suspect.settled} of {differential.settled} settled cases"
    return Likeness(finding, title, why, settled, suspect.look)


def _known_failure(finding: Finding, title: str, reason: str) -> str:
    """The known failure that a sentence of `likeness_words` names."""
    head, mark, tail = likeness_words(title, "\0").partition("\0")
    sentence = finding.say.removesuffix(reason)
    if not mark or not sentence.startswith(head):
        return ""
    return sentence.removeprefix(head).removesuffix(tail)


def likeness_words(title: str, like: str) -> str:
    """``No rule decides it, but it resembles "…" (like: …)``, the beginning of its sentence."""
    if like:
        return f'{SAYS}, but it resembles "{title}" (like: {like})'
    return f'{SAYS}; a usual suspect is "{title}"'


def reason_words(suspect: Suspect, differential: Differential) -> str:
    """``: why. Of 31 settled cases with "…" it was the cause of 9.``, the end of its sentence."""
    if not differential.seen:
        return "."
    symptom = page_of(differential.seen[0].symptom)[""].rstrip(".")
    why = ""
    if suspect.why:
        why = f": {suspect.why}"
    counted = ""
    if suspect.settled:
        counted = (
            f' Of {differential.settled} settled cases with "{symptom}" it was the cause of'
            f" {suspect.settled}."
        )
    return f"{why}.{counted}"


def likeness_lines(listed: Sequence[Likeness]) -> list[str]:
    """The list as text, with what says more of each."""
    if not listed:
        return []
    lines = [f"{TITLE}. {WITHOUT_PROOF}"]
    for one in listed:
        lines.append(f"  - {one.finding.cause}: {one.title}")
        if one.reason:
            lines.append(f"    Why: {one.reason}")
        lines.append(f"    Look: {one.look.question}")
        if one.look.now:
            lines.append(f"      $ {one.look.now}")
    first = listed[0].finding.cause
    return [*lines, f"Once a look says yes, `ncclkit causes {first}` (its name) says what helps."]
