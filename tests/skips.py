"""Says at the end of a test run what was skipped, and why: a line for each reason."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

MOST = 30
"""Reasons that are listed at most."""
FILES = 3
"""Files that are named for each of them."""


def reasons(skipped: Iterable[pytest.TestReport]) -> list[str]:
    """``2 × no GPU here (tests/live/test_a.py)`` for each reason, the one of most tests first."""
    files: dict[str, list[str]] = {}
    for report in skipped:
        # what is skipped by raising has a place and a reason, what is expected to fail only its traceback
        if isinstance(report.longrepr, tuple):
            reason = " ".join(report.longrepr[2].removeprefix("Skipped: ").split())
            files.setdefault(reason, []).append(report.nodeid.partition("::")[0])
    ordered = sorted(files.items(), key=lambda item: (-len(item[1]), item[0]))
    return [f"{len(found):>4} × {reason} ({_named(found)})" for reason, found in ordered]


def _named(files: list[str]) -> str:
    names = sorted(set(files))
    more = [f"{len(names) - FILES} more"] if len(names) > FILES else []
    return ", ".join([*names[:FILES], *more])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Called once, by the process that collects what its workers say."""
    lines = reasons(terminalreporter.stats.get("skipped", []))
    if not lines:
        return
    terminalreporter.section("skipped, as this machine cannot")
    for line in lines[:MOST]:
        terminalreporter.write_line(line)
    if len(lines) > MOST:
        terminalreporter.write_line(f"     {len(lines) - MOST} more reasons")
