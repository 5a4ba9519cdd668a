"""The matrix: break the live test in each way, and look whether it ends, is explained, and leaves nothing behind.

    python tests/record/matrix.py [--json FILE] [--markdown FILE] [--ranks 4 --simulate-hosts 2] [--keep DIR] [FAULT …]

On all GPUs over NCCL (--simulate-hosts: so many simulated hosts share them), with three ranks over gloo where there is
none (on two simulated hosts: four).  A cell is ``yes``, ``NO``, or ``-`` where the question does not arise.  Exit
status 1 when a cell fails.  DIR gets the case folders of the broken runs.  What other runs on the same machine leave
counts as left: there, give it processes, ports and shared memory of its own (``unshare``).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from ncclkit.causes.engine import diagnose  # noqa: E402
from ncclkit.core.case import Case  # noqa: E402
from ncclkit.core.model import Finding  # noqa: E402
from ncclkit.lab.faults import injection  # noqa: E402
from ncclkit.lab.faults.catalogue import LONG, Fault  # noqa: E402
from ncclkit.live.launch import local  # noqa: E402
from tests.processes import leftovers  # noqa: E402
from tests.record.gpu import about_machine  # noqa: E402
from tests.record.outside import DEADLINE, FULL, KERNEL, STRUCK, cancelled, full, kernel, struck  # noqa: E402

GRACE, TIMEOUT = 10.0, 10.0
"""Seconds that the end of a run may take, and that a collective may take."""
SETTLE = 10.0
"""Seconds in which what was left behind may still go: a killed process's GPU memory, a port in TIME_WAIT is none."""
GPU_NOISE = 64.0
"""MiB by which a GPU's used memory may differ although nothing is left."""
OUTSIDE = ("cancelled", *STRUCK, *KERNEL, *FULL)
"""Faults that do not happen in a rank."""
NEVER = """import os, time
if os.environ.get("RANK") == "{culprit}":
    time.sleep(90)
"""
"""Python runs it, as ``sitecustomize``, before anything else: an import that stands still, as on a dead file server."""
OWN = {
    fault.name: fault
    for fault in (
        Fault("never_starts", "one rank's interpreter stands still before it runs anything", "slow_rank"),
        Fault("starts_late", "one rank comes 3 s late", "", ("--fault", "starts_late", "--seconds", "3")),
        Fault("asleep", "one rank sleeps", "slow_rank", ("--fault", "asleep", *LONG)),
    )
}
"""Faults of this script alone, as the lab has the same with a story."""


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one broken run; None: the question does not arise."""

    fault: str
    ends: bool
    """Within its deadline and ten seconds, with the outcome that the fault must have."""
    cause: bool | None
    rank: bool | None
    processes: bool
    memory: bool
    """No file in /dev/shm, and no GPU memory, is left."""
    ports: bool
    seconds: float
    said: str


@dataclass(frozen=True, slots=True)
class Traces:
    """What a run could leave behind on this host."""

    shared: frozenset[str]
    ports: frozenset[str]
    gpus: tuple[float, ...]

    @staticmethod
    def here() -> Traces:
        """As it is now."""
        return Traces(frozenset(os.listdir("/dev/shm")), frozenset(_listening()), tuple(_gpu_memory()))

    def memory_as(self, before: Traces) -> bool:
        """No shared memory and no GPU memory more than before."""
        more = (now - then for now, then in zip(self.gpus, before.gpus, strict=True))
        return self.shared <= before.shared and all(grown < GPU_NOISE for grown in more)


def _listening() -> Iterator[str]:
    """Local addresses on which something listens."""
    for name in ("tcp", "tcp6"):
        table = Path("/proc/net") / name
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            words = line.split()
            if words[3] == "0A":
                yield words[1]


def _gpu_memory() -> Iterator[float]:
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return
    yield from (float(line) for line in said.split())


def settled(before: Traces) -> tuple[bool, bool, bool]:
    """(processes, memory, ports) gone, looked at until all are or the time is up."""
    until = time.monotonic() + SETTLE
    while True:
        now = Traces.here()
        gone = (leftovers() == [], now.memory_as(before), now.ports <= before.ports)
        if all(gone) or time.monotonic() > until:
            return gone
        time.sleep(0.2)


async def broken(name: str, folder: Path, where: dict[str, Any]) -> tuple[bool, bool | None, bool | None, str]:
    """(ended as it must, right cause first, right rank, sentence) of a fault inside a rank."""
    case, chosen, culprit = Case.open(folder), injection.fault(name), where["ranks"] // 2
    where = where | ({"simulate_hosts": 1} if chosen.net else {})  # it has hosts of its own
    if name == "never_starts":
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(NEVER.format(culprit=culprit))
        injection.FAULTS[name] = replace(chosen, env={"PYTHONPATH": str(folder)})
    run = await injection.inject(case, name, culprit=culprit, timeout=TIMEOUT, deadline=DEADLINE, live=True, **where)
    found = diagnose(case).findings
    if not chosen.cause or name in ("p2p_off", "sockets_only") or chosen.job == "collective":
        fine = run.reason == "done" and all(m.wrong == 0 for m in run.measurements)
        right = [finding.cause for finding in found] == [chosen.cause] * bool(chosen.cause)
        return fine, right, None, found[0].say if found else run.summary
    first = found[0] if found else None
    cause = first is not None and first.cause == chosen.cause
    faulty = {*injection.culprits(chosen, culprit, where["ranks"], where["simulate_hosts"])}
    rank = _named(first, faulty, {*chosen.hosts}) if faulty or chosen.hosts else None
    return run.reason in ("failed", "deadline"), cause, rank, first.say if first else run.summary


def _named(first: Finding | None, ranks: set[int], hosts: set[str]) -> bool:
    """Whether the first finding blames somebody, and nobody but whom the fault changed: ranks, or hosts."""
    blamed = set(first.culprits["ranks" if ranks else "hosts"]) if first else set()
    return bool(blamed) and blamed <= (ranks or hosts)


async def row(name: str, where: dict[str, Any], keep: Path | None) -> Row:
    """Break one run and look."""
    before, begun = Traces.here(), time.monotonic()
    asked: dict[str, Any] = {**where, "max_bytes": 1 << 20, "timeout": DEADLINE}
    cause: bool | None
    cause = rank = None
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "case"
        if name == "cancelled":
            ends, said = await cancelled(folder, **asked)
        elif name in STRUCK or name in KERNEL:
            ends, said = await asyncio.to_thread(struck if name in STRUCK else kernel, name, folder, **asked)
        elif name in FULL:
            ends, said = await full(FULL[name], folder, **asked)
        else:
            ends, cause, rank, said = await broken(name, folder, where)
        seconds = time.monotonic() - begun
        processes, memory, ports = await asyncio.to_thread(settled, before)
        said = said.replace(place, "…")
        if keep:
            shutil.copytree(folder, keep / name)
    in_time = ends and seconds < DEADLINE + GRACE
    return Row(name, in_time, cause, rank, processes, memory, ports, round(seconds, 1), said)


def markdown(rows: list[Row], about: dict[str, Any]) -> str:
    """The matrix as a table."""
    mark = {True: "yes", False: "**NO**", None: "-"}
    head = ["fault", "ends", "cause", "rank", "processes gone", "memory gone", "ports gone", "s", "what is said"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for one in rows:
        cells = (one.ends, one.cause, one.rank, one.processes, one.memory, one.ports)
        said = one.said.replace("|", "/").replace("\n", " ")[:160]
        lines.append(f"| {one.fault} | {' | '.join(mark[cell] for cell in cells)} | {one.seconds:.0f} | {said} |")
    told = ", ".join(f"{name} {value}" for name, value in about.items())
    return f"{told}\n\n" + "\n".join(lines) + "\n"


async def main() -> int:
    """Every row; 1 when a cell fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("faults", nargs="*")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--keep", type=Path, metavar="DIR")
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--simulate-hosts", type=int, default=1)
    options = parser.parse_args()
    answer = await local.check_interpreter(sys.executable)
    backend, ranks = ("nccl", options.ranks or answer["gpus"]) if answer["gpus"] else ("gloo", options.ranks or 3)
    where: dict[str, Any] = {"backend": backend, "ranks": ranks, "simulate_hosts": options.simulate_hosts}
    injection.FAULTS.update(OWN)
    root, jupyter = os.geteuid() == 0, all(map(find_spec, ("jupyter_client", "ipykernel")))
    chosen = [f for f in injection.FAULTS.values() if backend in f.backends and f.job in ("train", "collective")]
    known = [f.name for f in chosen if root or not (f.net or f.root)]
    lacking = {*(() if root else FULL), *(() if jupyter else KERNEL)}  # a full disk is mounted
    outside = [name for name in OUTSIDE if name not in lacking]
    about = {"date": time.strftime("%Y-%m-%d"), **where, **about_machine(answer)}
    about["kernel"] = platform.release()
    rows: list[Row] = []
    for name in options.faults or (*known, *outside):
        rows.append(await row(name, where, options.keep))
        print(markdown(rows[-1:], {}).splitlines()[-1], flush=True)
        if options.json:  # after each row: a run that is cut off keeps what it has
            options.json.write_text(json.dumps({**about, "rows": [asdict(one) for one in rows]}, indent=1) + "\n")
        if options.markdown:
            options.markdown.write_text(markdown(rows, about))
    return int(any(False in (r.ends, r.cause, r.rank, r.processes, r.memory, r.ports) for r in rows))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would not hear an interrupt
    sys.exit(asyncio.run(main()))
