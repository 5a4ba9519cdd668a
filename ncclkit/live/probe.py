"""The live test: real ranks, a real collective, and always an answer.

`inspect` reads the facts of this host, `probe` runs the collective.  Both add
to a case, and both leave the same folder behind as a real job does, so a test
that hangs is diagnosed by the same code as a dead job.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ncclkit import evidence
from ncclkit.agent import redact, wire
from ncclkit.agent.monitor import attach
from ncclkit.core import bandwidth
from ncclkit.core.case import Case
from ncclkit.core.model import Fact, Measurement, NcclkitError, from_dict
from ncclkit.core.runs import Plan, Run
from ncclkit.core.storage import write
from ncclkit.live import bisect, options
from ncclkit.live.launch import local, simulated, slurm

TRAIN_PYTHON = "NCCLKIT_TRAIN_PYTHON"
"""Variable that names the training interpreter where nobody says otherwise; ``make lab TRAIN_PYTHON=…`` sets it."""

MIB = 1 << 20
BUILT = re.compile(r"\[/\S+\.cc:\d+\] ")
"""Where a line of torch's source lay on the machine that built it."""

OnRecord = Callable[[dict[str, Any]], None]


async def inspect(case: Case, python: str | None = None, paths: Mapping[str, str] | None = None) -> Case:
    """Read the facts of this host, or of all nodes of a Slurm allocation, into the case; newer readings replace older.

    python: the training interpreter (default: NCCLKIT_TRAIN_PYTHON, else this one); paths: label → folder whose
    storage is looked at; those without a folder are left out.
    """
    paths = {label: path for label, path in (paths or {}).items() if path}
    folder = case.new_run("facts")
    with _writing(folder):
        read = slurm.facts if slurm.nodes() > 1 else local.facts
        records = await read(interpreter(python), folder, paths)
    host = next((r["value"] for r in records if r.get("name") == "host.name"), "")
    facts = [from_dict(Fact, {"host": host, **record}) for record in records if record["kind"] == "fact"]
    if all(fact.name == "facts.host" for fact in facts):
        log = (folder / "launcher.log").read_text(errors="replace").strip().splitlines() or ["no output"]
        raise NcclkitError(
            f"The agent gave no facts under {interpreter(python)}: {log[-1][:200]}; see {folder}/launcher.log."
        )
    return renew(case, facts).save()


def renew(case: Case, facts: Sequence[Fact]) -> Case:
    """Newer readings replace older; of hosts whose variables were read, those that are not set any more are dropped."""
    fresh = {fact.host for fact in facts if fact.name == "env.problems"}
    case.facts = [old for old in case.facts if old.host not in fresh or not old.name.startswith(("env.", "facts."))]
    return case.replace_facts(facts)


def interpreter(python: str | None = None) -> str:
    """The training interpreter: the one that is named, else that of the environment, else this one."""
    if python is not None and not isinstance(python, str):
        raise NcclkitError(
            f"The training interpreter must be a path in quotes, but it is {python!r} ({type(python).__name__})."
        )
    return python or os.environ.get(TRAIN_PYTHON) or sys.executable


def sizes(largest: int, smallest: int = 8, factor: int = 8) -> tuple[int, ...]:
    """Message sizes in bytes from `smallest` to `largest`, growing by `factor`; `largest` is always the last."""
    steps = []
    size = smallest
    while size * factor**0.5 < largest:  # the last step is never much smaller than the others
        steps.append(size)
        size *= factor
    return (*steps, largest)


async def plan(
    case: Case,
    *,
    python: str | None = None,
    ranks: int | None = None,
    backend: str = "auto",
    largest: int | None = None,
    repeats: int = 10,
    deadline: float = 120.0,
    env: Mapping[str, str] | None = None,
    op: str = "all_reduce",
    dtype: str = "float32",
    ladder: bool = False,
    split: int = 1,
    net: Mapping[str, Any] | None = None,
) -> Plan:
    """Decide what to run from what the hosts have: NCCL on all GPUs, gloo with two ranks (or one a node) without any.

    backend: ``any`` takes gloo where there are too few GPUs, too; op: a collective, several joined by commas, or
    ``all``; dtype: of its elements; ladder: first look at each rank alone, at pairs, at nodes; split: the ranks of a
    host pretend to be on so many (NCCL_HOSTID), so that NCCL uses the network between them, and lets each of these
    hosts use every GPU: one GPU then carries as many ranks as there are hosts; net: the network of pretended hosts on
    which the ranks run instead (`networks`), which share the GPUs, too; largest: message size in bytes (default 256 MiB
    on GPUs, 16 MiB on CPU); deadline: seconds.  Raises NcclkitError for values that cannot work.
    """
    python = interpreter(python)
    options.validate(ranks, backend, largest, repeats, split, deadline, net)
    ops = options.operations(op, dtype)
    gpus = await _gpus(case, python)
    chosen = ("nccl" if gpus else "gloo") if backend in ("auto", "any") else backend
    hosts, sharing = _places(net, split)
    chosen = "gloo" if backend == "any" and split == 1 and (ranks or 0) > gpus * hosts * sharing else chosen
    if split > 1 and chosen != "nccl":
        raise NcclkitError(f"Ranks can be split into hosts for NCCL only; this run would use {chosen}.")
    count = ranks or (max(gpus, sharing) * hosts if chosen == "nccl" else max(2, hosts))
    count += -count % sharing if net else 0  # as many on each
    if chosen == "nccl" and count > gpus * hosts * sharing:
        raise options.too_few(gpus, hosts, sharing, count, more=not net)
    steps = sizes(largest or (256 * MIB if chosen == "nccl" else 16 * MIB))
    asked = {"backend": chosen, "ops": ",".join(ops), "dtype": dtype, "sizes": ",".join(map(str, steps))}
    asked |= {"repeats": str(repeats), "timeout": f"{max(5.0, deadline / (5 if ladder else 2)):.0f}"}
    argv = ("collective", *(word for name, value in asked.items() for word in (f"--{name}", value)))
    argv += (*(("--stages",) if ladder else ()), *(("--simulate-hosts", str(split)) if split > 1 else ()))
    name = ops[0] if len(ops) == 1 else "collectives"
    return Plan(name, argv, count, chosen, python, deadline, dict(env or {}), steps, ops, split, network=net or {})


async def again(case: Case, plan: Plan) -> None:
    """Raises NcclkitError where the GPUs of this machine do not carry a plan that may have been made on another."""
    if plan.backend != "nccl":
        return
    gpus, (hosts, sharing) = await _gpus(case, plan.python), _places(plan.network, plan.simulate_hosts)
    if plan.ranks > gpus * hosts * sharing:
        need = -(-plan.ranks // (hosts * sharing))
        told = f"its {plan.ranks} NCCL ranks need {need} GPU{'s' * (need > 1)}"
        raise NcclkitError(
            f"{plan.name} cannot be run again here: {told}, but the training interpreter sees {gpus or 'none'}; "
            "try this on the machine that it ran on."
        )


def _places(net: Mapping[str, Any] | None, split: int) -> tuple[int, int]:
    """Hosts that have GPUs of their own, and pretended hosts that share those of each."""
    return (1, int(net["hosts"])) if net else (max(1, slurm.nodes()), split)


async def _gpus(case: Case, python: str) -> int:
    """Usable GPUs: from the facts where they were read here, under this interpreter, else by asking the interpreter."""
    own = ("", socket.gethostname())
    here = [fact for fact in case.facts if fact.value is not None and (slurm.nodes() or fact.host in own)]
    told = {fact.name: fact.value for fact in reversed(here)}  # the first host's, of the nodes of an allocation
    known = told.get("software.torch.gpus") if told.get("software.executable") == python else None
    if known is not None:
        return int(known)
    answer = await local.check(python)
    return int(answer["gpus"]) if answer["nccl"] else 0


def recording_env(folder: Path, backend: str) -> dict[str, str]:
    """Variables that make a run leave evidence behind, and be found itself; all of them stand in ``plan.json``."""
    flight = str(folder / "fr_rank_")
    env = {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",  # the second name is the one before torch 2.8
        "TORCH_FR_DUMP_TEMP_FILE": flight,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": flight,
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        local.TAG: str(folder),
        attach.PYSPY: str(Path(sys.executable).parent / "py-spy"),  # the workbook depends on it, training does not
    }
    if backend == "nccl":
        env |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV,NET,GRAPH,TUNING"}
    return env


async def execute(case: Case, plan: Plan, on_record: OnRecord = lambda record: None) -> Run:
    """Run a plan; whatever happens, the run folder, its events and its measurements are in the case afterwards."""
    folder = case.new_run(plan.name)
    env = recording_env(folder, plan.backend) | dict(plan.env)
    shown = redact.clean(env)
    with _writing(folder):
        write(folder / "plan.json", json.dumps(asdict(plan) | {"env": shown}, indent=1))
    on_record({"kind": "plan", "sizes": list(plan.sizes), "ops": list(plan.ops), "ranks": plan.ranks, "env": shown})
    started = time.monotonic()
    records: list[dict[str, Any]] = []

    def keep(record: dict[str, Any]) -> None:
        records.append(record)
        on_record(_finish(record, plan) if record["kind"] == "measure" else record)

    try:
        with _writing(folder):
            await launcher(plan)(replace(plan, env=env), folder, keep)
    finally:
        run = _outcome(case, plan, folder, records, time.monotonic() - started)
    return run


def launcher(plan: Plan) -> bisect.Launch:
    """What starts the ranks of a plan, as `local.run` does: on pretended hosts, on nodes, or here."""
    if plan.network:
        return simulated.run
    return slurm.run if slurm.nodes() > 1 else local.run


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """A disk that is full or gone, in one sentence."""
    try:
        yield
    except BrokenPipeError:  # no disk: whoever read what is said of the run has gone
        raise
    except OSError as error:
        raise NcclkitError(
            f"Cannot write the run folder {folder}: {error.strerror or error}; free space or name another case folder."
        ) from error


def _outcome(case: Case, plan: Plan, folder: Path, records: list[dict[str, Any]], seconds: float) -> Run:
    """Put what the run left behind into the case, and say how it ended."""
    sharing, machines = (
        int(plan.network.get("hosts", plan.simulate_hosts)),
        1 if plan.network else max(1, slurm.nodes()),
    )
    case.replace_facts(from_dict(Fact, record) for record in records if record["kind"] == "fact")
    made = [_finish(record, plan) for record in records if record["kind"] == "measure"]
    ops = dict.fromkeys(row["op"] for row in made)
    limits = {op: bandwidth.expect(op, plan.backend, plan.ranks, case.facts, machines * sharing, sharing) for op in ops}
    every = {"hosts": machines * sharing, "run": folder.name, "env": redact.clean(dict(plan.env))}
    measured = tuple(from_dict(Measurement, row | every | {"expected": limits[row["op"]].value}) for row in made)
    reading = evidence.read([folder])
    case.add([*measured, *reading.events])
    case.inputs = [row for row in case.inputs if row not in reading.inputs] + reading.inputs
    case.save()
    end = next((r for r in records if r["kind"] == "end"), {"reason": "cancelled"})
    return Run(plan, folder, end["reason"], seconds, measured, limits, _problem(records))


def reread(case: Case, folder: Path, plan: Plan) -> Run:
    """A run of this case as its folder tells it; `plan` is what it was asked to do."""
    wired = folder / "wire.jsonl"
    lines = wired.read_bytes().splitlines() if wired.exists() else []
    records = [record for record in map(wire.parse, lines) if record is not None]
    end = next((r for r in records if r["kind"] == "end"), {"reason": "cancelled"})
    seconds = float(records[-1]["t"] - records[0]["t"]) if records else 0.0
    measured = tuple(m for m in case.measurements if m.run == folder.name)
    return Run(plan, folder, end["reason"], seconds, measured, problem=_problem(records))


def _finish(record: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """A ``measure`` record with algbw and busbw (GB/s) worked out; busbw is None with one rank."""
    algbw = bandwidth.algbw(record["bytes"], record["time_us"])
    busbw = bandwidth.busbw(record["op"], record["ranks"], algbw) if record["ranks"] > 1 else None
    return record | {"algbw": algbw, "busbw": busbw, "backend": plan.backend}


def _problem(records: list[dict[str, Any]]) -> str:
    """The first rank's own error, else what the guard said."""
    raised = [(r["rank"], r["error"].splitlines()[0]) for r in records if r.get("phase") == "error"]
    errors = [f"rank {rank}: {BUILT.sub('', error)}" for rank, error in raised]
    said = [r["say"] for r in records if r["kind"] == "end" and r.get("say")]
    return next(iter([*errors, *said]), "")


async def probe(case: Case, on_record: OnRecord = lambda record: None, **choices: Any) -> Run:
    """The live test: plan it from the host's facts (see `plan` for the choices) and run it.

    Where a run with the ladder fails, or all ranks together are slow, it is narrowed down within the same deadline.
    """
    run = await execute(case, await plan(case, **choices), on_record)
    if "--stages" in run.plan.argv:
        found = await bisect.to_the_end(case, run, launcher(run.plan), on_record)
        run = replace(run, problem=found.say) if found.failing and found.tried else run
    return run
