"""The grammar of p2pBandwidthLatencyTest, the CUDA sample that measures copies between GPUs."""

from __future__ import annotations

import re
from dataclasses import replace

from ncclkit.evidence.grammars.grammar import Data, Line, Rule, rule

GPUS = 128
"""Rows that are read of one matrix."""
NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})?", re.ASCII)


def _matrix(match: re.Match[str], data: Data, line: Line) -> Data | None:
    """Rows as long as they are whole; a matrix without one (cut off, or only its heading is quoted) tells nothing."""
    lines = line.own(GPUS + 1)
    head = next(lines, None)
    gpus = re.findall(r"\b\d{1,3}\b", head.body) if head and head.body.strip().startswith("D\\D") else []
    values, text = [], [line.text]
    for gpu, later in zip(gpus, lines, strict=False):
        first, *row = later.body.split() or [""]
        if first != gpu or len(row) != len(gpus) or not all(NUMBER.fullmatch(value) for value in row):
            break
        values.append([float(value) for value in row])
        text.append(later.text)
    if head is None or not values:
        return None
    text.insert(1, head.text)
    return {
        "enabled": data["state"] == "Enabled",
        "direction": data["direction"].lower(),
        "gpus": [int(gpu) for gpu in gpus],
        "values": values,
        "_line": replace(line, text="\n".join(text)),
    }


RULES: tuple[Rule, ...] = (
    # Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
    #    D\D     0      1
    #      0 780.19  45.62
    rule(
        "p2p.matrix",
        " P2P=",
        r"(?P<direction>(?:Uni|Bi)directional) P2P=(?P<state>Enabled|Disabled) Bandwidth .{0,40}?Matrix \(GB/s\)",
        make=_matrix,
    ),
)
