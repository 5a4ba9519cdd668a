"""Driver, CUDA and GPU do not fit together

What you see
    "CUDA driver version is insufficient for CUDA runtime version", "Minimum requirement is ...",
    "no kernel image is available for execution on the device", "invalid device function", or "The
    NVIDIA driver on your system is too old".

Why it happens
    The driver belongs to the machine, CUDA and NCCL to the environment or container.  A newer CUDA
    needs a driver of at least its generation; and a library only contains code for the GPU
    architectures it was compiled for: a new wheel has dropped old cards, an old wheel does not know
    new ones.

How to be sure
    `nvidia-smi` prints the driver and the CUDA supported by the driver; torch.version.cuda says
    what the wheel needs; torch.cuda.get_arch_list() and get_device_capability() say whether the
    wheel has code for the GPU.

What to do
    In a container, cuda-compat bridges one major version on data-centre GPUs.

Read more
    NVIDIA: CUDA compatibility guide.  PyTorch: previous versions, supported architectures.
"""

from __future__ import annotations

from collections.abc import Iterator

from ncclkit.agent.digits import whole_number
from ncclkit.analysis.picks import (
    family,
    first_finding,
    initialized,
    matching,
    messages,
    name_hosts,
    on,
    pick,
    ranks_in,
    who_of,
    without,
)
from ncclkit.causes._compatibility import drivers, misfit
from ncclkit.causes._experiments import minimal
from ncclkit.causes._preflight import HostFacts, Preflight, Risk
from ncclkit.core.case import Case
from ncclkit.core.event_list import first_host
from ncclkit.core.kinds import C10dError, CudaDriver, CudaError, NcclWarn
from ncclkit.core.model import Advice, Event, Experiment, Finding, Strength, found
from ncclkit.core.text import start

ID = "driver_too_old"
explains = (
    "cuda.error",
    "c10d.error",
    "nccl.trace",
    "rank_exception",
    "cuda_error",
    "c10d.timeout",
    "slow_rank",
)
DRIVER = (
    "driver version is insufficient",
    "Minimum requirement",
    "driver on your system is too old",
    "unsupported toolchain",
    "forward compatibility was attempted",
    "cuda driver is a stub",
    "update your driver",
    "SYSTEM_DRIVER_MISMATCH",
    "unsupported display driver",
)
COMPAT = (
    "unsupported display driver",
    "forward compatibility was attempted",
    "SYSTEM_DRIVER_MISMATCH",
)
"""Errors 803 and 804, where another libcuda may have been loaded.

It is that of an image's compat folder, or of another version.
"""
CODE = (
    "no kernel image",
    "invalid device function",
    "is not compatible with the current PyTorch installation",
    "named symbol not found",
    "only supports Ampere GPUs or newer",
    "only supported on GPUs with compute capability",
    "is not defined for option 'gpu-name'",
    "invalid value for --gpu-architecture",
    "not compiled with SASS",
)
ABSENT = (
    "Found no NVIDIA driver",
    "communicate with the NVIDIA driver",
    "no GPUs found",
    "no CUDA-capable device",
)
"""CUDA sees no GPU at all.

There is no driver, the container has none, or the variables hide the GPUs.
"""


def diagnose(case: Case) -> Finding:
    """Found where CUDA says that driver, libraries or GPU do not fit."""
    went_well = [*initialized(case), *case.of("nccl.destroy", "progress")]
    missing = "`nvidia-smi` and `python -m torch.utils.collect_env`"
    return first_finding(
        case, _by_table, _said_by_cuda, _unnamed_error, _no_gpu, CHECK.risk
    ) or CHECK.otherwise(case, went_well, "Driver and libraries work together.", missing)


def _lines_of_cuda(case: Case) -> list[Event]:
    return [*case.of("cuda.driver", "cuda.error"), *messages(case)]


def _old_driver(case: Case) -> list[Event]:
    return matching(_lines_of_cuda(case), *DRIVER)


def _lacking_code(case: Case) -> list[Event]:
    return matching(_lines_of_cuda(case), *CODE)


def _other_misfits(case: Case) -> list[Event]:
    """Lines of CUDA's start that say neither which is too old nor that there is no GPU."""
    named = _old_driver(case) + _lacking_code(case)
    other = without([*case.of(CudaDriver), *family(case, "driver")], named)
    return [event for event in other if not matching([event], *ABSENT)]


def _said_by_cuda(case: Case) -> Finding | None:
    """CUDA, torch or NCCL itself says that they do not fit."""
    old, image = _old_driver(case), _lacking_code(case)
    lines = old or image or _other_misfits(case)
    if not lines:
        return None
    lacks_code = bool(image) and not old
    what = "driver and CUDA libraries do not fit together."
    if lacks_code:
        what = "the libraries hold no code for this GPU's architecture."
    elif old:
        what = _which_is_unfit(old)
    strength: Strength = "proven"
    if not (old or image) or all(map(_is_warning, lines)):
        strength = "likely"
    return found(
        ID,
        strength,
        f"{who_of(lines, lines[0].host)}: {what}",
        pick(lines),
        ranks=ranks_in(lines),
        hosts=name_hosts(lines),
        advice=_advice(lacks_code),
    )


def _unnamed_error(case: Case) -> Finding | None:
    """torch quotes NCCL's "unhandled cuda error" and no line says which."""
    vague = matching(case.of(C10dError), "unhandled cuda error")
    if not vague or case.of(NcclWarn) or case.of("cuda."):
        return None
    say = (
        "A CUDA call inside NCCL failed and the log does not say why; libraries that do not fit"
        " the driver or GPU are one reason."
    )
    return found(ID, "possible", say, pick(vague, limit=2), advice=_advice(False))


def _no_gpu(case: Case) -> Finding | None:
    """CUDA sees no GPU at all."""
    blind = matching(_lines_of_cuda(case), *ABSENT)
    if not blind:
        return None
    say = (
        f"CUDA sees no GPU{on(blind[0].host)}: the driver is not loaded or does not fit, or no"
        " GPU is visible."
    )
    # the first two name the driver; the others are also said where variables hide the GPUs
    named = matching(blind, *ABSENT[:2])
    strength: Strength = "possible"
    if named:
        strength = "likely"
    return found(ID, strength, say, pick(named, blind, limit=4), advice=_advice(False))


def _which_is_unfit(lines: list[Event]) -> str:
    """What CUDA's words say of driver and libraries.

    Of error 803 the image's own libcuda may be the odd one.
    """
    if len(matching(lines, *COMPAT)) == len(lines):
        return (
            "the driver and the libcuda that was loaded do not fit together; which is the odd one"
            " is not said."
        )
    return "the NVIDIA driver is older than the CUDA libraries need."


def _by_table(case: Case) -> Finding | None:
    """GPU, driver and libraries do not fit by the tables of `_compatibility`.

    The errors need not say so.
    """
    unfit = misfit(case)
    if unfit is None:
        return None
    lines = _old_driver(case) or _lacking_code(case) or _other_misfits(case)
    vague = [
        *case.of(CudaError),
        *matching(case.of(C10dError), "unhandled cuda error"),
        *family(case, "cuda"),
    ]
    if not lines and not vague:
        return None
    firm = any(not _is_warning(e) for e in matching(lines, *DRIVER, *CODE))
    if firm and unfit.unsure:
        return None  # the job's own line proves it; the table only may be right
    host = first_host(lines)
    if lines:
        say = f"{who_of(lines, host)}: {unfit.summary}."
    else:
        say = f"{start(unfit.summary)}."
    sure: Strength = "likely"
    if firm:
        sure = "proven"
    why = pick(lines, unfit.why, vague, limit=6)
    ranks = ranks_in(lines)
    return found(
        ID, sure, say, why, ranks=ranks, hosts=name_hosts(lines), advice=_advice(unfit.image)
    )


def _is_warning(event: Event) -> bool:
    """True for a warning after which torch goes on, on the CPU or on another GPU."""
    # torch falls back after a warning, and raises after an error
    return bool(matching([event], "UserWarning", "not compatible with the current PyTorch")) and (
        event.kind != "python.exception"
    )


def _host_risks(host: HostFacts) -> Iterator[Risk]:
    """Hosts whose driver does not answer its own tools, or is older than torch's CUDA needs."""
    smi = host.fact("gpu.nvidia_smi")
    driver, library, cuda = (
        str(host.value(name) or "") for name in ("gpu.driver", "gpu.library", "software.torch.cuda")
    )
    # the tools compare themselves with the kernel module, and so can we where they do not say
    mismatch = smi is not None and (
        "version mismatch" in smi.why or (driver != library and bool(driver and library))
    )
    if smi and smi.value == "failed" and (mismatch or host.gpu_count):
        why = "nvidia-smi's library and the kernel's driver are of different versions"
        say = (
            f"{why if mismatch else 'nvidia-smi cannot talk to the driver'} ({smi.why}); CUDA would"
            " not start either"
        )
        yield Risk(say, [smi, host.fact("gpu.library"), host.fact("gpu.driver")], RELOAD, "likely")
    major, branch = (whole_number(text.partition(".")[0]) or 0 for text in (cuda, driver))
    # a container may bring cuda-compat, which no fact shows: hence "unless"
    if branch and branch < drivers().get(major, 0):
        say = (
            f"torch was built for CUDA {cuda}, which needs driver {drivers()[major]} or newer, and"
            f" the driver is {driver}; CUDA would refuse to start unless the container brings"
            " cuda-compat"
        )
        facts = [host.fact("gpu.driver"), host.fact("software.torch.cuda")]
        yield Risk(say, facts, _advice(False)[0], "likely")


def _advice(image: bool) -> tuple[Advice, ...]:
    check = (
        "python -c 'import torch; print(torch.version.cuda, torch.cuda.get_arch_list(), "
        "torch.cuda.get_device_capability())'; nvidia-smi"
    )
    if image:
        return (
            Advice(
                "Install a PyTorch build (or an NCCL package, where a program of your own uses it)"
                " whose architecture list contains this GPU; an NCCL that was built here must be"
                " built again with NVCC_GENCODE for it.",
                command=check,
                why="A library runs only on the architectures it was compiled for.",
                check="The list contains the GPU's capability (8.0 = sm_80).",
                risk="Old cards need old releases, with their old bugs.",
            ),
        )
    return (
        Advice(
            "Update the driver of the nodes, or install a wheel, and an NCCL, for the CUDA version"
            " that nvidia-smi shows.",
            command=check,
            why="A CUDA release needs a driver of its generation or newer.",
            check="A one-GPU all_reduce runs on each node.",
            risk="A driver update needs the GPUs idle.",
        ),
    )


RELOAD = Advice(
    "Load the kernel module that fits the installed driver: reboot the node, or unload and"
    " load it.",
    command="cat /proc/driver/nvidia/version; dmesg -T | grep -i nvrm | tail; sudo reboot",
    why="After an update of the driver's packages the old module stays loaded until then.",
    check="`nvidia-smi` lists the GPUs.",
    risk=(
        "A reboot ends everything on the node; in a container the host's driver must be mounted"
        " anew."
    ),
)


def experiment(case: Case) -> Experiment:
    """Run one rank on one GPU: no path between GPUs is used."""
    return minimal(
        "Does one rank alone complete an all_reduce on its GPU?",
        {
            "p2p_broken": "it does: only the path between GPUs fails",
            "duplicate_gpu": "it does: its GPU is not shared",
        },
        {
            ID: "it fails too, with its very first kernel",
            "gpu_hardware_error": "it fails too, on this GPU only",
        },
        ranks=1,
    )


CHECK = Preflight(
    ID,
    reads=("gpu.driver", "software.torch.cuda"),
    risks=_host_risks,
    fine="The driver supports the CUDA that torch was built for.",
    also=("gpu.nvidia_smi", "gpu.count", "gpu.library"),
    next=experiment,
)
REMEDIES = (*_advice(False), *_advice(True), RELOAD)
