"""RDMA devices as their tools show them: ibstat, ibstatus, ibv_devinfo, show_gids; all tell of ``net.rdma``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ncclkit.core.model import Fact
from ncclkit.evidence.tools.document import Document, Tool, document_of, number

FIELD = re.compile(r"^\s*([A-Za-z_][\w ]{0,40}?(?:\[ {0,3}\d{1,3}\])?)\s{0,40}:(?:\s(.*))?$")
PLACES = {
    "State": "state",
    "state": "state",
    "Physical state": "physical",
    "phys state": "physical",
    "phys_state": "physical",
    "Rate": "rate",
    "rate": "rate",
    "Link layer": "link_layer",
    "link_layer": "link_layer",
}
"""Title in some tool → key of a row of ``net.rdma``."""
GID_TYPES = {"v1": "IB/RoCE v1", "v2": "RoCE v2"}
"""Short name that show_gids writes → the kernel's."""

Row = dict[str, Any]


def _row(device: str, port: int) -> Row:
    said = {"state": "", "physical": "", "rate": None, "link_layer": "", "numa": None}
    return {"device": device, "port": port, **said, "gids": [], "counters": {}}


def _block(tool: str, device: str, port: int | None, lines: Sequence[str]) -> Document | None:
    """The ports of one device: titles with their values, up to a blank line or one that is something else."""
    rows: list[Row] = [] if port is None else [_row(device, port)]
    for line in lines:
        field = FIELD.match(line)
        if not line.strip() or (field is None and not line[0].isspace()):
            break
        title, value = (field[1], (field[2] or "").strip()) if field else ("", "")
        if new := re.fullmatch(r"[Pp]ort ?(\d+)?", title):
            rows.append(_row(device, int(new[1] or number(value) or 0)))
        elif rows:
            _put(rows[-1], title, value)
    return document_of(tool, {"net.rdma": rows or None})


def _put(row: Row, title: str, value: str) -> None:
    """One title of a port; those that say nothing of use are passed over."""
    key = PLACES.get(title)
    if key == "rate":
        row["rate"] = None if (rate := number(value)) is None else float(rate)
    elif key == "state":
        # "Active", "4: ACTIVE", "PORT_ACTIVE (4)": as the kernel says it
        row["state"] = re.sub(r"^\d+: |^PORT_| \(\d+\)$", "", value).upper()
    elif key == "physical":
        row["physical"] = re.sub(r"^\d+: | \(\d+\)$", "", value).replace("LINK_UP", "LinkUp")
    elif key:
        row[key] = value
    elif (index := re.match(r"GID\[ *(\d+)\]", title)) and value:
        gid, _, kind = value.partition(", ")
        row["gids"].append({"index": int(index[1]), "gid": gid, "type": kind, "interface": ""})


def _ibstat(lines: Sequence[str], at: int) -> Document | None:
    return _block("ibstat", lines[at].split("'")[1], None, lines[at + 1 : at + 200])


def _ibstatus(lines: Sequence[str], at: int) -> Document | None:
    head = re.search(r"device '([^']+)' port (\d{1,3}) status", lines[at])
    return head and _block("ibstatus", head[1], int(head[2]), lines[at + 1 : at + 12])


def _devinfo(lines: Sequence[str], at: int) -> Document | None:
    rest = lines[at + 1 : at + 2000]
    end = next((number for number, line in enumerate(rest) if line.lstrip().startswith("hca_id:")), len(rest))
    return _block("ibv_devinfo", lines[at].split()[1], None, rest[:end])


def _gids(lines: Sequence[str], at: int) -> Document | None:
    rows: dict[tuple[str, int], Row] = {}
    for line in lines[at + 1 : at + 3000]:
        cells = line.split()
        if cells[:1] and set(cells[0]) == {"-"}:
            continue
        if len(cells) < 5 or not (cells[1].isdigit() and cells[2].isdigit() and ":" in cells[3]):
            break
        row = rows.setdefault((cells[0], int(cells[1][:9])), _row(cells[0], int(cells[1][:9])))
        kind = next((cell for cell in cells[4:] if cell in GID_TYPES), "")
        interface = cells[-1] if cells[-1] != kind and "." not in cells[-1] else ""
        gid = {"index": int(cells[2][:9]), "gid": cells[3], "type": GID_TYPES.get(kind, ""), "interface": interface}
        row["gids"].append(gid)
    return document_of("show_gids", {"net.rdma": list(rows.values()) or None})


def joined(facts: Sequence[Fact]) -> list[Fact]:
    """The same facts with one ``net.rdma`` a rank, in which what several tools say of a port stands together."""
    ports: dict[int | None, list[Fact]] = {}
    for fact in facts:
        if fact.name == "net.rdma":
            ports.setdefault(fact.rank, []).append(fact)
    others = [fact for fact in facts if fact.name != "net.rdma"]
    return others + [replace(said[0], value=list(_merged(said))) for said in ports.values()]


def _merged(facts: Sequence[Fact]) -> Iterator[Row]:
    rows: dict[tuple[str, int], Row] = {}
    for fact in facts:
        for row in fact.value:
            known = rows.setdefault((row["device"], row["port"]), dict(row))
            known |= {key: value for key, value in row.items() if value and not known[key]}
    return iter(rows.values())


TOOLS = (
    # CA 'mlx5_0'
    Tool((b"CA '",), re.compile(r"^CA '[\w.-]+'\s*$"), _ibstat),
    # Infiniband device 'mlx5_0' port 1 status:
    Tool((b"Infiniband device '",), re.compile(r"^Infiniband device '[^']+' port \d{1,3} status"), _ibstatus),
    # hca_id: mlx5_0
    Tool((b"hca_id:",), re.compile(r"^hca_id:\s+\S"), _devinfo),
    # DEV     PORT    INDEX   GID                                     IPv4            VER     DEV
    Tool((b"INDEX",), re.compile(r"^DEV\s+PORT\s+INDEX\s+GID\b"), _gids),
)
