"""Commands that describe a host, as their output lies in logs and files.

``python -m torch.utils.collect_env``, also as vLLM extends it: versions, GPUs, CPU, NCCL's
variables. What the kernel allows a process: ``ulimit -a`` of all shells, ``/proc/<pid>/limits``,
``df /dev/shm``; ``free``. RDMA devices: ibstat, ibstatus, ibv_devinfo, show_gids; all tell of
``net.rdma``. ``nvidia-smi -q -x`` and ``nvidia-smi topo -m``, by the same readers that ask a live
machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from ncclkit.agent import redact
from ncclkit.agent.digits import is_whole
from ncclkit.agent.facts import gpu
from ncclkit.agent.facts.machine import Answer, Machine, Missing, Unread
from ncclkit.agent.facts.settings import SCOPE
from ncclkit.agent.facts.software import FRAMEWORKS
from ncclkit.core.model import Fact, from_dict
from ncclkit.evidence.tools.document import UNLIMITED, Document, Tool, document_of, leading_number

REPORT_LINES = 600
"""Lines of one report; vLLM's lists every package of conda."""
TITLE = re.compile(r"^([A-Z][\w ()-]{0,60}?)\s{0,40}:(.*)")
PACKAGE = re.compile(r"^\[(?:pip3?|conda)\]\s+([\w.-]+)(?:==|\s+)v?(\d[\w.+!-]*)")
GPU = re.compile(r"^GPU (\d{1,3}): (.+)")
NOT_KNOWN = ("", "N/A", "Could not collect", "None", "False")


def _report(lines: Sequence[str], at: int) -> Document | None:
    body = list(lines[at : at + REPORT_LINES])
    after = (
        number for number, line in enumerate(body[1:], 1) if line.startswith("PyTorch version")
    )
    body = body[: next(after, len(body))]
    said: dict[str, str] = {}
    for match in filter(None, map(TITLE.match, body)):
        said.setdefault(match[1], match[2].strip())
    packages = [(match[1].lower(), match[2]) for match in filter(None, map(PACKAGE.match, body))]
    gpus = {
        int(match[1]): match[2].strip()
        for match in filter(None, map(GPU.match, _lines_after_title(body, "GPU models")))
    }
    values = _software(said, packages) | _host(said)
    values |= {f"gpu.{index}.model": model for index, model in gpus.items()} | {
        "gpu.count": len(gpus) or None
    }
    variables = (line.partition("=") for line in body if re.match(r"[A-Z]\w+=", line))
    values |= {
        f"env.{name}": redact.clean(value.strip(), name)
        for name, _, value in variables
        if SCOPE.match(name)
    }
    return document_of("collect_env", values, {"cpu.total": "CPUs"})


def _lines_after_title(body: Sequence[str], title: str) -> list[str]:
    """The line of this title, without it, and the lines up to the next one."""
    at = next((number for number, line in enumerate(body) if line.startswith(title)), None)
    if at is None:
        return []
    rest = takewhile(lambda line: GPU.match(line) or not TITLE.match(line), body[at + 1 :])
    return [body[at].partition(":")[2].strip(), *rest]


def _software(said: dict[str, str], packages: list[tuple[str, str]]) -> dict[str, Any]:
    versions = dict(packages)
    nccl = [
        {"path": name, "version": version, "how": "wheel"}
        for name, version in versions.items()
        if name.startswith("nvidia-nccl-cu")
    ]
    known = {name: versions[name] for name in FRAMEWORKS if name in versions}
    return {
        "software.torch": _known_value(said, "PyTorch version"),
        "software.torch.cuda": _known_value(said, "CUDA used to build PyTorch"),
        "software.python": (_known_value(said, "Python version") or "").split(" ")[0] or None,
        "software.frameworks": known or None,
        "software.nccl.libraries": nccl or None,
        "gpu.driver": _known_value(said, "Nvidia driver version"),
    }


def _host(said: dict[str, str]) -> dict[str, Any]:
    kernel = re.match(
        r"Linux-(\S+?)-(?:x86_64|aarch64|ppc64le)", _known_value(said, "Python platform") or ""
    )
    return {
        "host.os": _known_value(said, "OS"),
        "host.kernel": kernel and kernel[1],
        "host.glibc": (_known_value(said, "Libc version") or "").removeprefix("glibc-") or None,
        "cpu.model": _known_value(said, "Model name"),
        "cpu.total": leading_number(said.get("CPU(s)", "")),
    }


def _known_value(said: dict[str, str], title: str) -> str | None:
    value = said.get(title, "")
    if value in NOT_KNOWN:
        return None
    return value


COLLECTED = (
    # PyTorch version: 2.13.0+cu130           PyTorch version              : 2.7.0+cu126
    Tool((b"PyTorch version",), re.compile(r"^PyTorch version\s*: \S"), _report),
)


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
    block = [
        *_lines_of_limits(around[:here][::-1])[::-1],
        around[here],
        *_lines_of_limits(around[here + 1 :]),
    ]
    values = {
        name: next((_limit_of_line(line) for line in block if re.match(title, line)), None)
        for name, title in SHELL
    }
    return document_of("ulimit -a", values, UNITS)


def _lines_of_limits(lines: Sequence[str]) -> list[str]:
    """The lines up to the first that is no limit."""
    block: list[str] = []
    for line in lines:
        if not re.search(r"(?:\s|\))(?:\d+|unlimited)\s*$", line):
            break
        block.append(line)
    return block


def _limit_of_line(line: str) -> int | None:
    """The limit at a line's end, in bytes where its title counts kbytes."""
    said = line.split()[-1]
    if said == "unlimited":
        return UNLIMITED
    value = leading_number(said)
    if value is not None:
        return int(value) * (1024 if "kbytes" in line else 1)
    return None


def _proc(lines: Sequence[str], at: int) -> Document | None:
    rows = [line for line in lines[max(0, at - 5) : at + 14] if line.startswith("Max ")]
    values = {}
    for name, title, which in PROC:
        cells = next(
            (line[len(title) :].split() for line in rows if line.startswith(title + " ")), []
        )
        if len(cells) > which:
            said = cells[which]
        else:
            said = ""
        values[name] = UNLIMITED if said == "unlimited" else leading_number(said)
    return document_of("/proc/self/limits", values, UNITS)


def _shm(lines: Sequence[str], at: int) -> Document | None:
    match = SHM.search(lines[at])
    if match is None:
        return None
    size, _, free = (
        round(float(amount) * SIZES[letter]) for amount, letter in re.findall(CELL, match[1])
    )
    return document_of("df /dev/shm", {"limits.shm.size": size, "limits.shm.free": free}, UNITS)


def _free(lines: Sequence[str], at: int) -> Document | None:
    """The row of memory.

    Without a letter the unit is that of the option in the lines above, KiB by default.
    """
    title = next(
        (line for line in lines[max(0, at - 1) : at] if line.split()[-1:] == ["available"]), ""
    )
    cells = re.findall(CELL, lines[at].replace("i ", " ") + " ")
    if not title or len(cells) != len(title.split()):
        return None
    asked = re.search(r"\bfree +(?:-\w+ +)*?-\w*([bkmg])\b", " ".join(lines[max(0, at - 3) : at]))
    if asked:
        unit = SIZES[asked[1].upper()]
    else:
        unit = SIZES[""]
    total, left = (
        round(float(amount) * (SIZES[letter] if letter else unit))
        for amount, letter in (cells[0], cells[-1])
    )
    return document_of("free", {"memory.total": total, "memory.available": left}, UNITS)


CELL = r"(\d{1,15}(?:\.\d+)?)([BKMGT]?)(?:i?B)?(?=\s)"
SHM = re.compile(r"^\S+((?:\s+\d{1,15}(?:\.\d+)?[BKMGT]?){3}\s)\s*\d+% /dev/shm\s*$")

KERNEL = (
    # max locked memory           (kbytes, -l) 64
    # locked memory(kbytes) 64          -l: locked-in-memory size …
    Tool(
        (b"locked memory", b"locked-in-"),
        re.compile(r"^(?:max )?locked memory *\(|^-l: locked-in-memory"),
        _ulimit,
    ),
    # Max stack size            8388608              unlimited            bytes
    Tool((b"Max stack size",), re.compile(r"^Max stack size "), _proc),
    # shm              64M     0   64M   0% /dev/shm
    Tool((b"% /dev/shm",), SHM, _shm),
    # Mem:             503         497           2           0           3           1
    Tool((b"Mem: ",), re.compile(r"^Mem: +\d"), _free),
)


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


def _empty_row(device: str, port: int) -> Row:
    said = {"state": "", "physical": "", "rate": None, "link_layer": "", "numa": None}
    return {"device": device, "port": port, **said, "gids": [], "counters": {}}


def _ports_of_device(
    tool: str, device: str, port: int | None, lines: Sequence[str]
) -> Document | None:
    """The ports of one device.

    They are titles with their values, up to a blank line or one that is something else.
    """
    if port is None:
        rows: list[Row] = []
    else:
        rows = [_empty_row(device, port)]
    for line in lines:
        field = FIELD.match(line)
        if not line.strip() or (field is None and not line[0].isspace()):
            break
        if field:
            title, value = field[1], (field[2] or "").strip()
        else:
            title, value = "", ""
        new = re.fullmatch(r"[Pp]ort ?(\d+)?", title)
        if new:
            rows.append(_empty_row(device, int(new[1] or leading_number(value) or 0)))
        elif rows:
            _put_title(rows[-1], title, value)
    return document_of(tool, {"net.rdma": rows or None})


def _put_title(row: Row, title: str, value: str) -> None:
    """One title of a port; those that say nothing of use are passed over."""
    key = PLACES.get(title)
    if key == "rate":
        if (rate := leading_number(value)) is None:
            row["rate"] = None
        else:
            row["rate"] = float(rate)
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
    return _ports_of_device("ibstat", lines[at].split("'")[1], None, lines[at + 1 : at + 200])


def _ibstatus(lines: Sequence[str], at: int) -> Document | None:
    head = re.search(r"device '([^']+)' port (\d{1,3}) status", lines[at])
    return head and _ports_of_device("ibstatus", head[1], int(head[2]), lines[at + 1 : at + 12])


def _devinfo(lines: Sequence[str], at: int) -> Document | None:
    rest = lines[at + 1 : at + 2000]
    end = next(
        (number for number, line in enumerate(rest) if line.lstrip().startswith("hca_id:")),
        len(rest),
    )
    return _ports_of_device("ibv_devinfo", lines[at].split()[1], None, rest[:end])


def _gids(lines: Sequence[str], at: int) -> Document | None:
    rows: dict[tuple[str, int], Row] = {}
    for line in lines[at + 1 : at + 3000]:
        cells = line.split()
        if cells[:1] and set(cells[0]) == {"-"}:
            continue
        if len(cells) < 5 or not (is_whole(cells[1]) and is_whole(cells[2]) and ":" in cells[3]):
            break
        row = rows.setdefault(
            (cells[0], int(cells[1][:9])), _empty_row(cells[0], int(cells[1][:9]))
        )
        kind = next((cell for cell in cells[4:] if cell in GID_TYPES), "")
        interface = ""
        if cells[-1] != kind and "." not in cells[-1]:
            interface = cells[-1]
        gid = {
            "index": int(cells[2][:9]),
            "gid": cells[3],
            "type": GID_TYPES.get(kind, ""),
            "interface": interface,
        }
        row["gids"].append(gid)
    return document_of("show_gids", {"net.rdma": list(rows.values()) or None})


def joined(facts: Sequence[Fact]) -> list[Fact]:
    """The same facts with one ``net.rdma`` a rank.

    In it stands together what several tools say of a port.
    """
    ports: dict[int | None, list[Fact]] = {}
    for fact in facts:
        if fact.name == "net.rdma":
            ports.setdefault(fact.rank, []).append(fact)
    others = [fact for fact in facts if fact.name != "net.rdma"]
    return others + [replace(said[0], value=list(_merged_ports(said))) for said in ports.values()]


def _merged_ports(facts: Sequence[Fact]) -> Iterator[Row]:
    rows: dict[tuple[str, int], Row] = {}
    for fact in facts:
        for row in fact.value:
            known = rows.setdefault((row["device"], row["port"]), dict(row))
            known |= {key: value for key, value in row.items() if value and not known[key]}
    return iter(rows.values())


RDMA = (
    # CA 'mlx5_0'
    Tool((b"CA '",), re.compile(r"^CA '[\w.-]+'\s*$"), _ibstat),
    # Infiniband device 'mlx5_0' port 1 status:
    Tool(
        (b"Infiniband device '",),
        re.compile(r"^Infiniband device '[^']+' port \d{1,3} status"),
        _ibstatus,
    ),
    # hca_id: mlx5_0
    Tool((b"hca_id:",), re.compile(r"^hca_id:\s+\S"), _devinfo),
    # DEV     PORT    INDEX   GID                                     IPv4            VER     DEV
    Tool((b"INDEX",), re.compile(r"^DEV\s+PORT\s+INDEX\s+GID\b"), _gids),
)


SMI_LINES = 50_000
"""Lines of one document; a host with 8 GPUs writes some 1,200, accounting adds thousands."""
OPEN, CLOSE = "<nvidia_smi_log", gpu.CLOSE


class _SavedOutput(Machine):
    """A machine that answers one command only, with its saved output."""

    def __init__(self, argv: Sequence[str], out: str) -> None:
        super().__init__()
        self.argv = argv
        self.out = out

    def run(self, argv: list[str], deadline: float, name: str = "") -> Answer:
        """The known output; Missing for every other command."""
        if argv != self.argv:
            raise Missing(f"{name or argv[0]} was not recorded")
        return Answer(0, self.out)

    def _at(self, path: str) -> str:
        raise Unread(f"{path} was not recorded")


def state(text: str) -> Document | None:
    """The facts that the XML in a text holds of each GPU.

    Of a cut XML, they are those of the GPUs that are whole.  The text is taken from its root
    element on: entities can only be declared before it, so none are expanded.
    """
    head, end, _ = text[max(0, text.find(OPEN)) :].partition(CLOSE)
    if not end and "</gpu>" not in head:
        return None
    found = {
        fact["name"]: fact
        for fact in gpu.gpu_facts(_SavedOutput(gpu.QUERY, head + end))
        if fact["source"] == gpu.SMI
    }
    state = found["gpu.nvidia_smi"]["value"]
    if state == "failed":
        return Document(
            gpu.SMI, problem="is not valid XML; save it again with `nvidia-smi -q -x > gpus.xml`."
        )
    problem = ""
    if state == "breaks off":
        del found["gpu.nvidia_smi"]  # the file does, which says nothing of the driver
        problem = "breaks off within the output of nvidia-smi; the GPUs before that were read."
    return Document(gpu.SMI, [_without_source(fact) for fact in found.values()], problem=problem)


def _without_source(fact: dict[str, Any]) -> Fact:
    return replace(from_dict(Fact, fact), source="")


def _state(lines: Sequence[str], at: int) -> Document | None:
    body = [lines[at]]
    for line in range(at + 1, min(len(lines), at + SMI_LINES)):
        if CLOSE in body[-1] or OPEN in lines[line]:
            break
        body.append(lines[line])
    return state("\n".join(body))


def _topology(lines: Sequence[str], at: int) -> Document | None:
    body = [
        lines[at],
        *takewhile(lambda line: "CPU Affinity" not in line, lines[at + 1 : at + 400]),
    ]
    out = "\n".join(
        "\t" + line.lstrip() if number == 0 else line for number, line in enumerate(body)
    )
    try:
        matrix = gpu.matrix(out)
    except Unread:
        return None
    names = dict(re.findall(r"^\s*(NIC\d+):\s*(\S+)", out, re.MULTILINE))
    return document_of(
        " ".join(gpu.TOPOLOGY), {"gpu.topology": matrix, "gpu.topology.nics": names or None}
    )


SMI = (
    # <nvidia_smi_log>
    Tool((OPEN.encode(),), re.compile(OPEN), _state),
    #         GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity
    Tool((b"CPU Affinity",), re.compile(r"^\s*GPU0\b.*\bCPU Affinity"), _topology),
)
