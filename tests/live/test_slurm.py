"""Every verb over the nodes of a real Slurm allocation: four simulated hosts, beside a login node."""

from __future__ import annotations

import html
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from ncclkit.analysis.consistency import compare
from ncclkit.analysis.consistency_rules import MEASURED
from ncclkit.analysis.stages import staged_test
from ncclkit.core.case import Case
from ncclkit.live import connect
from tests.live.slurm_cluster import available, cluster, free_ports
from tests.namespaces import Host, hosts, needs_namespaces
from tests.processes import leftovers, warm

pytestmark = [
    pytest.mark.skipif(not available(), reason="Slurm and munge are not installed, or we are not root"),
    needs_namespaces,
]
ROOT = Path(__file__).parents[2]

SCRIPT = """
import asyncio, sys
from pathlib import Path
from ncclkit.live.launch import slurm
from ncclkit.core.runs import Plan
folder, deadline, *argv = sys.argv[1:]
plan = Plan("job", tuple(argv), 2, "gloo", sys.executable, float(deadline))
asyncio.run(slurm.run_on_nodes(plan, Path(folder)))
"""


STAGED = """
import asyncio, sys
from dataclasses import replace
from ncclkit import evidence
from ncclkit.live import probe
from ncclkit.live.launch.launchers import launcher_of_plan
from ncclkit.core.case import Case
from ncclkit.analysis.stages import staged_test
from ncclkit.core.runs import Plan, Run
case, fault = Case.open(sys.argv[1]), sys.argv[2:]
argv = "collective --backend gloo --sizes 8,65536 --repeats 2 --timeout 30 --stages".split()
plan = Plan("all_reduce", tuple(argv), 2, "gloo", sys.executable, 100.0)
run = asyncio.run(probe.execute(case, plan))
print(run.summary, staged_test(case).summary)
broken = Run(replace(plan, argv=(*plan.argv, *fault)), case.new_run("all_reduce"), "failed", 0.0)
hellos = [line for line in (run.folder / "wire.jsonl").read_text().splitlines(True) if '"hello"' in line]
(broken.folder / "wire.jsonl").write_text("".join(hellos))
(broken.folder / "plan.json").write_text('{"ranks": 2}')
(broken.folder / "status.json").write_text('{"reason": "failed", "exitcode": 1, "say": "", "started": 1}')
case.add(evidence.read([broken.folder]).events)
probe._keep(case, broken.folder, [probe._silent_result((0, 1))])
asyncio.run(probe.bisect(case, broken, launcher_of_plan(plan).run))
"""


@dataclass(frozen=True)
class Login:
    """The login node of a cluster, and its other hosts, the nodes."""

    env: dict[str, str]
    hosts: Sequence[Host]

    @property
    def nodes(self) -> list[str]:
        """Their names."""
        return [host.name for host in self.hosts[1:]]

    def words(self, *words: str) -> list[str]:
        """A command on the login node."""
        return [*self.hosts[0].prefix, *words]

    def run(self, *words: str, timeout: float = 100, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the login node."""
        return subprocess.run(
            self.words(*words), env=self.env | env, capture_output=True, text=True, timeout=timeout, cwd=ROOT
        )

    def across(self, count: int, *words: str, timeout: float = 100, **env: str) -> subprocess.CompletedProcess[str]:
        """Run ncclkit in an allocation of the first nodes."""
        nodes = ["salloc", "-N", str(count), "-n", str(count), "-w", ",".join(self.nodes[:count])]
        return self.run(*nodes, sys.executable, *words, timeout=timeout, **env)


@pytest.fixture(scope="module")
def login(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Login]:
    """Four nodes with names and networks of their own.  What the last of them receives comes in small pieces."""
    with hosts(5) as made, cluster(tmp_path_factory.mktemp("slurm") / "slurm", 4, made=made) as env:
        for other in made[1:4]:
            made[4].ip("route", "add", f"{other.address}/32", "dev", "eth0", "window", "100")
        yield Login(env | {"GLOO_SOCKET_IFNAME": "eth0"}, made)


@pytest.mark.timeout(300)
def test_all_verbs_work_across_four_nodes_and_name_the_bad_one(login: Login, tmp_path: Path) -> None:
    """Facts compared, every path, pairs of nodes and doubled sets of them, a setting compared with the default.

    The notebook reads the facts and tests the paths, as the verbs do; torchrun of each node is started, and forks its
    rank.
    """
    folder, bad = tmp_path / "100%case", login.nodes[3]

    def verb(count: int, *words: str) -> str:
        done = login.across(count, "-m", "ncclkit", *words, "--case", str(folder), timeout=200, **warm(login.env))
        assert done.returncode in (0, 1), done.stdout + done.stderr
        return done.stdout

    verb(4, "report", "--notebook", "01_environment")
    page = html.unescape((folder / "report-01_environment.html").read_text(encoding="utf-8"))
    case = Case.open(folder)
    assert [fact.host for fact in case.facts_of("software.torch") if fact.value] == login.nodes
    seen = compare(case.facts)
    assert {found.why for found in seen.differences} <= {MEASURED}, "a busy machine writes at many speeds"
    assert seen.agreed > 20 and seen.summary in page and "4 hosts" in page and login.nodes[0] in page
    assert len(connect.results(case).links) == 12
    assert f"→ {bad} carries" in page and "all 12 paths between 4 hosts are open" in page

    verb(4, "probe", "--stages", "--max-bytes", "64KiB")
    case = Case.open(folder)
    found = staged_test(case)
    assert found.summary.startswith(f"{bad} (rank 3) is slow with most others"), (found.summary, found.nodes)
    assert {(pair.a, pair.b) for pair in found.pairs} == {(a, b) for b in range(4) for a in range(b)}
    sets = [(event.data.stage, event.data.ranks) for event in case.of("stage.group")]
    assert sorted(sets) == [("all", [0, 1, 2, 3]), ("nodes", [0, 1]), ("nodes", [2, 3])]

    said = verb(2, "tune", "GLOO_SOCKET_IFNAME=eth0,eth0", "--sizes", "4KiB", "--json")
    swept: dict[str, Any] = json.loads(said)
    assert (swept["ranks"], swept["hosts"], swept["refused"]) == (2, 2, {})
    assert {(row["bytes"], row["wrong"]) for row in swept["comparisons"]} == {(4096, 0)}
    assert leftovers() == []


def test_the_logs_of_a_job_are_found_by_its_id(login: Login, tmp_path: Path) -> None:
    """Of an array that was requeued, each task in a file of its own, with names that Slurm and we fill in."""
    told = 'echo "[rank$SLURM_ARRAY_TASK_ID]: RuntimeError: CUDA error: device-side assert triggered"; '
    told += '[ "$SLURM_RESTART_COUNT" ] || sleep 60; exit 1'
    names = str(tmp_path / "%x-%A_%a-%N-%t.out")
    asked = ["--parsable", "--array=0-1", "--open-mode=append", "--job-name=train", f"--output={names}", "--wrap", told]
    job = login.run("sbatch", *asked).stdout.strip()
    until = time.monotonic() + 60
    while len([path for path in tmp_path.glob("train-*.out") if path.read_text()]) < 2:
        assert time.monotonic() < until
        time.sleep(0.1)
    assert login.run("scontrol", "requeue", job).returncode == 0
    while login.run("squeue", "-h", "-j", job).stdout:
        login.run("scontrol", "update", f"jobid={job}", "StartTime=now")  # Slurm itself waits two minutes
        assert time.monotonic() < until, login.run("scontrol", "show", "job", job).stdout
        time.sleep(0.2)
    done = login.run(sys.executable, "-m", "ncclkit", "diagnose", "--json", job)
    found = json.loads(done.stdout)
    # beside them stands what Slurm says of its end
    read = {row["path"] for row in found["inputs"]}
    files = {path for path in read if not path.startswith("slurm:")}
    assert files == {*map(str, tmp_path.glob("train-*-0.out"))} and len(read) == len(files) + 1
    assert sum(row["lines"] for row in found["inputs"]) >= 4 and found["findings"][0]["culprits"]["ranks"]
    assert "Restarts=1" in login.run("scontrol", "show", "job", f"{job}_1").stdout


def test_two_nodes_hang(login: Login, tmp_path: Path) -> None:
    """The run ends at its deadline, with the evidence of both nodes; nothing is left on any of them."""
    stalls = "collective --backend gloo --sizes 8,8,8,8 --timeout 100 --fault slow_disk".split()
    login.across(2, "-c", SCRIPT, str(tmp_path), "20", *stalls, **warm(login.env))
    assert json.loads((tmp_path / "status.json").read_text())["reason"] == "deadline"
    assert "write_shard" in (tmp_path / "stacks_rank1.txt").read_text()
    until = time.monotonic() + 20
    while leftovers() and time.monotonic() < until:
        time.sleep(0.2)
    assert leftovers() == []


def test_stages_run_and_a_node_that_fails_alone_is_found_by_smaller_jobs(login: Login, tmp_path: Path) -> None:
    """A job that goes well, and one that broke off before its first stage: each node is asked alone, and one fails.

    The allocation is of two tasks on each node, where ours has one.
    """
    staged = [sys.executable, "-c", STAGED, str(tmp_path / "case"), "--fault", "few_files", "--rank", "1"]
    first, second = login.nodes[:2]
    done = login.run("salloc", "-N2", "--ntasks-per-node=2", "-w", f"{first},{second}", *staged, **warm(login.env))
    assert "every value was right" in done.stdout and " over network" in done.stdout, done.stderr
    case = Case.open(tmp_path / "case")
    found = staged_test(case)
    assert [(m.bytes, m.ranks, m.wrong) for m in case.measurements] == [(8, 2, 0), (65536, 2, 0)]
    assert found.summary == f"{second} (rank 1) fails even alone; the other one works without it", done.stderr
    assert {group.ranks: group.bad for group in found.tried} == {(0, 1): True, (0,): False, (1,): True}
    assert (login.run("squeue", "-h", "-s").stdout, leftovers()) == ("", [])


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


def test_a_running_job_is_looked_at_on_all_of_its_nodes(login: Login, tmp_path: Path) -> None:
    """From outside of its allocation, beside its step, which goes on."""
    program = tmp_path / "train.py"
    program.write_text(STANDS)
    ranks = 'RANK=$SLURM_PROCID exec "$0" "$1" $SLURM_PROCID'
    step = ["srun", "-N2", "-n2", "--unbuffered", "bash", "-c", ranks, sys.executable, str(program)]
    job = subprocess.Popen(login.words(*step), env=login.env, stdout=subprocess.PIPE, text=True)
    try:
        assert job.stdout and sorted(job.stdout.read(6)) == sorted("up\nup\n")
        number = login.run("squeue", "-h", "-o", "%i").stdout.strip()
        options = ["--case", str(tmp_path / "100%case"), "--seconds", "1"]
        done = login.run(sys.executable, "-m", "ncclkit", "attach", "--job", number, *options)
        assert job.poll() is None
    finally:
        job.kill()
        job.communicate(timeout=20)
        login.run("scancel", "--user=root")
    first, second = (line for line in done.stdout.splitlines() if "■" in line)
    assert "rank 0 waits for a timer in wait_for_work at train.py:8" in first, done.stdout + done.stderr
    assert "rank 1 waits for a timer in load_shard at train.py:5" in second
    assert f"Slurm job {number}" in done.stdout
    assert len(list(tmp_path.glob("100%case/runs/1-attach/attached-node*.json"))) == 2


def test_steps_of_a_script_that_srun_starts_are_measured_on_both_nodes(login: Login, tmp_path: Path) -> None:
    """Inside an allocation: the hook lies where both nodes see it, and is gone afterwards."""
    script = Path(__file__).parents[1] / "bench" / "step" / "ddp.py"
    ranks = 'RANK=$SLURM_PROCID LOCAL_RANK=0 WORLD_SIZE=2 exec "$0" "$@"'
    folder = tmp_path / "100%case"
    (port,) = free_ports(1)
    measure = ["-m", "ncclkit", "step", "--case", str(folder), "--steps", "10", "--warmup", "2", "--timeout", "90"]
    started = ["srun", "-N2", "-n2", "bash", "-c", ranks, sys.executable, str(script), "--brake", "rank"]
    where = ["env", f"MASTER_ADDR={login.hosts[1].address}", f"MASTER_PORT={port}"]
    allocated = ["salloc", "-N2", "-n2", "-w", ",".join(login.nodes[:2]), *where, sys.executable]
    done = login.run(*allocated, *measure, "--", *started, timeout=150)
    assert "Rank 1 waits for the data loader (no workers), and the others for it" in done.stdout, done.stderr
    assert "measured on 2 ranks" in done.stdout and done.returncode == 0
    assert [*folder.rglob("sitecustomize.py")] == [] and leftovers() == []


def test_a_node_that_never_starts_is_one_sentence(login: Login, tmp_path: Path) -> None:
    """Its slurmd is dead, which the controller has not noticed yet; the last test, as nothing starts there any more."""
    (daemon,) = Path(login.env["SLURM_CONF"]).parent.glob(f"slurmd.{login.nodes[3]}.pid")
    psutil.Process(int(daemon.read_text())).kill()
    words = ["probe", "--max-bytes", "64", "--timeout", "40", "--case", str(tmp_path / "case")]
    done = login.across(4, "-m", "ncclkit", *words)
    assert done.returncode == 2 and f" failed on node {login.nodes[3]}: " in done.stderr, done.stdout + done.stderr
    assert leftovers() == []
