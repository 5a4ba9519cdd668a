"""The text of a RAS report (NCCL 2.24+): a table of communicators, then blocks about those with a remark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ncclkit.evidence.grammars.grammar import whole
from ncclkit.evidence.ras.report import Comm, Report, identity

BODY = 2000
"""Lines read of one block."""
# NCCL version 2.28.9 compiled with CUDA 13.0
VERSION = re.compile(r"^NCCL version (\d[\w.+-]{0,39})")
#       1          8            1          8        8
JOB = re.compile(r"^ +(\d{1,9}) +[\d-]{1,9} +[\d-]{1,9} +(\d{1,9}) +\d{1,9} *$")
#     1         1         4         8        32        32   RUNNING  INCOMPLETE,MISMATCH
ROW = re.compile(
    r"^ +(?P<group>\d{1,9}) +(?P<comms>\d{1,9}) +[\d-]{1,9} +[\d-]{1,9} +(?P<size>[\d-]{1,9}) +[\d-]{1,9} +[A-Z,]+ +"
    r"(?P<errors>[A-Z,]+) *$"
)
# #1-0 (27a079b828ff1a75) MISMATCH
BLOCK = re.compile(r"^#(?P<group>\d{1,9})-\d{1,9} \((?P<hash>[0-9a-f]{1,16})\) (?P<what>[A-Z]+)")
#   Communicator ranks have different AllReduce operation counts       … different collective operation counts
KIND = re.compile(r"different (?P<op>\w{1,40}) operation counts")
#   6 ranks have launched up to operation 6649
SHARE = re.compile(r"^ +(?P<number>\d{1,9}) ranks? ha(?:ve|s) launched up to operation (?P<count>\d{1,18})")
#   5 ranks have not launched any operations
NONE = re.compile(r"^ +(?P<number>\d{1,9}) ranks? ha(?:ve|s) not launched any operations")
#   Rank 3 has launched up to operation 6649 -- GPU 3 managed by process 4711 on node 10.0.0.2
#   Rank 3 -- GPU 3 managed by process 899 on node 192.0.2.2           Rank 0 -- [process information not found]
RANK = re.compile(r"^ +Rank (?P<rank>\d{1,9})\b(?P<what>.{0,200})")
LAUNCHED = re.compile(r"^ has launched up to operation (\d{1,18})|^ has (not) launched any operations")
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
    report, lines = Report(path, "text"), text.replace("\0", "").splitlines()
    sizes: dict[str, int | None] = {}
    for number, line in enumerate(lines, 1):
        if match := VERSION.match(line):
            report.version = match[1]
        elif match := ROW.match(line):
            sizes[match["group"]] = whole(match["size"])
            report.total += int(match["comms"])
            report.sound += int(match["comms"]) if match["errors"] == "OK" else 0
        elif not sizes and (match := JOB.match(line)):
            report.nodes, report.processes = report.nodes + int(match[1]), report.processes + int(match[2])
        elif match := BLOCK.match(line):
            _block(report, match, sizes.get(match["group"]), number, list(_body(lines, number)))
        elif line.strip() in ("INCOMPLETE", "DEAD", "TIMEOUT"):
            _processes(report, line.strip(), list(_body(lines, number)))
    report.said = [line for line in lines[:40] if line.startswith("NCCL version") or JOB.match(line) or ROW.match(line)]
    return report


def _body(lines: list[str], number: int) -> Iterator[str]:
    for line in lines[number : number + BODY]:
        if not line.startswith(" "):
            return
        yield line


def _processes(report: Report, what: str, body: list[str]) -> None:
    """Remarks on the job as a whole: processes that did not answer, and how often RAS waited in vain."""
    found = [f"{match['node']}:{match['pid']}" for match in map(PROCESS.match, body) if match]
    if what == "DEAD":
        report.dead += found
    else:
        report.silent += found
    report.timeouts += sum(int(match[1]) for match in map(TIMEOUTS.match, body) if match)


def _block(report: Report, head: re.Match[str], size: int | None, number: int, body: list[str]) -> None:
    """One block, added to what others said of its communicator.

    After a communicator with missing ranks NCCL 2.28.9 takes other memory for the next one: of size 0, with ranks in
    the billions.  Such a block is dropped.
    """
    if size is not None and size <= 0:
        return
    comm = report.comms.setdefault(identity(head["hash"]), Comm(identity(head["hash"]), size, number))
    comm.said += [head.string, *body]
    read = {"INCOMPLETE": _absent, "MISMATCH": _counts, "ERROR": _errors}.get(head["what"])
    if read is not None:
        read(comm, body, lambda rank: size is None or rank < size)


def _absent(comm: Comm, body: list[str], member: Callable[[int], bool]) -> None:
    for line in body:
        if match := ABSENT.search(line):
            comm.missing += [int(rank) for rank in re.findall(r"\d{1,9}", match["ranks"]) if member(int(rank))]
        elif (match := RANK.match(line)) and member(int(match["rank"])):
            comm.missing.append(int(match["rank"]))


def _counts(comm: Comm, body: list[str], member: Callable[[int], bool]) -> None:
    op = "collective"
    for line in body:
        if match := KIND.search(line):
            op = match["op"]
        elif match := SHARE.match(line):
            comm.shares.setdefault(op, {})[int(match["count"])] = int(match["number"])
        elif match := NONE.match(line):
            comm.shares.setdefault(op, {})[0] = int(match["number"])
        elif (match := RANK.match(line)) and member(int(match["rank"])):
            if told := LAUNCHED.match(match["what"]):
                comm.counts.setdefault(op, {})[int(match["rank"])] = 0 if told[2] else int(told[1])


def _errors(comm: Comm, body: list[str], member: Callable[[int], bool]) -> None:
    """``Rank 3 reported remote error -- GPU …``, or its error in the line before it."""
    kind = ""
    for line in body:
        match = RANK.match(line)
        if match is None:
            kind = line.strip()[:200]
        elif member(int(match["rank"])):
            own = match["what"].partition("--")[0].strip()
            comm.errors[int(match["rank"])] = own.removeprefix("reported ") or kind
