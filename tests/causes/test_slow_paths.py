"""A way between hosts that only crawls: by what each further byte costs, and by its opposite direction."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Measurement

MIB = 1 << 20
LATENCY = 400.0


def case(speed: float, hosts: int = 2, latency: float = LATENCY, sizes: tuple[int, ...] = (8, MIB, 4 * MIB)) -> Case:
    """A live test of one rank a host, GB/s of `speed` behind a latency in us; interfaces of 1.25 GB/s."""
    made, part = Case(), 2 * (hosts - 1) / hosts
    for rank in range(hosts):
        made.events.append(Event("worker.phase", rank=rank, host=f"n{rank}", data={"phase": "hello"}))
    for size in sizes:
        time = latency * hosts + size * part / speed / 1e3
        algbw = size / time / 1e3
        row = Measurement("all_reduce", size, "f32", hosts, hosts, "gloo", time, None, None, algbw, algbw * part, 0, 9)
        made.measurements.append(replace(row, expected=1.25))
    return made


def found(made: Case) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(one.cause, one.strength, one.culprits["hosts"]) for one in diagnose(made).findings]


def test_two_hosts_that_exchange_a_fraction_of_what_their_interfaces_send() -> None:
    made = case(0.024)
    assert found(made) == [("network_loss", "possible", ("n0", "n1"))]
    first = diagnose(made).findings[0]
    assert "further bytes pass at 0.024 GB/s" in first.say and first.evidence == tuple(made.measurements[-2:])


@pytest.mark.parametrize(("stalls", "suspected"), [((8, MIB), True), ((8,), False), ((), False)])
def test_calls_that_wait_as_long_as_tcp_does_for_a_lost_packet(stalls: tuple[int, ...], suspected: bool) -> None:
    made = case(0.9)
    made.measurements = [replace(m, p99_us=2.1e5 if m.bytes in stalls else 3e3) for m in made.measurements]
    assert found(made) == [("network_loss", "possible", ("n0", "n1"))] * suspected
    if suspected:
        first = diagnose(made).findings[0]
        assert "now and then 210 ms, at 2 of 3 sizes" in first.say and first.evidence == tuple(made.measurements[:2])


def test_packets_that_are_sent_again_are_told_from_a_way_that_is_held_back() -> None:
    made = Case()
    for src, dst, resent in (("a", "b", 0.0), ("b", "a", 0.08)):
        told = {"src": src, "dst": dst, "bandwidth": 1.0 - 10 * resent, "resent": resent, "rendezvous": "open"}
        made.events.append(Event("connect.pair", "", "w", 1, data=told))
    first = diagnose(made).findings[0]
    assert (first.cause, first.strength, first.culprits["hosts"]) == ("network_loss", "likely", ("a", "b"))
    assert first.say.startswith("Of what b sends to a 8 % of the packets get lost and are sent again")


def test_a_share_without_a_speed_is_a_torn_record() -> None:
    made = Case()
    told = {"src": "a", "dst": "b", "resent": 0.5}
    made.events.append(Event("connect.pair", "", "w", 1, data=told))
    assert not any("sent again" in one.say for one in diagnose(made).findings)


@pytest.mark.parametrize(
    "made",
    [case(0.9), case(0.5, hosts=64, latency=900.0), case(0.024, sizes=(8, 512)), case(0.024, hosts=1), case(0.2)],
    ids=("well", "a long ring of slow calls", "too small to tell", "one host", "slow but no crawl"),
)
def test_what_latency_or_one_host_explains_is_no_slow_way(made: Case) -> None:
    assert found(made) == []


@pytest.mark.parametrize(
    ("slow", "hosts"),
    [
        ({}, None),
        ({"ab": 0.5}, None),
        ({"ab": 0.02}, ("a", "b")),
        ({"ab": 0.02, "ac": 0.03}, ("a",)),
        ({"ac": 0.02, "bc": 0.03}, ("c",)),
        ({one + two: 0.02 for one, two in permutations("abc", 2)}, None),
    ],
    ids=("well", "uneven", "one direction", "all that one sends", "all that one gets", "all alike"),
)
def test_a_direction_that_passes_a_fraction_of_the_opposite_one(
    slow: dict[str, float], hosts: tuple[str, ...] | None
) -> None:
    made, sound = Case(), {"rendezvous": "open", "nccl": "open", "port": 29500, "mtu": 1500, "mtu_own": 1500}
    for src, dst in permutations("abc", 2):
        told = {"src": src, "dst": dst, "bandwidth": slow.get(src + dst, 2.0), "latency": 40.0, **sound}
        made.events.append(Event("connect.pair", "", "w", 1, data=told))
    assert found(made) == ([("network_loss", "likely", hosts)] if hosts else [])
