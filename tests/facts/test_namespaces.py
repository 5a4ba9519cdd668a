"""Real faults of real networks between hosts (network namespaces): each is found, each corrected setting is clear."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import Finding
from ncclkit.live import connect
from tests.namespaces import Host, hosts, needs_namespaces, via

pytestmark = needs_namespaces

Act = Callable[[list[Host]], Any]


@pytest.fixture(scope="module")
def pair() -> Iterator[list[Host]]:
    with hosts(2) as made:
        yield made


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in connect.HANDED:
        monkeypatch.setenv(name, "")  # a name that was not set before is then taken away again, whatever a fault set
        monkeypatch.delenv(name)


def judged(case: Case, made: list[Host]) -> tuple[list[Finding], dict[str, Finding]]:
    """What a connection test between these hosts lets the catalogue find, and every verdict."""
    asyncio.run(connect.connectivity(case, **via(made), seconds=0.02, python=sys.executable))
    return list(diagnose(case).findings), {finding.cause: finding for finding in case.findings}


def names(made: list[Host], address: str) -> None:
    """Host 2 knows itself by this address."""
    made[1].names({made[0].name: made[0].address, made[1].name: address})


def strangers(made: list[Host]) -> None:
    """Host 2 has never heard of host 1."""
    made[1].names({made[1].name: made[1].address})


def mtu(size: int) -> Act:
    return lambda made: made[0].ip("link", "set", "eth0", "mtu", str(size))


def flush(made: list[Host]) -> None:
    made[1].ip("addr", "flush", "dev", "eth0")


def restore(made: list[Host]) -> None:
    made[1].ip("addr", "add", f"{made[1].address}/24", "dev", "eth0")


def known(made: list[Host]) -> None:
    names(made, made[1].address)


def variable(name: str, value: str | None) -> Act:
    return lambda made: os.environ.update({name: value}) if value else os.environ.pop(name)


def shadows(made: list[Host]) -> None:
    for host in made:
        host.shadow("br-vm", "172.20.0.1/16")


FAULTS: dict[str, tuple[str, Act, Act, str]] = {
    "blocked port": (
        "store_unreachable",
        lambda made: made[1].block(29500),
        lambda made: made[1].unblock(),
        "Port 29500 of {2} at 10.77.0.2 does not answer when {1} asks, while another port there is open",
    ),
    "differing MTU": (
        "network_loss",
        mtu(9000),
        mtu(1500),
        "packets of 9000 bytes, which {1} may send, get lost and those of 150",
    ),
    "own name leads to 127": (
        "hostname_resolution",
        lambda made: names(made, "127.0.1.1"),
        known,
        "Hostname {2} resolves to 127.0.1.1 on itself, so gloo there would use lo",
    ),
    "a name that does not resolve": ("hostname_resolution", strangers, known, "On {2} hostname {1} does not resolve"),
    "no address": ("wrong_interface", flush, restore, "NCCL on {2} would use lo, which no other host can reach"),
    "wrong interface name for NCCL": (
        "ifname_not_found",
        variable("NCCL_SOCKET_IFNAME", "eth9"),
        variable("NCCL_SOCKET_IFNAME", None),
        "NCCL_SOCKET_IFNAME=eth9 matches no network interface on {1}; it has eth0",
    ),
}
"""What is wrong → the cause, how to break it, how to mend it, and words of the finding ({1} and {2} are the hosts)."""
BRIDGE = (
    "would use br-vm (172.20.0.1), which reaches the asking host itself when {1} asks (and 1 more path); "
    "eth0 (10.77.0.2) can be reached"
)


def is_found(case: Case, made: list[Host], cause: str, words: str) -> None:
    found, _ = judged(case, made)
    assert found[0].cause == cause, [str(finding) for finding in found]
    assert words.replace("{1}", made[0].name).replace("{2}", made[1].name) in found[0].say


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found(pair: list[Host], tmp_path: Path, fault: str) -> None:
    cause, breaks, mends, words = FAULTS[fault]
    breaks(pair)
    try:
        is_found(Case.open(tmp_path), pair, cause, words)
    finally:
        mends(pair)


@pytest.mark.usefixtures("clean")
def test_when_all_are_fixed_each_is_clear(pair: list[Host], tmp_path: Path) -> None:
    """Those above have been there, and were mended."""
    found, verdicts = judged(Case.open(tmp_path), pair)
    assert [str(finding) for finding in found] == []
    assert {verdicts[cause].verdict for cause, *_ in FAULTS.values()} == {"clear"}


@pytest.mark.usefixtures("clean")
def test_a_bridge_that_shadows_the_real_interface_is_found_and_with_the_variable_clear(
    pair: list[Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one: the bridge stays."""
    case = Case.open(tmp_path)
    shadows(pair)
    is_found(case, pair, "wrong_interface", BRIDGE)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth0")
    found, verdicts = judged(case, pair)
    assert [str(finding) for finding in found] == [] and verdicts["wrong_interface"].verdict == "clear"
