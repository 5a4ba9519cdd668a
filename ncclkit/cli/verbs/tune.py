"""`ncclkit tune`: settings beside the default, by collective and message size."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ncclkit.cli.arguments import (
    DAY,
    add_case,
    add_here,
    add_json,
    add_oversubscribe,
    probe_options,
)
from ncclkit.cli.judging import open_case
from ncclkit.cli.progress import follow_run
from ncclkit.cli.runner import Part, Verb, VerbAnswer
from ncclkit.cli.terminal import Activity
from ncclkit.core.ranges import NumberRange
from ncclkit.live.options import OPTIONS, add_options

if TYPE_CHECKING:
    from ncclkit.core.tuning import Sweep


class TuneVerb(Verb):
    """Compare settings with the default, by collective and message size."""

    name = "tune"
    group = "This cluster"
    what = "compare settings with the default, by collective and message size"
    example = "tune NCCL_PROTO=Simple"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the settings, and what they are measured with."""
        parser.add_argument(
            "settings",
            nargs="*",
            metavar="NAME=VALUE",
            help=(
                "variables of one setting, joined by commas; NAME= takes one away; channels=32"
                " (default: what this hardware can have)"
            ),
        )
        parser.add_argument(
            "--inherited",
            action="store_true",
            help="what each variable that is set here, or each that is named, costs",
        )
        _add_workload(parser)
        parser.add_argument(
            "--save", metavar="DIR", type=Path, help="write nccl.env, nccl.conf, tuner.csv … there"
        )
        add_options(
            parser, "python", "ranks", "simulate_hosts", "max_bytes", "timeout", "backend", "dtype"
        )
        add_oversubscribe(parser)
        add_here(parser)
        add_case(parser)
        add_json(parser)

    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        """Measure each setting; write the files that set the best ones."""
        from ncclkit.core.tuning import setting
        from ncclkit.live import tune

        wanted = [setting(words) for words in options.settings]
        with Activity("Measuring") as activity:
            sweeping = tune.sweep(
                open_case(options.case),
                wanted,
                probe_options(options),
                options.sizes,
                options.inherited,
                on_record=follow_run(activity),
                job=options.job,
                budget=options.budget,
            )
            swept = asyncio.run(sweeping)
        if options.save:
            _write_files(swept, options.save)
        return VerbAnswer(0, parts=_sweep_parts(swept, options.save), data=lambda: [swept])


def _add_workload(parser: argparse.ArgumentParser) -> None:
    """What is sent, and for how long."""
    parser.add_argument(
        "--sizes",
        default="",
        type=_message_sizes,
        help="message sizes, such as 8,64KB,256MB (default: seven up to 256 MiB)",
    )
    parser.add_argument(
        "--from",
        dest="job",
        default="",
        metavar="JOB",
        help="sizes and variables of a job: its case, log or dumps, or a model.safetensors",
    )
    parser.add_argument(
        "--budget",
        type=NumberRange(1, 7 * DAY, "a number"),
        default=600.0,
        metavar="SECONDS",
        help=(
            "about so long at most; what does not fit is said, and combinations are then searched"
            " by Optuna (ncclkit[tuning]) (default 600)"
        ),
    )
    parser.add_argument(
        "--op",
        default="all",
        help="a collective, or several joined by commas (default: those that JOB sends, else all)",
    )


def _message_sizes(text: str) -> list[float]:
    """Message sizes that are joined by commas."""
    message = NumberRange(1, OPTIONS["max_bytes"].bounds[1], "a size")
    return [message(word) for word in text.split(",") if word]


def _write_files(swept: Sweep, folder: Path) -> None:
    from ncclkit.core.storage import write
    from ncclkit.core.tuning import config_files

    for name, file in config_files(swept).items():
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / name, file.text)


def _sweep_parts(swept: Sweep, saved_in: Path | None) -> Iterator[Part]:
    from ncclkit.core.tuning import config_files

    yield swept.text()
    files = config_files(swept)
    if not files:
        return
    names = ", ".join(files)
    if saved_in:
        yield f"Written to {saved_in}: {names}"
    else:
        yield f"--save DIR writes {names}"
    yield "\n".join(f"{name} again: {file.verify}" for name, file in files.items())
