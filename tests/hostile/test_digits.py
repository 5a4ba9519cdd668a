"""Numbers in text from outside: digits that `int` refuses, and more of them than it takes."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ncclkit.agent import anonymize
from ncclkit.agent.digits import is_whole, whole_number, whole_numbers
from ncclkit.agent.monitor import ras
from ncclkit.agent.run import processes
from ncclkit.core import bandwidth, tuning
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.evidence.tools import nccltests
from ncclkit.live import connect
from tests.packaging.project import ROOT

NO_NUMBERS = ("²", "1²", "٣", "१", "9" * 5000, "", " 1", "+1", "-1", "1_0", "1\n", "½", "Ⅷ")
"""Each of them passes `isdigit`, `isnumeric` or `int`, but not all three; or is none at all."""
GUARDS = {"isdigit", "isnumeric", "isdecimal"}
HELPER = ROOT / "ncclkit" / "agent" / "digits.py"


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_what_is_no_number(text: str) -> None:
    assert whole_number(text) is None and not is_whole(text)
    assert whole_numbers(["7", text, "08"]) == [7, 8]


def test_what_is_a_number() -> None:
    largest = 2**64 - 1
    assert (whole_number("0"), whole_number("007"), whole_number(str(largest))) == (0, 7, largest)


def test_nothing_else_asks_whether_a_text_is_a_number() -> None:
    """`isdigit` is true of texts that `int` refuses, so no such guard stands in our code."""
    guards = []
    for path in sorted((ROOT / "ncclkit").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in GUARDS:
                guards.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert HELPER.exists() and guards == []


@pytest.mark.parametrize("text", ["²", "9" * 5000])
def test_readers_take_it_for_text(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ras.address({"NCCL_RAS_ADDR": f"node:{text}"}) == ("localhost", ras.PORT)
    assert bandwidth.chosen_gpus({"env.CUDA_VISIBLE_DEVICES": f"1,{text}"}, 2) == [0, 1]
    assert anonymize._natural_key(f"a{text}") < anonymize._natural_key(f"b{text}")
    assert nccltests._row_of_line(["size", "count"], f"{text} {text}") is None
    (tmp_path / "runs" / f"{text[:200]}-probe").mkdir(parents=True)
    assert Case.open(tmp_path).runs() == []
    with pytest.raises(NcclkitError, match="not NAME=VALUE"):
        tuning.setting(f"channels={text}")
    monkeypatch.setenv("MASTER_PORT", text)
    with pytest.raises(NcclkitError, match="must be a number from 1 to 65535"):
        connect._port(None)


def test_a_rank_of_a_stranger_is_no_number() -> None:
    """Any process may stand in /proc with such a RANK."""
    sleeping = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    environ = os.environ | {"RANK": "²"}
    with subprocess.Popen(sleeping, env=environ, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == b"\n"
            assert processes.ranks_of_processes([child.pid]) == {}
        finally:
            child.kill()
