"""docs/design.md shows the map that the imports make: the table of floors, and the picture drawn from them."""

import re

import pytest

from tests.packaging.project import ROOT
from tests.packaging.test_structure import FLOORS
from tests.record.map import PICTURE, picture, reduced

DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")


def test_the_table_of_the_design_is_the_table_of_floors():
    rows = re.findall(r"^\| (\d) \| `(\w+)/` \|", DESIGN, re.MULTILINE)
    shown = {floor: tuple(package for number, package in rows if int(number) == floor) for floor in FLOORS}
    assert shown == FLOORS
    assert len(rows) == sum(map(len, FLOORS.values()))


def test_the_picture_is_drawn_from_the_imports_of_today():
    assert PICTURE.read_text(encoding="utf-8") == picture(), "run python tests/record/map.py"
    assert f"]({PICTURE.name})" in DESIGN


def test_every_function_that_the_design_names_exists():
    named = re.findall(r"`(ncclkit(?:\.\w+)+)\.(\w+)`", DESIGN)
    assert named
    missing = [f"{module}.{name}" for module, name in named if not defines(module, name)]
    assert not missing


@pytest.mark.parametrize("file", ["CONTRIBUTING.md", "docs/design.md"])
def test_every_file_that_a_newcomer_is_sent_to_exists(file):
    named = re.findall(r"`((?:ncclkit|tests)/[\w./]+)`", (ROOT / file).read_text(encoding="utf-8"))
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def defines(module: str, name: str) -> bool:
    """Whether a module's text defines the name, or the module is a package and holds it as a module."""
    path = ROOT / module.replace(".", "/")
    text = next(
        (file.read_text(encoding="utf-8") for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()),
        "",
    )
    if re.search(rf"^\s*(?:async )?(?:def|class) {name}\b|^{name}\b.*=", text, re.MULTILINE):
        return True
    return (path / f"{name}.py").exists() or (path / name).is_dir()


def test_an_import_that_others_imply_is_left_out():
    assert reduced([("a", "b"), ("b", "c"), ("a", "c")]) == {("a", "b"), ("b", "c")}
