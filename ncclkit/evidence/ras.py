"""NCCL's RAS reports: their records, those in JSON, and what two of them tell together."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ncclkit.core.model import Event
from ncclkit.evidence.grammars.grammar import Data, clip

Counts = dict[str, dict[int, int]]
"""op → {rank: collectives launched}."""


Place = dict[str, Any]
"""``host``, ``pid`` and ``gpu`` of a rank; NCCL names hosts by their addresses."""


@dataclass(slots=True)
class Comm:
    """What one report says about one communicator."""

    hash: str
    """As ``commId`` in the log's INIT lines."""
    size: int | None = None
    line: int = 0
    said: list[str] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    missing_number: int = 0
    """How many ranks are missing or dead; of more than ten a text names none."""
    counts: Counts = field(default_factory=dict)
    """Of the ranks that the report names."""
    shares: Counts = field(default_factory=dict)
    """op → {count: number of ranks that have it}; text reports alone."""
    statuses: dict[int, str] = field(default_factory=dict)
    """Of the ranks that the report names, where ranks differ."""
    status_shares: dict[str, int] = field(default_factory=dict)
    """status → number of ranks that have it; text reports alone."""
    errors: dict[int, str] = field(default_factory=dict)
    error_shares: dict[str, int] = field(default_factory=dict)
    """error → number of ranks that reported it; text reports alone."""
    places: dict[int, Place] = field(default_factory=dict)

    def numbers(self) -> Counts:
        """op → {count: number of ranks that have it}, as far as the report says."""
        numbers: Counts = {}
        for op in {**self.shares, **self.counts}:
            named = Counter(self.counts.get(op, {}).values())
            numbers[op] = {**named, **self.shares.get(op, {})}
        return numbers

    def present(self) -> set[int]:
        """Ranks that answered, where the report names all that did not."""
        gone = {*self.missing, *self.dead}
        if self.missing_number > len(gone):
            return set()
        return set(range(min(self.size or 0, 1 << 20))) - gone

    def launched(self) -> Counts:
        """Counts of all ranks.

        What a text report says of "3 ranks" goes to those that it does not name.
        """
        full = {}
        for op, numbers in self.numbers().items():
            counts = dict(self.counts.get(op, {}))
            named = Counter(counts.values())
            rest = [count for count, number in numbers.items() if named[count] != number]
            unnamed = self.present() - counts.keys()
            if len(rest) == 1 and len(unnamed) == numbers[rest[0]] - named[rest[0]]:
                counts |= dict.fromkeys(unnamed, rest[0])
            full[op] = counts
        return full

    def tops(self) -> dict[str, int]:
        """op → the highest count in the report, of whatever rank."""
        return {op: max([0, *numbers]) for op, numbers in self.numbers().items()}

    def behind(self) -> list[int]:
        """Ranks whose count is below the highest in the report for the operation."""
        tops = self.tops()
        found = set()
        for op, counts in self.launched().items():
            for rank, count in counts.items():
                if count < tops[op]:
                    found.add(rank)
        return sorted(found)

    def late(self) -> list[int]:
        """Ranks with the lowest count of an operation whose counts differ.

        Those between them and the highest wait for them, too.
        """
        found = set()
        numbers = self.numbers()
        for op, counts in self.launched().items():
            lowest = min(numbers[op], default=0)
            if len(numbers[op]) > 1:
                found |= {rank for rank, count in counts.items() if count == lowest}
        return sorted(found)

    def late_number(self) -> int:
        """How many ranks have the lowest count of an operation, named or not."""
        most = len(self.late())
        for numbers in self.numbers().values():
            if len(numbers) > 1:
                most = max(most, numbers[min(numbers)])
        return most

    def ahead(self) -> list[int]:
        """Ranks known to have the highest count of every operation whose counts differ."""
        tops = self.tops()
        launched = self.launched()
        found: set[int] | None = None
        for op in self.spreads():
            highest = {rank for rank, count in launched[op].items() if count == tops[op]}
            found = highest if found is None else found & highest
        return sorted(found or ())

    def crossed(self) -> bool:
        """Whether every rank is behind another one in some operation.

        Then none is merely late: they made different calls.
        """
        differ = [op for op, numbers in self.numbers().items() if len(numbers) > 1]
        behind = self.behind()
        return len(differ) > 1 and bool(behind) and self.present() <= set(behind)

    def spreads(self) -> dict[str, list[int]]:
        """op → its lowest and its highest count, where counts differ."""
        apart = {}
        for op, numbers in self.numbers().items():
            if len(numbers) > 1:
                apart[op] = [min(numbers), max(numbers)]
        return apart

    def is_sound(self) -> bool:
        """Whether nothing is remarkable about it."""
        remarks = (self.missing, self.dead, self.errors, self.statuses, self.behind())
        return not any(remarks)

    def event(self, report: Report) -> Event:
        """The ``ras.communicator`` of a report."""
        remarked = {*self.behind(), *self.missing, *self.dead, *self.errors, *self.statuses}
        remarked |= set(self.ahead()) if self.late_number() > len(self.late()) else set()
        counts = {}
        for op, launched in self.counts.items():
            if any(launched.values()) or self.shares.get(op):
                counts[op] = _keys_as_text(launched)
        data = {
            "hash": self.hash,
            "size": self.size,
            "missing": self.missing,
            "missing_number": max(self.missing_number, len(self.missing) + len(self.dead)),
            "counts": counts,
            "behind": self.behind(),
            "late": self.late(),
            "late_number": self.late_number(),
            "ahead": self.ahead(),
            "spreads": self.spreads(),
            "crossed": self.crossed(),
            "dead": self.dead,
            "errors": _keys_as_text(self.errors),
            "error_shares": self.error_shares,
            "statuses": _keys_as_text(self.statuses),
            "places": {str(rank): place for rank, place in self.places.items() if rank in remarked},
        }
        return Event(
            "ras.communicator",
            clip("\n".join(self.said)),
            report.path,
            self.line,
            report.time,
            data=data,
        )


@dataclass(slots=True)
class Report:
    """One report of one job, text or JSON."""

    path: str
    form: str
    version: str = ""
    time: float | None = None
    """Seconds since the epoch; only the JSON report has it."""
    said: list[str] = field(default_factory=list)
    nodes: int = 0
    processes: int = 0
    gpus: int = 0
    total: int = 0
    """Communicators of the job."""
    sound: int = 0
    """Communicators without a remark."""
    silent: list[str] = field(default_factory=list)
    """``host:pid`` of processes that did not answer in time."""
    silent_number: int = 0
    """How many; of more than ten a text names none."""
    dead: list[str] = field(default_factory=list)
    """``host:pid`` of processes that RAS has given up."""
    dead_number: int = 0
    timeouts: int = 0
    outliers: list[str] = field(default_factory=list)
    """Nodes with another number of processes or GPUs than most; text reports alone."""
    comms: dict[str, Comm] = field(default_factory=dict)
    """By hash; of a text report those that it remarks on."""

    def events(self) -> list[Event]:
        """The report as a whole, then each communicator it has something to say about."""
        data = {
            name: getattr(self, name)
            for name in (
                "version",
                "nodes",
                "processes",
                "gpus",
                "total",
                "sound",
                "silent",
                "silent_number",
                "dead",
                "dead_number",
                "timeouts",
                "outliers",
            )
        }
        data["communicators"] = data.pop("total")
        head = Event("ras.report", clip("\n".join(self.said)), self.path, 0, self.time, data=data)
        return [head, *(comm.event(self) for comm in self.comms.values())]


def _keys_as_text(counts: dict[int, Any]) -> Data:
    return {str(rank): count for rank, count in counts.items()}


def identity(text: str) -> str:
    """A communicator's hash as NCCL's log writes it: ``07c1…`` and ``0x7c1…`` are one."""
    if re.fullmatch(r"(?:0x)?[0-9a-fA-F]{1,16}", text):
        return f"0x{int(text, 16):x}"
    return text[:40]


def changes(reports: Iterable[Report]) -> Iterator[Event]:
    """One ``ras.change`` for each communicator and two successive reports that know it."""
    ordered = list(reports)
    if all(report.time is not None for report in ordered):
        ordered.sort(key=lambda report: report.time or 0.0)
    known: dict[str, Report] = {}
    for report in ordered:
        for key, earlier in list(known.items()):
            yield from _change_events(key, earlier, report)
        known |= dict.fromkeys(report.comms, report)


def _change_events(key: str, first: Report, second: Report) -> Iterator[Event]:
    before = first.comms[key].launched()
    after = _later_counts(key, first, second)
    moved: dict[str, dict[str, int]] = {}
    still = set()
    for op, counts in after.items():
        for rank, count in counts.items():
            start = before.get(op, {}).get(rank)
            if start is None or count < start:
                continue
            still.add(rank)
            if count > start:
                moved.setdefault(str(rank), {})[op] = count - start
    made = sum(sum(ops.values()) for ops in moved.values())
    unnamed = _launched_by_unnamed(
        first.comms[key],
        second.comms.get(key),
        made,
    )
    if unnamed == 0:
        # counts only rise: where their sum is the same, no rank launched anything
        still |= first.comms[key].present()
    if not still and not unnamed:
        return
    rest = sorted(still - {int(rank) for rank in moved})
    if first.time is None or second.time is None:
        seconds = None
    else:
        seconds = second.time - first.time
    comm = second.comms.get(key, first.comms[key])
    say = (
        f"communicator {key}, from {os.path.basename(first.path)} to"
        f" {os.path.basename(second.path)}"
    )
    say += f"{f' ({seconds:g} s)' if seconds else ''}: {_motion_in_words(len(moved), rest)}"
    if unnamed:
        say += f", and ranks that the reports do not name launched {unnamed}"
    data = {
        "hash": key,
        "moved": moved,
        "unnamed": unnamed or 0,
        "still": rest,
        "seconds": seconds,
        "behind": comm.behind(),
    }
    yield Event(
        "ras.change",
        "\n".join([say, *comm.said])[:1500],
        second.path,
        comm.line,
        second.time,
        data=data,
    )


def _launched_by_unnamed(
    first: Comm,
    second: Comm | None,
    named: int,
) -> int | None:
    """Calls launched between two texts by ranks that neither names.

    It is None where the texts do not count every rank.
    """
    if second is None or not first.shares or not second.shares:
        return None
    before, after = first.numbers(), second.numbers()
    if before.keys() != after.keys():
        # counts of an operation that did not differ are not printed
        return None
    made = 0
    for op in before:
        ranks = len(first.present())
        if not ranks == sum(before[op].values()) == sum(after[op].values()):
            return None
        made += _calls_of_all(after[op]) - _calls_of_all(before[op])
    if made < named:
        return None
    return made - named


def _calls_of_all(numbers: dict[int, int]) -> int:
    return sum(count * number for count, number in numbers.items())


def _motion_in_words(moved: int, rest: list[int]) -> str:
    if not moved and not rest:
        return "nothing is known of ranks by name"
    if not moved or not rest:
        return f"{'all' if moved else 'none of the'} {moved + len(rest)} ranks launched collectives"
    names = ", ".join(map(str, rest[:16])) + (" …" if len(rest) > 16 else "")
    return f"{moved} ranks launched collectives, ranks {names} did not"


def _later_counts(key: str, first: Report, second: Report) -> Counts:
    """Counts of the second report.

    Where its text has no remark any more, those that were behind have caught up.
    """
    if key in second.comms:
        return _with_caught_up(first.comms[key], second.comms[key])
    same = (first.form, first.total, os.path.dirname(first.path)) == (
        "text",
        second.total,
        os.path.dirname(second.path),
    )
    if not same or second.form != "text" or second.sound <= first.sound:
        return {}
    return _caught_up(first.comms[key])


def _with_caught_up(before: Comm, after: Comm) -> Counts:
    """Counts of a later report; operations that its text has no remark on any more are even."""
    counts = after.launched()
    if before.shares:
        for op, even in _caught_up(before).items():
            counts.setdefault(op, even)
    return counts


def _caught_up(before: Comm) -> Counts:
    """Counts, at least, of the ranks that were behind, once they are even with the others."""
    tops = before.tops()
    caught_up = {}
    for op, counts in before.launched().items():
        behind = {rank for rank, count in counts.items() if count < tops[op]}
        caught_up[op] = dict.fromkeys(behind, tops[op])
    return caught_up


RESULTS = {
    1: "CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
}
RESULTS |= {6: "remote error", 7: "in progress", 8: "timeout"}
"""ncclResult_t, as `init_state` and `async_error` give it; 0 is success."""
LARGEST = 1 << 62
# NCCL 2.28.9 forgets the comma here, whenever a rank is missing:
#     "nvml_dev": 3\n          "status": {
MISSING_COMMA = re.compile(rb'("nvml_dev": -?\d{1,9})(\s{1,40}"status":)')


def from_json(value: Data, path: str) -> Report:
    """A report of ``SET FORMAT json`` (2.28.7+), already parsed.

    Nothing in it is trusted to be there.
    """
    comms = [_read_comm(item) for item in _only_dicts(value.get("communicators"))]
    ranks = [rank for item in _only_dicts(value.get("communicators")) for rank in _rank_items(item)]
    lost = {
        _process_name(rank): _status_of_rank(rank).get("considered_dead") is True
        for rank in ranks
        if "unresponsive" in _status_of_rank(rank)
    }
    report = Report(
        path, "json", str(value.get("nccl_version", ""))[:40], _time_of_text(value.get("timestamp"))
    )
    report.nodes = len({str(rank.get("host")) for rank in ranks})
    report.processes = len({_process_name(rank) for rank in ranks})
    report.gpus = len({(_process_name(rank), str(rank.get("cuda_dev"))) for rank in ranks})
    report.total = len(comms)
    report.sound = sum(comm.is_sound() for comm in comms)
    report.silent = sorted(process for process, dead in lost.items() if not dead)
    report.dead = sorted(process for process, dead in lost.items() if dead)
    report.silent_number, report.dead_number = len(report.silent), len(report.dead)
    ras = value.get("ras")
    if isinstance(ras, dict):
        report.timeouts = _number_or_none(ras.get("timeouts_count")) or 0
    else:
        report.timeouts = 0
    report.comms = {comm.hash: comm for comm in comms}
    report.said = [
        f"NCCL {report.version}: {report.total} communicators, {report.sound} of them without a"
        " remark"
    ]
    return report


def parse_json(data: bytes) -> Any:
    """The value of a JSON report that NCCL wrote without a comma.

    It is None for any other damaged document.
    """
    if b'"communicators"' not in data[:4096] or b'"nccl_version"' not in data[:4096]:
        return None
    try:
        return json.loads(MISSING_COMMA.sub(rb"\1,\2", data))
    except (ValueError, RecursionError):
        return None


def _read_comm(item: Data) -> Comm:
    comm = Comm(identity(str(item.get("hash", ""))), _number_or_none(item.get("size")))
    for rank in _rank_items(item):
        number = _number_or_none(rank.get("rank"))
        status = _status_of_rank(rank)
        counts = rank.get("collective_counts")
        if number is None:
            continue
        comm.places[number] = _place_of_rank(rank)
        if "unresponsive" in status:
            (comm.dead if status.get("considered_dead") is True else comm.missing).append(number)
            continue
        wrong = [
            code
            for name in ("init_state", "async_error")
            if (code := _number_or_none(status.get(name))) not in (0, None, 7)
        ]
        if wrong or status.get("abort_flag") is True:
            comm.errors[number] = (
                ", ".join(RESULTS.get(code, str(code)) for code in wrong) or "aborted"
            )
        comm.statuses[number] = _status_in_words(status)
        for op, count in counts.items() if isinstance(counts, dict) else ():
            launched = _number_or_none(count)
            if launched is not None:
                comm.counts.setdefault(str(op)[:40], {})[number] = launched
    if len({*comm.statuses.values()}) < 2:
        comm.statuses = {}
    comm.said = [
        f"communicator {comm.hash} of {comm.size} ranks: missing {comm.missing}, dead {comm.dead}"
    ]
    comm.said += [
        f"  {op}: {_shares_in_words(counts)}"
        for op, counts in comm.counts.items()
        if len({*counts.values()}) > 1
    ]
    return comm


def _place_of_rank(rank: Data) -> Place:
    cuda, nvml = _number_or_none(rank.get("cuda_dev")), _number_or_none(rank.get("nvml_dev"))
    gpu = ""
    if cuda is not None:
        gpu = str(cuda)
    if nvml is not None and nvml != cuda:
        gpu = f"{gpu} (NVML {nvml})".strip()
    return {
        "host": str(rank.get("host", ""))[:200],
        "pid": _number_or_none(rank.get("pid")),
        "gpu": gpu,
    }


def _status_in_words(status: Data) -> str:
    """The status of a rank by the words of the text report."""
    if status.get("abort_flag") is True:
        return "ABORT"
    if status.get("finalize_called") is True or status.get("destroy_flag") is True:
        return "FINALIZE"
    if _number_or_none(status.get("init_state")) not in (0, None):
        return "INIT"
    return "RUNNING"


def _shares_in_words(counts: dict[int, int]) -> str:
    """``3 ranks at 6, rank 3 at 5``."""
    shares = Counter(counts.values()).most_common(8)
    one = {count: rank for rank, count in counts.items()}
    return ", ".join(
        f"{n} ranks at {count}" if n > 1 else f"rank {one[count]} at {count}" for count, n in shares
    )


def _rank_items(item: Data) -> Iterator[Data]:
    """Ranks that answered, then those that did not."""
    yield from _only_dicts(item.get("ranks"))
    for rank in _only_dicts(item.get("missing_ranks")):
        yield rank | {"status": _status_of_rank(rank) | {"unresponsive": True}}


def _only_dicts(value: Any) -> list[Data]:
    if isinstance(value, list):
        return [item for item in value if isinstance(item, dict)]
    return []


def _status_of_rank(rank: Data) -> Data:
    status = rank.get("status")
    if isinstance(status, dict):
        return status
    return {}


def _process_name(rank: Data) -> str:
    return f"{str(rank.get('host', ''))[:200]}:{_number_or_none(rank.get('pid'))}"


def _number_or_none(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST:
        return value
    return None


def _time_of_text(text: Any) -> float | None:
    """``2026-11-21 04:35:20``, in the local time of the host that wrote it."""
    try:
        return datetime.strptime(str(text), "%Y-%m-%d %H:%M:%S").timestamp()
    except (ValueError, OverflowError):
        return None
