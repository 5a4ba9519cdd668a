"""One file: what kind it is, and the events in it."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import BinaryIO

from ncclkit.core.model import NcclkitError
from ncclkit.core.text import natural
from ncclkit.evidence import documents, tools
from ncclkit.evidence.flight import pickles
from ncclkit.evidence.merge import Merger
from ncclkit.evidence.part import Part, Spread
from ncclkit.evidence.ras import fromtext
from ncclkit.evidence.scanner import pieces, scan, speakers
from ncclkit.evidence.sources import inputs
from ncclkit.evidence.sources.archives import BINARY, NESTED, Archive
from ncclkit.evidence.sources.ends import Ends
from ncclkit.evidence.sources.streams import DAMAGE, Budget, Hashed, Joined, Readable, Text, is_tar, unpack

TASKS = re.compile(rb"(?m)^ {0,4}\d{1,5}: ")
KERNEL = re.compile(
    rb"(?m)^(?:(?:<\d{1,3}>|\w+ *:\w+ *: )?\[(?: *\d+\.\d{6}|\w{3} \w{3} [ \d]\d [\d:]{8} \d{4})\]|.{0,60}\bkernel: )"
)
"""The kernel's lines as dmesg (also -T, -x, -r), syslog and journalctl write them."""


def read(path: str, stdin: BinaryIO | None = None, spread: Spread = map) -> list[Part]:
    """Read one file, and the members of an archive after it; whatever is wrong stands in `problems`.

    Safe to run in another process; `spread` has the pieces of a large plain file scanned in others.
    """
    part = Part(path, rank=inputs.rank_of(path))
    parts = [part]
    try:
        if path == "-":
            parts += _fill(part, stdin or sys.stdin.buffer, None)
        else:
            with inputs.opened(path) as stream:
                about = os.fstat(stream.fileno())
                part.bytes = about.st_size
                part.spread = spread if about.st_size else None  # /proc
                parts += _fill(part, stream, datetime.fromtimestamp(about.st_mtime))
    except NcclkitError as error:
        part.problems.append(str(error))
    except (OSError, pickles.Refused) as error:
        part.problems.append(f"{path}: {error}.")
    part.spread = part.hashed = None  # their work is done, and they cannot travel
    return parts


def _fill(part: Part, stream: Readable, changed: datetime | None, inside: Budget | None = None) -> list[Part]:
    """Read one stream into its part; the members, where it is an archive that is not itself `inside` one."""
    hashed, members = Hashed(stream, part.bytes), []
    plain, packing = unpack(hashed)
    text = Text(plain, packed=packing != "")
    text.budget = inside
    part.spread, part.hashed = (None, None) if packing else (part.spread, hashed)
    head = b"" if packing in ("zip", "zst?") else text.read(inputs.HEAD)
    if packing == "zst?":
        part.problems.append(f"{part.path} is packed with zstd: `pip install zstandard`, or unpack it with `zstd -d`.")
    elif packing == "zip" or is_tar(head):
        part.kind = "archive"
        if inside is None:
            members = _members(part, stream, hashed, Joined(head, text), packing)
    elif not head:
        part.kind = "empty"
    elif head[:1] == b"\x80" or head.lstrip()[:1] in (b"{", b"["):
        rest = documents.read(part, head, text)
        if rest is not None:
            _text(part, rest, text, changed)
    else:
        _text(part, head, text, changed)
    if part.kind in ("log", "dmesg"):
        part.take(tools.at_ends(text.ends, part.path, part.rank, part.lines))
    if text.problem and not part.problems:
        part.problems.append(f"{part.path} {text.problem}")
    # a checkpoint of 100 GB must not be read for its digest
    if part.kind not in ("binary", "archive", "unknown") or members:
        if inside is not None:  # what is left of a member may be a bomb: through its limits
            text.drain()
        if inside is None or not text.problem:
            hashed.drain()
            part.sha256 = hashed.digest.hexdigest()
    part.bytes = max(hashed.bytes, part.bytes)
    return members


def _members(part: Part, stream: Readable, hashed: Hashed, source: Joined, packing: str) -> list[Part]:
    """Every member that can hold evidence, as a part of its own, in the order of a folder."""
    file = stream if isinstance(stream, (io.BufferedReader, io.BytesIO)) and stream.seekable() else None
    budget, passing = (Budget(lambda: max(part.bytes, hashed.bytes)) for _ in range(2))
    archive = Archive(part.path, passing)
    source.rest.budget = passing if packing not in ("", "zip") else None
    found = archive.zip(file, source) if packing == "zip" else archive.tar(source)
    parts = []
    for member in found:
        inner = Part(f"{part.path}/{member.name}", rank=inputs.rank_of(member.name))
        try:
            _fill(inner, member.stream, member.changed, budget)
        except (*DAMAGE, pickles.Refused) as error:
            inner.problems.append(f"{inner.path}: {error}.")
        if inner.kind in ("archive", "binary"):
            inner.problems.clear()
            archive.omit(NESTED if inner.kind == "archive" else BINARY, member.name)
        parts.append(inner)
        if budget.spent:
            break
    if source.rest.problem:
        archive.problem = f"{part.path} {source.rest.problem}"
    part.problems += archive.problems()
    if not parts and not part.problems:
        part.problems.append(f"{part.path} holds no log.")
    if packing == "zip" and file is not None:
        hashed.restart(file)
    return sorted(parts, key=lambda inner: natural(inner.path))


def _text(part: Part, head: bytes, text: Text, changed: datetime | None) -> None:
    wide = inputs.width(head)
    if not wide and inputs.is_binary(head):
        part.kind = "binary"
        part.problems.append(f"{part.path} is a binary file of no known kind; it was not read.")
        return
    stream = Text(Joined(head, text), packed=False, wide=wide) if wide else Joined(head, text)
    sample = head.decode(wide, "replace").encode() if wide else head
    part.kind = _kind(sample)
    if part.kind == "ras":
        part.report = fromtext.from_text((raw := stream.read(inputs.SMALL)).decode("utf-8", "replace"), part.path)
        part.events = part.report.events()
        part.lines = raw.count(b"\n")
        return
    lines = sample.splitlines()
    tasks = len(TASKS.findall(sample)) > 0.5 * max(4, len([line for line in lines if line.strip()]))
    labelled = len(speakers.SPEAKER.findall(sample)) > 0.3 * len(lines)
    context = scan.Context(part.path, part.rank, tasks, changed)
    told = {"labelled": labelled, "stacks": part.kind == "stacks"}
    if part.spread and not wide:
        with inputs.opened(part.path) as file:
            plan = pieces.plan(file, part.bytes, context, **told)
            text.ends = Ends.of(file, part.bytes)
        found = pieces.joined(_passing(part, plan))
    else:
        found = pieces.joined([pieces.gather(scan.blocks(stream, context), Merger(), **told)])
    part.events, part.lines = found.events, found.ends + found.open
    part.speakers = sorted({*part.speakers, *found.voices})
    part.problems += [f"{part.path} {found.problem}"] if found.problem else []


def _passing(part: Part, plan: Sequence[pieces.Piece]) -> Iterator[pieces.Found]:
    """What the pieces gave; each is digested while it is scanned, here or elsewhere."""
    assert part.spread and part.hashed
    if part.spread is map:
        part.hashed.restart()
        yield from (pieces.read(piece, part.hashed.take) for piece in plan)
        return
    found = part.spread(pieces.read, plan)
    for piece in plan:
        part.hashed.skip(piece.end)
        yield next(found)


def _kind(sample: bytes) -> str:
    text = sample.decode("utf-8", "replace")
    if fromtext.is_report(text):
        return "ras"
    if re.match(r"\s*(?:Process \d+: |Thread (?:0x)?[0-9A-Fa-f]+ \(|Current thread 0x|Fatal Python error: )", text):
        return "stacks"
    lines = len([line for line in sample.splitlines() if line.strip()])
    return "dmesg" if len(KERNEL.findall(sample)) > 0.5 * lines else "log"
