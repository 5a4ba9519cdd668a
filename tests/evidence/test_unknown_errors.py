"""Lines that call themselves errors and that no grammar knows: counted, shown, not in the way of what is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclkit import evidence
from ncclkit.evidence.logs import reading_summary

UNKNOWN = {
    "2026-11-21 00:28:00,123 ERROR trainer: shard 17 is unreadable": "shard 17",
    "[ERROR] cannot open /data/x": "cannot open",
    "ERROR:root:the loader gave up": "gave up",
    "fatal error: disk on fire": "on fire",
    "[rank3]: CRITICAL - checksum differs": "checksum",
}


def read(tmp_path: Path, text: str) -> evidence.Reading:
    (tmp_path / "train.log").write_text(text)
    return evidence.read([tmp_path / "train.log"])


@pytest.mark.parametrize("line", UNKNOWN)
def test_an_unknown_error_is_an_event(tmp_path: Path, line: str) -> None:
    (event,) = read(tmp_path, f"all is well\n{line}\nall is well\n").events
    assert (event.kind, event.line) == ("log.error", 2) and UNKNOWN[line] in event.data.message
    assert event.rank == (3 if "rank3" in line else None)


@pytest.mark.parametrize(
    "line",
    [
        "errors: 0",
        "no ERROR_COUNT here",
        "loss 0.1, error:0.2",
        "self.ERROR = 1",
        "mean squared error 0.1",
        "Fatal Python error: Aborted",
    ],
)
def test_a_mention_is_no_error(tmp_path: Path, line: str) -> None:
    assert read(tmp_path, f"{line}\n").events == []


def test_a_flood_is_counted_and_said(tmp_path: Path) -> None:
    reading = read(tmp_path, "".join(f"ERROR: batch {step} is empty\n" for step in range(500)))
    (event,) = reading.events
    (row,) = reading.inputs
    assert event.count == 500 and (row["events"], row["errors"]) == (0, 500)
    assert "500 × line that calls itself an error" in reading_summary(reading.inputs, 0, [])


def test_what_is_known_is_no_unknown_error(tmp_path: Path) -> None:
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    raise E("ERROR: x")\nValueError: 1\n'
    reading = read(tmp_path, trace + "ERROR: RuntimeError: NCCL error in: x.cpp:1, unhandled system error\n")
    assert "log.error" not in {event.kind for event in reading.events} and reading.inputs[0]["errors"] == 0
