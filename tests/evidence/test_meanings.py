"""Every message that has a meaning becomes an event, in whatever prefix; what every healthy run says becomes none."""

from __future__ import annotations

import pytest

from tests.evidence.meanings import DULL, MEANINGS
from tests.evidence.test_grammars import has

MANY = (
    *(24, 25, 104, 105, 106, 107, 108, 109, 111, 121, 122, 123, 124, 125, *range(129, 136), 137, 139, 140, 143, 145),
)
"""Rows that comparisons over ranks tell, a RAS report, a benchmark, or another Xid."""


@pytest.mark.parametrize(
    ("row", "text", "kind", "fields"), MEANINGS, ids=[f"{case[0]}-{case[2]}-{case[1][-30:]}" for case in MEANINGS]
)
def test_a_message_is_an_event(only, row, text, kind, fields):
    events = only(kind, text + "\nnext\n")
    assert [event for event in events if has(event, fields)] and len(events) == 1


@pytest.mark.parametrize("text", DULL, ids=lambda text: text[-40:])
def test_what_healthy_runs_say_is_no_event(read_text, text):
    assert read_text(text + "\n").events == []


def test_every_row_of_the_table_was_thought_of():
    rows = {row for row, *_ in MEANINGS if isinstance(row, int)}
    elsewhere = {6, 76}  # in the specimens
    assert set(range(1, 151)) - rows - elsewhere <= set(MANY)
