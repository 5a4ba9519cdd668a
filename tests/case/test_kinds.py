"""What events say is typed: one class a kind."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ncclkit.core.case import Case
from ncclkit.core.kinds import KINDS, NcclDestroy, NcclInit
from ncclkit.core.model import Event, fields_of, to_json
from tests.packaging.project import ROOT

INIT = Event("nccl.init", data={"rank": 1, "nranks": 8})


def saved(tmp_path: Path, *rows: dict) -> Case:
    Case.open(tmp_path).save()
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Case.open(tmp_path)


def test_a_mapping_becomes_the_class_of_the_kind() -> None:
    assert INIT.data == NcclInit(rank=1, nranks=8) and INIT == Event("nccl.init", data=NcclInit(rank=1, nranks=8))
    assert replace(INIT, data={"rank": 2}).data == NcclInit(rank=2)


def test_a_field_that_the_kind_does_not_have_is_an_error() -> None:
    with pytest.raises(TypeError, match="nrank"):
        Event("nccl.init", data={"nrank": 8})
    with pytest.raises(AttributeError):
        str(INIT.data.nrank)


def test_a_saved_case_reads_back_also_that_of_another_version(tmp_path: Path) -> None:
    rows = [
        {"kind": "nccl.init", "data": {"rank": 1, "nranks": 8, "of_next_year": 3}},
        {"kind": "of.next.year", "data": {"what": "new"}},
        json.loads(to_json(INIT)),
    ]
    events = saved(tmp_path, *rows).events
    assert events[0] == events[2] == INIT
    assert events[1].data == {"what": "new"} == fields_of(events[1])


def test_a_row_of_a_data_frame_holds_plain_values() -> None:
    case = Case().add([INIT])
    assert case.to_frame("events").loc[0, "data"] == fields_of(INIT)


def test_workers_hand_events_over() -> None:
    assert pickle.loads(pickle.dumps(INIT)) == INIT  # noqa: S301


def test_a_field_that_is_not_told_is_none_or_empty() -> None:
    for kind, fields in KINDS.items():
        told = fields_of(Event(kind))
        assert told.keys() == set(fields.__struct_fields__)
        assert all(value in (None, "", False, [], {}, 0, -1) for value in told.values()), kind


def test_a_case_gives_the_events_of_a_kind_with_certain_fields() -> None:
    case = Case()
    ends = [Event("nccl.destroy", data={"how": how, "rank": rank}) for rank in (0, 1) for how in ("destroy", "abort")]
    case.events = [INIT, *ends, Event("nccl.network", data={"name": "IB"})]
    assert case.of("nccl.destroy", how="abort") == case.of(NcclDestroy, how="abort") == [ends[1], ends[3]]
    assert case.of("nccl.destroy", how="abort", rank=1) == [ends[3]]
    assert case.of("nccl.", rank=1) == [INIT, ends[2], ends[3]]  # those that have no such field are left out
    assert case.of("nccl.init", "nccl.destroy", rank=1) == [INIT, ends[2], ends[3]]
    assert case.of(NcclInit) == [INIT] and case.of(NcclInit, rank=0) == []


@pytest.mark.parametrize(("kind", "field"), [("nccl.destroy", "hwo"), (NcclInit, "how"), ("nccl.", "exitcode")])
def test_a_field_that_no_kind_has_is_asked_for_in_vain(kind: str, field: str) -> None:
    with pytest.raises(TypeError, match=field):
        Case().of(kind, **{field: "abort"})


SOURCES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "ncclkit").rglob("*.py")}
OTHERS = ("agent/", "lab/programs/")  # where `data` is a data set, or a socket


def test_every_read_is_a_field_of_some_kind() -> None:
    known = {name for fields in KINDS.values() for name in dir(fields)}  # fields, and what is asked of them
    known |= {"find", "rfind", "count", "checkpoints"}  # of bytes, and of options
    reads = {
        (name, path.name)
        for path, source in SOURCES.items()
        if not str(path.relative_to(ROOT / "ncclkit")).startswith(OTHERS)
        for name in re.findall(r"(?<!utils)\.data\.([a-z]\w*)", source)
        if name not in known
    }
    assert reads == set()


def test_every_field_is_filled_somewhere() -> None:
    others = [source for path, source in SOURCES.items() if path.name != "kinds.py"]
    filled = set(re.findall(r"\"(\w+)\"|P<(\w+)>|\b(\w+)=|\b(\w+):", "\n".join(others)))
    words = {word for found in filled for word in found}
    assert {f"{kind}.{name}" for kind in KINDS for name in KINDS[kind].__struct_fields__ if name not in words} == set()
