"""Each line of the libraries becomes the event that the contract promises."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import convert
from msgspec.structs import asdict

from ncclkit.core.model import fields_of
from ncclkit.evidence import KINDS
from ncclkit.evidence.grammars import (
    c10d,
    families,
    gloo,
    kernel,
    links,
    nccl,
    nccl_diagnostics,
    network,
    printed,
    progress,
    python,
    refusals,
    store,
    system,
    torchcomms,
    torchrun,
)
from ncclkit.evidence.scanner import scan
from tests.evidence import specimens
from tests.frames import specimens_in
from tests.record import events_page

PLAIN = [*specimens.NCCL, *specimens.GLOO, *specimens.STORE, *specimens.LAUNCHERS, *specimens.SYSTEM]
WRAPPERS = {
    "plain": "{}",
    "torchrun": "[default3]:{}",
    "role": "[trainer3|11]:{}",
    "hostname": "[node-9|trainer3|11]:{}",
    "mpirun": "[1,3]<stderr>:{}",
    "ray": "\x1b[36m(RayWorker pid=4711, ip=10.0.0.7)\x1b[0m {}",
    "kubectl": "2026-11-21T01:02:03.123456789Z stderr F {}",
    "pod": "[pod/trainer-3/pytorch] {}",
    "compose": "trainer-3  | {}",
    "journal": "Nov 21 01:02:03 node-9 python[4711]: {}",
    "pdsh": "node-9: {}",
    "logger": "2026-11-21 01:02:03,123 {}",
    "bar": "Train:  20%|##   | 375/1881 [3:40:16<16:05:32, 35.55s/it]{}",
    "crlf": "{}\r",
}


def has(event, fields):
    return {key: fields_of(event)[key] for key in fields} == fields


@pytest.mark.parametrize(
    ("text", "kind", "fields"), PLAIN, ids=lambda value: value[:60] if isinstance(value, str) else ""
)
def test_a_line_becomes_its_event(only, text, kind, fields):
    assert [event for event in only(kind, text + "\n") if has(event, fields)]


@pytest.mark.parametrize(
    ("text", "kind", "fields", "rank"), specimens.C10D, ids=lambda value: value[:60] if isinstance(value, str) else ""
)
def test_a_line_of_c10d_becomes_its_event_and_names_the_global_rank(only, text, kind, fields, rank):
    (event,) = only(kind, text)
    assert has(event, fields)
    assert event.rank == rank


@pytest.mark.parametrize(("text", "file", "fields"), specimens.WARN, ids=[case[0][:50] for case in specimens.WARN])
@pytest.mark.parametrize(
    "head",
    ["node-1:4711:4720 [3] {}:49 NCCL WARN ", "[2026-11-21 00:28:00] node-1:4711:4720 [3] {}:49 (init) NCCL WARN "],
    ids=["2.10", "2.30"],
)
def test_a_warning_is_classified_in_old_and_new_envelopes(only, head, text, file, fields):
    (event,) = only("nccl.warn", "\n" + head.format(file) + text)
    assert has(event, fields | {"file": file, "line": 49, "dev": 3, "message": text})
    assert (event.host, event.pid, event.line) == ("node-1", 4711, 2)


@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=list(WRAPPERS))
@pytest.mark.parametrize(
    ("text", "kind", "fields"),
    [specimens.NCCL[3], (specimens.C10D[1][:3]), specimens.STORE[0], specimens.SYSTEM[0]],
    ids=["nccl", "c10d", "store", "cuda"],
)
def test_wrappers_do_not_hide_a_line(only, wrapper, text, kind, fields):
    (event,) = only(kind, wrapper.format(text) + "\nnext line\n")
    assert has(event, fields)
    assert "\x1b" not in event.text


def test_a_wrapped_message_is_read_over_its_lines(only):
    text = "[Rank 0] Watchdog caught collective operation timeout:\n"
    text += "  WorkNCCL(SeqNum=4, OpType=ALLREDUCE, Timeout(ms)=1800000)\n  ran for 1800090 milliseconds"
    (event,) = only("c10d.timeout", text)
    assert has(event, {"seq": 4, "op": "ALLREDUCE", "ran_ms": 1800090})


def test_torch_quotes_the_last_warning_of_nccl(read_text):
    text = (
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, "
        "invalid usage (run with "
        "NCCL_DEBUG=WARN for details), NCCL version 2.27.5\nncclInvalidUsage: This usually reflects invalid usage of "
        "NCCL library.\nLast error:\n"
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 5d000\n"
    )
    events = {event.kind: event for event in read_text(text).events}
    assert events["c10d.error"].data.nccl_version == "2.27.5"
    assert events["c10d.error"].data.last_error.startswith("Duplicate GPU detected")
    assert events["nccl.warn"].data.family == "duplicate_gpu"
    assert events["nccl.warn"].line == 4
    assert not events["python.exception"].data.victim


def test_the_summary_of_torchrun_names_rank_exit_and_root(read_text):
    text = """E1121 01:02:03.000000 99 api.py:984] failed (exitcode: -9) local_rank: 1 (pid: 4712) of binary: python
Failures:
[1]:
  time      : 2026-11-21_01:02:03
  host      : node-1
  rank      : 6 (local_rank: 2)
  exitcode  : -15 (pid: 4713)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 4713
------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_01:02:02
  host      : node-1
  rank      : 5 (local_rank: 1)
  exitcode  : -9 (pid: 4712)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 4712
"""
    events = read_text(text).events
    exits = {event.rank: event.data.signal for event in events if event.kind == "elastic.exit"}
    assert exits == {5: 9, 6: 15}
    (root,) = [event for event in events if event.kind == "elastic.root"]
    assert (root.rank, root.data.signal, root.data.host) == (5, 9, "node-1")


def test_the_frames_of_the_failed_collective_are_kept(only):
    text = "[rank0]:[E1121 23:59:01.9 x.cpp:1] Stack trace of the failed collective: \n"
    text += "#0 all_reduce from /opt/torch/dist.py:2805\n#1 main from /home/me/train.py:7\n"
    (event,) = only("c10d.stack", text)
    assert event.data.frames[-1] == {"file": "/home/me/train.py", "line": 7, "func": "main"}


def test_docs_list_exactly_the_kinds_and_their_fields():
    """``python -m tests.record.events_page`` writes the page."""
    assert events_page.PAGE.read_text(encoding="utf-8") == events_page.page()


RULED = (c10d, families, gloo, kernel, links, nccl, nccl_diagnostics, network, printed, progress, python, refusals, store)
RULED += (system, torchcomms, torchrun)


def test_a_folded_specimen_is_read_whole():
    source = "    # one line that \\\n    #   goes on,  with \\\n    #   its end\n    # another\nrule()\n"
    found = set(specimens_in(source))
    assert {"one line that goes on,  with its end", "another"} <= found
    assert not any("\\" in text for text in found)


@pytest.mark.parametrize("rules", [nccl.INFO, scan.RULES], ids=["info", "other"])
def test_every_rule_stands_under_a_specimen(rules):
    specimen = [text for module in RULED for text in specimens_in(Path(module.__file__).read_text())]
    bare = [r for r in rules if not any(r.anchor.decode() in text and r.pattern.search(text) for text in specimen)]
    assert [(rule.kind, rule.anchor) for rule in bare] == []


def test_every_event_has_the_class_and_the_types_of_its_kind(read_text):
    lines = [case[0] for case in (*PLAIN, *specimens.C10D)] + [
        f"node-1:1:2 [0] {file}:1 NCCL WARN {text}" for text, file, _ in specimens.WARN
    ]
    events = read_text("\n".join(lines)).events
    assert {event.kind for event in events} >= {kind for _, kind, *_ in (*PLAIN, *specimens.C10D)}
    for event in events:
        assert convert(asdict(event.data), type(event.data), strict=True) == event.data, event
        assert type(event.data) is KINDS[event.kind]


FRAME = (
    "frame #1: c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<long>) + 0x1d2 (0x7f01 in libtorch_cuda.so)"
)
RAISED = (
    "Exception raised from checkTimeout at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:632 (most recent call"
)


@pytest.mark.parametrize("text", [FRAME, RAISED, f"[rank2]: {RAISED}\n{FRAME}"])
def test_a_stack_of_a_timeout_without_its_message_is_a_timeout_of_which_nothing_is_known(only, text):
    (event,) = only("c10d.timeout", text)
    assert (event.data.seq, event.data.op, event.data.ran_ms, event.data.api) == (None, "", None, "nccl")


def test_a_message_makes_its_stack_superfluous(only):
    (event,) = only("c10d.timeout", f"{FRAME}\n[rank3]:[E] [Rank 3] {specimens.WATCHDOG}\n{RAISED}\n{FRAME}\n")
    assert (event.data.seq, event.line) == (42, 2)


@pytest.mark.parametrize(
    "text",
    [
        "#3 0x00007f in c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<long>) () from libtorch_cuda.so",
        "frame #3: c10d::ProcessGroupNCCL::ncclCommWatchdog() + 0x10c (0x7f in libtorch_cuda.so)",
        "Exception raised from ncclCommWatchdog at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1521",
    ],
    ids=["gdb", "watchdog", "rethrown"],
)
def test_a_watchdog_at_work_is_no_timeout(only, text):
    assert only("c10d.timeout", text) == []


MATRIX = """\
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1      3
     0 780.19  45.62   9.10
     1  45.60 781.02   9.21
     3   9.15   9.08 779.90
Bidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 780.19  1
P2P=Disabled Latency Matrix (us)
   GPU     0      1
"""


@pytest.mark.parametrize("prefix", ["", "[1,0]<stdout>: ", "2026-11-21T01:02:03.5Z stdout F "])
def test_a_bandwidth_matrix_is_read_with_its_rows(only, prefix):
    one, two = only("p2p.matrix", "".join(f"{prefix}{line}\n" for line in MATRIX.splitlines()))
    assert (one.data.enabled, one.data.direction, one.data.gpus) == (True, "unidirectional", [0, 1, 3])
    assert one.data.values[2] == [9.15, 9.08, 779.9] and one.text == "\n".join(MATRIX.splitlines()[:5])
    assert (two.data.enabled, two.data.gpus, two.data.values) == (False, [0, 1], [[780.19, 1.0]])


def test_a_matrix_that_is_cut_off_keeps_its_whole_rows(only):
    (event,) = only("p2p.matrix", MATRIX[: MATRIX.index("   9.21")])
    assert event.data.values == [[780.19, 45.62, 9.1]]
    assert only("p2p.matrix", MATRIX.splitlines()[0]) == []
