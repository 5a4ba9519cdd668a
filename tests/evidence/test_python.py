"""Tracebacks: whole, of many processes at once, inside other formats, torn."""

from __future__ import annotations

import pytest

TRACE = [
    "Traceback (most recent call last):",
    '  File "/home/me/train.py", line 12, in <module>',
    "    main()",
    "    ~~~~^^",
    '  File "/home/me/train.py", line 7, in main',
    "    x = data[i]",
    "IndexError: list index out of range",
]
PREFIXES = {
    "none": "",
    "rank": "[rank3]: ",
    "torchrun": "[default3]:",
    "srun": "3: ",
    "mpirun": "[1,3]<stderr>:",
    "ray": "(Worker pid=4711) ",
    "logger": "(Worker pid=4711) ERROR 08-27 06:25:25 worker.py:382] ",
}


def check(event):
    assert (event.data.type, event.data.message, event.data.victim) == (
        "IndexError",
        "list index out of range",
        False,
    )
    assert [(frame["line"], frame["func"]) for frame in event.data.frames] == [(12, "<module>"), (7, "main")]


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=list(PREFIXES))
def test_a_traceback_is_one_event_whatever_stands_before_its_lines(only, prefix):
    (event,) = only("python.exception", "".join(f"{prefix}{line}\n" for line in TRACE))
    check(event)
    assert (event.line, event.data.until, event.text.count("\n")) == (1, 7, 6)


def test_interleaved_tracebacks_are_told_apart(only):
    lines = [f"[rank{rank}]: {line}" for line in TRACE for rank in range(8)]
    events = only("python.exception", "\n".join(lines))
    assert sorted(event.rank for event in events) == list(range(8))
    for event in events:
        check(event)


def test_the_clock_of_a_logger_may_tick_inside_a_traceback(only):
    lines = [f"(W pid=1) ERROR 08-27 06:25:{20 + number} worker.py:382] {line}" for number, line in enumerate(TRACE)]
    (event,) = only("python.exception", "\n".join(lines))
    check(event)


def test_chained_exceptions_are_two_events(only):
    text = "\n".join(
        [
            *TRACE,
            "",
            "The above exception was the direct cause of the following exception:",
            "",
            *TRACE[:-1],
            "RuntimeError: no data",
        ]
    )
    assert [event.data.type for event in only("python.exception", text)] == ["IndexError", "RuntimeError"]


def test_a_traceback_in_a_json_string_is_read(only):
    text = '  "py_callstack": "' + "\\n".join(TRACE).replace('"', '\\"') + '\\n",'
    (event,) = only("python.exception", text)
    check(event)


def test_an_interrupt_in_a_json_string_is_read(only):
    text = '"m": "Traceback (most recent call last):\\n  File \\"a.py\\", line 3, in f\\n    g()\\nKeyboardInterrupt",'
    (event,) = only("python.exception", text)
    assert (event.data.type, event.data.message) == ("KeyboardInterrupt", "")


def test_a_bare_exception_line_counts_only_where_no_traceback_tells_it(only):
    events = only("python.exception", "\n".join([*TRACE, "E   ImportError: undefined symbol: ncclCommRegister"]))
    assert [(event.data.type, len(event.data.frames)) for event in events] == [
        ("IndexError", 2),
        ("ImportError", 0),
    ]


def test_a_torn_traceback_gives_no_event(only):
    assert only("python.exception", "\n".join(TRACE[:-1])) == []
    assert only("python.exception", "\n".join([*TRACE[:3], 'main(args) File "x.py", line 3'])) == []


@pytest.mark.parametrize(
    ("last", "victim"),
    [
        ("RuntimeError: shape '[4]' is invalid for input of size 3", False),
        ("ValueError: bad value", False),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", False),
        ("MemoryError", False),
        (
            "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, invalid usage (run with NCCL_DEBUG=WARN for "
            "details), NCCL version 2.20.5",
            False,
        ),
        (
            "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network "
            "error, NCCL version 2.20.5",
            True,
        ),
        ("torch.distributed.DistStoreError: wait timeout after 300000ms, keys: a", True),
        ("torch.distributed.DistNetworkError: failed to recv, got 0 bytes", True),
        ("RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:17323", True),
        (
            "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation "
            "to complete",
            True,
        ),
        ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", True),
        ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got signal: 15", True),
        ("BrokenPipeError: [Errno 32] Broken pipe", True),
    ],
)
def test_victims_only_report_what_others_did(only, last, victim):
    (event,) = only("python.exception", "\n".join([*TRACE[:-1], last]))
    assert event.data.victim is victim


OTHER = [*TRACE[:3], '  File "/home/me/train.py", line 9, in main', "    y = data[j]", "ValueError: bad value"]
RANKED = {
    "host": "node-{}: ",
    "pipe": "worker_{}  | ",
    "mpich": "[{}] ",
    "pod": "[pod/trainer-{}/pytorch] ",
    "journal": "Nov 21 01:02:0{} node-1 python[47{}1]: ",
    "clock": "Sat Nov 21 01:02:0{} 2026[1,{}]<stderr>:",
}


def mixed(*tracebacks):
    """Lines of several processes, one line of each in turn."""
    longest = max(map(len, tracebacks))
    return [lines[n] for n in range(longest) for lines in tracebacks if n < len(lines)]


def errors_of(events):
    return sorted((event.data.type, tuple(f["line"] for f in event.data.frames)) for event in events)


@pytest.mark.parametrize("prefix", RANKED.values(), ids=list(RANKED))
def test_any_prefix_of_a_process_keeps_tracebacks_apart(only, prefix):
    """The clock of a prefix may tick, its other numbers tell who speaks."""
    tracebacks = [
        [prefix.format(*[rank] * prefix.count("{}")) + line for line in lines]
        for rank, lines in enumerate((TRACE, OTHER))
    ]
    events = only("python.exception", "\n".join(mixed(*tracebacks)))
    assert errors_of(events) == [("IndexError", (12, 7)), ("ValueError", (12, 9))]


def test_the_same_traceback_of_many_ranks_is_told_without_any_prefix(only):
    (event,) = only("python.exception", "\n".join(mixed(*[TRACE] * 8)))
    check(event)
    assert (event.count, event.rank, event.line) == (8, None, 8)


def test_of_the_same_way_to_different_ends_each_end_is_told(only):
    ends = [[*TRACE[:-1], f"{kind}: of rank"] for kind in ("ValueError", "KeyError", "ValueError")]
    events = only("python.exception", "\n".join(mixed(*ends)))
    assert sorted((event.data.type, event.count) for event in events) == [("KeyError", 1), ("ValueError", 2)]
    assert {tuple(frame["line"] for frame in event.data.frames) for event in events} == {(12, 7)}


@pytest.mark.parametrize(
    "lines",
    [
        mixed(TRACE, OTHER),
        mixed(TRACE, ["", "", *OTHER]),
        [*TRACE[:4], OTHER[0], *TRACE[4:], *OTHER[1:]],
        [*TRACE[:6], *OTHER, TRACE[6]],
        [OTHER[0], *TRACE[:4], *OTHER[1:], *TRACE[4:]],
    ],
    ids=["lockstep", "late", "header_inside", "one_in_the_other", "end_inside"],
)
def test_what_cannot_be_told_apart_has_no_frames(only, lines):
    """The last lines still stand; no frame is given to an exception that may not be its own."""
    events = only("python.exception", "\n".join(lines))
    assert {event.data.type for event in events} >= {"IndexError", "ValueError"}
    assert all(errors_of([event])[0][1] in ((), (12, 7)) for event in events if event.data.type == "IndexError")
    assert all(errors_of([event])[0][1] in ((), (12, 9)) for event in events if event.data.type == "ValueError")


def test_two_frames_on_one_line_are_torn(only):
    torn = [*TRACE[:4], TRACE[4].strip("\n") + TRACE[4], *TRACE[5:]]
    assert [event.data.frames for event in only("python.exception", "\n".join(torn))] == [[]]


def test_a_message_of_many_lines_is_one_traceback(only):
    text = [
        *TRACE[:-1],
        "RuntimeError: Error(s) in loading state_dict for Net:",
        "\tsize mismatch for a",
        "\tand for b",
    ]
    (event,) = only("python.exception", "\n".join([*text, "E1121 01:02:03.0 99 api.py:1] failed"]))
    assert len(event.data.frames) == 2


UNCAUGHT = """\
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank {0}] Process group watchdog thread terminated with exception: [Rank {0}]
Exception raised from checkTimeout at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:632 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f01 in /opt/torch/lib/libc10.so)
frame #1: c10d::ProcessGroupNCCL::ncclCommWatchdog() + 0x10c (0x7f02 in /opt/torch/lib/libtorch_cuda.so)
frame #2: <unknown function> + 0xd6df4 (0x7f03 in /usr/lib/libstdc++.so.6)
""".splitlines()


def test_an_uncaught_exception_of_cpp_is_told_with_its_stack(only):
    (event,) = only("cpp.exception", "\n".join(f"[default3]:{line.format(3)}" for line in UNCAUGHT))
    assert (event.rank, event.data.type, event.data.victim) == (3, "c10::DistBackendError", True)
    assert event.data.message.startswith("[PG ID 0")
    assert event.data.raised["func"] == "checkTimeout" and event.data.raised["line"] == 632
    assert [frame["file"].rpartition("/")[2] for frame in event.data.frames] == [
        "libc10.so",
        "libtorch_cuda.so",
        "libstdc++.so.6",
    ]


def test_mixed_ends_of_cpp_are_told_apart_by_their_prefix_only(only):
    ends = [[f"[default{rank}]:{line.format(rank)}" for line in UNCAUGHT] for rank in range(4)]
    assert [len(event.data.frames) for event in only("cpp.exception", "\n".join(mixed(*ends)))] == [3] * 4
    bare = only("cpp.exception", "\n".join(mixed(*[[line.format(rank) for line in UNCAUGHT] for rank in range(4)])))
    assert all((event.data.message, event.data.frames, event.data.raised) == ("", [], None) for event in bare)


def test_a_libuv_that_was_not_built_in_is_no_consequence(only):
    text = "torch.distributed.DistStoreError: use_libuv was requested but PyTorch was built without libuv support"
    (event,) = only("python.exception", text)
    assert not event.data.victim


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_of_an_error_that_a_worker_passed_on_the_original_counts(only, prefix):
    passed_on = "IndexError: Caught IndexError in DataLoader worker process 0."
    lines = [*TRACE[:3], passed_on, f"Original {TRACE[0]}", *TRACE[4:]]
    (event,) = only("python.exception", "\n".join(prefix + line for line in lines))
    assert (event.data.message, event.data.frames[-1]["func"]) == ("list index out of range", "main")


@pytest.mark.parametrize("shown", [TRACE, TRACE[-1:]], ids=["whole", "last line"])
def test_an_error_that_python_ignores_is_no_exception(read_text, shown):
    text = [
        "[rank3]: Exception ignored in: <function Cache.__del__ at 0x7f01>",
        *(f"[rank3]: {line}" for line in shown),
    ]
    text += ["[rank3]: saved", *(f"[rank2]: {line}" for line in TRACE)]
    found = [(event.kind, event.rank) for event in read_text("\n".join(text)).events]
    assert found == [("python.ignored", 3), ("python.exception", 2)]
