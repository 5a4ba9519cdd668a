"""Who belongs to which communicator, and how its ranks are connected."""

from __future__ import annotations

import pytest

from ncclkit.analysis.communicators import communicators, rings, transports, variables
from ncclkit.evidence.samples import list_samples
from tests.evidence.jobs import COMM_ID, child, init, line, pointer, started
from tests.recordings import sample

VERSIONS = ["2.10.3", "2.16.2", "2.18.5", "2.21.5", "2.23.4", "2.28.9", "2.30.7"]


@pytest.mark.parametrize("version", VERSIONS)
def test_one_communicator_over_two_hosts(read_text, version):
    (made,) = communicators(read_text(started(version, range(8), 8)).events)
    assert made.id == (COMM_ID if version >= "2.16" else "8 ranks #1")
    assert (made.size, made.complete, made.why, dict(made.ranks)) == (8, True, "", {rank: rank for rank in range(8)})
    assert made.members[5] == ("n1", "2b000")


@pytest.mark.parametrize("version", VERSIONS)
def test_ranks_that_did_not_come_are_named_missing(read_text, version):
    text = started(version, range(3), 4) + line(3, init(version, 3, 4, phase="START")) * (version >= "2.18")
    (made,) = communicators(read_text(text).events)
    assert not made.complete and made.done == {0, 1, 2}
    assert set(made.members) == ({0, 1, 2, 3} if version >= "2.18" else {0, 1, 2})
    assert ("4 of 4" if version >= "2.18" else "3 of 4") in made.why


@pytest.mark.parametrize("version", ["2.23.4", "2.26.2", "2.29.2"])
def test_children_of_a_split_are_joined_by_parent_and_colour(read_text, version):
    """Ranks 0-3 and 4-7 get colours 0 and 1, then even and odd ones in a second split of the same parent."""
    text = started(version, range(8), 8)
    text += "".join(line(rank, child(version, rank, rank % 4, 4, rank // 4)) for rank in range(8))
    text += "".join(line(rank, child(version, rank, rank // 2, 4, 8 + rank % 2, nth=2)) for rank in range(8))
    world, *children = communicators(read_text(text).events)
    assert {tuple(made.ranks.values()) for made in children} == {(0, 1, 2, 3), (4, 5, 6, 7), (0, 2, 4, 6), (1, 3, 5, 7)}
    assert all(made.complete and made.parent == world.id for made in children)


def test_before_commid_groups_within_hosts_are_told_apart(read_text):
    text = started("2.10.3", range(8), 8)
    text += "".join(line(rank, init("2.10.3", rank % 4, 4, number=1)) for rank in range(8))
    _, *groups = communicators(read_text(text).events)
    assert sorted(tuple(made.ranks.values()) for made in groups) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert all(made.complete for made in groups)


def test_before_commid_groups_across_hosts_are_not_guessed(read_text):
    text = started("2.10.3", range(8), 8)
    text += "".join(line(rank, init("2.10.3", rank // 4, 2, number=1)) for rank in range(8))
    _, pair = communicators(read_text(text).events)
    assert not pair.complete and not pair.members
    assert "cannot be told apart" in pair.why


def test_a_pointer_means_something_in_one_process_only(read_text):
    same = "comm 0x55 rank {} nranks 1 cudaDev 0 nvmlDev 0 busId 1000 commId 0x{} - Init COMPLETE"
    text = line(0, same.format(0, "a1")) + line(1, same.format(0, "b2"))
    assert [made.id for made in communicators(read_text(text).events)] == ["0xa1", "0xb2"]


OTHERWISE = {"eight_ranks_late": 0, "ifname_missing": 0, "little_memory": 1, "groups_swapped": 3}
"""Communicators of recordings in which not all four ranks began exactly one."""
FAILED = {"duplicate_gpu", "wrong_device", "bad_value", "few_files", "world_larger"}
"""Recordings in which it was begun and not finished."""


WHOLE = {
    "cuda_assert", "exchange_uneven", "gpu_memory_full", "hang", "healthy", "other_dtype", "other_op", "other_size",
    "p2p_off", "rank_killed", "rank_late", "rank_raises", "segfault", "uneven_data", "unpaired_recv",
}  # fmt: skip
"""Recordings in which all four ranks made one communicator."""


@pytest.mark.parametrize("name", sorted(WHOLE | FAILED))
def test_recorded_runs_have_one_communicator(name):
    (made,) = communicators(sample(name).events)
    assert (made.size, sorted(made.members)) == (4, [0, 1, 2, 3])
    assert made.complete == (name in WHOLE)


@pytest.mark.parametrize("name", sorted({*list_samples()} - WHOLE - FAILED - {*OTHERWISE}))
def test_communicators_of_the_stories_are_no_larger_than_their_jobs(name):
    case = sample(name)
    made = communicators(case.events)
    assert {one.size for one in made} <= set(range(1, case.about["ranks"] + 1))
    assert all(set(one.members) <= set(range(one.size)) for one in made)


@pytest.mark.parametrize(("name", "count"), OTHERWISE.items())
def test_recorded_runs_have_as_many_as_they_made(name, count):
    made = communicators(sample(name).events)
    assert len(made) == count and {one.size for one in made} <= {4}


LINKS = [  # the Channel lines of 2.10 … 2.30
    ("Channel 00 : 0[1b000] -> 1[2b000] via P2P/IPC", ("P2P", "P2P/IPC", 1, False)),
    ("Channel 00 : 0[1b000] -> 1[2b000] via direct shared memory", ("SHM", "direct shared memory", 1, False)),
    ("Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct", ("SHM", "SHM/direct/direct", 1, False)),
    ("Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read", ("P2P", "P2P/CUMEM/read", 1, False)),
    ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/2(1)/GDRDMA", ("NET", "NET/IB/2", 1, True)),
    ("Channel 00/0 : 0[0] -> 1[1] [receive] via NET/Socket/0/Shared", ("NET", "NET/Socket/0", 1, False)),
]


@pytest.mark.parametrize(("text", "link"), LINKS)
def test_transport_of_a_pair(read_text, text, link):
    assert transports(read_text(line(0, text)).events) == {(0, 1): link}


def test_a_pair_whose_ends_use_different_devices_has_each_channel_once(read_text):
    send = "".join(line(0, f"Channel 0{c}/0 : 0[0] -> 4[0] [send] via NET/IB/0/GDRDMA") for c in range(2))
    receive = "".join(line(4, f"Channel 0{c}/0 : 0[0] -> 4[0] [receive] via NET/IB/3/GDRDMA") for c in range(2))
    (link,) = transports(read_text(send + receive).events).values()
    assert (link.via, link.channels, link.gdr) == ("NET", 2, True)
    assert set(link.transport.split(" / ")) == {"NET/IB/0", "NET/IB/3"}


def test_ranks_of_a_child_are_named_as_ranks_of_the_job(read_text):
    text = started("2.26.2", range(8), 8)
    for rank in (4, 5):
        start = child("2.26.2", rank, rank - 4, 2, 1).replace("COMPLETE", "START")
        text += line(rank, start) + line(rank, f"Channel 00/0 : {rank - 4}[0] -> {5 - rank}[1] via P2P/IPC")
    assert set(transports(read_text(text).events)) == {(4, 5), (5, 4)}


def test_rings_from_the_line_that_names_the_whole_cycle(read_text):
    text = line(0, init("2.28.9", 0, 4, phase="START"))
    text += line(0, "Channel 00/02 : 0 1 2 3") + line(0, "Channel 01/02 : 0 3 2 1")
    assert rings(read_text(text).events) == {0: [0, 1, 2, 3], 1: [0, 3, 2, 1]}


def test_rings_from_neighbours(read_text):
    text = "".join(line(rank, f"Ring 00 : {(rank - 1) % 4} -> {rank} -> {(rank + 1) % 4}") for rank in range(4))
    assert rings(read_text(text).events) == {0: [0, 1, 2, 3]}


def test_a_ring_that_is_not_whole_is_a_piece(read_text):
    text = "".join(line(rank, f"Ring 00 : {rank - 1} -> {rank} -> {rank + 1}") for rank in (3, 4, 5))
    assert rings(read_text(text).events) == {0: [2, 3, 4, 5, 6]}


def test_rings_from_channels_only_where_each_rank_has_one_next(read_text):
    ring = "".join(
        line(r, f"Channel 0{c}/0 : {r}[{r}] -> {(r + 1) % 4}[0] via P2P/IPC") for r in range(4) for c in (0, 1)
    )
    assert rings(read_text(ring).events) == {0: [0, 1, 2, 3], 1: [0, 1, 2, 3]}
    back = line(0, "Channel 00/1 : 0[0] -> 3[3] via P2P/IPC")
    assert rings(read_text(ring + back).events) == {}


def test_the_ring_of_the_job_is_not_mixed_with_that_of_a_child(read_text):
    text = "".join(line(rank, init("2.28.9", rank, 4, phase="START")) for rank in range(4))
    text += "".join(line(rank, f"Ring 00 : {(rank - 1) % 4} -> {rank} -> {(rank + 1) % 4}") for rank in range(4))
    text += "".join(line(rank, init("2.28.9", rank, 4)) for rank in range(4))
    small = {rank: init("2.28.9", rank, 2, phase="START", comm_id="0xbeef", number=1) for rank in (0, 1)}
    text += "".join(
        line(rank, start) + line(rank, f"Ring 00 : {1 - rank} -> {rank} -> {1 - rank}") for rank, start in small.items()
    )
    events = read_text(text).events
    assert rings(events) == {0: [0, 1, 2, 3]}


def test_recorded_rings():
    assert rings(sample("healthy").events) == {channel: [0, 1, 2, 3] for channel in range(24)}


def test_variables(read_text):
    text = started("2.28.9", range(4), 4)
    text += "".join(line(rank, "NCCL_DEBUG set by environment to INFO.") for rank in range(4))
    text += "".join(
        line(rank, f"NCCL_SOCKET_IFNAME set by environment to {'eth1' if rank == 2 else 'eth0'}.") for rank in range(4)
    )
    assert variables(read_text(text).events)["NCCL_SOCKET_IFNAME"] == {"eth0": [0, 1, 3], "eth1": [2]}


def test_a_pointer_that_came_back_names_no_communicator(read_text):
    """After a destroy the allocator may hand out the same address; then calls on it cannot be told apart."""
    from ncclkit.analysis.communicators import Index
    from tests.evidence.jobs import call

    text = line(0, init("2.28.9", 0, 4)) + line(0, init("2.28.9", 0, 2, comm_id="0xbeef")) + line(0, call(0))
    events = read_text(text).events
    assert Index(events).of(next(event for event in events if event.kind == "nccl.op")) is None
    assert pointer(0) in events[-1].text
