"""A network plugin is at fault

What you see
    A crash or hang inside libnccl-net.so, "NET/OFI ..." or "Failed to initialize NET plugin", a
    backtrace with nccl_p2p_ib_init or p2p_plugin.c; or no plugin at all where the fabric needs one
    (EFA, GPUDirect-TCPX, Slingshot).

Why it happens
    NCCL can hand the network to an external library (aws-ofi-nccl, SHARP/HPC-X, gpudirect-tcpx).
    It is found by name in LD_LIBRARY_PATH, and must fit NCCL's version, libfabric and the driver.
    Images often bring one that was built for another cloud.  "No plugin found, using internal
    implementation" is normal on InfiniBand and Ethernet.

How to be sure
    NCCL_NET_PLUGIN=none makes the job start; the log names the library that was loaded.

What to do
    The fabric's vendor says which plugin fits which NCCL; leave it off where the fabric needs none.

Read more
    NCCL user guide: NCCL_NET_PLUGIN; the plugin's own release notes (aws-ofi-nccl, google
    gpudirect-tcpx).
"""

from __future__ import annotations

import re

from ncclkit.analysis.frames import inside
from ncclkit.analysis.network_devices import by_host
from ncclkit.analysis.picks import (
    env_of,
    failed,
    family,
    first_finding,
    initialized,
    matching,
    name_hosts,
    otherwise,
    pick,
    ranks_in,
    who_of,
)
from ncclkit.analysis.rank_states import crashes
from ncclkit.causes._experiments import experiment_of
from ncclkit.core.case import Case
from ncclkit.core.kinds import KernelSegfault, NcclInfo, NcclInit, NcclNetwork
from ncclkit.core.model import Advice, Event, Evidence, Experiment, Finding, Strength, found

ID = "net_plugin"
explains = (
    "c10d.error",
    "nccl.trace",
    "rank_exception",
    "c10d.timeout",
    "elastic.exit",
    "slow_rank",
)
FABRICS = (
    "FI_PROVIDER",
    "FI_EFA_USE_DEVICE_RDMA",
    "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME",
    "NCCL_FASTRAK_IFNAME",
)

BROKEN = ("failed to init", "version `", "undefined symbol", "dlopen failed")
NO_PLUGIN_OF_NETWORK = re.compile(
    r"NET plugin (?:IB|Socket)\s*$|\b(?:RMA|GIN|TUNER|PROFILER|ENV)/Plugin\b"
)
"""Built-in transports that NCCL 2.27 and newer log as plugins, and plugins for something else.

IB "fails" on every machine without InfiniBand, as those for one-sided transfers do.
"""


def diagnose(case: Case) -> Finding:
    """Found where the plugin reports an error, crashes, or is missing.

    It is missing where one is expected.
    """
    absent = case.of(NcclInfo, family="no_plugin")
    went_well: list[Evidence] = [*absent, *case.of(NcclNetwork)]
    return first_finding(case, _failed_plugin, _different_networks, _absent_plugin) or otherwise(
        ID, went_well, "No plugin is involved, or it works.", "NCCL_DEBUG=INFO lines 'NET/Plugin'"
    )


def _failed_plugin(case: Case) -> Finding | None:
    """The external plugin reports an error, or a crash or stack is in its code."""
    reported = _plugin_errors(case)
    infos = []
    for e in case.of(NcclInfo, family="plugin"):
        if matching([e], *BROKEN):
            infos.append(e)
    refused = [e for e in infos if not NO_PLUGIN_OF_NETWORK.search(e.text)]
    crash = []
    for event in case.of(KernelSegfault):
        if matching([event], "libnccl-net", "libfabric", "ofi", "tcpx"):
            crash.append(event)
    traced = _stacks_in_plugin(case) + _crashed_in_start(case)
    lines = reported + refused + crash + traced
    if not lines:
        return None
    # only the kernel names the library in which a process crashed
    strength: Strength = "likely"
    if crash:
        strength = "proven"
    return found(
        ID,
        strength,
        f"{who_of(lines, lines[0].host)}: the external network plugin of NCCL failed.",
        pick(crash, traced, reported, refused),
        ranks=ranks_in(lines),
        hosts=name_hosts(lines),
        advice=_advice_on_failure(lines),
        next=experiment(case),
    )


NO_PROVIDER = (
    "No data available",
    "No eligible providers",
    "Only EFA provider is supported",
    "failed: -61",
    "Unable to find device",
)
"""What libfabric and its plugin say where they see no card."""


def _advice_on_failure(lines: list[Event]) -> tuple[Advice, ...]:
    """Where the plugin sees no card, the card is what is missing and not the plugin."""
    if matching(lines, *NO_PROVIDER):
        return (EXPOSE, *_advice())
    return _advice()


EXPOSE = Advice(
    "Let the job see the cards that the plugin drives: pass /dev/infiniband into the container"
    " (docker run --device=/dev/infiniband --ulimit memlock=-1; on Kubernetes the resource of the"
    " device plugin, vpc.amazonaws.com/efa on AWS).",
    command="ls /dev/infiniband; fi_info -p efa; ulimit -l",
    why="The plugin was loaded and found no card of its kind in this container or host.",
    check="fi_info lists the provider inside the container, and NET/OFI selects it.",
    risk="None.",
)


def _plugin_errors(case: Case) -> list[Event]:
    """NCCL's warnings of a plugin, without those that only say that there is none."""
    errors = []
    for event in family(case, "plugin"):
        if NO_PLUGIN_OF_NETWORK.search(event.text):
            continue
        if not matching(
            [event],
            "No plugin found",
            "Could not find",
            "Failed to find ncclNetPlugin",
            "Failed to open",
        ):
            errors.append(event)
    return errors


def _stacks_in_plugin(case: Case) -> list[Event]:
    traced = []
    for event in case.events:
        is_stack = event.kind in ("stack", "c10d.stack")
        if is_stack and inside(
            event, "p2p_plugin", "nccl_p2p_ib_init", "libnccl-net", "nccl_net_ofi"
        ):
            traced.append(event)
    return traced


def _absent_plugin(case: Case) -> Finding | None:
    """The variables are those of a fabric that needs a plugin, and none is there."""
    expected: list[Evidence] = []
    for name in FABRICS:
        expected.extend(env_of(case, name))
    for name in FABRICS:
        expected.extend(case.facts_of(f"env.{name}"))
    missing = case.of(NcclInfo, family="no_plugin")
    absent: list[Event] = [
        event for event in missing if "libnccl-env" not in event.text
    ]  # another plugin
    # NCCL says that it found none on every InfiniBand machine, where that is right
    if not (expected and absent and case.of(NcclNetwork)):
        return None
    say = "The environment is set up for a fabric that needs a network plugin, but NCCL found none."
    return found(ID, "likely", say, pick(absent, expected), advice=_advice(), next=experiment(case))


def _different_networks(case: Case) -> Finding | None:
    """Hosts use different networks, each of which is fast.

    A plugin is found on some of them only.
    """
    used = {}
    for host, event in by_host(case).items():
        # a host on plain sockets is ib_not_used
        if event.data.name != "Socket":
            used[host] = event
    names = {str(event.data.name): event for event in used.values()}
    if (
        len(names) < 2
        or initialized(case)
        or not (failed(case) or family(case, "socket_closed", "foreign"))
    ):
        return None
    parts = [f"{host} {event.data.name}" for host, event in sorted(used.items())]
    say = (
        f"The hosts use different networks of NCCL: {', '.join(parts[:4])}; their ranks cannot"
        " connect."
    )
    hosts = tuple(sorted(used))
    return found(
        ID,
        "likely",
        say,
        pick(names.values()),
        hosts=hosts,
        advice=_advice(),
        next=experiment(case),
    )


def _crashed_in_start(case: Case) -> list[Event]:
    """Ranks that crashed in native code in NCCL's start.

    They did so after an external plugin was loaded and before the start was complete.
    """
    loaded = []
    for e in case.of(NcclInfo, family="plugin"):
        if not NO_PLUGIN_OF_NETWORK.search(e.text):
            loaded.append(e)
    loaded = matching(loaded, "Loaded net plugin", "loaded external")
    # after the start other things crash as well
    begun = set()
    for event in case.of(NcclInit):
        if event.data.phase == "start":
            begun.add(event.data.rank)
    done = {e.data.rank for e in initialized(case)}
    crashed = []
    for event in crashes(case):
        if event.rank in begun - done or not done:
            crashed.append(event)
    if loaded and crashed:
        return [*crashed[:2], *loaded[:1]]
    return []


def _advice() -> tuple[Advice, ...]:
    return (
        Advice(
            "Run without the plugin to see whether it is at fault, then install the version that"
            " fits this NCCL.",
            env={"NCCL_NET_PLUGIN": "none"},
            command="ldconfig -p | grep nccl-net; echo $LD_LIBRARY_PATH",
            why="The plugin replaces NCCL's own network code.",
            check="'NET/Plugin' lines name the intended library and version.",
            risk="On EFA, TCPX and Slingshot the job is slow without it.",
        ),
    )


def experiment(case: Case) -> Experiment:
    """Run the same start with NCCL's own network code."""
    return experiment_of(
        "Does the job start without the plugin?",
        {"env": {"NCCL_NET_PLUGIN": "none"}},
        {
            ID: ("works", "it starts"),
            "ib_config": ("same", "it fails in the same way"),
            "version_mismatch": ("same", "it fails in the same way"),
        },
    )


REMEDIES = (*_advice(), EXPOSE)
