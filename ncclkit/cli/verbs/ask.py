"""`ncclkit ask`: the question that tells the suspects of a bare symptom apart."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ncclkit.cli.arguments import add_json, add_log_marks
from ncclkit.cli.judging import open_case, with_log_marks
from ncclkit.cli.reading import read_evidence
from ncclkit.cli.runner import Part, Verb, VerbAnswer, print_note, print_parts
from ncclkit.cli.terminal import Activity
from ncclkit.core.model import NcclkitError

if TYPE_CHECKING:
    from ncclkit.causes.diagnosis import Diagnosis
    from ncclkit.causes.looks.record import Look
    from ncclkit.core.case import Case
    from ncclkit.live.looking import Sight


class AskVerb(Verb):
    """Ask what tells the suspects of a bare symptom apart; the case keeps the answers."""

    name = "ask"
    group = "My job"
    what = "the question that tells suspects apart, where logs hold a bare symptom and no reason"
    example = "ask train.log --answer host_oom=no"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the logs, and the answers that are known."""
        parser.add_argument(
            "paths",
            nargs="*",
            metavar="PATH",
            help="logs, as `ncclkit diagnose` takes them (default: those that the case holds)",
        )
        parser.add_argument(
            "--answer",
            action="append",
            default=[],
            metavar="CAUSE=ANSWER",
            help="yes, no or unknown to the question about a cause; may be repeated",
        )
        parser.add_argument(
            "--look-for-me",
            action="store_true",
            help="run the checks that only read on this host, or on the nodes of an allocation",
        )
        parser.add_argument(
            "--case",
            default="logs_case",
            help="the case folder that keeps the answers (default: ./logs_case, as 03_logs)",
        )
        add_json(parser, "one JSON object instead of text")
        add_log_marks(parser)

    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        """Add the answers, look where that is wanted; a person at a terminal is asked more."""
        from ncclkit.causes.engine import diagnose
        from ncclkit.cli import asking
        from ncclkit.experiments import questions

        answers = questions.parse_answers(options.answer)
        case = _case_to_ask_about(options)
        diagnosis = diagnose(case)
        if answers and questions.suspects_of(diagnosis):
            for look, answer in answers:
                questions.add_answer(case, look, answer)
            diagnosis = diagnose(case)
        seen: list[tuple[Look, Sight]] = []
        if options.look_for_me:
            with Activity("Looking"):
                diagnosis, seen = questions.look_through(case, diagnosis)
        if _is_conversation(options):
            print_parts(asking.suspect_parts(case, diagnosis))
            print_parts(asking.sight_parts(seen))
            diagnosis = asking.converse(case, diagnosis)
            return VerbAnswer(diagnosis.exit_code)
        return VerbAnswer(
            diagnosis.exit_code,
            parts=_question_parts(case, diagnosis, seen),
            data=partial(_json_object, options, case, diagnosis),
        )


def _case_to_ask_about(options: argparse.Namespace) -> Case:
    """The case folder with what the named logs hold.

    Without logs it is as an earlier reading left it.
    """
    from ncclkit.evidence import logs

    if not options.paths:
        case = open_case(options.case)
        if not case.inputs:
            raise NcclkitError(f"{case.path} holds no logs; name them, as in `ncclkit ask logs/`.")
        return case
    reading = read_evidence(options.paths)
    for problem in reading.problems:
        print_note(problem)
    case, *others = logs.fill_jobs(open_case(options.case), reading, options.paths)
    if others:
        count = len(others) + 1
        print_note(f"these logs are of {count} jobs; asked about is {case.about['logs']}.")
    return case.save()


def _is_conversation(options: argparse.Namespace) -> bool:
    """Whether a person can type the answers, one after the other."""
    return not options.json and sys.stdin.isatty() and "-" not in options.paths


def _question_parts(
    case: Case, diagnosis: Diagnosis, seen: Sequence[tuple[Look, Sight]]
) -> Iterator[Part]:
    from ncclkit.cli import asking

    yield from asking.suspect_parts(case, diagnosis)
    yield from asking.sight_parts(seen)
    yield from asking.question_parts(diagnosis)
    yield from asking.next_step_parts(case, diagnosis)


def _json_object(options: argparse.Namespace, case: Case, diagnosis: Diagnosis) -> dict[str, Any]:
    from ncclkit.experiments import questions

    return with_log_marks(options, questions.to_dict(case, diagnosis), case)
