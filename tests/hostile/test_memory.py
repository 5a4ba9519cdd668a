"""Small files that would become gigabytes of objects, or take minutes: each is one sentence, and the rest is read."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import resource
import subprocess
import sys
import threading

import psutil
import pytest

from ncclkit import evidence
from ncclkit.evidence import processes
from tests.packaging.project import ROOT

OWN = 80
"""MiB that reading takes where there is nothing to read."""
READ = """
import json, os, resource, sys, time
from ncclkit import evidence
from ncclkit.evidence import processes
processes.SECONDS = min(int(sys.argv[2]), processes.SECONDS)
own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
reading = evidence.read([sys.argv[1]])
used = resource.getrusage(resource.RUSAGE_SELF)
child = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({"mib": used.ru_maxrss + max(0, child.ru_maxrss - own) >> 10,
                  "seconds": used.ru_utime + used.ru_stime + child.ru_utime + child.ru_stime,
                  "kinds": [event.kind for event in reading.events], "problems": reading.problems}))
"""


KEYS = b"".join(b"\x8a\x0c" + (n * ((1 << 61) - 1)).to_bytes(12, "little") + b"N" for n in range(1, 156_000))
"""Keys of one hash."""
FILES = {
    "empty dictionaries": (b"\x80\x02](", b"}" * 1024, 100 << 10, b"e."),
    "lists in a list": (b"\x80\x02](", b"]" * 1024, 100 << 10, b"e."),
    "integer keys": (b"\x80\x02}(", KEYS, 1, b"u."),
    "empty objects": (b'[{"a":{}},', b"{}," * 1024, 14 << 10, b"{}]"),
    "numbers": (b"[[1.5],", b"1.5," * 1024, 24 << 10, b"1]"),
    "a report": (b"NCCL version 2.28.9 compiled with CUDA 13.0\nJob summary\n===\n", b"x\n" * 512, 100 << 10, b"\n"),
    "members": (b'{"entries": [', b'{"":[]},' * 1024, 12 << 10, b"{}]}"),
}
"""Beginning, middle, how often it stands there, end."""
START = "import os, sys; sys.exit(os.spawnv(os.P_WAIT, sys.argv[1], sys.argv[1:]))"
"""A small process in between: the memory of a process begins with that of the one that starts it."""


@pytest.mark.parametrize("name", FILES)
def test_a_packed_bomb_costs_half_a_gigabyte_and_never_the_log_beside_it(tmp_path, name):
    first, middle, times, last = FILES[name]
    with gzip.open(tmp_path / "dump_0.gz", "wb", 1) as out:
        out.write(first)
        out.writelines(middle for _ in range(times))
        out.write(last)
    (tmp_path / "rank0.log").write_text("ValueError: boom\n")
    limit = 2 if name == "integer keys" else 20  # they would take hours
    command = [sys.executable, "-S", "-c", START, sys.executable, "-c", READ, tmp_path, str(limit)]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, timeout=100)
    told = json.loads(done.stdout)
    assert told["kinds"] == ["python.exception"] and len(told["problems"]) == 1, told
    assert told["mib"] <= 512 + OWN and told["seconds"] <= limit + 4, told


def dump(seq):
    entry = {"profiling_name": "nccl:all_reduce", "process_group": ("0", "x"), "collective_seq_id": seq}
    entry |= {"state": "started", "frames": [], "input_sizes": [[1]], "input_dtypes": ["Float"]}
    return pickle.dumps({"version": "2.10", "entries": [entry]}, 2)


@pytest.mark.parametrize("has_thread", [False, True])
def test_one_process_reads_all_dumps_and_another_takes_its_place_where_one_breaks_it(tmp_path, has_thread, monkeypatch):
    processes.limited.close()  # of a test before this one in the same process
    starts, before = [], set(children())
    start = processes.Limited._start
    monkeypatch.setattr(processes.Limited, "_start", lambda self: starts.append(1) or start(self))
    monkeypatch.setattr(processes, "SECONDS", 1)
    monkeypatch.setattr(processes, "IDLE", 3)
    for number in range(8):
        (tmp_path / f"nccl_trace_rank_{number}").write_bytes(dump(number))
    (tmp_path / "nccl_trace_rank_4").write_bytes(b"\x80\x02}" + b")" + b"\x85" * 300_000 + b"Ns.")
    end = threading.Event()
    thread = threading.Thread(target=end.wait, daemon=True)
    has_thread = has_thread or len(os.listdir("/proc/self/task")) > 1  # another test's, in the same process
    if has_thread:
        thread.start()
    try:
        reading = evidence.read([tmp_path])
    finally:
        end.set()
    assert [event.rank for event in reading.events if event.kind == "flight.dump"] == [0, 1, 2, 3, 5, 6, 7]
    assert [problem for problem in reading.problems if "broke the process" in problem] == reading.problems
    assert len(starts) == 2
    if has_thread:  # a new interpreter takes longer to start, and waits for more to read
        evidence.read([tmp_path / "nccl_trace_rank_0"])
        assert len(starts) == 2 and len(set(children()) - before) == 1
        processes.limited._child.join(30)
        assert evidence.read([tmp_path / "nccl_trace_rank_0"]).problems == []
        processes.limited.close()
    assert set(children()) <= before


def children():
    return [child for child in psutil.Process().children() if "resource_tracker" not in " ".join(child.cmdline())]


def fail(data):
    raise ZeroDivisionError


def limit(data):
    return resource.getrlimit(resource.RLIMIT_CORE), data


def test_an_error_of_ours_comes_back_and_the_next_call_is_answered():
    with pytest.raises(ZeroDivisionError):
        processes.limited.call(fail)
    assert processes.limited.call(limit, data=b"abc") == ((0, 0), b"abc")
    processes.limited.close()


def test_a_nested_document_is_one_sentence(tmp_path):
    (tmp_path / "facts.json").write_text(
        json.dumps([{"name": "a.b", "source": "", "value": 0}]).replace("0", "[" * 900 + "]" * 900)
    )
    (tmp_path / "rank0.log").write_text("ValueError: boom\n")
    reading = evidence.read([tmp_path])
    assert reading.problems == [f"{tmp_path / 'facts.json'} is nested more than 64 deep."] and len(reading.events) == 1


def test_threads_do_not_take_each_others_answers():
    answers = {}

    def ask(number):
        answers[number] = [processes.limited.call(double, data=bytes([number])) for _ in range(20)]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    processes.limited.close()
    assert answers == {number: [bytes([number, number])] * 20 for number in range(8)}


def double(data):
    return data * 2
