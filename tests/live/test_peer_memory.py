"""Each rank writes and reads the memory of each other one of its node; over gloo the memory is that of the host."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ncclkit.agent import wire
from ncclkit.agent.run import collective, peer_memory
from ncclkit.analysis.stages import staged_test
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import Event

torch = pytest.importorskip("torch")
LIMIT = timedelta(seconds=20)
Sent = list[dict[str, Any]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sent]:
    rows: Sent = []
    monkeypatch.setattr(wire, "send", lambda kind, **row: rows.append({"kind": kind, **row}))
    yield rows


class LosesWrites(peer_memory.HostMemory):
    """What is written never arrives."""

    def write_number(self, board: Any, place: int, value: int) -> None:
        pass


class ReadsZeros(peer_memory.HostMemory):
    """What is read is empty."""

    def read_number(self, board: Any, place: int) -> int:
        return 0


class CannotShare(peer_memory.HostMemory):
    """A container forbids it."""

    def share_board(self, own: list[int]) -> dict[str, Any]:
        raise OSError("Operation not permitted")


def check(memories: list[Any]) -> None:
    """One thread for each rank."""
    store = torch.distributed.HashStore()
    members = list(range(len(memories)))
    each = []
    for rank in members:
        args = (store, rank, members, memories[rank], LIMIT)
        each.append(threading.Thread(target=peer_memory.check_peers, args=args))
    for thread in each:
        thread.start()
    for thread in each:
        thread.join(30)
        assert not thread.is_alive()
    for memory in memories:
        path = memory.path
        memory.let_go()
        assert not path or not Path(path).exists()


def odd(sent: Sent) -> list[tuple[int, int, str]]:
    return sorted((row["rank"], row["peer"], row["way"]) for row in sent if row["wrong"] or row["problem"])


def test_every_pair_is_written_and_read(sent: Sent) -> None:
    check([peer_memory.HostMemory(torch) for _ in range(3)])
    assert odd(sent) == []
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    for way in "read", "write":
        assert sorted((row["rank"], row["peer"]) for row in sent if row["way"] == way) == pairs


def test_a_write_that_never_arrives_is_told_by_its_owner(sent: Sent) -> None:
    check([peer_memory.HostMemory(torch), LosesWrites(torch), peer_memory.HostMemory(torch)])
    assert odd(sent) == [(1, 0, "write"), (1, 2, "write")]


def test_a_read_of_other_bytes(sent: Sent) -> None:
    check([peer_memory.HostMemory(torch), ReadsZeros(torch)])
    assert odd(sent) == [(1, 0, "read")]


def test_memory_that_cannot_be_shared_is_a_problem_and_no_wrong_byte(sent: Sent) -> None:
    check([CannotShare(torch), peer_memory.HostMemory(torch)])
    assert [(row["rank"], row["problem"]) for row in sent if row["problem"]] == [(1, "Operation not permitted")]
    assert not [row for row in sent if row["wrong"]]


MATRIX = {"GPU0": {"GPU1": "PHB"}, "GPU1": {"GPU0": "PHB"}}


def case_of(wrong: int, verified: bool = False) -> Case:
    """Two ranks on two GPUs of one host; `wrong`: what rank 0 wrote into the memory of rank 1."""
    rows: list[tuple[str, int, dict[str, Any]]] = []
    for rank in 0, 1:
        rows.append(("worker.phase", rank, {"phase": "hello"}))
        rows.append(("worker.phase", rank, {"phase": "init", "nccl": "2.28.9"}))
        rows.append(("stage.rank", rank, {"bytes": 64, "copy": 9.0, "wrong": 0}))
        for way in "read", "write":
            odd = wrong if (rank, way) == (0, "write") else 0
            rows.append(("stage.peer", rank, {"peer": 1 - rank, "way": way, "wrong": odd}))
    rows.append(("stage.pair", 0, {"peer": 1, "bytes": 64, "bandwidth": 9.0, "latency_us": 5.0, "wrong": 0}))
    case = Case()
    case.events = [Event(kind, kind, "wire.jsonl", 1, host="n1", rank=rank, data=data) for kind, rank, data in rows]
    if verified:
        data = {"check": "p2p_data", "state": "clean"}
        case.events.append(Event("nccl.diagnostic", "p2p: all 2 directed GPU P2P edges verified", data=data))
    return case


def test_a_wrong_write_names_the_pair_of_gpus() -> None:
    finding = next(one for one in diagnose(case_of(1)).findings if one.cause == "p2p_broken")
    assert finding.strength == "likely" and tuple(finding.culprits["ranks"]) == (0, 1)
    assert "GPU 0 (rank 0) wrote into the memory of GPU 1 (rank 1) over" in finding.say


def test_where_nccl_disagrees_both_are_shown() -> None:
    finding = next(one for one in diagnose(case_of(1, verified=True)).findings if one.cause == "p2p_broken")
    assert "the two disagree" in finding.say
    assert {one.kind for one in finding.evidence if isinstance(one, Event)} == {"stage.peer", "nccl.diagnostic"}


def test_right_bytes_accuse_nobody() -> None:
    case = case_of(0)
    assert "p2p_broken" not in [one.cause for one in diagnose(case).findings]
    assert staged_test(case).verified == 4 and "written, read and verified 4 times" in staged_test(case).summary


@pytest.mark.parametrize(("version", "does"), [("2.31.2", True), ("2.32", True), ("2.30.7", False), ("", False)])
def test_which_nccl_diagnoses_itself(version: str, does: bool) -> None:
    assert collective.diagnoses_itself(version) is does


def test_a_process_without_a_library_of_nccl_tells_no_version(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r-xp 0 0:0 1 /usr/lib/libc.so.6\n")
    assert collective.loaded_nccl(str(maps)) == ""
    # one that is mapped and cannot be asked any more
    maps.write_text(f"7f00-7f01 r-xp 0 0:0 1 {tmp_path}/libnccl.so.2\n")
    assert collective.loaded_nccl(str(maps)) == ""
