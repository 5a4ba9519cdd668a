"""The lead's line to one host: a process (ssh, srun, …) that runs our peer, one command at a time."""

import asyncio
import contextlib
import json
from typing import Any

from . import processes, wire

LIMIT = 1 << 22
"""Longest line in bytes that a host may send; its facts are a few hundred kilobytes at most."""
LAST_WORDS = 400


class Peer:
    """One host; `problem` says in words why it no longer answers."""

    def __init__(self, name, command):
        self.name, self.command = name, command
        self.problem, self.said, self.count = "", "", 0
        self.process: Any = None
        self.noise: Any = None
        self.facts = []
        """Records of its facts, as they came."""

    async def start(self, archive):
        """Start it and send it the program; nothing is written on that host but a temporary file."""
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
            self.problem = "%s cannot be started: %s" % (self.command[0], error.strerror)
            return
        self.noise = asyncio.create_task(self._listen())
        self.process.stdin.write(b"%d\n" % len(archive) + archive)

    async def ask(self, seconds, do, **fields):
        """Its answer; empty where none comes in time, or where it has a `problem` already."""
        if self.problem:
            return {}
        try:
            return await asyncio.wait_for(self._exchange(do, fields), seconds)
        except asyncio.TimeoutError:
            self.problem = "no answer within %g s%s" % (seconds, self._words())
        except (OSError, ValueError, EOFError) as error:
            await asyncio.wait({self.noise}, timeout=2)
            self.problem = "it ended%s" % (self._words() or ": %s" % error)
        return {}

    async def _exchange(self, do, fields):
        self.count += 1
        self.process.stdin.write(json.dumps(dict(fields, do=do, id=self.count)).encode() + b"\n")
        await self.process.stdin.drain()
        while True:
            line = await self.process.stdout.readline()
            if not line:
                raise EOFError("it said nothing")
            record = wire.parse(line) or {}
            if record.get("kind") == "fact":
                self.facts.append({key: value for key, value in record.items() if key not in ("ncclkit", "t")})
            elif record.get("kind") == "answer" and record.get("id") == self.count:
                return record

    async def _listen(self):
        """Keep the last line of its standard error."""
        async for line in self.process.stderr:
            self.said = line.decode("utf-8", "replace").strip()[:LAST_WORDS] or self.said

    def _words(self):
        return ": %s" % self.said if self.said else ""

    async def stop(self):
        """Close its input, which ends it; kill what is left of it here after three seconds."""
        if self.process is None:
            return
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), 3)
        except asyncio.TimeoutError:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                self.process.kill()
            await self.process.wait()
        self.noise.cancel()
