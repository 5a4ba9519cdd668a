"""Storage is full or stalls

What you see
    "No space left on device", "Disk quota exceeded" while a checkpoint or cache is written, or one
    rank in state D (uninterruptible) in open, read or write while the others time out.

Why it happens
    Checkpoints of all ranks land at the same moment on one file system; a home quota of 20 GB holds
    the Triton, HF and pip caches of every job.  When a network file system stalls, the process that
    waits for it cannot even be killed, and in a collective program one waiting rank stalls all
    ranks.

How to be sure
    `df -h` and `df -i` of the path in the message, `quota -s`; a stack that ends in open, read,
    fsync, torch.save; /proc/PID/stack of the process in state D.

What to do
    Enlarge the file system where nothing can go; write checkpoints asynchronously and sharded.

Read more
    PyTorch docs: distributed checkpoint (async_save).  proc(5): process states.
"""

from __future__ import annotations

import shlex
import re
from collections.abc import Iterator

from ncclkit.analysis.frames import own_frame, place, stacks
from ncclkit.analysis.picks import (
    first_finding,
    matching,
    messages,
    name_hosts,
    on,
    pick,
    ranks_in,
    who_are,
    who_of,
)
from ncclkit.analysis.rank_states import rank_states
from ncclkit.analysis.steps import LEAST, measured_steps
from ncclkit.analysis.wait_kinds import FILE
from ncclkit.analysis.waits import others_wait, positions_of_case
from ncclkit.causes._awaited_advice import advice_on_wait
from ncclkit.causes._experiments import minimal
from ncclkit.causes._preflight import HostFacts, Preflight, Risk, number
from ncclkit.core.case import Case
from ncclkit.core.kinds import KernelStall, NcclDestroy, SystemFault
from ncclkit.core.model import Advice, Event, Experiment, Finding, Strength, found
from ncclkit.core.text import format_bytes

ID = "disk_or_io"
explains = (
    "c10d.timeout",
    "gloo.closed",
    "store.lost",
    "rank_exception",
    "slow_rank",
    "timeout_too_short",
    "elastic.exit",
)
STORAGE = (
    "torch/serialization",
    "safetensors",
    "pathlib",
    "/shutil",
    "fsspec",
    "torch/distributed/checkpoint",
    "/tarfile",
)
CALLS = {
    "open",
    "read",
    "write",
    "fsync",
    "readinto",
    "_save",
    "save_file",
    "load_file",
    "torch_save",
}
LOCAL = ("ext4", "xfs", "btrfs", "zfs", "overlay", "f2fs")
SCARCE = 1 << 30
"""Free bytes below which the next checkpoint hardly fits."""
IDLE = 0.2
"""Share of the time in a data loader below which it waits.

The CPU time says so.
"""
LOGGER = re.compile(r"\s*(?:wandb|mlflow|comet|tensorboard|clearml|neptune)\b", re.IGNORECASE)
RDMA = re.compile(r"\bUCX\b|\bibv_|\b(?:mlx|rc_mlx|efa)\w*|libfabric|\bfi_\w+\(")
"""Programs whose errors of input and output are a network's."""
SLOW = 200.0
"""Milliseconds of a write of 4 KiB with fsync that count as slow.

Local disks need below ten, network file systems tens.
"""


def diagnose(case: Case) -> Finding:
    """Found where a write failed, or a rank is in a storage call.

    The others wait meanwhile.
    """
    went_well = [
        *case.of(NcclDestroy),
        *rank_states(case).ended.values(),
        *stacks(case).values(),
    ]
    missing = "a stack of each rank at the moment of the hang, and `df -h`"
    return first_finding(
        case, _failed_write, _in_storage_call, _told_by_kernel, _of_steps, CHECK.risk
    ) or CHECK.otherwise(case, went_well, "No rank waited for storage.", missing)


def _failed_write(case: Case) -> Finding | None:
    """A file system refused a write: it is full, failed, or gone."""
    lines = _storage_errors(case)
    if not lines:
        return None
    what = "the file system is full or failed"
    if matching(lines, "quota"):
        what = "the disk quota is used up"
    say = f"{who_of(lines, lines[0].host)} could not write: {what}."
    gone = []
    for event in matching(lines, "Transport endpoint is not connected"):
        # without a path it may be a socket
        if ": '/" not in event.text:
            gone.append(event)
    # a job survives its logger
    beside = rank_states(case).raised and all(LOGGER.match(event.text) for event in lines)
    strength: Strength = "proven"
    if len(gone) == len(lines) or beside:
        strength = "possible"
    return found(
        ID,
        strength,
        say,
        pick(lines),
        ranks=ranks_in(lines),
        hosts=name_hosts(lines),
        advice=_advice(_local_folder(case)),
    )


REFUSED = (
    "No space left on device",
    "Disk quota exceeded",
    "Read-only file system",
    "Input/output error",
    "Stale file handle",
    "Stale NFS file handle",
    "PytorchStreamWriter failed",
    "file write failed",
    "unexpected pos",
    "Transport endpoint is not connected",
    "StorageFull",
)
"""Messages of kernel, torch and safetensors about a write that failed."""


def _storage_errors(case: Case) -> list[Event]:
    """Errors of files on storage; those of /dev/shm belong to shm_too_small."""
    lines = []
    for event in case.of(SystemFault):
        if event.data.what in ("no_space", "disk_quota") and not _shared_memory(event):
            lines.append(event)
    for event in matching(messages(case), *REFUSED):
        of_network = event.kind == "nccl.warn" or RDMA.search(event.text)
        if not _shared_memory(event) and not of_network:
            lines.append(event)
    return lines


def _in_storage_call(case: Case) -> Finding | None:
    """A few ranks are in a storage call while the others wait.

    The others may also have timed out and left no stack.
    """
    waiting = rank_states(case).waiting
    slow = {}
    for rank, stack in stacks(case).items():
        # a rank that waits in a collective had come: storage keeps it from nothing
        if _in_storage(stack) and rank not in waiting:
            slow[rank] = stack
    seen = positions_of_case(case)
    stack_of_rank = {}
    for rank, stack in slow.items():
        # of a running job it is told from more than one stack where a rank stands
        if rank not in seen:
            stack_of_rank[rank] = stack
    slow = stack_of_rank
    for rank, stand in seen.items():
        if stand.waits_for == FILE:
            slow[rank] = stand.lines[-1]
    # more ranks in storage than waiting are the ordinary save of a checkpoint on all
    if not 0 < len(slow) <= len(waiting):
        return None
    now = []
    for rank in slow:
        if rank in seen:
            now.append(seen[rank])
    if now:
        say = (
            f"{who_are(slow)} {now[0].activity(len(slow))};"
            f" {others_wait(case, slow) or 'the others wait'}."
        )
    else:
        where = place(own_frame(next(iter(slow.values())).data.frames, innermost_first=True))
        say = (
            f"{who_are(slow)} was in a storage call{' at ' + where if where else ''}"
            " while the others waited."
        )
    why = pick(slow.values(), waiting.values())
    advice = _advice(_local_folder(case))
    if now:
        advice = (*advice_on_wait(now[0]), *advice)
    return found(
        ID, "likely", say, why, ranks=tuple(sorted(slow)), advice=advice, next=experiment(case)
    )


def _of_steps(case: Case) -> Finding | None:
    """Measured steps that stop for a checkpoint, or for data of a loader.

    The loader waits and does not compute.  It is never more than `possible`: a loader may wait for
    the network, too.
    """
    measured = measured_steps(case)
    if measured is None:
        return None
    times, events = measured
    if times.brake("data"):
        idle = [event for event in events if _waits_for_data(event)]
    else:
        idle = []
    brake = times.brake("checkpoint") or (times.brake("data") if idle else None)
    if brake is None:
        return None
    doing = ""
    if brake.part == "data":
        doing = " It does not compute meanwhile."
    if brake.part == "data":
        ranks = ranks_in(idle)
    else:
        ranks = ()
    why = pick(idle or events)
    return found(
        ID,
        "possible",
        f"{brake}{doing}",
        why,
        ranks=ranks,
        advice=_advice(_local_folder(case)),
        next=experiment(case),
    )


def _waits_for_data(event: Event) -> bool:
    """Whether the rank waits in a loader without workers.

    It must compute less than a fifth of that time.
    """
    steps = []
    for row in event.data.steps:
        if row.get("loading") is not None:
            steps.append(row)
    waited = sum(row["parts"]["data"] for row in steps)
    computed = sum(row["loading"] for row in steps)
    # with workers the CPU time of the rank says nothing of the loading
    own = bool(event.data.loaders) and not any(loader[0] for loader in event.data.loaders)
    return (
        own
        and waited >= LEAST * sum(row["seconds"] for row in steps) > 0
        and computed < IDLE * waited
    )


def _told_by_kernel(case: Case) -> Finding | None:
    """The kernel reports lost storage, or a task hung in a system call.

    Such a call mostly waits for storage.
    """
    rows = case.of(KernelStall)
    lost = []
    for event in rows:
        if event.data.what in ("nfs", "storage"):
            lost.append(event)
    hung = []
    for e in rows:
        if e.data.what == "hung_task":
            hung.append(e)
    if not lost and not hung:
        return None
    first = (lost or hung)[0]
    # fmt: skip
    if lost:
        what = f"reports trouble with storage ({first.data.name or 'unnamed'})"
    else:
        what = f"saw {first.data.name} hang in a system call, which most often waits for storage"
    say = f"The kernel{on(first.host)} {what}; a rank that reads or writes there stalls."
    strength: Strength = "possible"
    if lost:
        strength = "likely"
    why = pick(lost, hung, rank_states(case).waiting.values(), limit=6)
    return found(
        ID, strength, say, why, hosts=name_hosts(lost + hung), advice=_advice(_local_folder(case))
    )


def _host_risks(host: HostFacts) -> Iterator[Risk]:
    """Folders that are full or slow to write to."""
    for label, fact in host.each("storage.*.latency").items():
        folder = f"the folder {host.value(f'storage.{label}.path') or label}"
        free = host.fact(f"storage.{label}.free")
        latency = number(fact.value)
        room = None
        if free:
            room = number(free.value)
        if "No space left" in fact.why or (room is not None and room < SCARCE):
            if room is None:
                free_of_it = "no space left"
            else:
                free_of_it = f"{format_bytes(room)} free"
            say = f"{folder} has {free_of_it}; a checkpoint or log would not fit"
            yield Risk(say, [free or fact], _advice()[0], "likely")
        elif "did not answer" in fact.why:
            say = f"{folder} did not answer a small write; a rank that writes there would stall"
            yield Risk(say, [fact], _advice()[0], "likely")
        elif latency is not None and latency > SLOW:
            say = (
                f"a small write to {folder} takes {latency:.0f} ms; a rank that saves there would"
                " delay the others"
            )
            yield Risk(say, [fact], _advice()[0])


def _shared_memory(event: Event) -> bool:
    return bool(
        matching([event], "/dev/shm", "posix_fallocate", "shared memory", "/torch_", "NCCL")
    )


def _in_storage(stack: Event) -> bool:
    # further out every training loop is inside of some file of these
    inner = stack.data.frames[:4]
    for frame in inner:
        if frame.get("func") in CALLS or any(
            part in str(frame.get("file", "")) for part in STORAGE
        ):
            return True
    return False


def _local_folder(case: Case) -> str:
    """A local folder of this case's hosts that has room, where one is known.

    It lies on a local disk.
    """
    facts = {(fact.host, fact.name): fact.value for fact in case.facts_of("storage.")}
    for (host, name), kind in facts.items():
        head, _, last = name.rpartition(".")
        room = number(facts.get((host, f"{head}.free")))
        # a network file system may be what stalls
        if last == "type" and kind in LOCAL and room is not None and room > SCARCE:
            return str(facts.get((host, f"{head}.path")) or "")
    return ""


def _advice(folder: str = "") -> tuple[Advice, ...]:
    room = folder.rstrip("/")
    move = such = ""
    if room:
        such = f", such as {folder}"
        quoted = shlex.quote(room)
        move = f"; export TMPDIR={quoted} HF_HOME={quoted}/hf TRITON_CACHE_DIR={quoted}/triton"
    return (
        Advice(
            "Free space, and point caches and temporary files (TMPDIR, HF_HOME, TRITON_CACHE_DIR)"
            f" to a local disk with room{such}; of /dev/shm give the container more (--shm-size of"
            " docker run).",
            command=f"df -h . /tmp /dev/shm ~; df -i .; quota -s{move}",
            why="One rank that cannot write stops all of them.",
            check="`df` shows room for two checkpoints before the job starts.",
            risk="Local disks are lost with the node: keep checkpoints on shared storage.",
        ),
    )


def experiment(case: Case) -> Experiment:
    """Run the same ranks without the program and its files."""
    return minimal(
        "Do the same ranks complete an all_reduce that reads and writes no files?",
        {
            ID: "they do: the program waited for storage",
            "slow_rank": "they do: the program itself was slow",
        },
        {"network_loss": "they fail too", "p2p_broken": "they fail too"},
    )


CHECK = Preflight(
    ID,
    reads=("storage.*.free", "storage.*.latency"),
    risks=_host_risks,
    fine="The folders have room and are quick to write to.",
    also=("storage.*.path",),
    next=experiment,
)
REMEDIES = _advice()
