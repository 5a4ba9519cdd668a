"""The agent as one file, ``agent.pyz``, so that the training interpreter sees nothing of the workbook."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from ncclkit.storage import write

AGENT = Path(__file__).parent.parent / "agent"
MAIN = "import sys\nfrom ncclkit.agent.__main__ import main\nsys.exit(main())\n"


def pack(folder: Path) -> Path:
    """Write ``agent.pyz`` into `folder` and return its path; byte for byte the same for the same sources."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        _put(archive, "__main__.py", MAIN)
        _put(archive, "ncclkit/__init__.py", "")
        for source in sorted(AGENT.rglob("*.py")):
            _put(archive, f"ncclkit/agent/{source.relative_to(AGENT).as_posix()}", source.read_text(encoding="utf-8"))
    path = folder / "agent.pyz"
    if not path.exists() or path.read_bytes() != buffer.getvalue():
        write(path, buffer.getvalue())
    return path


def _put(archive: zipfile.ZipFile, name: str, text: str) -> None:
    archive.writestr(zipfile.ZipInfo(name, date_time=(2026, 1, 1, 0, 0, 0)), text, zipfile.ZIP_DEFLATED)
