"""What two runs of the same small job say of the causes that were asked about; nothing is started here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ncclkit.diagnose import Diagnosis
from ncclkit.model import MOVES, OUTCOMES, Experiment, Finding
from ncclkit.runs import Run

FASTER = 1.5
"""Bus bandwidth after / before, from which a change counts as faster."""
TELLING = ("TORCH_DISTRIBUTED_DEBUG", "TORCH_SHOW_CPP", "TORCH_FR_", "TORCH_NCCL_TRACE", "NCCL_DEBUG", "CUDA_LAUNCH_B")
"""How variables begin that make a job say more and are meant to change nothing else."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A run, and what the diagnosis says of it."""

    run: Run
    diagnosis: Diagnosis

    @property
    def cause(self) -> str:
        """The first cause that was found, "" where none was."""
        return self.diagnosis.findings[0].cause if self.diagnosis.findings else ""

    @property
    def well(self) -> bool:
        """The run ended well, and what was measured is right."""
        return self.run.reason == "done" and not any(m.wrong for m in self.run.measurements)


def comparable(subject: Arm, finding: Finding) -> bool:
    """A live test stands in for a job only where it fails as the job did."""
    return finding.cause in {f.cause for f in subject.diagnosis.findings if not f.strength == "possible"}


def fits(seen: str | None, expected: str) -> str:
    """One of `MOVES` for a verdict that was read again; None where it could not be read."""
    return "open" if seen is None else "supported" if seen == expected else "refuted"


def observed(before: Arm, after: Arm, experiment: Experiment | None) -> str:
    """What came out, as one of `OUTCOMES`."""
    if after.well:
        return "faster" if _gain(before.run, after.run) >= FASTER else "works"
    named = proven(after)
    if experiment and any(word == "named" and cause in named for cause, word in experiment.expects.items()):
        return "named"
    return "same" if after.cause == before.cause else "other"


def _gain(before: Run, after: Run) -> float:
    """Best bus bandwidth after / before, of what both measured; 1 where nothing was."""
    best = [max((m.busbw or 0.0 for m in run.measurements), default=0.0) for run in (before, after)]
    return best[1] / best[0] if best[0] else 1.0


def verdicts(experiment: Experiment, before: Arm, after: Arm) -> dict[str, str]:
    """What the outcome says of every cause that the experiment asks about."""
    named = proven(after)
    same = not after.well and after.cause == before.cause
    faster = after.well and _gain(before.run, after.run) >= FASTER
    seen = {"works": after.well, "faster": faster, "same": same, "other": not after.well and not same}
    suspects = named & experiment.expects.keys()

    def judged(cause: str, word: str) -> str:
        if word == "named":
            return "supported" if cause in named else "refuted" if suspects else "open"
        return "supported" if seen.get(word) else "refuted"

    asked = experiment.plan.get("env", {})
    if seen["other"] and not suspects and asked and all(name.startswith(TELLING) for name in asked):
        return dict.fromkeys(experiment.expects, "open")  # asking broke the job itself: DETAIL crashes torch 2.13's DDP
    return alone({cause: judged(cause, word) for cause, word in experiment.expects.items()})


def proven(arm: Arm) -> set[str]:
    """What the evidence of a run proves."""
    return {finding.cause for finding in arm.diagnosis.findings if finding.strength == "proven"}


def shown(suspects: Diagnosis, before: Arm, after: Arm) -> dict[str, str]:
    """Suspects that the run after proves by its own lines: the job is the same, but now all of it is recorded."""
    return {f.cause: "proven" for f in suspects.findings if f.cause in proven(after) - proven(before)}


def alone(moves: Mapping[str, str]) -> dict[str, str]:
    """The only cause that fits is proven, where every other one was refuted."""
    fit = [cause for cause, move in moves.items() if move == "supported"]
    single = len(fit) == 1 and len(moves) > 1 and "open" not in moves.values()
    return dict(moves) | ({fit[0]: "proven"} if single else {})


def answer(finding: Finding, experiment: Experiment, seen: str, moves: Mapping[str, str], usable: bool) -> str:
    """The experiment, what was seen and what follows, in two sentences."""
    if not usable:
        return (
            "The small job that stood in for yours did not fail as yours did, so this tells nothing of "
            f"{finding.cause}; make it more like yours (ranks, hosts, variables), or try it on your own job."
        )
    by = {word: [cause for cause, move in moves.items() if move == word] for word in MOVES}
    follows = [f"this proves {by['proven'][0]}"] if by["proven"] else []
    follows += [f"this fits {' and '.join(by['supported'])}"] if by["supported"] else []
    follows += [f"it speaks against {', '.join(by['refuted'])}"] if by["refuted"] else []
    told = " and ".join(follows) or "this could not tell the suspects apart"
    return f"{experiment.question} Seen: {OUTCOMES.get(seen, 'no answer came')}; {told}."


def mended(finding: Finding, arm: Arm, well: bool, failed: bool) -> str:
    """What a fix did, in one sentence; `failed`: the job showed the cause before."""
    if well and failed:
        return f"With this change the same job ends well after {arm.run.seconds:.0f} s, and {finding.cause} is gone."
    if well:
        return f"The small job works with this change, but it did not show {finding.cause} without it either."
    why = f"{arm.cause}: {arm.diagnosis.headline}" if arm.cause else arm.run.say
    return f"The change did not mend the job: {why}"
