"""NCCL's RAS reports, in JSON and text."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ncclkit.core.model import Event
from ncclkit.evidence.grammars.grammar import Data, clip, parse_int

Counts = dict[str, dict[int, int]]
"""op → {rank: collectives launched}."""


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
    counts: Counts = field(default_factory=dict)
    """Of the ranks that the report names."""
    shares: Counts = field(default_factory=dict)
    """op → {count: number of ranks that have it}; text reports alone."""
    errors: dict[int, str] = field(default_factory=dict)

    def launched(self) -> Counts:
        """Counts of all ranks.

        What a text report says of "3 ranks" goes to those that it does not name.
        """
        full = {op: dict(counts) for op, counts in self.counts.items()}
        for op, shares in self.shares.items():
            counts = full.setdefault(op, {})
            named = Counter(counts.values())
            rest = {count: number for count, number in shares.items() if named[count] != number}
            unnamed = (
                set(range(min(self.size or 0, 1 << 20)))
                - counts.keys()
                - {*self.missing, *self.dead}
            )
            if len(rest) == 1 and len(unnamed) == next(iter(rest.values())):
                counts |= dict.fromkeys(unnamed, next(iter(rest)))
        return full

    def tops(self) -> dict[str, int]:
        """op → the highest count in the report, of whatever rank."""
        launched = self.launched()
        return {
            op: max([0, *counts.values(), *self.shares.get(op, {})])
            for op, counts in launched.items()
        }

    def behind(self) -> list[int]:
        """Ranks whose count is below the highest in the report for the operation."""
        tops = self.tops()
        return sorted(
            {
                rank
                for op, counts in self.launched().items()
                for rank in counts
                if counts[rank] < tops[op]
            }
        )

    def event(self, report: Report) -> Event:
        """The ``ras.communicator`` of a report."""
        data = {
            "hash": self.hash,
            "size": self.size,
            "missing": self.missing,
            "counts": {
                op: _keys_as_text(counts)
                for op, counts in self.counts.items()
                if any(counts.values())
            },
            "behind": self.behind(),
            "dead": self.dead,
            "errors": _keys_as_text(self.errors),
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
    total: int = 0
    """Communicators of the job."""
    sound: int = 0
    """Communicators without a remark."""
    silent: list[str] = field(default_factory=list)
    """``host:pid`` of processes that did not answer in time."""
    dead: list[str] = field(default_factory=list)
    """``host:pid`` of processes that RAS has given up."""
    timeouts: int = 0
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
                "total",
                "sound",
                "silent",
                "dead",
                "timeouts",
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
    if not still:
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
    data = {"hash": key, "moved": moved, "still": rest, "seconds": seconds, "behind": comm.behind()}
    yield Event(
        "ras.change",
        "\n".join([say, *comm.said])[:1500],
        second.path,
        comm.line,
        second.time,
        data=data,
    )


def _motion_in_words(moved: int, rest: list[int]) -> str:
    if not moved or not rest:
        return f"{'all' if moved else 'none of the'} {moved + len(rest)} ranks launched collectives"
    names = ", ".join(map(str, rest[:16])) + (" …" if len(rest) > 16 else "")
    return f"{moved} ranks launched collectives, ranks {names} did not"


def _later_counts(key: str, first: Report, second: Report) -> Counts:
    """Counts of the second report.

    Where its text has no remark any more, those that were behind have caught up.
    """
    if key in second.comms:
        return second.comms[key].launched()
    same = (first.form, first.total, os.path.dirname(first.path)) == (
        "text",
        second.total,
        os.path.dirname(second.path),
    )
    if not same or second.form != "text" or second.sound <= first.sound:
        return {}
    before = first.comms[key]
    tops = before.tops()
    late = set(before.behind())
    return {
        op: dict.fromkeys(late & counts.keys(), tops[op])
        for op, counts in before.launched().items()
    }


RESULTS = {
    1: "CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
}
RESULTS |= {6: "remote error", 7: "in progress"}
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
    report.total = len(comms)
    report.sound = sum(
        not (comm.missing or comm.dead or comm.errors or comm.behind()) for comm in comms
    )
    report.silent = sorted(process for process, dead in lost.items() if not dead)
    report.dead = sorted(process for process, dead in lost.items() if dead)
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
        for op, count in counts.items() if isinstance(counts, dict) else ():
            launched = _number_or_none(count)
            if launched is not None:
                comm.counts.setdefault(str(op)[:40], {})[number] = launched
    comm.said = [
        f"communicator {comm.hash} of {comm.size} ranks: missing {comm.missing}, dead {comm.dead}"
    ]
    comm.said += [
        f"  {op}: {_shares_in_words(counts)}"
        for op, counts in comm.counts.items()
        if len({*counts.values()}) > 1
    ]
    return comm


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


BODY = 2000
"""Lines read of one block."""
# NCCL version 2.28.9 compiled with CUDA 13.0
VERSION = re.compile(r"^NCCL version (\d[\w.+-]{0,39})")
#       1          8            1          8        8
JOB = re.compile(r"^ +(\d{1,9}) +[\d-]{1,9} +[\d-]{1,9} +(\d{1,9}) +\d{1,9} *$")
#     1         1         4         8        32        32   RUNNING  INCOMPLETE,MISMATCH
ROW = re.compile(
    r"^ +(?P<group>\d{1,9}) +(?P<comms>\d{1,9}) +[\d-]{1,9} +[\d-]{1,9} +(?P<size>[\d-]{1,9})"
    r" +[\d-]{1,9} +[A-Z,]+ +"
    r"(?P<errors>[A-Z,]+) *$"
)
# #1-0 (27a079b828ff1a75) MISMATCH
BLOCK = re.compile(r"^#(?P<group>\d{1,9})-\d{1,9} \((?P<hash>[0-9a-f]{1,16})\) (?P<what>[A-Z]+)")
#   Communicator ranks have different AllReduce operation counts
#   … different collective operation counts
KIND = re.compile(r"different (?P<op>\w{1,40}) operation counts")
#   6 ranks have launched up to operation 6649
SHARE = re.compile(
    r"^ +(?P<number>\d{1,9}) ranks? ha(?:ve|s) launched up to operation (?P<count>\d{1,18})"
)
#   5 ranks have not launched any operations
NONE = re.compile(r"^ +(?P<number>\d{1,9}) ranks? ha(?:ve|s) not launched any operations")
#   Rank 3 has launched up to operation 6649 -- GPU 3 managed by process 4711 on node 10.0.0.2
#   Rank 3 -- GPU 3 managed by process 899 on node 192.0.2.2
#   Rank 0 -- [process information not found]
RANK = re.compile(r"^ +Rank (?P<rank>\d{1,9})\b(?P<what>.{0,200})")
LAUNCHED = re.compile(
    r"^ has launched up to operation (\d{1,18})|^ has (not) launched any operations"
)
#   The missing rank: 21          The missing ranks: 3, 21
ABSENT = re.compile(r"[Mm]issing ranks?: (?P<ranks>[\d, ]+)")
#   Process 3487984 on node 172.16.64.213 managing GPU 5
PROCESS = re.compile(r"^ +Process (?P<pid>\d{1,10}) on node (?P<node>\S{1,200})")
#   Encountered 2 communication timeouts while gathering communicator data
TIMEOUTS = re.compile(r"^ +Encountered (\d{1,9}) communication timeouts?")


def is_report(head: str) -> bool:
    """True for the text of ``ncclras`` and of the RAS socket."""
    return "Job summary" in head and ("Communicators..." in head or "compiled with CUDA" in head)


def from_text(text: str, path: str) -> Report:
    """Read a report, whole or cut short."""
    report = Report(path, "text")
    lines = text.replace("\0", "").splitlines()
    sizes: dict[str, int | None] = {}
    for number, line in enumerate(lines, 1):
        match = VERSION.match(line)
        if match:
            report.version = match[1]
        elif match := ROW.match(line):
            sizes[match["group"]] = parse_int(match["size"])
            report.total += int(match["comms"])
            report.sound += int(match["comms"]) if match["errors"] == "OK" else 0
        elif not sizes and (match := JOB.match(line)):
            report.nodes += int(match[1])
            report.processes += int(match[2])
        elif match := BLOCK.match(line):
            _take_block(
                report,
                match,
                sizes.get(match["group"]),
                number,
                list(_indented_lines(lines, number)),
            )
        elif line.strip() in ("INCOMPLETE", "DEAD", "TIMEOUT"):
            _take_processes(report, line.strip(), list(_indented_lines(lines, number)))
    report.said = [
        line
        for line in lines[:40]
        if line.startswith("NCCL version") or JOB.match(line) or ROW.match(line)
    ]
    return report


def _indented_lines(lines: list[str], number: int) -> Iterator[str]:
    for line in lines[number : number + BODY]:
        if not line.startswith(" "):
            return
        yield line


def _take_processes(report: Report, what: str, body: list[str]) -> None:
    """Remarks on the job as a whole.

    They are processes that did not answer, and how often RAS waited in vain.
    """
    found = [f"{match['node']}:{match['pid']}" for match in map(PROCESS.match, body) if match]
    if what == "DEAD":
        report.dead += found
    else:
        report.silent += found
    report.timeouts += sum(int(match[1]) for match in map(TIMEOUTS.match, body) if match)


def _take_block(
    report: Report, head: re.Match[str], size: int | None, number: int, body: list[str]
) -> None:
    """One block, added to what others said of its communicator.

    After a communicator with missing ranks NCCL 2.28.9 takes other memory for the next one: of size
    0, with ranks in the billions.  Such a block is dropped.
    """
    if size is not None and size <= 0:
        return
    comm = report.comms.setdefault(
        identity(head["hash"]), Comm(identity(head["hash"]), size, number)
    )
    comm.said += [head.string, *body]
    read = {"INCOMPLETE": _take_absent, "MISMATCH": _take_counts, "ERROR": _take_errors}.get(
        head["what"]
    )
    if read is not None:
        read(comm, body, lambda rank: size is None or rank < size)


def _take_absent(comm: Comm, body: list[str], member: Callable[[int], bool]) -> None:
    for line in body:
        match = ABSENT.search(line)
        if match:
            comm.missing += [
                int(rank) for rank in re.findall(r"\d{1,9}", match["ranks"]) if member(int(rank))
            ]
        elif (match := RANK.match(line)) and member(int(match["rank"])):
            comm.missing.append(int(match["rank"]))


def _take_counts(comm: Comm, body: list[str], member: Callable[[int], bool]) -> None:
    op = "collective"
    for line in body:
        match = KIND.search(line)
        if match:
            op = match["op"]
        elif match := SHARE.match(line):
            comm.shares.setdefault(op, {})[int(match["count"])] = int(match["number"])
        elif match := NONE.match(line):
            comm.shares.setdefault(op, {})[0] = int(match["number"])
        elif (match := RANK.match(line)) and member(int(match["rank"])):
            calls = LAUNCHED.match(match["what"])
            if calls:
                if calls[2]:
                    comm.counts.setdefault(op, {})[int(match["rank"])] = 0
                else:
                    comm.counts.setdefault(op, {})[int(match["rank"])] = int(calls[1])


def _take_errors(comm: Comm, body: list[str], member: Callable[[int], bool]) -> None:
    """``Rank 3 reported remote error -- GPU …``, or its error.

    The error stands in the line before it.
    """
    kind = ""
    for line in body:
        match = RANK.match(line)
        if match is None:
            kind = line.strip()[:200]
        elif member(int(match["rank"])):
            own = match["what"].partition("--")[0].strip()
            comm.errors[int(match["rank"])] = own.removeprefix("reported ") or kind
