"""Another process runs on the GPU of a rank

What you see
    One GPU is busy before the job has begun; the job starts, but every step takes longer than
    yesterday and the time varies from step to step.  In exclusive mode the rank of that GPU ends at
    its first CUDA call instead, with "all CUDA-capable devices are busy or unavailable", and the
    others wait for it.

Why it happens
    Processes on one GPU take turns: the driver gives each a slice of time, so a rank that shares
    its card computes at half the speed, and as a collective waits for the last rank, one shared
    card slows the whole job down.  NCCL's kernels suffer more: they poll for their peers and make
    no progress while another process has the GPU.  The other process may be a left-over of a job
    that was killed, a notebook that still holds its kernel, a display, or another user where the
    scheduler does not hand out GPUs one by one.

How to be sure
    `nvidia-smi` before the job starts: utilisation above zero, and the list of processes.  In a
    container the list stays empty; look on the host.  `nvidia-smi pmon -c 5` shows which process
    computes.

What to do
    Ask the scheduler for whole GPUs: Slurm --gres=gpu:N with cgroup ConstrainDevices, Kubernetes
    nvidia.com/gpu without time slicing.

Read more
    https://docs.nvidia.com/deploy/mps/index.html (time slicing without MPS, compute modes)
    https://slurm.schedmd.com/gres.html (ConstrainDevices); NVIDIA device plug-in for Kubernetes:
    time slicing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ncclkit.analysis.picks import of_job, pick
from ncclkit.analysis.speed import measured_speed
from ncclkit.causes._experiments import experiment_of
from ncclkit.causes._preflight import HostFacts, Preflight, Risk, number
from ncclkit.core.case import Case
from ncclkit.core.event_list import known_hosts
from ncclkit.core.model import Advice, Experiment, Finding, Strength, found, unknown

ID = "gpu_shared"
explains: tuple[str, ...] = ()
BUSY, MOST = 20, 80
"""GPU utilization in percent: more than a desktop needs, and too much beside a rank."""


def diagnose(case: Case) -> Finding:
    """Found where a GPU was busy before the job began.

    During a job its own ranks may keep it busy.  A live test watches its GPUs from before its ranks
    come.
    """
    missing = (
        "`nvidia-smi` on each host before the job starts (gpu.<i>.busy, gpu.<i>.memory.holders)"
    )
    finding = _used_by_others(case)
    if finding:
        return finding
    # the facts were read while the job's own ranks kept the GPUs busy
    if of_job(case):
        return unknown(ID, missing)
    return CHECK.risk(case) or CHECK.otherwise(case, (), "", missing)


def _used_by_others(case: Case) -> Finding | None:
    """A slow live test on GPUs that were busy before.

    It is slower than it should be, and they were busy before a rank of it came.
    """
    speed = measured_speed(case)
    shared = []
    # GPUs that others use and a test at full speed harm nobody
    if speed and speed.slow:
        shared = [event for event in speed.others if event.data.gpus]
    if speed is None or not shared:
        return None
    shared_gpus = set()
    for event in shared:
        for gpu in event.data.gpus:
            shared_gpus.add(str(gpu))
    gpus = tuple(sorted(shared_gpus, key=int))
    hosts = tuple(sorted(known_hosts(shared)))
    why = pick(shared, [speed.judgement.best])
    return found(
        ID,
        "likely",
        speed.warning,
        why,
        hosts=hosts,
        gpus=gpus,
        advice=(_advice(gpus[0]),),
        next=experiment(case),
    )


def _host_risks(host: HostFacts) -> Iterator[Risk]:
    """GPUs on which a kernel runs, and GPUs in exclusive mode that a process holds."""
    for gpu, fact in host.gpus("busy").items():
        holders = host.fact(f"gpu.{gpu}.memory.holders")
        mode = host.fact(f"gpu.{gpu}.compute_mode")
        rows: list[Any] = []
        if holders and isinstance(holders.value, list):
            rows = holders.value
        process_names = []
        for row in rows[:3]:
            if isinstance(row, dict):
                process_names.append(_process_in_words(row))
        by = ", ".join(process_names)
        # a rank would not be slow there, it would be refused
        if by and mode and mode.value == "Exclusive_Process":
            say = (
                f"GPU {gpu} accepts one process (Exclusive_Process) and has {by}; a rank there"
                " would be refused"
            )
            yield Risk(say, [holders, mode], _advice(gpu), "likely", gpus=(gpu,))
        elif (busy := number(fact.value) or 0) >= BUSY:
            who = "with a process that is not visible from here"
            if by:
                who = f"with {by}"
            say = (
                f"GPU {gpu} is busy {busy:g} % of the time {who}; a rank there would take turns"
                " with it, and all "
            )
            say += "other ranks would wait for it in every step"
            strength: Strength = "possible"
            if busy >= MOST:
                strength = "likely"
            yield Risk(say, [fact, holders], _advice(gpu), strength, gpus=(gpu,))


def _process_in_words(row: dict[str, Any]) -> str:
    return f"process {row.get('pid')} ({row.get('name')})"


def _advice(gpu: str) -> Advice:
    of_gpu = ""
    if gpu:
        of_gpu = f" -i {gpu}"
    return Advice(
        f"Find the owner of the process on GPU {gpu or 'that is shared'}: end it if it is a"
        " left-over of yours, else use other GPUs.",
        command=(
            f"nvidia-smi{of_gpu}; nvidia-smi pmon -c 5{of_gpu};"
            " ps -fp $(nvidia-smi --query-compute-apps=pid --format=csv,noheader)"
        ),
        why=(
            "A GPU does the work of one process at a time, and a collective waits for the slowest"
            " rank."
        ),
        check=f"`nvidia-smi{of_gpu}` shows 0 % and no process before the job starts.",
        risk="Ending a process that belongs to another user destroys their work: ask first.",
    )


def experiment(case: Case) -> Experiment:
    """Run the live test on the GPUs that no other process uses."""
    known = [fact for fact in case.facts_of("gpu.") if fact.name.endswith(".busy")]
    busy = set()
    for fact in known:
        if (number(fact.value) or 0) >= BUSY:
            busy.add(fact.name)
    free_gpus = set()
    for fact in known:
        if fact.name not in busy:
            free_gpus.add(fact.name.split(".")[1])
    free = sorted(free_gpus) or ["0"]
    return experiment_of(
        "Does the same job work at full speed on the GPUs that no other process uses?",
        {"env": {"CUDA_VISIBLE_DEVICES": ",".join(free)}, "ranks": len(free)},
        {
            ID: ("works", "it does: the other GPUs were shared"),
            "gpu_oom": ("works", "it does: the memory of the others was taken"),
            "driver_too_old": ("same", "it fails on every GPU"),
            "slow_rank": ("same", "it is as late as before: the rank is late on any GPU"),
        },
    )


CHECK = Preflight(
    ID,
    reads=("gpu.*.busy",),
    risks=_host_risks,
    fine="No process computes on the GPUs.",
    also=("gpu.*.memory.holders", "gpu.*.compute_mode"),
    next=experiment,
)
REMEDIES = (_advice(""),)
