"""A message is the same event whatever stands around it: every specimen in every frame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from msgspec import structs

from ncclkit.core.model import Event
from ncclkit.evidence.grammars import grammar
from ncclkit.evidence.quotation import is_quotation
from tests import frames

RAISED = ("exception", "torch exception", "ray exception")
"""Frames that say what is raised: it is a part of the message."""
NEVER_RAISED = {"job.member", "printed.env"}
"""Kinds of lines that no exception carries: settings, and rows of tables."""
WRAPPED = ("wrap 80", "wrap 120")


def is_meant(specimen: frames.Specimen, frame: str) -> bool:
    """Whether a frame may stand around a message: a wrapped table is no table, and nobody raises a stack's line."""
    if frame in RAISED:
        return specimen.kind not in NEVER_RAISED and not specimen.text[0].isdigit()
    if frame in WRAPPED:
        return "    " not in specimen.text and "\n" not in specimen.text
    return True


def is_same(frame: str, bare: Event, framed: Event) -> bool:
    """The same fields; a raised message may have its type before it."""
    if frame not in RAISED or not hasattr(bare.data, "message"):
        return bool(bare.data == framed.data)
    said = framed.data.message
    is_within = (bare.data.message or "") in (said or "")
    return is_within and bool(structs.replace(bare.data, message=said) == framed.data)


def failures() -> Iterator[tuple[str, frames.Specimen]]:
    """The rows that do not give their event: frame, specimen."""
    for specimen in frames.all_specimens():
        bare = next(
            event for event in frames.events_of(specimen.text) if event.kind == specimen.kind
        )
        for name, write in frames.FRAMES.items():
            if not is_meant(specimen, name):
                continue
            framed = (
                event
                for event in frames.events_of(write(specimen.text))
                if event.kind == specimen.kind
            )
            if not any(is_same(name, bare, event) for event in framed):
                yield name, specimen


def test_every_message_is_read_in_every_frame() -> None:
    failed = list(failures())
    print("by frame:", Counter(name for name, _ in failed).most_common())
    print("by kind:", Counter(specimen.kind for _, specimen in failed).most_common())
    assert [(name, specimen.text) for name, specimen in failed[:20]] == []


def test_the_product_is_large() -> None:
    assert len(frames.FRAMES) >= 40 and len(frames.all_specimens()) > 500


def reported_where_quoted() -> set[tuple[str, str]]:
    """Frame and message of quoting lines that are taken for a program's own, each for itself.

    (A document is known as a whole, not by its lines.)
    """
    found = set[tuple[str, str]]()
    for specimen in frames.all_specimens():
        for name, write in frames.QUOTING.items():
            own = (
                event
                for event in frames.events_of(write(specimen.text))
                if event.kind == specimen.kind
            )
            if not all(is_quotation(event.text) for event in own):
                found.add((name, specimen.text))
    return found


def test_who_only_quotes_a_message_reports_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reported_where_quoted()
    monkeypatch.setattr(grammar, "sentence_of", lambda text: text)
    assert found - reported_where_quoted() == set()
