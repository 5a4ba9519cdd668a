"""A gate that acts: drains where it was asked to, knows what is new, mounts, interfaces, kinds of nodes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ncclkit.agent import gang, gate, gate_checks, gate_drain, gate_state
from ncclkit.agent.facts.machine import Hung, Machine
from ncclkit.agent.gate_state import NodeState
from tests.facts.test_gate import agent, changed, command, fake, good, judged, run
from tests.packaging.project import ROOT
from tests.hostile.drivers import ENDLESS, REFUSING, SILENT
from tests.processes import RUNNER, leftovers

__all__ = ["agent", "good"]
BAD = {"facts": {"cpu.total": 100_000}}
SHOWN = "NodeName=n1 Arch=x86_64 State={} Reason=none"


def scontrol(folder: Path, state: str = "IDLE", update: str = "exit 0") -> None:
    """A stand-in that knows one node, and keeps what it was asked."""
    show = f"case $2 in show) echo '{SHOWN.format(state)}'; exit 0;; esac"
    fake(folder, f'echo "$@" >> {folder}/asked\n{show}\n{update}\n', "scontrol")


def asked(folder: Path) -> str:
    return (folder / "asked").read_text() if (folder / "asked").exists() else ""


LONGEST = 10.0
"""Seconds in which the gate must have its answer, whatever its programs do, by its own clock."""


def gate_on(agent: Path, folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """The gate on a node n1 without nvidia-smi, with the programs of this folder; it is quick, and leaves nothing."""
    (folder / "b").write_text(json.dumps(BAD))
    (folder / "tmp").mkdir(exist_ok=True)
    # by these what it started would be found again
    marks = {"NCCLKIT_RUN": str(folder), "TMPDIR": str(folder / "tmp"), RUNNER: os.environ.get(RUNNER, "")}
    env = {"PATH": f"{folder}:/usr/bin:/bin", "SLURMD_NODENAME": "n1", **marks}
    code, said = run(agent, "--seconds", "20", *words, env=env)
    assert said["seconds"] <= LONGEST, said
    assert leftovers(str(folder)) == [] and said["left"] == [] and os.listdir(folder / "tmp") == []
    return code, said


# ---------------------------------------------------------------- draining


def test_a_node_is_drained_only_where_it_was_asked_and_is_not_ready(agent: Path, tmp_path: Path) -> None:
    scontrol(tmp_path)
    code, said = gate_on(agent, tmp_path, "--baseline", str(tmp_path / "b"))
    assert code == 1 and "drained" not in said and asked(tmp_path) == "", "never unasked"
    code, said = gate_on(agent, tmp_path, "--drain")
    assert code == 0 and asked(tmp_path) == "", "a ready node stays"
    code, said = gate_on(agent, tmp_path, "--drain", "--baseline", str(tmp_path / "none"))
    assert code == 2 and asked(tmp_path) == "", "nor one that could not be judged"
    code, said = gate_on(agent, tmp_path, "--drain", "--baseline", str(tmp_path / "b"))
    assert code == 1 and said["drained"] is True and said["say"].endswith("; it was drained")
    assert f"here, but the baseline expects 100000 (baseline: {tmp_path}/b)" in said["say"]
    update = asked(tmp_path).splitlines()[-1]
    assert update.startswith("update nodename=n1 state=drain reason=ncclkit gate: cpu.total (CPUs online) is")


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "DOWN*", "MIXED+DRAIN", "MAINT"])
def test_a_reason_that_somebody_wrote_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    scontrol(tmp_path, state)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    drained, what = gate_drain.drain_node("n1", "a fan failed")
    assert not drained and "already" in what and "update" not in asked(tmp_path)


@pytest.mark.parametrize("name", ["", "-h", "n1;id", "n1,n2", "n[1-4]", "../n1", "a b", "n1\n", "ALL="])
def test_what_is_no_name_of_one_node_never_reaches_scontrol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    scontrol(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ValueError, match="not the name of a node"):
        gate_drain.drain_node(name, "x")
    assert asked(tmp_path) == ""


def test_a_reason_is_one_plain_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scontrol(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert gate_drain.drain_node("n1", "a\nstate=resume 'b'\x1b[2J" + "x" * 999)[0]
    line = asked(tmp_path).splitlines()[-1]
    assert "state resume b" in line and "\x1b" not in line and len(line) < 280


LYING = {"another node": "echo NodeName=n2 State=IDLE", "no": "echo Node n1 not found; exit 1", "refuses": ""}
STAND_INS = {**SILENT, **ENDLESS, **REFUSING, **LYING}


@pytest.mark.slow
@pytest.mark.parametrize("kind", STAND_INS)
def test_an_scontrol_of_any_kind_costs_seconds_and_leaves_nothing(agent: Path, tmp_path: Path, kind: str) -> None:
    """Hung, failing, garbage, empty, huge or lying: the node stays not ready, and is not called drained."""
    if kind == "refuses":
        scontrol(tmp_path, update="echo not allowed >&2; exit 1")
    else:
        fake(tmp_path, STAND_INS[kind] + "\n", "scontrol")
    code, said = gate_on(agent, tmp_path, "--drain", "--baseline", str(tmp_path / "b"))
    assert code == 1 and said["drained"] is False and "it was not drained" in said["say"], said


def test_without_an_scontrol_nothing_is_drained(agent: Path, tmp_path: Path) -> None:
    code, said = run(
        agent, "--seconds", "20", "--drain", "--baseline", str(bad(tmp_path)), env={"PATH": str(tmp_path)}
    )
    assert code == 1 and said["drained"] is False and "scontrol: No such file" in said["say"]


def bad(folder: Path) -> Path:
    (folder / "b").write_text(json.dumps(BAD))
    return folder / "b"


# ---------------------------------------------------------------- since the last check


def state_after(folder: Path, ready: bool | None, **counters: int) -> NodeState:
    """One more check of node n1, with these memory errors."""
    state = NodeState(str(folder), "n1")
    gate_state.judge_since(state, rows(counters), [])
    state.write(ready)
    return NodeState(str(folder), "n1")


def rows(counters: dict[str, int]) -> dict[str, Any]:
    return {f"gpu.{name[1:]}.ecc.uncorrected": {"value": value, "why": ""} for name, value in counters.items()}


def test_only_what_is_new_since_the_last_check_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_state, "link_counters", dict)
    monkeypatch.setattr(gate_state, "kernel_messages", list)
    old = [gate_checks.problem_row("gpu.3.ecc.uncorrected", 2, "GPU 3 had 2 uncorrectable memory errors")]
    first = NodeState(str(tmp_path), "n1")
    assert gate_state.judge_since(first, rows({"g3": 2}), old) == old, "nobody knows when it was"
    first.write(False)
    same = NodeState(str(tmp_path), "n1")
    assert gate_state.judge_since(same, rows({"g3": 2}), old) == [], "it was told then"
    same.write(True)
    more = NodeState(str(tmp_path), "n1")
    (one,) = gate_state.judge_since(more, rows({"g3": 5}), old)
    assert one["say"] == "GPU 3 had 3 new uncorrectable memory errors since the last check 0 min ago"


def test_a_link_that_went_down_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = tmp_path / "infiniband" / "mlx5_0" / "ports" / "1" / "counters"
    port.mkdir(parents=True)
    for name, physical in (("eth0", True), ("veth7", False)):
        (tmp_path / "net" / name).mkdir(parents=True)
        (tmp_path / "net" / name / "carrier_down_count").write_text("4\n")
        if physical:
            (tmp_path / "net" / name / "device").mkdir()
    (port / "link_downed").write_text("1\n")
    read = gate_state.link_counters
    assert read(str(tmp_path)) == {"port mlx5_0:1": 1, "network interface eth0": 4}
    monkeypatch.setattr(gate_state, "link_counters", lambda: read(str(tmp_path)))
    monkeypatch.setattr(gate_state, "kernel_messages", lambda: None)
    (tmp_path / "state").mkdir()
    says = []
    for downs in ("1", "1", "3", "3", "0"):
        (port / "link_downed").write_text(downs)
        state = NodeState(str(tmp_path / "state"), "n1")
        says.append([one["say"] for one in gate_state.judge_since(state, {}, [])])
        state.write(True)
    assert says == [[], [], ["port mlx5_0:1 went down 2 times since the last check 0 min ago"], [], []]


def test_an_xid_of_hardware_counts_and_one_of_a_program_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = [(1, "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.")]
    monkeypatch.setattr(gate_state, "link_counters", dict)
    monkeypatch.setattr(gate_state, "kernel_messages", lambda: log)
    first = NodeState(str(tmp_path), "n1")
    assert gate_state.judge_since(first, {}, []) == [], "it may be of last week"
    first.write(True)
    log += [(2, "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, MMU Fault"), (3, "NVRM: Xid (PCI:0000:5e:00): 48, pid=7")]
    second = NodeState(str(tmp_path), "n1")
    (one,) = gate_state.judge_since(second, {}, [])
    assert one["say"].startswith("the driver logged Xid 48 of GPU 0000:5e:00 since the last check")
    second.write(False)
    third = NodeState(str(tmp_path), "n1")
    assert gate_state.judge_since(third, {}, []) == []


GPUS = {"gpu.count": {"value": 2, "why": ""}}


def checked_log(folder: Path, found: dict[str, Any]) -> tuple[list[str], list[str]]:
    """One more check of node n1: its problems, and what it could not look at."""
    state = NodeState(str(folder), "n1")
    says = [one["say"] for one in gate_state.judge_since(state, found, [])]
    state.write(True)
    return says, state.notes


def test_a_log_that_cannot_be_read_is_said_and_what_it_hid_is_told_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fell = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."
    logs: list[list[tuple[int, str]] | None] = [None, [(4, fell)], None, [(4, fell), (5, fell)], []]
    monkeypatch.setattr(gate_state, "link_counters", dict)
    monkeypatch.setattr(gate_state, "kernel_messages", lambda: logs.pop(0))
    assert checked_log(tmp_path, GPUS) == ([], [gate_state.LOG_UNREAD])
    assert checked_log(tmp_path, GPUS) == ([], []), "it may be older than the last check"
    assert checked_log(tmp_path, GPUS) == ([], [gate_state.LOG_UNREAD])
    says, notes = checked_log(tmp_path, GPUS)
    assert len(says) == 1 and "Xid 79" in says[0] and notes == []
    assert checked_log(tmp_path, GPUS) == ([], []), "an empty log is read, and holds nothing"


def test_a_node_without_gpus_is_told_nothing_of_xids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_state, "link_counters", dict)
    monkeypatch.setattr(gate_state, "kernel_messages", lambda: None)
    assert checked_log(tmp_path, {"gpu.count": {"value": 0, "why": ""}}) == ([], [])
    assert checked_log(tmp_path, {}) == ([], [])


def test_a_gate_says_what_it_could_not_read_and_is_ready_all_the_same(tmp_path: Path) -> None:
    state = NodeState(str(tmp_path), "n1")
    state.notes.append(gate_state.LOG_UNREAD)
    answer = {"ready": True, "status": 0, "say": "n1 is ready", "unknown": []}
    gate._keep_state(state, answer)
    assert answer["ready"] is True and answer["status"] == 0 and answer["notes"] == [gate_state.LOG_UNREAD]
    assert answer["say"] == f"n1 is ready; {gate_state.LOG_UNREAD}"


def test_records_of_the_kernel_are_read_and_garbage_is_left(tmp_path: Path) -> None:
    text = b"6,12,99,-;NVRM: Xid (PCI:0000:01:00): 79, x\n SUBSYSTEM=pci\n\xff\xfe\n4,13,100,-,caller=T1;next\n"
    (tmp_path / "kmsg").write_bytes(text)
    found = gate_state.kernel_messages(str(tmp_path / "kmsg"))
    assert found == [(12, "NVRM: Xid (PCI:0000:01:00): 79, x"), (13, "next")]
    assert gate_state.kernel_messages(str(tmp_path / "none")) is None


def test_the_third_failure_of_a_week_is_said_and_one_that_lasts_counts_once(tmp_path: Path) -> None:
    for ready in (False, False, None, False, True, False, True):
        state_after(tmp_path, ready)
    state = NodeState(str(tmp_path), "n1")
    state.write(False)
    assert state.history() == "its third failure this week"
    healthy = NodeState(str(tmp_path), "n2")
    healthy.write(True)
    assert healthy.history() == ""


@pytest.mark.parametrize("text", ["", "[1]", "no json", '{"time": "x"}', '{"time": 1, "ecc": 7, "failures": {}}', '{"time": 1, "failures": 7}'])
def test_a_damaged_state_accuses_nobody(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_state, "link_counters", lambda: {"port a:1": 9})
    (tmp_path / "n1.json").write_text(text)
    state = NodeState(str(tmp_path), "n1")
    assert gate_state.judge_since(state, rows({"g0": 0}), []) == []
    assert state.write(True) == "" and json.loads((tmp_path / "n1.json").read_text())["ready"] is True


def test_a_state_that_others_can_write_or_that_leads_elsewhere_is_not_used(agent: Path, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    code, said = gate_on(agent, tmp_path, "--state", str(tmp_path / "open"))
    assert code == 2 and "everybody can write" in said["say"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "secret").write_text('{"time": 1}')
    (tmp_path / "mine" / "n1.json").symlink_to(tmp_path / "secret")
    code, said = gate_on(agent, tmp_path, "--state", str(tmp_path / "mine"))
    assert code == 2 and (tmp_path / "secret").read_text() == '{"time": 1}'
    code, said = gate_on(agent, tmp_path, "--state", str(tmp_path / "none"))
    assert code == 2 and "cannot be used" in said["say"]


def test_the_whole_gate_keeps_its_state(agent: Path, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    words = ["--state", str(tmp_path / "state")]
    assert gate_on(agent, tmp_path, *words)[0] == 0
    bad_words = [*words, "--baseline", str(tmp_path / "b")]
    assert gate_on(agent, tmp_path, *bad_words)[1]["failures"] == 1
    assert gate_on(agent, tmp_path, *words)[0] == 0
    code, said = gate_on(agent, tmp_path, *bad_words)
    assert code == 1 and said["failures"] == 2 and said["say"].endswith("; its second failure this week")


# ---------------------------------------------------------------- mounts, interfaces, clocks


def test_a_mount_that_is_missing_read_only_or_silent_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    assert gate_checks.check_mounts(machine, ["/proc/sys/none"])[0][0]["say"] == "/proc/sys/none is not mounted"
    (problem,), _ = gate_checks.check_mounts(machine, ["/proc"])
    assert problem["say"].startswith("/proc cannot be written")

    def hang(*_: Any, **__: Any) -> Any:
        raise Hung("late")

    monkeypatch.setattr(machine, "run", hang)
    (problem,), _ = gate_checks.check_mounts(machine, ["/proc"])
    assert "did not take a small file within 3 s" in problem["say"]


def test_a_mount_that_works_is_left_alone_and_one_that_refuses_root_cannot_be_told(tmp_path: Path) -> None:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    writable = next(point for point in points if point in ("/tmp", "/dev/shm", "/"))
    before = set(os.listdir(writable))
    assert gate_checks.check_mounts(Machine(), [writable, writable + "/"]) == ([], [])
    assert not [name for name in set(os.listdir(writable)) - before if name.startswith(".ncclkit-gate-")]

    class Squashed(Machine):
        def run(self, argv: list[str], deadline: float, name: str = "") -> Any:
            return super().run(["echo", json.dumps({"errno": 13, "error": "Permission denied"})], deadline)

    problems, unknown = gate_checks.check_mounts(Squashed(), [writable])
    assert problems == [] and "took no file from this user (Permission denied)" in unknown[0]


HUNG = """import ctypes, os, subprocess, sys
folder, *command = sys.argv[1:]
number = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={number},rootmode=40000,user_id=0,group_id=0".encode()
if ctypes.CDLL(None).mount(b"hung", folder.encode(), b"fuse", 0, options):
    sys.exit(77)
sys.exit(subprocess.run(command).returncode)
"""
"""Mounts a file system whose server never answers, in a mount namespace of its own, and runs a command there."""


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0, reason="no file system of ours may be mounted")
def test_a_file_system_that_hangs_costs_its_seconds_and_leaves_nothing(agent: Path, tmp_path: Path) -> None:
    folder = tmp_path / "hung"
    folder.mkdir()
    marks = {"NCCLKIT_RUN": str(tmp_path), RUNNER: os.environ.get(RUNNER, ""), "PATH": "/usr/bin:/bin"}
    mounted = ["unshare", "-m", "--propagation", "private", sys.executable, "-c", HUNG, str(folder)]
    asked = command(agent, "--seconds", "20", "--mount", str(folder))
    done = subprocess.run([*mounted, *asked], env=marks, capture_output=True, text=True, timeout=60)
    if done.returncode == 77:
        pytest.skip("the kernel mounts no FUSE here")
    said = json.loads(done.stdout)
    assert done.returncode == 1 and said["seconds"] <= LONGEST, said
    assert said["problems"][0]["say"] == f"{folder} did not take a small file within 3 s"
    assert said["left"] == [] and leftovers(str(tmp_path)) == []


CARD = {"name": "ens1", "state": "up", "kind": "ethernet", "driver": "mlx5_core", "mtu": 9000, "speed": 200_000}


def cards(*rows: dict[str, Any], synced: bool = True) -> dict[str, Any]:
    return {"net.interfaces": {"value": list(rows)}, "host.clock.synced": {"value": synced}}


@pytest.mark.parametrize(
    ("change", "say"),
    [
        ({}, ""),
        ({"speed": 400_000}, ""),
        ({"speed": None}, ""),
        ({"speed": 100_000}, "network interface ens1 runs at 100000 Mbit/s, but the baseline expects 200000"),
        ({"mtu": 1500}, "network interface ens1 has MTU 1500, but the baseline expects 9000"),
        ({"state": "down"}, "network interface ens1 is missing or down"),
    ],
)
def test_an_interface_is_as_fast_and_wide_as_in_the_baseline(change: dict[str, Any], say: str) -> None:
    veth = CARD | {"name": "veth1", "kind": "veth", "driver": "veth"}
    baseline = gate_checks.learned_checks(cards(CARD, veth), None)
    assert list(baseline["nics"]) == ["ens1"]
    found = [one["say"] for one in gate_checks.check_cards(cards(CARD | change), baseline)]
    assert found == ([say] if say else [])


def test_a_clock_counts_where_the_good_nodes_have_one_that_is_synchronised() -> None:
    synced = gate_checks.learned_checks(cards(CARD), None)
    assert gate_checks.check_clock(cards(CARD, synced=False), synced)[0]["say"].startswith("no time service")
    assert gate_checks.check_clock(cards(CARD), synced) == []
    unsynced = gate_checks.learned_checks(cards(CARD, synced=False), synced)
    assert unsynced["clock"] is False and gate_checks.check_clock(cards(CARD, synced=False), unsynced) == []


# ---------------------------------------------------------------- kinds of nodes


def cpu_node(good: dict[str, Any]) -> dict[str, Any]:
    """The same machine without GPUs, and with fewer cores."""
    plain = {name: row for name, row in good.items() if not name.startswith("gpu.")}
    plain["gpu.count"] = dict(good["gpu.count"], value=0)
    return changed(plain, cpu__total=64)


def test_a_baseline_holds_each_kind_of_node_and_a_lost_gpu_makes_no_new_kind(
    good: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(tmp_path / "b.json")
    for node in (good, cpu_node(good), good):
        gate._learn_baseline(file, node, None)
    kinds = gate._read_baselines(file)
    assert len(kinds) == 2

    def problems(node: dict[str, Any]) -> list[str]:
        monkeypatch.setattr(gate, "collect", lambda **_: node.values())
        return [one["say"] for one in judged(baseline=file)["problems"]]

    assert problems(good) == [] and problems(cpu_node(good)) == []
    assert "gpu.count (GPUs) is 7 here, but the baseline expects 8" in problems(changed(good, gpu__count=7))
    monkeypatch.setattr(gate, "collect", lambda **_: good.values())
    said = judged(baseline=file, kind="h200x8")
    assert said["status"] == 2 and "knows no kind h200x8" in said["say"]


def test_an_old_baseline_is_that_of_one_kind(good: dict[str, Any], tmp_path: Path) -> None:
    old = gate.learned(good, 400.0)
    del old["nics"], old["clock"]
    (tmp_path / "b").write_text(json.dumps(old))
    kinds = gate._read_baselines(str(tmp_path / "b"))
    assert gate.baseline_of_node(changed(good, gpu__count=7), kinds) == (old, [])
    gate._learn_baseline(str(tmp_path / "b"), good, None)
    assert len(gate._read_baselines(str(tmp_path / "b"))) == 1


def test_the_verb_passes_on_what_the_agent_takes(tmp_path: Path) -> None:
    from ncclkit.cli.parser import command_parser
    from ncclkit.cli.verbs.gate import _gate_command

    words = ["gate", "--drain", "--state", "/s", "--mount", "/a", "--mount", "/b", "--kind", "x"]
    command = _gate_command(tmp_path, command_parser().parse_args(words))
    parsed = gate._parse_options(command[3:])
    assert (parsed.drain, parsed.state, parsed.mount, parsed.kind) == ("", "/s", ["/a", "/b"], "x")
    assert gate._parse_options(["--drain", "n7"]).drain == "n7" and gate._parse_options([]).drain is None
    with pytest.raises(ValueError, match="not the name of a node"):
        gate._parse_options(["--drain", "n[1-4]"])


# ---------------------------------------------------------------- the documented recipes

PAGE = (ROOT / "docs" / "gate.md").read_text()


def documented(kind: str) -> dict[str, Any]:
    """The YAML of that kind in docs/gate.md."""
    found = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.S)]
    (one,) = [document for document in found if document["kind"] == kind]
    return dict(one)


def gang_words(container: dict[str, Any], monkeypatch: pytest.MonkeyPatch, index: int) -> Any:
    """What the agent makes of the words of an init container."""
    words = [*container["command"], *container["args"]]
    if words[0] == "sh":
        words = words[2].replace("$((INDEX + 1))", str(index + 1)).split()[1:]
    assert words[:3] == ["python3", "/opt/ncclkit/agent.pyz", "gang"]
    monkeypatch.setenv("JOB_COMPLETION_INDEX", str(index))
    return gang._parse_options(words[3:])


def test_the_documented_kubernetes_files_start_the_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = documented("JobSet")["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    (container,) = spec["template"]["spec"]["initContainers"]
    parsed = gang_words(container, monkeypatch, 2)
    assert (parsed.number, parsed.nodes, parsed.write) == (2, spec["completions"], "/dev/termination-log")
    assert parsed.master == "train-workers-0-0.train"
    replicas = documented("PyTorchJob")["spec"]["pytorchReplicaSpecs"]
    ends = []
    for role, index in (("Master", 0), ("Worker", 0), ("Worker", 2)):
        (container,) = replicas[role]["template"]["spec"]["initContainers"]
        parsed = gang_words(container, monkeypatch, index)
        ends.append((parsed.number, parsed.nodes, parsed.port))
        assert [one["name"] for one in container["env"]] == ["SLURMD_NODENAME", "INDEX"]
    assert ends == [(0, 4, 30500), (1, 4, 30500), (3, 4, 30500)]
    (daemon,) = documented("DaemonSet")["spec"]["template"]["spec"]["containers"]
    (line,) = [line for line in daemon["args"][0].splitlines() if "agent.pyz" in line]
    parsed = gate._parse_options(line.split("agent.pyz gate ")[1].split())
    assert (parsed.state, parsed.baseline, parsed.drain) == ("/state", "/opt/ncclkit/baseline.json", None)


@pytest.mark.parametrize(("status", "nodes"), [(0, ""), (1, "--exclude=n3 --nodes=3 "), (2, None)])
def test_the_documented_batch_script_leaves_the_bad_node_out(tmp_path: Path, status: int, nodes: str | None) -> None:
    (script,) = re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    fake(
        tmp_path,
        f'echo "$@" >> {tmp_path}/asked\nfor last; do :; done\n'
        f'case "$*" in *gang*) echo n3 > "$last"; exit {status};; esac\n',
        "srun",
    )
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4"}
    done = subprocess.run(["/bin/sh", "-c", script], cwd=tmp_path, env=env, timeout=30, capture_output=True)
    started = [line for line in asked(tmp_path).splitlines() if "torchrun" in line]
    if nodes is None:
        assert done.returncode == 2 and started == []
    else:
        assert started == [f"{nodes}torchrun …"]
