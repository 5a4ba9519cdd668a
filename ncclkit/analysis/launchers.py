"""What started a job, as far as its lines show.

In: a case.  Out: the names of launchers and frameworks, the one whose options decide first.  What a
remedy says depends on it: an option of torchrun is no help to who starts a job with srun or Ray.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ncclkit.analysis.frames import frames_of
from ncclkit.analysis.once import once
from ncclkit.analysis.outcome import unread_lines
from ncclkit.core.case import Case

WORDS: Mapping[str, re.Pattern[str]] = {
    "vllm": re.compile(
        r"\bvllm serve\b|\bvllm[./](?:entrypoints|engine|executor|worker|v1|distributed)\b"
        r"|\bVLLM_[A-Z]+_|\bVllmWorker|\bEngineCore\b"
    ),
    "sglang": re.compile(r"\bsglang[./](?:launch_server|srt)\b|\bsglang\.launch"),
    "tensorrt_llm": re.compile(r"\btensorrt_llm\b|\[TensorRT-LLM\]|\btrtllm-"),
    "ray": re.compile(
        r"\braylet\b|\bray start\b|\bray\.(?:init|train|exceptions)\b|\bRay(?:Train)?Worker"
        r"|\(\w*(?:Worker|Actor|Task)\w* pid=\d+\)|\(\w+ pid=\d+, ip=[\d.]+\)"
        r"|/ray/_private/|\bGCS at address\b"
    ),
    "accelerate": re.compile(r"\baccelerate(?: |-)launch\b|/accelerate/commands/"),
    "deepspeed": re.compile(
        r"\bdeepspeed --?\w|\bdeepspeed \S+\.py\b|/deepspeed/launcher/"
        r"|\[(?:launch|runner)\.py:\d+:"
    ),
    "lightning": re.compile(
        r"/(?:pytorch_)?lightning(?:_fabric)?/|GLOBAL_RANK: \d+, MEMBER: \d|\bpytorch_lightning\b"
    ),
    "horovod": re.compile(r"\bhorovodrun\b|\bhvd\.|/horovod/|\bhorovod\.(?:torch|tensorflow)\b"),
    "mpi": re.compile(r"\bmpi(?:run|exec)\b|^\[1,\d+\]<", re.MULTILINE),
    "torchrun": re.compile(
        r"\btorchrun\b|\btorch[./]distributed[./](?:run|launch|elastic)\b|\bChildFailedError\b"
    ),
    "srun": re.compile(r"\bsrun\b|\bslurmstepd\b"),
    "kubernetes": re.compile(
        r"\bkubectl\b|\.svc\b|\bPyTorchJob\b|\bMPIJob\b|\bkubernetes\b|\bsidecar\.istio", re.I
    ),
}
"""Launcher or framework → what only its jobs print.

One that starts its ranks by another stands before it: its own options decide.
"""
KINDS = {"horovod": ("horovod.stalled",), "srun": ("slurm.event",)}
"""Kinds of events that only its jobs have."""
LINES = 4000
"""Lines that are searched at most; a start names its launcher early."""


@once
def launchers(case: Case) -> tuple[str, ...]:
    """All launchers and frameworks that the lines show, the deciding one first."""
    text = "\n".join(_first_lines(case))
    shown = []
    for name, words in WORDS.items():
        if words.search(text) or case.of(*KINDS.get(name, ("",))):
            shown.append(name)
    return tuple(shown)


def launcher(case: Case) -> str:
    """The launcher whose options decide; empty where no line shows it."""
    return next(iter(launchers(case)), "")


def _first_lines(case: Case) -> Iterator[str]:
    """Lines of the logs and files of the frames, each once."""
    seen: set[str] = set()
    for line in _all_lines(case):
        if len(seen) >= LINES:
            return
        if line not in seen:
            seen.add(line)
            yield line


def _all_lines(case: Case) -> Iterator[str]:
    for event in [*unread_lines(case, "quiet"), *unread_lines(case)]:
        yield event.text
    for event in case.events:
        yield event.text
        for frame in frames_of(event):
            yield str(frame.get("file") or "")
