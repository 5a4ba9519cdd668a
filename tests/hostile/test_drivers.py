"""The gate and the agent's other tools, over programs that never answer or write without end."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ncclkit.agent import commands
from ncclkit.agent.monitor import snapshots, telemetry
from ncclkit.agent.run import processes
from ncclkit.live.launch.pack import packed
from tests.hostile.drivers import (
    ANSWERING,
    DEAF,
    ENDLESS,
    EXPENSIVE,
    REFUSING,
    SILENT,
    WAIT,
    drivers,
)
from tests.processes import leftovers

SECONDS = 8.0
"""Of each gate, and one more: nvidia-smi has its five, from which on it counts as hung.

It takes one more here, as eight gates share the cores.
"""


LONGEST = 10.0
"""Seconds in which it must have its answer, whatever its driver does, by its own clock."""


class Asked(NamedTuple):
    """What a gate said, and what it left."""

    code: int
    said: dict[str, Any]
    errors: str
    left: list[int]
    files: list[str]
    """What it left where temporary files are."""


def ask(agent: Path, place: Path, baseline: Path) -> Asked:
    """Run the gate on a node with this nvidia-smi; half a GiB of memory are enough."""
    command = [
        sys.executable,
        "-I",
        "-S",
        str(agent),
        "gate",
        "--seconds",
        str(SECONDS),
        "--baseline",
        str(baseline),
    ]
    (place / "tmp").mkdir()
    marks = {"NCCLKIT_RUN": str(place), "TMPDIR": str(place / "tmp")}
    environ = {**os.environ, "PATH": f"{place}:/usr/bin:/bin", **marks}
    enough = (1 << 29, 1 << 29)
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=100,
        env=environ,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, enough),
    )
    said = json.loads(done.stdout)
    return Asked(done.returncode, said, done.stderr, leftovers(str(place)), os.listdir(place / "tmp"))


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Asked]:
    """The gate of each kind of driver, side by side, as they mostly wait; its baseline has GPUs."""
    folder = tmp_path_factory.mktemp("drivers")
    (folder / "baseline.json").write_text(json.dumps({"facts": {"gpu.0.model": "NVIDIA"}}))
    kinds = dict(drivers(folder))
    with packed() as agent, ThreadPoolExecutor(8) as pool:
        answers = pool.map(
            lambda place: ask(agent, place, folder / "baseline.json"), kinds.values()
        )
        return dict(zip(kinds, answers, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*SILENT, *ENDLESS, *REFUSING, *EXPENSIVE, *ANSWERING])
def test_the_gate_answers_in_time_and_leaves_no_process(asked: dict[str, Asked], kind: str) -> None:
    code, said, errors, left, files = asked[kind]
    assert said["seconds"] <= LONGEST and left == [] and said["left"] == [] and files == [], said
    assert errors == said["say"] + "\n" and code == said["status"]
    of_driver = [one["say"] for one in said["problems"] if one["fact"] == "gpu.nvidia_smi"]
    if kind in ANSWERING:
        assert of_driver == [] and code != 1, said
    elif kind in EXPENSIVE:
        assert code in (1, 2), said  # as fast as this machine is
    else:
        assert len(of_driver) == 1 and code == 1, said
    if kind in SILENT:
        assert "did not answer within" in of_driver[0] and "hung" in of_driver[0]
    if kind in ENDLESS:
        assert "wrote more than 4 MiB" in of_driver[0]


def script(folder: Path, text: str, name: str = "tool") -> list[str]:
    """A shell script as a command."""
    program = folder / name
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return [str(program)]


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A word by which everything is found that a test starts."""
    monkeypatch.setenv("NCCLKIT_RUN", str(tmp_path))
    return str(tmp_path)


@pytest.mark.parametrize("kind", SILENT)
def test_a_command_that_gives_no_answer_ends_with_what_it_started(
    tmp_path: Path, mark: str, kind: str
) -> None:
    reply = commands.run_bounded(script(tmp_path, SILENT[kind]), 0.5)
    assert reply.ended == commands.LATE and reply.left == [] and leftovers(mark) == []


def test_what_starts_programs_until_it_is_killed_leaves_none(tmp_path: Path, mark: str) -> None:
    """A session of its own that ignores SIGTERM, and has a new child at every look."""
    text = f'setsid sh -c "{DEAF}; while :; do sleep 0.02; sleep 5 & done" & exec sleep 600'
    reply = commands.run_bounded(script(tmp_path, text), 0.5)
    assert reply.ended == commands.LATE and reply.left == [] and leftovers(mark) == []


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_command_that_writes_without_end_is_cut(tmp_path: Path, mark: str, kind: str) -> None:
    reply = commands.run_bounded(script(tmp_path, ENDLESS[kind]), 20)
    assert reply.ended == commands.TOO_LONG and leftovers(mark) == []
    assert commands.LARGEST < len(reply.out) + len(reply.err) < commands.LARGEST + (1 << 20)


def test_a_command_that_answers_is_not_held_by_its_children(tmp_path: Path, mark: str) -> None:
    """The healthy twin: its answer counts, though others keep its outputs open."""
    reply = commands.run_bounded(
        script(tmp_path, f"({DEAF}; {WAIT}) & echo all; echo well >&2; exit 3"), 20
    )
    assert reply == (3, b"all\n", b"well\n", "", []) and leftovers(mark) == []


def test_a_command_that_writes_much_in_little_pieces_is_whole(tmp_path: Path) -> None:
    reply = commands.run_bounded(
        script(tmp_path, "yes 1234567 | head -c 4000000; head -c 100 /dev/zero >&2"), 20
    )
    assert reply.code == 0 and len(reply.out) == 4_000_000 and not reply.ended


def test_a_process_that_sits_in_the_kernel_is_named_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No signal reaches it, so here none is sent."""
    sent = []
    monkeypatch.setattr(commands.os, "killpg", lambda _, number: sent.append(number))
    with subprocess.Popen(
        script(tmp_path, "read input"), stdin=subprocess.PIPE, start_new_session=True
    ) as child:
        assert commands.end_group(child) == [child.pid]
        assert sent[0] == signal.SIGTERM and signal.SIGKILL in sent
        child.communicate(timeout=10)


def test_a_command_ends_with_the_program_that_asked_it(tmp_path: Path, mark: str) -> None:
    ask = (
        "import sys; from ncclkit.agent.commands import run_bounded; run_bounded(sys.argv[1:], 100)"
    )
    words = [sys.executable, "-c", ask, *script(tmp_path, f"touch {tmp_path}/runs; exec sleep 600")]
    with subprocess.Popen(words) as asking:
        soon(lambda: (tmp_path / "runs").exists())
        asking.kill()
    soon(lambda: leftovers(mark) == [])


def soon(true: Callable[[], bool]) -> None:
    """Wait until something is true, as it must be."""
    until = time.monotonic() + 20
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_reader_of_stacks_that_never_ends_or_writes_without_end_is_let_go(
    tmp_path: Path, mark: str
) -> None:
    with subprocess.Popen(["sleep", "600"]) as rank:
        said, why = snapshots._run([*script(tmp_path, SILENT["deaf"]), str(rank.pid)], 0.5)
        assert said == "" and "took more than" in why
        said, why = snapshots._run([*script(tmp_path, ENDLESS["endless"]), str(rank.pid)], 20)
        assert (said, why) == ("", "wrote more than 4 MiB")
        said, why = snapshots._run(
            [*script(tmp_path, "trap '' INT; kill -STOP $1; sleep 600"), str(rank.pid)], 0.5
        )
        assert (tmp_path / "tool").exists() and leftovers(mark) == [rank.pid]
        soon(lambda: processes.process_state(rank.pid) == "S")  # it goes on
        rank.kill()


@pytest.mark.parametrize(
    "kind", ["deaf", "stopped", "endless and deaf", "a child floods", "with deaf children"]
)
def test_telemetry_never_waits_for_a_driver(
    tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    script(tmp_path, (SILENT | ENDLESS)[kind], "nvidia-smi")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(telemetry, "PATIENCE", 0.5)
    assert telemetry.gpus_of({0: os.getpid()}) == {}
    sampler = telemetry.Sampler(str(tmp_path / "telemetry.jsonl"))
    for _ in range(20):
        sampler.last = 0.0
        sampler.take()
    sampler.close()
    assert sampler.gpus == {} and len(sampler.smi.rest) <= 1 << 16 and leftovers(mark) == []


def test_telemetry_keeps_no_more_gpus_than_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "echo 'nan, 1, 2, 3, 4, 5'; seq 1020 9999 | sed 's/$/, 1, inf, 3, 4, 5/'; sleep 600"
    script(tmp_path, rows, "nvidia-smi")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    sampler = telemetry.Sampler(str(tmp_path / "telemetry.jsonl"))
    try:
        soon(lambda: sampler._gpu_rows() or bool(sampler.gpus))
        soon(lambda: sampler._gpu_rows() or sampler.smi.rest == b"")
    finally:
        sampler.close()
    assert sampler.gpus == {
        number: [1.0, None, 3.0, 4.0, 5.0] for number in (1020, 1021, 1022, 1023)
    }
