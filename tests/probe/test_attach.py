"""Which job `ncclkit attach` means: by one of its ranks, by its launcher, by several; and who may not be looked at."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

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
        assert attach.ranks([str(launcher)]) == attach.ranks([str(ranks[1])]) == whole


def test_several_stand_for_themselves(jobs: list[list[int]]) -> None:
    _, zero, _, two = jobs[0]
    assert attach.ranks([str(zero), str(two)]) == {0: zero, 2: two}
    assert attach.ranks([f"5={zero}", f"3={two}"]) == {5: zero, 3: two}


def test_two_jobs_are_not_mixed(jobs: list[list[int]]) -> None:
    with pytest.raises(NcclkitError, match=f"ranks 0-2 with process {jobs[1][1]}.*name one of these with --pid"):
        attach.ranks([str(jobs[0][1]), str(jobs[1][1]), str(jobs[1][2]), str(jobs[1][3])])


def test_what_has_no_rank_is_told_how_to_be_named() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as bare:
        with pytest.raises(NcclkitError, match=f"carry no RANK.*--pid 0={bare.pid}"):
            attach.ranks([str(bare.pid)])
        bare.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a process of another user, which root can start")
def test_whose_process_may_not_be_looked_at(tmp_path: Path) -> None:
    """As somebody who is not its owner and may not trace others; who may is told."""
    as_nobody = ["setpriv", "--reuid", "65534", "--clear-groups", "cat"]
    mere = ["setpriv", "--bounding-set=-sys_ptrace,-dac_override,-dac_read_search", sys.executable, "-m", "ncclkit"]
    with subprocess.Popen(as_nobody, stdin=subprocess.PIPE, env=os.environ | {"RANK": "0"}) as other:
        while "cat" not in processes.read(f"/proc/{other.pid}/comm"):
            assert other.poll() is None
        command = [*mere, "attach", "--pid", str(other.pid)]
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ, cwd=tmp_path)
        other.communicate()
    assert done.returncode == 2 and done.stdout == ""
    assert re.fullmatch(rf"ncclkit: Process {other.pid} belongs to \w+, .* repeat it with sudo\.\n", done.stderr)
