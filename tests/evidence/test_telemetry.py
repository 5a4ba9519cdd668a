"""The telemetry of a run as evidence: one event for each rank, from the last sample that tells of it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ncclkit import evidence
from ncclkit.core.model import Event, fields_of


def sample(second: float, **more: Any) -> str:
    return json.dumps({"telemetry": 1, "t": second, "host": "node-1", "memory": 1, "memory_total": 2, **more})


def read(path: Path, *lines: str, kind: str = "telemetry.scheduling") -> list[Event]:
    (gzip.open if path.suffix == ".gz" else open)(path, "wb").write(("\n".join(lines) + "\n").encode())
    return [event for event in evidence.read([path]).events if event.kind == kind]


@pytest.mark.parametrize("name", ["telemetry.jsonl", "telemetry-node1.jsonl.gz"])
def test_the_last_sample_of_each_rank_counts(tmp_path: Path, name: str) -> None:
    found = read(
        tmp_path / name,
        sample(1.0, scheduling={"0": [1, 4, 1.0, 0.0, 3], "1": [25, 1, 2.0, 30.0, 70]}),
        sample(2.0, scheduling={"1": [25, 1, 3.0, 50.5, 99]}),
    )
    assert [(event.rank, event.host, event.line, event.time) for event in found] == [
        (0, "node-1", 1, 1.0),
        (1, "node-1", 2, 2.0),
    ]
    assert fields_of(found[1]) == {"processes": 25, "cores": 1, "ran": 3.0, "waited": 50.5, "preempted": 99}
    assert "waited 50.5 s for a core" in found[1].text


@pytest.mark.parametrize(
    "line",
    [
        '{"telemetry": 1, "t": 1.0, "scheduling": {"0": [1, 2,',
        sample(1.0, scheduling=[1, 2]),
        sample(1.0, scheduling={"0": [1, 2, 3]}),
        sample(1.0, scheduling={"0": [1, 2, 3, "x", 4]}),
        sample(1.0, scheduling={"0": [1, 2, float("nan"), 1, 4]}),
        sample(1.0, scheduling={"-1": [1, 2, 3, 4, 5], "9" * 5000: [1, 2, 3, 4, 5]}),
        sample(1.0),
        "[" * 100_000,
        "7",
    ],
)
def test_what_is_torn_or_strange_is_passed_over(tmp_path: Path, line: str) -> None:
    (event,) = read(tmp_path / "telemetry.jsonl", sample(1.0, scheduling={"0": [1, 2, 3, 4, 5]}), line)
    assert event.data.waited == 4


def load(**row: Any) -> dict[str, Any]:
    return {"utilization": {"3": row}}


def test_how_busy_a_rank_was_at_the_end_is_the_mean_of_its_last_seconds(tmp_path: Path) -> None:
    gpus = [[1024.0, 100.0, None, None, None], [1024.0, 4.0, None, None, None]]
    (event,) = read(
        tmp_path / "telemetry.jsonl",
        sample(1.0, **load(state="R", cpu=900.0, main=99.0)),
        sample(50.0, **load(state="S")),
        sample(51.0, **load(state="S", cpu=2.0, main=0.0, sent=1000, received=0, gpu=1), gpus=gpus),
        sample(52.0, **load(state="D", cpu=4.0, main=1.0, sent=3000, received=0, gpu=1), gpus=gpus),
        kind="telemetry.utilization",
    )
    rates = {"cpu": 3.0, "main": 0.5, "sent": 2000.0, "received": 0.0, "gpu_busy": 4.0, "gpu_watts": None}
    assert fields_of(event) == {"seconds": 2.0, "states": "SSD", "gpu": 1, **rates}
    assert (event.rank, event.line, event.time) == (3, 4, 52.0) and "GPU 1 busy 4 %" in event.text


@pytest.mark.parametrize(
    "row",
    [{"state": "R"}, {"cpu": "much"}, {"cpu": -1.0}, {"cpu": True}, 7, None, {"cpu": float("nan"), "state": "RRR"}],
)
def test_a_rank_without_a_rate_is_no_event(tmp_path: Path, row: Any) -> None:
    assert (
        read(tmp_path / "telemetry.jsonl", sample(1.0, utilization={"3": row, "x": row}), kind="telemetry.utilization")
        == []
    )


HOLDER = ["77", "00000000:2A:00.0", "22528", "train"]


def test_what_others_used_in_the_time_of_a_run_is_one_event_of_its_host(tmp_path: Path) -> None:
    """Before the ranks came whatever computed on a GPU was somebody else; while they ran, the cores are counted."""
    (event,) = read(
        tmp_path / "telemetry.jsonl",
        sample(1.0, ranks={}, gpus=[[900, 97, 1], [1, 60, 1]], cores=2, others=1.9, load=13.0),
        sample(2.0, ranks={}, gpus=[[900, 99, 1], [1, 0, 1]]),
        sample(3.0, ranks={"0": 1, "1": 1}, gpus=[[900, 50, 1], [1, 50, 1]], cores=2, others=1.5, load=13.6),
        sample(4.0, ranks={"0": 1}, cores=2, others=1.7, load=13.1, holders=[HOLDER, HOLDER]),
        kind="telemetry.others",
    )
    assert fields_of(event) == {
        "cores_used": 1.6, "cores": 2, "load": 13.6, "ranks": 2, "gpus": {"0": 97},
        "holders": [dict(zip(("pid", "bus", "memory", "name"), HOLDER, strict=True))],
    }  # fmt: skip
    assert (event.host, event.line, event.rank) == ("node-1", 4, None)
    assert "used 1.6 of 2 cores (load 13.6), kept GPU 0 busy 97 %" in event.text


@pytest.mark.parametrize(
    "more",
    [
        {"ranks": {}, "gpus": [[900, 97, 1]]},  # one sample may show how the job before ours ended
        {"ranks": {"0": 1}, "gpus": [[900, 97, 1]]},
        {"ranks": {"0": 1}, "others": "many", "cores": 2},
        {"ranks": {"0": 1}, "others": 1.0},
        {"ranks": [], "gpus": {"0": 1}, "holders": [["7"], 7, [1, 2, 3, 4]]},
    ],
)
def test_where_nothing_is_known_of_others_there_is_no_event(tmp_path: Path, more: dict[str, Any]) -> None:
    assert read(tmp_path / "telemetry.jsonl", sample(1.0, **more), kind="telemetry.others") == []
