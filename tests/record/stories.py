"""The five stories, whole and headless: how long each takes, what each step said, over NCCL where there are GPUs.

    python tests/record/stories.py OUT.json [--only STORY …] [--chinese] [--nbval] [--side-by-side N] [--cores N]
                                            [--deadline S] [--keep DIR]

Each story is run as a user runs it, by ``ncclkit report``.  Four ranks on fewer GPUs become those of simulated hosts.
``--chinese`` runs their pairs in Chinese.  ``--nbval`` runs them under pytest in place of a report, as they are.
OUT.json takes date, hardware, versions, and for each story: wall and CPU seconds, every run, what each cell said, and
the verdict.  DIR gets a ``STORY.tar.gz`` of each case folder, with its report.  ``--cores 2``: each story has two cores
of its own, as a student has.  Exit status 1 when a story did not end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from queue import SimpleQueue
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import nbformat  # noqa: E402

from ncclkit.agent import redact  # noqa: E402
from ncclkit.agent.run import processes
from ncclkit.core import storage  # noqa: E402
from ncclkit.core.case import Case  # noqa: E402
from ncclkit.core.experiment_records import experiments  # noqa: E402
from ncclkit.core.storage import write
from ncclkit.lab.faults import recording  # noqa: E402
from ncclkit.live.launch import local  # noqa: E402
from ncclkit.report import declared, literals  # noqa: E402
from tests.record.gpu import about_machine  # noqa: E402
from tests.reports import CHINESE, ENV, NOTEBOOKS  # noqa: E402

NBVAL = ("pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--nbval-lax", "--nbval-current-env")
STORIES = {path.stem: path for path in NOTEBOOKS if path.parent.name == "cases"}
PACKAGES = ("lightning", "lightning-fabric", "pytorch-lightning", "torchdata", "papermill", "ipykernel")
GRACE = 40.0
"""Seconds in which a story that was interrupted writes what it has."""
LARGEST = 4 << 20
"""Bytes of the largest file that is kept; what is larger are checkpoints and traces of the GPU."""
LONGEST_FIRST = ("2_lightning", "5_all_to_all", "3_llama_recipes", "1_recbole", "4_wenet")


def parameters(notebook: Path, gpus: int) -> dict[str, str]:
    """What the notebook is told on so many GPUs: as many simulated hosts as let all its ranks use NCCL."""
    defaults = literals({name: each.default for name, each in declared(notebook).items()})
    ranks = defaults.get("ranks", 0)
    hosts = -(-ranks // gpus) if gpus else 1
    return {"simulate_hosts": str(hosts)} if hosts > 1 and "simulate_hosts" in defaults else {}


def shares(cores: int, side_by_side: int) -> list[list[int]]:
    """The cores of each of the stories that run at the same time; empty lists where they share all of them."""
    free = sorted(os.sched_getaffinity(0))
    if cores * side_by_side > len(free):
        sys.exit(f"{side_by_side} stories with {cores} cores each need more than the {len(free)} cores that are here.")
    return [free[cores * place : cores * (place + 1)] for place in range(side_by_side)]


def reported(notebook: Path, folder: Path, given: dict[str, str]) -> list[str]:
    """The command that makes the report of a notebook, in a case folder."""
    words = [f"-p={name}={value}" for name, value in given.items()]
    return ["ncclkit", "report", "--redact", "--notebook", str(notebook), "--case", str(folder), *words]


def validated(notebook: Path, folder: Path) -> list[str]:
    """The command that runs a copy of the notebook under nbval, in place of the case folder that it then makes."""
    folder.mkdir()
    shutil.copy(notebook, folder)
    return [*NBVAL, "--rootdir", str(folder), str(folder / notebook.name)]


def run_story(
    notebook: Path, gpus: int, deadline: float, keep: Path | None, nbval: bool, places: SimpleQueue[list[int]]
) -> dict[str, Any]:
    """Run one story in a new case folder, on cores that are free; the row of it."""
    cores, story = places.get(timeout=3600), notebook.stem
    bound = ["taskset", "-c", ",".join(map(str, cores))] if cores else []
    with tempfile.TemporaryDirectory(prefix=f"{story}-") as place:
        folder = Path(place, story)
        given = {} if nbval else parameters(notebook, gpus)
        command = validated(notebook, folder) if nbval else reported(notebook, folder, given)
        took = _timed([*bound, sys.executable, "-m", *command], deadline)
        folder = next(folder.glob("*_case"), folder)
        clean = recording.cleaner(folder)
        row = {"story": story, "parameters": given, **took, **_left(folder)}
        if keep is not None:
            _keep(folder, keep, story)
        places.put(cores)
        print(f"{story}: {row['status']} after {row['seconds']} s, {row['verdict']}", flush=True)
        return dict(redact.texts(row, clean))


def _timed(command: list[str], deadline: float) -> dict[str, Any]:
    """How a command ended, its wall time and the CPU time of all its processes; interrupted at the deadline."""
    begun = time.monotonic()
    until = begun + deadline
    with tempfile.TemporaryFile("w+") as said:
        die = processes.die_with_parent
        process = subprocess.Popen(command, env=ENV, stdout=said, stderr=subprocess.STDOUT, preexec_fn=die)
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > until:
                process.send_signal(signal.SIGINT if until < begun + deadline + GRACE else signal.SIGKILL)
                until += GRACE
            time.sleep(0.1)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        last = said.read().strip().splitlines()[-4:]
    seconds, cpu = time.monotonic() - begun, usage.ru_utime + usage.ru_stime
    return {"status": process.returncode, "seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1), "said": last}


def _left(folder: Path) -> dict[str, Any]:
    """What a story left in its case folder: cells, runs, experiments, and the first cause that was found."""
    first: dict[str, Any] = next(iter(storage.read_json(folder / "findings.json", [])), {})
    verdict = {name: first.get(name) for name in ("cause", "strength", "culprits", "say")}
    made = experiments(Case.open(folder, read_only=True)) if folder.exists() else ()
    tried = [
        {"kind": one.kind, "cause": one.cause, "observed": one.observed, "worked": one.worked, "said": one.summary}
        for one in made
    ]
    executed = next((path for name in ("report", ".report") if (path := folder / f"{name}.ipynb").exists()), None)
    cells = said_by_cells(nbformat.read(executed, as_version=4)) if executed else []
    return {"verdict": verdict, "experiments": tried, "runs": _runs(folder), "cells": cells}


def _runs(folder: Path) -> list[dict[str, Any]]:
    """Every run of a story, of its experiments too, in the order in which they began."""
    found = []
    for path in folder.rglob("plan.json"):
        plan, status = (storage.read_json(path.with_name(name), {}) for name in ("plan.json", "status.json"))
        began, ended = status.get("started", 0.0), status.get("ended", 0.0)
        hosts = plan.get("network", {}).get("hosts") or plan.get("simulate_hosts", 1)
        kept = {name: plan.get(name) for name in ("backend", "ranks")}
        run = str(path.parent.relative_to(folder))
        found.append((began, {"run": run, **kept, "hosts": hosts, "seconds": round(ended - began, 1), **_end(status)}))
    return [row for _, row in sorted(found, key=lambda pair: pair[0])]


def _end(status: dict[str, Any]) -> dict[str, Any]:
    return {"reason": status.get("reason"), "said": status.get("say") or ""}


def said_by_cells(notebook: nbformat.NotebookNode) -> list[dict[str, Any]]:
    """For each cell of code that was run: its last line, its seconds, and what it said in words."""
    found = []
    for cell in notebook.cells:
        took = cell.metadata.get("papermill", {}).get("duration")
        if cell.cell_type != "code" or took is None:
            continue
        said = [output.get("data", {}).get("text/plain") or output.get("evalue") for output in cell.outputs]
        last = cell.source.strip().splitlines()[-1] if cell.source.strip() else ""
        found.append({"cell": last, "seconds": round(took, 1), "said": " ".join(filter(None, said))})
    return found


def _keep(folder: Path, keep: Path, story: str) -> None:
    """The case folder as one archive, without what is large."""

    def small(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return info if info.isdir() or (info.isreg() and info.size <= LARGEST) else None

    keep.mkdir(parents=True, exist_ok=True)
    with tarfile.open(keep / f"{story}.tar.gz", "w:gz") as archive:
        archive.add(folder, story, filter=small)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main(options: argparse.Namespace) -> int:
    """Run the stories that were asked for, some side by side; the exit status."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background, by its children, too
    answer = asyncio.run(local.check_interpreter(sys.executable))
    gpus = answer["gpus"] if answer["nccl"] else 0
    stories = [STORIES[story] for story in LONGEST_FIRST if story in (options.only or STORIES)]
    if options.chinese:
        stories = [own for its in stories for own, original in CHINESE.items() if original == its]
    table: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), **about_machine(answer), "gpus": gpus}
    table["by"] = "nbval" if options.nbval else "ncclkit report"
    table["packages"] = {name: found for name in PACKAGES if (found := _version(name))}
    table["cpu"] = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)[:1]
    table["side_by_side"], table["cores_each"], table["deadline"] = (
        options.side_by_side,
        options.cores,
        options.deadline,
    )
    table["load"] = round(os.getloadavg()[0], 1)
    rows: list[dict[str, Any]] = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    places: SimpleQueue[list[int]] = SimpleQueue()
    for share in shares(options.cores, options.side_by_side):
        places.put(share)
    kept = {"deadline": options.deadline, "keep": options.keep, "nbval": options.nbval}
    run = partial(run_story, gpus=gpus, places=places, **kept)
    with ThreadPoolExecutor(options.side_by_side) as pool:
        for done in as_completed([pool.submit(run, story) for story in stories]):
            rows = sorted([*rows, done.result()], key=lambda row: str(row["story"]))
            write(options.out, json.dumps(table | {"stories": rows}, indent=1, ensure_ascii=False) + "\n")
    return int(any(row["status"] for row in rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, metavar="OUT.json")
    parser.add_argument("--only", nargs="+", choices=sorted(STORIES), metavar="STORY")
    parser.add_argument("--chinese", action="store_true", help="their pairs in Chinese")
    parser.add_argument("--nbval", action="store_true", help="under pytest and nbval, in place of a report")
    parser.add_argument("--side-by-side", type=int, default=1)
    parser.add_argument("--cores", type=int, default=0, help="of its own for each story; 0: all share all")
    parser.add_argument("--deadline", type=float, default=280.0, help="seconds for each story")
    parser.add_argument("--keep", type=Path, metavar="DIR")
    sys.exit(main(parser.parse_args()))
