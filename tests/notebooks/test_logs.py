"""03_logs headless: on the bundled run of eight ranks, and on a generated one of 1,024."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from ncclkit.report import report_file
from tests.record import thousand
from tests.reports import NOTEBOOKS, made

LOGS = next(path for path in NOTEBOOKS if path.stem == "03_logs")
LARGEST = 12_000_000
"""Bytes that a page of 1,024 ranks may have; 5 MB of them are plotly.js."""


def words(page: Path) -> str:
    main = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser").main
    assert main is not None
    return main.get_text(" ")


@pytest.fixture(scope="module")
def thousand_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    logs = thousand.write(tmp_path_factory.mktemp("thousand"))
    case, run = made(LOGS, (("logs", str(logs)),))
    assert run.returncode == 0, run.stderr
    return report_file(case, LOGS)


@pytest.mark.timeout(300)
def test_a_thousand_ranks_fit_on_a_page(thousand_ranks: Path) -> None:
    assert thousand_ranks.stat().st_size < LARGEST


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "said",
    [
        "Rank 517, busy in data.py:88 (read_shard), had not entered collective 241",
        "1,024 ranks on 128 hosts",
        "Rank 517 stopped logging first",
        "Rank 517 stopped at collective 240 of default_pg; 1,023 ranks wait in collective 241",
        "rank 517 never entered it",
        "The clock of node-090 is 3.0 s ahead; 127 others agree",
        "889 pairs of ranks over P2P/CUMEM; 128 over NET/IB with GPUDirect RDMA, 7 over SHM/direct",
        "2 channels run the same ring over 1,024 ranks",
        "0–516, 518–1023",
    ],
)
def test_each_part_states_its_conclusion(thousand_ranks: Path, said: str) -> None:
    assert said in words(thousand_ranks)


@pytest.mark.timeout(300)
def test_the_bundled_run_names_its_late_rank() -> None:
    case, run = made(LOGS)
    assert run.returncode == 0, run.stderr
    read = words(report_file(case, LOGS))
    late = ("Rank 5, busy in train.py:18 (skip_batches)", "Rank 5 stopped logging first", "rank 5 never entered it")
    for said in late:
        assert said in read
    assert not list(case.glob("runs/*attach*"))


STUCK = """
import os, sys
def save():
    print(flush=True)
    sys.stdin.read()
def train():
    if int(os.environ["RANK"]) == 1:
        save()
    print(flush=True)
    os.read(0, 1)
train()
"""


@pytest.mark.timeout(300)
def test_a_job_that_hangs_now_is_the_answer_and_not_the_example(tmp_path: Path) -> None:
    """Its stacks are read as on a terminal, although a kernel asks all programs for colours."""
    program, pipe = tmp_path / "train.py", subprocess.PIPE
    program.write_text(STUCK)
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(program)],
                    env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"},
                    stdin=pipe,
                    stdout=pipe,
                )
            )
            for rank in range(2)
        ]
        assert [rank.stdout.readline() for rank in ranks if rank.stdout] == [b"\n", b"\n"]
        case, run = made(LOGS, (("attach_to", " ".join(str(rank.pid) for rank in ranks)),))
    assert run.returncode == 0, run.stderr
    read = words(report_file(case, LOGS))
    assert "in save at train.py:5" in read and "int(os.environ['RANK']) == 1" in read and "skip_batches" not in read


@pytest.mark.timeout(300)
def test_logs_that_do_not_exist_are_one_sentence() -> None:
    _, run = made(LOGS, (("logs", "no/such/folder"),))
    assert run.returncode == 2 and run.stderr.startswith("ncclkit: no/such/folder does not exist")
