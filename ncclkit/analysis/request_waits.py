"""Whether a process waits for something to do, by the frames of its stack."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ncclkit.analysis.frames import is_own

INNERMOST = 6
"""Frames among which the library's function stands that waits."""
SERVES = re.compile(r"/(?:selectors|socketserver|asyncio/\w+|uvicorn/\w+)\.py$|/zmq/")
"""Files in which a server waits for its clients."""
FRONT_ENDS = re.compile(r"/(?:socketserver|http/server|uvicorn/\w+|grpc/\w+)\.py$|/zmq/")
"""Of these alone a thread is known to take requests: an event loop may do anything."""
TAKES = (
    (re.compile(r"/socket\.py$"), ("accept", "_accept")),
    (re.compile(r"/queues?\.py$"), ("get",)),
    # an actor of Ray between two of its tasks
    (re.compile(r"/ray/_private/worker\.py$"), ("main_loop",)),
)
"""Files of libraries, and their functions that wait for something to do."""
SHARED_QUEUE = (re.compile(r"(?:^|/)shm_broadcast\.py$"), ("dequeue", "acquire_read"))
"""Where a worker of vLLM waits for its engine, and an engine for an answer of its workers."""
SPINS_AT = "shm_broadcast.py:"
"""What stands in each snapshot of one that spins there."""
RAY_TASKS = re.compile(r"/ray/_private/worker\.py$")

Frame = Mapping[str, Any]


def takes_requests(frames: Sequence[Frame]) -> bool:
    """Whether it waits for clients, or for somebody to hand it something to do."""
    for frame in frames[:INNERMOST]:
        file = str(frame.get("file"))
        if file.endswith("/subprocess.py"):
            return False
        if SERVES.search(file) or _is_in(frame, TAKES):
            return True
        if is_own(frame):
            break
    return False


def reads_shared_queue(frames: Sequence[Frame]) -> bool:
    """Whether it reads the queue in shared memory by which an engine and its workers talk."""
    for frame in frames[:INNERMOST]:
        if _is_in(frame, (SHARED_QUEUE,)):
            return True
    return False


def is_between_tasks_of_ray(frames: Sequence[Frame]) -> bool:
    """Whether it is an actor of Ray that has no task."""
    return bool(frames) and bool(RAY_TASKS.search(str(frames[0].get("file"))))


def is_front_end(frames: Sequence[Frame]) -> bool:
    """Whether a thread waits for clients in a library that serves nothing else."""
    for frame in frames:
        if FRONT_ENDS.search(str(frame.get("file"))):
            return True
        if is_own(frame):
            break
    return False


def _is_in(frame: Frame, places: Sequence[tuple[re.Pattern[str], Sequence[str]]]) -> bool:
    file = str(frame.get("file"))
    func = str(frame.get("func")).rpartition(".")[2]
    for path, functions in places:
        if path.search(file) and func in functions:
            return True
    return False
