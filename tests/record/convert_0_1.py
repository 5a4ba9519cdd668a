"""Convert what ncclkit 0.1.0 recorded to the words of today: run once over the recordings that are bundled.

    python tests/record/convert_0_1.py FOLDER …

Renames files and the words in them: what a run was asked (``plan.json``), its records (``wire.jsonl``), its telemetry,
the events that were read of them, and the number of the format in ``case.json``.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ncclkit.core import case, storage

FILES = {"watch": "telemetry", "ladder.jsonl": "bisection.jsonl", "trial.json": "experiment.json"}
OPTIONS = {"--ladder": "--stages", "--split": "--simulate-hosts", "--mend": "--fix"}
FIELDS = {"split": "simulate_hosts", "net": "network"}
"""Of ``plan.json``."""
KINDS = {
    **{f"ladder.{what}": f"stage.{what}" for what in ("rank", "pair", "group")},
    "watch.cpu": "telemetry.scheduling",
    "watch.load": "telemetry.utilization",
    "limits.tried": "resources.tried",
}
WORDS = [
    *((rf'"{old}"', f'"{new}"') for old, new in KINDS.items()),
    (r'"rung":', '"stage":'),
    (r'"stage": ?"narrow"', '"stage": "bisect"'),
    (r'"phase": ?"pretend"', '"phase": "simulate"'),
    (r"\bpretended-(?=\d)", "simulated-"),
    (r'^\{"watch": 1, ', '{"telemetry": 1, '),
]
"""Patterns over the text of any file, and what takes their place."""
SAMPLE = [(r'"load": ?\{', '"utilization": {'), (r'"cores": ?\{', '"scheduling": {')]
"""The same for samples of telemetry."""


def main(folders: Sequence[str]) -> None:
    """Convert every file below the folders, in place."""
    for path in (path for folder in folders for path in sorted(Path(folder).rglob("*")) if path.is_file()):
        if path.name == "events.parquet":
            storage.write_events(path, [_event(event) for event in storage.read_events(path)])
        elif path.name == "plan.json":
            path.write_text(_plan(path.read_text()))
        elif path.name == "case.json":
            path.write_text(re.sub(r'"schema": 1\b', f'"schema": {case.SCHEMA}', path.read_text()))
        elif re.search(r"\.(jsonl?|log|txt)(\.gz)?$", path.name):
            _text(path)
        new = next((path.name.replace(old, new) for old, new in FILES.items() if path.name.startswith(old)), path.name)
        path.rename(path.with_name(new))


def _event(event: Any) -> Any:
    data = json.loads(_words(json.dumps(event.data)))
    return replace(event, kind=KINDS.get(event.kind, event.kind), data=data, text=_words(event.text))


def _plan(text: str) -> str:
    plan = {FIELDS.get(name, name): value for name, value in json.loads(text).items()}
    plan["argv"] = [OPTIONS.get(word, word) for word in plan.get("argv", ())]
    return json.dumps(plan, indent=1)


def _text(path: Path) -> None:
    packed = path.suffix == ".gz"
    old = (gzip.decompress(path.read_bytes()) if packed else path.read_bytes()).decode("utf-8", "surrogateescape")
    new = _words(old, [*WORDS, *SAMPLE] if path.name.startswith("watch") else WORDS)
    if new != old:
        raw = new.encode("utf-8", "surrogateescape")
        path.write_bytes(gzip.compress(raw, 9, mtime=0) if packed else raw)


def _words(text: str, words: Sequence[tuple[str, str]] = WORDS) -> str:
    for old, new in words:
        text = re.sub(old, new, text, flags=re.MULTILINE)
    return text


if __name__ == "__main__":
    main(sys.argv[1:])
