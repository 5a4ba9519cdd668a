"""GPUs: what nvidia-smi, /dev and /proc say.  A hung nvidia-smi is itself a fact."""

from __future__ import annotations

import re
import xml.etree.ElementTree as tree
from collections.abc import Iterator
from functools import partial

from .fact import Fact, attempt, known, unread
from .machine import Answer, Hung, Machine, Missing, Unread

QUERY = ["nvidia-smi", "-q", "-x"]
TOPOLOGY = ["nvidia-smi", "topo", "-m"]
LINKS = ["nvidia-smi", "nvlink", "-s"]
DEADLINE = 10.0
"""Seconds for one nvidia-smi: a healthy 8-GPU host without persistence mode needs about three."""


def facts(machine: Machine) -> Iterator[Fact]:
    """All ``gpu.`` facts; the per-GPU ones only where nvidia-smi answered."""
    yield from _modules(machine)
    try:
        answer = machine.run(QUERY, DEADLINE)
        log = _log(answer)
    except Unread as why:
        yield from _silent(machine, why)
        return
    source = " ".join(QUERY)
    gpus = log.findall("gpu")
    yield known("gpu.nvidia_smi", "answers", source=source)
    yield known("gpu.count", len(gpus), source=source)
    yield attempt("gpu.driver", lambda: _text(log, "driver_version"), source=source)
    yield attempt("gpu.cuda", lambda: _text(log, "cuda_version"), source=source)
    yield from _topology(machine)
    links = _links(machine)
    for index, gpu in enumerate(gpus):
        yield from _state(index, gpu)
        yield from _pcie(machine, index, gpu)
        yield from _nvlink(index, links)


def _log(answer: Answer) -> tree.Element:
    """The XML that nvidia-smi wrote; a refusal (which it writes to stdout) becomes Unread."""
    start = answer.out.find("<nvidia_smi_log")
    if start < 0:
        said = (answer.out.strip() or answer.err.strip() or "nothing").splitlines()[0]
        raise Unread("nvidia-smi -q -x ended with status %d and said: %s" % (answer.code, said))
    try:
        return tree.fromstring(answer.out[start:])
    except tree.ParseError as error:
        raise Unread("nvidia-smi -q -x wrote broken XML: %s" % error) from None


def _silent(machine: Machine, why: Unread) -> Iterator[Fact]:
    """The facts of a machine whose nvidia-smi says nothing: absent, hung or refusing."""
    state = "hung" if isinstance(why, Hung) else "missing" if isinstance(why, Missing) else "failed"
    yield {**known("gpu.nvidia_smi", state, source=" ".join(QUERY)), "why": str(why)}
    try:
        yield known("gpu.count", len(machine.names("/dev", r"nvidia\d+")), source="/dev/nvidia*")
    except Unread as error:
        yield unread("gpu.count", "%s; %s" % (why, error), source="/dev/nvidia*")
    version = re.compile(r"Kernel Module(?: for \S+)?\s+(\S+)")
    yield attempt(
        "gpu.driver",
        lambda: version.findall(machine.read("/proc/driver/nvidia/version"))[0],
        source="/proc/driver/nvidia/version",
    )
    for name in ("gpu.cuda", "gpu.topology", "gpu.topology.nics"):
        yield unread(name, why, source=" ".join(QUERY))


def _modules(machine: Machine) -> Iterator[Fact]:
    """Kernel modules that GPU Direct RDMA needs."""
    for name, module in (("gpu.peermem", "nvidia_peermem"), ("gpu.gdrcopy", "gdrdrv")):
        yield attempt(name, partial(_has_module, machine, module), source="/sys/module/" + module)


def _has_module(machine: Machine, module: str) -> bool:
    return bool(machine.names("/sys/module", module))


def _state(index: int, gpu: tree.Element) -> Iterator[Fact]:
    """Identity, memory, health and clocks of one GPU."""
    source = "nvidia-smi -q -x"
    reads = (
        ("model", "", lambda: _text(gpu, "product_name")),
        ("uuid", "", lambda: _text(gpu, "uuid")),
        ("bus", "", lambda: gpu.attrib["id"].lower()),
        ("memory.total", "MiB", lambda: _number(gpu, "fb_memory_usage/total")),
        ("memory.free", "MiB", lambda: _number(gpu, "fb_memory_usage/free")),
        ("memory.holders", "", lambda: _holders(gpu)),
        ("compute_mode", "", lambda: _text(gpu, "compute_mode")),
        ("persistence", "", lambda: _text(gpu, "persistence_mode")),
        ("mig", "", lambda: _text(gpu, "mig_mode/current_mig")),
        ("ecc.uncorrected", "", lambda: _uncorrected(gpu)),
        ("remapped_rows", "", lambda: _remapped(gpu)),
        ("temperature", "C", lambda: _number(gpu, "temperature/gpu_temp")),
        ("power", "W", lambda: _power(gpu)),
        ("throttle", "", lambda: _throttle(gpu)),
        ("fabric.state", "", lambda: _text(gpu, "fabric/state")),
        ("fabric.status", "", lambda: _text(gpu, "fabric/status")),
        ("fabric.clique", "", lambda: _text(gpu, "fabric/cliqueId")),
    )
    for name, unit, get in reads:
        yield attempt("gpu.%d.%s" % (index, name), get, unit, source)


def _pcie(machine: Machine, index: int, gpu: tree.Element) -> Iterator[Fact]:
    info = "pci/pci_gpu_link_info/"
    places = (
        ("pcie.gen", info + "pcie_gen/current_link_gen"),
        ("pcie.gen.max", info + "pcie_gen/max_link_gen"),
        ("pcie.width", info + "link_widths/current_link_width"),
        ("pcie.width.max", info + "link_widths/max_link_width"),
    )
    for name, place in places:
        yield attempt("gpu.%d.%s" % (index, name), partial(_number, gpu, place), source="nvidia-smi -q -x")
    # nvidia-smi writes an eight-digit PCI domain, the kernel a four-digit one
    folder = "/sys/bus/pci/devices/" + re.sub(r"^0000(?=[0-9a-f]{4}:)", "", gpu.get("id", "").lower())
    yield attempt("gpu.%d.numa" % index, partial(_numa, machine, folder + "/numa_node"), source=folder + "/numa_node")


def _numa(machine: Machine, file: str) -> int:
    node = int(machine.read(file))
    if node < 0:
        raise Unread("the kernel assigns no NUMA node to this GPU")
    return node


def _text(node: tree.Element, place: str) -> str:
    """The text at `place`; absent or "N/A" raises Unread."""
    said = (node.findtext(place) or "").strip()
    if not said or said in ("N/A", "[N/A]", "Unknown Error", "Requested functionality has been deprecated"):
        raise Unread("nvidia-smi says %s for %s" % (said or "nothing", place))
    return said


def _number(node: tree.Element, place: str) -> float:
    """The number in ``81559 MiB``, ``29 C``, ``16x``."""
    said = _text(node, place)
    number = re.match(r"[\d.]+", said)
    if not number:
        raise Unread("nvidia-smi says %s for %s" % (said, place))
    return float(number.group()) if "." in number.group() else int(number.group())


def _holders(gpu: tree.Element) -> list[dict[str, object]]:
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
    numbers = [int(text) for text in said if text.isdigit()]
    if not numbers:
        raise Unread("nvidia-smi counts no ECC errors on this GPU (ECC off or not there)")
    return sum(numbers)


def _remapped(gpu: tree.Element) -> dict[str, object]:
    rows = "remapped_rows/remapped_row_"
    return {
        "correctable": _number(gpu, rows + "corr"),
        "uncorrectable": _number(gpu, rows + "unc"),
        "pending": _text(gpu, rows + "pending") == "Yes",
        "failure": _text(gpu, rows + "failure") == "Yes",
    }


def _power(gpu: tree.Element) -> float:
    """The name of this reading changed with the driver (2023, 2025)."""
    places = [
        group + name
        for group in ("gpu_power_readings/", "power_readings/")
        for name in ("power_draw", "instant_power_draw", "average_power_draw")
    ]
    for place in places:
        if re.match(r"\d", (gpu.findtext(place) or "").strip()):
            return _number(gpu, place)
    raise Unread("nvidia-smi gives no power reading")


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


def _topology(machine: Machine) -> Iterator[Fact]:
    source = " ".join(TOPOLOGY)
    try:
        out = machine.run(TOPOLOGY, DEADLINE).out
    except Unread as why:
        yield unread("gpu.topology", why, source=source)
        yield unread("gpu.topology.nics", why, source=source)
        return
    yield attempt("gpu.topology", lambda: matrix(out), source=source)
    yield attempt("gpu.topology.nics", lambda: dict(re.findall(r"^\s*(NIC\d+):\s*(\S+)", out, re.M)), source=source)


def matrix(out: str) -> dict[str, dict[str, str]]:
    """``nvidia-smi topo -m`` as {row: {column: "NV18" | "PIX" | …}}, without the diagonal; raises Unread."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in out.splitlines()]
    device = re.compile(r"(?:GPU|NIC)\d+$|mlx\d+_\d+$")
    header = next((line.split() for line in lines if re.match(r"\s+GPU0\b", line)), [])
    columns = [name for name in header if device.match(name)]
    rows = {}
    for line in lines:
        cells = line.split()
        if columns and cells and device.match(cells[0]) and len(cells) > len(columns):
            rows[cells[0]] = {to: how for to, how in zip(columns, cells[1:]) if how != "X"}
    if not rows:
        raise Unread("nvidia-smi topo -m shows no matrix: %s" % (out.strip().splitlines() or ["nothing"])[0])
    return rows


def _links(machine: Machine) -> dict[int, list[float]] | Unread:
    """GB/s of each active NVLink of each GPU, or why it could not be read."""
    try:
        out = machine.run(LINKS, DEADLINE).out
    except Unread as why:
        return why
    blocks = re.split(r"^GPU (\d+):", out, flags=re.M)
    speed = re.compile(r"Link \d+: ([\d.]+) GB/s")
    pairs = zip(blocks[1::2], blocks[2::2])
    return {int(index): [float(rate) for rate in speed.findall(body)] for index, body in pairs}


def _nvlink(index: int, links: dict[int, list[float]] | Unread) -> Iterator[Fact]:
    source = " ".join(LINKS)
    names = ("gpu.%d.nvlink.links" % index, "gpu.%d.nvlink.speed" % index)
    if isinstance(links, Unread):
        yield unread(names[0], links, source=source)
        yield unread(names[1], links, "GB/s", source)
        return
    speeds = links.get(index, [])
    yield known(names[0], len(speeds), source=source)
    none = "no active NVLink"
    yield known(names[1], min(speeds), "GB/s", source) if speeds else unread(names[1], none, "GB/s", source)
