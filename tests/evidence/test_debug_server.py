"""What torch's debug server writes, in the form of torch 2.13: looks at all ranks, and who did not answer."""

from __future__ import annotations

import pytest

from tests.cases import judged_files, judged_text, read_files

TORCH = "/opt/venv/lib/python3.11/site-packages/torch/distributed/"
WAITS = f"""Current thread 0x00007f06c1ffb6c0 (most recent call first):
  <no Python frame>

Thread 0x00007f06c1ff0000 [watcher] (most recent call first):
  File "/app/watch.py", line 9 in watch

Thread 0x00007f06f3e58b80 (most recent call first):
  File "{TORCH}distributed_c10d.py", line 3252 in all_reduce
  File "{TORCH}c10d_logger.py", line 83 in wrapper
  File "/app/train.py", line 31 in main
  File "/app/train.py", line 40 in <module>
"""
LOADS = """Current thread 0x00007f11359106c0 (most recent call first):
  <no Python frame>

Thread 0x00007f115726bb80 (most recent call first):
  File "/app/data.py", line 4 in load_batch
  File "/app/train.py", line 26 in main
  File "/app/train.py", line 40 in <module>
"""
STEPS = WAITS.replace("all_reduce", "broadcast").replace("line 31 in main", "line 33 in main")
LATE, GONE, NO_HANDLER = (
    "TimeoutError: ",
    "ClientConnectorError: Cannot connect to host node-2:34001 ssl:default [Connect call failed ('10.0.0.2', 34001)]",
    "Handler torchcomms_health_check not found: Failed to find handler torchcomms_health_check",
)
STATUS = {LATE: "408", GONE: "503", NO_HANDLER: "404"}


def looked(bodies: dict[int, str], handler: str = "dump_traceback") -> str:
    """One file; a body of `STATUS` is that of a rank without an answer."""
    absent = {rank: why for rank, why in bodies.items() if why in STATUS}
    parts = []
    if absent:
        parts = [f"PARTIAL DATA: {len(bodies) - len(absent)}/{len(bodies)} workers responded"]
        parts += [f"  Rank {rank}: {why}" for rank, why in absent.items()] + [""]
    for rank, body in bodies.items():
        parts.append(f"=== Rank {rank}: http://node-{rank // 2 + 1}:34001/handler/{handler}? ===")
        parts.append(f"Error: {STATUS[body]}" if body in STATUS else body)
    return "\n".join(parts)


def put(folder, *looks: dict[int, str], name: str = "stacks", handler: str = "dump_traceback"):
    for minute, bodies in enumerate(looks):
        (folder / f"{name}_20261127_1830{minute:02d}.txt").write_text(looked(bodies, handler))
    return folder


def all_but(rank: int, body: str) -> dict[int, str]:
    return {other: body if other == rank else WAITS for other in range(4)}


def test_headings_name_ranks_and_the_stack_is_that_of_the_main_thread(tmp_path):
    case = read_files(put(tmp_path, all_but(2, LOADS)))
    assert case.inputs[0]["kind"] == "debug" and case.inputs[0]["ranks"] == [0, 1, 2, 3]
    stacks = {event.rank: event for event in case.of("stack")}
    assert stacks[2].data.frames[0] == {"file": "/app/data.py", "line": 4, "func": "load_batch"}
    assert stacks[2].host == "node-2" and len(stacks[0].data.frames) == 4


def test_stacks_of_py_spy_are_read_as_well(tmp_path):
    body = 'Process 4711: python train.py\n\nThread 9 (idle): "watcher"\n    watch (watch.py:9)\n'
    body += 'Thread 4711 (active): "MainThread"\n    load_batch (/app/data.py:4)\n    main (/app/train.py:26)\n'
    (event,) = read_files(put(tmp_path, {0: body}, name="pyspy_dump", handler="pyspy_dump")).of("stack")
    assert [frame["func"] for frame in event.data.frames] == ["load_batch", "main"]


def test_one_look_is_a_possibility_and_two_that_show_the_same_are_likely(tmp_path):
    one = judged_files(put(tmp_path, all_but(2, LOADS))).findings[0]
    two = judged_files(put(tmp_path, all_but(2, LOADS), all_but(2, LOADS))).findings[0]
    assert (one.cause, one.strength, list(one.culprits["ranks"])) == ("slow_rank", "possible", [2])
    assert (two.cause, two.strength, list(two.culprits["ranks"])) == ("slow_rank", "likely", [2])
    assert "load_batch at data.py:4" in two.say


def test_a_job_that_was_met_elsewhere_at_another_look_goes_on(tmp_path):
    later = dict.fromkeys(range(4), STEPS)
    result = judged_files(put(tmp_path, all_but(2, LOADS), later, dict.fromkeys(range(4), WAITS)))
    assert result.verdict == "running" and not result.findings


def test_a_job_whose_ranks_all_wait_in_one_place_accuses_nobody(tmp_path):
    same = dict.fromkeys(range(4), WAITS)
    assert not any(one.strength == "likely" for one in judged_files(put(tmp_path, same, same)).findings)


@pytest.mark.parametrize(
    ("why", "cause", "strength"), [(GONE, "rank_killed", "likely"), (LATE, "gil_hold", "possible")]
)
def test_a_rank_without_an_answer_is_named_where_the_others_wait(tmp_path, why, cause, strength):
    finding = judged_files(put(tmp_path, all_but(2, why))).findings[0]
    assert (finding.cause, finding.strength, list(finding.culprits["ranks"])) == (cause, strength, [2])


@pytest.mark.parametrize("why", [GONE, LATE])
def test_a_rank_without_an_answer_is_not_accused_where_nobody_waits(tmp_path, why):
    bodies = {0: LOADS, 1: LOADS, 2: why, 3: why}
    assert not any(finding.culprits["ranks"] for finding in judged_files(put(tmp_path, bodies)).findings)


def test_a_rank_that_answers_again_is_not_absent(tmp_path):
    case = read_files(put(tmp_path, all_but(2, LATE), all_but(2, LOADS)))
    assert case.of("debug.absent") == []


def test_a_handler_that_no_rank_has_is_no_error(tmp_path):
    put(tmp_path, dict.fromkeys(range(4), NO_HANDLER), name="torchcomms_health_check", handler="torchcomms_health_check")
    result = judged_files(tmp_path)
    assert result.findings == () and result.errors == ()


NAMES = (
    "id group_id pass_check collective_seq_id p2p_seq_id record_id pg_desc collective_name input_sizes output_sizes "
    "expected_ranks collective_state collective_frames input_numel output_numel missing_ranks mismatch_collectives "
    "type_of_mismatch"
).split()
AT_THE_RIGHT = {"id", "group_id", "collective_seq_id", "p2p_seq_id", "record_id"}
FRAMES = "[{'name': 'step', 'filename': 'train.py', 'line': 31}]"
OTHER = (
    "{1: Collective(id=2, group_id='0', pass_check=False, collective_seq_id=3, p2p_seq_id=0, record_id=3, "
    "pg_desc='0:default_pg', collective_name='nccl:all_reduce', input_sizes=[[16]], output_sizes=[[8]], expected_ranks={0})}"
)


def cells(seq: int, state: str, missing: str = "", other: str = "") -> list[str]:
    shared = ["0:default_pg", "nccl:all_reduce", "[[8]]", "[[8]]", "{0, 1, 2, 3}", state, FRAMES, "", ""]
    return [str(seq), "0", str(not other), str(seq), "0", str(seq), *shared, missing, other, ""]


def plain(rows: list[list[str]]) -> list[str]:
    """A table in tabulate's form "plain": numbers stand at the right, names have two blanks more."""
    widths = [max(len(name) + 2 * (name in AT_THE_RIGHT), *map(len, cells)) for name, *cells in zip(NAMES, *rows, strict=True)]
    lines = []
    for row in (NAMES, *rows):
        aligned = [
            cell.rjust(width) if name in AT_THE_RIGHT else cell.ljust(width)
            for name, cell, width in zip(NAMES, row, widths, strict=True)
        ]
        lines.append("  ".join(aligned).rstrip())
    return lines


def table(missing: str = "", other: str = "", seq: int = 3) -> str:
    rows = [cells(seq - 1, "completed"), cells(seq, "started", missing, other)]
    names = ["=== FR Trace ===", "--- Groups ---", "  id  desc          size", "   0  default_pg       4"]
    calls = ["--- NCCL Calls ---", "  id    collective_id    group_id    global_rank", "   0    0    0    2"]
    return "\n".join([*names, "--- Collectives ---", *plain(rows), *calls, "", "=== FR Trace NCCL ===", "Failed to fetch"])


def test_missing_ranks_of_two_tables_are_the_finding(tmp_path):
    (tmp_path / "fr_trace_20261127_183000.txt").write_text(table("{2}"))
    once = judged_files(tmp_path).findings[0]
    (tmp_path / "fr_trace_20261127_183100.txt").write_text(table("{2}"))
    twice = judged_files(tmp_path).findings[0]
    assert [(one.cause, one.strength, list(one.culprits["ranks"])) for one in (once, twice)] == [
        ("slow_rank", "possible", [2]),
        ("slow_rank", "likely", [2]),
    ]
    (event,) = read_files(tmp_path).of("flight.missing")
    assert (event.data.seq, event.data.op, event.data.waiting, event.data.group) == (3, "all_reduce", [0, 1, 3], "0")


def test_tables_of_a_job_at_work_prove_nothing(tmp_path):
    (tmp_path / "fr_trace_20261127_183000.txt").write_text(table("{2}", seq=3))
    (tmp_path / "fr_trace_20261127_183100.txt").write_text(table("{1}", seq=900))
    assert all(finding.strength == "possible" for finding in judged_files(tmp_path).findings)
    (tmp_path / "fr_trace_20261127_183200.txt").write_text(table())
    assert judged_files(tmp_path).findings == ()


def test_a_call_of_another_size_is_a_mismatch(tmp_path):
    (tmp_path / "fr_trace_20261127_183000.txt").write_text(table(other=OTHER))
    (event,) = read_files(tmp_path).of("flight.mismatch")
    assert (event.data.field, event.data.odd, event.rank) == ("sizes", [{"value": "[[16]]", "ranks": [1]}], 1)


FAILED = "E1127 18:30:08.710000 29749 torch/distributed/debug/_frontend.py:305] "


def test_a_dump_that_could_not_be_made_is_no_error_of_the_job():
    lines = [
        "Failed to dump fr_trace",
        "Traceback (most recent call last):",
        f'  File "{TORCH}debug/_frontend.py", line 303, in _run',
        "    content = handler.dump()",
        f'  File "{TORCH}flight_recorder/components/builder.py", line 212, in build_collectives',
        "    pg_name = _pg_guids[(original_pg_name, first_rank)]",
        "KeyError: ('0', 0)",
    ]
    result = judged_text("step 1 loss 2.0\n" + "".join(f"{FAILED}{line}\n" for line in lines))
    assert result.findings == () and result.errors == ()


def test_the_start_of_the_server_shows_no_work():
    line = FAILED.replace("E1127", "I1127") + "Frontend server started on port 29621\n"
    assert judged_text(line + "W1127 WorkerServer.cpp:118] [c10d] Server listening to TCP :::0\n").verdict != "running"


def test_a_torn_file_is_read_as_far_as_it_goes(tmp_path):
    text = looked(all_but(2, LOADS)) + table("{2}")
    for cut in range(0, len(text), 97):
        (tmp_path / "stacks_20261127_183000.txt").write_text(text[:cut])
        if cut:
            read_files(tmp_path)
