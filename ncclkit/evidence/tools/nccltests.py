"""nccl-tests, 2.0 to 2.17: printed tables, and the JSON of ``-J``.

What they do not name follows from arithmetic.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ncclkit.agent.digits import is_whole
from ncclkit.core import bandwidth
from ncclkit.core.model import Event, Fact, Measurement
from ncclkit.evidence.tools.document import Document, Tool, leading_number

LONGEST = 50_000
"""Lines of one table, or between it and what is told of it: NCCL's own lines stand in between."""
OPS = {"alltoall": "all_to_all", "alltoallv": "all_to_all", "sendrecv": "send_recv"}
"""Program of nccl-tests → operation, where the names differ."""
TYPES = {
    "float": "float32",
    "half": "float16",
    "double": "float64",
    "bfloat16": "bfloat16",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}
"""Type of nccl-tests → name in torch, where they differ."""
SIDES = ("out-of-place", "in-place")
HEADER = re.compile(r"^#\s+(?:size|bytes)\s.*\bbusbw\b")
DEVICE = re.compile(r"^#\s+Rank\s+(\d{1,7})\s.{0,60}?\bon\s+(\S+)\s+device\s+\d+")
PROGRAM = re.compile(r"\b([a-z_]{4,14})_perf\b")
END = re.compile(r"^# Avg bus bandwidth\s*:\s*([\d.]+)")
VERSION = re.compile(r"^# nccl-tests version .*\bnccl-library=(\d{4,6})\b")


@dataclass(frozen=True, slots=True)
class Setup:
    """What the comments above a table tell."""

    program: str
    ranks: int
    hosts: int
    repeats: int
    version: str

    @property
    def op(self) -> str:
        """The operation in torch's words; "" where no line names the program."""
        return OPS.get(self.program, self.program)


def _setup_of_run(lines: Sequence[str]) -> Setup:
    """The comments of the run that ends with these lines."""
    lines = [line for line in lines if line[:1] == "#" or "_perf" in line]
    begin = max((n for n, line in enumerate(lines) if line.startswith("# nThread")), default=0)
    earlier = max((n for n, line in enumerate(lines[:begin]) if END.match(line)), default=0)
    ranks = {match[1]: match[2] for match in filter(None, map(DEVICE.match, lines[begin:]))}
    repeats = re.search(
        r"\biters: (\d{1,9})\b(?! agg)",
        re.sub(r"warmup iters: \d+|agg iters: \d+", "", lines[begin]),
    )
    # the program is named above its settings, in the command line or by itself, else below
    named: list[str] = []
    for line in [*lines[begin:], *lines[earlier:begin][::-1]]:
        named += [m[1] for m in PROGRAM.finditer(line[:1000])]
    version = next((m[1] for m in map(VERSION.match, lines[earlier:]) if m), "")
    return Setup(
        named[0] if named else "",
        len(ranks),
        len(set(ranks.values())),
        int(repeats[1]) if repeats else 0,
        version,
    )


def _table(lines: Sequence[str], at: int) -> Document | None:
    columns = lines[at].lstrip("#").split()
    rows, average = [], None
    for place in range(at + 1, min(len(lines), at + LONGEST)):
        line = lines[place]
        row = _row_of_line(columns, line)
        if row is not None:
            rows.append(row)
        elif line.startswith("#"):
            end = END.match(line)
            if end:
                average = float(end[1])
            if end or HEADER.match(line) or line.startswith("# nThread"):
                break
    if not rows:
        return None
    return document(
        rows, _setup_of_run(lines[max(0, at - LONGEST) : at + 1]), lines[at].rstrip(), average
    )


def document(
    rows: Sequence[Mapping[str, Any]], setup: Setup, text: str, average: float | None = None
) -> Document:
    """The document of rows that hold lists of cells by column.

    `text` is the line that stands for them.
    """
    op, ranks = guess(rows, setup.op, setup.ranks)
    measured = [m for row in rows for m in _measurements_of_row(row, op, ranks, setup)]
    known = [m.wrong for m in measured if m.wrong is not None]
    wrong = None
    if known:
        wrong = sum(known)
    data = {"op": op, "ranks": ranks or None, "rows": len(rows), "wrong": wrong, "average": average}
    facts = []
    if setup.version:
        facts = [Fact("software.nccl", _version_of_code(int(setup.version)))]
    return Document("nccl-tests", facts, measured, [Event("nccltests.table", text, data=data)])


def _row_of_line(columns: Sequence[str], line: str) -> dict[str, Any] | None:
    """A row by its columns; those of the two halves as lists of two."""
    cells = line.split()
    if len(cells) < len(columns) or not all(map(is_whole, cells[:2])) or len(cells[0]) > 18:
        return None
    row: dict[str, Any] = {}
    for title, cell in zip(columns, cells, strict=False):
        row.setdefault({"bytes": "size", "N": "count", "op": "redop"}.get(title, title), []).append(
            cell
        )
    times = row.get("time", [])
    rates = row.get("busbw", [])
    good = len(times) == len(rates) == len(row.get("algbw", [])) and all(
        leading_number(cell) is not None for cell in times
    )
    if good and row.get("type", [""])[0].isidentifier():
        return row
    return None


def _measurements_of_row(
    row: Mapping[str, Any], op: str, ranks: int, setup: Setup
) -> Iterator[Measurement]:
    checks = row.get("#wrong", [])
    tails = [leading_number(cell) for cell in row.get("i_p99", [])]
    for side, (how, time, algbw, busbw) in enumerate(
        zip(SIDES, row["time"], row["algbw"], row["busbw"], strict=False)
    ):
        wrong = None
        if side < len(checks):
            wrong = leading_number(checks[side])
        yield Measurement(
            op=op,
            bytes=int(row["size"][0]),
            dtype=TYPES.get(row["type"][0], row["type"][0]),
            ranks=ranks,
            hosts=setup.hosts,
            backend="nccl",
            time_us=float(leading_number(time) or 0.0),
            p99_us=tails[side] if side < len(tails) else None,
            spread=None,
            algbw=float(leading_number(algbw) or 0.0),
            busbw=None if ranks == 1 else leading_number(busbw),
            wrong=None if wrong is None else int(wrong),
            repeats=setup.repeats,
            run=how,
        )


def _version_of_code(code: int) -> str:
    """``22907`` → ``2.29.7``.

    Before 2.9 the code had one digit less for the minor version.
    """
    if code >= 10000:
        return f"{code // 10000}.{code // 100 % 100}.{code % 100}"
    return f"{code // 1000}.{code // 100 % 10}.{code % 100}"


TOOLS = (
    # #     size       count    type   redop    root     time   algbw   busbw #wrong \
    #       time   algbw   busbw #wrong
    Tool((b"busbw", b"Avg bus bandwidth"), HEADER, _table),
)


MOST = 1024
"""Ranks that are tried."""


def guess(rows: Sequence[Mapping[str, Any]], op: str, ranks: int) -> tuple[str, int]:
    """Operation and ranks; unknown ranks are 0.

    Operations that the numbers cannot tell apart stand side by side.
    """
    pairs = []
    for row in rows:
        for alg, bus in zip(row["algbw"], row["busbw"], strict=False):
            pairs.append((float(leading_number(alg) or 0.0), float(leading_number(bus) or 0.0)))
    if ranks:
        sizes = [ranks]
    else:
        sizes = list(range(1, MOST + 1))
    fits = {
        name: [
            n for n in sizes if all(_fits_factor(pair, bandwidth.factor(name, n)) for pair in pairs)
        ]
        for name in ([op] if op in bandwidth.FACTORS else [] if op else _possible(rows[0]))
    }
    names = [name for name, sizes in fits.items() if sizes]
    known = {n for sizes in fits.values() for n in sizes}
    return op or "/".join(names) or "unknown", ranks or (known.pop() if len(known) == 1 else 0)


def _fits_factor(pair: tuple[float, float], factor: float) -> bool:
    """Whether two numbers have this factor, as they are rounded to two places.

    Small ones tell nothing.
    """
    alg, bus = pair
    return abs(bus - alg * factor) <= 0.0051 * (1 + factor)


def _possible(row: Mapping[str, Any]) -> list[str]:
    """The operations that the columns allow.

    A reduction has an operator, and a root is -1 where there is none.
    """
    reduces = row.get("redop", ["none"])[0] != "none"
    root = None
    if "root" in row:
        root = leading_number(row["root"][0])
    checks = row.get("#wrong", [])
    if reduces:
        rooted = ["reduce"]
        free = ["all_reduce", "reduce_scatter"]
    elif len(checks) > 1 and checks[0] != "N/A" and checks[1] == "N/A":
        # these two have no in-place form
        rooted = ["broadcast", "gather", "scatter"]
        free = ["all_to_all", "send_recv"]
    else:
        rooted = ["broadcast", "gather", "scatter"]
        free = ["all_gather", "all_to_all", "send_recv"]
    if root is None:
        return rooted + free
    if root < 0:
        return free
    return rooted


COMMON = {"size": ("size", "bytes"), "type": ("type",), "redop": ("redop", "op"), "root": ("root",)}
HALF = {
    "time": ("time", "timeus"),
    "algbw": ("algbw",),
    "busbw": ("busbw",),
    "#wrong": ("nwrong", "wrong", "errors"),
}
"""Column of the printed table → names of its key, without underscores, in small letters."""
HALF_NAMES = ("outofplace", "inplace")


def is_results(value: object) -> bool:
    """True for a JSON document with rows of nccl-tests."""
    return isinstance(value, dict) and any(True for _ in _rows_of_json(value))


def read_measurements(value: Mapping[str, Any], path: str) -> Document:
    """The measurements of such a document in file `path`."""
    devices = value.get("devices")
    if not isinstance(devices, list):
        devices = []
    hosts = {str(_plain_keys(device).get("hostname", "")) for device in devices} - {""}
    program = next((m[1] for m in PROGRAM.finditer(str(value.get("args", ""))[:4000])), "")
    setup = Setup(program, len(devices), len(hosts), 0, "")
    return replace(
        document(list(_rows_of_json(value)), setup, "nccl-tests -J"), tool="nccl-tests -J"
    ).placed(path, 0)


def _rows_of_json(value: Mapping[str, Any]) -> Iterator[dict[str, list[str]]]:
    """Rows as the printed table gives them: cells by column, of both halves."""
    results = value.get("results")
    if not isinstance(results, list):
        return
    for result in results:
        row = _row_of_result(result)
        if _is_whole_row(row):
            yield {name: cells for name, cells in row.items() if cells}


def _row_of_result(result: Any) -> dict[str, list[str]]:
    plain = _plain_keys(result)
    halves = []
    for side in HALF_NAMES:
        if side in plain:
            halves.append(_plain_keys(plain[side]))
    row = {}
    for name, keys in COMMON.items():
        row[name] = _collected_cells([plain], keys)
    for name, keys in HALF.items():
        row[name] = _collected_cells(halves, keys)
    return row


def _is_whole_row(row: Mapping[str, list[str]]) -> bool:
    """Whether it says what was measured, and each half all of its numbers."""
    sizes = row["size"]
    if not sizes or not is_whole(sizes[0]) or not row["type"]:
        return False
    # a half without one of them would take the number of the other half
    return len(row["time"]) == len(row["algbw"]) == len(row["busbw"]) > 0


def _plain_keys(value: object) -> dict[str, Any]:
    items = value.items() if isinstance(value, dict) else ()
    return {str(key).replace("_", "").lower(): item for key, item in items}


def _collected_cells(maps: list[dict[str, Any]], keys: tuple[str, ...]) -> list[str]:
    found = [next((values[key] for key in keys if key in values), None) for values in maps]
    collected: list[str] = []
    for cell in found:
        if isinstance(cell, (str, int, float)):
            if isinstance(cell, float):
                collected.append(f"{cell:.4f}")
            else:
                collected.append(str(cell))
    return collected
