"""Looks for the program.

They ask which rank calls what, in which order, how long, and who failed first.
"""

from __future__ import annotations

from ncclkit.causes.looks.record import Look

LOOKS: tuple[Look, ...] = (
    Look(
        cause="rank_divergence",
        question=(
            "Can ranks take different paths: a collective, save or evaluation under `if rank == 0`,"
            " an early break, a branch on data, or different numbers of batches?"
        ),
        now="",
        yes=(
            "the watchdogs name different collectives or numbers, or one rank has left the loop;"
            " equal batches on all ranks (or unused parameters found) let it run"
        ),
        no="all ranks reach every collective: same number, same kind, also in the last batch",
        next_time=(
            "export TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_TRACE_BUFFER_SIZE=2000"
            " TORCH_NCCL_DUMP_ON_TIMEOUT=1"
        ),
        minutes=5,
        also={
            "slow_rank": 0.35,
            "shape_mismatch": 0.35,
            "framework_bug": 0.3,
            "send_recv_mismatch": 0.25,
            "timeout_too_short": 0.2,
            "concurrent_comms": 0.2,
            "rank_exception": 0.15,
        },
    ),
    Look(
        cause="send_recv_mismatch",
        question=(
            "Does it hang in send, recv or all-to-all (pipeline stages, experts) where the partner"
            " posts no match, another order or another size?"
        ),
        now="",
        yes=(
            "watchdog lines with SEND, RECV, COALESCED or ALLTOALL; two ranks both send or both"
            " receive; split sizes or types that do not agree"
        ),
        no="the program has no such calls, or each send has its recv in the same order and size",
        next_time=(
            "export TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_TRACE_BUFFER_SIZE=2000"
            " TORCH_NCCL_DUMP_ON_TIMEOUT=1"
        ),
        minutes=5,
        also={"framework_bug": 0.25, "concurrent_comms": 0.2, "rank_divergence": 0.12},
    ),
    Look(
        cause="shape_mismatch",
        question=(
            "Do the ranks bring tensors of different size or type to the same collective (last"
            " batch, dropped samples, a buffer that grows, another model)?"
        ),
        now="",
        yes=(
            "the watchdog lines of one collective differ in NumelIn, or DETAIL mode prints two"
            " shapes; with equal sizes it runs"
        ),
        no="NumelIn, shapes and types are the same on all ranks",
        next_time="export TORCH_DISTRIBUTED_DEBUG=DETAIL  # slower; compares shapes in each call",
        minutes=5,
        also={
            "send_recv_mismatch": 0.35,
            "rank_divergence": 0.25,
            "framework_bug": 0.2,
            "version_mismatch": 0.1,
        },
    ),
    Look(
        cause="fork_or_init_order",
        question=(
            "Does the program use CUDA or the process group before it starts processes, set it up"
            " twice, or end it on one rank while others still use it?"
        ),
        now="",
        yes=(
            "a tensor on the GPU, or cuda.* called, before fork or multiprocessing (spawn helps);"
            " two init_process_group; abort or destroy on some ranks only; fails at the exit"
        ),
        no="processes start first, one init each, then one barrier and one destroy on all ranks",
        next_time="export TORCH_SHOW_CPP_STACKTRACES=1  # shows which call came first",
        minutes=5,
        also={"framework_bug": 0.2, "duplicate_gpu": 0.15, "concurrent_comms": 0.15},
    ),
    Look(
        cause="slow_rank",
        question=(
            "Was one rank alone at long work while the others waited (evaluation, preprocessing,"
            " saving, skipping batches at a resume), for about as long as the timeout?"
        ),
        now="",
        yes=(
            "that rank logs ordinary progress and is still alive when the others time out; it does"
            " not happen without that work (a fresh start, cached data)"
        ),
        no="all ranks wait in a collective, or the work of the ranks is equal",
        next_time=(
            "(sleep 1200; for p in $(pgrep python); do py-spy dump --pid $p; done) >"
            " stacks.$(hostname).txt 2>&1 &  # before the launch line"
        ),
        minutes=0.5,
        also={
            "timeout_too_short": 0.55,
            "disk_or_io": 0.35,
            "stale_lock": 0.2,
            "gil_hold": 0.2,
            "rank_divergence": 0.2,
            # a rank that swaps, or whose loaders lack cores, is at long work, too
            "host_oom": 0.4,
            "cpu_contention": 0.4,
            "framework_bug": 0.1,
        },
    ),
    Look(
        cause="timeout_too_short",
        question=(
            "Were all ranks still at honest work (load, compile, evaluation, saving) when the limit"
            " came, and does a longer timeout let it go on?"
        ),
        now="",
        yes="with timeout=timedelta(hours=2) it passes that place by itself and trains on",
        no="with a longer timeout it only waits longer, and no rank makes progress",
        next_time="python train.py --ddp_timeout 7200  # or init_process_group(timeout=…)",
        minutes=10,
        also={"slow_rank": 0.6, "disk_or_io": 0.4, "cpu_contention": 0.3, "host_oom": 0.12},
    ),
    Look(
        cause="rank_exception",
        question=(
            "Does one rank's log hold an ordinary Python error of the program (ValueError,"
            " KeyError, FileNotFoundError) before all timeouts and closed connections?"
        ),
        now="",
        yes=(
            "one traceback on one rank that ends in the program or its data, earlier than all lines"
            " about NCCL, gloo, the store or signals"
        ),
        no="the first errors of all ranks are timeouts or lost connections, CUDA's or NCCL's",
        next_time="torchrun --redirects 3 --tee 3 --log-dir logs train.py  # one log for each rank",
        minutes=5,
        also={
            "framework_bug": 0.3,
            "fork_or_init_order": 0.3,
            "disk_or_io": 0.25,
            "fd_limit": 0.25,
            "gpu_oom": 0.15,
            "cuda_error": 0.15,
            "driver_too_old": 0.12,
            "shape_mismatch": 0.12,
            "version_mismatch": 0.12,
            "port_in_use": 0.1,
        },
    ),
    Look(
        cause="cuda_error",
        question=(
            "With CUDA_LAUNCH_BLOCKING=1, does the first error (illegal access, device-side assert)"
            " come from an operation of the program and not from a collective?"
        ),
        now="",
        yes=(
            "the traceback then ends in an index, embedding, attention or custom kernel; often it"
            " fails on one GPU or on the CPU too"
        ),
        no="the program alone runs on one GPU, and only collectives fail",
        next_time="export CUDA_LAUNCH_BLOCKING=1  # for one test run; slow",
        minutes=10,
        also={
            "framework_bug": 0.25,
            "gpu_oom": 0.2,
            "driver_too_old": 0.25,
            "rank_exception": 0.15,
            "gpu_hardware_error": 0.15,
        },
    ),
    Look(
        cause="concurrent_comms",
        question=(
            "Do several process groups, threads, streams or graphs run collectives at the same"
            " time, and is the hang gone when one runs after the other?"
        ),
        now="",
        yes=(
            "two groups time out at once, each rank waits in another one; with one thread, without"
            " CUDA graphs or with NCCL_LAUNCH_ORDER_IMPLICIT=1 (NCCL 2.26) it runs"
        ),
        no="there is one group and one thread, or the order is the same on all ranks",
        next_time="export NCCL_LAUNCH_ORDER_IMPLICIT=1 CUDA_DEVICE_MAX_CONNECTIONS=1",
        minutes=10,
        also={
            "send_recv_mismatch": 0.2,
            "framework_bug": 0.2,
            "fork_or_init_order": 0.15,
            "rank_divergence": 0.15,
            "nccl_bug": 0.15,
        },
    ),
    Look(
        cause="world_size_mismatch",
        question=(
            "Were fewer processes started than WORLD_SIZE says, or have two the same RANK (count"
            " the ranks that wrote anything)?"
        ),
        now="env | grep -e ^WORLD_SIZE -e ^RANK -e ^LOCAL_RANK -e SLURM_NTASKS -e SLURM_NNODES",
        yes=(
            "`3/4 clients joined`, a rank twice, a host where the launcher never started, local"
            " rank given as rank, plain python where srun was meant"
        ),
        no="each rank from 0 to WORLD_SIZE - 1 exists once when the job starts",
        next_time="env | grep -e RANK -e WORLD_SIZE -e MASTER_ -e SLURM_ > rank.$(hostname).$$.txt",
        minutes=2,
        also={"clock_skew": 0.25, "store_unreachable": 0.2, "duplicate_gpu": 0.2},
    ),
    Look(
        cause="duplicate_gpu",
        question=(
            "Do two ranks of a host use the same GPU: more ranks than `nvidia-smi -L` lists, or no"
            " set_device(LOCAL_RANK) before the first collective?"
        ),
        now="nvidia-smi -L; env | grep -e CUDA_VISIBLE_DEVICES -e SLURM_NTASKS -e LOCAL_",
        yes=(
            "two ranks print the same torch.cuda.current_device(), nvidia-smi shows several ranks"
            " on GPU 0 while others idle, or `Guessing device ID`"
        ),
        no="each rank has a GPU of its own, set before anything else",
        next_time="(sleep 120; nvidia-smi) > gpus.$(hostname).txt &  # pid and memory on each GPU",
        minutes=2,
        also={"gpu_oom": 0.15, "world_size_mismatch": 0.15, "fork_or_init_order": 0.15},
    ),
)
