"""Questions that split all suspects at once, which nearly everybody can answer.

They come before the look of any single cause where many causes are as usual as each other.
"""

from __future__ import annotations

from collections.abc import Mapping

from ncclkit.causes.looks.record import Look

NETWORK = (
    "ifname_not_found",
    "wrong_interface",
    "store_unreachable",
    "hostname_resolution",
    "ib_config",
    "ib_link_error",
    "ib_not_used",
    "net_plugin",
    "net_limit",
    "network_loss",
    "memlock_limit",
    "clock_skew",
)
"""Causes that need a second host, or a network card."""
PROGRAM = (
    "rank_divergence",
    "send_recv_mismatch",
    "shape_mismatch",
    "slow_rank",
    "timeout_too_short",
    "rank_exception",
    "concurrent_comms",
    "fork_or_init_order",
    "framework_bug",
    "gil_hold",
    "disk_or_io",
    "stale_lock",
    "cuda_error",
)
"""Causes that lie in what the program does, not in the machine."""
WHILE_TRAINING: Mapping[str, float] = {
    "slow_rank": 0.6,
    "rank_divergence": 0.8,
    "timeout_too_short": 0.5,
    "host_oom": 0.7,
    "rank_killed": 0.8,
    "network_loss": 0.5,
    "ib_link_error": 0.7,
    "gpu_hardware_error": 0.7,
    "framework_bug": 0.6,
    "nccl_bug": 0.5,
    "gil_hold": 0.6,
    "concurrent_comms": 0.4,
    "cpu_contention": 0.7,
    "disk_or_io": 0.7,
    "send_recv_mismatch": 0.4,
    "shape_mismatch": 0.6,
    "gpu_oom": 0.6,
    "fd_limit": 0.5,
    "gpu_clock_limit": 0.9,
    "cpu_binding": 0.9,
    "slow_transport": 0.7,
    "ib_not_used": 0.6,
    "rank_exception": 0.6,
    "cuda_error": 0.5,
    "clock_skew": 0.3,
}
"""Cause → how often steps were done before it showed."""

LOOKS = (
    Look(
        cause="bare_test",
        question=(
            "Does a bare test on the same GPUs and hosts, without your program, fail or hang too?"
        ),
        now="",
        yes="it fails, hangs, or is as slow: the machine, the network or NCCL is at fault",
        no="it succeeds at full speed: look at the program and its surroundings",
        next_time="ncclkit probe --case before   # a minute, before the training starts",
        minutes=5.0,
        also={
            **dict.fromkeys(NETWORK, 0.85),
            **dict.fromkeys(PROGRAM, 0.04),
            "p2p_broken": 0.9,
            "nvswitch_fabric": 0.9,
            "shm_too_small": 0.75,
            "cumem_container": 0.8,
            "driver_too_old": 0.8,
            "version_mismatch": 0.5,
            "nccl_bug": 0.5,
            "gpu_hardware_error": 0.6,
            "bad_env_value": 0.8,
            "slow_transport": 0.9,
            "gpu_shared": 0.4,
            "gpu_clock_limit": 0.7,
            "fd_limit": 0.2,
            "network_loss": 0.6,
        },
    ),
    Look(
        cause="one_host",
        question="Does it fail with all ranks on one host, too?",
        now="",
        yes="one host is enough: the network between hosts is not the reason",
        no="it needs several hosts: names, addresses, ports and cards of the network come first",
        next_time="torchrun --standalone --nproc-per-node=gpu train.py   # the same on one host",
        minutes=5.0,
        also={
            **dict.fromkeys(NETWORK, 0.06),
            **dict.fromkeys(PROGRAM, 0.85),
            "p2p_broken": 0.95,
            "nvswitch_fabric": 0.95,
            "shm_too_small": 0.95,
            "cumem_container": 0.95,
            "driver_too_old": 0.9,
            "duplicate_gpu": 0.85,
            "gpu_oom": 0.9,
            "gpu_shared": 0.9,
            "host_oom": 0.8,
            "rank_killed": 0.6,
            "fd_limit": 0.8,
            "nccl_bug": 0.65,
            "version_mismatch": 0.5,
            "bad_env_value": 0.5,
            "slow_transport": 0.7,
            "cpu_contention": 0.9,
            "gpu_hardware_error": 0.6,
            "port_in_use": 0.8,
            "world_size_mismatch": 0.4,
            "memlock_limit": 0.4,
            "net_plugin": 0.4,
        },
    ),
    Look(
        cause="had_steps",
        question="Had training steps, or requests, succeeded in this run before it stopped?",
        now="",
        yes="the ranks had met and computed: the start-up is not the reason",
        no="it never came to work: rendezvous, devices, versions and links come first",
        next_time=(
            "export NCCL_DEBUG=INFO NCCL_DEBUG_FILE=nccl.%h.%p.log   # how far the start came"
        ),
        minutes=0.5,
        also=WHILE_TRAINING,
    ),
    Look(
        cause="after_change",
        question=(
            "Did the same job run before something was upgraded, or with another version of it?"
        ),
        now="",
        yes="a version decides: NCCL, PyTorch, the framework, the driver or the plugin",
        no="no version is known that works",
        next_time="pip freeze > versions.$(hostname).txt; nvidia-smi > driver.$(hostname).txt",
        minutes=0.5,
        also={
            "version_mismatch": 0.6,
            "nccl_bug": 0.75,
            "driver_too_old": 0.5,
            "framework_bug": 0.6,
            "net_plugin": 0.5,
            "cumem_container": 0.4,
            "bad_env_value": 0.2,
        },
    ),
    Look(
        cause="only_slow",
        question="Does the job go on, and is merely slower than it should be?",
        now="",
        yes="a slower path, clock or core: no call is stuck",
        no="it stops or dies",
        next_time="ncclkit step -- python train.py   # where the time of a step goes",
        minutes=0.5,
        also={
            "slow_transport": 0.9,
            "ib_not_used": 0.75,
            "gpu_clock_limit": 0.9,
            "cpu_binding": 0.9,
            "cpu_contention": 0.4,
            "disk_or_io": 0.4,
            "gpu_shared": 0.4,
            "net_plugin": 0.2,
            "ib_config": 0.15,
        },
    ),
)
