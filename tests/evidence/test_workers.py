"""Workers of Dask read as one process does; where there are none, a sentence says who reads instead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ncclkit import evidence
from ncclkit.analysis.consistency import compare
from ncclkit.core.model import NcclkitError
from ncclkit.evidence import samples
from ncclkit.evidence.scanner import pieces
from ncclkit.live import worker_lease, workers
from tests.fleet import fleet

ROOT = Path(__file__).parents[2]
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


READING = """
import sys
from ncclkit.live import worker_lease, workers
with workers.started("dask:1", print) as executor:
    print(executor.submit(abs, -7).result(), flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_workers_of_this_host_end_with_a_reading_that_is_killed() -> None:
    pytest.importorskip("distributed")
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", READING], stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as verb:
        assert verb.stdout is not None
        assert [verb.stdout.readline() for _ in range(2)][1] == "7\n"
        started = psutil.Process(verb.pid).children(recursive=True)
        verb.kill()
    assert started != [] and psutil.wait_procs(started, timeout=10)[1] == []


@pytest.mark.slow
def test_a_worker_ends_when_its_keys_are_gone(tmp_path: Path) -> None:
    """Although the scheduler still answers it, and Slurm, which would kill it, is not there."""
    distributed = pytest.importorskip("distributed")
    security = distributed.Security.temporary()
    words = []
    for name, text in security.get_tls_config_for_role("worker").items():
        if name in ("ca_file", "cert", "key"):
            (tmp_path / name).write_text(text)
            words += [f"--tls-{name.replace('_', '-')}", str(tmp_path / name)]
    here = {"host": "127.0.0.1", "dashboard_address": workers.NOBODY, "protocol": "tls://", "security": security}
    with distributed.LocalCluster(n_workers=0, **here) as cluster, distributed.Client(cluster) as client:
        command = [sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address, "--no-nanny", *words]
        command += ["--preload", worker_lease.__name__, "--local-directory", str(tmp_path)]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as worker:
            client.wait_for_workers(1, timeout=60)
            assert client.submit(abs, -7).result(60) == 7
            (tmp_path / "key").unlink()
            try:
                _, said = worker.communicate(timeout=15)
            finally:
                worker.kill()
    assert "the reading is over, and so is this worker" in said


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
