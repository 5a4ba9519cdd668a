"""Facts that were read on other hosts: what ``ncclkit inspect --json`` printed there, or their ``facts.jsonl``."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from ncclkit.core.model import Fact, from_dict

NAME = re.compile(r"[a-z]+(?:\.[\w-]+)+")
TEXTS = ("name", "unit", "source", "host", "why")


def from_value(value: Any) -> list[Fact]:
    """The facts in a list, in ``{"facts": [...]}``, or one alone; none for any other document.

    Facts that do not say their host are of the one that ``host.name`` names.
    """
    rows = value.get("facts", [value]) if isinstance(value, dict) else value
    if not isinstance(rows, list) or not all(map(is_fact, rows)):
        return []
    try:  # NaN and infinities, which Python reads but JSON does not know, become None
        finite = json.loads(json.dumps(rows), parse_constant=lambda name: None)
    except RecursionError:
        return []
    facts = [from_dict(Fact, row) for row in finite]
    own = next((str(fact.value) for fact in facts if fact.name == "host.name" and fact.value), "")
    return [fact if fact.host else replace(fact, host=own) for fact in facts]


def is_fact(row: Any) -> bool:
    """Whether it has what every fact has, each of the type that it should be."""
    return (
        isinstance(row, dict)
        and {"name", "value", "source"} <= row.keys()
        and all(isinstance(row.get(key, ""), str) for key in TEXTS)
        and isinstance(row.get("rank"), (int, type(None)))
        and NAME.fullmatch(row["name"]) is not None
    )
