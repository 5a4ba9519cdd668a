"""Too many processes share too few CPU cores

What you see
    "This DataLoader will create 16 worker processes in total. Our suggested max number of worker in
    current system is 4", GPUs that idle between steps, timeouts that come and go, watchdogs that
    report without an apparent reason.

Why it happens
    Each rank runs its main thread, NCCL's proxy and watchdog threads, and its data-loader workers,
    and each worker may start OpenMP threads of its own.  If the cores the job may use (a cgroup or
    Slurm allocation, not what nproc of the machine says) are fewer, threads wait: most often the
    proxy thread that feeds the network, so the collective of all ranks is late.

How to be sure
    `nproc` inside the job; (workers + 1) x ranks should not exceed it.  Watch the load average and
    nr_throttled in cpu.stat while it runs.

What to do
    Bind each rank to the cores near its GPU (see cpu_binding).

Read more
    PyTorch docs: DataLoader num_workers; Slurm: --cpus-per-task, srun --cpu-bind.
"""

from __future__ import annotations

from collections.abc import Iterator

from ncclkit.analysis.picks import first_finding, name_hosts, name_ranks, on, pick, ranks_in
from ncclkit.analysis.rank_states import how_they_waited, rank_states, starving
from ncclkit.analysis.speed import busy_cores, crowded, measured_speed
from ncclkit.analysis.steps import measured_steps
from ncclkit.causes._experiments import experiment_of
from ncclkit.causes._preflight import HostFacts, Preflight, Risk, number
from ncclkit.core import budgets
from ncclkit.core.bandwidth import Judgement
from ncclkit.core.case import Case
from ncclkit.core.kinds import (
    NcclDestroy,
    NcclInit,
    RunEnd,
    SystemFault,
    TelemetryOthers,
    TelemetryScheduling,
)
from ncclkit.core.model import Advice, Event, Experiment, Fact, Finding, Strength, found
from ncclkit.core.text import percent, plural, start

ID = "cpu_contention"
explains = ("c10d.timeout", "slow_rank", "timeout_too_short", "gil_hold")
PRESSED = 50.0
"""Share of the time in % from which on others use the cores.

It is the time before a run in which some process waited for a core.
"""
OTHERS = (
    Advice(
        "Find out who uses the cores, and measure again while they are free, or ask for cores of"
        " your own.",
        command="ps -eo pid,user,pcpu,args --sort=-pcpu | head",
        why="What the ranks wait for a core is time in which they neither send nor add.",
        check="The same test reaches a higher busbw, and the ranks' wait for a core is near 0 s.",
        risk="An exclusive allocation (Slurm: --exclusive) leaves less for others.",
    ),
)
CROWDED = 1.5
"""Processes for each core from which on a rank would wait for one.

They are those that want a core.
"""
LEAST, ROOM = 2, 4
"""Cores per GPU: for the rank and NCCL's proxy alone, and with a few data-loader workers."""


EXPERIMENT = experiment_of(
    "Does the same job run when no rank has more data-loader workers than cores?",
    {"fix": ID},
    {
        ID: ("works", "it runs: the workers and the rank had competed for the cores"),
        "slow_rank": (
            "same",
            "it fails as before: the rank is late for another reason than its workers",
        ),
        "disk_or_io": ("same", "it fails as before: fewer workers read a slow disk no faster"),
        "network_loss": ("same", "it fails as before: the network does not depend on workers"),
    },
)


def diagnose(case: Case) -> Finding:
    """Found by waits for a core, PyTorch's warning, or too many ranks.

    The waits are those of the ranks' processes as measured; too many ranks are more than the usable
    cores.
    """
    went_well = [*case.of(NcclDestroy), *rank_states(case).ended.values()]
    missing = "cpu.usable of the job (`nproc` inside it) and the data loader's num_workers"
    return first_finding(
        case,
        _starved_ranks,
        _short_of_cores,
        _of_steps,
        _warned_or_crowded,
        CHECK.risk,
        _busy_host,
    ) or CHECK.otherwise(case, went_well, "By what is known the ranks have enough cores.", missing)


def _busy_host(case: Case) -> Finding | None:
    """The host's cores are wanted by more processes than it has, before any job."""
    # a job that ran shows by itself whether it had its cores
    if case.events:
        return None
    return HOST_BUSY.risk(case)


def _starved_ranks(case: Case) -> Finding | None:
    """Ranks whose processes spent most of their time waiting for a core."""
    starved = starving(case)
    if not starved:
        return None
    states = rank_states(case)
    # a rank that waits in the collective had come: the cores kept it from nothing
    starved = [event for event in starved if event.rank not in states.waiting] or starved
    worst = max(starved, key=lambda e: float(e.data.waited))
    ranks = ranks_in(starved)
    known = {None, *ranks}
    waiting = []
    for rank, event in states.waiting.items():
        if rank not in known:
            waiting.append(event)
    if states.dead:
        strength: Strength = "possible"
    elif waiting:
        strength = "proven"
    else:
        strength = "likely"
    warned = []
    for e in _worker_warnings(case):
        if e.rank in known:
            warned.append(e)
    count, cores = worst.data.processes, worst.data.cores
    say = (
        f"The {count} processes of rank {worst.rank} share {cores} CPU"
        f" core{'' if cores == 1 else 's'}{on(worst.host)}"
    )
    say += f": they ran {worst.data.ran:.0f} s and waited {worst.data.waited:.0f} s for a core"
    if waiting:
        awaited_by = name_ranks(states.waiting.keys() - set(ranks))
        say += f", while {awaited_by} {how_they_waited(waiting)} for a collective"
    others = ""
    if len(ranks) > 1:
        others = f"; {len(ranks) - 1} more ranks are short of cores as well"
    return found(
        ID,
        strength,
        f"{say}{others}.",
        pick(starved, warned, waiting, limit=5),
        ranks=ranks,
        hosts=name_hosts(starved),
        advice=_advice(budgets.workers(int(cores), 1).value),
        next=EXPERIMENT,
    )


def _short_of_cores(case: Case) -> Finding | None:
    """A slow live test whose ranks fit on the cores but waited for one.

    It is slow for the machine, so others use the cores.
    """
    low = _low_speed(case)
    rows = {e.rank: e for e in case.of(TelemetryScheduling)}
    waited = sum(float(e.data.waited) for e in rows.values())
    ran = sum(float(e.data.ran) for e in rows.values())
    busy = []
    for fact in case.facts_of("cpu.pressure"):
        if isinstance(fact.value, (int, float)) and fact.value >= PRESSED:
            busy.append(fact)
    queued = []
    # a short wait is the ordinary turn of the scheduler
    if rows and waited >= max(1.0, ran / 2):
        queued = list(rows.values())
    own = sum(int(event.data.processes) for event in rows.values())
    # between hosts the network bounds the speed long before the cores do
    if low is None or low.best.hosts > 1 or not (queued or (busy and not rows)):
        return None
    cores = max((int(event.data.cores) for event in rows.values()), default=0)
    who = "more processes than cores want them"
    # they fit, so somebody else was on the cores
    if own <= cores:
        who = "other processes use these cores"
    say = f"The live test reached {percent(low.ratio)} of what {low.bound.allows} allows"
    if queued:
        ranks = name_ranks(rank for rank in rows if rank is not None)
        say += (
            f": the {own} processes of {ranks} ran {ran:.1f} s and waited {waited:.1f} s for one of"
            f" {cores} CPU cores"
        )
    elif busy:
        say += (
            f": before it began, some process waited for a core {busy[0].value:.0f} % of the time"
        )
    if own > cores > 0:
        advice = _advice(None)
    else:
        advice = OTHERS
    why = pick(queued, busy, [low.best], limit=5)
    return found(
        ID,
        "likely",
        f"{say}; {who}.",
        why,
        hosts=name_hosts(queued),
        advice=advice,
        next=experiment(case),
    )


def _of_steps(case: Case) -> Finding | None:
    """Measured steps that wait for data-loader workers.

    The ranks and workers of a host are more than its cores.
    """
    measured = measured_steps(case)
    cores = {}
    for f in case.facts_of("cpu.usable"):
        if isinstance(f.value, int):
            cores[f.host] = f
    brake = None
    if measured:
        brake = measured[0].brake("data")
    if measured is None or brake is None:
        return None
    workers = {}
    for e in measured[1]:
        workers[e.rank] = max((int(loader[0]) for loader in e.data.loaders), default=0)
    on_host: dict[str, list[Event]] = {}
    for event in measured[1]:
        if workers[event.rank]:
            on_host.setdefault(event.host, []).append(event)
    for host, fact in cores.items():
        here = on_host.get(host, [])
        # the rank itself needs a core as well
        count = sum(1 + workers[event.rank] for event in here)
        if count > fact.value:
            say = (
                f"{brake} The {count} processes of {name_ranks(ranks_in(here))}{on(host)} share"
                f" {fact.value} CPU cores."
            )
            advice = _advice(budgets.workers(fact.value, len(here)).value)
            why = pick(here, [fact], limit=5)
            return found(
                ID,
                "possible",
                say,
                why,
                ranks=ranks_in(here),
                hosts=(host,),
                advice=advice,
                next=EXPERIMENT,
            )
    return None


def _low_speed(case: Case) -> Judgement | None:
    """The speed of the last live test, if the cores could explain it.

    It must be low enough for that.
    """
    speed = measured_speed(case)
    if speed and ID in speed.judgement.suspects:
        return speed.judgement
    return None


def _worker_warnings(case: Case) -> list[Event]:
    return case.of(SystemFault, what="dataloader_workers")


def _warned_or_crowded(case: Case) -> Finding | None:
    """PyTorch's own warning, or more ranks than usable cores."""
    warned = _worker_warnings(case)
    crowded, local = _too_few_cores(case)
    slow = list(rank_states(case).waiting.values())
    # a job that has fewer cores than ranks may be slow and still end: it takes somebody who waits
    if not warned and not (crowded and slow):
        return None
    numbers = None
    advised = None
    if warned:
        numbers = _worker_numbers(warned[0])
        host = warned[0].host
    else:
        host = crowded[0].host
    if numbers:
        started, advised = numbers
        say = (
            f"Each rank{on(host)} starts {started} data-loader workers where {advised} are"
            " advisable."
        )
    elif crowded:
        say = f"{local} ranks share {crowded[0].value} CPU cores{on(host)}."
    else:
        say = f"More data-loader workers than CPU cores are started{on(host)}."
    # PyTorch warns from one worker too many on, which seldom makes a rank late
    many_workers = numbers and numbers[0] >= 2 * max(1, numbers[1])
    strength: Strength = "possible"
    if slow and (crowded or many_workers):
        strength = "likely"
    return found(
        ID,
        strength,
        say,
        pick(warned, crowded, slow, limit=5),
        hosts=name_hosts(warned),
        advice=_advice(advised),
        next=experiment(case),
    )


def _too_few_cores(case: Case) -> tuple[list[Fact], int]:
    """Facts of hosts that have fewer usable cores than ranks, and how many ranks one has."""
    cores = [fact for fact in case.facts_of("cpu.usable") if isinstance(fact.value, int)]
    ranks = set()
    for event in case.of(NcclInit):
        if event.rank is not None and event.host == (cores[0].host if cores else event.host):
            ranks.add(event.rank)
    local = len(ranks)
    crowded = []
    for fact in cores:
        if fact.value < local:
            crowded.append(fact)
    return crowded, local


def _host_risks(host: HostFacts) -> Iterator[Risk]:
    """Hosts with too few cores per GPU.

    A rank has a main thread, NCCL's proxy and watchdog, and loader workers.
    """
    cores = host.number("cpu.usable")
    gpus = host.gpu_count
    yield from _oversubscribed_cores(host)
    if cores is None or not gpus or cores >= ROOM * gpus or host.value("job.workers") is not None:
        return
    say = f"{cores:g} CPU cores are usable for {gpus} GPU{'s' if gpus > 1 else ''}; "
    spare = budgets.workers(int(cores), gpus)
    say += (
        f"ranks with more than {spare.value:g} data-loader worker{'' if spare.value == 1 else 's'}"
        " each would wait"
    )
    scheduled = host.fact("env.SLURM_JOB_ID")  # The job's ranks may get more cores than this step.
    strength: Strength = "possible"
    if cores < LEAST * gpus and not scheduled:
        strength = "likely"
    advice = _advice(spare.value)[0]
    yield Risk(f"{say} for a core", [host.fact("cpu.usable")], advice, strength)


def _load_of_others(host: HostFacts) -> Iterator[Risk]:
    """Hosts whose cores others use already.

    The load is of the whole host, whatever part of it is ours.
    """
    # the load counts processes of the whole host, also outside of our cgroup
    cores = host.number("cpu.total") or host.number("cpu.usable")
    loads = host.value("cpu.load")
    load = None
    if isinstance(loads, list) and loads:
        load = number(loads[0])
    pressure = host.number("cpu.pressure")
    if (
        cores is None
        or load is None
        or load < CROWDED * cores
        # processes that wait for storage count in the load, and want no core
        or (pressure is not None and pressure < PRESSED)
    ):
        return
    if pressure is None:
        waits = ""
    else:
        waits = f", and some waited {pressure:.0f} % of the time"
    own = plural(int(cores), "CPU core")
    say = f"{load:.3g} processes on average want its {own}{waits}; ranks would wait too"
    facts = [host.fact("cpu.load"), host.fact("cpu.pressure")]
    yield Risk(say, facts, OTHERS[0])


def shared_cores(case: Case) -> Finding | None:
    """The last live test, where others left its ranks too few cores.

    It succeeded, and shows no speed.
    """
    last = case.of(RunEnd)[-1:]
    folder = ""
    if last:
        folder = last[0].path.rpartition("/")[0]
    shared = []
    for event in case.of(TelemetryOthers):
        # an older test of the same case says nothing of this one
        if event.path.rpartition("/")[0] == folder and crowded(event):
            shared.append(event)
    if not shared or last[0].data.reason != "done":
        return None
    say = (
        f"{start(busy_cores(shared))}: its speed shows less than this host can do, and ranks of a"
        " job would wait, too."
    )
    return found(
        ID,
        "possible",
        say,
        pick(shared),
        hosts=name_hosts(shared),
        advice=OTHERS,
        next=experiment(case),
    )


def _oversubscribed_cores(host: HostFacts) -> Iterator[Risk]:
    """More ranks and data-loader workers than cores, by the numbers that the user gave."""
    cores = host.number("cpu.usable")
    ranks = host.ranks
    workers = host.number("job.workers")
    if cores is None or workers is None or not ranks or (workers + 1) * ranks <= cores:
        return
    fit = budgets.workers(int(cores), ranks)
    say = (
        f"{ranks} ranks with {workers:g} data-loader workers each are {(workers + 1) * ranks:g}"
        f" processes, and {cores:g} CPU cores are usable; they would wait for each other"
        f" ({fit.words.rstrip('.')} fit)"
    )
    facts = [host.fact("cpu.usable"), host.fact("job.workers"), host.fact("gpu.count")]
    # Many jobs run with a few more processes than cores; ranks starve where the workers alone fill
    # the cores.
    strength: Strength = "possible"
    if workers * ranks > cores:
        strength = "likely"
    yield Risk(say, facts, _advice(fit.value)[0], strength)


def _worker_numbers(event: Event) -> tuple[int, int] | None:
    workers, suggested = event.data.workers, event.data.suggested
    if isinstance(workers, int) and isinstance(suggested, int):
        return workers, suggested
    return None


def _advice(fitting: float | None) -> tuple[Advice, ...]:
    """`fitting`: data-loader workers for which each rank has a core; None where nobody knows."""
    workers = 2
    if fitting is not None:
        workers = max(1, int(fitting))
    return (
        Advice(
            f"Lower num_workers to {workers} and keep each rank's libraries to one thread, or ask"
            f" for more cores ({workers + 2} a rank, --cpus-per-task of Slurm).",
            code=f"DataLoader(..., num_workers={workers}, prefetch_factor=2)",
            env={"OMP_NUM_THREADS": "1"},
            command="nproc; cat /proc/loadavg",
            why="NCCL's proxy thread needs a core to itself at the right moment.",
            check="Load stays below nproc, and the step time's p99 comes near its median.",
            risk="Too few workers leave the GPU waiting.",
        ),
    )


def experiment(case: Case) -> Experiment:
    """Run with fewer workers where they starved the ranks.

    Elsewhere run with one thread per library.
    """
    if starving(case):
        return EXPERIMENT
    return experiment_of(
        "Does the same job keep up when each rank's libraries use one thread?",
        {"env": {"OMP_NUM_THREADS": "1"}},
        {
            ID: ("works", "it does: the threads of all ranks had competed for the cores"),
            "slow_rank": (
                "same",
                "it fails as before: the rank is late however many threads it has",
            ),
            "network_loss": ("same", "it fails as before: the network does not depend on threads"),
        },
    )


HOST_BUSY = Preflight(
    ID,
    reads=("cpu.load",),
    risks=_load_of_others,
    fine="Few processes want the cores of this host.",
    also=("cpu.total", "cpu.usable", "cpu.pressure"),
    next=experiment,
)
CHECK = Preflight(
    ID,
    reads=("cpu.usable",),
    risks=_host_risks,
    fine="This host has enough cores for its ranks.",
    also=("gpu.count", "env.SLURM_JOB_ID", "job.workers", "job.ranks"),
    next=experiment,
)
REMEDIES = (*_advice(None), *OTHERS)
