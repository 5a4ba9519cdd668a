"""Reading text as if a job had left it behind."""

from __future__ import annotations

import pytest

from ncclkit import evidence


@pytest.fixture
def read_text(tmp_path):
    """Write text (or bytes) to a file and read it: ``read_text(text, name) -> Reading``."""

    def read(text, name="job.log"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return evidence.read([path])

    return read


@pytest.fixture
def only(read_text):
    """The events of one kind in a text: ``only(kind, text) -> list``."""
    return lambda kind, text, name="job.log": [event for event in read_text(text, name).events if event.kind == kind]
