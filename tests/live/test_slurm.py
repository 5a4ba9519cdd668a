"""Ranks over the nodes of a real Slurm allocation."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ncclkit.analysis.consistency import compare
from ncclkit.analysis.consistency_rules import MEASURED
from ncclkit.analysis.stages import staged_test
from ncclkit.core.case import Case
from tests.live.slurm_cluster import available, cluster, free_ports
from tests.processes import leftovers

pytestmark = pytest.mark.skipif(not available(), reason="Slurm and munge are not installed, or we are not root")

SCRIPT = """
import asyncio, sys
from pathlib import Path
from ncclkit.live.launch import slurm
from ncclkit.core.runs import Plan
folder, deadline, *argv = sys.argv[1:]
plan = Plan("job", tuple(argv), 2, "gloo", sys.executable, float(deadline), {"GLOO_SOCKET_IFNAME": "lo"})
asyncio.run(slurm.run(plan, Path(folder)))
"""


STAGED = """
import asyncio, sys
from dataclasses import replace
from ncclkit import evidence
from ncclkit.live import probe
from ncclkit.core.case import Case
from ncclkit.analysis.stages import staged_test
from ncclkit.core.runs import Plan, Run
case, fault = Case.open(sys.argv[1]), sys.argv[2:]
argv = "collective --backend gloo --sizes 8,65536 --repeats 2 --timeout 30 --stages".split()
plan = Plan("all_reduce", tuple(argv), 2, "gloo", sys.executable, 100.0, {"GLOO_SOCKET_IFNAME": "lo"})
run = asyncio.run(probe.execute(case, plan))
print(run.summary, staged_test(case).summary)
broken = Run(replace(plan, argv=(*plan.argv, *fault)), case.new_run("all_reduce"), "failed", 0.0)
hellos = [line for line in (run.folder / "wire.jsonl").read_text().splitlines(True) if '"hello"' in line]
(broken.folder / "wire.jsonl").write_text("".join(hellos))
(broken.folder / "plan.json").write_text('{"ranks": 2}')
(broken.folder / "status.json").write_text('{"reason": "failed", "exitcode": 1, "say": "", "started": 1}')
case.add(evidence.read([broken.folder]).events)
probe._keep(case, broken.folder, [probe._silence((0, 1))])
asyncio.run(probe.to_the_end(case, broken, probe.launcher(plan)))
"""


def salloc(env: dict[str, str], folder: Path, deadline: int, *argv: str) -> subprocess.CompletedProcess[str]:
    command = ["salloc", "-N2", "-n2", sys.executable, "-c", SCRIPT, str(folder), str(deadline), *argv]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=150, cwd=Path(__file__).parents[2])


@pytest.mark.serial
def test_two_nodes_hang(tmp_path: Path) -> None:
    """The run ends at its deadline, with the evidence of both nodes; nothing is left on any of them."""
    with cluster(tmp_path / "slurm", 2) as env:
        bad = tmp_path / "bad"
        bad.mkdir()
        salloc(env, bad, 18, "train", "--backend", "gloo", "--timeout", "100", "--fault", "rank_late")
        assert json.loads((bad / "status.json").read_text())["reason"] == "deadline"
        assert "skip_batches" in (bad / "stacks_rank1.txt").read_text()
        until = time.monotonic() + 20
        while leftovers() and time.monotonic() < until:
            time.sleep(0.2)
        assert leftovers() == []


def test_facts_of_two_nodes(tmp_path: Path) -> None:
    """Inside an allocation every node is read; here both are this machine, so Slurm's names tell them apart."""
    folder = tmp_path / "100%case"
    with cluster(tmp_path / "slurm", 2) as env:
        command = ["salloc", "-N2", "-n2", sys.executable, "-m", "ncclkit", "inspect", "--case", str(folder)]
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=110, cwd=Path(__file__).parents[2]
        )
    case = Case.open(folder)
    assert {fact.host for fact in case.facts} == {"n1", "n2"}
    assert [fact.host for fact in case.facts_of("software.torch") if fact.value] == ["n1", "n2"], done.stderr
    seen = compare(case.facts)
    assert {found.why for found in seen.differences} <= {MEASURED}, "a busy machine writes at many speeds"
    assert seen.agreed > 20 and f"\n{seen.summary}" in done.stdout, done.stdout + done.stderr


def test_stages_run_and_a_node_that_fails_alone_is_found_by_smaller_jobs(tmp_path: Path) -> None:
    """A job that goes well, and one that broke off before its first stage: each node is asked alone, and one fails.

    The allocation is of two tasks on each node, where ours has one.
    """
    with cluster(tmp_path / "slurm", 2) as env:
        staged = [sys.executable, "-c", STAGED, str(tmp_path / "case"), "--fault", "few_files", "--rank", "1"]
        done = subprocess.run(
            ["salloc", "-N2", "--ntasks-per-node=2", *staged],
            env=env,
            capture_output=True,
            text=True,
            timeout=150,
            cwd=Path(__file__).parents[2],
        )
        steps = subprocess.run(["squeue", "-h", "-s"], env=env, capture_output=True, text=True, timeout=20).stdout
    assert "every value was right" in done.stdout and " over network" in done.stdout, done.stderr
    case = Case.open(tmp_path / "case")
    found = staged_test(case)
    assert [(m.bytes, m.ranks, m.wrong) for m in case.measurements] == [(8, 2, 0), (65536, 2, 0)]
    assert found.summary == "n2 (rank 1) fails even alone; the other one works without it", done.stderr
    assert {group.ranks: group.bad for group in found.tried} == {(0, 1): True, (0,): False, (1,): True}
    assert (steps, leftovers()) == ("", [])


STANDS = """
import sys, time
def load_shard():
    print("up", flush=True)
    time.sleep(300)
def wait_for_work():
    print("up", flush=True)
    time.sleep(300)
load_shard() if sys.argv[1] == "1" else wait_for_work()
"""


def test_a_running_job_is_looked_at_on_all_of_its_nodes(tmp_path: Path) -> None:
    """From outside of its allocation, beside its step, which goes on."""
    program = tmp_path / "train.py"
    program.write_text(STANDS)
    ranks = 'RANK=$SLURM_PROCID exec "$0" "$1" $SLURM_PROCID'
    with cluster(tmp_path / "slurm", 2) as env:
        step = ["srun", "-N2", "-n2", "--unbuffered", "bash", "-c", ranks, sys.executable, str(program)]
        job = subprocess.Popen(step, env=env, stdout=subprocess.PIPE, text=True)
        try:
            assert job.stdout and sorted(job.stdout.read(6)) == sorted("up\nup\n")
            asked = subprocess.run(["squeue", "-h", "-o", "%i"], env=env, capture_output=True, text=True, timeout=30)
            command = [sys.executable, "-m", "ncclkit", "attach", "--job", asked.stdout.strip(), "--case"]
            case = [str(tmp_path / "100%case"), "--seconds", "1"]
            done = subprocess.run([*command, *case], env=env, capture_output=True, text=True, timeout=90)
            assert job.poll() is None
        finally:
            job.kill()
            job.communicate(timeout=20)
            subprocess.run(["scancel", "--user=root"], env=env, timeout=30, check=True)
    first, second = (line for line in done.stdout.splitlines() if line.startswith("  █"))
    assert "rank 0 waits for a timer in wait_for_work at train.py:8" in first, done.stdout + done.stderr
    assert "rank 1 waits for a timer in load_shard at train.py:5" in second
    assert f"Slurm job {asked.stdout.strip()}" in done.stdout
    assert len(list(tmp_path.glob("100%case/runs/1-attach/attached-node*.json"))) == 2


def test_steps_of_a_script_that_srun_starts_are_measured_on_both_nodes(tmp_path: Path) -> None:
    """Inside an allocation: the hook lies where both nodes see it, and is gone afterwards."""
    script = Path(__file__).parents[1] / "bench" / "step" / "ddp.py"
    ranks = 'RANK=$SLURM_PROCID LOCAL_RANK=0 WORLD_SIZE=2 exec "$0" "$@"'
    folder = tmp_path / "100%case"
    with cluster(tmp_path / "slurm", 2) as env:
        (port,) = free_ports(1)
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        measure = [sys.executable, "-m", "ncclkit", "step", "--case", str(folder), "--steps", "10", "--warmup", "2"]
        started = ["srun", "-N2", "-n2", "bash", "-c", ranks, sys.executable, str(script), "--brake", "rank"]
        done = subprocess.run(
            ["salloc", "-N2", "-n2", *measure, "--timeout", "90", "--", *started],
            env=env,
            capture_output=True,
            text=True,
            timeout=150,
            cwd=Path(__file__).parents[2],
        )
    assert "Rank 1 waits for the data loader (no workers), and the others for it" in done.stdout, done.stderr
    assert "measured on 2 ranks" in done.stdout and done.returncode == 0
    assert [*folder.rglob("sitecustomize.py")] == [] and leftovers() == []
