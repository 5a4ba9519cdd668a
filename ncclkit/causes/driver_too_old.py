"""Driver, CUDA and GPU do not fit together

What you see
    "CUDA driver version is insufficient for CUDA runtime version", "Minimum requirement is ...", "no kernel image is
    available for execution on the device", "invalid device function", or "The NVIDIA driver on your system is too
    old".

Why it happens
    The driver belongs to the machine, CUDA and NCCL to the environment or container.  A newer CUDA needs a driver
    of at least its generation; and a library only contains code for the GPU architectures it was compiled for: a
    new wheel has dropped old cards, an old wheel does not know new ones.

How to be sure
    `nvidia-smi` prints the driver and the newest CUDA it can serve; torch.version.cuda what the wheel wants;
    torch.cuda.get_arch_list() and get_device_capability() whether the GPU is among the compiled ones.

What to do
    Update the driver on the nodes, or install a wheel for an older CUDA (or one that still supports the card); in a
    container, cuda-compat bridges one major version on data-centre GPUs.

Read more
    NVIDIA: CUDA compatibility guide.  PyTorch: previous versions, supported architectures.
"""

from __future__ import annotations

from ncclkit.case import Case
from ncclkit.causes._words import family, matching, messages, name_hosts, name_ranks, on, otherwise, pick, ranks_in
from ncclkit.model import Advice, Finding, found
from ncclkit.words import start

ID = "driver_too_old"
explains = ("cuda.error", "c10d.error", "nccl.trace", "rank_exception", "cuda_error", "c10d.timeout", "slow_rank")
DRIVER = (
    "driver version is insufficient",
    "Minimum requirement",
    "driver on your system is too old",
    "unsupported toolchain",
    "forward compatibility was attempted",
    "cuda driver is a stub",
)
CODE = ("no kernel image", "invalid device function", "is not compatible with the current PyTorch installation")


def diagnose(case: Case) -> Finding:
    """CUDA says so itself."""
    pool = [*case.of("cuda.driver"), *case.of("cuda.error"), *messages(case)]
    old, image = matching(pool, *DRIVER), matching(pool, *CODE)
    other = [e for e in [*case.of("cuda.driver"), *family(case, "driver")] if e not in old + image]
    lines = old or image or other
    vague = matching(case.of("c10d.error"), "unhandled cuda error")
    if not lines and vague and not case.of("nccl.warn") and not case.of("cuda."):
        say = (
            "A CUDA call inside NCCL failed and the log does not say why; libraries that do not fit the "
            "driver or GPU are one reason."
        )
        return found(ID, "possible", say, pick(vague, limit=2), advice=_advice(False))
    if not lines:
        went_well = [
            *[e for e in case.of("nccl.init") if e.data.get("phase") == "done"],
            *case.of("nccl.destroy"),
            *case.of("progress"),
        ]
        return otherwise(
            ID, went_well, "Driver and libraries work together.", "`nvidia-smi` and `python -m torch.utils.collect_env`"
        )
    say = f"{start(name_ranks(ranks_in(lines)))}{on(lines[0].host)}: "
    say += (
        "the NVIDIA driver is older than the CUDA libraries need."
        if lines is old
        else (
            "the libraries hold no code for this GPU's architecture."
            if lines is image
            else "driver and CUDA libraries do not fit together."
        )
    )
    return found(
        ID,
        "likely" if lines is other else "proven",
        say,
        pick(lines),
        ranks=ranks_in(lines),
        hosts=name_hosts(lines),
        advice=_advice(lines is image),
    )


def _advice(image: bool) -> tuple[Advice, ...]:
    check = (
        "python -c 'import torch; print(torch.version.cuda, torch.cuda.get_arch_list(), "
        "torch.cuda.get_device_capability())'; nvidia-smi"
    )
    if image:
        return (
            Advice(
                "Install a PyTorch build whose architecture list contains this GPU.",
                command=check,
                why="A library runs only on the architectures it was compiled for.",
                check="The capability (8.0 = sm_80) stands in the list.",
                risk="Old cards need old releases, with their old bugs.",
            ),
        )
    return (
        Advice(
            "Update the driver of the nodes, or install a wheel for the CUDA version that nvidia-smi shows.",
            command=check,
            why="A CUDA release needs a driver of its generation or newer.",
            check="A one-GPU all_reduce runs on each node.",
            risk="A driver update needs the GPUs idle.",
        ),
    )
