"""Whether a node is ready for a job.

It judges the node's facts, and a short test of its GPUs, against a baseline of its cluster. For a
prolog, a health check or an init container it gives one JSON object, one sentence, exit status 0
ready, 1 not ready, 2 could not tell, and always an answer in time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from typing import Any, NoReturn

from . import links, private, wire
from .commands import CANNOT_END, TOO_LONG, run_bounded
from .facts import collect
from .facts.machine import Answer, Hung, Machine
from .gate_checks import (
    Problem,
    Rows,
    check_cards,
    check_clock,
    check_mounts,
    learned_checks,
    problem_row,
)
from .gate_drain import drain_node
from .gate_memory import judge_memory, memory_of_test, memory_sentence
from .gate_state import NodeState, checked_node_name, judge_since, own_node_name
from .gate_words import unlike_baseline
from .run import processes
from .threads import side_by_side

READY, NOT_READY, UNKNOWN = 0, 1, 2
TEST = 45.0
"""Seconds from which on the GPUs are tested, too: importing torch takes some."""
SLOWER = 0.9
"""Share of the baseline's bus bandwidth that is enough."""
HALF = 0.5
"""Share of what its links allow that a node must reach at least.

It counts where no baseline says what a node of its kind reaches.
"""
BUSY = 20
"""Percent of the time in which a GPU computed before the test, from which on others use it."""
LARGEST = 256 << 20
"""Bytes of the largest message of the test."""
NAMED = 3
"""Problems that the sentence names."""
SHOWN = 400
"""Characters of one of them."""
LONGEST = 16 << 20
"""Bytes of a baseline, of a verdict and of what the test of the GPUs prints."""
ENDING = (0.2, 0.5)
"""Seconds until what was started gets SIGKILL, and until it counts as what cannot be ended."""
DYING = 0.5
"""Seconds in which a process that was killed ends, where nothing holds it."""
SMI = "nvidia-smi"
DEFAULTS = {
    "seconds": 10.0,
    "baseline": "",
    "learn": "",
    "kind": "",
    "state": "",
    "mount": (),
    "drain": None,
}
"""What is asked where nothing is; `drain` is "" for this node."""
SILENT = {"hung": "hung", "endless": "wrote without end"}
"""Values of `gpu.nvidia_smi` where the driver gave no answer, and how to say it."""

EQUAL = (
    r"gpu\.count|gpu\.driver|gpu\.library|gpu\.peermem|gpu\.\d+\.(model|mig|ecc\.mode|compute_mode"
    r"|persistence|"
    r"pcie\.gen\.max|pcie\.width\.max|nvlink\.links|power\.limit|clock\.sm\.max|memory\.total|numa)"
    r"|"
    r"host\.kernel|host\.iommu|cpu\.total|limits\.ports"
)
"""Facts that all nodes of one kind share."""
AT_LEAST = r"limits\.(memlock|nofile\.hard|nproc|shm\.size|cgroup\.memory)|memory\.total"
"""Facts that may also be larger; a fiftieth less is the kernel's own."""
PORTS = ("device", "port", "state", "rate", "link_layer")
"""What of an RDMA port all nodes of one kind share."""


def main(argv: list[str]) -> int:
    """``gate [--seconds N] [--baseline FILE] [--learn FILE] …``: print the verdict.

    Returns its exit status.  Python's own exit status after a defect is 1, by which a health check
    drains a healthy node: so whatever breaks is `UNKNOWN`.
    """
    begun = time.monotonic()
    out = _guarded_output()
    asked = argparse.Namespace(**DEFAULTS)
    try:
        asked = _parse_options(argv)
        answer, left = _supervised_verdict(asked, begun)
    except Exception as error:
        answer = _broken_answer(asked, "%s: %s" % (type(error).__name__, error))
        left = []
    if left and CANNOT_END not in answer["say"]:
        answer["say"] += "; process %d %s" % (left[0], CANNOT_END)
    if asked.drain is not None and answer["status"] == NOT_READY:
        _drain_as_asked(asked, answer)
        # what an scontrol has lost is ours by now
        left += processes.end(os.getpid(), *ENDING)
    answer.update(left=left, seconds=round(time.monotonic() - begun, 1))
    return _print_answer(out, answer, begun + asked.seconds + 1.0)


def _drain_as_asked(asked: argparse.Namespace, answer: dict[str, Any]) -> None:
    """Drain the node, and say what came of it; a node that is not ready stays so in any case."""
    try:
        node = asked.drain or own_node_name()
        reason = str(answer["say"]).partition(" is not ready: ")[2] or str(answer["say"])
        answer["drained"], what = drain_node(node, reason)
    except Exception as error:
        answer["drained"] = False
        what = "it was not drained (%s: %s)" % (type(error).__name__, error)
    answer["say"] += "; %s" % _plain_sentence(what)


def _guarded_output() -> int | None:
    """A copy of standard output, which then holds one object alone.

    It is None where standard output is closed.  What else is printed goes to standard error.
    """
    closed = [number for number in (0, 1, 2) if not _is_open(number)]
    for _ in closed:
        # it takes the lowest free number, so no file of ours is taken for an output
        os.open(os.devnull, os.O_RDWR)
    if 1 in closed:
        out = None
    else:
        out = os.dup(1)
    os.dup2(2, 1)
    return out


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Have a wrong word answered by an object, too."""
        raise ValueError(message)


def _parse_options(argv: list[str]) -> argparse.Namespace:
    parser = _Parser(prog="gate", add_help=False)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--baseline", default="")
    parser.add_argument("--learn", default="")
    parser.add_argument("--kind", default="")
    parser.add_argument("--state", default="")
    parser.add_argument("--mount", action="append", default=[])
    parser.add_argument("--drain", nargs="?", const="", default=None)
    asked = parser.parse_args(argv)
    if asked.drain:
        checked_node_name(asked.drain)
    if not 1.0 <= asked.seconds <= 3600.0:  # nor a number that is none
        raise ValueError("--seconds takes 1 to 3600")
    return asked


def _print_answer(out: int | None, answer: dict[str, Any], until: float) -> int:
    """Print the object, and its sentence on standard error; returns the exit status.

    A node that is not ready stays so where nobody can hear why; of any other one it could not be
    told.
    """
    say = str(answer["say"])
    status = int(answer["status"])
    line = json.dumps(answer, default=str) + "\n"
    if out is None:
        problem = "it is closed"
    else:
        problem = _write_text(out, line, until)
    if problem:
        say += "; its object could not be written to standard output (%s)" % problem
        if status == NOT_READY:
            status = NOT_READY
        else:
            status = UNKNOWN
    _write_text(2, say + "\n", until)
    return status


def _write_text(file: int, text: str, until: float) -> str:
    """Write a text; returns why that failed, or "".

    A pipe that nobody empties is given up.
    """

    def write(data: bytes) -> str:
        try:
            while data:
                data = data[os.write(file, data) :]
        except OSError as error:
            return error.strerror or str(error)
        return ""

    data = text.encode("utf-8", "backslashreplace")
    left = max(0.3, until - time.monotonic())
    return str(side_by_side(write, [data], left, "nobody reads it")[0])


def _node_name() -> str:
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


# ---------------------------------------------------------------- in time, whatever happens


def _supervised_verdict(
    asked: argparse.Namespace, begun: float
) -> tuple[dict[str, Any], list[int]]:
    """The verdict of a child process, and the pids that could not be ended.

    It has a process of its own, as one that works on odd answers, or was killed for its memory,
    does not answer in time.
    """
    parent = os.getpid()
    processes.adopt_orphans()
    reader, writer = os.pipe()
    if os.fork() == 0:
        _report_verdict(asked, begun, writer, parent)
    os.close(writer)
    line = _line_of_pipe(reader, begun + asked.seconds + 0.1)
    left = processes.end(parent, *ENDING)
    if line.endswith(b"\n"):
        return dict(json.loads(line)), left
    late = time.monotonic() >= begun + asked.seconds
    why = "what asks for its facts ended without an answer"
    if late:
        why = "no answer within %g s" % asked.seconds
    say = "%s: %s, so it could not be told whether this node is ready" % (_node_name(), why)
    return dict(_printed_object([], ["time" if late else why], 0, asked, None), say=say), left


def _report_verdict(asked: argparse.Namespace, begun: float, writer: int, parent: int) -> NoReturn:
    """Write the verdict into a pipe and end this process.

    What its parent does at its end is left out.
    """
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        processes.die_with_parent(parent)
        line = json.dumps(judged(asked, begun), default=str) + "\n"
        with os.fdopen(writer, "wb") as out:
            out.write(line.encode())
    finally:
        os._exit(0)


def _line_of_pipe(reader: int, until: float) -> bytes:
    """What comes from a pipe up to the end of the line, or until that moment."""
    said = b""
    while not said.endswith(b"\n") and len(said) < LONGEST:
        if not select.select([reader], [], [], max(0.0, until - time.monotonic()))[0]:
            break
        part = os.read(reader, 1 << 16)
        if not part:
            break
        said += part
    return said


def judged(asked: argparse.Namespace, begun: float) -> dict[str, Any]:
    """The object that is printed; a defect of ours is one that could not tell."""
    try:
        return _verdict_of_node(asked, begun)
    except Exception as error:
        return _broken_answer(asked, "%s: %s" % (type(error).__name__, error))


def _broken_answer(asked: argparse.Namespace, why: str) -> dict[str, Any]:
    return _printed_object([], [why], 0, asked, None)


class _WithoutDriver(Machine):
    """This machine without nvidia-smi, where an earlier one still sits in the kernel."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self.pid = pid

    def run(self, argv: list[str], deadline: float, name: str = "") -> Answer:
        """As `Machine.run`, but for nvidia-smi."""
        if argv[0] == SMI:
            say = "it was not asked: process %d of an earlier one was killed and %s"
            raise Hung(say % (self.pid, CANNOT_END))
        return super().run(argv, deadline, name)


def _stuck_before() -> int:
    """The pid of an nvidia-smi that was killed and still sits in the kernel.

    It is 0 where there is none.  A health check would add one to it every five minutes.
    """
    stuck = _killed_in_kernel()
    if stuck:
        time.sleep(DYING)  # what was killed this moment looks the same
        stuck &= _killed_in_kernel()
    return min(stuck, default=0)


def _killed_in_kernel() -> set[int]:
    found = set()
    for pid in processes.parents():
        name = processes.read_text("/proc/%d/comm" % pid).strip()
        waits = name == SMI and processes.process_state(pid) == "D"
        if waits and processes.is_pending(pid, signal.SIGKILL):
            found.add(pid)
    return found


def _verdict_of_node(asked: argparse.Namespace, begun: float) -> dict[str, Any]:
    try:
        kinds: list[dict[str, Any]] = []
        if asked.baseline:
            kinds = _read_baselines(asked.baseline)
    except (OSError, ValueError) as error:
        return _broken_answer(
            asked, "the baseline %s could not be read (%s)" % (asked.baseline, error)
        )
    state = None
    if asked.state:
        try:
            state = NodeState(asked.state, own_node_name())
        except (OSError, ValueError) as error:
            return _broken_answer(
                asked, "the state in %s cannot be used (%s)" % (asked.state, error)
            )
    stuck = _stuck_before()
    machine = _WithoutDriver(stuck) if stuck else Machine()
    testing = asked.seconds >= TEST
    # a second is left for the judgement
    left = max(0.5, begun + asked.seconds - 1.0 - time.monotonic())
    rows = collect(torch=False, machine=machine, deadline=min(left, 20.0) if testing else left)
    found = {row["name"]: row for row in rows}
    baseline, doubt = baseline_of_node(found, kinds, asked.kind)
    problems, unknown = judge_node(found, baseline)
    unknown += doubt
    more_problems, more_unknown = check_mounts(machine, asked.mount)
    problems += [*more_problems, *check_cards(found, baseline), *check_clock(found, baseline)]
    unknown += more_unknown
    if state:
        problems = judge_since(state, found, problems)
    count = _fact_value(found, "gpu.count") or 0
    tested = None
    # a node that is not ready anyway need not be tested
    if testing and count and not problems:
        tested = _test_gpus(int(count), asked.seconds - (time.monotonic() - begun) - 3.0)
        problems, more = judge_test(tested, baseline, found)
        unknown += more
        # wrong bytes come first: what else the test says may follow from them
        problems = [*judge_memory(tested["memory"], found), *problems]
    silent = (
        _fact_value(found, "gpu.nvidia_smi") in SILENT
    )  # a node without its GPUs is no good example
    if asked.learn and not problems and not silent:
        _learn_baseline(asked.learn, found, tested, asked.kind)
    answer = _printed_object(problems, unknown, len(found), asked, tested)
    memory = tested["memory"] if tested else None
    answer["memory"] = memory_sentence(memory, int(count), tested is not None)
    if state:
        _keep_state(state, answer)
    return answer


def _keep_state(state: NodeState, answer: dict[str, Any]) -> None:
    """Keep this check for the next one, and say how often the node has failed."""
    trouble = state.write(answer["ready"])
    if answer["ready"] is False and state.history():
        answer["say"] += "; %s" % state.history()
    answer["failures"] = len(state.now["failures"])
    # most users may not read it, so it leaves the status alone: a gate without a state never asks
    answer["notes"] = state.notes
    for note in state.notes:
        answer["say"] += "; %s" % note
    if trouble:
        answer["say"] += "; %s" % trouble
        if answer["status"] == READY:
            # the next check would not know what is new
            answer.update(status=UNKNOWN, ready=None, unknown=[*answer["unknown"], trouble])


def _printed_object(
    problems: list[Problem], unknown: list[str], facts: int, asked: Any, tested: Any
) -> dict[str, Any]:
    """The object that is printed."""
    if problems:
        status = NOT_READY
    elif unknown:
        status = UNKNOWN
    else:
        status = READY
    names = list(map(_plain_sentence, [problem["say"] for problem in problems] or unknown))
    more = ""
    if len(names) > NAMED:
        more = " and %d more" % (len(names) - NAMED)
    source = ""
    if asked.baseline and any("the baseline" in problem["say"] for problem in problems):
        source = " (baseline: %s)" % asked.baseline
    against = "without a baseline to compare with"
    if asked.learn:
        against = "are its baseline now, and were compared with nothing"
    elif asked.baseline:
        against = "as in the baseline"
    how = {
        READY: (
            "is ready: %d facts %s%s"
            % (facts, against, ", and its GPUs passed a test" if tested else "")
        ),
        NOT_READY: "is not ready: %s%s%s" % ("; ".join(names[:NAMED]), more, source),
        UNKNOWN: "could not be judged: %s%s" % ("; ".join(names[:NAMED]), more),
    }[status]
    ready = {READY: True, NOT_READY: False, UNKNOWN: None}[status]
    answer = {
        "ready": ready,
        "status": status,
        "host": _node_name(),
        "say": "%s %s" % (_node_name(), how),
        "problems": problems,
    }
    memory = memory_sentence(None, 2, was_tested=False)
    return dict(answer, unknown=unknown, baseline=asked.baseline, test=tested, memory=memory)


def _plain_sentence(text: str) -> str:
    """A text of others in one line, without what a terminal would obey."""
    plain = "".join(char if char.isprintable() else " " for char in text[:SHOWN])
    return " ".join(plain.split())


def _fact_value(found: Rows, name: str) -> Any:
    return found.get(name, {}).get("value")


# ---------------------------------------------------------------- facts


def judge_node(found: Rows, baseline: dict[str, Any]) -> tuple[list[Problem], list[str]]:
    """What is wrong with a node, and what could not be told.

    `found` is name → row; `baseline` is that of its cluster.
    """
    problems = [*_by_itself(found), *_by_ports(found, baseline)]
    unknown = [
        "%s: %s" % (name, row["why"]) for name, row in found.items() if name.startswith("facts.")
    ]
    silent = _of_driver(found)
    if silent and _has_gpus(baseline):
        state = _fact_value(found, "gpu.nvidia_smi")
        problems.insert(0, problem_row("gpu.nvidia_smi", state, silent, "answers"))
    elif silent:
        unknown.insert(0, silent + ", and no baseline says that this node has GPUs")
    for name, expected in baseline.get("facts", {}).items():
        value = _fact_value(found, name)
        why = found.get(name, {}).get("why", "it was not read")
        if value is None:
            unknown.append("%s could not be read (%s)" % (name, why))
        elif re.fullmatch(AT_LEAST, name) and _is_enough(value, expected):
            continue
        elif value != expected:
            at_least = bool(re.fullmatch(AT_LEAST, name))
            say = unlike_baseline(name, value, expected, at_least)
            problems.append(problem_row(name, value, say, expected))
    return problems, unknown


def _is_enough(value: Any, expected: Any) -> bool:
    numbers = isinstance(value, (int, float)) and isinstance(expected, (int, float))
    return bool(numbers and (value == -1 or (expected != -1 and value >= 0.98 * expected)))


def _of_driver(found: Rows) -> str:
    """How nvidia-smi gave no answer; empty where it gave one, or was not asked."""
    smi = _fact_value(found, "gpu.nvidia_smi")
    if smi not in SILENT:
        return ""
    return "nvidia-smi %s (%s)" % (SILENT[smi], found["gpu.nvidia_smi"].get("why", ""))


def _has_gpus(baseline: dict[str, Any]) -> bool:
    facts = baseline.get("facts", {})
    return bool(facts.get("gpu.count") or any(re.match(r"gpu\.\d+\.", name) for name in facts))


def _by_itself(found: Rows) -> Iterable[Problem]:
    """What no node may have, whatever its cluster looks like."""
    smi = _fact_value(found, "gpu.nvidia_smi")
    why = found.get("gpu.nvidia_smi", {}).get("why", "")
    if smi in ("failed", "breaks off"):
        yield problem_row("gpu.nvidia_smi", smi, "nvidia-smi %s (%s)" % (smi, why))
    driver = _fact_value(found, "gpu.driver")
    library = _fact_value(found, "gpu.library")
    if driver and library and driver != library:
        yield problem_row(
            "gpu.library",
            library,
            "the driver's library is %s, its module %s" % (library, driver),
            driver,
        )
    for name, row in found.items():
        gpu = re.fullmatch(r"gpu\.(\d+)\.(.+)", name)
        value = row["value"]
        if gpu and value is not None:
            say = _of_gpu(gpu[2], value)
            if say:
                yield problem_row(name, value, "GPU %s %s" % (gpu[1], say))


def _of_gpu(what: str, value: Any) -> str:
    """What is wrong with a GPU by one of its facts; empty where nothing is."""
    # nvidia-smi writes None where a GPU asks for nothing
    if what == "recovery" and str(value) != "None":
        return "asks for %s" % value
    if what == "ecc.uncorrected" and value:
        return "had %s uncorrectable memory errors" % value
    if what == "remapped_rows" and (value.get("failure") or value.get("pending")):
        return "has memory rows whose remapping %s" % (
            "failed" if value.get("failure") else "waits for a reset"
        )
    if what == "fabric.state" and str(value) != "Completed":
        return "has not joined the NVLink fabric (%s)" % value
    if what == "fabric.status" and str(value) != "Success":
        return "could not join the NVLink fabric (%s)" % value
    if what == "nvlink.speeds" and any(value) and not all(value):
        return "has %d of %d NVLinks down" % (sum(not speed for speed in value), len(value))
    if what == "memory.holders" and value:
        return "is held by %s" % ", ".join(
            "%s (pid %s)" % (one["name"], one["pid"]) for one in value[:3]
        )
    slow = []
    if what == "throttle":
        slow = [reason for reason in value if "hw_" in reason or "thermal" in reason]
    if slow:
        return "is slowed down (%s)" % ", ".join(slow)
    return ""


def _by_ports(found: Rows, baseline: dict[str, Any]) -> Iterable[Problem]:
    """RDMA ports that are not as in the baseline."""
    here = _ports_of_node(found)
    for port, expected in baseline.get("ports", {}).items():
        if here.get(port) != expected:
            found_port = here.get(port) or "missing"
            say = "port %s is %s here, but the baseline expects %s" % (port, found_port, expected)
            yield problem_row("net.rdma", here.get(port), say, expected)


def _ports_of_node(found: Rows) -> dict[str, list[Any]]:
    """``device:port`` → what all nodes of one kind share of it."""
    rows = _fact_value(found, "net.rdma") or []
    collected: dict[str, list[Any]] = {}
    for row in rows:
        collected["%s:%s" % (row.get("device"), row.get("port"))] = [
            row.get(key) for key in PORTS[2:]
        ]
    return collected


# ---------------------------------------------------------------- a test of the GPUs


def _test_gpus(count: int, seconds: float, backend: str = "nccl") -> dict[str, Any]:
    """Test the GPUs with collectives, each rank alone and each pair first.

    Returns the bus bandwidth, wrong values, and how the test ended.
    """
    folder = tempfile.mkdtemp(prefix=private.PREFIX, dir=private.parent_folder())
    agent = sys.argv[0]
    sizes = "8,1048576,%d" % LARGEST
    work = [
        "collective",
        "--folder",
        folder,
        "--backend",
        backend,
        "--sizes",
        sizes,
        "--repeats",
        "5",
        "--stages",
    ]
    launch = [
        sys.executable,
        agent,
        "launch",
        str(count),
        "0",
        *work,
        "--timeout",
        "%d" % max(5, seconds / 2),
    ]
    command = [sys.executable, agent, "guard", folder, str(max(5.0, seconds - 5.0)), *launch]
    # the guard ends everything when its input closes, which `communicate` would do at once
    watched, hold = os.pipe()
    reply = run_bounded(command, max(6.0, seconds), stdin=watched, most=LONGEST)
    os.close(watched)
    os.close(hold)
    shutil.rmtree(folder, ignore_errors=True)
    if reply.ended == TOO_LONG:
        said = {"memory": memory_of_test([], b"")}
        return said | {"reason": TOO_LONG, "ranks": count, "busbw": None, "wrong": 0, "error": ""}
    out = reply.out + b"\n" + reply.err
    return _result_of_test(
        [record for record in map(wire.parse_record, out.splitlines()) if record], count, out
    )


def _result_of_test(records: list[dict[str, Any]], count: int, out: bytes) -> dict[str, Any]:
    """The result of the test by its records."""
    rows = [record for record in records if record["kind"] == "measure"]
    best = max((record["bytes"] / record["time_us"] / 1e3 for record in rows), default=0.0)
    errors = [str(record.get("error")) for record in records if record.get("phase") == "error"]
    end = next((record["reason"] for record in records if record["kind"] == "end"), "no answer")
    # an interpreter without torch says nothing of the GPUs
    lost = b"No module named 'torch'" in out
    return {
        "reason": "no torch" if lost else end,
        "ranks": count,
        "busbw": round(best * 2 * (count - 1) / count, 2) if count > 1 else None,
        "wrong": sum(record.get("wrong") or 0 for record in records),
        "error": errors[0].splitlines()[0] if errors else "",
        "memory": memory_of_test(records, out),
    }


def judge_test(
    tested: dict[str, Any], baseline: dict[str, Any], found: Rows | None = None
) -> tuple[list[Problem], list[str]]:
    """What the test of the GPUs says of the node.

    It judges as `judge_node` does by facts.  `found` are facts of the node, by which its
    speed is judged where the baseline holds none.
    """
    if tested["reason"] == "no torch":
        return [], ["its GPUs were not tested, as %s has no torch" % sys.executable]
    if tested["reason"] == TOO_LONG:
        return [], ["the test of its GPUs wrote more than %d MiB" % (LONGEST >> 20)]
    if tested["wrong"]:
        return [
            problem_row(
                "test", tested["wrong"], "%d values of the test were wrong" % tested["wrong"], 0
            )
        ], []
    if tested["reason"] != "done":
        why = tested["error"] or tested["reason"]
        return [
            problem_row("test", tested["reason"], "the test of its GPUs failed: %s" % why, "done")
        ], []
    expected = baseline.get("busbw")
    busbw = tested["busbw"]
    if expected and busbw is not None and busbw < SLOWER * expected:
        say = "its GPUs reach %s GB/s busbw, %.0f %% of the %s GB/s of the baseline" % (
            *(busbw, 100 * busbw / expected, expected),
        )
        return [problem_row("test", busbw, say, expected)], []
    return ([] if expected or busbw is None else _by_links(busbw, tested["ranks"], found or {})), []


def _by_links(busbw: float, count: int, found: Rows) -> list[Problem]:
    """A test that is slower than half of what the links between the GPUs allow."""
    bound = links.ring_bound({name: row["value"] for name, row in found.items()}, range(count))
    if bound is None or busbw >= HALF * bound[0]:
        return []
    busy = [gpu for gpu in range(count) if (_fact_value(found, "gpu.%d.busy" % gpu) or 0) >= BUSY]
    others = ""
    if busy:
        others = "; before the test others used GPU %s" % ", ".join(map(str, busy))
    say = (
        "its GPUs reach %s GB/s busbw, %.0f %% of the %.0f GB/s that %s allows: slower than they"
        " should be%s" % (*(busbw, 100 * busbw / bound[0], bound[0], bound[1], others),)
    )
    return [problem_row("test", busbw, say, round(bound[0], 1))]


# ---------------------------------------------------------------- the baseline


def _read_baselines(path: str) -> list[dict[str, Any]]:
    """The baselines in a file, one for each kind of node; a file of one kind holds it alone."""
    with open(path, encoding="utf-8") as file:
        known = json.loads(file.read(LONGEST))
    kinds = [known]
    if isinstance(known, dict) and isinstance(known.get("kinds"), list):
        kinds = known["kinds"]
    for kind in kinds:
        if not isinstance(kind, dict) or not isinstance(kind.get("facts"), dict):
            raise ValueError("it is not a baseline: gate --learn writes one")
    return kinds


KIND_FACTS = ("gpu.count", "gpu.0.model", "cpu.total")
"""What tells kinds of nodes apart when a baseline is learned."""


def _kind_of_node(found: Rows, name: str) -> str:
    """The kind of a good node: as an administrator calls it, else by its hardware."""
    if name:
        return name
    return "/".join(str(_fact_value(found, fact)) for fact in KIND_FACTS)


def baseline_of_node(
    found: Rows, kinds: list[dict[str, Any]], name: str = ""
) -> tuple[dict[str, Any], list[str]]:
    """The baseline of the kind of node that this is, and why that could not be told.

    A node that lost a GPU is still more like its own kind than like any other.
    """
    if name and kinds:
        for kind in kinds:
            if kind.get("kind") == name:
                return kind, []
        return {}, ["the baseline knows no kind %s" % _plain_sentence(name)]
    if len(kinds) < 2:
        return (kinds[0] if kinds else {}), []
    alike = [_facts_alike(found, kind) for kind in kinds]
    best = max(alike)
    if alike.count(best) > 1:
        return {}, ["it is as much like one kind of the baseline as another: --kind names it"]
    return kinds[alike.index(best)], []


def _facts_alike(found: Rows, kind: dict[str, Any]) -> float:
    """Share of the facts of a kind that this node has; each GPU counts no more than its first."""
    names = [name for name in kind["facts"] if not re.match(r"gpu\.[1-9]\d*\.", name)]
    same = [name for name in names if _fact_value(found, name) == kind["facts"][name]]
    return len(same) / max(1, len(names))


def learned(
    found: Rows, busbw: float | None, before: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The baseline of a cluster, after one more good node.

    It holds what all good nodes share, and of what may be larger the least that one has.
    """
    kept = "%s|%s" % (EQUAL, AT_LEAST)
    facts = {
        name: row["value"]
        for name, row in found.items()
        if re.fullmatch(kept, name) and row["value"] is not None
    }
    ports = _ports_of_node(found)
    if before:
        shared = {
            name: _shared_value(name, value, before["facts"].get(name))
            for name, value in facts.items()
        }
        facts = {name: value for name, value in shared.items() if value is not None}
        ports = {
            name: port for name, port in ports.items() if before.get("ports", {}).get(name) == port
        }
    speeds = [speed for speed in (busbw, (before or {}).get("busbw")) if speed]
    return {
        "facts": facts,
        "ports": ports,
        "busbw": min(speeds) if speeds else None,
        **learned_checks(found, before),
    }


def _shared_value(name: str, value: Any, before: Any) -> Any:
    """What two nodes share of a fact.

    Of what may also be larger it is the lesser one; None where they share nothing.
    """
    if value == before:
        return value
    numbers = all(isinstance(one, (int, float)) for one in (value, before))
    if not (numbers and re.fullmatch(AT_LEAST, name)):
        return None
    # -1: unlimited
    if -1 in (value, before):
        return max(value, before)
    return min(value, before)


def _learn_baseline(path: str, found: Rows, tested: dict[str, Any] | None, name: str = "") -> None:
    """Write the baseline of this node, together with those that the file holds already.

    A node of another kind gets a baseline of its own in the file.
    """
    kinds = []
    if os.path.exists(path):
        kinds = _read_baselines(path)
    own = _kind_of_node(found, name)
    before = None
    others = []
    for kind in kinds:
        # a file of an older version does not say of which kind it is
        if kind.get("kind", own) == own:
            before = kind
        else:
            others.append(kind)
    baseline = learned(found, tested["busbw"] if tested else None, before)
    baseline["kind"] = own
    whole: dict[str, Any] = baseline
    if others:
        whole = {"kinds": [*others, baseline]}
    processes.write_whole(path, json.dumps(whole, indent=1, sort_keys=True))
