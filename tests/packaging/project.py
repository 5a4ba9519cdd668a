"""What pyproject.toml says, for the tests of this folder."""

import sys
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["CONSTRAINTS", "PROJECT", "PYPROJECT", "ROOT", "pins", "requirements", "tomllib"]

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT: dict[str, Any] = PYPROJECT["project"]


def requirements(group: str) -> list[Requirement]:
    """The requirements of one group: ``dependencies`` or the name of an extra."""
    lines = PROJECT["dependencies"] if group == "dependencies" else PROJECT["optional-dependencies"][group]
    return [Requirement(line) for line in lines]


def pins() -> dict[Requirement, list[str]]:
    """Every pin of constraints.txt with its hashes, as ``sha256:…``."""
    logical = CONSTRAINTS.read_text(encoding="utf-8").replace("\\\n", "").splitlines()
    parted = [line.split(" --hash=") for line in logical if not line.startswith("#")]
    return {Requirement(pin): [digest.strip() for digest in digests] for pin, *digests in parted}
