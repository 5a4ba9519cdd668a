"""`attach` as root looks at the process of another user, who chooses the names in it: root reads what he may read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ncclkit.agent.monitor import as_owner, snapshots
from ncclkit.agent.run import processes

ROOT = Path(__file__).parents[2]
NOBODY = 65534
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin") or ""
"""An interpreter that every user may run."""
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not PYTHON or not shutil.which("setpriv"),
    reason="needs root, whose rights are to be given up, and Python for every user",
)
SECRET = "step 41 of 42: the words of root alone"
BEGIN = """
import os, sys
os.dup2(os.open(sys.argv[2], int(sys.argv[3])), 2)
code = "import sys\\nfor step in range(7):\\n    print('up', flush=True); sys.stdin.read()  # rank"
exec(compile(code, sys.argv[1], "exec"), {"__name__": "__main__"})
"""
"""A rank whose frame names the first file, and that seems to print to the second."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter, as pytest's is root's alone."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def rank(
    named: Path, printed_to: Path = Path("/dev/null"), flags: int = os.O_PATH, before: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """A process of nobody's whose frame names a file, and which has opened another one for what it prints.

    flags: those of `os.open`; with O_PATH nobody asks whether it may read the file.
    """
    as_nobody = [*before, "setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    command = [*as_nobody, PYTHON, "-c", BEGIN, str(named), str(printed_to), str(flags)]
    environ = {"PATH": os.environ["PATH"], "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environ, cwd="/") as job:
        try:
            assert job.stdout is not None and job.stdout.readline() == b"up\n"
            yield job
        finally:
            job.kill()


def secret_file(folder: Path) -> Path:
    """A file that root alone may read, with as many lines as the stack may name."""
    path = folder / "secret.py"
    path.write_text(f"{SECRET}\n" * 4)
    path.chmod(0o600)
    return path


def attached(pid: int, case: Path) -> tuple[str, str]:
    """(what the command prints, all texts of the case folder) after a look at a process."""
    command = [sys.executable, "-m", "ncclkit", "attach", "--pid", str(pid), "--seconds", "0.5", "--case", str(case)]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=100)
    kept = [path.read_text(errors="replace") for path in case.rglob("*") if path.is_file()]
    assert "secret.py" in "".join(kept) or "train.py" in "".join(kept), done.stdout + done.stderr
    return done.stdout + done.stderr, "".join(kept)


def test_no_line_of_a_file_of_roots_is_shown(folder: Path) -> None:
    """Named by a frame, and by a descriptor that was opened without asking for the right to read."""
    secret = secret_file(folder)
    with rank(secret, secret) as job:
        said, kept = attached(job.pid, folder / "case")
    assert "words of root" not in said and "words of root" not in kept
    assert "Rank 0" in said and "secret.py:3" in said


def test_a_file_that_its_owner_may_read_is_shown(folder: Path) -> None:
    """And the last line that it printed, by its descriptor."""
    program, printed = folder / "train.py", folder / "log"
    program.write_text("import sys\nfor step in range(7):\n    wait_for_words()\n")
    printed.write_text("step 41 of 42\n")
    for path in (program, printed):
        os.chown(path, NOBODY, NOBODY)
        path.chmod(0o600)
    with rank(program, printed, os.O_WRONLY) as job:
        said, kept = attached(job.pid, folder / "case")
    assert "wait_for_words()" in kept and "step 41 of 42" in said, said


@pytest.mark.parametrize("kind", ["pipe", "device", "link to root's", "folder", "endless"])
def test_only_regular_files_are_opened_and_not_for_long(folder: Path, kind: str) -> None:
    named = folder / "named.py"
    if kind == "pipe":
        os.mkfifo(named, 0o666)
    elif kind == "device":
        named = Path("/dev/zero")
    elif kind == "folder":
        named.mkdir()
    elif kind == "endless":
        named.touch(0o644)
        os.truncate(named, 1 << 40)
    else:
        named.symlink_to(secret_file(folder))
    with rank(named) as job:
        texts, printed, problem = as_owner.read_named_files(job.pid, [str(named)], 20.0)
    assert problem == "" and printed == {}
    assert texts[str(named)].strip("\0") == "" and len(texts[str(named)]) <= 4 << 20


HIDDEN = """
mount -t tmpfs none "$0"; chmod 755 "$0"
ln -s "$0/secret.py" "$0/link.py"; ln -s /etc/hostname "$0/host.py"
exec "$@"
"""
"""A container in which the folder is an empty one, with two links."""


def test_a_link_in_a_container_leads_to_a_file_of_the_container(folder: Path) -> None:
    """An absolute link is followed below the root of the process, never to the host's file of that name."""
    secret = secret_file(folder)
    secret.chmod(0o644)  # its owner may read it, and does not see it
    container = ["unshare", "--mount", "sh", "-ec", HIDDEN, str(folder)]
    with rank(secret, before=container) as job:
        names = [str(folder / name) for name in ("link.py", "secret.py", "host.py")]
        texts, _, problem = as_owner.read_named_files(job.pid, names, 20.0)
    assert problem == ""
    assert list(texts.values()) == ["", "", Path("/etc/hostname").read_text()]


def test_a_process_that_acts_for_two_users_is_not_believed(folder: Path) -> None:
    """A setuid program is root's, and whoever started it chose where it prints to."""
    setuid = ["setpriv", "--ruid", str(NOBODY), "--clear-groups", "cat"]
    with subprocess.Popen(setuid, stdin=subprocess.PIPE, stdout=(folder / "log").open("w")) as job:
        until = time.monotonic() + 20
        while "cat" not in processes.read_text(f"/proc/{job.pid}/comm") and time.monotonic() < until:
            time.sleep(0.01)
        texts, printed, problem = as_owner.read_named_files(job.pid, ["/etc/shadow"], 20.0)
        job.communicate()
    assert (texts, printed) == ({}, {}) and "rights of two users" in problem


def test_tools_open_files_as_the_owner(folder: Path) -> None:
    """pystack prints lines of the files that frames name, and would wait for ever in a pipe, as root, too."""
    tool = folder / "tool"
    tool.write_text('#!/bin/sh\nid -u; cat "$1" 2>&1; grep -E "^(Uid|CapEff|CapPrm):" /proc/self/status; : "$2"\n')
    tool.chmod(0o755)
    with rank(secret_file(folder)) as job:
        said, problem = snapshots._run([str(tool), str(folder / "secret.py"), str(job.pid)], 20.0)
        stack, why = snapshots.python_stack(0, job.pid, time.monotonic() + 20)
    assert problem == "" and said.splitlines()[0] == str(NOBODY) and SECRET not in said
    assert f"CapEff:\t{1 << 19:016x}" in said, "the right to look into processes, and no other"
    assert "secret.py:3" in stack and why == ""
