"""What the libraries say when something is wrong, and the event that carries it: (row, line, kind, data).

Rows are those of the message → meaning table; ``9.x`` those of torch's own messages.  Rows that no single line tells
(comparisons over ranks, bandwidths) have none here.
"""

from __future__ import annotations

from tests.evidence.specimens import WATCHDOG

INFO = "node-1:4711:4720 [3] NCCL INFO "
WARN = "[2026-11-21 00:28:00] node-1:4711:4720 [3] x.cc:49 NCCL WARN "
CPP = "[rank3]:[{}1121 23:59:01.9 ProcessGroupNCCL.cpp:689] [PG ID 0 PG GUID 0(default_pg) Rank 3] "
E, W, F = CPP.format("E"), CPP.format("W"), CPP.format("F")
LOG = "[rank3]:[W1121 23:59:01.9 TCPStore.cpp:125] [c10d] "
EXIT = "E1121 01:02:03.000000 99 api.py:984] failed (exitcode: {}) local_rank: 1 (pid: 4711) of binary: python"
GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/"
DIST = "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, "
DMESG = "[ 1234.567890] "

MEANINGS = [
    (
        1,
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, "
        "but not set",
        "rendezvous.error",
        {"name": "RANK"},
    ),
    (
        2,
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to "
        "(n1, 29500).",
        "store.connect_timeout",
        {"host": "n1", "port": 29500},
    ),
    (
        2,
        LOG + "TCP client failed to connect/validate to host 10.0.0.1:29500 - retrying (try=3, timeout=60000ms, "
        "delay=4040ms): Connection refused",
        "store.retry",
        {"host": "10.0.0.1", "port": 29500, "tries": 3},
    ),
    (
        2,
        LOG + "TCP client failed to connect/validate to host 10.0.0.1:29500 - timed out (try=9, timeout=60000ms): x",
        "store.connect_timeout",
        {"timeout_ms": 60000},
    ),
    (
        3,
        LOG + "The IPv4 network addresses of (n1, 29500) cannot be retrieved (gai error: -3 - Temporary failure in "
        "name resolution).",
        "store.resolve",
        {"host": "n1", "error": "-3 - Temporary failure in name resolution"},
    ),
    (
        4,
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        "store.bind",
        {"port": 29500},
    ),
    (
        5,
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 2/3 clients joined.",
        "store.clients",
        {"joined": 2, "expected": 3},
    ),
    (
        7,
        "torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0//ncclUniqueId",
        "store.wait",
        {"keys": "/default_pg/0//ncclUniqueId", "timeout_ms": 600000},
    ),
    (
        8,
        "torch.distributed.DistStoreError: barrier timeout after 300000ms, key: /default_pg/store_based_barrier_key:1",
        "store.wait",
        {"keys": "/default_pg/store_based_barrier_key:1"},
    ),
    (
        9,
        LOG + "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
        "store.lost",
        {},
    ),
    (10, LOG + "sendBytes failed on SocketImpl(fd=4, addr=[n1]:5, remote=[n1]:29500): Broken pipe", "store.lost", {}),
    (
        10,
        LOG + "recvValue failed on SocketImpl(fd=4, addr=[n1]:5, remote=[n1]:29500): Connection reset by peer",
        "store.lost",
        {},
    ),
    (11, LOG + "Miscellaneous client with incorrect VALIDATE query is detected", "store.foreign", {}),
    (11, LOG + "Miscellaneous client without VALIDATE query is detected", "store.foreign", {}),
    ("9.6", "RuntimeError: Ping failed, invalid value returned from server", "store.foreign", {}),
    (
        "9.6",
        "torch.distributed.DistStoreError: use_libuv was requested but PyTorch was built without libuv support",
        "rendezvous.error",
        {"name": "use_libuv"},
    ),
    (
        12,
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        "rendezvous.error",
        {"name": "RendezvousTimeoutError"},
    ),
    (12, "torch.x.RendezvousClosedError", "rendezvous.error", {"name": "RendezvousClosedError"}),
    (13, "W1121 01:02:03.0 99 api.py:1] Sending process 4712 closing signal SIGTERM", "elastic.stop", {"pid": 4712}),
    (14, EXIT.format(-9), "elastic.exit", {"signal": 9}),
    (15, EXIT.format(-7), "elastic.exit", {"signal": 7}),
    (16, EXIT.format(-11), "elastic.exit", {"signal": 11}),
    (17, EXIT.format(-6), "elastic.exit", {"signal": 6}),
    ("9.7", "SignalException: Process 4700 got signal: 15", "elastic.signal", {"signal": 15}),
    ("9.7", "Received Signals.SIGTERM death signal, shutting down workers", "elastic.signal", {"signal": 15}),
    (
        18,
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must",
        "cuda.error",
        {"error": "Cannot re-initialize CUDA in forked subprocess"},
    ),
    (19, "RuntimeError: No CUDA GPUs are available", "cuda.error", {"error": "No CUDA GPUs are available"}),
    (19, "RuntimeError: CUDA error: invalid device ordinal", "cuda.error", {"error": "invalid device ordinal"}),
    (20, W + " using GPU 3 as device used by this process is currently unknown.", "c10d.device_unknown", {"gpu": 3}),
    (20, W + "Guessing device ID based on global rank.", "c10d.device_unknown", {"gpu": None}),
    *(
        (row, WARN + text, "nccl.warn", {"family": family})
        for row, text, family in (
            (21, "Bootstrap : no socket interface found", "no_interface"),
            (22, "no device found matching eth9, verify NCCL_OOB_NET_IFNAME", "no_interface"),
            (23, "NET/Socket : no interface found", "no_interface"),
            (21, "Bootstrap : No usable listening interface found", "no_interface"),
            (26, "Net : Connect to 10.0.0.2<4000> failed : Connection timed out", "socket_connect"),
            (26, "socketPollConnect: exceeded retries/timeouts", "socket_connect"),
            (26, "socketStartConnect: Connect to 10.0.0.2<4000> failed : Software error", "socket_connect"),
            (
                27,
                "ncclSocketConnect: connect to 10.0.0.2<4000> returned Connection refused, exceeded error retry count "
                "after 35 attempts",
                "socket_connect",
            ),
            (28, "socketStartConnect: Connect to 10.0.0.2<4000> failed : No route to host", "socket_connect"),
            (28, "connect returned Network is unreachable, exceeded error retry count", "socket_connect"),
            (29, "socketProgress: Connection closed by remote peer n2<4000>", "socket_closed"),
            (29, "Net : Call to recv from 10.0.0.2<4000> failed : Connection reset by peer", "socket_closed"),
            (29, "socketProgressOpt: Call to send 10.0.0.2<4000> failed: Broken pipe", "socket_closed"),
            (29, "ncclOsSocketProgressOpt: Call to recv 10.0.0.2<4000> failed: Connection reset", "socket_closed"),
            (30, "socketFinalizeAccept: wrong magic 5f != 7a", "foreign"),
            (30, "socketFinalizeAccept: wrong type 2 != 3", "foreign"),
            (31, "Message truncated : received 128 bytes instead of 64", "bootstrap_mismatch"),
            (32, "Bootstrap Root : mismatch in rank count from procs 4 : 8", "bootstrap_mismatch"),
            (32, "Bootstrap Root : mismatch in info from procs", "bootstrap_mismatch"),
            (33, "Bootstrap Root : rank 3 of 8 ranks has already checked in", "bootstrap_mismatch"),
            (34, "Mismatched NCCL version detected : rank 1 version 22809 rank 0 version 22707", "version"),
            (34, "NCCL version mismatch with remote peer (local 22809, remote 22707)", "version"),
            (35, "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 5d000", "duplicate_gpu"),
            (35, "Multiple Ranks are using the same GPU/Partition", "duplicate_gpu"),
            (36, "Invalid rank requested : 8/8", "bootstrap_mismatch"),
            (37, "CUDA Driver version found is 11000. Minimum requirement is 11030", "driver"),
            (41, "Failed to initialize any NET plugin", "plugin"),
            (42, "Detected mixed local Net device counts across ranks", "net_mismatch"),
            (42, "Detected mixed local CollNet device counts across ranks", "net_mismatch"),
            (43, "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory", "ib_setup"),
            (44, "Call to ibv_create_qp failed", "ib_setup"),
            (44, "Call to ibv_create_cq failed with error Cannot allocate memory errno 12", "ib_setup"),
            (46, "Call to ibv_modify_qp failed with 22 Invalid argument, on dev mlx5_0:1, curr state INIT", "ib_setup"),
            (47, "Call to ibv_modify_qp failed with 61 No data available, on dev mlx5_0:1", "ib_setup"),
            (48, "NET/IB: Attempted to connect incompatible devices", "ib_setup"),
            (48, "Can't merge net devices with different link_layer", "ib_setup"),
            (48, "NET/IB : Unable to open device mlx5_0", "ib_setup"),
            (49, "Call to posix_fallocate failed : No space left on device", "shm"),
            (49, "Error: failed to extend /dev/shm/nccl-Ab12 to 9637892 bytes", "shm"),
            (50, "Error while creating shared memory segment /dev/shm/nccl-Ab (size 9637888)", "shm"),
            (50, "Error while attaching to shared memory segment /dev/shm/nccl-Ab (size 0)", "shm"),
            (51, "Could not map /dev/shm/nccl-Ab size 4096, error: Cannot allocate memory (12)", "shm"),
            (51, "unlink shared memory /dev/shm/nccl-Ab failed, error: No such file or directory (2)", "shm"),
            (53, "UDS: Sending data over socket /tmp/nccl-socket-2-5 failed : Connection refused (111)", "uds"),
            (53, "UDS: Receiving data over socket failed : 104", "uds"),
            (53, "ncclProxyClientGetFd call to tpRank 1 handle 0x7f failed : 3", "uds"),
            (54, "failed to peer with device 1(=5d000)", "p2p"),
            (54, "Cuda failure 'peer access is not supported between these two devices'", "p2p"),
            (55, "P2P is disabled between NVLINK connected GPUs 1 and 0. This should not be the case", "p2p"),
            (
                56,
                "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the operation "
                "cannot be performed in the present state'",
                "nvls",
            ),
            (57, "MNNVL is not supported on this system", "setting"),
            (57, "Cuda failure 800 'operation not permitted'", "cuda"),
            (58, "Failed to CUDA calloc 6291456 bytes", "cuda"),
            (59, "Cuda failure 802 'system not yet initialized'", "cuda"),
            (60, "Cuda failure 'an illegal memory access was encountered'", "cuda"),
            (61, "Cuda failure 'CUDA-capable device(s) is/are busy or unavailable'", "cuda"),
            (64, "No transport found for rank 0[5d000] -> rank 1[61000]", "algorithm"),
            (66, "AllReduce : sendbuff allocated on device 1 mismatchs with NCCL device 0", "usage"),
            (67, "Broadcast : invalid root 9 (root should be in the 0..8 range)", "usage"),
            (67, "AllReduce : comm argument is NULL", "usage"),
            (68, "Attempt to use communicator before the previous operation returned ncclSuccess", "usage"),
            (69, "Streams given to a communicator within a NCCL group must either be all uncaptured or", "usage"),
            (65, "ncclGroupEnd: not in a group call.", "usage"),
            (65, "Blocking and nonblocking communicators are not allowed in the same group.", "usage"),
            (
                70,
                "Error : no algorithm/protocol available for function AllReduce with datatype ncclFloat32",
                "algorithm",
            ),
            (71, "FP8 reduction support begins with sm90 capable devices.", "usage"),
            (70, "Cannot initialize CollNet, using point-to-point network instead", "algorithm"),
            (72, "Trying to recv to self without a matching send", "usage"),
            (73, "Error: corrupted comm object detected", "usage"),
            (74, "AllReduce: communicator was revoked", "usage"),
            (85, "NET/Socket : peer 10.0.0.2<33> message truncated : receiving 8 bytes instead of 4", "size_mismatch"),
            (86, "NET/IB : collective mismatch error, local size 8 remote size 4 addr 7f rkeys[0] 1", "size_mismatch"),
            (87, "NET/IB : req 0/1 tag 5 peer 10.0.0.2<33> posted incorrect receive info: size 8", "size_mismatch"),
            (88, "NET/IB : mlx5_0:1 async fatal event on QP: local work queue catastrophic error", "ib_async"),
            (88, "NET/IB: communicator encountered a fatal error (detected in ncclIbTest)", "ib_async"),
            (90, "NET/IB : mlx5_0:1 GID table changed", "ib_async"),
            (93, "Call to ibv_poll_cq() returned -1", "ib_setup"),
            (94, "[Proxy Service 2] Failed to execute operation Connect from rank 2, retcode 3", "proxy"),
            (95, "Socket recv failed while polling for opId=0x7f", "socket_closed"),
            (97, "Comm 0x7f is in abort state", "proxy"),
            (
                94,
                "[Service thread] Error encountered progressing operation=Connect, res=3, closing connection",
                "proxy",
            ),
            (102, "Proxy Call to rank 5 failed (Connect)", "proxy"),
            ("2.10", "RAS received unknown message type (17)", "ras"),
            ("2.10", "NET/IB: Device mlx5_0 marked as failed", "ib_async"),
            ("2.10", "Unrecoverable error detected: malloc(size=1024) returned null", "memory"),
        )
    ),
    *(
        (
            row,
            WARN + f"NET/IB: Got completion from peer n2<4> with status={said} opcode=0 len=0 vendor err 129",
            kind,
            data,
        )
        for row, said, kind, data in (
            (80, "IBV_WC_RETRY_EXC_ERR(12)", "nccl.warn", {"family": "ib_completion", "status": 12}),
            (81, "5", "nccl.warn", {"family": "ib_completion", "status": 5}),
            (82, "IBV_WC_LOC_PROT_ERR(4)", "nccl.warn", {"family": "ib_completion", "status": 4}),
            (83, "10", "nccl.warn", {"family": "ib_completion", "status": 10}),
            (84, "IBV_WC_RNR_RETRY_EXC_ERR(13)", "nccl.warn", {"family": "ib_completion", "status": 13}),
        )
    ),
    (
        89,
        WARN + "NET/IB : mlx5_0:1 Got non-fatal async event: port error(10)",
        "nccl.warn",
        {"family": "ib_async", "device": "mlx5_0:1"},
    ),
    (
        45,
        WARN + "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state INIT",
        "nccl.warn",
        {"family": "ib_setup", "call": "ibv_modify_qp", "errno": 110, "device": "mlx5_0:1"},
    ),
    *(
        (row, INFO + text, "nccl.info", {"family": family})
        for row, text, family in (
            (30, "socket magic mismatch 5f != 7a, discarding", "foreign"),
            (38, "NET/Plugin : No plugin found (libnccl-net.so), using internal implementation", "no_plugin"),
            (38, "NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.", "no_plugin"),
            (41, "Failed to initialize NET plugin AWS Libfabric", "plugin"),
            (52, "cuMem host allocations do not appear to be working; falling back to a /dev/shm/ based", "cumem"),
            (62, "Stack size limit (unlimited) is unsafe; will use 8192KB for newly launched threads", "stack_size"),
            (63, "Could not find real path of /sys/class/net/eth0/device", "topology"),
            (63, "Topology detection : could not read /sys/x, ignoring", "topology"),
            (63, "HINT: the topology file may be stale", "hint"),
            (91, "NET/IB : mlx5_0:1 speed change detected: 400000 -> 200000 Mbps", "speed_change"),
            (92, "NET/IB: Receiver got a completion for a CTS but retrieved an 'unused' request", "unused_request"),
            (45, "Call to ibv_modify_qp failed with 110, retrying 3/34 after 300 msec of sleep", "retry"),
            (128, "GPU Direct RDMA Disabled for GPU 5 / HCA 0 (distance 7 > 5), read 0 mode Default", "gdr_disabled"),
            (136, "Could not get speed from /sys/class/net/eth0/speed. Defaulting to 10 Gbps.", "speed_unknown"),
            (136, "KV Convert to int : could not find value of '' in dictionary, falling back to 60", "speed_unknown"),
            (138, "NVLS multicast support is not available on dev 0", "nvls"),
            ("2.4", "Continuing in spite of a RAS initialization error", "ras"),
        )
    ),
    (24, INFO + "Bootstrap: Using docker0:172.17.0.1<0>", "nccl.bootstrap", {"interface": "docker0"}),
    (39, INFO + "NET/IB : No device found.", "nccl.ib_devices", {"devices": []}),
    (40, INFO + "Using network Socket", "nccl.network", {"name": "Socket"}),
    (96, INFO + "[Service thread] Connection closed by localRank 2", "nccl.peer_closed", {"local_rank": 2}),
    (98, INFO + "transport/net.cc:728 -> 3", "nccl.trace", {"code": 3}),
    (126, INFO + "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "nccl.channel", {"via": "SHM"}),
    (127, INFO + "Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0", "nccl.channel", {"transport": "NET/Socket/0"}),
    (128, INFO + "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/1(2)", "nccl.channel", {"gdr": False, "pxn": 2}),
    (75, W + "An unbatched P2P op (send/recv) was called on this ProcessGroup with size 4.", "c10d.hint", {}),
    (
        77,
        "  what():  [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= "
        "op.nbytes. 16 vs 8. Received data size doesn't match expected size.",
        "gloo.size_mismatch",
        {"a": 16, "b": 8},
    ),
    (78, "RuntimeError: Expected to have finished reduction in the prior iteration before", "ddp.params", {}),
    (
        79,
        "RuntimeError: DDP expects same model across all ranks, but Rank 0 has 4 params, while rank 1 has inconsistent "
        "5 params.",
        "ddp.params",
        {"ranks": [0, 1]},
    ),
    *(
        (row, DIST + said + ", NCCL version 2.27.5", "c10d.error", {"nccl_error": said, "nccl_version": "2.27.5"})
        for row, said in (
            (65, "invalid usage (run with NCCL_DEBUG=WARN for details)"),
            (99, "remote process exited or there was a network error"),
            (100, "unhandled system error (run with NCCL_DEBUG=INFO for details)"),
            (101, "unhandled cuda error (run with NCCL_DEBUG=INFO for details)"),
            (102, "internal error - please report this issue to the NCCL developers"),
        )
    ),
    (103, E + WATCHDOG, "c10d.timeout", {"seq": 42, "op": "ALLREDUCE"}),
    (
        110,
        E + WATCHDOG.replace("ALLREDUCE, NumelIn=1024", "COALESCED, NumelIn=18446744073709551615"),
        "c10d.timeout",
        {"op": "COALESCED", "numel_in": None},
    ),
    *(
        (row, head + text, "c10d.monitor", {"what": what, "from_rank": rank})
        for row, head, text, what, rank in (
            (112, F, "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress", "stuck", None),
            (112, F, "Heartbeat monitor timed out! Process will be terminated", "stuck", None),
            (112, F, "NCCL monitoring thread detects no heartbeat from watchdog", "stuck", None),
            (113, E, "Could not acquire GIL within 300 ms on exit, possible GIL induced hang", "gil", None),
            (114, E, "Received a dump signal due to a collective timeout from rank 5 and we will try", "dump", 5),
            (114, E, "Received a dump signal due to a collective timeout from this local rank and we", "dump", None),
            (114, E, "Received a global dump signal from rank 5", "dump", 5),
            (114, E, "Received a global timeout from another rank and will start to dump", "dump", None),
            (115, E, "Observed flight recorder dump signal from another rank via TCPStore.", "dump", None),
            ("9.3", E, "Broadcasting flight-recorder dump signal to other ranks", "dump", None),
            ("9.3", E, "Broadcasting signal exception_dump to other ranks via TCPStore.", "dump", None),
            ("9.3", E, "First PG on this rank to signal dumping.", "dump", None),
            ("9.3", E, "First PG on this rank detecting the dump signal through tcpstore.", "dump", None),
            ("9.3", E, "remote error detected from rank: 5", "remote_error", 5),
            ("9.3", E, "To avoid data inconsistency, we are taking the entire process down.", "terminate", None),
            ("9.3", F, "Terminating the process after attempting to dump debug info, due to x", "terminate", None),
            ("9.3", E, "Process group watchdog thread terminated with exception: x", "terminate", None),
            ("9.3", E, "NCCL watchdog thread terminated with exception: x", "terminate", None),
            ("9.4", E, "[TC][rank=3][name=tp] Aborting process on rank 3 due to timeout - timeout", "terminate", None),
        )
    ),
    *(
        (row, E + text, "c10d.recorder", {"what": what, "file": file})
        for row, text, what, file in (
            (115, "Flight Recorder trace successfully dumped.", "written", ""),
            (115, "Finished writing NCCLPG debug info to /tmp/nccl_trace_rank_3", "written", "/tmp/nccl_trace_rank_3"),
            (115, "Error opening file for writing NCCLPG debug info: /x/rank_3", "failed", "/x/rank_3"),
            ("9.3", "ProcessGroupNCCL preparing to dump debug info. Include stack trace: 1", "begun", ""),
            ("9.3", "ProcessGroupNCCL dumping nccl trace to /tmp/x_3", "begun", "/tmp/x_3"),
            (
                117,
                "Stack trace of the failed collective not found, potentially because FlightRecorder is disabled.",
                "off",
                "",
            ),
        )
    ),
    (
        "9.3",
        E + "Received a dump signal due to a collective timeout from rank 5 and we will try our best to dump the debug "
        "info. Last enqueued NCCL work: 8, last completed NCCL work: 7.This is most likely caused by x",
        "c10d.status",
        {"seq": None, "enqueued": 8, "completed": 7, "desc": "default_pg"},
    ),
    (
        "9.3",
        E + "NCCL communicator encountered error set by ProcessGroupNCCL: NCCL error: remote process exited",
        "c10d.error",
        {"nccl_error": "NCCL error: remote process exited"},
    ),
    ("9.2", "initialization options: size: 8, TIMEOUT(ms): 600000", "c10d.hint", {"what": "group_timeout"}),
    ("9.3", W + "process group has NOT been destroyed before we destruct", "c10d.hint", {"what": "not_destroyed"}),
    (
        "9.3",
        W + "WARNING: destroy_process_group() was not called before program exit, which can leak resources.",
        "c10d.hint",
        {"what": "not_destroyed"},
    ),
    (
        116,
        E + "[TC][rank=3][name=tp] Operation timed out after 600000 ms",
        "c10d.timeout",
        {"api": "nccl2", "pg": "tp"},
    ),
    (117, "RuntimeError: NCCL operation timed out", "c10d.timeout", {"api": "nccl2", "ran_ms": None}),
    (
        "9.4",
        E + "[TC][rank=3][name=tp] nccl hit async error on rank 3: unhandled system error",
        "c10d.error",
        {"nccl_error": "unhandled system error"},
    ),
    *(
        ("9.5", f"E0826 14:14:33.2 5711 TorchCommNCCLUtils.cpp:245] [TC][rank=3][name=main_comm] {text}", kind, fields)
        for text, kind, fields in (
            ("Aborting process due to timeout on rank 3 - timeout watchdog detected operation timeout", "c10d.monitor", {"what": "terminate"}),
            ("Aborting process due to timeout", "c10d.timeout", {"pg_rank": 3, "ran_ms": None}),
            ("Revoking communicator on rank 3 - watchdog detected timeout (reconfigurable mode)", "c10d.timeout", {"api": "nccl2"}),
            ("Revoking communicator on rank 3 - watchdog detected error (reconfigurable mode)", "c10d.monitor", {"what": "revoke"}),
            (
                "Async error on rank 3: remote process exited or there was a network error (reconfigurable mode)",
                "c10d.error",
                {"nccl_error": "remote process exited or there was a network error"},
            ),
            (
                "CUDA error during end event query: an illegal memory access was encountered (700)",
                "cuda.error",
                {"error": "an illegal memory access was encountered"},
            ),
            ("TorchCommNCCL initialized for rank: 3", "c10d.communicator", {"name": "main_comm", "group_rank": 3}),
            ("Waiting 15000ms for health check and flight recorder dump before aborting", "c10d.monitor", {"what": "dump"}),
            ("Finished writing Flight Recorder debug info to /c/comm_lib_trace_rank_3", "c10d.recorder", {"what": "written"}),
            ("Error opening file for writing Flight Recorder debug info: /c/r_3", "c10d.recorder", {"what": "failed", "file": "/c/r_3"}),
        )
    ),
    (
        118,
        "RuntimeError: [Rank 0]: Rank 3 failed to pass monitoredBarrier in 6000 ms",
        "gloo.barrier",
        {"ranks": [3], "timeout_ms": 6000},
    ),
    (119, GLOO + "unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation", "gloo.timeout", {"what": "recv"}),
    (120, GLOO + "pair.cc:553] Connection closed by peer [10.0.0.2]:17323.", "gloo.closed", {"how": "closed"}),
    (120, GLOO + "pair.cc:537] Read error [10.0.0.2]:17: Connection reset by peer", "gloo.closed", {"how": "reset"}),
    (120, GLOO + "pair.cc:537] Read error [10.0.0.2]:17: Connection timed out.", "gloo.closed", {"how": "timed out"}),
    (141, DMESG + "NVRM: Xid (PCI:0000:1b:00): 79, pid=4711, GPU has fallen off the bus.", "kernel.xid", {"xid": 79}),
    (142, DMESG + "NVRM: Xid (PCI:0000:1b:00): 74, pid='<unknown>', NVLink: fatal error", "kernel.xid", {"xid": 74}),
    (144, DMESG + "NVRM: Xid (PCI:0000:1b:00): 119, pid=4711, Timeout waiting for RPC", "kernel.xid", {"xid": 119}),
    (146, DMESG + "NVRM: Xid (PCI:0000:1b:00): 45, pid=4711, Ch 00000010", "kernel.xid", {"xid": 45}),
    (
        147,
        DMESG + "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,task=python,pid=4711,uid=0",
        "kernel.oom",
        {"memcg": True, "pid": 4711},
    ),
    (148, DMESG + "mlx5_core 0000:17:00.0 ens1f0np0: Link down", "kernel.link", {"state": "down"}),
    (
        149,
        DMESG + "nvidia 0000:1b:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x000e address=0x1000 flags=0x0030]",
        "kernel.iommu",
        {"device": "0000:1b:00.0"},
    ),
    (
        149,
        DMESG + "DMAR: [DMA Read NO_PASID] Request device [17:00.0] fault addr 0x1000 [fault reason 0x06]",
        "kernel.iommu",
        {"device": "17:00.0"},
    ),
    (
        150,
        DMESG + "INFO: task python:4711 blocked for more than 122 seconds.",
        "kernel.stall",
        {"what": "hung_task", "pid": 4711, "seconds": 122},
    ),
]

DULL = [  # said in every healthy run
    INFO + "Launch mode Parallel",
    INFO + "threadThresholds 8/8/64 | 16/8/64 | 512",
    INFO + "CPU/0 (1/1/2)",
    INFO + "  + PCI[12.0] - GPU/1A000 (0)",
    INFO + "transport/p2p.cc:163 Cuda Alloc Size 2097152 pointer 0x1280472c465c",
    INFO + "[Proxy Service UDS] exit: stop 1 abortFlag 0",
    INFO + "Using non-device net plugin version 0",
    INFO + "ncclCommInitRank: rank 0 of 8",
    INFO + "comm 0x7f10 commHash 0x9a1b stream 0x5",
    "[rank3]:[I1121 23:59:01.9 x.cpp:9] [TC][rank=3][name=default_pg] Timeout thread starting for rank: 3",
    "W1121 01:02:03.0 99 torch/distributed/run.py:766] Setting OMP_NUM_THREADS environment variable for each process "
    "to be 1 in default, to avoid your system being overloaded",
    "[ 1234.5] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15",
    "[ 1234.5] usb 1-1: new high-speed USB device number 2 using xhci_hcd",
]
