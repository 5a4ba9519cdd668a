"""``python -m torch.utils.collect_env``, also as vLLM extends it: versions, GPUs, CPU, NCCL's variables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from ncclkit.agent import redact
from ncclkit.agent.facts.settings import SCOPE
from ncclkit.agent.facts.software import FRAMEWORKS
from ncclkit.evidence.tools.document import Document, Tool, document_of, number

LONGEST = 600
"""Lines of one report; vLLM's lists every package of conda."""
TITLE = re.compile(r"^([A-Z][\w ()-]{0,60}?)\s{0,40}:(.*)")
PACKAGE = re.compile(r"^\[(?:pip3?|conda)\]\s+([\w.-]+)(?:==|\s+)v?(\d[\w.+!-]*)")
GPU = re.compile(r"^GPU (\d{1,3}): (.+)")
NOT_KNOWN = ("", "N/A", "Could not collect", "None", "False")


def _report(lines: Sequence[str], at: int) -> Document | None:
    body = list(lines[at : at + LONGEST])
    after = (number for number, line in enumerate(body[1:], 1) if line.startswith("PyTorch version"))
    body = body[: next(after, len(body))]
    said: dict[str, str] = {}
    for match in filter(None, map(TITLE.match, body)):
        said.setdefault(match[1], match[2].strip())
    packages = [(match[1].lower(), match[2]) for match in filter(None, map(PACKAGE.match, body))]
    gpus = {int(match[1]): match[2].strip() for match in filter(None, map(GPU.match, _after(body, "GPU models")))}
    values = _software(said, packages) | _host(said)
    values |= {f"gpu.{index}.model": model for index, model in gpus.items()} | {"gpu.count": len(gpus) or None}
    variables = (line.partition("=") for line in body if re.match(r"[A-Z]\w+=", line))
    values |= {f"env.{name}": redact.clean(value.strip(), name) for name, _, value in variables if SCOPE.match(name)}
    return document_of("collect_env", values, {"cpu.total": "CPUs"})


def _after(body: Sequence[str], title: str) -> list[str]:
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
        "software.torch": _known(said, "PyTorch version"),
        "software.torch.cuda": _known(said, "CUDA used to build PyTorch"),
        "software.python": (_known(said, "Python version") or "").split(" ")[0] or None,
        "software.frameworks": known or None,
        "software.nccl.libraries": nccl or None,
        "gpu.driver": _known(said, "Nvidia driver version"),
    }


def _host(said: dict[str, str]) -> dict[str, Any]:
    kernel = re.match(r"Linux-(\S+?)-(?:x86_64|aarch64|ppc64le)", _known(said, "Python platform") or "")
    return {
        "host.os": _known(said, "OS"),
        "host.kernel": kernel and kernel[1],
        "host.glibc": (_known(said, "Libc version") or "").removeprefix("glibc-") or None,
        "cpu.model": _known(said, "Model name"),
        "cpu.total": number(said.get("CPU(s)", "")),
    }


def _known(said: dict[str, str], title: str) -> str | None:
    value = said.get(title, "")
    return None if value in NOT_KNOWN else value


TOOLS = (
    # PyTorch version: 2.13.0+cu130           PyTorch version              : 2.7.0+cu126
    Tool((b"PyTorch version",), re.compile(r"^PyTorch version\s*: \S"), _report),
)
