"""The package becomes no denser: the figures of each room only fall."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.packaging.imports import Module, Package
from tests.packaging.project import ROOT
from tests.packaging.readability import Room, counted, kept_figures, names_in_three_modules, risen

DENSE = 'a = [x if x else y for x in z for y in e.data["one"]]\n'
PLAIN = "a = 1\n"
PROTOCOL = {"diagnose", "experiment", "main"}
"""What each cause, and each program, has by the same name."""


def room_of(folder: Path, text: str) -> Room:
    """What is counted of a module with this text."""
    path = folder / "module.py"
    path.write_text(text, encoding="utf-8")
    room = Room()
    room.add(Module("module", path, text, ast.parse(text)))
    return room


def test_the_package_becomes_no_denser() -> None:
    now = counted()
    found = risen(now, kept_figures())
    unknown = now.keys() - kept_figures().keys()
    assert not found, "\n".join(found)
    assert not unknown, "python -m tests.packaging.readability --write"


def test_no_public_name_stands_in_three_modules() -> None:
    known = names_in_three_modules(Package(ROOT / "ncclkit"))
    assert known.keys() <= PROTOCOL, known


def test_what_rises_is_said() -> None:
    before = {"causes": {"nodes a line": 7.0, "long lines": 0}}
    now = {"causes": {"nodes a line": 7.1, "long lines": 0}}
    assert len(risen(now, before)) == 1
    assert risen(before, now) == []


@pytest.mark.parametrize(("text", "dense"), [(DENSE, True), (PLAIN, False)])
def test_density_is_counted(tmp_path: Path, text: str, dense: bool) -> None:
    room = room_of(tmp_path, text)
    assert (room.conditionals, room.comprehensions, room.untyped) == ((1, 1, 1) if dense else (0, 0, 0))


def test_docstrings_and_comments_are_no_code(tmp_path: Path) -> None:
    room = room_of(tmp_path, '"""Two\nlines."""\n\n# why\nA = 1\n"""What it is."""\n')
    assert room.code == 1
