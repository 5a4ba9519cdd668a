"""The machine ran out of memory and the kernel killed a rank

What you see
    A rank disappears without a traceback: "exitcode: -9", "Killed", "DataLoader worker is killed by
    signal: Killed", "Detected 1 oom_kill event" from Slurm.  The other ranks time out or see closed
    connections.  Before that, steps get slower while the machine swaps.

Why it happens
    Host memory is used by every rank and also by each of its data-loader workers: eight ranks with
    eight workers each hold 64 copies of whatever the dataset keeps in Python lists.  When the
    machine, or the limit of the container or Slurm step, is reached, the kernel's OOM killer sends
    SIGKILL to the largest process.  Nothing in that process can log its end.  With swap on slow
    storage the job may hang for an hour instead of dying.

How to be sure
    The kernel says so: `dmesg -T | grep -i 'killed process'` on the node of the lost rank,
    `memory.events` of the cgroup (oom_kill), or `sacct -j JOB -o MaxRSS,State` (OUT_OF_MEMORY).

What to do
    Load checkpoints on one rank at a time with mmap=True.

Read more
    PyTorch issue "DataLoader num_workers > 0 causes CPU memory replication"; kernel docs cgroup-v2
    memory.events.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from signal import SIGKILL

from ncclkit.analysis.picks import (
    failed,
    first_finding,
    matching,
    messages,
    name_hosts,
    name_ranks,
    of_job_hosts,
    on,
    pick,
    ranks_in,
    who_are,
    who_of,
)
from ncclkit.analysis.rank_states import rank_states
from ncclkit.causes._experiments import experiment_of, limits
from ncclkit.causes._preflight import HostFacts, Preflight, Risk
from ncclkit.core import budgets
from ncclkit.core.case import Case
from ncclkit.core.kinds import (
    ElasticExit,
    ElasticStop,
    KernelOom,
    NcclDestroy,
    PythonException,
    RunEnd,
    SlurmEvent,
    SystemFault,
)
from ncclkit.core.model import Advice, Event, Experiment, Fact, Finding, Strength, found
from ncclkit.core.resources import UNITS
from ncclkit.core.text import format_bytes

ID = "host_oom"
explains = (
    "elastic.exit",
    "c10d.timeout",
    "gloo.closed",
    "gloo.timeout",
    "store.lost",
    "rank_killed",
    "slow_rank",
    "disk_or_io",
    "network_loss",
    "rank_exception",
    "cpu_contention",
)
PER_RANK, PER_CPU_RANK = 4 << 30, 512 << 20
"""Bytes of host memory that one rank needs to start and load data.

The first is with CUDA, the second without.
"""
TIGHT = 0.8
"""Share of the memory that the job's data may take.

The rest is for the ranks themselves and the page cache.
"""
LOW = 0.05
"""Share of a host's memory that must be available.

With less the next allocation may start the OOM killer.
"""
RANKS = re.compile(r"python|pt_|ray|torch|train|perf|nccl|mpi|orted|srun|bash", re.IGNORECASE)
"""Names of processes that belong to a training job."""
OWN_LIMIT = re.compile(r"Exceeded (?:job|step) memory limit", re.IGNORECASE)
"""Slurm has counted the memory of the job's processes itself, without a control group."""
REMOTE = re.compile(
    r"\b(?:nfs\d?|cifs|smb\w*|lustre|gpfs|beegfs|ceph|fuse[\w.]*|9p|glusterfs|network)\b"
)
"""Storage behind a network, as `memory.swap` names it."""


def diagnose(case: Case) -> Finding:
    """Found where the kernel, Slurm or a killed process shows that host memory ran out."""
    finding = first_finding(
        case, _reported_oom, _refused_allocation, _silent_kill, _swapping_host, CHECK.risk
    )
    if finding is not None:
        return finding
    alive = [*case.of(NcclDestroy), *rank_states(case).ended.values(), *case.of(ElasticExit)]
    missing = "dmesg of the node (`dmesg -T | grep -i oom`) or the exit codes of the ranks"
    return CHECK.otherwise(case, alive, "No process was killed by signal 9.", missing)


def _refused_allocation(case: Case) -> Finding | None:
    """A data-loader worker was killed, or an allocation failed with an error."""
    errors = case.of(SystemFault)
    workers = []
    for event in errors:
        # a worker that died of a bus error ran out of /dev/shm (shm_too_small)
        if event.data.what == "dataloader_killed" and not matching([event], "bus error", "segm"):
            workers.append(event)
    refused: list[Event] = []
    for event in errors:
        if event.data.what == "host_memory":
            refused.append(event)
    refused += case.of(PythonException, type="MemoryError")
    refused += matching(
        messages(case), "std::bad_alloc", "DefaultCPUAllocator", "Unable to allocate "
    )
    ranks = ranks_in(workers + refused)
    if not workers and not refused:
        return None
    if workers:
        what = "a data-loader worker was killed by the system"
    else:
        what = f"{_requested_size(refused)} was refused"
    say = f"{who_are(ranks)} ran out of host memory: {what}."
    why = pick(workers, refused, _killed_processes(case))
    advice = _advice(case)
    if not workers:
        advice = (_in_pieces(_requested_size(refused)), *advice)
    # The experiment runs rank 0 alone: without the rank at fault it would work for that reason
    # alone.
    asked = None
    if not ranks or 0 in ranks:
        asked = experiment(case)
    return found(ID, "likely", say, why, ranks=ranks, advice=advice, next=asked)


def _requested_size(refused: list[Event]) -> str:
    """``an allocation of 192 MiB`` where a line says how much."""
    reported = next(
        (m for e in refused if (m := re.search(r"tried to allocate (\d+) bytes", e.text))), None
    )
    if reported:
        return f"an allocation of {format_bytes(int(reported[1]))}"
    return "an allocation of host memory"


def _in_pieces(what: str) -> Advice:
    """Advice to read the data in pieces."""
    return Advice(
        f"Memory-map the data, or shard it, so that no rank needs {what} at once.",
        code=(
            'numpy.load("data.npy", mmap_mode="r")[rank::world_size]  # ranks of a host share its'
            " pages"
        ),
        why="Every rank that loads the whole dataset holds a copy of its own.",
        check="VmHWM in /proc/PID/status of each rank stays below its share of the host's memory.",
        risk="Pages are read when they are first used: keep the file on a local disk.",
    )


def _silent_kill(case: Case) -> Finding | None:
    """Signal 9, with or without facts that show that memory was short."""
    killed = _killed_processes(case)
    short = _shortage_facts(case)
    if not killed:
        return None
    say = f"{who_of(killed)} was killed by signal 9"
    say += (
        f" while {short[0]}."
        if short
        else "; this is most often the OOM killer, but no file here says why."
    )
    strength: Strength = "possible"
    if short:
        strength = "likely"
    return found(
        ID, strength, say, pick(killed, short), ranks=ranks_in(killed), advice=_advice(case)
    )


def _swapping_host(case: Case) -> Finding | None:
    """A rank was late on a host that is short of memory."""
    # a host that swaps on slow storage may hang for an hour and kill nobody
    stalled = case.of("c10d.timeout", "gloo.timeout", "c10d.unique_id")
    short = _shortage_facts(case)
    if not short or not stalled:
        return None
    say = f"A rank was late while {short[0]}, so swapping may have slowed it."
    return found(ID, "possible", say, pick(short, stalled), advice=_advice(case))


def _killed_processes(case: Case) -> list[Event]:
    # their tasks are guards, which end with their step
    own = {e.path.rpartition("/")[0] for e in case.of(RunEnd)}
    foreign_lines = []
    for event in case.of(SlurmEvent):
        if event.path.rpartition("/")[0] not in own:
            foreign_lines.append(event)
    # torchrun kills a rank that does not heed its SIGTERM
    forced = set()
    for stop in case.of(ElasticStop, signal=SIGKILL):
        forced.add(stop.pid or stop.data.pid)
    ends: list[Event] = foreign_lines
    for end in case.of(ElasticExit):
        if end.data.pid is None or end.data.pid not in forced:
            ends.append(end)
    named = case.of(SystemFault, what="killed")
    return [e for e in ends if -9 in (e.data.exitcode, -(e.data.signal or 0))] + named


def _shortage_facts(case: Case) -> list[Fact]:
    """Facts that say that a host is short of memory.

    It is nearly out of it, swaps, or has already killed for lack of it.
    """
    total = {}
    for fact in case.facts_of("memory.total"):
        if fact.value:
            total[fact.host] = fact.value
    kills = []
    for f in case.facts_of("memory.oom_kills"):
        if f.value:
            kills.append(f)
    available = [f for f in case.facts_of("memory.available") if f.value is not None]
    low = []
    for fact in available:
        if fact.value < LOW * total.get(fact.host, 0):
            low.append(fact)
    swaps = []
    for fact in case.facts_of("memory.swap"):
        for row in fact.value or ():
            if 2 * (row.get("used") or 0) > row["size"]:
                swaps.append(fact)
    return of_job_hosts(case, kills + low + swaps)


def _reported_oom(case: Case) -> Finding | None:
    """The kernel or Slurm reports the OOM killer."""
    reported: list[Event] = [*case.of(KernelOom), *case.of(SystemFault, what="oom_kill")]
    reported += case.of(SlurmEvent, what="oom")
    if not reported:
        return None
    killed = _killed_processes(case)
    # the kernel knows processes, not ranks: other lines of the same pid say which rank it was
    pids = {e.pid or _killed_process(e) for e in reported}
    reporting_ranks = set()
    for event in case.events:
        if event.pid in pids and event.pid and event.rank is not None:
            reporting_ranks.add(event.rank)
    ranks = tuple(sorted(reporting_ranks)) or ranks_in(reported)
    ranks = ranks or ranks_in(killed)
    first = reported[0]
    # only the kernel says whether a limit was reached or the machine was full
    by_kernel = None
    if isinstance(first.data, KernelOom):
        by_kernel = first.data
    limited = (
        (by_kernel and by_kernel.memcg)
        or first.kind == "slurm.event"
        or matching([first], "OOMKill", "MEMLIMIT")
    )
    limit = ""
    if OWN_LIMIT.search(first.text):
        limit = " because the job, or a step of it, reached its limit of memory (Slurm's --mem)"
    elif limited:
        limit = " because its memory limit (cgroup) was reached"
    victim = "a process of the job"
    if by_kernel and by_kernel.pid:
        victim = f"process {by_kernel.pid} ({by_kernel.name or 'of the job'})"
    rank = ""
    if ranks:
        rank = f", {name_ranks(ranks)},"
    say = (
        f"{victim[0].upper()}{victim[1:]}{rank}{on(first.host)} was killed for lack of host"
        f" memory{limit}"
    )
    # Slurm may have killed the whole step, and with it whoever could have lost a peer
    if rank_states(case).waiting or case.of("gloo.closed", "store.lost"):
        say += "; ranks that were not killed lost their peer"
    say += "."
    strength: Strength = "proven"
    # on a shared machine the OOM killer may have ended somebody else's process
    if _of_another_job(case, first, ranks, killed):
        strength = "likely"
    why = pick(reported, killed)
    hosts = name_hosts(reported)
    return found(ID, strength, say, why, ranks=ranks, hosts=hosts, advice=_advice(case))


def _killed_process(event: Event) -> int | None:
    if isinstance(event.data, KernelOom):
        return event.data.pid
    return None


def _of_another_job(case: Case, first: Event, ranks: tuple[int, ...], killed: list[Event]) -> bool:
    """True where the process may belong to another job.

    It may also be that its end did not end this job.
    """
    named = ""
    if isinstance(first.data, KernelOom):
        named = first.data.name
    name = named or "python"
    theirs = []
    for event in killed:
        if event.kind == "elastic.exit":
            theirs.append(event)
    return not (ranks or theirs) and bool(rank_states(case).raised or not RANKS.search(name))


def _host_risks(host: HostFacts) -> Iterator[Risk]:
    """What may let a host run out of memory.

    It is swap on network storage, a limit that leaves too little for each rank, or memory that
    other processes hold.
    """
    remote = []
    for row in host.value("memory.swap") or ():
        if REMOTE.search(str(row.get("storage"))):
            remote.append(row)
    if remote:
        say = (
            f"the swap area {remote[0].get('device')} is on network storage"
            f" ({remote[0].get('storage')}); a job short of memory would stall as long as the"
            " server or the network is slow"
        )
        yield Risk(say, [host.fact("memory.swap")], SWAP, "likely")
    total = host.number("memory.total") or 0
    limit = host.number("limits.cgroup.memory")
    capped = limit is not None and 0 <= limit < total
    if limit is not None and capped:
        room = limit
    else:
        room = total
    yield from _data_risks(
        host, room, host.fact("limits.cgroup.memory" if capped else "memory.total")
    )
    ranks = host.ranks or 2
    need = ranks * (PER_RANK if host.gpu_count else PER_CPU_RANK)
    if total and room < need:
        what = "the memory"
        if capped:
            what = "the memory limit (cgroup)"
        each = f"{format_bytes(room / ranks)} for each of {ranks} ranks"
        say = f"{what} is {format_bytes(room)}, {each}; the OOM killer would end them"
        fact = host.fact("limits.cgroup.memory" if capped else "memory.total")
        yield Risk(say, [fact], MORE, "likely" if room < need / 2 else "possible")
    available = host.number("memory.available")
    if available is not None and available < LOW * total:
        left = f"{format_bytes(available)} of {format_bytes(total)} of memory is left"
        say = f"{left}; a job that starts there would soon run out"
        yield Risk(say, [host.fact("memory.available")], MORE)


def _data_risks(host: HostFacts, room: float, fact: Fact | None) -> Iterator[Risk]:
    """Dataset, prefetched batches and pinned batches that exceed the memory.

    It is by the numbers that the user gave.
    """
    dataset, batch = (host.number(f"job.{name}") or 0 for name in ("dataset", "batch"))
    workers = int(host.number("job.workers") or 0)
    prefetch = int(host.number("job.prefetch") or 2)
    ranks = host.ranks or 2
    need = budgets.host_memory(dataset, ranks, workers, prefetch, batch)
    pinned = ranks * prefetch * batch
    if not room or need.value + pinned <= TIGHT * room:
        return
    also = ""
    if pinned:
        also = f", and {format_bytes(pinned)} in pinned memory"
    say = (
        f"the data of {ranks} ranks needs {format_bytes(need.value)}"
        f" ({need.words.rstrip('.')}){also}, and the memory is {format_bytes(room)}; the OOM killer"
        " would end a rank, or swapping would make it late"
    )
    strength: Strength = "possible"
    if need.value + pinned > room:
        strength = "likely"
    facts = [host.fact(f"job.{name}") for name in ("dataset", "batch", "workers")]
    fewer = _smaller_loader(f" (here {ranks} copies of {format_bytes(dataset)})", workers)
    # fewer workers help only where the data fits at all
    if ranks * dataset <= TIGHT * room:
        yield Risk(say, [fact, *facts], fewer, strength)
    else:  # with no worker at all the data would still be larger than the memory
        yield Risk(
            say, [fact, *facts], _in_pieces(f"all {format_bytes(dataset)}"), strength, more=(fewer,)
        )


def before_a_job(case: Case) -> Experiment:
    """Check whether that much memory is free now.

    It does not answer where swap is or why a past job failed.
    """
    areas = []
    for fact in case.facts_of("memory.swap"):
        for row in fact.value or ():
            areas.append(row)
    # what is free now explains no past job, and not where the swap lies
    if failed(case) or any(REMOTE.search(str(area.get("storage"))) for area in areas):
        return experiment(case)
    return limits(
        "Is enough memory free on this machine for the ranks and their data?", ID, "shm_too_small"
    )


def _advice(case: Case) -> tuple[Advice, ...]:
    total = None
    for fact in case.facts_of("memory.total"):
        if fact.value:
            total = fact.value
            break
    have = ""
    if total:
        have = f" (this host has {format_bytes(total)})"
    dataset = case.fact("job.dataset")
    large = (
        (_in_pieces(f"all {format_bytes(dataset)}"),)
        if dataset and total and dataset > TIGHT * total
        else ()
    )
    # who names no data loader may have none, such as a server or a checkpoint being gathered
    if _reads_data(case):
        return *large, _smaller_loader(have), MORE
    return *large, MORE, _smaller_loader(have)


def _reads_data(case: Case) -> bool:
    """Whether a line or a frame is of a data loader."""
    lines = case.of(SystemFault, what="dataloader_killed")
    return bool(lines or matching(messages(case), "DataLoader", "dataloader", "num_workers"))


def _smaller_loader(have: str, workers: int = 8) -> Advice:
    return Advice(
        "Halve num_workers and prefetch_factor of the data loader, and keep the dataset in arrays"
        " or memory-mapped files.",
        code=(
            f"DataLoader(..., num_workers={max(1, workers // 2)}, prefetch_factor=2,"
            " persistent_workers=True)"
        ),
        why=f"Each rank and each of its workers holds its own copy{have}.",
        check=(
            "`sstat -j JOB -o MaxRSS` or the cgroup's memory.peak stays below the limit for one"
            " epoch."
        ),
        risk="Fewer workers may leave the GPU waiting; watch the step time.",
    )


def experiment(case: Case) -> Experiment:
    """Run one rank instead of all.

    Its memory then fits, and storage is not faster.
    """
    return experiment_of(
        "Does one rank alone, with all of the host's memory, complete the run?",
        {"ranks": 1},
        {
            ID: ("works", "it succeeds: the ranks together need more memory than there is"),
            "disk_or_io": ("other", "it stalls in the same call, with no other rank waiting"),
        },
    )


MORE = Advice(
    "Ask for more memory for the job or container (--mem of sbatch, the pod's memory limit,"
    " --memory of docker run), or let each rank hold less: load and save in shards instead of"
    " gathering all on one host, keep no outputs of all steps, offload less.",
    command="cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory.peak; free -h",
    why="The limit that was reached may be the job's, not the machine's.",
    check="memory.events shows oom_kill 0.",
    risk="Hides a leak: memory that grows with every step will reach any limit.",
)
SWAP = Advice(
    "Turn the swap on network storage off (sudo swapoff and its area), or put it on a local disk.",
    command="swapon --show",
    why=(
        "A rank that touches a swapped-out page waits for the network, and all ranks wait for the"
        " slowest."
    ),
    check="`swapon --show` lists local devices only.",
    risk=(
        "With less swap the OOM killer acts earlier; that is easier to see than a job that stalls."
    ),
)
CHECK = Preflight(
    ID,
    reads=("memory.total", "memory.swap", "limits.cgroup.memory"),
    risks=_host_risks,
    fine="This host has memory for its ranks, and no swap on network storage.",
    also=("memory.available", "gpu.count", *(f"job.{name}" for name in UNITS)),
    next=before_a_job,
)
REMEDIES = (_smaller_loader(""), _in_pieces("all of it"), MORE, SWAP)
