"""The changes between versions that break naive parsers, old form beside new form.  (cliff, version, line, kind, data).

The numbers are those of the list of cliffs that the grammars were written by.
"""

from __future__ import annotations

from tests.evidence.specimens import TIMEOUT, WATCHDOG

INFO = "node-1:4711:4720 [3] NCCL INFO "
WARN = "node-1:4711:4720 [3] "
DATED = "[2026-11-21 00:28:00] node-1:4711:4720 [3] "
CPP = "[rank3]:[E1121 23:59:01.987654321 ProcessGroupNCCL.cpp:689] "
ERROR = "torch.distributed.DistBackendError: NCCL error in: {}:94, unhandled cuda error, NCCL version 2.21.5"
START = {"phase": "start", "rank": 3, "nranks": 8, "comm": "0x7f10", "bus": "5d000"}
DONE = START | {"phase": "done"}
CHILD = {"parent": "0x7f10", "color": 1, "key": 0, "comm_id": None}

CLIFFS = [
    # bus id in brackets, then the NVML index
    (1, "2.17", INFO + "Channel 00 : 3[5d000] -> 4[61000] via P2P/IPC", "nccl.channel", {"src": 3, "dst": 4}),
    (1, "2.18", INFO + "Channel 00/0 : 3[3] -> 4[4] via P2P/CUMEM/read", "nccl.channel", {"src": 3, "dst": 4}),
    # commId, nvmlDev and START, the name of the call, [Rank r]
    (2, "2.15", INFO + "comm 0x7f10 rank 3 nranks 8 cudaDev 3 busId 5d000 - Init COMPLETE", "nccl.init", DONE),
    (
        2,
        "2.16",
        INFO + "comm 0x7f10 rank 3 nranks 8 cudaDev 3 busId 5d000 commId 0x9a1b - Init COMPLETE",
        "nccl.init",
        DONE | {"comm_id": "0x9a1b", "nvml_dev": None},
    ),
    (
        3,
        "2.18",
        INFO + "comm 0x7f10 rank 3 nranks 8 cudaDev 3 nvmlDev 5 busId 5d000 commId 0x9a1b - Init START",
        "nccl.init",
        START | {"nvml_dev": 5},
    ),
    (
        4,
        "2.23",
        INFO + "ncclCommInitRankConfig comm 0x7f10 rank 3 nranks 8 cudaDev 3 nvmlDev 5 busId 5d000 commId 0x9a1b - "
        "Init COMPLETE",
        "nccl.init",
        DONE | {"api": "ncclCommInitRankConfig"},
    ),
    (
        5,
        "2.29",
        INFO + "[Rank 3] ncclCommInitRank comm 0x7f10 rank 3 nranks 8 cudaDev 3 nvmlDev 5 busId 5d000 commId 0x9a1b - "
        "Init START",
        "nccl.init",
        START | {"api": "ncclCommInitRank", "comm_id": "0x9a1b"},
    ),
    # children of a split
    *(
        (
            6,
            version,
            INFO + "ncclCommSplit comm 0x7f20 rank 0 nranks 4 cudaDev 3 nvmlDev 3 busId 5d000 parent 0x7f10 "
            f"{count}color 1 key 0- Init {phase}",
            "nccl.init",
            CHILD | {"phase": "start" if phase == "START" else "done"},
        )
        for version, count in (("2.23", ""), ("2.24", "splitCount 1 "), ("2.29", "childCount 1 "))
        for phase in ("START", "COMPLETE")
    ),
    (7, "2.23", INFO + "Bootstrap : Using eth0:10.0.0.1<0>", "nccl.bootstrap", {"interface": "eth0"}),
    (7, "2.24", INFO + "Bootstrap: Using eth0:10.0.0.1<0>", "nccl.bootstrap", {"address": "10.0.0.1"}),
    (8, "2.21", "NCCL version 2.21.5+cuda12.4", "nccl.version", {"version": "2.21.5", "cuda": "12.4"}),
    (8, "2.22", INFO + "NCCL version 2.22.3+cuda12.6", "nccl.version", {"version": "2.22.3"}),
    # tuning: numbers, then names and channels
    (
        9,
        "2.22",
        INFO + "4194304 Bytes -> Algo 1 proto 2 time 123.400002",
        "nccl.tuning",
        {"op": "", "bytes": 4194304, "algo": "RING", "proto": "SIMPLE", "channels": None, "time": 123.400002},
    ),
    (
        9,
        "2.23",
        INFO + "AllReduce: 4194304 Bytes -> Algo 4 proto 1 time 123.4",
        "nccl.tuning",
        {"op": "AllReduce", "algo": "NVLS", "proto": "LL128"},
    ),
    (
        9,
        "2.24",
        INFO + "AllReduce: 4194304 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..7}",
        "nccl.tuning",
        {"op": "AllReduce", "algo": "RING", "proto": "SIMPLE", "channels": 8, "time": None},
    ),
    # the envelope of warnings: time, function
    (10, "2.25", WARN + "misc/socket.cc:49 NCCL WARN something", "nccl.warn", {"file": "misc/socket.cc", "line": 49}),
    (10, "2.26", DATED + "misc/socket.cc:49 NCCL WARN something", "nccl.warn", {"file": "misc/socket.cc", "func": ""}),
    (
        11,
        "2.30",
        DATED + "misc/socket.cc:49 (socketPoll(ncclSocket*)) NCCL WARN something",
        "nccl.warn",
        {"func": "socketPoll(ncclSocket*)", "message": "something", "dev": 3},
    ),
    (12, "2.29", INFO + "misc/socket.cc:49 -> 6 [Async thread]", "nccl.trace", {"code": 6, "func": None}),
    (
        12,
        "2.30",
        INFO + "misc/socket.cc:49 (socketPoll) -> 2 (No such device)",
        "nccl.trace",
        {"code": 2, "func": "socketPoll", "errno": "No such device"},
    ),
    # completions: numbers, then names
    (
        13,
        "2.17",
        WARN + "transport/net_ib.cc:95 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4791> with error 12, "
        "opcode 0, len 0, vendor err 129",
        "nccl.warn",
        {"family": "ib_completion", "status": 12, "vendor": 129},
    ),
    (
        13,
        "2.22",
        WARN
        + "transport/net_ib.cc:95 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<4791> with status=12 opcode=0 "
        "len=0 vendor err 129 (Send) hca mlx5_1",
        "nccl.warn",
        {"family": "ib_completion", "status": 12, "vendor": 129, "device": "mlx5_1"},
    ),
    (
        13,
        "2.28",
        DATED + "transport/net_ib/p2p.cc:95 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<4791> with "
        "status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=129",
        "nccl.warn",
        {"family": "ib_completion", "status": 12, "vendor": 129},
    ),
    (
        14,
        "2.27",
        INFO + "Setting affinity for GPU 3 to ffff,0000ffff",
        "nccl.affinity",
        {"gpu": 3, "mask": "ffff,0000ffff", "cpus": 32},
    ),
    (
        14,
        "2.28",
        INFO + "ncclTopoGetCpuAffinity: Affinity for GPU 3 is 0-15,32-47. (GPU affinity = 0-15,32-47 ; CPU affinity = "
        "0-63).",
        "nccl.affinity",
        {"gpu": 3, "mask": "0-15,32-47", "cpus": 32},
    ),
    (
        16,
        "2.29",
        WARN + "init.cc:9 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 5d000",
        "nccl.warn",
        {"family": "duplicate_gpu"},
    ),
    (
        16,
        "2.30",
        DATED + "init.cc:9 (initTransportsRank) NCCL WARN Multiple Ranks are using the same GPU/Partition",
        "nccl.warn",
        {"family": "duplicate_gpu"},
    ),
    # torch: who speaks
    (17, "torch 2.2", CPP + "[Rank 3] " + WATCHDOG, "c10d.timeout", TIMEOUT | {"pg": "", "pg_rank": 3}),
    (
        17,
        "torch 2.3",
        CPP + "[PG 0 Rank 3] Timeout at NCCL work: 42, last enqueued NCCL work: 43, last completed NCCL work: 41.",
        "c10d.status",
        {"pg": "0", "desc": "", "pg_rank": 3, "seq": 42, "enqueued": 43, "completed": 41},
    ),
    (
        17,
        "torch 2.4",
        CPP + "[PG 7 (tp_group) Rank 3] Exception (either an error or timeout) detected by watchdog at work: 42, last "
        "enqueued NCCL work: 43, last completed NCCL work: 41.",
        "c10d.status",
        {"pg": "7", "desc": "tp_group", "seq": 42, "enqueued": 43, "completed": 41},
    ),
    (
        17,
        "torch 2.6",
        CPP + "[PG ID 2 PG GUID 7(tp_group) Rank 3]  failure detected by watchdog at work sequence id: 42 PG status: "
        "last enqueued work: 43, last completed work: 41",
        "c10d.status",
        {"pg": "7", "desc": "tp_group", "pg_rank": 3, "seq": 42, "enqueued": 43, "completed": 41},
    ),
    (18, "torch 2.13", CPP + "[Rank 3] " + WATCHDOG, "c10d.timeout", TIMEOUT | {"pg": "", "pg_rank": 3}),
    (
        18,
        "torch 2.14",
        CPP + "[PG GUID 7(tp_group) Rank 1] " + WATCHDOG,
        "c10d.timeout",
        TIMEOUT | {"pg": "7", "desc": "tp_group", "pg_rank": 1},
    ),
    (
        19,
        "torch 2.15 nccl",
        CPP + "[PG GUID 0(default_pg) Rank 3] " + WATCHDOG,
        "c10d.timeout",
        TIMEOUT | {"desc": "default_pg"},
    ),
    (
        19,
        "torch 2.15 nccl2",
        CPP + "[TC][rank=3][name=default_pg] Operation timed out after 600000 ms",
        "c10d.timeout",
        {"api": "nccl2", "seq": None, "op": "", "ran_ms": 600000, "pg": "default_pg", "pg_rank": 3},
    ),
    (
        19,
        "torch 2.15 nccl2 exception",
        CPP + "[TC][rank=3][name=default_pg] Watchdog caught collective operation timeout: NCCL operation timed out",
        "c10d.timeout",
        {"api": "nccl2", "seq": None, "ran_ms": None},
    ),
    (
        20,
        "torch 2.10",
        CPP
        + "[PG ID 0 PG GUID 0(default_pg) Rank 3] Stack trace of the failed collective not found, potentially because "
        "FlightRecorder is disabled. You can enable it by setting TORCH_NCCL_TRACE_BUFFER_SIZE to a non-zero value.",
        "c10d.recorder",
        {"what": "off"},
    ),
    (
        20,
        "torch 2.11",
        CPP + "[PG ID 0 PG GUID 0(default_pg) Rank 3] Flight Recorder trace successfully dumped.",
        "c10d.recorder",
        {"what": "written"},
    ),
    # where torch was built
    *(
        (
            22,
            version,
            ERROR.format(f"{root}/csrc/distributed/c10d/NCCLUtils.{suffix}"),
            "c10d.error",
            {"nccl_error": "unhandled cuda error", "nccl_version": "2.21.5"},
        )
        for version, root, suffix in (
            ("torch 2.5", "../torch", "hpp"),
            ("torch 2.6", "/pytorch/torch", "cpp"),
            ("torch 2.14", "/__w/pytorch/pytorch/torch", "cpp"),
        )
    ),
]

COUNTERS = {  # opCount of three all_reduces on one node: it advances up to 2.26, and stands still since
    "2.26": ("1", "2", "3"),
    "2.27": ("0", "0", "0"),
}
"""Cliff 15."""

ENTRY = {
    "record_id": 42,
    "pg_id": 0,
    "input_sizes": [[8]],
    "output_sizes": [[8]],
    "state": "started",
    "frames": [{"name": "step", "filename": "train.py", "line": 30}],
    "profiling_name": "nccl:all_reduce",
}
NEWER = ENTRY | {
    "process_group": ("0", "default_pg"),
    "collective_seq_id": 42,
    "p2p_seq_id": 0,
    "op_id": 42,
    "is_p2p": False,
    "input_dtypes": ["Float"],
    "output_dtypes": ["Float"],
    "time_created_ns": 1,
    "retired": False,
}
NAMED = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
DUMPS = {  # the schema of each torch, of a rank that waits in all_reduce 42
    "torch 2.2": [ENTRY | {"seq_id": 42, "time_created_us": 1}],
    "torch 2.3": {"version": "1.4", "pg_config": {0: [0, 1]}, "entries": [ENTRY | {"seq_id": 42}]},
    "torch 2.4": {"version": "2.1", "pg_config": NAMED, "entries": [NEWER]},
    "torch 2.7": {"version": "2.4", "pg_config": NAMED, "pg_status": {}, "entries": [NEWER | {"timeout_ms": 600000}]},
    "torch 2.8": {"version": "2.9", "nccl_version": "2.27.3", "pg_config": NAMED, "pg_status": {}, "entries": [NEWER]},
    "torch 2.15": {
        "version": "2.10",
        "comm_lib_version": "2.30.7",
        "pg_config": NAMED,
        "pg_status": {},
        "entries": [NEWER],
    },
}
"""Cliff 21."""
