"""Whether suspects are named.

They are only where a line says failure or complaint, and no rule is sure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ncclkit.analysis.complaints import is_short_of_target
from ncclkit.analysis.outcome import outcome
from ncclkit.analysis.trouble import Trouble, trouble
from ncclkit.causes import resemblance
from ncclkit.causes.differential import Differential, Suspect, differential
from ncclkit.causes.order import STRENGTHS
from ncclkit.causes.recovery import OWN
from ncclkit.causes.suspects import suspect_finding
from ncclkit.core.case import Case
from ncclkit.core.kinds import AttachRank, RehearsalVerdict
from ncclkit.core.model import Event, Evidence, Finding

PROGRAM = (*OWN, "TypeError", "AssertionError", "FileNotFoundError", "UnboundLocalError")
"""Errors that hardly any library uses to report what the system refused."""


MERE_SIGNS = ("rank_exception", "slow_rank")
"""Causes that are themselves a sign: that a rank raised or was late says not why."""
BELOW_SIGN = 2
"""Suspects that are named below a likely sign."""


def names_with_suspects(
    findings: list[Finding], verdicts: Sequence[Finding], case: Case
) -> tuple[list[Finding], Differential | None]:
    """The findings, with the usual suspects where none is sure.

    Something must have failed and no finding be more than possible; all come in one order.  Without
    a line that says failure or complaint nothing is said: a table or a command line resembles much.
    """
    against = trouble(case)
    lines = resemblance.abnormal(case)
    if not lines or case.of(AttachRank):  # ranks of any job that waits look alike
        return findings, None
    # it knows where every rank stood, and says itself what it could not tell
    if case.of(RehearsalVerdict):
        return findings, None
    text = resemblance.Text(lines)
    findings = [_messenger(finding, text) for finding in findings]
    if went_well(case):
        return findings, None
    firm = [finding for finding in findings if STRENGTHS[finding.strength] > 1]
    # a rule that is sure needs no suspects, and naming them for a sound job would accuse every
    # healthy excerpt
    if firm and not _is_mere_sign(firm):
        return findings, None
    # groups of ranks that were tried one after the other tell more than any wording
    if any(map(_rests_on_stages, findings)):
        return findings, None
    known, risks = _split_risks(findings)
    suspects = differential(case, text, list(known), _cleared_by_lines(verdicts))
    listed = _Suspects(suspects, case, text, against.lines)
    if firm:
        return [*findings, *listed.first_others({*known, *risks}, BELOW_SIGN)], None
    # who answers a question about a job says that something is wrong with it
    is_asked = bool(suspects.answers)
    is_failure = against and (findings or _names_suspects(case, text, against, suspects))
    if not is_asked and not is_failure:
        return findings, suspects  # for who asks: nothing here says that anything failed
    return [*listed.all_named(known, risks), *risks.values()], suspects


@dataclass(frozen=True, slots=True)
class _Suspects:
    """The suspects of a text, before they are findings."""

    suspects: Differential
    case: Case
    text: resemblance.Text
    signs: Sequence[Event]

    def first_others(self, causes: Collection[str], most: int) -> list[Finding]:
        """The first suspects that are none of these causes."""
        found: list[Finding] = []
        for suspect in self.suspects.suspects:
            if suspect.cause not in causes and len(found) < most:
                found.append(self._finding(suspect, None))
        return found

    def all_named(
        self, known: Mapping[str, Finding], risks: Collection[str]
    ) -> list[Finding]:
        """The suspects that are named, with what rules say of them; risks stand elsewhere."""
        found = []
        for suspect in self.suspects.named(known):
            if suspect.cause not in risks:
                found.append(self._finding(suspect, known.get(suspect.cause)))
        return found

    def _finding(self, suspect: Suspect, by_rule: Finding | None) -> Finding:
        return suspect_finding(suspect, self.suspects, by_rule, self.case, self.text, self.signs)


def _split_risks(findings: Iterable[Finding]) -> tuple[dict[str, Finding], dict[str, Finding]]:
    """Findings by their cause: those that rest on lines, and what facts of hosts alone say.

    The latter are risks, and are not lifted above what the job's own lines show.
    """
    known = {}
    risks = {}
    for finding in findings:
        if _events_of(finding):
            known[finding.cause] = finding
        else:
            risks[finding.cause] = finding
    return known, risks


def _cleared_by_lines(verdicts: Iterable[Finding]) -> dict[str, Sequence[Evidence]]:
    """Causes that rules rule out, and by which evidence."""
    cleared: dict[str, Sequence[Evidence]] = {}
    for verdict in verdicts:
        # facts alone may be of hosts that the job never used
        if verdict.verdict == "clear" and _events_of(verdict):
            cleared[verdict.cause] = verdict.evidence
    return cleared


def _is_mere_sign(firm: Sequence[Finding]) -> bool:
    """Whether all that rules are sure of is a sign whose reason they do not know."""
    for finding in firm:
        if finding.cause not in MERE_SIGNS or finding.strength != "likely":
            return False
        # NameError and its like are of the program alone
        if any(event.data.type in PROGRAM for event in _raised_in(finding)):
            return False
    return True


def _rests_on_stages(finding: Finding) -> bool:
    """Whether a finding rests on the groups of a staged live test of ours."""
    return any(event.kind.startswith("stage.") for event in _events_of(finding))


def _raised_in(finding: Finding) -> list[Event]:
    """The exceptions that a finding rests on."""
    raised = []
    for event in _events_of(finding):
        if event.kind == "python.exception":
            raised.append(event)
    return raised


def _events_of(finding: Finding) -> list[Event]:
    """The evidence of a finding that is no fact of a host."""
    events = []
    for piece in finding.evidence:
        if isinstance(piece, Event):
            events.append(piece)
    return events


def went_well(case: Case) -> bool:
    """Whether a job was seen to succeed or to be at work, and nothing speaks against it."""
    how = outcome(case)
    return not trouble(case) and bool(how.success or how.work)


def _names_suspects(
    case: Case, text: resemblance.Text, against: Trouble, suspects: Differential
) -> bool:
    """Whether a text says clearly enough that a job failed.

    It does so by its symptom or by what it resembles.
    """
    # a benchmark that missed its target did not fail
    if all(is_short_of_target(line.text) for line in against.lines):
        return False
    on_topic = resemblance.is_topic(case)
    # who writes "training hangs at the end" beside lines of a job that trained well means a hang
    if on_topic and any(seen.line in against.lines for seen in suspects.seen):
        return True
    # a line that says failure weighs more than a text's likeness to healthy ones, so there it takes
    # a clear one
    least_sound = 0.0
    if against.errors or against.failures:
        least_sound = resemblance.SOUND
    if resemblance.resembles_sound_job(text, least_sound):
        return False
    if suspects.seen and on_topic:
        return True
    # "RuntimeError: NCCL error" resembles everything
    only_errors = not (against.failures or against.complaints or against.stacks)
    if only_errors and not resemblance.comparable(against.errors):
        return False
    return max(text.shares.values()) >= _least_share(case, against)


def _least_share(case: Case, against: Trouble) -> float:
    """The share of the resemblance that the best cause must have.

    The less was said, the more it must be.
    """
    if not resemblance.is_topic(case):
        return resemblance.SURE
    if resemblance.comparable([*against.errors, *against.failures]):
        return resemblance.FIRST
    if against.complaints:
        return resemblance.COMPLAINED
    return resemblance.CALM


def _messenger(finding: Finding, text: resemblance.Text) -> Finding:
    """A finding by an exception, merely possible where it is a messenger.

    It is one where all lines together clearly resemble another cause.
    """
    raised = _raised_in(finding)
    # a worker of a server prints its own error; the lines of its engine resemble many causes
    if any(event.data.worker for event in raised):
        return finding
    # NameError and its like are of the program alone, whatever the text resembles
    sign = (finding.cause, finding.strength) == ("rank_exception", "likely") and raised
    if (
        not sign
        or any(event.data.type in PROGRAM for event in raised)
        or not resemblance.messenger(text)
    ):
        return finding
    return replace(finding, strength="possible")
