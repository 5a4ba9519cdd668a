"""Connection tests between real hosts (network namespaces): they measure, and leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.live import connect
from tests.namespaces import Host, hosts, needs_namespaces, run, via
from tests.processes import leftovers

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made() -> Iterator[list[Host]]:
    with hosts(3) as three:
        yield three


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in connect.HANDED:
        monkeypatch.delenv(name, raising=False)
    yield
    until = time.monotonic() + 20
    while leftovers() and time.monotonic() < until:
        time.sleep(0.1)
    assert leftovers() == []


def asked(case: Case, given: list[Host], **choices: Any) -> connect.Connectivity:
    return asyncio.run(connect.connectivity(case, **via(given) | {"seconds": 0.02, "python": sys.executable} | choices))


@needs_namespaces
def test_all_paths_between_three_hosts(made: list[Host], tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    found = asked(case, made)
    assert found.summary.startswith("All 6 paths between 3 hosts are open: at least ")
    for link in found.links:
        assert (link.rendezvous, link.ephemeral, link.nccl, link.over) == ("open", "open", "open", link.address)
        assert link.mtu == link.mtu_own == 1500
        assert link.bandwidth and link.latency and link.offset_error
        assert link.offset is not None and abs(link.offset) <= link.offset_error  # one clock: within its error
    assert {f.host for f in case.facts} == {host.name for host in made}
    assert repr(connect.results(Case.open(tmp_path))) == found.summary
    assert not diagnose(case).findings


@needs_namespaces
def test_a_port_that_is_taken(made: list[Host], tmp_path: Path) -> None:
    code = "import socket, sys; s = socket.create_server(('', 29500)); print('up', flush=True); sys.stdin.read()"
    holder = subprocess.Popen(
        [*made[0].prefix, sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout and holder.stdout.readline()
        case = Case.open(tmp_path)
        asked(case, made[:2])
    first, *others = diagnose(case).findings
    assert (first.cause, first.culprits["hosts"], others) == ("port_in_use", (made[0].name,), [])
    assert f"Port 29500 on {made[0].name} is already taken" in first.say


@needs_namespaces
def test_a_host_that_cannot_be_asked_is_unknown_and_the_others_are_measured(made: list[Host], tmp_path: Path) -> None:
    case = Case.open(tmp_path)
    found = asked(case, [*made[:2], Host("nk-nobody", "10.77.0.9", made[0].room)])
    assert found.summary.startswith(
        f"nk-nobody is unreachable: it ended: nsenter: cannot open {made[0].room}/nk-nobody"
    )
    assert [link.trouble for link in found.links if "nk-nobody" not in (link.src, link.dst)] == ["", ""]
    assert {finding.cause for finding in diagnose(case).clear} & {"store_unreachable", "network_loss"} == set()


@needs_namespaces
def test_something_else_answers_instead_of_the_peer(tmp_path: Path) -> None:
    words = "sh -c 'echo hello {host}; exit 3'"
    task = connect.connectivity(Case.open(tmp_path), ["a", "b"], remote_command=words, python=sys.executable)
    found = asyncio.run(task)
    assert [host.problem.split(":")[0] for host in found.hosts.values()] == ["it ended", "it ended"]


@needs_namespaces
def test_the_command(made: list[Host], tmp_path: Path) -> None:
    def ask(*argv: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "ncclkit", "connect", *argv, "--case", str(tmp_path / "case")]
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.run(words, capture_output=True, text=True, timeout=100, cwd=tmp_path, env=environ)

    names = [host.name for host in made[:2]]
    done = ask(*names, "--remote-command", via(made)["remote_command"], "--train-python", sys.executable, "--json")
    assert done.returncode == 0, done.stderr
    kinds = [json.loads(line)["kind"] for line in done.stdout.splitlines()]
    assert kinds == ["connect.host"] * 2 + ["connect.pair"] * 2
    assert done.stderr.split("\n")[:3] == [
        "  starting 2 hosts",
        "  asking for names and ports",
        "  measuring, round 1 of 1",
    ]
    refused = ask("--remote-command", "ssh", "--", "-oProxyCommand=x", "b")
    assert refused.returncode == 2 and refused.stderr.startswith("ncclkit: '-oProxyCommand=x' is not a host name")


@needs_namespaces
@pytest.mark.parametrize("how", ["cancel", "kill"])
def test_nothing_runs_on_when_the_user_ends_it(made: list[Host], tmp_path: Path, how: str) -> None:
    """In the middle of a stream of ten minutes; what was known is kept where the workbook lives on."""
    code = (
        "import asyncio, sys\nfrom ncclkit.live import connect\nfrom ncclkit.core.case import Case\n"
        "case = Case.open(sys.argv[1])\ntask = connect.connectivity(case, sys.argv[4:], remote_command=sys.argv[2], "
        "python=sys.argv[3], seconds=600, deadline=900)\nasyncio.run(task)\n"
    )
    names = [host.name for host in made]
    argv = [sys.executable, "-c", code, str(tmp_path), via(made)["remote_command"], sys.executable, *names]
    before = _received(made)
    workbook = subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE)
    until = time.monotonic() + 60
    while _received(made) < before + 50e6 and time.monotonic() < until:
        time.sleep(0.05)
    assert _received(made) >= before + 50e6
    workbook.send_signal(signal.SIGINT if how == "cancel" else signal.SIGKILL)
    workbook.communicate(timeout=60)
    until = time.monotonic() + 30
    while any(host.pids() for host in made) and time.monotonic() < until:
        time.sleep(0.05)
    assert [host.pids() for host in made] == [set(), set(), set()]
    if how == "cancel":
        found = connect.results(Case.open(tmp_path))
        assert {link.rendezvous for link in found.links} == {"open"} and len(found.hosts) == 3


def _received(made: list[Host]) -> int:
    """Bytes that came over the network."""
    return sum(int(run(*host.prefix, "cat", "/sys/class/net/eth0/statistics/rx_bytes")) for host in made)
