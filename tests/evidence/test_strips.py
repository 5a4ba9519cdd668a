"""The strip of a run as evidence: one event for each rank, from the last sample that tells of it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ncclkit import evidence
from ncclkit.model import Event


def sample(second: float, **more: Any) -> str:
    return json.dumps({"watch": 1, "t": second, "host": "node-1", "memory": 1, "memory_total": 2, **more})


def read(path: Path, *lines: str) -> list[Event]:
    (gzip.open if path.suffix == ".gz" else open)(path, "wb").write(("\n".join(lines) + "\n").encode())
    return [event for event in evidence.read([path]).events if event.kind == "watch.cpu"]


@pytest.mark.parametrize("name", ["watch.jsonl", "watch-node1.jsonl.gz"])
def test_the_last_sample_of_each_rank_counts(tmp_path: Path, name: str) -> None:
    found = read(
        tmp_path / name,
        sample(1.0, cores={"0": [1, 4, 1.0, 0.0, 3], "1": [25, 1, 2.0, 30.0, 70]}),
        sample(2.0, cores={"1": [25, 1, 3.0, 50.5, 99]}),
    )
    assert [(event.rank, event.host, event.line, event.time) for event in found] == [
        (0, "node-1", 1, 1.0),
        (1, "node-1", 2, 2.0),
    ]
    assert found[1].data == {"processes": 25, "cores": 1, "ran": 3.0, "waited": 50.5, "preempted": 99}
    assert "waited 50.5 s for a core" in found[1].text


@pytest.mark.parametrize(
    "line",
    [
        '{"watch": 1, "t": 1.0, "cores": {"0": [1, 2,',
        sample(1.0, cores=[1, 2]),
        sample(1.0, cores={"0": [1, 2, 3]}),
        sample(1.0, cores={"0": [1, 2, 3, "x", 4]}),
        sample(1.0, cores={"0": [1, 2, float("nan"), 1, 4]}),
        sample(1.0, cores={"-1": [1, 2, 3, 4, 5], "9" * 5000: [1, 2, 3, 4, 5]}),
        sample(1.0),
        "[" * 100_000,
        "7",
    ],
)
def test_what_is_torn_or_strange_is_passed_over(tmp_path: Path, line: str) -> None:
    (event,) = read(tmp_path / "watch.jsonl", sample(1.0, cores={"0": [1, 2, 3, 4, 5]}), line)
    assert event.data["waited"] == 4
