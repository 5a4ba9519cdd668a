"""Forks the ranks of a script from one process that has loaded torch, and serves their questions.

Runs under the guard, which ends all of it at the deadline.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import time
import traceback
from typing import Any

from ..run import processes
from .calls import call_of
from .connection import Connection, is_of_user, user_place
from .coordinator import Coordinator, Ending, Released, Ruling

LOOK = 0.05
"""Seconds between two looks whether a rank has died."""
GATHER = 0.5
"""Seconds after the verdict in which other ranks may come to where they stand."""
LARGEST = 1 << 20
"""Bytes of a message of a rank."""
WARM = (
    "torch.nn.parallel.distributed",
    "torch.optim",
    "torch.utils.data",
    "torch._dynamo",
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
)
"""What most scripts import: loaded once, before the ranks are forked."""


def main(argv: list[str]) -> int:
    """``rehearse OPTIONS WORD…``: OPTIONS as JSON; the verdict goes to the file it names."""
    options = json.loads(argv[0])
    words = argv[1:]
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["OMP_NUM_THREADS"] = "1"
    lacking = _load_torch()
    if lacking:
        why = "this interpreter cannot rehearse: %s" % lacking
        verdict = Ruling("unknown", why=why)
        _write_verdict(options["answer"], verdict, {})
        return 0
    listening = _free_port()
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(listening)
    began = time.monotonic()
    server = RankServer(options["ranks"], options["host_ranks"])
    server.fork_all(words, options["steps"])
    server.serve(began + options["timeout"])
    figures = {
        "seconds": round(server.judged - began, 3),
        "silence": round(server.silence, 3),
        "calls": server.coordinator.released,
        "posts": server.posts,
        "mapped_gpu": server.asked_for_gpu,
        "torch": server.torch,
    }
    assert server.coordinator.verdict is not None
    _write_verdict(options["answer"], server.coordinator.verdict, figures)
    return 0


def _load_torch() -> str:
    """Load what ranks need; returns why it cannot be, empty where it can."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        return str(error)
    torch.set_num_threads(1)
    for name in WARM:
        # a torch without one of them has scripts without it
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    from .process_group import check_torch

    return check_torch()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _write_verdict(
    path: str,
    verdict: Ruling,
    figures: dict[str, Any],
) -> None:
    calls = {}
    for rank, call in verdict.calls.items():
        calls[rank] = dict(call._asdict(), words=call.words)
    endings = {}
    for rank, ending in verdict.endings.items():
        endings[rank] = ending._asdict()
    answer = verdict._asdict()
    answer["calls"] = calls
    answer["endings"] = endings
    answer["figures"] = figures
    processes.write_whole(path, json.dumps(answer))


class RankServer:
    """The ranks of one rehearsal, seen from the process that forked them."""

    def __init__(self, ranks: int, host_ranks: int) -> None:
        self.ranks = ranks
        self.host_ranks = host_ranks
        self.coordinator = Coordinator(ranks)
        self.posts = 0
        self.judged = 0.0
        """When the verdict was known."""
        self.silence = 0.0
        """Seconds between the last call and the verdict."""
        self.asked_for_gpu = False
        self.torch = importlib.import_module("torch").__version__
        self._pids: dict[int, int] = {}
        self._lines: dict[int, socket.socket] = {}
        self._unread: dict[int, bytes] = {}
        self._last = time.monotonic()

    # ---------------------------------------------------------------- forking

    def fork_all(self, words: list[str], steps: int) -> None:
        """Start every rank in a process of its own."""
        for rank in range(self.ranks):
            ours, theirs = socket.socketpair()
            sys.stdout.flush()
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                processes.die_with_parent(parent)
                ours.close()
                for line in self._lines.values():
                    line.close()
                self._be_rank(rank, theirs, words, steps)
            theirs.close()
            ours.setblocking(False)
            self._pids[pid] = rank
            self._lines[rank] = ours
            self._unread[rank] = b""

    def _be_rank(
        self,
        rank: int,
        line: socket.socket,
        words: list[str],
        steps: int,
    ) -> None:
        """Run the script as one rank; never returns."""
        connection = Connection(line)
        try:
            local = rank % self.host_ranks
            os.environ.update(
                RANK=str(rank),
                LOCAL_RANK=str(local),
                WORLD_SIZE=str(self.ranks),
                LOCAL_WORLD_SIZE=str(self.host_ranks),
                GROUP_RANK=str(rank // self.host_ranks),
            )
            ending = run_script(connection, words, self.ranks, self.host_ranks, steps)
        except BaseException as error:
            say = "%s: %s" % (type(error).__name__, error)
            ending = Ending("failed", say, unrehearsable=True)
        tell_end(connection, ending)

    # ---------------------------------------------------------------- serving

    def serve(self, until: float) -> None:
        """Answer the ranks until the verdict is known or the time is over, then end all."""
        with selectors.DefaultSelector() as waiting:
            for rank, line in self._lines.items():
                waiting.register(line, selectors.EVENT_READ, rank)
            while self.coordinator.verdict is None:
                if time.monotonic() >= until:
                    self.coordinator.give_up("deadline")
                    break
                self._listen_once(waiting)
            self.judged = time.monotonic()
            self.silence = self.judged - self._last
            # where the others stand belongs to the answer, but nobody is waited for
            gathered = time.monotonic() + GATHER
            while self.coordinator.running and time.monotonic() < gathered:
                self._listen_once(waiting)
        self.coordinator.complete_verdict()
        for pid in self._pids:
            processes.signal_one(pid, signal.SIGKILL)

    def _listen_once(self, waiting: selectors.BaseSelector) -> None:
        """Take what ranks say within a moment."""
        for key, _ in waiting.select(LOOK):
            if not self._read_line(key.data):
                waiting.unregister(key.fileobj)
        self._bury_dead()

    def _read_line(self, rank: int) -> bool:
        """Take what a rank says; False where its line is closed."""
        try:
            said = self._lines[rank].recv(1 << 16)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        known = self._unread[rank] + said
        *messages, rest = known.split(b"\n")
        self._unread[rank] = rest
        if len(rest) > LARGEST:
            self.coordinator.give_up("rank %d sent a message without an end" % rank)
        for message in messages:
            released = self._take_message(rank, json.loads(message))
            self._send_released(released)
        return bool(said)

    def _take_message(self, rank: int, message: dict[str, Any]) -> Released:
        self._last = time.monotonic()
        self.asked_for_gpu = self.asked_for_gpu or message["for_gpu"]
        coordinator = self.coordinator
        if "post" in message:
            self.posts += 1
            call = call_of(message["post"])
            return coordinator.post_call(rank, call, message["thread"])
        if "wait" in message:
            coordinator.begin_wait(rank, message["wait"])
        elif "end" in message:
            coordinator.end_rank(rank, Ending(**message["end"]))
        return []

    def _send_released(self, released: Released) -> None:
        for rank, number in released:
            line = self._lines[rank]
            # a few bytes: they fit, unless the rank has died, of which we hear next
            try:
                line.send(b"%d\n" % number)
            except OSError as error:
                say = "its line broke: %s" % error.strerror
                self.coordinator.end_rank(rank, Ending("died", say))

    def _bury_dead(self) -> None:
        """Notice ranks that ended without a word."""
        while self._pids:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            rank = self._pids.pop(pid, None)
            if rank is None:
                continue
            # what it said before it died counts
            while self._has_more(rank):
                continue
            code = os.waitstatus_to_exitcode(status)
            self.coordinator.end_rank(rank, Ending("died", _how_it_died(code)))

    def _has_more(self, rank: int) -> bool:
        """Take more of what a rank has said; False where there was none."""
        before = self._last
        if not self._read_line(rank):
            return False
        return self._last != before


def _how_it_died(code: int) -> str:
    if code < 0:
        return "killed by signal %d" % -code
    return "ended its process with exit status %d" % code


# ---------------------------------------------------------------- in a rank


def run_script(
    connection: Connection, words: list[str], ranks: int, host_ranks: int, steps: int
) -> Ending:
    """Run the user's script in this process; returns how it ended."""
    from . import cuda_on_cpu, process_group

    connection.start_thread()
    process_group.install(connection, ranks)
    cuda_on_cpu.install(host_ranks)
    _stop_after(connection, steps)
    _forget_ourselves()
    try:
        if words[0] == "-m":
            sys.argv = list(words[1:])
            sys.path[0] = os.getcwd()
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(words)
            sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as error:
        return Ending("exited", _exit_words(error), error_place(error))
    except BaseException as error:
        traceback.print_exc()
        say = "%s: %s" % (type(error).__name__, str(error)[:300])
        return Ending("failed", say, error_place(error), process_group.is_beyond_us(error))
    return Ending("ended", "ended", "")


def _exit_words(error: SystemExit) -> str:
    if error.code in (None, 0):
        return "called sys.exit"
    return "called sys.exit(%r)" % (error.code,)


def error_place(error: BaseException) -> str:
    """file:line of the innermost frame of the user's program in an error's traceback."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if is_of_user(frame.f_code.co_filename):
            place = "%s:%d" % (frame.f_code.co_filename, line)
    return place


def _forget_ourselves() -> None:
    """The script may import a package of our name; it gets its own."""
    for name in list(sys.modules):
        if name == "ncclkit" or name.startswith("ncclkit."):
            del sys.modules[name]


def _stop_after(connection: Connection, steps: int) -> None:
    """Stop this rank for good after so many steps of one optimizer."""
    from torch.optim import optimizer

    taken: dict[int, int] = {}

    def count_step(own: Any, *_: Any) -> None:
        number = taken.get(id(own), 0) + 1
        taken[id(own)] = number
        if number >= steps:
            ending = Ending("stopped", "after %d steps" % steps, user_place())
            tell_end(connection, ending)

    optimizer.register_optimizer_step_post_hook(count_step)


def tell_end(connection: Connection, ending: Ending) -> None:
    """Say how this rank ended, and stay until the parent ends all.

    Its connections to others are so not torn down while they still work.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send_message({"end": ending._asdict()})
    while True:
        signal.pause()
