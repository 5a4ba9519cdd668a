"""The live test as recorded on four H200 (tests/record/live.py): read again today, it says what it said then."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclkit import evidence
from ncclkit.views.pairs import pairs_view
from ncclkit.views.telemetry import telemetry_view
from ncclkit.agent.run.operations import NAMES
from ncclkit.analysis.stages import staged_test
from ncclkit.causes.engine import diagnose
from ncclkit.core import bandwidth
from ncclkit.core.case import Case

RECORDED = Path(__file__).parent / "recorded"
RUNS = sorted(path.name for path in RECORDED.iterdir())


def case_of(name: str) -> Case:
    """The recording with its events read anew."""
    case = Case.open(RECORDED / name, read_only=True)
    case.events = evidence.read([RECORDED / name]).events
    return case


@pytest.mark.parametrize("name", RUNS)
def test_every_value_was_right_and_nothing_is_found(name: str) -> None:
    case = case_of(name)
    assert {m.wrong for m in case.measurements} == {0} and {m.backend for m in case.measurements} == {"nccl"}
    assert diagnose(case).findings == ()


@pytest.mark.parametrize("name", RUNS)
def test_bandwidths_follow_from_the_times(name: str) -> None:
    for m in case_of(name).measurements:
        assert m.algbw == pytest.approx(m.bytes / m.time_us / 1e3)
        assert m.busbw == pytest.approx(m.algbw * bandwidth.factor(m.op, m.ranks))


def test_every_collective_comes_near_its_bound_and_stays_below() -> None:
    case = case_of("stages")
    best = {op: max(m.ratio or 0 for m in case.measurements if m.op == op) for op in NAMES}
    assert all(0.85 < ratio < 1 for ratio in best.values()), best
    assert {bandwidth.expect(op, "nccl", 4, case.facts).limit for op in NAMES} == {"nvlink"}


def test_a_replayed_graph_is_faster_than_python_and_only_small_messages_are_replayed() -> None:
    rows = case_of("stages").measurements
    assert all(m.graph_us is not None and m.graph_us < m.time_us for m in rows if m.bytes <= 1 << 18)
    assert all(m.graph_us is None for m in rows if m.bytes > 1 << 20)


def test_the_pairs_are_alike_and_joined_by_nvlink() -> None:
    found = staged_test(case_of("stages"))
    assert {(pair.path, pair.slow, pair.wrong) for pair in found.pairs} == {("NV18", False, 0)} and len(
        found.pairs
    ) == 6
    assert all(2500 < speed < 4800 for speed in found.alone.values())  # an H200 moves at most 4.8 TB/s
    assert found.summary.endswith("over NV18, and all are alike")


def test_simulated_hosts_talk_over_the_network() -> None:
    case = case_of("two_hosts")
    ways = {(pair.a, pair.b): pair.path for pair in staged_test(case).pairs}
    assert {pair for pair, way in ways.items() if way == "NV18"} == {(0, 1), (2, 3)}
    assert set(ways.values()) == {"NV18", "network"} and {m.hosts for m in case.measurements} == {2}
    assert {event.data.via for event in case.of("nccl.channel")} == {"P2P", "NET"}


def test_telemetry_saw_the_gpus_at_work() -> None:
    case = case_of("stages")
    assert telemetry_view(case).summary.endswith("GPU memory at most 18.6 GiB, GPUs busy up to 100 %")
    assert "231" in str(pairs_view(case).static())
