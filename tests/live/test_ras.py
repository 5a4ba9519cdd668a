"""The agent's RAS client against a server that speaks the protocol, in each of its moods."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE

import pytest

from ncclkit import evidence
from ncclkit.agent.monitor import attach, ras
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.evidence.logs import fill
from tests.live.ras_server import END, Reply, serve, speak
from tests.namespaces import needs_namespaces
from tests.ras_printer import JSON_FROM, VERSIONS, Job, as_json, behind, numbers, text

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parents[1] / "evidence" / "ras"
SERVER = """
import pathlib, subprocess, sys
from tests.live.ras_server import serve, speak
subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=30)
with serve(speak([pathlib.Path(sys.argv[1]).read_bytes()] * 2)) as server:
    print(server.address[1], flush=True)
    sys.stdin.readline()
"""
"""RAS in the network of its process, until it is told that all is over."""
JSON = [(DATA / name).read_bytes() for name in ("mismatch.json", "mismatch_2.json")]
TEXT = [(DATA / "mismatch.txt").read_bytes()] * 2
OWN = {896, 897, 898, 899}
"""The processes of the recorded job."""
VALID = {"CLIENT PROTOCOL 2\n", "TIMEOUT 1\n", "SET FORMAT json\n", "STATUS\n", "DIAGNOSTICS\n"}


def poll(folder: Path, reply: Reply, deadline: float = 3.0) -> tuple[str, list[str]]:
    """(why not, names of the files written), and only valid lines were sent."""
    with serve(reply) as server:
        why = ras.Polls(str(folder), server.address, deadline, os.getpid(), OWN).wait()
    assert set(server.asked) <= VALID
    return why, sorted(os.listdir(folder))


def test_json_twice(tmp_path: Path) -> None:
    assert poll(tmp_path, speak(JSON)) == ("", ["ras.json", "ras_2.json"])
    assert [(tmp_path / name).read_bytes() for name in ("ras.json", "ras_2.json")] == JSON
    changes = [event.data for event in evidence.read([tmp_path]).events if event.kind == "ras.change"]
    assert [data.behind for data in changes] == [[], [3]]


def test_text_where_json_is_unknown(tmp_path: Path) -> None:
    assert poll(tmp_path, speak(TEXT, json=False)) == ("", ["ras.txt", "ras_2.txt"])
    assert (tmp_path / "ras.txt").read_bytes() == TEXT[0]


def test_a_server_that_hangs_up_on_what_it_does_not_know(tmp_path: Path) -> None:
    """The question is put again on a new connection, without the line that it did not know."""
    plain = speak(TEXT, json=False)
    assert poll(tmp_path, lambda line: None if line.startswith("SET") else plain(line)) == (
        "",
        ["ras.txt", "ras_2.txt"],
    )


def test_the_second_report_never_comes(tmp_path: Path) -> None:
    why, names = poll(tmp_path, speak([JSON[0], b""]))
    assert "closed the connection without a report" in why and names == ["ras.json"]


OTHER = [re.sub(rb'"pid": 89\d', b'"pid": 4711', report) for report in JSON]


def test_a_report_of_another_job_is_not_kept_and_the_connection_is_made_again(tmp_path: Path) -> None:
    """Two jobs share the port: the first and the third connection reach the other one."""
    why, names = poll(tmp_path, speak([OTHER[0], JSON[0], OTHER[1], JSON[1]]), 4.0)
    assert "2 reports of other jobs were not used" in why and names == ["ras.json", "ras_2.json"]
    assert all(b"4711" not in path.read_bytes() for path in tmp_path.iterdir())


def test_where_only_another_job_answers_there_is_no_report(tmp_path: Path) -> None:
    why, names = poll(tmp_path, lambda line: speak(OTHER[:1])(line), 1.0)
    assert re.search(r"\d reports of other jobs were not used; no report of this job", why) and names == []


@pytest.mark.parametrize(
    ("report", "job", "ours"),
    [
        (JSON[0], {896, 897, 898, 899, 900}, True),
        (JSON[0], {896, 897}, False),
        (TEXT[0], {896, 897, 898, 899}, True),
        (TEXT[0].replace(b"192.0.2.2", b"127.0.0.1"), {900}, False),
        (TEXT[0].replace(b"192.0.2.2", b"198.51.100.7"), {os.getpid()}, True),
        (b"Communicators... OK", {os.getpid()}, True),
    ],
    ids=["JSON", "JSON of a larger job", "text", "text of another job", "text on another node", "text without a process"],
)
def test_whose_report_it_is(report: bytes, job: set[int], ours: bool) -> None:
    assert ras.belongs(report, job) is ours


def test_a_report_without_processes_counts_only_where_no_other_job_has_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    read = ras.processes.read_text
    monkeypatch.setattr(
        ras.processes, "read_text", lambda path, *more: "libnccl.so" if "maps" in path else read(path, *more)
    )
    assert not ras.belongs(b"Communicators... OK", {os.getpid()})


DIAG = b"""node1:896 NCCL DIAG === RAS Diagnostics ===
node1:896 NCCL DIAG [INFO] ECC: uncorrected volatile errors on rank(s) {3} (worst=3) across 4 ranks in comm 0x5f
node1:896 NCCL DIAG RAS diagnostics completed in 41.7 ms across 4 RAS peers
"""
NEWER = [report.replace(b"2.28.9", b"2.31.2") for report in JSON]


def test_nccl_2_31_is_asked_for_its_diagnostics(tmp_path: Path) -> None:
    assert poll(tmp_path, speak(NEWER, diagnostics=DIAG)) == ("", ["ras.json", "ras_2.json", "ras_diagnostics.txt"])
    found = [one.data for one in evidence.read([tmp_path]).events if one.kind == "nccl.diagnostic"]
    assert [one.ranks for one in found if one.state == "finding"] == [[3]]


def test_diagnostics_wait_until_the_ranks_are_not_watched_any_more(tmp_path: Path) -> None:
    """NCCL 2.32 reads files in each rank for its answer, which would look like a rank at work."""
    with serve(speak(NEWER, diagnostics=DIAG)) as server:
        polls = ras.Polls(str(tmp_path), server.address, 3.0, os.getpid(), OWN)
        until = time.monotonic() + 30.0
        while not (tmp_path / "ras_2.json").exists():
            assert time.monotonic() < until
            time.sleep(0.05)
        assert "DIAGNOSTICS\n" not in server.asked
        assert polls.wait() == ""
        assert "DIAGNOSTICS\n" in server.asked


def test_an_earlier_nccl_is_not(tmp_path: Path) -> None:
    with serve(speak(JSON)) as server:
        assert ras.Polls(str(tmp_path), server.address, 3.0, os.getpid(), OWN).wait() == ""
    assert "DIAGNOSTICS\n" not in server.asked


REFUSED = {
    "busy": (NEWER, b"BUSY: diagnostics already in progress\n", "", True),
    "of another job": (NEWER, DIAG.replace(b":896", b":4711"), "another job", False),
    "not known to only read": ([one.replace(b"2.31.2", b"2.33.1") for one in NEWER], DIAG, "ncclras -D", False),
    "refused and kept open": (NEWER, None, "breaks off", True),
}


@pytest.mark.parametrize("name", REFUSED)
def test_diagnostics_that_do_not_come(tmp_path: Path, name: str) -> None:
    """They take none of the two reports away, and have the deadline of all."""
    reports, answer, why, kept = REFUSED[name]
    said, names = poll(tmp_path, speak(reports, diagnostics=answer), 2.0)
    assert why in said and {"ras.json", "ras_2.json"} <= set(names)
    assert ("ras_diagnostics.txt" in names) == kept


SAYS = {
    "silent": (lambda line: b"", "timed out"),
    "garbage": (lambda line: b"HTTP/1.1 400 Bad Request\r\n\r\n", "is not RAS"),
    "endless line": (lambda line: b"x" * 100_000, "is not RAS"),
    "closed at once": (lambda line: None, "is not RAS"),
    "no report": (speak([b"", b""]), "without a report"),
}


@pytest.mark.parametrize("mood", SAYS)
def test_why_there_is_no_report(tmp_path: Path, mood: str) -> None:
    reply, why = SAYS[mood]
    said, names = poll(tmp_path, reply, 0.5)
    assert why in said and said.startswith("NCCL's RAS on 127.0.0.1:") and names == []


def test_a_report_that_stops_in_the_middle_is_kept(tmp_path: Path) -> None:
    half = speak([TEXT[0]], json=False)
    why, names = poll(tmp_path, lambda line: (half(line) or b"")[:600].removesuffix(END), 0.5)
    assert "breaks off" in why and names == ["ras.txt"]
    assert [event.kind for event in evidence.read([tmp_path]).events] == ["ras.report"]


def test_nobody_listens(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    why = ras.Polls(str(tmp_path), address, 5.0, os.getpid(), OWN).wait()
    assert "nobody listens" in why and why.endswith("2.24")
    why = ras.Polls(str(tmp_path), address, 5.0, 1 << 30, OWN).wait()
    assert "nobody listens" in why and why.endswith("cannot be entered (No such file or directory)")


@needs_namespaces
def test_the_loopback_of_a_container_is_asked_there(tmp_path: Path) -> None:
    """A job in a network of its own; this process, and all its other threads, stay where they are."""
    program = [sys.executable, "-c", SERVER, str(DATA / "mismatch.json")]
    before = os.stat("/proc/self/ns/net").st_ino
    with subprocess.Popen(["unshare", "--net", *program], cwd=ROOT, stdin=PIPE, stdout=PIPE, text=True) as inside:
        assert inside.stdout is not None
        address = ("127.0.0.1", int(inside.stdout.readline()))
        assert ras.Polls(str(tmp_path), address, 5.0, inside.pid, OWN).wait() == ""
        inside.communicate("over\n", timeout=30)
    assert sorted(os.listdir(tmp_path)) == ["ras.json", "ras_2.json"]
    assert {os.stat(f"/proc/self/task/{task}/ns/net").st_ino for task in os.listdir("/proc/self/task")} == {before}


def test_an_endless_report_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "LARGEST", 1 << 16)
    why, names = poll(tmp_path, speak([b"NCCL version 2.28.9\n" * 20_000], json=False))
    assert "longer than" in why and (tmp_path / "ras.txt").stat().st_size < 1 << 18


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    with serve(speak(JSON)) as server:
        assert "No such file" in ras.Polls(str(tmp_path / "gone"), server.address, 3.0, os.getpid(), OWN).wait()


def test_one_guard_asks_for_all_nodes(tmp_path: Path) -> None:
    (tmp_path / "ras.json.part").touch()
    assert poll(tmp_path, speak([])) == ("", ["ras.json.part"])


ADDRESSES = {
    "": ("localhost", 28028),
    "10.0.0.1:4000": ("10.0.0.1", 4000),
    "[::1]:4000": ("::1", 4000),
    "nonsense": ("localhost", 28028),
    "host:99999": ("localhost", 28028),
}


@pytest.mark.parametrize("value", ADDRESSES)
def test_address(value: str) -> None:
    assert ras.address({"NCCL_RAS_ADDR": value}) == ADDRESSES[value]


def test_attach_asks_where_the_rank_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This very process plays the rank; its stack comes from nowhere, the two reports do."""
    own = [re.sub(rb'"pid": \d+', b'"pid": %d' % os.getpid(), report) for report in JSON]
    with serve(speak(own)) as server:
        monkeypatch.setattr(attach.processes, "environ", lambda pid: {"NCCL_RAS_ADDR": "%s:%d" % server.address})
        assert attach.collect(str(tmp_path), {0: os.getpid()}, lambda until: [], time.monotonic() + 4.0) == []
    assert {"ras.json", "ras_2.json"} == set(os.listdir(tmp_path))


@pytest.mark.parametrize("version", VERSIONS)
def test_attach_names_a_node_of_eight_ranks_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """RAS of each version, asked on another node: by text, or by JSON where that is spoken.

    This very process plays rank 0 of 64, and numbers above its own those of its node.
    """
    job = Job(64, counts=behind("AllReduce", range(8, 16)), pid=os.getpid())
    ranks = {rank: job.pid + rank for rank in range(8)}
    spoken = text(version, job)
    if numbers(version) >= JSON_FROM:
        spoken = as_json(job, version)
    with serve(speak([spoken.encode()] * 2, json=numbers(version) >= JSON_FROM)) as server:
        monkeypatch.setattr(attach.processes, "environ", lambda pid: {"NCCL_RAS_ADDR": "%s:%d" % server.address})
        assert attach.collect(str(tmp_path), ranks, lambda until: [], time.monotonic() + 8.0) == []
    case = Case()
    fill(case, evidence.read([tmp_path]))
    (finding,) = (one for one in diagnose(case).findings if one.cause == "slow_rank")
    assert finding.strength == "likely" and list(finding.culprits["ranks"]) == [*range(8, 16)]
    assert "192.0.2.11" in finding.say and "two reports alike" in finding.say


SMI = """#!/bin/sh
echo '<nvidia_smi_log>'
exec {then}
"""


@pytest.mark.parametrize(
    ("then", "problem"),
    [("true", ""), ("false", "ended with 1"), ("sleep 60", "did not answer in time"), ("yes", "wrote more")],
)
def test_what_the_driver_says_is_kept_or_why_it_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, problem: str
) -> None:
    (tmp_path / "nvidia-smi").write_text(SMI.format(then=then))
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    patience = 0.0 if then == "sleep 60" else 20.0
    gpus = attach.Gpus(str(tmp_path / "gpus.xml"), time.monotonic() + patience)
    assert problem in "".join(gpus.wait())
    assert {"nvidia-smi", *([] if problem else ["gpus.xml"])} == set(os.listdir(tmp_path))
