"""What links lost while a job was looked at: only what its own processes use, read twice, and only of a job that stands."""

from __future__ import annotations

import json
import os
import socket
import struct
from contextlib import closing
from pathlib import Path

import pytest

from ncclkit.agent.monitor import links, utilization
from ncclkit.agent.monitor.utilization import TcpSocket
from tests.cases import judged_files, read_files

Stand = dict[int, TcpSocket]


def held(resent: int = 0, backoff: int = 0, peer: str = "10.0.0.2", lost: int = 0) -> TcpSocket:
    info = bytearray(utilization.ACKED + 16)
    info[links.BACKOFF] = backoff
    struct.pack_into("<I", info, links.RESENT, resent)
    struct.pack_into("<I", info, links.LOST, lost)
    return TcpSocket((50000, 41873), bytes(info), "10.0.0.1", peer, 46080)


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[Stand]:
    """What the kernel answers, one reading after the other; this process is rank 3 and holds inodes 1 and 2."""
    answers: list[Stand] = []
    monkeypatch.setattr(links.utilization, "tcp_sockets", lambda: answers.pop(0))
    monkeypatch.setattr(links.utilization, "inodes", lambda pid: [1, 2])
    return answers


def seen() -> dict[str, list[dict[str, object]]]:
    return links.Links({3: os.getpid()}).lost()


def test_only_connections_of_the_ranks_that_repeated_packets_are_told_of(readings: list[Stand]) -> None:
    readings += [{1: held(5), 2: held(7), 9: held(0)}, {1: held(42, 4, lost=1), 2: held(7), 9: held(500, 9)}]
    (row,) = seen()["sockets"]
    assert (row["rank"], row["peer"], row["grown"], row["backoff"], row["lost"]) == (3, "10.0.0.2", 37, 4, 1)


def test_what_stays_on_the_host_is_no_link(readings: list[Stand]) -> None:
    readings += [{1: held(5, peer="10.0.0.1"), 2: held(5, peer="127.0.0.1")}] * 2
    assert seen()["sockets"] == []


def test_a_kernel_that_does_not_tell_gives_nothing(readings: list[Stand]) -> None:
    readings += [None, None]  # type: ignore[list-item]
    assert seen()["sockets"] == []


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A counter of an RDMA port that this process holds open, beside a port that it does not."""
    for device in ("mlx5_3", "mlx5_9"):
        folder = tmp_path / "infiniband" / device / "ports" / "1" / "hw_counters"
        folder.mkdir(parents=True)
        (folder / "local_ack_timeout_err").write_text("7\n")
    (tmp_path / "verbs" / "uverbs3").mkdir(parents=True)
    (tmp_path / "verbs" / "uverbs3" / "ibdev").write_text("mlx5_3\n")
    monkeypatch.setattr(links, "PORTS", str(tmp_path / "infiniband"))
    monkeypatch.setattr(links, "VERBS_CLASS", str(tmp_path / "verbs"))
    monkeypatch.setattr(links.processes, "targets_of_descriptors", lambda pid: ["/dev/infiniband/uverbs3"])
    return tmp_path / "infiniband"


def test_counters_of_the_ports_that_ranks_hold_are_read_twice(readings: list[Stand], port: Path) -> None:
    readings += [{}, {}]
    look = links.Links({3: os.getpid()})
    for file in port.glob("*/ports/1/hw_counters/*"):
        file.write_text("19\n")
    assert look.lost()["counters"] == [{"device": "mlx5_3", "port": 1, "name": "local_ack_timeout_err", "grown": 12}]


def test_the_kernel_tells_both_ends_of_a_connection() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        with closing(socket.create_connection(server.getsockname())) as client:
            client.send(b"x" * 100)
            known = utilization.tcp_sockets()
            if known is None:
                pytest.skip("this kernel does not tell of sockets")
            own = known[os.fstat(client.fileno()).st_ino]
            assert (own.local, own.peer, own.ports[1]) == ("127.0.0.1", "127.0.0.1", server.getsockname()[1])


WAITS = "all_reduce (torch/distributed/distributed_c10d.py:3252)\n    main (/app/train.py:31)"


def look(folder: Path, places: dict[int, list[str]], **lost: object) -> Path:
    shots = {rank: [{"t": 10.0 * n, "state": "S", "stack": f"    {at}"} for n, at in enumerate(seen)] for rank, seen in places.items()}
    ranks = {str(rank): {"pid": 100 + rank, "snapshots": rows} for rank, rows in shots.items()}
    report = {"attached": 1, "host": "node-1", "expected": sorted(places), "ranks": ranks, "links": {"seconds": 10.0, **lost}}
    (folder / "attached.json").write_text(json.dumps(report))
    for rank, seen in places.items():
        (folder / f"stacks_rank{rank}.txt").write_text(f'Process {100 + rank}: python\nThread 1 (idle): "MainThread"\n    {seen[-1]}\n')
    return folder


REPEATS = {"sockets": [{"rank": 1, "local": "10.0.0.1", "peer": "10.0.0.2", "port": 41873, "grown": 37, "backoff": 5, "lost": 1}]}
ERRORS = {"counters": [{"device": "mlx5_3", "port": 1, "name": "local_ack_timeout_err", "grown": 12}]}


@pytest.mark.parametrize(
    ("lost", "cause", "words"),
    [(REPEATS, "network_loss", "10.0.0.2"), (ERRORS, "ib_link_error", "mlx5_3:1 on node-1")],
)
def test_a_job_that_stands_names_the_link_that_loses(tmp_path: Path, lost: dict[str, object], cause: str, words: str) -> None:
    finding = judged_files(look(tmp_path, {0: [WAITS] * 2, 1: [WAITS] * 2}, **lost)).findings[0]
    assert (finding.cause, finding.strength) == (cause, "likely") and words in finding.say


def of_interface(name: str, grown: int) -> dict[str, object]:
    return {"counters": [{"device": "eth0", "port": None, "name": name, "grown": grown}]}


@pytest.mark.parametrize(
    ("name", "grown", "words"),
    [
        ("rx_crc_errors", 12, "arrive broken"),
        ("carrier_down_count", 1, "goes down"),
        ("rx_dropped", 4000, "dropped as they arrive"),
        ("tx_errors", 9, "cannot be sent"),
    ],
)
def test_counters_of_an_interface_are_told_with_the_peer(tmp_path: Path, name: str, grown: int, words: str) -> None:
    waiting = {0: [WAITS] * 2, 1: [WAITS] * 2}
    finding = judged_files(look(tmp_path, waiting, **of_interface(name, grown), **REPEATS)).findings[0]
    assert (finding.cause, finding.strength) == ("network_loss", "likely")
    assert "On eth0 on node-1" in finding.say and words in finding.say and "a connection to 10.0.0.2" in finding.say
    assert finding.culprits["interfaces"] == ("eth0",)


@pytest.mark.parametrize(("name", "grown"), [("rx_dropped", 3), ("rx_crc_errors", 1), ("rx_packets", 90_000), ("rx_dropped", 4000)])
def test_counters_that_grow_little_accuse_no_interface(tmp_path: Path, name: str, grown: int) -> None:
    waiting = {0: [WAITS] * 2, 1: [WAITS] * 2}
    findings = judged_files(look(tmp_path, waiting, **of_interface(name, grown))).findings
    assert not [found for found in findings if "eth0" in found.say or found.cause == "network_loss"]


@pytest.mark.parametrize("lost", [REPEATS, ERRORS, of_interface("rx_crc_errors", 12)])
def test_a_job_that_goes_on_accuses_no_link(tmp_path: Path, lost: dict[str, object]) -> None:
    result = judged_files(look(tmp_path, {0: [WAITS, "a (/app/t.py:1)"], 1: [WAITS, "b (/app/t.py:2)"]}, **lost))
    assert (result.verdict, result.findings) == ("running", ())


def test_links_of_a_stranger_are_believed_within_limits(tmp_path: Path) -> None:
    many = [{"rank": 1, "peer": "x" * 10_000, "grown": 9}] * 500
    events = read_files(look(tmp_path, {0: [WAITS]}, sockets=many)).of("net.tcp")
    assert sum(event.count for event in events) <= 64 and all(len(event.data.peer) <= 80 for event in events)
