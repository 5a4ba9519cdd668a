"""The agent as one file, ``agent.pyz``, so that the training interpreter sees nothing of the workbook.

What is executed never lies where somebody else may write, as a case folder may: on this machine it is in a folder of
the run's own, and other hosts of an allocation check what they read by its digest before they start it.
"""

from __future__ import annotations

import functools
import hashlib
import io
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ncclkit.agent import private
from ncclkit.core.model import NcclkitError
from ncclkit.core.storage import write

PACKAGE = Path(__file__).parents[2]
MAIN = "import sys\nfrom {package}.__main__ import main\nsys.exit(main())\n"
# opened once: what is checked is what runs; isolated, as even the working folder may be one that others write to
BOOT = (
    "import hashlib,sys,tempfile as t;b=open(sys.argv[1],'rb').read();"
    "hashlib.sha256(b).hexdigest()==sys.argv[2] or sys.exit('ncclkit: '+sys.argv[1]+' is not what was packed: "
    "somebody else has changed it, so it is not started');z=t.TemporaryFile();z.write(b);z.flush();"
    "sys.path.insert(0,'/proc/self/fd/%d'%z.fileno());from ncclkit.agent import private;private.begin(b,sys.argv[3:])"
)


@contextmanager
def packed(lab: bool = False) -> Iterator[Path]:
    """``agent.pyz`` in a folder that only this user can write, replace or rename; both are gone after the block.

    lab: with the programs of the lab, which no other run needs.
    """
    try:
        place = tempfile.TemporaryDirectory(prefix=private.PREFIX, dir=private.place())
    except OSError as error:
        raise NcclkitError(f"There is no folder for the agent: {error.strerror or error}.") from error
    with place as folder:
        agent = Path(folder) / private.NAME
        agent.write_bytes(_archive(lab))
        yield agent


def shared(folder: Path, lab: bool = False) -> list[str]:
    """Write ``agent.pyz`` into a folder that other hosts see; returns the words after the interpreter that start it.

    There it is read once, refused where it is not what was written here, and runs from a folder of that host's own.
    """
    path = folder / private.NAME
    write(path, _archive(lab))
    return ["-I", "-S", "-c", BOOT, str(path), hashlib.sha256(_archive(lab)).hexdigest()]


@functools.cache
def _archive(lab: bool) -> bytes:
    """The agent; byte for byte the same for the same sources."""
    parts = ("agent", "lab/programs") if lab else ("agent",)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        _put(archive, "__main__.py", MAIN.format(package="ncclkit.lab.programs" if lab else "ncclkit.agent"))
        for empty in ("ncclkit", *(("ncclkit/lab",) if lab else ())):
            _put(archive, f"{empty}/__init__.py", "")
        for source in sorted(path for part in parts for path in (PACKAGE / part).rglob("*.py")):
            _put(archive, source.relative_to(PACKAGE.parent).as_posix(), source.read_text(encoding="utf-8"))
    return buffer.getvalue()


def _put(archive: zipfile.ZipFile, name: str, text: str) -> None:
    archive.writestr(zipfile.ZipInfo(name, date_time=(2026, 1, 1, 0, 0, 0)), text, zipfile.ZIP_DEFLATED)
