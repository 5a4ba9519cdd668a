"""The results are wrong, or NaN in one run and not in another

What it means
    Collectives end, but with wrong values; or the ranks disagree.  Either the data was damaged
    on its way (copies between GPUs, a defect, hardware), or the ranks put together what does
    not belong together: other shapes, another order of calls, a buffer that another stream
    still writes.

Whom not to believe
    A loss of NaN alone: in mixed precision single overflows are normal, and a bad batch or
    learning rate is more usual than a broken link.  PyTorch's sentence "subsequent GPU
    operations might run on corrupted/incomplete data" stands after every timeout and is no sign
    of wrong data.

What to get
    all_reduce_perf with checking (-c 1) on the same GPUs: a "#wrong" above 0 clears the
    program.  If it is right: the run again with TORCH_DISTRIBUTED_DEBUG=DETAIL, which compares
    calls and shapes.  Then one GPU at a time: dcgmi diag, ECC counters, and NCCL_P2P_DISABLE=1.
"""

from __future__ import annotations

from collections.abc import Mapping

ID = "wrong_results"

WORDS: tuple[str, ...] = (
    r"\b(?:loss|grad_norm|output|result|value)s?[\"'\s:=]{1,6}(?:tensor\()?-?nan\b",
    r"\b(?:becomes?|turns?|goes|went|gets?|got|are|returns?|produces?|gives?|yields?) "
    r"(?:in)?(?:to )?(?:an? )?(?:all )?nans?\b",
    r"\b(?:wrong|incorrect|garbage|corrupt(?:ed)?|inconsistent) (?:results?|values?"
    r"|answers?|outputs?|numbers?|gradients?|weights|sums?|data)\b",
    r"\b(?:results?|outputs?|values?|weights|gradients?|sums?|answers?) (?:is|are|was|were"
    r"|becomes?|look) (?:\w{1,12} )?(?:wrong|incorrect|garbage|corrupt(?:ed)?)\b",
    r"\bOut of bounds values ?: ?[1-9]\d{0,12} FAILED",
    r"\bsilent(?:ly)? (?:data )?corrupt",
)

SUSPECTS: Mapping[str, str] = {
    "rank_divergence": "ranks reduce tensors of different steps or calls into each other",
    "p2p_broken": "copies between GPUs deliver wrong bytes where the IOMMU redirects them",
    "nccl_bug": "a known defect of an algorithm or protocol gives wrong sums",
    "shape_mismatch": "the same call has other sizes or types on another rank",
    "concurrent_comms": "two streams or threads use one buffer or communicator at once",
    "gpu_hardware_error": "memory or a link of a GPU returns bad data",
    "send_recv_mismatch": "a receive takes the data of another send",
}
