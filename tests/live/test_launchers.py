"""Ranks that other launchers started: by their variables, facts and logs of them; mpirun where it is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ncclkit import evidence
from ncclkit.agent.facts.settings import SCOPE
from ncclkit.agent.run import processes
from ncclkit.live.launch.pack import packed

WAITS = "import time; print('up', flush=True); time.sleep(100)"


@contextmanager
def started(*words: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A program that runs until the block ends."""
    with subprocess.Popen(words, env=os.environ | variables, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


@pytest.mark.parametrize(
    ("number", "job"),
    [("OMPI_COMM_WORLD_RANK", ""), ("PMI_RANK", ""), ("PMIX_RANK", "LSB_JOBID"), ("PALS_RANKID", "PBS_JOBID")],
)
def test_ranks_are_found_by_the_variables_of_their_launcher(
    number: str, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*processes.NUMBERS, *processes.JOB):
        monkeypatch.delenv(name, raising=False)
    with ExitStack() as running:
        pids: dict[int, int] = {}
        for rank in (0, 1):
            variables = {number: str(rank), **({job: "7.head"} if job else {})}
            process = running.enter_context(started(sys.executable, "-c", WAITS, **variables))
            assert process.stdout and process.stdout.readline() == "up\n"
            pids[rank] = process.pid
        assert processes.jobs_of_processes(pids.values()) == [pids]
    assert not job or SCOPE.match(job)


def test_what_pytorchjob_and_schedulers_set_is_a_fact_and_nothing_personal_of_them() -> None:
    for name in ("PET_NNODES", "PET_RDZV_ENDPOINT", "PBS_JOBID", "LSB_HOSTS"):
        assert SCOPE.match(name), name
    for name in ("PBS_O_PATH", "PBS_O_MAIL", "LSB_JOBFILENAME", "PET_TOKEN"):
        assert not SCOPE.match(name), name


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
def test_ranks_of_mpirun_their_facts_and_their_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open MPI or MPICH: the agent runs in it, its ranks are found, and its prefixes name them."""
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "PRTE_ALLOW_RUN_AS_ROOT"):
        monkeypatch.setenv(name, "1")
    ours = "Open MPI" in subprocess.run(["mpirun", "--version"], capture_output=True, text=True, timeout=30).stdout
    each = ["mpirun", *(["--oversubscribe", "--tag-output"] if ours else ["-prepend-pattern", "[rank%r]: "])]
    with packed() as agent:
        words = ["-n", "1", sys.executable, "-I", "-S", str(agent), "gate", "--seconds", "30"]
        done = subprocess.run([each[0], *words], capture_output=True, text=True, timeout=60)
        assert json.loads(done.stdout.splitlines()[-1])["ready"] is not None, done.stderr
    with started(*each, "-n", "2", sys.executable, "-c", WAITS) as launcher:
        end = time.monotonic() + 30
        while not (found := processes.jobs_of_processes(processes.descendants(launcher.pid))) or len(found[0]) < 2:
            assert time.monotonic() < end
            time.sleep(0.1)
        assert sorted(found[0]) == [0, 1]
    fails = "import os; n = os.environ.get('PMI_RANK') or os.environ['OMPI_COMM_WORLD_RANK']; assert n == '0', 'boom'"
    log = tmp_path / "job.log"
    with open(log, "w") as out:
        subprocess.run([*each, "-n", "2", sys.executable, "-c", fails], stdout=out, stderr=out, timeout=60, check=False)
    errors = [event for event in evidence.read([log]).events if event.kind == "python.exception"]
    assert [event.rank for event in errors] == [1], log.read_text()
