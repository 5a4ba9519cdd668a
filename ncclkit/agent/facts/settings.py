"""Settings that NCCL, torch, gloo and the launcher know, and which are in force.

One setting is checked here by its value, and by the NCCL that reads it where that is known.

Names and ranges are checked against NCCL 2.32.3 and torch 2.13; their sources are the NCCL user
guide (env.rst), `NCCL_PARAM` call sites, torch's ProcessGroupNCCL.hpp and FlightRecorder.hpp.  What
only some releases take is in `SINCE`; `nccl_variables` says which release reads which name. NCCL
takes the environment, then nccl.conf files by its own simple rules; tests/facts/test_variables.py
holds what NCCL 2.30.7 itself made of such a file.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any

from .. import redact
from .nccl_variables import Version, first_reader, is_read_by, version_of
from .machine import Absent, Machine, Unread

SCOPE = re.compile(
    r"(?:NCCL|TORCH|TORCHELASTIC|GLOO|MASTER|SLURM|UCX|FI|OFI_NCCL|AWS_OFI|LD|OMPI_COMM_WORLD)_\w+$"
    r"|(?:LOCAL_|GROUP_|ROLE_|PMI_)?RANK$|(?:LOCAL_|GROUP_|ROLE_)?WORLD_SIZE$|PMI_SIZE$"
    r"|(?:PBS|LSB)_(?:JOBID|QUEUE)$|LSB_HOSTS$|PET_(?:NNODES|NPROC_PER_NODE|RDZV_\w+|MASTER_\w+)$"
    r"|CUDA_VISIBLE_DEVICES$|CUDA_DEVICE_ORDER$|CUDA_DEVICE_MAX_CONNECTIONS$|CUDA_LAUNCH_BLOCKING$"
    r"|CUDA_MODULE_LOADING$|NVIDIA_VISIBLE_DEVICES$|NVIDIA_DRIVER_CAPABILITIES$"
    r"|PYTORCH_CUDA_ALLOC_CONF$|PYTORCH_ALLOC_CONF$|OMP_NUM_THREADS$|MKL_NUM_THREADS$|USE_LIBUV$"
    r"|OMP_PROC_BIND$|OMP_PLACES$|GOMP_CPU_AFFINITY$"
)
"""The variables that leave the agent; nothing else of the environment does."""

FLAGS = set(
    """
NCCL_ALLOC_P2P_NET_LL_BUFFERS NCCL_CHECK_POINTERS NCCL_COLLNET_ENABLE NCCL_COMM_BLOCKING
NCCL_CUMEM_ENABLE NCCL_CUMEM_HOST_ENABLE NCCL_DMABUF_ENABLE NCCL_ENABLE_VERSION_CHECK
NCCL_GDRCOPY_ENABLE NCCL_GDR_FLUSH_DISABLE NCCL_GRAPH_HELPER_DISABLE NCCL_GRAPH_MIXING_SUPPORT
NCCL_GRAPH_REGISTER NCCL_IB_ADAPTIVE_ROUTING NCCL_IB_DATA_DIRECT NCCL_IB_DISABLE NCCL_IB_ECE_ENABLE
NCCL_IB_MERGE_NICS NCCL_IB_MERGE_VFS NCCL_IB_PCI_RELAXED_ORDERING NCCL_IB_RESILIENCY_PORT_FAILOVER
NCCL_IB_RESILIENCY_PORT_RECOVERY NCCL_IB_RETURN_ASYNC_EVENTS NCCL_IB_SPLIT_DATA_ON_QPS
NCCL_IB_SUBNET_AWARE_ROUTING NCCL_IB_USE_INLINE NCCL_IB_WARN_RAIL_LOCAL NCCL_IGNORE_COLLNET_MISMATCH
NCCL_IGNORE_CPU_AFFINITY NCCL_IGNORE_DISABLED_P2P NCCL_IGNORE_NET_MISMATCH
NCCL_IPC_USE_ABSTRACT_SOCKET NCCL_LAUNCH_ORDER_IMPLICIT NCCL_LAUNCH_RACE_FATAL
NCCL_LEGACY_CUDA_REGISTER NCCL_LOCAL_REGISTER NCCL_MNNVL_ENABLE NCCL_MULTI_RANK_GPU_ENABLE
NCCL_NET_DISABLE_INTRA NCCL_NET_FORCE_FLUSH NCCL_NET_GDR_C2C NCCL_NET_GDR_READ
NCCL_NET_SHARED_BUFFERS NCCL_NET_SHARED_COMMS NCCL_NVB_DISABLE NCCL_NVLS_ENABLE NCCL_NVTX_DISABLE
NCCL_OOB_NET_ENABLE NCCL_P2P_DIRECT_DISABLE NCCL_P2P_DISABLE NCCL_P2P_READ_ENABLE
NCCL_P2P_USE_CUDA_MEMCPY NCCL_PARAM_DUMP_ALL NCCL_PAT_ENABLE NCCL_PXN_C2C NCCL_PXN_DISABLE
NCCL_RAS_ENABLE NCCL_REPORT_CONNECT_PROGRESS NCCL_RUNTIME_CONNECT NCCL_SET_CPU_STACK_SIZE
NCCL_SET_STACK_SIZE NCCL_SET_THREAD_NAME NCCL_SHM_DISABLE NCCL_SHM_USE_CUDA_MEMCPY
NCCL_WARN_ENABLE_DEBUG_INFO NCCL_WIN_ENABLE NCCL_COMM_SHRINK_SHARE_RESOURCES
NCCL_COMM_SPLIT_SHARE_RESOURCES NCCL_DISABLE_MEM_MANAGER NCCL_ELASTIC_BUFFER_REGISTER
NCCL_GDAKI_USE_RELIABLE_DB NCCL_IB_OOO_RQ NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS
NCCL_IB_QUERY_PORT_SPEED NCCL_LL128_C2C NCCL_MLOPART_RDMA_ENABLE NCCL_MULTI_SEGMENT_REGISTER
NCCL_NET_OPTIONAL_RECV_COMPLETION NCCL_NVB_PRECONNECT NCCL_P2P_EPOCH_ENABLE
NCCL_SINGLE_PROC_MEM_REG_ENABLE NCCL_SOCKET_INLINE NCCL_CE_INTRA_GPU_MEMCPY_ENABLE NCCL_CFT_ENABLE
NCCL_ENQUEUE_REARCH_ENABLE NCCL_GDAKI_FORCE_MCST NCCL_HIER_CE_COLL_AG_RAIL_RING_ENABLE
NCCL_IB_EVENT_BASED_LB NCCL_IB_EVENT_BASED_LB_REMOTE NCCL_IB_SORT_MERGE_NICS
NCCL_IB_WQE_LATENCY_REPORT NCCL_PROGRESS_COUNTERS NCCL_RUN_DIAGNOSTICS NCCL_RUN_RAS_DIAGNOSTICS
""".split()
)
"""Switches: 0, 1, and 2 or a negative number for "automatic" where NCCL has that."""

NUMBERS = set(
    """
NCCL_BUFFSIZE NCCL_CGA_CLUSTER_SIZE NCCL_CHUNK_SIZE NCCL_COLLNET_NODE_THRESHOLD
NCCL_CONNECT_ROUND_MAX_PEERS NCCL_CREATE_THREAD_CONTEXT NCCL_CROSS_NIC NCCL_IB_AR_THRESHOLD
NCCL_IB_FIFO_TC NCCL_IB_GID_INDEX NCCL_IB_MAX_DEVS_PER_NIC NCCL_IB_MQP_RETRY_ALL
NCCL_IB_MQP_RETRY_CNT NCCL_IB_MQP_RETRY_SLEEP_MSEC NCCL_IB_PKEY NCCL_IB_QPS_PER_CONNECTION
NCCL_IB_RETRY_CNT NCCL_IB_ROCE_VERSION_NUM NCCL_IB_ROUTABLE_FLID_GID_INDEX NCCL_IB_SL
NCCL_IB_SUBNET_PREFIX_LEN NCCL_IB_TC NCCL_IB_TIMEOUT NCCL_L1_SHARED_MEMORY_CARVEOUT
NCCL_LL128_BUFFSIZE NCCL_LL128_NTHREADS NCCL_LL_BUFFSIZE NCCL_MAX_CGA_CLUSTER_SIZE NCCL_MAX_CTAS
NCCL_MAX_NCHANNELS NCCL_MAX_NRINGS NCCL_MAX_P2P_NCHANNELS NCCL_MAX_P2P_PEERS NCCL_MIN_CTAS
NCCL_MIN_NCHANNELS NCCL_MIN_NRINGS NCCL_MIN_P2P_NCHANNELS NCCL_MNNVL_CLIQUE_ID
NCCL_NCHANNELS_PER_NET_PEER NCCL_NET_OVERHEAD NCCL_NSOCKS_PERTHREAD NCCL_NTHREADS
NCCL_NVLSTREE_MAX_CHUNKSIZE NCCL_NVLS_CHUNKSIZE NCCL_NVLS_NCHANNELS NCCL_P2P_LL_THRESHOLD
NCCL_P2P_NET_CHUNKSIZE NCCL_P2P_NVL_CHUNKSIZE NCCL_P2P_PCI_CHUNKSIZE NCCL_P2P_PXN_LEVEL
NCCL_PROGRESS_APPENDOP_FREQ NCCL_PROXY_APPEND_BATCH_SIZE NCCL_PROXY_DUMP_SIGNAL
NCCL_SOCKET_MIN_TASKSIZE NCCL_SOCKET_NTHREADS NCCL_SOCKET_POLL_TIMEOUT_MSEC
NCCL_SOCKET_RCVBUF NCCL_SOCKET_RETRY_CNT NCCL_SOCKET_RETRY_SLEEP_MSEC NCCL_SOCKET_SNDBUF
NCCL_UID_STAGGER_RATE NCCL_UID_STAGGER_THRESHOLD NCCL_UNPACK_DOUBLE_NCHANNELS NCCL_WIN_STRIDE
NCCL_WORK_ARGS_BYTES NCCL_WORK_FIFO_BYTES NCCL_WORK_FIFO_DEPTH NCCL_SHM_LOCALITY
NCCL_GRAPH_STREAM_ORDERING NCCL_NUM_RMA_CTX NCCL_P2P_MAX_PEERS NCCL_P2P_PER_CHANNEL_NET_BW
NCCL_P2P_SCHEDULE_GROUP_SIZE NCCL_SHADOW_MEMPOOL_MAX_SIZE NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE
NCCL_AGG_CHANNEL_SIZE NCCL_CE_CHUNK_SIZE NCCL_CE_COLL_AG_MULTICAST_THRESHOLD
NCCL_DIAGNOSTICS_ECC_THRESHOLD NCCL_DIAGNOSTICS_IB_BW_TIMEOUT NCCL_GROUP_CUDA_STREAM
NCCL_HIER_CE_COLL_NUM_CTX NCCL_IB_PKEY_VALUE NCCL_IB_WQE_LATENCY_THRESHOLD_NS NCCL_NUM_RMA_INT_CTX
NCCL_NVLS_UB_SIZE NCCL_P2P_PER_CHANNEL_REG_NET_BW NCCL_PROGRESS_COUNTER_MONITOR_POLL_MS
NCCL_PROGRESS_COUNTER_MONITOR_STALE_MS NCCL_PROGRESS_COUNTER_MONITOR_STALE_WARN_SEC
NCCL_SHM_MEMCPY_MODE NCCL_TOPO_SCATTER_START_NET
MASTER_PORT RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK
""".split()
)

CHOICES = {
    "NCCL_DEBUG": "NONE VERSION WARN ATTN INFO ABORT TRACE",
    "NCCL_DEBUG_LEVELS": "VERSION WARN ATTN INFO ABORT TRACE ALL",
    "NCCL_DEBUG_TIMESTAMP_LEVELS": "VERSION WARN ATTN INFO ABORT TRACE ALL",
    "NCCL_DEBUG_SUBSYS": (
        "INIT COLL P2P SHM NET GRAPH TUNING ENV ALLOC ALLOC_HOST CALL PROXY NVLS BOOTSTRAP REG"
        " PROFILE RAS DESTROY ALL"
    ),
    "NCCL_SOCKET_FAMILY": "AF_INET AF_INET6",
    "NCCL_IB_ADDR_FAMILY": "AF_INET AF_INET6",
    "NCCL_ALGO": "TREE RING COLLNETDIRECT COLLNETCHAIN COLLNET NVLS NVLSTREE PAT",
    "NCCL_PROTO": "LL LL128 SIMPLE",
    "NCCL_P2P_LEVEL": "LOC NVL PIX PXB PHB SYS",
    "NCCL_NET_GDR_LEVEL": "LOC PIX PXB P2C PHB SYS",
    "NCCL_NET_MERGE_LEVEL": "LOC PORT PIX PXB P2C PHB SYS",
    "NCCL_LAUNCH_MODE": "PARALLEL GROUP",
    "TORCH_DISTRIBUTED_DEBUG": "OFF INFO DETAIL",
    "TORCH_CPP_LOG_LEVEL": "INFO WARNING ERROR FATAL",
}
"""Words in upper case; NCCL and torch compare without regard to case, and NCCL's levels may also be
numbers."""

WORDS_SINCE: dict[str, tuple[Version, str]] = {
    "NCCL_DEBUG": ((2, 32, 3), "ATTN"),
    "NCCL_DEBUG_TIMESTAMP_LEVELS": ((2, 32, 3), "ATTN"),
    "NCCL_DEBUG_SUBSYS": ((2, 30, 7), "ALLOC_HOST"),
}
"""Words of `CHOICES` that only later releases know: the first one known to, and the words."""

TEXTS = set(
    """
NCCL_CTA_POLICY NCCL_DEV_API_JIT NCCL_IB_DEVICE_PCI_ORDER NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME
NCCL_NET_GDR_MLOPART NCCL_NET_MERGE_POLICY NCCL_NET_PLUGIN_REF_COUNT NCCL_TOPO_SPLIT_MLOPART
NCCL_COMM_ID NCCL_CONF_FILE NCCL_CHECK_MODE NCCL_DEBUG_FILE NCCL_DEBUG_TIMESTAMP_FORMAT
NCCL_CUDA_PATH NCCL_IB_RAIL_POLICY NCCL_ENV_PLUGIN NCCL_GIN_PLUGIN NCCL_GRAPH_DUMP_FILE
NCCL_GRAPH_DUMP_FILE_RANK NCCL_GRAPH_FILE NCCL_HOSTID NCCL_IBVERBS_LIB NCCL_IB_ADDR_RANGE
NCCL_IB_HCA NCCL_MNNVL_UUID NCCL_NET NCCL_NETDEVS_POLICY NCCL_NET_FORCE_MERGE NCCL_NET_PLUGIN
NCCL_NO_CACHE NCCL_OOB_NET_IFNAME NCCL_PROFILER_PLUGIN NCCL_PROXY_CPUSET NCCL_RAS_ADDR
NCCL_SOCKET_IFNAME NCCL_SOCKET_MAGIC NCCL_THREAD_THRESHOLDS NCCL_TOPO_DUMP_FILE
NCCL_TOPO_DUMP_FILE_RANK NCCL_TOPO_FILE NCCL_TUNER_PLUGIN NCCL_ALLGATHERV_ENABLE
NCCL_MEM_SYNC_DOMAIN NCCL_LSA_TEAM_SIZE NCCL_VERSION NCCL_HOME NCCL_ROOT NCCL_ROOT_DIR NCCL_DIR
NCCL_PATH NCCL_INCLUDE_DIR NCCL_LIB_DIR NCCL_LIBRARY NCCL_SO_PATH NCCL_LIBRARIES NCCL_INCLUDE_DIRS
GLOO_SOCKET_IFNAME GLOO_DEVICE_TRANSPORT TORCH_GLOO_LAZY_INIT TORCH_NCCL_DEBUG_INFO_TEMP_FILE
TORCH_NCCL_DEBUG_INFO_PIPE_FILE TORCH_NCCL_USE_COMM_NONBLOCKING TORCH_NCCL_NONBLOCKING_TIMEOUT
TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_TEARDOWN_ON_TIMEOUT
TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING TORCH_NCCL_CUDA_EVENT_CACHE_ENABLED
TORCH_FR_DUMP_TEMP_FILE TORCH_FR_DUMP_DYNAMIC_FILE_NAME TORCH_FR_DEBUG_INFO_PIPE_FILE
""".split()
)

TORCH_FLAGS = set(
    """
TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_DESYNC_DEBUG TORCH_NCCL_ENABLE_TIMING TORCH_NCCL_DUMP_ON_TIMEOUT
TORCH_NCCL_TRACE_CPP_STACK TORCH_NCCL_EXTRA_DUMP_ON_EXEC TORCH_NCCL_ENABLE_MONITORING
TORCH_NCCL_RETHROW_CUDA_ERRORS TORCH_NCCL_NAN_CHECK TORCH_NCCL_PROPAGATE_ERROR
TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN TORCH_NCCL_CUDA_EVENT_CACHE TORCH_NCCL_BCAST_UNIQUEID
TORCH_NCCL_HIGH_PRIORITY TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK TORCH_FR_CPP_STACK
TORCH_FR_DUMP_ON_TIMEOUT
""".split()
)
"""Switches of torch (getCvarBool of c10d/Utils.hpp): any other word than TORCH_WORDS ends the
process."""

TORCH_WORDS = set("y yes 1 t true n no 0 f false".split())

TORCH_NUMBERS = set(
    """
TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC
TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC TORCH_NCCL_COORD_CHECK_MILSEC TORCH_NCCL_RANKS_PER_ROOT
TORCH_FR_BUFFER_SIZE TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC
""".split()
)
"""Numbers of torch (getCvarInt: std::stoi, which stops at the first other character)."""

FRACTIONS = {"NCCL_RAS_TIMEOUT_FACTOR": (2, 31, 2)}
"""Whole numbers that may be fractions since a release; they are above 0 in all."""

SWITCH_WORDS = {"NCCL_PARAM_DUMP_ALL": (2, 30, 7), "NCCL_SET_THREAD_NAME": (2, 30, 7)}
"""Switches that since a release take ``t``, ``true``, ``f`` and ``false``, too."""

BOOLEANS = ("t", "true", "f", "false")

STRICT = (2, 32, 3)
"""The first release that takes its default in the place of what is no number; before it is 0."""

RANGES = {
    "NCCL_IB_PKEY_VALUE": (-1, 0xFFFF, "it is a key of 16 bits, -1 leaves it to NCCL_IB_PKEY"),
    "NCCL_PROGRESS_COUNTER_MONITOR_POLL_MS": (50, 1 << 31, "these are milliseconds"),
    "NCCL_PROGRESS_COUNTER_MONITOR_STALE_MS": (1000, 1 << 31, "these are milliseconds"),
    "NCCL_IB_TIMEOUT": (
        1,
        31,
        "it is an exponent of five bits, and 0 or 32 and more mean to wait for ever",
    ),
    "NCCL_IB_RETRY_CNT": (0, 7, "it is a field of three bits"),
    "NCCL_IB_SL": (-1, 15, "it is a field of four bits"),
    "NCCL_IB_TC": (-1, 255, "it is one byte"),
    "NCCL_IB_FIFO_TC": (-1, 255, "it is one byte"),
    "NCCL_IB_GID_INDEX": (-1, 255, "-1 lets NCCL choose"),
    "NCCL_IB_QPS_PER_CONNECTION": (1, 128, ""),
    "NCCL_IB_SUBNET_PREFIX_LEN": (1, 32, "it is the length of an IPv4 prefix"),
    "NCCL_SOCKET_NTHREADS": (1, 16, "NCCL lowers it to 16"),
    "NCCL_NSOCKS_PERTHREAD": (1, 64, "NCCL opens at most 64 sockets"),
    "NCCL_CROSS_NIC": (0, 2, "0 never, 1 always, 2 if needed"),
    "NCCL_P2P_PXN_LEVEL": (0, 2, ""),
    "NCCL_CGA_CLUSTER_SIZE": (0, 8, "NCCL lowers it to 8"),
    "NCCL_NTHREADS": (64, 640, "use 64, 128, 256 or 512"),
    "NCCL_MIN_NCHANNELS": (1, 64, ""),
    "NCCL_MAX_NCHANNELS": (1, 64, ""),
    "NCCL_MIN_CTAS": (1, 64, ""),
    "NCCL_MAX_CTAS": (1, 64, ""),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": (
        0,
        3,
        "0 none, 1 tear down, 2 clean up only, 3 tear down without clean-up",
    ),
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": (1, 1 << 31, "these are seconds"),
    "MASTER_PORT": (0, 65535, "choose a TCP port between 1024 and 65535"),
}
"""Name → (lowest, highest, what to know): NCCL user guide (env.rst), messages of NCCL 2.30.7,
ProcessGroupNCCL.hpp."""

RENAMED = {
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG": "TORCH_NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING": "TORCH_NCCL_ENABLE_TIMING",
    "NCCL_MIN_NRINGS": "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NRINGS": "NCCL_MAX_NCHANNELS",
    "NCCL_SINGLE_RING_THRESHOLD": "NCCL_ALGO",
    "NCCL_TREE_THRESHOLD": "NCCL_ALGO",
    "NCCL_IB_CUDA_SUPPORT": "NCCL_NET_GDR_LEVEL",
    "NCCL_LL_THRESHOLD": "NCCL_PROTO",
    "NCCL_CHECKS_DISABLE": "NCCL_CHECK_POINTERS",
    "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
}
"""Old name → the name of today."""

FAMILIES = (
    "NCCL_GIN_",
    "NCCL_RMA_",
    "NCCL_SYM_",
    "NCCL_GDRCOPY_",
    "NCCL_IB_RESILIENCY_",
    "NCCL_MNNVL_",
    "NCCL_TUNER_",
    "NCCL_PROFILE",
    "NCCL_INSPECTOR_",
    "NCCL_TESTS_",
    "NCCL_FASTRAK_",
    "NCCL_GPUDIRECTTCPX_",
    "NCCL_SHARP_",
    "NCCL_UCX_",
    "NCCL_PLUGIN_",
    "NCCL_SHIMNET_",
    "NCCL_OFI_",
)
"""Variables of plugins, or of parts of NCCL that grow with each release: any name with such a start
counts as known."""

KNOWN = FLAGS | NUMBERS | TEXTS | TORCH_FLAGS | TORCH_NUMBERS
KNOWN |= set(FRACTIONS) | set(CHOICES) | set(RENAMED)


def is_known(name: str) -> bool:
    """Whether some release of NCCL or torch reads the variable, as far as ncclkit knows."""
    return name in KNOWN or name.startswith(FAMILIES)


Problem = dict[str, Any]


def problem(kind: str, name: str, value: str, what: str, hint: str) -> Problem:
    """One row of ``env.problems`` or ``env.notes``; docs/facts.md lists the kinds."""
    return {"kind": kind, "name": name, "value": value, "problem": what, "hint": hint}


def check_value(name: str, value: str, nccl: Version | None = None) -> Iterator[Problem]:
    """What is wrong with one setting; at most one row.

    `nccl` is the release that reads it.  Where it is not known, only what is wrong in all releases
    is a problem.
    """
    if nccl is not None and name.startswith("NCCL_") and is_read_by(name, nccl) is False:
        yield _unread_problem(name, value, nccl)
    elif name in RENAMED:
        yield problem("renamed", name, value, "an old name", "today's name is %s" % RENAMED[name])
    elif name.startswith(("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "GLOO_")) and name not in KNOWN:
        yield from _unknown_problems(name, value)
    elif name in KNOWN and re.fullmatch(r"(['\"]).*\1", value):
        yield problem(
            "value", name, value, "the quotation marks belong to the value", "write it without them"
        )
    elif name in FRACTIONS:
        yield from _fraction_problems(name, value, nccl)
    elif name in FLAGS | NUMBERS:
        yield from _integer_problems(name, value, nccl)
    elif name in TORCH_FLAGS and value.strip().lower() not in TORCH_WORDS:
        what = "no switch value: torch ends with 'Invalid value for environment variable'"
        yield problem("value", name, value, what, "write 0 or 1")
    elif name in TORCH_NUMBERS and not re.match(r"\s*[-+]?\d", value):
        what = "no number: torch ends with 'Invalid value for environment variable'"
        yield problem("value", name, value, what, "write a whole number")
    elif name in TORCH_NUMBERS:
        yield from _range_problems(name, value, int(re.findall(r"[-+]?\d{1,20}", value)[0]))
    elif name in CHOICES:
        yield from _choice_problems(name, value, nccl)


def _unread_problem(name: str, value: str, nccl: Version) -> Problem:
    what = "NCCL %s does not read it, so it has no effect" % ".".join(str(part) for part in nccl)
    since = first_reader(name)
    hint = "it is gone: unset it"
    if since and nccl < (version_of(since) or ()):
        hint = "NCCL %s and later do" % since
    return problem("unread", name, value, what, hint)


def _fraction_problems(name: str, value: str, nccl: Version | None) -> Iterator[Problem]:
    """A factor above 0, which older releases took as a whole number."""
    since = FRACTIONS[name]
    if not re.fullmatch(r"\s*\+?(?:\d{1,20}\.?\d{0,20}|\.\d{1,20})(?:[eE][-+]?\d{1,3})?\s*", value):
        what = "no positive number, so NCCL takes its default"
        yield problem("value", name, value, what, "write a number above 0")
    elif float(value) == 0:
        yield problem("value", name, value, "not above 0", "write a number above 0")
    elif nccl is not None and nccl < since and integer(value) is None:
        what = "no whole number, which this NCCL expects"
        hint = "fractions are taken since NCCL %s" % ".".join(str(part) for part in since)
        yield problem("value", name, value, what, hint)


def integer(value: str) -> int | None:
    """A whole number as strtoll reads it (``10``, ``0x1f``, octal ``010``).

    It is None for anything else.
    """
    if not re.fullmatch(r"\s*[-+]?(?:0x[0-9a-fA-F]{1,16}|\d{1,20})\s*", value):
        return None
    if re.fullmatch(r"\s*[-+]?0[0-7]+\s*", value):
        return int(value, 8)
    return int(value, 16 if "x" in value else 10)


def _integer_problems(name: str, value: str, nccl: Version | None) -> Iterator[Problem]:
    """Switches and numbers of NCCL and the launcher."""
    found = integer(value)
    switch = name in FLAGS
    since = SWITCH_WORDS.get(name)
    if since and (nccl is None or nccl >= since) and value.strip().lower() in BOOLEANS:
        return
    if found is None:
        what = "no number, so it is refused or has no effect"
        if nccl is not None and name.startswith("NCCL_"):
            taken = "its default" if nccl >= STRICT else "0"
            what = "no number, in whose place this NCCL takes %s" % taken
        hint = "write a whole number"
        if switch:
            hint = "write 0 or 1"
        yield problem("value", name, value, what, hint)
    elif switch and not -2 <= found <= 2:
        yield problem("value", name, value, "not a switch value", "write 0 or 1")
    else:
        yield from _range_problems(name, value, found)


def _range_problems(name: str, value: str, found: int) -> Iterator[Problem]:
    low, high, why = RANGES.get(name, (found, found, ""))
    if not low <= found <= high:
        yield problem(
            "value",
            name,
            value,
            "outside %d to %d" % (low, high),
            why or "write a number between the two",
        )


def _unknown_problems(name: str, value: str) -> Iterator[Problem]:
    if name.startswith(FAMILIES):
        return
    close = difflib.get_close_matches(name, KNOWN, 1, 0.88)
    if close:
        yield problem(
            "misspelt",
            name,
            value,
            "unknown name, so it has no effect",
            "did you mean %s?" % close[0],
        )
    else:
        yield problem(
            "unknown",
            name,
            value,
            "not among the variables known to ncclkit",
            "unknown names are ignored silently: check it against the documentation of your"
            " version",
        )


def _choice_problems(name: str, value: str, nccl: Version | None) -> Iterator[Problem]:
    allowed = CHOICES[name].split()
    if nccl is not None and name in WORDS_SINCE and nccl < WORDS_SINCE[name][0]:
        allowed = [word for word in allowed if word not in WORDS_SINCE[name][1].split()]
    if re.fullmatch(r"-?\d+", value.strip()) and not name.startswith("TORCH_D"):
        return  # levels may be numbers
    # NCCL_ALGO=allreduce:tree,ring;broadcast:^ring   NCCL_DEBUG_SUBSYS=^NET,INIT
    lists = [part.split(":", 1)[-1].strip().lstrip("^") for part in value.split(";")]
    words = [word.strip() for part in lists for word in part.split(",") if word.strip()]
    for word in words or [value]:
        if word.upper() not in allowed:
            close = difflib.get_close_matches(word.upper(), allowed, 1)
            hint = "known: "
            if close:
                hint = "did you mean %s? known: " % close[0]
            yield problem("value", name, value, "no value it takes", hint + ", ".join(allowed))


Settings = dict[str, tuple[str, str]]
"""Name → (value, "environment" or the file it stands in)."""


def values(machine: Machine) -> dict[str, str]:
    """The variables in scope as NCCL finds them once it has read its files."""
    return {name: value for name, (value, _) in in_force(machine)[0].items()}


def in_force(machine: Machine) -> tuple[Settings, list[Problem]]:
    """The settings in force, and what is wrong with lines of the files.

    Such a line is without effect, or overruled.
    """
    found: Settings = {
        name: (value, "environment") for name, value in machine.environ.items() if SCOPE.match(name)
    }
    rows = []
    for path in _conf_files(machine):
        try:
            lines = _lines_of_conf(machine, path)
        except Unread as why:
            rows.append(
                problem(
                    "unchecked", "NCCL_CONF_FILE", path, "the file could not be read: %s" % why, ""
                )
            )
            continue
        for name, value in lines:
            bare = name.replace("export ", "").strip()
            if bare != name and SCOPE.match(bare):
                rows.append(_misread_problem(path, name, bare, value))
            elif SCOPE.match(name) and name not in found:
                found[name] = (value, path)
            elif SCOPE.match(name) and found[name][0] != value:
                rows.append(_shadowed_problem(path, name, value, found[name][1]))
    return found, rows


def _conf_files(machine: Machine) -> list[str]:
    """nccl.conf files in the order in which NCCL reads them.

    The first one that sets a name wins.
    """
    home = machine.environ.get("HOME", "")
    own = machine.environ.get("NCCL_CONF_FILE") or (home + "/.nccl.conf" if home else "")
    return [machine.absolute(path) for path in (own, "/etc/nccl.conf") if path]


def _lines_of_conf(machine: Machine, path: str) -> list[tuple[str, str]]:
    """The NAME=VALUE lines of one file.

    Only # in the first column begins a comment, and blanks count.  None where there is no such
    file, which is the usual case; raises Unread where it cannot be read.
    """
    try:
        # C ends a text there
        lines = [line.partition("\0")[0] for line in machine.read(path).splitlines()]
    except Absent:
        return []
    pairs = [line.partition("=") for line in lines if "=" in line and not line.startswith("#")]
    return [(name, value) for name, _, value in pairs]


def _misread_problem(path: str, name: str, bare: str, value: str) -> Problem:
    what = "in %s NCCL reads the name as %r, so the line has no effect" % (path, name)
    return problem(
        "misspelt",
        bare,
        redact.clean(value, bare),
        what,
        "write %s=VALUE alone, without blanks" % bare,
    )


def _shadowed_problem(path: str, name: str, value: str, winner: str) -> Problem:
    what = "set in %s, but %s wins" % (path, winner)
    return problem("shadowed", name, redact.clean(value, name), what, "remove one of the two")
