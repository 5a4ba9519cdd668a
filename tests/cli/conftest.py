"""The command without a process of its own, where nothing depends on one: an interpreter that starts takes a second."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from ncclkit.cli import main
from tests.cli.command import Answer, Typed


@pytest.fixture
def typed(capfd: pytest.CaptureFixture[str]) -> Typed:
    """``typed(*argv, stdin=b"…", cwd=folder, NAME="value")``: what the command answers."""

    def answer(*argv: str, stdin: bytes = b"", cwd: Path | None = None, **env: str) -> Answer:
        capfd.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["ncclkit", *argv])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            for name, value in env.items():
                patch.setenv(name, value)
            if cwd:
                patch.chdir(cwd)
            try:
                status = main()
            except SystemExit as end:  # argparse
                status = int(end.code or 0)
        return Answer(argv, status, *capfd.readouterr())

    return answer
