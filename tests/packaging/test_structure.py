"""The map of the package, held by a machine: floors, circles, and names that two rooms share.

Each test gathers all violations of its kind before it fails.
"""

from collections.abc import Iterable
from functools import cache

import pytest

import ncclkit
from tests.packaging.imports import Package
from tests.packaging.project import ROOT

FLOORS = {
    1: ("agent",),
    2: ("core",),
    3: ("evidence", "analysis", "report"),
    4: ("causes", "live"),
    5: ("experiments",),
    6: ("lab",),
    7: ("views", "cli"),
}
"""The map: each package imports only from lower floors. docs/design.md shows it."""

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


def test_every_public_name_leads_to_what_it_names():
    none(name for name in ncclkit.__all__ if getattr(ncclkit, name, None) is None)


def test_no_two_public_classes_have_one_name():
    none(f"{name}: {', '.join(modules)}" for name, modules in ours().doubled_classes().items())
