"""`ncclkit lab`: a small job is broken on purpose, then diagnosed."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ncclkit.cli.arguments import (
    add_case,
    add_here,
    add_json,
    add_oversubscribe,
    chosen_options,
    probe_options,
)
from ncclkit.cli.judging import judge_run, open_case, run_experiments
from ncclkit.cli.progress import follow_run
from ncclkit.cli.runner import NameTable, Verb, VerbAnswer, Verdict
from ncclkit.cli.terminal import Activity, show
from ncclkit.live.options import add_options

if TYPE_CHECKING:
    from ncclkit.core.case import Case
    from ncclkit.core.runs import Run


class LabVerb(Verb):
    """Break a small job and diagnose it."""

    name = "lab"
    group = "Learn"
    what = "a small training job with a known fault, then its diagnosis"
    example = "lab rank_late --check"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the fault, and the job that it breaks."""
        parser.add_argument(
            "fault", nargs="?", metavar="FAULT", help="a name from --list; without it, the list"
        )
        parser.add_argument(
            "--check", action="store_true", help="then run the experiments that decide, and the fix"
        )
        parser.add_argument(
            "--list", action="store_true", help="the faults, and what each one does"
        )
        parser.add_argument(
            "--record",
            metavar="DIR",
            type=Path,
            help="keep what the job left behind, with the truth, in DIR",
        )
        add_options(parser, "python", "ranks", "simulate_hosts", "timeout", "backend")
        add_oversubscribe(parser)
        add_here(parser)
        add_case(parser)
        add_json(parser)

    def check_options(self, options: argparse.Namespace) -> None:
        """Refuse a fault that there is not, and options that no run takes."""
        from ncclkit.lab.faults import injection

        if options.fault:
            injection.fault(options.fault)
        chosen_options(options)

    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        """Break the job, keep a recording where that is wanted, and diagnose."""
        from ncclkit.lab.faults import injection, recording

        if options.list or not options.fault:
            rows = [(name, injection.fault_row(fault)) for name, fault in injection.FAULTS.items()]
            return VerbAnswer(0, [NameTable("", rows)])
        if options.record:
            recording.writable(options.record)  # refused before anything has run
        says = injection.fault(options.fault).says
        show(
            f"This run: {says}. It touches only its own processes and {options.case}.",
            file=sys.stderr,
        )
        case = open_case(options.case)
        run = _broken_run(case, options)
        if options.record:
            recording.bundle(run, options.record, {"host": "lab"})
        if options.check:
            verdict = Verdict(run_experiments(case, options.python))
        else:
            verdict = judge_run(case, run.folder)
        found = verdict.diagnosis
        return VerbAnswer(
            found.exit_code,
            parts=[f"{run.summary}\n", verdict],
            data=lambda: found.to_dict(case.inputs),
        )


def _broken_run(case: Case, options: argparse.Namespace) -> Run:
    from ncclkit.lab.faults import injection

    asked = probe_options(options)
    with Activity(options.fault, limit=asked.timeout) as activity:
        running = injection.inject(
            case,
            options.fault,
            python=asked.python,
            ranks=asked.ranks,
            backend=asked.backend,
            deadline=asked.timeout,
            simulate_hosts=asked.simulate_hosts,
            oversubscribe=asked.oversubscribe,
            here=asked.here,
            on_record=follow_run(activity),
        )
        return asyncio.run(running)
