"""What each verb of the command does: from its options to an exit status."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ncclkit.core.model import NcclkitError, to_json

if TYPE_CHECKING:
    from ncclkit.causes.engine import Diagnosis
    from ncclkit.core.case import Case
    from ncclkit.core.experiment_records import ExperimentRecord
    from ncclkit.core.model import Fact
    from ncclkit.core.runs import Run
    from ncclkit.live.options import ProbeOptions

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but for newline and tab, marks that turn the writing direction, bytes that are no UTF-8."""


def show(text: str, file: TextIO | None = None) -> None:
    """Print text that may quote logs or names: what could steer a terminal is written as its code, as JSON does."""
    file = file or sys.stdout
    known = getattr(file, "encoding", None) or "utf-8"  # a terminal of another language lacks letters of ours
    plain = CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    print(plain.encode(known, "backslashreplace").decode(known), file=file)


def _case(options: argparse.Namespace) -> Case:
    from ncclkit.core.case import Case

    case = Case.open(options.case)
    if told := case.exposed():
        show(f"ncclkit: {told}", sys.stderr)
    return case


def _judge(case: Case, scope: Case) -> Diagnosis:
    """The verdict on what this verb has just seen, not on what the case holds of earlier runs; the case keeps it."""
    from ncclkit.causes.engine import diagnose

    if held := case.earlier():
        show(f"ncclkit: {held}; this verdict is about the new one alone.", sys.stderr)
    found = diagnose(scope)
    case.findings = scope.findings
    case.save()
    return found


def _options(options: argparse.Namespace, **more: Any) -> ProbeOptions:
    """The options of the live test among those that were given."""
    from ncclkit.live.options import OPTIONS, ProbeOptions

    given = {name: getattr(options, name) for name in OPTIONS if hasattr(options, name)}
    return ProbeOptions(**given | more)


def diagnose(options: argparse.Namespace) -> int:
    """Judge what a job left behind."""
    from ncclkit import evidence
    from ncclkit.causes.engine import diagnose
    from ncclkit.core.case import Case
    from ncclkit.evidence import logs

    stdin = sys.stdin.buffer if "-" in options.paths else None
    reading = evidence.read(options.paths, stdin=stdin, helped=True)
    case = logs.fill(_kept(options) if options.check else Case(), reading)
    found = diagnose(case)
    for problem in reading.problems:
        show(f"ncclkit: {problem}", sys.stderr)
    if options.check:
        found = _close(case, options)
    if options.json:
        show(json.dumps(found.to_dict(reading.inputs), indent=1, default=str))
        return found.exit_code
    show(f"ncclkit: {logs.summary(reading.inputs, len(reading.facts), reading.measurements)}", sys.stderr)
    show(found.text())
    return found.exit_code


def _kept(options: argparse.Namespace) -> Case:
    """An empty case for the experiments: the folder of ``--case``, or a new one in it where it holds anything.

    Of a case folder that was named as evidence, and is only read, it gets the plan of the last run, to run it again.
    """
    from ncclkit.core.case import Case
    from ncclkit.experiments import baseline

    case = Case.open(options.case)
    if told := case.exposed():
        show(f"ncclkit: {told}", sys.stderr)
    if case.path is not None and (case.path / "case.json").exists():
        number = 1 + sum(1 for _ in case.path.glob("checks/*"))
        case = Case.open(case.path / "checks" / str(number))
    first = Path(options.paths[0])
    if len(options.paths) == 1 and (first / "case.json").exists():
        baseline.take_over(case, Case.open(first, read_only=True))
    return case


def _close(case: Case, options: argparse.Namespace) -> Diagnosis:
    """Ask what the suspects leave open, apply the fix, and say on stderr what came out; the verdict as it is then."""
    from ncclkit.causes.engine import diagnose
    from ncclkit.experiments import fixes

    def narrate(record: ExperimentRecord) -> None:
        done = f"Checked: {record.question}" if record.kind == "check" else "Fix tried:"
        show(f"{done} {record.summary}", sys.stderr)

    show(f"ncclkit: small jobs run now, in {case.path}; Ctrl-C ends them.", sys.stderr)
    try:
        asyncio.run(fixes.close(case, narrate, python=options.python or None, on_record=_narrate))
    except NcclkitError as error:  # what was found stays to be said
        show(f"ncclkit: {error}", sys.stderr)
    return diagnose(case)


def inspect(options: argparse.Namespace) -> int:
    """Read the facts of this host, or of an allocation."""
    from ncclkit.analysis.consistency import compare
    from ncclkit.core import jobspec, text
    from ncclkit.core.case import Case
    from ncclkit.live import probe

    job = {name: getattr(options, name) for name in jobspec.UNITS}
    job |= {name: text.parse_size(job[name], f"The {name}") for name in ("dataset", "batch") if job[name] is not None}
    case = _case(options)
    before = list(case.facts)
    jobspec.set_job_spec(case, job)
    paths = {"work": ".", "data": options.data, "checkpoints": options.checkpoints}
    asyncio.run(probe.inspect(case, options.python or None, paths))
    scope = Case()
    scope.facts = _read_now(case, before)
    found, hosts = _judge(case, scope), compare(scope.facts)
    if options.json:
        show("\n".join(to_json(fact) for fact in scope.facts))
    else:
        show(hosts.text() if len(hosts.hosts) > 1 else "\n".join(str(fact) for fact in scope.facts))
        show("\n" + found.text())
    return int(bool(found.findings) or hosts.can_break)


def _read_now(case: Case, before: list[Fact]) -> list[Fact]:
    """The facts that were not in the case before: an equal one that was read again counts as new."""
    old = set(map(id, before))
    return [fact for fact in case.facts if id(fact) not in old]


def probe(options: argparse.Namespace) -> int:
    """Run the live test, and diagnose it where it failed."""
    from ncclkit.analysis import stages
    from ncclkit.core import reference

    case = _case(options)
    run = asyncio.run(_live(case, _options(options)))
    if options.json:
        show("\n".join(to_json(m) for m in run.measurements))
    else:
        staged = stages.staged_test(case).summary if options.stages else ""
        told = [staged] if staged and staged not in run.summary else []
        judged = reference.judgements(run.measurements, run.expectations)
        told += [f"{one.best.op}: {one.summary}" if len(run.expectations) > 1 else one.summary for one in judged]
        told += dict.fromkeys(str(bound) for bound in run.expectations.values())
        why = ["", _judge(case, case.run_alone(run.folder)).text()] if run.reason != "done" else []
        show("\n".join([*(str(m) for m in run.measurements), *told, run.summary, f"Run folder: {run.folder}", *why]))
    return 0 if run.reason == "done" else 1


async def _live(case: Case, options: ProbeOptions) -> Run:
    """Run the live test; reads the facts of this host first where they are missing, as the bound follows from them."""
    from ncclkit.live import probe

    if not case.facts:
        await probe.plan(case, options)  # refuses what cannot work before anything is read
        await probe.inspect(case, options.python or None)
    return await probe.probe(case, options, _narrate)


def _narrate(record: dict[str, Any]) -> None:
    """Progress on stderr, so that stdout stays the result."""
    if record["kind"] == "plan":
        env = (f"{name}={value}" for name, value in record["env"].items())
        show(f"  set for the ranks: {shlex.join(env)}", sys.stderr)
    if record["kind"] == "phase" and record.get("rank") == 0:
        what = [record["phase"], str(record.get("bytes", "")), str(record.get("op", ""))]
        show(f"  rank 0: {' '.join(filter(None, what))}", file=sys.stderr)
    if record["kind"] == "stage":
        show(f"  {record['say']}", file=sys.stderr)


def tune(options: argparse.Namespace) -> int:
    """Compare variables in alternating runs."""
    from ncclkit.live import tune
    from ncclkit.live.options import variables

    variants = [variables(setting.split(",")) for setting in options.settings]
    results = asyncio.run(tune.sweep(_case(options), variants, options.pairs, _options(options)))
    show("\n".join(to_json(result) if options.json else result.summary for result in results))
    return 0


def connect(options: argparse.Namespace) -> int:
    """Test the network paths between hosts: every host and every path, then what is wrong with them.

    Exit status 2 where nothing was found and a host could not be reached.
    """
    from ncclkit.core.case import Case
    from ncclkit.live.connect import connectivity

    def narrate(record: dict[str, Any]) -> None:
        if record["kind"] == "connect.step":
            show(f"  {record.get('say')}", file=sys.stderr)

    case, scope = _case(options), Case()
    before = list(case.facts)
    choices = {"remote_command": options.remote_command, "port": options.port, "python": options.python or None}
    found = asyncio.run(connectivity(case, options.hosts, narrate, **choices))
    rows = [*(host.event for host in found.hosts.values()), *(link.event for link in found.links)]
    scope.events, scope.facts = rows, _read_now(case, before)
    diagnosis = _judge(case, scope)
    if options.json:
        show("\n".join(to_json(row) for row in rows))
    else:
        show(f"{found.text()}\n\n{found.summary}.\n\n{diagnosis.text()}")
    return int(bool(diagnosis.findings)) or 2 * any(host.problem for host in found.hosts.values())


def lab(options: argparse.Namespace) -> int:
    """Break a small job and diagnose it."""
    from ncclkit.lab.faults import injection, recording

    if options.list or not options.fault:
        wide = max(map(len, injection.FAULTS))
        show("\n".join(f"{name:{wide}}  {injection.describe(fault)}" for name, fault in injection.FAULTS.items()))
        return 0
    show(
        f"This run: {injection.fault(options.fault).says}. It touches only its own processes and {options.case}.",
        file=sys.stderr,
    )
    case, asked = _case(options), _options(options)
    run = asyncio.run(
        injection.inject(
            case,
            options.fault,
            python=asked.python,
            ranks=asked.ranks,
            backend=asked.backend,
            deadline=asked.timeout,
            simulate_hosts=asked.simulate_hosts,
            on_record=_narrate,
        )
    )
    if options.record:
        recording.bundle(run, options.record, {"host": "lab"})
    found = _close(case, options) if options.check else _judge(case, case.run_alone(run.folder))
    show(
        json.dumps(found.to_dict(case.inputs), indent=1, default=str)
        if options.json
        else f"{run.summary}\n\n{found.text()}"
    )
    return found.exit_code


def attach(options: argparse.Namespace) -> int:
    """Diagnose a job that hangs now."""
    from ncclkit.analysis.frames import standing
    from ncclkit.live.attach import attach

    def narrate(record: dict[str, Any]) -> None:
        if record["kind"] == "problem":
            show(f"ncclkit: {record['say']}", sys.stderr)

    case = _case(options)
    attached = asyncio.run(attach(case, options.pid, options.job, options.seconds, narrate))
    reading, found = attached.reading, _judge(case, case.run_alone(attached.folder))
    if not options.json:
        show("".join(f"{place}\n" for place in standing(reading.events)))
        show("".join(f"{event.text}\n" for event in reading.events if event.kind == "telemetry.utilization"))
    show(json.dumps(found.to_dict(reading.inputs), indent=1, default=str) if options.json else found.text())
    return found.exit_code


def report(options: argparse.Namespace) -> int:
    """Run a notebook headless, as one HTML file."""
    from ncclkit import report

    path = report.notebook(options.notebook)
    if wrong := next((item for item in options.p if "=" not in item), None):
        raise NcclkitError(f"The parameter {wrong!r} is not NAME=VALUE; write for example -p ranks=4.")
    parameters = report.literals(dict(item.split("=", 1) for item in options.p), path)
    if options.python:
        parameters["train_python"] = options.python
    folder = Path(parameters.get("case_dir") or options.case).expanduser().absolute()
    parameters |= {"case_dir": folder} if "case_dir" in parameters else {}
    html = report.make(path, folder, parameters, redact=options.redact, names=options.redact_name or ())
    show(f"Report: {html}\nCase folder: {html.parent}")
    if options.redact or options.redact_name:
        show(f"Replaced names: {report.replaced(html)} (keep this list; --redact-name NAME adds what it lacks)")
    return 0


def open(options: argparse.Namespace) -> int:
    """Start JupyterLab."""
    from ncclkit import report
    from ncclkit.report import jupyter

    jupyter.open_lab(report.notebook(options.notebook), port=options.port)
    return 0
