"""`ncclkit diagnose`: what a job left behind is judged; of logs of several jobs each alone."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncclkit.cli.arguments import add_json, add_log_marks
from ncclkit.cli.judging import open_case, run_experiments, with_log_marks
from ncclkit.cli.reading import read_evidence
from ncclkit.cli.runner import Aside, Part, Verb, VerbAnswer, Verdict, print_note
from ncclkit.live.options import add_options

if TYPE_CHECKING:
    from ncclkit.causes.diagnosis import Diagnosis
    from ncclkit.core.case import Case
    from ncclkit.evidence import Reading


@dataclass(frozen=True, slots=True)
class _JudgedJob:
    """One of the jobs that the evidence is of."""

    case: Case
    found: Diagnosis


class DiagnoseVerb(Verb):
    """Judge what a job left behind; of logs of several jobs each alone."""

    name = "diagnose"
    what = "logs, folders and Flight Recorder dumps of a job: which rank is at fault, and why"
    example = "diagnose logs/ --json"
    needs_folder = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare what is read, and whether experiments follow."""
        parser.add_argument(
            "paths",
            nargs="+",
            metavar="PATH",
            help=(
                "file, folder, quoted pattern ('logs/*.out') or Slurm job id; - reads standard"
                " input"
            ),
        )
        add_json(parser, "one JSON object instead of text")
        add_log_marks(parser)
        parser.add_argument(
            "--check",
            action="store_true",
            help="run the experiments that decide, and the fix, on small jobs",
        )
        parser.add_argument(
            "--workers",
            metavar="WORKERS",
            help="who reads: dask, dask:8 (at most), tcp://HOST:PORT (default: this host)",
        )
        parser.add_argument(
            "--case",
            default="case",
            help="the case folder that keeps what --check did (default: ./case)",
        )
        add_options(parser, "python")

    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        """Read, judge, and try experiments where they are wanted."""
        from ncclkit.causes.engine import diagnose
        from ncclkit.core.case import Case
        from ncclkit.evidence import logs

        reading = read_evidence(options.paths, options.workers)
        if options.check:
            empty = _case_for_experiments(options)
        else:
            empty = Case()
        case, *others = logs.fill_jobs(empty, reading, options.paths)
        found = diagnose(case)
        for problem in reading.problems:
            print_note(problem)
        if options.check:
            found = run_experiments(case, options.python)
        jobs = [_JudgedJob(case, found)]
        jobs += [_JudgedJob(one, diagnose(one)) for one in others]
        for job in jobs:
            if job.found.ended:
                print_note(job.found.ended)
        return VerbAnswer(
            _exit_status(jobs),
            parts=_verdict_parts(reading, jobs),
            data=lambda: _json_object(options, jobs),
        )


def _case_for_experiments(options: argparse.Namespace) -> Case:
    """An empty case for the experiments.

    The folder of ``--case``, or a new hidden one in it where it holds anything.

    Of a case folder that was named as evidence, and is only read, it gets the plan of the last run,
    to run it again. Where that folder is the one of ``--case``, the experiments are its own.
    """
    from ncclkit.core.case import Case
    from ncclkit.experiments import baseline

    case = open_case(options.case)
    if case.path is None:
        return case
    is_alone = len(options.paths) == 1
    evidence = Path(options.paths[0])
    if is_alone and evidence.exists() and evidence.samefile(case.path):
        return case
    if (case.path / "case.json").exists():
        number = 1 + sum(1 for _ in case.path.glob(".checks/*"))
        case = Case.open(case.path / ".checks" / str(number))
    if is_alone and (evidence / "case.json").exists():
        baseline.take_over(case, Case.open(evidence, read_only=True))
    return case


def _exit_status(jobs: list[_JudgedJob]) -> int:
    """1 where any job failed; else what the first one says."""
    statuses = [job.found.exit_code for job in jobs]
    if 1 in statuses:
        return 1
    return statuses[0]


def _verdict_parts(reading: Reading, jobs: list[_JudgedJob]) -> Iterator[Part]:
    from ncclkit.causes.summary import summarize
    from ncclkit.evidence import logs

    count = len(reading.facts)
    summary = logs.reading_summary(reading.inputs, count, reading.measurements)
    yield Aside(f"ncclkit: {summary}")
    for number, job in enumerate(jobs, 1):
        paths = job.case.about["logs"]
        if len(jobs) > 1:
            yield f"Job {number} of {len(jobs)}: {paths}"
        yield Verdict(job.found, summarize(job.case, job.found, f"ncclkit diagnose {paths}"))


def _json_object(options: argparse.Namespace, jobs: list[_JudgedJob]) -> dict[str, Any]:
    """The object of the first job, with one of each other."""
    objects = []
    for job in jobs:
        plain = job.found.to_dict(job.case.inputs)
        objects.append(with_log_marks(options, plain, job.case))
    first, *rest = objects
    others = []
    for job, more in zip(jobs[1:], rest, strict=True):
        others.append({"logs": job.case.about["logs"]} | more)
    if others:
        return first | {"other_jobs": others}
    return first
