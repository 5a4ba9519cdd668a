"""Of a profiler's trace only the head is read; it tells the job, the rank and the groups."""

from __future__ import annotations

import gzip
import io
import json
import tracemalloc

import pytest

from ncclkit import evidence
from ncclkit.evidence.tools import kineto

GROUPS = [
    {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": 8, "ranks": list(range(8))}
]
INFO = {"backend": "nccl", "rank": 3, "world_size": 8, "pg_count": 1, "pg_config": GROUPS, "nccl_version": "2.27.5"}


def trace(info=INFO, events=20):
    head = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}]}
    head |= {} if info is None else {"distributedInfo": info}
    calls = [{"ph": "X", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ts": n} for n in range(events)]
    return json.dumps(head | {"traceEvents": calls, "traceName": "/tmp/t.json"}, indent=2).encode()


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gz"])
def test_a_trace_tells_rank_job_and_version(look, pack):
    reading = look(pack(trace()), "worker.1234.pt.trace.json")
    (event,) = reading.events
    assert event.kind == "kineto.info" and event.rank == 3 and event.line > 1
    assert event.data == {"backend": "nccl", "rank": 3, "world": 8, "groups": GROUPS, "nccl": "2.27.5"}
    assert (reading.inputs[0]["kind"], reading.inputs[0]["ranks"]) == ("kineto", [3])
    job = evidence.job(reading.events, reading.inputs)
    assert (job["ranks"], job["nccl"]) == (8, "2.27.5")


def test_a_trace_without_a_job_is_known_and_says_nothing(look):
    reading = look(trace(None), "trace.json")
    assert reading.events == [] and reading.inputs[0]["kind"] == "kineto"


@pytest.mark.parametrize(
    "info", [[1], {"rank": "<b>", "world_size": True, "pg_config": 7}, {"rank": -1, "world_size": 1 << 60}, {}]
)
def test_odd_information_is_no_error(look, info):
    for event in look(trace(info), "trace.json").events:
        assert (event.rank, event.data["rank"], event.data["world"], event.data["groups"]) == (None, None, None, [])


@pytest.mark.parametrize("cut", [30, 150, 400])
def test_a_cut_trace_is_no_error(look, cut):
    assert {event.kind for event in look(trace()[:cut], "trace.json").events} <= {"kineto.info"}


def test_many_groups_reach_beyond_the_first_bytes(look):
    groups = [{"pg_name": str(n), "ranks": list(range(64))} for n in range(3000)]
    (event,) = look(trace(INFO | {"pg_config": groups}), "trace.json").events
    assert len(event.data["groups"]) == 3000 and len(event.text) <= 2000


def test_the_events_are_not_read():
    class Endless(io.RawIOBase):
        asked = 0

        def read(self, size):
            self.asked += size
            return b" " * size

    more = Endless()
    (event,) = kineto.read(trace(), more.read, "trace.json")
    assert event.rank == 3 and more.asked == 0
    assert kineto.read(b'{"schemaVersion": 1,', more.read, "trace.json") == []
    assert more.asked <= 2 * kineto.LONGEST


def test_a_large_trace_needs_little_memory(tmp_path):
    (tmp_path / "trace.json").write_bytes(trace()[:-40] + b" " * (64 << 20))
    tracemalloc.start()
    try:
        assert evidence.read([tmp_path]).events[0].kind == "kineto.info"
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
