"""The container forbids what NCCL's cuMem allocations need

What you see
    Only inside a container: "cuMem host allocations do not appear to be working", "set_mempolicy:
    Operation not permitted" beside a CUDA error whose trace goes through transport/shm.cc, "UDS:
    Sending data over socket ... failed", "Error while attaching to shared memory segment
    /dev/shm/nccl- (size 0)", "Cuda failure 'invalid argument'" or 'operation not permitted' on
    allocation, while the same program runs on the bare machine.

Why it happens
    Since 2.19 NCCL allocates with CUDA's virtual memory functions (cuMem) and passes file
    descriptors between ranks through Unix sockets, since 2.24 host buffers too.  That needs NUMA
    system calls (blocked by Docker's seccomp profile), a common network namespace for abstract
    sockets, and a driver that supports it.  If it works for some ranks and not for others, they
    take different paths and misread each other.

How to be sure
    NCCL_CUMEM_HOST_ENABLE=0 (and NCCL_CUMEM_ENABLE=0) on all ranks makes it start.

What to do
    One container per machine serves as well.

Read more
    NCCL user guide: NCCL_CUMEM_ENABLE, NCCL_CUMEM_HOST_ENABLE.  NCCL 2.24-2.29 release notes.
"""

from __future__ import annotations

import re

from ncclkit.analysis.diagnostics import diagnostics
from ncclkit.analysis.picks import (
    family,
    first_finding,
    initialized,
    matching,
    messages,
    name_hosts,
    otherwise,
    pick,
    ranks_in,
    who_of,
)
from ncclkit.causes._experiments import experiment_of
from ncclkit.core.case import Case
from ncclkit.core.kinds import (
    C10dError,
    NcclDestroy,
    NcclInfo,
    NcclTrace,
    NcclVersion,
    NcclWarn,
    SystemDenied,
)
from ncclkit.core.model import Advice, Event, Experiment, Finding, Strength, found

ID = "cumem_container"
explains = ("c10d.error", "nccl.trace", "rank_exception", "c10d.timeout", "cuda_error", "slow_rank")


CALLS = (
    "cuMemCreate",
    "cuMemExport",
    "cuMemImport",
    "cuMemSetAccess",
    "pidfd_getfd",
    "operation not permitted",
    "Cuda failure 'operation not supported'",
    "Cuda failure 801",
)
"""Messages of an allocation that was refused or could not be shared with another rank."""
WITHOUT = {"NCCL_CUMEM_ENABLE": "0", "NCCL_CUMEM_HOST_ENABLE": "0"}
HOST_BUFFERS = (2, 24)
"""The first NCCL whose shared buffers on the host come from cuMem."""


def diagnose(case: Case) -> Finding:
    """Found where ranks could not pass descriptors.

    It is also found where their host buffers do not fit together.
    """
    went_well = [*initialized(case), *case.of(NcclDestroy)]
    missing = "NCCL_DEBUG=INFO output with NCCL_DEBUG_SUBSYS=INIT,ALLOC,SHM"
    return first_finding(
        case,
        _refused_sharing,
        _refused_buffers,
        _failed_import,
    ) or otherwise(ID, went_well, "NCCL's allocations worked.", missing)


def _refused_sharing(case: Case) -> Finding | None:
    """A rank could not pass, attach or allocate memory that it shares with another."""
    handles = family(case, "uds")
    attach = matching(family(case, "shm"), "attaching to shared memory")
    empty = []
    for event in matching(attach, "size 0", "No such file"):
        # a full /dev/shm is shm_too_small
        if not matching([event], "No space left"):
            empty.append(event)
    refused = []
    for event in matching(messages(case), *CALLS):
        # a CUDA graph under capture forbids the call, not the container
        if not matching([event], "stream is capturing"):
            refused.append(event)
    lines = handles + empty + refused
    if handles:
        what = "could not pass memory handles to another rank of the machine"
    elif empty:
        what = "could not attach to the shared buffer of another rank"
    else:
        what = "was refused a cuMem call"
    if not lines:
        return None
    certain = (
        handles or _own_hint(case) or matching(refused, "cudawrap") or matching(empty, "size 0")
    )
    return _finding(case, lines, what, is_certain=bool(certain))


def _refused_buffers(case: Case) -> Finding | None:
    """An NCCL that takes its host buffers from cuMem could not allocate them."""
    lines = _host_buffers(case)
    if not lines:
        return None
    what = "could not allocate its shared buffers on the host, which this NCCL takes from cuMem"
    certain = _own_hint(case) or family(case, "cuda")
    return _finding(case, lines, what, is_certain=bool(certain))


def _failed_import(case: Case) -> Finding | None:
    """NCCL's diagnostics could not map memory that a peer shares by file descriptor or IPC."""
    lines: list[Event] = []
    for event in diagnostics(case, "p2p_import"):
        if event.data.handle in ("LEGACY_CUDA_IPC", "CUMEM_POSIX_FD"):
            lines.append(event)
    if not lines:
        return None
    return _finding(
        case,
        lines,
        "could not map the memory of a peer",
        is_certain=True,
    )


def _own_hint(case: Case) -> list[Event]:
    """NCCL's own line that its allocations on the host do not appear to work."""
    return case.of(NcclInfo, family="cumem")


def _finding(case: Case, lines: list[Event], what: str, is_certain: bool) -> Finding:
    strength: Strength = "possible"
    if is_certain:
        strength = "likely"
    say = (
        f"{who_of(lines, lines[0].host)} {what}; in containers the usual"
        " reasons are namespaces and permissions."
    )
    return found(
        ID,
        strength,
        say,
        pick(lines, _own_hint(case), case.of(SystemDenied)[:2]),
        ranks=ranks_in(lines),
        hosts=name_hosts(lines),
        advice=_advice(),
        next=experiment(case),
    )


def _host_buffers(case: Case) -> list[Event]:
    """CUDA calls that failed below the shared-memory transport.

    NCCL must allocate its buffers by cuMem.  The same error below another transport is of another
    kind, and so is one of an older NCCL, which only registered memory of /dev/shm there.  Without a
    trace it takes a refused NUMA call to point at the host's buffers.
    """
    versions = [version for e in case.of(NcclVersion) if (version := _version_numbers(e))]
    # an older NCCL registers memory of /dev/shm, where the same error has other reasons
    if not versions or max(versions) < HOST_BUFFERS:
        return []
    failed = matching(family(case, "cuda"), "invalid argument", "not permitted", "not supported")
    traces = {(e.host, e.pid): e for e in case.of(NcclTrace)}
    reported = [(e, trace) for e in failed if (trace := traces.get((e.host, e.pid)))]
    below = []
    for pair in reported:
        # the same CUDA error below another transport is of another kind
        if "shm.cc" in str(pair[1].data.file):
            for event in pair:
                below.append(event)
    if case.of(NcclWarn) or case.of("cuda."):
        vague = []
    else:
        vague = matching(case.of(C10dError), "unhandled cuda error")
    mute = [e for e in failed if (e.host, e.pid) not in traces] + vague
    return below or (mute if case.of(SystemDenied) else [])


def _version_numbers(event: Event) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", str(event.data.version))[:2])


def _advice() -> tuple[Advice, ...]:
    return (
        Advice(
            "Let all ranks of a machine share one IPC and network namespace and allow the NUMA"
            " calls (docker run with --ipc=host --network=host --cap-add=SYS_NICE), or switch"
            " NCCL's cuMem allocations off on all ranks alike (NCCL_CUMEM_HOST_ENABLE=0).",
            command="grep -e Seccomp: -e CapEff /proc/self/status; df -h /dev/shm",
            why="Handles travel through Unix sockets and /dev/shm.",
            check="The 'cuMem host allocations' line is gone and the first collective completes.",
            risk="Less isolation of the container.",
        ),
        Advice(
            "Or switch the new allocations off, on all ranks alike.",
            env=WITHOUT,
            why="Ranks that differ here misread each other's buffers.",
            check="The first collective completes.",
            risk="Some features (NVLS, user buffers) need cuMem.",
        ),
    )


def experiment(case: Case) -> Experiment:
    """Run the same start without cuMem."""
    return experiment_of(
        "Does the job start without cuMem allocations?",
        {"env": WITHOUT},
        {
            ID: ("works", "it starts"),
            "shm_too_small": ("same", "it fails unless NCCL_SHM_DISABLE=1"),
            "nvswitch_fabric": (
                "works",
                "it starts, as NVLS is off too; NCCL_NVLS_ENABLE=0 alone then helps as well",
            ),
            "driver_too_old": ("same", "it fails in the same way"),
        },
    )


REMEDIES = _advice()
