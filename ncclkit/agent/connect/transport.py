"""The coordinator's connection to one host: a process (ssh, srun, …) that runs our worker, one command at a time."""

import asyncio
import collections
import contextlib
import json
import re
from typing import Any

from .. import wire
from ..run import processes

LIMIT = 1 << 22
"""Longest line in bytes that a host may send; its facts are a few hundred kilobytes at most."""
LINES, LAST_WORDS = 3, 400
"""Of what it says beside records: last lines that are looked at, and characters of a line."""
GREETING = re.compile(rb"ncclkit on (\d+)\.(\d+)\r?\n")
"""What Python says there before it takes our program (`ncclkit.live.launch.hosts.BOOT`)."""
OLDEST = (3, 9)
PYTHON = "name a Python 3.9 or newer of that host with --train-python"
ADVICE = (
    (r"^status 12[67]$|: Command not found|^Unknown option: -I", PYTHON),
    (r"Host key for .* has changed", "ask who runs it why its key is new, then forget the old one with ssh-keygen -R"),
    (r"^Host key verification failed", "log in there by hand once, to look at its key and accept it"),
    (r"Permission denied \(|Too many authentication", "let ssh in without a question, by a key or an agent"),
    (r"Could not resolve hostname", "correct the name, or give its address"),
    (r"^ssh: connect to|banner exchange|^kex_exchange", "see whether it is up, and lets ssh in from this machine"),
    (r"No usable temporary directory|No space left", "free space in its /tmp"),
    (r"[Cc]losed|[Rr]eset|Broken pipe", "see whether it is still up, then repeat this"),
)
"""What ssh or the host says → what to do; the first that fits one of the last lines."""


class RemoteWorker:
    """The worker of one host; `problem` says why it no longer answers."""

    def __init__(self, name, command):
        self.name, self.command = name, command
        self.problem, self.greeted, self.count = "", False, 0
        self.said: Any = collections.deque(maxlen=LINES)
        self.archive: Any = None
        self.process: Any = None
        self.tasks: Any = None
        """Of reading its standard error, and of waiting for its end."""
        self.facts = []
        """Records of its facts, as they came."""

    async def start(self, archive):
        """Start the worker; the first question carries its program, which its host keeps in a file without a name."""
        self.archive = archive
        try:
            self.process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=LIMIT,
                preexec_fn=processes.die_with_parent,
            )
        except OSError as error:
            say = "%s cannot be started here: %s; install it, or name another command with --remote-command"
            self.problem = say % (self.command[0], error.strerror)
            return
        self.tasks = [asyncio.create_task(work) for work in (self._listen(), self.process.wait())]

    async def ask(self, seconds, do, **fields):
        """The answer to one question; empty where none comes in time, or where the worker already has a `problem`."""
        if self.problem:
            return {}
        try:
            return await asyncio.wait_for(self._exchange(do, fields), seconds)
        except asyncio.TimeoutError:
            self.problem = self._late(seconds)
        except (OSError, ValueError, EOFError) as error:
            await asyncio.wait(self.tasks, timeout=2)
            self.problem = self._ended(error)
        return {}

    async def _exchange(self, do, fields):
        if not self.greeted:
            await self._greet()
        if self.problem:
            return {}
        self.count += 1
        self.process.stdin.write(json.dumps(dict(fields, do=do, id=self.count)).encode() + b"\n")
        await self.process.stdin.drain()
        while True:
            record = wire.parse(await self._line()) or {}
            if record.get("kind") == "fact":
                self.facts.append({key: value for key, value in record.items() if key not in ("ncclkit", "t")})
            elif record.get("kind") == "answer" and record.get("id") == self.count:
                return record

    async def _greet(self):
        """Hand over the program, but only to Python: a shell would take it for commands."""
        while not (found := GREETING.fullmatch(line := await self._line())):
            self._keep(line)
        version: Any = tuple(map(int, found.groups()))
        if version < OLDEST:
            self.problem = "its Python is %d.%d; %s" % (*version, PYTHON)
            return
        self.greeted = True
        self.said.clear()  # banners, and what start-up files complained about
        self.process.stdin.write(b"%d\n" % len(self.archive) + self.archive)

    async def _line(self):
        line = await self.process.stdout.readline()
        if not line:
            raise EOFError("it said nothing")
        return line

    async def _listen(self):
        async for line in self.process.stderr:
            self._keep(line)

    def _keep(self, line):
        text = "".join(filter(str.isprintable, line.decode("utf-8", "replace"))).strip()
        self.said.extend([text[:LAST_WORDS]] if any(map(str.isalnum, text)) else [])

    def _late(self, seconds):
        hint = "whether it or the network hangs" if self.greeted else "by hand what its shell waits for"
        last = " (last line: %s)" % self.said[-1] if self.said else ""
        return "no answer within %g s%s; see %s" % (seconds, last, hint)

    def _ended(self, error):
        """Why it ended, and what to do."""
        status = "status %s" % self.process.returncode
        fits = ((line, do) for what, do in ADVICE for line in (status, *self.said) if re.search(what, line))
        other = "see what ended it there, then repeat this" if self.greeted else "log in there by hand to see more"
        line, advice = next(fits, (status, other))
        if line == status:
            line = self.said[-1] if self.said else "%s, and %s" % (status, error)
        return "it ended: %s; %s" % (line.rstrip("."), advice)

    async def stop(self):
        """Close its input, which ends it; kill what is left of it here after three seconds."""
        if self.process is None:
            return
        self.process.stdin.close()
        noise, ended = self.tasks
        await asyncio.wait({ended}, timeout=3)
        if not ended.done():
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                self.process.kill()
            await ended
        noise.cancel()
