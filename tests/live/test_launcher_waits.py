"""A launcher that waits before any rank has begun: what for; and one that does not is left alone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ncclkit.agent.run import processes
from ncclkit.cli import main
from ncclkit.live.launcher_waits import waiting_launchers


@contextmanager
def named(name: str, code: str, *words: str, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python program under another name."""
    # a Python of another name does not find its library by itself
    env = {**os.environ, "PYTHONHOME": sys.base_prefix, **more}
    child = subprocess.Popen([name, "-c", code, *words], executable=sys.executable, env=env)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def end_children(pid: int) -> None:
    for child in processes.descendants(pid):
        processes.signal_one(child, signal.SIGKILL)


def sentence(pid: int, holds: str) -> str:
    """What is said of a launcher, once it has come to its wait."""
    until = time.monotonic() + 90
    said = ""
    while holds not in said and time.monotonic() < until:
        time.sleep(0.2)
        said = " ".join(one.say for one in waiting_launchers([pid]))
    return said


def test_torchrun_at_its_rendezvous_says_how_many_nodes_are_missing(capsys: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "x.py"]
    with subprocess.Popen([sys.executable, "-m", "torch.distributed.run", *words]) as torchrun:
        try:
            said = sentence(torchrun.pid, "waits for 1 more")
            status = main(["attach", "--pid", str(torchrun.pid), "--json"])
        finally:
            torchrun.kill()
    where = f"waits for 1 more of 2 nodes at 127.0.0.1:{port}; no rank has begun."
    assert said == f"torch.distributed.run (process {torchrun.pid}) {where}"
    answer = json.loads(capsys.readouterr().out)
    assert (status, answer["say"], answer["launchers"][0]["pid"]) == (1, said, torchrun.pid)


CONNECT = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[2])))"
START = ("import subprocess, sys; "
         "subprocess.run(['ssh', '-c', sys.argv[2], 'node-2', sys.argv[1]], executable=sys.argv[3])")  # fmt: skip


def test_a_remote_shell_that_gets_no_answer_is_told() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        port = server.getsockname()[1]
        # a queue that is full lets the kernel drop further requests, as a host that is away does
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        with named("deepspeed", START, str(port), CONNECT, sys.executable) as launcher:
            said = sentence(launcher.pid, "gets no answer")
            end_children(launcher.pid)
        for filler in fillers:
            filler.close()
    assert said.startswith(f"deepspeed (process {launcher.pid}) waits for ssh to node-2 (process ")
    assert said.endswith(f"which gets no answer from 127.0.0.1:{port}; no rank has begun here.")


def test_mpirun_before_its_daemons_is_told_and_one_with_children_is_not() -> None:
    with named("mpirun", "import time; time.sleep(60)") as alone:
        assert "has started none of its daemons yet" in sentence(alone.pid, "none of its daemons")
    code = "import subprocess; subprocess.run(['sleep', '60'])"
    with named("mpirun", code) as busy:
        until = time.monotonic() + 60
        while waiting_launchers([busy.pid]) and time.monotonic() < until:
            time.sleep(0.1)
        assert waiting_launchers([busy.pid]) == []
        end_children(busy.pid)


def test_a_step_of_slurm_says_how_to_ask_for_it() -> None:
    with named("srun", "import time; time.sleep(60)", SLURM_JOB_ID="4711") as step:
        assert "`squeue --job 4711 --steps`" in sentence(step.pid, "squeue")


def test_a_launcher_that_does_not_wait_is_left_alone() -> None:
    with named("torchrun", "import time; time.sleep(60)", "--nnodes=2") as busy, named("python", "input()") as other:
        time.sleep(0.5)
        assert waiting_launchers([busy.pid, other.pid]) == []
