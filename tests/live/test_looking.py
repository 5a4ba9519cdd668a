"""Looks at hosts for a person: what they answer, what they cannot answer, and what never runs."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from pathlib import Path

import pytest

from ncclkit.causes.looks import all_questions
from ncclkit.core.case import Case
from ncclkit.core.model import Event
from ncclkit.experiments.questions import look_for_me
from ncclkit.live import looking
from ncclkit.live.looking import look_on_hosts

HERE = socket.gethostname()
READERS = set(
    "cat chronyc date df dmesg echo env find free getent grep head hostname ip journalctl ldconfig ls nproc nstat"
    " nvidia-smi pgrep ps python3 sacct ss sysctl systemctl tail taskset timedatectl ulimit uptime".split()
)
"""Programs that only read, as the looks call them."""
WRITES = re.compile(
    r"-delete|-exec|sysctl -w|ip link set|systemctl (?!is-active)|journalctl .*vacuum|tee "
)
"""Options by which these write all the same."""


@pytest.fixture(autouse=True)
def no_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


def test_what_shows_it_is_a_yes_and_what_denies_it_a_no() -> None:
    assert look_on_hosts("echo swap 3G", "swap [1-9]", "swap 0", (HERE,)).answer == "yes"
    seen = look_on_hosts("echo swap 0", "swap [1-9]", "swap 0", (HERE,))
    assert seen.answer == "no" and seen.text == f"on this host, {HERE}: swap 0"
    assert look_on_hosts("echo neither", "swap [1-9]", "swap 0", (HERE,)).answer == "unknown"


def test_a_no_needs_a_look_that_was_whole() -> None:
    """A kernel's log that nobody may read holds no line either."""
    refused = "echo dmesg: Operation not permitted >&2; echo 0"
    assert look_on_hosts(refused, "", "^0$", (HERE,)).answer == "unknown"


def test_another_host_cannot_answer_for_those_of_the_job() -> None:
    seen = look_on_hosts("echo swap 0", "swap [1-9]", "swap 0", ("node-1",))
    assert seen.answer == "unknown" and "cannot tell: the job ran on node-1" in seen.text
    assert look_on_hosts("echo swap 3", "swap [1-9]", "swap 0", ("node-1",)).answer == "unknown"


def test_a_no_of_one_host_is_none_of_all_hosts() -> None:
    both = (f"{HERE}.cluster", "node-2")
    seen = look_on_hosts("echo swap 0", "swap [1-9]", "swap 0", both)
    assert seen.answer == "unknown" and "the job ran on node-2, too" in seen.text
    assert look_on_hosts("echo swap 3", "swap [1-9]", "swap 0", both).answer == "yes"


def test_it_is_bounded_in_time_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "SECONDS", 0.3)
    begun = time.monotonic()
    seen = look_on_hosts("echo swap 0; sleep 60", "", "swap 0", (HERE,))
    assert (
        time.monotonic() - begun < 5
        and seen.answer == "unknown"
        and "ended after 0.3 s" in seen.text
    )
    monkeypatch.setattr(looking, "SECONDS", 15.0)
    seen = look_on_hosts("yes much", "", "much", (HERE,))
    assert seen.answer == "unknown" and len(seen.text) < 1200


def test_secrets_stay_here_and_long_output_is_cut() -> None:
    seen = look_on_hosts(
        "echo HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345; seq 1000", "HF_TOKEN", "", (HERE,)
    )
    assert seen.answer == "yes" and "abcdefgh" not in seen.text
    assert len(look_on_hosts("seq 1000", "", "", (HERE,)).text.splitlines()) < 20


def test_each_node_of_an_allocation_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    srun = tmp_path / "srun"
    srun.write_text(
        "#!/bin/sh\n"
        'while [ "$1" != sh ]; do shift; done\n'
        "echo 0: node-1; echo 1: node-2\n"
        '"$@" | tail -n 1 | sed "s/^/1: /"; echo 0: swap 0\n'
    )
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    seen = look_on_hosts("echo swap 5", "swap [1-9]", "swap 0", ("node-1", "node-2"))
    assert seen.answer == "yes" and seen.text == "on node-2: swap 5"
    seen = look_on_hosts("echo swap 0", "swap [1-9]", "swap 0", ("node-1", "node-2"))
    assert seen.answer == "no" and "node-[1-2]" in seen.text


def test_nothing_of_a_case_is_run(tmp_path: Path) -> None:
    """Neither what an event calls a look, nor a command that it brings."""
    touched = tmp_path / "touched"
    data = {"look": f"touch {touched}", "answer": "yes", "by": "check"}
    case = Case.open(tmp_path / "case")
    case.add([Event("told.answer", f"$(touch {touched})", data=data)]).save()
    file = tmp_path / "case/events.jsonl"
    mailed = file.read_text().replace('"check"', f'"check","now":"touch {touched}"')
    assert "now" in mailed
    file.write_text(mailed)
    look_for_me(Case.open(tmp_path / "case"), all_questions()["clock_skew"])
    assert not touched.exists()


@pytest.mark.parametrize("cause", all_questions())
def test_looks_only_read(cause: str) -> None:
    command = all_questions()[cause].now
    assert subprocess.run(["sh", "-n", "-c", command], timeout=10).returncode == 0
    assert not WRITES.search(command)
    assert ">" not in re.sub(r"2>(?:/dev/null|&1)", "", command)
    plain = re.sub(r"timeout \d+ ", "", command)
    calls = [part.split()[0] for part in re.split(r"[;|()]+|\$\(", plain) if part.split()]
    assert {call for call in calls if not call.startswith("2>")} <= READERS


def test_a_log_that_names_no_host_is_answered_by_none() -> None:
    seen = look_on_hosts("echo swap 3G", "swap [1-9]", "swap 0", ())
    assert seen.answer == "unknown" and "names no host" in seen.text and "swap 3G" in seen.text
