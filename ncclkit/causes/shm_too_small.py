"""/dev/shm is too small or full

What you see
    "posix_fallocate failed : No space left on device", "failed to extend /dev/shm/nccl-... to n
    bytes", "unhandled system error" at the first collective, or a rank that dies of a bus error
    (exit code -7, "unable to write to file </torch_...>", "insufficient shared memory (shm)").

Why it happens
    Ranks of one machine that cannot copy between GPUs directly exchange data through files in
    /dev/shm, a file system in memory; data-loader workers hand over batches through the same place.
    Docker gives a container 64 MiB of it by default, Kubernetes likewise, and NCCL alone may need
    that per pair of GPUs.  If the file cannot be extended NCCL reports it; if memory runs out while
    a mapped page is touched, the kernel sends SIGBUS.

How to be sure
    `df -h /dev/shm` inside the container while the job starts.  The job runs with
    NCCL_SHM_DISABLE=1 (slower).

Read more
    NCCL user guide, Troubleshooting: shared memory.  PyTorch docs: multiprocessing, docker images.
"""

from __future__ import annotations

from collections.abc import Iterator

from ncclkit.analysis.picks import (
    facts_below,
    failed,
    family,
    first_finding,
    matching,
    messages,
    name_hosts,
    on,
    pick,
    ranks_in,
    who_of,
)
from ncclkit.causes._experiments import experiment_of, machine, unasked
from ncclkit.causes._preflight import HostFacts, Preflight, Risk
from ncclkit.core.case import Case
from ncclkit.core.event_list import first_host
from ncclkit.core.kinds import (
    C10dError,
    C10dTimeout,
    ElasticExit,
    NcclChannel,
    NcclDestroy,
    NcclWarn,
    SystemFault,
)
from ncclkit.core.model import Advice, Event, Evidence, Experiment, Fact, Finding, Strength, found
from ncclkit.core.text import format_bytes

ID = "shm_too_small"
explains = (
    "c10d.error",
    "nccl.trace",
    "c10d.timeout",
    "gloo.closed",
    "store.lost",
    "rank_exception",
    "slow_rank",
    "elastic.exit",
    "rank_killed",
    "disk_or_io",
    "host_oom",
)
ENOUGH = 1 << 30
"""Bytes below which a training job is likely to hit the limit; Docker's default is 64 MiB."""
TINY, FULL = 64 << 20, 32 << 20
"""Bytes: Docker's default, and what one pair of ranks may take."""


def diagnose(case: Case) -> Finding:
    """Found where a process was refused memory in /dev/shm.

    It is also found where it is as small as a container's default.
    """
    shared = case.of(NcclChannel, via="SHM")
    went_well: list[Evidence] = [*case.of(NcclDestroy), *shared, *case.of(C10dTimeout)]
    missing = "`df -h /dev/shm` in the container, or NCCL_DEBUG=WARN output"
    return first_finding(
        case, _refused_file, _bus_error, _failed_on_small, _unnamed_error, CHECK.risk
    ) or CHECK.otherwise(case, went_well, "Shared memory was not refused.", missing)


def _small_sizes(case: Case) -> list[Fact]:
    return facts_below(case, "limits.shm.size", ENOUGH)


def _refused_file(case: Case) -> Finding | None:
    """NCCL, torch or the kernel says that a file in /dev/shm could not be made or extended."""
    lines = _shm_errors(case)
    if not lines:
        return None
    small = _small_sizes(case)
    certain = []
    for event in lines:
        if not matching([event], *REASONS):
            certain.append(event)
    strength: Strength = "likely"
    if certain and (_on_shm(certain) or small):
        strength = "proven"
    return _finding(lines, small, strength)


def _bus_error(case: Case) -> Finding | None:
    """A process died of SIGBUS.

    It touched a mapped page for which no memory was left.
    """
    lines: list[Event] = [
        e for e in case.of(ElasticExit) if -7 in (e.data.exitcode, -(e.data.signal or 0))
    ]
    lines += case.of(SystemFault, what="bus_error")
    if not lines:
        return None
    facts = _small_sizes(case) + facts_below(case, "limits.shm.free", FULL)
    # a bus error has other reasons as well, such as a file that was cut while it was mapped
    strength: Strength = "likely"
    if facts:
        strength = "proven"
    return _finding(lines, facts, strength)


def _unnamed_errors(case: Case) -> list[Event]:
    return matching(messages(case), "unhandled system error")


def _failed_on_small(case: Case) -> Finding | None:
    """A job failed where there is little shared memory.

    It failed in an unnamed system call, or uses shared memory.
    """
    small = _small_sizes(case)
    vague = _unnamed_errors(case)
    shared = case.of(NcclChannel, via="SHM")
    if small and failed(case) and (vague or shared):
        return _finding([*vague, *shared[:2]], small, "likely")
    return None


def _unnamed_error(case: Case) -> Finding | None:
    """A system call of NCCL failed, and the log does not name it."""
    # with NCCL's warnings the call would be named, and so it is by a last error
    if case.of(NcclWarn):
        return None
    lines = []
    for event in _unnamed_errors(case):
        if "Last error" not in event.text:
            lines.append(event)
    if not lines:
        return None
    return found(
        ID,
        "possible",
        f"{who_of(lines)} failed in a system call that this log does not"
        " name; the usual reason in a container is a /dev/shm that is too small.",
        pick(lines),
        ranks=ranks_in(lines),
        advice=_advice(TINY),
        next=experiment(case),
    )


def _shm_errors(case: Case) -> list[Event]:
    lines = matching(
        [*family(case, "shm", "memory", "system_call", "other"), *case.of(C10dError)],
        "No space left",
        "failed to extend",
        "posix_fallocate",
        "shm_open",
    )
    lines += matching(
        messages(case),
        "insufficient shared memory",
        "unable to write to file </torch_",
        "unable to open shared memory",
        "unable to allocate shared memory",
        "from file </torch_",
        "creating shared memory segment",
        "Could not map /dev/shm",
        "/dev/shm has only",
    )
    # UCX and Open MPI name their own segments
    lines += case.of(SystemFault, what="shm")
    files = set()
    for event in case.of(SystemFault):
        if event.data.what == "too_many_files":
            files.add((event.path, event.line))
    # the reason may be wrapped
    lines = [e for e in lines if not {(e.path, e.line), (e.path, e.line + 1)} & files]
    lines = [e for e in lines if not matching([e], "Too many open files")]
    # a full disk is disk_or_io
    lines += [e for e in case.of(SystemFault, what="no_space") if "/dev/shm" in e.text]
    return lines


REASONS = (
    "No such file",
    "Permission denied",
    "Cannot allocate memory",
    "File exists",
    "Operation not permitted",
)
"""Other reasons for a refusal than lack of room.

The writer has gone, rights are missing, or the host's own memory is short.
"""


def _on_shm(lines: list[Event]) -> bool:
    return bool(matching(lines, "posix_fallocate", "/dev/shm", "shm", "/torch_"))


def _finding(why: list[Event], facts: list[Fact], strength: Strength) -> Finding:
    size = None
    for fact in facts:
        # what is free changes; the size is what the container was given
        if fact.name.endswith("size"):
            size = fact.value
            break
    host = first_host(why) or first_host(facts)
    has = ""
    if size:
        has = f", which has {format_bytes(size)}"
    verb = "probably ran out of memory in"
    if strength == "proven":
        verb = "was refused memory in"
    say = (
        f"{who_of(why)} {verb} /dev/shm{on(host)}{has}; NCCL and data-loader workers"
        " exchange data there."
    )
    return found(
        ID,
        strength,
        say,
        pick(why, facts),
        ranks=ranks_in(why),
        hosts=name_hosts(why) or tuple({host} - {""}),
        advice=_advice(size),
    )


def _host_risks(host: HostFacts) -> Iterator[Risk]:
    size = host.number("limits.shm.size")
    free = host.number("limits.shm.free")
    if size is not None and size < ENOUGH:
        say = (
            f"/dev/shm has {format_bytes(size)}; NCCL or data-loader workers that need more of it"
            " would fail"
        )
        strength: Strength = "possible"
        if size <= TINY:
            strength = "likely"
        yield Risk(say, [host.fact("limits.shm.size")], _advice(size)[0], strength)
    # a large /dev/shm may be full of files that killed jobs left
    elif free is not None and free < FULL:
        if size is None:
            of = ""
        else:
            of = f" of {format_bytes(size)}"
        say = (
            f"/dev/shm has {format_bytes(free)} free{of}; a job that starts there would be refused"
            " memory"
        )
        yield Risk(say, [host.fact("limits.shm.free")], _advice(size)[1], "likely")


def _advice(size: float | None) -> tuple[Advice, ...]:
    return (
        Advice(
            "Give the container at least 16 GiB of shared memory: docker run with --shm-size=16g or"
            " --ipc=host; on Kubernetes a volume emptyDir {medium: Memory, sizeLimit: 16Gi} mounted"
            " at /dev/shm.",
            command="df -h /dev/shm; ls -l /dev/shm",
            why=(
                "Docker's and Kubernetes' default is 64 "
                f"MiB{'; yours is ' + format_bytes(size) if size and size != 64 << 20 else ''}."
            ),
            check=(
                "`df -h /dev/shm` in the container shows the new size, and the first collective"
                " passes."
            ),
            risk="Shared memory counts against the container's memory limit when it is used.",
        ),
        Advice(
            "Remove files that killed jobs left behind.",
            command="ls -l /dev/shm; rm -i /dev/shm/nccl-* /dev/shm/torch_*",
            why="They hold memory until someone deletes them.",
            check="`df /dev/shm` shows free space.",
            risk="Never while another job of this machine runs: it uses the same names.",
        ),
        Advice(
            "Until then keep NCCL out of /dev/shm.",
            env={"NCCL_SHM_DISABLE": "1"},
            why=(
                "Ranks that cannot copy between GPUs directly then use the network of the machine"
                " itself."
            ),
            check=(
                "Channel lines say 'via NET' and no longer 'via SHM', and the first collective"
                " completes."
            ),
            risk="Slower; data-loader workers still need /dev/shm.",
        ),
    )


def experiment(case: Case) -> Experiment:
    """Try how much /dev/shm grants, then run without NCCL's shared memory.

    It is the same job without that transport.
    """
    without = experiment_of(
        "Does the job start when NCCL does not use /dev/shm?",
        {"env": {"NCCL_SHM_DISABLE": "1"}},
        {
            ID: ("works", "it starts, slower, over the network transport"),
            "cumem_container": ("works", "it starts too, but /dev/shm is large"),
            "driver_too_old": ("same", "it fails in the same way"),
            "fd_limit": ("same", "it fails in the same way: another system call is refused"),
        },
    )
    return unasked(case, machine(), without)


CHECK = Preflight(
    ID,
    reads=("limits.shm.size", "limits.shm.free"),
    risks=_host_risks,
    fine="/dev/shm has room for NCCL and data-loader workers.",
    next=experiment,
)
REMEDIES = _advice(None)
