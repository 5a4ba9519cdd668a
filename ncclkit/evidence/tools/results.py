"""The JSON file that nccl-tests write with ``-J``; the environment that stands in it too is not looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ncclkit.evidence.tools import nccltests
from ncclkit.evidence.tools.document import Document

COMMON = {"size": ("size", "bytes"), "type": ("type",), "redop": ("redop", "op"), "root": ("root",)}
HALF = {"time": ("time", "timeus"), "algbw": ("algbw",), "busbw": ("busbw",), "#wrong": ("nwrong", "wrong", "errors")}
"""Column of the printed table → names of its key, without underscores, in small letters."""
SIDES = ("outofplace", "inplace")


def is_results(value: object) -> bool:
    """True for a JSON document with rows of nccl-tests."""
    return isinstance(value, dict) and any(True for _ in _rows(value))


def read(value: Mapping[str, Any], path: str) -> Document:
    """The measurements of such a document in file `path`."""
    devices = value.get("devices")
    devices = devices if isinstance(devices, list) else []
    hosts = {str(_plain(device).get("hostname", "")) for device in devices} - {""}
    program = next((m[1] for m in nccltests.PROGRAM.finditer(str(value.get("args", ""))[:4000])), "")
    setup = nccltests.Setup(program, len(devices), len(hosts), 0, "")
    return replace(nccltests.document(list(_rows(value)), setup, "nccl-tests -J"), tool="nccl-tests -J").placed(path, 0)


def _rows(value: Mapping[str, Any]) -> Iterator[dict[str, list[str]]]:
    """Rows as the printed table gives them: cells by column, of both halves."""
    results = value.get("results")
    for result in results if isinstance(results, list) else ():
        plain = _plain(result)
        halves = [_plain(plain[side]) for side in SIDES if side in plain]
        row = {name: _cells([plain], keys) for name, keys in COMMON.items()}
        row |= {name: _cells(halves, keys) for name, keys in HALF.items()}
        if row["size"] and row["size"][0].isdigit() and row["type"]:
            if len(row["time"]) == len(row["algbw"]) == len(row["busbw"]) > 0:
                yield {name: cells for name, cells in row.items() if cells}


def _plain(value: object) -> dict[str, Any]:
    items = value.items() if isinstance(value, dict) else ()
    return {str(key).replace("_", "").lower(): item for key, item in items}


def _cells(maps: list[dict[str, Any]], keys: tuple[str, ...]) -> list[str]:
    found = [next((values[key] for key in keys if key in values), None) for values in maps]
    return [
        f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in found if isinstance(cell, (str, int, float))
    ]
