"""The coordinator of a connection test.

It starts one worker per host, decides who measures whom, and sends what they found.

Its connection to a host is a process (ssh, srun, …) that runs our worker, one command at a time.
Records: ``fact`` (of each host's network), ``connect.host``, ``connect.pair`` (docs/events.md has
their fields).
"""

import asyncio
import collections
import contextlib
import json
import re
import secrets
import signal
import sys
import time
from itertools import chain
from typing import Any

from .. import wire
from ..run import processes
from ..run.stages import round_robin

LIMIT = 1 << 22
"""Longest line in bytes that a host may send; its facts are a few hundred kilobytes at most."""
HEARD = 16 << 20
"""Bytes that a host may send in all."""
LINES, LAST_WORDS = 3, 400
"""Of what it says beside records: last lines that are looked at, and characters of a line."""
GREETING = re.compile(rb"ncclkit on (\d+)\.(\d+)\r?\n")
"""What Python says there before it takes our program (`ncclkit.live.connect.BOOT`)."""
OLDEST = (3, 9)
PYTHON = "name a Python 3.9 or newer of that host with --train-python"
ADVICE = (
    (r"^status 12[67]$|: Command not found|^Unknown option: -I", PYTHON),
    (
        r"Host key for .* has changed",
        "ask who runs it why its key is new, then forget the old one with ssh-keygen -R",
    ),
    (r"^Host key verification failed", "log in there by hand once, check its key and accept it"),
    (
        r"Permission denied \(|Too many authentication",
        "let ssh in without a question, by a key or an agent",
    ),
    (r"Could not resolve hostname", "correct the name, or give its address"),
    (
        r"^ssh: connect to|banner exchange|^kex_exchange",
        "see whether it is up, and lets ssh in from this machine",
    ),
    (r"No usable temporary directory|No space left", "free space in its /tmp"),
    (r"[Cc]losed|[Rr]eset|Broken pipe", "see whether it is still up, then repeat this"),
)
"""What ssh or the host says → what to do; the first that fits one of the last lines."""


class RemoteWorker:
    """The worker of one host; `problem` says why it no longer answers."""

    def __init__(self, name, command):
        self.name = name
        self.command = command
        self.problem = ""
        self.greeted = False
        self.count = 0
        self.heard = 0
        """Bytes that it has sent."""
        self.said: Any = collections.deque(maxlen=LINES)
        self.archive: Any = None
        self.process: Any = None
        self.tasks: Any = None
        """Of reading its standard error, and of waiting for its end."""
        self.facts = []
        """Records of its facts, as they came."""

    async def start(self, archive):
        """Start the worker; the first question carries its program.

        The host keeps that program in a file without a name.
        """
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
            say = (
                "%s cannot be started here: %s; install it, or name another command with"
                " --remote-command"
            )
            self.problem = say % (self.command[0], error.strerror)
            return
        self.tasks = [asyncio.create_task(work) for work in (self._listen(), self.process.wait())]

    async def ask(self, seconds, do, **fields):
        """The answer to one question.

        It is empty where none comes in time, or where the worker already has a `problem`.
        """
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
            record = wire.parse_record(await self._line()) or {}
            if record.get("kind") == "fact":
                self.facts.append(
                    {key: value for key, value in record.items() if key not in ("ncclkit", "t")}
                )
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
        self.heard += len(line)
        if self.heard > HEARD:
            self.process.kill()
            raise ValueError("it wrote more than %d MiB" % (HEARD >> 20))
        return line

    async def _listen(self):
        async for line in self.process.stderr:
            self._keep(line)

    def _keep(self, line):
        text = "".join(filter(str.isprintable, line.decode("utf-8", "replace"))).strip()
        self.said.extend([text[:LAST_WORDS]] if any(map(str.isalnum, text)) else [])

    def _late(self, seconds):
        hint = "by hand what its shell waits for"
        if self.greeted:
            hint = "whether it or the network hangs"
        last = ""
        if self.said:
            last = " (last line: %s)" % self.said[-1]
        return "no answer within %g s%s; see %s" % (seconds, last, hint)

    def _ended(self, error):
        """Why it ended, and what to do."""
        status = "status %s" % self.process.returncode
        fits = (
            (line, do)
            for what, do in ADVICE
            for line in (status, *self.said)
            if re.search(what, line)
        )
        other = "log in there by hand to see more"
        if self.greeted:
            other = "see what ended it there, then repeat this"
        line, advice = next(fits, (status, other))
        if line == status:
            if self.said:
                line = self.said[-1]
            else:
                line = "%s, and %s" % (status, error)
        return "it ended: %s; %s" % (line.rstrip("."), advice)

    async def stop(self):
        """Close its input, which ends it.

        What is left of it here after three seconds is killed.
        """
        if self.process is None:
            return
        self.process.stdin.close()
        noise, ended = self.tasks
        await asyncio.wait({ended}, timeout=3)
        if not ended.done():
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                self.process.kill()
            # asyncio tells of its end only when what it wrote is read
            await asyncio.wait({ended, asyncio.ensure_future(self._drain())}, timeout=3)
        noise.cancel()
        ended.cancel()

    async def _drain(self):
        while await self.process.stdout.read(1 << 16):
            pass


BEGIN, ASK = 40.0, 30.0
"""Seconds for a host to start (ssh, srun), and to answer."""
RETEST_SECONDS, RETEST_PATHS = 0.5, 8
"""Seconds of a stream that is measured once more; and of how many paths at most."""
ASYMMETRIC, RETRANSMITTED = 0.25, 0.01
"""The shares at which a direction is measured once more.

One is a share of the speed of the opposite direction, below which it is slow; the other is the
share of packets that were sent again.
"""
HOST_FIELDS = (
    *(
        "name",
        "hostname",
        "own",
        "interface",
        "address",
        "gloo",
        "interfaces",
        "names",
        "port",
        "refused",
    ),
    "problem",
)
MEASURED = ("mtu", "mtu_own", "bandwidth", "resent", "latency", "offset", "offset_error", "why")
PAIR_FIELDS = (
    *(
        "src",
        "dst",
        "port",
        "address",
        "rendezvous",
        "ephemeral",
        "interface",
        "nccl_address",
        "nccl",
        "reached",
    ),
    *("over", *MEASURED),
)


class Session:
    """The state of one connection test.

    It holds what is known of each host, and of each ordered pair of hosts.
    """

    def __init__(self, plan, token):
        self.plan = plan
        self.token = token
        names = plan["hosts"]
        self.hosts: dict[str, dict[str, Any]] = {name: dict.fromkeys(HOST_FIELDS) for name in names}
        pairs = []
        for a in names:
            for b in names:
                if a != b:
                    pairs.append((a, b))
        self.pairs: dict[tuple[str, str], dict[str, Any]] = {
            pair: dict.fromkeys(PAIR_FIELDS) for pair in pairs
        }
        for (src, dst), row in self.pairs.items():
            row.update(src=src, dst=dst, port=plan["port"], reached=[], why={})

    async def run(self, workers, seconds):
        """Run all stages of the test.

        A pair that is not reached within `seconds` stays unmeasured, and its record says so.
        """
        until = time.monotonic() + seconds
        _send_progress("starting %d hosts" % len(workers))
        await self._begin(workers, seconds)
        _send_progress("asking for names and ports")
        await self._resolve(workers)
        await self._reach(workers, self._first_targets())
        await asyncio.gather(*(worker.ask(ASK, "end_rendezvous") for worker in workers.values()))
        await self._reach(workers, self._further_targets())
        names = self.plan["hosts"]
        every = [[(names[a], names[b]) for a, b in pairs] for pairs in round_robin(len(names))]
        for number, pairs in enumerate(every, 1):
            _send_progress("measuring, round %d of %d" % (number, len(every)))
            # one direction after the other, as firewalls and packet sizes may differ, and both
            # would share the NIC
            for paths in (pairs, [(dst, src) for src, dst in pairs]):
                if time.monotonic() > until:
                    return self._late(seconds)
                await asyncio.gather(*(self._measure(workers[src], src, dst) for src, dst in paths))
        for src, dst in self._slow_directions()[:RETEST_PATHS]:
            if time.monotonic() < until:
                _send_progress("measuring %s to %s once more, for longer" % (src, dst))
                await self._measure(
                    workers[src], src, dst, max(RETEST_SECONDS, self.plan["seconds"])
                )

    def _slow_directions(self):
        """The directions far slower than their opposite, or that lost packets.

        They are measured again, since something may have disturbed a short stream.
        """
        speeds = {pair: row["bandwidth"] or 0.0 for pair, row in self.pairs.items()}
        odd = [(a, b) for a, b in self.pairs if 0 < speeds[a, b] < ASYMMETRIC * speeds[b, a]]
        lossy = [pair for pair, row in self.pairs.items() if (row["resent"] or 0.0) > RETRANSMITTED]
        return odd + [pair for pair in lossy if pair not in odd]

    async def _begin(self, workers, seconds):
        begun = {"token": self.token, "env": self.plan["env"], "lifetime": seconds + 60}

        async def one(name, worker):
            said = await worker.ask(
                min(BEGIN, seconds), "begin", name=name, rendezvous=self.plan["port"], **begun
            )
            if said:
                self._introduced(name, said)

        await asyncio.gather(*(one(name, worker) for name, worker in workers.items()))

    def _introduced(self, name, said):
        """A host's interfaces, and those that NCCL and gloo would use."""
        interface = said["nccl.interface"]["value"]
        rows = [
            {key: row.get(key) for key in ("name", "state", "kind", "mtu", "addresses")}
            for row in said["interfaces"]["value"] or ()
        ]
        self.hosts[name].update(
            hostname=said["hostname"],
            own=said["hostname.addresses"]["value"],
            interface=interface,
            address=next(
                (a for row in rows if row["name"] == interface for a in routable(row["addresses"])),
                None,
            ),
            gloo=said["gloo.interface"]["value"],
            interfaces=rows,
            refused=said["refused"],
            port=said["port"],
        )

    async def _resolve(self, workers):
        names = self.plan["hosts"]

        async def one(name, worker):
            said = await worker.ask(
                ASK, "resolve", names=[other for other in names if other != name]
            )
            self.hosts[name]["names"] = said.get("names")

        await asyncio.gather(*(one(name, worker) for name, worker in workers.items()))
        for (src, dst), row in self.pairs.items():
            found = (self.hosts[src]["names"] or {}).get(dst)
            if isinstance(found, list) and found:
                row["address"] = found[0]
            else:
                row["address"] = None
            row["interface"] = self.hosts[dst]["interface"]
            row["nccl_address"] = self.hosts[dst]["address"]

    def _first_targets(self):
        """The targets that are tried first, as (source, target, field for the outcome).

        They are the rendezvous and a free port, both by name, and NCCL's address.
        """
        for (src, dst), row in self.pairs.items():
            data = self.hosts[dst]["port"]
            if row["address"] and data:
                if self.hosts[dst]["refused"] == "":
                    yield src, (dst, row["address"], self.plan["port"]), "rendezvous"
                yield src, (dst, row["address"], data), "ephemeral"
            if row["nccl_address"] and data:
                yield src, (dst, row["nccl_address"], data), "nccl"

    def _further_targets(self):
        """Where nothing is open yet: every other address that the target has."""
        for (src, dst), row in self.pairs.items():
            if not row["reached"] and self.hosts[dst]["port"]:
                tried = {row["address"], row["nccl_address"]}
                every = []
                for i in self.hosts[dst]["interfaces"]:
                    for a in routable(i["addresses"]):
                        if a not in tried:
                            every.append(a)
                for address in every:
                    yield src, (dst, address, self.hosts[dst]["port"]), None

    async def _reach(self, workers, targets):
        """Each source tries all its targets side by side; equal ones once."""
        wanted: dict[str, dict[Any, list[str]]] = {}
        for src, target, field in targets:
            wanted.setdefault(src, {}).setdefault(target, []).append(field)

        async def one(src, fields):
            said = await workers[src].ask(ASK, "reach", targets=list(fields))
            own = set()
            for i in self.hosts[src]["interfaces"] or ():
                for a in routable(i["addresses"]):
                    own.add(a)
            for (target, names), end in zip(fields.items(), said.get("ends") or ()):
                row = self.pairs[src, target[0]]
                # the name leads back to the source, so whatever refused there was not the target
                if target[1] in own and end != "open":
                    end = "itself"
                row.update({name: end for name in names if name})
                if end == "open" and target[2] != self.plan["port"]:
                    row["reached"].append(target[1])

        await asyncio.gather(*(one(src, fields) for src, fields in wanted.items()))

    async def _measure(self, worker, src, dst, seconds=None):
        """Measure a pair on NCCL's own path if open, else on any other.

        `seconds`: how long the stream takes, where not as long as planned.
        """
        seconds = seconds or self.plan["seconds"]
        row = self.pairs[src, dst]
        if not row["reached"]:
            return
        if row["nccl"] == "open":
            row["over"] = row["nccl_address"]
        else:
            row["over"] = row["reached"][0]
        asked = {"address": row["over"], "port": self.hosts[dst]["port"], "stream": seconds}
        said = await worker.ask(ASK + seconds, "measure", **asked)
        row.update({key: said[key] for key in MEASURED if key in said})

    def _late(self, seconds):
        for row in self.pairs.values():
            if row["reached"] and not row["over"]:
                row["why"]["bandwidth"] = "not measured: the %g s of this test were over" % seconds

    def records(self, workers):
        """All results as wire records: one of each host, one of each ordered pair."""
        lost = {name: worker.problem for name, worker in workers.items()}
        for name, host in self.hosts.items():
            lost[name] = lost[name] or ("" if host["port"] else "the test ended before it answered")
            yield dict(host, kind="connect.host", name=name, problem=lost[name])
        for row in self.pairs.values():
            away = [name for name in (row["dst"], row["src"]) if lost[name]]
            if (
                away
                and (row["address"] or lost[row["src"]])
                and row["bandwidth"] is None
                and not row["why"]
            ):
                row["why"] = {"host": "%s unreachable" % " and ".join(away)}
            yield dict(
                row, kind="connect.pair", host=self.hosts[row["src"]]["hostname"] or row["src"]
            )


def _send_progress(say):
    """Progress for whoever waits; it is not evidence."""
    wire.send("connect.step", say=say)


def routable(addresses):
    """The addresses that other hosts can reach, without prefix length or link-local ones."""
    plain = [address.split("/")[0].split("%")[0] for address in addresses or ()]
    return [
        address
        for address in plain
        if not address.startswith(("127.", "169.254.", "fe80:")) and address != "::1"
    ]


CLOSING = 5.0
"""Seconds before the deadline at which no further pair is measured."""


def main(argv):
    """``connect PLAN``: test the connections between the hosts of a plan.

    The file PLAN holds hosts, commands (how to start a worker), port, seconds, deadline and env.
    """
    with open(argv[0], encoding="utf-8") as file:
        plan = json.load(file)
    with open(sys.argv[0], "rb") as file:
        archive = file.read()
    return asyncio.run(coordinate(plan, archive))


async def coordinate(plan, archive):
    """Run the test and return the exit status.

    The status is 0, or 1 where fewer than two hosts could be started.
    """
    task: Any = asyncio.current_task()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    session = Session(plan, secrets.token_hex(16))
    workers = {name: RemoteWorker(name, plan["commands"][name]) for name in plan["hosts"]}
    try:
        await asyncio.gather(*(worker.start(archive) for worker in workers.values()))
        await session.run(workers, plan["deadline"] - CLOSING)
    finally:
        facts = (fact for worker in workers.values() for fact in worker.facts)
        # also of a test that was cancelled: what is known is told
        for record in chain(facts, session.records(workers)):
            wire.send(**record)
        await asyncio.gather(*(worker.stop() for worker in workers.values()))
    if sum(not worker.problem for worker in workers.values()) > 1:
        return 0
    return 1
