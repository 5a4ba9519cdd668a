"""The sizes of the messages that a job sends, by each source that shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ncclkit.analysis.message_sizes import buckets_of, heaviest, message_sizes
from ncclkit.core.case import Case
from ncclkit.core.model import Event, NcclkitError
from ncclkit.evidence.samples import open_sample
from ncclkit.live import tune
from tests.cases import read_files

KIB, MIB = 1 << 10, 1 << 20


def test_dumps_of_the_flight_recorder_show_sizes() -> None:
    calls = message_sizes(open_sample("rank_late"))
    assert calls["all_reduce", 67588] == 4 and calls["broadcast", 4] == 1


def test_lines_of_nccl_show_sizes_by_type_and_parts(tmp_path: Path) -> None:
    """COLL lines as NCCL 2.28 writes them: 7 is float32, and AllGather counts one rank's part."""
    line = (
        "host:1:{pid} [{rank}] NCCL INFO {op}: opCount {n:x} sendbuff 0x7 recvbuff 0x8 count {count} datatype 7 op 0 "
    )
    line += "root 0 comm 0x55 [nranks=4] stream 0x5\n"
    for rank in (0, 1):
        lines = [line.format(pid=10 + rank, rank=rank, op="AllReduce", n=n, count=1024) for n in range(3)]
        lines += [line.format(pid=10 + rank, rank=rank, op="AllGather", n=9, count=256)]
        (tmp_path / f"rank{rank}.log").write_text("".join(lines))
    for count, kind in (("9" * 20, "7"), ("1024", "9" * 20)):
        torn = line.format(pid=11, rank=1, op="AllReduce", n=8, count=count).replace("datatype 7", f"datatype {kind}")
        lines.append(torn)
    (tmp_path / "rank1.log").write_text("".join(lines))  # what two ranks wrote at once is left out
    assert message_sizes(read_files(tmp_path)) == {("all_gather", 4 * KIB): 1, ("all_reduce", 4 * KIB): 3}


def test_files_of_the_inspector_show_sizes(tmp_path: Path) -> None:
    def row(rank: int, op: str, size: object) -> str:
        header = {"id": "0x1", "rank": rank, "n_ranks": 2, "nnodes": 1}
        perf = {"coll": op, "coll_sn": 1, "coll_msg_size_bytes": size, "coll_exec_time_us": 31, "coll_algobw_gbs": 1.0}
        return json.dumps({"header": header, "metadata": {"pid": 7}, "coll_perf": perf})

    rows = [row(0, "AllReduce", MIB)] * 3 + [row(0, "ReduceScatter", 64), row(0, "AllReduce", "many"), '{"header": {']
    (tmp_path / "inspector_0.log").write_text("\n".join(rows))
    case = read_files(tmp_path)
    (event, *_) = case.of("nccl.calls")
    assert (event.rank, event.count, event.data.time_us, event.line) == (0, 3, 31.0, 1)
    assert message_sizes(case) == {("all_reduce", MIB): 3, ("reduce_scatter", 64): 1}
    assert [entry["kind"] for entry in case.inputs] == ["inspector"]


def test_buckets_of_a_model_are_those_of_ddp(tmp_path: Path) -> None:
    """Filled from the last layer: 1 MiB first, then 25 MiB, and what is left."""
    sizes = [30 * MIB, 10 * MIB, 20 * MIB, MIB]
    header, at = {}, 0
    for number, size in enumerate(sizes):
        header[f"layer{number}"] = {"dtype": "F32", "shape": [size // 4], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    expected = {("all_reduce", MIB): 1, ("all_reduce", 30 * MIB): 2}
    assert buckets_of(path) == expected == tune.calls_of(str(path), Case())
    (tmp_path / "torn.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(NcclkitError, match="is not a safetensors file"):
        buckets_of(tmp_path / "torn.safetensors")


def test_a_job_that_shows_no_size_is_refused_in_one_sentence() -> None:
    with pytest.raises(NcclkitError, match="NCCL_DEBUG_SUBSYS=COLL"):
        tune.calls_of("job.log", Case().add([Event("progress")]))


def test_the_sizes_that_take_most_of_the_time_are_measured() -> None:
    calls = {
        ("all_reduce", 8): 10,
        ("all_reduce", 25 * MIB): 100,
        ("all_reduce", 26 * MIB): 4,
        ("all_gather", KIB): 500,
    }
    assert heaviest(calls, 2) == {"all_reduce": [25 * MIB], "all_gather": [KIB]}
    assert heaviest({}, 7) == {}
