"""`ncclkit inspect`: facts of this host or of an allocation.

It tells also what they make a job suffer.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ncclkit.cli.arguments import COUNT, add_case, add_json
from ncclkit.cli.judging import facts_read_now, judge_now, open_case
from ncclkit.cli.runner import NameTable, Part, Verb, VerbAnswer, Verdict
from ncclkit.cli.terminal import Activity, fact_tables
from ncclkit.core.ranges import NumberRange
from ncclkit.live.options import add_options

if TYPE_CHECKING:
    from ncclkit.analysis.consistency import Consistency
    from ncclkit.causes.diagnosis import Diagnosis
    from ncclkit.core.case import Case
    from ncclkit.core.model import Fact

SIZE = NumberRange(0, 2**60, "a size")


class InspectVerb(Verb):
    """Read the facts of this host, or of an allocation."""

    name = "inspect"
    group = "This cluster"
    what = "facts of this host, or of a Slurm allocation and where nodes differ"
    example = "inspect --ranks 8 --data /datasets"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the job that is to run here, and its folders."""
        parser.add_argument(
            "--ranks",
            type=COUNT,
            help="ranks on each host that the job is to have (default: its GPUs)",
        )
        parser.add_argument("--workers", type=COUNT, help="data-loader workers of each rank")
        parser.add_argument(
            "--prefetch", type=COUNT, help="batches that each worker reads ahead (default 2)"
        )
        parser.add_argument(
            "--dataset-bytes",
            dest="dataset",
            type=SIZE,
            help="data that each rank keeps in memory, such as 40GiB",
        )
        parser.add_argument(
            "--batch-bytes", dest="batch", type=SIZE, help="one batch, such as 64MB"
        )
        parser.add_argument(
            "--data",
            metavar="DIR",
            help="a folder with training data, whose storage is checked too",
        )
        parser.add_argument("--checkpoints", metavar="DIR", help="the same for checkpoints")
        add_options(parser, "python")
        add_case(parser)
        add_json(parser)

    def job_paths(self, options: argparse.Namespace) -> list[str]:
        """The folders whose storage is looked at."""
        return [path for path in (options.data, options.checkpoints) if path]

    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        """Read the facts, compare the hosts, and judge what a job would suffer."""
        from ncclkit.analysis.consistency import compare
        from ncclkit.core import resources
        from ncclkit.core.case import Case
        from ncclkit.live import probe
        from ncclkit.live.launch import local

        job = {name: getattr(options, name) for name in resources.UNITS}
        case = open_case(options.case)
        before = list(case.facts)
        resources.set_job_spec(case, job)
        paths = {"work": ".", "data": options.data, "checkpoints": options.checkpoints}
        with Activity("Reading facts", limit=local.FACTS):
            asyncio.run(probe.inspect_hosts(case, options.python or None, paths))
        this_run = Case()
        this_run.facts = facts_read_now(case, before)
        found = judge_now(case, this_run)
        hosts = compare(this_run.facts)
        return VerbAnswer(
            int(bool(found.findings) or hosts.can_break),
            parts=_fact_parts(case, this_run.facts, found, hosts),
            data=lambda: this_run.facts,
        )


def _fact_parts(
    case: Case, facts: Sequence[Fact], found: Diagnosis, hosts: Consistency
) -> Iterator[Part]:
    """First what the facts make a job suffer, then the facts."""
    from ncclkit.live import scheduler

    yield Verdict(found)
    if len(hosts.hosts) == 1:
        for title, rows in fact_tables(facts):
            yield NameTable(title, rows)
    else:
        yield f"\n{hosts.text()}"
    if scheduler.is_login_node():
        partitions = scheduler.known(case).get("partitions", [])
        rows = [(row["name"], scheduler.partition_words(row)) for row in partitions]
        yield NameTable(scheduler.scheduler_sentence(case), rows)
        queue = []
        for job in scheduler.known(case).get("jobs", []):
            number = scheduler.job_number_words(job.get("id", ""))
            words = scheduler.job_words(job)
            queue.append((number, words))
        if queue:
            yield NameTable("Your jobs in the queue", queue)
