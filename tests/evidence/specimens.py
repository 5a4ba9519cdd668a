"""Lines as the libraries print them, and what must be read from them.  Format-true, written here, nobody's log."""

from __future__ import annotations

HEAD = "node-1:4711:4720 [3] "
WATCHDOG = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, "
    "Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
)
TIMEOUT = {"seq": 42, "op": "ALLREDUCE", "numel_in": 1024, "timeout_ms": 600000, "ran_ms": 600012, "api": "nccl"}

NCCL = [
    # INIT of 2.10 … 2.30
    (
        HEAD + "NCCL INFO comm 0x7f10 rank 3 nranks 8 cudaDev 3 busId 5d000 - Init COMPLETE",
        "nccl.init",
        {"phase": "done", "rank": 3, "nranks": 8, "comm": "0x7f10", "bus": "5d000", "comm_id": None, "nvml_dev": None},
    ),
    (
        HEAD + "NCCL INFO comm 0x7f10 rank 3 nranks 8 cudaDev 3 nvmlDev 3 busId 5d000 commId 0x9a1b - Init START",
        "nccl.init",
        {"phase": "start", "comm_id": "0x9a1b", "nvml_dev": 3},
    ),
    (
        HEAD + "NCCL INFO ncclCommInitRankConfig comm 0x7f10 rank 3 nranks 8 cudaDev 3 nvmlDev 3 busId "
        "5d000 commId 0x9a1b - Init COMPLETE",
        "nccl.init",
        {"phase": "done", "comm_id": "0x9a1b"},
    ),
    (
        HEAD + "NCCL INFO [Rank 3] ncclCommInitRank comm 0x7f10 rank 3 nranks 8 cudaDev 3 nvmlDev 3 busId "
        "5d000 commId 0x9a1b - Init START",
        "nccl.init",
        {"rank": 3, "comm_id": "0x9a1b"},
    ),
    (
        HEAD + "NCCL INFO ncclCommSplit comm 0x7f20 rank 0 nranks 4 cudaDev 3 nvmlDev 3 busId 5d000 "
        "parent 0x7f10 childCount 1 color 1 key 0- Init START",
        "nccl.init",
        {"parent": "0x7f10", "nranks": 4, "comm_id": None},
    ),
    (
        HEAD + "NCCL INFO comm 0x7f10 rank 3 nranks 8 cudaDev 3 busId 5d000 - Abort COMPLETE",
        "nccl.destroy",
        {"how": "abort", "rank": 3},
    ),
    (
        HEAD + "NCCL INFO NCCL_SOCKET_IFNAME set by environment to ^docker0,lo.",
        "nccl.env",
        {"name": "NCCL_SOCKET_IFNAME", "value": "^docker0,lo"},
    ),
    (
        HEAD + "NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",
        "nccl.bootstrap",
        {"interface": "eth0", "address": "10.0.0.1"},
    ),
    (
        HEAD + "NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>",
        "nccl.bootstrap",
        {"interface": "eth0", "address": "10.0.0.1"},
    ),
    (
        HEAD + "NCCL INFO Bootstrap : Using [0]ens5:10.0.0.1<0> [1]veth7:fe80::1%veth7<0>",
        "nccl.bootstrap",
        {"interface": "ens5", "address": "10.0.0.1"},
    ),
    (HEAD + "NCCL INFO Using network AWS Libfabric", "nccl.network", {"name": "AWS Libfabric"}),
    (HEAD + "NCCL INFO Using network IB [RO] 0/8 | step 12", "nccl.network", {"name": "IB"}),
    (HEAD + "NCCL INFO Using network Socketnode-1:8:8 [1] NCCL INFO", "nccl.network", {"name": "Socket"}),
    (HEAD + "NCCL INFO NET/IB : No device found.", "nccl.ib_devices", {"devices": []}),
    (
        HEAD + "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
        "nccl.ib_devices",
        {"devices": ["mlx5_0:1/IB", "mlx5_1:1/RoCE"]},
    ),
    (
        HEAD + "NCCL INFO Channel 02 : 3[5d000] -> 4[61000] [send] via NET/IB/1(2)/GDRDMA",
        "nccl.channel",
        {"src": 3, "dst": 4, "transport": "NET/IB/1", "via": "NET", "gdr": True, "channels": 1},
    ),
    (
        HEAD + "NCCL INFO Channel 02/0 : 3[3] -> 4[4] via P2P/CUMEM/read",
        "nccl.channel",
        {"transport": "P2P/CUMEM/read", "via": "P2P", "gdr": False},
    ),
    (HEAD + "NCCL INFO Channel 02 : 3[3] -> 4[4] via SHM/direct/direct", "nccl.channel", {"via": "SHM"}),
    (
        HEAD + "NCCL INFO Ring 00 : 2[3d000] -> 3[3e000] via direct shared memory",
        "nccl.channel",
        {"src": 2, "via": "SHM"},
    ),
    (
        HEAD + "NCCL INFO Send: opCount 1f sendbuff 0x7f recvbuff (nil) count 1024 datatype 7 op 0 root 1 "
        "comm 0x55 [nranks=2] stream 0x5",
        "nccl.op",
        {"op": "Send", "count": 1024, "dtype": 7, "root": 1, "comm": "0x55", "last": 31},
    ),
    (
        HEAD + "NCCL INFO misc/socket.cc:474 -> 6",
        "nccl.trace",
        {"file": "misc/socket.cc", "line": 474, "code": 6, "errno": None},
    ),
    (
        HEAD + "NCCL INFO init.cc:185 (ncclGetUniqueId) -> 2 (No such device)",
        "nccl.trace",
        {"line": 185, "code": 2, "errno": "No such device"},
    ),
    (HEAD + "NCCL INFO group.cc:75 -> 1 [Async thread]", "nccl.trace", {"code": 1}),
    (HEAD + "NCCL INFO [Service thread] Connection closed by localRank 2", "nccl.peer_closed", {"local_rank": 2}),
    (
        HEAD + "NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation",
        "nccl.info",
        {"family": "no_plugin"},
    ),
    (HEAD + "NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", "nccl.info", {"family": "gdr_disabled"}),
    (HEAD + "NCCL INFO P2P is disabled between connected GPUs 1 and 0.", "nccl.info", {"family": "p2p_disabled"}),
    (HEAD + "NCCL INFO NVLS multicast support is not available on dev 0", "nccl.info", {"family": "nvls"}),
    (
        HEAD + "NCCL INFO Channel 00/08 :    0   1   3   2",
        "nccl.ring",
        {"channel": 0, "order": [0, 1, 3, 2], "whole": True},
    ),
    (
        HEAD + "NCCL INFO Channel 01/32 :    0    7  126  12...",
        "nccl.ring",
        {"channel": 1, "order": [0, 7, 126], "whole": False},
    ),
    (HEAD + "NCCL INFO Channel 00/32 : 0", "nccl.ring", {"order": [0], "whole": True}),
    (HEAD + "NCCL INFO Ring 05 : 2 -> 3 -> 0", "nccl.ring", {"channel": 5, "order": [2, 3, 0], "whole": False}),
    (
        HEAD + "NCCL INFO Trees [0] 1/-1/-1->3->-1 [1] -1/-1/-1->3->2",
        "nccl.tree",
        {
            "algo": "TREE",
            "trees": [
                {"channel": 0, "children": [1], "rank": 3, "parent": None},
                {"channel": 1, "children": [], "rank": 3, "parent": 2},
            ],
        },
    ),
    (
        HEAD + "NCCL INFO Trees [0] 1/-1/-1->0->-1|-1->0->1/-1/-1 [1] -1/-1/-1->0->1|1->0->-1/-1/-1",
        "nccl.tree",
        {
            "trees": [
                {"channel": 0, "children": [1], "rank": 0, "parent": None},
                {"channel": 1, "children": [], "rank": 0, "parent": 1},
            ]
        },
    ),
    (
        HEAD + "NCCL INFO Tree 0 : 8 -> 3 -> 1/2/-1",
        "nccl.tree",
        {"trees": [{"channel": 0, "children": [1, 2], "rank": 3, "parent": 8}]},
    ),
    (HEAD + "NCCL INFO NVLS Trees : [0] 1/2/-1->0->-1", "nccl.tree", {"algo": "NVLS_TREE"}),
    (
        HEAD
        + "NCCL INFO Bootstrap timings total 0.014 (create 0.001, send 0.000, recv 0.011, ring 0.001, delay 0.000)",
        "nccl.timing",
        {"what": "bootstrap"},
    ),
    (HEAD + "NCCL INFO Connected all rings", "nccl.connected", {"what": "rings", "gdr": None}),
    (HEAD + "NCCL INFO Connected all rings, use ring PXN 0 GDR 1", "nccl.connected", {"what": "rings", "gdr": 1}),
    (HEAD + "NCCL INFO Connected NVLS tree", "nccl.connected", {"what": "NVLS tree"}),
    (
        HEAD + "NCCL INFO NET/Socket : Using [0]ens7:10.0.0.1<0> [1]veth7:fe80::1%veth7<0>",
        "nccl.socket_devices",
        {"devices": ["ens7:10.0.0.1", "veth7:fe80::1%veth7"]},
    ),
    (
        HEAD + "NCCL INFO AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_RSxLD_AGxST nchannels 16 nthreads 512",
        "nccl.tuning",
        {"op": "AllReduce", "bytes": 4096, "algo": "Symmetric", "proto": "AllReduce_RSxLD_AGxST", "channels": 16},
    ),
    (
        HEAD + "NCCL INFO AllGather [Copy Engine]: 4096 Bytes -> cudaMemcpyBatchAsync",
        "nccl.tuning",
        {"algo": "Copy Engine", "proto": "cudaMemcpyBatchAsync", "channels": None},
    ),
    (
        HEAD + "NCCL INFO comm 0x7f10 rank 3 nranks 8 cudaDev 3 nvmlDev 3 busId 5d000 - Revoke COMPLETE, result 0",
        "nccl.destroy",
        {"how": "revoke", "phase": "done", "result": 0},
    ),
    (
        HEAD + "NCCL INFO comm 0x7f10 rank 3 nranks 8 cudaDev 3 nvmlDev 3 busId 5d000 - Abort START",
        "nccl.destroy",
        {"how": "abort", "phase": "start", "result": None},
    ),
    (HEAD + "NCCL INFO NCCL_IB_HCA set to mlx5_0", "nccl.env", {"name": "NCCL_IB_HCA", "value": "mlx5_0"}),
    (HEAD + "NCCL INFO Invalid value fast for NCCL_NTHREADS, using default -2.", "nccl.info", {"family": "bad_value"}),
    ("NCCL version 2.28.9+cuda13.0", "nccl.version", {"version": "2.28.9", "cuda": "13.0"}),
    (HEAD + "NCCL INFO NCCL version 2.28.9+cuda13.0", "nccl.version", {"version": "2.28.9"}),
]

WARN = [  # text after "NCCL WARN ", source file, what classify must find
    ("Bootstrap : no socket interface found", "bootstrap.cc", {"family": "no_interface"}),
    ("NET/IB: NCCL_IB_PKEY_VALUE=0x8001 not found in PKey table (x)", "connect.cc", {"family": "ib_pkey"}),
    ("Socket magic mismatch from 10.0.0.2<33> (peer 0x1 != 0x2)", "crypt.cc", {"family": "foreign"}),
    ("Mismatched NCCL git versions detected: rank 0 fingerprint 0x1", "init.cc", {"family": "version"}),
    ("Could not find intermediate GPU between GPU rank 3 and NIC 1", "graph/paths.cc", {"family": "topology"}),
    ("minCTAs 40 is larger than #channels upper limit 32, cap it to 32", "init.cc", {"family": "setting"}),
    ("NET/IB : Trying to use non-existent virtual device 3", "connect.cc", {"family": "ib_device"}),
    ("NET/IB: Resiliency context is NULL. Nothing to destroy.", "p2p_resiliency.cc", {"family": "failover"}),
    ("RMA/Socket : send queue is full with 3 tasks", "rma_socket.cc", {"family": "one_sided"}),
    ("Window address must be suitably aligned.", "dev_runtime.cc", {"family": "window"}),
    ("rank 3 failed to NET register userbuff 0x7f10 buffSize 8", "transport/net.cc", {"family": "registration"}),
    ("MemManager: Already suspended", "mem_manager.cc", {"family": "memory_manager"}),
    ("ncclCrypt: TLS connection requested without TLS support", "crypt.cc", {"family": "encryption"}),
    ("gdr_pin_buffer(addr 7f10, size 64) failed: 3", "misc/gdrwrap.cc", {"family": "gdrcopy"}),
    ("nvmlDeviceGetCount() failed: Unknown Error", "misc/nvmlwrap.cc", {"family": "nvml"}),
    ("Failed to load CUDA missing symbol cuInit", "misc/cudawrap.cc", {"family": "library"}),
    ("Stream is not being captured by the expected graph.", "strongstream.cc", {"family": "graph_capture"}),
    ("Net : string is null", "misc/socket.cc", {"family": "address"}),
    ("Call to dup2 failed: Bad file descriptor", "os/linux.cc", {"family": "system_call"}),
    ("cudaArch 900 dynamic smem 9 exceeds device/fn maxSharedMem 8", "enqueue.cc", {"family": "kernel_launch"}),
    ("External tuner plugin v9 is unsupported", "plugin/tuner.cc", {"family": "side_plugin"}),
    ("NCCL progress counter monitor: cudaSetDevice(3) failed", "progress_monitor.cc", {"family": "monitor"}),
    ("CollNet currently only supports up to 8 GPUs per node, disabling CollNet", "init.cc", {"family": "fallback"}),
    ("Bootstrap Root : mismatch in rank count from procs 4 : 8", "bootstrap.cc", {"family": "bootstrap_mismatch"}),
    (
        "NET/Socket : peer 10.0.0.2<33> message truncated : receiving 8 bytes instead of 4",
        "transport/net_socket.cc",
        {"family": "size_mismatch"},
    ),
    (
        "socketStartConnect: Connect to 10.0.0.2<40001> failed : No route to host",
        "misc/socket.cc",
        {"family": "socket_connect"},
    ),
    ("socketProgress: Connection closed by remote peer node-2<36138>", "misc/socket.cc", {"family": "socket_closed"}),
    ("socketFinalizeAccept: wrong magic 0 != 7", "misc/socket.cc", {"family": "foreign"}),
    (
        "NET/IB : Got completion from peer 10.0.0.2<4791> with status=12 opcode=0 len=0 vendor err 129 (Send) "
        "localGid x hca mlx5_1",
        "transport/net_ib.cc",
        {"family": "ib_completion", "status": 12, "vendor": 129, "device": "mlx5_1"},
    ),
    (
        "NET/IB: Got completion from peer 10.0.0.2<4791> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) "
        "reqSize=0 vendor_err=129",
        "transport/net_ib/p2p.cc",
        {"family": "ib_completion", "status": 12, "vendor": 129},
    ),
    (
        "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state INIT",
        "misc/ibvwrap.cc",
        {
            "family": "ib_setup",
            "call": "ibv_modify_qp",
            "errno": 110,
            "error": "Connection timed out",
            "device": "mlx5_0:1",
        },
    ),
    (
        "Call to ibv_reg_mr failed with error Cannot allocate memory",
        "misc/ibvwrap.cc",
        {"family": "ib_setup", "call": "ibv_reg_mr", "errno": None},
    ),
    ("NET/IB : mlx5_0:1 Got async event : port error", "transport/net_ib.cc", {"family": "ib_async"}),
    (
        "Error while creating shared memory segment /dev/shm/nccl-Ab12 (size 9637888)",
        "misc/shmutils.cc",
        {"family": "shm"},
    ),
    ("Cuda failure 2 'out of memory'", "include/alloc.h", {"family": "cuda", "error": "out of memory"}),
    ("Cuda failure 1 'invalid argument'", "transport/nvls.cc", {"family": "nvls", "error": "invalid argument"}),
    (
        "Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'",
        "misc/cudawrap.cc",
        {"family": "driver"},
    ),
    (
        "P2P is disabled between NVLINK connected GPUs 0 and 1. This should not be the case",
        "graph/paths.cc",
        {"family": "p2p"},
    ),
    ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 5d000", "init.cc", {"family": "duplicate_gpu"}),
    ("Multiple Ranks are using the same GPU/Partition", "init.cc", {"family": "duplicate_gpu"}),
    ("Mismatched NCCL version detected : rank 1 version 22809 rank 0 version 22707", "init.cc", {"family": "version"}),
    ("AllReduce : invalid root 9 (root should be in the 0..8 range)", "misc/argcheck.cc", {"family": "usage"}),
    (
        "No algorithm/protocol available for function Broadcast".replace("No a", "no a"),
        "enqueue.cc",
        {"family": "algorithm"},
    ),
    ("[Proxy Service 2] Failed to execute operation Connect from rank 2, retcode 3", "proxy.cc", {"family": "proxy"}),
    ("[Service thread] Accept failed Too many open files", "proxy.cc", {"family": "fd"}),
    (
        "UDS: Sending data over socket /tmp/nccl-socket-2-5 failed : Connection refused (111)",
        "os/linux_ipcsocket.cc",
        {"family": "uds"},
    ),
    ("Failed to initialize any NET plugin", "plugin/net.cc", {"family": "plugin"}),
    (
        "NET/GPUDirectTCPX : unable to find RX rule manager: /run/tcpx/service.sock: Connection refused",
        "net.cc",
        {"family": "plugin"},
    ),
    (
        "NET/IB: Got completion from peer 10.0.0.2<4791> with status=12 opcode=0 len=0 vendor err 129 (Recv) "
        "localGid ::ffff:10.0.0.1 remoteGids::ffff:10.0.0.2 hca mlx5_4",
        "transport/net_ib.cc",
        {"family": "ib_completion", "status": 12, "vendor": 129, "routed": True, "device": "mlx5_4"},
    ),
    ("something new in 2.40", "new.cc", {"family": "other"}),
]

C10D = [
    ("[E ProcessGroupNCCL.cpp:475] [Rank 2] " + WATCHDOG, "c10d.timeout", TIMEOUT | {"pg_rank": 2, "pg": ""}, 2),
    ("[rank5]:[E ProcessGroupNCCL.cpp:523] [Rank 5] " + WATCHDOG, "c10d.timeout", TIMEOUT | {"pg_rank": 5}, 5),
    (
        "[rank5]:[E1121 23:59:01.987654321 ProcessGroupNCCL.cpp:632] [Rank 1] " + WATCHDOG,
        "c10d.timeout",
        TIMEOUT | {"pg_rank": 1},
        5,
    ),
    (
        "[rank5]:[E1121 23:59:01.9 ProcessGroupNCCL.cpp:689] [PG GUID 7(tp_group) Rank 1] " + WATCHDOG,
        "c10d.timeout",
        {"pg": "7", "desc": "tp_group", "pg_rank": 1},
        5,
    ),
    (
        "[E ProcessGroupNCCL.cpp:587] [Rank 2] Watchdog caught collective operation timeout: "
        "WorkNCCL(OpType=BROADCAST, TensorShape=[4, 8], "
        "Timeout(ms)=1800000) ran for 1802157 milliseconds before timing out.",
        "c10d.timeout",
        {"op": "BROADCAST", "seq": None, "timeout_ms": 1800000},
        2,
    ),
    (
        "[rank1]:[E1121 23:59:01.9 ProcessGroupNCCL.cpp:689] [Rank 1] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=7, "
        "OpType=COALESCED, NumelIn=18446744073709551615, NumelOut=18446744073709551615, Timeout(ms)=60000) ran for "
        "60001 milliseconds before timing out.",
        "c10d.timeout",
        {"op": "COALESCED", "numel_in": None},
        1,
    ),
    (
        "[E1121 23:59:01.9 x.cpp:9] [TC][rank=3][name=default_pg] Operation timed out after 600000 ms",
        "c10d.timeout",
        {"api": "nccl2", "ran_ms": 600000},
        3,
    ),
    (
        "[rank3]:[E1121 23:59:01.9 ProcessGroupNCCL.cpp:2268] [PG ID 2 PG GUID 7(tp_group) Rank 1]  failure detected "
        "by watchdog at work sequence id: 493 "
        "PG status: last enqueued work: 494, last completed work: 492",
        "c10d.status",
        {"seq": 493, "enqueued": 494, "completed": 492, "pg": "7", "desc": "tp_group", "pg_rank": 1},
        3,
    ),
    (
        "[rank3]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 3] Timeout at NCCL work: 3, last enqueued NCCL work: 4, "
        "last completed NCCL work: 2.",
        "c10d.status",
        {"seq": 3, "enqueued": 4, "completed": 2, "pg": "0"},
        3,
    ),
    (
        "[rank0]:[F1121 23:59:01.9 ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 0] ProcessGroupNCCL's "
        "watchdog got stuck for 480 seconds "
        "without making progress in monitoring enqueued collectives.",
        "c10d.monitor",
        {"what": "stuck", "seconds": 480},
        0,
    ),
    (
        "[rank0]:[E1121 23:59:01.9 ProcessGroupNCCL.cpp:1] Could not acquire GIL within 300 ms on exit, possible GIL "
        "induced hang",
        "c10d.monitor",
        {"what": "gil"},
        0,
    ),
    (
        "[rank0]:[E1121 23:59:01.9 ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 0] Received a dump "
        "signal due to a collective timeout from "
        "rank 3 and we will try our best to dump the debug info.",
        "c10d.monitor",
        {"what": "dump"},
        0,
    ),
    (
        "[rank1]:[E1121 23:59:01.9 logger.cpp:1] To our best knowledge, the lagging/dead/mismatched ranks that caused "
        "the desync are: [2]",
        "c10d.desync",
        {"seq": None, "missing": [], "waiting": []},
        1,
    ),
    (
        "[rank1]:[E1121 23:59:01.9 logger.cpp:1] \n\t - To our best knowledge, the lagging/dead/mismatched ranks that "
        "caused the desync are:\n\t   - [0, 2] joined but didn't finish collective #5 (count from 1)\n\t     [1] "
        "finished collective #4, but didn't join collective #5 (count from 1)",
        "c10d.desync",
        {"seq": 5, "missing": [1], "waiting": [0, 2]},
        None,
    ),
    (
        "[rank1]:[E1121 23:59:01.9 logger.cpp:1] To our best knowledge, ranks [3, 5] are the lagging ranks that caused "
        "this timeout. They never joined any collectives",
        "c10d.desync",
        {"seq": None, "missing": [3, 5]},
        1,
    ),
    (
        "[rank2]:[W1121 23:59:01.9 ProcessGroupNCCL.cpp:5] [PG ID 0 PG GUID 0(default_pg) Rank 2]  using GPU 2 as "
        "device used by this process is "
        "currently unknown.",
        "c10d.device_unknown",
        {"gpu": 2},
        2,
    ),
    (
        "[rank2]:[W1121 23:59:01.9 ProcessGroupNCCL.cpp:5] Guessing device ID based on global rank.",
        "c10d.device_unknown",
        {"gpu": None},
        2,
    ),
    (
        "torch.distributed.DistBackendError: [5] is setting up NCCL communicator and retrieving ncclUniqueId from [0] "
        "via c10d key-value store by key '0', "
        "but store->get('0') got error: Socket Timeout",
        "c10d.unique_id",
        {"rank": 5, "from_rank": 0, "key": "0", "error": "Socket Timeout"},
        5,
    ),
    (
        "RuntimeError: NCCL Error 2: unhandled system error",
        "c10d.error",
        {"nccl_error": "unhandled system error"},
        None,
    ),
    (
        "node-1: Test NCCL failure common.cu:777 'unhandled system error'",
        "c10d.error",
        {"nccl_error": "unhandled system error"},
        None,
    ),
]

GLOO = [
    (
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 6000ms "
        "for recv operation to complete",
        "gloo.timeout",
        {"timeout_ms": 6000, "what": "recv"},
    ),
    (
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
        "[10.0.0.2]:17323. This is typically caused by",
        "gloo.closed",
        {"address": "[10.0.0.2]:17323", "how": "closed"},
    ),
    (
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:17323: "
        "Connection reset by peer.",
        "gloo.closed",
        {"how": "reset"},
    ),
    (
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:43672: "
        "Connection timed out. This is typically caused by",
        "gloo.closed",
        {"address": "[10.0.0.2]:43672", "how": "timed out"},
    ),
    (
        "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:152] "
        "timed out connecting: SO_ERROR: Connection refused, remote=[127.0.1.1]:9600$0",
        "gloo.connect",
        {"address": "[127.0.1.1]:9600", "why": "Connection refused"},
    ),
    (
        "  what():  [enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= "
        "op.nbytes. 16 vs 8. Received data size",
        "gloo.size_mismatch",
        {"a": 16, "b": 8},
    ),
    (
        "RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. "
        "Unable to find address for: eth9",
        "gloo.no_interface",
        {"interface": "eth9"},
    ),
    (
        "RuntimeError: [enforce fail at .../gloo/transport/tcp/device.cc:84]\n  ifa != nullptr. Unable to find "
        "address for: ^lo",
        "gloo.no_interface",
        {"interface": "^lo"},
    ),
    (
        "[E1121 23:59:01.9 ProcessGroupGloo.cpp:2] [Rank 0]: Ranks 2, 3 failed to pass monitoredBarrier in 6000 ms",
        "gloo.barrier",
        {"ranks": [2, 3], "timeout_ms": 6000},
    ),
    (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=1, OpType=ALLREDUCE, "
        "TensorShape=[20], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float)), but Rank 1 is running "
        "collective: CollectiveFingerPrint("
        "SequenceNumber=1, OpType=BROADCAST, TensorShape=[10], TensorDtypes=Float, "
        "TensorDeviceTypes=TensorOptions(dtype=float)).Collectives differ in the "
        "following aspects: \tOp type: ALLREDUCEvs BROADCAST\tTensor Tensor shapes: 20vs 10",
        "c10d.mismatch",
        {"a": 0, "b": 1, "a_op": "ALLREDUCE", "b_op": "BROADCAST", "differs": ["op", "sizes"]},
    ),
    (
        "RuntimeError: DDP expects same model across all ranks, but Rank 0 has 4 params, while rank 1 has "
        "inconsistent 5 params.",
        "ddp.params",
        {"ranks": [0, 1]},
    ),
    (
        "RuntimeError: [2]: params[3] in this process with sizes [10, 5] appears not to match sizes of the same param "
        "in process 0.",
        "ddp.params",
        {"ranks": [2]},
    ),
    (
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.",
        "ddp.params",
        {"ranks": []},
    ),
    ("DistributedTransform/HorovodAllreduce_grad_0 [missing ranks: 3, 6]", "horovod.stalled", {"ranks": [3, 6]}),
]

STORE = [
    (
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to "
        "(node-1, 29500).",
        "store.connect_timeout",
        {"host": "node-1", "port": 29500, "timeout_ms": 60000},
    ),
    (
        "torch.distributed.DistNetworkError: The client socket has timed out after 900s while trying to connect to "
        "(10.0.0.1, 29500).",
        "store.connect_timeout",
        {"timeout_ms": 900000},
    ),
    (
        "RuntimeError: connect() timed out. Original timeout was 60000 ms.",
        "store.connect_timeout",
        {"timeout_ms": 60000},
    ),
    (
        "[W socket.cpp:601] [c10d] The IPv6 network addresses of (node-1, 29500) cannot be retrieved (gai error: -2 - "
        "Name or service not known).",
        "store.resolve",
        {"host": "node-1", "port": 29500, "error": "-2 - Name or service not known"},
    ),
    (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, "
        "name: EADDRINUSE, message: address already in use",
        "store.bind",
        {"port": 29500, "error": "EADDRINUSE"},
    ),
    (
        "[W socket.cpp:401] [c10d] The server socket has failed to bind to [::]:29400 (errno: 98 - Address already in "
        "use).",
        "store.bind",
        {"port": 29400},
    ),
    (
        "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cuda//0",
        "store.wait",
        {"keys": "/default_pg/0//cuda//0", "timeout_ms": 300000},
    ),
    (
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 2/3 clients joined.",
        "store.clients",
        {"joined": 2, "expected": 3, "timeout_s": 601},
    ),
    (
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 1, for key: "
        "store_based_barrier_key:1 (world_size=4, "
        "worker_count=2, timeout=0:30:00)",
        "store.clients",
        {"joined": 2, "expected": 4},
    ),
    (
        "[W1121 23:59:01.9 TCPStore.cpp:106] [c10d] Failed to recv, got 0 bytes. Connection was likely closed.",
        "store.lost",
        {},
    ),
    (
        "[W1121 23:59:01.9 TCPStore.cpp:125] [c10d] sendBytes failed on SocketImpl(fd=4, addr=[localhost]:5, "
        "remote=[localhost]:29500): Broken pipe",
        "store.lost",
        {},
    ),
    (
        "[W1121 23:59:01.9 TCPStore.cpp:1] Miscellaneous client with incorrect VALIDATE query is detected",
        "store.foreign",
        {},
    ),
    (
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK "
        "expected, but not set",
        "rendezvous.error",
        {"name": "RANK"},
    ),
    (
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has "
        "failed.",
        "rendezvous.error",
        {"name": "RendezvousConnectionError"},
    ),
]

LAUNCHERS = [
    (
        "E1121 01:02:03.000000 99 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: -9) "
        "local_rank: 1 (pid: 4711) of binary: /usr/bin/python",
        "elastic.exit",
        {"exitcode": -9, "signal": 9, "local_rank": 1, "pid": 4711},
    ),
    (
        "W1121 01:02:03.000000 99 torch/distributed/elastic/multiprocessing/api.py:1010] Sending process 4712 closing "
        "signal SIGTERM",
        "elastic.stop",
        {"pid": 4712, "signal": 15},
    ),
    (
        "torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal SIGKILL",
        "elastic.exit",
        {"local_rank": 3, "signal": 9},
    ),
    (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM Killed.",
        "slurm.event",
        {"what": "oom"},
    ),
    (
        "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-21T01:02:03 DUE TO TIME LIMIT ***",
        "slurm.event",
        {"what": "time_limit"},
    ),
    (
        "slurmstepd: error: *** STEP 4711.0 ON n1 CANCELLED AT 2026-11-21T01:02:03 ***",
        "slurm.event",
        {"what": "cancelled"},
    ),
    (
        "srun: error: n2: task 3: Exited with exit code 1",
        "slurm.event",
        {"what": "task_exit", "task": "3", "exitcode": 1},
    ),
    ("srun: error: n2: task 3: Killed", "slurm.event", {"what": "task_exit", "signal": 9}),
    (
        "srun: error: Task launch for StepId=5.0 failed on node n3: Socket timed out on send/recv operation",
        "slurm.event",
        {"what": "node_fail"},
    ),
    (
        "mpirun noticed that process rank 3 with PID 4711 on node n2 exited on signal 9 (Killed).",
        "elastic.exit",
        {"signal": 9, "pid": 4711, "local_rank": None},
    ),
    (
        "[2026-11-21 01:02:03,456] [ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python', '-u', 'train.py', "
        "'--local_rank=3', '--deepspeed'] exits with return code = -9",
        "elastic.exit",
        {"local_rank": 3, "exitcode": -9, "signal": 9},
    ),
    (
        "n2: [2026-11-21 01:02:03,456] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 4711",
        "elastic.stop",
        {"pid": 4711},
    ),
    (
        "[rank: 1] Child process with PID 4711 terminated with code 1. Forcefully terminating all other processes",
        "elastic.exit",
        {"pid": 4711, "exitcode": 1},
    ),
    (
        "W1121 01:02:03.0 99 api.py:1] Unable to shutdown process 4712 via Signals.SIGTERM, forcefully exiting via "
        "Signals.SIGKILL",
        "elastic.stop",
        {"pid": 4712, "signal": 9},
    ),
    (
        "[default] Worker group FAILED. 2/3 attempts left; will restart worker group",
        "elastic.restart",
        {"left": 2, "of": 3},
    ),
]

SYSTEM = [
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 "
        "GiB of which 1.06 GiB is free.",
        "cuda.oom",
        {"gpu": 0, "tried": "2.00 GiB", "total": "79.15 GiB", "free": "1.06 GiB"},
    ),
    (
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 1; 23.65 GiB total capacity; 22.1 GiB "
        "already allocated; 10.62 MiB free; 22.2 GiB reserved)",
        "cuda.oom",
        {"gpu": 1, "tried": "20.00 MiB", "total": "23.65 GiB", "free": "10.62 MiB"},
    ),
    ("RuntimeError: CUDA error: device-side assert triggered", "cuda.error", {"error": "device-side assert triggered"}),
    (
        "node-1: Test CUDA failure common.cu:941 'system not yet initialized'",
        "cuda.error",
        {"error": "system not yet initialized"},
    ),
    ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", "cuda.driver", {}),
    ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "cuda.driver", {}),
    (
        "[ 1234.567890] NVRM: Xid (PCI:0000:1b:00): 79, pid=4711, name=python, GPU has fallen off the bus.",
        "kernel.xid",
        {"bus": "0000:1b:00", "xid": 79},
    ),
    (
        "[ 1234.567890] Out of memory: Killed process 4711 (python) total-vm:99kB",
        "kernel.oom",
        {"pid": 4711, "name": "python", "memcg": False},
    ),
    (
        "[ 1234.567890] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,task=python,pid=4711,uid=0",
        "kernel.oom",
        {"memcg": True, "pid": 4711},
    ),
    (
        "[ 1234.567890] python[4711]: segfault at 10 ip 00007f sp 00007e error 4 in libnccl.so.2.28.9[7f00+1000]",
        "kernel.segfault",
        {"pid": 4711, "name": "python", "library": "libnccl.so.2.28.9"},
    ),
    (
        "[ 1234.567890] mlx5_core 0000:17:00.0 ens1f0np0: Link down",
        "kernel.link",
        {"device": "ens1f0np0", "state": "down"},
    ),
    ("[ 1234.567890] DMAR: [DMA Read] Request device [17:00.0] fault addr 0x1000", "kernel.iommu", {}),
    (
        "[ 1234.567890] Out of memory: Kill process 4711 (python) score 987 or sacrifice child",
        "kernel.oom",
        {"pid": 4711, "memcg": False},
    ),
    (
        "[ 1234.567890] traps: python[4711] general protection fault ip:7f sp:7e error:0 in libcuda.so.550.54[7f+1]",
        "kernel.segfault",
        {"pid": 4711, "library": "libcuda.so.550.54"},
    ),
    (
        "[ 1234.567890] nvidia-nvswitch3: SXid (PCI:0000:85:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        "kernel.sxid",
        {"sxid": 20034, "bus": "0000:85:00.0", "fatal": True},
    ),
    (
        "[ 1234.567890] mlx5_core 0000:17:00.0: Port module event: module 0, Cable unplugged",
        "kernel.link",
        {"device": "0000:17:00.0", "state": "down"},
    ),
    ("[ 1234.567890] bnxt_en 0000:17:00.0 ens1: NIC Link is Down", "kernel.link", {"device": "ens1", "state": "down"}),
    (
        "[ 1234.567890] watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4711]",
        "kernel.stall",
        {"what": "soft_lockup", "pid": 4711, "seconds": 22},
    ),
    (
        "[ 1234.567890] nfs: server store1 not responding, still trying",
        "kernel.stall",
        {"what": "nfs", "name": "store1", "pid": None},
    ),
    (
        "[ 1234.567890] pcieport 0000:16:00.0: AER: Uncorrected (Fatal) error received: 0000:17:00.0",
        "kernel.pcie",
        {"device": "0000:17:00.0", "severity": "uncorrected (fatal)"},
    ),
    ("OSError: [Errno 24] Too many open files", "system.error", {"what": "too_many_files"}),
    ("OSError: [Errno 28] No space left on device", "system.error", {"what": "no_space"}),
    (
        "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed.",
        "system.error",
        {"what": "dataloader_killed"},
    ),
    (
        "x.py:3: UserWarning: This DataLoader will create 8 worker processes in total. Our suggested max number of "
        "worker in current system is 4, which",
        "system.error",
        {"what": "dataloader_workers", "workers": 8, "suggested": 4},
    ),
    ("run.sh: line 3:  4711 Killed                  python train.py", "system.error", {"what": "killed"}),
    ("Segmentation fault (core dumped)", "system.error", {"what": "segfault"}),
    (
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 93.1 GiB for an array",
        "system.error",
        {"what": "host_memory"},
    ),
]
