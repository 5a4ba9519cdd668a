"""`ncclkit submit`: another verb as a batch job of Slurm.

The report of that verb is shown here.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncclkit.cli.arguments import add_json, can_ask_person, typed_answer
from ncclkit.cli.batch_jobs import INTERRUPTED, follow_job, with_case
from ncclkit.cli.judging import open_case
from ncclkit.cli.runner import Verb, VerbAnswer, print_note, run_verb
from ncclkit.cli.terminal import show
from ncclkit.core.model import SCHEMA, NcclkitError
from ncclkit.live.options import JOB_OPTIONS, JobOptions, add_options

if TYPE_CHECKING:
    from ncclkit.core.case import Case
    from ncclkit.live.submit import BatchJob

NEVER_BATCH = ("submit", "status", "open", "mcp", "completion", "causes", "gate", "exam", "decide")
"""Verbs that ask about batch jobs, wait for a person, or need no node and keep no case."""


class SubmitVerb(Verb):
    """Submit a verb as a batch job, follow it, and print what it printed."""

    name = "submit"
    group = "This cluster"
    what = "run another verb as a batch job of Slurm, and show its progress and its report here"
    example = "submit -p gpu -N 2 -t 10 probe --stages"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options of the job; the verb behind them brings its own."""
        add_options(parser, *JOB_OPTIONS, defaults=JobOptions())
        parser.add_argument(
            "--no-wait",
            action="store_true",
            help="return when it is in the queue; `ncclkit status` finds it",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="print what sbatch would get, and submit nothing"
        )
        add_json(parser, "one JSON object instead of text: the job, and what came of it")
        parser.usage = (
            "%(prog)s [-p PARTITION] [-N NODES] [-t TIME] [OPTION …] VERB [OPTION OF THE VERB …]"
        )
        parser.add_argument(
            "words",
            nargs=argparse.REMAINDER,
            metavar="VERB …",
            help="the verb, with its own options",
        )

    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        """Submit, and follow the job; its exit status is that of the verb."""
        from ncclkit.live import job_checks, job_paths, scheduler
        from ncclkit.live import submit as batch
        from ncclkit.live.options import job_options

        verb = _parsed_verb(options)
        chosen = job_options(options)
        if scheduler.is_inside_job():
            print_note("this is inside a job of Slurm already, so the verb runs in it.")
            return VerbAnswer(run_verb(verb))
        # before there is a case folder, and before the queue
        verb.verb.check_options(verb)
        case_folder = Path(verb.case).expanduser().absolute()
        batch.refuse_unwritable(case_folder)
        for path in job_paths.missing_paths(verb.verb.job_paths(verb), case_folder, chosen):
            print_note(f"there is no {path} on this host; the job looks for it on its nodes.")
        case = open_case(verb.case)
        case.replace_facts(scheduler.read_facts()).save()
        words = with_case(options.words, "--case", str(case.path))
        kinds = batch.kind_sentence(case, chosen)
        if kinds:
            print_note(kinds)
        if options.dry_run:
            job_checks.refuse_misfit(case, chosen)
            folder = batch.unmade_folder(case.path or Path(), words[0])
            text = batch.script(case, folder, words, chosen)
            return VerbAnswer(0, [text], lambda: {"schema": SCHEMA, "script": text})
        job = batch.submit(case, words, chosen, _confirm_script)
        print_note(f"job {job.id} is in the queue; {job.folder} keeps what it prints.")
        if options.no_wait:
            return VerbAnswer(0, (), lambda: _json_object(case, job))
        followed = follow_job(case, job)
        if followed.status == INTERRUPTED:
            return followed
        return replace(followed, data=lambda: _json_object(case, job))


def _json_object(case: Case, job: BatchJob) -> dict[str, Any]:
    """The job as ``ncclkit status --json`` has it."""
    from ncclkit.live.job_outcomes import job_outcomes

    (outcome,) = job_outcomes([job], case)
    return {"schema": SCHEMA, "case": str(case.path), "job": outcome.to_dict()}


def _parsed_verb(options: argparse.Namespace) -> argparse.Namespace:
    """The options of the verb that the words name; raises NcclkitError where it cannot be a job."""
    if not options.words:
        raise NcclkitError(
            "Which verb shall run on the nodes? For example `ncclkit submit -N 2 probe --stages`."
        )
    name = options.words[0]
    if name in NEVER_BATCH:
        raise NcclkitError(f"{name} cannot be a batch job; name a verb such as probe.")
    parsed: argparse.Namespace = options.whole_command.parse_args(options.words)
    return parsed


def _confirm_script(record: dict[str, Any]) -> None:
    """Show what sbatch gets; a person may still say no."""
    show(record["text"], sys.stderr)
    if can_ask_person() and typed_answer("Submit this? [Y/n]") in ("n", "no"):
        raise NcclkitError("Nothing was submitted.")
