"""What the value of a fact looks like.

Facts also come from files of other people, which may hold anything.  A value of another shape
becomes unknown, with the reason, so that whoever reads facts can rely on their types.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from typing import Annotated, Any

import msgspec

from ncclkit.core.model import Fact, from_dict

Number = Annotated[float, msgspec.Meta(gt=-1e300, lt=1e300)]
"""A finite number; booleans and numbers in text are not."""


def rows(must: Mapping[str, Any] | None = None, may: Mapping[str, Any] | None = None) -> Any:
    """A shape: a list of mappings, each with the keys `must`.

    Each may have keys `may`, which are of their shape or None.
    """
    needed = list((must or {}).items())
    optional = [(name, form | None, None) for name, form in (may or {}).items()]
    return list[msgspec.defstruct("Row", [*needed, *optional])]  # type: ignore[misc]


_GIDS = rows({"index": Number}, {"gid": str, "type": str})
SHAPES: tuple[tuple[str, Any], ...] = (
    (r"memory\.swap", rows({"size": Number}, {"device": str, "used": Number, "storage": str})),
    (
        r"net\.rdma",
        rows({"device": str}, {"port": Number, "state": str, "link_layer": str, "gids": _GIDS}),
    ),
    (
        r"net\.interfaces",
        rows({"name": str}, {"state": str, "addresses": list[str], "mtu": Number, "speed": Number}),
    ),
    (r"env\.(?!problems$|notes$).*", str | Number),
    (
        r"env\.(?:problems|notes)",
        rows(dict.fromkeys(("kind", "name", "value", "problem", "hint"), str)),
    ),
    (r"software\.nccl\.libraries", rows({"path": str}, {"version": str, "how": str})),
    (r"gpu\.\d+\.memory\.holders", rows({}, {"name": str, "memory": str})),
    (r"software\.torch\.locks", rows({"path": str, "age": Number})),
    (r"gpu\.(?:topology|p2p\.\w+)", dict[str, dict[str, str]]),
    (r"gpu\.\d+\.remapped_rows|software\.frameworks", dict[str, Any]),
    (r"gpu\.\d+\.nvlink\.speeds", list[Number | None]),
    (
        r"gpu\.\d+\.throttle|host\.acs|net\.nccl\.hcas|net\.hostname\.addresses"
        r"|software\.nccl\.plugins",
        list[str],
    ),
    (r"host\.(?:iommu|clock\.synced)", bool),
    (
        r"limits\.(?:nofile|cgroup|shm)\..*|limits\.(?:memlock|nproc|ptrace_scope)|cpu\.usable"
        r"|memory\.(?!swap$).*",
        Number,
    ),
    (
        r"job\..*|gpu\.count|gpu\.\d+\.(?:memory\.(?:total|free)|pcie\.width(?:\.max)?"
        r"|nvlink\.links)",
        Number,
    ),
    (
        r"gpu\.\d+\.ecc\.uncorrected|storage\.\w+\.(?:free|latency)|net\.(?:backlog|neighbours"
        r"|conntrack).*",
        Number,
    ),
    (r"gpu\.\d+\.(?:busy|power\.limit)|net\.loopback\.(?:bandwidth|cost)", Number),
    (r"net\.loopback\.interval", tuple[Number, Number]),
    (r"cpu\.affinity|gpu\.\d+\.(?:cpus|model)", str),
    (
        r"storage\.\w+\.path|gpu\.(?:nvidia_smi|driver|library)|software\.(?:torch|nccl)(?:\.cuda"
        r"|\.built)?",
        str,
    ),
    (r"gpu\.\d+\.(?:compute_mode|mig|recovery|fabric\.\w+)|net\.(?:nccl|gloo)\.interface", str),
)
"""Names of facts that verdicts rest on, as patterns, and what their values look like."""


# each of thousands of facts would be tried against all patterns, and names repeat from host to
# host
@cache
def _shape_of_fact(name: str) -> Any:
    return next((shape for pattern, shape in SHAPES if re.fullmatch(pattern, name)), None)


def validated(fact: Fact) -> Fact:
    """The fact, without its value where that has not the documented shape."""
    # a name or a reason of another type is made text first, as everybody joins and prints them
    words = {name: getattr(fact, name) for name in ("name", "unit", "source", "host", "why")}
    if not all(isinstance(word, str) for word in words.values()):
        fact = from_dict(Fact, asdict(fact) | {name: str(word) for name, word in words.items()})
    if fact.value is None:
        shape = None
    else:
        shape = _shape_of_fact(fact.name)
    if shape is None:
        return fact
    try:
        msgspec.convert(fact.value, shape)
        return fact
    except (msgspec.ValidationError, UnicodeEncodeError):  # its message quotes a lone surrogate
        why = (
            f"{fact.source or 'the file it came from'} holds something else there:"
            f" {str(fact.value)[:40]!r}"
        )
    return replace(fact, value=None, why=why)
