"""The text that ``ncclras`` and the RAS socket print, of NCCL 2.24 to 2.32.

A set of ranks has its count once, above the list of its ranks; a set of one rank has all in one
line.  The set that is listed is the small one, late or not: whoever has the lowest count is late.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ncclkit.evidence.grammars.grammar import parse_int
from ncclkit.evidence.ras import Comm, Report, identity

BODY = 20_000
"""Lines read of one block."""
QUOTED = 200
"""Lines of one communicator that its event may quote."""
# NCCL version 2.28.9 compiled with CUDA 13.0
VERSION = re.compile(r"^NCCL version (\d[\w.+-]{0,39})")
#   Nodes  Processes         GPUs  Processes     GPUs
# (total)   per node  per process    (total)  (total)
#       1          8            1          8        8
JOB = re.compile(r"^ +(\d{1,9}) +[\d-]{1,9} +[\d-]{1,9} +(\d{1,9}) +(\d{1,9}) *$")
#   Nodes  Processes         GPUs
#           per node  per process
#       3          4            1
UNEVEN = re.compile(r"^ +(\d{1,9}) +(\d{1,9}) +(\d{1,9}) *$")
# (total)    (total)      (total)
#       4         15           15
TOTALS = re.compile(r"^ *\(total\) +\(total\) +\(total\) *$")
#   Node 192.0.2.13 running processes 4200,4201
OUTLIER = re.compile(r"^ +Node (?P<node>\S{1,200}) running process")
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
#   Communicator ranks have different status
STATUS_PART = re.compile(r"ranks have different status")
#   6 ranks have launched up to operation 6649
SHARE = re.compile(
    r"^ +(?P<number>\d{1,9}) ranks? ha(?:ve|s) launched up to operation (?P<count>\d{1,18})"
)
#   5 ranks have not launched any operations
NONE = re.compile(r"^ +(?P<number>\d{1,9}) ranks? ha(?:ve|s) not launched any operations")
#   19 ranks have status RUNNING
STATUS_SHARE = re.compile(r"^ +(?P<number>\d{1,9}) ranks? ha(?:ve|s) status (?P<status>[A-Z]+)")
#   The unknown ranks: 4,5
UNKNOWN = re.compile(r"[Tt]he unknown ranks?: (?P<ranks>[\d, ]+)")
#   Rank 3 has launched up to operation 6649 -- GPU 3 managed by process 4711 on node 10.0.0.2
#   Rank 3 -- GPU 3 (NVML 6) managed by process 899 on node 192.0.2.2
#   Rank 0 -- [process information not found]
RANK = re.compile(r"^ +Rank (?P<rank>\d{1,9})\b(?P<what>.{0,300})")
LAUNCHED = re.compile(
    r"^ has launched up to operation (\d{1,18})|^ has (not) launched any operations"
)
STATUS = re.compile(r"^ has status ([A-Z]+)")
REPORTED = re.compile(r"^ reported (.{1,200}?)(?: -- |$)")
PLACE = re.compile(
    r"-- GPUs? (?P<gpu>\d[\d,]*(?: \(NVML [\d,]+\))?) managed by process (?P<pid>\d{1,10})"
    r" on node (?P<node>\S{1,200})"
)
#   2 ranks reported Remote process error
REPORTERS = re.compile(r"^ +(?P<number>\d{1,9}) ranks? reported (?P<error>.{1,200}?) *$")
#   Missing communicator data from 2 ranks
#   Missing communicator data from 1 job process
MISSING = re.compile(r"Missing communicator data from (\d{1,9}) (?:ranks?|job process)")
#   The missing rank: 21          The missing ranks: 3, 21
ABSENT = re.compile(r"[Mm]issing ranks?: (?P<ranks>[\d, ]+)")
#   2 job processes are considered dead (unreachable via the RAS network)
DEAD = re.compile(r"^ +(\d{1,9}) (?:job )?process(?:es)? (?:is|are) considered dead")
#   Process 3487984 on node 172.16.64.213 managing GPU 5
PROCESS = re.compile(r"^ +Process (?P<pid>\d{1,10}) on node (?P<node>\S{1,200})")
#   Encountered 2 communication timeouts while gathering communicator data
TIMEOUTS = re.compile(r"^ +Encountered (\d{1,9}) communication timeouts?")


def is_report(head: str) -> bool:
    """True for the text of ``ncclras`` and of the RAS socket."""
    return "Job summary" in head and ("Communicators..." in head or "compiled with CUDA" in head)


@dataclass(slots=True)
class _TextReader:
    """Where the reading of one report stands."""

    report: Report
    sizes: dict[str, int | None] = field(default_factory=dict)
    """Group → ranks of each of its communicators."""
    totals: bool = False
    """The next row of the summary holds the totals of an uneven job."""

    def take_line(
        self,
        line: str,
        lines: list[str],
        number: int,
    ) -> None:
        """Read one line, and the block under it where it begins one."""
        report = self.report
        match = VERSION.match(line)
        if match:
            report.version = match[1]
            return
        match = ROW.match(line)
        if match:
            self.sizes[match["group"]] = parse_int(match["size"])
            report.total += int(match["comms"])
            report.sound += int(match["comms"]) if match["errors"] == "OK" else 0
            return
        if not self.sizes and self._take_summary(line):
            return
        match = BLOCK.match(line)
        if match:
            body = list(_lines_of_block(lines, number))
            _take_block(
                report,
                match,
                self.sizes.get(match["group"]),
                number,
                body,
            )
        elif line.strip() in ("INCOMPLETE", "DEAD", "TIMEOUT"):
            _take_processes(
                report,
                line.strip(),
                list(_lines_of_block(lines, number)),
            )

    def _take_summary(self, line: str) -> bool:
        """Read a row of the job's summary; False where the line is none."""
        report = self.report
        if TOTALS.match(line):
            self.totals = True
            return True
        match = OUTLIER.match(line)
        if match:
            # NCCL prints the first processes of the job there, not those of the node
            report.outliers.append(match["node"])
            return True
        match = JOB.match(line)
        if match:
            report.nodes += int(match[1])
            report.processes += int(match[2])
            report.gpus += int(match[3])
            return True
        match = UNEVEN.match(line)
        if match is None:
            return False
        nodes, processes, gpus = int(match[1]), int(match[2]), int(match[3])
        if self.totals:
            report.nodes, report.processes, report.gpus = nodes, processes, gpus
        else:
            report.nodes += nodes
            report.processes += nodes * processes
            report.gpus += nodes * processes * gpus
        return True


def from_text(text: str, path: str) -> Report:
    """Read a report, whole or cut short."""
    report = Report(path, "text")
    reader = _TextReader(report)
    lines = text.replace("\0", "").splitlines()
    for number, line in enumerate(lines, 1):
        reader.take_line(
            line,
            lines,
            number,
        )
    for comm in report.comms.values():
        _tell_dead_from_missing(comm, report)
    for line in lines[:40]:
        if line.startswith("NCCL version") or JOB.match(line) or ROW.match(line):
            report.said.append(line)
    return report


def _lines_of_block(lines: list[str], number: int) -> Iterator[str]:
    """The indented lines under a heading.

    Empty lines part the remarks on one communicator, so they do not end it.
    """
    for line in lines[number : number + BODY]:
        if line.startswith(" "):
            yield line
        elif line.strip():
            return


def _take_processes(
    report: Report,
    what: str,
    body: list[str],
) -> None:
    """Remarks on the job as a whole.

    They are processes that did not answer, and how often RAS waited in vain.
    """
    found = []
    number = 0
    for line in body:
        process = PROCESS.match(line)
        if process:
            found.append(f"{process['node']}:{process['pid']}")
        timeouts = TIMEOUTS.match(line)
        if timeouts:
            report.timeouts += int(timeouts[1])
        counted = DEAD.match(line) or MISSING.search(line)
        if counted:
            number = int(counted[1])
    # more than ten are counted and not listed
    if what == "DEAD":
        report.dead += found
        report.dead_number += max(number, len(found))
    elif what == "INCOMPLETE":
        report.silent += found
        report.silent_number += max(number, len(found))


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
        identity(head["hash"]),
        Comm(
            identity(head["hash"]),
            size,
            number,
        ),
    )
    comm.said += [head.string, *body][:QUOTED]
    read = {"INCOMPLETE": _take_absent, "MISMATCH": _take_mismatch, "ERROR": _take_errors}.get(
        head["what"]
    )
    if read is not None:
        read(
            comm,
            body,
            lambda rank: size is None or rank < size,
        )


Member = Callable[[int], bool]
"""Whether a number can be that of a rank of the communicator."""


def _rank_line(
    comm: Comm,
    line: str,
    member: Member,
) -> tuple[int, str] | None:
    """Rank and rest of a line that is about one rank, whose place is kept."""
    match = RANK.match(line)
    if match is None or not member(int(match["rank"])):
        return None
    rank = int(match["rank"])
    place = PLACE.search(match["what"])
    if place:
        comm.places[rank] = {"host": place["node"], "pid": int(place["pid"]), "gpu": place["gpu"]}
    return rank, match["what"]


def _take_absent(
    comm: Comm,
    body: list[str],
    member: Member,
) -> None:
    for line in body:
        counted = MISSING.search(line)
        if counted:
            comm.missing_number = max(comm.missing_number, int(counted[1]))
            continue
        named = ABSENT.search(line)
        if named:
            comm.missing += _numbers(named["ranks"], member)
            continue
        one = _rank_line(
            comm,
            line,
            member,
        )
        if one is not None:
            comm.missing.append(one[0])


def _numbers(text: str, member: Member) -> list[int]:
    ranks = []
    for number in re.findall(r"\d{1,9}", text):
        if member(int(number)):
            ranks.append(int(number))
    return ranks


def _tell_dead_from_missing(comm: Comm, report: Report) -> None:
    """Ranks of processes that the report calls dead are dead, not merely missing."""
    dead = []
    for rank in comm.missing:
        place = comm.places.get(rank)
        if place and f"{place['host']}:{place['pid']}" in report.dead:
            dead.append(rank)
    comm.dead += dead
    comm.missing = [rank for rank in comm.missing if rank not in dead]


@dataclass(slots=True)
class _Mismatch:
    """What the next rank that stands alone in its line has."""

    op: str = ""
    """The operation whose counts are told; "" in the part on statuses."""
    count: int | None = None
    status: str = ""


def _take_mismatch(
    comm: Comm,
    body: list[str],
    member: Member,
) -> None:
    """Statuses that differ, then counts that differ, one operation after the other."""
    above = _Mismatch("collective")
    for line in body:
        part = KIND.search(line)
        if part:
            above = _Mismatch(part["op"])
        elif STATUS_PART.search(line):
            above = _Mismatch()
        elif not _take_share(
            comm,
            line,
            above,
            member,
        ):
            one = _rank_line(
                comm,
                line,
                member,
            )
            if one is not None:
                _take_rank(
                    comm,
                    *one,
                    above,
                )


def _take_share(
    comm: Comm,
    line: str,
    above: _Mismatch,
    member: Member,
) -> bool:
    """Read the line that heads a set of ranks; False where it is none."""
    match = SHARE.match(line) or NONE.match(line)
    if match:
        count = int(match.groupdict().get("count") or 0)
        comm.shares.setdefault(above.op, {})[count] = int(match["number"])
        above.count = count
        return True
    match = STATUS_SHARE.match(line)
    if match:
        comm.status_shares[match["status"]] = int(match["number"])
        above.status = match["status"]
        return True
    match = UNKNOWN.search(line)
    if match:
        for rank in _numbers(match["ranks"], member):
            comm.statuses[rank] = above.status or "UNKNOWN"
        return True
    return False


def _take_rank(
    comm: Comm,
    rank: int,
    what: str,
    above: _Mismatch,
) -> None:
    calls = LAUNCHED.match(what)
    status = STATUS.match(what)
    if calls:
        comm.counts.setdefault(above.op, {})[rank] = 0 if calls[2] else int(calls[1])
    elif status:
        comm.statuses[rank] = status[1]
    elif above.op and above.count is not None:
        comm.counts.setdefault(above.op, {})[rank] = above.count
    elif not above.op and above.status:
        comm.statuses[rank] = above.status


def _take_errors(
    comm: Comm,
    body: list[str],
    member: Member,
) -> None:
    """``Rank 3 reported remote error -- GPU …``, or its error.

    The error of a set of ranks stands in the line before them.
    """
    kind = ""
    for line in body:
        shared = REPORTERS.match(line)
        one = _rank_line(
            comm,
            line,
            member,
        )
        if shared:
            kind = shared["error"]
            comm.error_shares[kind] = comm.error_shares.get(kind, 0) + int(shared["number"])
        elif one is None:
            kind = line.strip()[:200]
        else:
            own = REPORTED.match(one[1])
            comm.errors[one[0]] = own[1].strip() if own else kind
