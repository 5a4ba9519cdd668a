"""NCCL reports invalid usage or an invalid argument

What it means
    NCCL checked the call and refused it: two ranks on one GPU, a pointer of another device, a
    type or an algorithm that it does not support, or a communicator that is in error.  All of
    them are visible before any data moves, and repeat at every start.

Whom not to believe
    The explanation "too many async ops, too many collectives at once, mixing streams" is an old
    standing text, hardly ever the reason.  The arguments of your all-reduce are most often
    right; what is wrong is the device under it, or the library that answers.

What to get
    The NCCL WARN above the error (NCCL_DEBUG=WARN): "Duplicate GPU detected" ends the search.
    Per rank: LOCAL_RANK, CUDA_VISIBLE_DEVICES, torch.cuda.current_device() before the first
    collective.  Then `pip list | grep -i nccl`, LD_LIBRARY_PATH, and `env | grep NCCL_`.
"""

from __future__ import annotations

from collections.abc import Mapping

ID = "invalid_usage"

WORDS: tuple[str, ...] = (
    r"\bncclInvalid(?:Usage|Argument)\b",
    r"NCCL_ERROR_INVALID_(?:USAGE|ARGUMENT)",
    r"\binvalid (?:usage|argument) \(run with NCCL",
    r"\binvalid (?:usage|argument), NCCL version",
    r"\b[NR]CCL (?:error|failure)\b(?!.{0,160}\bCuda failure).{0,160}\binvalid (?:usage"
    r"|argument)\b",
)

SUSPECTS: Mapping[str, str] = {
    "duplicate_gpu": "two ranks use one device, or the device was not set before the first call",
    "version_mismatch": "a second NCCL library, or one for another CUDA, answers the call",
    "bad_env_value": "a forced algorithm, protocol or network does not exist for this call",
    "driver_too_old": "the GPU or driver lacks what this NCCL was built for",
    "world_size_mismatch": "ranks were started twice or with the wrong numbers and share a device",
    "fork_or_init_order": "the communicator was used after its end or before it was ready",
}
