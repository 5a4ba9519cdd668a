"""Tuning advice drawn from what was measured, and sweeps.

A sweep compares settings with the default.  In a size curve of a collective every call costs a
fixed time, and a time per byte once the links are full.  From the curve follows the message size
above which bandwidth is used well, and so the bucket size that a job should send.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import msgspec

from ncclkit.agent.facts.machine import Machine, Unread
from ncclkit.agent.facts.network import gloo_default
from ncclkit.agent.run.sweep import KEPT, PROMISING
from ncclkit.analysis.message_sizes import Calls, buckets_of, heaviest, message_sizes
from ncclkit.core.bandwidth import Expectation, Judgement, expect, judge_curve
from ncclkit.core.case import Case
from ncclkit.core.model import Advice, Fact, Measurement, NcclkitError, to_json
from ncclkit.core.protection import (
    MULTICAST,
    enables_multicast,
    left_in_words,
    multicast_is_off,
    protecting,
    protects,
)
from ncclkit.core.runs import Plan
from ncclkit.core.storage import content, write
from ncclkit.core.text import format_bytes, format_time, percent, plural
from ncclkit.core.text import op as collective_name
from ncclkit.core.tuning import (
    BESIDE,
    LEAST_ROUNDS,
    Comparison,
    Setting,
    Sweep,
    config_files,
    equal_to_default,
    noise_of,
    spread,
    within_links,
    without_noise,
)
from ncclkit.core.tuning import DEFAULTS as DEFAULT_VALUES
from ncclkit.evidence.logs import read_logs
from ncclkit.live import probe
from ncclkit.live.launch import launchers
from ncclkit.live.launch.base import OnRecord
from ncclkit.live.options import ProbeOptions
from ncclkit.live.sweep_plan import CHOOSING as CHOOSING
from ncclkit.live.sweep_plan import JOBS as JOBS
from ncclkit.live.sweep_plan import SweepPlan, pace_in_words

MIB = 1 << 20
TINY = 4096
"""Bytes up to which a message is all overhead."""
MOSTLY_DATA = 4
"""Times the cost of an empty call from which on a call's own time is that of its data."""


def size_for(measurements: Sequence[Measurement], share: float) -> float | None:
    """The message size in bytes from which on bandwidth is well used.

    It is then at least this `share` (0..1) of the largest message's.  Between two sizes the time is
    taken to grow evenly.  Needs a message of at most 4 KiB and one of at least 1 MiB; None
    otherwise.
    """
    rows = sorted({m.bytes: _cost(m) for m in measurements}.items())
    if not rows:
        return None
    smallest = rows[0][0]
    largest, longest = rows[-1]
    if smallest > TINY or largest < MIB:
        return None
    wanted = share * largest / longest
    # from the largest down: beyond this crossing every size keeps the share
    for (small, quick), (large, slow) in reversed([*pairwise(rows)]):
        if small / quick < wanted:  # and the larger one reaches it
            each = (slow - quick) / (large - small)
            fixed = quick - small * each
            return wanted * fixed / (1 - wanted * each)
    return smallest


def _cost(m: Measurement) -> float:
    """Microseconds of a call without what Python takes to launch it.

    It is known where a graph shows that.  A training job launches ahead of its GPU.
    """
    if m.graph_us is None:
        return m.time_us
    return m.graph_us


def advise(
    measurements: Sequence[Measurement], expectation: Expectation | None = None
) -> list[Advice]:
    """Advice from a sweep, with this machine's own numbers.

    It says what to set and what to look into.  `measurements` are one all_reduce size curve;
    `expectation` is the busbw that this topology should give.
    """
    if all(m.ranks == 1 for m in measurements):
        return []  # nothing travels, so nothing can be advised
    advice = _bucket(measurements)
    judgement = judge_curve(measurements, expectation)
    if judgement:
        advice.append(_ratio(judgement))
    advice += [_jitter(m) for m in _jittery(measurements)[:1]]
    return advice


def _bucket(measurements: Sequence[Measurement]) -> list[Advice]:
    size = size_for(measurements, 0.8)
    if size is None:
        return []
    cap = max(1, min(512, round(size / MIB)))
    empty = [m for m in measurements if m.bytes <= TINY]
    cost = statistics.median(map(_cost, empty))
    launched = _launch(measurements)
    largest = max(measurements, key=lambda m: m.bytes)
    speed = largest.bytes / _cost(largest) / 1e3
    slow = launched > 1.5 * cost
    advice = Advice(
        do=f"Send gradients in buckets of at least {cap} MiB; DDP's default is 25 MiB"
        + (", which is enough here." if cap <= 25 else "."),
        code="" if cap <= 25 else f"DistributedDataParallel(model, bucket_cap_mb={cap})",
        why=f"One all_reduce costs {format_time(cost)} before the first byte moves"
        + (
            f" (and Python {format_time(launched)} to launch it, which a job does ahead of its GPU)"
            if slow
            else ""
        )
        + f"; {format_bytes(size)} reach 80 % of the {speed:.2f} GB/s of"
        f" {format_bytes(largest.bytes)}.",
        check="Step time with the new bucket size, measured in pairs against the old one.",
        risk="Larger buckets overlap less with the backward pass and hold more memory.",
    )
    return [advice]


def _ratio(judgement: Judgement) -> Advice:
    why = f"{judgement.summary} {judgement.bound}"
    repeat = "Repeat the live test after every change of driver, container or NCCL."
    if judgement.used_well:
        return Advice("Leave NCCL's variables alone: the path is used well.", why=why, check=repeat)
    if not judgement.low:
        return Advice(_undecided(judgement), why=why, check=repeat)
    return Advice(
        do="Look for the reason before tuning: this path gives clearly less than it should.",
        why=why,
        command="ncclkit diagnose <case folder>",
        check="The ratio of a repeated live test.",
        risk="Variables copied from elsewhere may hide the reason.",
    )


def _undecided(judgement: Judgement) -> str:
    """What to do where a figure is neither low nor what is usual."""
    if judgement.exceeds:
        return "Compare with another test of this host: there is no reference for this figure."
    if not judgement.large:
        largest = format_bytes(judgement.best.bytes)
        return f"Measure larger messages: those of {largest} do not show what the path gives."
    usual = percent(judgement.usual)
    return (
        f"Compare with `ncclkit tune`: {percent(judgement.ratio)} is a little less than the usual"
        f" {usual} or more."
    )


def _launch(measurements: Sequence[Measurement]) -> float:
    """Microseconds of a call that carries next to nothing, launched alone; 0 if not measured."""
    return statistics.median([m.time_us for m in measurements if m.bytes <= TINY] or [0.0])


def _jittery(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Messages from 1 MiB up whose p99 exceeds twice the median, worst first.

    Where launching takes much of the time a single call is no measure of the way: it waits for
    Python.
    """
    least = MOSTLY_DATA * _launch(measurements)
    long = [m for m in measurements if m.bytes >= MIB and m.time_us >= least]
    bad = [m for m in long if (m.p99_us or 0.0) > 2 * m.time_us]
    return sorted(bad, key=lambda m: -(m.p99_us or 0.0) / m.time_us)


def _jitter(m: Measurement) -> Advice:
    tail = m.p99_us or 0.0
    return Advice(
        do="Find what else runs on these cores or links before comparing settings.",
        why=(
            f"At {format_bytes(m.bytes)} the slowest {'calls' if m.singles else 'repeats'} take"
            f" {tail / m.time_us:.1f} times the median ({format_time(tail)} against"
            f" {format_time(m.time_us)})."
        ),
        command="ncclkit inspect",
        check="p99 below twice the median in a repeated live test.",
    )


Key = tuple[int, str, int]
"""A setting's number, the collective, and the bytes.

Numbers count from 1; 0 and `ALONE` are the default.
"""
ALONE = -1
"""Number of the default in jobs of its own."""
CONTROLS = (0, -2, -3)
"""Numbers of the default in a job that it shares.

They are groups made first, in the middle and last, as where a group stands among others can cost 2
% of a small call.
"""
ROUNDS, DECIDING = 6, 16
"""Rounds that choose, and rounds that decide, of settings that share a job."""
CLOCKS_DIFFER = 60.0
"""Seconds by which the clock of a file server may differ from ours."""
DEFAULTS = ProbeOptions(op="all")
"""The collectives that are measured by default.

They are all; where the messages of a job are known, those that it sends.
"""
GRACE = 6.0
"""Seconds after its budget in which a job may end by itself."""
ANSWER = 2.0
"""Seconds of a budget that are kept for ending the last job, and for the answer."""
SLOW_START, MOST_KEPT = 0.3, 0.3
"""What else is kept, as a part of what the start took.

The start is what was spent before the first job.  The second is the largest part of the budget that
is kept.
"""
TIME_UP = ("Time was up", "No time was left", "There was no time")
"""How a sentence begins that says what a budget did not suffice for."""
NAMED = 6
"""Settings that a sentence names."""
CONNECT = 10.0
"""Least seconds in which the ranks of a setting have to connect; a third of the budget where that
is more."""
MOST_STRUCK = 4
"""Settings that may end the job they share before it is given up."""
SIZES = {
    "nccl": (8, 4096, 65536, MIB, 16 * MIB, 64 * MIB, 256 * MIB),
    "gloo": (8, 4096, 65536, MIB, 4 * MIB),
}
PROTOCOLS = ("LL", "LL128", "Simple")
CHANNELS = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 48)
"""Channels of a communicator; descent meets some of them."""
MOST_INTERFACES = 3
MOST_ASKED = 4
"""Times the trials that Optuna is asked, as it may name again what is known."""
HOST_FILE = "/etc/nccl.conf"
"""NCCL reads it whatever NCCL_CONF_FILE says."""
MODEL, MOST_SIZES = ".safetensors", 7
"""How the file of a model ends, and how many sizes of a job are measured."""
INHERITED = re.compile(r"(?:NCCL|TORCH_NCCL|GLOO)_\w+")
NO_SETTING = re.compile(
    r"NCCL_(?:DEBUG\w*|HOSTID|COMM_ID|CONF_FILE|TOPO_DUMP_FILE|GRAPH_DUMP_FILE|RAS_\w+|VERSION)"
    r"|TORCH_NCCL_(?:TRACE|DUMP|DEBUG|DESYNC|HEARTBEAT)\w*"
)
"""Variables that say how much is written, or who meets whom."""
ENFORCED = re.compile(r"\[enforce fail at [^\]]*\] (?:[^.]*\. )?")
"""Where a line of gloo's source lay on the machine that built it, and its condition."""
CHOOSES = re.compile(r"NCCL_(?:ALGO|PROTO|TUNER\w*|\w*NCHANNELS|\w*CTAS)")
"""Variables that choose in NCCL's place."""


OnSweep = Callable[[Sweep], None]


async def sweep(
    case: Case,
    settings: Sequence[Setting] = (),
    options: ProbeOptions = DEFAULTS,
    sizes: Sequence[int] = (),
    inherited: bool = False,
    on_record: OnRecord = lambda record: None,
    job: str = "",
    budget: float = 0.0,
    on_sweep: OnSweep = lambda found: None,
) -> Sweep:
    """Compare settings with the default.

    They are those that are named, or those that this hardware can have.  `sizes` are those of the
    messages, in bytes; `inherited`: compare each variable of NCCL and gloo that this environment
    sets, or those of them that `settings` name, with its absence; `job` is a case folder, a log,
    dumps or a model (see `calls_of`), whose messages are measured, and whose variables are those
    that are inherited; `budget` is the seconds at most (0: those of `BUDGETS`): what they do not
    suffice for is left out, and said; `on_sweep` gets what is known, whenever that is more, and
    also when the sweep is cancelled.

    Settings that are read for each communicator share one job; the others get jobs of their own, in
    turn with the default.  Raises NcclkitError for a variable that the backend does not read, and
    for a job that fails before anything was measured.
    """
    began = time.monotonic()
    if not job or job.endswith(MODEL):
        logs = Case()
    else:
        logs = _read(job)
    here = not (logs.events or logs.facts)
    calls: Calls = {}
    if job:
        calls = calls_of(job, logs)
    if (inherited and here) or not (settings or inherited or case.facts):
        # what the hardware has, and what nccl.conf sets now
        await probe.inspect_hosts(case, options.python)
    made = Measured()
    plan = await _sized(case, options, calls, sizes)
    if plan.ranks == 1:
        return made.sweep(plan, [], 0.0, (), calls)
    wanted, own, cleared = _asked_settings(case, logs, plan, settings, inherited, made)
    env = {**plan.env}
    if cleared:
        env |= _without_file(case, cleared)
    base = replace(plan, unset=tuple(cleared), env=env)
    await _learn_defaults(case, base, wanted, made)
    whole = WholeSweep(
        case,
        base,
        made,
        wanted,
        calls,
        on_record,
        on_sweep,
        began,
    )
    return await whole.measure(bool(settings) or inherited, budget, own)


def _asked_settings(
    case: Case,
    logs: Case,
    plan: Plan,
    settings: Sequence[Setting],
    inherited: bool,
    made: Measured,
) -> tuple[list[Setting], Choices, dict[str, str]]:
    """The settings of a sweep, what NCCL takes by itself, and the variables that are taken away."""
    present = _present_variables(case, logs)
    made.note(left_in_words(_left_alone(present, settings, inherited)))
    cleared = {}
    if inherited:
        cleared = _inherited(case, logs, settings, made.notes)
    wanted = list(settings)
    if cleared:
        wanted = [Setting({name: value}) for name, value in cleared.items()]
    wanted = _without_multicast(wanted, {**present, **_present_variables(case, Case())})
    own: Choices = {}
    if not wanted:
        wanted, own = _different(case, plan)
    _refuse_foreign(wanted, plan.backend)
    return wanted, own, cleared


class WholeSweep:
    """One sweep from its plan to its answer, which is kept whatever ends it."""

    def __init__(
        self,
        case: Case,
        base: Plan,
        made: Measured,
        wanted: list[Setting],
        calls: Calls,
        on_record: OnRecord,
        on_sweep: OnSweep,
        began: float,
    ) -> None:
        """Prepare a sweep.

        `wanted` are the settings; `base` is each job before its setting; `began` is monotonic.
        """
        self.case = case
        self.base = base
        self.made = made
        self.wanted = wanted
        self.calls = calls
        self.on_record = on_record
        self.on_sweep = on_sweep
        self.began = began
        self.combined: list[Setting] = []
        """Combinations of settings that need jobs of their own."""
        self.pairs = len(base.ops) * len(base.sizes)
        self.shares = False
        """Whether settings share a job, which measures pair after pair."""

    async def measure(self, every: bool, budget: float, own: Choices) -> Sweep:
        """Run the jobs.

        What was measured is kept when they fail, and when they are cancelled.  `every`: decide on
        each setting; `budget` is in seconds, 0 for what is usual.
        """
        try:
            await self._run_jobs(every, budget, own)
        except NcclkitError as error:
            if not self.made.times:
                raise
            return self._finish(str(error).rstrip("."))
        except BaseException:
            # cancelled, or ended by a signal
            self._finish("it was interrupted")
            raise
        return self._finish("")

    async def _run_jobs(self, every: bool, budget: float, own: Choices) -> None:
        together: dict[int, Setting] = {}
        alone: dict[int, Setting] = {}
        for number, one in enumerate(self.wanted, 1):
            if one.per_communicator:
                together[number] = one
            else:
                alone[number] = one
        self.made.own_jobs.update(alone)
        self.shares = bool(together)
        backend = self.base.backend
        planned = SweepPlan(
            backend,
            shared=len(together),
            own=len(alone),
            pairs=self.pairs,
            every=every,
            asked=budget,
        )
        self.on_record({"kind": "sweep.say", "say": planned.words})
        # a busy host that was slow to read the facts is slow to end a job, too
        spent = time.monotonic() - self.began
        kept = min(ANSWER + SLOW_START * spent, planned.budget * MOST_KEPT)
        ends = self.began + planned.budget - kept
        jobs = SweepJobs(
            self.case,
            self.base,
            self.made,
            self.on_record,
            ends,
            self._tell,
        )
        if together:
            await jobs.together(together, every, planned.budget * planned.shared_part, own)
        left = ends - time.monotonic()
        if alone and not planned.fits_own_jobs(left):
            self.made.notes.append(_no_time_for(alone.values(), planned))
        elif alone and every:
            await jobs.decide(alone, ends)
        elif alone:
            await jobs.choose(alone, len(self.wanted) + 1, ends, self.combined)

    def _tell(self) -> None:
        """Show what is known by now."""
        if self.made.times:
            self.on_sweep(self._known())

    def _known(self) -> Sweep:
        settings = [*self.wanted, *self.combined]
        seconds = time.monotonic() - self.began
        return self.made.sweep(self.base, settings, seconds, self.base.unset, self.calls)

    def _finish(self, reason: str) -> Sweep:
        """Keep what is known in the case, and show it.

        `reason` is why it is incomplete.
        """
        found = self._known()
        if reason:
            found = replace(found, unfinished=self._unfinished(reason))
        if self.made.times:
            found = _keep_sweep(self.case, found)
            self.on_sweep(found)
        return found

    def _unfinished(self, reason: str) -> str:
        """``Incomplete: it was interrupted. Not measured: 12 of 35 pairs …``."""
        missing = []
        left = self.pairs - len(self.made.pairs)
        if left and self.shares:
            missing.append(f"{left} of {plural(self.pairs, 'pair')} of collective and size")
        known = set()
        for times in self.made.times.values():
            known |= {number for number, _, _ in times}
        known |= self.made.refused.keys() | self.made.same.keys()
        untried = []
        for number, one in enumerate(self.wanted, 1):
            if number not in known:
                untried.append(str(one))
        if untried:
            missing.append(f"{plural(len(untried), 'setting')} ({', '.join(untried[:NAMED])})")
        if not missing:
            missing.append("the last rounds")
        return f"Incomplete: {reason}. Not measured: {', and '.join(missing)}."


def _no_time_for(settings: Iterable[Setting], planned: SweepPlan) -> str:
    """Which settings no time was left for, and how much would suffice."""
    named = [str(one) for one in settings]
    shown = ", ".join(named[:NAMED])
    if len(named) > NAMED:
        shown = f"{shown}, …"
    # whole minutes
    more = 60 * math.ceil((planned.seconds + 1) / 60)
    return (
        f"No time was left for {plural(len(named), 'setting')} that a process keeps for its life"
        f" ({shown}); --budget {more} may suffice."
    )


def _keep_sweep(case: Case, found: Sweep) -> Sweep:
    """Write a sweep, and the files that carry its answer, to a folder of the case."""
    if case.path is None:
        return found
    folder = case.new_folder("sweeps", "tune")
    found = replace(found, folder=str(folder))
    with probe.writing(folder):
        write(folder / "sweep.json", to_json(found) + "\n")
        for name, file in config_files(found).items():
            write(folder / name, file.text)
    return found


def last_sweep(case: Case, since: float) -> Sweep | None:
    """The newest sweep that a case keeps, where it was written after a moment; None for none."""
    for folder in reversed(case.folders("sweeps")):
        path = folder / "sweep.json"
        # clocks of nodes differ by some seconds
        if not path.is_file() or path.stat().st_mtime < since - CLOCKS_DIFFER:
            continue
        try:
            return msgspec.json.decode(content(path), type=Sweep)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NcclkitError(f"{path} holds no sweep: {error}.") from error
    return None


async def _sized(case: Case, options: ProbeOptions, calls: Calls, sizes: Sequence[int]) -> Plan:
    """The plan of a sweep.

    It has the collectives and sizes that are named, else those of the job's calls, else all.
    """
    named = {call: count for call, count in calls.items() if call[0] in options.ops}
    heavy = heaviest(named, MOST_SIZES)
    if heavy:
        options = replace(options, op=",".join(heavy))
    plan = await probe.plan_test(case, options, "tune")
    usual = [size for size in SIZES[plan.backend] if size <= (options.max_bytes or size)]
    of_job = sorted(set().union(*heavy.values()))
    steps = sizes or of_job or usual
    return replace(plan, name="tune", sizes=tuple(steps))


async def _learn_defaults(
    case: Case, base: Plan, wanted: Sequence[Setting], made: Measured
) -> None:
    """Find the settings that are the default under another name, and what the links allow."""
    plain = await _plain_variables(case, base)
    reasons = {
        number: equal_to_default(one, plain, launchers.hosts_of_plan(base))
        for number, one in enumerate(wanted, 1)
    }
    made.same.update({number: why for number, why in reasons.items() if why})
    made.bounds.update(_link_bounds(case, base))


async def _plain_variables(case: Case, base: Plan) -> dict[str, str]:
    """The variables that the default of a sweep has.

    With them comes what is known of those that it has not.
    """
    facts = {fact.name.removeprefix("env."): fact.value for fact in case.facts_of("env.")}
    # also in nccl.conf
    configured = {name: value for name, value in facts.items() if isinstance(value, str)}
    inherited = {
        name: value
        for name, value in {**configured, **os.environ}.items()
        if name not in base.unset
    }
    known = {**(DEFAULT_VALUES if case.facts else {}), **inherited, **base.env}
    if base.backend == "gloo" and not known.get("GLOO_SOCKET_IFNAME"):
        known["GLOO_SOCKET_IFNAME"] = await _gloo_interface(case, base)
    return known


def _link_bounds(case: Case, base: Plan) -> dict[str, Expectation]:
    """What PCIe or the network allows each collective.

    What NVLink allows, a switch that adds may exceed.
    """
    hosts = launchers.hosts_of_plan(base)
    bounds = {}
    for op in base.ops:
        bound = expect(op, base.backend, base.ranks, case.facts, hosts, base.sharing)
        if bound.limit in ("pcie", "network"):
            bounds[op] = bound
    return bounds


async def _gloo_interface(case: Case, base: Plan) -> str:
    """The interface that gloo takes without the variable.

    Every host must take the same; it is empty where nobody knows.
    """
    if launchers.hosts_of_plan(base) == 1:
        try:
            return await asyncio.to_thread(gloo_default, Machine())
        except Unread:
            return ""
    names = {str(fact.value) for fact in case.facts_of("net.gloo.interface") if fact.value}
    named = "GLOO_SOCKET_IFNAME" in os.environ  # then the facts say what it names
    if len(names) == 1 and not named:
        return names.pop()
    return ""


def _without_file(case: Case, cleared: Mapping[str, str]) -> dict[str, str]:
    """Variables by which NCCL reads no file of its user's, and has what else stands there."""
    kept = {}
    for fact in case.facts_of("env."):
        name = fact.name.removeprefix("env.")
        if not isinstance(fact.value, str) or fact.source == "environment":
            continue
        if name not in cleared and name not in os.environ:
            kept[name] = fact.value
    return {**kept, "NCCL_CONF_FILE": os.devnull}


def _different(case: Case, plan: Plan) -> tuple[list[Setting], Choices]:
    """The candidates that are not what NCCL takes by itself on all sizes.

    With them comes what it takes.
    """
    own = own_choices(case, plan)
    every = len(plan.ops) * len(plan.sizes)
    different = []
    for one in candidates(case.facts, plan):
        same = same_as_own(one, own, plan.ops, plan.sizes)
        if len(same) < every:
            different.append(one)
    return different, own


def calls_of(job: str, logs: Case) -> Calls:
    """(collective, bytes) → calls of a job, by what was read of it.

    Of a safetensors file it is one step of DDP.  Raises NcclkitError where nothing shows a size.
    """
    if job.endswith(MODEL):
        found = buckets_of(Path(job).expanduser())
    else:
        found = message_sizes(logs)
    if not found:
        need = "dumps of the Flight Recorder, Inspector files, or a log with NCCL_DEBUG_SUBSYS=COLL"
        raise NcclkitError(f"{job} does not show the sizes of the job's messages; name {need}.")
    return found


def _read(job: str) -> Case:
    """The case folder `job`, or what the logs, dumps and archives that it names say."""
    folder = Path(job).expanduser()
    if (folder / "case.json").is_file():
        return Case.open(folder, read_only=True)
    return read_logs(job)


def _inherited(
    case: Case, logs: Case, settings: Iterable[Setting] = (), notes: list[str] | None = None
) -> dict[str, str]:
    """Variables whose cost is asked: those of the job's logs.

    Without logs they are those set here, and in nccl.conf.  `settings` name the only ones of
    interest; empty means all; `notes` gets a sentence on those that no job can be without.  Raises
    NcclkitError where there are none.
    """
    here = not (logs.events or logs.facts)
    facts = [fact for fact in (case if here else logs).facts if fact.name.startswith("env.")]
    files = {
        fact.name.removeprefix("env."): fact
        for fact in facts
        if not here or fact.source != "environment"
    }
    logged = {str(event.data.name): str(event.data.value) for event in logs.of("nccl.env")}
    configured = {name: fact.value for name, fact in files.items() if isinstance(fact.value, str)}
    every = inherited_variables({**configured, **(os.environ if here else logged)})
    named = set(_variables_of(settings))
    found = {}
    for name, value in every.items():
        if name in named and name == MULTICAST and protects(name, value):
            raise NcclkitError(NO_MULTICAST)
        if name in named or not (named or protects(name, value)):
            found[name] = value
    fixed = [
        name
        for name in found
        if here and name not in os.environ and files[name].source == HOST_FILE
    ]
    sentence = (
        f"No job here can be without {', '.join(fixed)}: it stands in {HOST_FILE}; comment it out"
        " there."
    )
    if fixed and len(fixed) == len(found):
        raise NcclkitError(sentence)
    if not found:
        what = "No variable of NCCL or gloo"
        if named:
            what = "None of these variables"
        left = left_in_words(protecting(every))
        if left and not named:
            raise NcclkitError(f"{left} No other variable is set there that could cost anything.")
        raise NcclkitError(f"{what} is set there, so none can cost anything.")
    if fixed and notes is not None:
        notes.append(sentence)
    return {name: value for name, value in found.items() if name not in fixed}


NO_MULTICAST = (
    f"NVLink multicast is switched off here ({MULTICAST}=0), and no test switches it on: where its"
    " set-up hangs, the host hangs. Leave this setting out."
)


def _present_variables(case: Case, logs: Case) -> dict[str, str]:
    """The variables of NCCL and gloo that the job of these logs has.

    Without logs they are those here.
    """
    facts = case
    values: dict[str, str] = {}
    if logs.events or logs.facts:
        facts = logs
        for event in logs.of("nccl.env"):
            values[str(event.data.name)] = str(event.data.value)
    for fact in facts.facts_of("env."):
        # what was set when the facts were read need not be now
        if isinstance(fact.value, str) and (facts is logs or fact.source != "environment"):
            values[fact.name.removeprefix("env.")] = fact.value
    if facts is case:
        values |= os.environ
    return inherited_variables(values)


def _left_alone(
    present: Mapping[str, str], settings: Iterable[Setting], inherited: bool
) -> dict[str, str]:
    """What protects something here and is not named.

    A sweep of named settings touches no other.
    """
    named = {name for one in settings for name in (*one.env, *one.without)}
    if named and not inherited:
        return {}
    left = {}
    for name, value in protecting(present).items():
        if name not in named:
            left[name] = value
    return left


def _without_multicast(wanted: list[Setting], present: Mapping[str, str]) -> list[Setting]:
    """Raise NcclkitError for a setting that would use multicast.

    It is raised where multicast is switched off.
    """
    if not multicast_is_off(present):
        return wanted
    for one in wanted:
        if enables_multicast(one.env, one.without):
            raise NcclkitError(NO_MULTICAST)
    return wanted


def inherited_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of NCCL and gloo in an environment that may change how fast it is."""
    found = {}
    for name, value in sorted(environ.items()):
        if INHERITED.fullmatch(name) and not NO_SETTING.fullmatch(name):
            found[name] = value
    return found


def _variables_of(settings: Iterable[Setting]) -> list[str]:
    """The variables that settings set or take away."""
    names: list[str] = []
    for one in settings:
        names += [*one.env, *one.without]
    return names


def _refuse_foreign(settings: Iterable[Setting], backend: str) -> None:
    """Raises NcclkitError for variables that the backend of the run never reads."""
    other = {"gloo": "NCCL_", "nccl": "GLOO_"}[backend]
    names = []
    groups = False
    for one in settings:
        groups = groups or bool(one.config)
        for name in (*one.env, *one.without):
            if name.removeprefix("TORCH_").startswith(other):
                names.append(name)
    if names or (backend == "gloo" and groups):
        what = "A number of channels"
        if names:
            what = names[0]
        need = "gloo"
        if backend == "gloo":
            need = "NCCL, so GPUs"
        raise NcclkitError(
            f"{what} changes nothing over {backend}, which this run uses; it needs {need}."
        )


def candidates(facts: Sequence[Fact], plan: Plan) -> list[Setting]:
    """The settings that may be worth something on this hardware, by what it has."""
    # reversed, so that of several hosts the first one stands
    known = {fact.name: fact.value for fact in reversed(facts) if fact.value is not None}
    if plan.backend == "gloo":
        return _of_gloo(facts, launchers.hosts_of_plan(plan))
    made = []
    for a in "Ring", "Tree":
        for p in PROTOCOLS:
            made.append(Setting({"NCCL_ALGO": a, "NCCL_PROTO": p}))
    made += [Setting({"NCCL_PROTO": protocol}) for protocol in PROTOCOLS]
    if _switched(known):
        made += [Setting({"NCCL_ALGO": "NVLS"}, risk="needs the multicast memory of the NVSwitch")]
    taken = "takes more of the GPU's SMs from the computation beside it"
    made += [
        Setting(config={"min_ctas": n, "max_ctas": n}, risk=taken if n > 16 else "")
        for n in CHANNELS
    ]
    made += [
        Setting({"NCCL_BUFFSIZE": str(size)}, risk=_more_memory(size))
        for size in (MIB, 8 * MIB, 16 * MIB)
    ]
    made += [Setting({"NCCL_NTHREADS": count}) for count in ("256", "512")]
    made += [Setting({"NCCL_GRAPH_REGISTER": "0"}, risk="only where the job captures CUDA graphs")]
    several = (known.get("gpu.count") or plan.ranks) > 1
    if several and not _joined(known) and not _says_of_p2p(known):
        made += [Setting({"NCCL_P2P_LEVEL": level}) for level in ("PXB", "PHB", "SYS")]
    return made + _of_network(known, plan)


Choices = Mapping[tuple[str, int], tuple[str, str, int | None]]
"""(collective, bytes) → algorithm, protocol and channels that NCCL takes by itself."""


def own_choices(case: Case, plan: Plan) -> Choices:
    """What NCCL chose in this case's live tests, by TUNING lines.

    They are tests of so many ranks and hosts.
    """
    hosts = launchers.hosts_of_plan(plan)
    runs = set()
    for row in case.measurements:
        alike = (row.backend, row.ranks, row.hosts) == ("nccl", plan.ranks, hosts)
        # else somebody chose in its place
        free = not any(map(CHOOSES.fullmatch, {**os.environ, **row.env}))
        if row.run and alike and free:
            runs.add(row.run)
    chosen: dict[tuple[str, int], set[tuple[str, str, int | None]]] = {}
    for event in case.of("nccl.tuning"):
        if runs.intersection(Path(event.path).parts) and event.data.op:
            key = collective_name(event.data.op), int(event.data.bytes)
            choice = (
                str(event.data.algo).upper(),
                str(event.data.proto).upper(),
                event.data.channels,
            )
            chosen.setdefault(key, set()).add(choice)
    # where ranks took different ones there is no choice to compare with
    return {key: next(iter(found)) for key, found in chosen.items() if len(found) == 1}


def same_as_own(
    setting: Setting, own: Choices, ops: Sequence[str], sizes: Iterable[int]
) -> list[tuple[str, int]]:
    """The collectives and sizes on which a setting asks for what NCCL takes by itself."""
    # NCCL takes these names in any case
    asked = {name: value.upper() for name, value in setting.env.items()}
    names = asked.keys() | setting.config.keys()
    if (
        not names
        or setting.without
        or not names <= {"NCCL_ALGO", "NCCL_PROTO", "min_ctas", "max_ctas"}
    ):
        return []
    found = []
    for place in product(ops, sizes):
        algo, proto, channels = own.get(place, ("", "", None))
        same = (asked.get("NCCL_ALGO", algo), asked.get("NCCL_PROTO", proto)) == (algo, proto)
        if algo and same and (not setting.channels or setting.channels == channels):
            found.append(place)
    return found


CARRIES: tuple[str, ...] = ("physical", "bridge", "veth", "virtual", "tun")
"""Kinds of interfaces that may carry a job of several hosts; a container's own one is a veth."""


def _of_gloo(facts: Sequence[Fact], hosts: int) -> list[Setting]:
    """Each interface that could carry it on all hosts, once, and twice.

    Gloo makes two threads and a connection for each name.
    """
    kinds = CARRIES
    if hosts < 2:
        kinds = ("loopback", *CARRIES)
    on_host = {}
    for fact in facts:
        if fact.name == "net.interfaces" and isinstance(fact.value, (list, tuple)):
            on_host[fact.host] = _usable_interfaces(fact.value, kinds)
    names: list[str] = []
    for usable in on_host.values():
        names += [name for name in usable if name not in names]
    if hosts > 1:
        names = _connecting(names, facts)
    # a name that one host lacks cannot connect
    names = [name for name in names if all(name in usable for usable in on_host.values())]
    if hosts < 2:
        names = names or ["lo"]
    names = names[:MOST_INTERFACES]
    threads = "a data loader may want these cores"
    once = [Setting({"GLOO_SOCKET_IFNAME": name}) for name in names]
    twice = [Setting({"GLOO_SOCKET_IFNAME": f"{name},{name}"}, risk=threads) for name in names]
    return once + twice


def _connecting(names: Sequence[str], facts: Sequence[Fact]) -> list[str]:
    """The interfaces of which no two hosts have the same address.

    A bridge that each host makes for itself, as libvirt does, joins nobody.
    """
    seen: dict[tuple[str, str], set[str]] = {}
    for fact in facts:
        if fact.name != "net.interfaces" or not isinstance(fact.value, (list, tuple)):
            continue
        for row in fact.value:
            if isinstance(row, Mapping):
                for address in row.get("addresses") or ():
                    seen.setdefault((str(row.get("name")), str(address)), set()).add(fact.host)
    own = {name for (name, _), hosts in seen.items() if len(hosts) > 1}
    return [name for name in names if name not in own]


def _usable_interfaces(rows: Sequence[Any], kinds: Sequence[str]) -> list[str]:
    """Names of the interfaces of one host that are up, have an address and are of these kinds.

    They come in the order of the kinds, as physical ones are the likelier.
    """
    found = []
    for kind in kinds:
        for row in rows:
            is_up = isinstance(row, Mapping) and row.get("state") == "up" and row.get("addresses")
            if is_up and row.get("kind") == kind:
                found.append(str(row.get("name")))
    return found


def _switched(known: Mapping[str, Any]) -> bool:
    """Whether an NVSwitch may add up.

    Every GPU sees every other through as many NVLinks, and nothing forbids it.
    """
    here = {MULTICAST: str(known.get(f"env.{MULTICAST}", ""))}
    allowed = not (multicast_is_off(here) or multicast_is_off(os.environ))
    model = str(known.get("gpu.0.model", ""))
    return (
        allowed
        and _joined(known)
        and any(name in model for name in ("H100", "H200", "B200", "GB200"))
    )


def _says_of_p2p(known: Mapping[str, Any]) -> bool:
    """Whether somebody has set how GPUs copy directly, or that they may not."""
    names = [*os.environ, *(name.removeprefix("env.") for name in known)]
    return any(name.startswith("NCCL_P2P_") for name in names)


def _joined(known: Mapping[str, Any]) -> bool:
    """Whether NVLink joins every pair of GPUs."""
    matrix = known.get("gpu.topology")
    gpus: dict[str, Mapping[str, Any]] = {}
    if isinstance(matrix, Mapping):
        for name, row in matrix.items():
            if name.startswith("GPU") and isinstance(row, Mapping):
                gpus[name] = row
    for name, row in gpus.items():
        for other in gpus:
            if other != name and not str(row.get(other, "")).startswith("NV"):
                return False
    return len(gpus) > 1


def _of_network(known: Mapping[str, Any], plan: Plan) -> list[Setting]:
    """What NCCL can be told of the network between hosts.

    It is queue pairs and traffic class, else sockets and threads.
    """
    if launchers.hosts_of_plan(plan) < 2:
        return []
    if not [row for row in known.get("net.rdma") or () if isinstance(row, Mapping)]:
        pairs = (("1", "4"), ("2", "2"), ("4", "4"))
        return [Setting({"NCCL_SOCKET_NTHREADS": t, "NCCL_NSOCKS_PERTHREAD": s}) for t, s in pairs]
    made = [Setting({"NCCL_IB_QPS_PER_CONNECTION": count}) for count in ("2", "4")]
    made += [Setting({"NCCL_IB_QPS_PER_CONNECTION": "4", "NCCL_IB_SPLIT_DATA_ON_QPS": "1"})]
    return made + [
        Setting(
            {"NCCL_IB_TC": "106"}, risk="only where the switches give this traffic class a queue"
        )
    ]


def _more_memory(size: int) -> str:
    if size > 4 * MIB:
        return f"takes {size // (4 * MIB)} times the memory for NCCL's buffers"
    return ""


@dataclass(frozen=True)
class Measured:
    """Microseconds of the rounds of each phase.

    The phases choose, descend and decide, and measure under computation.
    """

    own_jobs: set[int] = field(default_factory=set)
    """Settings that had jobs of their own."""
    same: dict[int, str] = field(default_factory=dict)
    """Settings that are what the default is, and why: they show how much it differs from itself."""
    times: dict[str, dict[Key, list[float]]] = field(default_factory=dict)
    """Phase → rounds of each setting, collective and size; the default's are their pairs."""
    wrong: dict[Key, int] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    bounds: dict[str, Expectation] = field(default_factory=dict)
    """Collective → what the links allow, where that is a bound."""
    no_step: dict[int, str] = field(default_factory=dict)
    """Setting → why DDP could make no step with it."""
    notes: list[str] = field(default_factory=list)
    """Sentences on what was left out, and why."""
    pairs: set[tuple[str, int]] = field(default_factory=set)
    """Collectives and sizes that were measured to the end."""
    trying: list[int] = field(default_factory=list)
    """The setting that is used for the first time now; empty where none is."""

    def take(self, record: Mapping[str, Any], numbers: Sequence[int]) -> None:
        """Keep a record of a job with these settings.

        Of a job with a single setting it is only the median of its rounds.
        """
        if record["kind"] in ("sweep.refused", "sweep.no_step"):
            if record["kind"] == "sweep.refused":
                problems = self.refused
            else:
                problems = self.no_step
            problem = ENFORCED.sub("", str(record["problem"]))
            problems.setdefault(numbers[record["setting"]], problem)
        elif record["kind"] == "sweep.left":
            self.note_left(int(record["left"]), int(record["of"]))
        elif record["kind"] == "sweep.pair" and len(numbers) > 1:
            self.pairs.add((str(record["op"]), int(record["bytes"])))
        elif record["kind"] == "sweep.trying":
            self.trying.clear()
            if record["setting"] is not None:
                self.trying.append(numbers[record["setting"]])
        elif record["kind"] == "sweep":
            key = numbers[record["setting"]], str(record["op"]), int(record["bytes"])
            self.wrong[key] = max(self.wrong.get(key, 0), int(record["wrong"]))
            if len(numbers) > 1:
                times = record["times_us"]
            else:
                times = [statistics.median(record["times_us"])]
            self.times.setdefault(str(record["phase"]), {}).setdefault(key, []).extend(times)

    def note(self, sentence: str) -> None:
        """Keep a sentence on what was left out; an empty one says nothing."""
        if sentence:
            self.notes.append(sentence)

    def note_left(self, left: int, of: int) -> None:
        """Say once that time was up."""
        said = f"Time was up before {left} of {of} pairs of collective and size; `--budget` gives"
        if left and not any(note.startswith("Time was up") for note in self.notes):
            self.notes.append(f"{said} more.")

    def forget_unfinished(self) -> None:
        """Drop what is known of pairs whose job ended in the middle."""
        for times in self.times.values():
            for key in [key for key in times if key[1:] not in self.pairs]:
                del times[key]

    def sweep(
        self,
        plan: Plan,
        settings: Sequence[Setting],
        seconds: float,
        cleared: tuple[str, ...],
        calls: Calls,
    ) -> Sweep:
        """All of it together."""
        named = {number: str(one) for number, one in enumerate(settings, 1)}
        same = {named[number]: why for number, why in self.same.items()}
        refused = {named[number]: why for number, why in self.refused.items() if number > 0}
        seen: tuple[Comparison, ...] = ()
        for phase in self.chose:
            seen += tuple(self.compared(phase, settings))
        decided = self.compared("decide", settings)
        known = {id(one.setting) for one in seen}
        # named ones with jobs of their own
        seen += tuple(one for one in decided if id(one.setting) not in known)
        beside: tuple[Comparison, ...] = ()
        for name in BESIDE:
            beside += self.compared(name, settings)
        hosts = launchers.hosts_of_plan(plan)
        rows = tuple((op, size, count) for (op, size), count in calls.items())
        notes = tuple(self.notes)
        for number, why in self.no_step.items():
            if number > 0:
                notes += (f"{named[number]} could not be measured in a DDP step: {why}.",)
        controls = tuple(one for one in decided or seen if str(one.setting) in same)
        decided, impossible = within_links(decided, self.bounds, plan.ranks)
        notes += (impossible,) if impossible else ()
        noise = noise_of(controls)
        decided, seen, beside = (
            without_noise((one for one in kind if str(one.setting) not in same), controls)
            for kind in (decided, seen, beside)
        )
        notes += (noise,) if noise else ()
        made = Sweep(
            plan.backend,
            plan.ranks,
            hosts,
            decided,
            seen,
            refused,
            seconds,
            cleared,
            beside,
            rows,
            notes,
        )
        plain = self._plain(len(decided))
        partial = any(note.startswith(TIME_UP) for note in self.notes)
        return replace(made, controls=controls, same=same, plain=plain, partial=partial)

    def _plain(self, among: int) -> tuple[Comparison, ...]:
        """The default against itself, in the rounds that decide."""
        times = self.times.get("decide", {})
        first, second, _ = CONTROLS
        rows = []
        for number, op, size in times:
            other = (second, op, size)
            if number == first and other in times:
                laps = tuple(times[number, op, size]), tuple(times[other])
                among = max(among, 1)
                every = spread([times[each, op, size] for each in CONTROLS])
                rows.append(Comparison(Setting(), op, size, *laps, among, spread=every))
        return tuple(rows)

    @property
    def chose(self) -> list[str]:
        """The phases whose rounds choose."""
        return [phase for phase in self.times if phase.startswith(("choose", "descend"))]

    def share(self, number: int, phase: str) -> float:
        """What a setting takes of the default's time.

        It is the geometric mean over all sizes; infinite if refused.
        """
        times = self.times[phase]
        ratios = []
        for (mine, op, size), laps in times.items():
            if mine == number:
                ratios.append(laps[-1] / times[ALONE, op, size][-1])
        if ratios and number not in self.refused:
            return statistics.geometric_mean(ratios)
        return math.inf

    def promising(self, numbers: Sequence[int]) -> list[int]:
        """The settings with own jobs that look best on some call and size.

        They are among those that chose.
        """
        best_ratio: dict[int, float] = {}
        for phase in self.chose:
            times = self.times[phase]
            for (number, op, size), laps in times.items():
                default_laps = times.get((ALONE, op, size))
                if default_laps is None or number not in numbers or number in self.refused:
                    continue
                # the best of two rounds, as a mean of two is hit by every disturbance
                ratio = min(laps) / min(default_laps)
                best_ratio[number] = min(ratio, best_ratio.get(number, math.inf))
        ranked = sorted(best_ratio, key=lambda number: (best_ratio[number], number))
        return [number for number in ranked if best_ratio[number] < PROMISING][:KEPT]

    def compared(self, phase: str, settings: Sequence[Setting]) -> tuple[Comparison, ...]:
        """Each setting with the default of the same rounds, by collective and size."""
        times = self.times.get(phase, {})
        failed = self.own_jobs.intersection(self.refused)
        known = []
        for key in times:
            # of a turn that was interrupted the default may be missing
            paired = key[0] not in self.own_jobs or (ALONE, *key[1:]) in times
            if key[0] > 0 and key[0] not in failed and paired:
                known.append(key)
        keys = sorted(known, key=lambda key: (key[1], key[2], key[0]))
        # the interval has to hold for all of them together
        return tuple(self._comparison(key, phase, settings[key[0] - 1], len(keys)) for key in keys)

    def _comparison(self, key: Key, phase: str, setting: Setting, among: int) -> Comparison:
        (number, op, size), times = key, self.times[phase]
        defaults = [(control, op, size) for control in CONTROLS]
        if number in self.own_jobs:
            defaults = [(ALONE, op, size)]
        controls = [times[each] for each in defaults if each in times]
        # one of them in turn: a mean of three is hit by an outlier more often than the one time it
        # is compared with
        usual = tuple(
            laps[turn % len(laps)] for turn, laps in enumerate(zip(*controls, strict=True))
        )
        # a turn of jobs may have ended in the middle
        rounds = min(len(usual), len(times[key]))
        beside = ""
        if phase in BESIDE:
            beside = phase
        wrong = self.wrong.get(key, 0)
        return Comparison(
            setting,
            op,
            size,
            usual[:rounds],
            tuple(times[key][:rounds]),
            among,
            wrong,
            spread(controls),
            beside,
        )


def _choice(alone: int, every: int, jobs: int, notes: list[str]) -> tuple[int, bool]:
    """How many settings can be measured in so many jobs, and whether Optuna searches.

    They are those that a process keeps.  All combinations take turns where there is time for that.
    Else Optuna chooses which are measured; without it the settings do so one by one.  A note says
    so.  `alone` are settings; `every` those and their combinations.
    """
    # in each turn one job is the default's
    turns = jobs // CHOOSING - 1
    space = f"all {every:,} combinations of what a process keeps for its life"
    if every <= turns:
        return every, False
    if turns < 1:
        notes.append(f"No time was left for {space}; `--budget` gives more.")
        return 0, False
    if find_spec("optuna"):
        trials = jobs // CHOOSING
        notes.append(
            f"There was no time for {space}: Optuna searched them in {plural(trials, 'trial')}."
        )
        return trials, True
    few = min(turns, alone)
    missing = "as Optuna, which would search them, is not installed (pip install 'ncclkit[tuning]')"
    notes.append(
        f"There was no time for {space}: {plural(few, 'setting')} took turns one by one, {missing}."
    )
    return few, False


def combinations(settings: Sequence[Setting]) -> list[Setting]:
    """Every other choice of the values of these settings, the fewest variables first."""
    values = _values(settings)
    known = [dict(one.env) for one in (Setting(), *settings)]
    made = []
    for chosen in product(*values.values()):
        env = {}
        for name, value in zip(values, chosen, strict=True):
            # an empty value stands for a variable that is not set
            if value:
                env[name] = value
        if env not in known:
            one = Setting(env)
            made.append(replace(one, risk=_risk(one, settings)))
    return sorted(made, key=lambda one: len(one.env))


def _values(settings: Iterable[Setting]) -> dict[str, list[str]]:
    """Variable → the values that it takes in these settings, and none."""
    values: dict[str, list[str]] = {}
    for one in settings:
        for name, value in one.env.items():
            known = values.setdefault(name, [""])
            if value not in known:
                known.append(value)
    return values


def _risk(one: Setting, settings: Iterable[Setting]) -> str:
    """What the settings risk that a combination holds."""
    risks = []
    for part in settings:
        if part.risk and part.env.items() <= one.env.items():
            risks.append(part.risk)
    return "; ".join(risks)


@dataclass(frozen=True)
class SweepJobs:
    """Runs the jobs of one sweep, and keeps what they measured."""

    case: Case
    base: Plan
    """Of each job, before its settings."""
    made: Measured
    on_record: OnRecord
    ends: float = math.inf
    """When the budget is over, on the monotonic clock."""
    changed: Callable[[], None] = lambda: None
    """Is called whenever more is known."""

    async def together(
        self, settings: Mapping[int, Setting], every: bool, within: float, own: Choices
    ) -> None:
        """One job with a process group for each setting.

        `every`: decide on those that look slower, too.  `within` is the seconds of measuring after
        which no further collective and size is begun; `own` is what NCCL takes by itself; a setting
        is not measured where it asks for the same.
        """
        usable = dict(settings)
        for _ in range(MOST_STRUCK + 1):
            order = _with_controls([*usable])
            words = self._shared_words(usable, order, every, own)
            words += ["--after", str(len(self.made.pairs))]
            problem = await self.job(self.base, words, order, within)
            struck = [number for number in self.made.trying if number in usable]
            if not problem or not struck:
                break
            self.made.refused[struck[0]] = f"the job ended when it was first used: {problem}"
            self.made.forget_unfinished()
            del usable[struck[0]]
            if not usable:
                return
        if problem:
            raise NcclkitError(f"The sweep stopped: {problem}")

    def _shared_words(
        self, settings: Mapping[int, Setting], order: Sequence[int], every: bool, own: Choices
    ) -> list[str]:
        """What the job that settings share is started with."""
        peak = {}
        if not every:
            peak = {n: one.channels for n, one in settings.items() if one.channels and not one.env}
        specs = []
        for number in order:
            one = settings.get(number, Setting())
            spec = {
                "env": {**one.env, **dict.fromkeys(one.without)},
                "config": {**one.config},
                "skip": same_as_own(one, own, self.base.ops, self.base.sizes),
            }
            specs.append(spec)
        controls = ",".join(str(place) for place, number in enumerate(order) if number in CONTROLS)
        words = [
            *("--settings", json.dumps(specs)),
            *("--controls", controls),
            *("--repeats", str(ROUNDS)),
        ]
        if len(peak) > 2:  # bandwidth has one peak over the channels
            places = [str(order.index(n)) for n in sorted(peak, key=lambda n: peak[n])]
            words += ["--one-peak", ",".join(places)]
        words += ["--decide", str(DECIDING), "--under-computation"]
        if every:
            words.append("--all")
        return words

    async def decide(self, settings: Mapping[int, Setting], ends: float = math.inf) -> None:
        """Jobs of the default and of each setting in turn, in shuffled order.

        The order is shuffled for each turn.  `ends` is on the monotonic clock, by which the last
        turn ends, about.
        """
        # a fixed seed, so that a sweep can be repeated as it was
        order = random.Random(1)
        took = 0.0
        for turn in range(JOBS if settings else 0):
            began = time.monotonic()
            # a turn that would end after the budget is not begun
            if began + took >= ends:
                if turn < LEAST_ROUNDS:
                    self.made.notes.append(
                        f"Time was up after {turn} of the {LEAST_ROUNDS} turns of jobs that a"
                        " verdict needs; `--budget` gives more."
                    )
                return
            await self._turn(settings, "decide", order)
            took = time.monotonic() - began

    async def choose(
        self,
        settings: Mapping[int, Setting],
        first: int,
        ends: float,
        more: list[Setting] | None = None,
    ) -> list[Setting]:
        """Choose among settings that a process keeps, while there is time.

        Their combinations are among them; it decides on the best.  `ends` is on the monotonic
        clock; `more` gets the combinations, numbered from `first`, before they are measured.
        Returns them.
        """
        more = [] if more is None else more
        began = time.monotonic()
        order = random.Random(0)
        await self._turn({}, "pace", order)
        each = max(time.monotonic() - began, 1e-3)  # seconds of a job here

        def jobs() -> int:
            return int((ends - time.monotonic()) / each)

        more += combinations([*settings.values()])
        every = dict(settings) | dict(enumerate(more, first))
        self.made.own_jobs.update(every)
        asked = CHOOSING * (len(every) + 1) + 2 * JOBS
        pace = pace_in_words(each, asked, ends - time.monotonic())
        self.on_record({"kind": "sweep.say", "say": pace})
        count, search = _choice(len(settings), len(every), jobs() - 2 * JOBS, self.made.notes)
        chosen = {number: every[number] for number in [*every][:count]}
        if search:
            await self._search(settings, every, count)
        for _ in range(CHOOSING if chosen and not search else 0):
            await self._turn(chosen, "choose", order)
        kept = self.made.promising([*every])[: max(1, jobs() // JOBS - 1)]
        await self.decide({number: every[number] for number in kept}, ends)
        return more

    async def _turn(
        self, settings: Mapping[int, Setting], phase: str, order: random.Random
    ) -> None:
        """One job of the default and each setting, in this turn's order.

        Jobs that decide also compute beside.  A setting whose job fails is refused; raises
        NcclkitError where the default's fails.
        """
        for number, setting in order.sample(
            [(ALONE, Setting()), *settings.items()], 1 + len(settings)
        ):
            env = {
                name: value for name, value in self.base.env.items() if name not in setting.without
            }
            plan = replace(
                self.base, env={**env, **setting.env}, unset=(*self.base.unset, *setting.without)
            )
            # what the environment sets already is no winner that a job would be given
            beside = phase == "decide" and not self.base.unset
            words = ["--repeats", str(ROUNDS), "--phase", phase, *["--under-computation"] * beside]
            if number in self.made.refused:
                problem = ""
            else:
                problem = await self.job(plan, words, [number])
            if problem and number == ALONE:
                raise NcclkitError(f"The sweep stopped: {problem}")
            if problem:
                self.made.refused[number] = f"its job failed: {problem}"
        self.changed()

    async def _search(
        self, settings: Mapping[int, Setting], every: Mapping[int, Setting], trials: int
    ) -> None:
        """Measure each setting, then the combinations that Optuna expects most of.

        It expects by what came before, of those of `every`.  Every job stands beside one of the
        default, as drift is larger than most gains, and is judged by the geometric mean of what its
        sizes take of the default's time.
        """
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        order = random.Random(0)
        values = _values(settings.values())
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
        shares: dict[int, float] = {0: 1.0}  # of the default itself
        for one in settings.values():
            study.enqueue_trial({name: one.env.get(name, "") for name in values})
        for turn in range(MOST_ASKED * trials):
            if len(shares) > trials:
                break
            trial = study.ask()
            chosen = {
                name: trial.suggest_categorical(name, known) for name, known in values.items()
            }
            asked = {name: value for name, value in chosen.items() if value}
            number = next((n for n, one in every.items() if one.env == asked), 0)
            if number not in shares:
                await self._turn({number: every[number]}, f"choose {turn}", order)
                shares[number] = self.made.share(number, f"choose {turn}")
            # also of what is known already, as Optuna waits for the answer to each trial
            study.tell(trial, shares[number])

    async def job(
        self, plan: Plan, words: Sequence[str], numbers: Sequence[int], within: float = 0.0
    ) -> str:
        """Run a job of the sweep program.

        Returns what it failed by, "" where it did not.  `within` is the seconds for which it may
        measure beyond the time of any other job.
        """

        def keep(record: dict[str, Any]) -> None:
            self.made.take(record, numbers)
            self.on_record(record)
            if record["kind"] == "sweep.pair" and len(numbers) > 1:
                self.changed()

        sizes = ",".join(map(str, plan.sizes))
        argv = [
            "sweep",
            *("--backend", plan.backend),
            *("--ops", ",".join(plan.ops)),
            *("--sizes", sizes),
        ]
        left = max(self.ends - time.monotonic(), 1.0)
        deadline = plan.deadline + within
        timeout = plan.deadline / 2
        soft = min(left, within or math.inf)
        if not math.isinf(left):
            deadline = min(deadline, left + GRACE)
            timeout = min(timeout, max(CONNECT, left / 3))
        if not math.isinf(soft):
            argv += ["--within", f"{max(soft, 0.1):.1f}", "--asked", f"{time.time():.3f}"]
        argv += ["--timeout", f"{timeout:.0f}", *words]
        if plan.simulate_hosts > 1:
            argv += ["--simulate-hosts", str(plan.simulate_hosts)]
        run = await probe.execute(
            self.case, replace(plan, argv=tuple(argv), deadline=deadline), keep
        )
        if run.reason == "done":
            return ""
        if run.reason == "deadline" and time.monotonic() >= self.ends and self.made.times:
            of = len(plan.ops) * len(plan.sizes)
            self.made.note_left(of - len(self.made.pairs), of)
            return ""
        return f"{run.summary} See {run.folder}."


def _with_controls(numbers: Sequence[int]) -> list[int]:
    """Settings in the order of their groups.

    The default stands first, in the middle, and last.
    """
    first, middle, last = CONTROLS
    half = len(numbers) // 2
    return [first, *numbers[:half], middle, *numbers[half:], last]
