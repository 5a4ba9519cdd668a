"""Recordings: a run kept as data, small, and without the names and paths of the machine that made it."""

from __future__ import annotations

import gzip
import json
import pickle
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ncclkit.runs import Run
from ncclkit.evidence.flight import pickles
from ncclkit.storage import write

Clean = Callable[[str], str]

KEEP = (
    "rank*.log",
    "launcher.log",
    "wire.jsonl",
    "status.json",
    "plan.json",
    "processes.json",
    "ras*.txt",
    "ras*.json",
    "stacks_rank*.txt",
    "fr_rank_*",
    "truth.json",
)


def bundle(run: Run, target: Path, about: dict[str, Any]) -> Path:
    """Keep a run as a recording: a small case folder with machine paths and names replaced, text files gzipped.

    about: hardware, versions, date, as said by the recording script; written to ``case.json`` with the ground truth.
    """
    folder = target / "runs" / f"1-{run.plan.name}"
    folder.mkdir(parents=True)
    clean = cleaner(run.folder)
    for pattern in KEEP:
        for source in sorted(run.folder.glob(pattern)):
            _keep(source, folder, clean)
    shutil.move(folder / "truth.json", target / "truth.json")
    about = about | {
        "schema": 1,
        "sample": target.name,
        "recorded": time.strftime("%Y-%m-%d"),
        "ranks": run.plan.ranks,
        "truth": json.loads((target / "truth.json").read_text()),
    }
    write(target / "case.json", json.dumps(about, indent=1))
    return target


def _keep(source: Path, folder: Path, clean: Clean) -> None:
    if source.name.startswith("fr_rank_"):
        try:
            write(folder / source.name, pickle.dumps(walk(pickles.loads(source.read_bytes()), clean), protocol=2))
        except pickles.Refused:  # a rank that was ended while it wrote; what cannot be cleaned is not kept
            print(f"{source} is damaged and was left out.", file=sys.stderr)
    elif source.suffix == ".json":
        write(folder / source.name, clean(source.read_text()))
    else:
        text = clean(source.read_text(errors="replace"))
        write(folder / f"{source.name}.gz", gzip.compress(text.encode(), mtime=0))


def walk(value: Any, clean: Clean) -> Any:
    """The same nested value with every string cleaned."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {walk(key, clean): walk(item, clean) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(walk(item, clean) for item in value)
    return value


PRIVATE = (
    (re.compile(r"(?<![\w.])(?!127\.|0\.0\.0\.0|255\.)\d{1,3}(?:\.\d{1,3}){3}(?=[<:\]\s,)/'\"&]|$)"), "10.0.0.1"),
    (
        re.compile(r"(?i)\b(?:fe80|fd[0-9a-f]{2}|2[0-9a-f]{3})(?:(?::[0-9a-f]{0,4}){3,7}|::[0-9a-f]{1,4})\b"),
        "2001:db8::1",
    ),
    (re.compile(r"\bGPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "GPU-00000000-0000-0000-0000-000000000000"),
)
"""Addresses and serial numbers, and what stands in their place."""


def cleaner(folder: Path) -> Clean:
    """A function that replaces this machine's paths, host name, addresses and GPU serials in a text by neutral ones."""
    names = sorted({socket.gethostname(), socket.gethostname().split(".")[0]} - {"localhost"}, key=len, reverse=True)
    host = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in names) or r"(?!)")
    places = [
        (str(folder), "/case/run"),
        (sys.prefix, "/env"),
        (sys.base_prefix, "/python"),
        (str(Path.home()), "/home/user"),
        (str(Path.cwd()), "/work"),
    ]

    def clean(text: str) -> str:
        for old, new in places:
            text = text.replace(old, new) if len(old) > 4 else text  # "/" stands in every path
        text = host.sub("node-1", text)
        for pattern, new in PRIVATE:
            text = pattern.sub(new, text)
        return text

    return clean
