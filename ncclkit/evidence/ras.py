"""NCCL's RAS report, text (2.24+) and JSON (2.28.7+): one event per communicator that it says something about."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ncclkit.evidence.grammar import Data, clip
from ncclkit.model import Event

# #1-0 (27a079b828ff1a75) MISMATCH
BLOCK = re.compile(r"^#(?P<group>\d+)-(?P<comm>\d+) \((?P<hash>[0-9a-f]+)\) (?P<what>[A-Z]+)")
#   Communicator ranks have different AllReduce operation counts       Communicator ranks have different collective
# operation counts
KIND = re.compile(r"different (?P<op>\w+) operation counts")
#   6 ranks have launched up to operation 6649
SHARE = re.compile(r"(?P<number>\d{1,9}) ranks? ha(?:ve|s) launched up to operation (?P<count>\d{1,18})")
#   Rank 3 has launched up to operation 6649 -- GPU 3 managed by process 4711 on node 10.0.0.2
OUTLIER = re.compile(
    r"Rank (?P<rank>\d{1,9})(?: has (?:launched up to operation (?P<count>\d{1,18})|"
    r"(?P<none>not launched any operations)))?.*?-- GPU \S+ managed by process "
    r"(?P<pid>\d+) on node (?P<node>\S+)"
)
#   The missing rank: 21          The missing ranks: 3, 21
ABSENT = re.compile(r"[Mm]issing ranks?: (?P<ranks>[\d, ]+)")
#   Process 3487984 on node 172.16.64.213 managing GPU 5
PROCESS = re.compile(r"Process (?P<pid>\d+) on node (?P<node>\S+)")
#     1         1         4         8        32        32   RUNNING  MISMATCH
ROW = re.compile(r"^\s+(?P<group>\d+)\s+\d+\s+\d+\s+[\d-]+\s+(?P<size>[\d-]{1,9})\s+[\d-]+\s+[A-Z,]+\s+[A-Z,]+\s*$")


def is_report(head: str) -> bool:
    """True for the text of ``ncclras`` and of the RAS socket."""
    return "Job summary" in head and ("Communicators..." in head or "compiled with CUDA" in head)


def from_text(text: str, path: str) -> list[Event]:
    """Events of a text report; a communicator without any remark gives none."""
    lines = text.splitlines()
    sizes = {match["group"]: match["size"] for match in map(ROW.match, lines) if match}
    found: dict[str, Data] = {}
    places: dict[str, tuple[int, list[str]]] = {}
    for number, line in enumerate(lines, 1):
        if not (match := BLOCK.match(line)):
            continue
        size = sizes.get(match["group"], "")
        data = found.setdefault(match["hash"], _empty(match["hash"], int(size) if size.isdigit() else None))
        body = list(_body(lines, number))
        _block(data, match["what"], body)
        first, said = places.setdefault(match["hash"], (number, []))
        said += [line, *body]
    events = [
        Event("ras.communicator", clip("\n".join(places[key][1])), path, places[key][0], data=_behind(data))
        for key, data in found.items()
    ]
    return events + list(_dead(lines, path))


def _body(lines: list[str], number: int) -> Iterator[str]:
    for line in lines[number : number + 200]:
        if not line.startswith(" "):
            return
        yield line


def _block(data: Data, what: str, body: list[str]) -> None:
    op, current = "collective", None
    for line in body:
        if match := KIND.search(line):
            op = match["op"]
        elif match := SHARE.search(line):
            current = int(match["count"])
            data["shares"].setdefault(op, {})[current] = int(match["number"])
        elif match := OUTLIER.search(line):
            count = 0 if match["none"] else int(match["count"]) if match["count"] else current
            if count is not None:
                data["counts"].setdefault(op, {})[match["rank"]] = count
        elif match := ABSENT.search(line):
            data["missing"] += [int(rank) for rank in re.findall(r"\d{1,9}", match["ranks"])]


def _empty(key: str, size: int | None) -> Data:
    return {"hash": key, "size": size, "missing": [], "counts": {}, "behind": [], "dead": [], "shares": {}}


def _behind(data: Data) -> Data:
    """Ranks whose count is below the highest that the report names for the operation."""
    shares = data.pop("shares")
    behind = set()
    for op, counts in data["counts"].items():
        top = max([*counts.values(), *shares.get(op, {})])
        behind |= {int(rank) for rank, count in counts.items() if count < top}
    return data | {"behind": sorted(behind)}


def _dead(lines: list[str], path: str) -> Iterator[Event]:
    """Processes that RAS cannot reach stand outside any communicator."""
    for number, line in enumerate(lines, 1):
        if line.strip() == "DEAD":
            body = list(_body(lines, number))
            processes = [f"{match['node']}:{match['pid']}" for match in map(PROCESS.search, body) if match]
            yield Event(
                "ras.communicator",
                "\n".join([line, *body]),
                path,
                number,
                data=_behind(_empty("", None) | {"dead": processes}),
            )


def from_json(value: Any, path: str) -> list[Event]:
    """Events of a JSON report, one for each communicator."""
    events = []
    for comm in value.get("communicators") or ():
        if not isinstance(comm, dict):
            continue
        data = _empty(str(comm.get("hash", "")), comm.get("size") if isinstance(comm.get("size"), int) else None)
        for rank in comm.get("ranks") or ():
            for op, count in (rank.get("collective_counts") or {}).items():
                if isinstance(count, int):
                    data["counts"].setdefault(str(op), {})[str(rank.get("rank"))] = count
        for rank in comm.get("missing_ranks") or ():
            number = rank.get("rank") if isinstance(rank, dict) else rank
            status = rank.get("status") or {} if isinstance(rank, dict) else {}
            data["dead" if status.get("considered_dead") else "missing"] += [number] if isinstance(number, int) else []
        data["counts"] = {op: counts for op, counts in data["counts"].items() if any(counts.values())}
        uneven = {
            op: Counter(counts.values()) for op, counts in data["counts"].items() if len(set(counts.values())) > 1
        }
        said = [f"communicator {data['hash']} of {data['size']} ranks: missing {data['missing']}, dead {data['dead']}"]
        said += [
            f"  {op}: " + ", ".join(f"{number} ranks at {count}" for count, number in counts.items())
            for op, counts in uneven.items()
        ]
        events.append(Event("ras.communicator", clip("\n".join(said)), path, 0, data=_behind(data)))
    return events
