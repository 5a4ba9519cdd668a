"""Which interface NCCL took, beside what the hosts say that they have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ncclkit import evidence
from ncclkit.causes import ifname_not_found, wrong_interface
from ncclkit.core.case import Case
from ncclkit.core.model import Fact, Finding, Strength
from ncclkit.evidence.samples import HERE
from tests.causes.specimens import ROOT, load
from tests.recordings import TWO_HOSTS
from tests.causes.test_samples import judged as of_recording

LOG = """{host}:11:11 [0] NCCL INFO Bootstrap: Using {taken}<0>
{host}:11:11 [0] NCCL INFO NET/Socket : Using [0]{taken}<0>{more}
"""
FAILED = "node-2:11:11 [0] misc/socket.cc:596 NCCL WARN socketStartConnect: Connect to {to}<45545> failed : {why}\n"


def judged(
    folder: Path,
    first: dict[str, str],
    second: dict[str, str],
    taken: str,
    to: str,
    why: str,
    more: str = "",
    ended: bool = False,
) -> Finding:
    """Of two hosts with these interfaces, of which the first took one and the second knocked at an address."""
    case = Case()
    lines = LOG.format(host="node-1", taken=taken, more=more) + (FAILED.format(to=to, why=why) if to else "")
    lines += "node-1:11:11 [0] NCCL INFO comm 0x1 rank 0 nranks 2 - Destroy COMPLETE\n" if ended else ""
    (folder / "job.log").write_text(lines)
    case.add(evidence.read([folder / "job.log"]).events)
    for host, own in (("node-1", first), ("node-2", second)):
        rows = [{"name": name, "state": "up", "addresses": [address]} for name, address in own.items()]
        case.add([Fact("net.interfaces", rows, host=host)])
    return wrong_interface.diagnose(case)


JOINED = {"eth0": "10.1.0.1/24"}, {"eth0": "10.1.0.2/24"}
UNREACHABLE, REFUSED = "Network is unreachable", "Connection refused"


@pytest.mark.parametrize(
    ("own", "other", "taken", "to", "why", "strength"),
    [
        ({"mgmt0": "10.9.0.1/24"}, {}, "mgmt0:10.9.0.1", "10.9.0.1", UNREACHABLE, "proven"),
        ({"mgmt0": "10.9.0.1/24"}, {}, "mgmt0:10.9.0.1", "10.9.0.1", REFUSED, "likely"),
        ({"mgmt0": "10.9.0.1/24"}, {}, "mgmt0:10.9.0.1", "10.9.0.11", REFUSED, "likely"),
        ({"br-a": "10.9.0.1/24"}, {"br-a": "10.9.0.1/24"}, "br-a:10.9.0.1", "10.9.0.1", REFUSED, "proven"),
        ({"br-a": "10.9.0.1/24"}, {"br-a": "10.9.0.1/24"}, "br-a:10.9.0.1", "10.9.0.11", REFUSED, "likely"),
    ],
)
def test_what_nobody_else_reaches(
    tmp_path: Path, own: dict[str, str], other: dict[str, str], taken: str, to: str, why: str, strength: Strength
) -> None:
    found = judged(tmp_path, JOINED[0] | own, JOINED[1] | other, taken, to, why)
    assert found.strength == strength and taken.partition(":")[0] in found.say
    assert found.culprits["hosts"] == (("node-1", "node-2") if other else ("node-1",))
    assert found.advice[0].env["NCCL_SOCKET_IFNAME"] == "eth0"


def test_the_second_of_two_cards_counts_too(tmp_path: Path) -> None:
    own = {"mgmt0": "10.9.0.1/24"}
    found = judged(
        tmp_path, JOINED[0] | own, JOINED[1], "eth0:10.1.0.1", "10.9.0.1", UNREACHABLE, " [1]mgmt0:10.9.0.1<0>"
    )
    assert found.strength == "proven" and "mgmt0" in found.say


def test_a_fabric_that_routes_between_networks_of_one_host_each_is_not_accused(tmp_path: Path) -> None:
    found = judged(tmp_path, {"eth0": "10.1.0.1/31"}, {"eth0": "10.1.0.3/31"}, "eth0:10.1.0.1", "10.1.0.1", REFUSED)
    assert "no other host of the job" not in found.say


@pytest.mark.parametrize(("to", "ended"), [("", False), ("10.9.0.1", True)])
def test_nothing_is_said_of_a_job_that_works(tmp_path: Path, to: str, ended: bool) -> None:
    own = {"mgmt0": "10.9.0.1/24"}
    found = judged(tmp_path, JOINED[0] | own, JOINED[1], "mgmt0:10.9.0.1", to, UNREACHABLE, ended=ended)
    assert "no other host of the job" not in found.say


@pytest.mark.parametrize("device", ["virbr0", "mgmt0"])
def test_what_is_there_and_did_no_harm_is_not_accused(tmp_path: Path, device: str) -> None:
    """A job that fails of something else, on hosts with a further interface that nobody knocked at."""
    own = {device: "10.9.0.1/24"}
    other = own if device == "virbr0" else {}
    found = judged(
        tmp_path, JOINED[0] | own, JOINED[1] | other, "eth0:10.1.0.1", "10.1.0.7", REFUSED, f" [1]{device}:10.9.0.1<0>"
    )
    assert device not in found.say


@pytest.mark.parametrize(
    ("folder", "says", "list_"),
    [
        (TWO_HOSTS, "List the interfaces that join the hosts in NCCL_SOCKET_IFNAME: eth0 on node-1", "eth0,ens3"),
        (HERE, "Name on each host the interface that joins it to the others: ens3 on node-2", "ens3,eth0"),
    ],
    ids=("nccl", "gloo"),
)
def test_the_advice_is_of_the_library_that_found_none(folder: Path, says: str, list_: str) -> None:
    """The variables of both are set: NCCL takes a list for all hosts, gloo one name of each or none."""
    (advice,) = of_recording(folder / "ifname_missing_on_one")[0].findings[0].advice
    assert advice.do.startswith(says) and "unset GLOO_SOCKET_IFNAME" in advice.do
    assert advice.env == {"NCCL_SOCKET_IFNAME": list_} and advice.change == {"unset": ["GLOO_SOCKET_IFNAME"]}
    assert advice.command == "unset GLOO_SOCKET_IFNAME"


@pytest.mark.parametrize(
    ("folder", "variable"), [("found-gloo", "GLOO_SOCKET_IFNAME"), ("found-facts", "NCCL_SOCKET_IFNAME")]
)
def test_the_variable_that_is_the_fault_is_unset_first(folder: str, variable: str) -> None:
    """Also where another interface is known, which is the second choice."""
    found = ifname_not_found.diagnose(load(ROOT / "ifname_not_found" / folder))
    first, *others = found.advice
    assert found.strength == "proven" and first.command == f"unset {variable}"
    assert first.change == {"unset": [variable]} and not first.env
    assert [dict(advice.env) for advice in others] == ([{variable: "eth0"}] if folder == "found-facts" else [])


def test_gloo_on_a_bridge_is_told_gloos_variable() -> None:
    """Not NCCL's, which gloo does not read."""
    case = load(ROOT / "wrong_interface" / "found-gloo-bridge")
    rows = [f for f in case.facts if f.name == "net.interfaces"]
    bridge = [row for row in rows[0].value if row["name"] == "br-vm"]
    case.facts = [replace(f, value=bridge) if f in rows else f for f in case.facts]  # nothing else joins the hosts
    case.facts.append(Fact("env.GLOO_SOCKET_IFNAME", "br-vm", host=rows[0].host))
    (advice,) = wrong_interface.diagnose(case).advice
    assert advice.command == "unset GLOO_SOCKET_IFNAME" and not advice.env
    case.facts.pop()
    assert "GLOO_SOCKET_IFNAME" in wrong_interface.diagnose(case).advice[0].command


def test_the_host_that_is_alone_in_its_network_is_named(tmp_path: Path) -> None:
    """Of four hosts, three in one network: the sentence must not be about those three."""
    addresses = ("eth0:10.1.0.1", "eth0:10.1.0.2", "eth0:10.1.0.3", "mgmt0:10.9.0.4")
    lines = [LOG.format(host=f"node-{n}", taken=taken, more="") for n, taken in enumerate(addresses, 1)]
    lines.append(FAILED.format(to="10.9.0.4", why="Connection timed out"))
    (tmp_path / "job.log").write_text("".join(lines))
    case = Case()
    case.add(evidence.read([tmp_path / "job.log"]).events)
    found = wrong_interface.diagnose(case)
    assert found.say == (
        "The nodes use interfaces of different networks: node-1 eth0 (10.1.0.1), node-4 mgmt0 (10.9.0.4)."
    )
