"""`ncclkit tune`: settings beside the default, by collective and message size."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncclkit.cli.arguments import (
    DAY,
    add_case,
    add_here,
    add_json,
    add_oversubscribe,
    chosen_options,
    probe_options,
)
from ncclkit.cli.judging import open_case
from ncclkit.cli.runner import Part, Verb, VerbAnswer
from ncclkit.cli.terminal import Activity
from ncclkit.core.ranges import NumberRange
from ncclkit.core.text import format_bytes, plural
from ncclkit.live.options import OPTIONS, add_options

if TYPE_CHECKING:
    from ncclkit.core.tuning import Sweep

INTERRUPTED = 130
"""Exit status after Ctrl-C and SIGTERM."""


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

    def check_options(self, options: argparse.Namespace) -> None:
        """Refuse settings that are none, and options that no test takes."""
        from ncclkit.core.tuning import setting

        for words in options.settings:
            setting(words)
        chosen_options(options)

    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        """Measure each setting; write the files that set the best ones."""
        from ncclkit.core.tuning import setting
        from ncclkit.live import tune

        wanted = [setting(words) for words in options.settings]
        status = 0
        with Activity("Measuring") as activity, _ended_like_interrupt():
            shown = _GrowingTable(activity)
            sweeping = tune.sweep(
                open_case(options.case),
                wanted,
                probe_options(options),
                options.sizes,
                options.inherited,
                on_record=shown.show_record,
                job=options.job,
                budget=options.budget or 0.0,
                on_sweep=shown.show_sweep,
            )
            try:
                swept = asyncio.run(sweeping)
            except KeyboardInterrupt:
                if shown.known is None:
                    raise
                swept = shown.known
                status = INTERRUPTED
        if swept.unfinished and not status:
            status = 1
        if options.save:
            _write_files(swept, options.save)
        return VerbAnswer(status, parts=_sweep_parts(swept, options.save), data=lambda: [swept])


@contextmanager
def _ended_like_interrupt() -> Iterator[None]:
    """A request to end (SIGTERM) keeps what was measured, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only there signals are handled
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _GrowingTable:
    """The table of a sweep, row by row as it is measured, on standard error."""

    def __init__(self, activity: Activity) -> None:
        self.activity = activity
        self.known: Sweep | None = None
        """What is known by now."""
        self.rows: set[tuple[str, int]] = set()
        self.began = time.monotonic()
        self.left = ""

    def show_record(self, record: dict[str, Any]) -> None:
        """Show what is planned, and which pair of collective and size is measured now."""
        kind = record["kind"]
        if kind == "sweep.say":
            self.activity.note(f"  {record['say']}")
        elif kind == "plan":
            self.began = time.monotonic()
            self.left = ""
        elif kind == "sweep.pair":
            pairs_left = record["of"] - record["number"]
            seconds = (time.monotonic() - self.began) / record["number"] * pairs_left
            self.left = f", {plural(pairs_left, 'pair')} left, about {seconds:.0f} s"
        elif kind == "phase" and record.get("rank") == 0 and self.activity.bar is not None:
            doing = str(record["phase"])
            if doing == "size":
                doing = f"{record['op']} {format_bytes(record['bytes'])}{self.left}"
            self.activity.step(doing)

    def show_sweep(self, sweep: Sweep) -> None:
        """Print the rows that are new."""
        from ncclkit.core.recommendation import pair_in_words

        self.known = sweep
        for one in (*sweep.comparisons, *sweep.seen):
            if (one.op, one.bytes) not in self.rows:
                if not self.rows:
                    self.activity.note("  as it is measured; what is chance is told at the end:")
                self.rows.add((one.op, one.bytes))
                self.activity.note(f"  {pair_in_words(sweep, one.op, one.bytes)}")


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
        metavar="SECONDS",
        help=(
            "so long at most; what does not fit is counted and said, and combinations are then"
            " searched by Optuna (ncclkit[tuning]) (default: 30 over gloo, 120 on GPUs, and what"
            " named settings with jobs of their own take)"
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
    """What to do, the file that does it, then the details."""
    from ncclkit.core.recommendation import SOURCED, answer_lines, detail_lines
    from ncclkit.core.tuning import config_files

    yield "\n".join(answer_lines(swept))
    files = config_files(swept)
    folder = str(saved_in or swept.folder)
    if SOURCED in files and folder:
        yield f"In the job's script: . {shlex.quote(str(Path(folder).resolve() / SOURCED))}"
    details = "\n".join(detail_lines(swept))
    if details:
        yield details
    if not files:
        return
    names = ", ".join(files)
    if folder:
        yield f"Written to {folder}: {names}"
    else:
        yield f"--save DIR writes {names}"
    yield "\n".join(f"{name} again: {file.verify}" for name, file in files.items())
