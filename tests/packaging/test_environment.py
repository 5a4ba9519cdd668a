"""environment.yml, pyproject.toml and constraints.txt say the same thing."""

import asyncio
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import rattler
import yaml
from rattler.exceptions import SolverError

from tests.packaging import audit
from tests.packaging.hashes import FREE
from tests.packaging.project import PROJECT, ROOT, pins, requirements

CONDA_NAMES = {"torch": "pytorch", "lightning-fabric": "lightning"}  # PyPI → conda-forge, where they differ
STORIES = {"nbval", "lightning-fabric", "torchdata"}
"""What stories take of the extra `test`."""
WANTED = [*requirements("dependencies"), *(one for one in requirements("test") if one.name in STORIES)]
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())
LINES = [line for line in ENVIRONMENT["dependencies"] if isinstance(line, str)]
HASHES = pins()
PINS = list(HASHES)


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
@pytest.mark.parametrize("group", ["dependencies", "fast", "mcp", "dask", "tuning", "test"])
def test_every_dependency_is_pinned_inside_its_range(group, python):
    pins = {pin.name: pin for pin in PINS if not pin.marker or pin.marker.evaluate({"python_version": python})}
    for wanted in requirements(group):
        version = str(pins[wanted.name.replace("_", "-")].specifier).removeprefix("==")
        assert wanted.specifier.contains(version), f"{wanted} but {version} is pinned for Python {python}"


def test_one_pin_a_package_for_every_python():
    for python in ("3.10", "3.11", "3.12", "3.13"):
        names = [pin.name for pin in PINS if not pin.marker or pin.marker.evaluate({"python_version": python})]
        assert len(names) == len(set(names))


def test_every_pin_has_the_hash_of_each_file():
    """`python -m tests.packaging.hashes` writes those of a new pin."""
    digest = re.compile(r"sha256:[0-9a-f]{64}")
    wrong = {str(pin): found for pin, found in HASHES.items() if not all(map(digest.fullmatch, found))}
    assert wrong == {}
    assert {pin.name for pin, found in HASHES.items() if not found} == set(FREE)
    assert len({one for found in HASHES.values() for one in found}) == sum(map(len, HASHES.values()))


def test_pip_reads_the_hashes_and_takes_no_other_file(tmp_path):
    """A pin of constraints.txt, and a folder that offers another file under its name and version."""
    pin, known = next((str(pin), found) for pin, found in HASHES.items() if pin.name == "sortedcontainers")
    (tmp_path / "pins.txt").write_text(" ".join([pin, *(f"--hash={one}" for one in known)]))
    wheel = tmp_path / "sortedcontainers-2.4.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as out:
        out.writestr("sortedcontainers-2.4.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: sortedcontainers\n")
    command = [sys.executable, "-m", "pip", "--isolated", "download", "--no-index", "--find-links", str(tmp_path)]
    command += ["--no-deps", "--require-hashes", "-r", str(tmp_path / "pins.txt"), "-d", str(tmp_path / "taken")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=without_pip())
    assert done.returncode == 1 and "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr, done.stderr
    assert list((tmp_path / "taken").glob("*")) == []


def without_pip():
    return {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}


SOUND = {"name": "jinja2", "version": "3.1.6", "vulns": []}
BAD = {"name": "jinja2", "version": "3.1.2", "vulns": [{"id": "CVE-2024-22195", "fix_versions": ["3.1.3"]}]}
UNKNOWN = {"name": "torch", "skip_reason": "Dependency not found on PyPI"}


def test_an_audit_says_what_it_looked_at():
    assert audit.verdict([SOUND, UNKNOWN], 2, must=True) == (
        "pip-audit: 1 packages audited, 0 known vulnerabilities; not known to the service: torch.",
        0,
    )
    said, status = audit.verdict([SOUND, BAD], 2, must=False)
    assert status == 1 and "jinja2 3.1.2: CVE-2024-22195, mended in 3.1.3" in said


@pytest.mark.parametrize("must", [False, True])
def test_no_service_is_no_all_clear(must):
    said, status = audit.verdict([UNKNOWN], 2, must=must)
    assert "none of 2 pins was audited" in said and status == must
