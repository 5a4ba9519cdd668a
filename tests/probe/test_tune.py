"""Advice from measured curves, and paired comparison."""

from dataclasses import replace
from pathlib import Path

import pytest

from ncclkit.core import budgets
from ncclkit.core.bandwidth import Expectation
from ncclkit.core.case import Case
from ncclkit.core.model import Measurement
from ncclkit.live import tune

KIB, MIB = 1 << 10, 1 << 20
RECORDED = Path(__file__).parent / "recorded"


def curve(alpha_us: float, gbps: float, p99: float = 1.1) -> list[Measurement]:
    """A size curve of a path with this fixed cost and this bandwidth."""
    rows = []
    for size in (8, KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB):
        time = alpha_us + size / gbps / 1e3
        algbw = size / time / 1e3
        rows.append(
            Measurement("all_reduce", size, "float32", 4, 1, "nccl", time, time * p99, 0.1, algbw, algbw * 1.5, 0)
        )
    return rows


@pytest.mark.parametrize(("alpha", "gbps"), [(20, 240), (400, 1.5), (35, 12)])
def test_the_size_that_reaches_a_share_of_the_largest(alpha: float, gbps: float) -> None:
    """time = alpha + size / gbps: exactly that size reaches it, and four times the alpha's bytes where all is data."""
    rows = curve(alpha, gbps)
    size, most = tune.size_for(rows, 0.8), rows[-1].bytes / rows[-1].time_us
    assert size is not None and size / (alpha + size / gbps / 1e3) == pytest.approx(0.8 * most)
    assert size == pytest.approx(4 * alpha * gbps * 1e3, rel=0.2)


def test_a_size_that_was_slower_than_a_smaller_one_counts() -> None:
    """From the size on, not up to the first that happened to be good."""
    dent = [replace(m, time_us=m.time_us * 2) if m.bytes == 16 * MIB else m for m in curve(20, 12)]
    size = tune.size_for(dent, 0.8)
    assert size is not None and 16 * MIB < size < 256 * MIB


def test_no_size_without_both_ends() -> None:
    assert tune.size_for(curve(20, 240)[:3], 0.8) is None
    assert tune.size_for(curve(20, 240)[3:], 0.8) is None
    assert tune.advise([]) == []


def test_one_rank_gives_no_advice() -> None:
    assert tune.advise([replace(m, ranks=1, busbw=None) for m in curve(20, 240)]) == []


def test_bucket_follows_the_curve() -> None:
    """100 us and 240 GB/s need 63 MiB for 80 % of what 256 MiB reach: more than DDP's 25; 20 us and 12 GB/s do not."""
    assert "bucket_cap_mb=63" in tune.advise(curve(100, 240))[0].code
    assert "enough here" in tune.advise(curve(20, 12))[0].do


def test_what_python_takes_to_launch_a_call_is_no_reason_for_large_buckets() -> None:
    """Recorded on 4 H200: 31 us a call one by one, 8 us in a graph; single calls of 2 MiB wait for Python, no more."""
    rows = [m for m in Case.open(RECORDED / "stages", read_only=True).measurements if m.op == "all_reduce"]
    bucket, *others = tune.advise(rows)
    assert "enough here" in bucket.do and "(and Python 25.3 µs to launch it" in bucket.why and bucket.code == ""
    assert max((m.p99_us or 0) / m.time_us for m in rows if m.bytes >= MIB) > 2
    assert not [a for a in others if "what else runs" in a.do]


def test_a_machine_on_which_launching_is_slow_is_told_the_same() -> None:
    """The report of 4 H200 on 2026-11-22: bytes, us one by one, us in a graph, p99 of single calls."""
    told = [(8, 84.3, 7.8, 277), (4 * KIB, 85.3, 9.2, 273), (256 * KIB, 89.0, 11.0, 384), (2 * MIB, 85.8, None, 250)]
    told += [(16 * MIB, 95.1, None, 598), (256 * MIB, 1184.9, None, 1202)]
    like = curve(20, 240)[0]
    rows = [replace(like, bytes=size, time_us=us, graph_us=graph, p99_us=p99) for size, us, graph, p99 in told]
    (bucket,) = tune.advise(rows)
    assert "at least 18 MiB" in bucket.do and "enough here" in bucket.do and "8.50 µs before" in bucket.why


def test_low_ratio_sends_to_the_reason_and_a_good_one_leaves_things_alone() -> None:
    """What is low depends on what such a bound usually gives."""
    link, loopback = Expectation(370, "nvlink", "18 links."), Expectation(370, "loopback", "TCP.", usual=0.4)
    assert any("Look for the reason" in a.do for a in tune.advise(curve(20, 120), link))
    assert any("Leave NCCL's variables alone" in a.do for a in tune.advise(curve(20, 240), link))
    assert any("Leave NCCL's variables alone" in a.do for a in tune.advise(curve(20, 120), loopback))


def test_jitter_is_named() -> None:
    assert "3.0 times the median" in tune.advise(curve(20, 240, p99=3))[-1].why
    assert all("slowest repeats" not in a.why for a in tune.advise(curve(20, 240)))


@pytest.mark.parametrize(("channels", "measured"), [(2, 38_600_704), (4, 77_201_408)])
def test_shared_memory_is_what_two_ranks_took_on_two_h100(channels: int, measured: int) -> None:
    """As `tests/bench/tune.py` measured it; of three ranks each has two peers."""
    assert budgets.shared_memory(2, channels).value == pytest.approx(measured, rel=0.01)
    assert budgets.shared_memory(3, channels).value == pytest.approx(3 * measured, rel=0.01)


def test_planners() -> None:
    assert budgets.timeout(900, 5).value == 935, "the phase, the collective, and what the network needs to give up"
    assert budgets.timeout(900, 5, spread=0.1, retry_s=0).value == 995
    assert budgets.idle_cost(64, 600, 15).value == pytest.approx(10.93, abs=0.01)
    assert budgets.workers(64, 8).value == 7
    assert budgets.workers(2, 4).value == 0
    assert budgets.descriptors(32).value == 31 * 32 + 256
    assert budgets.host_memory(100, 8, 4, 2, 1.0).value == 864
    assert "31 peers" in budgets.descriptors(32).words
