"""The kinds of nodes that a partition has: their GPUs, features and how many are idle.

In come lines of ``sinfo``.  Out come rows of the fact ``scheduler.partitions``, and what a job asks
for on such nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ncclkit.core.text import plural, some

SINFO_COLUMNS = "%R|%t|%D|%G|%c|%f"
"""Partition, state, nodes, gres, CPUs and features."""
NUMBER = re.compile(r"[0-9]{1,9}")
GRES = re.compile(
    r"(?P<name>[\w.-]+)"
    r"(?:(?::(?!no_consume)(?P<type>[^:(),]+))?(?::no_consume)?:(?P<count>[0-9]{1,6}))?(?:\(.*)?"
)
"""One resource of Slurm's GRES: ``gpu:8``, ``gpu:h100:8(S:0-1)``, ``shard:16``."""
BETWEEN_GRES = re.compile(r",(?![^(]*\))")
"""A comma between two resources, and none within ``(S:0,1)``."""
SLICE = re.compile(r"(?:^|[_-])[1-7]g\.[0-9]{1,3}gb", re.IGNORECASE)
"""How the type of a slice of a GPU (MIG) is written: ``1g.10gb``, ``a100_3g.20gb``."""
SHARES = {"shard": "shards of GPUs", "mps": "MPS shares of GPUs"}
"""Resources that are parts of GPUs, too."""
MOST_APART = 6
"""Kinds with the same GPUs that are told apart by a feature; more are a feature of each rack."""
MARKS = "*~#!%$@^-+"
"""What follows a state: * does not answer, ~ is powered down."""


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """What of a node's GRES are GPUs."""

    count: int = 0
    model: str = ""
    """The types in Slurm's words, several joined by ``+``."""
    slices: bool = False
    """Whether they are slices of GPUs (MIG)."""
    shares: str = ""


def node_gpus(gres: str) -> NodeGpus:
    """The GPUs in Slurm's GRES of one node; all types of them together."""
    whole: dict[str, int] = {}
    slices: dict[str, int] = {}
    shares: list[str] = []
    for item in BETWEEN_GRES.split(gres):
        match = GRES.fullmatch(item.strip())
        if match is None:
            continue
        number = int(match["count"] or 1)
        model = match["type"] or ""
        if match["name"] in SHARES and number:
            shares.append(f"{number} {SHARES[match['name']]}")
        if match["name"] != "gpu" or not number:
            continue
        if SLICE.search(model):
            slices[model] = slices.get(model, 0) + number
        else:
            whole[model] = whole.get(model, 0) + number
    if slices and not whole:
        return NodeGpus(sum(slices.values()), "+".join(slices), True, ", ".join(shares))
    # beside whole GPUs, slices are no GPUs that a job of several ranks could want
    beside = [f"{plural(number, 'MIG slice')} {model}" for model, number in slices.items()]
    models = "+".join(model for model in whole if model)
    return NodeGpus(sum(whole.values()), models, False, ", ".join([*beside, *shares]))


def add_nodes(
    row: dict[str, Any], state: str, count: int, gres: str, cpus: str, feats: str
) -> None:
    """Add some equal nodes to the row of their partition."""
    gpus = node_gpus(gres)
    features = []
    for feature in feats.split(","):
        if feature.strip() not in ("", "(null)"):
            features.append(feature.strip())
    idle = 0
    if state.rstrip(MARKS) == "idle":
        idle = count
    # 64+ where nodes differ
    cores = cpus.rstrip("+")
    kind = {
        "gpus": gpus.count,
        "model": gpus.model,
        "slices": gpus.slices,
        "shares": gpus.shares,
        "features": sorted(features),
    }
    row["nodes"] += count
    row["idle"] += idle
    # the most that a node of the partition has
    if gpus.count > row["gpus"]:
        row["gpus"] = gpus.count
    row["model"] = row["model"] or gpus.model
    if NUMBER.fullmatch(cores):
        row["cpus"] = max(row["cpus"], int(cores))
    for known in row["kinds"]:
        if all(known[name] == value for name, value in kind.items()):
            known["nodes"] += count
            known["idle"] += idle
            return
    row["kinds"].append({"nodes": count, "idle": idle, **kind})


def gpu_words(kind: Mapping[str, Any]) -> str:
    """The GPUs of one node of a kind: "4 h100 GPUs", "7 MIG slices 1g.10gb", "no GPUs"."""
    if not kind["gpus"]:
        return "no GPUs"
    if kind.get("slices"):
        words = f"{plural(kind['gpus'], 'MIG slice')} {kind['model']}"
    else:
        words = plural(kind["gpus"], f"{kind['model']} GPU".strip())
    if kind.get("shares"):
        words += f" ({kind['shares']})"
    return words


def kinds_by_gpus(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The kinds of a partition that differ in their GPUs, most GPUs first.

    Features that do not go with GPUs make no kind of their own.
    """
    merged: dict[str, dict[str, Any]] = {}
    for kind in row.get("kinds", ()):
        known = merged.setdefault(gpu_words(kind), {**kind, "nodes": 0, "idle": 0})
        known["nodes"] += kind["nodes"]
        known["idle"] += kind["idle"]
    return sorted(merged.values(), key=lambda kind: -kind["gpus"])


def kinds_to_ask_for(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The kinds of a partition that a job can ask for, each with its ``constraint``.

    Nodes with the same GPUs are apart where each kind has a feature that no other has; a job cannot
    ask for the lack of one.
    """
    found = []
    for merged in kinds_by_gpus(row):
        same = []
        for kind in row.get("kinds", ()):
            if gpu_words(kind) == gpu_words(merged):
                same.append(kind)
        apart = []
        for kind in same:
            others: set[str] = set()
            for other in same:
                if other is not kind:
                    others.update(other["features"])
            own = sorted(set(kind["features"]) - others)
            apart.append({**kind, "constraint": "&".join(own[:1])})
        are_apart = 1 < len(apart) <= MOST_APART and all(kind["constraint"] for kind in apart)
        if are_apart:
            found += apart
        else:
            found.append({**merged, "constraint": ""})
    return found


def nodes_with_gpus(row: Mapping[str, Any], least: int = 1) -> int:
    """How many nodes of a partition have at least so many GPUs."""
    count = 0
    for kind in row.get("kinds", ()):
        if kind["gpus"] >= least:
            count += kind["nodes"]
    return count


def kind_words(kind: Mapping[str, Any]) -> str:
    """A kind in words: its GPUs, and the feature that sets it apart."""
    if kind["constraint"]:
        return f"{gpu_words(kind)} with {kind['constraint']}"
    return gpu_words(kind)


def mixed_words(row: Mapping[str, Any], with_idle: bool = True) -> str:
    """Which nodes a partition mixes: "2 × 4 h100 GPUs (1 idle), 2 × no GPUs (2 idle)"."""
    words = []
    for kind in kinds_to_ask_for(row):
        idle = ""
        if with_idle:
            idle = f" ({kind['idle']} idle)"
        words.append(f"{kind['nodes']} × {kind_words(kind)}{idle}")
    return ", ".join(words)


def features_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """All features of the nodes of some partitions: what ``--constraint`` may ask for."""
    found: set[str] = set()
    for row in rows:
        for kind in row.get("kinds", ()):
            found.update(kind["features"])
    return sorted(found)


def types_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The types of GPUs in some partitions, as ``--gpus-per-node=TYPE:COUNT`` has them."""
    found: set[str] = set()
    for row in rows:
        for kind in row.get("kinds", ()):
            found.update(kind["model"].split("+"))
    return sorted(found - {""})


def default_gpus(row: Mapping[str, Any], nodes: int, gpu_type: str = "", feature: str = "") -> int:
    """The GPUs of each node that so many nodes of the partition have: all of them, or none.

    Where the partition mixes nodes, its largest number would leave some idle.
    """
    left = nodes
    fewest = row.get("gpus", 0)
    for kind in _matching(kinds_by_gpus(row), row, gpu_type, feature):
        fewest = kind["gpus"]
        left -= kind["nodes"]
        if left <= 0:
            return int(fewest)
    # more nodes than there are: that is what Slurm shall say
    return int(row.get("gpus", 0))


def _matching(
    kinds: Sequence[Mapping[str, Any]], row: Mapping[str, Any], gpu_type: str, feature: str
) -> list[Mapping[str, Any]]:
    """The kinds that a type or one feature leaves; of ``a&b`` and its like all are left."""
    if feature:
        kinds = [kind for kind in row.get("kinds", ()) if feature in kind["features"]] or kinds
    if gpu_type:
        kinds = [kind for kind in kinds if gpu_type in kind["model"].split("+")]
    return sorted(kinds, key=lambda kind: -kind["gpus"])


def constraint_words(row: Mapping[str, Any]) -> str:
    """The features of a partition's nodes in words; empty where they have none."""
    features = features_of([row])
    if features:
        return f"constraints {some(features)}"
    return ""
