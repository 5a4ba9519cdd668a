"""Forks the ranks of a script from one process that has loaded torch, and serves their questions.

Runs under the guard, which ends all of it at the deadline.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from ..run import processes
from .calls import Call, call_of
from .connection import CLOCK_MOVED, LOOK_AROUND, Connection
from .coordinator import STATUS, Coordinator, Released, Ruling
from .endings import Ending
from .lanes import CallLanes
from .long_waits import WaitTimes
from .rank_process import Program, run_program, tell_end
from .skips import MOST, SleepWatch
from .virtual_time import SharedClock

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
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["CUDA_VISIBLE_DEVICES"] = _shown_gpu(options["gpu"])
    # else torch begins with CUDA where it only asks whether there is a GPU, and forks could not
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    lacking = _load_torch(options["fake"])
    if lacking:
        why = (
            "the interpreter %s cannot rehearse: %s; after -- name one that has PyTorch"
            % (sys.executable, lacking)
        )
        verdict = Ruling("unknown", why=why)
        return write_verdict(options, verdict, {})
    gpu = ""
    if options["gpu"]:
        found = importlib.import_module(".shared_gpu", __package__).find_gpu()
        if found.lacking:
            why = (
                "--gpu needs a GPU of this machine (%s); without --gpu cuda means the CPU"
                % found.lacking
            )
            return write_verdict(options, Ruling("unknown", why=why), {})
        gpu = found.name
    listening = _free_port()
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(listening)
    # gloo would ask the network for the address of this machine
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    folder = tempfile.mkdtemp(prefix="ncclkit-ranks-")
    try:
        return _judge_program(options, argv[1:], folder, gpu)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _judge_program(
    options: dict[str, Any],
    words: list[str],
    folder: str,
    gpu: str,
) -> int:
    """Run the ranks and write their verdict; returns the exit status."""
    began = time.monotonic()
    program = Program(
        words=words,
        function=options.get("function"),
        ranks=options["ranks"],
        host_ranks=options["host_ranks"],
        steps=options["steps"],
        folder=folder,
        shown_gpus=options["shown_gpus"],
        fake=options["fake"],
        gpu=gpu,
    )
    server = RankServer(program, options["job_timeout"])
    server.fork_all()
    server.serve(began + options["timeout"])
    figures = {
        "seconds": round(server.judged - began, 3),
        "silence": round(server.silence, 3),
        "calls": server.coordinator.released,
        "posts": server.posts,
        "mapped_gpu": server.asked_for_gpu and not gpu,
        "gpu": gpu,
        "torch": server.torch,
        "fake": program.fake,
        "skipped": round(server.clock.skipped, 1),
    }
    ruling = server.coordinator.verdict
    assert ruling is not None
    # a hang has its own sentence, and who waits for a rank that we stopped would have gone on
    if ruling.kind == "unknown":
        server.times.add_open(server.judged + server.clock.skipped)
    notes = (*ruling.notes, *server.times.notes())
    lanes = server.lanes.records()
    return write_verdict(options, ruling._replace(notes=notes), figures, lanes)


def _shown_gpu(is_shared: bool) -> str:
    """What ranks see of this machine's GPUs: none, or the first of those that we were shown."""
    if not is_shared:
        return ""
    first, _, _ = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")
    return first


def _load_torch(is_fake: bool) -> str:
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

    lacking = check_torch()
    if not lacking:
        # what ranks do first is loaded once, as all else
        importlib.import_module(".cuda_on_cpu", __package__)
        if is_fake:
            importlib.import_module(".fake_values", __package__)
    return lacking


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_verdict(
    options: dict[str, Any],
    verdict: Ruling,
    figures: dict[str, Any],
    lanes: Sequence[dict[str, Any]] = (),
) -> int:
    """Write the file of the verdict; returns the exit status."""
    calls = {}
    for rank, call in verdict.calls.items():
        number = verdict.numbers.get(rank, 0)
        calls[rank] = dict(call._asdict(), words=call.words, seq=number)
    endings = {}
    for rank, ending in verdict.endings.items():
        endings[rank] = ending._asdict()
    answer = verdict._asdict()
    answer["calls"] = calls
    answer["later"] = _records_of(verdict.later)
    answer["shared"] = _records_of(verdict.shared)
    answer["endings"] = endings
    answer["figures"] = figures
    answer["lanes"] = list(lanes)
    # by this key the file is known, wherever it lies
    answer["ncclkit_rehearsal"] = 1
    answer["world"] = options["ranks"]
    answer["host_ranks"] = options["host_ranks"]
    processes.write_whole(options["answer"], json.dumps(answer))
    return STATUS[verdict.kind]


def _records_of(calls: dict[int, Call]) -> dict[int, dict[str, Any]]:
    records = {}
    for rank, call in calls.items():
        records[rank] = dict(call._asdict(), words=call.words)
    return records


class RankServer:
    """The ranks of one rehearsal, seen from the process that forked them."""

    def __init__(self, program: Program, job_timeout: float) -> None:
        self.program = program
        # of a GPU that all ranks share nothing is to be said
        shown_gpus = program.shown_gpus
        if program.gpu:
            shown_gpus = "any"
        self.coordinator = Coordinator(program.ranks, program.host_ranks, shown_gpus)
        self.times = WaitTimes(job_timeout)
        self.clock = SharedClock()
        self.lanes = CallLanes(program.ranks)
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
        self._sleeps = SleepWatch()

    # ---------------------------------------------------------------- forking

    def fork_all(self) -> None:
        """Start every rank in a process of its own."""
        parent = os.getpid()
        sys.stdout.flush()
        # a collection in a rank would copy every page that it looks at
        gc.collect()
        gc.freeze()
        for rank in range(self.program.ranks):
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                processes.die_with_parent(parent)
                ours.close()
                for line in self._lines.values():
                    line.close()
                self._be_rank(rank, theirs)
            theirs.close()
            ours.setblocking(False)
            self._pids[pid] = rank
            self._lines[rank] = ours
            self._unread[rank] = b""

    def _be_rank(self, rank: int, line: socket.socket) -> None:
        """Run the program as one rank; never returns."""
        connection = Connection(line, self.clock)
        host, local = divmod(rank, self.program.host_ranks)
        os.environ["RANK"] = str(rank)
        os.environ["LOCAL_RANK"] = str(local)
        os.environ["WORLD_SIZE"] = str(self.program.ranks)
        os.environ["LOCAL_WORLD_SIZE"] = str(self.program.host_ranks)
        os.environ["GROUP_RANK"] = str(host)
        hosts, _ = divmod(self.program.ranks - 1, self.program.host_ranks)
        os.environ["GROUP_WORLD_SIZE"] = str(hosts + 1)
        os.environ["ROLE_RANK"] = str(rank)
        os.environ["ROLE_WORLD_SIZE"] = str(self.program.ranks)
        if self.program.shown_gpus in ("own", "first") and not self.program.gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = str(local)
        if self.program.shown_gpus == "first":
            os.environ["LOCAL_RANK"] = "0"
        try:
            ending = run_program(connection, self.program, self.clock)
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
                self._ask_sleepers()
            self.judged = time.monotonic()
            self._sleeps.end_round()
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
        self.lanes.send_changes(time.monotonic())

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

    def _ask_sleepers(self) -> None:
        """Where all ranks sleep or wait, ask whether anything else of them is at work."""
        if not self._sleeps.sleeping:
            return
        waiting = self.coordinator.waiting
        living = [*waiting, *self.coordinator.running]
        asked = self._sleeps.ranks_to_ask(living, waiting, self.clock.now())
        for rank in asked:
            self._tell_rank(rank, b"%s %d\n" % (LOOK_AROUND, self._sleeps.round))

    def _skip_sleep(self, seconds: float) -> None:
        """Put the clock of all ranks forward, to where the first sleeper goes on."""
        if seconds <= 0:
            return
        self.clock.skip(seconds)
        for rank in self._sleeps.sleeping:
            self._tell_rank(rank, b"%s\n" % CLOCK_MOVED)
        if self.clock.skipped > MOST:
            self.coordinator.give_up("asleep")

    def _take_message(self, rank: int, message: dict[str, Any]) -> Released:
        if "look" in message:
            now = self.clock.now()
            seconds = self._sleeps.add_answer(rank, message["look"], message["quiet"], now)
            self._skip_sleep(seconds)
            return []
        self._sleeps.end_round()
        self._last = time.monotonic()
        self.asked_for_gpu = self.asked_for_gpu or message["for_gpu"]
        coordinator = self.coordinator
        if "post" in message:
            self.posts += 1
            call = call_of(message["post"])
            now = self.clock.now()
            self.times.add_call(rank, call, now)
            self.lanes.add_call(rank, call)
            released = coordinator.post_call(rank, call, message["thread"])
            self.lanes.add_released(released)
            self.times.add_released(released, rank, now)
            return released
        if "wait" in message:
            coordinator.begin_wait(
                rank,
                message["wait"],
                message["thread"],
                message["alive"],
            )
        elif "sleep" in message:
            self._sleeps.begin_sleep(rank, message["sleep"], message["until"])
        elif "awake" in message:
            self._sleeps.end_sleep(rank, message["awake"])
        elif "end" in message:
            self._end_rank(rank, Ending(**message["end"]))
        return []

    def _send_released(self, released: Released) -> None:
        for rank, number in released:
            self._tell_rank(rank, b"%d\n" % number)

    def _tell_rank(self, rank: int, words: bytes) -> None:
        # a few bytes: they fit, unless the rank has died, of which we hear next
        try:
            self._lines[rank].send(words)
        except OSError as error:
            say = "its line broke: %s" % error.strerror
            self._end_rank(rank, Ending("died", say))

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
            self._end_rank(rank, Ending("died", _how_it_died(code)))

    def _end_rank(self, rank: int, ending: Ending) -> None:
        self._sleeps.end_rank(rank)
        self.coordinator.end_rank(rank, ending)
        self.lanes.end_rank(rank, ending.how)

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
