"""Recordings: a run kept as data, small and without names.

The names and paths are those of the machine that made it.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ncclkit import evidence
from ncclkit.agent import redact, wire
from ncclkit.agent.anonymize import Aliases
from ncclkit.core.case import SCHEMA, Case
from ncclkit.core.model import Fact, Measurement, NcclkitError, from_dict, to_json
from ncclkit.core.runs import Run
from ncclkit.core.storage import read_records, write, write_records
from ncclkit.evidence.flight import dumps
from ncclkit.evidence.processes import Refused

Clean = Callable[[str], str]

KEEP = (
    "rank*.log launcher*.log wire.jsonl status.json plan.json ras*.txt ras*.json stacks_rank*.txt "
    "fr_rank_* watch*.jsonl truth.json"
).split()


def writable(target: Path) -> None:
    """Make the folder of a recording.

    Raises NcclkitError where it cannot be made, or holds a recording already.
    """
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NcclkitError(
            f"No recording can be kept in {target}: {error.strerror or error}; name another."
        ) from error
    if not os.access(target, os.W_OK) or (target / "runs").exists():
        why = "may not be written by this user"
        if (target / "runs").exists():
            why = "holds a recording already"
        raise NcclkitError(
            f"No recording can be kept in {target}, as it {why}; name another folder."
        )


def bundle(run: Run, target: Path, about: dict[str, Any]) -> Path:
    """Keep a run as a recording.

    It is a small case folder with machine paths and names replaced, text files gzipped.  `about` is
    hardware, versions, date, as said by the recording script; it is written to ``case.json`` with
    the ground truth.
    """
    folder = target / "runs" / f"1-{run.plan.name}"
    files(run.folder, folder)
    shutil.move(folder / "truth.json", target / "truth.json")
    about = about | {
        "schema": SCHEMA,
        "sample": target.name,
        "recorded": time.strftime("%Y-%m-%d"),
        "ranks": run.plan.ranks,
        "truth": json.loads((target / "truth.json").read_text()),
        **({"simulated_hosts": run.plan.simulate_hosts} if run.plan.simulate_hosts > 1 else {}),
    }
    write(target / "case.json", json.dumps(about, indent=1))
    wired = gzip.decompress((folder / "wire.jsonl.gz").read_bytes()).splitlines()
    records = [
        record for line in wired if (record := wire.parse_record(line)) and record["kind"] == "fact"
    ]
    if records:  # of simulated hosts, which nobody can ask again
        write_records(target / "facts.jsonl", [from_dict(Fact, record) for record in records])
    if run.measurements:
        rows = [to_json(replace(row, run=folder.name)) + "\n" for row in run.measurements]
        write(target / "measurements.jsonl", cleaner(run.folder)("".join(rows)))
    return target


def replay(case: Case, source: Path) -> Path:
    """Copy the only run of a recording into a case.

    It lies there as if it had run there.  Returns its folder.
    """
    (kept,) = (source / "runs").iterdir()
    folder = case.new_run(kept.name.partition("-")[2])
    for path in sorted(kept.iterdir()):
        data = path.read_bytes()
        write(
            folder / path.name.removesuffix(".gz"),
            gzip.decompress(data) if path.suffix == ".gz" else data,
        )
    plan = json.loads((folder / "plan.json").read_text())
    # the one there is not here
    write(folder / "plan.json", json.dumps(plan | {"python": sys.executable}, indent=1))
    reading = evidence.read([folder])
    case.replace_facts(read_records(Fact, source / "facts.jsonl"))
    case.add(
        replace(row, run=folder.name)
        for row in read_records(Measurement, source / "measurements.jsonl")
    )
    case.add(reading.events)
    case.inputs += reading.inputs
    case.save()
    return folder


def files(run: Path, folder: Path, more: Clean | None = None, without: Sequence[str] = ()) -> None:
    """Copy the evidence of a run folder to a new one.

    Names are replaced, text files gzipped.  `more` replaces what else must not be read, and then
    texts stay as plain files; `without` are names of files to leave out.
    """
    folder.mkdir(parents=True)
    clean = cleaner(run)
    for pattern in KEEP:
        for source in sorted(run.glob(pattern)):
            if source.name not in without:
                _keep_file(
                    source,
                    folder,
                    clean if more is None else lambda text: more(clean(text)),
                    more is None,
                )


def _keep_file(source: Path, folder: Path, clean: Clean, packed: bool = True) -> None:
    if source.name.startswith("fr_rank_"):
        try:
            dump = redact.texts(dumps.loads(source.read_bytes()), clean)
            write(folder / source.name, pickle.dumps(dump, protocol=2))
        except Refused:  # a rank that was ended while it wrote; what cannot be cleaned is not kept
            print(f"{source} is damaged and was left out.", file=sys.stderr)
    elif source.suffix == ".json" or not packed:
        write(folder / source.name, clean(source.read_text(errors="replace")))
    else:
        text = clean(source.read_text(errors="replace"))
        write(folder / f"{source.name}.gz", gzip.compress(text.encode(), mtime=0))


def cleaner(folder: Path) -> Clean:
    """A function that replaces what names this machine in a text.

    It replaces paths, names, users, addresses and GPU serials.
    """
    aliases = Aliases([socket.gethostname()], [os.environ.get("USER", "")])
    places = [
        (str(folder), "/case/run"),
        (sys.prefix, "/env"),
        (sys.base_prefix, "/python"),
        (str(Path.home()), "/home/user"),
        (str(Path.cwd()), "/work"),
    ]

    def clean(text: str) -> str:
        for old, new in places:
            # "/" stands in every path
            if len(old) > 4:
                text = text.replace(old, new)
        return aliases(text)

    return clean
