"""The agent as one file, ``agent.pyz``, so that the training interpreter sees nothing of the workbook."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from ncclkit.core.storage import write

PACKAGE = Path(__file__).parents[2]
MAIN = "import sys\nfrom {package}.__main__ import main\nsys.exit(main())\n"


def pack(folder: Path, lab: bool = False) -> Path:
    """Write ``agent.pyz`` into `folder` and return its path; byte for byte the same for the same sources.

    lab: with the programs of the lab, which no other run needs.
    """
    parts = ("agent", "lab/programs") if lab else ("agent",)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        _put(archive, "__main__.py", MAIN.format(package="ncclkit.lab.programs" if lab else "ncclkit.agent"))
        for empty in ("ncclkit", *(("ncclkit/lab",) if lab else ())):
            _put(archive, f"{empty}/__init__.py", "")
        for source in sorted(path for part in parts for path in (PACKAGE / part).rglob("*.py")):
            name = source.relative_to(PACKAGE.parent).as_posix()
            _put(archive, name, source.read_text(encoding="utf-8"))
    path = folder / "agent.pyz"
    if not path.exists() or path.read_bytes() != buffer.getvalue():
        write(path, buffer.getvalue())
    return path


def _put(archive: zipfile.ZipFile, name: str, text: str) -> None:
    archive.writestr(zipfile.ZipInfo(name, date_time=(2026, 1, 1, 0, 0, 0)), text, zipfile.ZIP_DEFLATED)
