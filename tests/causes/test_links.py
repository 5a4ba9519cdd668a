"""What NCCL 2.31 says of one link: sends without an answer, slow ones, speeds, addresses."""

from __future__ import annotations

import pytest

from tests.cases import judged_text, read_text

INFO = "node-1:100:120 [0] NCCL INFO "
TIMEOUT = (
    "[rank0]:[E1121 23:59:01.9 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=493, OpType=ALLREDUCE, NumelIn=1, NumelOut=4, Timeout(ms)=60000) ran for 60044 milliseconds "
    "before timing out.\n"
)
STEPS = "".join(f"step {number} loss 2.1\n" for number in range(1, 30))
PEER = "node-2:200:220 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.2<0>\n"


def ends(queue: int = 812, device: str = "mlx5_3") -> str:
    return (
        f"peer=10.0.0.2<43211> | local: qpn={queue} dev={device} port=1 lid=0 localGid=fe80::1 | "
        "remote: qpn=900 port=1 lid=0 remoteGid=fe80::2 | "
    )


def stall(seconds: float, **more) -> str:
    return f"{INFO}NET/IB: WQE stall (no CQE): {ends(**more)}stall_thr=1000000000ns age={seconds * 1e9:.0f}ns inflight=3\n"


def slow(seconds: float, **more) -> str:
    return (
        f"{INFO}NET/IB: WQE slow: {ends(**more)}thr=1000000ns delta={seconds * 1e9:.0f}ns mean=9000ns stddev=2ns "
        "p50=8000ns p90=9ns p99=9ns p99.9=9ns max=5000000ns count=77 | t_post=1ns t_poll=2ns\n"
    )


def summary(slow_sends: int, device: str = "mlx5_3") -> str:
    return (
        f"{INFO}NET/IB: WQE latency summary [send peer=10.0.0.2<43211> dev={device} qpn=812 port=1]: n=900 slow={slow_sends} "
        "thr=1000000ns | post-to-poll ns: mean=9000 std=2 p50=8000 p90=9 p99=9 p99.9=9 max=5000000\n"
    )


def speed(before: str, after: str) -> str:
    return f"{INFO}NET/IB : mlx5_3:1 speed change detected: {before} -> {after} Mbps\n"


def first(text: str):
    return judged_text(text).findings[0]


def of_the_link(text: str) -> list[str]:
    return [f.strength for f in judged_text(text).findings if f.cause == "ib_link_error" and f.evidence[0].kind == "nccl.link"]


def test_a_flood_of_one_connection_is_one_event_with_its_last_age():
    (event,) = read_text("".join(map(stall, range(2, 20)))).of("nccl.link")
    data = event.data
    assert (data.what, data.device, data.port, data.peer, data.queue) == ("stall", "mlx5_3", 1, "10.0.0.2", 812)
    assert (data.age, data.threshold, data.is_roce, event.count) == (19.0, 1.0, True, 18)


def test_a_send_without_an_answer_names_port_and_peer_and_not_a_late_rank():
    finding = first(PEER + stall(3) + stall(12.4) + TIMEOUT)
    assert (finding.cause, finding.strength) == ("ib_link_error", "likely")
    assert "over mlx5_3:1 to node-2 (10.0.0.2)" in finding.say and "12 s" in finding.say
    assert finding.culprits["interfaces"] == ("mlx5_3",) and finding.culprits["hosts"] == ("node-1",)
    assert not finding.culprits["ranks"]


def test_a_send_that_was_answered_after_all_is_a_possibility():
    finding = next(f for f in judged_text(stall(12) + slow(14) + TIMEOUT).findings if f.cause == "ib_link_error")
    assert finding.strength == "possible" and "came after all" in finding.say
    assert of_the_link(stall(12) + slow(14, queue=1) + TIMEOUT) == ["likely"]  # another connection


@pytest.mark.parametrize(
    "text",
    [
        stall(0.5) + TIMEOUT,  # a burst
        slow(0.2) + STEPS,
        slow(0.2) * 9 + STEPS + "training done\n",
        slow(0.2),  # one burst, and nothing failed
        summary(slow_sends=3),
        stall(12) + slow(14) + STEPS,  # it recovered, and the job went on
        stall(12) + STEPS + "training done\n",
        speed("400000", "100000") + speed("100000", "400000") + STEPS,
        speed("100000", "400000"),
    ],
)
def test_what_a_job_got_over_accuses_no_link(text):
    assert of_the_link(text) == []


def test_a_dead_peer_answers_nothing_and_its_link_is_not_accused():
    died = "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"/app/t.py\", line 3, in f\n[rank1]: ValueError: x\n"
    assert first(died + stall(12) + TIMEOUT).cause == "rank_exception"


def test_a_port_that_fell_to_a_lower_speed_is_named():
    finding = first(speed("400000", "100000") + TIMEOUT)
    assert (finding.cause, finding.strength) == ("ib_link_error", "likely")
    assert "mlx5_3:1 on node-1 fell from 400 to 100 Gbit/s" in finding.say


GID = f"{INFO}NET/IB : mlx5_3:1 GID refreshed: idx 3 -> 5, gid ::ffff:10.0.0.2 -> ::ffff:10.0.0.9\n"
FATAL = "node-1:100:120 [0] net_ib.cc:9 NCCL WARN NET/IB : mlx5_3:1 marking device with fatal error after GID-change event handler failed\n"


def test_an_address_that_changed_is_ib_config_where_a_connection_failed():
    assert (first(GID + FATAL).cause, first(GID + FATAL).strength) == ("ib_config", "proven")
    with_timeout = {finding.cause: finding for finding in judged_text(GID + TIMEOUT).findings}
    assert with_timeout["ib_config"].strength == "possible"
    assert "mlx5_3:1" in with_timeout["ib_config"].say
    assert judged_text(GID + STEPS).findings == ()


def test_a_summary_of_a_connection_says_how_fast_it_was():
    text = summary(slow_sends=3)
    (event,) = read_text(text).of("nccl.link")
    assert (event.data.usual, event.data.worst, event.data.count, event.data.slow) == (0.000008, 0.005, 900, 3)


@pytest.mark.parametrize(
    ("lines", "strength"),
    [
        (slow(0.2), "possible"),
        (slow(0.005) * 9, "possible"),
        (slow(0.2) * 3, "likely"),  # as late as after packets that got lost
        (summary(300) + summary(0, device="mlx5_2"), "possible"),
    ],
)
def test_a_slow_link_is_named_with_what_to_read_next(lines, strength):
    answer = judged_text(PEER + lines + TIMEOUT)
    finding = next(found for found in answer.findings if found.cause == "ib_link_error")
    assert finding.strength == strength
    assert "over mlx5_3:1 to node-2 (10.0.0.2)" in finding.say and "ms" in finding.say
    assert finding.culprits["interfaces"] == ("mlx5_3",)
    assert any("/sys/class/infiniband/mlx5_3/" in (advice.command or "") for advice in finding.advice)
    every = [advice.do for found in answer.findings for advice in found.advice]
    assert not [do for do in every if do.startswith("Raise the timeout")]


def test_a_slow_send_is_no_reason_against_time_that_a_phase_needs():
    every = [advice.do for found in judged_text(TIMEOUT).findings for advice in found.advice]
    assert [do for do in every if do.startswith("Raise the timeout")]
