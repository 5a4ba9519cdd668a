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
    assert (event.data["type"], event.data["message"], event.data["victim"]) == (
        "IndexError",
        "list index out of range",
        False,
    )
    assert [(frame["line"], frame["func"]) for frame in event.data["frames"]] == [(12, "<module>"), (7, "main")]


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=list(PREFIXES))
def test_a_traceback_is_one_event_whatever_stands_before_its_lines(only, prefix):
    (event,) = only("python.exception", "".join(f"{prefix}{line}\n" for line in TRACE))
    check(event)
    assert (event.line, event.data["until"], event.text.count("\n")) == (1, 7, 6)


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
    assert [event.data["type"] for event in only("python.exception", text)] == ["IndexError", "RuntimeError"]


def test_a_traceback_in_a_json_string_is_read(only):
    text = '  "py_callstack": "' + "\\n".join(TRACE).replace('"', '\\"') + '\\n",'
    (event,) = only("python.exception", text)
    check(event)


def test_a_bare_exception_line_counts_only_where_no_traceback_tells_it(only):
    events = only("python.exception", "\n".join([*TRACE, "E   ImportError: undefined symbol: ncclCommRegister"]))
    assert [(event.data["type"], len(event.data["frames"])) for event in events] == [
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
    assert event.data["victim"] is victim
