"""The Makefile: what it says when it cannot work, and that a second call does nothing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.project import ROOT

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="no make here")


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make as a user would: what the make above us passes down is left out."""
    inherited = ("MAKE", "MFLAGS", "PYTHON", "TRAIN_PYTHON", "CASE")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(inherited)}
    command = ["make", "-C", str(folder), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)


def interpreter(folder: Path, version: str) -> Path:
    """An interpreter that calls itself Python `version`, makes environments without pip and is this one in all else."""
    path = folder / f"python{version}"
    look = f"import sys; sys.version_info = ({version.replace('.', ', ')}, 0, 'final', 0); exec(sys.argv.pop(1))"
    real = f'exec "{sys.executable}"'
    bare = '[ "$2" = venv ] && set -- "$@" --without-pip'
    path.write_text(f'#!/bin/sh\n[ "$1" = -c ] && {real} -c "{look}" "$2"\n{bare}\n{real} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def tree(tmp_path):
    """A checkout whose package is empty, so that installing it needs no index."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "constraints.txt").touch()
    (tmp_path / "pyproject.toml").touch()
    return tmp_path


@pytest.mark.parametrize("version", ["3.9", "3.14"])
def test_wrong_python_is_one_sentence(tree, version):
    python = interpreter(tree, version)
    result = make(tree, "report", f"PYTHON={python}")
    assert result.returncode == 2
    said = [line for line in result.stderr.splitlines() if not line.startswith("make")]
    assert len(said) == 1 and "3.10 to 3.13" in said[0] and version in said[0] and "PYTHON=" in said[0]
    assert not (tree / ".venv").exists()


def test_no_python_is_one_sentence(tree):
    result = make(tree, "test", "PYTHON=no-such-python")
    assert result.returncode == 2 and "No 'no-such-python' here" in result.stderr
    assert not (tree / ".venv").exists()


def test_venv_is_made_once_and_again_for_another_python(tree):
    def environment(python: Path | str) -> bool:
        result = make(tree, ".venv/.made-from", f"PYTHON={python}")
        assert result.returncode == 0, result.stderr
        return "Making .venv" in result.stdout

    first, other = (interpreter(tree, version) for version in ("3.10", "3.11"))
    assert environment(first)
    assert not environment(first)
    assert environment(other)


def test_training_interpreter_reaches_the_command(tree):
    variables = f"PYTHON={sys.executable}", "TRAIN_PYTHON=/opt/train/bin/python", "CASE=/tmp/a case"
    dry = make(tree, "-n", "report", *variables)
    assert '.venv/bin/ncclkit report --case "/tmp/a case" --train-python "/opt/train/bin/python"' in dry.stdout


def test_a_wheelhouse_is_packed_for_the_python_that_is_named(tree):
    dry = make(tree, "-n", "wheelhouse", f"PYTHON={sys.executable}")
    assert f'"{sys.executable}" -m pip wheel' in dry.stdout and "--wheel-dir wheelhouse '.[" in dry.stdout


def test_help_names_every_target_and_variable(tree):
    said = make(tree, "help").stdout
    targets = ("make report", "make check", "make test", "make test-all", "make install", "make lab", "make wheelhouse")
    assert all(word in said for word in (*targets, "PYTHON=", "TRAIN_PYTHON=", "CASE="))
