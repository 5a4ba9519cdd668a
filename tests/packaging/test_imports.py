"""The reader of imports, on small packages made up for it: what it must not overlook."""

from pathlib import Path

import pytest

from tests.packaging.imports import Package


@pytest.fixture
def made(tmp_path):
    """A function that writes a package ``toy`` of the given files and reads it."""

    def make(**files: str) -> Package:
        for name, text in {"__init__": "", **files}.items():
            path = Path(tmp_path, "toy", *name.split("__in__")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            (path.parent / "__init__.py").touch()
        return Package(tmp_path / "toy")

    return make


def pairs(package):
    return {(edge.importer, edge.imported) for edge in package.edges}


@pytest.mark.parametrize(
    "statement",
    [
        "import toy.low.b",
        "import toy.low.b as other",
        "from toy.low import b",
        "from toy.low.b import thing",
        "from toy.low.b import *",
        "from .b import thing",
        "from . import b",
        "from ..low import b",
        "def f():\n    from toy.low import b",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from toy.low import b",
        "try:\n    from .b import thing\nexcept ImportError:\n    thing = None",
        "from importlib import import_module\nb = import_module('toy.low.b')",
        "import importlib\nb = importlib.import_module('.b', __package__)",
    ],
)
def test_an_import_counts_however_it_is_written(made, statement):
    package = made(low__in__b="thing = 1", low__in__a=statement)
    assert pairs(package) == {("toy.low.a", "toy.low.b")}


def test_an_edge_names_the_line_of_its_first_import(made):
    package = made(b="thing = 1", a="import os\n\nimport toy.b\nfrom toy.b import thing")
    assert [str(edge) for edge in package.edges] == ["toy.a:3 imports toy.b"]


def test_a_relative_import_of_a_package_starts_at_the_package(made):
    package = made(
        low__in____init__="from .b import thing\nfrom ..other import more", low__in__b="thing = 1", other="more = 1"
    )
    assert pairs(package) == {("toy.low", "toy.low.b"), ("toy.low", "toy.other")}


def test_a_name_that_a_package_defines_is_no_import_of_the_module_of_that_name(made):
    package = made(
        low__in____init__="from toy.low.scan import scan", low__in__scan="def scan(): ...", a="from toy.low import scan"
    )
    assert ("toy.a", "toy.low") in pairs(package)
    assert ("toy.a", "toy.low.scan") not in pairs(package)


def test_names_behind_the_front_door_are_no_edges(made):
    package = made(
        __init__="__version__ = '1'\ndef __getattr__(name): ...", a="from toy import __version__, lazily\nimport toy"
    )
    assert pairs(package) == set()


def test_the_standard_library_and_other_packages_are_no_edges(made):
    assert pairs(made(a="import os.path\nfrom toybox import b", b="")) == set()


def test_a_circle_is_found_over_several_modules_and_hidden_imports(made):
    package = made(a="from . import b", b="import toy.c", c="def f():\n    from toy.a import x", d="import toy.a")
    assert package.circles() == [["toy.a", "toy.b", "toy.c"]]


def test_without_a_circle_none_is_named(made):
    assert made(a="import toy.b\nimport toy.c", b="import toy.c", c="").circles() == []


def test_a_unit_stands_above_all_that_it_imports(made):
    package = made(
        low__in__x="",
        mid__in__x="import toy.low.x",
        high="import toy.mid.x\nimport toy.low.x",
        __main__="import toy.high",
    )
    assert package.floors() == {"low": 1, "mid": 2, "high": 3}
    assert package.upward(package.floors()) == []


def test_units_that_import_each_other_share_a_floor(made):
    package = made(a="import toy.b", b="import toy.a\nimport toy.c", c="")
    assert package.floors() == {"a": 2, "b": 2, "c": 1}


def test_an_edge_upwards_or_sideways_is_found(made):
    package = made(
        low__in__x="def f():\n    from ..high import x",
        mid="import toy.low.x\nimport toy.peer",
        peer="",
        high__in__x="import toy.mid",
    )
    upward = package.upward({"low": 1, "mid": 2, "peer": 2, "high": 3})
    assert [str(edge) for edge in upward] == ["toy.low.x:2 imports toy.high.x", "toy.mid:2 imports toy.peer"]


def test_imports_within_a_unit_go_nowhere(made):
    package = made(low__in__x="import toy.low.y", low__in__y="")
    assert package.upward({"low": 1}) == []
    assert package.importers["toy.low.y"] == {"toy.low.x"}


def test_two_public_classes_of_one_name_are_found(made):
    package = made(a="class Host: ...\nclass _Own: ...", low__in__b="class Host: ...\nclass _Own: ...\nclass Link: ...")
    assert package.doubled_classes() == {"Host": ["toy.a", "toy.low.b"]}
