"""The live test: real ranks, a real collective, and always an answer.

`inspect` reads the facts of this host, `probe` runs the collective.  Both add
to a case, and both leave the same folder behind as a real job does, so a test
that hangs is diagnosed by the same code as a dead job.

Who is at fault where a staged test broke off: fewer and fewer ranks are started, until it is known.
Each question is a job of its own on the same hosts, in which disjoint groups of ranks work at once
and the others stand aside: new processes, since a process whose communicator hangs, or whose GPU
reported an error, says nothing about the next group. `bisect_ranks` says which groups; what they
said is kept in ``bisection.jsonl`` of the run.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ncclkit import evidence
from ncclkit.agent import redact, wire
from ncclkit.agent.facts.machine import Machine
from ncclkit.agent.facts.network import loopback_facts
from ncclkit.agent.monitor import snapshots
from ncclkit.agent.run.stages import spans
from ncclkit.analysis.speed import busy_cores, disturbing, others_in_words
from ncclkit.analysis.stages import StagedTest, staged_test
from ncclkit.core import bandwidth
from ncclkit.core.case import Case
from ncclkit.core.model import Fact, Measurement, NcclkitError, from_dict
from ncclkit.core.runs import Plan, Run, records_of
from ncclkit.core.storage import write
from ncclkit.live import scheduler
from ncclkit.live.launch import launchers, local
from ncclkit.live.launch.base import OnRecord
from ncclkit.live.launch.launchers import launcher_of_plan
from ncclkit.live.options import DEFAULTS, ProbeOptions, too_few_gpus, too_many_ranks

KEPT, FOLDER = "bisection.jsonl", ".bisection"
"""What the groups said, and the folder of the runs themselves.

That is hidden from whoever reads the run folder.
"""
LIMIT = {"nccl": 15.0, "gloo": 10.0}
"""Seconds for a group to get through, once its ranks have found each other.

Of GPUs it is 20 ms more for each.
"""
LEAST, MOST = 8.0, 120.0
"""Seconds for one question, at least and at most.

With fewer none is worth asking, as ranks have to start and import torch.
"""
Group = tuple[int, ...]
Launch = Callable[[Plan, Path, OnRecord], Awaitable[list[dict[str, Any]]]]


async def bisect(
    case: Case, run: Run, launch: Launch, on_record: OnRecord = lambda record: None
) -> StagedTest:
    """Try groups of ranks until the fault of a staged test is located.

    It ends when the run's deadline has passed.  `launch` is as
    `ncclkit.live.launch.local.run_locally`.  Every answer is in the case when this returns, is
    cancelled or raises.
    """
    until = time.monotonic() + run.plan.deadline - run.seconds
    alone = False
    while (found := staged_test(case)).failing and (asked := found.bisected.ask):
        left = until - time.monotonic()
        if left < LEAST:
            break
        groups = concurrent_groups(asked)[: 1 if alone else None]
        number = len(list((run.folder / FOLDER).glob("*"))) + 1
        say = "; ".join(found.who(group) for group in groups)
        on_record(
            {"kind": "stage", "number": number, "say": f"Narrowing down, try {number}: {say}"}
        )
        folder = run.folder / FOLDER / str(number)
        folder.mkdir(parents=True)
        records, ended = await _run_groups(
            run.plan, groups, launch, min(left, MOST), folder, on_record
        )
        reported = {str(record.get("ranks")) for record in records}
        silent = [group for group in groups if spans(group) not in reported]
        # one that died may have taken the others of its host along
        alone = bool(silent) and len(groups) > 1
        _keep(
            case,
            run.folder,
            [*records, *([] if alone or not ended else map(_silent_result, silent))],
        )
        # never started, that slow to start, or stuck beyond the reach of its own alarm
        if silent and not ended:
            break
    return found


def concurrent_groups(groups: Sequence[Group]) -> list[Group]:
    """As many of the groups, in their order, as can be tried at once."""
    taken: set[int] = set()
    chosen = []
    for group in groups:
        if not taken & set(group):
            chosen.append(group)
            taken |= set(group)
    return chosen


async def _run_groups(
    plan: Plan,
    groups: Sequence[Group],
    launch: Launch,
    deadline: float,
    folder: Path,
    on_record: OnRecord,
) -> tuple[list[dict[str, Any]], bool]:
    """What the ranks of groups said.

    It tells also whether the job began, and whether it ended in time.
    """
    results: list[dict[str, Any]] = []
    ending = False

    def keep(record: dict[str, Any]) -> None:
        nonlocal ending
        ending = ending or record["kind"] == "ending"
        # whoever is ended fails, and whoever waits for him
        if record["kind"] == "stage.group" and not ending:
            results.append(record)
        elif record["kind"] == "log":
            on_record(record)

    limit = LIMIT.get(plan.backend, LIMIT["nccl"]) + 0.02 * plan.ranks
    asked = (
        *plan.argv,
        "--timeout",
        f"{limit:g}",
        "--groups",
        "/".join(spans(group) for group in groups),
    )
    # a restart would ask the same groups again within one answer
    records = await launch(replace(plan, argv=asked, deadline=deadline, restarts=0), folder, keep)
    # else srun, or a host, did not start it
    began = any(record.get("phase") == "hello" for record in records)
    return results, began and all(
        record.get("reason") != "deadline" for record in records if record["kind"] == "end"
    )


def _silent_result(group: Group) -> dict[str, Any]:
    """What is kept of a group of which no rank said anything.

    It had the job for itself.
    """
    result = {
        "stage": "bisect",
        "ranks": spans(group),
        "bytes": 0,
        "busbw": None,
        "latency_us": None,
        "wrong": 0,
    }
    return {
        "kind": "stage.group",
        "rank": group[0],
        **result,
        "problem": "no rank of it came to an end",
    }


def _keep(case: Case, folder: Path, records: Sequence[dict[str, Any]]) -> None:
    """Add the answers to the run folder and to the case."""
    if not records:
        return
    lines = [
        json.dumps({"ncclkit": wire.VERSION, "t": time.time(), **record}) + "\n"
        for record in records
    ]
    try:
        with open(folder / KEPT, "a", encoding="utf-8") as out:
            out.writelines(lines)
    except OSError as error:
        raise NcclkitError(
            f"Cannot write {folder / KEPT}: {error.strerror}; free space there."
        ) from error
    case.add(evidence.read([folder / KEPT]).events)
    case.save()


TRAIN_PYTHON = "NCCLKIT_TRAIN_PYTHON"
"""Variable that names the training interpreter.

``make lab TRAIN_PYTHON=…`` sets it.
"""

MIB = 1 << 20
BUILT = re.compile(r"\[/\S+\.cc:\d+\] ")
"""Where a line of torch's source lay on the machine that built it."""


async def inspect_hosts(
    case: Case, python: str | None = None, paths: Mapping[str, str] | None = None
) -> Case:
    """Read the facts of this host, or of all nodes, into the case.

    Newer readings replace older ones.  `python` is the training interpreter (default:
    NCCLKIT_TRAIN_PYTHON, else this one); `paths` is label → folder whose storage is looked at;
    those without a folder are left out.
    """
    paths = {label: path for label, path in (paths or {}).items() if path}
    folder = case.new_run("facts")
    with writing(folder):
        launcher = launchers.starting_launcher()
        records = await launcher.read_facts(interpreter(python), folder, paths)
    host = next((r["value"] for r in records if r.get("name") == "host.name"), "")
    facts = [
        from_dict(Fact, {"host": host, **record}) for record in records if record["kind"] == "fact"
    ]
    if all(fact.name == "facts.host" for fact in facts):
        said = scheduler.last_words((folder / "launcher.log").read_text(errors="replace"))
        raise NcclkitError(
            f"The agent gave no facts under {interpreter(python)}: {said}; see"
            f" {folder}/launcher.log."
        )
    if scheduler.is_login_node():
        facts += await asyncio.to_thread(scheduler.read_facts)
    elif scheduler.is_inside_job():  # what was read of a login node says nothing of the nodes
        case.facts = [
            fact for fact in case.facts if fact.host != (case.fact("scheduler.login_node") or None)
        ]
    return replace_facts(case, facts).save()


def replace_facts(case: Case, facts: Sequence[Fact]) -> Case:
    """Replace older readings by newer ones.

    Variables that are no longer set on hosts that were read are dropped.
    """
    fresh = {fact.host for fact in facts if fact.name == "env.problems"}
    case.facts = [
        old
        for old in case.facts
        if old.host not in fresh or not old.name.startswith(("env.", "facts."))
    ]
    return case.replace_facts(facts)


def interpreter(python: str | None = None) -> str:
    """The training interpreter: the one that is named, that of the environment, or this one."""
    if python is not None and not isinstance(python, str):
        raise NcclkitError(
            f"The training interpreter must be a path in quotes, but it is {python!r}"
            f" ({type(python).__name__})."
        )
    return python or os.environ.get(TRAIN_PYTHON) or sys.executable


def sizes(largest: int, smallest: int = 8, factor: int = 8) -> tuple[int, ...]:
    """Message sizes in bytes from `smallest` to `largest`, growing by `factor`.

    `largest` is always the last.
    """
    steps = []
    size = smallest
    while size * factor**0.5 < largest:  # the last step is never much smaller than the others
        steps.append(size)
        size *= factor
    return (*steps, largest)


async def plan_test(case: Case, options: ProbeOptions = DEFAULTS, verb: str = "probe") -> Plan:
    """Decide what to run from what the hosts have.

    It is NCCL on all GPUs, or gloo with two ranks (or one a node) without any.  `verb` is that of
    the command that asks.  Raises NcclkitError where this machine cannot do what is asked.
    """
    # Slurm may take seconds to answer
    if not options.here and await asyncio.to_thread(scheduler.is_login_node):
        raise NcclkitError(f"{scheduler.refusal('a test', verb)}.")
    python = interpreter(options.python)
    sharing = int(options.network.get("hosts", options.simulate_hosts))
    gpus, hosts = (
        await _gpus(case, python),
        1 if options.network else max(1, launchers.node_count()),
    )
    places = gpus * hosts * sharing
    if options.backend in ("auto", "any"):
        backend = "gloo"
        if gpus:
            backend = "nccl"
    else:
        backend = options.backend
    if options.backend == "any" and options.simulate_hosts == 1 and options.ranks > places:
        backend = "gloo"
    if options.simulate_hosts > 1 and backend != "nccl":
        raise NcclkitError(
            f"Hosts can be simulated so for NCCL only; this run would use {backend}."
        )
    count = options.ranks or (max(gpus, sharing) * hosts if backend == "nccl" else max(2, hosts))
    count += -count % sharing if options.network else 0  # as many on each
    if backend == "nccl" and count > places:
        raise too_few_gpus(gpus, hosts, sharing, count, can_simulate=not options.network)
    if hosts == 1 and not options.oversubscribe and (why := too_many_ranks(count)):
        raise NcclkitError(f"{why}; ask for fewer, or allow it with --oversubscribe.")
    steps = sizes(options.max_bytes or (256 * MIB if backend == "nccl" else 16 * MIB))
    return Plan(
        options.ops[0] if len(options.ops) == 1 else "collectives",
        _argv(options, backend, steps),
        count,
        backend,
        python,
        options.timeout,
        dict(options.env),
        steps,
        options.ops,
        options.simulate_hosts,
        network=dict(options.network),
    )


def _argv(options: ProbeOptions, backend: str, steps: Sequence[int]) -> tuple[str, ...]:
    """What each rank of the live test is started with."""
    # one call that hangs must leave time to find out who did
    share = 2
    if options.stages:
        share = 5
    timeout = max(5.0, options.timeout / share)
    asked = {
        "backend": backend,
        "ops": ",".join(options.ops),
        "dtype": options.dtype,
        "sizes": ",".join(map(str, steps)),
        "repeats": str(options.repeats),
        "timeout": f"{timeout:.0f}",
    }
    argv = ["collective"]
    for name, value in asked.items():
        argv += [f"--{name}", value]
    if options.stages:
        argv.append("--stages")
    if options.simulate_hosts > 1:
        argv += ["--simulate-hosts", str(options.simulate_hosts)]
    return tuple(argv)


async def plan_here(case: Case, plan: Plan) -> None:
    """Check that a plan from another machine can be run again on this one.

    It takes GPUs, and no login node.  Raises NcclkitError where it cannot.
    """
    if await asyncio.to_thread(scheduler.is_login_node):
        raise NcclkitError(f"{scheduler.refusal('an experiment', 'diagnose --check')}.")
    if plan.backend != "nccl":
        return
    gpus, hosts = await _gpus(case, plan.python), launchers.hosts_of_plan(plan)
    if plan.ranks > gpus * hosts:
        need = -(-plan.ranks // hosts)
        requirement = f"its {plan.ranks} NCCL ranks need {need} GPU{'s' * (need > 1)}"
        raise NcclkitError(
            f"{plan.name} cannot be run again here: {requirement}, but the training interpreter"
            f" sees {gpus or 'none'}; try this on the machine that it ran on."
        )


async def _gpus(case: Case, python: str) -> int:
    """Usable GPUs, from the facts or by asking the interpreter.

    The facts count where they were read here, under this interpreter.  Of the nodes of an
    allocation the one with the fewest counts: all of them get as many ranks.
    """
    if launchers.node_count():
        # Slurm's names are short, and a host's own may have its domain
        names = {name.partition(".")[0] for name in await launchers.launcher_here().node_names()}
        here = [fact for fact in case.facts if fact.host.partition(".")[0] in names] or case.facts
    else:
        here = [fact for fact in case.facts if fact.host in ("", socket.gethostname())]
    by_host: dict[str, dict[str, Any]] = {}
    for fact in here:
        by_host.setdefault(fact.host, {})[fact.name] = fact.value
    # another interpreter may see other GPUs
    seen = [facts for facts in by_host.values() if facts.get("software.executable") == python]
    known = [
        int(facts["software.torch.gpus"])
        for facts in seen
        if facts.get("software.torch.gpus") is not None
    ]
    if known:
        return min(known)
    answer = await local.check_interpreter(python)
    if answer["nccl"]:
        return int(answer["gpus"])
    return 0


def recording_env(folder: Path, backend: str) -> dict[str, str]:
    """Variables that make a run leave evidence behind, and be found itself.

    All of them stand in ``plan.json``.
    """
    flight = str(folder / "fr_rank_")
    env = {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",  # the second name is the one before torch 2.8
        "TORCH_FR_DUMP_TEMP_FILE": flight,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": flight,
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        # the watchdog waits four times as long before it ends a rank: a minute, unless it is told
        # otherwise
        "TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC": "5000",
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "5000",
        local.TAG: str(folder),
        # the workbook depends on them, training does not
        **{
            variable: str(Path(sys.executable).parent / tool)
            for tool, variable in snapshots.TOOLS.items()
        },
    }
    # without COLL, which writes a line for each call
    if backend == "nccl":
        env |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV,NET,GRAPH,TUNING"}
    return env


def announcement(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The record that says what a run was asked for, from what its ``plan.json`` holds."""
    lists = {name: list(plan[name]) for name in ("sizes", "ops")}
    return {"kind": "plan", **lists, **{name: plan[name] for name in ("ranks", "deadline", "env")}}


async def execute(case: Case, plan: Plan, on_record: OnRecord = lambda record: None) -> Run:
    """Run a plan.

    Whatever happens, its folder, events and measurements are then in the case.
    """
    folder = case.new_run(plan.name)
    # what the user has set wins
    env = recording_env(folder, plan.backend) | dict(plan.env)
    shown = redact.clean(env)
    words = redact.words(plan.argv)
    plan_and_job = asdict(plan) | {
        "argv": words,
        "env": shown,
        "job": os.environ.get("SLURM_JOB_ID", ""),
    }
    with writing(folder):
        write(folder / "plan.json", json.dumps(plan_and_job, indent=1))
    on_record(announcement(plan_and_job))
    started = time.monotonic()
    records: list[dict[str, Any]] = []

    def keep(record: dict[str, Any]) -> None:
        records.append(record)
        on_record(finish(record, plan) if record["kind"] == "measure" else record)

    try:
        with writing(folder):
            await launcher_of_plan(plan).run(replace(plan, env=env), folder, keep)
    finally:
        # also of a run that was cancelled or could not be started: what it left is evidence
        run = _outcome(case, plan, folder, records, time.monotonic() - started)
    return run


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn an error of a disk that is full or gone into one sentence."""
    try:
        yield
    except (BrokenPipeError, TimeoutError):  # no disk
        raise
    except OSError as error:
        raise NcclkitError(
            f"Cannot write the run folder {folder}: {error.strerror or error}; free space or name"
            " another case folder."
        ) from error


def _outcome(
    case: Case, plan: Plan, folder: Path, records: list[dict[str, Any]], seconds: float
) -> Run:
    """Put what the run left behind into the case, and say how it ended."""
    hosts = launchers.hosts_of_plan(plan)
    case.replace_facts(from_dict(Fact, record) for record in records if record["kind"] == "fact")
    made = [finish(record, plan) for record in records if record["kind"] == "measure"]
    ops = dict.fromkeys(row["op"] for row in made)
    reading = evidence.read([folder])
    loads = disturbing(event for event in reading.events if event.kind == "telemetry.others")
    limits = {op: _bound(case, plan, op, busy_cores(loads)) for op in ops}
    every = {"hosts": hosts, "run": folder.name, "env": redact.clean(dict(plan.env))}
    measured = tuple(
        from_dict(Measurement, row | every | {"expected": limits[row["op"]].value}) for row in made
    )
    case.add([*measured, *reading.events])
    case.inputs = [row for row in case.inputs if row not in reading.inputs] + reading.inputs
    case.save()
    end = next((r for r in records if r["kind"] == "end"), {"reason": "lost"})
    return Run(
        plan,
        folder,
        end["reason"],
        seconds,
        measured,
        limits,
        _problem(records),
        others_in_words(loads),
    )


def _bound(case: Case, plan: Plan, op: str, busy: str) -> bandwidth.Expectation:
    """The bound of a collective's busbw.

    `busy` is what kept this host from showing what it can.
    """
    bound = bandwidth.expect(
        op, plan.backend, plan.ranks, case.facts, launchers.hosts_of_plan(plan), plan.sharing
    )
    return bandwidth.without_reference(bound, busy)


def reread(case: Case, folder: Path, plan: Plan) -> Run:
    """A run of this case, read back from its folder.

    `plan` is what it was asked to do.
    """
    records = records_of(folder)
    reason = "lost"
    for record in records:
        if record["kind"] == "end":
            reason = record["reason"]
            break
    seconds = 0.0
    if records:
        seconds = float(records[-1]["t"] - records[0]["t"])
    measured = tuple(m for m in case.measurements if m.run == folder.name)
    bounds = {row.op: bandwidth.recorded_bound(row, case.facts) for row in measured}
    limits = {op: bound for op, bound in bounds.items() if bound is not None}
    disturbed = disturbing(case.run_alone(folder).of("telemetry.others"))
    others = others_in_words(disturbed)
    return Run(plan, folder, reason, seconds, measured, limits, _problem(records), others)


def finish(record: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """A ``measure`` record of this plan's run with algbw and busbw (GB/s).

    busbw is None with one rank.
    """
    algbw = bandwidth.algbw(record["bytes"], record["time_us"])
    busbw = None
    if record["ranks"] > 1:
        busbw = bandwidth.busbw(record["op"], record["ranks"], algbw)
    return record | {"algbw": algbw, "busbw": busbw, "backend": plan.backend}


def _problem(records: list[dict[str, Any]]) -> str:
    """The first rank's own error, else what the guard said."""
    for record in records:
        if record.get("phase") == "error":
            error = record["error"].splitlines()[0]
            return f"rank {record['rank']}: {BUILT.sub('', error)}"
    for record in records:
        if record["kind"] == "end" and record.get("say"):
            return str(record["say"])
    return ""


async def _measure_reference(case: Case, plan: Plan) -> None:
    """Measure loopback again, of which the bound of a test over gloo is made.

    It is as fast as the host is free.
    """
    # over NCCL the links are known; for other hosts loopback says nothing
    if plan.backend != "gloo" or plan.network or launchers.node_count():
        return
    here = ("", socket.gethostname())
    before = [fact for fact in case.facts_of(bandwidth.STREAM) if fact.host in here]
    if not before:
        return
    rows = await asyncio.to_thread(lambda: list(loopback_facts(Machine())))
    # under the name that the facts before have, or they would stand beside the new ones
    host = before[-1].host
    case.replace_facts(from_dict(Fact, {"host": host, **row}) for row in rows)


async def probe(
    case: Case, options: ProbeOptions = DEFAULTS, on_record: OnRecord = lambda record: None
) -> Run:
    """Run the live test, planned from the host's facts.

    Where a stage of a staged test fails, or all ranks together are slow, bisection follows within
    the same timeout.
    """
    planned = await plan_test(case, options)
    await _measure_reference(case, planned)
    run = await execute(case, planned, on_record)
    if options.stages:
        found = await bisect(case, run, launcher_of_plan(run.plan).run, on_record)
        if found.failing and found.tried:
            run = replace(run, problem=found.summary)
    return run
