"""What travels between nodes.

It is the agent as one file, ``agent.pyz``, and the files of a run that come back over srun.  The
training interpreter sees nothing of the workbook.  What is executed never lies where somebody else
may write, as a case folder may: on this machine it is in a folder of the run's own, and other hosts
of an allocation get it through the standard input of what srun starts.  A node that does not see
the run folder sends pieces of one archive.
"""

from __future__ import annotations

import base64
import functools
import io
import marshal
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType
from typing import Any

from ncclkit.agent import private
from ncclkit.core.model import NcclkitError

PACKAGE = Path(__file__).parents[2]
MAIN = "import sys\nfrom {package}.__main__ import main\nsys.exit(main())\n"
BOOT = (
    "import sys,tempfile as t;b=sys.stdin.buffer.read();z=t.TemporaryFile();z.write(b);z.flush();"
    "sys.path.insert(0,'/proc/self/fd/%d'%z.fileno());"
    "from ncclkit.agent import private;private.become(b,sys.argv[1:])"
)
PIPED = ("-I", "-S", "-c", BOOT)
"""The words after an interpreter that start the agent from standard input.

It runs isolated, as even the working folder may be one that others write to.
"""


@contextmanager
def packed(lab: bool = False, compiled: bool = False) -> Iterator[Path]:
    """``agent.pyz`` in a folder that only this user can write, replace or rename.

    Both are gone after the block.  With `lab` it holds the programs of the lab, which no other run
    needs; with `compiled` compiled code beside the sources, by which every process on this machine
    starts 50 ms earlier; what travels to other hosts is a third of that without.
    """
    try:
        place = tempfile.TemporaryDirectory(prefix=private.PREFIX, dir=private.parent_folder())
    except OSError as error:
        raise NcclkitError(
            f"There is no folder for the agent: {error.strerror or error}."
        ) from error
    with place as folder:
        agent = Path(folder) / private.NAME
        agent.write_bytes(_archive(lab, compiled))
        yield agent


@functools.cache
def _archive(lab: bool, compiled: bool) -> bytes:
    """The agent: its sources, and what this Python has made of them.

    The sources are byte for byte the same; other Pythons pass over the rest.
    """
    parts = ("agent", "lab/programs") if lab else ("agent",)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        _put(
            archive,
            "__main__.py",
            MAIN.format(package="ncclkit.lab.programs" if lab else "ncclkit.agent"),
        )
        _put(archive, "ncclkit/__init__.py", "")
        if lab:
            _put(archive, "ncclkit/lab/__init__.py", "")
        sources: list[Path] = []
        for part in parts:
            sources += (PACKAGE / part).rglob("*.py")
        for source in sorted(sources):
            name = source.relative_to(PACKAGE.parent).as_posix()
            _put(archive, name, source.read_text(encoding="utf-8"))
            if compiled:
                _put(archive, f"{name}c", _bytecode(source, f"{private.NAME}/{name}"))
    return buffer.getvalue()


def _put(archive: zipfile.ZipFile, name: str, data: str | bytes) -> None:
    # one date, so that equal sources give equal bytes, whose digest is compared
    archive.writestr(
        zipfile.ZipInfo(name, date_time=(2026, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED, 1
    )


UNCHECKED = (1).to_bytes(4, "little") + bytes(8)
"""Of compiled code that is not compared with its source (PEP 552)."""


def _bytecode(source: Path, name: str) -> bytes:
    """What Python keeps of a module once it has compiled it, with `name` in its tracebacks."""
    code = SourceFileLoader(source.stem, str(source)).get_code(source.stem)
    assert code is not None
    return MAGIC_NUMBER + UNCHECKED + marshal.dumps(_named(code, name))


def _named(code: CodeType, name: str) -> CodeType:
    """The same code, and that of its functions, of the file `name`."""
    consts = tuple(
        _named(one, name) if isinstance(one, CodeType) else one for one in code.co_consts
    )
    return code.replace(co_filename=name, co_consts=consts)


LARGEST = 512 << 20
"""Bytes of one archive, and of what is unpacked of it."""
SUFFIX = ".sent"


def take(folder: Path, record: Mapping[str, Any]) -> None:
    """Keep one piece of a node's archive in the run folder.

    A damaged piece is left out, and the archive torn.
    """
    node = record.get("node")
    at = record.get("at")
    data = record.get("data")
    if not (
        isinstance(node, int)
        and isinstance(at, int)
        and isinstance(data, str)
        and 0 <= at <= LARGEST
    ):
        return
    # the first piece begins the archive anew
    with (
        suppress(ValueError),
        open(folder / f".node{node}{SUFFIX}", "r+b" if at else "wb") as archive,
    ):
        archive.seek(at)
        archive.write(base64.b64decode(data, validate=True))


def unpack(folder: Path) -> list[str]:
    """Put the files of all archives beside those of the run.

    Returns a sentence for each archive that is torn.
    """
    problems = []
    for path in sorted(folder.glob(f".node*{SUFFIX}")):
        try:
            with tarfile.open(path, "r:gz") as archive:
                _extract(archive, folder)
        except (tarfile.TarError, OSError, EOFError) as error:
            node = path.name.removeprefix(".node").removesuffix(SUFFIX)
            problems.append(f"the files of node {node} came over srun incomplete ({error})")
        path.unlink()
    return problems


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Unpack plain files without a path of their own.

    What is there already stays.
    """
    left = LARGEST
    for member in archive:
        # by the size that it claims, before anything is written
        left -= member.size
        target = folder / member.name
        file = None
        if member.isreg():
            file = archive.extractfile(member)
        # names come from another host
        if (
            file is None
            or left < 0
            or target.parent != folder
            or member.name.startswith(".")
            or target.exists()
        ):
            continue
        target.write_bytes(file.read())
