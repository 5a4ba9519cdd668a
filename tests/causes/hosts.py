"""Facts of one good host, and what makes a host bad for a job: data of test_preflight."""

from __future__ import annotations

from typing import Any

GIB = 1 << 30
PORT = {
    "device": "mlx5_0",
    "port": 1,
    "state": "ACTIVE",
    "physical": "LinkUp",
    "link_layer": "Ethernet",
    "gids": [{"index": 3, "gid": "0000:0000:0000:0000:0000:ffff:0a02:0002", "type": "RoCE v2"}],
}
DOWN = PORT | {"device": "mlx5_1", "state": "DOWN", "physical": "Polling"}
WHEEL = {
    "path": "/v/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2",
    "version": "2.27.5",
    "how": "loaded by torch",
}
OLD = {"path": "/opt/libnccl.so.2", "version": "2.19.3", "how": "LD_PRELOAD"}
PAIR = {"GPU0": {"GPU1": "NV18"}, "GPU1": {"GPU0": "NV18"}}
MISSPELT = {
    "kind": "misspelt",
    "name": "NCCL_BUFSIZE",
    "value": "1",
    "problem": "unknown name, so it has no effect",
    "hint": "did you mean NCCL_BUFFSIZE?",
}

GOOD: dict[str, Any] = {
    "limits.shm.size": 64 * GIB,
    "limits.shm.free": 64 * GIB,
    "limits.nofile.soft": 65536,
    "limits.memlock": -1,
    "limits.cgroup.memory": -1,
    "limits.cgroup.cpus": -1,
    "memory.total": 512 * GIB,
    "memory.available": 500 * GIB,
    "memory.swap": [{"device": "/dev/zram0", "size": GIB, "used": 0, "storage": "partition (zram)"}],
    "cpu.usable": 64,
    "storage.work.path": "/work",
    "storage.work.free": 100 * GIB,
    "storage.work.latency": 0.4,
    "net.rdma": [PORT],
    "net.nccl.interface": "eth0",
    "net.gloo.interface": "eth0",
    "env.problems": [],
    "host.iommu": False,
    "gpu.nvidia_smi": "answers",
    "gpu.count": 2,
    "gpu.driver": "580.95.05",
    "gpu.topology": PAIR,
    "gpu.p2p.read": {"GPU0": {"GPU1": "OK"}, "GPU1": {"GPU0": "OK"}},
    "software.torch": "2.8.0+cu128",
    "software.torch.cuda": "12.8",
    "software.nccl": "2.27.5",
    "software.nccl.libraries": [WHEEL],
}
for _gpu in range(2):
    GOOD |= {
        f"gpu.{_gpu}.{name}": value
        for name, value in {
            "memory.total": 81559,
            "memory.free": 80994,
            "memory.holders": [],
            "compute_mode": "Default",
            "mig": "Disabled",
            "recovery": "None",
            "ecc.uncorrected": 0,
            "remapped_rows": {"correctable": 1, "uncorrectable": 0, "pending": False, "failure": False},
            "throttle": ["sw_power_cap"],
            "fabric.state": "Completed",
            "fabric.status": "Success",
            "nvlink.links": 18,
            "nvlink.speeds": [26.562] * 18,
            "pcie.width": 16,
            "pcie.width.max": 16,
        }.items()
    }

BAD: list[tuple[str, str, dict[str, Any], str]] = [
    ("shm_too_small", "likely", {"limits.shm.size": 64 << 20, "limits.shm.free": 64 << 20}, "has 64 MiB;"),
    ("shm_too_small", "possible", {"limits.shm.size": 256 << 20}, "has 256 MiB;"),
    ("shm_too_small", "likely", {"limits.shm.free": 1 << 20}, "1 MiB free of 64 GiB"),
    ("fd_limit", "likely", {"limits.nofile.soft": 256}, "open 256 files; one of 2 ranks"),
    ("fd_limit", "likely", {"limits.nofile.soft": 4096, "env.WORLD_SIZE": "256"}, "one of 256 ranks"),
    (
        "fd_limit",
        "likely",
        {"limits.nofile.soft": 1024, "env.SLURM_NNODES": "32"},
        "63 peers x 16 channels x 2 sockets",
    ),
    ("fd_limit", "possible", {"limits.nofile.soft": 1024}, "suffices for small jobs"),
    ("fd_limit", "possible", {"limits.cgroup.pids": 200}, "at most 200 processes and threads"),
    ("memlock_limit", "likely", {"limits.memlock": 65536}, "may lock 64 KiB"),
    (
        "host_oom",
        "likely",
        {"memory.swap": [{"device": "/mnt/swap", "size": GIB, "used": 0, "storage": "file on nfs4"}]},
        "swap area /mnt/swap lies on network storage",
    ),
    ("host_oom", "likely", {"limits.cgroup.memory": 2 * GIB}, "limit (cgroup) is 2 GiB, 1 GiB for each of 2 ranks"),
    ("host_oom", "possible", {"memory.total": 6 * GIB}, "the memory is 6 GiB"),
    ("host_oom", "possible", {"memory.available": 5 * GIB}, "5 GiB of 512 GiB of memory is left"),
    (
        "gpu_oom",
        "likely",
        {"gpu.1.memory.free": 2048, "gpu.1.memory.holders": [{"pid": 7, "name": "python3", "memory": "79000 MiB"}]},
        "GPU 1 has 2 GiB of 79.65 GiB free, the rest is held by process 7 (python3)",
    ),
    ("gpu_oom", "possible", {"gpu.0.memory.free": 50000}, "GPU 0 has"),
    ("duplicate_gpu", "possible", {"gpu.0.compute_mode": "Exclusive_Process"}, "one process alone may use GPU 0 "),
    ("duplicate_gpu", "likely", {f"gpu.{n}.compute_mode": "Prohibited" for n in range(2)}, "may use GPUs 0 and 1 "),
    ("duplicate_gpu", "possible", {"gpu.1.mig": "Enabled"}, "GPU 1: MIG is on"),
    ("gpu_hardware_error", "likely", {"gpu.nvidia_smi": "hung"}, "nvidia-smi does not answer"),
    ("gpu_hardware_error", "likely", {"gpu.1.ecc.uncorrected": 2}, "GPU 1: uncorrectable memory errors"),
    (
        "gpu_hardware_error",
        "likely",
        {"gpu.1.remapped_rows": {"pending": True, "failure": False}},
        "rows of the memory",
    ),
    ("gpu_hardware_error", "likely", {"gpu.0.recovery": "Drain and Reset"}, "GPU 0: the driver asks for a recovery"),
    ("gpu_hardware_error", "possible", {"gpu.0.throttle": ["hw_thermal_slowdown"]}, "GPU 0: slowed down by heat"),
    ("gpu_hardware_error", "likely", {"gpu.1.nvlink.links": 17}, "GPU 1 has 17 of 18 NVLinks up"),
    ("gpu_hardware_error", "possible", {"gpu.1.nvlink.links": 0}, "GPU 1 has 0 of 18 NVLinks up"),
    ("nvswitch_fabric", "likely", {"gpu.0.fabric.state": "In Progress"}, "GPU 0 has not registered"),
    ("nvswitch_fabric", "likely", {f"gpu.{n}.fabric.status": "Error 1" for n in range(2)}, "GPUs 0 and 1 have not"),
    ("driver_too_old", "likely", {"gpu.driver": "470.57.02"}, "CUDA 12.8, which needs driver 525 or newer"),
    ("driver_too_old", "likely", {"gpu.driver": "570.86", "software.torch.cuda": "13.0"}, "needs driver 580"),
    (
        "version_mismatch",
        "likely",
        {"software.nccl.libraries": [OLD, WHEEL | {"how": "wheel"}], "software.nccl": "2.19.3"},
        "NCCL 2.19.3 of /opt/libnccl.so.2 (LD_PRELOAD) wins over torch's own 2.27.5",
    ),
    ("bad_env_value", "likely", {"env.problems": [MISSPELT], "env.NCCL_BUFSIZE": "1"}, "did you mean NCCL_BUFFSIZE"),
    ("cpu_contention", "likely", {"cpu.usable": 2}, "2 CPU cores are usable for 2 GPUs"),
    ("cpu_contention", "possible", {"cpu.usable": 6.0}, "more than 2 data-loader workers each"),
    ("cpu_contention", "possible", {"cpu.usable": 2, "env.SLURM_JOB_ID": "7"}, "2 CPU cores"),
    ("disk_or_io", "likely", {"storage.work.free": 1 << 20}, "the folder /work has 1 MiB free"),
    ("disk_or_io", "possible", {"storage.work.latency": 480.0}, "takes 480 ms"),
    ("slow_transport", "likely", {"env.NCCL_P2P_DISABLE": "1"}, "NCCL_P2P_DISABLE=1 is set"),
    ("slow_transport", "possible", {"gpu.1.pcie.width": 4}, "GPU 1 uses 4 of its 16 PCIe lanes"),
    ("slow_transport", "likely", {"gpu.p2p.read": {"GPU0": {"GPU1": "NS"}}}, "no direct copies among GPUs 0 and 1"),
    (
        "slow_transport",
        "possible",
        {"gpu.p2p.write": {"GPU0": {"GPU1": "CNS"}}, "gpu.topology": {}},
        "GPU0 to GPU1: CNS",
    ),
    ("p2p_broken", "likely", {"host.acs": ["0:1.0"], "gpu.topology": {"GPU0": {"GPU1": "PIX"}}}, "(ACS) is on at 1 "),
    ("p2p_broken", "possible", {"host.iommu": True, "gpu.topology": {"GPU0": {"GPU1": "PHB"}}}, "an IOMMU is active"),
    ("ib_not_used", "likely", {"env.NCCL_IB_DISABLE": "1"}, "NCCL_IB_DISABLE=1 is set although"),
    ("ib_not_used", "likely", {"env.NCCL_NET": "Socket"}, "NCCL_NET=Socket is set although"),
    ("ib_not_used", "likely", {"net.nccl.hcas": [], "env.NCCL_IB_HCA": "mlx5_9"}, "would take none of them"),
    ("ib_not_used", "possible", {"net.rdma": [DOWN]}, "no RDMA port is active (mlx5_1)"),
    ("ib_link_error", "possible", {"net.rdma": [PORT, DOWN]}, "port 1 of mlx5_1 is DOWN"),
    ("ib_link_error", "likely", {"net.rdma": [PORT, DOWN], "env.NCCL_IB_HCA": "=mlx5_1"}, "though NCCL_IB_HCA==mlx5_1"),
    ("ib_config", "likely", {"env.NCCL_IB_GID_INDEX": "5"}, "entry of mlx5_0 is empty"),
]
CLEAR: list[tuple[str, dict[str, Any]]] = [
    ("memlock_limit", {"limits.memlock": 65536, "net.rdma": []}),
    ("fd_limit", {"limits.nofile.soft": 1024, "gpu.count": 0}),
    ("fd_limit", {"limits.nofile.soft": -1}),
    ("host_oom", {"memory.swap": []}),
    ("host_oom", {"memory.total": 4 * GIB, "memory.available": 3 * GIB, "gpu.count": 0}),
    ("cpu_contention", {"cpu.usable": 1, "gpu.count": 0}),
    ("driver_too_old", {"gpu.driver": "525.60.13"}),
    ("fd_limit", {"limits.cgroup.pids": 4096, "limits.nproc": -1}),
    ("slow_transport", {"gpu.0.pcie.width": 8, "gpu.1.pcie.width": 8}),
    ("p2p_broken", {"host.acs": ["0:1.0"]}),
    ("ib_not_used", {"net.nccl.hcas": ["mlx5_0:1"], "env.NCCL_IB_DISABLE": "0"}),
    ("ib_link_error", {"net.rdma": [PORT, DOWN], "env.NCCL_IB_HCA": "^mlx5_1"}),
    ("ib_link_error", {"net.rdma": [PORT, DOWN | {"physical": "Disabled"}]}),
    ("ib_not_used", {"net.rdma": []}),
    ("ib_config", {"env.NCCL_IB_GID_INDEX": "3"}),
    ("p2p_broken", {"host.iommu": True}),
    ("slow_transport", {"gpu.p2p.read": {"GPU0": {"GPU1": "GNS"}}, "gpu.topology": {"GPU0": {"GPU1": "PHB"}}}),
    ("version_mismatch", {"software.nccl.libraries": [WHEEL, OLD | {"how": "system"}]}),
]
