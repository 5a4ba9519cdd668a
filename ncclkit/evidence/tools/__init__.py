"""What other tools print: facts of hosts, measured bandwidths.

In: a file of a tool's own, or the text of a log, in which such output may stand between the lines.
Out: facts and events.  A log is only searched at its beginning and end (see `search`), where job
scripts print; a small file is searched whole.

Begin with `document.Tool`, which says where a tool's output begins and what is in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice

from ncclkit.core.model import Fact
from ncclkit.evidence.scanner.prefix import parse_prefix
from ncclkit.evidence.sources.streams import Ends
from ncclkit.evidence.tools import hosts, nccltests
from ncclkit.evidence.tools.document import Document, Tool

__all__ = ["SMALL", "WINDOW", "Document", "at_ends", "facts", "search"]

TOOLS: tuple[Tool, ...] = (
    *hosts.SMI,
    *hosts.COLLECTED,
    *hosts.KERNEL,
    *hosts.RDMA,
    *nccltests.TOOLS,
)
ANCHORS = tuple(anchor for tool in TOOLS for anchor in tool.anchors)
TASK = re.compile(rb"^ {0,4}\d{1,5}: ", re.MULTILINE)
"""srun -l; believed where most lines look like this."""
MOST = 200
LONG = 1000
"""Characters of a line that are looked at; rows of the widest matrix have 500."""
WINDOW = 32 << 10
"""Bytes at both ends of a large text in which the anchors are looked for."""
SMALL = 256 << 10
"""Text up to this size is searched whole."""


def at_ends(ends: Ends, path: str, rank: int | None, lines: int) -> list[Document]:
    """Documents at both ends of a file of so many `lines`.

    `rank` is the one in its name.  Nothing is decoded where no anchor stands in the text, or in the
    `WINDOW` at both ends of one that is not small.
    """
    first, last = ends.head_and_tail()
    small = not last and len(first) <= SMALL
    found = []
    if _holds_anchor(first if small else first[:WINDOW]) or (
        not last and _holds_anchor(first[-WINDOW:])
    ):
        found = search(first, path, rank)
    if _holds_anchor(last[-WINDOW:]):
        start = last.find(b"\n") + 1
        found += search(
            last[start:], path, rank, lines - last.count(b"\n", start) + last.endswith(b"\n")
        )
    return found


def search(text: bytes, path: str, rank: int | None = None, first: int = 1) -> list[Document]:
    """Documents in a piece of a file that begins at line `first`.

    There are at most `MOST` of a speaker.
    """
    pages = _pages_of_text(text, rank, first)
    collected: list[Document] = []
    for page in pages:
        for found in islice(_documents_of_page(page, path), MOST):
            collected.append(found)
    return collected


def _holds_anchor(text: bytes) -> bool:
    return any(anchor in text for anchor in ANCHORS)


Page = tuple["int | None", list[str], list[int]]
"""The rank of one speaker of a file, its lines, and their numbers.

The launcher's prefix is taken off the lines.
"""


def _documents_of_page(page: Page, path: str) -> Iterator[Document]:
    """What the tools find in the lines of a speaker.

    Each document has its place as the source of its facts.
    """
    rank, lines, numbers = page
    for at, line in enumerate(lines):
        for tool in TOOLS:
            document = None
            if tool.start.search(line):
                document = tool.read(lines, at)
            if document is not None:
                yield document.placed(path, numbers[at], rank)


def _pages_of_text(text: bytes, rank: int | None, first: int) -> list[Page]:
    pages: dict[str, Page] = {}
    tasks = len(TASK.findall(text)) > 0.5 * text.count(b"\n")
    for number, raw in enumerate(
        text.decode("utf-8", "replace").replace("\0", "").split("\n"), first
    ):
        line = parse_prefix(raw.rstrip("\r")[:LONG], tasks=tasks)
        if rank is None and not line.local:
            speaker = line.rank
        else:
            speaker = rank
        _, lines, numbers = pages.setdefault(line.speaker, (speaker, [], []))
        lines.append(line.text)
        numbers.append(number)
    return list(pages.values())


def facts_of_documents(documents: Sequence[Document]) -> list[Fact]:
    """The facts of a file's documents, each once.

    All RDMA ports of a host stand in one of them.
    """
    once = {}
    for document in documents:
        for fact in document.facts:
            once[fact.name, fact.rank, str(fact.value)] = fact
    return hosts.joined(list(once.values()))
