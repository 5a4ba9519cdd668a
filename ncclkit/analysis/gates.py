"""Which node is odd, by the verdicts of `ncclkit gate` on many nodes.

A node is compared with the other ones: what most of them share is a matter of the baseline, not of
a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from ncclkit.agent.gate import SLOWER
from ncclkit.core.model import NcclkitError
from ncclkit.core.text import natural, plural

LARGEST = 64 << 20
"""Bytes of one file of verdicts."""
FEWEST = 3
"""Nodes that must have tested their GPUs before the speed of one is compared with the others'."""


class NodeProblem(msgspec.Struct, frozen=True):
    """One thing that is not as it should be."""

    fact: str
    summary: str = msgspec.field(name="say")
    value: Any = None


class NodeVerdict(msgspec.Struct, frozen=True):
    """What `ncclkit gate` printed on one node."""

    host: str
    status: int
    summary: str = msgspec.field(name="say")
    ready: bool | None = None
    problems: tuple[NodeProblem, ...] = ()
    unknown: tuple[str, ...] = ()
    test: Mapping[str, Any] | None = None

    @property
    def busbw(self) -> float | None:
        """Bus bandwidth of its GPUs in GB/s; None where they were not tested."""
        value = None
        if self.test:
            value = self.test.get("busbw")
        if isinstance(value, (int, float)):
            return float(value)
        return None


@dataclass(frozen=True, slots=True)
class Nodes:
    """Many nodes beside each other."""

    verdicts: tuple[NodeVerdict, ...]
    outliers: Mapping[str, tuple[str, ...]]
    """Node → in what it differs from most of the others."""
    shared: tuple[str, ...] = field(default=())
    """Problems that most of the nodes have."""

    @property
    def summary(self) -> str:
        """Which node is odd, and in what, in one sentence.

        What most nodes share stands in a second one.
        """
        if len(self.verdicts) == 1:
            return self.verdicts[0].summary + "."
        nodes = plural(len(self.verdicts), "node")
        ready = all(one.ready for one in self.verdicts)
        if ready:
            sentence = f"{nodes} agree, and all are ready."
        else:
            sentence = f"{nodes} agree."
        if self.outliers:
            first = next(iter(self.outliers))
            others = len(self.outliers) - 1
            more = ""
            if others:
                more = f", and {plural(others, 'node')} more"
            sentence = f"{first} is odd among {nodes}: {'; '.join(self.outliers[first])}{more}."
        common = ""
        if self.shared:
            common = f" Most of them share: {'; '.join(self.shared)}; is the baseline still right?"
        return sentence + common

    def text(self) -> str:
        """The summary, and each node in a row."""
        rows = [
            self.summary,
            *(
                f"{host}: {'; '.join(why)}"
                for host, why in self.outliers.items()
                if len(self.outliers) > 1
            ),
        ]
        return "\n".join([*rows, *(one.summary for one in self.verdicts)])

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        verdicts = [msgspec.to_builtins(one) for one in self.verdicts]
        return {
            "summary": self.summary,
            "odd": self.outliers,
            "shared": self.shared,
            "verdicts": verdicts,
        }


def compare_nodes(paths: Iterable[str | Path]) -> Nodes:
    """Verdicts in files, one JSON object a line, side by side.

    Of a node that printed several the last one counts.  Raises NcclkitError for a file that holds
    anything else.
    """
    known = {}
    for path in paths:
        for verdict in _read(Path(path)):
            known[verdict.host] = verdict
    if not known:
        raise NcclkitError("These files hold no verdict; `ncclkit gate` prints one.")
    verdicts = [known[host] for host in sorted(known, key=natural)]
    seen: Counter[tuple[str, str]] = Counter()
    for one in verdicts:
        # a host that has one problem twice still counts once
        seen.update({_key(problem) for problem in one.problems})
    usual = {key for key, count in seen.items() if count > len(verdicts) / 2}
    summaries = {}
    for one in verdicts:
        for problem in one.problems:
            summaries[_key(problem)] = problem.summary
    differences = {one.host: _differs(one, usual, verdicts) for one in verdicts}
    odd = {}
    for host, why in differences.items():
        if why:
            odd[host] = why
    return Nodes(tuple(verdicts), odd, tuple(summaries[key] for key in sorted(usual)))


def _read(path: Path) -> list[NodeVerdict]:
    try:
        if path.stat().st_size > LARGEST:
            raise NcclkitError(
                f"{path} is larger than {LARGEST >> 20} MiB; keep the last verdict of each node."
            )
        lines = path.read_bytes().splitlines()
        verdicts = []
        for line in lines:
            if line.strip():
                verdicts.append(msgspec.json.decode(line, type=NodeVerdict))
        return verdicts
    except OSError as error:
        raise NcclkitError(f"Cannot read {path}: {error.strerror or error}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NcclkitError(f"{path} holds no verdict of `ncclkit gate`: {error}.") from error


def _key(problem: NodeProblem) -> tuple[str, str]:
    return problem.fact, repr(problem.value)


def _differs(
    one: NodeVerdict, usual: set[tuple[str, str]], among: Sequence[NodeVerdict]
) -> tuple[str, ...]:
    """In what a node differs from most of the others.

    It has problems of its own, no answer, or slower GPUs.
    """
    found = []
    for problem in one.problems:
        if _key(problem) not in usual:
            found.append(problem.summary)
    asked = sum(other.ready is None for other in among)
    # where most did not answer, that is no matter of one node
    if one.ready is None and asked <= len(among) / 2:
        found += one.unknown or [one.summary]
    speeds = []
    for other in among:
        if other.busbw is not None:
            speeds.append(other.busbw)
    if one.busbw is not None and len(speeds) >= FEWEST and one.busbw < SLOWER * median(speeds):
        found.append(
            f"its GPUs reach {one.busbw:g} GB/s busbw, where half of the nodes reach"
            f" {median(speeds):g}"
        )
    return tuple(found)
