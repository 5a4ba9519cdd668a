"""Connection tests without connections: who meets whom, what may be a host, what the records say."""

from __future__ import annotations

import asyncio
import shlex
import socket
import time
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from ncclkit.agent.connect import session, worker
from ncclkit.agent.connect.worker import Listener
from ncclkit.agent.run.stages import round_robin
from ncclkit.core import connections
from ncclkit.core.case import Case
from ncclkit.core.model import Event, NcclkitError
from ncclkit.evidence import KINDS
from ncclkit.live import connect


@pytest.mark.parametrize("count", [2, 3, 8, 9, 64])
def test_everybody_meets_everybody_once_and_nobody_twice_at_a_time(count: int) -> None:
    made = round_robin(count)
    met = [frozenset(two) for pairs in made for two in pairs]
    assert len(met) == len(set(met)) == count * (count - 1) // 2
    assert all(len({name for two in pairs for name in two}) == 2 * len(pairs) for pairs in made)
    assert len(made) == count - 1 + count % 2


def test_the_kinds_and_the_agent_agree_on_the_fields() -> None:
    assert KINDS["connect.host"].__struct_fields__ == session.HOST_FIELDS and KINDS["connect.pair"].__struct_fields__ == session.PAIR_FIELDS


@pytest.mark.parametrize("addresses", [["127.0.0.1/8"], ["::1/128", "fe80::1%eth0/64", "169.254.0.3/16"], [], None])
def test_addresses_that_no_other_host_reaches(addresses: Any) -> None:
    assert session.routable(addresses) == []


def test_ssh_gets_words_that_its_shell_reads_as_they_were() -> None:
    argv = connect.worker_commands(["me@node-1"], "ssh", "/opt/my python/bin/python")[
        "node-1"
    ]  # as the other hosts know it
    assert argv[: len(connect.SSH)] == [*connect.SSH[:-1], "me@node-1"] and "BatchMode=yes" in argv
    assert shlex.split(" ".join(argv[len(connect.SSH) :])) == ["/opt/my python/bin/python", "-I", "-c", connect.BOOT]


def test_a_prefix_is_words_and_never_a_shell_line() -> None:
    argv = connect.worker_commands(["a"], "kubectl exec -i {host} -n 'my space' --", "python3")["a"]
    assert argv == ["kubectl", "exec", "-i", "a", "-n", "my space", "--", "python3", "-I", "-c", connect.BOOT]


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "an option": (["-oProxyCommand=x", "b"], {}, "not a host name"),
    "shell syntax": (["a;reboot", "b"], {}, "not a host name"),
    "no text": ([1, "b"], {}, "not a host name"),
    "one host": (["a", "a"], {}, "takes 2 to 64 hosts, but 1 are given"),
    "too many": ([f"n{i}" for i in range(65)], {}, "but 65 are given"),
    "a text": ("a b", {}, "must be a list"),
    "a prefix without a place": (["a", "b"], {"remote_command": "rsh"}, "neither ssh nor srun"),
    "an open quote": (["a", "b"], {"remote_command": "sh -c '{host}"}, "cannot be split"),
    "no port": (["a", "b"], {"port": 70000}, "from 1 to 65535"),
    "no time": (["a", "b"], {"seconds": 0}, "above 0"),
    "no deadline": (["a", "b"], {"deadline": "soon"}, "above 0"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_work_is_refused_in_one_sentence(what: str) -> None:
    given, choices, words = REFUSED[what]
    with pytest.raises(NcclkitError, match=words) as refused:
        asyncio.run(connect.plan_connection_test(given, **choices))
    assert str(refused.value).endswith(".") and "\n" not in str(refused.value)


def test_the_plan_takes_port_and_variables_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in connect.HANDED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_PORT", "1234")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    made = asyncio.run(connect.plan_connection_test(["a", "b"]))
    assert made["port"] == 1234 and made["env"] == {"MASTER_PORT": "1234", "NCCL_SOCKET_IFNAME": "ib0"}
    assert made["commands"]["a"][0] == "ssh"


TOKEN = "0123456789abcdef" * 2


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener("b", TOKEN, ["127.0.0.1", *(["::1"] if socket.has_dualstack_ipv6() else [])])
    yield made
    made.close()


def test_how_a_connection_may_end(listener: Listener) -> None:
    """Whoever answers is told apart by its name; whoever does not know the token is a stranger on both sides."""
    here = ("127.0.0.1", listener.port)
    assert worker.reach(*here, TOKEN, "a", "b") == "open"
    assert worker.reach(*here, TOKEN, "b", "c") == "itself"
    assert worker.reach(*here, TOKEN, "a", "c") == "other host"
    assert worker.reach(*here, "another token", "a", "b") == "foreign"
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = free.getsockname()[1]
    assert worker.reach("127.0.0.1", closed, TOKEN, "a", "b") == "refused"
    assert worker.reach("255.255.255.255", closed, TOKEN, "a", "b") == "no route"


@pytest.mark.parametrize(
    "line", [b"\n", b"{}\n", b"[1]\n", b"\xff\x00", b"x" * 5000, b'{"token": null, "do": "sink"}\n']
)
def test_strangers_get_no_answer_and_do_no_harm(listener: Listener, line: bytes) -> None:
    with socket.create_connection(("127.0.0.1", listener.port), 5) as stranger:
        stranger.sendall(line)
        stranger.shutdown(socket.SHUT_WR)
        assert _read(stranger) == b""
    assert worker.reach("127.0.0.1", listener.port, TOKEN, "a", "b") == "open"


@pytest.mark.parametrize("drip", [b"", b"x"], ids=["silent", "dripping"])
def test_a_stranger_is_closed_after_a_second(listener: Listener, drip: bytes) -> None:
    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", listener.port), 5) as stranger:
        stranger.settimeout(0.1)
        while time.monotonic() - begun < 10:
            try:
                stranger.sendall(drip)
                if stranger.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break  # closed
    assert worker.STRANGER <= time.monotonic() - begun < 5


def test_only_the_addresses_of_the_interfaces_are_open() -> None:
    """No port of a test listens on all addresses: a tunnel that comes up meanwhile gets nothing."""
    addresses = worker.addresses_to_test(list(worker.facts_for_connection()))
    made = Listener("b", TOKEN, addresses)
    try:
        open_on = {socket.inet_ntoa(bytes.fromhex(a)[::-1]) for a in _bound("/proc/net/tcp", made.port)}
        assert open_on and open_on <= set(addresses) and "0.0.0.0" not in open_on
        assert not {a for a in _bound("/proc/net/tcp6", made.port) if not int(a, 16)}
        assert _bound("/proc/net/udp", made.port) == _bound("/proc/net/tcp", made.port)
    finally:
        made.close()


def _bound(table: str, port: int) -> set[str]:
    """Local addresses, in hexadecimal as the kernel writes them, that have this port in a table of sockets."""
    rows = [line.split()[1].split(":") for line in Path(table).read_text().splitlines()[1:]]
    return {address for address, number in rows if int(number, 16) == port}


def _read(connection: socket.socket) -> bytes:
    try:
        return connection.recv(100)
    except ConnectionResetError:  # it was closed before everything was read
        return b""


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_path_is_measured(listener: Listener, address: str) -> None:
    if address == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    found = worker.measure_path(address, listener.port, TOKEN, 0.01)
    assert found["why"] == {} and found["mtu"] == found["mtu_own"] > 1000
    assert found["bandwidth"] > 0 and found["latency"] > 0
    assert abs(found["offset"]) <= 2 * found["offset_error"]  # it is one and the same clock


def test_a_path_that_breaks_gives_reasons_instead_of_numbers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = free.getsockname()[1]
    reasons = dict.fromkeys(("latency", "mtu", "bandwidth"), "Connection refused")
    assert worker.measure_path("127.0.0.1", closed, TOKEN, 0.01) == {"why": reasons}


def event(kind: str, **data: Any) -> Event:
    return Event(kind, kind, "runs/1-connect/wire.jsonl", 1, data=data)


SOUND = {
    "src": "a",
    "dst": "b",
    "port": 29500,
    "address": "10.0.0.2",
    "rendezvous": "open",
    "ephemeral": "open",
    "interface": "eth0",
    "nccl_address": "10.0.0.2",
    "nccl": "open",
    "reached": ["10.0.0.2"],
    "over": "10.0.0.2",
    "mtu": 1500,
    "mtu_own": 1500,
    "bandwidth": 1.0,
    "latency": 50.0,
    "why": {},
}
TROUBLES: dict[str, dict[str, Any]] = {
    "": {},
    "does not resolve": {"address": None},
    "b unreachable": {"nccl": None, "bandwidth": None, "why": {"host": "b unreachable"}},
    "the asking host itself": {"address": "127.0.1.1"},
    "port 29500 at 10.0.0.2 is refused": {"rendezvous": "refused"},
    "eth0 (10.0.0.2) does not answer": {"nccl": "silent"},
    "lo is of no use to other hosts": {"interface": "lo", "nccl_address": None, "nccl": None},
    "packets of 9000 bytes get lost, 1500 pass": {"mtu_own": 9000},
    "no bandwidth: timed out": {"bandwidth": None, "why": {"bandwidth": "timed out"}},
    "it was not measured": {"bandwidth": None},
}


@pytest.mark.parametrize("words", TROUBLES)
def test_what_is_wrong_with_a_path_in_words(words: str) -> None:
    assert connections.link(event("connect.pair", **SOUND | TROUBLES[words])).trouble.endswith(words)


GARBAGE: tuple[Any, ...] = (None, 0, -1.5, True, "$(reboot)", [None, {}, 3], {"a": []}, {"b": {"c": 1}}, [[["x"]]])


@pytest.mark.parametrize("value", GARBAGE, ids=repr)
def test_records_of_other_hosts_may_hold_anything(value: Any) -> None:
    host = connections.host(event("connect.host", **dict.fromkeys(KINDS["connect.host"].__struct_fields__, value)))
    link = connections.link(event("connect.pair", **dict.fromkeys(KINDS["connect.pair"].__struct_fields__, value)), {"$(reboot)": value})
    assert isinstance(host.summary, str) and isinstance(link.summary, str) and link.trouble
    assert "$" not in link.address + link.over + link.nccl_address + "".join(link.reached)


def test_a_connection_test_and_a_job_stand_beside_each_other() -> None:
    case = Case(Path("/c"))

    def at(run: str, kind: str) -> Event:
        return Event(kind, f"{kind} of {run}", f"/c/runs/{run}/wire.jsonl", 1)

    said = [
        ("1-connect", "connect.host"),
        ("2-probe", "run.end"),
        ("3-connect", "connect.host"),
        ("3-connect", "run.end"),
    ]
    for order in permutations(said):
        case.events = [at(run, kind) for run, kind in order]
        assert {e.text for e in case.latest().events} == {"run.end of 2-probe", "connect.host of 3-connect"}
