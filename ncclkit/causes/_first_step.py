"""The first thing to do about a verdict, ready to be pasted.

In come a finding, or the evidence that is wanted; out goes a `FirstStep`.  Advice shows its whole
command with its alternatives on the card; here stands only what needs no word of the reader's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.core.case import Case
from ncclkit.core.kinds import WorkerPhase
from ncclkit.core.model import Advice, Finding

FOR_THE_READER = re.compile(
    # <a name>, an ellipsis, and variables that are set in a job alone
    r"<[^<>/]*>|…|\.\.\.|\$\{?(?:SLURM_\w+|HEAD)\b"
    # a name that the log did not resolve, in the place of an address
    r"|['/]MASTER_(?:ADDR|PORT)\b"
    # what starts a job needs its script and its options, which no log tells
    r"|\b(?:torchrun|srun|sbatch|mpirun|docker run)\b"
)
"""Words of a command that somebody must replace or complete before it works."""
PART = re.compile(r"""(?:'[^']*'|"[^"]*"|[^;'"])+""")
"""What stands between two semicolons that are outside of quotes."""
ATTACH = "ncclkit attach"
FOR_THE_NEXT = "(For the next job: this one went well.)"
"""Behind what is advised about a risk of a job that has ended well."""


@dataclass(frozen=True, slots=True)
class FirstStep:
    """What to do, or to collect, first."""

    sentence: str = ""
    command: str = ""
    """One line that works as it is; empty where nothing is to be done."""


@dataclass(frozen=True, slots=True)
class WantedEvidence:
    """Something to collect."""

    text: str
    command: str = ""
    """What makes the next run leave it; empty where it must be found."""


@dataclass(frozen=True, slots=True)
class JudgedLogs:
    """What was judged, in the words of a command line."""

    case: Case
    paths: str
    """Quoted for a shell; empty where a command cannot name them."""

    def check_command(self) -> str:
        """What makes the experiments on the last run of ours.

        It is empty where there is none.
        """
        is_ours = any(event.data.phase == "plan" for event in self.case.of(WorkerPhase))
        if self.paths in ("", "-") or not is_ours:
            return ""
        return f"ncclkit diagnose --check {self.paths}"

    def ask_command(self, diagnosis: Diagnosis) -> str:
        """What asks the question that tells the suspects apart.

        It is empty where nothing is asked.
        """
        if not self.paths or diagnosis.verdict == "no_job" or not _question_in(diagnosis):
            return ""
        return f"ncclkit ask {self.paths}"


def step_about_finding(finding: Finding, diagnosis: Diagnosis, logs: JudgedLogs) -> FirstStep:
    """The experiment where only the symptom fits, else the first advice."""
    if finding.next and _needs_experiment(finding, diagnosis):
        return _experiment_step(finding, finding.next.question, diagnosis, logs)
    read_page = f"ncclkit causes {finding.cause}"
    if not finding.advice:
        return FirstStep("Read how to make sure of it, and what to do.", read_page)
    first = finding.advice[0]
    command = _advised_line(first)
    if not command and first.change:
        command = logs.check_command()
    return FirstStep(first.do, command or read_page)


def step_about_risk(risk: Finding | None) -> FirstStep:
    """What is to be done about a job that went well: what its first risk advises, else nothing."""
    if risk is None or not risk.advice:
        return FirstStep("Nothing needs to be done for this job.")
    first = risk.advice[0]
    return FirstStep(f"{first.do} {FOR_THE_NEXT}", _advised_line(first))


def _needs_experiment(finding: Finding, diagnosis: Diagnosis) -> bool:
    if not finding.advice:
        return True
    # of hosts alone there is no job that could be run again
    return finding.experiment_first and diagnosis.job_seen


def _experiment_step(
    finding: Finding, experiment: str, diagnosis: Diagnosis, logs: JudgedLogs
) -> FirstStep:
    """The experiment where it can be made on a run of ours.

    Elsewhere it is the question to a person.
    """
    check = logs.check_command()
    if check:
        return FirstStep(f"Make this experiment: {experiment}", check)
    ask = logs.ask_command(diagnosis)
    if ask:
        return FirstStep(f"Answer this question: {_question_in(diagnosis)}", ask)
    return FirstStep(f"Make this experiment: {experiment}", f"ncclkit causes {finding.cause}")


def step_to_collect(wanted: WantedEvidence, diagnosis: Diagnosis, logs: JudgedLogs) -> FirstStep:
    """The evidence to collect.

    Where that takes time, it tells also what can be done until then.
    """
    sentence = f"Collect: {wanted.text}"
    if wanted.command:
        return FirstStep(sentence, wanted.command)
    ask = logs.ask_command(diagnosis)
    if ask:
        return FirstStep(f"{sentence} Without it, one question decides most:", ask)
    return FirstStep(f"{sentence} While the job runs, look at it on its host:", ATTACH)


def _question_in(diagnosis: Diagnosis) -> str:
    if diagnosis.differential is None or diagnosis.differential.question is None:
        return ""
    return diagnosis.differential.question.question


def _advised_line(advice: Advice) -> str:
    """The command or the settings of an advice, as far as they work as they are."""
    for choice in _alternatives(advice.command):
        line = _without_placeholders(choice)
        if line:
            return line
    if advice.command:
        return ""
    return _without_placeholders("; ".join(advice.exports))


def _alternatives(command: str) -> Iterator[str]:
    """The command without its comment, then the one that the comment offers."""
    first, _, comment = command.partition("   # ")
    yield first
    if comment.startswith("or: "):
        yield comment.removeprefix("or: ")


def _without_placeholders(command: str) -> str:
    """The parts of a command that need no word of the reader's.

    It is empty where none is left.
    """
    if not FOR_THE_READER.search(command):
        return command.strip()
    kept = []
    for part in PART.findall(command):
        # a bracket that a semicolon has cut is no command any more
        is_whole = part.count("(") == part.count(")")
        if is_whole and not FOR_THE_READER.search(part):
            kept.append(part.strip())
    return "; ".join(kept)
