"""One GPU as ``nvidia-smi -q -x`` describes it: identity, memory, health, clocks, PCIe."""

from __future__ import annotations

import re
import xml.etree.ElementTree as tree
from collections.abc import Iterator
from functools import partial

from .fact import Fact, attempt
from .machine import Answer, Unread

SOURCE = "nvidia-smi -q -x"
IN_THE_WAY = (
    *("N/A", "Unknown Error", "Requested functionality has been deprecated", "Not Supported", "ERR!"),
    *("Insufficient Permissions", "GPU is lost", "GPU requires reset"),
)
"""What nvidia-smi writes where it has no answer, sometimes in brackets."""

CLOSE = "</nvidia_smi_log>"
XML = re.compile(r"<nvidia_smi_log.*?(?:%s|\Z)" % CLOSE, re.S)
"""Warnings may stand before it and after it, which no XML parser takes."""
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


def log(answer: Answer) -> tuple[tree.Element, str]:
    """The XML that nvidia-smi wrote, and where it breaks off: the GPUs before that are whole ("" where it does not).

    A refusal (which it writes to stdout) becomes Unread, and so does what holds no whole GPU.
    """
    said = XML.search(answer.out)
    if not said:
        words = " ".join((answer.out.strip() or answer.err.strip() or "nothing").split("\n")[:2])
        raise Unread("%s ended with status %d and said: %s" % (SOURCE, answer.code, words))
    text, cut = CONTROL.sub("", said.group()), ""
    head, end, _ = text.rpartition("</gpu>")
    if end and not text.endswith(CLOSE):
        text, whole = head + end + CLOSE, text.count(end)
        cut = "%s ended with status %d and its XML breaks off behind GPU %d" % (SOURCE, answer.code, whole - 1)
    try:
        return tree.fromstring(text), cut
    except tree.ParseError as error:
        raise Unread("%s wrote broken XML: %s" % (SOURCE, error)) from None


def remarks(answer: Answer) -> str:
    """What nvidia-smi said around the XML, such as ``WARNING: infoROM is corrupted at gpu 0000:5C:00.0``."""
    around = XML.sub(" ", answer.out) + " " + answer.err
    return " ".join(re.sub(r"<[?!][^>]*>", " ", around).split())[:300]


def facts(index: int, gpu: tree.Element) -> Iterator[Fact]:
    """``gpu.<index>.…`` of one ``<gpu>`` element."""
    name = "gpu.%d." % index
    yield attempt(name + "bus", lambda: gpu.attrib["id"].lower(), source=SOURCE)
    for key, place in TEXTS.items():
        yield attempt(name + key, partial(text, gpu, place), source=SOURCE)
    for key, (place, unit) in NUMBERS.items():
        yield attempt(name + key, partial(number, gpu, place), unit, SOURCE)
    yield attempt(name + "power", lambda: _power(gpu, POWER), "W", SOURCE)
    yield attempt(name + "power.limit", lambda: _power(gpu, LIMIT), "W", SOURCE)
    yield attempt(name + "memory.holders", lambda: _holders(gpu), source=SOURCE)
    yield attempt(name + "ecc.uncorrected", lambda: _uncorrected(gpu), source=SOURCE)
    yield attempt(name + "remapped_rows", lambda: _remapped(gpu), source=SOURCE)
    yield attempt(name + "throttle", lambda: _throttle(gpu), source=SOURCE)


def text(node: tree.Element, place: str) -> str:
    """The text at `place`; absent or "N/A" raises Unread."""
    said = (node.findtext(place) or "").strip()
    if not said or said.strip("[]") in IN_THE_WAY:
        raise Unread("nvidia-smi says %s for %s" % (said or "nothing", place))
    return said


def number(node: tree.Element, place: str) -> float:
    """The number in ``81559 MiB``, ``29 C``, ``16x``."""
    said = text(node, place)
    found = re.match(r"[\d.]+", said)
    if not found:
        raise Unread("nvidia-smi says %s for %s" % (said, place))
    return float(found.group()) if "." in found.group() else int(found.group())


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
    numbers = [int(count) for count in said if count.isdigit()]
    if not numbers:
        raise Unread("nvidia-smi counts no ECC errors on this GPU (ECC off or not there)")
    return sum(numbers)


def _remapped(gpu: tree.Element) -> dict[str, object]:
    rows = "remapped_rows/remapped_row_"
    return {
        "correctable": number(gpu, rows + "corr"),
        "uncorrectable": number(gpu, rows + "unc"),
        "pending": text(gpu, rows + "pending") == "Yes",
        "failure": text(gpu, rows + "failure") == "Yes",
    }


POWER = ("power_draw", "instant_power_draw", "average_power_draw")
LIMIT = ("enforced_power_limit", "current_power_limit", "power_limit")


def _power(gpu: tree.Element, names: tuple[str, ...]) -> float:
    """Watts; the names of these readings changed with the driver (2023, 2025)."""
    places = [group + name for group in ("gpu_power_readings/", "power_readings/") for name in names]
    for place in places:
        if re.match(r"\d", (gpu.findtext(place) or "").strip()):
            return number(gpu, place)
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
