"""The map of the package, held by a machine: floors, circles, and names that two rooms share.

Each test gathers all violations of its kind before it fails.
"""

import ast
import inspect
import re
import rlcompleter
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

import ncclkit
from ncclkit.views._form import Form
from ncclkit.views.live import LiveTest
from ncclkit.views.tune import TuneForm
from tests.packaging.imports import Package
from tests.packaging.project import ROOT

FLOORS = {
    1: ("agent",),
    2: ("core",),
    3: ("evidence", "analysis", "report"),
    4: ("causes", "live"),
    5: ("experiments", "rehearsal"),
    6: ("views",),
    7: ("lab",),
    8: ("cli",),
}
"""The map: each package imports only from lower floors. docs/design.md shows it."""

DOORS = (ncclkit, ncclkit.form, ncclkit.show)
ENTRIES = 13
"""Most entries of the package's folder, besides the three files of the root itself."""
OF_THE_ROOT = {"__init__.py", "__main__.py", "py.typed"}


@cache
def ours() -> Package:
    return Package(ROOT / "ncclkit")


def none(found: Iterable[object]) -> None:
    """Fail with all violations, one a line; an assertion would shorten the list."""
    if all_of_them := [str(one) for one in found]:
        pytest.fail("\n".join([f"{len(all_of_them)} violations", *all_of_them]), pytrace=False)


# ---------------------------------------------------------------- floors


def test_the_map_names_the_packages_that_there_are():
    named = {package for packages in FLOORS.values() for package in packages}
    units = set(ours().units)
    none(
        [f"{unit} has no floor" for unit in sorted(units - named)]
        + [f"{unit} is missing" for unit in sorted(named - units)]
    )


def test_every_import_goes_to_a_lower_floor():
    floors = {package: floor for floor, packages in FLOORS.items() for package in packages}
    none(ours().upward(floors))


def test_modules_import_each_other_in_no_circle():
    none(" <-> ".join(circle) for circle in ours().circles())


def test_the_root_holds_about_a_dozen_entries():
    entries = sorted(
        path.name
        for path in (ROOT / "ncclkit").iterdir()
        if path.name not in OF_THE_ROOT and path.name != "__pycache__" and not path.name.startswith(".")
    )
    assert len(entries) <= ENTRIES, entries


def test_the_lab_is_a_wing_that_only_its_own_verb_imports():
    """A class room; who reads a job's logs never loads it, and whoever changes it breaks nothing else."""
    into_the_lab = []
    for (importer, imported), edges in ours().unit_edges.items():
        if imported == "lab" and importer != "cli":
            into_the_lab += edges
    none(into_the_lab)
    asked = "import ncclkit.cli, sys; print(*(name for name in sys.modules if 'ncclkit.lab' in name))"
    loaded = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=60, check=True)
    assert loaded.stdout.split() == [], "the command loads the lab before its verb is called"


# ---------------------------------------------------------------- where to begin


def test_every_package_says_what_comes_in_what_goes_out_and_where_to_begin():
    """The first thing that somebody new to a room reads; where to begin must be there."""
    wrong = []
    for module in ours().modules.values():
        if not module.is_package:
            continue
        said = " ".join((ast.get_docstring(module.tree) or "").split())
        begin = re.search(r"Begin with `([\w.]+)`", said)
        if not re.search(r"\bIn( and out)?: ", said) or not re.search(r"\b[Oo]ut: ", said) or begin is None:
            wrong.append(f"{module.name} does not say all three")
        elif not is_there(module.name, begin[1].removeprefix("nk.")):
            wrong.append(f"{module.name} begins with {begin[1]}, which is not there")
    none(wrong)


def is_there(package: str, name: str) -> bool:
    """Whether a package has this module, or this name in a module."""
    if package == "ncclkit":
        return name in ncclkit.__all__
    known = ours().modules
    place, _, last = f"{package}.{name}".rpartition(".")
    return f"{place}.{last}" in known or (place in known and last in known[place].bound)


# ---------------------------------------------------------------- the door


@pytest.mark.parametrize("door", DOORS, ids=lambda door: getattr(door, "_door", "nk"))
def test_every_public_name_leads_to_what_it_names(door: Any) -> None:
    names = [name for name in dir(door) if getattr(door, name, None) is None]
    none(names)


def test_no_public_name_is_a_module_that_would_take_its_place():
    modules = {path.stem for path in (ROOT / "ncclkit").iterdir()}
    none(sorted(modules & set(ncclkit.__all__)))


def test_what_is_awaited_is_a_form_and_nothing_else_is():
    """A name says by its door whether a cell awaits it."""
    forms = {name: inspect.unwrap(getattr(ncclkit.form, name)) for name in dir(ncclkit.form)}
    forms |= {"live_test": LiveTest, "tune": TuneForm}
    shown = [inspect.unwrap(getattr(ncclkit.show, name)) for name in dir(ncclkit.show)]
    none(name for name, made in forms.items() if not issubclass(made, Form))
    none(made for made in shown if isinstance(made, type) and issubclass(made, Form))


@pytest.mark.parametrize(
    ("door", "wrong", "near"),
    [
        (ncclkit, "banner_view", "nk.show.banner"),
        (ncclkit, "diagnosis", "nk.diagnose"),
        (ncclkit, "connect", "nk.form.connect or nk.show.connect"),
        (ncclkit.show, "bannr", "nk.show.banner"),
        (ncclkit.form, "tuning", "nk.show.tuning"),
    ],
)
def test_a_wrong_name_is_answered_with_near_ones(door: Any, wrong: str, near: str) -> None:
    with pytest.raises(AttributeError, match=rf"has no name '{wrong}'; did you mean {re.escape(near)}\?$"):
        getattr(door, wrong)
    with pytest.raises(AttributeError, match=r"dir\(.*\) lists those that there are\.$"):
        door.xyzzy  # noqa: B018


def test_completion_lists_what_is_behind_each_door() -> None:
    completer = rlcompleter.Completer({"nk": ncclkit})
    for door in ("nk", "nk.form", "nk.show"):
        offered = {one.rstrip("()") for one in completer.attr_matches(f"{door}.")}
        names = ncclkit.__all__ if door == "nk" else dir(getattr(ncclkit, door.removeprefix("nk.")))
        none(sorted({f"{door}.{name}" for name in names} - offered))


def test_no_two_public_classes_have_one_name():
    none(f"{name}: {', '.join(modules)}" for name, modules in ours().doubled_classes().items())
