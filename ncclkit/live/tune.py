"""Tuning advice drawn from what was measured, and sweeps that compare settings with the default.

In a size curve of a collective every call costs a fixed time, and a time per byte once the links are full.  From the
curve follows the message size above which bandwidth is used well, and so the bucket size that a job should send.
"""

from __future__ import annotations

import json
import os
import random
import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from ncclkit.core.bandwidth import Expectation
from ncclkit.core.case import Case
from ncclkit.core.model import Advice, Fact, Measurement, NcclkitError
from ncclkit.core.reference import Judgement, judge
from ncclkit.core.runs import Plan
from ncclkit.core.text import format_bytes, format_time
from ncclkit.core.tuning import Comparison, Setting, Sweep, spread
from ncclkit.live import probe
from ncclkit.live.launch import slurm
from ncclkit.live.options import DEFAULTS, ProbeOptions

MIB = 1 << 20
TINY = 4096
"""Bytes up to which a message is all overhead."""
MOSTLY_DATA = 4
"""Times the cost of an empty call from which on a call's own time is that of its data, not of whoever launched it."""


def size_for(measurements: Sequence[Measurement], share: float) -> float | None:
    """The message size in bytes from which on the bandwidth is at least this share (0..1) of the largest message's.

    Between two sizes the time is taken to grow evenly.  Needs a message of at most 4 KiB and one of at least 1 MiB;
    None otherwise.
    """
    rows = sorted({m.bytes: _cost(m) for m in measurements}.items())
    if not rows or rows[0][0] > TINY or rows[-1][0] < MIB:
        return None
    wanted = share * rows[-1][0] / rows[-1][1]
    for (small, quick), (large, slow) in reversed([*pairwise(rows)]):
        if small / quick < wanted:  # and the larger one reaches it
            each = (slow - quick) / (large - small)
            return wanted * (quick - small * each) / (1 - wanted * each)
    return rows[0][0]


def _cost(m: Measurement) -> float:
    """Microseconds of a call without what Python takes to launch it, where a graph shows that.

    A training job launches ahead of its GPU.
    """
    return m.time_us if m.graph_us is None else m.graph_us


def advise(measurements: Sequence[Measurement], expectation: Expectation | None = None) -> list[Advice]:
    """Advice from a sweep: what to set and what to look into, with this machine's own numbers.

    measurements: one all_reduce size curve; expectation: the busbw that this topology should give.
    """
    if all(m.ranks == 1 for m in measurements):
        return []  # nothing travels, so nothing can be advised
    advice = _bucket(measurements)
    if judgement := judge(measurements, expectation):
        advice.append(_ratio(judgement))
    advice += [_jitter(m) for m in _jittery(measurements)[:1]]
    return advice


def _bucket(measurements: Sequence[Measurement]) -> list[Advice]:
    size = size_for(measurements, 0.8)
    if size is None:
        return []
    cap = max(1, min(512, round(size / MIB)))
    empty = [m for m in measurements if m.bytes <= TINY]
    cost, launched = statistics.median(map(_cost, empty)), _launch(measurements)
    largest = max(measurements, key=lambda m: m.bytes)
    speed, slow = largest.bytes / _cost(largest) / 1e3, launched > 1.5 * cost
    advice = Advice(
        do=f"Send gradients in buckets of at least {cap} MiB; DDP's default is 25 MiB"
        + (", which is enough here." if cap <= 25 else "."),
        code="" if cap <= 25 else f"DistributedDataParallel(model, bucket_cap_mb={cap})",
        why=f"One all_reduce costs {format_time(cost)} before the first byte moves"
        + (f" (and Python {format_time(launched)} to launch it, which a job does ahead of its GPU)" if slow else "")
        + f"; {format_bytes(size)} reach 80 % of the {speed:.2f} GB/s of {format_bytes(largest.bytes)}.",
        check="Step time with the new bucket size, measured in pairs against the old one.",
        risk="Larger buckets overlap less with the backward pass and hold more memory.",
    )
    return [advice]


def _ratio(judgement: Judgement) -> Advice:
    if not judgement.low:
        return Advice(
            do="Leave NCCL's variables alone: the path is used well.",
            why=f"{judgement.summary} {judgement.bound}",
            check="Repeat the live test after every change of driver, container or NCCL.",
        )
    return Advice(
        do="Look for the reason before tuning: this path gives clearly less than it should.",
        why=f"{judgement.summary} {judgement.bound}",
        command="ncclkit diagnose <case folder>",
        check="The ratio of a repeated live test.",
        risk="Variables copied from elsewhere may hide the reason.",
    )


def _launch(measurements: Sequence[Measurement]) -> float:
    """Microseconds of a call that carries next to nothing, launched one by one; 0 where none was measured."""
    return statistics.median([m.time_us for m in measurements if m.bytes <= TINY] or [0.0])


def _jittery(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Messages of 1 MiB and more whose p99 is over twice the median, worst first.

    Where launching takes much of the time a single call is no measure of the way: it waits for Python.
    """
    least = MOSTLY_DATA * _launch(measurements)
    long = [m for m in measurements if m.bytes >= MIB and m.time_us >= least]
    bad = [m for m in long if (m.p99_us or 0.0) > 2 * m.time_us]
    return sorted(bad, key=lambda m: -(m.p99_us or 0.0) / m.time_us)


def _jitter(m: Measurement) -> Advice:
    tail = m.p99_us or 0.0
    return Advice(
        do="Find what else runs on these cores or links before comparing settings.",
        why=f"At {format_bytes(m.bytes)} the slowest {'calls' if m.singles else 'repeats'} take "
        f"{tail / m.time_us:.1f} times the median ({format_time(tail)} against {format_time(m.time_us)}).",
        command="ncclkit inspect",
        check="p99 below twice the median in a repeated live test.",
    )


OnRecord = Callable[[dict[str, Any]], object]
Key = tuple[int, str, int]
"""A setting by its number (from 1; 0 and `ALONE` are the default), the collective, the size in bytes."""
ALONE = -1
"""Number of the default in jobs of its own."""
CONTROLS = (0, -2, -3)
"""Numbers of the default in a job that it shares: groups made first, in the middle and last, as where a group stands
among others can cost 2 % of a small call."""
ROUNDS, DECIDING, JOBS = 6, 16, 8
"""Rounds that choose, rounds that decide, and jobs of each setting that a process keeps for its life."""
SIZES = {"nccl": (8, 4096, 65536, MIB, 16 * MIB, 64 * MIB, 256 * MIB), "gloo": (8, 4096, 65536, MIB, 4 * MIB)}
INHERITED = re.compile(r"(?:NCCL|TORCH_NCCL|GLOO)_\w+")
NO_SETTING = re.compile(
    r"NCCL_(?:DEBUG\w*|HOSTID|COMM_ID|CONF_FILE|TOPO_DUMP_FILE|GRAPH_DUMP_FILE|RAS_\w+|VERSION)"
    r"|TORCH_NCCL_(?:TRACE|DUMP|DEBUG|DESYNC|HEARTBEAT)\w*"
)
"""Variables that say how much is written, or who meets whom."""


async def sweep(
    case: Case,
    settings: Sequence[Setting] = (),
    options: ProbeOptions = DEFAULTS,
    sizes: Sequence[int] = (),
    inherited: bool = False,
    on_record: OnRecord = lambda record: None,
) -> Sweep:
    """Compare settings with the default: those that are named, or those that this hardware can have.

    sizes: of the messages, in bytes; inherited: compare each variable of NCCL and gloo that this environment sets with
    its absence.  Settings that NCCL reads for each communicator share one job; the others get jobs of their own, in
    turn with the default.  Raises NcclkitError for a variable that the backend does not read, and for a job that fails.
    """
    began = time.monotonic()
    plan = await probe.plan(case, options)
    cleared = inherited_variables(os.environ) if inherited else {}
    if inherited and not cleared:
        raise NcclkitError("No variable of NCCL or gloo is set here, so none can cost anything.")
    wanted = [Setting({name: value}) for name, value in cleared.items()] or list(settings)
    wanted = wanted or candidates(case.facts, plan)
    _refuse_foreign(wanted, plan.backend)
    steps = tuple(sizes) or tuple(size for size in SIZES[plan.backend] if size <= (options.max_bytes or size))
    base = replace(plan, name="tune", sizes=steps, unset=tuple(cleared))
    together = {n: one for n, one in enumerate(wanted, 1) if one.per_communicator and plan.backend == "nccl"}
    apart = {n: one for n, one in enumerate(wanted, 1) if n not in together}
    made = Measured(frozenset(apart))
    if together:
        await _together(case, base, together, bool(settings) or inherited, made, on_record)
    if apart:
        await _apart(case, base, apart, made, on_record)
    hosts = max(1, slurm.nodes()) * plan.simulate_hosts
    names = {str(wanted[number - 1]): why for number, why in made.refused.items() if number > 0}
    decided, chose = made.compared(made.decided, wanted), made.compared(made.chose, wanted)
    seconds = time.monotonic() - began
    return Sweep(plan.backend, plan.ranks, hosts, decided, chose, names, seconds, tuple(cleared))


def inherited_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of NCCL and gloo in an environment that may change how fast it is."""
    found = {name: value for name, value in environ.items() if INHERITED.fullmatch(name)}
    return {name: value for name, value in sorted(found.items()) if not NO_SETTING.fullmatch(name)}


def _refuse_foreign(settings: Iterable[Setting], backend: str) -> None:
    """Raises NcclkitError for variables that the backend of the run never reads."""
    other = {"gloo": "NCCL_", "nccl": "GLOO_"}[backend]
    names = [name for one in settings for name in one.env if name.removeprefix("TORCH_").startswith(other)]
    if names or (backend == "gloo" and any(one.config for one in settings)):
        what = names[0] if names else "A number of channels"
        need = "NCCL, so GPUs" if backend == "gloo" else "gloo"
        raise NcclkitError(f"{what} changes nothing over {backend}, which this run uses; it needs {need}.")


def candidates(facts: Sequence[Fact], plan: Plan) -> list[Setting]:
    """The settings that may be worth something on this hardware, by what it has."""
    values = {fact.name: fact.value for fact in reversed(facts) if fact.value is not None}
    if plan.backend == "gloo":
        cores = len(os.sched_getaffinity(0))
        threads = sorted({1, max(1, cores // plan.ranks)})
        return [Setting({"OMP_NUM_THREADS": str(count)}, risk="a data loader may want more") for count in threads]
    several = slurm.nodes() > 1 or plan.simulate_hosts > 1
    made = [Setting({"NCCL_ALGO": a, "NCCL_PROTO": p}) for a in ("Ring", "Tree") for p in ("LL", "LL128", "Simple")]
    made += [Setting({"NCCL_PROTO": protocol}) for protocol in ("LL", "LL128", "Simple")]
    taken = "takes more of the GPU's SMs from the computation beside it"
    made += [Setting(config={"min_ctas": n, "max_ctas": n}, risk=taken) for n in (1, 2, 4, 8, 16, 24, 32)]
    made += [Setting({"NCCL_BUFFSIZE": str(size)}) for size in (MIB, 8 * MIB, 16 * MIB)]
    made += [Setting({"NCCL_NTHREADS": count}) for count in ("256", "512")]
    ports = [row for row in values.get("net.rdma", ()) or () if isinstance(row, Mapping)]
    if several and ports:
        made += [Setting({"NCCL_IB_QPS_PER_CONNECTION": count}) for count in ("2", "4")]
    elif several:
        made += [Setting({"NCCL_SOCKET_NTHREADS": t, "NCCL_NSOCKS_PERTHREAD": s}) for t, s in (("2", "2"), ("4", "4"))]
    return made


@dataclass(frozen=True)
class Measured:
    """Microseconds of the rounds that chose, and of those that decided."""

    apart: frozenset[int]
    """Settings that had jobs of their own."""
    chose: dict[Key, list[float]] = field(default_factory=dict)
    decided: dict[Key, list[float]] = field(default_factory=dict)
    wrong: dict[Key, int] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)

    def take(self, record: Mapping[str, Any], numbers: Sequence[int]) -> None:
        """Keep a record of a job with these settings; of one with a single setting only the median of its rounds."""
        if record["kind"] == "sweep.refused":
            self.refused.setdefault(numbers[record["setting"]], str(record["problem"]))
        elif record["kind"] == "sweep":
            key = numbers[record["setting"]], str(record["op"]), int(record["bytes"])
            times = record["times_us"] if len(numbers) > 1 else [statistics.median(record["times_us"])]
            self.wrong[key] = max(self.wrong.get(key, 0), int(record["wrong"]))
            if record["phase"] == "choose":
                self.chose.setdefault(key, []).extend(times)
            if record["phase"] == "decide" or len(numbers) == 1:
                self.decided.setdefault(key, []).extend(times)

    def compared(self, times: Mapping[Key, Sequence[float]], settings: Sequence[Setting]) -> tuple[Comparison, ...]:
        """Each setting with the default of the same rounds, by collective and size."""
        keys = sorted((key for key in times if key[0] > 0), key=lambda key: (key[1], key[2], key[0]))
        return tuple(self._comparison(key, times, settings[key[0] - 1], len(keys)) for key in keys)

    def _comparison(self, key: Key, times: Mapping[Key, Sequence[float]], setting: Setting, among: int) -> Comparison:
        number, op, size = key
        defaults = [(ALONE, op, size)] if number in self.apart else [(control, op, size) for control in CONTROLS]
        controls = [times[each] for each in defaults if each in times]
        # one of them in turn: a mean of three is hit by an outlier more often than the one time it is compared with
        usual = tuple(laps[turn % len(laps)] for turn, laps in enumerate(zip(*controls, strict=True)))
        wrong = self.wrong.get(key, 0)
        return Comparison(setting, op, size, usual, tuple(times[key]), among, wrong, spread(controls))


async def _together(
    case: Case, base: Plan, settings: Mapping[int, Setting], every: bool, made: Measured, on_record: OnRecord
) -> None:
    """One job with a process group for each setting; every: decide on those that look slower, too."""
    first, *others = CONTROLS
    half, numbers = len(settings) // 2, list(settings)
    order = [first, *numbers[:half], others[0], *numbers[half:], others[1]]
    none = Setting()
    told = [{"env": dict(one.env), "config": dict(one.config)} for one in (settings.get(n, none) for n in order)]
    controls = ",".join(str(place) for place, number in enumerate(order) if number in CONTROLS)
    words = ["--settings", json.dumps(told), "--controls", controls, "--repeats", str(ROUNDS)]
    await _job(case, base, [*words, "--decide", str(DECIDING), *["--all"] * every], order, made, on_record)


async def _apart(case: Case, base: Plan, settings: Mapping[int, Setting], made: Measured, on_record: OnRecord) -> None:
    """Jobs of the default and of each setting in turn, in an order that is shuffled for each turn."""
    order = random.Random(0)
    for _ in range(JOBS):
        turn = [(ALONE, Setting()), *settings.items()]
        order.shuffle(turn)
        for number, setting in turn:
            plan = replace(base, env={**base.env, **setting.env})
            await _job(case, plan, ["--repeats", str(ROUNDS)], [number], made, on_record)


async def _job(
    case: Case, plan: Plan, words: Sequence[str], numbers: Sequence[int], made: Measured, on_record: OnRecord
) -> None:
    """One job of the sweep program; NcclkitError where it fails."""

    def keep(record: dict[str, Any]) -> None:
        made.take(record, numbers)
        on_record(record)

    argv = ["sweep", "--backend", plan.backend, "--ops", ",".join(plan.ops), "--sizes", ",".join(map(str, plan.sizes))]
    argv += ["--timeout", f"{plan.deadline / 2:.0f}", *words]
    if plan.simulate_hosts > 1:
        argv += ["--simulate-hosts", str(plan.simulate_hosts)]
    run = await probe.execute(case, replace(plan, argv=tuple(argv)), keep)
    if run.reason != "done":
        raise NcclkitError(f"The sweep stopped: {run.summary} See {run.folder}.")
