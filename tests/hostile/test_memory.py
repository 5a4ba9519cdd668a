"""Small files that would become gigabytes of objects."""

from __future__ import annotations

import gzip

import pytest

from ncclkit import evidence
from ncclkit.evidence.flight import pickles

COUNT = pickles.CONTAINERS + 1


@pytest.mark.parametrize("code", [b"}", b"]"])
def test_a_pickle_of_empty_containers_is_refused_before_any_is_made(code):
    with pytest.raises(pickles.Refused, match="million lists"):
        pickles.loads(b"\x80\x02](" + code * COUNT + b"e.")


def test_a_packed_bomb_costs_one_sentence_and_never_the_log_beside_it(tmp_path):
    (tmp_path / "dump_0.gz").write_bytes(gzip.compress(b"\x80\x02](" + b"}" * COUNT + b"e."))
    (tmp_path / "rank0.log").write_text("RuntimeError: CUDA error: unknown error\n")
    reading = evidence.read([tmp_path])
    assert "cuda.error" in {event.kind for event in reading.events}
    assert len(reading.problems) == 1 and "million lists" in reading.problems[0]


def test_a_json_document_of_empty_objects_is_not_made_of_objects(monkeypatch, tmp_path):
    monkeypatch.setattr(pickles, "CONTAINERS", 100)
    parsed = []
    monkeypatch.setattr(evidence.files.json, "loads", lambda text: parsed.append(text))
    (tmp_path / "a.json").write_text("[" + "{}," * 101 + "{}]")
    evidence.read([tmp_path / "a.json"])
    assert parsed == []
