"""`ncclkit rehearse`: whether a script would hang, before a GPU is spent."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from ncclkit.cli.arguments import add_case, add_json
from ncclkit.cli.judging import open_case
from ncclkit.cli.runner import Verb, VerbAnswer
from ncclkit.cli.terminal import Activity
from ncclkit.core.ranges import NumberRange
from ncclkit.rehearsal.rehearsal_options import RehearsalOptions


class RehearseVerb(Verb):
    """Run all ranks of a script on this machine, and say whether they agree."""

    name = "rehearse"
    group = "My job"
    what = "your own training script, before it runs: all ranks here, without a GPU; would it hang?"
    example = "rehearse --ranks 4 -- python train.py"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the user's own command, and how far it is rehearsed."""
        usual = RehearsalOptions()
        parser.add_argument(
            "command",
            nargs="*",
            metavar="COMMAND",
            help="after --: python train.py …, python -m …, torchrun …, accelerate launch …",
        )
        parser.add_argument(
            "--ranks",
            type=NumberRange(2, 256),
            help="how many (default: those of torchrun or accelerate, else 4)",
        )
        parser.add_argument(
            "--hosts",
            type=NumberRange(1, 256),
            help="on how many hosts they seem to be (default: as the launcher says, else 1)",
        )
        parser.add_argument(
            "--steps",
            type=NumberRange(1, 100_000),
            default=usual.steps,
            help="steps of the optimizer until a rank is stopped (default 20)",
        )
        parser.add_argument(
            "--timeout",
            type=NumberRange(1, 86_400),
            default=int(usual.timeout),
            help="seconds for all of it (default 120); a rank that runs longer proves nothing",
        )
        parser.add_argument(
            "--timeout-of-job",
            type=NumberRange(1, 86_400),
            metavar="SECONDS",
            help="how long the job lets a call wait; a longer wait is named, as an estimate",
        )
        parser.add_argument(
            "--own-gpu",
            action="store_true",
            help="the launcher shows each rank one GPU of its own (Slurm's --gpus-per-task, Ray)",
        )
        parser.add_argument(
            "--fake",
            action="store_true",
            help="tensors have shapes and no values: for kernels that only a GPU has, and models"
            " that do not fit here; a branch by a value is said",
        )
        parser.add_argument(
            "--gpu",
            action="store_true",
            help="all ranks share the first GPU of this machine: cuda is not mapped to the CPU",
        )
        add_case(parser)
        add_json(parser)

    def check_options(self, options: argparse.Namespace) -> None:
        """Refuse a command that is none of those that a rehearsal starts."""
        from ncclkit.live.job_paths import refuse_bare_script
        from ncclkit.rehearsal.commands import check_launcher

        refuse_bare_script(options.command)
        check_launcher(options.command)

    def job_paths(self, options: argparse.Namespace) -> list[str]:
        """The script."""
        from ncclkit.live.job_paths import script_of

        return script_of(options.command)

    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        """Rehearse, and answer 0: all agree, 1: would hang, 2: could not tell."""
        from ncclkit.rehearsal.rehearse import rehearse_script

        case = open_case(options.case)
        asked = RehearsalOptions(
            ranks=int(options.ranks or 0),
            steps=int(options.steps),
            timeout=options.timeout,
            hosts=int(options.hosts or 0),
            job_timeout=float(options.timeout_of_job or 0),
            own_gpu=options.own_gpu,
            fake=options.fake,
            gpu=options.gpu,
        )
        with Activity("Rehearsal", limit=asked.timeout) as activity:

            def note_problem(record: dict[str, Any]) -> None:
                if record["kind"] == "problem":
                    activity.note(f"ncclkit: {record['say']}")

            rehearsed = asyncio.run(rehearse_script(case, options.command, asked, note_problem))
        return VerbAnswer(rehearsed.status, parts=[rehearsed.text()], data=rehearsed.to_dict)
