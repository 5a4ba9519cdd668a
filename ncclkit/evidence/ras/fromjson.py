"""The JSON of a RAS report (``SET FORMAT json``, NCCL 2.28.7+).  Nothing in it is trusted to be there."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from ncclkit.evidence.grammars.grammar import Data
from ncclkit.evidence.ras.report import Comm, Report, identity

RESULTS = {1: "CUDA error", 2: "system error", 3: "internal error", 4: "invalid argument", 5: "invalid usage"}
RESULTS |= {6: "remote error", 7: "in progress"}
"""ncclResult_t, as `init_state` and `async_error` give it; 0 is success."""
LARGEST = 1 << 62
# NCCL 2.28.9 forgets the comma here, whenever a rank is missing:     "nvml_dev": 3\n          "status": {
MENDS = re.compile(rb'("nvml_dev": -?\d{1,9})(\s{1,40}"status":)')


def from_json(value: Data, path: str) -> Report:
    """A report of ``SET FORMAT json`` (2.28.7+), already parsed; nothing in it is trusted to be there."""
    comms = [_comm(item) for item in _dicts(value.get("communicators"))]
    ranks = [rank for item in _dicts(value.get("communicators")) for rank in _ranks(item)]
    lost = {
        _process(rank): _status(rank).get("considered_dead") is True
        for rank in ranks
        if "unresponsive" in _status(rank)
    }
    report = Report(path, "json", str(value.get("nccl_version", ""))[:40], _time(value.get("timestamp")))
    report.nodes = len({str(rank.get("host")) for rank in ranks})
    report.processes = len({_process(rank) for rank in ranks})
    report.total = len(comms)
    report.sound = sum(not (comm.missing or comm.dead or comm.errors or comm.behind()) for comm in comms)
    report.silent = sorted(process for process, dead in lost.items() if not dead)
    report.dead = sorted(process for process, dead in lost.items() if dead)
    ras = value.get("ras")
    report.timeouts = _number(ras.get("timeouts_count")) or 0 if isinstance(ras, dict) else 0
    report.comms = {comm.hash: comm for comm in comms}
    report.said = [f"NCCL {report.version}: {report.total} communicators, {report.sound} of them without a remark"]
    return report


def mended(data: bytes) -> Any:
    """The value of a JSON report that NCCL wrote without a comma; None for any other damaged document."""
    if b'"communicators"' not in data[:4096] or b'"nccl_version"' not in data[:4096]:
        return None
    try:
        return json.loads(MENDS.sub(rb"\1,\2", data))
    except (ValueError, RecursionError):
        return None


def _comm(item: Data) -> Comm:
    comm = Comm(identity(str(item.get("hash", ""))), _number(item.get("size")))
    for rank in _ranks(item):
        number, status, counts = _number(rank.get("rank")), _status(rank), rank.get("collective_counts")
        if number is None:
            continue
        if "unresponsive" in status:
            (comm.dead if status.get("considered_dead") is True else comm.missing).append(number)
            continue
        wrong = [
            code for name in ("init_state", "async_error") if (code := _number(status.get(name))) not in (0, None, 7)
        ]
        if wrong or status.get("abort_flag") is True:
            comm.errors[number] = ", ".join(RESULTS.get(code, str(code)) for code in wrong) or "aborted"
        for op, count in counts.items() if isinstance(counts, dict) else ():
            if (launched := _number(count)) is not None:
                comm.counts.setdefault(str(op)[:40], {})[number] = launched
    comm.said = [f"communicator {comm.hash} of {comm.size} ranks: missing {comm.missing}, dead {comm.dead}"]
    comm.said += [f"  {op}: {_shares(counts)}" for op, counts in comm.counts.items() if len({*counts.values()}) > 1]
    return comm


def _shares(counts: dict[int, int]) -> str:
    """``3 ranks at 6, rank 3 at 5``."""
    shares = Counter(counts.values()).most_common(8)
    one = {count: rank for rank, count in counts.items()}
    return ", ".join(f"{n} ranks at {count}" if n > 1 else f"rank {one[count]} at {count}" for count, n in shares)


def _ranks(item: Data) -> Iterator[Data]:
    """Ranks that answered, then those that did not."""
    yield from _dicts(item.get("ranks"))
    for rank in _dicts(item.get("missing_ranks")):
        yield rank | {"status": _status(rank) | {"unresponsive": True}}


def _dicts(value: Any) -> list[Data]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _status(rank: Data) -> Data:
    status = rank.get("status")
    return status if isinstance(status, dict) else {}


def _process(rank: Data) -> str:
    return f"{str(rank.get('host', ''))[:200]}:{_number(rank.get('pid'))}"


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST else None


def _time(text: Any) -> float | None:
    """``2026-11-21 04:35:20``, in the local time of the host that wrote it."""
    try:
        return datetime.strptime(str(text), "%Y-%m-%d %H:%M:%S").timestamp()
    except (ValueError, OverflowError):
        return None
