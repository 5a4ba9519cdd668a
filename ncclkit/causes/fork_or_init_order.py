"""CUDA or NCCL was used in the wrong order: before fork, twice, or after its end

What you see
    "Cannot re-initialize CUDA in forked subprocess", "trying to initialize the default process
    group twice", "corrupted comm object detected", "Default process group has not been
    initialized", aborted communicators at exit, or a child process that hangs at its first CUDA
    call.

Why it happens
    A CUDA context does not survive fork: the child inherits handles without the threads behind
    them.  Notebooks and data-loader workers fork after the parent has touched the GPU.  Likewise a
    communicator must outlive its last operation: destroying the group, or leaving the program,
    while another rank still sends, aborts it for all.

How to be sure
    torch.cuda.is_initialized() in the parent before it starts children; the order of init, last
    collective, and destroy_process_group on every rank.

What to do
    forkserver and torchrun serve as well as spawn; touch CUDA only in the children.

Read more
    PyTorch docs: multiprocessing with CUDA; destroy_process_group.
"""

from __future__ import annotations

from ncclkit.analysis.frames import inside
from ncclkit.analysis.launchers import launcher
from ncclkit.analysis.picks import (
    family,
    first_finding,
    in_order,
    matching,
    messages,
    otherwise,
    pick,
    ranks_in,
    who_of,
)
from ncclkit.analysis.rank_states import rank_states
from ncclkit.causes._experiments import minimal
from ncclkit.core.case import Case
from ncclkit.core.kinds import C10dError, C10dMonitor, C10dTimeout, CudaError, NcclDestroy, Stack
from ncclkit.core.model import Advice, Event, Experiment, Finding, Strength, found

ID = "fork_or_init_order"
explains = (
    "rank_exception",
    "c10d.error",
    "c10d.timeout",
    "slow_rank",
    "cuda_error",
    "nccl.peer_closed",
)
FORK = (
    "Cannot re-initialize CUDA in forked subprocess",
    "CUDA error: initialization error",
    "Poison fork",
    "should only be initialized inside your training function",
)
ORDER = (
    "initialize the default process group twice",
    "Default process group has not been initialized",
    "corrupted comm object",
    "is not a valid pointer",
    "before the previous operation returned ncclSuccess",
    "communicator was revoked",
    "Invalid process group specified",
    "context has already been set",
    "driver shutting down",
    "Default process group is not initialized",
    "process group has been destroyed",
    "Cuda failure 'initialization error'",
    "current process has finished its bootstrapping phase",
)


def diagnose(case: Case) -> Finding:
    """Found where a library reports a wrong order.

    It is also found where communicators were aborted at exit without a failure.
    """
    went_well = case.of(NcclDestroy, how="destroy") + [
        *rank_states(case).ended.values(),
        *case.of(C10dTimeout),
    ]
    return first_finding(case, _reported_order, _stuck_teardown, _aborted_in_use) or otherwise(
        ID,
        went_well,
        "Processes and groups started and ended in order.",
        "the standard error of every rank",
    )


def _reported_order(case: Case) -> Finding | None:
    """CUDA reports a fork, or torch a process group that should not be so.

    The group does not exist or exists already.
    """
    pool = [*messages(case), *case.of(CudaError)]
    fork = matching(pool, *FORK)
    order = matching(pool, *ORDER)
    lines = fork or order
    if not lines:
        return None
    certain = matching(fork, "fork", "inside your training function") or matching(
        order, "process group"
    )
    strength: Strength = "likely"
    if certain:
        strength = "proven"
    # a program that cleans up after a failed start finds no process group: that is a consequence
    if not fork and len(certain) == len(lines) and _after_another(case, lines):
        strength = "possible"
    what = "started processes or used a process group too early or too late"
    if fork:
        what = "used CUDA in a process that was forked after the parent had used it"
    ranks = ranks_in(lines)
    who = who_of(lines)
    # CUDA itself says that the process was forked
    if strength == "proven" and fork:
        ask_it = None
    else:
        ask_it = experiment(case)
    return found(
        ID, strength, f"{who} {what}.", pick(lines), ranks=ranks, advice=_advice(case), next=ask_it
    )


def _after_another(case: Case, lines: list[Event]) -> list[Event]:
    """Earlier errors in the same files.

    Cleaning up after a failed start finds no process group.  It is empty for a rank whose log
    begins with the missing group.
    """
    # the earliest of these lines in each file stays in the dict
    first = {event.path: event.line for event in reversed(in_order(lines))}
    kinds = (
        "python.exception",
        "store.connect_timeout",
        "store.bind",
        "cuda.oom",
        "c10d.error",
        "c10d.timeout",
    )
    errors = []
    for kind in kinds:
        for event in case.of(kind):
            if not matching([event], *ORDER, *FORK):
                errors.append(event)
    return [event for event in errors if event.line < first.get(event.path, 0)]


def _stuck_teardown(case: Case) -> Finding | None:
    """destroy_process_group does not return, and no rank had failed before."""
    states = rank_states(case)
    lines: list[Event] = case.of(C10dMonitor, what="abort")
    lines += [e for e in case.of(Stack) if inside(e, *ENDING)]
    # after a failure the end of a group hangs because of that
    if not lines or states.waiting or states.dead or case.of(C10dError):
        return None
    say = f"{who_of(lines)} did not return from destroying a process group: another rank still "
    say += "used it, or the ranks destroy their groups in different orders."
    return found(
        ID, "possible", say, pick(lines), ranks=(), advice=_advice(case), next=experiment(case)
    )


def _aborted_in_use(case: Case) -> Finding | None:
    """A communicator was aborted at exit, and the other end complains.

    That is the other end of its connections.
    """
    aborted = case.of(NcclDestroy, how="abort")
    complaints = []
    for event in family(case, "proxy", "fd"):
        if matching([event], "Accept failed", "operation Close", "Could not receive type"):
            complaints.append(event)
    # after a timeout the watchdog aborts the communicators: that is no exit
    if not aborted or not complaints or rank_states(case).waiting:
        return None
    return found(
        ID,
        "possible",
        f"{who_of(aborted)} aborted the communicator at exit while another rank still used it.",
        pick(complaints, aborted, limit=5),
        ranks=(),
        advice=_advice(case),
        next=experiment(case),
    )


ENDING = (
    "abortCommsFromMap",
    "ncclCommAbort",
    "ncclCommDestroy",
    "ncclCommFinalize",
    "destroy_process_group",
)
"""Functions on the stack of a rank that ends a process group."""


def _advice(case: Case) -> tuple[Advice, ...]:
    in_order = Advice(
        "Start processes without fork after CUDA, initialise once, and end with a barrier and "
        "destroy_process_group on all ranks, in the same order on each.",
        code='torch.multiprocessing.set_start_method("spawn")\n...\ndist.barrier()\n'
        "dist.destroy_process_group()",
        why="A CUDA context and a communicator belong to one process, from first to last use.",
        check="The program starts and ends without warnings on all ranks.",
        risk="spawn imports the program again: guard it with if __name__ == '__main__'.",
    )
    forked = matching([*messages(case), *case.of(CudaError)], *FORK)
    if forked and launcher(case) == "vllm":
        return SPAWN_WORKERS, in_order
    return (in_order,)


SPAWN_WORKERS = Advice(
    "Let vLLM start its workers by spawn, or touch no CUDA before the engine starts.",
    env={"VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
    why="vLLM forks its workers, and CUDA that the parent has used does not survive a fork.",
    check="The engine starts.",
    risk="spawn imports the program again: guard it with if __name__ == '__main__'.",
)


def experiment(case: Case) -> Experiment:
    """Run the same ranks, started, used and ended in order."""
    return minimal(
        "Do the same ranks work when they start, use and end everything in order and fork nothing?",
        {
            ID: "they do: the order in the program is wrong",
            "rank_exception": "they do: another error of the program",
        },
        {"version_mismatch": "they fail too", "gpu_hardware_error": "they fail too, on one GPU"},
    )


REMEDIES = (*_advice(Case()), SPAWN_WORKERS)
