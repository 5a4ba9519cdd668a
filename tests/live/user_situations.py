"""What a fresh user, or an administrator, meets on a cluster: what each types, and what the answer must and must not say.

The expectations are what whoever made the situation knows to be so.  `tests/record/situations.py` writes the answers
down, `test_user_situations.py` holds them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ncclkit.core.case import Case
from tests.live.user_cluster import Answer, UserCluster

Play = Callable[["Stage"], None]


@dataclass
class Situation:
    """One situation: who is in it, and how it is played."""

    title: str
    play: Play
    told: list[tuple[str, str, list[str]]] = field(default_factory=list)
    """(user, line, the lines of the answer that were looked for) of each command."""


SITUATIONS: list[Situation] = []


def situation(title: str) -> Callable[[Play], Play]:
    """Add a function to the situations, which are played in the order in which they stand here."""

    def add(play: Play) -> Play:
        SITUATIONS.append(Situation(title, play))
        return play

    return add


@dataclass
class Stage:
    """A cluster on which one situation is played."""

    cluster: UserCluster
    now: Situation

    def says(
        self, user: str, line: str, *expected: str, never: tuple[str, ...] = (), status: int | None = None, host: int = 0
    ) -> Answer:
        """What a line answers, which must say the expected, in this order, and nothing of `never`."""
        answer = self.cluster.types(user, line, host)
        text = self.cluster.as_told(answer.text)
        kept = []
        at = 0
        lines = text.splitlines()
        for words in expected:
            at = next((n for n in range(at, len(lines)) if re.search(words, lines[n])), -1)
            assert at >= 0, f"{line}: no {words!r} in\n{text}"
            if lines[at].strip() not in kept:
                kept.append(lines[at].strip())
        for words in (*never, "Traceback"):
            assert not re.search(words, text), f"{line}: {words!r} in\n{text}"
        if status is not None:
            assert answer.status == status, f"{line}: exit status {answer.status}\n{text}"
        self.now.told.append((_at(user, host), self.cluster.as_told(line), kept))
        return answer

    def does(self, user: str, line: str, host: int = 0, note: str = "") -> None:
        """What somebody does between two lines, without which they would look alike."""
        answer = self.cluster.types(user, line, host)
        assert answer.status == 0, f"{line}: {answer.text}"
        self.now.told.append((_at(user, host), note or self.cluster.as_told(line), []))


def _at(user: str, host: int) -> str:
    """Who types, and on which node; nobody says it of the login node."""
    if host:
        return f"{user}@node{host}"
    return user


TRAIN = """#!/bin/bash
#SBATCH --output=slurm-%j.out
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1) MASTER_PORT=29555
srun bash -c 'export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=0; exec PYTHON $0' $1
"""
PROGRAMS = {
    "hang.py": """import time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(100000):
    if dist.get_rank() == 1 and step == 20:
        time.sleep(100000)
    dist.all_reduce(torch.ones(4))
    print("step", step, flush=True)
""",
    "hog.py": """import time
print("step 1", flush=True)
held = bytearray(1200 << 20)
time.sleep(100)
""",
    "loop.py": """import time
for step in range(100000):
    time.sleep(0.5)
    print("step", step, flush=True)
""",
    "bug.py": """print("step 7", flush=True)
raise ValueError("sample 7 is empty")
""",
}
"""Programs of the users: loop.py works, the others have a fault each."""
HET = """#!/bin/bash
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST_HET_GROUP_0 | head -n1) MASTER_PORT=29577
srun --het-group=0,1 --mpi=none bash -c 'export RANK=$SLURM_PROCID WORLD_SIZE=2 LOCAL_RANK=0; exec PYTHON hang.py'
"""


def set_stage(cluster: UserCluster) -> None:
    """The programs of the users."""
    for user in ("ann", "bob"):
        home = cluster.home(user)
        for name, text in PROGRAMS.items():
            (home / name).write_text(text)
        (home / "train.sbatch").write_text(TRAIN.replace("PYTHON", cluster.python))
        (home / "het.sbatch").write_text(HET.replace("PYTHON", cluster.python))
    cluster.types("root", f"ncclkit gate --agent {cluster.place}/agent.pyz")


def clear_stage(cluster: UserCluster) -> None:
    """No jobs, and all nodes in use, whatever the last situation has left."""
    cluster.types("root", "scancel --user=nobody; scancel --user=games; scontrol update nodename=ALL state=resume")
    until = time.monotonic() + 30
    while time.monotonic() < until and cluster.types("root", "squeue -h").text.strip():
        time.sleep(0.3)


# ---------------------------------------------------------------- before the queue


@situation("An account that Slurm does not know, or that is another's")
def wrong_account(stage: Stage) -> None:
    stage.says("ann", "ncclkit submit -A nolab -N 2 probe", "Invalid account.*name another account with -A .yours: lab", status=2)
    stage.says("ann", "ncclkit submit -A ml -N 2 probe", "Invalid account.*name another account with -A .yours: lab", status=2)


@situation("A partition that is not there")
def wrong_partition(stage: Stage) -> None:
    told = r"name another with -p .there is cpu, debug, urgent, short; closed is for account ml"
    stage.says("ann", "ncclkit submit -p gpux probe", told, status=2)


@situation("More nodes than the partition has")
def too_many_nodes(stage: Stage) -> None:
    stage.says("ann", "ncclkit submit -N 9 probe", "Partition debug has 4 nodes, and -N 9 asks for more; -N 4 is the most there; no other partition that you may use fits", never=("name another",), status=2)


@situation("A longer time than the partition allows")
def too_long(stage: Stage) -> None:
    stage.says("ann", "ncclkit submit -p short -t 30 probe", "Partition short allows 00:01:00, and -t 30 asks for more.*-p names another that it fits .cpu, debug, urgent", never=("closed",), status=2)


@situation("GPUs in a partition that has none")
def gpus_without(stage: Stage) -> None:
    stage.says("ann", "ncclkit submit -p cpu --gpus-per-node 2 probe", "Partition cpu has no node with 2 GPUs.*fits .debug, urgent", never=("closed",), status=2)


@situation("A partition of two kinds of nodes")
def mixed_partition(stage: Stage) -> None:
    has = r"partition debug has 2 × 2 h100 GPUs \(2 idle\), 2 × no GPUs \(2 idle\)"
    stage.says("ann", "ncclkit submit --dry-run -N 4 probe", f"{has}: this asks for no GPUs, so it may run on any.*which 2 of its 4 nodes have, so -N 2 is the most", status=0)
    stage.says("ann", "ncclkit submit -N 3 --gpus-per-node 2 probe", "has no 3 nodes with 2 GPUs.*-N 2 takes those that have.*no other partition", status=2)


@situation("A constraint that no node has")
def wrong_constraint(stage: Stage) -> None:
    stage.says("ann", "ncclkit submit -C a100 probe", "no node has such a feature: name another with -C.*constraints h100, ib", status=2)


@situation("Numbers that are none")
def no_number(stage: Stage) -> None:
    stage.says("ann", "ncclkit submit -N two probe", "-N/--nodes must be a whole number .* but it is 'two'", status=2)
    stage.says("ann", "ncclkit submit -t soon probe", "time limit cannot be 'soon'; write minutes", status=2)


@situation("A fault of the lab whose name is cut short")
def wrong_fault(stage: Stage) -> None:
    stage.says("ann", "ncclkit submit lab rank_lat", "There is no fault 'rank_lat'; did you mean rank_late", status=2)


@situation("An option of the verb that stands before it")
def misplaced_option(stage: Stage) -> None:
    stage.says("ann", "ncclkit submit --case ~/case probe", "submit … VERB --case", never=("did you mean",), status=2)


@situation("The login node: what it is, and that no test runs on it unasked")
def login_node(stage: Stage) -> None:
    stage.says("ann", "ncclkit inspect", r"accounts +lab", r"login node of a Slurm cluster \(5 partitions")
    stage.says("ann", "ncclkit probe", "This is a login node.*`ncclkit submit probe`", status=2)


@situation("A test on two nodes, where nobody names an interface")
def two_nodes(stage: Stage) -> None:
    words = "-N 2 -t 5 probe --backend gloo --max-bytes 4KiB --case ~/pair"
    stage.says("ann", f"ncclkit submit {words}", "2 ranks over gloo on 2 hosts: .* busbw with .*KiB messages", "every value was right", never=("IFNAME=",), status=0)
    stage.cluster.types("ann", "ncclkit submit -N 2 -t 5 inspect --case ~/pair")
    case = Case.open(stage.cluster.home("ann") / "pair", read_only=True)
    used = {fact.host: fact.value for fact in case.facts_of("net.gloo.interface")}
    nodes = [used[host.name] for host in stage.cluster.hosts[1:3]]
    assert len(set(nodes)) == 1 and nodes[0] not in ("lo", "", None), used


@situation("A controller that does not answer")
def silent_controller(stage: Stage) -> None:
    with stopped(stage.cluster):
        asked = stage.says("ann", "ncclkit submit --no-wait inspect --case ~/silent", "It is not known whether Slurm took the job.*lists a job ncclkit-inspect of ", never=("was not submitted",), status=2)
        stage.says("ann", "ncclkit attach --job 4711", "Slurm did not say where job 4711 runs", never=("no rank of this user",), status=2)
    assert asked.seconds < 90


@contextmanager
def stopped(cluster: UserCluster) -> Iterator[None]:
    """The controller stands still meanwhile."""
    pid = int((cluster.place / "slurm" / "slurmctld.pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@situation("A script and a folder that are not there")
def missing_path(stage: Stage) -> None:
    never = ("is in the queue",)
    stage.says("ann", "ncclkit submit rehearse -- python nope.py", "no nope.py in .*where the job would look", never=never, status=2)
    stage.says("ann", "ncclkit submit inspect --data nope", "no nope in .*storage that the nodes share", never=never, status=2)


# ---------------------------------------------------------------- in the queue


@situation("A partition that does not take the account")
def closed_partition(stage: Stage) -> None:
    stage.says("ann", "ncclkit submit -p closed --no-wait inspect --case ~/closed", "is in the queue", status=0)
    why = r"will not start .*does not take the account of the job; name another partition with -p .cpu, debug, urgent, short"
    stage.says("ann", "ncclkit status --case ~/closed", why, never=("expected to start", "-A"), status=0)
    stage.says("ann", "ncclkit status --cancel --case ~/closed", "was cancelled", status=2)


@situation("A case folder that the nodes do not see")
def unshared_case(stage: Stage) -> None:
    folder = stage.cluster.local / "case"
    stage.says("ann", f"ncclkit submit inspect --case {folder}", "could not open job.out in the case folder.*shared storage", status=2)


@situation("A current folder that the nodes do not see")
def unshared_folder(stage: Stage) -> None:
    line = f"mkdir {stage.cluster.local}/work; cd {stage.cluster.local}/work; ncclkit submit inspect --case ~/elsewhere"
    stage.says("ann", line, "does not see the folder that it was submitted from", never=("0:53",), status=2)


@situation("A limit of the account: one job of a user at a time")
def account_limit(stage: Stage) -> None:
    cluster = stage.cluster
    first = cluster.job("bob", "-t 5 --wrap 'sleep 200'")
    cluster.reaches(first, "RUNNING")
    stage.says("bob", "ncclkit submit --no-wait inspect --case ~/limit", "is in the queue", status=0)
    stage.says("bob", "sleep 3; ncclkit status --case ~/limit", r"you have the jobs that your account allows", status=0)
    stage.says("bob", "ncclkit status --cancel --case ~/limit; scancel --me", "was cancelled")


@situation("Nodes that an administrator has drained")
def drained_nodes(stage: Stage) -> None:
    cluster = stage.cluster
    names = ",".join(host.name for host in cluster.hosts[1:3])
    cluster.types("root", f"scontrol update nodename={names} state=drain reason='new cables until noon'")
    try:
        stage.says("ann", "ncclkit submit --gpus-per-node 2 -N 2 --no-wait inspect --case ~/drained", "is in the queue")
        why = r"waits in partition debug.*(drained|down).*new cables until noon"
        stage.says("ann", "sleep 5; ncclkit status --case ~/drained", why, status=0)
        stage.says("ann", "ncclkit status --cancel --case ~/drained", "was cancelled")
    finally:
        cluster.types("root", f"scontrol update nodename={names} state=resume")


# ---------------------------------------------------------------- a job that runs


@situation("A job that hangs: attach, and diagnose while it runs")
def hanging_job(stage: Stage) -> None:
    cluster = stage.cluster
    job = cluster.job("ann", "-N2 --ntasks-per-node=1 -t 20 train.sbatch hang.py")
    cluster.prints("ann", f"slurm-{job}.out", "step 19")
    still = f"Slurm job {job} still runs on .*`ncclkit attach --job {job}` looks at its ranks"
    stage.says("ann", f"ncclkit diagnose {job}", still)
    late = "Rank 1 waits for a timer in .* at hang.py:6.* has not entered all_reduce at hang.py:7.* for at least "
    stage.says("ann", f"ncclkit attach --job {job} --case ~/hang", late, "At fault +Rank 1 on node", status=1)
    stage.says("bob", f"ncclkit attach --job {job} --case ~/hang", "belongs to user ann, and Slurm starts nothing of bob", status=2)
    cluster.types("ann", "scancel --me")


@situation("A heterogeneous job that hangs: one rank in each part")
def het_job(stage: Stage) -> None:
    cluster = stage.cluster
    job = cluster.job("ann", "-t 20 --output=slurm-%j.out -N1 -n1 --gres=gpu:1 : -N1 -n1 -p cpu het.sbatch")
    cluster.prints("ann", f"slurm-{job}.out", "step 19")
    parts = ("[0-9]+, part 1 of .*RUNNING in cpu, 1 node .node[34].", "[0-9]+, part 0 of .*RUNNING in debug, 1 node .node[12]. with 1 GPU")
    for part in parts:
        stage.says("ann", "ncclkit inspect", part)
    late = "Rank 1 waits for a timer in .* at hang.py:6.* has not entered all_reduce.* for at least "
    stage.says("ann", f"ncclkit attach --job {job}+1 --case ~/het", late, "rank 0 on node[12]:", "rank 1 on node[34]:", status=1)
    cluster.types("ann", "scancel --me")


@situation("An array, of which two tasks run, and which has no ranks")
def array_job(stage: Stage) -> None:
    cluster = stage.cluster
    job = cluster.job("ann", "-t 5 -p cpu --array=0-1 --wrap 'sleep 300'")
    cluster.reaches(f"{job}_1", "RUNNING")
    stage.says("ann", f"ncclkit attach --job {job}", r"is an array, of which 2 tasks run .*name one of them: --job", status=2)
    stage.says("ann", f"ncclkit attach --job {job}_1", "has a RANK in its environment", never=("gone",), status=2)
    cluster.types("ann", "scancel --me")


@situation("Several jobs of a case, one of them cancelled")
def several_jobs(stage: Stage) -> None:
    stage.says("ann", "ncclkit submit -t 10 inspect --case ~/several", "storage.work.path")
    stage.says("ann", "ncclkit submit -t 10 --no-wait inspect --case ~/several", "is in the queue")
    told = ("ncclkit inspect: Job \\d+ ended (well|after)", "ncclkit inspect: Job \\d+ was cancelled")
    stage.says("ann", "ncclkit status --cancel --case ~/several", *told)


# ---------------------------------------------------------------- after a failure


@situation("A program that raises: stop")
def program_fault(stage: Stage) -> None:
    job = stage.cluster.job("ann", "-t 5 train.sbatch bug.py")
    stage.cluster.reaches(job, "FAILED|COMPLETED")
    stage.says("ann", f"ncclkit decide {job}", "Restart or stop: stop, and fix the program: ValueError at bug.py:2", "raised ValueError.*sample 7 is empty", "Which rank that was is not known", "slurm-.*ValueError: sample 7", status=1)


@situation("A step that needs more memory than it asked for: stop")
def out_of_memory(stage: Stage) -> None:
    job = stage.cluster.job("ann", "-t 5 --mem=300M train.sbatch hog.py")
    stage.cluster.reaches(job, "FAILED|OUT_OF_MEMORY|CANCELLED|COMPLETED")
    told = r"killed for lack of host memory because the job, or a step of it, reached its limit of memory \(Slurm's --mem\)"
    stage.says("ann", f"ncclkit decide {job}", "Restart or stop: stop, and fix the set-up", told, never=("cgroup",), status=1)


@situation("A job that a more urgent one pushes out: restart")
def preempted(stage: Stage) -> None:
    cluster = stage.cluster
    job = cluster.job("ann", "-N2 --ntasks-per-node=1 -p cpu -t 10 train.sbatch loop.py")
    cluster.prints("ann", f"slurm-{job}.out", "step 5")
    urgent = cluster.job("bob", f"-A ml -p urgent --exclusive -w {cluster.hosts[3].name} -t 5 --wrap 'sleep 60'")
    cluster.reaches(job, "PREEMPTED|CANCELLED")
    told = r"took its nodes for a job of higher priority \(preemption\)"
    stage.says("ann", f"ncclkit decide {job}", "Restart or stop: restart: the scheduler took its nodes.*has not requeued it", told, never=("time limit",), status=0)
    cluster.types("bob", f"scancel {urgent}")


@situation("A node that goes down under a job: restart without it")
def lost_node(stage: Stage) -> None:
    cluster = stage.cluster
    job = cluster.job("ann", "-N2 --ntasks-per-node=1 --no-requeue -p cpu -t 10 train.sbatch loop.py")
    cluster.prints("ann", f"slurm-{job}.out", "step 5")
    cluster.types("root", f"scontrol update nodename={cluster.hosts[4].name} state=down reason='fan failed'")
    cluster.reaches(job, "NODE_FAIL")
    try:
        told = r"he scheduler counts node4 as failed .* and ended the job"
        stage.says("ann", f"ncclkit decide {job}", "Restart or stop: restart without node4.*has not requeued it", told, never=("network_loss",), status=0)
        stage.says("ann", f"ncclkit decide --hosts {job}", "^node4$", status=0)
    finally:
        cluster.types("root", f"scontrol update nodename={cluster.hosts[4].name} state=resume")


@situation("A job at work that reaches its time limit: restart")
def time_limit(stage: Stage) -> None:
    job = stage.cluster.job("ann", "-t 1 train.sbatch loop.py")
    stage.cluster.reaches(job, "TIMEOUT", 200)
    stage.says(
        "ann",
        f"ncclkit decide {job}",
        "Restart or stop: restart: the job was at work until the scheduler's time limit.*has not requeued it",
        "the job's time limit was reached",
        status=0,
    )


@situation("A job that nobody knows")
def unknown_job(stage: Stage) -> None:
    stage.says("ann", "ncclkit diagnose 99999", "There is no file 99999, and Slurm knows no output of such a job", never=("option",), status=2)
    stage.says("ann", "ncclkit attach --job 99999", "Slurm knows no job 99999 that runs", never=("sudo",), status=2)


# ---------------------------------------------------------------- an administrator


UNLIKE = r"cpu.total .CPUs online. is [0-9]+ here, but the baseline expects 64 .baseline: "
"""What the gate says of a node that is smaller than its baseline."""


def gate_words(stage: Stage, *words: str) -> str:
    """The agent's gate as a line of a shell, which shows its sentence and not its object."""
    return f"{stage.cluster.python} {stage.cluster.place}/agent.pyz gate --seconds 30 {' '.join(words)} >/dev/null"


@situation("The gate on a good node, on one that lost a mount, and on one unlike its baseline")
def gate_of_nodes(stage: Stage) -> None:
    cluster = stage.cluster
    baseline = cluster.home("root") / "baseline.json"
    learn = gate_words(stage, "--learn", str(baseline))
    compared = gate_words(stage, "--baseline", str(baseline), "--mount", str(cluster.local))
    stage.says("root", learn, "node1 is ready: [0-9]+ facts", status=0, host=1)
    stage.says("root", compared, "node2 is ready: [0-9]+ facts as in the baseline", status=0, host=2)
    stage.does("root", f"umount {cluster.local}", host=3)
    stage.says("root", compared, "node3 is not ready: /local is not mounted", status=1, host=3)
    stage.does("root", f"mount -t tmpfs -o size=512m none {cluster.local} && chmod 1777 {cluster.local}", host=3)
    # as a baseline that was learned on larger nodes
    stage.does("root", f"sed -i 's/\\(\"cpu.total\": \\)[0-9]*/\\164/' {baseline}", host=3)
    stage.says("root", compared, f"node3 is not ready: {UNLIKE}", status=1, host=3)


@situation("The gate drains a node, where it was asked to and may")
def gate_drains(stage: Stage) -> None:
    baseline = stage.cluster.home("root") / "baseline.json"
    baseline.write_text(json.dumps({"facts": {"cpu.total": 64}}))
    line = f"SLURMD_NODENAME={stage.cluster.hosts[4].name} " + gate_words(stage, "--baseline", str(baseline), "--drain")
    stage.says("ann", line, f"is not ready: {UNLIKE}.*it was not drained", status=1, host=4)
    stage.says("root", line, f"is not ready: {UNLIKE}.*; it was drained", status=1, host=4)
    stage.says("root", "sinfo -h -R -o '%N: %E'", f"node4: ncclkit gate: {UNLIKE}")
    stage.says("root", line, "already", status=1, host=4)
    stage.cluster.types("root", f"scontrol update nodename={stage.cluster.hosts[4].name} state=resume")


@situation("The gang gate, where torch is broken on one of four nodes")
def gang_gate(stage: Stage) -> None:
    cluster = stage.cluster
    program = f"{cluster.python} {cluster.place}/agent.pyz gang --seconds 150"
    line = f"salloc -Q -N 4 -t 10 srun --ntasks-per-node=1 --kill-on-bad-exit=0 {program}"
    stage.says("ann", line, "all 4 nodes work in pairs and together", status=0)
    broken = f"{cluster.local}/lib"
    cluster.types("ann", f"mkdir {broken}; echo 'raise ImportError(\"libcudart.so.12\")' > {broken}/torch.py", host=4)
    stage.says("ann", f"PYTHONPATH={broken}:$PYTHONPATH {line}", "node4 cannot take part.*libcudart", status=1)
