"""Looks for the GPUs.

They ask for memory, other users, clocks, faults, driver, and links between them.
"""

from __future__ import annotations

from ncclkit.causes.looks.record import Look

LOOKS: tuple[Look, ...] = (
    Look(
        cause="gpu_oom",
        question=(
            "Does it run when the GPUs have less to hold: a smaller batch, sequence or model, or a"
            " smaller share reserved by another engine?"
        ),
        now="nvidia-smi --query-gpu=index,memory.used,memory.total --format=csv",
        yes=(
            "half the batch runs; `nvidia-smi` shows one GPU nearly full in the run, often GPU 0;"
            " one rank says `out of memory`"
        ),
        no="it fails in the same way with a tiny batch and gigabytes free on every GPU",
        next_time=(
            "nvidia-smi --query-gpu=timestamp,index,memory.used,memory.total --format=csv -l 10 >"
            " gpumem.$(hostname).txt &"
        ),
        minutes=10,
        also={
            "host_oom": 0.3,
            "gpu_shared": 0.25,
            "cuda_error": 0.2,
            "slow_rank": 0.15,
            "timeout_too_short": 0.15,
            "duplicate_gpu": 0.1,
            "framework_bug": 0.1,
        },
    ),
    Look(
        cause="gpu_shared",
        question=(
            "Does `nvidia-smi` on the host show memory, load or a process on a GPU of the job while"
            " the job is not running?"
        ),
        now=(
            "nvidia-smi --query-gpu=index,utilization.gpu,memory.used --format=csv; nvidia-smi"
            " --query-compute-apps=pid,process_name,used_memory --format=csv"
        ),
        yes="a process that is not this job, more than 1 GiB in use, or utilization above 0 %",
        no="0 % and a few MiB on all GPUs before the start, and nobody else has access",
        next_time="nvidia-smi > gpus_before.$(hostname).txt  # before the launch line",
        minutes=2,
        also={"gpu_oom": 0.25, "port_in_use": 0.25, "duplicate_gpu": 0.1},
    ),
    Look(
        cause="gpu_clock_limit",
        question=(
            "Does one GPU of the job have a lower power limit or clock setting than its equals on"
            " this host and the others?"
        ),
        now=(
            "nvidia-smi"
            " --query-gpu=index,name,power.limit,power.default_limit,clocks.sm,clocks.max.sm"
            " --format=csv"
        ),
        yes="power.limit below the others' or the default, or a clock that stays low under load",
        no="the same figures on all equal cards of all hosts while they compute",
        next_time=(
            "nvidia-smi --query-gpu=index,power.limit,power.draw,clocks.sm --format=csv -l 30 >"
            " power.$(hostname).txt &"
        ),
        minutes=2,
        also={"gpu_hardware_error": 0.2},
    ),
    Look(
        cause="gpu_hardware_error",
        question=(
            "Does the kernel's log or nvidia-smi report a fault of a GPU (Xid 48, 74, 79, 94, 95,"
            " uncorrectable ECC, `ERR!`, a GPU missing), or is one GPU in all failures?"
        ),
        now=(
            "timeout 8 nvidia-smi 2>&1; (dmesg -T; journalctl -kq --since=-1d) 2>/dev/null | grep"
            " -e NVRM:.Xid | tail -n 5"
        ),
        shows=(
            r"kernel: .*NVRM: Xid \([^)]*\): (?:48|74|79|94|95|119|120|140),"
            r"|Unable to determine the device handle|GPU is lost"
        ),
        yes=(
            "such an Xid at the time of the failure (not 13, 31, 43, 45: those are the program's),"
            " nvidia-smi that hangs; without that GPU or host it runs"
        ),
        no="no Xid on any host, all GPUs listed, and the failure moves between hosts",
        next_time="dmesg -wT 2>/dev/null | grep --line-buffered Xid > xid.$(hostname).txt &",
        minutes=2,
        also={"nvswitch_fabric": 0.25, "p2p_broken": 0.1, "cuda_error": 0.1},
    ),
    Look(
        cause="p2p_broken",
        question="Does it run with NCCL_P2P_DISABLE=1 (on one host, nothing else changed)?",
        now=(
            "nvidia-smi topo -p2p r; grep -o 'iommu=.*' /proc/cmdline; journalctl -kq --since=-1d"
            " 2>/dev/null | grep -i IO_PAGE_FAULT | tail -n 3"
        ),
        shows=r"kernel: nvidia .*IO_PAGE_FAULT",
        yes=(
            "with the variable it runs, without it the first collective hangs with the GPUs at 100"
            " %, or the numbers are wrong"
        ),
        no="the same failure with the variable set, or the ranks are on different hosts",
        next_time="export NCCL_P2P_DISABLE=1  # for one test run on one host",
        minutes=10,
        also={
            "nvswitch_fabric": 0.4,
            "cumem_container": 0.25,
            "nccl_bug": 0.25,
            "gpu_hardware_error": 0.25,
            "driver_too_old": 0.1,
            "concurrent_comms": 0.1,
        },
    ),
    Look(
        cause="nvswitch_fabric",
        question=(
            "Do the GPUs hang on NVSwitches whose service is not in order: nvidia-fabricmanager"
            " stopped, restarted or of another version than the driver, or Fabric not `Completed`?"
        ),
        now=(
            "timeout 8 nvidia-smi -q 2>/dev/null | grep -A 3 -w Fabric; systemctl is-active"
            " nvidia-fabricmanager 2>/dev/null; cat /proc/driver/nvidia/version"
        ),
        shows=r"Fabric\s+State\s*: In Progress",
        yes=(
            "`inactive` or `failed` on a host with NVSwitches, State `In Progress`, Status not"
            " `Success`, a restart without a reset of the GPUs; NCCL_NVLS_ENABLE=0 makes it run"
        ),
        no="`active`, Completed and Success on all hosts, or the GPUs have no NVSwitch (N/A)",
        next_time="nvidia-smi -q | grep -A 3 -w Fabric > fabric.$(hostname).txt",
        minutes=2,
        also={"driver_too_old": 0.12, "gpu_hardware_error": 0.12},
    ),
    Look(
        cause="driver_too_old",
        question=(
            "Does the driver or the GPU not fit the build: is the CUDA of torch or NCCL newer than"
            " the `CUDA Version` of nvidia-smi, or the GPU's generation not built in?"
        ),
        now=(
            "nvidia-smi | grep CUDA.Version; nvidia-smi --query-gpu=name,compute_cap --format=csv;"
            " timeout 6 python3 -m pip list 2>/dev/null | grep -e ^torch -e cuda -e nccl"
        ),
        yes=(
            "+cu128 in torch's or NCCL's version beside `CUDA Version: 12.2`; `sm_120` not in"
            " torch.cuda.get_arch_list(); it fails on one GPU alone, or after a change of either"
        ),
        no="nvidia-smi's CUDA version is at least that of the build, and the GPU is in its list",
        next_time=(
            "nvidia-smi; python -c 'import torch as t; print(t.version.cuda,"
            " t.cuda.get_arch_list(), t.ones(1).cuda())'"
        ),
        minutes=2,
        also={"cumem_container": 0.2, "version_mismatch": 0.2, "nccl_bug": 0.12},
    ),
    Look(
        cause="slow_transport",
        question=(
            "Does NCCL's log say `via SHM` or `via NET` between GPUs of one host that `nvidia-smi"
            " topo -m` connects by NV# or PIX?"
        ),
        now="nvidia-smi topo -m; env | grep -e NCCL_P2P -e NCCL_SHM -e CUDA_VISIBLE",
        yes=(
            "`via SHM/direct` or `via NET/Socket` where `via P2P` could be; NCCL_P2P_DISABLE=1 left"
            " from earlier; each container sees one GPU only"
        ),
        no="`via P2P` between them, or the GPUs have no such connection (SYS, NODE)",
        next_time=(
            "export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,P2P,SHM"
            " NCCL_DEBUG_FILE=nccl.%h.%p.log"
        ),
        minutes=5,
        also={"p2p_broken": 0.15, "shm_too_small": 0.2, "cumem_container": 0.15},
    ),
)
