"""What `pip install` users get: package data, samples and notebooks travel in the wheel and the sdist."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.packaging.project import PROJECT, ROOT

HIDDEN = {"__pycache__", ".ipynb_checkpoints"}


def files(folder: str) -> set[str]:
    """Files under a folder of the checkout, relative to the checkout."""
    found = (path for path in (ROOT / folder).rglob("*") if path.is_file() and not HIDDEN & set(path.parts))
    return {path.relative_to(ROOT).as_posix() for path in found}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the sdist, and the wheel built from it (as an index would)."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)],
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return out


@pytest.fixture(scope="module")
def wheel(built) -> zipfile.ZipFile:
    return zipfile.ZipFile(next(built.glob("*.whl")))


def test_wheel_holds_the_package_its_data_and_the_notebooks(wheel):
    expected = files("ncclkit") | {f"ncclkit/{path}" for path in files("notebooks")}
    inside = {path for path in wheel.namelist() if ".dist-info/" not in path and not path.endswith("/")}
    assert inside == expected
    for needed in ("ncclkit/py.typed", "ncclkit/notebooks/guided.ipynb"):
        assert needed in inside
    for suffix in (".css", ".j2"):
        assert any(path.endswith(suffix) for path in inside), f"no {suffix} in the wheel"
    assert any(path.startswith("ncclkit/evidence/samples/") for path in inside)


def test_wheel_says_who_it_is(wheel):
    info = f"ncclkit-{PROJECT['version']}.dist-info"
    assert "ncclkit = ncclkit.cli:main" in wheel.read(f"{info}/entry_points.txt").decode()
    assert f"{info}/licenses/LICENSE" in wheel.namelist()
    assert wheel.read(f"{info}/WHEEL").decode().count("Tag: py3-none-any") == 1


def test_sdist_builds_and_tests_itself(built):
    inside = {path.split("/", 1)[1] for path in tarfile.open(next(built.glob("*.tar.gz"))).getnames()}
    assert files("ncclkit") | files("notebooks") | files("tests") <= inside
    assert {"pyproject.toml", "constraints.txt", "environment.yml", "Makefile", "LICENSE", "README.md"} <= inside
