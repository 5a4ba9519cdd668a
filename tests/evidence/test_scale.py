"""Stories, alignment and communicators of a job of 1,024 ranks."""

from __future__ import annotations

import pytest

from ncclkit import evidence
from ncclkit.analysis.alignment import align
from ncclkit.analysis.communicators import communicators, rings, transports
from ncclkit.analysis.timeline import timelines
from tests.cases import case_of
from tests.evidence.jobs import COMM_ID, large

SIZE, LATE, SILENT = 1024, 600, 17


@pytest.fixture(scope="module")
def reading(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "job.log"
    path.write_text(large(SIZE, late=LATE, silent=SILENT))
    return evidence.read([path])


def test_every_rank_has_a_story(reading):
    told = timelines(case_of(reading.events, reading.inputs))
    assert [story.rank for story in told] == list(range(SIZE))
    ends = {story.rank: story.end for story in told}
    assert ends.pop(SILENT) == "silent" and ends.pop(LATE) == "still running where its log ends"
    assert set(ends.values()) == {"waits in all_reduce 42 of default_pg"}


def test_the_late_rank_stands_out_in_both_sources(reading):
    found = {one.group: one for one in align(reading.events)}
    assert (found["0"].seq, found["0"].what, found["0"].minority) == (42, "missing", (LATE,))
    assert (found[COMM_ID].seq, found[COMM_ID].what, found[COMM_ID].minority) == (4, "missing", (LATE,))
    assert "ranks 0-16, 18-599 and 601-1023" in found["0"].summary.lower()


def test_communicators_and_their_pairs(reading):
    world, *groups = communicators(reading.events)
    assert (world.id, world.size, len(world.done), world.complete) == (COMM_ID, SIZE, SIZE - 1, False)
    assert len(groups) == SIZE // 8 and sum(made.complete for made in groups) == SIZE // 8 - 1
    links = transports(reading.events)
    assert len(links) == SIZE - 1 and links[7, 8] == ("NET", "NET/IB/0", 2, True)


def test_the_ring_is_whole_although_one_rank_is_silent(reading):
    assert rings(reading.events) == {0: list(range(SIZE)), 1: list(range(SIZE))}
