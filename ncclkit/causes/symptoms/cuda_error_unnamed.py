"""NCCL reports a CUDA error without saying which

What it means
    A CUDA call inside NCCL failed: it could not allocate, launch its kernel, map another GPU's
    memory, or the device was already in error.  The line "Cuda failure '...'" has the name; the
    exception above it has not.  At the first collective it speaks of driver, fabric or
    container; later, of the program or the GPU.

Whom not to believe
    NCCL, and the collective of the traceback: CUDA reports errors late, at the next call.  An
    illegal access or a failed assertion of your own kernel appears here as NCCL's error.
    'invalid argument' in transport/nvls.cc is about the fabric, not about arguments of yours.

What to get
    The text in quotes after "Cuda failure", with NCCL_DEBUG=WARN.  nvidia-smi on that host:
    driver, free memory, and the fabric's state (nvidia-smi -q | grep -A2 Fabric); dmesg for
    Xid.  If it comes in the middle of the run: once more with CUDA_LAUNCH_BLOCKING=1.
"""

from __future__ import annotations

from collections.abc import Mapping

ID = "cuda_error_unnamed"

WORDS: tuple[str, ...] = (
    r"\bunhandled (?:cuda|hip) error\b",
    r"\bncclUnhandledCudaError\b",
    r"NCCL_ERROR_UNHANDLED_CUDA",
    r"\b(?:Cuda|HIP) failure\b",
)

SUSPECTS: Mapping[str, str] = {
    "driver_too_old": (
        "driver, CUDA runtime and GPU do not fit, so NCCL's first kernel or call fails"
    ),
    "nvswitch_fabric": "fabric manager or multicast is not ready and NVLS memory cannot be bound",
    "gpu_oom": "no memory was left for NCCL's buffers",
    "cuda_error": "a kernel of the program failed before, and NCCL's call returns that error",
    "cumem_container": "the container or virtual machine forbids what cuMem needs",
    "gpu_hardware_error": "the GPU has an Xid or must be reset, and each call fails",
    "p2p_broken": "mapping the memory of the other GPU is refused",
    "version_mismatch": "the NCCL that was loaded belongs to another CUDA",
}
