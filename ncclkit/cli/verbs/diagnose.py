"""`ncclkit diagnose`: what a job left behind is judged.

Of logs of several jobs each is judged alone.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncclkit.cli.arguments import add_json, add_log_marks
from ncclkit.cli.judging import open_case, replaced_names_note, run_experiments, with_log_marks
from ncclkit.cli.reading import read_evidence
from ncclkit.cli.runner import Aside, Part, ReportPage, Verb, VerbAnswer, Verdict, print_note
from ncclkit.core.model import NcclkitError
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
    group = "My job"
    what = "logs, folders and Flight Recorder dumps of a job: which rank is at fault, and why"
    example = "diagnose logs/ --html report.html"
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
            "--source",
            metavar="DIR",
            help="the program, where it no longer lies at the paths that its tracebacks name",
        )
        parser.add_argument(
            "--html",
            metavar="FILE",
            help="also write all of it as one offline page, for the ticket",
        )
        parser.add_argument(
            "--redact", action="store_true", help="name no host, address or user on that page"
        )
        parser.add_argument(
            "--redact-name",
            metavar="NAME",
            action="append",
            default=[],
            help="and not this name; may be repeated",
        )
        parser.add_argument(
            "--all", action="store_true", help="on a terminal, too: all evidence and advice"
        )
        parser.add_argument(
            "--readers",
            metavar="READERS",
            help="who reads: dask, dask:8 (at most), tcp://HOST:PORT (default: this host)",
        )
        parser.add_argument(
            "--case",
            default="case",
            help="the case folder that keeps what --check did (default: ./case)",
        )
        add_options(parser, "python")

    def job_paths(self, options: argparse.Namespace) -> list[str]:
        """The logs."""
        return list(options.paths)

    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        """Read, judge, and try experiments where they are wanted."""
        from ncclkit.causes.engine import diagnose
        from ncclkit.core.case import Case
        from ncclkit.evidence import logs

        page = _page_file(options)
        reading = _with_program(options, read_evidence(options.paths, options.readers))
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
        if page is not None:
            _write_page(options, page, reading, case)
        return VerbAnswer(
            _exit_status(jobs),
            parts=_answer_parts(options, page, reading, jobs),
            data=lambda: _json_object(options, jobs),
        )


def _with_program(options: argparse.Namespace, reading: Reading) -> Reading:
    """The reading, with what the program says of the lines that it names."""
    from ncclkit.evidence.programs import add_program_lines

    if options.source is not None and not os.path.isdir(options.source):
        raise NcclkitError(f"--source names a folder with the program; {options.source} is none.")
    # a coding agent reads logs of strangers, by which no other file is opened unasked
    if options.mark_log_text and options.source is None:
        return reading
    return add_program_lines(reading, options.source or "")


def _page_file(options: argparse.Namespace) -> Path | None:
    """Where the page goes; raises NcclkitError where it cannot, before anything is read."""
    if options.html is None:
        if options.redact or options.redact_name:
            raise NcclkitError("--redact is about the page; name its file, as in --html FILE.")
        return None
    if options.html in ("", "-"):
        raise NcclkitError("--html writes a file; name one, such as report.html.")
    from ncclkit import report

    page = Path(options.html).expanduser().absolute()
    report.check_target(page)
    return page


def _write_page(options: argparse.Namespace, page: Path, reading: Reading, case: Case) -> None:
    """Write the page, and say where it is where the answer is JSON.

    It is never written over what was read.
    """
    from ncclkit import report

    written = [page]
    if options.redact or options.redact_name:
        written.append(report.replaced(page))
    for file in written:
        for name in {*reading.named, *reading.named.values()}:
            if os.path.exists(file) and os.path.exists(name) and os.path.samefile(file, name):
                raise NcclkitError(
                    f"Cannot write the report {file}: it is one of the logs; name another file."
                )
    words = ["ncclkit", "diagnose", *options.paths, "--html", options.html]
    report.page_of_logs(case, page, shlex.join(words), options.redact, options.redact_name)
    if options.json:
        print_note(f"the page is {page}")


def _case_for_experiments(options: argparse.Namespace) -> Case:
    """An empty case for the experiments.

    It is the folder of ``--case``, or a new hidden one in it where it holds anything.  Of a case
    folder that was named as evidence, and is only read, it gets the plan of the last run, to run it
    again.  Where that folder is the one of ``--case``, the experiments are its own.
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


def _answer_parts(
    options: argparse.Namespace, page: Path | None, reading: Reading, jobs: list[_JudgedJob]
) -> Iterator[Part]:
    """The verdict on each job, then where the page is."""
    yield from _verdict_parts(reading, jobs, options.all)
    if page is None:
        return
    yield ReportPage(page)
    if options.redact or options.redact_name:
        yield replaced_names_note(page)


def _verdict_parts(reading: Reading, jobs: list[_JudgedJob], is_whole: bool) -> Iterator[Part]:
    from ncclkit.causes.summary import summarize
    from ncclkit.evidence import logs

    count = len(reading.facts)
    was_read = logs.reading_summary(reading.inputs, count, reading.measurements)
    yield Aside(f"ncclkit: {was_read}")
    for number, job in enumerate(jobs, 1):
        paths = job.case.about["logs"]
        if len(jobs) > 1:
            yield f"Job {number} of {len(jobs)}: {paths}"
        summary = summarize(job.case, job.found, f"ncclkit diagnose {paths}")
        yield Verdict(job.found, summary, is_whole)


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
