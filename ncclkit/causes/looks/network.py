"""Looks for the network.

They ask for interfaces, names, ports, the store, InfiniBand and RoCE, and plugins.
"""

from __future__ import annotations

from ncclkit.causes.looks.record import Look

LOOKS: tuple[Look, ...] = (
    Look(
        cause="ifname_not_found",
        question=(
            "Does NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME name an interface that `ip -brief"
            " address` does not list on some host of the job?"
        ),
        now="env | grep SOCKET_IFNAME; ip -brief address",
        yes=(
            "the variable is set, and on at least one host no interface has that name (for NCCL: a"
            " name that begins so); for gloo also a list or a ^, which it does not understand"
        ),
        no="the variable is not set, or the named interface has an address on every host",
        next_time="env | grep SOCKET_IFNAME; ip -brief address > interfaces.$(hostname).txt",
        minutes=2,
        also={"bad_env_value": 0.2},
    ),
    Look(
        cause="wrong_interface",
        question=(
            "Does it run when NCCL_SOCKET_IFNAME (and GLOO_SOCKET_IFNAME) names the interface that"
            " the other hosts reach?"
        ),
        now="ip -brief -4 address; ip route",
        yes=(
            "with the variable it gets past the first connection; without it the log says docker0,"
            " virbr0, veth…, lo or a management network after `Bootstrap: Using`"
        ),
        no="the same failure with the right interface named, or all ranks are on one host",
        next_time=(
            "export NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0 NCCL_DEBUG=INFO  # in place of"
            " eth0: the interface that the other hosts reach"
        ),
        minutes=10,
        also={
            "ifname_not_found": 0.8,
            "hostname_resolution": 0.35,
            "store_unreachable": 0.15,
            "ib_not_used": 0.1,
        },
    ),
    Look(
        cause="store_unreachable",
        question=(
            "Does a connection from another host to MASTER_ADDR and MASTER_PORT fail while"
            " something listens there (first host: `nc -l 29500`, other: `nc -vz ADDR 29500`)?"
        ),
        now="env | grep MASTER_; getent ahosts $MASTER_ADDR; ip route",
        yes=(
            "`timed out` (a firewall, a wrong address or route) or `refused` (it went to another"
            " machine or into a proxy), though the first host listens"
        ),
        no="`succeeded` or `open` from every host, in the container of the job too",
        next_time=(
            "sleep 20; timeout 5 bash -c '</dev/tcp/'$MASTER_ADDR/$MASTER_PORT && echo store"
            " reached from $(hostname)  # beside the start, on each other host"
        ),
        minutes=5,
        also={
            "hostname_resolution": 0.6,
            "wrong_interface": 0.25,
            "network_loss": 0.2,
            "net_limit": 0.2,
        },
    ),
    Look(
        cause="port_in_use",
        question=(
            "Was the port of the job (MASTER_PORT, usually 29500) on its first host already taken"
            " by another process before it started?"
        ),
        now="ss -ltnp 2>/dev/null | grep -w -e ${MASTER_PORT:-29500} -e 29400",
        yes="`ss` lists a listener that is not this job: an older run, or a second job there",
        no="nothing listens on that port while the job is not running",
        next_time="ss -ltnp | grep -w ${MASTER_PORT:-29500} > port.$(hostname).txt",
        minutes=2,
        also={"gpu_shared": 0.1},
    ),
    Look(
        cause="hostname_resolution",
        question=(
            "Does a name that the job uses (MASTER_ADDR, `hostname`) lead nowhere, or on another"
            " host to 127.x or a wrong address (`getent ahosts NAME`)?"
        ),
        now="hostname; getent ahosts $(hostname); echo $MASTER_ADDR; getent ahosts $MASTER_ADDR",
        yes=(
            "`getent` prints nothing on some host, or other addresses on different hosts; or a job"
            " of several hosts announces a name that leads to 127.0.1.1; or two hosts share a name"
        ),
        no="the same address of the first host on every host, or MASTER_ADDR is an address",
        next_time="getent ahosts $MASTER_ADDR $(hostname) > names.$(hostname).txt",
        minutes=2,
        also={"store_unreachable": 0.25, "wrong_interface": 0.2},
    ),
    Look(
        cause="net_limit",
        question=(
            "Did a table of the kernel's network overflow when many ranks or hosts connected"
            " (`ListenOverflows` of nstat; `table full` or `table overflow` in the kernel's log)?"
        ),
        now=(
            "sysctl net.core.somaxconn; nstat -asz TcpExtListenOverflows; journalctl -kq"
            " --since=-1d 2>/dev/null | grep -i -e table.overflow -e table.full | tail -n 3"
        ),
        shows=r"kernel: .*(?:neighbor table overflow|nf_conntrack: table full)",
        yes=(
            "the counter grows at each start that fails, or the kernel's log has a full table; half"
            " as many ranks start"
        ),
        no="no overflow is counted on the first host, and small jobs fail in the same way",
        next_time="nstat -asz TcpExtListenOverflows TcpExtListenDrops > listen.$(hostname).txt",
        minutes=2,
        also={"network_loss": 0.15},
    ),
    Look(
        cause="network_loss",
        question=(
            "Are packets lost between the hosts: do errors or retransmissions rise in a run, did a"
            " link go down, or does `ping -M do -s 1472 HOST` fail where a small ping passes?"
        ),
        now="ip -s link; nstat -asz TcpRetransSegs TcpOutSegs",
        yes=(
            "retransmissions above some 0.1 % of the segments, drops that rise, unequal MTU, or"
            " large pings that vanish; every rank was alive when the connection broke"
        ),
        no="counters stand still, pings of all sizes pass, or a rank had died before",
        next_time="(while sleep 30; do date; nstat -as; ip -s link; done) > net.$(hostname).txt &",
        minutes=5,
        also={
            "ib_link_error": 0.3,
            "net_limit": 0.3,
            "store_unreachable": 0.2,
            "wrong_interface": 0.15,
        },
    ),
    Look(
        cause="ib_link_error",
        question=(
            "Did an InfiniBand or RoCE port go down or count errors in a run that had started well"
            " (`ibstat`, link_downed, `Link down` in the kernel's log)?"
        ),
        now=(
            "grep -s . /sys/class/infiniband/*/ports/*/state"
            " /sys/class/infiniband/*/ports/*/counters/link_downed"
            " /sys/class/infiniband/*/ports/*/counters/symbol_error"
        ),
        yes=(
            "a port is DOWN or INIT, link_downed or symbol_error rises between two readings, or one"
            " host or card is in all failures"
        ),
        no="all ports ACTIVE with counters that stand still, or it never worked even once",
        next_time=(
            "(while sleep 60; do date; grep . /sys/class/infiniband/*/ports/*/counters/link_downed;"
            " done) > ib.$(hostname).txt &"
        ),
        minutes=2,
        also={"network_loss": 0.25, "ib_config": 0.15, "ib_not_used": 0.15},
    ),
    Look(
        cause="ib_config",
        question=(
            "Does it run with NCCL_IB_DISABLE=1, while over InfiniBand or RoCE it never gets past"
            " the first connection?"
        ),
        now=(
            "env | grep NCCL_IB; grep -s peermem /proc/modules; grep -s ."
            " /sys/class/infiniband/*/ports/1/gid_attrs/types/* | head -n 12"
        ),
        yes=(
            "over plain sockets it runs, slowly; over InfiniBand or RoCE it fails each time, on all"
            " pairs, at the start"
        ),
        no="it fails over sockets too, or it runs well for a time over InfiniBand",
        next_time=(
            "export NCCL_IB_DISABLE=1 NCCL_DEBUG=INFO NCCL_DEBUG_FILE=nccl.%h.%p.log  # for one"
            " test run"
        ),
        minutes=10,
        also={
            "memlock_limit": 0.75,
            "ib_link_error": 0.3,
            "net_plugin": 0.3,
            "p2p_broken": 0.15,
            "bad_env_value": 0.15,
            "nccl_bug": 0.1,
        },
    ),
    Look(
        cause="ib_not_used",
        question=(
            "Have the hosts InfiniBand or RoCE cards that the job did not use on every rank: does"
            " NCCL's log say `Using network Socket` somewhere?"
        ),
        now="ls /sys/class/infiniband /dev/infiniband 2>&1; env | grep -e NCCL_IB -e NCCL_NET",
        yes=(
            "cards in /sys/class/infiniband, but `NET/IB : No device found` or `Using network"
            " Socket`; no /dev/infiniband in the container; NCCL_IB_DISABLE=1"
        ),
        no="`Using network IB` (or the plugin's name) on all ranks, or the hosts have no such card",
        next_time=(
            "export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET NCCL_DEBUG_FILE=nccl.%h.%p.log"
        ),
        minutes=5,
        also={"net_plugin": 0.35, "bad_env_value": 0.15, "ib_config": 0.15, "ib_link_error": 0.1},
    ),
    Look(
        cause="net_plugin",
        question=(
            "Does it go away when NCCL's network plugin is switched off (NCCL_NET_PLUGIN=none), or"
            " replaced by the version that fits this fabric and NCCL?"
        ),
        now=(
            "env | grep -e NCCL_NET -e LD_LIBRARY_PATH; ldconfig -p | grep libnccl-net; ls"
            " /opt/amazon/ofi-nccl /opt/hpcx/nccl_rdma_sharp_plugin 2>/dev/null"
        ),
        yes=(
            "it starts without the plugin, or with another version of it; only hosts with that"
            " libnccl-net.so fail; on AWS EFA, TCPX or Slingshot: no plugin was found"
        ),
        no="no plugin is loaded and none is needed, or it fails without it too",
        next_time="export NCCL_NET_PLUGIN=none NCCL_DEBUG=INFO NCCL_DEBUG_FILE=nccl.%h.%p.log",
        minutes=10,
        also={"version_mismatch": 0.2, "nccl_bug": 0.15, "ib_config": 0.15},
    ),
)
