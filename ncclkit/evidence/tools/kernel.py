"""What the kernel allows a process: ``ulimit -a`` of all shells, ``/proc/<pid>/limits``, ``df /dev/shm``; ``free``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ncclkit.evidence.tools.document import UNLIMITED, Document, Tool, document_of, number

UNITS = {
    "limits.nofile.soft": "files",
    "limits.nofile.hard": "files",
    "limits.memlock": "bytes",
    "limits.nproc": "processes",
    "limits.stack": "bytes",
    "limits.shm.size": "bytes",
    "limits.shm.free": "bytes",
    "memory.total": "bytes",
    "memory.available": "bytes",
}
SHELL = (
    ("limits.nofile.soft", r"(?:open files|-n: file descriptors|nofiles)\b"),
    ("limits.memlock", r"(?:max locked memory|locked memory\(|-l: locked-in-memory)"),
    ("limits.nproc", r"(?:max user processes|-u: processes|process\s+(?=[\du]))"),
    ("limits.stack", r"(?:-s: )?stack(?: size)? *\("),
)
"""Fact → how shells title it."""
PROC = (
    ("limits.nofile.soft", "Max open files", 0),
    ("limits.nofile.hard", "Max open files", 1),
    ("limits.memlock", "Max locked memory", 0),
    ("limits.nproc", "Max processes", 0),
    ("limits.stack", "Max stack size", 0),
)
"""Fact, title in /proc/<pid>/limits, 0 = soft or 1 = hard."""
SIZES = {"": 1 << 10, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
"""Letter after a size of df → bytes; without -h it counts KiB."""


def _ulimit(lines: Sequence[str], at: int) -> Document | None:
    around = lines[max(0, at - 12) : at + 16]
    here = min(at, 12)
    block = [*_run(around[:here][::-1])[::-1], around[here], *_run(around[here + 1 :])]
    values = {name: next((_limit(line) for line in block if re.match(title, line)), None) for name, title in SHELL}
    return document_of("ulimit -a", values, UNITS)


def _run(lines: Sequence[str]) -> list[str]:
    """The lines up to the first that is no limit."""
    block: list[str] = []
    for line in lines:
        if not re.search(r"(?:\s|\))(?:\d+|unlimited)\s*$", line):
            break
        block.append(line)
    return block


def _limit(line: str) -> int | None:
    """The limit at a line's end, in bytes where its title counts kbytes."""
    said = line.split()[-1]
    if said == "unlimited":
        return UNLIMITED
    value = number(said)
    return int(value) * (1024 if "kbytes" in line else 1) if value is not None else None


def _proc(lines: Sequence[str], at: int) -> Document | None:
    rows = [line for line in lines[max(0, at - 5) : at + 14] if line.startswith("Max ")]
    values = {}
    for name, title, which in PROC:
        cells = next((line[len(title) :].split() for line in rows if line.startswith(title + " ")), [])
        said = cells[which] if len(cells) > which else ""
        values[name] = UNLIMITED if said == "unlimited" else number(said)
    return document_of("/proc/self/limits", values, UNITS)


def _shm(lines: Sequence[str], at: int) -> Document | None:
    match = SHM.search(lines[at])
    if match is None:
        return None
    size, _, free = (round(float(amount) * SIZES[letter]) for amount, letter in re.findall(CELL, match[1]))
    return document_of("df /dev/shm", {"limits.shm.size": size, "limits.shm.free": free}, UNITS)


def _free(lines: Sequence[str], at: int) -> Document | None:
    """The row of memory; without a letter the unit is that of the option in the lines above, KiB by default."""
    title = next((line for line in lines[max(0, at - 1) : at] if line.split()[-1:] == ["available"]), "")
    cells = re.findall(CELL, lines[at].replace("i ", " ") + " ")
    if not title or len(cells) != len(title.split()):
        return None
    asked = re.search(r"\bfree +(?:-\w+ +)*?-\w*([bkmg])\b", " ".join(lines[max(0, at - 3) : at]))
    unit = SIZES[asked[1].upper()] if asked else SIZES[""]
    total, left = (
        round(float(amount) * (SIZES[letter] if letter else unit)) for amount, letter in (cells[0], cells[-1])
    )
    return document_of("free", {"memory.total": total, "memory.available": left}, UNITS)


CELL = r"(\d{1,15}(?:\.\d+)?)([BKMGT]?)(?:i?B)?(?=\s)"
SHM = re.compile(r"^\S+((?:\s+\d{1,15}(?:\.\d+)?[BKMGT]?){3}\s)\s*\d+% /dev/shm\s*$")

TOOLS = (
    # max locked memory           (kbytes, -l) 64          locked memory(kbytes) 64          -l: locked-in-memory size …
    Tool((b"locked memory", b"locked-in-"), re.compile(r"^(?:max )?locked memory *\(|^-l: locked-in-memory"), _ulimit),
    # Max stack size            8388608              unlimited            bytes
    Tool((b"Max stack size",), re.compile(r"^Max stack size "), _proc),
    # shm              64M     0   64M   0% /dev/shm
    Tool((b"% /dev/shm",), SHM, _shm),
    # Mem:             503         497           2           0           3           1
    Tool((b"Mem: ",), re.compile(r"^Mem: +\d"), _free),
)
