"""`ncclkit decide`: a job has failed; a script asks whether to start it again.

Its exit status is the answer, for the end of a batch script and for launchers that restart.
"""

from __future__ import annotations

import argparse
import hashlib
import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncclkit.cli.arguments import add_json
from ncclkit.cli.reading import read_evidence
from ncclkit.cli.runner import Aside, Part, Verb, VerbAnswer, print_note
from ncclkit.core.kinds import PythonException
from ncclkit.core.model import SCHEMA, Event, NcclkitError, cite

if TYPE_CHECKING:
    from ncclkit.causes.attempts import JobAttempt
    from ncclkit.causes.decision import Decision
    from ncclkit.causes.diagnosis import Diagnosis

HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
"""A host's own name, which may stand in a list of Slurm; a log may hold anything in its place."""
SHOWN = 200
"""Characters of the line that is quoted."""
FAILED = ("found", "unexplained")
"""Verdicts on a job that did not succeed."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """A decision, and what it rests on."""

    decision: Decision
    found: Diagnosis
    earlier: Sequence[JobAttempt]


class DecideVerb(Verb):
    """Say whether a failed job is started again; the exit status says it, too."""

    name = "decide"
    group = "My job"
    what = "a job has failed: restart it, or stop and fix something first"
    example = "decide --history attempts.jsonl slurm-4711.out"
    needs_folder = False

    def more_help(self) -> str:
        """What each exit status means."""
        return (
            "Exit status: 0 restart; 1 stop, the program or the set-up has to be fixed first;\n"
            "2 nothing was decided, as nothing could be read; 3 wait and see, as no cause is firm\n"
            "or nothing has failed."
        )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare what is read, and where earlier attempts are kept."""
        parser.add_argument(
            "paths",
            nargs="+",
            metavar="PATH",
            help="file, folder, quoted pattern or Slurm job id of the attempt that failed",
        )
        parser.add_argument(
            "--history",
            metavar="FILE",
            help="keeps each attempt; the same root elsewhere, or no step won, ends the restarts",
        )
        parser.add_argument(
            "--hosts",
            action="store_true",
            help="print only the hosts to leave out, as sbatch --exclude takes them",
        )
        add_json(parser, "one JSON object instead of text")

    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        """Judge the attempt, and what came before it."""
        from ncclkit.causes.attempts import read_attempts
        from ncclkit.causes.decision import EXIT_STATUS

        earlier: list[JobAttempt] = []
        history = None
        if options.history:
            history = Path(options.history).expanduser()
            earlier, strange = read_attempts(history)
            if strange:
                print_note(f"{strange} lines of {history} are no attempt, and were left out.")
        answer = _decided(options.paths, history, earlier)
        return VerbAnswer(
            EXIT_STATUS[answer.decision.action],
            _parts(answer, options.hosts),
            lambda: _json_object(answer),
        )


def _decided(paths: Sequence[str], history: Path | None, earlier: list[JobAttempt]) -> _Answer:
    """The decision on what lies in these paths, which the history then keeps."""
    from ncclkit.analysis.once import last_run_of
    from ncclkit.causes.attempts import keep_attempt
    from ncclkit.causes.engine import diagnose
    from ncclkit.causes.restart_or_stop import attempt_of, decide, requeued_decision
    from ncclkit.core.case import Case
    from ncclkit.evidence import logs

    reading = read_evidence(paths)
    for problem in reading.problems:
        print_note(problem)
    case, *others = logs.fill_jobs(Case(), reading, paths)
    if others:
        count = len(others) + 1
        raise NcclkitError(f"These logs are of {count} jobs; name those of one attempt.")
    found = diagnose(case)
    read = _sum_of_inputs(reading.inputs)
    # whoever asks twice about the same logs has not tried twice
    before = []
    for attempt in earlier:
        if attempt.logs != read:
            before.append(attempt)
    scope = last_run_of(case)
    decision = decide(found, scope, before)
    if reading.requeued:
        decision = requeued_decision(reading.requeued)
    is_new = len(before) == len(earlier)
    if history is not None and is_new and found.verdict in FAILED:
        now = attempt_of(found, scope)
        kept = replace(
            now,
            exclude=decision.exclude,
            action=decision.action,
            logs=read,
        )
        keep_attempt(history, kept)
    return _Answer(decision, found, before)


def _sum_of_inputs(inputs: Iterable[Mapping[str, Any]]) -> str:
    rows = []
    for row in inputs:
        rows.append(f"{row.get('path')} {row.get('bytes')} {row.get('lines')}")
    text = "\n".join(rows)
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def _parts(answer: _Answer, only_hosts: bool) -> Iterator[Part]:
    sentence = f"Restart or stop: {answer.decision.sentence}"
    if not only_hosts:
        yield sentence
        if answer.found.verdict in FAILED:
            yield answer.found.headline
            yield from _evidence_lines(answer.found)
        return
    yield Aside(f"ncclkit: {sentence}")
    names = node_names(answer.decision.exclude)
    if names:
        yield ",".join(names)


def _evidence_lines(found: Diagnosis) -> Iterator[str]:
    """The line that the first finding rests on, and that no line names its rank."""
    first = next(iter(found.findings), None)
    if first is None:
        return
    if first.say.startswith("A rank") and not first.culprits.get("ranks"):
        yield "Which rank that was is not known: no line names it."
    for piece in first.evidence[:1]:
        row = cite(piece)
        number = row["line"]
        if isinstance(piece, Event) and isinstance(piece.data, PythonException):
            # a traceback ends with what was raised
            number = piece.data.until or number
        lines = str(row["text"]).strip().splitlines()
        last = ""
        if lines:
            last = lines[-1].strip()
        place = str(row["path"])
        if number:
            place = f"{place}:{number}"
        yield f"  {place}: {last[:SHOWN]}"


def node_names(hosts: Iterable[str]) -> list[str]:
    """The hosts as a scheduler names its nodes: without a domain; what is no such name is left."""
    names: list[str] = []
    for host in hosts:
        if _is_address(host):
            continue
        name = host.partition(".")[0]
        if HOST.fullmatch(name) and name not in names:
            names.append(name)
    return names


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _json_object(answer: _Answer) -> dict[str, Any]:
    first = next(iter(answer.found.findings), None)
    cause = None
    if first is not None:
        cause = {"cause": first.cause, "strength": first.strength}
    return {
        "schema": SCHEMA,
        "action": answer.decision.to_dict(),
        "exclude_nodes": node_names(answer.decision.exclude),
        "verdict": answer.found.verdict,
        "root": cause,
        "say": answer.found.headline,
        "earlier_attempts": len(answer.earlier),
    }
