"""The command ``ncclkit``, for scripts, tickets and people without a browser.

Exit status: 0 nothing found (or done), 1 something found (or a run did not end
well), 2 could not read or could not start; the reason then stands on stderr in
one sentence.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ncclkit import __version__
from ncclkit.cli import verbs
from ncclkit.core.model import NcclkitError


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run one verb, return the exit status."""
    options = _parser().parse_args(argv)
    try:
        return int(options.verb(options))
    except NcclkitError as error:
        verbs.say(f"ncclkit: {error}", sys.stderr)
        return 2
    except KeyboardInterrupt:
        verbs.say("ncclkit: interrupted; everything that was started has been ended.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader (head, less) has gone: nothing left to say
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ncclkit", description="Find out why distributed training hangs, crashes or crawls."
    )
    parser.add_argument("--version", action="version", version=f"ncclkit {__version__}")
    parsers = parser.add_subparsers(required=True, metavar="VERB")
    _add_diagnose(parsers)
    _add_live(parsers)
    _add_attach(parsers)
    _add_notebooks(parsers)
    return parser


def _add_diagnose(parsers: Any) -> None:
    verb = parsers.add_parser(
        "diagnose", help="logs, folders and Flight Recorder dumps of a job: which rank is at fault, and why"
    )
    verb.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="file, folder, quoted pattern ('logs/*.out') or Slurm job id; - reads standard input",
    )
    verb.add_argument("--json", action="store_true", help="one JSON object instead of text")
    verb.add_argument(
        "--check", action="store_true", help="run the experiments that decide, and the fix, on small jobs"
    )
    verb.add_argument("--case", default="case", help="the case folder that keeps what --check did (default: ./case)")
    verb.add_argument("--train-python", help="the training interpreter for --check (default: this one)")
    verb.set_defaults(verb=verbs.diagnose)


def _add_inspect(parsers: Any) -> argparse.ArgumentParser:
    what = "facts of this host, or of a Slurm allocation and where nodes differ"
    verb: argparse.ArgumentParser = parsers.add_parser("inspect", help=what)
    verb.set_defaults(verb=verbs.inspect)
    verb.add_argument("--ranks", type=int, help="ranks on each host that the job is to have (default: its GPUs)")
    verb.add_argument("--workers", type=int, help="data-loader workers of each rank")
    verb.add_argument("--prefetch", type=int, help="batches that each worker reads ahead (default 2)")
    verb.add_argument("--dataset-bytes", type=int, dest="dataset", help="what each rank keeps of the data in memory")
    verb.add_argument("--batch-bytes", type=int, dest="batch", help="one batch")
    verb.add_argument("--data", metavar="DIR", help="a folder with training data, whose storage is looked at too")
    verb.add_argument("--checkpoints", metavar="DIR", help="the same for checkpoints")
    return verb


def _add_live(parsers: Any) -> None:
    inspect = _add_inspect(parsers)
    probe = parsers.add_parser("probe", help="the live test: checked and timed collectives on real ranks")
    probe.set_defaults(verb=verbs.probe)
    tune = parsers.add_parser("tune", help="compare variables with the default, in alternating runs")
    tune.add_argument("settings", nargs="+", metavar="NAME=VALUE", help="variables of a variant, joined by commas")
    tune.add_argument("--pairs", type=int, default=6, help="pairs of runs (default 6, the least that can tell)")
    tune.set_defaults(verb=verbs.tune)
    connect = parsers.add_parser("connect", help="names, ports, packet sizes, speed and clocks between hosts")
    connect.add_argument("hosts", nargs="*", metavar="HOST", help="default: the nodes of the Slurm allocation")
    connect.add_argument("--via", default="", help="ssh, srun, or the words before a command, with {host} in them")
    connect.add_argument("--port", type=int, help="the rendezvous port (default: MASTER_PORT, else 29500)")
    connect.set_defaults(verb=verbs.connect)
    lab = parsers.add_parser("lab", help="break a small training job on purpose, then diagnose it")
    lab.add_argument("fault", nargs="?", metavar="FAULT", help="a name that --list tells; without it, the list")
    lab.add_argument("--check", action="store_true", help="then run the experiments that decide, and the fix")
    lab.add_argument("--list", action="store_true", help="the faults, and what each one does")
    lab.add_argument("--record", metavar="DIR", type=Path, help="keep what the job left behind, with the truth, in DIR")
    lab.set_defaults(verb=verbs.lab)
    for sub in (inspect, connect, probe, tune, lab):
        sub.add_argument("--case", default="case", help="the case folder (default: ./case)")
        sub.add_argument("--train-python", help="the training interpreter (default: this one)")
        sub.add_argument("--json", action="store_true", help="JSON instead of text")
    for sub in (probe, tune, lab):
        sub.add_argument("--ranks", type=int, help="number of ranks (default: all GPUs; 2, or 1 a node, on the CPU)")
        sub.add_argument("--backend", choices=("auto", "nccl", "gloo"), default="auto")
        sub.add_argument("--deadline", type=float, default=120.0, help="seconds until the run is ended (default 120)")
    for sub in (probe, tune):
        sub.add_argument("--largest", type=int, help="largest message in bytes")
        sub.add_argument("--dtype", default="float32", help="of the elements (default float32)")
    for sub in (probe, lab):
        sub.add_argument(
            "--split", type=int, default=1, help="NCCL takes the ranks for those of so many hosts on these GPUs"
        )
    probe.add_argument("--ladder", action="store_true", help="first ranks alone, pairs, nodes; who is at fault")
    probe.add_argument(
        "--op", default="all_reduce", help="a collective, several joined by commas, or all (default all_reduce)"
    )
    probe.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="a variable for the ranks; may be repeated"
    )


def _add_attach(parsers: Any) -> None:
    verb = parsers.add_parser("attach", help="a job that hangs now on this host: stacks, RAS, and what its ranks do")
    which = verb.add_mutually_exclusive_group()
    which.add_argument(
        "--pid",
        action="append",
        default=[],
        metavar="[RANK=]PID",
        help="a rank of the job, or its launcher; of several these alone (default: the only job of this user here)",
    )
    which.add_argument("--job", type=int, help="the ranks of this Slurm job on this host")
    verb.add_argument("--seconds", type=float, default=3.0, help="how long its load is watched at least (default 3)")
    verb.add_argument("--case", default="case", help="the case folder (default: ./case)")
    verb.add_argument("--json", action="store_true", help="JSON instead of text")
    verb.set_defaults(verb=verbs.attach)


def _add_notebooks(parsers: Any) -> None:
    report = parsers.add_parser("report", help="the guided notebook, headless, as one HTML file")
    report.add_argument("--case", default="case", help="the case folder (default: ./case)")
    report.add_argument("--train-python", help="the training interpreter (default: this one)")
    report.add_argument("--notebook", default="guided", help="another notebook by name (default guided)")
    report.add_argument("-p", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the notebook")
    report.add_argument("--redact", action="store_true", help="name no host, address or user in the HTML file")
    report.set_defaults(verb=verbs.report)
    lab = parsers.add_parser("open", help="JupyterLab on a notebook, with the ssh line to reach it")
    lab.add_argument("notebook", nargs="?", default="guided")
    lab.add_argument("--port", type=int, default=8888)
    lab.set_defaults(verb=verbs.open)


if __name__ == "__main__":
    sys.exit(main())
