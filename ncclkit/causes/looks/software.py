"""Looks for the software.

They ask for versions, defects of NCCL or a framework, variables, and containers.
"""

from __future__ import annotations

from ncclkit.causes.looks.record import Look

LOOKS: tuple[Look, ...] = (
    Look(
        cause="version_mismatch",
        question=(
            "Do the hosts differ in their versions of NCCL, torch or CUDA, or does one environment"
            " bring two different NCCL libraries (pip, conda, system)?"
        ),
        now=(
            "timeout 8 python3 -m pip list 2>/dev/null | grep -i -e ^torch -e nccl; ldconfig -p |"
            " grep libnccl.so; echo $LD_LIBRARY_PATH $LD_PRELOAD"
        ),
        shows=r"nvidia-nccl-cu11\b[\s\S]*nvidia-nccl-cu12\b",
        yes=(
            "another line `NCCL version …` on some host or rank, two packages nvidia-nccl-cu…, or a"
            " second libnccl in LD_LIBRARY_PATH that the ranks load"
        ),
        no="one image or environment for all ranks, and `grep libnccl /proc/PID/maps` shows one",
        next_time="export NCCL_DEBUG=VERSION; pip freeze > packages.$(hostname).txt",
        minutes=2,
        also={"net_plugin": 0.2, "driver_too_old": 0.15, "nccl_bug": 0.1},
    ),
    Look(
        cause="nccl_bug",
        question=(
            "Does the same program run with another version of NCCL (or the torch that brings it)"
            " and nothing else changed?"
        ),
        now="timeout 8 python3 -m pip list 2>/dev/null | grep -i -e ^torch -e nccl",
        yes=(
            "it began with an upgrade or ends with one, and comes back with the old version; the"
            " release notes name it"
        ),
        no="two or three versions fail alike, or it works on other machines with this version",
        next_time="export NCCL_DEBUG=INFO NCCL_DEBUG_FILE=nccl.%h.%p.log",
        minutes=10,
        also={
            "version_mismatch": 0.5,
            "cumem_container": 0.4,
            "driver_too_old": 0.35,
            "net_plugin": 0.3,
            "framework_bug": 0.2,
            "nvswitch_fabric": 0.15,
            "p2p_broken": 0.12,
            "fork_or_init_order": 0.12,
            "gil_hold": 0.12,
            "concurrent_comms": 0.1,
        },
    ),
    Look(
        cause="framework_bug",
        question=(
            "Does it go away with another version of the framework (Lightning, DeepSpeed, vLLM …)"
            " or with one of its options switched off?"
        ),
        now=(
            "timeout 8 python3 -m pip list 2>/dev/null | grep -i -e lightning -e deepspeed -e"
            " accelerate -e transformers -e vllm -e megatron -e ^ray -e ^trl -e ^torch"
        ),
        yes=(
            "one option or version makes the difference, the innermost lines of the traceback lie"
            " in the package, its tracker has the same text"
        ),
        no="it fails without the option and in other versions, or in plain PyTorch too",
        next_time="pip freeze > packages.txt  # and one run with the suspected option off",
        minutes=10,
        also={
            "rank_divergence": 0.3,
            "send_recv_mismatch": 0.3,
            "cuda_error": 0.3,
            "concurrent_comms": 0.25,
            "fork_or_init_order": 0.25,
            "shape_mismatch": 0.2,
            "gil_hold": 0.2,
            "nccl_bug": 0.15,
            "gpu_oom": 0.15,
            "duplicate_gpu": 0.15,
            "timeout_too_short": 0.15,
            "slow_rank": 0.1,
        },
    ),
    Look(
        cause="bad_env_value",
        question=(
            "Does it run without the NCCL_* variables that the job, image or profile sets (leave"
            " NCCL_NVLS_ENABLE as it is)?"
        ),
        now=(
            "env | grep -e ^NCCL_ -e ^TORCH_NCCL -e ^GLOO_; cat /etc/nccl.conf ~/.nccl.conf"
            " 2>/dev/null"
        ),
        yes=(
            "with the defaults it runs; one of the variables is misspelt, or has a value that the"
            " NCCL guide does not list for this version or hardware"
        ),
        no="no such variable is set anywhere, or it fails without them as well",
        next_time="export NCCL_DEBUG=INFO; env | grep NCCL_  # INFO lines say which ones are read",
        minutes=10,
        also={
            "ifname_not_found": 0.75,
            "slow_transport": 0.5,
            "ib_not_used": 0.35,
            "ib_config": 0.35,
            "net_plugin": 0.25,
            "wrong_interface": 0.15,
        },
    ),
    Look(
        cause="cumem_container",
        question=(
            "Does it run with NCCL_CUMEM_ENABLE=0 and NCCL_CUMEM_HOST_ENABLE=0 on all ranks, or"
            " outside of the container or virtual machine?"
        ),
        now=(
            "grep -e Seccomp: -e CapEff /proc/self/status; ls /.dockerenv 2>/dev/null; env | grep"
            " CUMEM"
        ),
        yes=(
            "with both variables at 0 it starts, or the bare machine runs the same program; in"
            " Docker --cap-add=SYS_NICE helps too"
        ),
        no="it fails with both at 0, and in the same way outside of any container",
        next_time="export NCCL_CUMEM_ENABLE=0 NCCL_CUMEM_HOST_ENABLE=0  # on all ranks",
        minutes=10,
        also={
            "shm_too_small": 0.3,
            "nvswitch_fabric": 0.3,
            "nccl_bug": 0.3,
            "driver_too_old": 0.2,
            "p2p_broken": 0.15,
            "memlock_limit": 0.15,
            "ib_not_used": 0.1,
        },
    ),
    Look(
        cause="gil_hold",
        question=(
            "Did one rank freeze as a whole (progress bar, its own timeout lines, Ctrl-C), with"
            " `py-spy dump --native --pid PID` showing `+gil` in a library's call?"
        ),
        now="",
        yes=(
            "the thread marked +gil sits in native code (a file, a download, a lock, a launch), and"
            " all other Python threads of that rank stand still"
        ),
        no="the rank's other threads go on, or no thread holds the lock",
        next_time=(
            "(sleep 1200; for p in $(pgrep python); do py-spy dump --native --pid $p; done) >"
            " stacks.$(hostname).txt 2>&1 &"
        ),
        minutes=5,
        also={"disk_or_io": 0.25, "slow_rank": 0.15, "host_oom": 0.1, "stale_lock": 0.1},
    ),
)
