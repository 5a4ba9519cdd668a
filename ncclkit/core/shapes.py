"""What the value of a fact looks like: facts also come from files of other people, which may hold anything.

A value of another shape becomes unknown, with the reason, so that whoever reads facts can rely on their types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cache
from typing import Any

from ncclkit.core.model import Fact, from_dict

Shape = Callable[[Any], bool]


def number(value: Any) -> bool:
    """Whether a value is a finite number; booleans and numbers in text are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def text(value: Any) -> bool:
    """Whether a value is text."""
    return isinstance(value, str)


def texts(value: Any) -> bool:
    """Whether a value is a list of texts."""
    return isinstance(value, list) and all(map(text, value))


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and all(item is None or number(item) for item in value)


def _matrix(value: Any) -> bool:
    """{name: {name: text}}, as `nvidia-smi topo` prints."""
    return isinstance(value, dict) and all(
        text(one) and isinstance(row, dict) and all(text(two) and text(how) for two, how in row.items())
        for one, row in value.items()
    )


def rows(must: Mapping[str, Shape] | None = None, may: Mapping[str, Shape] | None = None) -> Shape:
    """A shape: a list of mappings, each with the keys `must`, and with keys `may` that are of their shape or None."""

    def fits(row: Any) -> bool:
        return (
            isinstance(row, dict)
            and all(name in row and shape(row[name]) for name, shape in (must or {}).items())
            and all(row.get(name) is None or shape(row[name]) for name, shape in (may or {}).items())
        )

    return lambda value: isinstance(value, list) and all(map(fits, value))


_FLAG: Shape = lambda value: isinstance(value, bool)  # noqa: E731
_TABLE: Shape = lambda value: isinstance(value, dict) and all(map(text, value))  # noqa: E731
_GIDS = rows({"index": number}, {"gid": text, "type": text})
SHAPES: tuple[tuple[str, Shape], ...] = (
    (r"memory\.swap", rows({"size": number}, {"device": text, "used": number, "storage": text})),
    (r"net\.rdma", rows({"device": text}, {"port": number, "state": text, "link_layer": text, "gids": _GIDS})),
    (r"net\.interfaces", rows({"name": text}, {"state": text, "addresses": texts, "mtu": number, "speed": number})),
    (r"env\.(?!problems$|notes$).*", lambda value: text(value) or number(value)),
    (r"env\.(?:problems|notes)", rows(dict.fromkeys(("kind", "name", "value", "problem", "hint"), text))),
    (r"software\.nccl\.libraries", rows({"path": text}, {"version": text, "how": text})),
    (r"gpu\.\d+\.memory\.holders", rows({}, {"name": text, "memory": text})),
    (r"software\.torch\.locks", rows({"path": text, "age": number})),
    (r"gpu\.(?:topology|p2p\.\w+)", _matrix),
    (r"gpu\.\d+\.remapped_rows|software\.frameworks", _TABLE),
    (r"gpu\.\d+\.nvlink\.speeds", _numbers),
    (r"gpu\.\d+\.throttle|host\.acs|net\.nccl\.hcas|net\.hostname\.addresses|software\.nccl\.plugins", texts),
    (r"host\.(?:iommu|clock\.synced)", _FLAG),
    (
        r"limits\.(?:nofile|cgroup|shm)\..*|limits\.(?:memlock|nproc|ptrace_scope)|cpu\.usable|memory\.(?!swap$).*",
        number,
    ),
    (r"job\..*|gpu\.count|gpu\.\d+\.(?:memory\.(?:total|free)|pcie\.width(?:\.max)?|nvlink\.links)", number),
    (r"gpu\.\d+\.ecc\.uncorrected|storage\.\w+\.(?:free|latency)|net\.(?:backlog|neighbours|conntrack).*", number),
    (r"gpu\.\d+\.(?:busy|power\.limit)", number),
    (r"cpu\.affinity|gpu\.\d+\.(?:cpus|model)", text),
    (r"storage\.\w+\.path|gpu\.(?:nvidia_smi|driver|library)|software\.(?:torch|nccl)(?:\.cuda|\.built)?", text),
    (r"gpu\.\d+\.(?:compute_mode|mig|recovery|fabric\.\w+)|net\.(?:nccl|gloo)\.interface", text),
)
"""Names of facts that verdicts rest on, as patterns, and what their values look like."""


@cache
def _shape(name: str) -> Shape | None:
    return next((shape for pattern, shape in SHAPES if re.fullmatch(pattern, name)), None)


def validated(fact: Fact) -> Fact:
    """The fact, without its value where that has not the documented shape."""
    words = {name: getattr(fact, name) for name in ("name", "unit", "source", "host", "why")}
    if not all(map(text, words.values())):
        fact = from_dict(Fact, asdict(fact) | {name: str(word) for name, word in words.items()})
    shape = None if fact.value is None else _shape(fact.name)
    if shape is None or shape(fact.value):
        return fact
    why = f"{fact.source or 'the file it came from'} holds something else there: {str(fact.value)[:40]!r}"
    return replace(fact, value=None, why=why)
