"""What pyproject.toml says, for the tests of this folder."""

import sys
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT: dict[str, Any] = PYPROJECT["project"]


def requirements(group: str) -> list[Requirement]:
    """The requirements of one group: ``dependencies`` or the name of an extra."""
    lines = PROJECT["dependencies"] if group == "dependencies" else PROJECT["optional-dependencies"][group]
    return [Requirement(line) for line in lines]
