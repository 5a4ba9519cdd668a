"""Ranks are bound to the wrong CPU cores, or all to the same one

What you see
    Every rank of a node is slow in launching work, GPUs idle between kernels, small collectives
    take several times as long as on another node, and `top` shows one busy core among a hundred
    idle ones.  Or half of the GPUs are slower in all that goes through the host, although all cards
    are alike.

Why it happens
    The kernel runs a process only on the cores of its affinity mask, and threads and data-loader
    workers inherit it. OMP_PROC_BIND or GOMP_CPU_AFFINITY binds a process to the first core of its
    mask as soon as torch is imported; each rank does so by itself, so all end on the same core.
    `srun` no longer takes over --cpus-per-task from sbatch (since Slurm 22.05) and gives one core.
    A mask on one socket makes ranks with GPUs on the other one reach them, and their memory, over
    the link between the sockets; NCCL then ignores the place of the GPU for its threads.

How to be sure
    `taskset -cp <pid>` of each rank: masks that are one core, or the same core; compare with the
    column CPU Affinity of `nvidia-smi topo -m`.  NCCL says what it took: "Affinity for GPU 3 is
    0-15 (GPU affinity ... CPU affinity ...)".

What to do
    `torchrun --numa-binding` needs torch 2.9; `srun --gpu-bind=closest` and `mpirun --map-by numa`
    bind ranks near their GPUs as well.

Read more
    https://docs.pytorch.org/docs/stable/elastic/numa.html
    https://slurm.schedmd.com/srun.html (--cpus-per-task, --cpu-bind, --gpu-bind)
    https://gcc.gnu.org/onlinedocs/libgomp/OMP_005fPROC_005fBIND.html
    NCCL user guide: NCCL_IGNORE_CPU_AFFINITY.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from ncclkit.analysis.picks import failed, first_finding, name_hosts, on, pick, ranks_in
from ncclkit.causes._experiments import experiment_of
from ncclkit.causes._preflight import HostFacts, Preflight, Risk, name_gpus
from ncclkit.core.case import Case
from ncclkit.core.kinds import NcclAffinity
from ncclkit.core.model import Advice, Event, Experiment, Finding, Strength, found

ID = "cpu_binding"
explains = ("cpu_contention",)
BINDS = {
    "OMP_PROC_BIND": re.compile(r"\s*(?:true|close|spread|master|primary)\b", re.I),
    "GOMP_CPU_AFFINITY": re.compile(r"\s*\d"),
}
"""Variables by which GNU OpenMP binds a process when it is loaded.

torch ships it; seen with torch 2.13.
"""
LONGEST = 1 << 14
"""Most CPUs that a machine can have: a damaged list must not fill the memory."""


def diagnose(case: Case) -> Finding:
    """Found where NCCL's log binds several GPUs to one core.

    It is also found where the facts of the hosts show it.
    """
    wide = []
    for event in case.of(NcclAffinity):
        if (event.data.cpus or 0) > 1:
            wide.append(event)
    missing = (
        "cpu.affinity of the job's hosts, or NCCL_DEBUG=INFO lines with the affinity of each GPU"
    )
    say = "NCCL's threads have several cores to run on."
    return first_finding(case, _one_core, CHECK.risk) or CHECK.otherwise(case, wide, say, missing)


def _one_core(case: Case) -> Finding | None:
    """Several GPUs of a host whose ranks may use only one and the same core."""
    held: dict[tuple[str, str], dict[object, Event]] = defaultdict(dict)
    for event in case.of(NcclAffinity):
        if event.data.cpus == 1:
            held[event.host, str(event.data.mask)][event.data.gpu] = event
    (host, mask), most = max(held.items(), key=lambda item: len(item[1]), default=(("", ""), {}))
    # one rank on one core may be meant so
    if len(most) < 2:
        return None
    lines = [*most.values()]
    gpus = tuple(sorted(str(gpu) for gpu in most))
    say = (
        f"The ranks of {name_gpus(gpus)}{on(host)} take turns on one CPU core, the only one they"
        f" may use (mask {mask})."
    )
    # A slow job seldom fails for that reason.
    strength: Strength = "likely"
    if failed(case):
        strength = "possible"
    why = pick(lines)
    hosts = name_hosts(lines)
    advice = (_advice_for_slurm(8), UNBIND)
    return found(
        ID,
        strength,
        say,
        why,
        ranks=ranks_in(lines),
        hosts=hosts,
        gpus=gpus,
        advice=advice,
        next=NEAR,
    )


def _host_risks(host: HostFacts) -> Iterator[Risk]:
    """Settings that bind every rank alike, and cores too few or too far.

    There are fewer cores than Slurm promised, or GPUs far from all usable cores.
    """
    mask = host.fact("cpu.affinity")
    if mask:
        own = cpus(mask.value)
    else:
        own = frozenset()
    for name, binds in BINDS.items():
        fact = host.fact(f"env.{name}")
        # with one core there is nothing to choose, and one rank may have it to itself
        if fact and binds.match(str(fact.value)) and host.ranks > 1 and len(own) > 1:
            say = (
                f"{name}={fact.value} is set; each of {host.ranks} ranks would bind itself to CPU"
                f" {min(own)}, the "
            )
            yield Risk(say + "first that they all may use", [fact, mask], UNBIND, "likely")
    promised = host.number("env.SLURM_CPUS_PER_TASK") or 0
    if own and len(own) < promised:
        count = f"{len(own)} CPU core{'s' if len(own) > 1 else ''}"
        say = (
            f"Slurm's job asked for {promised:g} cores a task and this step has {count}"
            f" ({mask and mask.value}); its "
        )
        facts = [mask, host.fact("env.SLURM_CPUS_PER_TASK")]
        yield Risk(
            say + "ranks would share what is left",
            facts,
            _advice_for_slurm(int(promised)),
            "likely",
        )
    yield from _remote_gpus(host, own)


def _remote_gpus(host: HostFacts, own: frozenset[int]) -> Iterator[Risk]:
    """GPUs whose nearest CPUs this process may not use.

    It may use CPUs near other GPUs.
    """
    near = {gpu: cpus(fact.value) for gpu, fact in host.gpus("cpus").items()}
    # no core near these GPUs, though near others: the mask is of one socket
    far = tuple(gpu for gpu, close in near.items() if own and close and not own & close)
    if far:
        mask = host.fact("cpu.affinity")
        close = host.fact(f"gpu.{far[0]}.cpus")
        say = (
            f"{name_gpus(far)}: the nearest CPUs are {close and close.value}, and processes may"
            " use "
        )
        say += (
            f"{mask and mask.value} only; ranks there would reach their GPUs through the other"
            " socket"
        )
        # Another step of the same job may get other cores.
        strength: Strength = "likely"
        if host.fact("env.SLURM_JOB_ID"):
            strength = "possible"
        yield Risk(say, [mask, close], SOCKETS, strength, gpus=far)


def cpus(text: object) -> frozenset[int]:
    """The CPUs of a kernel list such as ``0-15,32-47``; empty for any other text."""
    runs = [re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", run) for run in str(text).strip().split(",")]
    if not all(runs):
        return frozenset()
    spans = []
    for run in runs:
        if run:
            spans.append((int(run[1]), min(int(run[2] or run[1]), LONGEST)))
    found = []
    for first, last in spans:
        for cpu in range(first, last + 1):
            found.append(cpu)
    return frozenset(found)


def _advice_for_slurm(cores: int) -> Advice:
    return Advice(
        "Pass the number of cores per task to srun (--cpus-per-task, or by this variable); it does"
        " not take over sbatch's number.",
        command=f"export SRUN_CPUS_PER_TASK={cores}",
        why=(
            "Since Slurm 22.05 srun does not read SLURM_CPUS_PER_TASK any more, and its default is"
            " one core."
        ),
        check="`srun … taskset -cp $$` shows as many CPUs in every task.",
        risk="The allocation must hold them: tasks times cores on each node.",
    )


UNBIND = Advice(
    "Unset the variables that bind every process to the same core, and let the launcher bind each"
    " rank near its GPU (--numa-binding=node of torchrun, --gpu-bind=closest of srun).",
    command="unset OMP_PROC_BIND OMP_PLACES GOMP_CPU_AFFINITY",
    change={"unset": ["OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"]},
    why=(
        "They are meant for one process that has the machine to itself: each rank counts cores from"
        " the first."
    ),
    check="`taskset -cp <pid>` differs between the ranks, or holds all cores.",
    risk="None for the result; a job of one rank on the node may become a little slower.",
)
SOCKETS = Advice(
    "Give the job CPUs of both sockets (--cpuset-cpus of docker run), and bind each rank to those"
    " next to its GPU (--numa-binding=node of torchrun).",
    command="nvidia-smi topo -m; lscpu | grep -i numa",
    why=(
        "Launches, copies and NCCL's proxy threads cross the link between the sockets, and so does"
        " their memory."
    ),
    check="cpu.affinity of `ncclkit inspect` holds CPUs of every NUMA node that has a GPU.",
    risk=(
        "On a shared machine the other CPUs may belong to another job: ask the scheduler for them."
    ),
)
NEAR = experiment_of(
    "Is all_reduce faster when NCCL's threads run next to their GPUs, whatever the mask of the"
    " process says?",
    {"env": {"NCCL_IGNORE_CPU_AFFINITY": "1"}},
    {
        ID: ("faster", "busbw rises by half or more: the mask kept them away"),
        "slow_transport": ("works", "it works as before: the path between the GPUs is the same"),
        "cpu_contention": ("works", "it works as before: the processes themselves lack cores"),
    },
)


def experiment(case: Case) -> Experiment:
    """Run without the binding variables where one is set.

    Elsewhere run with NCCL's threads next to their GPUs.
    """
    if not any(case.facts_of(f"env.{name}") for name in BINDS):
        return NEAR
    return experiment_of(
        "Is the same job faster when no variable binds its processes?",
        dict(UNBIND.change),
        {
            ID: ("faster", "busbw rises by half or more: the ranks had shared a core"),
            "slow_transport": ("works", "it works as before: the path is the same"),
            "cpu_contention": ("works", "it works as before: there are too few cores for all"),
        },
    )


CHECK = Preflight(
    ID,
    reads=("cpu.affinity",),
    risks=_host_risks,
    fine="Processes may use cores next to every GPU, and nothing binds all of them to one.",
    also=(
        *("gpu.*.cpus", "gpu.count", "job.ranks", "env.SLURM_JOB_ID", "env.SLURM_CPUS_PER_TASK"),
        *(f"env.{name}" for name in BINDS),
    ),
    next=experiment,
)
REMEDIES = (UNBIND, _advice_for_slurm(8), SOCKETS)
