"""One runner prints what any verb answers: text or JSON, never both, and only what is printed is made."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator

import pytest

from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.cli.runner import (
    Aside,
    CataloguePage,
    Data,
    NameTable,
    Part,
    Verb,
    VerbAnswer,
    Verdict,
    run_verb,
)
from ncclkit.cli.verbs import VERBS
from ncclkit.core.model import Fact
from tests.packaging.imports import Package
from tests.packaging.project import ROOT


class Told(Verb):
    """A verb that answers what it was given."""

    name = what = example = "told"

    def __init__(self, parts: Iterable[Part], data: Callable[[], Data] | None) -> None:
        self.told = VerbAnswer(1, parts, data)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        pass

    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        return self.told


def status_of(parts: Iterable[Part], data: Callable[[], Data] | None, **options: bool) -> int:
    return run_verb(argparse.Namespace(verb=Told(parts, data), **options))


def forbidden() -> Data:
    raise AssertionError("made, though nobody reads it")


def forbidden_parts() -> Iterator[Part]:
    yield str(forbidden())


Typed = pytest.CaptureFixture[str]


def test_text_is_printed_and_no_data_made(capsys: Typed) -> None:
    assert status_of(["one", "two"], forbidden, json=False) == 1
    assert capsys.readouterr() == ("one\ntwo\n", "")


def test_data_is_printed_and_no_text_made(capsys: Typed) -> None:
    assert status_of(forbidden_parts(), lambda: {"a": 1}, json=True) == 1
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == ({"a": 1}, "")


def test_records_stand_one_a_line(capsys: Typed) -> None:
    status_of([], lambda: [Fact("cpu.cores", 8), Fact("cpu.cores", 4)], json=True)
    assert [json.loads(line)["value"] for line in capsys.readouterr().out.splitlines()] == [8, 4]


@pytest.mark.parametrize("options", [{"json": True}, {}])
def test_a_verb_without_data_prints_its_text(options: dict[str, bool], capsys: Typed) -> None:
    assert status_of(["one"], None, **options) == 1
    assert capsys.readouterr().out == "one\n"


def test_every_kind_of_part_is_printed(capsys: Typed) -> None:
    table = NameTable("", [("cores", "8")])
    page = CataloguePage("slow_rank", {"": "One rank is late", "What you see": "It hangs."})
    nothing = Diagnosis()
    status_of([table, page, Verdict(nothing), Aside("\x1b[2J beside")], None)
    out, err = capsys.readouterr()
    assert out.startswith("cores  8\nslow_rank: One rank is late\n\nWhat you see\n    It hangs.\n")
    assert out.endswith(f"{nothing.text()}\n")
    assert err == "\\u001b[2J beside\n"


def test_each_verb_is_a_module_of_its_name() -> None:
    places = [type(verb).__module__.rpartition(".") for verb in VERBS]
    assert [place[2] for place in places] == [verb.name for verb in VERBS]
    assert {place[0] for place in places} == {"ncclkit.cli.verbs"}


def test_no_verb_writes_json_itself() -> None:
    modules = [one for one in Package(ROOT / "ncclkit").modules.values() if one.name.startswith("ncclkit.cli.verbs")]
    assert len(modules) > len(VERBS)
    assert [one.name for one in modules if "import json" in one.text or "to_json" in one.text] == []
