"""Workers of Dask read as one process does; where there are none, a sentence says who reads instead."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ncclkit import evidence
from ncclkit.analysis.consistency import compare
from ncclkit.core.model import NcclkitError
from ncclkit.evidence import samples
from ncclkit.evidence.scanner import pieces
from ncclkit.live import workers
from tests.fleet import fleet

SAMPLES = [samples.HERE / "rank_late", samples.HERE / "eight_ranks_late"]


@pytest.mark.slow
def test_workers_of_dask_give_what_one_process_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs, dumps (which a worker reads in a process with limits), a log in pieces, and facts of hosts."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(pieces, "PIECE", 64 << 10)
    log = tmp_path / "large.log"
    log.write_bytes(b"".join(path.read_bytes() for path in sorted(SAMPLES[0].glob("rank*.log"))) * 20)
    given = [*SAMPLES, log]
    alone, said = evidence.read(given), list[str]()
    with workers.started("dask:2", said.append) as executor:
        assert executor is not None, said
        assert evidence.read(given, executor=executor) == alone
        facts = fleet(4, {"node0002": {"software.nccl": "2.26.2", "env.NCCL_ALGO": "Ring"}})
        assert compare(facts, executor) == compare(facts)
        address = executor._client.scheduler.address
        with pytest.raises((OSError, TypeError)):  # whoever has not the key executes nothing
            distributed.Client(address, timeout=10, security=distributed.Security.temporary())
    assert said == ["1 worker of Dask so far, at most 2."]


def test_without_dask_a_sentence_says_who_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    said: list[str] = []
    with workers.started("dask", said.append) as executor:
        assert executor is None
    assert said == ["Dask is not installed (pip install 'ncclkit[dask]'), so processes of this host read instead."]


def test_workers_that_are_not_there_cost_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(workers, "START", 0.5)
    said: list[str] = []
    with workers.started("tcp://127.0.0.1:9", said.append) as executor:
        assert executor is None
    assert len(said) == 1 and "Dask has no worker" in said[0] and "processes of this host read instead" in said[0]


@pytest.mark.parametrize("what", ["", "dusk", "dask:0", "dask:-1", "tcp://", "http://x"])
def test_what_names_no_workers_is_refused(what: str) -> None:
    with pytest.raises(NcclkitError, match="write dask, dask:8"), workers.started(what, print):
        raise AssertionError("it was taken")
