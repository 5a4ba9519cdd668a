"""``nvidia-smi -q -x`` and ``nvidia-smi topo -m``, by the same readers that ask a live machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from ncclkit.agent.facts import gpu
from ncclkit.agent.facts.machine import Answer, Machine, Missing, Unread
from ncclkit.core.model import Fact, from_dict
from ncclkit.evidence.tools.document import Document, Tool, document_of

LONGEST = 50_000
"""Lines of one document; a host with 8 GPUs writes some 1,200, accounting adds thousands."""
OPEN, CLOSE = "<nvidia_smi_log", gpu.CLOSE


class _Told(Machine):
    """A machine that answers one command only, with its saved output."""

    def __init__(self, argv: Sequence[str], out: str) -> None:
        super().__init__()
        self.argv, self.out = argv, out

    def run(self, argv: list[str], deadline: float, name: str = "") -> Answer:
        """The known output; Missing for every other command."""
        if argv != self.argv:
            raise Missing(f"{name or argv[0]} was not recorded")
        return Answer(0, self.out)

    def _at(self, path: str) -> str:
        raise Unread(f"{path} was not recorded")


def state(text: str) -> Document | None:
    """The facts that the XML in a text holds of each GPU; of a cut XML, those of the GPUs that are whole.

    The text is taken from its root element on: entities can only be declared before it, so none are expanded.
    """
    head, end, _ = text[max(0, text.find(OPEN)) :].partition(CLOSE)
    if not end and "</gpu>" not in head:
        return None
    command = " ".join(gpu.QUERY)
    found = {fact["name"]: fact for fact in gpu.facts(_Told(gpu.QUERY, head + end)) if fact["source"] == command}
    state = found["gpu.nvidia_smi"]["value"]
    if state == "failed":
        return Document(command, problem="is not valid XML; save it again with `nvidia-smi -q -x > gpus.xml`.")
    problem = ""
    if state == "breaks off":
        del found["gpu.nvidia_smi"]  # the file does, which says nothing of the driver
        problem = "breaks off within the output of nvidia-smi; the GPUs before that were read."
    return Document(command, [_fact(fact) for fact in found.values()], problem=problem)


def _fact(fact: dict[str, Any]) -> Fact:
    return replace(from_dict(Fact, fact), source="")


def _state(lines: Sequence[str], at: int) -> Document | None:
    body = [lines[at]]
    for number in range(at + 1, min(len(lines), at + LONGEST)):
        if CLOSE in body[-1] or OPEN in lines[number]:
            break
        body.append(lines[number])
    return state("\n".join(body))


def _topology(lines: Sequence[str], at: int) -> Document | None:
    body = [lines[at], *takewhile(lambda line: "CPU Affinity" not in line, lines[at + 1 : at + 400])]
    out = "\n".join("\t" + line.lstrip() if number == 0 else line for number, line in enumerate(body))
    try:
        matrix = gpu.matrix(out)
    except Unread:
        return None
    names = dict(re.findall(r"^\s*(NIC\d+):\s*(\S+)", out, re.MULTILINE))
    return document_of(" ".join(gpu.TOPOLOGY), {"gpu.topology": matrix, "gpu.topology.nics": names or None})


TOOLS = (
    # <nvidia_smi_log>
    Tool((OPEN.encode(),), re.compile(OPEN), _state),
    #         GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity
    Tool((b"CPU Affinity",), re.compile(r"^\s*GPU0\b.*\bCPU Affinity"), _topology),
)
