"""environment.yml, pyproject.toml and constraints.txt say the same thing."""

import asyncio
import json
import re
from pathlib import Path

import pytest
import rattler
import yaml
from packaging.requirements import Requirement
from rattler.exceptions import SolverError

from tests.packaging.project import PROJECT, ROOT, requirements

CONDA_NAMES = {"torch": "pytorch", "lightning-fabric": "lightning"}  # PyPI → conda-forge, where they differ
STORIES = {"nbval", "lightning-fabric", "torchdata"}
"""What stories take of the extra `test`."""
WANTED = [*requirements("dependencies"), *(one for one in requirements("test") if one.name in STORIES)]
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())
LINES = [line for line in ENVIRONMENT["dependencies"] if isinstance(line, str)]
PINS = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1] not in "#"]


def ranges(text: str) -> set[str]:
    return set(text.replace(" ", "").split(","))


def test_conda_asks_for_what_pyproject_asks_for():
    wanted = {CONDA_NAMES.get(r.name, r.name): ranges(str(r.specifier)) for r in WANTED}
    wanted |= {"python": ranges(PROJECT["requires-python"]), "pip": {""}}
    assert {name: ranges(range_) for name, _, range_ in (line.partition(" ") for line in LINES)} == wanted


def test_pip_block_holds_only_ncclkit():
    assert ENVIRONMENT["dependencies"][-1] == {"pip": ["-e ."]}


def test_every_dependency_has_its_reason_beside_it():
    for name, first in (("environment.yml", r"  - [\w-]+ "), ("pyproject.toml", r'    "[\w-]+>=')):
        lines = [line for line in (ROOT / name).read_text().splitlines() if re.match(first, line)]
        assert len(lines) >= len(requirements("dependencies"))
        assert [line for line in lines if not re.search(r"# \S", line)] == []


def local_channel(folder: Path, versions: dict[str, str]) -> rattler.Channel:
    """A conda channel on disk that offers each package in one version."""
    for arch in ("noarch", "linux-64"):
        (folder / arch).mkdir(parents=True)
        (folder / arch / "repodata.json").write_text(json.dumps({"info": {"subdir": arch}, "packages": {}}))
    packages = {
        f"{name}-{version}-0.tar.bz2": {
            "name": name,
            "version": version,
            "build": "0",
            "build_number": 0,
            "depends": [],
            "subdir": "noarch",
            "md5": "0" * 32,
            "sha256": "0" * 64,
            "size": 1,
        }
        for name, version in versions.items()
    }
    (folder / "noarch" / "repodata.json").write_text(json.dumps({"info": {"subdir": "noarch"}, "packages": packages}))
    return rattler.Channel(folder.as_uri())


def solve(channel: rattler.Channel) -> dict[str, str]:
    records = asyncio.run(
        rattler.solve(
            sources=[channel],
            specs=[rattler.MatchSpec(line) for line in LINES],
            platforms=["linux-64", "noarch"],
            virtual_packages=[],
        )
    )
    return {record.name.normalized: str(record.version) for record in records}


def versions_tested() -> dict[str, str]:
    pins = {pin.name: str(pin.specifier).removeprefix("==") for pin in PINS if not pin.marker or pin.marker.evaluate()}
    names = {name: CONDA_NAMES.get(name, name) for name in (r.name for r in WANTED)}
    return {conda: pins[name.replace("_", "-")] for name, conda in names.items()} | {"python": "3.11.7", "pip": "26.0"}


def test_conda_takes_the_versions_that_were_tested(tmp_path):
    assert solve(local_channel(tmp_path, versions_tested())) == versions_tested()


def test_conda_refuses_what_is_excluded(tmp_path):
    with pytest.raises(SolverError, match="jsonschema"):
        solve(local_channel(tmp_path, versions_tested() | {"jsonschema": "4.25.0"}))


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
@pytest.mark.parametrize("group", ["dependencies", "fast", "mcp", "test"])
def test_every_dependency_is_pinned_inside_its_range(group, python):
    pins = {pin.name: pin for pin in PINS if not pin.marker or pin.marker.evaluate({"python_version": python})}
    for wanted in requirements(group):
        version = str(pins[wanted.name.replace("_", "-")].specifier).removeprefix("==")
        assert wanted.specifier.contains(version), f"{wanted} but {version} is pinned for Python {python}"


def test_one_pin_a_package_for_every_python():
    for python in ("3.10", "3.11", "3.12", "3.13"):
        names = [pin.name for pin in PINS if not pin.marker or pin.marker.evaluate({"python_version": python})]
        assert len(names) == len(set(names))
