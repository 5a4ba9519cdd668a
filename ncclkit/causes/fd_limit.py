"""A rank ran out of file descriptors, or of processes

What you see
    "Too many open files" (errno 24), "[Service thread] Accept failed", "received 0 items of
    ancdata" from a data loader, "can't start new thread" or "Resource temporarily unavailable" at
    fork.  Small jobs work, large ones do not.

Why it happens
    Every connection is a file descriptor: NCCL opens several sockets per peer and channel, the
    store one per rank, each data-loader worker pipes and shared-memory files.  The soft limit of a
    shell is often 1024, and Slurm or a container engine hands its own limit to the job, which is
    not the one `ulimit -n` shows after login.

How to be sure
    Inside the job: `ulimit -n` and `ls /proc/PID/fd | wc -l` for the failing rank shortly before.

What to do
    Slurm hands on the limit of slurmd's unit (LimitNOFILE), or that of your shell
    (PropagateResourceLimits).

Read more
    getrlimit(2); PyTorch docs: multiprocessing, sharing strategies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ncclkit.analysis.picks import (
    facts_below,
    family,
    first_finding,
    initialized,
    matching,
    messages,
    name_hosts,
    pick,
    ranks_in,
    who_of,
    without,
)
from ncclkit.analysis.rank_states import rank_states
from ncclkit.causes._experiments import experiment_of, machine, unasked
from ncclkit.causes._preflight import HostFacts, Preflight, Risk
from ncclkit.core import budgets
from ncclkit.core.case import Case
from ncclkit.core.event_list import first_host
from ncclkit.core.kinds import C10dTimeout, NcclDestroy, SystemFault
from ncclkit.core.model import Advice, Event, Evidence, Experiment, Fact, Finding, Strength, found

ID = "fd_limit"
explains = (
    "c10d.error",
    "nccl.trace",
    "store.lost",
    "rank_exception",
    "c10d.timeout",
    "slow_rank",
    "network_loss",
    "store_unreachable",
    "elastic.exit",
)
LOW = 1024
"""The soft limit that most systems give a shell."""
FEWEST = {"NCCL_MAX_NCHANNELS": "2", "NCCL_NSOCKS_PERTHREAD": "1", "NCCL_SOCKET_NTHREADS": "1"}
FRAGMENTS = (
    "Too many open files",
    "EMFILE",
    "errno 24",
    "of ancdata",
    "can't start new thread",
    "pthread_create failed",
)


def diagnose(case: Case) -> Finding:
    """Found where a process ran out of descriptors or threads.

    It is also found where the limit is too low for the ranks.
    """
    went_well: list[Evidence] = [
        *case.of(NcclDestroy),
        *initialized(case),
        *case.of(C10dTimeout),
    ]
    missing = "limits.nofile.soft of the job (`ulimit -n` inside it)"
    return first_finding(case, _ran_out, _failed_at_low_limit, CHECK.risk) or CHECK.otherwise(
        case, went_well, "No process ran out of file descriptors.", missing
    )


def _low_limits(case: Case) -> list[Fact]:
    return facts_below(case, "limits.nofile.soft", LOW + 1)


def _ran_out(case: Case) -> Finding | None:
    """The kernel refused a descriptor or a thread, in words that leave no doubt."""
    lines = _refusals(case)
    if not lines:
        return None
    threads = matching(
        lines, "can't start new thread", "Resource temporarily unavailable", "pids controller"
    )
    what = "file descriptors"
    if threads:
        what = "processes or threads"
    return _finding(case, "proven", what, lines)


def _failed_at_low_limit(case: Case) -> Finding | None:
    """NCCL could not open or accept a socket, at a shell's default limit."""
    if not _low_limits(case) or not _vague_failures(case):
        return None
    finding = _finding(case, "likely", "file descriptors", [])
    return replace(finding, next=experiment(case))


def _refusals(case: Case) -> list[Event]:
    lines = []
    for event in case.of(SystemFault):
        if event.data.what in ("too_many_files", "too_many_processes"):
            lines.append(event)
    lines += matching([*messages(case), *case.of("store.lost", "c10d.error")], *FRAGMENTS)
    # inotify watches have a limit of their own
    return [event for event in lines if "inotify" not in event.text]


def _vague_failures(case: Case) -> list[Event]:
    """NCCL's failures around sockets and files that name no limit."""
    unnamed = without(family(case, "fd"), _refusals(case))
    return [event for event in unnamed if "inotify" not in event.text]


def _finding(case: Case, strength: Strength, what: str, lines: list[Event]) -> Finding:
    vague, low = _vague_failures(case), _low_limits(case)
    seen = lines + vague
    limit = ""
    if low:
        limit = f" (its soft limit is {low[0].value})"
    return found(
        ID,
        strength,
        f"{who_of(seen, first_host(seen))} ran out of {what}{limit}.",
        pick(lines, vague, low),
        ranks=ranks_in(seen),
        hosts=name_hosts(seen),
        advice=_advice(len(rank_states(case).members)),
    )


def _ranks_of_job(host: HostFacts) -> int:
    """Ranks of the whole job, by the variables and GPUs of this host."""
    reported = [host.number(f"env.{name}") or 0 for name in ("WORLD_SIZE", "SLURM_NTASKS")]
    return int(max(2, *reported, host.gpu_count * (host.number("env.SLURM_NNODES") or 1)))


def _open_file_risks(host: HostFacts) -> Iterator[Risk]:
    limit = host.number("limits.nofile.soft")
    ranks = _ranks_of_job(host)
    if limit is None or limit < 0:  # unlimited
        return
    need = budgets.descriptors(ranks)
    say = f"a process may open {limit:g} files; "
    facts = [host.fact("limits.nofile.soft")]
    advice = _advice(ranks)[0]
    if limit < need.value:
        say += (
            f"one of {ranks} ranks would need up to {need.value:g} over sockets:"
            f" {need.words.rstrip('.')}"
        )
        yield Risk(say, facts, advice, "likely")
    # enough for the ranks themselves, but data loaders share each tensor by a descriptor
    elif limit <= LOW and host.gpu_count > 1:
        say += "that suffices for small jobs, but many ranks or data-loader workers would exceed it"
        yield Risk(say, facts, advice)


def _host_risks(host: HostFacts) -> Iterator[Risk]:
    """Limits of open files, and of processes and threads."""
    yield from _open_file_risks(host)
    for name in ("limits.cgroup.pids", "limits.nproc"):
        limit = host.number(name)
        if limit is not None and 0 <= limit < budgets.threads(host.gpu_count).value:
            say = (
                f"at most {limit:g} processes and threads may run ({name}); {host.gpu_count} ranks"
                " with their threads "
            )
            yield Risk(
                say + "and data-loader workers would exceed it", [host.fact(name)], PROCESSES
            )


def _advice(ranks: int) -> tuple[Advice, ...]:
    need = budgets.descriptors(max(2, ranks))
    # a power of two, with room for data-loader workers
    limit = 1 << max(16, int(need.value).bit_length())
    return (
        Advice(
            f"Raise the limit in the job itself, to {limit}: in its script, or for a container by"
            f" --ulimit nofile={limit}:{limit} of docker run.",
            command=f"ulimit -n {limit}",
            why=f"Each peer, channel and worker costs descriptors: over sockets {need.words}",
            check=f"`ulimit -n` inside the job prints {limit}, and the start passes.",
            risk=(
                "None up to the hard limit; beyond it the administrator must raise LimitNOFILE of"
                " slurmd or the container engine."
            ),
        ),
        Advice(
            "Let data-loader workers share tensors by file name instead of by descriptor.",
            code='torch.multiprocessing.set_sharing_strategy("file_system")',
            why="Each tensor in a queue holds a descriptor otherwise.",
            check="`ls /proc/PID/fd | wc -l` stays flat over an epoch.",
            risk="Files in /dev/shm may be left behind by a crash.",
        ),
        Advice(
            "Where the limit cannot be raised, let NCCL open fewer sockets.",
            env=FEWEST,
            why="It opens sockets for each peer, channel and thread.",
            check="The start passes, and `ls /proc/PID/fd | wc -l` stays below the limit.",
            risk="Less bandwidth between the nodes.",
        ),
    )


PROCESSES = Advice(
    "Raise the limit of processes of the container (--pids-limit=-1 of docker run) or the user.",
    command="ulimit -u; cat /sys/fs/cgroup/pids.max",
    why="The kernel counts threads as processes, and a rank has dozens.",
    check="`cat /sys/fs/cgroup/pids.current` stays well below the limit while the job runs.",
    risk=(
        "On shared machines the limit keeps a runaway program from taking all: ask the"
        " administrator."
    ),
)


def experiment(case: Case) -> Experiment:
    """Try how many files and threads are granted, then run the job.

    It runs with as few sockets as NCCL can use.
    """
    fewer = experiment_of(
        "Does the job start when NCCL opens as few sockets as possible?",
        {"env": FEWEST},
        {
            ID: ("works", "it starts, with a tenth of the descriptors"),
            "store_unreachable": ("same", "it fails in the same way"),
            "network_loss": ("same", "it fails in the same way"),
            "rank_exception": ("same", "it fails in the same way"),
        },
    )
    return unasked(case, machine(), fewer)


CHECK = Preflight(
    ID,
    reads=("limits.nofile.soft",),
    risks=_host_risks,
    fine="A process may open enough files for the ranks of this host.",
    also=(
        "gpu.count",
        "limits.cgroup.pids",
        "limits.nproc",
        "env.WORLD_SIZE",
        "env.SLURM_NTASKS",
        "env.SLURM_NNODES",
    ),
    next=experiment,
)
REMEDIES = (*_advice(2), PROCESSES)
