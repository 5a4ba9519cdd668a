"""The grammar of the kernel's log: dmesg, syslog, journal.

Host and time come from the prefix of the line.
"""

from __future__ import annotations

import re

from ncclkit.evidence.grammars.grammar import Data, Line, Rule, rule

BUS = r"(?:\w{4}:)?\w{2}:\w{2}\.\w"


GPU_NAMED = re.compile(
    r"^ on (?:GPU|device) "
    rf"(?:(?:PCI:)?(?P<bus>{BUS}|\w{{4}}:\w{{2}}:\w{{2}})|(?P<index>\d{{1,3}}))\b"
)


def _xid(match: re.Match[str], data: Data, line: Line) -> Data:
    pid = re.match(r"pid='?(\d{1,10})\b", data["message"])
    cause = re.search(r"\b(?:by|to) previous Xid (\d{1,4})\b", data["message"])
    return data | {
        "bus": data["bus"].removeprefix("PCI:"),
        "previous": int(cause[1]) if cause else None,
        "_pid": int(pid[1]) if pid else None,
    }


def _switch(match: re.Match[str], data: Data, line: Line) -> Data:
    fatal = re.match(r"(Non-fatal|Fatal)\b", data["message"], re.IGNORECASE)
    return data | {
        "bus": data["bus"].removeprefix("PCI:"),
        "fatal": None if fatal is None else fatal[1].lower() == "fatal",
    }


def _xid_on_host(match: re.Match[str], data: Data, line: Line) -> Data:
    """What NCCL found in the kernel log of a host, which need not be the one that says so."""
    line.host = data.pop("host") or line.host
    gpu = GPU_NAMED.search(data["message"])
    if gpu is None:
        return data | {"bus": ""}
    index = None
    if gpu["index"]:
        index = int(gpu["index"])
    return data | {"bus": gpu["bus"] or "", "index": index}


def _sxid_on_host(match: re.Match[str], data: Data, line: Line) -> Data:
    line.host = data.pop("host") or line.host
    return data | {"bus": "", "fatal": data["fatal"].lower() == "fatal"}


def _state(match: re.Match[str], data: Data, line: Line) -> Data:
    return {
        "device": match["device"],
        "state": "down" if match["state"].lower().startswith("down") else "up",
    }


def _killed(match: re.Match[str], data: Data, line: Line) -> Data:
    return data | {"memcg": bool(match["memcg"]), "_pid": data["pid"]}


def _whose(match: re.Match[str], data: Data, line: Line) -> Data:
    return data | {"_pid": data["pid"]}


def _cable(match: re.Match[str], data: Data, line: Line) -> Data:
    return {"device": match["device"], "state": "up" if match["state"] == "plugged" else "down"}


def _mapped(match: re.Match[str], data: Data, line: Line) -> Data:
    device = re.search(rf"\[(?:IO_PAGE_FAULT device=)?({BUS})|({BUS}): AMD-Vi", match["message"])
    return data | {"device": (device[1] or device[2]) if device else None}


RULES: tuple[Rule, ...] = (
    # NVRM: Xid (PCI:0000:1b:00): 79, pid=4711, name=python, GPU has fallen off the bus.
    # Xid (PCI:...): 145, RLW_RXPIPE …
    # Xid (PCI:0000:1b:00): 154, GPU recovery action changed, caused by previous Xid 149
    rule(
        "kernel.xid",
        "Xid (",
        r"\bXid \((?P<bus>[^)]*)\): (?P<xid>\d+),? ?(?P<message>.*)",
        make=_xid,
    ),
    # node1:4711 NCCL DIAG [INFO] Xid 79 detected 1 time on host node2. For the recommended \
    #   response, see the NVIDIA Xid documentation: https://docs.nvidia.com/deploy/xid-errors
    # Xid 79 detected on GPU 3      Xid 79 detected on GPU 0000:1b:00.0
    rule(
        "kernel.xid",
        " detected",
        r"(?<!S)\bXid (?P<xid>\d{1,4}) detected\b(?P<message>(?: (?:at least )?\d{1,9} times?)?"
        r"(?: on host (?P<host>[\w.-]{1,255}?)\.(?= |$))?.*)",
        make=_xid_on_host,
    ),
    # node1:4711 NCCL DIAG [INFO] SXid 20034 detected 2 times (NVSwitch driver reported Fatal, \
    #   link(s) {30}) on host node2. See the NVIDIA Fabric Manager documentation
    rule(
        "kernel.sxid",
        " detected",
        r"\bSXid (?P<sxid>\d{1,6}) detected (?P<message>[^(]{0,60}\(NVSwitch driver reported"
        r" (?P<fatal>[\w-]{1,20}), link\(s\)[^)]{0,300}\)"
        r"(?: on host (?P<host>[\w.-]{1,255}?)\.(?= |$))?.*)",
        make=_sxid_on_host,
    ),
    # nvidia-nvswitch3: SXid (PCI:0000:85:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
    rule(
        "kernel.sxid",
        "SXid (",
        r"\bSXid \((?P<bus>[^)]*)\): (?P<sxid>\d+),? ?(?P<message>.*)",
        make=_switch,
    ),
    # Out of memory: Killed process 4711 (python) total-vm:…
    # Memory cgroup out of memory: Killed process 4711 (python)
    # Out of memory: Kill process 4711 (python) score 987 or sacrifice child (before 5.0)
    *(
        rule(
            "kernel.oom",
            anchor,
            r"(?P<memcg>Memory cgroup )?[Oo]ut of memory:? .{0,200}?Kill(?:ed)? process"
            r" (?P<pid>\d{1,10}) "
            r"\((?P<name>[^)]{0,100})\)",
            make=_killed,
        )
        for anchor in ("Killed process ", "Kill process ")
    ),
    # oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=…,task=python,pid=4711,uid=0
    rule(
        "kernel.oom",
        "oom-kill:constraint",
        r"oom-kill:constraint=(?P<memcg>\w{1,60}),.{0,1500}?\btask=(?P<name>[^,]{1,64}),pid="
        r"(?P<pid>\d+)",
        make=lambda match, data, line: (
            data | {"memcg": "MEMCG" in str(data["memcg"]), "_pid": data["pid"]}
        ),
    ),
    # oom_reaper: reaped process 4711 (python), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB
    rule(
        "kernel.oom",
        "oom_reaper: reaped",
        r"oom_reaper: reaped process (?P<pid>\d+) \((?P<name>[^)]{0,100})\)",
        make=_whose,
        memcg=False,
    ),
    # python[4711]: segfault at 10 ip 00007f… sp 00007f… error 4 in libnccl.so.2.28.9[7f…+1000]
    rule(
        "kernel.segfault",
        "segfault at",
        r"(?P<name>[^\s\[\]]{1,64})\[(?P<pid>\d+)\]: segfault at .*?(?: in"
        r" (?P<library>[^\[\s]+))?(?:\[|$)",
        make=_whose,
    ),
    # traps: python[4711] general protection fault ip:7f01 sp:7ffe error:0 in \
    #   libcuda.so.550.54[7f00+1000]
    rule(
        "kernel.segfault",
        "general protection fault",
        r"(?P<name>[^\s\[\]]{1,64})\[(?P<pid>\d+)\] general protection fault.*?(?: in"
        r" (?P<library>[^\[\s]+))?(?:\[|$)",
        make=_whose,
    ),
    # [node-1:4711] [ 1] /opt/aws-ofi-nccl/lib/libnccl-net.so(nccl_net_ofi_init+0x3a)[0x7f01]  (a \
    #   stack of libc)
    rule(
        "kernel.segfault",
        "libnccl-net",
        r"\[ {0,2}\d+\] (?P<library>\S*libnccl-net\S*?)\(",
        name="",
    ),
    # mlx5_core 0000:17:00.0 ens1f0np0: Link down
    rule(
        "kernel.link",
        ": Link ",
        r"mlx5_core \S+ (?P<device>[^\s:]+): Link (?P<state>\w+)",
        make=_state,
    ),
    # mlx5_core 0000:17:00.0 mlx5_5: Port: 1 Link DOWN
    # mlx5_core 0000:17:00.0 mlx5_5: Port: 1 Link ACTIVE
    *(
        rule(
            "kernel.link",
            anchor,
            r"mlx5_\w{1,20} \S{1,60} (?P<device>[^\s:]{1,60}): Port: \d+ Link (?P<state>\w+)",
            make=_state,
        )
        for anchor in (" Link DOWN", " Link ACTIVE")
    ),
    # ixgbe 0000:17:00.0 ens1f0: NIC Link is Down
    # bnxt_en 0000:17:00.0 ens1: NIC Link is Up, 100000 Mbps
    rule(
        "kernel.link",
        "NIC Link is ",
        r"(?P<device>[\w.]{1,64}): (?:\S{1,64} )?NIC Link is (?P<state>\w+)",
        make=_state,
    ),
    # tg3 0000:01:00.0 eno1: Link is down       r8169 0000:03:00.0 enp3s0: Link is Up - 1Gbps/Full
    rule(
        "kernel.link",
        ": Link is ",
        r" (?P<device>[\w.]{1,64}): Link is (?P<state>[Dd]own|[Uu]p)\b",
        make=_state,
    ),
    # bond0: (slave ens1f0): link status definitely down, disabling slave
    # bond0: link status definitely down for interface ens1f0, disabling it
    *(
        rule("kernel.link", "link status definitely ", pattern, make=_state)
        for pattern in (
            r"\(slave (?P<device>[\w.]{1,64})\): link status definitely (?P<state>\w+)",
            r"link status definitely (?P<state>\w+) for interface (?P<device>[\w.]{1,64})",
        )
    ),
    # mlx5_core 0000:17:00.0: Port module event: module 0, Cable unplugged
    rule(
        "kernel.link",
        "Port module event",
        r"mlx5_core (?P<device>\S+?): Port module event.{0,80}[Cc]able"
        r" (?P<state>unplugged|plugged|error)",
        make=_cable,
    ),
    # mlx5_core 0000:17:00.0: device's health compromised - reached miss count
    rule(
        "kernel.link",
        "health compromised",
        r"mlx5_core (?P<device>[^\s:]+:\S+?): .*health compromised",
        state="down",
    ),
    # NETDEV WATCHDOG: eth0 (ena): transmit queue 3 timed out
    rule(
        "kernel.link",
        "NETDEV WATCHDOG",
        r"NETDEV WATCHDOG: (?:CPU: \d+: )?(?P<device>[\w.]+)",
        state="down",
    ),
    # neighbour: arp_cache: neighbor table overflow!
    # nf_conntrack: nf_conntrack: table full, dropping packet
    # TCP: request_sock_TCP: Possible SYN flooding on port 29500. Dropping request.
    # TcpExtListenOverflows 41230
    *(
        rule("kernel.table", anchor, rf"^(?P<message>.*{pattern}.*)", name=name)
        for anchor, pattern, name in (
            ("table overflow", r"neighbou?r table overflow", "neighbour table"),
            ("table full", r"nf_conntrack: table full", "connection tracking table"),
            ("SYN flooding", r"Possible SYN flooding on port", "accept queue"),
            ("ListenOverflows", r"\bTcpExtListenOverflows\s{1,40}[1-9]", "accept queue"),
        )
    ),
    # DMAR: [DMA Read] Request device [17:00.0] fault addr …
    # DMAR: [DMA Read NO_PASID] Request device [17:00.0] …
    rule(
        "kernel.iommu",
        "DMAR: [",
        r"(?P<message>DMAR: \[[^\]]{0,100}\] Request device.*)",
        make=_mapped,
    ),
    # AMD-Vi: Event logged [IO_PAGE_FAULT device=1b:00.0 domain=0x000e address=0x1000 flags=0x0030]
    # nvidia 0000:1b:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x000e address=0x1000 \
    #   flags=0x0030]
    rule("kernel.iommu", "IO_PAGE_FAULT", r"^(?P<message>.*IO_PAGE_FAULT.*)", make=_mapped),
    # INFO: task python:4711 blocked for more than 122 seconds.
    rule(
        "kernel.stall",
        "blocked for more than",
        r"(?P<message>task (?P<name>[^\s:]{1,64}):(?P<pid>\d+) blocked for more than"
        r" (?P<seconds>\d+) seconds.*)",
        make=_whose,
        what="hung_task",
    ),
    # watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4711]
    rule(
        "kernel.stall",
        "BUG: soft lockup",
        r"(?P<message>soft lockup - CPU#\d+ stuck for (?P<seconds>\d+)s!"
        r" \[(?P<name>[^\]]{1,64}):(?P<pid>\d+)\])",
        make=_whose,
        what="soft_lockup",
    ),
    # nfs: server store1 not responding, still trying
    rule(
        "kernel.stall",
        "not responding, still trying",
        r"(?P<message>(?:nfs|NFS): server (?P<name>\S+) not responding, still trying)",
        make=_whose,
        what="nfs",
    ),
    # LustreError: 11-0: scratch-OST0012-osc: operation ost_read to node … failed: rc = -107
    # Lustre: scratch-MDT0000-mdc: Connection to scratch-MDT0000 (at …) was lost; in progress \
    #   operations … will wait …
    # blk_update_request: I/O error, dev nvme0n1, sector …        EXT4-fs error (device nvme0n1): …
    # XFS (nvme0n1): log I/O error -5          ceph: mds0 hung
    *(
        rule("kernel.stall", anchor, rf"(?P<message>{pattern}.*)", what="storage")
        for anchor, pattern in (
            ("LustreError", r"LustreError: [\d:-]+ (?P<name>[\w.-]+)"),
            ("Lustre: ", r"Lustre: .{0,200}Connection to (?P<name>\S{1,200}) .{0,200}was lost"),
            ("I/O error", r"I/O error,? (?:.{0,80}?)dev (?P<name>\w+)"),
            ("I/O error", r"XFS \((?P<name>[\w-]+)\): .{0,80}I/O error"),
            ("EXT4-fs error", r"EXT4-fs error \(device (?P<name>[\w-]+)\)"),
            ("ceph: mds", r"ceph: (?P<name>mds\d+) (?:hung|caps stale|session blocklisted)"),
        )
    ),
    # pcieport 0000:16:00.0: AER: Uncorrected (Fatal) error received: 0000:17:00.0
    rule(
        "kernel.pcie",
        "AER: ",
        r"(?P<message>AER: (?:Multiple )?(?P<severity>Uncorrected \((?:Non-)?Fatal\)|Corrected)"
        r" error"
        rf"(?: message)? received:? (?:from )?(?P<device>{BUS}).*)",
        make=lambda match, data, line: data | {"severity": data["severity"].lower()},
    ),
)
