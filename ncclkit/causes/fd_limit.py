"""A rank ran out of file descriptors, or of processes

What you see
    "Too many open files" (errno 24), "[Service thread] Accept failed", "received 0 items of ancdata" from a
    data loader, "can't start new thread" or "Resource temporarily unavailable" at fork.  Small jobs work, large ones
    do not.

Why it happens
    Every connection is a file descriptor: NCCL opens several sockets per peer and channel, the store one per rank,
    each data-loader worker pipes and shared-memory files.  The soft limit of a shell is often 1024, and Slurm or a
    container engine hands its own limit to the job, which is not the one `ulimit -n` shows after login.

How to be sure
    Inside the job: `ulimit -n` and `ls /proc/PID/fd | wc -l` for the failing rank shortly before.

What to do
    Raise the soft limit to the hard one in the job script (ulimit -n 65536), docker run --ulimit nofile=65536, for
    Slurm LimitNOFILE in slurmd's unit or PropagateResourceLimits.  For data loaders:
    torch.multiprocessing.set_sharing_strategy("file_system").

Read more
    getrlimit(2); PyTorch docs: multiprocessing, sharing strategies.
"""

from __future__ import annotations

from ncclkit.case import Case
from ncclkit.causes._words import family, matching, messages, name_hosts, name_ranks, on, otherwise, pick, ranks_in
from ncclkit.model import Advice, Evidence, Finding, found
from ncclkit.words import start

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
FRAGMENTS = ("Too many open files", "EMFILE", "errno 24", "of ancdata", "can't start new thread")


def diagnose(case: Case) -> Finding:
    """Somebody says so, or the limit is small for the number of ranks."""
    lines = [e for e in case.of("system.error") if e.data.get("what") in ("too_many_files", "too_many_processes")]
    lines += matching([*messages(case), *case.of("store.lost"), *case.of("c10d.error")], *FRAGMENTS)
    vague = [e for e in family(case, "fd") if e not in lines]
    low = [f for f in case.facts_of("limits.nofile.soft") if isinstance(f.value, int) and f.value <= 1024]
    if not lines and not (vague and low):
        went_well: list[Evidence] = [
            *[f for f in case.facts_of("limits.nofile.soft") if f.value and f not in low],
            *case.of("nccl.destroy"),
            *[e for e in case.of("nccl.init") if e.data.get("phase") == "done"],
            *case.of("c10d.timeout"),
        ]
        return otherwise(
            ID,
            went_well,
            "Nobody ran out of file descriptors.",
            "limits.nofile.soft of the job (`ulimit -n` inside it)",
        )
    ranks = ranks_in(lines + vague)
    limit = next((f.value for f in low), None)
    threads = matching(lines, "can't start new thread", "Resource temporarily unavailable")
    what = "processes or threads" if threads else "file descriptors"
    host = next((e.host for e in lines + vague if e.host), "")
    say = f"{start(name_ranks(ranks))}{on(host)} ran out of {what}{f' (its soft limit is {limit})' if limit else ''}."
    return found(
        ID,
        "proven" if lines else "likely",
        say,
        pick(lines, vague, low),
        ranks=ranks,
        hosts=name_hosts(lines + vague),
        advice=_advice(),
    )


def _advice() -> tuple[Advice, ...]:
    return (
        Advice(
            "Raise the limit in the job itself.",
            command="ulimit -n 65536   # in the job script; docker run --ulimit nofile=65536:65536",
            why="Each peer, channel and worker costs descriptors.",
            check="`ulimit -n` inside the job prints 65536, and the start passes.",
            risk=(
                "None up to the hard limit; beyond it the administrator must raise LimitNOFILE of slurmd "
                "or the container engine."
            ),
        ),
        Advice(
            "Let data-loader workers share tensors by file name instead of by descriptor.",
            code='torch.multiprocessing.set_sharing_strategy("file_system")',
            why="Each tensor in a queue holds a descriptor otherwise.",
            check="`ls /proc/PID/fd | wc -l` stays flat over an epoch.",
            risk="Files in /dev/shm may be left behind by a crash.",
        ),
    )
