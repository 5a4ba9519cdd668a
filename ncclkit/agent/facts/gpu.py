"""GPUs: what nvidia-smi says of them, else /dev and /proc.

It reads their state, their links, and whether their driver answers.  A hung nvidia-smi is itself a
fact.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as tree
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Union

from ..digits import whole_numbers
from ..threads import side_by_side
from . import software
from .machine import (
    Answer,
    Fact,
    Hung,
    Hurried,
    Machine,
    Missing,
    TooLong,
    Unread,
    attempt,
    known,
    unread,
)

SMI = "nvidia-smi -q -x"
QUERY = SMI.split()
IN_THE_WAY = (
    *(
        "N/A",
        "Unknown Error",
        "Requested functionality has been deprecated",
        "Not Supported",
        "ERR!",
    ),
    *("Insufficient Permissions", "GPU is lost", "GPU requires reset"),
)
"""What nvidia-smi writes where it has no answer, sometimes in brackets."""

CLOSE = "</nvidia_smi_log>"
XML = re.compile(r"<nvidia_smi_log.*?(?:%s|\Z)" % CLOSE, re.S)
"""Warnings may stand before it and after it, which no XML parser takes."""
AROUND = 4096
"""Characters around it that are looked at."""
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""What XML cannot hold; a broken infoROM gives serial numbers and names of such bytes."""

TEXTS = {
    "model": "product_name",
    "uuid": "uuid",
    "compute_mode": "compute_mode",
    "persistence": "persistence_mode",
    "mig": "mig_mode/current_mig",
    "ecc.mode": "ecc_mode/current_ecc",
    "recovery": "gpu_recovery_action",
    "fabric.state": "fabric/state",
    "fabric.status": "fabric/status",
    "fabric.clique": "fabric/cliqueId",
}
NUMBERS = {
    "memory.total": ("fb_memory_usage/total", "MiB"),
    "memory.free": ("fb_memory_usage/free", "MiB"),
    "busy": ("utilization/gpu_util", "%"),
    "temperature": ("temperature/gpu_temp", "C"),
    "clock.sm": ("clocks/sm_clock", "MHz"),
    "clock.sm.max": ("max_clocks/sm_clock", "MHz"),
    "clock.memory": ("clocks/mem_clock", "MHz"),
    "clock.memory.max": ("max_clocks/mem_clock", "MHz"),
    "pcie.gen": ("pci/pci_gpu_link_info/pcie_gen/current_link_gen", ""),
    "pcie.gen.max": ("pci/pci_gpu_link_info/pcie_gen/max_link_gen", ""),
    "pcie.width": ("pci/pci_gpu_link_info/link_widths/current_link_width", ""),
    "pcie.width.max": ("pci/pci_gpu_link_info/link_widths/max_link_width", ""),
}
"""Fact → (place in the XML, unit)."""


def parse_log(answer: Answer) -> tuple[tree.Element, str]:
    """The XML that nvidia-smi wrote, and where it breaks off.

    Where it breaks off, the GPUs before that are whole; where it does not, the place is "".  A
    refusal (which nvidia-smi writes to stdout) becomes Unread, and so does what holds no whole GPU.
    """
    said = XML.search(answer.out)
    if not said:
        lines = (answer.out.strip() or answer.err.strip() or "nothing").split("\n")
        words = " ".join(lines[:2])[:300]
        raise Unread("%s ended with status %d and said: %s" % (SMI, answer.code, words))
    text = CONTROL.sub("", said.group())
    cut = ""
    head, end, _ = text.rpartition("</gpu>")
    if end and not text.endswith(CLOSE):
        text, whole = head + end + CLOSE, text.count(end)
        cut = "%s ended with status %d and its XML breaks off behind GPU %d" % (
            SMI,
            answer.code,
            whole - 1,
        )
    try:
        return tree.fromstring(text), cut
    except tree.ParseError as error:
        raise Unread("%s wrote broken XML: %s" % (SMI, error)) from None


def remarks(answer: Answer) -> str:
    """What nvidia-smi said around the XML.

    An example is ``WARNING: infoROM is corrupted at gpu 0000:5C:00.0``.
    """
    # cut, as the pattern below takes the square of its length
    around = (XML.sub(" ", answer.out) + " " + answer.err)[:AROUND]
    return " ".join(re.sub(r"<[?!][^>]*>", " ", around).split())[:300]


def facts_of_gpu(index: int, gpu: tree.Element) -> Iterator[Fact]:
    """``gpu.<index>.…`` of one ``<gpu>`` element."""
    name = "gpu.%d." % index
    powers = {"power": POWER, "power.limit": LIMIT}
    readers: dict[str, Callable[[tree.Element], Any]] = {
        "memory.holders": _memory_holders,
        "ecc.uncorrected": _uncorrected,
        "remapped_rows": _remapped,
        "throttle": _throttle,
    }
    yield attempt(name + "bus", lambda: gpu.attrib["id"].lower(), source=SMI)
    for key, place in TEXTS.items():
        yield attempt(name + key, partial(text_at, gpu, place), source=SMI)
    for key, (place, unit) in NUMBERS.items():
        yield attempt(name + key, partial(number_at, gpu, place), unit, SMI)
    for key, places in powers.items():
        yield attempt(name + key, partial(_power, gpu, places), "W", SMI)
    for key, read in readers.items():
        yield attempt(name + key, partial(read, gpu), source=SMI)


def text_at(node: tree.Element, place: str) -> str:
    """The text at `place`; absent or "N/A" raises Unread."""
    said = (node.findtext(place) or "").strip()
    if not said or said.strip("[]") in IN_THE_WAY:
        raise Unread("nvidia-smi says %s for %s" % (said or "nothing", place))
    return said


def number_at(node: tree.Element, place: str) -> float:
    """The number in ``81559 MiB``, ``29 C``, ``16x``."""
    said = text_at(node, place)
    found = re.match(r"[\d.]+", said)
    if not found:
        raise Unread("nvidia-smi says %s for %s" % (said, place))
    if "." in found.group():
        return float(found.group())
    return int(found.group())


def _memory_holders(gpu: tree.Element) -> list[dict[str, object]]:
    """Who holds memory; only the program's name, since arguments may hold secrets."""
    return [
        {
            "pid": int(process.findtext("pid") or 0),
            "name": ((process.findtext("process_name") or "").split() or ["?"])[0],
            "memory": (process.findtext("used_memory") or "").strip(),
        }
        for process in gpu.findall("processes/process_info")
    ]


def _uncorrected(gpu: tree.Element) -> int:
    """Uncorrectable ECC errors since the driver was loaded, over all memories."""
    counts = gpu.find("ecc_errors/volatile")
    nodes = counts.iter() if counts is not None else ()
    said = [(node.text or "").strip() for node in nodes if "uncorrect" in node.tag]
    numbers = whole_numbers(said)
    if not numbers:
        raise Unread("nvidia-smi counts no ECC errors on this GPU (ECC off or not there)")
    return sum(numbers)


def _remapped(gpu: tree.Element) -> dict[str, object]:
    rows = "remapped_rows/remapped_row_"
    return {
        "correctable": number_at(gpu, rows + "corr"),
        "uncorrectable": number_at(gpu, rows + "unc"),
        "pending": text_at(gpu, rows + "pending") == "Yes",
        "failure": text_at(gpu, rows + "failure") == "Yes",
    }


POWER = ("power_draw", "instant_power_draw", "average_power_draw")
LIMIT = ("enforced_power_limit", "current_power_limit", "power_limit")


def _power(gpu: tree.Element, names: tuple[str, ...]) -> float:
    """Watts; the names of these readings changed with the driver (2023, 2025)."""
    places = []
    for group in "gpu_power_readings/", "power_readings/":
        for name in names:
            places.append(group + name)
    for place in places:
        if re.match(r"\d", (gpu.findtext(place) or "").strip()):
            return number_at(gpu, place)
    raise Unread("nvidia-smi gives no %s" % names[0].replace("_", " "))


def _throttle(gpu: tree.Element) -> list[str]:
    """Why the clocks are low now; an idle GPU is not throttled."""
    reasons = gpu.find("clocks_event_reasons")
    if reasons is None:
        reasons = gpu.find("clocks_throttle_reasons")
    if reasons is None:
        raise Unread("nvidia-smi lists no clocks-event reasons")
    active = [node.tag for node in reasons if (node.text or "").strip() == "Active"]
    short = [re.sub(r"^clocks_(event|throttle)_reasons?_", "", tag) for tag in active]
    return [name for name in short if name != "gpu_idle"]


TOPOLOGY = ["nvidia-smi", "topo", "-m"]
LINKS = ["nvidia-smi", "nvlink", "-s"]
CAPABILITIES = {"read": "r", "write": "w", "nvlink": "n", "atomics": "a", "pcie": "p"}
PEERS = {name: ["nvidia-smi", "topo", "-p2p", letter] for name, letter in CAPABILITIES.items()}
"""What one GPU can do with another's memory, each a matrix of its own."""

Said = Union[Answer, Unread]
"""What a command answered, or why it did not."""

Matrix = dict[str, dict[str, str]]


def command_output(said: Said) -> str:
    """The output of a command; raises the error that kept it from answering."""
    if isinstance(said, Unread):
        raise said
    return said.out


def peer_facts(said: Mapping[str, Said]) -> Iterator[Fact]:
    """``gpu.topology…`` and ``gpu.p2p.…`` by what each command said.

    A command that was not run is absent from `said`.
    """
    source = " ".join(TOPOLOGY)
    topology = said[source]
    yield attempt("gpu.topology", partial(_matrix_of, topology), source=source)
    nics = re.compile(r"^\s*(NIC\d+):\s*(\S+)", re.M)
    yield attempt(
        "gpu.topology.nics", lambda: dict(nics.findall(command_output(topology))), source=source
    )
    for name, argv in PEERS.items():
        source = " ".join(argv)
        answer = said.get(source, Unread("there is no second GPU"))
        yield attempt("gpu.p2p." + name, partial(_matrix_of, answer), source=source)


def _matrix_of(answer: Said) -> Matrix:
    return matrix(command_output(answer))


def matrix(text: str) -> Matrix:
    """``nvidia-smi topo`` as {row: {column: what stands there}}, without the diagonal.

    In a cell stands "NV18", "PIX", "OK" and the like.  Raises Unread.
    """
    lines = _plain_lines(text)
    device = re.compile(r"(?:GPU|NIC)\d+$|mlx\d+_\d+$")
    header = next((line.split() for line in lines if re.match(r"\s+GPU0\b", line)), [])
    columns = [name for name in header if device.match(name)]
    rows = {}
    for line in lines:
        cells = line.split()
        if columns and cells and device.match(cells[0]) and len(cells) > len(columns):
            rows[cells[0]] = {to: how for to, how in zip(columns, cells[1:]) if how != "X"}
    if not rows:
        first = (text.strip().splitlines() or ["nothing"])[0]
        raise Unread("nvidia-smi topo shows no matrix: %s" % first[:300])
    return rows


def _plain_lines(text: str) -> list[str]:
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.splitlines()]


def topology_of(machine: Machine, index: int, bus: str, topology: Said) -> Iterator[Fact]:
    """``gpu.<index>.numa`` and ``.cpus``: what the kernel says is nearest to the PCI
    address `bus`.
    """
    # nvidia-smi writes an eight-digit PCI domain, the kernel a four-digit one
    folder = "/sys/bus/pci/devices/" + re.sub(r"^0000(?=[0-9a-f]{4}:)", "", bus.lower())
    yield attempt(
        "gpu.%d.numa" % index,
        lambda: _numa(machine, folder + "/numa_node"),
        source=folder + "/numa_node",
    )
    source = folder + "/local_cpulist, nvidia-smi topo -m"
    yield attempt(
        "gpu.%d.cpus" % index,
        lambda: _cpus_near_gpu(machine, folder, index, topology),
        source=source,
    )


def _numa(machine: Machine, file: str) -> int:
    node = int(machine.read(file))
    if node < 0:
        raise Unread("the kernel assigns no NUMA node to this GPU")
    return node


def _cpus_near_gpu(machine: Machine, folder: str, index: int, topology: Said) -> str:
    """The CPUs near a GPU as a kernel list such as ``0-47,96-143``."""
    try:
        near = machine.read(folder + "/local_cpulist").strip()
    except Unread:
        near = ""
    return near or affinity(command_output(topology))["GPU%d" % index]


def affinity(text: str) -> dict[str, str]:
    """The column "CPU Affinity" of ``nvidia-smi topo -m``.

    Its cells are parted by tabs and may be empty.
    """
    rows = [line.split("\t") for line in _plain_lines(text)]
    header = next((row for row in rows if "CPU Affinity" in row), [])
    if not header:
        raise Unread("nvidia-smi topo -m has no column CPU Affinity")
    column = header.index("CPU Affinity")
    return {
        row[0].strip(): row[column].strip()
        for row in rows
        if len(row) > column and row[0].startswith("GPU")
    }


def nvlinks(answer: Said) -> dict[int, list[float | None]] | Unread:
    """GB/s of each NVLink of each GPU, or why it could not be read.

    The speed of an inactive link is None.
    """
    if isinstance(answer, Unread):
        return answer
    blocks = re.split(r"^GPU (\d+):", answer.out, flags=re.M)
    if answer.code and len(blocks) < 2:  # a machine without NVLinks says nothing, and ends well
        said = (answer.out + answer.err).strip().splitlines() or ["nothing"]
        return Unread(
            "%s ended with status %d and said: %s" % (" ".join(LINKS), answer.code, said[0][:300])
        )
    link = re.compile(r"Link \d+: (?:([\d.]+) GB/s|<inactive>)")
    pairs = zip(blocks[1::2], blocks[2::2])
    found = {}
    for index, body in pairs:
        found[int(index)] = [float(rate) if rate else None for rate in link.findall(body)]
    return found


def nvlink(index: int, links: dict[int, list[float | None]] | Unread) -> Iterator[Fact]:
    """``gpu.<index>.nvlink.…``: how many are active, how fast, and each one."""
    source = " ".join(LINKS)
    name = "gpu.%d.nvlink." % index
    if isinstance(links, Unread):
        for key, unit in (("links", ""), ("speed", "GB/s"), ("speeds", "GB/s")):
            yield unread(name + key, links, unit, source)
        return
    speeds = links.get(index, [])
    active = [speed for speed in speeds if speed is not None]
    yield known(name + "links", len(active), source=source)
    none = "no active NVLink"
    if active:
        yield known(name + "speed", min(active), "GB/s", source)
    else:
        yield unread(name + "speed", none, "GB/s", source)
    yield known(name + "speeds", speeds, "GB/s", source)


DEADLINE = 10.0
"""Seconds for one nvidia-smi: a healthy 8-GPU host without persistence mode needs about three."""


def gpu_facts(machine: Machine) -> Iterator[Fact]:
    """All ``gpu.`` facts; the per-GPU ones only where nvidia-smi answered."""
    yield _module_fact(machine, "gpu.peermem", "nvidia_peermem")
    yield _module_fact(machine, "gpu.gdrcopy", "gdrdrv")
    yield attempt(
        "gpu.library", lambda: software.driver(machine), source="file names of libnvidia-ml.so"
    )
    try:
        answer = machine.run(QUERY, DEADLINE)
        log, cut = parse_log(answer)
    except Unread as why:
        yield from _facts_without_smi(machine, why)
        return
    gpus = log.findall("gpu")
    message = "; ".join(filter(None, (cut, remarks(answer))))
    yield {
        **known("gpu.nvidia_smi", "breaks off" if cut else "answers", source=SMI),
        "why": message,
    }
    if cut:
        yield _count_devices(machine, cut)
    else:
        yield known("gpu.count", len(gpus), source=SMI)
    yield attempt("gpu.driver", lambda: text_at(log, "driver_version"), source=SMI)
    yield attempt("gpu.cuda", lambda: text_at(log, "cuda_version"), source=SMI)
    peers = []
    if len(gpus) > 1:
        peers = list(PEERS.values())
    said = _at_once(machine, [TOPOLOGY, LINKS, *peers])
    yield from peer_facts(said)
    links = nvlinks(said[" ".join(LINKS)])
    for index, gpu in enumerate(gpus):
        yield from facts_of_gpu(index, gpu)
        yield from topology_of(machine, index, gpu.get("id", ""), said[" ".join(TOPOLOGY)])
        yield from nvlink(index, links)


def _module_fact(machine: Machine, name: str, module: str) -> Fact:
    """Whether a kernel module is loaded that GPU Direct RDMA needs."""
    return attempt(
        name, lambda: bool(machine.names("/sys/module", module)), source="/sys/module/" + module
    )


def _at_once(machine: Machine, commands: list[list[str]]) -> dict[str, Said]:
    """{command: what it said}: each mostly waits for the driver, so they wait side by side."""

    def ask(argv: list[str]) -> Said:
        try:
            return machine.run(argv, DEADLINE)
        except Unread as why:
            return why

    said = side_by_side(ask, commands, DEADLINE + 2, Hung("nvidia-smi did not even start"))
    return dict(zip(map(" ".join, commands), said))


def _facts_without_smi(machine: Machine, why: Unread) -> Iterator[Fact]:
    """The facts of a machine whose nvidia-smi says nothing: absent, hung or refusing."""
    states = {Hung: "hung", Missing: "missing", TooLong: "endless"}
    state = states.get(type(why), "failed")
    if isinstance(why, Hurried):
        yield unread("gpu.nvidia_smi", why, source=SMI)
    else:
        yield {**known("gpu.nvidia_smi", state, source=SMI), "why": str(why)}
    for name in ("gpu.topology", "gpu.topology.nics", *("gpu.p2p." + name for name in PEERS)):
        yield unread(name, why, source="nvidia-smi topo")
    yield _count_devices(machine, str(why))
    version = re.compile(r"Kernel Module(?: for \S+)?\s+(\S+)")
    file = "/proc/driver/nvidia/version"
    yield attempt("gpu.driver", lambda: version.findall(machine.read(file))[0], source=file)
    yield unread("gpu.cuda", why, source=SMI)


def _count_devices(machine: Machine, why: str) -> Fact:
    """How many GPUs there are by their device files; `why` they had to be counted so."""
    source = "/dev/nvidia*"
    try:
        return known("gpu.count", len(machine.names("/dev", r"nvidia\d+")), source=source)
    except Unread as error:
        return unread("gpu.count", "%s; %s" % (why, error), source=source)
