"""Flight Recorder: all schemas, gloo's ways, who is missing, who differs, who left nothing."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tracemalloc
from concurrent.futures import ProcessPoolExecutor

import pytest

from ncclkit import evidence
from ncclkit.evidence import files
from ncclkit.evidence.flight import compare
from ncclkit.evidence.flight.dumps import of_value
from tests.bench.flight import write_set

ALL = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}


def entry(
    seq,
    op="all_reduce",
    *,
    lib="nccl",
    state="completed",
    retired=None,
    sizes=((8,),),
    group=("0", "default_pg"),
    **more,
):
    retired = state == "completed" if retired is None else retired
    return {
        "record_id": seq,
        "pg_id": 0,
        "process_group": group,
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": f"{lib}:{op}",
        "time_created_ns": 1,
        "input_sizes": [list(size) for size in sizes],
        "input_dtypes": ["Float"],
        "output_sizes": [],
        "output_dtypes": [],
        "state": state,
        "retired": retired,
        "is_p2p": False,
        "timeout_ms": 600000,
        "frames": [{"name": "step", "filename": "train.py", "line": 30 + seq}],
    } | more


def waiting(seq, **more):
    return entry(seq, state="started", **more)


def dump(entries, config=ALL, version="2.10"):
    return {"version": version, "pg_config": config, "pg_status": {}, "entries": entries}


def write(folder, dumps, name="nccl_trace_rank_{}"):
    for rank, value in dumps.items():
        (folder / name.format(rank)).write_bytes(pickle.dumps(value, 2))
    return {event.kind: event for event in evidence.read([folder]).events if event.kind != "flight.dump"}


def test_the_rank_that_never_entered_is_missing(tmp_path):
    done = [entry(1), entry(2)]
    events = write(tmp_path, {rank: dump(done if rank == 2 else [*done, waiting(3)]) for rank in range(4)})
    event = events.pop("flight.missing")
    assert events == {}
    assert (event.data.seq, event.data.op, event.data.missing, event.data.waiting) == (
        3,
        "all_reduce",
        [2],
        [0, 1, 3],
    )
    assert event.data.last_seq == {"0": 3, "1": 3, "2": 2, "3": 3}
    assert event.data.frames == [{"file": "train.py", "line": 32, "func": "step"}]
    assert event.rank == 2 and "rank 2: last was 2 all_reduce" in event.text


def test_the_lowest_rank_is_not_the_truth(tmp_path):
    events = write(
        tmp_path,
        {rank: dump([entry(1), waiting(2, op="broadcast" if rank == 0 else "all_reduce")]) for rank in range(4)},
    )
    data = events["flight.mismatch"].data
    assert (data.seq, data.field) == (2, "op")
    assert data.majority == {"value": "all_reduce", "ranks": [1, 2, 3]}
    assert data.odd == [{"value": "broadcast", "ranks": [0]}]


@pytest.mark.parametrize(("field", "other"), [("sizes", {"sizes": ((16,),)}), ("dtypes", {"input_dtypes": ["Half"]})])
def test_sizes_and_dtypes_that_differ(tmp_path, field, other):
    events = write(tmp_path, {rank: dump([entry(1), waiting(2, **(other if rank == 1 else {}))]) for rank in range(4)})
    assert (events["flight.mismatch"].data.field, events["flight.mismatch"].data.odd[0]["ranks"]) == (field, [1])


def test_equal_numbers_of_elements_are_no_mismatch(tmp_path):
    assert write(tmp_path, {rank: dump([entry(1, sizes=((2, 4),) if rank else ((8,),))]) for rank in range(4)}) == {}


def test_uneven_all_to_all_is_legal(tmp_path):
    assert write(tmp_path, {rank: dump([entry(1, "all_to_all", sizes=((rank + 1,),))]) for rank in range(4)}) == {}


def scatter(rank, lib, part=(8, 4)):
    """As torch 2.11 and 2.13 record a scatter from rank 0 to four."""
    root = rank == 0
    one = {"sizes": (part,), "input_dtypes": ["Float"]}
    if lib == "nccl":
        filler = {"output_sizes": [[0]], "output_dtypes": ["UNKNOWN_SCALAR"]}
        parts = {"output_sizes": [list(part)] * 4, "output_dtypes": ["Float"] * 4} if root else filler
        return entry(2, "scatter", **one, **parts)
    took = {"output_sizes": [list(part)], "output_dtypes": ["Float"]}
    brought = {"sizes": ((4, *part),)} if root else {"sizes": (), "input_dtypes": []}
    return entry(2, "scatter", lib="gloo", state="scheduled", retired=False, **brought, **took)


@pytest.mark.parametrize("lib", ["nccl", "gloo"])
def test_a_scatter_is_compared_by_the_part_that_each_rank_takes(tmp_path, lib):
    """As every job of tensor parallelism begins with one: the root alone brings a list."""
    assert "flight.mismatch" not in write(tmp_path, {rank: dump([entry(1), scatter(rank, lib)]) for rank in range(4)})
    parts = {rank: (8, 5) if rank == 2 else (8, 4) for rank in range(4)}
    odd = {rank: dump([entry(1), scatter(rank, lib, part)]) for rank, part in parts.items()}
    data = write(tmp_path, odd)["flight.mismatch"].data
    assert (data.field, data.odd) == ("sizes", [{"value": [[8, 5]], "ranks": [2]}])


def test_of_a_gather_the_root_alone_takes_a_list(tmp_path):
    def gather(rank, size=5):
        took = [[size]] * 4 if rank == 0 else [[0]]
        types = ["Float"] * 4 if rank == 0 else ["UNKNOWN_SCALAR"]
        return dump([entry(1), entry(2, "gather", sizes=((size,),), output_sizes=took, output_dtypes=types)])

    assert write(tmp_path, {rank: gather(rank) for rank in range(4)}) == {}
    found = write(tmp_path, {rank: gather(rank, 6 if rank == 3 else 5) for rank in range(4)})
    assert found["flight.mismatch"].data.odd == [{"value": [[6]], "ranks": [3]}]


def test_everybody_stuck_in_the_same_collective(tmp_path):
    events = write(
        tmp_path, {rank: dump([entry(1), entry(2, state="scheduled" if rank == 1 else "started")]) for rank in range(4)}
    )
    assert events["flight.stuck"].data.states == {"0": "started", "1": "scheduled", "2": "started", "3": "started"}


def test_nobody_is_stuck_where_all_states_say_completed(tmp_path):
    """The dump was taken before the watchdog retired the call, or after it had aborted it."""
    late = {"retired": False, "time_discovered_completed_ns": 10**12}
    assert write(tmp_path, {rank: dump([entry(1), entry(2, **late)]) for rank in range(4)}) == {}


def test_ranks_without_a_dump_are_named(tmp_path):
    event = write(tmp_path, {rank: dump([entry(1), waiting(2)]) for rank in (0, 1, 3)})["flight.missing"]
    assert (event.data.missing, event.data.no_dump, event.data.waiting) == ([], [2], [0, 1, 3])


def test_a_healthy_job_gives_nothing(tmp_path):
    assert write(tmp_path, {rank: dump([entry(1), entry(2)]) for rank in range(4)}) == {}


def test_gloo_never_leaves_scheduled_and_names_no_ranks(tmp_path):
    def gloo(seq, retired, group=("0", "default_pg")):
        return entry(seq, lib="gloo", state="scheduled", retired=retired, group=group)

    config = {"": {"name": "", "desc": "", "ranks": "[]"}}
    done = [gloo(1, True), gloo(2, True)]
    events = write(
        tmp_path,
        {rank: dump(done if rank == 1 else [*done, gloo(3, False)], config) for rank in range(3)},
        "fr_rank_{}",
    )
    assert (events["flight.missing"].data.missing, events["flight.missing"].data.waiting) == ([1], [0, 2])


def test_a_summary_dates_the_last_calls_and_some_before(tmp_path):
    calls = [entry(seq, time_created_ns=10**18 + seq * 10**9) for seq in range(1, 101)] + [
        entry(101, time_created_ns=0)
    ]
    (folder := tmp_path / "d").mkdir()
    (folder / "nccl_trace_rank_0").write_bytes(pickle.dumps(dump(calls), 2))
    (event,) = (event for event in evidence.read([folder]).events if event.kind == "flight.dump")
    times = event.data.groups["0"]["times"]
    assert times[0] == [1, 10**9 + 1] and [seq for seq, _ in times[-7:]] == [*range(94, 101)]
    assert len(times) <= 32 and all(time == 10**9 + seq for seq, time in times)


def test_a_summary_of_many_dumps_holds_few_times():
    recorded = of_value(dump([entry(seq) for seq in range(1, 101)]), "nccl_trace_rank_0", 0)

    def times(of):
        return [seq for seq, _ in compare.dump_event(recorded, of).data.groups["0"]["times"]]

    assert len(times(2047)) > 24 and times(16384) == times(1 << 20) == [1, 100]


def test_a_dump_more_costs_the_times_of_its_calls_and_what_is_said_of_it(tmp_path):
    """Half a KB for each group, file and summary; of 200 calls a rank all else is held once for all ranks."""

    def peak(ranks):
        (folder := tmp_path / str(ranks)).mkdir()
        write_set(folder, ranks, 200, mixed=True)
        tracemalloc.start()
        try:
            reading = evidence.read([folder])
            return tracemalloc.get_traced_memory()[1], len(reading.events)
        finally:
            tracemalloc.stop()

    peak(8)  # what is made once
    (few, _), (many, events) = peak(32), peak(96)
    assert events > 96 and (many - few) / 64 < 20_000


def test_groups_are_compared_one_by_one(tmp_path):
    config = ALL | {"1": {"name": "1", "desc": "tp", "ranks": "[2, 3]"}}
    sub = {"group": ("1", "tp")}
    dumps = {rank: dump([entry(1)], config) for rank in (0, 1)}
    dumps |= {2: dump([entry(1), waiting(1, **sub)], config), 3: dump([entry(1)], config)}
    event = write(tmp_path, dumps)["flight.missing"]
    assert (event.data.group, event.data.desc, event.data.missing, event.data.waiting) == (
        "1",
        "tp",
        [3],
        [2],
    )


def old(entries, config):
    """torch 2.2 and 2.3: ``seq_id``, no process group in the entry."""
    keys = ("record_id", "pg_id", "profiling_name", "input_sizes", "state", "frames")
    plain = [{key: item[key] for key in keys} | {"seq_id": item["collective_seq_id"]} for item in entries]
    return plain if config is None else {"version": "1.4", "pg_config": config, "entries": plain}


@pytest.mark.parametrize("config", [None, {0: [0, 1, 2]}], ids=["2.2", "2.3"])
def test_old_schemas(tmp_path, config):
    dumps = {rank: old([entry(1)] if rank == 1 else [entry(1), waiting(2)], config) for rank in range(3)}
    assert write(tmp_path, dumps)["flight.missing"].data.missing == [1]


def test_json_dumps_and_a_rank_told_inside(tmp_path):
    for rank in range(3):
        value = dump([entry(1)] if rank == 1 else [entry(1), waiting(2)], {}) | {"rank": rank}
        (tmp_path / f"dump{chr(97 + rank)}.json").write_text(json.dumps(value))
    reading = evidence.read([tmp_path])
    (missing,) = [event for event in reading.events if event.kind == "flight.missing"]
    assert missing.data.missing == [1]
    assert [row["kind"] for row in reading.inputs] == ["flight"] * 3


@pytest.mark.slow
def test_what_torch_writes_here_is_read(tmp_path):
    """The dump of the installed torch, written by its own C++ pickler and as its JSON."""
    c10d = pytest.importorskip("torch._C._distributed_c10d")
    if not hasattr(c10d, "_dump_fr_trace"):
        pytest.skip("this torch writes no dump on CPUs")
    script = tmp_path / "job.py"
    script.write_text(JOB)
    env = os.environ | {"TORCH_FR_BUFFER_SIZE": "100"}
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, env=env, timeout=120)
    dumps = {name: files.read_file(str(tmp_path / name))[0].dump for name in ("fr_rank_0", "fr_rank_0.json")}
    for one in dumps.values():
        calls = one.collectives["0", "default_pg"]
        assert (one.rank, one.version, list(calls.seqs)) == (0, "2.10", [1, 2, 3])
        assert {one.kinds[n][:3] for n in calls.kinds} == {("gloo", "all_reduce", (60, ((3, 20),)))}
    frames = dumps["fr_rank_0"].frames(*dumps["fr_rank_0"].newest)
    assert [frame["func"] for frame in frames if frame["file"] == str(script)] == ["step", "<module>"]


JOB = """
import sys
import torch
import torch.distributed as dist
import torch._C._distributed_c10d as c10d
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
def step():
    dist.all_reduce(torch.ones(3, 20))
for _ in range(3):
    step()
open(sys.argv[1] + "/fr_rank_0", "wb").write(c10d._dump_fr_trace())
value = c10d._dump_fr_trace_json()
open(sys.argv[1] + "/fr_rank_0.json", "wb").write(value if isinstance(value, bytes) else value.encode())
"""


@pytest.mark.parametrize(
    ("name", "rank", "host"),
    [
        ("nccl_trace_rank_3", 3, ""),
        ("comm_lib_trace_rank_12", 12, ""),
        ("trace_host-3_rank_12", 12, "host-3"),
        ("fr_dump_node-1_7", 7, "node-1"),
        ("fr_dump_node-1_7.json", 7, "node-1"),
        ("nccl_trace_gpu07.cluster_rank_3", 3, ""),
    ],
)
def test_ranks_and_hosts_in_names(tmp_path, name, rank, host):
    value = dump([entry(1)])
    data = json.dumps(value).encode() if name.endswith("json") else pickle.dumps(value, 2)
    (tmp_path / name).write_bytes(data)
    (event,) = evidence.read([tmp_path / name]).events
    assert (event.rank, event.host) == (rank, host)


def test_a_dump_is_compact_between_processes(tmp_path):
    """What a worker sends back: columns of 26 bytes a call, and the stacks of the last calls only."""
    frames = [{"name": f"f{n}", "filename": "/work/train.py", "line": n} for n in range(20)]
    value = dump([entry(seq, frames=frames) for seq in range(1, 2001)])
    (tmp_path / "fr_rank_0").write_bytes(pickle.dumps(value, 2))
    assert len(pickle.dumps(files.read_file(str(tmp_path / "fr_rank_0"))[0].dump)) < 26 * 2000 + 20_000


def test_workers_tell_the_same(tmp_path):
    done = [entry(1), entry(2)]
    for rank in range(4):
        (tmp_path / f"fr_rank_{rank}").write_bytes(pickle.dumps(dump(done if rank == 2 else [*done, waiting(3)]), 4))
    with ProcessPoolExecutor(2) as pool:
        assert evidence.read([tmp_path], executor=pool) == evidence.read([tmp_path])
