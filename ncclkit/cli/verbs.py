"""What each verb of the command does: from its options to an exit status."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ncclkit.core.model import NcclkitError, to_json

if TYPE_CHECKING:
    from ncclkit.causes.engine import Diagnosis
    from ncclkit.core.case import Case
    from ncclkit.core.experiment_records import ExperimentRecord
    from ncclkit.core.runs import Run

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but for newline and tab, marks that turn the writing direction, bytes that are no UTF-8."""


def say(text: str, file: TextIO | None = None) -> None:
    """Print text that may quote logs or names: what could steer a terminal is written as its code, as JSON does."""
    file = file or sys.stdout
    known = getattr(file, "encoding", None) or "utf-8"  # a terminal of another language lacks letters of ours
    plain = CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    print(plain.encode(known, "backslashreplace").decode(known), file=file)


def _case(options: argparse.Namespace) -> Case:
    from ncclkit.core.case import Case

    return Case.open(options.case)


def diagnose(options: argparse.Namespace) -> int:
    """Judge what a job left behind."""
    from ncclkit import evidence
    from ncclkit.causes.engine import diagnose
    from ncclkit.core.case import Case
    from ncclkit.evidence import logs
    from ncclkit.evidence.counts import tally

    stdin = sys.stdin.buffer if "-" in options.paths else None
    reading = evidence.read(options.paths, stdin=stdin, helped=True)
    case = logs.fill(_checked(options) if options.check else Case(), reading)
    found = diagnose(case)
    for problem in reading.problems:
        say(f"ncclkit: {problem}", sys.stderr)
    if options.check:
        found = _close(case, options)
    if options.json:
        say(json.dumps(found.to_dict(reading.inputs), indent=1, default=str))
        return found.exit_code
    say(f"ncclkit: {tally(reading.inputs, len(reading.facts), reading.measurements)}", sys.stderr)
    say(found.text())
    return found.exit_code


def _checked(options: argparse.Namespace) -> Case:
    """The case that keeps the experiments: the folder that was named, where that is one, else that of ``--case``."""
    first = Path(options.paths[0])
    if len(options.paths) == 1 and (first / "case.json").exists():
        options.case = str(first)
    return _case(options)


def _close(case: Case, options: argparse.Namespace) -> Diagnosis:
    """Ask what the suspects leave open, apply the fix, and say on stderr what came out; the verdict as it is then."""
    from ncclkit.causes.engine import diagnose
    from ncclkit.experiments import fixes

    def told(trial: ExperimentRecord) -> None:
        done = f"Checked: {trial.question}" if trial.kind == "check" else "Fix tried:"
        say(f"{done} {trial.summary}", sys.stderr)

    say(f"ncclkit: small jobs run now, in {case.path}; Ctrl-C ends them.", sys.stderr)
    try:
        asyncio.run(fixes.close(case, told, python=options.train_python, on_record=_narrate))
    except NcclkitError as error:  # what was found stays to be said
        say(f"ncclkit: {error}", sys.stderr)
    return diagnose(case)


def inspect(options: argparse.Namespace) -> int:
    """Read the facts of this host, or of an allocation."""
    from ncclkit.analysis.consistency import compare
    from ncclkit.causes.engine import diagnose
    from ncclkit.core import jobspec
    from ncclkit.live import probe

    case = jobspec.set_job_spec(_case(options), {name: getattr(options, name) for name in jobspec.UNITS})
    paths = {"work": ".", "data": options.data, "checkpoints": options.checkpoints}
    case = asyncio.run(probe.inspect(case, options.train_python, paths))
    found, hosts = diagnose(case), compare(case.facts)
    if options.json:
        say("\n".join(to_json(fact) for fact in case.facts))
    else:
        say(hosts.text() if len(hosts.hosts) > 1 else "\n".join(str(fact) for fact in case.facts))
        say("\n" + found.text())
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


def probe(options: argparse.Namespace) -> int:
    """Run the live test; where it did not end well, judge what it left behind."""
    from ncclkit.analysis import stages
    from ncclkit.causes.engine import diagnose
    from ncclkit.core import reference

    case = _case(options)
    run = asyncio.run(_live(case, _choices(options) | {"env": _pairs(options.env)}))
    if options.json:
        say("\n".join(to_json(m) for m in run.measurements))
    else:
        climbed = stages.ladder(case).say if options.ladder else ""
        told = [climbed] if climbed and climbed not in run.summary else []
        judged = reference.judgements(run.measurements, run.expectations)
        told += [f"{one.best.op}: {one.say}" if len(run.expectations) > 1 else one.say for one in judged]
        told += dict.fromkeys(bound.words for bound in run.expectations.values())
        why = ["", diagnose(case).text()] if run.reason != "done" else []
        say("\n".join([*(str(m) for m in run.measurements), *told, run.summary, f"Run folder: {run.folder}", *why]))
    return 0 if run.reason == "done" else 1


async def _live(case: Case, choices: dict[str, Any]) -> Run:
    """The live test; where the facts of this host are not known yet, they are read first, as the bound follows from
    them.
    """
    from ncclkit.live import probe

    if not case.facts:
        await probe.plan(case, **choices)  # refuses what cannot work before anything is read
        await probe.inspect(case, choices["python"])
    return await probe.probe(case, _narrate, **choices)


def _narrate(record: dict[str, Any]) -> None:
    """Progress on stderr, so that stdout stays the result."""
    if record["kind"] == "plan":
        env = (f"{name}={value}" for name, value in record["env"].items())
        say(f"  set for the ranks: {shlex.join(env)}", sys.stderr)
    if record["kind"] == "phase" and record.get("rank") == 0:
        what = [record["phase"], str(record.get("bytes", "")), str(record.get("op", ""))]
        say(f"  rank 0: {' '.join(filter(None, what))}", file=sys.stderr)
    if record["kind"] == "stage":
        say(f"  {record['say']}", file=sys.stderr)


def tune(options: argparse.Namespace) -> int:
    """Compare variables in alternating runs."""
    from ncclkit.live import tune

    variants = [_pairs(setting.split(",")) for setting in options.settings]
    results = asyncio.run(tune.sweep(_case(options), variants, options.pairs, **_choices(options)))
    say("\n".join(to_json(result) if options.json else result.say for result in results))
    return 0


def connect(options: argparse.Namespace) -> int:
    """Test the network paths between hosts: every host and every path, then what is wrong with them.

    Exit status 2 where nothing was found and a host could not be reached.
    """
    from ncclkit.causes.engine import diagnose
    from ncclkit.live.connect import connectivity

    def narrate(record: dict[str, Any]) -> None:
        if record["kind"] == "connect.step":
            say(f"  {record.get('say')}", file=sys.stderr)

    case, choices = _case(options), {"via": options.via, "port": options.port, "python": options.train_python}
    found = asyncio.run(connectivity(case, options.hosts, narrate, **choices))
    diagnosis = diagnose(case)
    rows = [*(host.event for host in found.hosts.values()), *(link.event for link in found.links)]
    if options.json:
        say("\n".join(to_json(row) for row in rows))
    else:
        say(f"{found.text()}\n\n{found.summary}.\n\n{diagnosis.text()}")
    return diagnosis.exit_code or 2 * any(host.problem for host in found.hosts.values())


def lab(options: argparse.Namespace) -> int:
    """Break a small job and diagnose it."""
    from ncclkit.causes.engine import diagnose
    from ncclkit.lab.faults import injection, recording

    if options.list or not options.fault:
        wide = max(map(len, injection.FAULTS))
        say("\n".join(f"{name:{wide}}  {injection.describe(fault)}" for name, fault in injection.FAULTS.items()))
        return 0
    say(
        f"This run: {injection.fault(options.fault).says}. It touches only its own processes and {options.case}.",
        file=sys.stderr,
    )
    case = _case(options)
    choices = {name: value for name, value in _choices(options).items() if name != "largest"}
    run = asyncio.run(injection.inject(case, options.fault, on_record=_narrate, **choices))
    if options.record:
        recording.bundle(run, options.record, {"host": "lab"})
    found = _close(case, options) if options.check else diagnose(case)
    say(
        json.dumps(found.to_dict(case.inputs), indent=1, default=str)
        if options.json
        else f"{run.summary}\n\n{found.text()}"
    )
    return found.exit_code


def attach(options: argparse.Namespace) -> int:
    """Look at a job that hangs now."""
    from ncclkit import evidence
    from ncclkit.agent.monitor import attach
    from ncclkit.analysis.frames import standing
    from ncclkit.causes.engine import diagnose
    from ncclkit.live import targets

    if not 0 < options.seconds <= 86400:
        raise NcclkitError(f"A job cannot be watched for {options.seconds:g} s; give up to a day.")
    ranks = targets.ranks(options.pid, options.job)
    case = _case(options)
    folder = case.new_run("attach")
    problems = attach.join(str(folder), ranks, options.seconds)
    reading = evidence.read([folder])
    if not [
        *folder.glob("*_rank*"),
        *folder.glob("ras*"),
        *(e for e in reading.events if e.kind == "telemetry.utilization"),
    ]:
        raise NcclkitError(f"No rank could be looked at: {problems[0] if problems else 'all of them are gone'}.")
    for problem in problems:
        say(f"ncclkit: {problem}", file=sys.stderr)
    found = diagnose(case.add(reading.events).save())
    if not options.json:
        say("".join(f"{place}\n" for place in standing(reading.events)))
        say("".join(f"{event.text}\n" for event in reading.events if event.kind == "telemetry.utilization"))
    say(json.dumps(found.to_dict(reading.inputs), indent=1, default=str) if options.json else found.text())
    return found.exit_code


def report(options: argparse.Namespace) -> int:
    """Run a notebook headless, as one HTML file."""
    from ncclkit import report

    path = report.notebook(options.notebook)
    parameters = report.literals(_pairs(options.p), path)
    if options.train_python:
        parameters["train_python"] = options.train_python
    folder = Path(parameters.get("case_dir") or options.case).expanduser().absolute()
    parameters |= {"case_dir": folder} if "case_dir" in parameters else {}
    html = report.make(path, folder, parameters, redact=options.redact)
    say(f"Report: {html}\nCase folder: {html.parent}")
    return 0


def open(options: argparse.Namespace) -> int:
    """Start JupyterLab."""
    from ncclkit import report
    from ncclkit.report import jupyter

    jupyter.open_lab(report.notebook(options.notebook), port=options.port)
    return 0
