"""Measurements that a case keeps: its ``measurements.jsonl``."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any

from ncclkit.core.model import Measurement, from_dict

FORMS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "int | None": (int, type(None)),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "Mapping[str, str]": (dict,),
}
"""Annotation of a field of `Measurement` → what JSON may hold there."""


def from_value(value: Any) -> list[Measurement]:
    """The measurements in a list, or one alone; none for any other document.

    NaN and infinities, which Python reads but JSON does not know, are none of a measurement's values.
    """
    rows = value if isinstance(value, list) else [value]
    return [from_dict(Measurement, row) for row in rows] if rows and all(map(is_row, rows)) else []


def is_row(row: Any) -> bool:
    """Whether it has what every measurement has, each of the type that it should be."""
    if not isinstance(row, dict):
        return False
    for field in fields(Measurement):
        if field.name not in row:
            if field.default is MISSING and field.default_factory is MISSING:
                return False
        elif not isinstance(row[field.name], FORMS[str(field.type)]):
            return False
    graph = row.get("graph_us")
    if row["bytes"] < 0 or row["time_us"] <= 0 or (graph is not None and graph <= 0):
        return False  # a call takes time, and everything else is divided by it
    try:
        json.dumps(row, allow_nan=False)
    except (ValueError, RecursionError):
        return False
    return all(isinstance(text, str) for text in row.get("env", {}).values())
