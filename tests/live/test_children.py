"""What children of the workbook print is counted, and what they started ends with them."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from ncclkit.agent import wire
from ncclkit.agent.connect.session import RemoteWorker
from ncclkit.agent.run import processes
from ncclkit.core.model import NcclkitError
from ncclkit.live import attach, children
from ncclkit.live.launch import local

MIB = 1 << 20
KEEPS = """trap '' TERM
(trap '' TERM; exec sleep 300) & echo $! > {pids}
setsid sh -c 'echo $$ >> {pids}; exec sleep 300' &
echo $$ >> {pids}
"""
"""Ignores SIGTERM, starts a child, and another one in a group of its own."""


def living(file: Path) -> list[int]:
    pids = [int(pid) for pid in file.read_text().split()]
    assert pids
    return [pid for pid in pids if processes.is_alive(pid)]


async def shell(script: str) -> Process:
    return await asyncio.create_subprocess_exec("sh", "-c", script, stdout=PIPE, stderr=PIPE, start_new_session=True)


@pytest.mark.parametrize(
    ("what", "raised"),
    [
        ("exec yes", children.WroteTooMuch),
        ("exec yes >&2", children.WroteTooMuch),
        ("exec sleep 300", asyncio.TimeoutError),
        ("exec >&- 2>&-; exec sleep 300", asyncio.TimeoutError),
    ],
)
def test_an_endless_child_ends_with_all_that_it_started(tmp_path: Path, what: str, raised: type[BaseException]) -> None:
    async def ask() -> None:
        child = await shell(KEEPS.format(pids=tmp_path / "pids") + "sleep 0.2\n" + what)
        await children.answer_of(child, 1.0, MIB)

    with pytest.raises(raised):
        asyncio.run(ask())
    assert living(tmp_path / "pids") == []


def test_a_child_that_was_cancelled_ends_with_all_that_it_started(tmp_path: Path) -> None:
    async def ask() -> None:
        (tmp_path / "pids").touch()
        child = await shell(KEEPS.format(pids=tmp_path / "pids") + "sleep 300")
        asking = asyncio.create_task(children.answer_of(child, 60.0))
        await asyncio.sleep(0.1)
        while len((tmp_path / "pids").read_text().split()) < 3:
            await asyncio.sleep(0.05)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(ask())
    assert living(tmp_path / "pids") == []


def test_an_answer_that_is_not_too_long_is_whole() -> None:
    async def ask() -> tuple[bytes, bytes]:
        return await children.answer_of(await shell("head -c 1000000 /dev/zero; echo no >&2; exit 3"), 20.0, MIB)

    assert asyncio.run(ask()) == (bytes(1000000), b"no\n")


def lines(given: bytes, longest: int) -> list[bytes]:
    async def read() -> list[bytes]:
        stream = asyncio.StreamReader()
        stream.feed_data(given)
        stream.feed_eof()
        return [line async for line in children.lines_of(stream, longest)]

    return asyncio.run(read())


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (b"", []),
        (b"a\nb", [b"a", b"b"]),
        (b"\n\n", [b"", b""]),
        (b"x" * MIB + b"\nb\n", [b"b"]),
        (b"a\n" + b"x" * MIB, [b"a"]),
        (b"a\n" + b"x" * MIB + b"\n" + b"y" * MIB + b"\nb\n", [b"a", b"b"]),
    ],
)
def test_a_line_that_is_too_long_is_left_out_and_the_next_one_counts(given: bytes, kept: list[bytes]) -> None:
    assert lines(given, 3 * children.PIECE) == kept


def test_attach_reads_a_child_that_prints_a_line_without_end(tmp_path: Path) -> None:
    """An srun that repeats its error for ever; the message is the last line that it wrote."""
    record = '{"ncclkit": %d, "kind": "note", "say": "here"}' % wire.VERSION
    record = record.replace('{"ncclkit": ', '{"ncclkit":')
    told: list[str] = []
    script = f"head -c 3000000 /dev/zero; echo; echo '{record}'; yes no | head -c 9000000 >&2; echo why >&2; exit 1"
    with pytest.raises(NcclkitError, match="Attaching failed: why"):
        asyncio.run(attach._child(["sh", "-c", script], tmp_path, 30.0, lambda one: told.append(one["say"])))
    assert told == ["here"]


def test_an_interpreter_that_prints_without_end_is_one_sentence(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n" + KEEPS.format(pids=tmp_path / "pids") + "exec yes\n")
    python.chmod(0o755)
    with pytest.raises(NcclkitError, match="wrote more than 4 MiB in place of its version of torch"):
        asyncio.run(local.check_interpreter(str(python)))
    assert living(tmp_path / "pids") == []


@pytest.mark.parametrize("first", ["hello", "ncclkit on 3.11"])
def test_a_host_that_writes_without_end_is_one_problem(first: str) -> None:
    fact = json.dumps({"ncclkit": wire.VERSION, "kind": "fact", "value": "x" * 100_000}, separators=(",", ":"))

    async def ask() -> RemoteWorker:
        worker = RemoteWorker("n1", ["sh", "-c", f"echo '{first}'; exec yes '{fact}'"])
        await worker.start(b"")
        assert await worker.ask(30.0, "look") == {}
        await worker.stop()
        return worker

    worker = asyncio.run(ask())
    assert worker.problem.startswith("it ended: ") and 16 * MIB < worker.heard < 17 * MIB


def test_the_log_of_a_launcher_keeps_its_beginning_and_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "LOG_BEGIN", 1000)
    monkeypatch.setattr(local, "LOG_END", 300)
    given = [b"%05d\n" % number for number in range(5000)]
    with local.LauncherLog(tmp_path) as log:
        for line in given:
            log.write(line)
    kept = (tmp_path / "launcher.log").read_bytes()
    assert len(kept) < 2000 and kept.startswith(b"".join(given[:166])) and kept.endswith(b"".join(given[-50:]))
    assert b"\n[ncclkit left out " in kept
    with local.LauncherLog(tmp_path) as log:  # a run that was started again
        log.write(b"more\n")
    assert (tmp_path / "launcher.log").read_bytes() == kept + b"more\n"


def test_the_log_of_a_launcher_that_fits_is_whole(tmp_path: Path) -> None:
    script = f"{sys.executable} -c 'print(7)'; seq 1000"
    folder = tmp_path / "run"
    folder.mkdir()

    async def read() -> None:
        child = await asyncio.create_subprocess_exec("sh", "-c", script, stdout=PIPE)
        await local._read(child, folder, lambda record: None, asyncio.Event())
        await child.wait()

    asyncio.run(read())
    assert (folder / "launcher.log").read_text() == "7\n" + "".join(f"{number}\n" for number in range(1, 1001))
