"""The kernel that each GPU of a job is in, by cuda-gdb.

It is asked for only on request, as the process is paused meanwhile.  Where there is time it is
asked twice: a GPU that is in another launch then works, and is slow at most.
"""

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor

from ..run import processes
from .flight_dump import ATTACH_NEEDS, CUDA, MORE_TIME, STOP_BEFORE, cuda_gdb, debugged

COST = (
    "cuda-gdb attaches to each rank and needs ptrace; the process is paused for about 15 s and then"
    " goes on"
)
SIDE_BY_SIDE = 8
ROW = re.compile(
    # Kernel Parent Dev Grid Status SMs Mask GridDim BlockDim Invocation
    r"^\s*\*?\s*\d+\s+\S+\s+\d+\s+(?P<grid>\d+)\s+"
    r"(?P<status>[A-Z]\w+)\s+\S+\s+\([\d,]+\)\s+\([\d,]+\)\s+(?P<call>\S.*?)\s*$"
)
UNNAMED = re.compile(r"(?:\(anonymous namespace\)|<unnamed>|\(unnamed\))::")
"""A namespace without a name, whose bracket is not that of arguments."""
LAUNCH = re.compile(
    r"\b(?P<name>[A-Za-z_][\w:]*)(?:<[^<>]*>)?(?:\([^()]*\))?<<<\([\d,]+\),\s*\([\d,]+\)"
)
GRID = re.compile(r"\bkernel \d+, grid (\d+)")


class Kernels:
    """The kernels of ranks at one moment, and at another; `ask` each time."""

    def __init__(self, ranks):
        self.ranks = ranks
        self.rows = {rank: [] for rank in ranks}  # type: dict[int, list[dict[str, object]]]
        self.took = 0.0

    def ask(self, until):
        """Ask each GPU, until this moment; returns one sentence for each that is unknown."""
        return self._ask(until, ATTACH_NEEDS)

    def _ask(self, until, least):
        begun, program = time.monotonic(), cuda_gdb()
        if program is None:
            return [
                "cuda-gdb is neither on PATH nor in %s, so no GPU could be asked for its kernel"
                % CUDA
            ]
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            problems = list(
                pool.map(lambda rank: self._one(program, rank, until, least), self.ranks)
            )
        self.took = time.monotonic() - begun
        return [problem for problem in problems if problem]

    def ask_again(self, until):
        """As `ask`, of the ranks that answered, where enough time is left.

        It needs as much as the first time took.
        """
        self.ranks = {rank: pid for rank, pid in self.ranks.items() if self.rows[rank]}
        left = until - time.monotonic()
        least = self.took + STOP_BEFORE
        if self.ranks and left < least:
            words = (self.took, max(0.0, left), MORE_TIME)
            return [
                "GPUs were asked once for their kernels: again takes %.0f s, and %.0f s were"
                " left; %s" % words
            ]
        if self.ranks:
            return self._ask(until, least)
        return []

    def _one(self, program, rank, until, least):
        pid = self.ranks[rank]
        if not processes.is_alive(pid):
            return "rank %d has ended" % rank
        if processes.owner(pid) != os.geteuid():
            return "rank %d belongs to another user, so it is not stopped" % rank
        if processes.process_state(pid) in ("T", "t"):
            return "the kernel of rank %d was not asked for: it is stopped" % rank
        left = until - time.monotonic()
        if left < least:
            return "rank %d was not asked for its kernel: %.0f s were left; %s" % (
                rank,
                max(0.0, left),
                MORE_TIME,
            )
        orders = ["-ex", "info cuda kernels", "-ex", "detach"]
        said = debugged(
            [program, "-nx", "-batch", "-iex", "set auto-load no", "-p", str(pid), *orders], until
        )
        found = kernel_of(said)
        if found is None:
            return "cuda-gdb on rank %d: %s" % (rank, _why(said))
        self.rows[rank].append({"t": round(time.time(), 3), "name": found[0], "grid": found[1]})
        return ""


def kernel_of(said):
    """The kernel, and the number of its launch or "", by what cuda-gdb prints.

    It is ("", "") where no kernel is active, None where cuda-gdb does not say.  Of several that are
    active it is the first one of NCCL, as that is the one that waits for others.
    """
    said = UNNAMED.sub("", said)
    rows = [
        match
        for match in map(ROW.match, said.splitlines())
        if match and match["status"] == "Active"
    ]
    found = [
        (match["call"].partition("(")[0].partition("<")[0].strip(), match["grid"]) for match in rows
    ]
    focus = GRID.search(said)
    found += [(match["name"], focus[1] if focus else "") for match in LAUNCH.finditer(said)]
    if found:
        return next((one for one in found if "nccl" in one[0].lower()), found[0])
    if re.search(r"No CUDA kernels|no active kernel|No CUDA devices", said, re.IGNORECASE):
        return "", ""
    return None


def _why(said):
    lines = [
        line.strip()
        for line in said.splitlines()
        if re.search(r"ptrace|denied|rror|not permitted|No such", line)
    ]
    return (lines or ["no answer in time; " + MORE_TIME])[-1][:200]
