"""What NCCL's own diagnostics (2.31 and later) say of pairs of GPUs, as patterns."""

PAIR = (
    r"srcRank=(?P<src>\d{1,9}) srcCudaDev=(?P<src_gpu>\d{1,4}) srcNvmlDev=(?P<src_nvml>\d{1,4})"
    r" dstRank=(?P<dst>\d{1,9}) dstCudaDev=(?P<dst_gpu>\d{1,4}) dstNvmlDev=(?P<dst_nvml>\d{1,4})"
    r" path=(?P<path>\w{1,20}) handle=(?P<handle>\w{1,40})"
)
WRONG_BYTES = rf"p2p: (?P<way>write|read) mismatch {PAIR}"
VERIFIED = r"p2p: (?:all \d+ directed GPU P2P edges|verified P2P access)"
"""Each pair was written, read and verified, and all bytes were right."""
