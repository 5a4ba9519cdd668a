"""Ranks on simulated hosts of this machine.

There is one torchrun per host, with static rendezvous, all under one guard.  Networks of simulated
hosts, and what may be wrong with them, are plain data for `agent.run.simulated_hosts`.  There are
two hosts by default, ``node-1`` at 192.168.77.1 and ``node-2`` at 192.168.77.2, that know each
other's names.  A network is said as a mapping: ``hosts`` (how many) and ``wrong`` (a name of
`WRONG`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ncclkit.core.model import NcclkitError
from ncclkit.core.runs import Plan
from ncclkit.core.storage import write
from ncclkit.live.launch.base import OnRecord, Record
from ncclkit.live.launch.local import LocalLauncher, run_under_guard
from ncclkit.live.launch.pack import packed

Hosts = dict[str, dict[str, Any]]

PORT = 29500
"""The port of the rendezvous, unless MASTER_PORT says otherwise."""
ASTRAY = "10.99.0.1"
"""An address of the first host, of a network that the others are not part of."""
SIZE = 1400
"""Bytes of the largest packet that the path between the hosts takes, where it is narrow."""
OLD, NEW = "0.3", "0.4"
"""Releases of the package `lowrank`, on which the job `stories.finetune` builds its model."""
LOWRANK = '''"""Low-rank adapters: a frozen layer, and beside it two small ones that learn."""

import torch

__version__ = "{version}"


class Adapted(torch.nn.Module):
    """The layer as it is, plus a term of rank `rank`; since 0.4 that is 16, before it was 8."""

    def __init__(self, layer, rank={rank}):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = torch.nn.Linear(layer.in_features, rank, bias=False)
        self.up = torch.nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, rows):
        return self.layer(rows) + self.up(self.down(rows))
'''


def healthy_hosts(count: int = 2) -> Hosts:
    """`count` hosts with nothing wrong.

    It is name → what `agent.run.simulated_hosts` makes of it.
    """
    names = {f"node-{i}": f"192.168.77.{i}" for i in range(1, count + 1)}
    return {
        name: {
            "address": f"{address}/24",
            "interface": "eth0",
            "names": dict(names),
            "setup": [],
            "env": {},
        }
        for name, address in names.items()
    }


def network_of(net: Mapping[str, Any], fix: str = "") -> Hosts:
    """The hosts of a network.

    `fix` is the cause whose fault is put right.  Raises NcclkitError for what does not exist.
    """
    wrong = str(net.get("wrong", ""))
    if wrong and wrong not in WRONG:
        raise NcclkitError(
            f"There is no network with {wrong!r} wrong; there are {', '.join(WRONG)}."
        )
    made = healthy_hosts(int(net.get("hosts", 2)))
    if wrong:
        WRONG[wrong](made)
    if fix in FIXES:
        FIXES[fix](made)
    return made


def _last(made: Hosts) -> dict[str, Any]:
    return list(made.values())[-1]


def _first(made: Hosts) -> dict[str, Any]:
    return next(iter(made.values()))


def _other_name(made: Hosts) -> None:
    """The last host calls its interface otherwise, as machines of another make do."""
    _last(made)["interface"] = "ens3"


def _bridge(made: Hosts) -> None:
    """Every host has a running bridge of the same address, listed before its real interface."""
    for host in made.values():
        host["setup"] += [
            ["ip", "link", "add", "name", "br-lab", "index", "3", "type", "bridge"],
            ["ip", "link", "add", "vm0", "index", "91", "type", "veth", "peer", "name", "vm1"],
            ["ip", "link", "set", "vm0", "addrgenmode", "none", "master", "br-lab", "up"],
            ["ip", "link", "set", "vm1", "addrgenmode", "none", "up"],
            ["ip", "link", "set", "br-lab", "addrgenmode", "none", "up"],
            ["ip", "addr", "add", "172.20.0.1/16", "dev", "br-lab"],
        ]


def _astray(made: Hosts) -> None:
    """The first host has an address more, of a network that the others are not part of."""
    _first(made)["setup"] += [
        ["ip", "link", "add", "name", "mgmt0", "type", "bridge"],
        ["ip", "link", "set", "mgmt0", "addrgenmode", "none", "up"],
        ["ip", "addr", "add", f"{ASTRAY}/24", "dev", "mgmt0"],
    ]


def _blocked(made: Hosts) -> None:
    """The first host swallows what arrives at the rendezvous port, as a firewall does."""
    drop = [
        "ip",
        "rule",
        "add",
        "pref",
        "1",
        "iif",
        _first(made)["interface"],
        "ipproto",
        "tcp",
        "dport",
        str(PORT),
    ]
    # so that something can stand before it
    local = ["ip", "rule", "add", "pref", "10", "lookup", "local"]
    _first(made)["setup"] += [local, ["ip", "rule", "del", "pref", "0"], [*drop, "blackhole"]]


def _count(made: Hosts) -> None:
    """The launcher of the first host, which holds the store, was told one host too many."""
    _first(made)["nnodes"] = len(made) + 1


def _drop_large_packets(made: Hosts) -> None:
    """The switch drops packets of more than `SIZE` bytes, without a message."""
    for host in made.values():
        host["port"] = ["mtu", str(SIZE)]
        # without this the kernel hands over many packets as one, which no port measures
        host["setup"].append(["ip", "link", "set", host["interface"], "gso_max_segs", "1"])


def _slow(made: Hosts) -> None:
    """What the last host sends is held back to 200 Mbit/s (a token bucket)."""
    name = _last(made)["interface"]
    rate = ["rate", "200mbit", "burst", "64kbit", "latency", "400ms"]
    _last(made)["setup"].append(["tc", "qdisc", "add", "dev", name, "root", "tbf", *rate])


def _drops(made: Hosts) -> None:
    """Of what reaches the first host one packet in twenty is dropped.

    It is dropped at random, as by a bad cable or a full buffer.
    """
    chain = "{ type filter hook input priority 0 ; }"
    table = ["inet", "lab"]
    _first(made)["setup"] += [
        ["nft", "add", "table", *table],
        ["nft", "add", "chain", *table, "in", chain],
        [
            "nft",
            "add",
            "rule",
            *table,
            "in",
            "iifname",
            _first(made)["interface"],
            "numgen random mod 20 < 1 drop",
        ],
    ]


def _own_name(made: Hosts) -> None:
    """The last host's own name resolves to loopback, as installers of Debian have it."""
    name = list(made)[-1]
    made[name]["names"][name] = "127.0.1.1"


def _older(made: Hosts) -> None:
    """The last host has an older release of a package that the job needs.

    Nobody updated it with the others.
    """
    for host in made.values():
        host["packages"] = _lowrank(NEW)
    _last(made)["packages"] = _lowrank(OLD)


def _lowrank(version: str) -> dict[str, str]:
    """The files of a release, as pip lays them down: path → text."""
    metadata = f"Metadata-Version: 2.1\nName: lowrank\nVersion: {version}\n"
    code = LOWRANK.format(version=version, rank=8 if version == OLD else 16)
    return {"lowrank/__init__.py": code, f"lowrank-{version}.dist-info/METADATA": metadata}


def _updated(made: Hosts) -> None:
    for host in made.values():
        host["packages"] = _lowrank(NEW)


def _open(made: Hosts) -> None:
    """The hosts send no packets that the way does not take.

    Nothing holds back or drops what they send.
    """
    for host in made.values():
        host["setup"] = [command for command in host["setup"] if command[0] not in ("tc", "nft")]
        if "port" in host:
            host["setup"].append(["ip", "link", "set", host["interface"], "mtu", str(SIZE)])


def _as_many(made: Hosts) -> None:
    for host in made.values():
        host.pop("nnodes", None)


WRONG: dict[str, Callable[[Hosts], None]] = {
    "other_name": _other_name,
    "bridge": _bridge,
    "astray": _astray,
    "blocked": _blocked,
    "count": _count,
    "narrow": _drop_large_packets,
    "slow": _slow,
    "drops": _drops,
    "own_name": _own_name,
    "older": _older,
}
"""What may be wrong with the hosts or the path between them."""
FIXES: dict[str, Callable[[Hosts], None]] = {
    "network_loss": _open,
    "world_size_mismatch": _as_many,
    "version_mismatch": _updated,
}
"""Cause → what the administrator does about it, or whoever writes the job script.

The rest is fixed by variables.
"""


class Impossible(NcclkitError):
    """Hosts cannot be simulated on this machine."""


CANNOT, PREFIX = 2, "ncclkit: hosts cannot be simulated here: "
"""Exit status of `agent.run.simulated_hosts`, and how its reason begins."""
LAST_WORDS = 5.0
"""Seconds that hosts get beyond the timeout of collectives, once one host has failed."""


async def run_on_simulated_hosts(
    plan: Plan, folder: Path, on_record: OnRecord = lambda record: None
) -> list[Record]:
    """As `local.run_locally`, on the simulated hosts of the plan's network.

    Each sends the facts of its network first.  Its ranks are those of all hosts, a multiple of
    their number.  MASTER_ADDR and MASTER_PORT of its variables are what the launchers are told;
    without them it is the first host's name.  Raises NcclkitError where hosts cannot be simulated.
    """
    argv, env = plan.argv, plan.env
    fix = ""
    if "--fix" in argv:
        fix = argv[argv.index("--fix") + 1]
    made = network_of(plan.network, fix)
    if plan.ranks % len(made):
        raise NcclkitError(
            f"{plan.ranks} ranks do not divide over {len(made)} hosts; ask for a multiple of"
            f" {len(made)}."
        )
    limit = 30.0
    if "--timeout" in argv:
        limit = float(argv[argv.index("--timeout") + 1])
    with packed(plan.lab, compiled=True) as agent:
        _commands(made, plan, agent, folder, limit)
        hosts = hosts_command(plan.python, agent, folder, made, limit + LAST_WORDS)
        records = await run_under_guard(
            agent, hosts, env, plan.deadline, folder, plan.python, on_record, plan.unset
        )
    raise_if_impossible(records, folder)
    return records


def _commands(made: Hosts, plan: Plan, agent: Path, folder: Path, limit: float) -> None:
    """Give each host its torchrun.

    `limit` is that of collectives, in seconds.
    """
    for number, host in enumerate(made.values()):
        host["command"] = [
            *(plan.python, "-m", "torch.distributed.run"),
            *("--nnodes", str(host.get("nnodes", len(made))), "--node-rank", str(number)),
            *(
                "--nproc-per-node",
                str(plan.ranks // len(made)),
                "--max-restarts",
                str(plan.restarts),
            ),
            *("--master-addr", plan.env.get("MASTER_ADDR") or next(iter(made))),
            *("--master-port", plan.env.get("MASTER_PORT") or str(PORT)),
            *(
                "--rdzv-backend",
                "static",
                "--rdzv-conf",
                f"timeout={limit:.0f}",
                str(agent),
                *plan.words(folder),
            ),
        ]


def raise_if_impossible(records: Sequence[Record], folder: Path) -> None:
    """Raises `Impossible`, in one sentence, where a run ended because hosts cannot be simulated
    here.
    """
    log = folder / "launcher.log"
    said = ""
    if log.exists():
        said = log.read_text(errors="replace")
    if PREFIX in said and any(
        record["kind"] == "end" and record.get("exitcode") == CANNOT for record in records
    ):
        why = next(
            (line.partition(PREFIX)[2] for line in said.splitlines() if line.startswith(PREFIX)),
            "no reason given",
        )
        raise Impossible(
            f"Hosts cannot be simulated on this machine ({why}); try as root, with iproute2 and"
            " nftables installed."
        )


def hosts_command(
    python: str, agent: Path, folder: Path, made: Hosts, wait: float = 0.0
) -> list[str]:
    """The start of a command that makes the hosts.

    A further command runs beside them and may enter them.  `agent` is as `packed` gives it; what
    the hosts execute and believe lies beside it, only their logs are in `folder`.
    """
    plan = {"folder": str(folder), "private": str(agent.parent), "wait": wait, "hosts": made}
    write(agent.parent / "hosts.json", json.dumps(plan, indent=1))
    return [python, str(agent), "hosts", str(agent.parent / "hosts.json")]


class SimulatedLauncher(LocalLauncher):
    """Hosts that this machine simulates: a torchrun in each of their namespaces."""

    name = "simulated hosts"

    async def run(self, plan: Plan, folder: Path, on_record: OnRecord) -> list[Record]:
        """As `run_on_simulated_hosts`."""
        return await run_on_simulated_hosts(plan, folder, on_record)
