"""Where each launcher takes the numbers and names of a job.

In: a case.  Out: the words for a remedy, in those of the launcher that started the job.  Where no
line shows it, all usual places are named and none is presumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ncclkit.analysis.launchers import launcher
from ncclkit.core.case import Case


@dataclass(frozen=True, slots=True)
class LauncherOptions:
    """Where one launcher takes what the ranks must agree on; each is the end of a sentence."""

    port: str
    """``give this job another port: …``."""
    counts: str
    """``set the number of ranks: …``."""
    device: str
    """``give each rank its GPU: …``."""
    address: str
    """``give the address of the first host: …``."""
    output: str
    """``read what that rank printed: …``."""


LOCAL_RANK = "`torch.cuda.set_device(int(os.environ['LOCAL_RANK']))` before anything touches CUDA"
OPTIONS: Mapping[str, LauncherOptions] = {
    "torchrun": LauncherOptions(
        "`--master-port` of torchrun, or `--standalone`, which takes a free one, on a single host",
        "`--nproc-per-node` and `--nnodes` of torchrun, alike on every host",
        f"`--nproc-per-node` of torchrun at most the GPUs of a host, and {LOCAL_RANK}",
        "`--master-addr` (or `--rdzv-endpoint`) of torchrun, alike on every host",
        "`--log-dir` and `--redirects 3` of torchrun keep it, and `@record` on main puts the"
        " traceback into torchrun's summary",
    ),
    "accelerate": LauncherOptions(
        "`--main_process_port` of accelerate launch; 0 takes a free one on a single host",
        "`--num_processes` (all hosts together) and `--num_machines` of accelerate launch",
        "`--num_processes` of accelerate launch at most the GPUs of a host, and `Accelerator()`"
        " before anything touches CUDA",
        "`--main_process_ip` of accelerate launch, alike on every host",
        "`--log_dir` and `--redirects 3` of accelerate launch keep it for each rank",
    ),
    "deepspeed": LauncherOptions(
        "`--master_port` of deepspeed",
        "`--num_gpus` and `--num_nodes` of deepspeed, or the slots of its hostfile",
        f"`--num_gpus` of deepspeed at most the GPUs of a host, and {LOCAL_RANK}",
        "the names in DeepSpeed's hostfile, or `--master_addr` of deepspeed",
        "`--enable_each_rank_log` of deepspeed keeps it for each rank",
    ),
    "lightning": LauncherOptions(
        "MASTER_PORT in the environment of the job, which Lightning reads",
        "`num_nodes` and `devices` of the Trainer, which Slurm's `--nodes` and"
        " `--ntasks-per-node` must equal; on Slurm start the script itself with srun",
        "`devices` of the Trainer at most the GPUs of a host, and no `.cuda()` before it",
        "MASTER_ADDR in the environment of the job",
        "on Slurm `--output` with %t keeps it for each task; else above the first timeout",
    ),
    "horovod": LauncherOptions(
        "MASTER_PORT in the environment, where the program reads it",
        "`-np` of horovodrun, and the slots after each host of `-H`",
        "`torch.cuda.set_device(hvd.local_rank())` right after `hvd.init()`; it must differ on"
        " the ranks of a host",
        "the names after `-H` of horovodrun",
        "`--output-filename` of horovodrun keeps it for each rank",
    ),
    "mpi": LauncherOptions(
        "`-x MASTER_PORT` of mpirun",
        "`-np` of mpirun, and the slots of its hosts",
        "the local rank that MPI gives (OMPI_COMM_WORLD_LOCAL_RANK) as the number of the GPU,"
        " before anything touches CUDA",
        "`-x MASTER_ADDR` of mpirun",
        "`--output-filename` of mpirun keeps it for each rank",
    ),
    "ray": LauncherOptions(
        "`--port` of `ray start` for Ray's head; Ray Train chooses the store's port itself",
        "`num_workers` of Ray's ScalingConfig, and GPUs for all of them in the cluster",
        "one GPU a worker in Ray (`num_gpus=1`), without CUDA_VISIBLE_DEVICES or a device number"
        " of your own; Ray before 2.40 with a program that sets it itself needs the newer one",
        "`--address` of `ray start` on the other hosts: the head's own address, not 127.0.0.1",
        "the worker's .err file in /tmp/ray/session_latest/logs of its host, or `ray logs`",
    ),
    "vllm": LauncherOptions(
        "VLLM_PORT (`--port` is that of the HTTP server)",
        "`--tensor-parallel-size` times `--pipeline-parallel-size`, and as many GPUs",
        "`--tensor-parallel-size` at most the visible GPUs, and no CUDA_VISIBLE_DEVICES that"
        " names one twice",
        "VLLM_HOST_IP on each host: its own address in the network that joins the hosts",
        "the first ERROR of a worker, above the engine's own; VLLM_LOGGING_LEVEL=DEBUG says more",
    ),
    "sglang": LauncherOptions(
        "`--dist-init-addr` (or `--nccl-port`) of sglang",
        "`--tp`, `--nnodes` and `--node-rank` of sglang",
        "`--tp` at most the visible GPUs",
        "`--dist-init-addr` of sglang, alike on every host",
        "the first traceback of a scheduler process, above that of the server",
    ),
    "srun": LauncherOptions(
        "MASTER_PORT in the job script, computed from SLURM_JOB_ID",
        "`--nodes` and `--ntasks-per-node` of Slurm, and WORLD_SIZE from SLURM_NTASKS",
        "one task for each GPU, and `torch.cuda.set_device(int(os.environ['SLURM_LOCALID']))`"
        " before anything touches CUDA",
        "MASTER_ADDR in the job script: the first line of `scontrol show hostnames`",
        "`--output` of srun with %t keeps it for each task",
    ),
    "kubernetes": LauncherOptions(
        "MASTER_PORT in the pods' template",
        "the replicas of the job, and its ranks a pod (`nprocPerNode`)",
        f"as many ranks a pod as it has GPUs, and {LOCAL_RANK}",
        "MASTER_ADDR in the pods' template: the service of the first pod",
        "`kubectl logs --previous` of every pod of the job",
    ),
}
ANY = LauncherOptions(
    "MASTER_PORT, or the option by which the launcher takes it (`--master-port` of torchrun,"
    " `--master_port` of deepspeed, `--main_process_port` of accelerate)",
    "WORLD_SIZE and what the launcher counts (`--nproc-per-node`, `--num_processes`, `-np`,"
    " `--ntasks-per-node`)",
    "`torch.cuda.set_device` with the rank's number on its host (LOCAL_RANK) before anything"
    " touches CUDA, and no device number written into the program",
    "MASTER_ADDR, or the option by which the launcher takes it (`--master-addr` of torchrun,"
    " `--main_process_ip` of accelerate, the hostfile of deepspeed)",
    "keep a file for each rank (`--log-dir` and `--redirects 3` of torchrun, `--output` with %t of"
    " srun), and look above the first timeout",
)
"""Where no line shows what started the job."""


def options_of(case: Case) -> LauncherOptions:
    """Where the launcher of this job takes its numbers and names."""
    return OPTIONS.get(launcher(case), ANY)
