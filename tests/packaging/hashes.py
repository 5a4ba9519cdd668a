"""Write the SHA-256 of every file that a pin may be installed from into constraints.txt: ``python -m
tests.packaging.hashes`` (needs `uv`, which reads them in the index).

Files are those that pip may choose on the machines that torch has wheels for, by each Python: wheels, or the source
where there is no wheel.  torch has none, as its build is the user's choice (CPU, a CUDA that their driver knows).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging.project import CONSTRAINTS, pins, tomllib

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PLATFORMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28", "aarch64-apple-darwin")
FREE = ("torch",)
"""Packages whose build is the user's choice."""


def main() -> int:
    """Rewrite the file; its comments and pins stay as they are."""
    wanted = [pin for pin in pins() if pin.name not in FREE]
    hashes: dict[tuple[str, str], set[str]] = {}
    for python, platform in product(PYTHONS, PLATFORMS):
        for name, version, digest in files(wanted, python, platform):
            hashes.setdefault((name, version), set()).add(digest)
    lines = []
    for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            continue
        line = line.removesuffix(" \\")
        pin = None if line.startswith("#") else Requirement(line)
        found = hashes.get((canonicalize_name(pin.name), str(pin.specifier)[2:]), set()) if pin else set()
        lines.append(" \\\n".join([line, *(f"    --hash=sha256:{digest}" for digest in sorted(found))]))
    CONSTRAINTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(sum(map(len, hashes.values())), "hashes of", len(hashes), "pins")
    return 0


def files(wanted: list[Requirement], python: str, platform: str) -> list[tuple[str, str, str]]:
    """(package, version, SHA-256) of what pip may take there."""
    with tempfile.TemporaryDirectory() as folder:
        asked, lock = Path(folder, "pins.in"), Path(folder, "pylock.toml")
        asked.write_text("".join(f"{pin}\n" for pin in wanted))
        command = ["uv", "pip", "compile", str(asked), "--no-deps", "--quiet", "--format", "pylock.toml"]
        command += ["--python-version", python, "--python-platform", platform, "--output-file", str(lock)]
        subprocess.run(command, check=True, timeout=300, stdout=subprocess.DEVNULL)
        packages = tomllib.loads(lock.read_text())["packages"]
    return [
        (package["name"], package["version"], file["hashes"]["sha256"])
        for package in packages
        for file in package.get("wheels") or [package["sdist"]]
    ]


if __name__ == "__main__":
    sys.exit(main())
