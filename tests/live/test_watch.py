"""The strip that the guard records beside a run: real samples of this host, GPUs from a stand-in for nvidia-smi."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ncclkit.agent.watch import LEAST, QUERY, Watch

SMI = """#!/bin/sh
echo '1, 2048, 50, 300.5, 1980, 40'
echo '0, 1024, 100, [N/A], 1755, 41'
exec sleep 60
"""


def samples(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def rested(watch: Watch) -> Watch:
    """As if the last sample were long ago."""
    watch.last -= LEAST
    return watch


def test_a_sample_holds_what_the_host_does(tmp_path: Path) -> None:
    watch = Watch(str(tmp_path / "watch.jsonl"))
    watch.take()
    until = time.monotonic() + 10
    while "cpu" not in samples(tmp_path / "watch.jsonl")[-1] and time.monotonic() < until:
        rested(watch).take()  # the kernel counts in ticks of 10 ms
    first, *_, second = samples(tmp_path / "watch.jsonl")
    assert 0 < first["memory"] < first["memory_total"] and first["swap"] >= 0 and "cpu" not in first
    assert 0 <= second["cpu"] <= 100 and isinstance(second["net"], dict) and second["t"] >= first["t"]
    assert set(second["pressure"]) == {"cpu", "memory", "io"}


def test_one_sample_a_second_however_often_it_is_asked(tmp_path: Path) -> None:
    watch = Watch(str(tmp_path / "watch.jsonl"))
    watch.take()
    watch.take()
    assert len(samples(tmp_path / "watch.jsonl")) == 1


def test_the_memory_of_each_rank(tmp_path: Path) -> None:
    code = "import sys; print(1, flush=True); sys.stdin.read()"
    rank = subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | {"RANK": "7"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert rank.stdout is not None and rank.stdout.readline()
        Watch(str(tmp_path / "watch.jsonl")).take()
    finally:
        rank.communicate(timeout=10)
    (sample,) = samples(tmp_path / "watch.jsonl")
    assert sample["ranks"]["7"] > 1 << 20


def test_gpus_are_told_in_order_and_what_is_not_known_is_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    watch, until = Watch(str(tmp_path / "watch.jsonl")), time.monotonic() + 20
    assert watch.smi is not None
    try:
        while len(watch.gpus) < 2 and time.monotonic() < until:
            rested(watch).take()
    finally:
        watch.smi.kill()
        watch.smi.communicate(timeout=10)
    assert samples(tmp_path / "watch.jsonl")[-1]["gpus"] == [
        [1024.0, 100.0, None, 1755.0, 41.0],
        [2048.0, 50.0, 300.5, 1980.0, 40.0],
    ]
    assert len(QUERY) == 6


def test_a_folder_that_is_gone_ends_the_strip_and_nothing_else(tmp_path: Path) -> None:
    watch = Watch(str(tmp_path / "gone" / "watch.jsonl"))
    watch.take()
    rested(watch).take()
    assert watch.path == "" and list(tmp_path.iterdir()) == []
