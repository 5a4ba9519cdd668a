"""Reports made once for a test session and looked at by many tests, by the command that users type."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.processes import warm

ROOT = Path(__file__).parent.parent
_FOUND = sorted(path for path in (ROOT / "notebooks").rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)
CHINESE = {path: path.with_name(path.name.replace(".zh.", ".")) for path in _FOUND if ".zh." in path.name}
"""Each notebook in Chinese, and its original.  Their code is equal (tests/notebooks/test_chinese.py)."""

NOTEBOOKS = [path for path in _FOUND if path not in CHINESE]
"""The notebooks that tests run: the code of a Chinese one has run where that of its original has."""

DATA = Path(__file__).parent / "notebooks" / "data"
SMALL = {
    "guided": {"ranks": "2", "max_bytes": "65536", "timeout": "90.0"},
    "02_all_reduce": {"ranks": "2", "max_bytes": "4096"},
    "04_tuning": {
        "ranks": "2",
        "settings": "GLOO_SOCKET_IFNAME=lo",
        "sizes": "8,4096",
        "collective": "all_reduce,all_to_all",
        "timeout": "90.0",
    },
    "2_lightning": {"ranks": "2"},
    "4_wenet": {"repeats": "1", "timeout": "4.0"},
    "5_all_to_all": {"ranks": "3", "steps": "2 3"},
}
"""Parameters that keep a notebook's run short; the others are quick by themselves."""

CROWDED = "4_wenet"
"""Its ranks crowd one core more than the other; beside other tests both would be equally full."""

HOSTILE = "</script><img src=http://example.org/x onerror=alert(1)><script>alert(2)</script>"
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}


@functools.cache
def _scratch() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="ncclkit-reports-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def made(notebook: Path, parameters: tuple[tuple[str, str], ...] = ()) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The case folder of a notebook's report, and how `ncclkit report` ended."""
    case = Path(tempfile.mkdtemp(dir=_scratch(), prefix=f"{notebook.stem}-"))
    typed = [f"-p={name}={value}" for name, value in (*SMALL.get(notebook.stem, {}).items(), *parameters)]
    command = [sys.executable, "-m", "ncclkit", "report", "--notebook", str(notebook), "--case", str(case), *typed]
    env = warm(ENV) | ({"NCCLKIT_TESTS_NICE": "-8"} if notebook.stem == CROWDED else {})
    return case, subprocess.run(command, cwd=case, env=env, capture_output=True, text=True, timeout=300)
