"""An examination: a fault drawn by seed and secret, and its key.

It holds what the fault's job left without its name, and the key with points.
"""

from __future__ import annotations

import functools
import hmac
import json
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ncclkit import evidence
from ncclkit.causes import catalogue
from ncclkit.causes.engine import diagnose
from ncclkit.core import storage
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError, cite
from ncclkit.evidence import samples
from ncclkit.evidence.logs import fill
from ncclkit.lab.faults import injection, recording
from ncclkit.lab.faults.catalogue import FAULTS

STUDENT, KEY, SHEET = "student", "key.json", "answer.json"
POINTS = {"ranks": 3, "cause": 3, "line": 2, "experiment": 1, "fix": 1}
"""Points of one examination: ten.

The last two are for a person to give.
"""
SECRET_BYTES = 32
SECRET = re.compile(rb"[0-9a-f]{%d}\s*" % (2 * SECRET_BYTES))
"""What the teacher's file holds."""
HIDDEN = ("plan.json", "truth.json", "status.json")
"""Files of a run that name its fault."""
NEUTRAL = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        (rf"\b(?:{'|'.join(sorted(FAULTS, key=len, reverse=True))})\b", "work"),
        (r"\b(?:lab/)?programs/(?:inject|stories)/|\blab[./]programs\b|\binject\b", "app/"),
        (r"\bstories\.", ""),
        (r"\b(?:calls|program)\.py\b", "app.py"),
    )
)
"""Pattern → what stands in its place: names of faults, and of the modules that hold them."""


@dataclass(frozen=True, slots=True)
class AnswerSheet:
    """What a student answers."""

    cause: str = ""
    """Id of the cause, as ``ncclkit causes`` lists them; "healthy" for a job that went well."""
    ranks: list[int] = field(default_factory=list)
    """At fault; empty where every rank has the fault, or where a host is at fault."""
    hosts: list[str] = field(default_factory=list)
    """At fault; empty where a rank is."""
    line: str = ""
    """The line that shows it, as it stands in a file."""
    experiment: str = ""
    """What would separate the two best suspects."""
    fix: str = ""


def default_secret_file() -> Path:
    """Where this user's secret lies, unless ``--secret`` names another file."""
    home = Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser()
    return home / "ncclkit" / "exam-secret"


def teacher_secret(file: Path) -> bytes:
    """The secret in a file, which is made where there is none.

    Raises NcclkitError where others may read it.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            _write_private(file, secrets.token_hex(SECRET_BYTES))
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as opened:
            about = os.fstat(opened.fileno())
            kept = b""
            if stat.S_ISREG(about.st_mode):
                kept = opened.read(4 * SECRET_BYTES)
    except OSError as error:
        raise NcclkitError(
            f"The secret of examinations {file} cannot be kept: {error.strerror or error}."
        ) from error
    if about.st_uid != os.geteuid() or about.st_mode & 0o077:
        raise NcclkitError(
            f"{file} may be read by others, who could draw your faults; chmod 600 {file}."
        )
    if not SECRET.fullmatch(kept):
        raise NcclkitError(
            f"{file} holds no secret of examinations; name another file with --secret."
        )
    return kept.strip()


def drawn(seed: int, names: Sequence[str], secret: bytes) -> str:
    """The fault of that seed, one of `names`.

    Who lacks the teacher's secret cannot tell which.
    """
    return sorted(names)[_number_below(f"fault {seed}", len(names), secret)]


def _number_below(what: str, count: int, secret: bytes) -> int:
    """A number below `count`, the same each time for the same secret."""
    digest = hmac.digest(secret, f"ncclkit exam, {what}".encode(), "sha256")
    return int.from_bytes(digest, "big") % count


def _write_private(path: Path, text: str) -> None:
    """Write a new file that only this user may read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)


def recorded() -> list[str]:
    """Faults whose recordings are bundled, so that an examination needs no run."""
    return [name for name in samples.list_samples() if name in FAULTS]


def runnable() -> list[str]:
    """Faults that two or more ranks can have on one host without GPUs.

    Each has one cause and clear culprits.
    """
    return [
        name
        for name, fault in FAULTS.items()
        if "gloo" in fault.backends
        and not (fault.net or fault.root or fault.needs)
        and name != "a2a_reused"
    ]


async def make(
    seed: int,
    folder: Path,
    secret: bytes,
    *,
    from_recording: bool = False,
    ranks: int = 4,
    python: str = "",
) -> Path:
    """Write the examination of a seed to a new folder.

    ``student/`` is to hand out, ``key.json`` to keep.  `secret` is the teacher's own, without which
    the seed says nothing (`teacher_secret`); `from_recording`: hand out a bundled recording in
    place of breaking a job now.
    """
    if folder.exists() and any(folder.iterdir()):
        raise NcclkitError(f"{folder} is not empty; name a new folder for the examination.")
    with tempfile.TemporaryDirectory(prefix="ncclkit-exam-") as place:
        case = Case.open(place)
        name = drawn(seed, recorded() if from_recording else runnable(), secret)
        if from_recording:
            run = recording.replay(case, samples.HERE / name)
            truth = json.loads((samples.HERE / name / "truth.json").read_text())
        else:
            culprit = _number_below(f"rank {seed}", ranks, secret)
            run = (
                await injection.inject(
                    case, name, ranks=ranks, culprit=culprit, python=python or None
                )
            ).folder
            truth = json.loads((run / "truth.json").read_text())
        job = folder / STUDENT / "job"
        recording.files(run, job, neutral, HIDDEN)
    storage.write(folder / STUDENT / SHEET, json.dumps(asdict(AnswerSheet()), indent=1))
    _write_private(folder / KEY, json.dumps(_exam_key(seed, truth, job), indent=1))
    return folder


@functools.cache
def neutral(text: str) -> str:
    """A text without the names of faults, and of the modules of the lab."""
    for pattern, instead in NEUTRAL:
        text = pattern.sub(instead, text)
    return text


def _exam_key(seed: int, truth: Mapping[str, Any], job: Path) -> dict[str, Any]:
    """The ground truth, and what the handed-out files show of it."""
    cause = str(truth["cause"])
    case = fill(Case(), evidence.read([job]))
    found = diagnose(case)
    shown = next((finding for finding in found.findings if finding.cause == cause), None)
    lines = []
    if shown:
        lines = [cite(piece)["text"] for piece in shown.evidence]
    if not cause:
        lines += [event.text for event in case.of("worker.phase") if event.data.phase == "done"]
    return {
        "seed": seed,
        "fault": truth["fault"],
        "cause": cause or "healthy",
        "ranks": list(truth.get("ranks") or ()) if cause else [],
        "hosts": list(truth.get("hosts") or ()),
        "lines": lines,
        "experiment": catalogue()[cause].experiment(Case()).question if cause else "",
        "fix": [advice.do for advice in shown.advice] if shown else [],
        "points": POINTS,
    }


def grade(answer: Path, key: Path) -> dict[str, int]:
    """Points of an answer sheet by the key.

    They are given for what a machine can judge: ranks, cause and line.
    """
    sheet = {name: getattr(AnswerSheet(), name) for name in asdict(AnswerSheet())}
    for file in (answer, key):
        if not file.is_file():
            raise NcclkitError(
                f"{file} is not a file; name the answer sheet with --grade, the examination with"
                " --to."
            )
    sheet |= storage.read_json(answer, {}, AnswerSheet)
    known = storage.read_json(key, {})
    shown = [_flat_text(line) for text in known["lines"] for line in str(text).splitlines()]
    line = _flat_text(sheet["line"])
    ranks_and_hosts_match = all(
        sorted(sheet[name]) == sorted(known[name]) for name in ("ranks", "hosts")
    )
    right = {
        "ranks": ranks_and_hosts_match and bool(sheet["cause"]),
        "cause": sheet["cause"] == known["cause"],
        "line": (
            len(line) > 10
            and any(line in whole or whole in line for whole in shown if len(whole) > 10)
        ),
    }
    return {name: POINTS[name] * held for name, held in right.items()}


def _flat_text(text: object) -> str:
    """Without what a log writes before a line of a rank, and with single blanks."""
    return " ".join(re.sub(r"^\[\w+\]:?", "", str(text).strip()).split())
