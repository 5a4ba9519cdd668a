"""A CUDA kernel of the program failed; NCCL only delivers the message

What you see
    "CUDA error: an illegal memory access was encountered", "device-side assert triggered",
    "unspecified launch failure", reported by the NCCL watchdog or the next synchronising call, on
    one rank first; then timeouts on the others.

Why it happens
    Kernels run asynchronously.  One that reads outside of its memory (an index out of range in an
    embedding, a custom kernel with 32-bit overflow) invalidates the whole CUDA context.  Every
    later call returns the same error, and the watchdog, which polls all the time, often reports it
    first.  The traceback points at an unrelated line.

How to be sure
    Run the failing rank with CUDA_LAUNCH_BLOCKING=1 (the traceback is then true), or
    compute-sanitizer; dmesg shows Xid 13 or 31 for that process.  Xid 48, 79, 94 would mean
    hardware instead.

What to do
    Fix or upgrade the kernel the blocking run points at; check label and token ids against the
    table size.

Read more
    PyTorch docs: CUDA semantics, asynchronous execution.  NVIDIA: compute-sanitizer, Xid errors.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ncclkit.analysis.launchers import launcher
from ncclkit.analysis.launches import global_ranks, hosts_of, in_brackets, places_in_words
from ncclkit.analysis.outcome import unread_lines
from ncclkit.analysis.picks import (
    first_finding,
    in_order,
    matching,
    messages,
    name_hosts,
    name_ranks,
    on,
    otherwise,
    pick,
    ranks_in,
)
from ncclkit.causes._experiments import experiment_of, over_gloo, unasked
from ncclkit.core.case import Case
from ncclkit.core.kinds import CudaError, KernelXid, NcclWarn, RasCommunicator
from ncclkit.core.model import Advice, Event, Experiment, Finding, Strength, found
from ncclkit.core.text import start

ID = "cuda_error"
explains = (
    "c10d.timeout",
    "c10d.error",
    "c10d.monitor",
    "nccl.trace",
    "rank_exception",
    "slow_rank",
    "store.lost",
    "network_loss",
    "rank_divergence",
)
OTHERS = (
    "out of memory",
    "no kernel image",
    "invalid device function",
    "driver version",
    "system not yet initialized",
    "uncorrectable",
    "over nvlink or a hardware error",
    "CUDA_ERROR_CONTAINED",
    "peer access",
    "PEER_ACCESS",
    "PeerAccess",
    "HANDLE_TYPE_FABRIC",
    "invalid device ordinal",
    "fork",
    "unsupported toolchain",
    "busy or unavailable",
    "No CUDA GPUs",
    "ALLOC_FAILED",
    "OUT_OF_MEMORY",
    "named symbol not found",
    "error: 802",
    "SYSTEM_NOT_READY",
    "device handle",
    "RmInitAdapter",
    "fallen off",
    "display driver",
    "forward compatibility",
    "NO_DEVICE",
    "no CUDA-capable device",
    "initialization error",
    "is capturing",
    "driver shutting down",
    "custom_all_reduce.cuh",
    "during capture",
    "StreamCapture",
)
"""CUDA errors that belong to another cause."""
# words of libraries on CUDA, too: cuBLAS and cuDNN report what their kernels did
FAULTS = (
    "illegal memory access",
    "device-side assert",
    "unspecified launch failure",
    "misaligned address",
    "illegal instruction",
    "invalid argument",
    "invalid program counter",
    "CUBLAS_STATUS",
    "CUDNN_STATUS",
    "CUSPARSE_STATUS",
    "cuFFT error",
    "invalid configuration",
    "unknown error",
    "launch timed out",
    "illegal address",
    "internal error",
)
XIDS = {
    13: "an exception in a kernel",
    31: "an access to memory that is not its own",
    43: "a kernel that was stopped",
}
"""Xids that the driver logs for errors of programs, by NVIDIA's list."""


def diagnose(case: Case) -> Finding:
    """Found at the first CUDA error of the run that is the program's own."""
    went_well = case.of("nccl.destroy", "c10d.timeout", "progress")
    return first_finding(
        case, _own_error, _error_of_driver, _unnamed_error, _reported_to_ras
    ) or otherwise(ID, went_well, "No CUDA call failed.", "the standard error of every rank")


def _own_error(case: Case) -> Finding | None:
    """A rank reports a CUDA error that no other cause owns."""
    lines = _own_errors(case)
    if not lines:
        return None
    xids = _program_xids(case)
    ordered = in_order(lines)
    # the context is gone after the first error: every later call, on any thread, repeats it
    first = ordered[0]
    # the first line may stand in a log without ranks
    ranks = ranks_in([first]) or ranks_in(ordered)
    error = _name_of_error(first)
    where = f"{name_ranks(ranks)}{on(first.host)}"
    by_nccl = first.kind == "nccl.warn" and error == "invalid argument"
    if by_nccl:
        # no kernel fails with it: NCCL made a CUDA call that the machine or the program disallows
        say = f"A CUDA call that NCCL itself made on {where} was refused ({error})."
    else:
        say = f"A CUDA kernel on {where} failed ({error}); NCCL and the watchdog only report it."
    strength: Strength = "likely"
    if by_nccl:
        strength = "possible"
    if xids or _prints_assertion(ordered):
        strength = "proven"
    return found(
        ID,
        strength,
        start(say),
        pick(ordered[:4], xids),
        ranks=ranks,
        hosts=name_hosts([first]),
        advice=_advice(case, ordered),
        next=experiment(case),
    )


def _reported_to_ras(case: Case) -> Finding | None:
    """A communicator has a CUDA error, by NCCL's RAS, which does not say which."""
    for report in case.of(RasCommunicator):
        local = []
        for rank, error in report.data.errors.items():
            if "CUDA error" in error:
                local.append(int(rank))
        if not local:
            continue
        numbers = global_ranks(case.events, report)
        if numbers is None:
            continue
        ranks = tuple(sorted(numbers.get(rank, rank) for rank in local))
        where = in_brackets(places_in_words(report, local))
        say = (
            f"A CUDA call failed on {name_ranks(ranks)}{where}, by NCCL's"
            " RAS; only the log of the rank says which."
        )
        return found(
            ID,
            "possible",
            say,
            pick([report]),
            ranks=ranks,
            hosts=tuple(hosts_of(report, local)),
            advice=_advice(case, []),
            next=experiment(case),
        )
    return None


def _own_errors(case: Case) -> list[Event]:
    lines = [event for event in case.of(CudaError) if not matching([event], *OTHERS)]
    for event in matching(messages(case), *FAULTS):
        # "invalid argument" and "internal error" are said by many programs beside CUDA
        names_cuda = matching([event], "cuda", "cudnn", "cufft")
        # a failed multicast set-up is the fabric's (nvswitch_fabric)
        if names_cuda and not matching([event], *OTHERS) and "nvls" not in event.text:
            lines.append(event)
    return lines


def _program_xids(case: Case) -> list[Event]:
    return [event for event in case.of(KernelXid) if event.data.xid in XIDS]


def _name_of_error(event: Event) -> str:
    """The error in CUDA's words, as far as the line has them."""
    told: str | None = ""
    if isinstance(event.data, (CudaError, NcclWarn)):
        told = event.data.error
    if told:
        return str(told)[:100]
    for fault in FAULTS:
        if fault.lower() in event.text.lower():
            return fault
    return "an error"


def _error_of_driver(case: Case) -> Finding | None:
    """The driver logged an error of a program, and no rank reports one of its own."""
    xids = _program_xids(case)
    # beside a hardware fault an Xid of a program may be its consequence
    if not xids or len(xids) < len(case.of(KernelXid)):
        return None
    number = xids[0].data.xid
    buses = set()
    for event in xids:
        if event.data.bus:
            buses.add(str(event.data.bus))
    say = (
        f"The driver logged an error of a program on a GPU{on(xids[0].host)} (Xid {number}:"
        f" {XIDS[number]})."
    )
    return found(
        ID,
        "likely",
        say,
        pick(xids),
        hosts=name_hosts(xids),
        gpus=tuple(sorted(buses)),
        advice=_advice(case),
        next=experiment(case),
    )


def _unnamed_error(case: Case) -> Finding | None:
    """torch quotes NCCL's "unhandled cuda error" and no line says which."""
    vague = matching(messages(case), "unhandled cuda error")
    if not vague or case.of(NcclWarn) or case.of("cuda."):
        return None
    say = "A CUDA call inside NCCL failed; this log does not say which or why."
    return found(
        ID,
        "possible",
        say,
        pick(vague, limit=3),
        ranks=ranks_in(vague),
        advice=_advice(case),
        next=experiment(case),
    )


def _prints_assertion(lines: list[Event]) -> bool:
    """True where the CUDA kernel's own assertion is printed.

    Without it hardware or another defect may be the reason.
    """
    return any("Assertion `" in event.text for event in lines)


INDEX = ("srcIndex", "index out of bounds", "t >= 0 && t < n_classes", "idx_dim")
"""Words of assertions of kernels that look something up."""
OUT_OF_RANGE = Advice(
    "Find the index that is out of range: a label beyond the classes, a token beyond the"
    " vocabulary, or an input longer than the model's positions; check or cut the inputs before"
    " the GPU gets them.",
    env={"CUDA_LAUNCH_BLOCKING": "1"},
    why="The assertion is of a kernel that looks something up in a table.",
    check="The traceback with the variable ends in that look-up.",
    risk="Slow with the variable; only for the test.",
)
NEWER = Advice(
    "Try the newest release of the engine, or its options without the kernel at fault (eager mode,"
    " another attention or expert kernel); synchronous launches show which one it is.",
    env={"CUDA_LAUNCH_BLOCKING": "1"},
    command="dmesg -T | grep -i xid",
    why="The kernels are the engine's own, and such errors are fixed there.",
    check="The same request passes.",
    risk="Slow with the variable; only for the test.",
)
ENGINES = ("vllm", "sglang", "tensorrt_llm")
SERVES = re.compile(r"POST /v1/|/(?:vllm|sglang|tensorrt_llm)/|\bmax context length\b")
"""Lines of a server that answers requests with a model."""


def _advice(case: Case, lines: Sequence[Event] = ()) -> tuple[Advice, ...]:
    """How to find the kernel; first what its own assertion says, or whose kernels these are."""
    first: list[Advice] = []
    if matching(lines, *INDEX):
        first.append(OUT_OF_RANGE)
    spoken = [*case.events, *unread_lines(case), *unread_lines(case, "quiet")]
    if launcher(case) in ENGINES or any(SERVES.search(event.text) for event in spoken):
        first.append(NEWER)
    return (
        *first,
        Advice(
            "Run once with synchronous launches to see the true line, and look for Xids in dmesg.",
            env={"CUDA_LAUNCH_BLOCKING": "1", "NCCL_DEBUG": "INFO"},
            command="dmesg -T | grep -i xid",
            why="Kernels fail asynchronously; the traceback otherwise points at a later call.",
            check="The traceback ends in the operator whose kernel failed.",
            risk="Slow; it may also hide a race.",
        ),
    )


def experiment(case: Case) -> Experiment:
    """Run the same GPUs and ranks without the program's kernels, then the program without GPUs."""
    plain = experiment_of(
        "Does a plain all_reduce work on the same GPUs, without the program's own kernels?",
        {"minimal": True},
        {
            ID: (
                "works",
                "it works: the failing kernel is the program's; CUDA_LAUNCH_BLOCKING=1 then shows"
                " its line",
            ),
            "gpu_oom": ("works", "it works: the program had taken the memory"),
            "gpu_hardware_error": ("same", "it fails too, always on the same GPU"),
            "driver_too_old": ("same", "it fails too, with its very first kernel"),
        },
    )
    gloo = over_gloo(
        case,
        "Does the same program work over gloo, on the CPUs?",
        {
            "gpu_hardware_error": "it does: no GPU is used",
            "driver_too_old": "it does: no driver is used",
        },
        {
            ID: "it fails too, and says in words what is wrong",
            "rank_exception": "it fails too, with its own error",
        },
    )
    return unasked(case, plain, *gloo)


REMEDIES = (*_advice(Case()), OUT_OF_RANGE, NEWER)
