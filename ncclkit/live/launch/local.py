"""Ranks on this machine, started by torchrun under the agent's guard."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ncclkit.agent import private, redact, wire
from ncclkit.agent.run import processes
from ncclkit.core import storage
from ncclkit.core.model import NcclkitError
from ncclkit.core.runs import Plan
from ncclkit.live.children import WroteTooMuch, answer_of
from ncclkit.live.launch import pack
from ncclkit.live.launch.base import Launcher, OnRecord, Record
from ncclkit.live.launch.pack import packed

TAG = "NCCLKIT_RUN"
"""Variable of every process of a run: the run folder.

By it what is left behind is found.
"""

FACTS = 120.0
"""Seconds for the facts of a host.

They are above the agent's own deadlines, which say what hung.
"""

START = 60.0
"""Seconds in which a training interpreter has to start.

From a cold file server it takes some.
"""

KILLED = 5.0
"""Seconds in which a killed process ends.

One that is in the kernel nobody can end.
"""


_answers: dict[tuple[object, ...], Record] = {}
"""What interpreters answered to `check_interpreter`, which takes seconds.

It is kept by what their answer depends on.
"""


async def run_locally(
    plan: Plan, folder: Path, on_record: OnRecord = lambda record: None
) -> list[Record]:
    """Start the ranks of a plan in a run folder.

    Returns every wire record, the last one of kind ``end``.  The variables of the plan come on top
    of this process's own.  When this returns, is cancelled or raises, everything it started is
    dead.
    """
    with packed(plan.lab, compiled=True) as agent:
        command = [
            plan.python,
            str(agent),
            "launch",
            str(plan.ranks),
            str(plan.restarts),
            *plan.words(folder),
        ]
        return await run_under_guard(
            agent, command, plan.env, plan.deadline, folder, plan.python, on_record, plan.unset
        )


async def read_facts_here(
    python: str, folder: Path, paths: Mapping[str, str] | None = None, deadline: float = FACTS
) -> list[Record]:
    """Facts of this host as the training interpreter sees it.

    They are records of kind ``fact``.  Where the agent does not get to its end by the `deadline`,
    ``facts.rest`` says so.
    """
    with packed(compiled=True) as agent:
        command = [
            python,
            str(agent),
            "facts",
            *(f"{label}={path}" for label, path in (paths or {}).items()),
        ]
        records = await run_under_guard(
            agent, command, {}, deadline, folder, python, lambda record: None
        )
    end = {}
    if records:
        end = records[-1]
    return [
        *records,
        *missing_facts(records, f"{end.get('reason', 'without a message')}, {end.get('exitcode')}"),
    ]


def missing_facts(records: Sequence[Record], end: str) -> list[Record]:
    """A fact without a value for an agent that was ended too early.

    It is None where the agent had sent all facts.
    """
    kinds = {record.get("kind") for record in records}
    if "fact" not in kinds or "complete" in kinds:
        return []
    why = f"the agent was ended before its last fact ({end})"
    return [
        {"kind": "fact", "name": "facts.rest", "value": None, "source": "the agent", "why": why}
    ]


async def run_under_guard(
    agent: Path,
    command: Sequence[str],
    env: Mapping[str, str],
    deadline: float,
    folder: Path,
    python: str,
    on_record: OnRecord,
    unset: Sequence[str] = (),
) -> list[Record]:
    """Run a command under ``agent.pyz guard``.

    Records go to ``wire.jsonl``, all other output to ``launcher.log``.  `agent` is as `packed`
    gives it; the folder that it lies in is gone when the guard has ended, whatever becomes of us.
    Besides `env`, only `TAG` is set; the variables of `unset` are not inherited.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in unset}
    words = [str(agent), private.OWN, "guard", str(folder), str(deadline), *command]
    guard = await _started(python, words, {**inherited, **env, TAG: str(folder)})
    heard = asyncio.Event()
    reading = asyncio.create_task(_read(guard, folder, on_record, heard))
    try:
        await _first_word(guard, heard, python)
        # after its deadline a guard still collects evidence
        records = await asyncio.wait_for(asyncio.shield(reading), deadline + 40)
    except asyncio.TimeoutError:
        await asyncio.shield(_stop(guard, reading))
        raise NcclkitError(
            f"The guard of the run did not end within {deadline + 40:.0f} s; it was ended."
        ) from None
    except BaseException:
        # shielded, as a second Cancel must not leave ranks behind
        await asyncio.shield(_stop(guard, reading))
        raise
    code = await guard.wait()
    if not any(record["kind"] == "end" for record in records):
        records.append(_lost(code, folder))
        on_record(records[-1])
    return records


async def _started(
    python: str, words: Sequence[str], environ: Mapping[str, str]
) -> asyncio.subprocess.Process:
    """The guard in a session of its own, with both its outputs in one pipe."""
    pipe, both = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    try:
        return await asyncio.create_subprocess_exec(
            python,
            *words,
            stdin=pipe,
            stdout=pipe,
            stderr=both,
            env=environ,
            start_new_session=True,
        )
    except OSError as error:
        raise NcclkitError(
            f"Cannot start the training interpreter {python!r} ({error.strerror}); give the path of"
            " a Python >= 3.9."
        ) from error


async def _first_word(guard: asyncio.subprocess.Process, heard: asyncio.Event, python: str) -> None:
    """Wait until a guard says that it has started, or has ended.

    Raises NcclkitError where it does neither.
    """
    try:
        await asyncio.wait_for(heard.wait(), START)
    except asyncio.TimeoutError as error:
        await _kill(guard)  # who does not start heeds no request
        raise NcclkitError(
            f"The training interpreter {python} did not start within {START:.0f} s; check its file"
            " system, or name another with TRAIN_PYTHON / train_python."
        ) from error


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill a process with its group.

    Behind a script that starts it, the interpreter is a child.
    """
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(process.wait(), KILLED)


def _lost(code: int, folder: Path) -> Record:
    """The end of a run whose guard ended without a word.

    It is the record that the guard did not write.
    """
    if code < 0:
        how = f"by signal {-code} ({signal.Signals(-code).name})"
    else:
        how = f"with exit status {code}"
    say = f"its guard ended {how} before the run did; the ranks ended with it, without evidence"
    end = {"reason": "lost", "exitcode": code, "say": say}
    storage.write(folder / "status.json", json.dumps(end | {"ended": time.time()}))
    return {"kind": "end", "t": time.time(), **end}


async def _stop(guard: asyncio.subprocess.Process, reading: asyncio.Task[list[Record]]) -> None:
    """Ask the guard to collect evidence and end the run.

    It has twenty seconds, then it is killed itself.
    """
    assert guard.stdin is not None
    try:
        # it takes orders over its input
        guard.stdin.write(b"cancel\n")
        await guard.stdin.drain()
    except ConnectionError:
        guard.stdin.close()  # it has ended by itself
    assert guard.stdout is not None
    # where the disk is full nobody reads any more, and a full pipe would keep the guard from ending
    if reading.done():
        rest: asyncio.Task[Any] = asyncio.create_task(_discard(guard.stdout))
    else:
        rest = reading
    done, _ = await asyncio.wait({rest}, timeout=20)
    if not done:
        rest.cancel()
        await _kill(guard)  # the ranks then die with torchrun, and torchrun with the guard
        return
    await guard.wait()


async def _discard(output: asyncio.StreamReader) -> None:
    """Read an output to its end, and keep nothing."""
    while await output.read(1 << 16):
        continue


async def _read(
    guard: asyncio.subprocess.Process, folder: Path, on_record: OnRecord, heard: asyncio.Event
) -> list[Record]:
    """Split the guard's output into records and all else, as it arrives.

    It is split line by line.
    """
    assert guard.stdout is not None
    records: list[Record] = []
    rest = b""
    with open(folder / "wire.jsonl", "ab") as kept, LauncherLog(folder) as log:
        while chunk := await guard.stdout.read(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                # the first record of a guard says that the interpreter works, and is not of the
                # run
                if not heard.is_set() and (wire.parse_record(line) or {}).get("kind") == "guard":
                    heard.set()
                    continue
                _keep(folder, line, records, kept, log, on_record)
            rest = rest if len(rest) < 1 << 20 else _spill(rest, log)
            kept.flush()
            log.flush()
        heard.set()  # it has ended
        if rest:
            _keep(folder, rest, records, kept, log, on_record)
    redact.file(str(folder / "launcher.log"))  # what only many lines together tell
    return records


LOG_BEGIN, LOG_END = 64 << 20, 1 << 20
"""Bytes of the beginning, and of the end, of what a run prints that ``launcher.log`` keeps."""


class LauncherLog:
    """``launcher.log`` of a run folder.

    It keeps the beginning and the end of what a run prints.
    """

    def __init__(self, folder: Path) -> None:
        self._file = open(folder / "launcher.log", "ab")  # noqa: SIM115, closed by __exit__
        self._written = 0
        self._left_out = 0
        self._end = b""

    def __enter__(self) -> LauncherLog:
        return self

    def write(self, text: bytes) -> None:
        """Keep a piece of the log, or its end only where the file is full."""
        if self._written + len(text) <= LOG_BEGIN:
            self._file.write(text)
            self._written += len(text)
            return
        self._written = LOG_BEGIN  # what follows must not stand before this piece
        self._end += text
        # twice as much, so that not every piece moves a megabyte
        if len(self._end) > 2 * LOG_END:
            self._left_out += len(self._end) - LOG_END
            self._end = self._end[-LOG_END:]

    def flush(self) -> None:
        """Let others read what the file holds so far."""
        self._file.flush()

    def __exit__(self, *_: object) -> None:
        with self._file:
            if self._left_out:
                self._file.write(b"\n[ncclkit left out %d bytes here]\n" % self._left_out)
            self._file.write(self._end)


def _keep(
    folder: Path,
    line: bytes,
    records: list[Record],
    kept: Any,
    log: LauncherLog,
    on_record: OnRecord,
) -> None:
    record = wire.parse_record(line)
    if record is None:
        # byte for byte what was printed, whatever its encoding
        said = redact.text(line.decode("utf-8", "surrogateescape")).encode(
            "utf-8", "surrogateescape"
        )
        log.write(said + b"\n")
        on_record({"kind": "log", "line": said.decode("utf-8", "replace")[:2000]})
    elif record.get("kind") == "file":
        pack.take(folder, record)
    else:
        kept.write(line + b"\n")
        records.append(record)
        on_record(record)


def _spill(rest: bytes, log: LauncherLog) -> bytes:
    """Keep a line of a megabyte without an end in the log.

    It is no record.
    """
    log.write(rest)
    return b""


async def check_interpreter(python: str, deadline: float = 60.0) -> Record:
    """What the training interpreter can do: ``python``, ``torch``, ``gpus``, ``nccl``.

    Raises NcclkitError in one sentence.
    """
    if not isinstance(python, str) or not python:
        raise NcclkitError(
            f"The training interpreter must be a path in quotes, but it is {python!r}."
        )
    found = shutil.which(python)
    if found is None:
        raise NcclkitError(
            f"The training interpreter {python!r} does not exist or may not be executed; give its"
            " full path."
        )
    # by these it may import another torch, and see other GPUs
    heeded = sorted(
        item
        for item in os.environ.items()
        if item[0].startswith(("CUDA_", "LD_", "NVIDIA_", "PYTHON"))
    )
    asked = (found, os.stat(found).st_mtime_ns, *heeded)
    # only what it could do is remembered: torch may be installed meanwhile
    if asked not in _answers:
        _answers[asked] = await _ask(found, deadline)
    return dict(_answers[asked])


async def _ask(found: str, deadline: float) -> Record:
    """What an interpreter says of itself, in a process of its own."""
    # the mark tells the answer from what sitecustomize or torch print
    code = (
        "import json,sys,torch,torch.distributed as d; print('ncclkit'+json.dumps(dict("
        "python=sys.version.split()[0],torch=torch.__version__,gpus=torch.cuda.device_count(),"
        "nccl=d.is_available() and d.is_nccl_available())))"
    )
    null, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(found, "-c", code),
        stdin=null,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,
        preexec_fn=processes.die_with_parent,
    )
    try:
        out, err = await answer_of(process, deadline)
    except asyncio.TimeoutError as error:
        raise NcclkitError(
            f"{found} did not import torch within {deadline:.0f} s; check its file system and GPUs."
        ) from error
    except WroteTooMuch as error:
        why = f"{error} in place of its version of torch"
        raise NcclkitError(f"{found} {why}; is it a Python?") from error
    answer = next(
        (
            line
            for line in out.decode("utf-8", "replace").splitlines()
            if line.startswith("ncclkit{")
        ),
        None,
    )
    if answer is None:
        last = (err.decode("utf-8", "replace").strip().splitlines() or ["no message"])[-1]
        raise NcclkitError(
            f"The training interpreter {found} cannot import torch ({last[:200]}); "
            "install torch there or name another with TRAIN_PYTHON / train_python."
        )
    return dict(json.loads(answer.removeprefix("ncclkit")))


class LocalLauncher(Launcher):
    """Torchrun on this host."""

    name = "torchrun"

    def node_count(self) -> int:
        """No nodes but this host."""
        return 0

    def starts_on_nodes(self) -> bool:
        """There are none."""
        return False

    async def node_names(self) -> list[str]:
        """This host."""
        return [socket.gethostname()]

    def on_each_node(self, *options: str) -> list[str]:
        """Nothing stands before a command that runs here."""
        return []

    def agent_on_each_node(self, agent: Path, python: str, folder: Path) -> list[str]:
        """The agent under this interpreter."""
        return [python, str(agent)]

    async def run(self, plan: Plan, folder: Path, on_record: OnRecord) -> list[Record]:
        """As `run_locally`."""
        return await run_locally(plan, folder, on_record)

    async def read_facts(self, python: str, folder: Path, paths: Mapping[str, str]) -> list[Record]:
        """As `read_facts_here`."""
        return await read_facts_here(python, folder, paths)
