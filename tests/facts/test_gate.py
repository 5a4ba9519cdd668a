"""Whether a node is ready for a job: recorded machines against a baseline, and this one by the agent alone."""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ncclkit.agent import gate, wire
from ncclkit.agent.commands import run_bounded
from ncclkit.agent.gate_memory import judge_memory, memory_of_test, memory_sentence
from ncclkit.analysis.gates import compare_nodes
from ncclkit.cli import main
from ncclkit.core.model import NcclkitError
from ncclkit.live.launch.pack import packed
from tests.facts.test_machines import MACHINES, read
from tests.packaging.project import ROOT
from tests.processes import leftovers

GOOD = next(path for path in MACHINES if path.name == "h100-x8")


@pytest.fixture(scope="module")
def good() -> dict[str, Any]:
    return read(GOOD)


UNHARMED = {"right": 112, "apart": 0, "wrong": [], "untried": [], "nccl": ""}
"""Of the memory of eight GPUs, of which each wrote into and read that of each other one."""


def changed(rows: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """The same node with other values of some facts; ``__`` stands for a dot."""
    rows = copy.deepcopy(rows)
    for name, value in facts.items():
        rows[name.replace("__", ".")].update(value=value, why="" if value is not None else "it hung")
    return rows


def test_a_good_node_is_ready_and_makes_a_baseline_that_it_meets(good: dict[str, Any]) -> None:
    baseline = gate.learned(good, 400.0)
    assert baseline["facts"]["gpu.count"] == 8 and len(baseline["facts"]) > 60 and baseline["ports"]
    problems, unknown = gate.judge_node(good, baseline)
    assert (problems, unknown) == ([], [])


@pytest.mark.parametrize(
    ("facts", "say"),
    [
        ({"gpu__count": 7}, "gpu.count (GPUs) is 7 here, but the baseline expects 8"),
        ({"gpu__3__recovery": "Reset"}, "GPU 3 asks for Reset"),
        ({"gpu__3__ecc__uncorrected": 2}, "GPU 3 had 2 uncorrectable memory errors"),
        ({"gpu__0__nvlink__speeds": [26.5, None]}, "GPU 0 has 1 of 2 NVLinks down"),
        ({"gpu__1__throttle": ["hw_thermal_slowdown"]}, "GPU 1 is slowed down (hw_thermal_slowdown)"),
        (
            {"gpu__2__memory__holders": [{"pid": 7, "name": "python", "memory": "1 MiB"}]},
            "GPU 2 is held by python (pid 7)",
        ),
        ({"gpu__nvidia_smi": "hung"}, "nvidia-smi hung"),
        ({"limits__memlock": 65536}, "limits.memlock (bytes of locked memory that are allowed) is 65536 here, but the baseline expects unlimited"),
        ({"net__rdma": []}, "is missing here, but the baseline expects"),
    ],
)
def test_a_bad_node_is_not_ready_and_says_what(good: dict[str, Any], facts: dict[str, Any], say: str) -> None:
    baseline = gate.learned(changed(good, limits__memlock=-1), None)
    problems, _ = gate.judge_node(
        changed(good, limits__memlock=-1) | changed(good, **{"limits__memlock": -1, **facts}), baseline
    )
    assert any(say in problem["say"] for problem in problems), problems


@pytest.mark.parametrize(
    ("name", "value", "expected", "say"),
    [
        ("cpu.total", 2, 64, "cpu.total (CPUs online) is 2 here, but the baseline expects 64"),
        ("gpu.0.model", "A", "B", "gpu.0.model is A here, but the baseline expects B"),
        ("limits.memlock", 65536, -1, "is 65536 here, but the baseline expects unlimited"),
        ("memory.total", 5, 9, "memory.total (bytes of memory) is 5 here, but the baseline expects at least 9"),
    ],
)
def test_what_is_unlike_the_baseline_is_said_in_words(name: str, value: Any, expected: Any, say: str) -> None:
    found = {name: {"name": name, "value": value, "why": ""}}
    ((problem,), _) = gate.judge_node(found, {"facts": {name: expected}})
    assert problem["say"].endswith(say)


def test_the_baseline_is_named_only_where_it_is_what_counts() -> None:
    asked = argparse.Namespace(**(gate.DEFAULTS | {"baseline": "/b.json"}))
    unlike = gate.problem_row("cpu.total", 2, gate.unlike_baseline("cpu.total", 2, 64), 64)
    lost = gate.problem_row("mount./x", "missing", "/x is not mounted", "mounted")
    assert gate._printed_object([unlike], [], 9, asked, None)["say"].endswith("expects 64 (baseline: /b.json)")
    assert gate._printed_object([lost], [], 9, asked, None)["say"].endswith("/x is not mounted")


def test_what_cannot_be_read_is_unknown_and_more_than_the_baseline_is_fine(good: dict[str, Any]) -> None:
    baseline = gate.learned(good, None)
    problems, unknown = gate.judge_node(changed(good, host__kernel=None), baseline)
    assert problems == [] and unknown == ["host.kernel could not be read (it hung)"]
    more = changed(good, memory__total=good["memory.total"]["value"] * 2)
    assert gate.judge_node(more, baseline) == ([], [])


def test_a_baseline_of_several_nodes_keeps_what_they_share(good: dict[str, Any]) -> None:
    both = gate.learned(changed(good, host__kernel="6.1"), 390.0, gate.learned(good, 400.0))
    assert "host.kernel" not in both["facts"] and both["facts"]["gpu.count"] == 8 and both["busbw"] == 390.0


def test_a_baseline_of_several_nodes_keeps_the_least_of_what_may_be_larger(good: dict[str, Any]) -> None:
    """Equal nodes differ by some kilobytes of memory, and a node with half of it must still be found."""
    first = gate.learned(changed(good, limits__memlock=-1), None)
    least = changed(good, memory__total=good["memory.total"]["value"] - 4096, limits__memlock=65536)
    both = gate.learned(least, None, first)["facts"]
    assert both["memory.total"] == least["memory.total"]["value"] and both["limits.memlock"] == 65536
    half = changed(least, memory__total=good["memory.total"]["value"] // 2)
    assert [one["fact"] for one in gate.judge_node(half, {"facts": both})[0]] == ["memory.total"]


@pytest.mark.parametrize(
    ("tested", "say", "unknown"),
    [
        ({"reason": "done", "wrong": 0, "busbw": 395.0, "error": ""}, "", ""),
        ({"reason": "done", "wrong": 0, "busbw": 200.0, "error": ""}, "200.0 GB/s busbw, 50 % of the 400.0 GB/s", ""),
        ({"reason": "done", "wrong": 3, "busbw": 395.0, "error": ""}, "3 values of the test were wrong", ""),
        ({"reason": "deadline", "wrong": 0, "busbw": 0.0, "error": ""}, "failed: deadline", ""),
        ({"reason": "no torch", "wrong": 0, "busbw": 0.0, "error": ""}, "", "has no torch"),
    ],
)
def test_the_test_of_the_gpus_counts(tested: dict[str, Any], say: str, unknown: str) -> None:
    problems, told = gate.judge_test(tested, {"facts": {}, "busbw": 400.0})
    assert [say in problem["say"] for problem in problems] == [True] * bool(say)
    assert [unknown in one for one in told] == [True] * bool(unknown)


def judged(**words: Any) -> dict[str, Any]:
    """The object of the gate, made in this process."""
    asked = argparse.Namespace(**(gate.DEFAULTS | words))
    return gate.judged(asked, time.monotonic())


@pytest.mark.parametrize(
    ("busbw", "say"),
    [
        (40.0, "reach 40.0 GB/s busbw, 11 % of the 371 GB/s that NVLink allows: slower than they should be"),
        (180.0, "49 % of the 371 GB/s"),
        (300.0, ""),
        (480.0, ""),  # NVLS
        (None, ""),
    ],
)
def test_without_a_baseline_the_links_say_what_to_expect(good: dict[str, Any], busbw: float | None, say: str) -> None:
    tested = {"reason": "done", "wrong": 0, "busbw": busbw, "error": "", "ranks": 8}
    for baseline in ({}, {"facts": {}, "busbw": None}):
        problems, unknown = gate.judge_test(tested, baseline, good)
        assert [say in problem["say"] for problem in problems] == [True] * bool(say) and unknown == []
    assert gate.judge_test(tested, {"facts": {}, "busbw": 30.0}, good) == ([], []), "a baseline knows better"
    used = changed(good, gpu__3__busy=97)
    assert ["others used GPU 3" in one["say"] for one in gate.judge_test(tested, {}, used)[0]] == [True] * bool(say)


def test_where_the_facts_do_not_tell_how_gpus_are_joined_their_test_is_not_judged(good: dict[str, Any]) -> None:
    tested = {"reason": "done", "wrong": 0, "busbw": 4.0, "error": "", "ranks": 8}
    assert gate.judge_test(tested, {}, changed(good, gpu__topology=None)) == ([], [])
    assert gate.judge_test(tested, {}) == ([], [])


def test_a_gate_without_a_baseline_finds_a_slow_node(
    good: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = {"reason": "done", "wrong": 0, "busbw": 40.0, "error": "", "ranks": 8, "memory": UNHARMED}
    monkeypatch.setattr(gate, "collect", lambda **_: good.values())
    monkeypatch.setattr(gate, "_test_gpus", lambda *_: result)
    said = judged(seconds=60.0)
    assert said["ready"] is False and "slower than they should be" in said["say"]
    result["busbw"] = 390.0
    said = judged(seconds=60.0)
    assert said["ready"] is True and said["memory"] == "112 accesses written, read and verified"


DIAGNOSED = "node-1:4711 NCCL DIAG [INFO] p2p: write mismatch srcRank=0 srcCudaDev=0 srcNvmlDev=2 dstRank=1"
DIAGNOSED += " dstCudaDev=1 dstNvmlDev=5 path=PHB handle=CUMEM_POSIX_FD expected=0x4 got=0x0 verify=0x0; check it\n"
VERIFIED = "node-1:4711 NCCL DIAG [OK]   p2p: verified P2P access in both directions between every GPU pair (56)\n"
WRONG = "GPU 1 wrote into the memory of GPU 3 over NV18, and other bytes arrived"


def printed(wrong: bool, more: str = "", **of_each: Any) -> Any:
    """What the test of eight GPUs prints: whether GPU 1 writes wrong into GPU 3, and lines of NCCL."""
    rows = [{"kind": "measure", "bytes": 1 << 20, "time_us": 5.0}, {"kind": "end", "reason": "done"}]
    for rank in range(8):
        for peer in set(range(8)) - {rank}:
            for way in ("read", "write"):
                odd = int(wrong and (rank, peer, way) == (1, 3, "write"))
                result = {"wrong": odd, "apart": False, "problem": "", **of_each}
                rows.append({"kind": "stage.peer", "rank": rank, "peer": peer, "way": way, **result})
    lines = "".join(json.dumps({"ncclkit": wire.VERSION, **row}) + "\n" for row in rows)
    return run_bounded([sys.executable, "-c", "import sys; print(sys.argv[1])", lines + more], 20.0)


@pytest.mark.parametrize(
    ("wrong", "lines", "says", "memory"),
    [
        (False, "", "", "112 accesses written, read and verified"),
        (False, VERIFIED, "", "verified; NCCL's own diagnostics found all pairs right"),
        (True, "", WRONG, "1 accesses with other bytes, 111 right"),
        (True, VERIFIED, "NCCL's own diagnostics found all pairs right: the two disagree", "1 accesses"),
        (False, DIAGNOSED, "GPU 2 wrote into the memory of GPU 5 over PHB", "NCCL's own diagnostics found a pair wrong"),
        (False, DIAGNOSED, "ncclkit's check found all pairs right: the two disagree", ""),
    ],
    ids=["right", "right, as NCCL says", "wrong", "wrong but for NCCL", "wrong for NCCL", "wrong for NCCL alone"],
)
def test_a_pair_of_gpus_with_other_bytes_makes_a_node_not_ready(
    good: dict[str, Any], monkeypatch: pytest.MonkeyPatch, wrong: bool, lines: str, says: str, memory: str
) -> None:
    reply = printed(wrong, lines)
    monkeypatch.setattr(gate, "collect", lambda **_: good.values())
    monkeypatch.setattr(gate, "judge_test", lambda *_: ([], []))
    monkeypatch.setattr(gate, "run_bounded", lambda *_, **__: reply)
    said = judged(seconds=60.0)
    assert memory in said["memory"] and said["ready"] is not bool(says)
    assert [says in problem["say"] for problem in said["problems"]] == [True] * bool(says)


def test_memory_that_could_not_be_shared_or_is_not_joined_makes_no_node_bad() -> None:
    for of_each, says in (({"problem": "Operation not permitted"}, "(Operation not permitted)"), ({"apart": True}, "no two")):
        reply = printed(False, **of_each)
        records = [record for record in map(wire.parse_record, reply.out.splitlines()) if record]
        memory = memory_of_test(records, reply.out)
        assert judge_memory(memory, {}) == [] and says in memory_sentence(memory, 8, was_tested=True)


@pytest.mark.parametrize(("gpus", "tested"), [(0, False), (1, True), (8, False)])
def test_where_there_is_no_pair_the_memory_is_not_evaluated(gpus: int, tested: bool) -> None:
    assert memory_sentence(None, gpus, tested).startswith("not evaluated: ")


def test_gpus_that_pass_their_test_hide_no_fact_that_could_not_be_read(
    good: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b.json").write_text(json.dumps(gate.learned(good, 400.0)))
    rows = changed(good, limits__memlock=None)
    passed = {"reason": "done", "wrong": 0, "busbw": 400.0, "error": "", "memory": UNHARMED}
    monkeypatch.setattr(gate, "collect", lambda **_: rows.values())
    monkeypatch.setattr(gate, "_test_gpus", lambda *_: passed)
    said = judged(seconds=60.0, baseline=str(tmp_path / "b.json"))
    assert said["status"] == 2 and said["ready"] is None and said["test"] == passed
    assert said["unknown"] == ["limits.memlock could not be read (it hung)"]


def test_a_gate_that_breaks_could_not_tell(
    good: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own exit status would be 1, by which a health check drains the node."""
    monkeypatch.setattr(gate, "collect", lambda **_: good.values())
    said = judged(learn=str(tmp_path / "none" / "b.json"))
    assert said["status"] == 2 and said["ready"] is None and "FileNotFoundError" in said["say"]
    (tmp_path / "b.json").write_text('{"facts": {}, "ports": ["mlx5_0:1"]}')
    said = judged(baseline=str(tmp_path / "b.json"))
    assert said["status"] == 2 and "AttributeError" in said["unknown"][0]


@pytest.mark.parametrize("state", ["hung", "endless"])
def test_a_driver_without_an_answer_counts_where_a_baseline_has_gpus(
    good: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    rows = changed(good, gpu__nvidia_smi=state)
    problems, _ = gate.judge_node(rows, {"facts": {"gpu.3.model": "H100"}})
    assert problems[0]["fact"] == "gpu.nvidia_smi"
    for baseline in ({}, {"facts": {}}, {"facts": {"gpu.count": 0, "gpu.peermem": False}}):
        problems, unknown = gate.judge_node(rows, baseline)
        assert not [one for one in problems if one["fact"] == "gpu.nvidia_smi"]
        assert unknown[0].startswith(f"nvidia-smi {gate.SILENT[state]} (")
    monkeypatch.setattr(gate, "collect", lambda **_: rows.values())
    assert judged(learn=str(tmp_path / "b.json"))["status"] == 2
    assert not (tmp_path / "b.json").exists()


def test_a_driver_that_had_no_time_is_not_accused(good: dict[str, Any]) -> None:
    """`--seconds 3` leaves none to an nvidia-smi that takes three: nobody has seen it hang."""
    rows = changed(good, gpu__nvidia_smi=None)
    assert gate.judge_node(rows, gate.learned(good, None))[0] == []


def test_an_nvidia_smi_that_could_not_be_ended_before_is_not_joined_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What sits in the kernel cannot be made here: a process that sleeps stands for it."""
    fake(tmp_path, f"touch {tmp_path}/asked\nread input\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    child = subprocess.Popen(["nvidia-smi"], stdin=subprocess.PIPE)
    try:
        while not (tmp_path / "asked").exists():
            time.sleep(0.01)
        assert gate._stuck_before() == 0  # one that somebody waits for
        (tmp_path / "asked").unlink()
        monkeypatch.setattr(gate.processes, "process_state", lambda pid: "D" if pid == child.pid else "S")
        assert gate._stuck_before() == 0  # one that waits for its disk
        monkeypatch.setattr(gate.processes, "is_pending", lambda *_: True)
        monkeypatch.setattr(gate, "DYING", 0.0)
        assert gate._stuck_before() == child.pid
        rows = {
            row["name"]: row
            for row in gate.collect(torch=False, machine=gate._WithoutDriver(child.pid))
        }
        assert (
            rows["gpu.nvidia_smi"]["value"] == "hung"
            and str(child.pid) in rows["gpu.nvidia_smi"]["why"]
        )
        assert not (tmp_path / "asked").exists()
    finally:
        child.communicate(timeout=10)


def verdicts(folder: Path, nodes: dict[str, dict[str, Any]], **more: Any) -> list[Path]:
    """What the gate prints on these nodes, against the baseline of the first one; a file each."""
    baseline = gate.learned(next(iter(nodes.values())), 400.0)
    asked = argparse.Namespace(baseline="b", learn="")
    made = []
    for name, rows in nodes.items():
        problems, unknown = gate.judge_node(rows, baseline)
        said = gate._printed_object(problems, unknown, len(rows), asked, more.get(name))
        made.append(folder / f"{name}.json")
        made[-1].write_text(json.dumps(said | {"host": name, "say": said["say"].replace(gate._node_name(), name)}) + "\n")
    return made


def test_the_odd_node_is_named_among_many_verdicts(good: dict[str, Any], tmp_path: Path, capsys: Any) -> None:
    bad = changed(good, gpu__driver="999.1", gpu__library="999.1")
    files = verdicts(tmp_path, {"n1": good, "n2": good, "n3": bad, "n10": good})
    found = compare_nodes(files)
    assert list(found.outliers) == ["n3"] and not found.shared
    assert found.summary.startswith("n3 is odd among 4 nodes: gpu.library (version of the driver's library) is 999.1 here, but the baseline expects "), found.summary
    assert [one.host for one in found.verdicts] == ["n1", "n2", "n3", "n10"]
    assert main(["compare", *map(str, files)]) == 1 and "n10 is ready" in capsys.readouterr().out
    assert main(["compare", str(files[0]), str(files[1])]) == 0
    assert "2 nodes agree, and all are ready." in capsys.readouterr().out
    files[2].write_text(files[2].read_text() + files[0].read_text().replace("n1", "n3"))  # repaired since
    assert compare_nodes(files).outliers == {}


def test_what_most_nodes_share_is_a_matter_of_their_baseline(good: dict[str, Any], tmp_path: Path) -> None:
    new = changed(good, host__kernel="9.9")
    found = compare_nodes(verdicts(tmp_path, {"old": good, "n1": new, "n2": new, "n3": new}))
    assert found.outliers == {} and len(found.shared) == 1
    assert found.summary.startswith("4 nodes agree. Most of them share: host.kernel (release of the kernel) is 9.9 here, but")


def test_slower_gpus_and_a_node_that_could_not_tell_are_odd(good: dict[str, Any], tmp_path: Path) -> None:
    speeds = {"n1": 400.0, "n2": 398.0, "n3": 300.0}
    tested = {name: {"busbw": speed} for name, speed in speeds.items()}
    silent = changed(good, gpu__driver=None)
    found = compare_nodes(verdicts(tmp_path, {"n1": good, "n2": good, "n3": good, "n4": silent}, **tested))
    assert found.outliers["n3"] == ("its GPUs reach 300 GB/s busbw, where half of the nodes reach 398",)
    assert "gpu.driver could not be read" in found.outliers["n4"][0] and len(found.outliers) == 2


@pytest.mark.parametrize("text", ["{}", "[1]", "no json", '{"host": 1, "status": 0, "say": ""}', ""])
def test_what_is_no_verdict_is_refused_in_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(NcclkitError, match="verdict"):
        compare_nodes([tmp_path / "x.json"])


def fake(folder: Path, script: str, name: str = "nvidia-smi") -> None:
    """A program of that name, by a shell."""
    (folder / name).write_text(f"#!/bin/sh\n{script}")
    (folder / name).chmod(0o755)


@pytest.fixture(scope="module")
def agent() -> Iterator[Path]:
    with packed() as path:
        yield path


def command(agent: Path, *words: str) -> list[str]:
    """The agent alone: no package of ours, no site-packages."""
    return [sys.executable, "-I", "-S", str(agent), "gate", *words]


def run(agent: Path, *words: str, **how: Any) -> tuple[int, dict[str, Any]]:
    """The exit status and the one object of the agent."""
    done = subprocess.run(command(agent, *words), capture_output=True, text=True, timeout=60, **how)
    assert len(done.stdout.splitlines()) == 1, done.stdout + done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    assert done.stderr.strip() == said["say"] and said["status"] == done.returncode
    return done.returncode, said


def test_the_agent_alone_answers_on_this_host(agent: Path, tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    code, said = run(agent, "--learn", str(baseline), "--seconds", "30")
    assert said["ready"] in (True, False) and (code == 0) is baseline.exists(), said
    if code == 0:
        assert run(agent, "--baseline", str(baseline), "--seconds", "30")[0] == 0
    known = json.loads(baseline.read_text()) if code == 0 else {"facts": {}}
    baseline.write_text(json.dumps(known | {"facts": {"cpu.total": 100_000}}))
    code, said = run(agent, "--baseline", str(baseline), "--seconds", "30")
    assert code == 1 and "cpu.total (CPUs online) is" in said["say"] and said["ready"] is False


@pytest.mark.parametrize(
    ("words", "say"),
    [
        (["--baseline", "/none"], "the baseline /none could not be read"),
        (["--baseline", "/dev/zero"], "the baseline /dev/zero could not be read"),
        (["--baseline", os.fsdecode(b"/\xff\xfe")], "could not be read"),
        (["--seconds", "nan"], "--seconds takes 1 to 3600"),
        (["--seconds", "inf"], "--seconds takes 1 to 3600"),
        (["--seconds", "-5"], "--seconds takes 1 to 3600"),
        (["--seconds", "soon"], "invalid float value"),
        (["--help"], "unrecognized arguments"),
        (["a", "\x1b[2J\n"], "unrecognized arguments: a [2J"),
    ],
)
def test_words_that_nobody_meant_could_not_tell(agent: Path, words: list[str], say: str) -> None:
    code, said = run(agent, *words, errors="backslashreplace")
    assert code == 2 and said["ready"] is None and say in said["say"]


def test_a_baseline_that_never_comes_costs_no_more_than_the_time(
    agent: Path, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "b")
    code, said = run(agent, "--seconds", "1", "--baseline", str(tmp_path / "b"))
    assert code == 2 and "no answer within 1 s" in said["say"] and said["seconds"] <= 2


SHELL = 'exec "$0" "$@" '
"""A shell that becomes the command which follows, with other outputs."""


@pytest.mark.parametrize(
    "closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full", ">/dev/full 2>/dev/full"]
)
@pytest.mark.parametrize(
    ("facts", "ready"), [({}, True), ({"cpu.total": 100_000}, False)], ids=["ready", "not ready"]
)
def test_an_output_that_nobody_reads_drains_no_node(
    agent: Path, tmp_path: Path, closed: str, facts: dict[str, Any], ready: bool
) -> None:
    """Where nobody hears of it, ready is what could not be told, and not ready stays so."""
    (tmp_path / "b").write_text(json.dumps({"facts": facts}))
    words = command(agent, "--seconds", "20", "--baseline", str(tmp_path / "b"))
    shell = ["/bin/sh", "-c", SHELL + closed, *words]
    # without nvidia-smi, as GPUs of this host may have their own problems
    done = subprocess.run(
        shell, capture_output=True, text=True, timeout=60, env={"PATH": str(tmp_path)}
    )
    lost = ">&-" in closed.replace("2>&-", "") or ">/dev/full" in closed
    assert done.returncode == (1 if not ready else 2 if lost else 0), done.stderr
    assert lost or json.loads(done.stdout)["ready"] is ready
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) == ("2>" not in closed)
    if lost and "2>" not in closed:
        assert "could not be written to standard output" in done.stderr


def test_a_pipe_that_nobody_empties_is_given_up(agent: Path, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, bytes(1 << 16))
    except BlockingIOError:
        os.set_blocking(writer, True)
    words = command(agent, "--seconds", "1", "--baseline", str(tmp_path))
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(reader)
    os.close(writer)
    assert done.returncode == 2 and "(nobody reads it)" in done.stderr


def test_a_gate_whose_reader_is_killed_could_not_tell(agent: Path, tmp_path: Path) -> None:
    """As the kernel does where memory is short."""
    fake(tmp_path, "kill -9 $PPID\n")
    code, said = run(agent, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert code == 2 and "ended without an answer" in said["say"] and said["left"] == []


def test_ranks_are_started_for_the_test_of_a_node_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over gloo, as GPUs are not at hand: the same command, records and result."""
    monkeypatch.setattr(gate, "LARGEST", 1 << 20)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with packed() as agent:
        monkeypatch.setattr(sys, "argv", [str(agent)])
        tested = gate._test_gpus(2, 100.0, "gloo")
    memory = {"right": 4, "apart": 0, "wrong": [], "untried": [], "nccl": ""}
    assert tested["busbw"] > 0 and tested | {"busbw": 1.0} == {
        "reason": "done", "ranks": 2, "busbw": 1.0, "wrong": 0, "error": "", "memory": memory
    }  # fmt: skip
    assert memory_sentence(memory, 2, True) == "4 accesses written, read and verified"
    assert gate.judge_test(tested, {"busbw": 1000.0})[0][0]["fact"] == "test"
    assert leftovers() == []


SCRIPTS = re.findall(
    r"```sh\n(#!/bin/sh\n.*?)```", (ROOT / "docs" / "launchers.md").read_text(), re.S
)
NOT_READY = """echo '{"ready": false, "status": 1, "say": "n1 is not ready"}'; exit 1"""
GATES = {
    "ready": """echo '{"ready": true, "status": 0, "say": "n1 is ready"}'; exit 0""",
    "could not tell": """echo '{"ready": null, "status": 2, "say": "1 \\"ready\\": false"}'; exit 2""",
    "cut archive": """echo 'zipimport.ZipImportError: not a Zip file' >&2; exit 1""",
    "no Python": "exit 127",
    "killed": "kill -9 $$",
    "no object": "exit 0",
}
"""What stands for the gate, besides one that is not ready."""


def fenced(folder: Path, script: str, gate_script: str) -> tuple[int, str]:
    """The exit status of a documented script with this gate, and what it asked Slurm for."""
    fake(folder, gate_script + "\n", "python3")
    fake(folder, f'echo "$@" >> {folder}/asked\n', "scontrol")
    fake(folder, "echo n1\n", "hostname")
    (folder / "script.sh").write_text(script)
    assert subprocess.run(["/bin/sh", "-n", str(folder / "script.sh")], timeout=20).returncode == 0
    path = {"PATH": f"{folder}:/usr/bin:/bin"}
    done = subprocess.run(
        ["/bin/sh", str(folder / "script.sh")], env=path, timeout=20, capture_output=True
    )
    asked = folder / "asked"
    return done.returncode, asked.read_text() if asked.exists() else ""


@pytest.mark.parametrize("gate_script", GATES.values(), ids=GATES)
@pytest.mark.parametrize("number", range(4))
def test_the_documented_lines_act_on_what_the_gate_says(
    tmp_path: Path, number: int, gate_script: str
) -> None:
    """Health check and prolog, which leave what could not be judged; then both, failing closed."""
    assert len(SCRIPTS) == 4
    drains, closed = "scontrol" in SCRIPTS[number], number >= 2
    held = closed and gate_script != GATES["ready"]
    status, asked = fenced(tmp_path, SCRIPTS[number], gate_script)
    assert status == (1 if held and not drains else 0)
    assert asked.startswith("update nodename=n1 state=drain reason=ncclkit gate") == (
        held and drains
    )


@pytest.mark.parametrize("number", range(4))
def test_the_documented_lines_hold_a_node_that_is_not_ready(tmp_path: Path, number: int) -> None:
    drains = "scontrol" in SCRIPTS[number]
    status, asked = fenced(tmp_path, SCRIPTS[number], NOT_READY)
    assert (
        status == (0 if drains else 1)
        and asked.startswith("update nodename=n1 state=drain") == drains
    )


def test_the_documented_lines_know_the_object_of_the_gate(agent: Path, tmp_path: Path) -> None:
    """With the real one, on a node unlike its baseline: the scripts look for its words."""
    (tmp_path / "b").write_text(json.dumps({"facts": {"cpu.total": 100_000}}))
    real = shlex.join(command(agent, "--seconds", "20", "--baseline", str(tmp_path / "b")))
    assert fenced(tmp_path, SCRIPTS[1], "exec " + real)[0] == 1
    (tmp_path / "b").write_text('{"facts": {}}')
    assert fenced(tmp_path, SCRIPTS[3], f"PATH={tmp_path}/none exec " + real)[0] == 0
