"""The batch jobs of a case.

They are followed until they end, then reported as if they had run here.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

from ncclkit.cli.progress import follow_run
from ncclkit.cli.runner import Aside, Part, VerbAnswer
from ncclkit.cli.terminal import Activity

if TYPE_CHECKING:
    from ncclkit.core.case import Case
    from ncclkit.live.submit import BatchJob, JobState

INTERRUPTED = 130
"""Exit status after Ctrl-C, as of a shell."""


def follow_job(case: Case, job: BatchJob) -> VerbAnswer:
    """Show the job's progress until it has ended, then what it printed.

    Ctrl-C leaves the job alone.
    """
    from ncclkit.live import submit as batch

    activity = Activity(f"Job {job.id}")
    try:
        with activity:
            follow = follow_run(activity)

            def observe(record: dict[str, Any]) -> None:
                if record["kind"] == "job":
                    activity.note(f"ncclkit: {record['say']}")
                elif record["kind"] == "end" and activity.bar:
                    # of a test; what its verb then does takes seconds, too
                    activity.step(f"the test has ended, {' '.join(job.words[:1])} goes on")
                else:
                    follow(record)

            ended = asyncio.run(batch.follow(case, job, observe))
    except KeyboardInterrupt:
        again = shlex.join(["ncclkit", "status", "--follow", "--case", str(case.path)])
        cancel = again.replace("--follow", "--cancel")
        left = f"ncclkit: job {job.id} goes on. `{again}` finds it again, `{cancel}` cancels it."
        return VerbAnswer(INTERRUPTED, [Aside(left)])
    return ended_answer(job, ended, activity.shown)


def ended_answer(
    job: BatchJob, ended: JobState, shown: AbstractSet[str] = frozenset()
) -> VerbAnswer:
    """What an ended job printed, with the exit status of its verb; 2 where it has none.

    `shown` are lines of its progress that were shown while it ran.
    """
    status = ended.status
    if status is None or not 0 <= status <= 2:
        status = 2
    return VerbAnswer(status, _printed_parts(job, ended, shown))


def _printed_parts(job: BatchJob, ended: JobState, shown: AbstractSet[str]) -> Iterator[Part]:
    if job.printed:
        yield job.printed.rstrip("\n")
    if ended.status in (0, 1):
        return
    said = []
    for line in job.complaints.splitlines():
        if line not in shown:
            said.append(line)
    if "".join(said).strip():
        yield Aside("\n".join(said))
    last = f"ncclkit: {ended.sentence}"
    if last not in shown:
        yield Aside(last)


def with_case(words: Sequence[str], *case: str) -> list[str]:
    """The words of a verb with this ``--case DIR`` only, or none.

    Behind ``--`` stands the user's own command.
    """
    end = len(words)
    if "--" in words:
        end = words.index("--")
    kept: list[str] = []
    before = ""
    for word in words[:end]:
        is_case = word == "--case" or word.startswith("--case=")
        if not is_case and before != "--case":
            kept.append(word)
        before = word
    return [*kept, *case, *words[end:]]
