"""What processes that were none of a run's own used while it ran.

They used cores and GPUs, by the run's telemetry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

from ncclkit.core.model import Event
from ncclkit.core.text import plural
from ncclkit.evidence.grammars.grammar import clip

BUSY = 20.0
"""Percent of the time in which a GPU computed before any rank came, from which on somebody else
uses it."""
MOST = 64
"""GPUs, and processes on them, that are kept of one host."""


class OtherUse:
    """Reads the samples of one host, in their order; `events` says what others did."""

    def __init__(self) -> None:
        self._cores_used: list[float] = []
        self._load = 0.0
        self._cores = 0
        self._ranks: set[str] = set()
        self._gpu_busy: dict[int, list[float]] = {}
        self._holders: dict[tuple[str, str], dict[str, Any]] = {}
        self._last: tuple[int, float | None] = (0, None)

    def take(self, sample: Mapping[str, Any], number: int) -> None:
        """Add one sample, which stands in this line."""
        moment = sample.get("t")
        self._last = number, moment if _is_number(moment) else None
        ranks = sample.get("ranks")
        present = {}
        if isinstance(ranks, dict):
            present = ranks
        self._ranks |= set(present)
        if not self._ranks:
            self._take_gpus(sample.get("gpus"))
        if present and _is_number(sample.get("others")) and _is_number(sample.get("cores")):
            self._cores_used.append(float(sample["others"]))
            self._cores = int(sample["cores"])
            self._load = max(
                self._load, float(sample["load"]) if _is_number(sample.get("load")) else 0.0
            )
        self._take_holders(sample.get("holders"))

    def _take_gpus(self, gpus: Any) -> None:
        """Take what computes on GPUs before a rank has come: it is somebody else."""
        for index, row in enumerate(gpus[:MOST] if isinstance(gpus, list) else ()):
            if isinstance(row, list) and len(row) > 1 and _is_number(row[1]):
                self._gpu_busy.setdefault(index, []).append(float(row[1]))

    def _take_holders(self, holders: Any) -> None:
        for row in holders[:MOST] if isinstance(holders, list) else ():
            if (
                isinstance(row, list)
                and len(row) == 4
                and all(isinstance(cell, str) for cell in row)
            ):
                pid, bus, memory, name = row
                self._holders[pid, bus] = {
                    "pid": pid[:12],
                    "bus": bus[:32],
                    "memory": memory[:16],
                    "name": name[:64],
                }

    def events(self, path: str, host: str) -> Iterator[Event]:
        """One event where anything is known of others."""
        # one sample may still show how a job before ours ended
        busy = {str(gpu): min(shares) for gpu, shares in self._gpu_busy.items() if len(shares) > 1}
        gpus = {gpu: share for gpu, share in busy.items() if share >= BUSY}
        holders = list(self._holders.values())[:MOST]
        if not (self._cores_used or gpus or holders):
            return
        used = None
        if self._cores_used:
            used = round(fmean(self._cores_used), 2)
        data: dict[str, Any] = {
            "cores_used": used,
            "cores": self._cores,
            "load": self._load,
            "ranks": len(self._ranks),
        }
        data |= {"gpus": gpus, "holders": holders}
        number, moment = self._last
        yield Event(
            "telemetry.others", clip(_use_in_words(data)), path, number, moment, host, data=data
        )


def _use_in_words(data: Mapping[str, Any]) -> str:
    said = []
    if data["cores_used"] is not None:
        load = ""
        if data["load"]:
            load = f" (load {data['load']:g})"
        said.append(f"used {data['cores_used']:g} of {data['cores']} cores{load}")
    for gpu, share in data["gpus"].items():
        said.append(f"kept GPU {gpu} busy {share:g} % of the time before the ranks came")
    if data["holders"]:
        said.append(f"held memory of GPUs in {plural(len(data['holders']), 'process')}")
    return f"processes of others {', '.join(said)}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1 << 53
