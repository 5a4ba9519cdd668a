"""The command ``ncclkit``, for scripts, tickets and people without a browser.

Exit status: 0 nothing found (or done), 1 something found (or a run did not end
well), 2 could not read or could not start; the reason then stands on stderr in
one sentence.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ncclkit import __version__
from ncclkit.model import Fact, NcclkitError, to_json

if TYPE_CHECKING:
    from ncclkit.case import Case

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but for newline and tab, marks that turn the writing direction, bytes that are no UTF-8."""


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run one verb, return the exit status."""
    options = _parser().parse_args(argv)
    try:
        return int(options.verb(options))
    except NcclkitError as error:
        _print(f"ncclkit: {error}", sys.stderr)
        return 2
    except KeyboardInterrupt:
        _print("ncclkit: interrupted; everything that was started has been ended.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader (head, less) has gone: nothing left to say
        return 0


def _print(text: str, file: TextIO | None = None) -> None:
    """Print text that may quote logs or names: what could steer a terminal is written as its code, as JSON does."""
    print(CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text), file=file)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ncclkit", description="Find out why distributed training hangs, crashes or crawls."
    )
    parser.add_argument("--version", action="version", version=f"ncclkit {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    _add_diagnose(verbs)
    _add_live(verbs)
    _add_attach(verbs)
    _add_notebooks(verbs)
    return parser


def _add_diagnose(verbs: Any) -> None:
    verb = verbs.add_parser(
        "diagnose", help="logs, folders and Flight Recorder dumps of a job: which rank is at fault, and why"
    )
    verb.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="file, folder, quoted pattern ('logs/*.out') or Slurm job id; - reads standard input",
    )
    verb.add_argument("--json", action="store_true", help="one JSON object instead of text")
    verb.set_defaults(verb=_diagnose)


def _add_live(verbs: Any) -> None:
    inspect = verbs.add_parser("inspect", help="facts of this host, or of a Slurm allocation and where nodes differ")
    inspect.set_defaults(verb=_inspect)
    probe = verbs.add_parser("probe", help="the live test: checked and timed collectives on real ranks")
    probe.set_defaults(verb=_probe)
    tune = verbs.add_parser("tune", help="compare variables with the default, in alternating runs")
    tune.add_argument("settings", nargs="+", metavar="NAME=VALUE", help="variables of a variant, joined by commas")
    tune.add_argument("--pairs", type=int, default=6, help="pairs of runs (default 6, the least that can tell)")
    tune.set_defaults(verb=_tune)
    connect = verbs.add_parser("connect", help="names, ports, packet sizes, speed and clocks between hosts")
    connect.add_argument("hosts", nargs="*", metavar="HOST", help="default: the nodes of the Slurm allocation")
    connect.add_argument("--via", default="", help="ssh, srun, or the words before a command, with {host} in them")
    connect.add_argument("--port", type=int, help="the rendezvous port (default: MASTER_PORT, else 29500)")
    connect.set_defaults(verb=_connect)
    lab = verbs.add_parser("lab", help="break a small training job on purpose, then diagnose it")
    lab.add_argument("fault", nargs="?", metavar="FAULT")
    lab.add_argument("--list", action="store_true", help="the faults, and what each one does")
    lab.add_argument("--record", metavar="DIR", type=Path, help="keep what the job left behind, with the truth, in DIR")
    lab.set_defaults(verb=_lab)
    for sub in (inspect, connect, probe, tune, lab):
        sub.add_argument("--case", default="case", help="the case folder (default: ./case)")
        sub.add_argument("--train-python", help="the training interpreter (default: this one)")
        sub.add_argument("--json", action="store_true", help="JSON instead of text")
    for sub in (probe, tune, lab):
        sub.add_argument("--ranks", type=int, help="number of ranks (default: all GPUs, or 2 on the CPU)")
        sub.add_argument("--backend", choices=("auto", "nccl", "gloo"), default="auto")
        sub.add_argument("--deadline", type=float, default=120.0, help="seconds until the run is ended (default 120)")
    for sub in (probe, tune):
        sub.add_argument("--largest", type=int, help="largest message in bytes")
        sub.add_argument("--dtype", default="float32", help="of the elements (default float32)")
    probe.add_argument("--split", type=int, default=1, help="pretend that the ranks are on so many hosts (NCCL_HOSTID)")
    probe.add_argument("--ladder", action="store_true", help="first each rank alone, then every pair of ranks")
    probe.add_argument(
        "--op", default="all_reduce", help="a collective, several joined by commas, or all (default all_reduce)"
    )
    probe.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="a variable for the ranks; may be repeated"
    )


def _add_attach(verbs: Any) -> None:
    verb = verbs.add_parser("attach", help="a job that hangs now on this host: stacks, Flight Recorder, RAS, states")
    verb.add_argument("--pid", type=int, action="append", default=[], help="a rank's process (default: all ranks)")
    verb.add_argument("--case", default="case", help="the case folder (default: ./case)")
    verb.add_argument("--json", action="store_true", help="JSON instead of text")
    verb.set_defaults(verb=_attach)


def _add_notebooks(verbs: Any) -> None:
    report = verbs.add_parser("report", help="the guided notebook, headless, as one HTML file")
    report.add_argument("--case", default="case", help="the case folder (default: ./case)")
    report.add_argument("--train-python", help="the training interpreter (default: this one)")
    report.add_argument("--notebook", default="guided", help="another notebook by name (default guided)")
    report.add_argument("-p", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the notebook")
    report.add_argument("--redact", action="store_true", help="name no host, address or user in the HTML file")
    report.set_defaults(verb=_report)
    lab = verbs.add_parser("open", help="JupyterLab on a notebook, with the ssh line to reach it")
    lab.add_argument("notebook", nargs="?", default="guided")
    lab.add_argument("--port", type=int, default=8888)
    lab.set_defaults(verb=_open)


def _case(options: argparse.Namespace) -> Case:
    from ncclkit.case import Case

    return Case.open(options.case)


def _diagnose(options: argparse.Namespace) -> int:
    from ncclkit import evidence, storage
    from ncclkit.case import Case
    from ncclkit.diagnose import diagnose
    from ncclkit.evidence.tally import tally

    stdin = sys.stdin.buffer if "-" in options.paths else None
    reading = evidence.read(options.paths, stdin=stdin, helped=True)
    case = Case()
    case.events, case.inputs = list(reading.events), list(reading.inputs)
    case.facts, case.measurements = list(reading.facts), list(reading.measurements)
    for path in map(Path, options.paths):  # a case folder brings the facts of its host along
        case.facts += storage.read_records(Fact, path / "facts.jsonl") if path.is_dir() else []
    found = diagnose(case)
    for problem in reading.problems:
        _print(f"ncclkit: {problem}", sys.stderr)
    if options.json:
        _print(json.dumps(found.to_dict(reading.inputs), indent=1, default=str))
        return found.exit_code
    _print(f"ncclkit: {tally(reading.inputs, len(reading.facts), reading.measurements)}", sys.stderr)
    _print(found.text())
    return found.exit_code


def _inspect(options: argparse.Namespace) -> int:
    from ncclkit import probe
    from ncclkit.consistency import compare
    from ncclkit.diagnose import diagnose

    case = asyncio.run(probe.inspect(_case(options), options.train_python))
    found, hosts = diagnose(case), compare(case.facts)
    if options.json:
        _print("\n".join(to_json(fact) for fact in case.facts))
    else:
        _print(hosts.text() if len(hosts.hosts) > 1 else "\n".join(str(fact) for fact in case.facts))
        _print("\n" + found.text())
    return found.exit_code or int(hosts.broken)


def _choices(options: argparse.Namespace) -> dict[str, Any]:
    names = ("ranks", "backend", "deadline", "largest", "op", "dtype", "ladder", "split")
    chosen = {name: getattr(options, name) for name in names if getattr(options, name, None) is not None}
    return chosen | {"python": options.train_python}


def _pairs(items: Sequence[str]) -> dict[str, str]:
    for item in items:
        if "=" not in item:
            raise NcclkitError(f"{item!r} is no variable; write NAME=VALUE.")
    return dict(item.split("=", 1) for item in items)


def _probe(options: argparse.Namespace) -> int:
    from ncclkit import ladder, probe

    case = _case(options)
    run = asyncio.run(probe.probe(case, _narrate, env=_pairs(options.env), **_choices(options)))
    if options.json:
        _print("\n".join(to_json(m) for m in run.measurements))
    else:
        told = [ladder.ladder(case).say] if options.ladder else []
        _print("\n".join([*(str(m) for m in run.measurements), *told, run.say, f"Run folder: {run.folder}"]))
    return 0 if run.reason == "done" else 1


def _narrate(record: dict[str, Any]) -> None:
    """Progress on stderr, so that stdout stays the result."""
    if record["kind"] == "phase" and record.get("rank") == 0:
        _print(f"  rank 0: {record['phase']} {record.get('bytes', '')}", file=sys.stderr)


def _tune(options: argparse.Namespace) -> int:
    from ncclkit import tune

    variants = [_pairs(setting.split(",")) for setting in options.settings]
    results = asyncio.run(tune.sweep(_case(options), variants, options.pairs, **_choices(options)))
    _print("\n".join(to_json(result) if options.json else result.say for result in results))
    return 0


def _connect(options: argparse.Namespace) -> int:
    from ncclkit import connect

    return connect.command(_case(options), options, _print)


def _lab(options: argparse.Namespace) -> int:
    from ncclkit import faults, recording
    from ncclkit.diagnose import diagnose

    if options.list or not options.fault:
        _print("\n".join(f"{f.name:15} {f.says} (cause: {f.cause or 'none'})" for f in faults.FAULTS.values()))
        return 0
    _print(
        f"This run: {faults.fault(options.fault).says}. It touches only its own processes and {options.case}.",
        file=sys.stderr,
    )
    case = _case(options)
    choices = {name: value for name, value in _choices(options).items() if name != "largest"}
    run = asyncio.run(faults.break_it(case, options.fault, on_record=_narrate, **choices))
    if options.record:
        recording.bundle(run, options.record, {"host": "lab"})
    found = diagnose(case)
    _print(
        json.dumps(found.to_dict(case.inputs), indent=1, default=str)
        if options.json
        else f"{run.say}\n\n{found.text()}"
    )
    return found.exit_code


def _attach(options: argparse.Namespace) -> int:
    from ncclkit import evidence
    from ncclkit.agent import attach, processes
    from ncclkit.diagnose import diagnose

    case = _case(options)
    folder = case.new_run("attach")
    ranks = processes.ranks(options.pid or list(processes.parents()))
    if not ranks:
        raise NcclkitError("No process of this user has a RANK in its environment; name the ranks with --pid.")
    problems = attach.collect(str(folder), ranks, ours=False)
    if not [*folder.glob("*_rank*"), *folder.glob("ras*")]:
        raise NcclkitError(f"No rank could be looked at: {problems[0]}.")
    for problem in problems:
        _print(f"ncclkit: {problem}", file=sys.stderr)
    reading = evidence.read([folder])
    found = diagnose(case.add(reading.events).save())
    _print(json.dumps(found.to_dict(reading.inputs), indent=1, default=str) if options.json else found.text())
    return found.exit_code


def _report(options: argparse.Namespace) -> int:
    from ncclkit import report

    path = report.notebook(options.notebook)
    parameters = report.literals(_pairs(options.p), path)
    if options.train_python:
        parameters["train_python"] = options.train_python
    html = report.make(path, Path(options.case), parameters, redact=options.redact)
    _print(f"Report: {html}\nCase folder: {html.parent}")
    return 0


def _open(options: argparse.Namespace) -> int:
    from ncclkit import jupyter, report

    jupyter.open_lab(report.notebook(options.notebook), port=options.port)
    return 0


if __name__ == "__main__":
    sys.exit(main())
