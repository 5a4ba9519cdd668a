"""`ncclkit status`: what became of the batch jobs of a case."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ncclkit.cli.arguments import JOB_ID, add_case, add_json
from ncclkit.cli.batch_jobs import INTERRUPTED, ended_answer, follow_job, with_case
from ncclkit.cli.judging import open_case
from ncclkit.cli.runner import Verb, VerbAnswer
from ncclkit.cli.terminal import show
from ncclkit.core.model import SCHEMA, NcclkitError

if TYPE_CHECKING:
    from ncclkit.core.case import Case
    from ncclkit.live.job_outcomes import JobOutcome
    from ncclkit.live.submit import BatchJob


class StatusVerb(Verb):
    """Say what became of the batch jobs of a case."""

    name = "status"
    group = "This cluster"
    what = "the batch jobs of a case: queue, progress, end, report"
    example = "status --follow"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare which job, and what becomes of it."""
        parser.add_argument(
            "job", nargs="?", type=JOB_ID, help="a job id (default: the last job of the case)"
        )
        parser.add_argument("--follow", action="store_true", help="stay until the job has ended")
        parser.add_argument("--cancel", action="store_true", help="cancel the job")
        add_case(parser)
        add_json(parser, "one JSON object instead of text: all jobs, and what came of each")

    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        """The exit status of a job that ended, 0 while it has not."""
        from ncclkit.live import submit as batch
        from ncclkit.live.job_outcomes import job_outcomes

        case = open_case(options.case)
        held = batch.submitted_jobs(case)
        job = _meant_job(held, options.job)
        if job is None:
            which = "batch job"
            if options.job:
                which = f"job {options.job}"
            raise NcclkitError(
                f"{case.path} holds no {which}; `ncclkit submit VERB --case DIR` submits one."
            )
        if options.cancel:
            batch.cancel(job)
        if options.follow:
            followed = follow_job(case, job)
            if followed.status == INTERRUPTED:
                return followed
            known = job_outcomes(held, case)
            return replace(followed, data=lambda: _json_object(case, job, known))
        known = job_outcomes(held, case)
        shown: set[str] = set()
        (now,) = [outcome.state for outcome in known if outcome.job is job]
        if not options.json:
            _show_outcomes(known, job)
            # that it ended, and how, stands above what it printed
            shown = {f"ncclkit: {now.sentence}"}
        ended = VerbAnswer(0)
        if now.over:
            ended = ended_answer(job, now, shown)
        return replace(ended, data=lambda: _json_object(case, job, known))


def _show_outcomes(known: Sequence[JobOutcome], meant: BatchJob) -> None:
    """A line for each job, and below it what came of its verb."""
    for outcome in known:
        printed = ""
        # what the meant job printed follows
        if outcome.job is meant and outcome.state.over:
            printed = meant.printed
        words = shlex.join(["ncclkit", *with_case(outcome.job.words)])
        show(f"{words}: {outcome.state.sentence}", sys.stderr)
        for line in outcome.lines():
            if line not in printed:
                show(f"  {line}", sys.stderr)


def _json_object(case: Case, job: BatchJob, known: Sequence[JobOutcome]) -> dict[str, Any]:
    """All jobs of the case, the oldest first; `job` is the one that the exit status is about."""
    return {
        "schema": SCHEMA,
        "case": str(case.path),
        "job": job.id,
        "jobs": [outcome.to_dict() for outcome in known],
    }


def _meant_job(held: Sequence[BatchJob], number: int | None) -> BatchJob | None:
    """The job of this id, or the last one."""
    for job in reversed(held):
        if number is None or job.id == str(number):
            return job
    return None
