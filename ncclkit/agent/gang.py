"""Whether the nodes of a job work with each other, before its first step.

``gang`` runs once on every node. All pairs of nodes do a checked all_reduce, then all nodes that
are left; the first node tells who does what and prints the verdict. Each group runs in processes
of its own, which end with their time: what hangs takes nobody along. Begin at `main`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import select
import signal
import socket
import sys
import time
import zlib
from typing import Any, NoReturn

from . import gang_verdict
from .commands import run_bounded
from .facts import network
from .gang_verdict import Pair, PairResult
from .gate_state import own_node_name
from .run import processes
from .run.node import NUMBERS, job_name

READY, BAD, UNKNOWN = 0, 1, 2
ROUND = 6.0
"""Seconds in which a pair must be through."""
MEETING = 0.5
"""Share of the time in which all nodes must have come: they import torch first."""
TOGETHER = 10.0
"""Seconds that are kept for all nodes together."""
AGAIN = 14.0
"""Seconds that are kept to try suspects again."""
SPARE = 3.0
"""Seconds from the end of a group's time until the node that says nothing is given up."""
SIZE = 4 << 20
"""Bytes of a message."""
REPEATS = 3
LINE = 1 << 16
"""Bytes of one message between nodes."""
MOST = 4096
"""Nodes of the largest gang."""
COUNTS = ("NCCLKIT_NODES", "SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES")
KUBERNETES = "JOB_COMPLETION_INDEX"
"""The number of a pod of an indexed Job, as JobSet makes them."""
HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:%-]{0,253}")


def main(argv: list[str]) -> int:
    """``gang [--seconds N] [--nodes N] [--number I] [--master HOST] …``: the verdict's status."""
    try:
        asked = _parse_options(argv)
    except (ValueError, OSError) as error:
        sys.stderr.write("the gang could not begin: %s\n" % error)
        return UNKNOWN
    processes.adopt_orphans()
    until = time.monotonic() + asked.seconds
    try:
        if asked.number == 0:
            return _lead(
                asked,
                until,
            )
        return _take_part(
            asked,
            until,
        )
    finally:
        processes.end(
            os.getpid(),
            0.1,
            0.5,
        )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _option_parser() -> _Parser:
    parser = _Parser(
        prog="gang",
        add_help=False,
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=60.0,
    )
    parser.add_argument(
        "--nodes",
        type=int,
        default=_number_of(COUNTS),
    )
    parser.add_argument(
        "--number",
        type=int,
        default=_number_of((*NUMBERS, KUBERNETES)),
    )
    parser.add_argument(
        "--master",
        default=os.environ.get(
            "MASTER_ADDR",
            "",
        ),
    )
    parser.add_argument(
        "--port",
        type=int,
        default=0,
    )
    parser.add_argument(
        "--backend",
        choices=("auto", "gloo", "nccl"),
        default="auto",
    )
    parser.add_argument(
        "--write",
        default="",
    )
    parser.add_argument(
        "--exclude-to",
        default="",
    )
    return parser


def _parse_options(argv: list[str]) -> argparse.Namespace:
    """The options, with what launchers say; raises ValueError for what cannot be meant."""
    asked = _option_parser().parse_args(argv)
    if not 5.0 <= asked.seconds <= 3600.0:
        raise ValueError("--seconds takes 5 to 3600")
    if asked.nodes is None or asked.number is None:
        raise ValueError("no launcher says how many nodes there are, and which this is")
    if not 2 <= asked.nodes <= MOST or not 0 <= asked.number < asked.nodes:
        raise ValueError("--nodes takes 2 to %d, --number one below it" % MOST)
    asked.master = asked.master or _first_node()
    if not HOST.fullmatch(asked.master):
        raise ValueError("%r is no address of a first node" % asked.master[:60])
    # jobs that share a node begin at different ports; the store has the next one
    asked.port = asked.port or 30000 + 2 * (zlib.crc32(job_name().encode()) % 1000)
    if not 1024 <= asked.port < 65535:
        raise ValueError("--port takes 1024 to 65534")
    if asked.backend == "auto":
        asked.backend = "nccl" if os.path.exists("/dev/nvidia0") else "gloo"
    return asked


def _number_of(names: tuple[str, ...]) -> int | None:
    for name in names:
        number = processes.number_of(
            os.environ,
            name,
        )
        if number is not None:
            return int(number)
    return None


def _first_node() -> str:
    """The first node of a Slurm job."""
    nodes = os.environ.get(
        "SLURM_JOB_NODELIST",
        "",
    )
    if not nodes:
        raise ValueError("nothing names the first node: --master does")
    try:
        reply = run_bounded(
            ["scontrol", "--", "show", "hostnames", nodes],
            5.0,
        )
    except OSError as error:
        raise ValueError("scontrol names no first node (%s)" % error) from None
    return (
        reply.out.decode(
            "utf-8",
            "replace",
        )
        .partition("\n")[0]
        .strip()
    )


# ---------------------------------------------------------------- the first node


class _Member:
    """A node that has come: its name, and the connection to it."""

    def __init__(self, connection: socket.socket, name: str) -> None:
        self.connection = connection
        self.name = name
        self.unread = b""


class _Gang:
    """All nodes of a job, as the first of them sees them."""

    def __init__(self, count: int, server: socket.socket) -> None:
        self.count = count
        self.server = server
        self.members: dict[int, _Member] = {}
        self.absent: dict[int, str] = {}
        self.results: dict[Pair, PairResult] = {}
        self.groups = 0

    def meet(self, until: float) -> None:
        """Wait until all nodes have come."""
        waiting: list[tuple[socket.socket, float]] = []
        while len(self.members) < self.count and time.monotonic() < until:
            open_ones = [one for one, _ in waiting]
            ready = select.select(
                [self.server, *open_ones],
                [],
                [],
                0.2,
            )[0]
            if self.server in ready:
                connection = self.server.accept()[0]
                connection.setblocking(False)
                waiting.append((connection, time.monotonic()))
            for connection in open_ones:
                if connection in ready:
                    waiting = [one for one in waiting if one[0] is not connection]
                    self._welcome(connection)
        for number in range(self.count):
            if number not in self.members and number not in self.absent:
                self.absent[number] = "did not come within the time"

    def _welcome(self, connection: socket.socket) -> None:
        """Take a node in by its first line; whoever says anything else is sent away."""
        try:
            said = json.loads(connection.recv(LINE))
            number = said["number"]
            is_ours = said["job"] == job_name() and isinstance(
                number,
                int,
            )
        except (OSError, ValueError, KeyError, TypeError):
            is_ours = False
        if not is_ours or not 0 <= number < self.count or number in self.members:
            connection.close()
            return
        name = str(
            said.get(
                "name",
                "",
            )
        )
        self.members[number] = _Member(
            connection,
            name if HOST.fullmatch(name) else "",
        )
        if said.get("trouble"):
            self.absent[number] = "cannot take part: %s" % _plain(said["trouble"])

    def names(self) -> dict[int, str]:
        """Number → name of every node; of one that never came only its number is known."""
        listed = _names_of_job(self.count)
        found = {}
        for number in range(self.count):
            member = self.members.get(number)
            found[number] = (member and member.name) or listed[number]
        return found

    def run(
        self, groups: list[tuple[int, ...]], seconds: float
    ) -> dict[tuple[int, ...], PairResult]:
        """Run groups of nodes side by side; what each of them came to."""
        self.groups += 1
        answers: dict[int, dict[str, Any]] = {}
        wanted = [node for group in groups for node in group]
        for group in groups:
            for node in group:
                order = {
                    "group": self.groups,
                    "nodes": group,
                    "seconds": seconds,
                }
                self._tell(
                    node,
                    order,
                )
        until = time.monotonic() + seconds + SPARE
        while time.monotonic() < until:
            left = [node for node in wanted if node not in answers and node not in self.absent]
            if not left:
                break
            sockets = {self.members[node].connection: node for node in left}
            for connection in select.select(
                [*sockets],
                [],
                [],
                0.1,
            )[0]:
                self._read(
                    sockets[connection],
                    answers,
                )
        return {
            group: _group_result(
                group,
                answers,
                self.absent,
            )
            for group in groups
        }

    def keep(self, results: dict[tuple[int, ...], PairResult]) -> None:
        """Keep what pairs came to; the last attempt of a pair counts."""
        for group, result in results.items():
            self.results[(group[0], group[1])] = result

    def _tell(self, node: int, order: dict[str, Any]) -> None:
        try:
            self.members[node].connection.sendall(json.dumps(order).encode() + b"\n")
        except OSError as error:
            self.absent[node] = "was lost (%s)" % (error.strerror or error)

    def _read(self, node: int, answers: dict[int, dict[str, Any]]) -> None:
        """Read what a node says; of an earlier group it is too late."""
        member = self.members[node]
        try:
            part = member.connection.recv(LINE)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        member.unread += part
        if not part or len(member.unread) > LINE:
            self.absent[node] = "was lost: its connection ended"
            return
        *lines, member.unread = member.unread.split(b"\n")
        for line in lines:
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if (
                isinstance(
                    said,
                    dict,
                )
                and said.get("group") == self.groups
            ):
                answers[node] = said

    def end(self, answer: dict[str, Any]) -> None:
        """Tell all nodes what came of it."""
        for node in self.members:
            if node not in self.absent or "cannot take part" in self.absent[node]:
                self._tell(
                    node,
                    {"end": answer},
                )


def _group_result(
    group: tuple[int, ...], answers: dict[int, dict[str, Any]], absent: dict[int, str]
) -> PairResult:
    speeds = []
    for node in group:
        said = answers.get(node)
        if said is None:
            return PairResult(
                False,
                why=absent.get(
                    node,
                    "no answer in time",
                ),
            )
        if not said.get("works"):
            return PairResult(
                False,
                why=_plain(
                    said.get(
                        "why",
                        "",
                    )
                ),
            )
        if isinstance(
            said.get("speed"),
            (int, float),
        ):
            speeds.append(float(said["speed"]))
    return PairResult(
        True,
        min(speeds) if speeds else None,
    )


def _plain(text: Any) -> str:
    """A text of another node in one line."""
    plain = "".join(char if char.isprintable() else " " for char in str(text)[:200])
    return " ".join(plain.split())


def _names_of_job(count: int) -> list[str]:
    """The names of the nodes as Slurm lists them, else their numbers."""
    nodes = os.environ.get(
        "SLURM_JOB_NODELIST",
        "",
    )
    if nodes:
        try:
            reply = run_bounded(
                ["scontrol", "--", "show", "hostnames", nodes],
                5.0,
            )
            names = reply.out.decode(
                "utf-8",
                "replace",
            ).split()
        except OSError:
            names = []
        if len(names) == count and all(HOST.fullmatch(name) for name in names):
            return names
    return ["node %d" % number for number in range(count)]


def _lead(asked: argparse.Namespace, until: float) -> int:
    """Lead the gang, and take part in it by a child; prints the verdict."""
    begun = time.monotonic()
    with socket.create_server(
        ("", asked.port),
        backlog=MOST,
    ) as server:
        _in_child(lambda: _keep_store(asked))
        _in_child(
            lambda: _take_part(
                asked,
                until,
                is_quiet=True,
            )
        )
        gang = _Gang(
            asked.nodes,
            server,
        )
        gang.meet(begun + MEETING * asked.seconds)
        untried = _try_pairs(
            gang,
            until - TOGETHER,
        )
        _try_again(
            gang,
            until - TOGETHER,
        )
        bad = _suspects(gang)
        good = tuple(node for node in sorted(gang.members) if node not in bad)
        together = None
        left = until - time.monotonic() - SPARE - 1.0
        if len(good) > 1 and left > 1.0:
            together = gang.run(
                [good],
                min(
                    left,
                    2 * TOGETHER,
                ),
            )[good]
        names = gang.names()
        answer = gang_verdict.verdict(
            names,
            gang.absent,
            gang.results,
            together,
            untried,
            asked.backend,
        )
        answer["seconds"] = round(
            time.monotonic() - begun,
            1,
        )
        gang.end(answer)
    _write_answer(
        asked,
        answer,
    )
    return int(answer["status"])


def _suspects(gang: _Gang) -> set[int]:
    """Nodes that did not come, were lost, or failed with two others already."""
    found = gang_verdict.failing_nodes(
        gang.results,
        gang_verdict.SUSPECT,
    )
    return {*gang.absent, *(one.node for one in found)}


def _try_pairs(gang: _Gang, until: float) -> int:
    """Try all pairs, round by round; returns how many there was no time for.

    A suspect takes no more time of others, and is tried again at the end.
    """
    rounds = gang_verdict.rounds_of(node for node in sorted(gang.members))
    untried = 0
    for pairs in rounds:
        suspects = _suspects(gang)
        wanted = [pair for pair in pairs if not suspects & set(pair)]
        left = until - time.monotonic()
        if suspects - set(gang.absent):
            left -= AGAIN
        if left < ROUND / 2:
            untried += len(wanted)
        elif wanted:
            gang.keep(
                gang.run(
                    [*wanted],
                    min(
                        ROUND,
                        left,
                    ),
                )
            )
    return untried


def _try_again(gang: _Gang, until: float) -> None:
    """Try each suspect with one more node, and what failed once more, with more time.

    Of hosts that are busy a healthy pair may have been late.
    """
    suspects = _suspects(gang) - set(gang.absent)
    good = [node for node in sorted(gang.members) if node not in _suspects(gang)]
    busy: set[int] = set()
    pairs = []
    for node in sorted(suspects):
        free = [one for one in good if one not in busy]
        # with a node that it was not tried with, where there is one
        free.sort(
            key=lambda one: (
                (
                    min(
                        one,
                        node,
                    ),
                    max(
                        one,
                        node,
                    ),
                )
                in gang.results
            )
        )
        if free:
            pairs.append(
                (
                    min(
                        free[0],
                        node,
                    ),
                    max(
                        free[0],
                        node,
                    ),
                )
            )
            busy.update(pairs[-1])
    for pair, result in gang.results.items():
        if not result.works and not {*busy, *suspects, *gang.absent} & set(pair):
            pairs.append(pair)
            busy.update(pair)
    left = until - time.monotonic()
    if pairs and left > ROUND / 2:
        gang.keep(
            gang.run(
                [*pairs],
                min(
                    2 * ROUND,
                    left,
                ),
            )
        )


def _write_answer(asked: argparse.Namespace, answer: dict[str, Any]) -> None:
    """Print the verdict, and write what a batch script or Kubernetes reads."""
    print(
        json.dumps(answer),
        flush=True,
    )
    sys.stderr.write(answer["say"] + "\n")
    for path, text in ((asked.write, answer["say"]), (asked.exclude_to, answer["exclude"])):
        if path:
            with open(
                path,
                "w",
                encoding="utf-8",
            ) as out:
                out.write(text + "\n")


def _in_child(work: Any) -> None:
    """Do some work in a child that dies with this process."""
    parent = os.getpid()
    if os.fork() == 0:
        try:
            signal.signal(
                signal.SIGTERM,
                signal.SIG_DFL,
            )
            processes.die_with_parent(parent)
            work()
        finally:
            os._exit(0)


def _keep_store(asked: argparse.Namespace) -> None:
    """Hold the store by which the ranks of a group find each other, until this process is ended."""
    dist: Any = importlib.import_module("torch.distributed")
    store = dist.TCPStore(
        "0.0.0.0",
        asked.port + 1,
        is_master=True,
        wait_for_workers=False,
    )
    while store:
        signal.pause()


# ---------------------------------------------------------------- every node


def _take_part(asked: argparse.Namespace, until: float, is_quiet: bool = False) -> int:
    """Come, and do what the first node says; returns the status of its verdict."""
    hello: dict[str, Any] = {
        "number": asked.number,
        "job": job_name(),
        "name": own_node_name(),
    }
    torch = None
    try:
        torch = importlib.import_module("torch.distributed") and importlib.import_module("torch")
    except Exception as error:  # whatever an interpreter without a whole torch raises
        hello["trouble"] = "%s: %s" % (type(error).__name__, error)
    connection = _connect(
        asked,
        until,
    )
    if connection is None:
        sys.stderr.write("the first node %s did not answer\n" % asked.master)
        return UNKNOWN
    _choose_interface(connection)
    with connection, connection.makefile("rwb") as lines:
        lines.write(json.dumps(hello).encode() + b"\n")
        lines.flush()
        for line in lines:
            order = json.loads(line)
            if "end" in order:
                if not is_quiet:
                    sys.stderr.write(_plain(order["end"].get("say")) + "\n")
                return int(order["end"]["status"])
            answer = _run_apart(
                torch,
                asked,
                order,
            )
            lines.write(
                json.dumps(
                    dict(
                        answer,
                        group=order["group"],
                    )
                ).encode()
                + b"\n"
            )
            lines.flush()
    sys.stderr.write("the first node ended without a verdict\n")
    return UNKNOWN


def _connect(asked: argparse.Namespace, until: float) -> socket.socket | None:
    """A connection to the first node, which may begin later than this one."""
    while time.monotonic() < until:
        left = max(
            0.1,
            until - time.monotonic(),
        )
        try:
            made = socket.create_connection(
                (asked.master, asked.port),
                timeout=min(
                    5.0,
                    left,
                ),
            )
        except OSError:
            time.sleep(0.2)
            continue
        # beyond its own time the first node has no orders
        made.settimeout(left + SPARE)
        return made
    return None


def _choose_interface(connection: socket.socket) -> None:
    """Let gloo use the interface that reaches the first node, where nobody chose one.

    By itself gloo takes what the host's name resolves to, which may be 127.0.0.1.
    """
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        return
    own = connection.getsockname()[0]
    for entry in network.entries():
        if entry["address"].partition("/")[0] == own:
            os.environ["GLOO_SOCKET_IFNAME"] = entry["name"]
            return


def _run_apart(torch: Any, asked: argparse.Namespace, order: dict[str, Any]) -> dict[str, Any]:
    """What a group came to on this node, in a child that is killed when its time is over."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            answer = _group_answer(
                torch,
                asked,
                order,
            )
            os.write(
                writer,
                json.dumps(answer).encode(),
            )
        finally:
            os._exit(0)
    os.close(writer)
    said = b""
    until = time.monotonic() + float(order["seconds"])
    while select.select(
        [reader],
        [],
        [],
        max(
            0.0,
            until - time.monotonic(),
        ),
    )[0]:
        part = os.read(
            reader,
            LINE,
        )
        if not part:
            break
        said += part
    os.close(reader)
    os.kill(
        child,
        signal.SIGKILL,
    )
    os.waitpid(
        child,
        0,
    )
    try:
        return dict(json.loads(said))
    except ValueError:
        late = time.monotonic() >= until
        why = "no answer within %g s" % order["seconds"] if late else "its process ended"
        return {
            "works": False,
            "why": why,
        }


def _group_answer(torch: Any, asked: argparse.Namespace, order: dict[str, Any]) -> dict[str, Any]:
    """Do a checked and timed all_reduce with the other nodes of a group."""
    try:
        return _measured_group(
            torch,
            asked,
            order,
        )
    except Exception as error:  # whatever it is, it is this group's answer
        first = str(error).strip().partition("\n")[0]
        return {
            "works": False,
            "why": "%s: %s" % (type(error).__name__, first[:160]),
        }


def _measured_group(torch: Any, asked: argparse.Namespace, order: dict[str, Any]) -> dict[str, Any]:
    from datetime import timedelta

    dist = torch.distributed
    nodes = list(order["nodes"])
    limit = timedelta(seconds=float(order["seconds"]))
    store = dist.TCPStore(
        asked.master,
        asked.port + 1,
        is_master=False,
        timeout=limit,
    )
    own = dist.PrefixStore(
        "group-%d-%d" % (order["group"], nodes[0]),
        store,
    )
    place = nodes.index(asked.number)
    device = torch.device("cpu")
    if asked.backend == "nccl":
        device = torch.device(
            "cuda",
            0,
        )
        torch.cuda.set_device(device)
    dist.init_process_group(
        asked.backend, store=own, rank=place, world_size=len(nodes), timeout=limit
    )
    times = []
    for _ in range(REPEATS):
        message = torch.full(
            (SIZE // 4,),
            float(place + 1),
            device=device,
        )
        begun = time.perf_counter()
        dist.all_reduce(message)
        if asked.backend == "nccl":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begun)
        expected = len(nodes) * (len(nodes) + 1) / 2
        wrong = int((message != expected).sum())
        if wrong:
            return {
                "works": False,
                "why": "%d values were wrong" % wrong,
            }
    return {
        "works": True,
        "speed": SIZE / min(times),
    }
