"""The staged test: every pair once, and from its results the rank, the link or the silence that is to blame."""

from __future__ import annotations

from dataclasses import replace
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import pytest

from msgspec import structs

from ncclkit.agent.run.stages import round_robin
from ncclkit.analysis.stages import StagedTest, staged_test
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Fact, fields_of
from ncclkit.evidence.records import from_wire
from ncclkit.views.pairs import pairs_view

RANKS = 8
LINK = {f"GPU{a}": {f"GPU{b}": "NV18" for b in range(RANKS) if b != a} for a in range(RANKS)}


def staged(
    bandwidth: dict[tuple[int, int], float] | None = None,
    wrong: tuple[int, int] | None = None,
    lost: tuple[int, int] | None = None,
    copy: dict[int, float] | None = None,
) -> StagedTest:
    """Eight GPUs on NVLink: 160 GB/s between all pairs, but for what is given."""
    return staged_test(staged_case(bandwidth or {}, wrong, lost, copy or {}))


def staged_case(
    bandwidth: dict[tuple[int, int], float],
    wrong: tuple[int, int] | None,
    lost: tuple[int, int] | None,
    copy: dict[int, float],
) -> Case:
    case, met = Case(), {rank: sum(pair) - rank for pair in round_robin(RANKS)[-1] for rank in pair}
    met |= {lost[0]: lost[1], lost[1]: lost[0]} if lost else {}
    case.facts = [Fact("gpu.topology", LINK, "", "nvidia-smi topo -m", "h")]
    for rank in range(RANKS):
        case.events.append(phase(rank, "hello", host="h"))
        case.events.append(phase(rank, "init", nccl="2.28.9"))
        row = {"bytes": 1 << 26, "copy": copy.get(rank, 3000.0), "wrong": 0}
        case.events.append(Event("stage.rank", f"rank {rank}", rank=rank, data=row))
        case.events.append(phase(rank, "pairs", round=RANKS - 2, peer=met[rank]))
    for a, b in combinations(range(RANKS), 2):
        speed = bandwidth.get((a, b), 160.0)
        row = {"peer": b, "bytes": 1 << 26, "bandwidth": speed, "latency_us": 12.0, "wrong": 7 * ((a, b) == wrong)}
        case.events += [] if (a, b) == lost else [Event("stage.pair", f"ranks {a} and {b}", rank=a, data=row)]
    return case


def phase(rank: int, name: str, **data: object) -> Event:
    return Event("worker.phase", "", rank=rank, host=str(data.pop("host", "")), data={"phase": name, **data})


@pytest.mark.parametrize("ranks", range(2, 13))
def test_every_pair_meets_once_and_nobody_is_in_two_places(ranks: int) -> None:
    made = round_robin(ranks)
    assert sorted(pair for pairs in made for pair in pairs) == list(combinations(range(ranks), 2))
    assert all(len({rank for pair in pairs for rank in pair}) == 2 * len(pairs) for pairs in made)
    assert len(made) == ranks - 1 + ranks % 2


def test_where_all_are_alike_nobody_is_blamed() -> None:
    found = staged({(0, 1): 140.0, (2, 5): 150.0})
    assert (found.bad, found.suspects, found.slow_ranks) == ((), (), ())
    assert found.summary == "Every pair of the 8 ranks works: 160.00 GB/s over NV18, and all are alike"


def test_one_slow_pair_is_a_link() -> None:
    found = staged({(2, 5): 20.0})
    assert found.bad == ((2, 5),) and found.suspects == ()
    assert found.summary == "The pair of ranks 2 and 5 reaches 20.00 GB/s where pairs over NV18 reach 160.00 GB/s"


@pytest.mark.parametrize(("on_them", "bad"), [(8, ((2, 3),)), (16, ())], ids=("own", "by turns"))
def test_simulated_hosts_are_compared_where_each_rank_has_a_gpu_of_its_own(on_them: int, bad: tuple[Any, ...]) -> None:
    """Ranks 0-3 and 4-7 are two simulated hosts, each on GPUs 0-3 or on four of its own."""
    case = staged_case({(2, 3): 20.0}, None, None, {})
    own = {"gpus": 8, "on_them": on_them}
    for rank in range(RANKS):
        case.events.append(phase(rank, "simulate", hostid=f"simulated-{rank // 4}", gpu=rank % (64 // on_them), **own))
    found = staged_test(case)
    assert found.bad == bad and {pair.path for pair in found.pairs if pair.b < 4 or pair.a > 3} == {"NV18"}
    assert ("by turns on GPUs that they share" in found.summary) == (not bad) and bool(diagnose(case).findings) == bool(
        bad
    )


@pytest.mark.parametrize(("nccl", "said"), [("", "h3 (rank 3) is slow"), ("2.28.9", "Rank 3 is slow")])
def test_a_host_id_that_is_set_for_nccl_takes_no_host_its_name_over_gloo(nccl: str, said: str) -> None:
    """Eight hosts, of which NCCL would make one, as NCCL_HOSTID is the same on all of them."""
    case = staged_case({pair: 20.0 for pair in combinations(range(RANKS), 2) if 3 in pair}, None, None, {})
    case.events = [event for event in case.events if fields_of(event).get("phase") not in ("hello", "init")]
    for rank in range(RANKS):
        case.events += [phase(rank, "hello", host=f"h{rank}"), phase(rank, "init", nccl=nccl, hostid="one")]
    assert staged_test(case).summary.startswith(said)


def test_a_rank_that_is_slow_with_all_others_is_the_suspect() -> None:
    found = staged({pair: 20.0 for pair in combinations(range(RANKS), 2) if 3 in pair} | {(0, 1): 20.0})
    assert found.suspects == (3,)
    assert found.summary.startswith("Rank 3 is slow with most others; the pair of ranks 0 and 1 reaches 20.00")


def test_wrong_bytes_count_more_than_speed() -> None:
    assert staged(wrong=(1, 4)).summary == "The pair of ranks 1 and 4 gave 7 wrong bytes"


def test_a_pair_that_never_answered_is_named() -> None:
    found = staged(lost=(0, 7))
    assert found.silent == ((0, 7),) and found.summary == "The pair of ranks 0 and 7 never answered"


def test_a_rank_that_is_slow_alone_is_said_first() -> None:
    found = staged(copy={6: 900.0})
    assert found.slow_ranks == (6,) and found.summary == "Rank 6 copies slowly in its own memory"


def test_a_rank_whose_own_memory_gives_other_bytes_is_a_finding_and_its_pairs_are_not() -> None:
    case = staged_case({}, (1, 4), None, {})
    place = next(n for n, event in enumerate(case.events) if event.kind == "stage.rank" and event.rank == 4)
    own = case.events[place]
    own = case.events[place] = replace(own, data=structs.replace(own.data, wrong=12))
    found = staged_test(case)
    assert found.corrupt == {4: 12} and found.summary.startswith("Rank 4 copies its own memory wrongly (12 bytes); ")
    (first,) = diagnose(case).findings
    assert (first.cause, first.strength, first.culprits["ranks"]) == ("gpu_hardware_error", "likely", (4,))
    assert first.evidence[0] == own and "wrong bytes" in str(pairs_view(case).static())


def test_one_rank_has_a_first_stage_and_no_pairs() -> None:
    case = Case()
    case.events = [phase(0, "hello", host="h"), phase(0, "init", nccl="2.28.9"), phase(0, "plan", ranks=1)]
    case.events.append(Event("stage.rank", "rank 0", rank=0, data={"bytes": 1 << 26, "copy": 3900.0, "wrong": 0}))
    page = str(pairs_view(case).static())
    assert staged_test(case).summary.startswith("Rank 0 copies 3,900 GB/s in its own memory, every byte was right")
    assert "each rank alone" in page and "not reached" not in page and "all ranks" not in page
    assert diagnose(case).findings == ()


def test_a_slow_rank_is_a_finding_with_its_pairs_and_better_ones() -> None:
    slow = {pair: 20.0 for pair in combinations(range(RANKS), 2) if 3 in pair}
    first = diagnose(staged_case(slow, None, None, {})).findings[0]
    assert (first.cause, first.strength, first.culprits["ranks"]) == ("slow_transport", "likely", (3,))
    assert first.say == "Rank 3 is slow with most others." and len(first.evidence) == 6


@pytest.mark.parametrize(
    ("wrong", "lost", "strength"), [((1, 4), None, "likely"), (None, (1, 4), "possible")], ids=("wrong", "silent")
)
def test_a_pair_that_lies_or_is_silent_is_a_finding(
    wrong: tuple[int, int] | None, lost: tuple[int, int] | None, strength: str
) -> None:
    first = diagnose(staged_case({}, wrong, lost, {})).findings[0]
    assert (first.cause, first.strength, first.culprits["ranks"]) == ("p2p_broken", strength, (1, 4))


def broken_off(case: Case, fails: Callable[[set[int]], bool]) -> Case:
    """The run failed, and every group that was asked for has been tried."""
    end = {"reason": "failed", "exitcode": 1, "say": ""}
    case.events.append(Event("run.end", "the run ended: failed", data=end))
    while asked := staged_test(case).bisected.ask:
        for group in asked:
            problem = "RuntimeError: timed out" if fails(set(group)) else ""
            told = {"stage": "bisect", "ranks": list(group), "bytes": 8, "busbw": None, "latency_us": None, "wrong": 0}
            event = Event("stage.group", f"{group}: {problem}", rank=group[0], data=told | {"problem": problem})
            case.events.append(event)
    return case


def started(hosts: Sequence[str]) -> Case:
    """GPUs whose ranks began, and nothing more."""
    case = Case()
    case.events = [phase(rank, "hello", host=host) for rank, host in enumerate(hosts)]
    case.events += [phase(rank, "init", nccl="2.28.9") for rank in range(len(hosts))]
    case.events.append(phase(0, "plan", ranks=len(hosts)))
    return case


NAMED: dict[str, tuple[Case, Callable[[set[int]], bool], str, str, tuple[int, ...], tuple[str, ...]]] = {
    "only with others": (
        staged_case({}, None, None, {}),
        lambda g: 3 in g and len(g) > 2,
        "p2p_broken",
        "likely",
        (3,),
        (),
    ),
    "alone": (started(["h"] * 4), lambda g: 2 in g, "gpu_hardware_error", "possible", (2,), ()),
    "way": (started("aabbccdd"), lambda g: {2, 4} <= g, "network_loss", "likely", (2, 4), ("b", "c")),
    "node": (
        started("aabbccdd"),
        lambda g: bool(g & {4, 5}) and bool(g - {4, 5}),
        "network_loss",
        "likely",
        (4, 5),
        ("c",),
    ),
}
"""What began, what it takes to fail → cause, strength, ranks and hosts."""


@pytest.mark.parametrize("name", NAMED)
def test_whoever_fails_together_is_a_finding(name: str) -> None:
    case, fails, cause, strength, ranks, hosts = NAMED[name]
    first = diagnose(broken_off(case, fails)).findings[0]
    assert (first.cause, first.strength, first.culprits["ranks"]) == (cause, strength, ranks), first.say
    assert first.culprits.get("hosts", ()) == hosts and "timed out" in first.evidence[0].text  # type: ignore[union-attr]


def test_equal_pairs_are_no_finding() -> None:
    assert diagnose(staged_case({}, None, None, {})).findings == ()


def test_torn_records_of_a_stage_are_no_events() -> None:
    whole = b'{"ncclkit": 1, "kind": "stage.pair", "rank": 0, "peer": 1, "bytes": 8, "bandwidth": 1, "latency_us": 2, '
    event = from_wire(whole + b'"wrong": 0}', "w", 1)
    assert event is not None and event.text == "ranks 0 and 1 exchange 1.00 GB/s each way, 2.00 µs"
    assert from_wire(whole + b'"wrong": "<b>"}', "w", 1) is None
    assert from_wire(b'{"ncclkit": 1, "kind": "stage.moon", "rank": 0}', "w", 1) is None


def test_the_view_says_it_and_marks_it() -> None:
    view = pairs_view(staged_case({(2, 5): 20.0}, None, (0, 7), {}))
    page = str(view.static())
    assert "GB/s each way: from 0 (dark) to " in page and "The diagonal is empty" in page
    assert "never answered" in view.summary and "2 – 5" in page and "no result came" in page
    assert pairs_view(Case()).summary.startswith("No staged live test has run yet: ncclkit probe --stages")


@pytest.mark.parametrize(("gpus", "slow"), [(8, True), (2, False), (0, True), ("two", True)])
def test_where_ranks_share_gpus_only_much_slower_pairs_are_odd(gpus: object, slow: bool) -> None:
    """Ranks that take turns on a card are no steadier than those that share cores."""
    case = staged_case({(2, 5): 60.0}, None, None, {})
    case.events += [phase(rank, "simulate", hostid=f"simulated-{rank // 4}", gpus=gpus) for rank in range(RANKS)]
    pair = next(pair for pair in staged_test(case).pairs if (pair.a, pair.b) == (2, 5))
    assert pair.slow == slow
