"""The kernel that each GPU of a job is in, by cuda-gdb; only on request, as the process is paused meanwhile."""

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor

from ..run import processes
from .flight_dump import CUDA, cuda_gdb, debugged

COST = "cuda-gdb attaches to each rank and needs ptrace; the process is paused for about 15 s and then goes on"
SECONDS = 60.0
"""That one rank may take."""
SIDE_BY_SIDE = 8
ROW = re.compile(
    # Kernel Parent Dev Grid Status SMs Mask GridDim BlockDim Invocation
    r"^\s*\*?\s*\d+\s+\S+\s+\d+\s+\d+\s+(?P<status>[A-Z]\w+)\s+\S+\s+\([\d,]+\)\s+\([\d,]+\)\s+(?P<call>\S.*?)\s*$"
)
UNNAMED = re.compile(r"(?:\(anonymous namespace\)|<unnamed>|\(unnamed\))::")
"""A namespace without a name, whose bracket is not that of arguments."""
LAUNCH = re.compile(r"\b(?P<name>[A-Za-z_][\w:]*)(?:<[^<>]*>)?(?:\([^()]*\))?<<<\([\d,]+\),\s*\([\d,]+\)")


def kernels(ranks, until):
    """({rank: the kernel that its GPU is in, "" where it is in none}, one sentence for each that is unknown)."""
    program = cuda_gdb()
    if program is None:
        return {}, ["cuda-gdb is neither on PATH nor in %s, so no GPU could be asked for its kernel" % CUDA]

    def one(rank):
        pid = ranks[rank]
        if processes.state(pid) in ("", "Z", "X"):
            return rank, None, "rank %d has ended" % rank
        if processes.owner(pid) != os.geteuid():
            return rank, None, "rank %d belongs to another user, so it is not stopped" % rank
        seconds = min(SECONDS, until - time.monotonic())
        if seconds <= 0 or processes.state(pid) in ("T", "t"):
            return (
                rank,
                None,
                "the kernel of rank %d was not asked for: %s" % (rank, "no time" if seconds <= 0 else "stopped"),
            )
        orders = ["-ex", "info cuda kernels", "-ex", "detach"]
        said = debugged([program, "-nx", "-batch", "-iex", "set auto-load no", "-p", str(pid), *orders], seconds)
        name = kernel_of(said)
        return rank, name, "" if name is not None else "cuda-gdb on rank %d: %s" % (rank, _why(said))

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        rows = list(pool.map(one, ranks))
    return {rank: name for rank, name, _ in rows if name is not None}, [why for _, _, why in rows if why]


def kernel_of(said):
    """The kernel in what cuda-gdb prints; "" where no kernel is active, None where it does not say.

    Of several that are active the first one of NCCL, as that is the one that waits for others.
    """
    said = UNNAMED.sub("", said)
    rows = [match for match in map(ROW.match, said.splitlines()) if match and match["status"] == "Active"]
    names = [match["call"].partition("(")[0].partition("<")[0].strip() for match in rows]
    names += [match["name"] for match in LAUNCH.finditer(said)]
    if names:
        return next((name for name in names if "nccl" in name.lower()), names[0])
    return "" if re.search(r"No CUDA kernels|no active kernel|No CUDA devices", said, re.IGNORECASE) else None


def _why(said):
    lines = [line.strip() for line in said.splitlines() if re.search(r"ptrace|denied|rror|not permitted|No such", line)]
    return (lines or ["no answer in time"])[-1][:200]
