"""`ncclkit step`: where the time of a training step goes."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ncclkit.cli.arguments import add_case, add_here, add_json
from ncclkit.cli.judging import judge_run, open_case
from ncclkit.cli.runner import Part, Verb, VerbAnswer
from ncclkit.cli.terminal import Activity
from ncclkit.live.options import StepOptions, add_options, declared

if TYPE_CHECKING:
    from ncclkit.core.case import Case
    from ncclkit.live.step import StepRun


class StepVerb(Verb):
    """Say where the time of a training step goes, by a run or by traces; compare settings."""

    name = "step"
    group = "My job"
    what = (
        "your own training script for some steps: where a step's time goes, and who waits for whom"
    )
    example = "step --try workers=4 -- torchrun --nproc-per-node 8 train.py"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the user's own command, or the traces that are read in its place."""
        parser.add_argument(
            "command",
            nargs="*",
            metavar="COMMAND",
            help="after --: python train.py …, torchrun …, srun …",
        )
        add_options(parser, *declared(StepOptions), defaults=StepOptions())
        parser.add_argument(
            "--traces",
            nargs="+",
            metavar="PATH",
            help="read traces of torch's profiler; start nothing",
        )
        parser.add_argument(
            "--hta",
            action="store_true",
            help="… with HolisticTraceAnalysis, too (ncclkit[tuning])",
        )
        add_here(parser)
        add_case(parser)
        add_json(parser)

    def check_options(self, options: argparse.Namespace) -> None:
        """Refuse options that no run of a script takes, and a script without its program."""
        given = {name: getattr(options, name) for name in declared(StepOptions)}
        given["tries"] = tuple(options.tries)
        StepOptions(**given)
        from ncclkit.live.job_paths import refuse_bare_script

        refuse_bare_script(options.command)

    def job_paths(self, options: argparse.Namespace) -> list[str]:
        """The traces, or the script."""
        from ncclkit.live.job_paths import script_of

        return list(options.traces or script_of(options.command))

    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        """Read the traces, or run the command for some steps."""
        case = open_case(options.case)
        if options.traces:
            return _traces_answer(case, options)
        run = _measured_run(case, options)
        return VerbAnswer(
            int(not run.times),
            parts=_run_parts(case, run),
            data=run.to_dict,
        )


def _traces_answer(case: Case, options: argparse.Namespace) -> VerbAnswer:
    from ncclkit.live.step import holistic, read_traces

    times = read_traces(case, options.traces)
    more = []
    if options.hta:
        more = holistic(options.traces)
    text = "\n".join([times.text(), *more])
    return VerbAnswer(0, parts=[text], data=lambda: [times])


def _measured_run(case: Case, options: argparse.Namespace) -> StepRun:
    from ncclkit.live.step import measure_steps

    given = {name: getattr(options, name) for name in declared(StepOptions)}
    given["tries"] = tuple(options.tries)
    asked = StepOptions(**given, here=options.here)
    # each round runs the script once as it is, and once with each thing that is tried
    runs = 1 + asked.rounds * len(asked.tries)
    with Activity("Steps", limit=asked.timeout * runs) as activity:

        def narrate(record: dict[str, Any]) -> None:
            if record["kind"] == "problem":
                activity.note(f"ncclkit: {record['say']}")

        return asyncio.run(measure_steps(case, options.command, asked, narrate))


def _run_parts(case: Case, run: StepRun) -> Iterator[Part]:
    yield run.text()
    if run.times is None:
        yield judge_run(case, run.folder)
