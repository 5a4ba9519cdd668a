"""What follows from the facts of hosts alone: a risk, all clear, or unknown with the reason."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ncclkit.agent import facts as agent
from ncclkit.analysis.picks import failed
from ncclkit.causes import catalogue
from ncclkit.causes.resemblance import is_resembling
from ncclkit.causes.engine import diagnose
from ncclkit.causes.order import rank_findings
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Fact, Finding, NcclkitError, found
from ncclkit.core.resources import UNITS, set_job_spec
from ncclkit.evidence.samples import list_samples
from tests.causes.hosts import BAD, CLEAR, GOOD
from tests.causes.test_experiments import sound
from tests.record.machine import machine_at
from tests.recordings import sample

ROOT = Path(__file__).parents[2]
CHECKS = {cause: module.CHECK for cause, module in catalogue().items() if hasattr(module, "CHECK")}


def case(values: dict[str, Any], hosts: int = 1) -> Case:
    """A case of which nothing is known but these facts, on every one of the hosts."""
    empty = Case()
    empty.facts = [
        Fact(name, value, host=f"node-{n}", why="" if value is not None else "the file was shut")
        for n in range(1, hosts + 1)
        for name, value in values.items()
    ]
    return empty


def verdict(cause: str, values: dict[str, Any], hosts: int = 1) -> Finding:
    return catalogue()[cause].diagnose(case(values, hosts))


@pytest.mark.parametrize(
    ("cause", "strength", "bad", "words"), BAD, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_bad_fact_is_a_risk_for_a_job(cause: str, strength: str, bad: dict[str, Any], words: str) -> None:
    finding = verdict(cause, GOOD | bad)
    assert (finding.verdict, finding.strength, finding.culprits["hosts"]) == ("found", strength, ("node-1",))
    assert words in finding.say and finding.say.startswith("On node-1 ") and finding.say.endswith(".")
    assert len(finding.say) < 600 and (cause == "bad_env_value" or " would " in finding.say), "a risk, not a report"
    assert {piece.name for piece in finding.evidence if isinstance(piece, Fact)} & bad.keys()
    assert all(advice.do and advice.check and advice.risk for advice in finding.advice) and finding.advice
    assert finding.next is not None
    sound(cause, finding.next)


@pytest.mark.parametrize("cause", CHECKS)
def test_good_facts_are_clear(cause: str) -> None:
    finding = verdict(cause, GOOD)
    assert finding.verdict == "clear" and finding.say and finding.evidence


@pytest.mark.parametrize(("cause", "odd"), CLEAR)
def test_what_only_looks_bad_is_clear(cause: str, odd: dict[str, Any]) -> None:
    assert verdict(cause, GOOD | odd).verdict == "clear"


@pytest.mark.parametrize("cause", CHECKS)
def test_what_could_not_be_read_is_unknown_with_its_reason(cause: str) -> None:
    asked = [re.compile(re.escape(name).replace(r"\*", r"\w+")) for name in CHECKS[cause].reads]
    finding = verdict(cause, {name: None if any(r.fullmatch(name) for r in asked) else GOOD[name] for name in GOOD})
    assert finding.verdict == "unknown" and "the file was shut" in " ".join(finding.missing)


def test_the_facts_that_decide_are_facts_that_the_agent_documents() -> None:
    page = (ROOT / "docs" / "facts.md").read_text(encoding="utf-8")
    known = {re.sub(r"<\w+>", "*", name) for name in re.findall(r"^\| `([^`]+)`", page, re.M)}
    asked = {name for check in CHECKS.values() for name in check.reads + check.also}
    said = {f"job.{name}" for name in UNITS}
    assert all(f"`{name}`" in page for name in said)
    assert {name for name in asked - said if not name.startswith("env.NCCL_")} - known <= {
        "env.WORLD_SIZE",
        "env.SLURM_NTASKS",
        "env.SLURM_CPUS_PER_TASK",
        "env.OMP_PROC_BIND",
        "env.GOMP_CPU_AFFINITY",
        "env.SLURM_NNODES",
        "env.SLURM_JOB_ID",
    }


def test_every_cause_that_judges_facts_has_a_bad_one_here() -> None:
    assert set(CHECKS) - {cause for cause, *_ in BAD} == {"ifname_not_found"}


def test_no_interface_at_all() -> None:
    why = "no running interface with an address among no interface at all"
    bare = Case()
    bare.facts = [Fact("net.nccl.interface", host="node-1", why=why)]
    finding = catalogue()["ifname_not_found"].diagnose(bare)
    assert (finding.strength, finding.culprits["hosts"]) == ("likely", ("node-1",)) and why in finding.say
    assert finding.next is not None
    sound("ifname_not_found", finding.next)


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch", "different versions"),
        ("couldn't communicate with the NVIDIA driver", "cannot talk to the driver"),
    ],
)
def test_a_broken_nvidia_smi(why: str, words: str) -> None:
    broken = case({name: value for name, value in GOOD.items() if name != "gpu.nvidia_smi"})
    broken.facts.append(Fact("gpu.nvidia_smi", "failed", host="node-1", why=why))
    finding = catalogue()["driver_too_old"].diagnose(broken)
    assert finding.strength == "likely" and words in finding.say and why in finding.say


def test_what_nvidia_smi_warns_of_beside_its_answer() -> None:
    warned = case(GOOD)
    warned.facts = [fact for fact in warned.facts if fact.name != "gpu.nvidia_smi"]
    why = "WARNING: infoROM is corrupted at gpu 0000:5C:00.0"
    warned.facts.append(Fact("gpu.nvidia_smi", "answers", host="node-1", why=why))
    finding = catalogue()["gpu_hardware_error"].diagnose(warned)
    assert finding.strength == "possible" and why in finding.say


def test_a_folder_that_does_not_answer() -> None:
    stuck = case({name: value for name, value in GOOD.items() if not name.startswith("storage")})
    stuck.facts.append(Fact("storage.work.latency", host="node-1", why="child disk . did not answer within 3 s"))
    assert catalogue()["disk_or_io"].diagnose(stuck).strength == "likely"


def test_ptrace_is_named_where_a_stack_would_decide() -> None:
    missing = verdict("gil_hold", {"limits.ptrace_scope": 1}).missing[0]
    assert "limits.ptrace_scope = 1 on node-1" in missing


def test_hosts_that_differ_are_named_with_the_odd_one_first() -> None:
    hosts = case({"software.nccl": "2.27.5"}, hosts=8)
    hosts.facts[2] = Fact("software.nccl", "2.26.2", host="node-3")
    finding = catalogue()["version_mismatch"].diagnose(hosts)
    assert finding.culprits["hosts"] == ("node-3",)
    assert "2.26.2 on node-3, 2.27.5 on node-1 and 6 others" in finding.say


def test_a_thousand_hosts_share_a_sentence() -> None:
    finding = verdict("shm_too_small", GOOD | {"limits.shm.size": 64 << 20}, hosts=1000)
    assert finding.say.startswith("On node-1 and 999 other hosts /dev/shm has 64 MiB;")
    assert len(finding.culprits["hosts"]) == 1000 and len(finding.evidence) <= 8


def test_one_host_that_could_not_be_looked_at_keeps_all_from_being_clear() -> None:
    hosts = case(GOOD, hosts=2)
    hosts.facts = [Fact(f.name, None, host=f.host, why="no answer") if f.host == "node-2" else f for f in hosts.facts]
    finding = catalogue()["cpu_contention"].diagnose(hosts)
    assert finding.verdict == "unknown" and finding.missing[1] == "cpu.usable of node-2 (not read: no answer)"


def test_a_login_node_without_gpus_does_not_matter_to_gpus_and_a_mute_gpu_host_does() -> None:
    hosts = case(GOOD)
    hosts.facts += [Fact("gpu.count", 0, host="login"), Fact("gpu.nvidia_smi", "missing", host="login")]
    assert catalogue()["gpu_hardware_error"].diagnose(hosts).verdict == "clear"
    hosts.facts += [
        Fact("gpu.count", 8, host="node-2"),
        Fact("gpu.nvidia_smi", "failed", host="node-2", why="no driver"),
    ]
    assert catalogue()["gpu_hardware_error"].diagnose(hosts).verdict == "unknown"


TIB = 1 << 40
JOBS = [
    ("cpu_contention", "likely", {"workers": 48}, "2 ranks with 48 data-loader workers each are 98 processes"),
    ("cpu_contention", "possible", {"workers": 32}, "64 CPU cores are usable"),
    (
        "cpu_contention",
        "likely",
        {"workers": 8, "ranks": 16},
        "64 cores / 16 ranks - 1 for the rank itself = 3 workers",
    ),
    ("cpu_contention", "", {"workers": 31}, ""),
    ("host_oom", "likely", {"dataset": TIB / 2}, "2 copies of 512 GiB"),
    ("host_oom", "possible", {"dataset": 0.215 * TIB}, "needs 440 GiB"),
    (
        "host_oom",
        "likely",
        {"workers": 16, "prefetch": 4, "batch": 4 << 30},
        "2 ranks x 16 workers x 4 batches of 4 GiB",
    ),
    ("host_oom", "", {"dataset": TIB / 8, "workers": 8}, ""),
]


@pytest.mark.parametrize(("cause", "strength", "job", "words"), JOBS)
def test_the_job_that_the_user_has_in_mind(cause: str, strength: str, job: dict[str, float], words: str) -> None:
    host = set_job_spec(case(GOOD), job)
    finding = catalogue()[cause].diagnose(host)
    assert (finding.strength or "") == strength and finding.verdict == ("found" if strength else "clear")
    assert words in finding.say + "".join(advice.why for advice in finding.advice)
    assert catalogue()[cause].diagnose(set_job_spec(host, {})).verdict == "clear", "what was said before is forgotten"


@pytest.mark.parametrize("job", [{"workers": -1}, {"gpus": 2}, {"dataset": "1 TB"}, {"ranks": True}])
def test_a_job_that_cannot_be(job: dict[str, Any]) -> None:
    with pytest.raises(NcclkitError, match="The job cannot have"):
        set_job_spec(Case(), job)


MACHINES = {
    "cpu-vm": set(),
    "h200-x4": set(),
    "h100-x8": set(),
    "container": {"shm_too_small"},
    "driver-mismatch": {"driver_too_old"},
    "h200-x8-slurm": {"gpu_hardware_error", "nvswitch_fabric", "gpu_oom", "slow_transport", "cpu_binding"},
    "hung-smi": {"shm_too_small", "gpu_hardware_error", "fd_limit", "host_oom", "cpu_contention", "disk_or_io"},
    "rdma-misnamed": {
        *("ifname_not_found", "bad_env_value", "memlock_limit", "disk_or_io", "driver_too_old", "ib_not_used")
    },
    "rtx4090-x2-roce": {
        *("memlock_limit", "bad_env_value", "ib_not_used", "p2p_broken", "ib_link_error", "fd_limit", "ib_config"),
        "slow_transport",
    },
}


@pytest.mark.parametrize("name", MACHINES)
def test_captured_machines_have_the_risks_that_are_known_of_them(name: str) -> None:
    machine = Case()
    rows = agent.collect(machine=machine_at(str(ROOT / "tests" / "machines" / name)), paths={"work": "."})
    machine.facts = [Fact(**row, host=name) for row in rows]
    result = diagnose(machine)
    assert {finding.cause for finding in result.findings if finding.cause in CHECKS} == MACHINES[name]
    assert not [missing for f in result.unknown for missing in f.missing if "check itself failed" in missing]


@pytest.mark.slow
@pytest.mark.parametrize("name", list_samples())
def test_risks_change_nothing_in_the_judgement_of_a_job(name: str) -> None:
    """Every bad fact of this page, each on a host of its own: the causes that the job shows keep place and strength."""
    job = sample(name)
    shown = [f for f in diagnose(job).findings if not is_resembling(f)]
    before = [(f.cause, f.strength, f.culprits["ranks"]) for f in shown]
    for number, (_, _, bad, _) in enumerate(BAD):
        job.facts += [Fact(fact, value, host=f"spare-{number}") for fact, value in (GOOD | bad).items()]
    after = diagnose(job).findings
    # what a job merely resembles gives way to a risk of the same cause
    still = [(f.cause, f.strength, f.culprits["ranks"]) for f in after if not is_resembling(f)]
    assert still[: len(before)] == before
    if failed(job):
        assert {strength for _, strength, _ in still[len(before) :]} <= {"possible"}


def test_a_risk_stands_below_what_a_job_has_said_and_explains_no_other_risk() -> None:
    def finding(cause: str, piece: Event | Fact) -> Finding:
        return found(cause, "likely", "Because.", [piece])

    risks = [finding("shm_too_small", Fact("limits.shm.size", 1)), finding("host_oom", Fact("memory.total", 1))]
    order = rank_findings([*risks, finding("port_in_use", Event("x", "job", "job.log", 1))])
    assert [f.cause for f in order] == ["port_in_use", "shm_too_small", "host_oom"]
    assert [f.cause for f in rank_findings([*risks, finding("rank_killed", Event("x", "job", "job.log", 1))])][
        0
    ] == "shm_too_small"


@pytest.mark.parametrize(("hosts", "words"), [(1, "another host would not"), (2, "the other hosts would not")])
def test_an_own_name_that_leads_to_loopback(hosts: int, words: str) -> None:
    own = {"net.hostname.addresses": ["127.0.1.1"], "net.gloo.interface": "lo"}
    finding = catalogue()["hostname_resolution"].diagnose(case(GOOD | own, hosts))
    assert finding.strength == "possible" and words in finding.say
    assert finding.say.startswith("Hostname node-1 resolves to 127.0.1.1 on itself")
    assert finding.advice[0].env == ({"GLOO_SOCKET_IFNAME": "eth0"} if hosts == 1 else {}), "names may differ"


@pytest.mark.parametrize(
    ("name", "addresses", "words"),
    [
        ("node-1", ["::1"], "resolves to ::1 on itself, so gloo there would use lo"),
        ("node-1", ["10.0.0.9"], "resolves to 10.0.0.9 on itself, which is not one of its addresses, so gloo"),
        ("12345", ["0.0.48.57"], "which is not one of its addresses (digits alone are read as a number), so gloo"),
    ],
)
def test_an_own_name_that_leads_astray(name: str, addresses: list[str], words: str) -> None:
    rows = [{"name": "eth0", "addresses": ["10.0.0.2/24", "fd00::2/64"]}]
    values = {"net.hostname.addresses": addresses, "net.gloo.interface": "lo", "net.interfaces": rows}
    known = Case()
    known.facts = [Fact(fact, value, host=name) for fact, value in (GOOD | values).items()]
    assert words in catalogue()["hostname_resolution"].diagnose(known).say
    own = {"net.hostname.addresses": ["fd00::2"], "net.gloo.interface": "eth0", "net.interfaces": rows}
    assert catalogue()["hostname_resolution"].diagnose(case(GOOD | own)).verdict == "clear"


def test_a_job_of_one_host_does_not_mind_its_name() -> None:
    here = case({"net.hostname.addresses": ["127.0.1.1"], "net.gloo.interface": "lo"})
    here.events = [Event("worker.phase", "", data={"phase": "done"})]
    assert catalogue()["hostname_resolution"].diagnose(here).verdict == "clear"


def test_too_little_memory_is_asked_of_the_machine_and_swap_of_a_job() -> None:
    remote = {"memory.swap": [{"device": "/s", "size": 1, "storage": "file on nfs4"}]}
    asked = verdict("host_oom", GOOD | {"memory.total": 6 << 30}).next
    assert asked and asked.plan == {"check": "resources"} and asked.expects["host_oom"] == "found"
    asked = verdict("host_oom", GOOD | remote).next
    assert asked and asked.plan == {"ranks": 1}
