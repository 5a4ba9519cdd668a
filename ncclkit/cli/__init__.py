"""The command ``ncclkit``, for scripts, tickets and people without a browser.

Exit status: 0 the job was seen to go well (or done), 1 a cause was found or none explains
the job (or a run failed), 2 nothing is of a training job, could not be read or could not
start: stderr then says why in one sentence.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ncclkit import __version__
from ncclkit.cli import verbs
from ncclkit.core.model import NcclkitError
from ncclkit.live.options import DEFAULTS, OPTIONS


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run one verb, return the exit status."""
    options = _parser().parse_args(argv)
    try:
        return int(options.verb(options))
    except NcclkitError as error:
        verbs.show(f"ncclkit: {error}", sys.stderr)
        return 2
    except KeyboardInterrupt:
        verbs.show("ncclkit: interrupted; everything that was started has been ended.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader (head, less) has gone: nothing left to say
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ncclkit", description="Find out why distributed training hangs, crashes or is slow."
    )
    parser.add_argument("--version", action="version", version=f"ncclkit {__version__}")
    parsers = parser.add_subparsers(required=True, metavar="VERB")
    _add_diagnose(parsers)
    _add_live(parsers)
    _add_attach(parsers)
    _add_notebooks(parsers)
    return parser


def _add_diagnose(parsers: Any) -> None:
    verb = _verb(
        parsers,
        "diagnose",
        "logs, folders and Flight Recorder dumps of a job: which rank is at fault, and why",
        "diagnose logs/ --json",
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
    _add_options(verb, "python")


def _add_inspect(parsers: Any) -> argparse.ArgumentParser:
    what = "facts of this host, or of a Slurm allocation and where nodes differ"
    verb = _verb(parsers, "inspect", what, "inspect --ranks 8 --data /datasets")
    verb.add_argument("--ranks", type=int, help="ranks on each host that the job is to have (default: its GPUs)")
    verb.add_argument("--workers", type=int, help="data-loader workers of each rank")
    verb.add_argument("--prefetch", type=int, help="batches that each worker reads ahead (default 2)")
    verb.add_argument("--dataset-bytes", dest="dataset", help="data that each rank keeps in memory, such as 40GiB")
    verb.add_argument("--batch-bytes", dest="batch", help="one batch, such as 64MB")
    verb.add_argument("--data", metavar="DIR", help="a folder with training data, whose storage is checked too")
    verb.add_argument("--checkpoints", metavar="DIR", help="the same for checkpoints")
    return verb


def _add_live(parsers: Any) -> None:
    inspect = _add_inspect(parsers)
    connect = _verb(
        parsers, "connect", "names, ports, packet sizes, speed and clocks between hosts", "connect node-1 node-2"
    )
    connect.add_argument("hosts", nargs="*", metavar="HOST", help="default: the nodes of the Slurm allocation")
    connect.add_argument(
        "--remote-command",
        default="",
        metavar="COMMAND",
        help="ssh, srun, or the words before a command, with {host} in them (default: srun in an allocation, else ssh)",
    )
    connect.add_argument("--port", type=int, help="the rendezvous port (default: MASTER_PORT, else 29500)")
    probe = _verb(
        parsers, "probe", "live test: checked and timed collectives on real ranks", "probe --ranks 8 --op all --stages"
    )
    _add_options(probe, *OPTIONS)
    tune = _verb(
        parsers, "tune", "compare environment variables with the default, in alternating runs", "tune NCCL_ALGO=Ring"
    )
    tune.add_argument("settings", nargs="+", metavar="NAME=VALUE", help="variables of a variant, joined by commas")
    tune.add_argument(
        "--pairs", type=int, default=6, help="pairs of runs (default 6, the least that show a difference)"
    )
    _add_options(tune, "python", "ranks", "max_bytes", "timeout", "backend", "dtype")
    lab = _verb(parsers, "lab", "a small training job with a known fault, then its diagnosis", "lab rank_late --check")
    lab.add_argument("fault", nargs="?", metavar="FAULT", help="a name from --list; without it, the list")
    lab.add_argument("--check", action="store_true", help="then run the experiments that decide, and the fix")
    lab.add_argument("--list", action="store_true", help="the faults, and what each one does")
    lab.add_argument("--record", metavar="DIR", type=Path, help="keep what the job left behind, with the truth, in DIR")
    _add_options(lab, "python", "ranks", "simulate_hosts", "timeout", "backend")
    for sub in (inspect, connect):
        _add_options(sub, "python")
    for sub in (inspect, connect, probe, tune, lab):
        sub.add_argument("--case", default="case", help="the case folder (default: ./case)")
        sub.add_argument("--json", action="store_true", help="JSON instead of text")


def _verb(parsers: Any, name: str, what: str, example: str) -> argparse.ArgumentParser:
    """The parser of one verb, whose help ends with an example."""
    verb: argparse.ArgumentParser = parsers.add_parser(
        name, help=what, description=f"{what[:1].upper()}{what[1:]}.", epilog=f"Example: ncclkit {example}"
    )
    verb.set_defaults(verb=getattr(verbs, name))
    return verb


def _add_options(verb: argparse.ArgumentParser, *names: str) -> None:
    """Options of the live test as arguments, by their names in `ProbeOptions`."""
    for name in names:
        default = getattr(DEFAULTS, name)
        flag = "--train-python" if name == "python" else f"--{name.replace('_', '-')}"
        how: dict[str, Any] = {"type": str if name == "max_bytes" else type(default), "default": default}
        if isinstance(default, bool):
            how = {"action": "store_true"}
        elif isinstance(default, Mapping):
            how = {"action": "append", "default": [], "metavar": "NAME=VALUE"}
        verb.add_argument(flag, dest=name, help=OPTIONS[name].help, **how)


def _add_attach(parsers: Any) -> None:
    what = "a job that hangs now on this host: stacks, RAS, and what its ranks do"
    verb = _verb(parsers, "attach", what, "attach --job 4711")
    which = verb.add_mutually_exclusive_group()
    which.add_argument(
        "--pid",
        action="append",
        default=[],
        metavar="[RANK=]PID",
        help="a rank of the job, or its launcher; repeat it to name ranks one by one (default: the only job here)",
    )
    which.add_argument("--job", type=int, help="the ranks of this Slurm job on this host")
    verb.add_argument("--seconds", type=float, default=3.0, help="for which utilization is measured (default 3)")
    verb.add_argument("--case", default="case", help="the case folder (default: ./case)")
    verb.add_argument("--json", action="store_true", help="JSON instead of text")


def _add_notebooks(parsers: Any) -> None:
    report = _verb(parsers, "report", "run the guided notebook and write it as one HTML file", "report -p ranks=4")
    report.add_argument("--case", default="case", help="the case folder (default: ./case)")
    report.add_argument("--notebook", default="guided", help="another notebook by name (default guided)")
    report.add_argument("-p", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the notebook")
    report.add_argument("--redact", action="store_true", help="name no host, address or user in the HTML file")
    report.add_argument("--redact-name", metavar="NAME", action="append", help="and not this name; may be repeated")
    _add_options(report, "python")
    lab = _verb(parsers, "open", "JupyterLab on a notebook, with the ssh line to reach it", "open 03_logs")
    lab.add_argument("notebook", nargs="?", default="guided", help="a notebook by name or path (default guided)")
    lab.add_argument("--port", type=int, default=8888, help="the first port to try (default 8888)")


if __name__ == "__main__":
    sys.exit(main())
