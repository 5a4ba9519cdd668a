"""A member of the user's group, who may write the case folder, gets nothing of his executed."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ncclkit.agent import private
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.live import connect
from ncclkit.live.launch import local
from ncclkit.live.launch.pack import PIPED, packed
from tests.hostile.launches import LAUNCHES, Launch

SWAPS = """
import os, pathlib, sys, time
folder, evil = map(pathlib.Path, sys.argv[1:])
print("ready", flush=True)
parent = os.getppid()
while os.getppid() == parent:
    for path in folder.rglob("*"):
        other = evil / path.name
        if other.exists():
            try:
                (evil / "next").write_bytes(other.read_bytes())
                os.replace(evil / "next", path)
            except FileNotFoundError:
                continue  # its folder has gone
    time.sleep(0.001)
"""
"""Puts a file of its own in the place of each of that name in the folder, as fast as it can."""


@contextmanager
def swapped(folder: Path, marker: Path) -> Iterator[None]:
    """While the block runs, every program and plan in a folder is replaced by one that makes a file."""
    evil = folder.parent / "evil"
    evil.mkdir()
    with zipfile.ZipFile(evil / "agent.pyz", "w") as archive:
        archive.writestr("__main__.py", f"open({str(marker)!r}, 'w')\n")
        archive.writestr("ncclkit/__init__.py", f"open({str(marker)!r}, 'w')\n")
    touch = ["touch", str(marker)]
    host = {"address": "10.0.0.1/24", "interface": "eth0", "names": {}, "setup": [touch], "command": touch}
    plan = {"folder": str(folder), "private": str(folder), "wait": 1, "hosts": {"node-1": host}}
    (evil / "hosts.json").write_text(json.dumps(plan))
    (evil / "plan.json").write_text(
        json.dumps({"hosts": ["a"], "commands": {"a": touch}, "port": 1, "seconds": 1, "deadline": 5, "env": {}})
    )
    command = [sys.executable, "-c", SWAPS, str(folder), str(evil)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"ready\n"
        try:
            yield
            assert process.poll() is None, "the attack has ended by itself"
        finally:
            process.kill()


def facts(folder: Path, argv: tuple[str, ...], deadline: int) -> None:
    asyncio.run(local.read_facts_here(sys.executable, folder))


def connections(folder: Path, argv: tuple[str, ...], deadline: int) -> None:
    """Between this host and itself by another name; what comes of it does not matter here."""
    via = shlex.join(["env", "HOST={host}"])
    try:
        asyncio.run(
            connect.connectivity(Case.open(folder), ["a", "b"], remote_command=via, seconds=0.05, deadline=20.0)
        )
    except NcclkitError as error:
        assert "without a message" in str(error)


WAYS = [*LAUNCHES, pytest.param(facts, id="facts"), pytest.param(connections, id="connections")]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("launch", WAYS)
def test_who_swaps_the_program_while_a_run_starts_gets_nothing_executed(launch: Launch, tmp_path: Path) -> None:
    folder, marker = tmp_path / "run", tmp_path / "executed"
    folder.mkdir()
    with swapped(folder, marker):
        launch(folder, ("collective", "--backend", "gloo", "--sizes", "8", "--timeout", "20"), 60)
    assert not marker.exists()


def test_a_node_starts_what_comes_through_its_input_and_nothing_that_lies_in_a_folder(tmp_path: Path) -> None:
    marker, temporary = tmp_path / "executed", tmp_path / "temporary"
    temporary.mkdir(0o700)
    with zipfile.ZipFile(tmp_path / "agent.pyz", "w") as archive:
        archive.writestr("ncclkit/__init__.py", f"open({str(marker)!r}, 'w')\n")
    (tmp_path / "ncclkit").mkdir()
    (tmp_path / "ncclkit" / "__init__.py").write_text(f"open({str(marker)!r}, 'w')\n")
    command = [sys.executable, *PIPED, "facts", "--no-torch"]
    env = {**os.environ, "TMPDIR": str(temporary)}  # its own, as other tests start agents, too
    with packed() as agent, open(agent, "rb") as stdin:
        done = subprocess.run(command, stdin=stdin, env=env, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert '"kind": "complete"' in done.stdout or '"kind":"complete"' in done.stdout, done.stderr
    assert not marker.exists() and not any(temporary.iterdir())


def test_the_folder_of_a_run_is_its_users_alone_and_goes_with_it() -> None:
    with packed() as agent:
        assert agent.parent.stat().st_mode & 0o777 == 0o700 and private.is_safe(str(agent.parent))
    assert not agent.parent.exists()


@pytest.mark.parametrize(
    ("mode", "safe"), [(0o700, True), (0o755, True), (0o1777, True), (0o770, False), (0o777, False)]
)
def test_where_others_can_replace_what_lies_there_nothing_is_executed(
    mode: int, safe: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    (below := place / "below").mkdir(parents=True)
    place.chmod(mode)
    monkeypatch.setattr(private.tempfile, "tempdir", str(below))
    assert (private.parent_folder() == str(below)) is safe
    monkeypatch.setattr(private, "is_safe", lambda path: False)
    with pytest.raises(NcclkitError, match="set TMPDIR"), packed():
        raise AssertionError("it was packed all the same")
