"""Which job `ncclkit attach` means: by one of its ranks, by its launcher, by several; and who may not be looked at."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclkit.agent.monitor import attach as collect
from ncclkit.agent.run import processes
from ncclkit.core.model import NcclkitError
from ncclkit.live import attach

ROOT = Path(__file__).parents[2]
LAUNCHER = """
import os, subprocess, sys
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
ranks = [subprocess.Popen(["cat"], env={**os.environ, "RANK": str(rank)}, **pipes) for rank in range(3)]
for rank in ranks:
    rank.stdin.write(b"up\\n")
    rank.stdout.readline()
print(*(rank.pid for rank in ranks), flush=True)
sys.stdin.read()
"""
"""Its ranks answer before they are told of: Popen may return before Linux has given a new program its environment."""


@pytest.fixture
def jobs() -> Iterator[list[list[int]]]:
    """Two jobs of three ranks, each under a launcher: [its process, then those of its ranks]."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", LAUNCHER],
            env={**os.environ, "TORCHELASTIC_RUN_ID": uuid.uuid4().hex},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    yield [[one.pid, *map(int, one.stdout.readline().split())] for one in started if one.stdout]
    for one in started:
        one.communicate()  # its input ends, and with it that of its ranks


def test_one_process_stands_for_its_job(jobs: list[list[int]]) -> None:
    for launcher, *ranks in jobs:
        whole = dict(enumerate(ranks))
        assert attach.ranks_of_target([str(launcher)]) == attach.ranks_of_target([str(ranks[1])]) == whole


def test_several_stand_for_themselves(jobs: list[list[int]]) -> None:
    _, zero, _, two = jobs[0]
    assert attach.ranks_of_target([str(zero), str(two)]) == {0: zero, 2: two}
    assert attach.ranks_of_target([f"5={zero}", f"3={two}"]) == {5: zero, 3: two}


def test_two_jobs_are_not_mixed(jobs: list[list[int]]) -> None:
    with pytest.raises(NcclkitError, match=f"ranks 0-2 with process {jobs[1][1]}.*name one of these with --pid"):
        attach.ranks_of_target([str(jobs[0][1]), str(jobs[1][1]), str(jobs[1][2]), str(jobs[1][3])])


def test_what_has_no_rank_is_told_how_to_be_named() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as bare:
        with pytest.raises(NcclkitError, match=f"carry no RANK.*--pid 0={bare.pid}"):
            attach.ranks_of_target([str(bare.pid)])
        bare.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a process of another user, which root can start")
def test_whose_process_may_not_be_looked_at(tmp_path: Path) -> None:
    """As somebody who is not its owner and may not trace others; who may is told."""
    as_nobody = ["setpriv", "--reuid", "65534", "--clear-groups", "cat"]
    mere = ["setpriv", "--bounding-set=-sys_ptrace,-dac_override,-dac_read_search", sys.executable, "-m", "ncclkit"]
    with subprocess.Popen(as_nobody, stdin=subprocess.PIPE, env=os.environ | {"RANK": "0"}) as other:
        while "cat" not in processes.read_text(f"/proc/{other.pid}/comm"):
            assert other.poll() is None
        command = [*mere, "attach", "--pid", str(other.pid)]
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ, cwd=tmp_path)
        other.communicate()
    assert done.returncode == 2 and done.stdout == ""
    assert re.fullmatch(rf"ncclkit: Process {other.pid} belongs to \w+, .* repeat it with sudo\.\n", done.stderr)


NO_PTRACE = ["setpriv", "--bounding-set=-sys_ptrace,-dac_override,-dac_read_search"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs rights to give up")
def test_without_the_right_to_trace_is_said_what_was_refused_and_how_to_allow_it(tmp_path: Path) -> None:
    """As in a container without SYS_PTRACE; the rank has more rights, goes on, and nothing is injected."""
    command = [*NO_PTRACE, sys.executable, "-m", "ncclkit", "attach", "--seconds", "0.5", "--dump", "--pid"]
    rank = {"RANK": "0", "WORLD_SIZE": "1", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | rank) as job:
        assert job.stdin is not None and job.stdout is not None
        job.stdin.write(b"up\n")
        job.stdin.flush()
        assert job.stdout.readline() == b"up\n"
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run([*command, str(job.pid)], capture_output=True, text=True, env=environ, cwd=tmp_path)
        assert job.poll() is None
        job.communicate()
    if "may still not be read" in done.stderr:  # kernels differ in whether its environment may be
        assert "it takes CAP_SYS_PTRACE: repeat it with sudo." in done.stderr
        return
    assert done.returncode == 1 and "Rank 0 could not be read" in done.stdout, done.stdout + done.stderr
    refused = done.stdout.partition("What could not be read, and how it can be:\n")[2].splitlines()
    assert refused[0].startswith("  py-spy on rank 0: ") and any(
        "gave no Flight Recorder dump" in one for one in refused
    )
    assert "export TORCH_FR_BUFFER_SIZE=2000" in done.stdout
    assert any("take CAP_SYS_PTRACE" in one and "--cap-add=SYS_PTRACE" in one for one in refused)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs processes of another user, which root can start")
def test_a_process_that_is_closed_to_its_own_user_is_not_called_another_users() -> None:
    """``/proc`` gives the files of a process that cannot be dumped to root."""
    nobody = ["setpriv", "--reuid", "65534", "--clear-groups", sys.executable, "-c"]
    closed = "import ctypes, sys; ctypes.CDLL(None).prctl(4, 0); print('up', flush=True); sys.stdin.read()"
    ask = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from ncclkit.live import attach; attach.ranks_of_target(sys.argv[1:])"
    with subprocess.Popen([*nobody, closed], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None and job.stdout.readline() == b"up\n"
        done = subprocess.run([*nobody, ask, str(job.pid)], capture_output=True, text=True, cwd="/")
        job.communicate()
    assert f"Process {job.pid} is this user's and may still not be read; it takes CAP_SYS_PTRACE" in done.stderr


@pytest.mark.parametrize(
    ("scope", "may", "said"),
    [
        ("1", False, "ptrace_scope is 1 here, so stacks take CAP_SYS_PTRACE: repeat it with sudo, or allow it: sudo"),
        ("2", False, "ptrace_scope is 2 here"),
        ("3", True, "nobody may read stacks until the host has been booted without it"),
        ("0", False, "take CAP_SYS_PTRACE: repeat it with sudo on the host, or start the container with --cap-add"),
        ("", True, "a seccomp filter or a security module refuses ptrace"),
    ],
)
def test_what_allows_to_read_stacks(monkeypatch: pytest.MonkeyPatch, scope: str, may: bool, said: str) -> None:
    read = processes.read_text
    known = {"/proc/sys/kernel/yama/ptrace_scope": f"{scope}\n"}
    monkeypatch.setattr(processes, "read_text", lambda path, limit=1 << 20: known.get(path) or read(path, limit))
    monkeypatch.setattr(processes, "has_capability", lambda number: may)
    assert said in collect._why_refused([os.getpid()])
    monkeypatch.setattr(processes, "owner", lambda pid: 4711)
    assert "belong to user 4711, who may read them" in collect._why_refused([os.getpid()])


CONTAINED = """
import sys
def load():
    sys.stdin.read()
print("up", flush=True)
load()
"""
CONTAINER = ["unshare", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child", "sh", "-ec"]
BEGIN = 'mount -t tmpfs none /mnt; printf %s "$1" > /mnt/train.py; "$0" /mnt/train.py; true'
"""A shell around the rank, and a program that is only seen inside."""


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("nsenter"), reason="needs root, for namespaces of processes and mounts"
)
def test_a_rank_in_a_container_is_read_from_the_host_and_from_within(tmp_path: Path) -> None:
    """The Python program behind its shell, with the line of a file that the host does not see."""
    rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    pipe, environ = subprocess.PIPE, os.environ | {"PYTHONPATH": str(ROOT)}
    attach = [sys.executable, "-m", "ncclkit", "attach", "--seconds", "0.5"]
    command = [*CONTAINER, BEGIN, sys.executable, CONTAINED]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=os.environ | rank) as job:
        assert job.stdout is not None and job.stdout.readline() == b"up\n"
        within = processes.descendants(job.pid)[-1]
        inner = processes.read_text(f"/proc/{within}/status").partition("NSpid:")[2].split("\n")[0].split()[-1]
        enter = ["nsenter", "--target", str(within), "--pid", "--mount"]
        ways = {"host": [*attach, "--pid", str(job.pid)], "within": [*enter, *attach, "--pid", inner]}
        for name, way in ways.items():
            case = ["--case", str(tmp_path / name)]
            done = subprocess.run([*way, *case], capture_output=True, text=True, env=environ, timeout=100)
            assert "in load at train.py:4" in done.stdout, done.stdout + done.stderr
            assert "python /mnt/train.py" in done.stdout
            lacks = "without native frames, as it is in a container: repeat it inside" in done.stdout
            assert lacks == (name == "host") == ("could not be read" in done.stdout), done.stdout
            (attached,) = (tmp_path / name).rglob("attached.json")
            told = json.loads(attached.read_text())["ranks"]["0"]
            assert told["program"][0]["text"] == "sys.stdin.read()"
            assert told["pid"] == (within if name == "host" else int(inner))
        job.communicate()
