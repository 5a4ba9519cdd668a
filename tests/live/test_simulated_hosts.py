"""Simulated hosts: they see each other and nothing else, their faults are found, and nothing of them is left behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.core.runs import Plan
from ncclkit.experiments.fixes import close, fix
from ncclkit.lab.faults import injection
from ncclkit.live import connect, simulated_hosts
from ncclkit.live.launch import simulated
from tests.namespaces import cannot_simulate

pytestmark = pytest.mark.usefixtures("warm_ranks")

ROOT = Path(__file__).parents[2]
WHY_NOT = cannot_simulate()
possible = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "they can be simulated here")


MARK = "NCCLKIT_TEST_OF"
"""Variable that everything inherits which a test starts."""


def living(mark: str) -> list[int]:
    """Pids of the processes of one test."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue  # ended meanwhile, or another user's
    return found


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """When a test is over, nothing that it started lives, and this machine's network is as it was."""
    for name in connect.HANDED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(MARK, value := uuid.uuid4().hex)
    before = sorted(os.listdir("/sys/class/net"))
    yield value
    until = time.monotonic() + 20
    while living(value) and time.monotonic() < until:
        time.sleep(0.1)
    assert living(value) == [] and sorted(os.listdir("/sys/class/net")) == before


LOOKS = {
    "": ({}, ""),
    "blocked": ({}, "Port 29500 of node-1 at 192.168.77.1 does not answer when node-2 asks, while another port"),
    "bridge": ({}, "would use br-lab (172.20.0.1), which reaches the asking host itself when node-1 asks"),
    "drops": ({}, "Of what node-2 sends to node-1"),
    "slow": ({}, "What node-2 sends to node-1 passes at 0.02"),
    "own_name": ({}, "Hostname node-2 resolves to 127.0.1.1 on itself, so gloo there would use lo"),
    "other_name": ({"NCCL_SOCKET_IFNAME": "eth0"}, "NCCL_SOCKET_IFNAME=eth0 matches no network interface on node-2"),
}
"""What is wrong with the network → variables of the job, and words of what a connection test finds."""


@possible
@pytest.mark.parametrize("wrong", LOOKS)
def test_a_look_at_the_way_between_the_hosts(tmp_path: Path, wrong: str) -> None:
    case, (env, words) = Case.open(tmp_path), LOOKS[wrong]
    if wrong == "drops" and not shutil.which("nft"):
        pytest.skip("nftables is not installed")
    seconds = 0.2 if wrong in ("drops", "slow") else 0.02  # enough packets to count, beside other tests, too
    found = asyncio.run(simulated_hosts.connectivity(case, {"wrong": wrong}, env=env, seconds=seconds))
    assert list(found.hosts) == ["node-1", "node-2"]
    assert [words in finding.say for finding in diagnose(case).findings] == ([True] if words else [])


@possible
def test_a_host_is_looked_at_when_its_links_carry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells that some time after it was asked to set them up; NCCL would find no interface until then."""
    late = "(sleep 0.5; ip link set vm1 up) >/dev/null 2>&1 &"
    setup = [
        ["ip", "link", "add", "vm0", "type", "veth", "peer", "name", "vm1"],
        ["ip", "link", "set", "vm0", "up"],
        ["sh", "-c", late],
    ]
    monkeypatch.setitem(simulated.WRONG, "late", lambda made: made["node-1"]["setup"].extend(setup))
    case = Case.open(tmp_path)
    asyncio.run(simulated_hosts.minimal(case, "late"))
    rows = next(fact.value for fact in case.facts_of("net.interfaces") if fact.host == "node-1")
    assert {row["name"]: row["state"] for row in rows if row["name"] in ("eth0", "vm0")} == {"eth0": "up", "vm0": "up"}


@possible
def test_what_fixes_a_network_is_seen_by_the_same_test(tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    found = asyncio.run(simulated_hosts.connectivity(case, {"wrong": "narrow"}, fix="network_loss", seconds=0.02))
    assert {(link.mtu, link.mtu_own, link.trouble) for link in found.links} == {(1400, 1400, "")}
    assert not diagnose(case).findings


@possible
def test_a_way_that_is_merely_slow_is_suspected_by_its_numbers_found_by_a_check_and_fixed(tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    asyncio.run(injection.inject(case, "slow_link", ranks=2))
    first = diagnose(case).findings[0]
    assert (first.cause, first.strength, first.culprits["hosts"]) == ("network_loss", "possible", ("node-1", "node-2"))
    looked, fixed = asyncio.run(close(case))
    assert (looked.observed, fixed.change, fixed.worked) == ("found", {"fix": "network_loss"}, True)
    assert "What node-2 sends to node-1 passes at 0.02" in looked.summary or "node-2" in diagnose(case).findings[0].say


@possible
def test_a_minimal_all_reduce_is_right_and_no_faster_than_the_way_between_the_hosts(tmp_path: Path) -> None:
    run = asyncio.run(simulated_hosts.minimal(Case.open(tmp_path), "slow"))
    assert run.reason == "done" and {(m.wrong, m.hosts, m.ranks) for m in run.measurements} == {(0, 2, 2)}
    assert 0 < (run.measurements[-1].busbw or 0) < 0.05  # 200 Mbit/s are 0.025 GB/s; the bucket lets a little more by


@possible
def test_a_broken_job_of_two_hosts_is_found_and_fixed(tmp_path: Path) -> None:
    """The store of the first host listens at an address that the second has no way to."""
    case = Case.open(tmp_path)
    asyncio.run(injection.inject(case, "master_unreachable", ranks=2, timeout=6))
    first = diagnose(case).findings[0]
    assert (first.cause, first.strength, first.culprits["hosts"]) == ("store_unreachable", "proven", ("node-1",))
    assert "the address is mgmt0 of node-1, in a network to which node-2 has no interface" in first.say
    assert asyncio.run(fix(case)).worked


@pytest.mark.parametrize("fault", ["ifname_missing_on_one"])
def test_where_hosts_cannot_be_simulated_the_recording_stands_in_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # there is no `ip` there
    case = Case.open(tmp_path / "case")
    run = asyncio.run(injection.inject(case, fault, python=sys.executable))
    assert "this is the bundled recording of it" in run.summary and "No such file or directory: 'ip'" in run.summary
    first = diagnose(case).findings[0]
    assert (first.cause, first.culprits["hosts"]) == (injection.fault(fault).cause, injection.fault(fault).hosts)
    with pytest.raises(NcclkitError, match="cannot be simulated on this machine"):
        asyncio.run(simulated_hosts.again(case, Case.open(tmp_path / "room")))
    small = asyncio.run(simulated_hosts.minimal(Case.open(tmp_path / "small")))
    assert not small.measurements and "cannot be simulated on this machine" in small.summary
    with pytest.raises(NcclkitError, match="cannot be simulated on this machine"):
        asyncio.run(fix(case))


@possible
def test_hosts_end_with_the_workbook_that_is_killed(tmp_path: Path, mark: str) -> None:
    """In the middle of a stream of ten minutes; that no process and no interface is left, the fixture looks."""
    code = (
        "import asyncio, sys\nfrom ncclkit.live import simulated_hosts\nfrom ncclkit.core.case import Case\n"
        "asyncio.run(simulated_hosts.connectivity(Case.open(sys.argv[1]), {}, print, seconds=600))\n"
    )
    words = [sys.executable, "-u", "-c", code, str(tmp_path)]
    env = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=env) as workbook:
        assert workbook.stdout is not None
        assert any("measuring" in line for line in workbook.stdout) and len(living(mark)) > 3
        workbook.send_signal(signal.SIGKILL)


def test_a_network_that_does_not_exist_is_one_sentence() -> None:
    with pytest.raises(NcclkitError, match="no network with 'rain' wrong; there are other_name, "):
        simulated.network_of({"wrong": "rain"})


def test_ranks_must_divide_over_the_hosts(tmp_path: Path) -> None:
    run = simulated.run_on_simulated_hosts(Plan("job", ("train",), 3, "gloo", sys.executable, 5, network={"hosts": 2}), tmp_path)
    with pytest.raises(NcclkitError, match="3 ranks do not divide over 2 hosts"):
        asyncio.run(run)


def test_where_no_hosts_can_be_simulated_the_case_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(case: Case, net: object) -> None:
        raise simulated.Impossible("Simulated hosts take root.")

    monkeypatch.setattr(simulated_hosts, "connectivity", refused)
    case = asyncio.run(simulated_hosts.connection_test(Case()))
    assert case.about["problems"] == ["Simulated hosts take root."]
