"""Tables of nccl-tests become measurements, whatever the version, and whatever stands between the rows."""

from __future__ import annotations

import json

import pytest

from ncclkit.core.model import fields_of

NOISE = "node-1:340155:340160 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\n"
HEAD = """\
# Collective test starting: {op}_perf
# nccl-tests version 2.17.6 nccl-headers=22907 nccl-library=22907
# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1
#
# Using devices
"""
DEVICE = "#  Rank {0:2d} Group  0 Pid 340155 on    node-{1} device  {0} [0000:18:00] NVIDIA H200\n"
NEW = """\
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
OLD = """\
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
ROWS = """\
           8             2     float     sum      -1    12.33    0.00    0.00      0    11.92    0.00    0.00      0
     1048576        262144     float     sum      -1    31.26   33.54   58.70      0    30.62   34.25   59.93      0
   134217728      33554432  bfloat16     sum      -1    720.1  186.39  326.18      2    719.6  186.52  326.41    N/A
"""
FOOT = """\
# Out of bounds values : 2 FAILED
# Avg bus bandwidth    : 110.123
#
# Collective test concluded: all_reduce_perf
"""


def run(op="all_reduce", ranks=8, hosts=2, table=NEW + ROWS):
    return HEAD.format(op=op) + "".join(DEVICE.format(n, n % hosts) for n in range(ranks)) + table + FOOT


def rows_of(reading):
    return [(m.op, m.bytes, m.dtype, m.ranks, m.time_us, m.busbw, m.wrong) for m in reading.measurements]


def test_a_table_becomes_measurements_with_their_units(read_text):
    reading = read_text(run())
    first, last = reading.measurements[0], reading.measurements[-2]
    assert rows_of(reading)[-2:] == [
        ("all_reduce", 134217728, "bfloat16", 8, 720.1, 326.18, 2),
        ("all_reduce", 134217728, "bfloat16", 8, 719.6, 326.41, None),
    ]
    assert (first.hosts, first.backend, first.repeats, first.p99_us, first.algbw) == (2, "nccl", 20, None, 0.0)
    assert last.run.endswith("job.log:16 (out-of-place)") and reading.inputs[0]["kind"] == "nccl-tests"
    (table,) = [event for event in reading.events if event.kind == "nccltests.table"]
    assert (table.kind, table.line) == ("nccltests.table", 16)
    assert fields_of(table) == {"op": "all_reduce", "ranks": 8, "rows": 3, "wrong": 2, "average": 110.123}
    assert [(fact.name, fact.value) for fact in reading.facts] == [("software.nccl", "2.29.7")]


def test_nccls_own_lines_may_stand_between_the_rows(read_text):
    whole = run()
    between = "".join(line + "\n" + NOISE * 3 for line in whole.splitlines())
    mixed = read_text(between)
    assert rows_of(mixed) == rows_of(read_text(whole)) and len(rows_of(mixed)) == 6
    assert "nccl.channel" in [event.kind for event in mixed.events]


@pytest.mark.parametrize("lines", [20_000, 60_000])
def test_the_table_at_the_end_of_a_large_log_is_found(read_text, lines):
    reading = read_text(NOISE * lines + run())
    assert len(reading.measurements) == 6
    assert int(reading.measurements[0].run.rpartition(":")[2].split()[0]) == lines + 16


def test_several_tables_in_a_file_stay_apart(read_text):
    reading = read_text(run() + run("reduce_scatter", 4, 1))
    assert [(m.op, m.ranks) for m in reading.measurements[::6]] == [("all_reduce", 8), ("reduce_scatter", 4)]
    assert len({m.run for m in reading.measurements}) == 4


# factors of all_reduce, all_gather and broadcast on 8 ranks, before 2.13: no root, errors instead of counts
@pytest.mark.parametrize(
    ("columns", "cells", "op", "ranks"),
    [
        ("type   redop", "float     sum     517.0   64.90  113.57  1e-07", "all_reduce", 8),
        ("type   redop", "float     sum     517.0   64.90  56.79  1e-07", "reduce_scatter", 8),
        ("type        ", "float             517.0   64.90  56.79  0e+00", "all_gather/all_to_all/gather/scatter", 8),
        ("type    root", "float       0     517.0   64.90  64.90  0e+00", "broadcast", 0),
    ],
)
def test_what_old_tables_do_not_name_follows_from_their_numbers(read_text, columns, cells, op, ranks):
    table = OLD.replace("type   redop", columns)
    half = cells.partition("517.0")[2]
    reading = read_text(
        table + f"    33554432       8388608   {cells}    517.0{half}\n# Avg bus bandwidth    : 114.22\n"
    )
    assert {(m.ranks, m.wrong, m.hosts) for m in reading.measurements} == {(ranks, None, 0)}
    assert {frozenset(m.op.split("/")) for m in reading.measurements} == {frozenset(op.split("/"))}


def test_one_rank_has_no_bus(read_text):
    table = NEW + "  1048576  262144  float  sum  -1  31.26  33.54  0.00  0  30.62  34.25  0.00  0\n"
    assert {(m.ranks, m.busbw) for m in read_text(run(ranks=1, table=table)).measurements} == {(1, None)}


def test_times_per_iteration_are_kept(read_text):
    table = NEW.replace("#wrong", "#wrong  i_min  i_max  i_p99  i_cv%")
    half = "31.26 33.54 58.70 0 30.1 39.0 38.5 2.1"
    reading = read_text(run(table=table + f"  1048576  262144  float  sum  -1  {half}  {half}\n"))
    assert [m.p99_us for m in reading.measurements] == [38.5, 38.5]


@pytest.mark.parametrize(
    "row",
    [
        "1048576 262144 float sum -1 31.26 33.54",
        "1048576 262144 float sum -1 Test NCCL failure common.cu:958 'unhandled system error' a b c d",
        "99999999999999999999 2 float sum -1 12.33 0.00 0.00 0 11.92 0.00 0.00 0",
        "8 2 <b> sum -1 12.33 0.00 0.00 0 11.92 0.00 0.00 0",
    ],
)
def test_rows_that_are_cut_or_odd_are_left_out(read_text, row):
    assert len(read_text(run(table=NEW + ROWS + row + "\n")).measurements) == 6


def test_the_json_of_newer_versions(read_text):
    half = {"time": 31.26, "alg_bw": 33.543219999, "bus_bw": 58.70063499, "nwrong": 0}
    rows = [{"size": 1048576, "count": 262144, "type": "float", "redop": "sum", "root": -1}]
    rows[0] |= {"out_of_place": half, "in_place": half | {"nwrong": "N/A"}}
    devices = [{"rank": n, "hostname": "node-1"} for n in range(8)]
    document = {"version": 3, "args": ["./all_reduce_perf"], "env": ["SECRET=hunter2"], "devices": devices}
    reading = read_text(json.dumps(document | {"results": rows}), "out.json")
    assert rows_of(reading) == [
        ("all_reduce", 1048576, "float32", 8, 31.26, 58.7006, 0),
        ("all_reduce", 1048576, "float32", 8, 31.26, 58.7006, None),
    ]
    assert "hunter2" not in repr(reading) and reading.inputs[0]["kind"] == "nccl-tests -J"
