"""Records with a value of another kind than belongs there, one at a time: no check fails, the log beside is read."""

from __future__ import annotations

import copy
import json

import pytest

from ncclkit import evidence
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.evidence import logs

ODD = [[], {}, 10**30, "9" * 5000, [[[[[1]]]]], {"a": [None]}]
RECORDS = {
    "facts.json": [
        {"name": "host.name", "value": "a", "source": "x"},
        {
            "name": "net.interfaces",
            "value": [{"name": "eth0", "addresses": ["1.2.3.4"], "mtu": 1500, "speed": 1}],
            "source": "x",
            "host": "n",
            "rank": None,
            "unit": "",
            "why": "",
        },
        {"name": "gpu.list", "value": [{"index": 0, "name": "H100"}], "source": "s"},
        {"name": "env.nccl", "value": {"NCCL_DEBUG": "INFO"}, "source": "s"},
        {"name": "limits.shm.free", "value": 5, "source": "s"},
    ],
    "plan.json": {"ranks": 2, "name": "x", "backend": "gloo"},
    "status.json": {"reason": "done", "exitcode": 0, "say": "x", "ended": 1.0},
    "experiment.json": {
        "experiment": "check",
        "verdicts": {"slow_rank": "proven"},
        "cause": "slow_rank",
        "baseline": "1-x",
        "question": "q",
        "observed": "same",
        "summary": "s",
    },
    "measurements.json": [
        {
            "op": "all_reduce",
            "bytes": 1024,
            "dtype": "float32",
            "ranks": 2,
            "hosts": 1,
            "backend": "gloo",
            "time_us": 1.0,
            "p99_us": None,
            "spread": None,
            "algbw": 1.0,
            "busbw": 1.0,
            "wrong": 0,
            "env": {"A": "1"},
        }
    ],
    "fr_rank_0.json": {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "entries": [
            {
                "profiling_name": "nccl:all_reduce",
                "process_group": ["0", "default_pg"],
                "collective_seq_id": 1,
                "p2p_seq_id": 0,
                "state": "started",
                "frames": [{"filename": "a.py", "line": 1, "name": "f"}],
                "input_sizes": [[1]],
                "input_dtypes": ["Float"],
                "output_sizes": [[1]],
                "output_dtypes": ["Float"],
                "retired": False,
                "is_p2p": False,
                "time_created_ns": 1,
            }
        ],
    },
    "ras.json": {
        "nccl_version": "2.28.9",
        "timestamp": "2026-01-01 00:00:00",
        "communicators": [
            {
                "hash": "0x1",
                "size": 2,
                "ranks": [
                    {
                        "rank": 0,
                        "host": "a",
                        "pid": 1,
                        "cuda_dev": 0,
                        "status": {"init_state": 0, "async_error": 0, "abort_flag": False},
                        "collective_counts": {"AllReduce": 3},
                    },
                    {"rank": 1, "host": "a", "pid": 2, "status": {"unresponsive": True}},
                ],
            }
        ],
        "ras": {"timeouts_count": 1},
    },
    "stacks_rank0.json": [
        {
            "pid": 1,
            "thread_id": 1,
            "thread_name": "MainThread",
            "active": True,
            "frames": [{"name": "f", "filename": "a.py", "line": 1, "short_filename": "a.py"}],
        }
    ],
    "telemetry.jsonl": {
        "telemetry": 1,
        "t": 1.0,
        "host": "a",
        "scheduling": {"0": [1, 2, 3.0, 4.0, 5]},
        "utilization": {"0": {"cpu": 1.0, "main": 2.0, "state": "R", "gpu": 0}},
        "gpus": [[1, 2.0]],
    },
    "wire.jsonl": {
        "ncclkit": 1,
        "kind": "phase",
        "phase": "import",
        "rank": 0,
        "host": "a",
        "pid": 3,
        "t": 1.0,
        "world": 2,
        "attempt": 0,
        "step": 1,
    },
    "wire2.jsonl": {
        "ncclkit": 1,
        "kind": "stage.group",
        "rank": 0,
        "stage": "all",
        "ranks": "0-1",
        "bytes": 1,
        "busbw": 1.0,
        "latency_us": 1.0,
        "wrong": 0,
        "problem": "x",
    },
    "wire3.jsonl": {
        "ncclkit": 1,
        "kind": "connect.pair",
        "src": "a",
        "dst": "b",
        "port": 1,
        "rendezvous": "open",
        "reached": ["1"],
        "bandwidth": 1.0,
        "latency": 1.0,
        "why": {"x": "y"},
        "over": "1.2.3.4",
        "mtu": 1500,
    },
    "wire4.jsonl": {
        "ncclkit": 1,
        "kind": "connect.host",
        "name": "a",
        "names": {"b": ["1.2.3.4"]},
        "interfaces": {"eth0": ["1.2.3.4"]},
    },
    "wire5.jsonl": {
        "ncclkit": 1,
        "kind": "resources.tried",
        "what": "shm",
        "name": "x",
        "need": 5,
        "got": 4,
        "unit": "bytes",
        "error": "e",
        "why": "",
        "host": "a",
    },
}


def spots(value, path=()):
    """The place of every value in a document."""
    yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from spots(value[key], (*path, key))


def put(value, path, odd):
    if not path:
        return odd
    whole = inner = copy.deepcopy(value)
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = odd
    return whole


@pytest.mark.parametrize("name", RECORDS)
def test_a_value_of_another_kind_costs_no_verdict(tmp_path, name):
    (tmp_path / "rank0.log").write_text("[rank0]: ValueError: boom\n")
    file = "wire.jsonl" if name.startswith("wire") else name
    for path in spots(RECORDS[name]):
        for odd in ODD:
            (tmp_path / file).write_text(json.dumps(put(RECORDS[name], path, odd)) + "\n")
            reading = evidence.read([tmp_path])
            result = diagnose(logs.fill(Case(), reading))
            json.dumps(result.to_dict(reading.inputs))
            said = [missing for finding in result.unknown for missing in finding.missing]
            assert not [text for text in said if "itself failed" in text], (path, odd)
            assert "python.exception" in {event.kind for event in reading.events}, (path, odd)
