"""The telemetry of a run, or a job attached to: real samples of this host, GPUs from a stand-in for nvidia-smi."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ncclkit.agent.monitor import utilization
from ncclkit.agent.monitor.telemetry import LEAST, QUERY, OtherCores, Sampler, gpus_of, sample_running_job
from ncclkit.agent.monitor.utilization import Utilization
from ncclkit.agent.run import processes

SMI = """#!/bin/sh
echo '1, 2048, 50, 300.5, 1980, 40'
echo '0, 1024, 100, [N/A], 1755, 41'
exec sleep 60
"""


def samples(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def rested(watch: Sampler) -> Sampler:
    """As if the last sample were long ago."""
    watch.last -= LEAST
    return watch


def test_a_sample_holds_what_the_host_does(tmp_path: Path) -> None:
    watch = Sampler(str(tmp_path / "telemetry.jsonl"))
    watch.take()
    until = time.monotonic() + 10
    while "cpu" not in samples(tmp_path / "telemetry.jsonl")[-1] and time.monotonic() < until:
        rested(watch).take()  # the kernel counts in ticks of 10 ms
    first, *_, second = samples(tmp_path / "telemetry.jsonl")
    assert 0 < first["memory"] < first["memory_total"] and first["swap"] >= 0 and "cpu" not in first
    assert 0 <= second["cpu"] <= 100 and isinstance(second["net"], dict) and second["t"] >= first["t"]
    assert set(second["pressure"]) == {"cpu", "memory", "io"}


def test_one_sample_a_second_however_often_it_is_asked(tmp_path: Path) -> None:
    watch = Sampler(str(tmp_path / "telemetry.jsonl"))
    watch.take()
    watch.take()
    assert len(samples(tmp_path / "telemetry.jsonl")) == 1


def test_the_memory_of_each_rank(tmp_path: Path) -> None:
    code = "import sys; print(1, flush=True); sys.stdin.read()"
    rank = subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | {"RANK": "7"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert rank.stdout is not None and rank.stdout.readline()
        Sampler(str(tmp_path / "telemetry.jsonl")).take()
    finally:
        rank.communicate(timeout=10)
    (sample,) = samples(tmp_path / "telemetry.jsonl")
    assert sample["ranks"]["7"] > 1 << 20


WORK = """
import os, socket, sys
sides = [socket.create_connection(("127.0.0.1", int(port))) for port in sys.argv[1:]]
print(1, flush=True)
if os.environ["RANK"] == "1":
    while True:
        for side in sides: side.sendall(bytes(1 << 16))
sys.stdin.read()
"""
"""Rank 1 sends for ever; rank 0 waits."""


@pytest.fixture
def pair() -> Iterator[dict[int, int]]:
    """{rank: pid} of two ranks, one of which works and sends, to a thread of ours that reads all there is."""
    with utilization.socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", WORK, str(server.getsockname()[1])]
        ranks = [
            subprocess.Popen(
                command, env=os.environ | {"RANK": str(rank)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            for rank in range(2)
        ]
        ends = [server.accept()[0] for _ in ranks]
        readers = [threading.Thread(target=drain, args=(end,), daemon=True) for end in ends]
        for reader in readers:
            reader.start()
        yield {rank: child.pid for rank, child in enumerate(ranks)}
        for child in ranks:
            child.kill()
            child.communicate(timeout=10)
        for reader in readers:
            reader.join(timeout=10)


def drain(end: Any) -> None:
    with end:
        while end.recv(1 << 20):
            continue


def test_who_works_and_sends_is_told_from_who_waits(pair: dict[int, int]) -> None:
    load, until, idle = Utilization(), time.monotonic() + 20, {"cpu": 0.0, "main": 0.0, "sent": 0, "received": 0}
    seen: dict[int, dict[str, Any]] = {0: {}, 1: {}}
    while time.monotonic() < until and not (
        seen[1].get("sent") and seen[1].get("main", 0) > 0 and seen[0] == {"state": "S", **idle}
    ):
        seen = load.take(pair)
    assert seen[0] == {"state": "S", **idle}
    assert seen[1]["sent"] > 1000 and seen[1]["received"] == 0


def test_what_is_gone_has_no_load_and_what_cannot_be_counted_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utilization, "traffic", lambda: None)  # as where the kernel has no sock_diag
    load = Utilization()
    first, second = (load.take({0: os.getpid(), 1: 1 << 30}) for _ in range(2))
    assert set(first) == set(second) == {0} and "sent" not in second[0] and "cpu" in second[0]


def test_a_job_that_we_did_not_start_is_watched_until_it_is_gone(tmp_path: Path, pair: dict[int, int]) -> None:
    watching = threading.Thread(
        target=sample_running_job, args=(str(tmp_path / "telemetry.jsonl"), pair, threading.Event())
    )
    watching.start()
    until = time.monotonic() + 20
    while not (tmp_path / "telemetry.jsonl").exists() and time.monotonic() < until:
        assert watching.is_alive()
    assert [processes.process_state(pid) in ("S", "R") for pid in pair.values()] == [True, True], "nobody is signalled"
    for pid in pair.values():
        os.kill(pid, 9)
    watching.join(timeout=20)
    assert not watching.is_alive()
    assert set(samples(tmp_path / "telemetry.jsonl")[0]["utilization"]) == {"0", "1"}


APPS = """#!/bin/sh
case "$1" in
*apps*) echo '11, 00000000:0F:00.0'; echo '12, 00000000:2A:00.0'; echo '13, 00000000:FF:00.0';;
*bus_id*) echo '00000000:0F:00.0, 0'; echo '00000000:2A:00.0, 1';;
esac
"""


def test_the_gpu_of_a_rank_is_known_where_the_driver_names_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").write_text(APPS)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert gpus_of({0: 12, 1: 11, 2: 13, 3: 14}) == {0: 1, 1: 0}


def test_gpus_are_told_in_order_and_what_is_not_known_is_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    watch, until = Sampler(str(tmp_path / "telemetry.jsonl")), time.monotonic() + 20
    try:
        while len(watch.gpus) < 2 and time.monotonic() < until:
            rested(watch).take()
    finally:
        watch.close()
    assert samples(tmp_path / "telemetry.jsonl")[-1]["gpus"] == [
        [1024.0, 100.0, None, 1755.0, 41.0],
        [2048.0, 50.0, 300.5, 1980.0, 40.0],
    ]
    assert len(QUERY) == 6


def test_a_folder_that_is_gone_ends_telemetry_and_nothing_else(tmp_path: Path) -> None:
    watch = Sampler(str(tmp_path / "gone" / "telemetry.jsonl"))
    watch.take()
    rested(watch).take()
    assert watch.path == "" and list(tmp_path.iterdir()) == []


HOLDERS = """#!/bin/sh
case "$1" in
*apps*) echo '{mine}, 00000000:0F:00.0, 900, /opt/python3'; echo '77, 00000000:2A:00.0, 22528, /home/a/bin/train';;
esac
exec sleep 60
"""


@pytest.mark.parametrize("listed", [True, False])
def test_others_on_gpus_are_told_only_where_the_list_knows_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    """In a container of its own the driver's numbers are those of another namespace: ours would seem to be others."""
    (tmp_path / "nvidia-smi").write_text(HOLDERS.format(mine=os.getpid() if listed else 1 << 22))
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    watch, until = Sampler(str(tmp_path / "telemetry.jsonl")), time.monotonic() + 20
    try:
        assert select.select([watch.apps.child.stdout], [], [], max(0.0, until - time.monotonic()))[0]
        watch.take()
    finally:
        watch.close()
    told = [sample["holders"] for sample in samples(tmp_path / "telemetry.jsonl") if "holders" in sample]
    assert told == ([[["77", "00000000:2A:00.0", "22528", "train"]]] if listed else [])


def test_cores_that_others_use_are_told_from_our_own() -> None:
    """A process that computes is somebody else's, or ours, by what is counted as the family."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        apart, together = OtherCores(), OtherCores()
        families = [os.getpid()], [os.getpid(), busy.pid]
        assert apart.take(families[0]) is together.take(families[1]) is None
        until, seen = time.monotonic() + 20, (0.0, 0.0)
        while seen[0] < seen[1] + 0.05 and time.monotonic() < until:
            time.sleep(0.3)
            seen = apart.take(families[0]) or 0.0, together.take(families[1]) or 0.0
        assert seen[0] > seen[1], "what it used is missing from the others' where it is ours"
    finally:
        busy.kill()
        busy.wait(timeout=10)
