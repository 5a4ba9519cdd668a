"""The views of 03_logs over whole runs: a bundled one of eight ranks, a generated one of 1,024."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ncclkit as nk
from ncclkit.causes import engine
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.evidence.logs import read_logs
from tests.record import thousand
from tests.views.test_faces import Page

CONCLUSIONS = {
    "inputs": "2,049 files of ",
    "job": "1,024 ranks on 128 hosts; NCCL 2.28.9; CUDA 13.0; network IB; 9 communicators; NCCL_P2P_DISABLE",
    "ranks": "Rank 517",
    "progress": "Rank 517 stopped at collective 240 of default_pg; 1,023 ranks wait in collective 241",
    "disagreement": "517",
    "transports": "889 pairs of ranks over P2P/CUMEM; 128 over NET/IB with GPUDirect RDMA, 7 over SHM/direct",
    "rings": "2 channels run the same ring over 1,024 ranks, which changes host 128 times",
    "events": "from 2,049 files, 1,024 ranks",
}


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return read_logs(str(thousand.write(tmp_path_factory.mktemp("thousand"))))


@pytest.fixture(scope="module")
def eight() -> Case:
    return read_logs("eight_ranks_late")


@pytest.mark.slow
@pytest.mark.parametrize("name", CONCLUSIONS)
def test_a_thousand_ranks_give_one_conclusion_and_a_short_page(big: Case, name: str) -> None:
    view = getattr(nk.show, name)(big)
    bundle = view._repr_mimebundle_()
    assert CONCLUSIONS[name] in view.summary
    assert len(json.dumps(bundle)) < 1 << 20


def test_a_thousand_ranks_are_judged(big: Case) -> None:
    first = engine.diagnose(big).findings[0]
    assert (first.cause, first.strength, first.culprits["ranks"]) == ("slow_rank", "proven", (517,))


@pytest.mark.parametrize("name", ["ranks", "progress", "events"])
def test_the_odd_rank_comes_before_the_many(big: Case, name: str) -> None:
    words = Page(getattr(nk.show, name)(big).static()).words
    many = "0–516, 518–1023"
    assert many in words
    assert name == "events" or words.index("517") < words.index(many)


def test_the_odd_host_is_named_with_its_variable_and_its_transport(big: Case) -> None:
    assert "ranks 96–103 (8)" in Page(nk.show.job(big).static()).words
    rows = Page(nk.show.transports(big).static()).words.partition("Which ranks")[2]
    assert rows.index("SHM/direct") < rows.index("P2P/CUMEM") and "inside node-012" in rows


def test_the_clock_that_is_ahead_is_named(big: Case) -> None:
    assert "The clock of node-090 is 3.0 s ahead" in Page(nk.show.disagreement(big).static()).words


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("inputs", "everything was understood"),
        ("job", "8 ranks"),
        ("ranks", "Rank 5"),
        ("progress", "Rank 5 stopped at collective 11"),
        ("disagreement", "5"),
        ("transports", "Nothing is known of the transports"),
        ("rings", "Nothing is known of the rings"),
        ("events", "8 ranks"),
    ],
)
def test_the_bundled_run_of_eight_ranks(eight: Case, name: str, words: str) -> None:
    assert words in getattr(nk.show, name)(eight).summary


def test_what_was_not_understood_comes_first(tmp_path: Path) -> None:
    (tmp_path / "a_rank0.log").write_text("node-1:7:7 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n")
    (tmp_path / "b_rank1.log").write_text("the weather is fine\n")
    (tmp_path / "core").write_bytes(bytes(range(32)) * 64)
    view = nk.show.inputs(read_logs(str(tmp_path)))
    assert view.summary.startswith("2 files of ") and "; 1 file could not be used; " in view.summary
    assert view.summary.endswith("in 1 log no line is known")
    words = Page(view.static()).words
    assert words.index("core") < words.index("b_rank1.log") < words.index("a_rank0.log")
    assert "binary of no known kind" in words and "no known line" in words


@pytest.mark.parametrize(
    ("logs", "sentence"),
    [("", "No logs were named"), ("   ", "No logs were named"), ("'open", "close the quotes"), ("no_such", "no_such")],
)
def test_logs_that_are_not_there(logs: str, sentence: str) -> None:
    with pytest.raises(NcclkitError, match=sentence):
        read_logs(logs)


def test_a_second_reading_replaces_the_first_and_the_folder_keeps_it(tmp_path: Path) -> None:
    read_logs("rank_late", tmp_path / "case")
    case = read_logs("eight_ranks_late", tmp_path / "case")
    again = Case.open(tmp_path / "case")
    assert {e.path for e in again.events} == {e.path for e in case.events}
    assert again.inputs == case.inputs and all("eight_ranks_late" in row["path"] for row in again.inputs)


def test_several_inputs_and_a_path_with_blanks(tmp_path: Path) -> None:
    for name in ("a b.log", "c.log"):
        (tmp_path / name).write_text("node-1:7:7 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n")
    assert len(read_logs(str(tmp_path / "a b.log")).inputs) == 1
    assert len(read_logs(f"'{tmp_path / 'a b.log'}' {tmp_path / 'c.log'}").inputs) == 2


LINE = (
    "torch.distributed.DistBackendError: [5] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via "
    "c10d key-value store by key '0', but store->get('0') got error: Socket Timeout"
)


def test_one_pasted_line_is_a_log_and_names_that_do_not_exist_are_not(tmp_path: Path) -> None:
    found = {finding.cause: finding for finding in engine.diagnose(read_logs(LINE)).findings}
    assert found["slow_rank"].culprits["ranks"] == (0,)
    for named in ("rank0.log rank1.log", f"{tmp_path}/*.log other.log"):
        with pytest.raises(NcclkitError, match=r"does not exist|Nothing matches"):
            read_logs(named)
