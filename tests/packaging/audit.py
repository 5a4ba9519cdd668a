"""Ask pip-audit whether a package of constraints.txt has a known vulnerability: ``python -m tests.packaging.audit``.

The exit status is 1 where one has.  Vulnerabilities are known to a service, so where it is not reached nothing is
audited, one sentence says so, and the status is 0; ``--must`` makes that 1 as well, for a CI that has a network.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.packaging.project import pins

DEADLINE = 600


def main(arguments: list[str]) -> int:
    """Audit one package, and the others where that worked."""
    wanted = [str(pin) for pin in pins()]
    rows = audited(wanted[:1])
    rows = audited(wanted) if any("vulns" in row for row in rows) else []
    said, status = verdict(rows, len(wanted), must="--must" in arguments)
    print(said)
    return status


def audited(wanted: Iterable[str]) -> list[dict[str, Any]]:
    """What pip-audit says of each package that it looked at; none where its service was not reached."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(wanted))
        file.flush()
        command = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--format", "json"]
        command += ["--no-deps", "--disable-pip", "--requirement", file.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, cwd=Path(file.name).parent)
    try:
        rows: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return []
    return rows


def verdict(rows: list[dict[str, Any]], count: int, *, must: bool) -> tuple[str, int]:
    """What to print, and the exit status."""
    bad = [
        f"{row['name']} {row['version']}: {found['id']}, mended in {', '.join(found['fix_versions']) or 'no version'}"
        for row in rows
        for found in row.get("vulns", [])
    ]
    seen = sum("vulns" in row for row in rows)
    unseen = sorted(row["name"] for row in rows if "vulns" not in row)
    if not seen:
        return f"pip-audit: none of {count} pins was audited, as its service was not reached.", int(must)
    said = f"pip-audit: {seen} packages audited, {len(bad)} known vulnerabilities"
    return "\n".join([said + (f"; not known to the service: {', '.join(unseen)}" if unseen else "") + ".", *bad]), int(
        bool(bad)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
