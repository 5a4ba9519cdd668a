"""Advice from measured curves, and paired comparison."""

from dataclasses import replace

import pytest

from ncclkit import planner, tune
from ncclkit.bandwidth import Expectation
from ncclkit.model import Measurement

KIB, MIB = 1 << 10, 1 << 20


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
def test_fit_finds_what_made_the_curve(alpha: float, gbps: float) -> None:
    line = tune.fit(curve(alpha, gbps))
    assert line is not None
    assert line.alpha_us == pytest.approx(alpha, rel=0.1)
    assert line.algbw == pytest.approx(gbps, rel=0.1)
    assert line.size_for(0.8) == pytest.approx(4 * alpha * gbps * 1e3, rel=0.2)


def test_no_fit_without_both_ends() -> None:
    assert tune.fit(curve(20, 240)[:3]) is None
    assert tune.fit(curve(20, 240)[3:]) is None
    assert tune.advise([]) == []


def test_one_rank_gives_no_advice() -> None:
    assert tune.advise([replace(m, ranks=1, busbw=None) for m in curve(20, 240)]) == []


def test_bucket_follows_the_curve() -> None:
    """100 us and 240 GB/s need 92 MiB for 80 %: more than DDP's 25; 20 us and 12 GB/s do not."""
    assert "bucket_cap_mb=92" in tune.advise(curve(100, 240))[0].code
    assert "enough here" in tune.advise(curve(20, 12))[0].do


def test_low_ratio_sends_to_the_reason_and_a_good_one_leaves_things_alone() -> None:
    """What is low depends on what such a bound usually gives."""
    link, loopback = Expectation(370, "nvlink", "18 links."), Expectation(370, "loopback", "TCP.", usual=0.4)
    assert any("Look for the reason" in a.do for a in tune.advise(curve(20, 120), link))
    assert any("Leave NCCL's variables alone" in a.do for a in tune.advise(curve(20, 240), link))
    assert any("Leave NCCL's variables alone" in a.do for a in tune.advise(curve(20, 120), loopback))


def test_jitter_is_named() -> None:
    assert "3.0 times the median" in tune.advise(curve(20, 240, p99=3))[-1].why
    assert all("slowest repeats" not in a.why for a in tune.advise(curve(20, 240)))


def test_interval_tells_a_difference_from_noise() -> None:
    low, high = tune.interval([10.0, 10.1, 9.9], [5.0, 5.1, 4.9])
    assert high < 0.6 and "faster" in tune.Comparison({"A": "1"}, MIB, 10, 5, low, high).say
    low, high = tune.interval([10.0, 12.0, 8.0], [11.0, 9.0, 10.0])
    assert low < 1 < high and "no difference" in tune.Comparison({"A": "1"}, MIB, 10, 10, low, high).say


def test_planners() -> None:
    assert planner.timeout(900, 5).value == 1810
    assert planner.workers(64, 8).value == 7
    assert planner.workers(2, 4).value == 0
    assert planner.descriptors(32).value == 31 * 32 + 256
    assert planner.host_memory(100, 8, 4, 2, 1.0).value == 864
    assert "31 peers" in planner.descriptors(32).words
