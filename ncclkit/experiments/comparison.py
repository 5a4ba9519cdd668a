"""The comparison of two runs of the same small job.

It says what they show of each suspected cause, and starts nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.core.model import MOVES, OUTCOMES, Event, Experiment, Finding
from ncclkit.core.resources import grant
from ncclkit.core.runs import Run

FASTER = 1.5
"""Bus bandwidth after / before, from which a change counts as faster."""
LOGGING = (
    *(
        "TORCH_DISTRIBUTED_DEBUG",
        "TORCH_SHOW_CPP",
        "TORCH_FR_",
        "TORCH_NCCL_TRACE",
        "NCCL_DEBUG",
        "CUDA_LAUNCH_B",
    ),
    "PYTHONFAULTHANDLER",
)
"""How variables begin that only make a job log more."""


def only_log(names: Iterable[str]) -> bool:
    """Whether all of these variables only make a job log more."""
    return all(name.startswith(LOGGING) for name in names)


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm of an experiment: a run, and its diagnosis."""

    run: Run
    diagnosis: Diagnosis

    @property
    def cause(self) -> str:
        """The first cause that was found, "" where none was."""
        if self.diagnosis.findings:
            return self.diagnosis.findings[0].cause
        return ""

    @property
    def succeeded(self) -> bool:
        """Whether the run succeeded, and what was measured is right."""
        return self.run.reason == "done" and not any(m.wrong for m in self.run.measurements)


def comparable(baseline: Arm, finding: Finding) -> bool:
    """Whether a live test may stand in for the job.

    It may only where it fails as the job did.
    """
    causes = set()
    for f in baseline.diagnosis.findings:
        # what is only possible would make any test that fails comparable
        if not f.strength == "possible":
            causes.add(f.cause)
    return finding.cause in causes


def compare_expectations(experiment: Experiment, seen: Mapping[str, str]) -> dict[str, str]:
    """One of `MOVES` for each cause of a check that starts no rank.

    `seen` is cause → ``found`` or ``clear``.
    """
    fits = {True: "supported", False: "refuted"}
    asked = experiment.expects.items()
    found: dict[str, str] = {}
    for cause, word in asked:
        if cause in seen:
            found[cause] = fits[seen[cause] == word]
        else:
            found[cause] = "open"
    return found


def granted(events: Iterable[Event], hosts: int) -> dict[str, str]:
    """Cause → ``found`` where a host refused what the job needs.

    It is ``clear`` where all hosts granted it.  `hosts` is how many were asked; what was not
    settled somewhere is not in the answer, unless it was refused elsewhere.
    """
    tried = [grant(event) for event in events]
    seen = {}
    for cause in {one.cause for one in tried}:
        of_cause = [one for one in tried if one.cause == cause]
        short = [one.short for one in of_cause]
        answers = Counter(one.what for one in of_cause)
        if True in short:
            seen[cause] = "found"
        elif None not in short and min(answers.values()) >= hosts:
            # each thing that shows the cause must have been granted on every host
            seen[cause] = "clear"
    return seen


def apply_caution(
    read: Mapping[str, str], verdict: Diagnosis, here: bool | None, failed: bool
) -> dict[str, str]:
    """What a check of resources says of each suspect.

    `here`: the job ran where the check was made; None where nobody knows.  Many limits that are too
    low are never hit.  So where a job failed, a refusal proves a limit only if it is the only one
    and a line of the job names it; and what is granted now does not disprove what the job met then.
    """
    lines = set()
    for f in verdict.findings:
        if any(isinstance(piece, Event) for piece in f.evidence):
            lines.add(f.cause)
    firm = set()
    for f in verdict.findings:
        if f.cause in lines and f.strength != "possible":
            firm.add(f.cause)
    alone = [*read.values()].count("supported") == 1

    def move(cause: str) -> str:
        if read[cause] == "supported" and here is not False:
            # many limits that are too low are never hit: beside a failed job one refusal alone
            # proves nothing
            if here and (not failed or (alone and cause in lines)):
                return "proven"
            return "supported"
        # what is granted now does not disprove what the job met then
        if read[cause] == "refuted" and here and cause not in firm:
            return "refuted"
        return "open"

    return {cause: move(cause) for cause in read}


def observed(before: Arm, after: Arm, experiment: Experiment | None) -> str:
    """The outcome of an experiment, one of `OUTCOMES`."""
    if after.succeeded:
        if _gain(before.run, after.run) >= FASTER:
            return "faster"
        return "works"
    named = proven(after)
    if experiment and any(
        word == "named" and cause in named for cause, word in experiment.expects.items()
    ):
        return "named"
    if after.cause == before.cause:
        return "same"
    return "other"


def _gain(before: Run, after: Run) -> float:
    """Best bus bandwidth after / before, of what both measured.

    It is 1 where nothing was measured.
    """
    best = []
    for run in (before, after):
        best.append(max((m.busbw or 0.0 for m in run.measurements), default=0.0))
    if best[0]:
        return best[1] / best[0]
    return 1.0


def verdicts(experiment: Experiment, before: Arm, after: Arm) -> dict[str, str]:
    """The verdict change (one of `MOVES`) of every cause that the experiment asks about."""
    named = proven(after)
    same = not after.succeeded and after.cause == before.cause
    faster = after.succeeded and _gain(before.run, after.run) >= FASTER
    other = not after.succeeded and not same
    known = {finding.cause for finding in before.diagnosis.findings} | experiment.expects.keys()
    seen = {
        "works": after.succeeded,
        "faster": faster,
        "same": same,
        "other": other,
        "fails": not after.succeeded,
    }
    suspects = named & experiment.expects.keys()

    def judged(cause: str, word: str) -> str:
        if word == "named":
            if cause in named:
                return "supported"
            if suspects:
                return "refuted"
            return "open"
        if seen.get(word):
            return "supported"
        return "refuted"

    asked = experiment.plan.get("env", {})
    if seen["other"] and not suspects and asked and only_log(asked):
        # asking broke the job itself: DETAIL crashes torch 2.13's DDP
        return dict.fromkeys(experiment.expects, "open")
    if "backend" in experiment.plan and not after.succeeded and after.cause not in known:
        # the other backend has a trouble of its own
        return dict.fromkeys(experiment.expects, "open")
    return only_one_left({cause: judged(cause, word) for cause, word in experiment.expects.items()})


def proven(arm: Arm) -> set[str]:
    """The causes that the evidence of a run proves."""
    causes = set()
    for finding in arm.diagnosis.findings:
        if finding.strength == "proven":
            causes.add(finding.cause)
    return causes


def newly_proven(suspects: Diagnosis, before: Arm, after: Arm) -> dict[str, str]:
    """The suspects that the second run proves by its own log.

    It is the same job, now with everything recorded.
    """
    proven_causes = {}
    for f in suspects.findings:
        if f.cause in proven(after) - proven(before):
            proven_causes[f.cause] = "proven"
    return proven_causes


def only_one_left(moves: Mapping[str, str]) -> dict[str, str]:
    """The verdict changes, where every cause but one was refuted.

    The only one that fits is then raised to proven.
    """
    fit = [cause for cause, move in moves.items() if move == "supported"]
    # an open one might fit as well
    single = len(fit) == 1 and len(moves) > 1 and "open" not in moves.values()
    return dict(moves) | ({fit[0]: "proven"} if single else {})


def conclusion(
    finding: Finding,
    experiment: Experiment,
    seen: str,
    moves: Mapping[str, str],
    usable: bool,
    summary: str = "",
) -> str:
    """The conclusion of an experiment in words.

    `summary` is what a check saw, in its own words.
    """
    if not usable and "check" in experiment.plan:
        hosts = ", ".join(map(str, finding.culprits.get("hosts", ()))) or "other hosts"
        return (
            f"That job ran on {hosts}, so what this machine grants says nothing about"
            f" {finding.cause}; make this experiment there."
        )
    if not usable:
        return (
            "The small job that stood in for yours did not fail as yours did, so this says nothing"
            f" about {finding.cause}; make it more like yours (ranks, hosts, variables), or try it"
            " on your own job."
        )
    by = {}
    for word in MOVES:
        by[word] = [cause for cause, move in moves.items() if move == word]
    follows = []
    if by["proven"]:
        follows = [f"proves {by['proven'][0]}"]
    follows += [f"fits {' and '.join(by['supported'])}"] if by["supported"] else []
    follows += [f"speaks against {', '.join(by['refuted'])}"] if by["refuted"] else []
    follow = f"This {' and '.join(follows) or 'could not tell the suspects apart'}"
    if summary:
        return f"{follow}. {summary}"
    return f"{follow}: {OUTCOMES.get(seen, 'no answer came')}."


def not_shown(finding: Finding, before: Arm) -> str:
    """Why nothing follows from a fix: the job without it did not show the cause."""
    instead = "it works here"
    if before.cause:
        instead = f"it shows {before.cause}"
    elif not before.succeeded:
        instead = before.run.summary
    return f"A small job here does not show {finding.cause} ({instead}), so no fix can be tried."


def fix_summary(finding: Finding, arm: Arm, well: bool) -> str:
    """What a fix did, in one sentence, of a job that showed the cause before."""
    if well:
        return (
            f"With this change the same job succeeds after {arm.run.seconds:.0f} s, and"
            f" {finding.cause} is gone."
        )
    if arm.cause:
        why = f"{arm.cause}: {arm.diagnosis.headline}"
    else:
        why = arm.run.summary
    return f"The change did not fix the job: {why}"
