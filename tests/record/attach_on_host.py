"""Try on this host each way to a Flight Recorder of a job that hangs, and whether the job goes on; needs torch alone.

    python tests/record/attach_on_host.py OUT.json [--seconds 220]

Two ranks, over NCCL where there is a GPU (which they share where there is one), else over gloo.  The last rank waits
for a file, the other one in a collective.  Of each way: what was dumped, what was said, and whether the ranks came to
their end with the right sum once that file was there.  Then a program that computes on the CPU with matrices of
bfloat16, by AMX where there is one, is interrupted hundreds of times, and compares its results.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit.agent.monitor import flight_dump, remote_thread  # noqa: E402
from ncclkit.agent.run import processes  # noqa: E402
from tests.live import hangs  # noqa: E402

Method = Callable[[int, int, float, str], "tuple[bytes, str]"]
FOR_A_DUMP = 50.0
"""Seconds that one way may take."""
FOR_AN_END = 40.0
"""Seconds in which ranks end that nothing holds any more."""
FOR_A_JOB = 30.0
"""Seconds that must be left for a job to begin."""
INTERRUPTIONS = 300
COMPUTES = """
import os, sys, torch
torch.set_num_threads(1)
a = torch.randn(512, 512).to(torch.bfloat16)
known, rounds = a @ a, 0
print(flush=True)
while not os.path.exists(sys.argv[1]):
    assert torch.equal(a @ a, known)
    rounds += 1
print(rounds)
"""


def host() -> dict[str, Any]:
    """Processor, kernel, torch, GPUs and debuggers."""
    rows = (line.partition(":") for line in processes.read_text("/proc/cpuinfo").splitlines())
    cpu = {name.strip(): value.strip() for name, _, value in rows}
    ask = "import json, torch; c = torch.cuda; print(json.dumps([torch.__version__, [c.get_device_name(i) for i in range(c.device_count())]]))"  # noqa: E501
    torch, gpus = json.loads(printed_by([sys.executable, "-c", ask]).strip().splitlines()[-1])
    return {
        "cpu": cpu.get("model name", ""),
        "amx": sorted(flag for flag in cpu.get("flags", "").split() if flag.startswith("amx")),
        "kernel": platform.release(),
        "libc": platform.libc_ver()[1],
        "python": platform.python_version(),
        "torch": torch,
        "gpus": gpus,
        "ptrace_scope": processes.read_text("/proc/sys/kernel/yama/ptrace_scope").strip(),
        "debuggers": {name: debugger(program) for name, program in debuggers().items()},
    }


def printed_by(command: list[str]) -> str:
    """What a command prints."""
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def debuggers() -> dict[str, str | None]:
    """Name → path, None where it is not there."""
    return {"gdb": shutil.which("gdb"), "cuda-gdb": flight_dump.cuda_gdb()}


def debugger(program: str | None) -> dict[str, str]:
    """Its release, and what it says of registers that it cannot write."""
    if program is None:
        return {"version": "not installed", "refusal": ""}
    version = re.search(r"\d+\.\d+[\w.-]*\s*$", printed_by([program, "--version"]).splitlines()[0])
    return {"version": version[0].strip() if version else "", "refusal": flight_dump.refusal(program)}


def methods(backend: str) -> dict[str, Method]:
    """The ways that can be tried here."""
    found: dict[str, Method] = {"pipe": flight_dump._dump_by_pipe} if backend == "nccl" else {}
    found["remote_exec"] = flight_dump._remote_exec
    found["ptrace"] = flight_dump._dump_by_ptrace
    for name, program in debuggers().items():
        if program is not None:
            found[name] = by(program)
    return found


def by(program: str) -> Method:
    """The way of one debugger, which is attached only where it can write registers."""

    def ask(rank: int, pid: int, seconds: float, text: str) -> tuple[bytes, str]:
        refusal = flight_dump.refusal(program)
        return (b"", refusal) if refusal else flight_dump._dump_by_debugger(program, rank, pid, seconds)

    return ask


def tried(way: str, method: Method, backend: str, share: bool) -> dict[str, Any]:
    """What one way gave on a job of its own, and how that ended."""
    with tempfile.TemporaryDirectory() as folder:
        more = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
        more |= {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{folder}/pipe_", "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/trace_"}
        out = Path(folder, "out")
        out.mkdir()
        with hangs.start("released", 2, backend, share, **(more if way == "pipe" else {})) as job:
            ranks = {rank: process.pid for rank, process in job.items()}
            flight_dump.METHODS = {way: method}
            flight_dump.PATIENCE.setdefault(way, FOR_A_DUMP)
            begun = time.monotonic()
            problems = flight_dump.dump(str(out), ranks, begun + FOR_A_DUMP, {})
            seconds = time.monotonic() - begun
            states = [processes.process_state(pid) for pid in ranks.values()]
            again = interrupted(ranks) if way == "ptrace" else {}
            Path(processes.environ(ranks[0])["HANGS"], "go").touch()
            ends = [ended(process) for process in job.values()]
        sizes = {path.name: path.stat().st_size for path in sorted(out.iterdir())}
        return {
            "dumped": sizes,
            "problems": problems,
            "seconds": round(seconds, 2),
            "states_after": states,
            "exit_statuses": ends,
            "went_on": ends == [0, 0],
            **again,
        }


def interrupted(ranks: dict[int, int]) -> dict[str, Any]:
    """How often a thread was begun in the ranks that hang, and what was refused."""
    refusals: list[str] = []
    for pid in ranks.values():
        for _ in range(20):
            try:
                remote_thread.begin(pid, "pass")
            except remote_thread.ThreadRefused as why:
                refusals.append(str(why))
    return {"begun": 20 * len(ranks) - len(refusals), "refusals": sorted(set(refusals))}


def ended(process: subprocess.Popen[str]) -> int | None:
    try:
        return process.wait(FOR_AN_END)
    except subprocess.TimeoutExpired:
        return None


def computing() -> dict[str, Any]:
    """Whether a program that computes has the same results, however often a thread is begun in it."""
    with tempfile.TemporaryDirectory() as folder:
        end, pipe = Path(folder, "end"), subprocess.PIPE
        with subprocess.Popen([sys.executable, "-c", COMPUTES, str(end)], stdout=pipe, stderr=pipe, text=True) as child:
            assert child.stdout is not None
            child.stdout.readline()
            begun, refusals = time.monotonic(), []
            for _ in range(INTERRUPTIONS):
                try:
                    remote_thread.begin(child.pid, "pass")
                except remote_thread.ThreadRefused as why:
                    refusals.append(str(why))
            seconds = time.monotonic() - begun
            end.touch()
            out, errors = child.communicate(timeout=60)
        return {
            "begun": INTERRUPTIONS - len(refusals),
            "refusals": sorted(set(refusals)),
            "ms_each": round(1000 * seconds / INTERRUPTIONS, 1),
            "exit_status": child.returncode,
            "multiplications": out.strip(),
            "errors": errors[-500:],
        }


def main(target: Path, limit: float) -> int:
    """Write what was found, after each way anew; returns 0 where one way gave both dumps and the job went on."""
    until = time.monotonic() + limit
    here = host()
    backend, share = ("nccl", len(here["gpus"]) < 2) if here["gpus"] else ("gloo", False)
    report: dict[str, Any] = {"host": here, "backend": backend, "ways": {}}
    try:
        report["computing"] = computing()
    except (OSError, subprocess.SubprocessError) as error:
        report["computing"] = {"errors": str(error)}
    target.write_text(json.dumps(report, indent=1))
    for way, method in methods(backend).items():
        if until - time.monotonic() < FOR_A_JOB:
            report["ways"][way] = {"problems": ["no time was left"], "dumped": {}, "went_on": None}
            continue
        try:
            report["ways"][way] = tried(way, method, backend, share)
        except (OSError, RuntimeError) as error:
            report["ways"][way] = {"problems": [f"the job: {error}"], "dumped": {}, "went_on": None}
        target.write_text(json.dumps(report, indent=1))
    target.write_text(json.dumps(report, indent=1))
    print(target.read_text())
    return 0 if any(len(row["dumped"]) == 2 and row["went_on"] for row in report["ways"].values()) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=220.0)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(options.out.absolute(), options.seconds))
