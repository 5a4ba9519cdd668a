"""`ncclkit gate`: whether this node is ready for a job.

The agent (`ncclkit.agent.gate`) decides, prints and exits; its output and status are passed on.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from ncclkit.cli.runner import Verb, VerbAnswer
from ncclkit.core.model import NcclkitError
from ncclkit.core.ranges import NumberRange
from ncclkit.live.options import add_options

GRACE = 10.0
"""Seconds that the agent has beyond its own limit, to say what it found."""


class GateVerb(Verb):
    """Say whether this node is ready for a job; exit status 0, 1 or 2."""

    name = "gate"
    group = "This cluster"
    what = "whether this node is ready for a job, in seconds: for a prolog"
    example = "gate --seconds 60"
    needs_folder = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the time there is, and what nodes of this cluster have."""
        parser.add_argument(
            "--seconds",
            type=NumberRange(1, 3600, "a number"),
            default=10.0,
            help="at most; from 45 on GPUs are tested (default 10)",
        )
        parser.add_argument(
            "--baseline",
            metavar="FILE",
            help="what nodes of this cluster have, as --learn wrote it",
        )
        parser.add_argument(
            "--learn", metavar="FILE", help="add this node, which is good, to a baseline"
        )
        parser.add_argument(
            "--kind", default="", help="the kind of node in the baseline (default: the most alike)"
        )
        parser.add_argument(
            "--state",
            metavar="DIR",
            help="keep counters and failures of each node there: what is new since the last check",
        )
        parser.add_argument(
            "--mount",
            metavar="DIR",
            action="append",
            default=[],
            help="must be mounted and take a small file; may be repeated",
        )
        parser.add_argument(
            "--drain",
            nargs="?",
            const="",
            metavar="NODE",
            help="drain this node in Slurm where it is not ready, with the sentence as reason",
        )
        parser.add_argument(
            "--agent", metavar="FILE", type=Path, help="only write the one file that nodes need"
        )
        add_options(parser, "python")

    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        """Let the agent look, which prints what it finds itself; or only write it to a file."""
        from ncclkit.live.launch.pack import packed

        with packed() as agent:
            if options.agent:
                options.agent.write_bytes(agent.read_bytes())
                words = f"python3 {options.agent} gate --seconds {options.seconds:g}"
                return VerbAnswer(0, [f"Written: {options.agent}. On a node: {words}"])
            command = _gate_command(agent, options)
            try:
                done = subprocess.run(command, timeout=options.seconds + GRACE)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise NcclkitError(
                    f"The gate could not be run ({error}); name a Python with --train-python."
                ) from error
        return VerbAnswer(done.returncode)


def _gate_command(agent: Path, options: argparse.Namespace) -> list[str]:
    from ncclkit.live.probe import interpreter

    python = interpreter(options.python)
    command = [python, str(agent), "gate", "--seconds", str(options.seconds)]
    if options.baseline:
        command += ["--baseline", options.baseline]
    for name in ("learn", "kind", "state"):
        if getattr(options, name):
            command.append(f"--{name}={getattr(options, name)}")
    for folder in options.mount:
        command.append(f"--mount={folder}")
    if options.drain is not None:
        command += ["--drain", *filter(None, [options.drain])]
    return command
