"""The command ``ncclkit``, for scripts, tickets and people without a browser.

In: the words of a command line.  Out: text for people, or one object of JSON, and an exit status:
0 the job went well or goes on (or done), 1 a cause was found, none explains the job, or a live test
was slower than it should be (or a run failed), 2 nothing is of a training job, could not be read,
written or started: stderr then says why in one sentence.
Begin with `main`, which declares the verbs; `verbs` does what each one says.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ncclkit import __version__
from ncclkit.cli import verbs
from ncclkit.cli.streams import StandardStreams, UnwrittenError
from ncclkit.cli.terminal import show
from ncclkit.core.model import NcclkitError
from ncclkit.core.ranges import NumberRange
from ncclkit.core.text import did_you_mean
from ncclkit.live.options import (
    JOB_OPTIONS,
    OPTIONS,
    SHORT,
    JobOptions,
    StepOptions,
    add_options,
    declared,
)

DAY = 86_400
COUNT = NumberRange(0, 100_000)
PORT = NumberRange(1, 65_535)
JOB_ID = NumberRange(1, 2**32 - 1)
SIZE = NumberRange(0, 2**60, "a size")
READING = (verbs.diagnose, verbs.causes, verbs.compare, verbs.gate, verbs.mcp)
"""Verbs that write nothing and start nothing in the current folder."""
NO_FOLDER = (
    "The current folder has been deleted; change to one that exists, and repeat the command."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run one verb, return the exit status."""
    with StandardStreams() as streams:
        return streams.exit_status(_answer(argv, streams))


def _answer(argv: Sequence[str] | None, streams: StandardStreams) -> int:
    """Run one verb; returns its exit status, 2 with a sentence where it cannot be run."""
    try:
        options = _parser().parse_args(argv)
        # at a job's time limit: the evidence is kept, as after Ctrl-C
        if "SLURM_JOB_ID" in os.environ:
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        if streams.was_closed and not _answers_unheard(options):
            raise NcclkitError(
                "Standard output is closed, so nothing was done; redirect it to a file."
            )
        if not _has_folder() and options.verb not in (*READING, _completion):
            raise NcclkitError(NO_FOLDER)  # torch, too, cannot be imported there
        return int(options.verb(options))
    except SystemExit as end:  # of argparse: after --help, or what it does not understand
        if streams.was_closed and not end.code:
            streams.lost = "it is closed"
        return int(end.code or 0)
    except UnwrittenError as error:
        streams.lost = str(error)
        return 2
    except NcclkitError as error:
        show(f"ncclkit: {error}", sys.stderr)
        return 2
    except OSError as error:
        show(f"ncclkit: {_system_says(error)}", sys.stderr)
        return 2
    except KeyboardInterrupt:
        show("ncclkit: interrupted; everything that was started has been ended.", file=sys.stderr)
        return 130


def _answers_unheard(options: argparse.Namespace) -> bool:
    """Whether the exit status of this verb is an answer, too.

    The one of a health check drains a node.
    """
    return options.verb is verbs.gate and not options.agent


def _system_says(error: OSError) -> str:
    """What the system refused, in a sentence."""
    if not _has_folder():
        return NO_FOLDER
    where = ""
    if isinstance(error.filename, str):
        where = f" ({error.filename})"
    return (
        f"{error.strerror or error or type(error).__name__}{where}; what was started has been"
        " ended."
    )


def _has_folder() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


class _Parser(argparse.ArgumentParser):
    """Says in one sentence what it does not understand, and what may have been meant."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, extra = self.parse_known_args(args, namespace)
        if extra:
            verb: _Parser = options.parser
            flag = extra[0].partition("=")[0]
            meant = did_you_mean(flag, verb._option_string_actions)
            if flag in (*SHORT.values(), *(f"--{name.replace('_', '-')}" for name in JOB_OPTIONS)):
                meant = f"`ncclkit submit {flag} … VERB` takes it, before the verb"
            verb.error(
                f"{extra[0]!r} is not an option or argument of"
                f" `{verb.prog}`{meant and f'; {meant}'}"
            )
        return options

    def error(self, message: str) -> NoReturn:
        # a type says "must be …", which is a sentence about the option
        message = re.sub(r"^argument (\S+): must", r"\1 must", message)
        wrong = re.search(r"invalid choice: '([^']*)'", message)
        if wrong:
            known = []
            for action in self._actions:
                for choice in action.choices or ():
                    known.append(str(choice))
            meant = did_you_mean(wrong[1], known, f"there is: {', '.join(known)}.")
            message = f"`{self.prog}` does not know {wrong[1]!r}; {meant}"
        show(
            f"ncclkit: {message.rstrip('.?')}{'?' if message.endswith('?') else '.'} See"
            f" `{self.prog} --help`.",
            sys.stderr,
        )
        raise SystemExit(2)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ncclkit", description="Find out why distributed training hangs, crashes or is slow."
    )
    parser.add_argument("--version", action="version", version=f"ncclkit {__version__}")
    parsers = parser.add_subparsers(required=True, metavar="VERB")
    _add_diagnose(parsers)
    _add_ask(parsers)
    _add_live(parsers)
    _add_attach(parsers)
    _add_cluster(parsers)
    _add_gate(parsers)
    _add_notebooks(parsers)
    _add_helpers(parsers)
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
    verb.add_argument("--mark-log-text", action="store_true", help=argparse.SUPPRESS)  # for `mcp`
    verb.add_argument(
        "--check",
        action="store_true",
        help="run the experiments that decide, and the fix, on small jobs",
    )
    verb.add_argument(
        "--workers",
        metavar="WORKERS",
        help="who reads: dask, dask:8 (at most), tcp://HOST:PORT (default: this host)",
    )
    verb.add_argument(
        "--case",
        default="case",
        help="the case folder that keeps what --check did (default: ./case)",
    )
    add_options(verb, "python")


def _add_ask(parsers: Any) -> None:
    what = "the question that tells suspects apart, where logs hold a bare symptom and no reason"
    verb = _verb(parsers, "ask", what, "ask train.log --answer host_oom=no")
    verb.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="logs, as `ncclkit diagnose` takes them (default: those that the case holds)",
    )
    verb.add_argument(
        "--answer",
        action="append",
        default=[],
        metavar="CAUSE=ANSWER",
        help="yes, no or unknown to the question about a cause; may be repeated",
    )
    verb.add_argument(
        "--look-for-me",
        action="store_true",
        help="run the checks that only read on this host, or on the nodes of an allocation",
    )
    kept = "the case folder that keeps the answers (default: ./logs_case, as 03_logs)"
    verb.add_argument("--case", default="logs_case", help=kept)
    verb.add_argument("--json", action="store_true", help="one JSON object instead of text")
    verb.add_argument("--mark-log-text", action="store_true", help=argparse.SUPPRESS)  # for `mcp`


def _add_inspect(parsers: Any) -> argparse.ArgumentParser:
    what = "facts of this host, or of a Slurm allocation and where nodes differ"
    verb = _verb(parsers, "inspect", what, "inspect --ranks 8 --data /datasets")
    verb.add_argument(
        "--ranks", type=COUNT, help="ranks on each host that the job is to have (default: its GPUs)"
    )
    verb.add_argument("--workers", type=COUNT, help="data-loader workers of each rank")
    verb.add_argument(
        "--prefetch", type=COUNT, help="batches that each worker reads ahead (default 2)"
    )
    verb.add_argument(
        "--dataset-bytes",
        dest="dataset",
        type=SIZE,
        help="data that each rank keeps in memory, such as 40GiB",
    )
    verb.add_argument("--batch-bytes", dest="batch", type=SIZE, help="one batch, such as 64MB")
    verb.add_argument(
        "--data", metavar="DIR", help="a folder with training data, whose storage is checked too"
    )
    verb.add_argument("--checkpoints", metavar="DIR", help="the same for checkpoints")
    return verb


def _add_live(parsers: Any) -> None:
    inspect = _add_inspect(parsers)
    connect = _verb(
        parsers,
        "connect",
        "names, ports, packet sizes, speed and clocks between hosts",
        "connect node-1 node-2",
    )
    connect.add_argument(
        "hosts", nargs="*", metavar="HOST", help="default: the nodes of the Slurm allocation"
    )
    connect.add_argument(
        "--remote-command",
        default="",
        metavar="COMMAND",
        help=(
            "ssh, srun, or the words before a command, with {host} in them (default: srun in an"
            " allocation, else ssh)"
        ),
    )
    connect.add_argument(
        "--port", type=PORT, help="the rendezvous port (default: MASTER_PORT, else 29500)"
    )
    probe = _verb(
        parsers,
        "probe",
        "live test: checked and timed collectives on real ranks",
        "probe --ranks 8 --op all --stages",
    )
    add_options(probe, *OPTIONS)
    tune = _add_tune(parsers)
    step = _add_step(parsers)
    _add_compare(parsers)
    lab = _add_lab(parsers)
    _add_exam(parsers)
    for sub in (inspect, connect):
        add_options(sub, "python")
    for sub in (probe, tune, lab):
        sub.add_argument(
            "--oversubscribe",
            action="store_true",
            help="start more ranks than cores and memory carry",
        )
    for sub in (probe, tune, lab, step):
        sub.add_argument(
            "--here", action="store_true", help="run on this host even if it is a login node"
        )
    for sub in (inspect, connect, probe, tune, lab, step):
        sub.add_argument("--case", default="case", help="the case folder (default: ./case)")
        sub.add_argument("--json", action="store_true", help="JSON instead of text")


def _add_lab(parsers: Any) -> argparse.ArgumentParser:
    lab = _verb(
        parsers,
        "lab",
        "a small training job with a known fault, then its diagnosis",
        "lab rank_late --check",
    )
    lab.add_argument(
        "fault", nargs="?", metavar="FAULT", help="a name from --list; without it, the list"
    )
    lab.add_argument(
        "--check", action="store_true", help="then run the experiments that decide, and the fix"
    )
    lab.add_argument("--list", action="store_true", help="the faults, and what each one does")
    lab.add_argument(
        "--record",
        metavar="DIR",
        type=Path,
        help="keep what the job left behind, with the truth, in DIR",
    )
    add_options(lab, "python", "ranks", "simulate_hosts", "timeout", "backend")
    return lab


def _add_step(parsers: Any) -> argparse.ArgumentParser:
    what = (
        "your own training script for some steps: where a step's time goes, and who waits for whom"
    )
    verb = _verb(
        parsers, "step", what, "step --try workers=4 -- torchrun --nproc-per-node 8 train.py"
    )
    verb.add_argument(
        "command",
        nargs="*",
        metavar="COMMAND",
        help="after --: python train.py …, torchrun …, srun …",
    )
    add_options(verb, *declared(StepOptions), defaults=StepOptions())
    verb.add_argument(
        "--traces", nargs="+", metavar="PATH", help="read traces of torch's profiler; start nothing"
    )
    verb.add_argument(
        "--hta", action="store_true", help="… with HolisticTraceAnalysis, too (ncclkit[tuning])"
    )
    return verb


def _add_compare(parsers: Any) -> None:
    what = (
        "the same test of several cases: what became slower, and what changed on the hosts between"
    )
    verb = _verb(parsers, "compare", what, "compare case-october case-november")
    cases = (
        "case folders, the oldest first (one: with the baseline); or what `ncclkit gate` printed on"
        " many nodes"
    )
    verb.add_argument("cases", nargs="+", metavar="PATH", help=cases)
    verb.add_argument(
        "--save-baseline", action="store_true", help="keep what the last of them measured"
    )
    verb.add_argument(
        "--baseline", metavar="FILE", type=Path, help="another file than that of this cluster"
    )
    verb.add_argument("--json", action="store_true", help="JSON instead of text")


def _add_tune(parsers: Any) -> argparse.ArgumentParser:
    tune = _verb(
        parsers,
        "tune",
        "compare settings with the default, by collective and message size",
        "tune NCCL_PROTO=Simple",
    )
    tune.add_argument(
        "settings",
        nargs="*",
        metavar="NAME=VALUE",
        help=(
            "variables of one setting, joined by commas; NAME= takes one away; channels=32"
            " (default: what this hardware can have)"
        ),
    )
    tune.add_argument(
        "--inherited",
        action="store_true",
        help="what each variable that is set here, or each that is named, costs",
    )
    tune.add_argument(
        "--sizes",
        default="",
        type=_message_sizes,
        help="message sizes, such as 8,64KB,256MB (default: seven up to 256 MiB)",
    )
    tune.add_argument(
        "--from",
        dest="job",
        default="",
        metavar="JOB",
        help="sizes and variables of a job: its case, log or dumps, or a model.safetensors",
    )
    tune.add_argument(
        "--budget",
        type=NumberRange(1, 7 * DAY, "a number"),
        default=600.0,
        metavar="SECONDS",
        help=(
            "about so long at most; what does not fit is said, and combinations are then searched"
            " by Optuna (ncclkit[tuning]) (default 600)"
        ),
    )
    every = "a collective, or several joined by commas (default: those that JOB sends, else all)"
    tune.add_argument("--op", default="all", help=every)
    tune.add_argument(
        "--save", metavar="DIR", type=Path, help="write nccl.env, nccl.conf, tuner.csv … there"
    )
    add_options(
        tune, "python", "ranks", "simulate_hosts", "max_bytes", "timeout", "backend", "dtype"
    )
    return tune


def _message_sizes(text: str) -> list[float]:
    """Message sizes that are joined by commas."""
    message = NumberRange(1, OPTIONS["max_bytes"].bounds[1], "a size")
    return [message(word) for word in text.split(",") if word]


def _add_exam(parsers: Any) -> None:
    what = (
        "an examination: a job broken by a fault that seed and secret draw, an answer sheet, and"
        " the key with points"
    )
    exam = _verb(parsers, "exam", what, "exam --seed 7 --to exam7")
    again = "with your secret the same seed draws the same fault (default 1)"
    exam.add_argument("--seed", type=NumberRange(0, 10**9), default=1, help=again)
    kept = (
        "a file of yours that students cannot read (default: one of this user, made at the first"
        " examination)"
    )
    exam.add_argument("--secret", metavar="FILE", type=Path, help=kept)
    exam.add_argument(
        "--to",
        metavar="DIR",
        type=Path,
        default=Path("exam"),
        help="a new folder (default: ./exam)",
    )
    exam.add_argument(
        "--recorded", action="store_true", help="hand out a bundled recording; nothing runs"
    )
    exam.add_argument(
        "--grade",
        metavar="PATH",
        type=Path,
        help="give points to this answer.json by the key in --to",
    )
    add_options(exam, "python")


def _verb(parsers: Any, name: str, what: str, example: str) -> argparse.ArgumentParser:
    """The parser of one verb, whose help ends with an example."""
    verb: argparse.ArgumentParser = parsers.add_parser(
        name,
        help=what,
        description=f"{what[:1].upper()}{what[1:]}.",
        epilog=f"Example: ncclkit {example}",
    )
    named = {"completion": _completion, "open": verbs.open_notebook}
    verb.set_defaults(verb=named.get(name) or getattr(verbs, name), parser=verb)
    return verb


def _add_attach(parsers: Any) -> None:
    what = "a job that hangs now: which rank, where, and what the others wait for"
    verb = _verb(parsers, "attach", what, "attach --job 4711")
    which = verb.add_mutually_exclusive_group()
    which.add_argument(
        "--pid",
        action="append",
        default=[],
        metavar="[RANK=]PID",
        help=(
            "a rank of the job, or its launcher; repeat it to name ranks one by one (default: the"
            " only job here)"
        ),
    )
    which.add_argument("--job", type=JOB_ID, help="this Slurm job, on all of its nodes")
    verb.add_argument(
        "--seconds",
        type=NumberRange(0.01, DAY, "a number"),
        default=3.0,
        help="from the first snapshot to the last (default 3)",
    )
    verb.add_argument(
        "--snapshots",
        type=NumberRange(1, 100),
        default=2,
        metavar="N",
        help="of each rank (default 2)",
    )
    standing = (
        "wait until a rank has stalled for so many seconds (default 30), or has ended, and judge"
        " then"
    )
    verb.add_argument(
        "--follow",
        type=NumberRange(0, DAY, "a number"),
        nargs="?",
        const=30.0,
        default=0.0,
        metavar="SECONDS",
        help=standing,
    )
    ends = (
        "everything ends after so many seconds, with eight ranks on a host (default 20; 80 with"
        " --dump or --kernels)"
    )
    verb.add_argument(
        "--timeout",
        type=NumberRange(1, DAY, "a number"),
        default=None,
        metavar="SECONDS",
        help=ends,
    )
    _add_pauses(verb)
    verb.add_argument("--case", default="case", help="the case folder (default: ./case)")
    verb.add_argument("--json", action="store_true", help="JSON instead of text")
    verb.add_argument("--mark-log-text", action="store_true", help=argparse.SUPPRESS)  # for `mcp`


def _add_pauses(verb: argparse.ArgumentParser) -> None:
    """The options of `attach` that pause the processes."""
    stops = (
        "also ask each GPU for its kernel, by cuda-gdb: the processes are paused for about 15 s and"
        " go on"
    )
    verb.add_argument("--kernels", action="store_true", help=stops)
    inside = (
        "also write the Flight Recorders: by torch's pipe or debug server, by Python 3.14, or else"
        " by gdb"
    )
    paused = f"{inside}, for which the processes are paused for seconds"
    verb.add_argument("--dump", action="store_true", help=paused)


def _add_cluster(parsers: Any) -> None:
    submit = _verb(
        parsers,
        "submit",
        "run another verb as a batch job of Slurm, and show its progress and its report here",
        "submit -p gpu -N 2 -t 10 probe --stages",
    )
    add_options(submit, *JOB_OPTIONS, defaults=JobOptions())
    submit.add_argument(
        "--no-wait",
        action="store_true",
        help="return when it is in the queue; `ncclkit status` finds it",
    )
    submit.add_argument(
        "--dry-run", action="store_true", help="print what sbatch would get, and submit nothing"
    )
    submit.set_defaults(parse=_parse_verb)
    submit.usage = (
        "%(prog)s [-p PARTITION] [-N NODES] [-t TIME] [OPTION …] VERB [OPTION OF THE VERB …]"
    )
    submit.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="VERB …", help="the verb, with its own options"
    )
    status = _verb(
        parsers,
        "status",
        "the batch jobs of a case: queue, progress, end, report",
        "status --follow",
    )
    status.add_argument(
        "job", nargs="?", type=JOB_ID, help="a job id (default: the last job of the case)"
    )
    status.add_argument("--follow", action="store_true", help="stay until the job has ended")
    status.add_argument("--cancel", action="store_true", help="cancel the job")
    status.add_argument("--case", default="case", help="the case folder (default: ./case)")


def _add_gate(parsers: Any) -> None:
    gate = _verb(
        parsers,
        "gate",
        "whether this node is ready for a job, in seconds: for a prolog",
        "gate --seconds 60",
    )
    gate.add_argument(
        "--seconds",
        type=NumberRange(1, 3600, "a number"),
        default=10.0,
        help="at most; from 45 on GPUs are tested (default 10)",
    )
    gate.add_argument(
        "--baseline", metavar="FILE", help="what nodes of this cluster have, as --learn wrote it"
    )
    gate.add_argument("--learn", metavar="FILE", help="add this node, which is good, to a baseline")
    gate.add_argument(
        "--agent", metavar="FILE", type=Path, help="only write the one file that nodes need"
    )
    add_options(gate, "python")


def _add_notebooks(parsers: Any) -> None:
    report = _verb(
        parsers,
        "report",
        "run the guided notebook and write it as one HTML file",
        "report -p ranks=4",
    )
    report.add_argument("--case", default="case", help="the case folder (default: ./case)")
    report.add_argument(
        "--notebook",
        metavar="NOTEBOOK",
        default="guided",
        help="another notebook by name (default guided)",
    )
    report.add_argument(
        "-p", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the notebook"
    )
    report.add_argument(
        "--redact", action="store_true", help="name no host, address or user in the HTML file"
    )
    report.add_argument(
        "--redact-name", metavar="NAME", action="append", help="and not this name; may be repeated"
    )
    add_options(report, "python")
    lab = _verb(
        parsers, "open", "JupyterLab on a notebook, with the ssh line to reach it", "open 03_logs"
    )
    lab.add_argument(
        "notebook",
        nargs="?",
        metavar="NOTEBOOK",
        default="guided",
        help="a notebook by name or path (default guided)",
    )
    lab.add_argument("--port", type=PORT, default=8888, help="the first port to try (default 8888)")


def _add_helpers(parsers: Any) -> None:
    causes = _verb(
        parsers, "causes", "the known causes, or the page of one of them", "causes slow_rank"
    )
    causes.add_argument(
        "cause",
        nargs="?",
        metavar="ID",
        help="a cause or a symptom, as `ncclkit diagnose` and `ask` name it",
    )
    causes.add_argument(
        "--symptoms",
        action="store_true",
        help="all symptoms with their suspects and looks, as Markdown",
    )
    causes.add_argument("--json", action="store_true", help="JSON instead of text")
    _verb(
        parsers,
        "mcp",
        "read-only tools for a coding agent, over standard input and output (MCP)",
        "mcp",
    )
    shell = _verb(
        parsers,
        "completion",
        "what makes bash or zsh complete this command",
        "completion bash > FILE",
    )
    shell.add_argument("shell", choices=("bash", "zsh"), metavar="SHELL", help="bash or zsh")


def _parse_verb(words: Sequence[str], without: Sequence[str]) -> argparse.Namespace:
    """The options of a verb that is named by words.

    One sentence for a verb that cannot stand there.
    """
    if not words:
        raise NcclkitError(
            "Which verb shall run on the nodes? For example `ncclkit submit -N 2 probe --stages`."
        )
    if words[0] in without:
        raise NcclkitError(f"{words[0]} cannot be a batch job; name a verb such as probe.")
    return _parser().parse_args(words)


def _completion(options: argparse.Namespace) -> int:
    """Print a completion script that knows verbs, options, faults, notebooks and causes."""
    import shtab

    from ncclkit.causes import catalogue
    from ncclkit.lab.faults.injection import FAULTS
    from ncclkit.report.parameters import own

    names: dict[str, Iterable[str]] = {"FAULT": FAULTS, "ID": catalogue(), "NOTEBOOK": own()}
    files = {"PATH": shtab.FILE, "DIR": shtab.DIRECTORY}
    parser = _parser()
    for action in [one for verb in _verbs(parser) for one in verb._actions]:
        offered = names.get(str(action.metavar)) or (
            OPTIONS[action.dest].choices if action.dest in OPTIONS else ()
        )
        action.choices = list(offered) or action.choices
        kind = files.get("DIR" if action.dest == "case" else str(action.metavar))
        if kind:
            action.complete = kind  # type: ignore[attr-defined]
    show(shtab.complete(parser, options.shell))
    return 0


def _verbs(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    found: list[argparse.ArgumentParser] = []
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for verb in action.choices.values():
                found.append(verb)
    return found


if __name__ == "__main__":
    sys.exit(main())
