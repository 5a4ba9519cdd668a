"""`ncclkit status`: what became of the batch jobs of a case."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ncclkit.cli.arguments import JOB_ID, add_case
from ncclkit.cli.batch_jobs import ended_answer, follow_job, with_case
from ncclkit.cli.judging import open_case
from ncclkit.cli.runner import Verb, VerbAnswer
from ncclkit.cli.terminal import show
from ncclkit.core.model import NcclkitError

if TYPE_CHECKING:
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

    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        """The exit status of a job that ended, 0 while it has not."""
        from ncclkit.live import submit as batch

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
            return follow_job(case, job)
        for one in held:
            state = batch.job_state(one)
            show(f"{shlex.join(['ncclkit', *with_case(one.words)])}: {state.sentence}", sys.stderr)
        now = batch.job_state(job)
        if now.over:
            return ended_answer(job, now)
        return VerbAnswer(0)


def _meant_job(held: Sequence[BatchJob], number: int | None) -> BatchJob | None:
    """The job of this id, or the last one."""
    for job in reversed(held):
        if number is None or job.id == str(number):
            return job
    return None
