"""The kinds of events, and what each says: one class a kind, one field a thing.

The table of ``docs/events.md`` is printed from these classes (``python -m
tests.record.events_page``): the docstring of a class says what the kind is read from, the line
below a field what its name alone does not tell.  A field that a line does not tell is None, or
empty.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, TypedDict

import msgspec

from ncclkit.core.live_waits import (
    DeadThread,
    EndedRank,
    Engine,
    Wait,
    WaitingChild,
    WaitingThread,
)

KINDS: dict[str, type[Fields]] = {}
"""kind → the class of its fields."""


class Frame(TypedDict):
    """One frame of a stack."""

    file: str
    line: int
    func: str


class RasPlace(TypedDict):
    """Where a rank runs, by a RAS report."""

    host: str
    """an address"""
    pid: int | None
    gpu: str
    """CUDA index, with NVML's where they differ"""


class Fields(msgspec.Struct, frozen=True):
    """What events of a kind say.

    A subclass that names its `kind` is the class of that kind.
    """

    kind: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__dict__.get("kind"):
            KINDS[cls.kind] = cls


class Message(Fields, frozen=True):
    """What kinds say that quote a message."""

    message: str = ""


SAYS_NOTHING = frozenset({"own_check", "relayed", "teardown"})
"""Families of NCCL's messages on which no cause may rest; `says_nothing.txt` of the grammars says
why."""


class NcclMessage(Message, frozen=True):
    """What a message of NCCL says."""

    family: str = ""
    """see below"""


class Collective(Fields, frozen=True):
    """What is said of one call of a process group."""

    seq: int | None = None
    op: str = ""


class Endpoint(Fields, frozen=True):
    """Which address of the store is meant."""

    host: str | None = None
    port: int | None = None


class FlightFinding(Collective, frozen=True):
    """What a comparison says of one group that stops.

    The comparison is of dumps, or of a look at all ranks.
    """

    group: str = ""
    desc: str = ""
    root: str = ""
    """see below"""
    holds: list[str] = []
    """see below"""
    live: bool = False
    """seen by a look at the job, not in dumps"""
    rehearsed: bool = False
    """seen in a rehearsal, which knows every rank"""
    growing: bool = False
    """seen in files that are written while the job runs, and may show any moment of it"""


def typed_fields(kind: str, data: Mapping[str, Any]) -> Fields | Mapping[str, Any]:
    """The fields of a kind with these values.

    Of a kind that is not known it is the mapping itself.  Raises TypeError for a field that the
    kind does not have.
    """
    known = KINDS.get(kind)
    if known is None:
        return data
    return known(**data)


def known_fields(kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of the values that the kind has a field for.

    Another version may have more.
    """
    known = KINDS.get(kind)
    if known is None:
        return data
    known_data = {}
    for name in known.__struct_fields__:
        if name in data:
            known_data[name] = data[name]
    return known_data


class NcclVersion(Fields, frozen=True):
    """`NCCL version 2.28.9+cuda13.0`"""

    kind = "nccl.version"
    version: str = ""
    cuda: str | None = None


class NcclInit(Fields, frozen=True):
    """INIT lines; a `done` without its `start` is normal before 2.18."""

    kind = "nccl.init"
    phase: str = ""
    """`start`, `done`"""
    rank: int | None = None
    nranks: int | None = None
    comm: str = ""
    """pointer"""
    comm_id: str | None = None
    cuda_dev: int | None = None
    nvml_dev: int | None = None
    bus: str | None = None
    api: str | None = None
    """`ncclCommSplit`…"""
    parent: str | None = None
    color: int | None = None
    key: int | None = None
    """of a split child, which has no `comm_id`"""


class NcclEnv(Fields, frozen=True):
    """`… set by environment to …`"""

    kind = "nccl.env"
    name: str = ""
    value: str = ""


class NcclBootstrap(Fields, frozen=True):
    """`Bootstrap: Using eth0:10.0.0.1<0>`"""

    kind = "nccl.bootstrap"
    interface: str = ""
    address: str = ""


class NcclNetwork(Fields, frozen=True):
    """`Using network Socket`"""

    kind = "nccl.network"
    name: str = ""
    """`Socket`, `IB`, plugin"""


class NcclIbDevices(Fields, frozen=True):
    """`NET/IB : …`"""

    kind = "nccl.ib_devices"
    devices: list[str] = []
    """empty = `No device found`"""


class NcclChannel(Fields, frozen=True):
    """Channel lines, one event per (src, dst, transport)."""

    kind = "nccl.channel"
    src: int | None = None
    dst: int | None = None
    transport: str = ""
    """`P2P/CUMEM`, `SHM/direct`, `NET/Socket/0`…"""
    via: str = ""
    """`P2P`, `SHM`, `NET`"""
    gdr: bool = False
    pxn: int | None = None
    """rank whose NIC it leaves through"""
    channels: int | list[int] = 0
    """how many"""


class NcclOp(Fields, frozen=True):
    """COLL lines, one event per different call."""

    kind = "nccl.op"
    op: str = ""
    comm: str = ""
    count: int | None = None
    """elements"""
    dtype: int | None = None
    root: int | None = None
    """peer of Send and Recv"""
    nranks: int | None = None
    last: int | None = None
    """opCount; since 2.27 it does not rise without proxy work, `count` of the event says how
    many"""


class NcclCalls(Fields, frozen=True):
    """JSON lines of NCCL's Inspector plugin, those of a rank, collective and size together."""

    kind = "nccl.calls"
    op: str = ""
    bytes: int | None = None
    time_us: float | None = None
    """median; `count` of the event says how many calls"""


class NcclWarn(NcclMessage, frozen=True):
    """Every NCCL WARN, and the text after torch's `Last error:` (no `file` then)."""

    kind = "nccl.warn"
    file: str = ""
    line: int | None = None
    func: str = ""
    dev: int | None = None
    """CUDA ordinal of the thread, not the rank"""
    call: str = ""
    """of `ib_setup`"""
    errno: int | None = None
    """of `ib_setup`"""
    error: str = ""
    """of `ib_setup` and `cuda`"""
    status: int | None = None
    """of `ib_completion`"""
    vendor: int | None = None
    """of `ib_completion`"""
    routed: bool = False
    """of `ib_completion`: both GIDs are RoCE v2 with IPv4"""
    device: str = ""
    """the RDMA device, where the text names one"""


class NcclAttn(NcclWarn, frozen=True):
    """NCCL ATTN lines (2.32 and later), which `NCCL_DEBUG=WARN` hides; NCCL then goes on."""

    kind = "nccl.attn"


class NcclTrace(Fields, frozen=True):
    """`file:line -> code`, first of a group only."""

    kind = "nccl.trace"
    code: int | None = None
    """ncclResult_t"""
    errno: str | None = None
    file: str = ""
    line: int | None = None
    func: str | None = None
    """since 2.30"""


class NcclInfo(NcclMessage, frozen=True):
    """INFO lines that matter to a cause (no plugin found, P2P disabled …)."""

    kind = "nccl.info"


class NcclFabric(Fields, frozen=True):
    """The line of MNNVL with `healthMask`, decoded as NVML has it."""

    kind = "nccl.fabric"
    bus: str = ""
    state: int | None = None
    """3: registered with the fabric; the mask means nothing otherwise"""
    degraded: bool = False
    """fewer links, so less bandwidth"""
    troubles: list[str] = []
    """what else is wrong, in words"""


class NcclLink(Fields, frozen=True):
    """INFO lines of NCCL 2.30.7 and later on one link: `WQE stall`, `WQE slow`, `speed change` …

    Of lines of one connection the last one counts.
    """

    kind = "nccl.link"
    what: str = ""
    """`stall`: a send without an answer yet, `slow`: one whose answer came late, `summary` of a
    connection at its end, `gid`: the port's address changed, `speed`: its rate did"""
    device: str = ""
    port: int | None = None
    peer: str | None = None
    """address of the peer's process"""
    queue: int | None = None
    """number of the queue pair"""
    age: float | None = None
    """s without an answer, of `stall`"""
    took: float | None = None
    """s to the answer, of `slow`"""
    threshold: float | None = None
    """s from which NCCL speaks of it"""
    usual: float | None = None
    """s: mean of `slow`, median of `summary`"""
    worst: float | None = None
    """s"""
    count: int | None = None
    slow: int | None = None
    """sends, and slow ones of them, of `summary`"""
    before: str | None = None
    after: str | None = None
    """addresses of `gid`, Mbit/s of `speed`"""
    is_roce: bool | None = None


class NcclDestroy(Fields, frozen=True):
    """Teardown lines."""

    kind = "nccl.destroy"
    comm: str = ""
    rank: int | None = None
    how: str = ""
    """`destroy`, `abort`, `revoke`"""
    phase: str = ""
    """`start`, `done`"""
    result: int | None = None


class NcclPeerClosed(Fields, frozen=True):
    """`[Service thread] Connection closed by localRank r`"""

    kind = "nccl.peer_closed"
    local_rank: int | None = None


class NcclRing(Fields, frozen=True):
    """`Channel 00/08 : 0 1 2 3`, `Ring 00 : 3 -> 0 -> 1`"""

    kind = "nccl.ring"
    channel: int | None = None
    order: list[int] = []
    """[ranks]"""
    whole: bool = False
    """the order is the whole cycle; else a piece of it, mostly previous, own, next rank"""


class NcclTree(Fields, frozen=True):
    """`Trees [0] 1/-1/-1->0->-1`"""

    kind = "nccl.tree"
    algo: str = ""
    """`TREE`, `NVLS_TREE`"""
    trees: list[dict[str, Any]] = []
    """[{`channel`, `children` [ranks], `rank`, `parent` or None}]"""


class NcclTiming(Fields, frozen=True):
    """`Bootstrap timings`"""

    kind = "nccl.timing"
    what: str = ""
    """`bootstrap`: it came once around the ring of all ranks"""


class NcclConnected(Fields, frozen=True):
    """`Connected all rings`; with lazy connections long after INIT."""

    kind = "nccl.connected"
    what: str = ""
    """`rings`, `trees`, `NVLS tree`, `CollNet`"""
    pxn: int | None = None
    gdr: int | None = None
    """0, 1"""


class NcclAffinity(Fields, frozen=True):
    """`Setting affinity for GPU …`, `ncclTopoGetCpuAffinity`"""

    kind = "nccl.affinity"
    gpu: int | None = None
    mask: str = ""
    """as printed"""
    cpus: int | None = None
    """how many"""


class NcclSocketDevices(Fields, frozen=True):
    """`NET/Socket : Using …`"""

    kind = "nccl.socket_devices"
    devices: list[str] = []
    """`eth0:10.0.0.1`"""


class NcclTuning(Fields, frozen=True):
    """`… Bytes -> Algo RING proto SIMPLE …`"""

    kind = "nccl.tuning"
    op: str = ""
    """empty up to 2.22"""
    bytes: int | None = None
    algo: str = ""
    proto: str = ""
    """names"""
    channels: int | None = None
    time: float | None = None
    """µs, as NCCL predicts it, up to 2.23"""


class C10dTimeout(Collective, frozen=True):
    """Watchdog lines (a symptom).

    Where only the stack of one was pasted (`WorkNCCL::checkTimeout`) `op` is empty and the numbers
    are None.
    """

    kind = "c10d.timeout"
    numel_in: int | None = None
    numel_out: int | None = None
    timeout_ms: float | None = None
    ran_ms: float | None = None
    pg: str | None = None
    """stable name, GUID"""
    desc: str | None = None
    pg_rank: int | None = None
    api: str | None = None
    """`nccl`, `nccl2` (torchcomms, too): its `pg_rank` is the global one in a communicator of all
    ranks only"""


class C10dStatus(Fields, frozen=True):
    """Watchdog status lines."""

    kind = "c10d.status"
    seq: int | None = None
    """None in a dump signal's line"""
    enqueued: int | None = None
    completed: int | None = None
    pg: str | None = None
    desc: str | None = None
    pg_rank: int | None = None


class C10dStack(Fields, frozen=True):
    """`Stack trace of the failed collective`"""

    kind = "c10d.stack"
    frames: list[Frame] = []
    """innermost first"""


class C10dDesync(Message, frozen=True):
    """Desync report."""

    kind = "c10d.desync"
    seq: int | None = None
    """of the collective"""
    missing: list[int] = []
    """ranks that did not join"""
    waiting: list[int] = []
    """that did"""


class C10dMonitor(Fields, frozen=True):
    """Heartbeat monitor, or the watchdog that ends its process."""

    kind = "c10d.monitor"
    message: str | None = None
    seconds: int | None = None
    what: str = ""
    """`stuck`, `gil`, `dump`, `remote_error`, `terminate`, `revoke`: a communicator is given up and
    the process goes on, `abort`: the end of a group does not come back"""
    from_rank: int | None = None
    """who gave the signal"""


class C10dCommunicator(Fields, frozen=True):
    """`[TC][rank=3][name=tp] TorchCommNCCL initialized for rank: 3`"""

    kind = "c10d.communicator"
    name: str = ""
    group_rank: int | None = None
    """in it; the global one only where it has all ranks"""


class C10dRecorder(Fields, frozen=True):
    """Flight Recorder dumps as the log reports them."""

    kind = "c10d.recorder"
    what: str = ""
    """`off`, `begun`, `written`, `failed`"""
    file: str | None = None


class C10dHint(Message, frozen=True):
    """Warnings that blame nobody."""

    kind = "c10d.hint"
    what: str = ""
    """`group_timeout`, `asked_timeout`, `unbatched_p2p`, `not_destroyed`, `debug_server`: torch's
    could not make a dump"""


class C10dError(Message, frozen=True):
    """`DistBackendError`, `NCCL error in: …`, `NCCL Error 2: …`, `Test NCCL failure …`"""

    kind = "c10d.error"
    nccl_error: str = ""
    nccl_version: str | None = None
    last_error: str = ""


class C10dUniqueId(Fields, frozen=True):
    """`[5] is setting up NCCL communicator and retrieving ncclUniqueId from [0] …`"""

    kind = "c10d.unique_id"
    rank: int | None = None
    from_rank: int | None = None
    key: str = ""
    error: str = ""


class C10dMismatch(Fields, frozen=True):
    """DETAIL fingerprint mismatch."""

    kind = "c10d.mismatch"
    a: int | None = None
    b: int | None = None
    """ranks"""
    a_op: str = ""
    b_op: str = ""
    a_seq: int | None = None
    b_seq: int | None = None
    differs: list[str] = []


class C10dDeviceUnknown(Fields, frozen=True):
    """`using GPU d … currently unknown`, `Guessing device ID`"""

    kind = "c10d.device_unknown"
    gpu: int | None = None


class DdpParams(Message, frozen=True):
    """DDP parameter-shape verification, unused parameters."""

    kind = "ddp.params"
    ranks: list[int] = []


class HorovodStalled(Fields, frozen=True):
    """`Stalled ops: … [missing ranks: 3]`"""

    kind = "horovod.stalled"
    op: str = ""
    ranks: list[int] = []
    """that did not submit it"""


class StoreConnectTimeout(Endpoint, frozen=True):
    """TCPStore client."""

    kind = "store.connect_timeout"
    timeout_ms: int | None = None


class StoreResolve(Endpoint, frozen=True):
    """Lines of TCPStore with a gai error."""

    kind = "store.resolve"
    error: str = ""


class StoreBind(Fields, frozen=True):
    """EADDRINUSE."""

    kind = "store.bind"
    port: int | None = None
    error: str = ""


class StoreWait(Fields, frozen=True):
    """`wait timeout after`, `barrier timeout after`"""

    kind = "store.wait"
    keys: str = ""
    timeout_ms: int | None = None


class StoreClients(Fields, frozen=True):
    """`a/b clients joined`"""

    kind = "store.clients"
    joined: int = 0
    expected: int = 0
    timeout_s: int | None = None
    key: str | None = None
    """of a store-based barrier"""


class StoreRetry(Endpoint, frozen=True):
    """`TCP client failed to connect/validate … - retrying`"""

    kind = "store.retry"
    tries: int | None = None


class StoreLost(Message, frozen=True):
    """`Failed to recv, got 0 bytes`, Broken pipe, reset (a symptom)."""

    kind = "store.lost"


class StoreForeign(Message, frozen=True):
    """VALIDATE lines, `Ping failed`"""

    kind = "store.foreign"


class RendezvousError(Fields, frozen=True):
    """Torchrun rendezvous errors, `env://` variable missing."""

    kind = "rendezvous.error"
    name: str = ""
    message: str | None = None


class GlooTimeout(Fields, frozen=True):
    """A symptom."""

    kind = "gloo.timeout"
    timeout_ms: int | None = None
    what: str = ""
    """`send`, `recv`"""


class GlooClosed(Fields, frozen=True):
    """A symptom."""

    kind = "gloo.closed"
    address: str | None = None
    """`[ip]:port`"""
    how: str | None = None
    """`closed`, `reset`, `timed out`"""


class GlooConnect(Fields, frozen=True):
    """`connectFullMesh failed`"""

    kind = "gloo.connect"
    address: str = ""
    """`[ip]:port`, as the peer announced it"""
    why: str = ""


class GlooSizeMismatch(Fields, frozen=True):
    """`op.preamble.length <= op.nbytes`"""

    kind = "gloo.size_mismatch"
    a: int | None = None
    """bytes that came"""
    b: int | None = None
    """bytes that were expected"""


class GlooNoInterface(Fields, frozen=True):
    """`Unable to find address for: eth9`"""

    kind = "gloo.no_interface"
    interface: str = ""


class GlooBarrier(Fields, frozen=True):
    """Monitored barrier."""

    kind = "gloo.barrier"
    ranks: list[int] = []
    """that failed to pass"""
    timeout_ms: int | None = None


class ElasticExit(Fields, frozen=True):
    """`failed (exitcode: …) local_rank: …`, summary block, mpirun, DeepSpeed, Lightning."""

    kind = "elastic.exit"
    local_rank: int | None = None
    exitcode: int | None = None
    signal: int | None = None
    pid: int | None = None


class ElasticRoot(Fields, frozen=True):
    """`Root Cause (first observed failure)`"""

    kind = "elastic.root"
    exitcode: int | None = None
    signal: int | None = None
    host: str = ""


class ElasticStop(Fields, frozen=True):
    """`Sending process … closing signal SIGTERM` (victims)."""

    kind = "elastic.stop"
    pid: int | None = None
    signal: int | None = None


class ElasticSignal(Fields, frozen=True):
    """The launcher itself was told to stop, by the scheduler or a person."""

    kind = "elastic.signal"
    signal: int | None = None


class ElasticRestart(Fields, frozen=True):
    """`2/3 attempts left; will restart worker group`"""

    kind = "elastic.restart"
    left: int | None = None
    of: int | None = None
    """attempts"""


class SlurmEvent(Fields, frozen=True):
    """slurmstepd, srun, PBS, LSF, Grid Engine, Kubernetes and clouds."""

    kind = "slurm.event"
    what: str = ""
    """`oom`, `time_limit`, `cancelled`, `node_fail`, `node_drained`, `task_exit`"""
    task: str | None = None
    exitcode: int | None = None
    signal: int | None = None
    answer: bool = False
    """the scheduler was asked, after the end of the job"""


class PythonException(Message, frozen=True):
    """Tracebacks, de-interleaved by prefix.

    Those without a prefix stand only where all mixed tracebacks are the same, else the last lines
    stand alone, without frames.
    """

    kind = "python.exception"
    type: str | None = None
    frames: list[Frame] = []
    """[{`file`,`line`,`func`}] outermost first; empty for an exception line without its
    traceback"""
    until: int | None = None
    """last line"""
    victim: bool | None = None
    """the exception only reports another rank's failure"""
    worker: str = ""
    """`DP1 TP0`, or `pid 77`: the worker of a server of models that printed it"""


class PythonIgnored(Fields, frozen=True):
    """`Exception ignored in …`: an error of a destructor or a callback.

    Python goes on after it.
    """

    kind = "python.ignored"
    type: str = ""
    until: int | None = None
    """last line"""


class CppException(Message, frozen=True):
    """`terminate called after throwing …`"""

    kind = "cpp.exception"
    type: str = ""
    raised: Frame | None = None
    """a frame: where it was thrown"""
    frames: list[Frame] = []
    """innermost first; `file` is the library"""
    victim: bool = False
    """it only reports another rank's failure; False where several processes are mixed"""


class CudaError(Message, frozen=True):
    """`CUDA error: …`, device-side assert."""

    kind = "cuda.error"
    error: str | None = None


class CudaOom(Fields, frozen=True):
    """`CUDA out of memory`"""

    kind = "cuda.oom"
    gpu: int | None = None
    tried: str | None = None
    total: str | None = None
    free: str | None = None


class CudaDriver(Message, frozen=True):
    """Driver too old, no kernel image …"""

    kind = "cuda.driver"


class KernelXid(Message, frozen=True):
    """Lines of dmesg, dmesg -T, syslog and journal."""

    kind = "kernel.xid"
    bus: str = ""
    index: int | None = None
    """The number of the GPU, where a line names that and no address."""
    xid: int | None = None
    previous: int | None = None
    """The Xid that the line calls its cause."""

    def xid_among(self, numbers: Collection[int]) -> int | None:
        """Which of some Xids the line speaks of, its own first; None for another one."""
        if self.xid in numbers:
            return self.xid
        if self.previous in numbers:
            return self.previous
        return None


class KernelSxid(Message, frozen=True):
    """Lines of the NVSwitch driver."""

    kind = "kernel.sxid"
    bus: str = ""
    sxid: int | None = None
    fatal: bool = False


class KernelOom(Fields, frozen=True):
    """Lines of dmesg and journal."""

    kind = "kernel.oom"
    pid: int | None = None
    name: str = ""
    memcg: bool = False


class KernelSegfault(Fields, frozen=True):
    """Lines of dmesg."""

    kind = "kernel.segfault"
    pid: int | None = None
    name: str = ""
    library: str = ""


class KernelLink(Fields, frozen=True):
    """Lines of mlx5 and other NICs."""

    kind = "kernel.link"
    device: str = ""
    state: str = ""
    """`down`, `up`"""


class KernelIommu(Message, frozen=True):
    """Lines of DMAR and AMD-Vi."""

    kind = "kernel.iommu"
    device: str = ""
    """PCI"""


class KernelStall(Message, frozen=True):
    """A process in state D, a lost file server, errors of disks and file systems."""

    kind = "kernel.stall"
    what: str = ""
    """`hung_task`, `soft_lockup`, `nfs`, `storage`"""
    name: str = ""
    pid: int | None = None
    seconds: int | None = None


class KernelTable(Message, frozen=True):
    """The kernel's log, or `nstat`: what did not fit into a table."""

    kind = "kernel.table"
    name: str = ""
    """`neighbour table`, `connection tracking table` or `accept queue`"""


class KernelPcie(Message, frozen=True):
    """Lines of AER."""

    kind = "kernel.pcie"
    device: str = ""
    severity: str = ""


class SystemFault(Message, frozen=True):
    """Plain text of libc, Python, DataLoader, container runtimes and schedulers.

    It is also what users look up: `ulimit -l`, `getent hosts`, `ping`.
    """

    kind = "system.error"
    what: str = ""
    """`too_many_files`, `too_many_processes`, `no_space`, `disk_quota`, `host_memory`, `bus_error`,
    `dataloader_killed`, `dataloader_workers` (also `workers`, `suggested`), `address_in_use`,
    `segfault`, `killed`, `oom_kill`, `memlock`, `own_name` (resolves to loopback), `fabric`,
    `no_verbs` (no `/dev/infiniband`), `rdma_memory` (memory for RDMA refused), `unresolved` (a
    name without address; also `asked`), `slots` (a launcher lacks them), `hangup`, `loader`,
    `peer_copy`, `packet_size`"""
    workers: int | None = None
    """of `dataloader_workers`"""
    suggested: int | None = None
    """of `dataloader_workers`"""
    asked: str | None = None
    """of `unresolved`: the name"""


class SystemDenied(Fields, frozen=True):
    """Lines of libnuma in a container that forbids NUMA policy; harmless by itself."""

    kind = "system.denied"
    call: str = ""
    """`set_mempolicy`, `mbind`, …"""


class LogError(Message, frozen=True):
    """A line that calls itself an error, and that no other grammar knows.

    It says `ERROR`, `FATAL`, `CRITICAL` or `error:`.  Rules do not judge it, the verdict by
    resemblance reads it.  That also reads lines that merely hold a word of failure: `abnormal` of
    the file's row in `inputs.json`, 60 at most.
    """

    kind = "log.error"


class P2pMatrix(Fields, frozen=True):
    """Bandwidth matrices of `p2pBandwidthLatencyTest`"""

    kind = "p2p.matrix"
    enabled: bool = False
    direction: str = ""
    """`unidirectional`, `bidirectional`"""
    gpus: list[int] = []
    """CUDA ordinals"""
    values: list[list[float]] = []
    """GB/s, one row per source GPU; fewer rows where the text is cut"""


class StepProgress(Fields, frozen=True):
    """Progress bars and step counters, last one per rank and file."""

    kind = "progress"
    step: int | None = None
    total: int | None = None
    rate: str | None = None


class JobDone(Message, frozen=True):
    """A line in which a framework, launcher or container says that all succeeded."""

    kind = "job.done"


class WorkerPhase(Fields, omit_defaults=True, frozen=True):
    """Wire records of our own runs (`wire.jsonl`)."""

    kind = "worker.phase"
    phase: str = ""
    """`launch`, `node`, `absent`, `hello`, `simulate`, `import`, `init`, `step`, `size`, `leave`
    before `destroy_process_group`, `done`, `error`, …"""
    ranks: Any = None
    backend: Any = None
    name: Any = None
    log: Any = None
    local_rank: Any = None
    hostid: Any = None
    """by which NCCL takes the rank for one of another host"""
    gpus: Any = None
    """how many these ranks share"""
    on_them: Any = None
    """how many ranks"""
    torch: Any = None
    gpu: Any = None
    """torch's index"""
    nccl: Any = None
    bytes: Any = None
    op: Any = None
    reason: Any = None
    exitcode: Any = None
    say: Any = None
    step: Any = None
    error: Any = None
    loaded: Any = None
    """{package: version}"""
    workers: Any = None
    cores: Any = None
    limit: Any = None
    lightning: Any = None
    done: Any = None
    of: Any = None
    seconds: Any = None
    loss: Any = None
    attempt: Any = None
    node: Any = None
    world: Any = None
    peak: Any = None
    wrong: Any = None
    one: Any = None
    pairs: Any = None
    rows: Any = None
    read_s: Any = None
    step_s: Any = None
    number: Any = None
    peer: Any = None
    round: Any = None
    stage: Any = None
    losses: Any = None
    ready: Any = None
    problem: Any = None
    setting: Any = None
    left: Any = None


class TelemetryScheduling(Fields, frozen=True):
    """The telemetry (`telemetry.jsonl`), one per rank.

    It lies beside our own runs, and beside a job that was attached to.
    """

    kind = "telemetry.scheduling"
    processes: int = 0
    """of the rank: itself and its workers, most at once"""
    cores: int = 0
    """that they may use"""
    ran: float = 0.0
    waited: float = 0.0
    """for a core; both s, main threads, all processes together"""
    preempted: int = 0
    """times taken off a core before they were done"""


class TelemetryUtilization(Fields, frozen=True):
    """The telemetry, one per rank.

    It lies beside our own runs, and beside a job that was attached to.
    """

    kind = "telemetry.utilization"
    seconds: float | None = None
    """of the end of the telemetry that all figures are means of, 10 at most"""
    states: str = ""
    """as in ps, one letter a sample"""
    gpu: int | None = None
    """its index, where nvidia-smi shows which process computes on it"""
    cpu: float | None = None
    """% of a core, all threads of the rank's process"""
    main: float | None = None
    """% of the time in which its main thread ran or waited for a core"""
    sent: float | None = None
    received: float | None = None
    """bytes/s over TCP"""
    gpu_busy: float | None = None
    """%"""
    gpu_watts: float | None = None


class TelemetryOthers(Fields, frozen=True):
    """What processes that are none of the run's own used in its time.

    It is by the telemetry beside our own runs, one per host.
    """

    kind = "telemetry.others"
    cores_used: float | None = None
    """mean, of the host's `cores`; None where it was not told"""
    cores: int | None = None
    """of the host"""
    load: float | None = None
    """the highest"""
    ranks: int | None = None
    """of the run on that host"""
    gpus: dict[str, float] = {}
    """index → % of the time in which it computed before a rank came, from 20 %"""
    holders: list[dict[str, Any]] = []
    """processes on GPUs: `pid`, `bus`, `memory` in MiB, `name`"""


class RunEnd(Fields, frozen=True):
    """`status.json` of our own runs, one event for the whole run."""

    kind = "run.end"
    reason: str = ""
    """`done`, `failed`, `deadline`, `cancelled`, `orphaned`, `lost`: its guard was killed"""
    exitcode: int | None = None
    """of the launcher"""
    say: str = ""


class FlightDump(Fields, frozen=True):
    """One per dump file."""

    kind = "flight.dump"
    version: str | None = None
    entries: int | None = None
    newest: float | None = None
    """when its last call was made, in seconds since the epoch; null where it does not say"""
    groups: dict[str, Any] = {}
    """{name: {`desc`, `ranks`, `last_seq`, `last_completed`, `in_flight` [seq], `times` [[seq, when
    the call was made], of the last 8 and of 24 before; from 2,048 dumps on both numbers are
    divided by dumps / 1,024], `sizes` [[operation, bytes, calls], the 64 most frequent]}}"""


class FlightMissing(FlightFinding, frozen=True):
    """Cross-rank analysis: ranks that did not enter a collective.

    `missing` is empty where only ranks without a dump can be at fault.
    """

    kind = "flight.missing"
    missing: list[int] = []
    """[ranks]"""
    waiting: list[int] = []
    """[ranks]"""
    no_dump: list[int] = []
    """[ranks]"""
    overwritten: list[int] = []
    """[ranks whose ring buffer holds nothing of the group any more: nothing is known]"""
    frames: list[Frame] = []
    """of a missing rank's last entry"""
    last_seq: dict[str, int] = {}
    """{rank: seq}"""
    stacks: dict[str, list[Frame]] = {}
    """{missing rank: frames of its live stack}"""


class FlightMismatch(FlightFinding, frozen=True):
    """Cross-rank analysis; different shapes of as many elements are no mismatch."""

    kind = "flight.mismatch"
    field: str = ""
    """`op`, `sizes`, `dtypes`, `splits` of all_to_all: then `majority` holds the elements that all
    ranks send, `odd` those that they expect"""
    majority: dict[str, Any] = {}
    """{value, ranks}"""
    odd: list[dict[str, Any]] = []
    """[{value, ranks}]"""
    sites: list[str] = []
    """the line of the program that made each side's call, empty where none is known"""
    stacks: list[list[Frame]] = []
    """the stack of each side's call, innermost first, empty where the dump does not keep it"""
    pairs: list[list[int]] = []
    """[from, to, sent, expected] of `splits`"""
    branch: str = ""
    """the condition on the rank by which the odd side left the common path; of a look at the job"""
    completed: bool = False
    """whether all ranks have completed the call, in a job that goes on"""
    for_gpu: bool = False
    """a side waits for its GPU, whose kernel is not known; of a look at the job"""


class FlightStuck(FlightFinding, frozen=True):
    """Every rank launched, nobody (or only the smaller part) completed."""

    kind = "flight.stuck"
    ranks: list[int] = []
    states: dict[str, str] = {}
    """{rank: state}"""
    crossed: list[str] = []
    """[groups that are stuck as well, and that ranks entered in another order]"""


class FlightP2p(FlightFinding, frozen=True):
    """A send or receive without its counterpart, or of another size."""

    kind = "flight.p2p"
    src: int = -1
    dst: int = -1
    """global ranks"""
    sent: int = 0
    received: int = 0
    """how many sends and receives of this pair are recorded, only those in flight where older ones
    were overwritten"""
    sizes: list[int] | None = None
    """[elements sent, elements expected] where the calls meet but differ, else None"""
    waiting: list[int] = []
    """[ranks]"""
    lacking: list[int] = []
    """[the rank that did not make the matching call]"""
    stacks: dict[str, list[Frame]] = {}
    common: list[int] = []
    """[ranks on the common path], of a look at the job"""


class FlightLate(Collective, frozen=True):
    """The collective for which one rank let the others wait longest.

    It waited 1 s or more and 5 times the usual spread; across hosts against the clocks' usual
    difference, without an estimate of that only from 60 s.
    """

    kind = "flight.late"
    group: str = ""
    desc: str = ""
    seconds: dict[str, float] = {}
    """{rank: behind the middle rank; the 16 latest}"""
    worst: int = -1
    """rank"""
    usual: float = 0.0
    """seconds, the usual spread"""
    last_in: int = 0
    """collectives in which `worst` was the last"""
    of: int = 0
    """how many were compared"""


class FlightEntry(Collective, frozen=True):
    """An entry of the recorder that somebody printed in a log.

    `torchfrtrace`'s own verdicts there become `flight.missing` and `flight.mismatch`.
    """

    kind = "flight.entry"
    group: str = ""
    desc: str = ""
    peer: int | None = None
    """of a send or receive"""
    sizes: str = ""
    """as printed"""
    state: str = ""


class PrintedEnv(Fields, frozen=True):
    """A variable that takes a transport away, pasted or in a job's script."""

    kind = "printed.env"
    name: str = ""
    value: str = ""


class PrintedVersion(Fields, frozen=True):
    """The model of a GPU, the wheel of PyTorch or the driver, as printed."""

    kind = "printed.version"
    name: str = ""
    """`gpu`, `torch`, `driver`"""
    version: str = ""


class JobPhase(Message, frozen=True):
    """A phase in which ranks are not together.

    Kernels are tuned or compiled, data sets prepared, or batches skipped.
    """

    kind = "job.phase"
    what: str = ""
    """`compile`, `data`, `skip`"""


class JobShare(Fields, frozen=True):
    """The number of batches or steps that a rank says it has."""

    kind = "job.share"
    count: int | None = None


class JobAlone(Message, frozen=True):
    """What a rank says that it does alone.

    It skips a batch, stops early, or has no data left.
    """

    kind = "job.alone"


class JobMember(Fields, frozen=True):
    """How a rank announces itself.

    It is a line of Lightning, accelerate, Trainer, DETR, fairseq, Ray or nccl-tests.
    """

    kind = "job.member"
    number: int | None = None
    """the rank; None where the line does not say it"""
    world: int | None = None
    """None where the line does not say it"""


class PrintedSplits(Fields, frozen=True):
    """Split sizes of an all_to_all that a program prints."""

    kind = "printed.splits"
    inputs: list[int] = []
    outputs: list[int] = []
    """elements or rows to and from each rank"""


class NetMesh(Fields, frozen=True):
    """A sidecar of a service mesh speaks in the log, or is spoken of."""

    kind = "net.mesh"
    name: str = ""


class NetPing(Fields, frozen=True):
    """A `ping` that somebody pasted, with its size.

    A summary counts by itself only where some answers came and others did not.
    """

    kind = "net.ping"
    address: str = ""
    bytes: int | None = None
    """of data; None for a summary whose command is not known"""
    sent: int | None = None
    """None where the summary is missing"""
    received: int | None = None


class NetTcp(Fields, frozen=True):
    """An established connection as `ss -ti` shows it, or a rank's own as `ncclkit attach` does."""

    kind = "net.tcp"
    peer: str = ""
    queued: int | None = None
    """bytes in the send queue"""
    backoff: int | None = None
    """doublings of the timeout: unanswered repetitions in a row"""
    retrans: int | None = None
    """in flight"""
    resent: int | None = None
    """in all"""
    lost: int | None = None
    """packets"""
    rto_ms: float | None = None
    grown: int | None = None
    """repeated while `ncclkit attach` looked"""


class NetCounter(Fields, frozen=True):
    """A count of errors of a port or an interface that rose while `ncclkit attach` looked."""

    kind = "net.counter"
    device: str = ""
    port: int | None = None
    """of an RDMA device"""
    name: str = ""
    """as the kernel names it: `local_ack_timeout_err`, `rx_crc_errors`…"""
    grown: int = 0
    seconds: float | None = None


class ConnectHost(Fields, frozen=True):
    """`ncclkit connect`, one per host."""

    kind = "connect.host"
    name: Any = None
    """as the user or the allocation names the host"""
    hostname: Any = None
    own: Any = None
    """[addresses that its own name resolves to]"""
    interface: Any = None
    """NCCL's choice there"""
    address: Any = None
    """of `interface`"""
    gloo: Any = None
    """interface"""
    interfaces: Any = None
    """[{`name`, `state`, `kind`, `mtu`, `addresses`}]"""
    names: Any = None
    """{other host: [addresses] or the resolver's error}"""
    port: Any = None
    """that it listened on"""
    refused: Any = None
    """why the rendezvous port could not be opened there"""
    problem: Any = None
    """why it was unreachable"""


class ConnectPair(Fields, frozen=True):
    """`ncclkit connect`, one per ordered pair of hosts.

    The last test of a case counts, beside the last run of a job.
    """

    kind = "connect.pair"
    src: Any = None
    dst: Any = None
    port: Any = None
    """of the rendezvous"""
    address: Any = None
    """where the name of `dst` leads on `src`"""
    rendezvous: Any = None
    """`open`, `refused`, `silent`, `no route`, `itself`, `other host`, `foreign`, `failed: …` or
    None: not tried"""
    ephemeral: Any = None
    """another port there, as above"""
    interface: Any = None
    """that NCCL would choose on `dst`"""
    nccl_address: Any = None
    """of that interface"""
    nccl: Any = None
    """a port at `nccl_address`, as above"""
    reached: Any = None
    """[addresses of `dst` that answered]"""
    over: Any = None
    """the one measured"""
    mtu: Any = None
    """bytes of the largest IP packet that arrives whole"""
    mtu_own: Any = None
    """that `src` believes may be sent"""
    bandwidth: Any = None
    """GB/s of one TCP stream"""
    resent: Any = None
    """share of its packets that were sent again"""
    latency: Any = None
    """µs there and back, median"""
    offset: Any = None
    """s that the clock of `dst` is ahead"""
    offset_error: Any = None
    """of `offset`, s"""
    why: Any = None
    """{number: why it could not be had; `host`: which host was unreachable}"""


class ResourcesTried(Fields, frozen=True):
    """An experiment that looks at limits.

    It is one per thing that was really taken on `host`, for a moment.
    """

    kind = "resources.tried"
    what: Any = None
    """`descriptors`, `threads`, `shm`, `memlock`, `memory`, `port`, `names`"""
    name: Any = None
    """of the host that was looked up, number of the port"""
    need: Any = None
    """in `unit`"""
    got: Any = None
    """how far it came; None: unknown"""
    unit: Any = None
    error: Any = None
    """what the system said when it refused more"""
    why: Any = None
    """why it is unknown"""


class ExperimentCheck(Fields, frozen=True):
    """`experiments/<n>-<cause>/experiment.json` of a case: an experiment of ours."""

    kind = "experiment.check"
    cause: str = ""
    """that was asked about"""
    baseline: str = ""
    """the run that was run again, empty for a stand-in"""
    question: str = ""
    observed: str = ""
    verdicts: dict[str, str] = {}
    """cause → `proven`, `supported`, `refuted`, `open`"""


class ExperimentFix(Fields, frozen=True):
    """The same: a fix, tried on the same small job."""

    kind = "experiment.fix"
    cause: str = ""
    baseline: str = ""
    question: str = ""
    observed: str = ""
    verdicts: dict[str, str] = {}
    """as above"""


class ToldAnswer(Fields, frozen=True):
    """`ncclkit ask`, its form or tool: what a person answered.

    It moves suspects that are `possible`, and makes none of them more; it stays where the same
    logs are read again.
    """

    kind = "told.answer"
    look: str = ""
    """id of the cause that the question is about"""
    answer: str = ""
    """`yes`, `no`, `unknown`"""
    by: str = ""
    """`user`, or `check`: a look of ours at hosts"""


class StageRank(Fields, frozen=True):
    """The live test's stages: a rank alone, copying in its own memory."""

    kind = "stage.rank"
    bytes: int = 0
    copy: float = 0.0
    """GB/s read and written"""
    wrong: int = 0
    """bytes"""


class StagePair(Fields, frozen=True):
    """The same: `rank` and `peer` alone, told by the lower one."""

    kind = "stage.pair"
    peer: int = -1
    bytes: int = 0
    bandwidth: float = 0.0
    """GB/s each way, both at once"""
    latency_us: float = 0.0
    """one exchange of 8 bytes"""
    wrong: int = 0
    """bytes"""


class StagePeer(Fields, frozen=True):
    """The same: what `rank` wrote into the memory of `peer`, or read there, on one node."""

    kind = "stage.peer"
    peer: int = -1
    way: str = ""
    """`write`, `read`; `share`: neither was tried"""
    wrong: int = 0
    """1 where other bytes arrived"""
    apart: bool = False
    """the driver lets neither GPU reach the memory of the other"""
    problem: str = ""
    """why the memory could not be shared"""


class StageGroup(Fields, frozen=True):
    """The live test's stages: ranks together, told by the first of them.

    A problem is told by every rank that has one.  Those of `narrow` stand in `bisection.jsonl` of
    the run folder.
    """

    kind = "stage.group"
    stage: str = ""
    """`node`, `nodes`, `all`; `bisect`: tried anew, in a job of its own"""
    ranks: list[int] = []
    """of the group"""
    bytes: int = 0
    busbw: float | None = None
    """GB/s, the best of some all_reduces; None where it failed, and of one rank"""
    latency_us: float | None = None
    """8 bytes"""
    wrong: int = 0
    """values"""
    problem: str = ""
    """empty where there was none"""


class StepRank(Fields, frozen=True):
    """Where a step's time goes on one rank.

    It is told by `steps_rank<N>.json` of `ncclkit step`, or by a trace of PyTorch's profiler that
    it was given.
    """

    kind = "step.rank"
    source: str = ""
    """`hook` or `trace`"""
    world: int | None = None
    backend: str = ""
    gpus: bool = False
    steps: list[dict[str, Any]] = []
    """[{`seconds`, `parts` {part: seconds}, `points` [[begin, end, seconds that nothing hides] of a
    collective], `own` (seconds in collectives that the script calls), `bytes` and `calls` (of
    those), `queued` (seconds in which the main thread waited for a CPU)}]"""
    plain: list[float] = []
    """[seconds of steps that were timed and nothing else]"""
    cost: float | None = None
    """seconds of a step that measuring took; None of a trace"""
    batches: float | None = None
    """of a step"""
    sites: list[list[Any]] = []
    """[[part, line of the script, seconds, calls, function that it calls, what libraries did there
    (`print`, `clip`, `framework`, …), lines that called it]]"""
    buckets: list[int] = []
    """[bytes]"""
    loaders: list[list[Any]] = []
    """[[workers, prefetch, batch size]]"""
    threads: int | None = None
    problems: list[str] = []


class StepSetting(Fields, frozen=True):
    """`ncclkit step --try`: a setting against what the script has."""

    kind = "step.setting"
    setting: str = ""
    default: float | None = None
    """seconds of a batch"""
    changed: float | None = None
    """seconds of a batch"""
    gain: float | None = None
    """share"""
    interval: list[float] = []
    """[least, largest]"""
    better: bool = False
    worse: bool = False


class NccltestsTable(Fields, frozen=True):
    """A table of nccl-tests; its rows are `Reading.measurements`.

    Operations that its numbers cannot tell apart stand side by side (`all_gather/all_to_all`).
    """

    kind = "nccltests.table"
    op: str = ""
    ranks: int | None = None
    rows: int | None = None
    wrong: int | None = None
    """elements; None = unchecked"""
    average: float | None = None
    """busbw, GB/s"""


class ProgramLine(Fields, frozen=True):
    """A line of the job's program, read where it lies.

    It is one that tracebacks or dumps name, and that still holds the call which the job made there.
    Path and line of the event are its own, the text is the line.
    """

    kind = "program.line"
    func: str = ""
    """the function that it is in"""
    conditions: list[str] = []
    """on the rank, under which it is reached, innermost first"""
    loops: list[list[int]] = []
    """[first line, last line] of the loops around it, outermost first"""


class Stack(Fields, frozen=True):
    """Main thread of each rank."""

    kind = "stack"
    pid: int | None = None
    thread: str | None = None
    frames: list[Frame] = []
    """[{`file`,`line`,`func`}] innermost first"""
    tool: str | None = None
    """`py-spy`, `pystack`, `faulthandler`, `gdb`"""
    native: list[str] = []
    """[functions that the innermost Python frame called, innermost first], of pystack"""
    state: str = ""
    """`Has the GIL`, of pystack"""
    threads: list[dict[str, Any]] = []
    """[the same of the others], of pystack"""
    peer: dict[str, int] = {}
    """{`src` or `dst`: rank} of a send or receive, of pystack"""


class AttachRank(Fields, frozen=True):
    """`ncclkit attach`, one per rank.

    From these and the stacks follow `flight.missing`, `flight.mismatch` and `flight.p2p` with
    `live`: their `seq` is None, and what rests on them is `likely` at most.
    """

    kind = "attach.rank"
    pid: int | None = None
    command: str = ""
    launcher: str = ""
    slurm: str = ""
    """its job"""
    snapshots: list[dict[str, Any]] = []
    """[{`t`, `state`, `cpu` and `main` (s), `switches`, `waits_in` (function of the kernel),
    `file`, `stack`, `steps` {counter: number}, `io` (bytes read and written in all), `gloo` (how
    often threads that work on its collectives were woken)}]"""
    kernel: str | None = None
    """of its GPU; None where it is not known"""
    kernels: list[dict[str, Any]] = []
    """[{`t`, `name`, `grid` (number of the launch)}] of each look"""
    quiet: float | None = None
    """s since another rank sent it anything"""
    counted: bool = False
    """whether a whole number among its variables changed between the snapshots"""
    program: list[dict[str, Any]] = []
    """[{`file`, `line`, `func`, `text`, `group`, `peer`, `conditions` on the rank, `loops` [first
    line, last line], `retries` (what the loop around it tries again and again)} of its own
    lines]"""
    branches: list[dict[str, Any]] = []
    """[{`file`, `first`, `last`, `condition` on the rank} of its own files]"""
    output: dict[str, Any] = {}
    """{`file`, `quiet` (s since it was written), `line` (the last one of progress)}"""
    wait: Wait = {}
    """what the kernel tells of its wait: pipe, socket, lock of a file, children, debugger"""
    threads: list[WaitingThread] = []
    """[{`name`, `frames`}] of its other threads"""
    children: list[WaitingChild] = []
    """[{`pid`, `name`, `state`, `frames`, `wait`}] of a rank that waits for none of its peers"""
    died: list[DeadThread] = []
    """[{`name`, `error`, `file`, `line`}] of threads that ended with an exception"""
    engines: list[Engine] = []
    """[{`pid`, `frames`, `wait`, `orphan`, `listens`, `ended`}] of the processes above a worker
    without a RANK, nearest first"""
    orphan: bool = False
    """whether what started such a worker has ended"""
    side: str = ""
    """what tells the sides of a job of such workers apart: what started them, a class of actors"""
    half: bool = False
    """whether its native frames were asked for and could not be had"""
    on_gpu: bool = False
    """whether it has opened a GPU"""
    gone: bool = False
    """no process any more"""
    exitcode: int | None = None
    """0 where its launcher shows that; else None"""
    ended: EndedRank = {}
    """{`pid`, `status` or `signal`, `error`, `oom_kills`}: what shows how one that is gone ended"""


class DebugAbsent(Fields, frozen=True):
    """A rank that gave torch's debug server no answer (`PARTIAL DATA`)."""

    kind = "debug.absent"
    how: str = ""
    """`refused`: nothing listens there any more, `late`: its process takes the question and is
    silent"""
    answered: list[int] = []
    """[ranks that answered at that time]"""


class AttachMotion(Fields, frozen=True):
    """A look at a job that goes on, in a verdict alone.

    There it takes the place of `attach.rank`, `stack`, and all else that shows one moment.
    """

    kind = "attach.motion"
    ranks: list[int] = []
    """that moved, or that wait for a request"""
    idle: bool = False
    """whether the job only waits for a request"""


class RehearsalVerdict(Fields, frozen=True):
    """`rehearsal.json` of `ncclkit rehearse`.

    From it follow `flight.missing`, `flight.mismatch` and `flight.p2p` with `rehearsed`, and how
    ranks ended.
    """

    kind = "rehearsal.verdict"
    verdict: str = ""
    """`agree`, `mismatch`, `differs`, `order`, `first_use`, `left`, `deadlock`, `same_gpu`,
    `unknown`"""
    ranks: int = 0
    """how many"""
    odd: list[int] = []
    """[ranks that stand differently from the others]"""
    why: str = ""
    """of `unknown`; `gpus`: ranks share a GPU, unless the launcher shows each its own"""
    fake: bool = False
    """tensors had shapes and types, and no values (`--fake`)"""
    notes: list[str] = []
    """[what was seen besides, a sentence each]"""


class NcclDiagnostic(Message, frozen=True):
    """Lines of NCCL's own diagnostics (2.31+): ``NCCL DIAG``, in a log or asked of RAS.

    Ranks are those of the communicator `comm`.  The process that prints a line is not the one that
    it speaks of.
    """

    kind = "nccl.diagnostic"
    check: str = ""
    """`ecc_uncorrected`, `gpu_count`, `driver`, `nvlink_inactive`, `environment`, `p2p_data`, …"""
    state: str = ""
    """`finding`, `clean`, `unchecked` (no verdict), `note`"""
    comm: str = ""
    """= `commId` of the log"""
    of: int | None = None
    """ranks that took part"""
    ranks: list[int] = []
    """[ranks it speaks of] (eight at most)"""
    number: int | None = None
    """how many they are"""
    reference: int | None = None
    """the lowest rank, from which they differ"""
    reference_value: str = ""
    variable: str = ""
    value: str = ""
    src: int | None = None
    dst: int | None = None
    src_gpu: int | None = None
    """CUDA index"""
    dst_gpu: int | None = None
    path: str = ""
    """between the two GPUs: `PHB`, `NVL`, …"""
    handle: str = ""
    """how the memory was shared: `CUMEM_FABRIC`, …"""
    at: str = ""
    """the host it speaks of"""
    rate: float | None = None
    """Gbit/s"""
    median: float | None = None
    """Gbit/s"""


class RasReport(Fields, frozen=True):
    """One per RAS report, text (2.24+) or JSON (2.28.7+)."""

    kind = "ras.report"
    version: str = ""
    """of NCCL, in the process that answered"""
    nodes: int | None = None
    processes: int | None = None
    gpus: int | None = None
    communicators: int | None = None
    """how many"""
    sound: int | None = None
    """how many of them without a remark"""
    silent: list[str] = []
    """[host:pid, did not answer in time]"""
    silent_number: int = 0
    """how many, named or not"""
    dead: list[str] = []
    """[host:pid, given up]"""
    dead_number: int = 0
    """how many, named or not"""
    timeouts: int | None = None
    outliers: list[str] = []
    """[nodes with another number of processes or GPUs than most] (text only)"""


class RasCommunicator(Fields, frozen=True):
    """RAS report; of a text report the communicators that it remarks on.

    Ranks are those of the communicator.
    """

    kind = "ras.communicator"
    hash: str = ""
    """= `commId` of the log"""
    size: int | None = None
    missing: list[int] = []
    """[ranks]"""
    missing_number: int = 0
    """how many are missing or dead, named or not"""
    counts: dict[str, dict[str, int]] = {}
    """{op: {rank: launched}} (text reports name outliers only)"""
    behind: list[int] = []
    """[ranks below the highest count]"""
    late: list[int] = []
    """[ranks with the lowest count]"""
    late_number: int = 0
    """how many have the lowest count, named or not"""
    ahead: list[int] = []
    """[ranks known to have the highest count]"""
    spreads: dict[str, list[int]] = {}
    """{op: [lowest, highest count]} where counts differ"""
    crossed: bool = False
    """each rank is behind in some operation: they made different calls"""
    dead: list[int] = []
    """[ranks]"""
    errors: dict[str, str] = {}
    """{rank: text}"""
    error_shares: dict[str, int] = {}
    """{text: how many ranks} (text only)"""
    statuses: dict[str, str] = {}
    """{rank: INIT, RUNNING, FINALIZE, ABORT, NOCOMM} where ranks differ"""
    places: dict[str, RasPlace] = {}
    """{rank: where it runs} of ranks that are remarked on"""


class RasChange(Fields, frozen=True):
    """Two successive reports of one communicator.

    Where the second, a text, has no remark any more, `moved` holds the ranks that were behind and
    how much they caught up at least.
    """

    kind = "ras.change"
    hash: str = ""
    moved: dict[str, dict[str, int]] = {}
    """{rank: {op: launched between the two reports}}"""
    unnamed: int = 0
    """launched by ranks that the reports do not name"""
    still: list[int] = []
    """[ranks that launched nothing]"""
    seconds: float | None = None
    """between them, JSON only"""
    behind: list[int] = []
    """[ranks, in the second report]"""


class Cited(Fields, frozen=True):
    """The text of a line of evidence of a finding that was saved."""

    kind = "cited"
