"""One step further than the call in which a rank waits: who does not come; and what nothing shows is not said."""

from __future__ import annotations

from typing import Any

import pytest

from ncclkit.analysis import wait_kinds as kinds
from ncclkit.analysis.motion import headline
from ncclkit.analysis.waits import rank_positions
from ncclkit.core.model import Event
from tests.causes.test_waits import LIBC, TORCH, judged, own, rank, waiting

LIB = "/usr/lib/python3.11"
HOLDER = {"pid": 77, "name": "python hold.py", "own": True}
PEER = {"pid": 100, "name": "python train.py", "own": True}
UPLOADER = {"name": "uploader", "frames": [{"func": "read", "file": f"{LIB}/ssl.py", "line": 3},
                                           {"func": "upload", "file": "/app/train.py", "line": 44}]}  # fmt: skip
POOL = {"name": "Thread-1", "frames": [{"func": "_worker", "file": f"{LIB}/concurrent/futures/thread.py", "line": 3}]}
LOCKED = {"futex": "private"}
IN_ITEM = {"func": "__getitem__", "file": "/app/data.py", "line": 9}
IDLE = {"pid": 8, "name": "python train.py", "frames": [{"func": "get", "file": f"{LIB}/multiprocessing/queues.py",
                                                         "line": 113}]}  # fmt: skip


def end(kind: str, does: str = "read", **more: Any) -> dict[str, Any]:
    return {"ends": [{"kind": kind, "name": f"/dev/{kind}", "does": does, **more}]}


TAKES = {"file": "/app/train.py", "line": 9, "func": "step", "text": "", "takes": "guard", "taken_at": [], "holds": []}
ITSELF = {"pid": 101, "name": "python train.py", "own": True}
POLLED = [("/env/lib/python3.11/site-packages/filelock/_api.py", 9, "_poll_until_acquired"), own(9)]


def inside(lock: str, file: str = "/app/train.py") -> dict[str, Any]:
    """A thread whose line stands in ``with`` on a lock."""
    return {"name": "uploader", "frames": [{"func": "upload", "file": file, "line": 44, "holds": [lock]}]}


FEEDS = {"name": "QueueFeederThread", "frames": [{"func": "_send", "file": f"{LIB}/multiprocessing/connection.py",
                                                  "line": 384}]}  # fmt: skip


def pool_worker(place: tuple[str, int, str]) -> dict[str, Any]:
    frames = [place, (f"{LIB}/multiprocessing/pool.py", 114, "worker")]
    rows = [{"file": file, "line": line, "func": func} for file, line, func in frames]
    return {"pid": 8, "name": "python train.py", "state": "S", "frames": rows}


JOIN = [(f"{LIB}/threading.py", 1112, "join"), own(44)]
ACQUIRE = [f"sem_wait ({LIBC})", "PyThread_acquire_lock_timed (/usr/lib/libpython3.11.so.1.0)"]
WAIT4 = [(f"{LIB}/subprocess.py", 2021, "_try_wait"), own(9)]
READS, WRITES = [f"__read ({LIBC})"], [f"__write ({LIBC})"]
FURTHER: dict[str, tuple[list[Any], dict[str, Any], str, str]] = {
    "breakpoint": ([(f"{LIB}/cmd.py", 126, "cmdloop"), (f"{LIB}/pdb.py", 330, "interaction"), own(41)],
                   {"native": READS, "wait": end("terminal")}, kinds.DEBUGGER, ""),
    "terminal": ([own(9)], {"native": READS, "wait": end("terminal")}, kinds.TERMINAL, "/dev/terminal"),
    "terminal that is full": ([own(9)], {"native": WRITES, "wait": end("terminal", "write")}, kinds.SCREEN,
                              "/dev/terminal"),
    "full pipe": ([own(9)], {"native": WRITES, "wait": end("pipe", "write", others=[HOLDER])}, kinds.PIPE,
                  "its output is not read by process 77 `python hold.py`"),
    "pipe of a rank": ([own(9)], {"native": READS, "wait": end("pipe", others=[PEER])}, kinds.PIPE,
                       "rank 0 writes nothing to it"),
    "FIFO": ([own(9)], {"native": [f"__open ({LIBC})"], "wait": end("fifo", "open")}, kinds.FIFO, "/dev/fifo"),
    "file": ([own(9)], {"native": READS, "wait": end("file")}, kinds.FILE, "/dev/file"),
    "socket to nobody": ([own(9)], {"native": [f"connect ({LIBC})"],
                                    "wait": end("socket", remote="10.0.0.1:80", listens=False)},
                         kinds.SOCKET, "10.0.0.1:80, where nobody listens"),
    "socket to another host": ([own(9)], {"native": [f"recv ({LIBC})"], "wait": end("socket", remote="10.0.0.1:80")},
                               kinds.SOCKET, "10.0.0.1:80"),
    "lock of a file": ([own(9)], {"native": [f"flock ({LIBC})"],
                                  "wait": {"locks": [{"path": "/mnt/x.lock", "holder": HOLDER}]}},
                       kinds.LOCK, "/mnt/x.lock, held by process 77 `python hold.py`"),
    "lock of a file of a stranger": ([own(9)], {"native": [f"flock ({LIBC})"],
                                                "wait": {"locks": [{"path": "", "holder": {"pid": 5, "name": "cat"}}]}},
                                     kinds.LOCK, "held by process 5 `cat`"),
    "lock of a file that another host holds": ([own(9)], {"native": [f"flock ({LIBC})"], "wait": end("file", "")},
                                               kinds.LOCK, "/dev/file"),
    "lock that nobody can release": ([own(9)], {"native": ACQUIRE, "wait": LOCKED}, kinds.LOCK,
                                     "no other thread of it runs Python to release it"),
    "lock that its own thread has": ([own(9), ("/app/train.py", 5, "main")],
                                     {"native": ACQUIRE, "wait": LOCKED,
                                      "program": [TAKES, {"file": "/app/train.py", "line": 5, "holds": ["guard"]}]},
                                     kinds.LOCK, "`guard`, it is inside `with guard` itself at train.py:5"),
    "lock that another thread has": ([own(9)], {"native": ACQUIRE, "wait": LOCKED, "program": [TAKES],
                                                "threads": [inside("guard")]},
                                     kinds.LOCK, "`guard`, thread uploader is inside `with guard` at train.py:44"),
    "lock of another name in a thread": ([own(9)], {"native": ACQUIRE, "wait": LOCKED, "program": [TAKES],
                                                    "threads": [inside("other")]},
                                         kinds.LOCK, "`guard`, thread uploader at train.py:44"),
    "lock of the same name in another file": (
        [own(9)], {"native": ACQUIRE, "wait": LOCKED, "program": [TAKES], "threads": [inside("guard", "/app/data.py")]},
        kinds.LOCK, "`guard`, thread uploader at data.py:44"),
    "lock that is taken elsewhere": (
        [own(9)], {"native": ACQUIRE, "wait": LOCKED, "program": [{**TAKES, "taken_at": [3]}]}, kinds.LOCK,
        "`guard`, no other thread of it runs Python to release it; its program takes it at train.py:3, too"),
    "semaphore of a process that has ended": (
        [own(9)], {"native": ACQUIRE, "wait": {"futex": "shared", "sharers": []}, "program": [TAKES]}, kinds.LOCK,
        "`guard`, one that processes share, and no other living process has it: who took it has ended, or is the rank"),
    "semaphore of a process that lives": (
        [own(9)], {"native": ACQUIRE, "wait": {"futex": "shared", "sharers": [HOLDER]}}, kinds.LOCK,
        "one that processes share, as process 77 `python hold.py` could hold it"),
    "semaphore of which nothing is known": ([own(9)], {"native": ACQUIRE, "wait": {"futex": "shared"}}, kinds.LOCK,
                                            "one that processes share"),
    "lock that it has by another descriptor": (
        [own(9)], {"native": [f"flock ({LIBC})"], "wait": {"locks": [{"path": "/mnt/x.lock", "holder": ITSELF}]}},
        kinds.LOCK, "/mnt/x.lock, which it holds itself, by another descriptor of the file"),
    "pool whose workers are idle": (
        [(f"{LIB}/multiprocessing/pool.py", 774, "get"), own(9)], {"native": ACQUIRE, "wait": LOCKED, "children": [
            pool_worker((f"{LIB}/multiprocessing/queues.py", 365, "SimpleQueue.get"))]}, kinds.POOL,
        "its workers are idle: process 8"),
    "pool whose worker works": (
        [(f"{LIB}/multiprocessing/pool.py", 774, "get"), own(9)], {"native": ACQUIRE, "wait": LOCKED, "children": [
            pool_worker(("/app/train.py", 5, "decode"))]}, kinds.POOL, "process 8 stands at train.py:5"),
    "queue of a child that is not read": (
        WAIT4, {"native": [f"wait4 ({LIBC})"], "children": [
            {"pid": 8, "name": "python train.py", "state": "S", "wait": LOCKED, "threads": [FEEDS],
             "frames": [{"func": "join", "file": f"{LIB}/threading.py", "line": 1112}]}]}, kinds.PROCESS,
        "process 8 waits for another thread: thread QueueFeederThread, which writes into a queue that is not read"),
    "lock file": (POLLED, {"wait": {"lock_file": "/mnt/model.lock"}}, kinds.LOCK,
                  "/mnt/model.lock, a lock file that is not removed"),
    "lock file without a path": (POLLED, {"program": [{**TAKES, "text": "with SoftFileLock(path):"}]}, kinds.LOCK,
                                 "the lock file of `with SoftFileLock(path):`, which is not removed"),
    "lock of a thread": ([own(9)], {"native": ACQUIRE, "wait": LOCKED, "threads": [UPLOADER, POOL]}, kinds.LOCK,
                         "thread uploader at train.py:44"),
    "lock of a thread of a library": ([own(9)], {"native": ACQUIRE, "wait": LOCKED, "threads": [POOL]}, kinds.LOCK, ""),
    "join": (JOIN, {"native": ACQUIRE, "wait": LOCKED, "threads": [UPLOADER]}, kinds.THREAD,
             "thread uploader at train.py:44"),
    "main thread that has ended": ([(f"{LIB}/threading.py", 1590, "_shutdown")],
                                   {"native": ACQUIRE, "wait": LOCKED, "threads": [UPLOADER]}, kinds.ENDED,
                                   "thread uploader at train.py:44"),
    "queue that nothing fills": ([(f"{LIB}/queue.py", 171, "get"), own(9)],
                                 {"native": ACQUIRE, "wait": LOCKED, "died": [
                                     {"name": "producer", "file": "/app/train.py", "line": 5, "error": "KeyError: 3"}]},
                                 kinds.QUEUE,
                                 "no other thread of it runs Python; thread producer died at train.py:5 of KeyError: 3"),
    "queue that threads of C++ may fill": ([(f"{LIB}/queue.py", 171, "get"), own(9)], {"native": ACQUIRE, "wait": LOCKED},
                                           kinds.REQUESTS, "no other thread of it runs Python"),
    "queue of a server": ([(f"{LIB}/queue.py", 171, "get"), own(9)],
                          {"native": ACQUIRE, "wait": LOCKED, "threads": [POOL]}, kinds.REQUESTS, ""),
    "event loop without a connection": ([(f"{LIB}/selectors.py", 468, "select"), (f"{LIB}/asyncio/runners.py", 1, "run"),
                                         own(9)], {"wait": {"polls": True, **end("socket", state="pair")}},
                                        kinds.RESULT,
                                        "its event loop watches no connection, and it has no other thread"),
    "event loop of a server": ([(f"{LIB}/selectors.py", 468, "select"), (f"{LIB}/asyncio/runners.py", 1, "run"), own(9)],
                               {"wait": {"polls": True, "ends": [{"kind": "socket", "state": "pair"},
                                                                 {"kind": "socket", "state": "0A"}]}},
                               kinds.REQUESTS, ""),
    "child": (WAIT4, {"native": [f"wait4 ({LIBC})"], "children": [
        {"pid": 9, "name": "sleep 600", "state": "S", "waits_in": "hrtimer_nanosleep"}]},
        kinds.PROCESS, "process 9 `sleep 600` waits for a timer"),
    "one of two children": (WAIT4, {"native": [f"wait4 ({LIBC})"], "children": [IDLE, IDLE]}, kinds.PROCESS, ""),
    "stopped child": (WAIT4, {"native": [f"wait4 ({LIBC})"], "children": [{"pid": 9, "name": "cat", "state": "T"}]},
                      kinds.PROCESS, "process 9 `cat` is stopped: `kill -CONT 9`"),
    "worker with a lock since its fork": (
        [(f"{TORCH}/utils/data/dataloader.py", 1200, "_try_get_data"), own(20)],
        {"children": [IDLE, {"pid": 9, "name": "python train.py", "state": "S", "frames": [IN_ITEM], "wait": LOCKED}]},
        kinds.WORKER, "process 9 waits for a lock at data.py:9: held since it was forked"),
    "idle workers": ([(f"{TORCH}/utils/data/dataloader.py", 1200, "_try_get_data"), own(20)], {"children": [IDLE]},
                     kinds.WORKER, ""),
    "child that was forked inside a lock": (
        [(f"{LIB}/multiprocessing/popen_fork.py", 27, "poll"), own(20)],
        {"children": [{"pid": 9, "name": "python train.py", "state": "S", "wait": LOCKED, "frames": [
            {**TAKES, "file": "/app/train.py"}, {"func": "main", "file": "/app/train.py", "line": 5, "holds": ["guard"]}]}]},
        kinds.PROCESS,
        "process 9 waits for a lock at train.py:9: `guard`, held since it was forked inside `with guard` at train.py:5"),
    "signal": ([own(9)], {"wait": {"signal": True}}, kinds.SIGNAL, ""),
    "stopped": ([own(9)], {"state": "T"}, kinds.STOPPED,
                "the kernel keeps no sender; `kill -CONT 101` lets it go on"),
    "traced": ([own(9)], {"state": "t", "wait": {"tracer": {"pid": 5, "name": "gdb"}}}, kinds.STOPPED,
               "traced by process 5 `gdb`, which has to let it go"),
    "peers": ([(f"{TORCH}/distributed/distributed_c10d.py", 3252, "all_reduce"), own(33)],
              {"wait": {**LOCKED, **end("socket", remote="10.0.0.1:80", listens=False)}}, kinds.PEERS, ""),
}  # fmt: skip


def with_told(events: list[Event], **told: Any) -> list[Event]:
    """A rank of which more is told than `rank` takes."""
    import msgspec

    data = msgspec.structs.replace(events[0].data, **told)
    return [Event(**{**{name: getattr(events[0], name) for name in events[0].__slots__}, "data": data}), events[1]]


ITEM = "loss.item()"


@pytest.mark.parametrize(
    ("told", "text", "wanted"),
    [
        ({"on_gpu": True}, ITEM, kinds.GPU),
        ({"on_gpu": True}, "loss = f(x)", kinds.PYTHON),
        ({}, ITEM, kinds.PYTHON),
        ({"on_gpu": True, "half": True}, ITEM, kinds.GPU),
        ({"half": True}, ITEM, kinds.UNKNOWN),
    ],
)
def test_a_wait_for_a_gpu_that_spins_is_no_work(told: dict[str, Any], text: str, wanted: str) -> None:
    """Also where no native frame could be read; beside it work that looks alike."""
    events = with_told(rank(1, own(67), ran=1.0), **told)
    events[0].data.program[0]["text"] = text
    assert rank_positions(events)[1].waits_for == wanted


def test_half_a_stack_accuses_nobody_and_is_said_to_be_half() -> None:
    half = with_told(rank(1, own(67), ran=1.0), half=True)
    verdict = judged(waiting(0), half)
    assert verdict.findings == ()
    assert "(only its Python frames could be read)" in headline([*waiting(0), *half])
    whole = judged(waiting(0), rank(1, own(67), ran=1.0))
    assert whole.findings[0].culprits["ranks"] == (1,)


@pytest.mark.parametrize("case", FURTHER)
def test_what_a_rank_waits_for_is_told_one_step_further(case: str) -> None:
    frames, told, wanted, detail = FURTHER[case]
    more = {name: told[name] for name in ("wait", "threads", "children", "died", "program") if name in told}
    given = {name: told[name] for name in ("native", "state") if name in told}
    position = rank_positions([*waiting(0), *with_told(rank(1, *frames, **given), **more)])[1]
    assert (position.waits_for, position.detail) == (wanted, detail)


def test_a_debugger_is_said_by_its_line_and_no_file_is_accused() -> None:
    frames, told, _, _ = FURTHER["breakpoint"]
    first = judged(waiting(0), with_told(rank(1, *frames, native=READS), wait=told["wait"])).findings[0]
    assert first.cause == "slow_rank" and "Rank 1 waits for input in a debugger at train.py:41" in first.say


def test_a_loop_that_tries_again_is_said() -> None:
    events = rank(1, own(9), native=[f"clock_nanosleep ({LIBC})"])
    events[0].data.program[0]["retries"] = "while not os.path.exists(path)"
    assert rank_positions(events)[1].detail == "again and again: `while not os.path.exists(path)`"


BACKWARD = (f"{TORCH}/_tensor.py", 620, "backward")


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([BACKWARD, own(33)], "in Tensor.backward at train.py:33 and has not reached the collective inside it"),
        (
            [("/app/hook.py", 3, "hook"), BACKWARD, own(33)],
            "in hook at hook.py:3 and has not reached the collective inside Tensor.backward at train.py:33",
        ),
        ([own(32)], "in step at train.py:32 and has not entered Tensor.backward at train.py:33"),
    ],
)
def test_a_rank_inside_the_call_of_the_others_is_not_said_not_to_have_entered_it(frames: list[Any], words: str) -> None:
    say = judged(waiting(0, 33, BACKWARD), rank(1, *frames, state="T")).findings[0].say
    assert words in say and say.partition(" and has not")[2].count("Tensor.backward") <= 1


@pytest.mark.parametrize("case", FURTHER)
def test_a_wait_has_a_first_step_of_its_own(case: str) -> None:
    """Its command can be copied, and names no process of anybody where none is known."""
    from tests.causes.test_advice import problem_of

    frames, told, wanted, _ = FURTHER[case]
    if wanted in (kinds.PEERS, kinds.REQUESTS):
        return
    more = {name: told[name] for name in ("wait", "threads", "children", "died", "program") if name in told}
    given = {name: told[name] for name in ("native", "state") if name in told}
    found = judged(waiting(0), with_told(rank(1, *frames, **given), **more)).findings
    first = found[0].advice[0]
    assert problem_of(first) == "" and "Shorten or move" not in first.do
    assert "None" not in first.do + first.command


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        ({}, "(how it ended is not known here: look in the launcher's output)"),
        ({"pid": 7, "status": 3}, "(its process 7 ended with status 3)"),
        ({"pid": 7, "signal": 9, "oom_kills": 1}, "(its process 7 was killed by SIGKILL; the kernel has killed 1 process"),
        ({"error": "KeyError: 3"}, "(it printed `KeyError: 3`)"),
    ],
)
def test_a_rank_that_is_gone_is_told_with_its_end(ended: dict[str, Any], words: str) -> None:
    gone = Event("attach.rank", "gone", "run/attached.json", rank=1, host="node-1",
                 data={"gone": True, "exitcode": None, "ended": ended})  # fmt: skip
    found = judged(waiting(0), [gone]).findings[0]
    assert found.cause == "rank_killed" and words in found.say and found.advice[0].do.startswith("Read how rank 1 ended")
