"""Versions that differ between ranks: what the lab installs, what ranks say that they loaded, what follows of it."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ncclkit.causes import version_mismatch
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import Event, NcclkitError
from ncclkit.core.runs import Plan
from ncclkit.evidence.samples import open_sample
from ncclkit.lab.faults.catalogue import FAULTS
from ncclkit.lab.faults.injection import inject
from ncclkit.lab.programs.inject import versions
from ncclkit.live import probe
from ncclkit.live.launch import simulated

CHECKED = Event("python.exception", "[1]: params[0] … appears not to match sizes of the same param in process 0")


def releases(fix: str = "", hosts: int = 2) -> list[dict[str, str]]:
    made = simulated.network_of({"hosts": hosts, "wrong": "older"}, fix)
    return [host["packages"] for host in made.values()]


@pytest.mark.parametrize(("version", "size"), [(simulated.OLD, 8), (simulated.NEW, 16)])
def test_the_two_releases_build_other_models(version: str, size: int) -> None:
    module: dict[str, Any] = {}
    files = next(files for files in releases() if f"lowrank-{version}.dist-info/METADATA" in files)
    exec(files["lowrank/__init__.py"], module)
    model = module["Adapted"](torch.nn.Linear(4, 6))
    assert module["__version__"] == version and model(torch.ones(2, 4)).shape == (2, 6)
    assert [tuple(one.shape) for one in model.parameters() if one.requires_grad] == [(size, 4), (6, size)]


def test_the_experiment_and_the_fix_leave_one_release() -> None:
    assert len({json.dumps(one) for one in releases()}) == 2
    assert len({json.dumps(one) for one in releases(hosts=1)}) == 1
    assert len({json.dumps(one) for one in releases(fix="version_mismatch")}) == 1
    assert len({json.dumps(one) for one in releases(fix="network_loss")}) == 2


def test_the_recording_names_the_host_and_asks_what_decides() -> None:
    first = diagnose(open_sample("mixed_versions")).findings[0]
    assert (first.cause, first.strength, first.culprits["hosts"]) == ("version_mismatch", "likely", ("node-2",))
    assert "0.3 on ranks 2 and 3 (node-2), 0.4 on ranks 0 and 1 (node-1)" in first.say
    assert first.next is not None and first.next.plan == {"hosts": 1}
    assert first.advice[0].command.endswith("'lowrank==0.4'")


def versions_of(rank: int, **versions: str) -> Event:
    data = {"phase": "import", "loaded": versions}
    return Event("worker.phase", f"rank {rank}", rank=rank, host=f"node-{rank}", data=data)


@pytest.mark.parametrize(
    ("events", "strength", "ranks"),
    [
        ([versions_of(0, a="1.10"), versions_of(1, a="1.9"), CHECKED], "likely", (1,)),  # of two the older
        (
            [versions_of(0, a="1"), versions_of(1, a="2"), versions_of(2, a="1"), CHECKED],
            "likely",
            (1,),
        ),  # of more the one alone
        ([versions_of(0, a="1"), versions_of(1, a="2"), Event("gloo.closed", "…")], "possible", (0,)),
        (
            [versions_of(0, nccl="2.27.7"), versions_of(1, nccl="2.28.9"), Event("c10d.timeout", "…", rank=0)],
            "likely",
            (0,),
        ),
        (
            [versions_of(0, a="1", b="3"), versions_of(1, a="1"), CHECKED],
            None,
            (),
        ),  # a package that one alone has loaded
        ([versions_of(0, a="1"), versions_of(1, a="2")], None, ()),  # they went well together
    ],
)
def test_who_is_the_odd_one(events: list[Event], strength: str | None, ranks: tuple[int, ...]) -> None:
    case = Case()
    case.add(events)
    finding = version_mismatch.diagnose(case)
    assert (finding.strength, finding.culprits.get("ranks", ())) == (strength, ranks)


def test_no_command_is_made_of_strange_names() -> None:
    case = Case()
    case.add([versions_of(0, **{"a';reboot;'": "1"}), versions_of(1, **{"a';reboot;'": "2"}), CHECKED])
    assert version_mismatch.diagnose(case).advice[0].command == ""


def test_a_rank_says_what_it_has_really_loaded() -> None:
    loaded = versions()
    assert loaded["torch"] == torch.__version__ and "json" not in loaded and "sys" not in loaded


def test_without_the_other_nccl_one_sentence_says_where_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NCCLKIT_OTHER_NCCL", raising=False)
    with pytest.raises(NcclkitError, match=r"NCCLKIT_OTHER_NCCL.*pip download --no-deps nvidia-nccl"):
        asyncio.run(inject(Case.open(tmp_path), "mixed_nccl"))


def test_a_rank_starts_again_with_the_library_that_the_variable_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader itself says that it was asked; over gloo, where NCCL is not needed, the job then goes on."""
    monkeypatch.setenv("NCCLKIT_OTHER_NCCL", str(tmp_path / "libnccl.so.2"))
    argv = ("train", "--backend", "gloo", *FAULTS["mixed_nccl"].argv, "--rank", "1")
    run = asyncio.run(probe.execute(Case.open(tmp_path / "case"), Plan("again", argv, 2, "gloo", sys.executable, 90)))
    logs = [(run.folder / f"rank{rank}.log").read_text() for rank in (0, 1)]
    assert run.reason == "done" and ["libnccl.so.2' from LD_PRELOAD" in log for log in logs] == [False, True]
    records = [json.loads(line) for line in (run.folder / "wire.jsonl").read_text().splitlines()]
    hellos = [record["pid"] for record in records if record.get("phase") == "hello" and record["rank"] == 1]
    assert len(hellos) == 2 and len(set(hellos)) == 1
