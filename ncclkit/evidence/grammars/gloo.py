"""The grammar of ranks that disagree: gloo, collective fingerprints, DDP, Horovod."""

from __future__ import annotations

import re

from ncclkit.evidence.grammars.grammar import Data, Line, Rule, rule


def _fingerprint(match: re.Match[str], data: Data, line: Line) -> Data:
    kinds = (
        ("op", r"Op type:"),
        ("sizes", r"shapes?:"),
        ("dtypes", r"dtypes:"),
        ("devices", r"device types?:"),
        ("seq", r"Sequence number:"),
    )
    tail = line.text[match.end() :] + " ".join(own.body for own in line.own(3))
    return data | {
        "differs": [name for name, pattern in kinds if re.search(pattern, tail, re.IGNORECASE)]
    }


def _ranks(match: re.Match[str], data: Data, line: Line) -> Data:
    return data | {"ranks": [int(rank) for rank in re.findall(r"\d{1,9}", match["ranks"])]}


def _stalled(match: re.Match[str], data: Data, line: Line) -> Data | None:
    """A list of ranks, each with the tensors that it did not submit."""
    matches = [re.match(r"(\d{1,7}): \[([^,\]]{0,300})", own.text.strip()) for own in line.own(64)]
    rows = [row for row in matches if row]
    if rows:
        return {"op": rows[0][2], "ranks": sorted({int(row[1]) for row in rows})}
    return None


def _two(match: re.Match[str], data: Data, line: Line) -> Data:
    numbers = [int(number) for number in re.findall(r"\d{1,9}", match["ranks"])]
    return data | {"ranks": [numbers[0], numbers[-1]]}


RULES: tuple[Rule, ...] = (
    # Detected mismatch between collectives on ranks. Rank 0 is running collective:
    # CollectiveFingerPrint(SequenceNumber=1, OpType=ALLREDUCE, TensorShape=[20]), but Rank 1 is \
    #   running collective: CollectiveFingerPrint(SequenceNumber=1, OpType=BROADCAST, \
    #   TensorShape=[10]).Collectives differ in the following aspects: 	Op type: ALLREDUCEvs \
    #   BROADCAST (TORCH_DISTRIBUTED_DEBUG=DETAIL)
    # … CollectiveFingerPrint(SequenceNumber=0OpType=ALLREDUCE, …   (2.0: without the comma)
    rule(
        "c10d.mismatch",
        "Detected mismatch between",
        r"Rank (?P<a>\d+) is running [^:]{0,300}:"
        r" ?CollectiveFingerPrint\((?:SequenceNumber=(?P<a_seq>\d+),? ?)?"
        r"OpType=(?P<a_op>\w{1,60}).{0,900}?"
        r"but Rank (?P<b>\d+) is running [^:]{0,300}:"
        r" ?CollectiveFingerPrint\((?:SequenceNumber=(?P<b_seq>\d+),? ?)?"
        r"OpType=(?P<b_op>\w{1,60})[^)]{0,900}\)",
        span=4,
        make=_fingerprint,
    ),
    # [Rank 0]: Ranks 2, 3 failed to pass monitoredBarrier in 6000 ms
    rule(
        "gloo.barrier",
        "failed to pass monitoredBarrier",
        r"Ranks? (?P<ranks>\d+(?:, ?\d+)*) failed to pass monitoredBarrier in (?P<timeout_ms>\d+)",
        make=_ranks,
    ),
    # [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 6000ms for \
    #   recv operation to complete
    rule(
        "gloo.timeout",
        "Timed out waiting",
        r"Timed out waiting (?P<timeout_ms>\d+) ?ms for (?P<what>send|recv) operation",
    ),
    # RuntimeError: Application timeout caused pair closure
    # (of a call beside the one that timed out in this process: gloo closes what both use)
    rule(
        "gloo.timeout",
        "Application timeout caused pair closure",
        r"Application timeout caused pair closure",
    ),
    # [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:17323
    # pair.cc:537] Read error [127.0.0.1]:17323: Connection reset by peer
    rule(
        "gloo.closed",
        "Connection closed by peer",
        r"Connection closed by peer (?P<address>\[[^\]]*\]:\d+)",
        how="closed",
    ),
    rule(
        "gloo.closed",
        "Connection reset by peer",
        r"(?:Read|Write|write|read) error"
        r" (?P<address>\[[^\]]{0,200}\]:\d{1,5}\b)?.{0,400}Connection reset by peer",
        how="reset",
    ),
    # pair.cc:537] Read error [10.0.0.2]:43672: Connection timed out. (what was sent is not \
    #   acknowledged any more)
    rule(
        "gloo.closed",
        "Connection timed out",
        r"(?:Read|Write|read|write) error"
        r" (?P<address>\[[^\]]{0,200}\]:\d{1,5}\b)?.{0,400}Connection timed out",
        how="timed out",
    ),
    # Gloo connectFullMesh failed with [.../gloo/transport/tcp/pair.cc:152] timed out connecting: \
    #   SO_ERROR: Connection refused, remote=[127.0.1.1]:9600$0
    rule(
        "gloo.connect",
        "connectFullMesh failed",
        r"connectFullMesh failed with (?:[^:\]]{0,300}[:\]] ?){0,12}(?P<why>[^:\]]{1,300})"
        r", remote=(?P<address>\[[^\]]{0,200}\]:\d+)",
    ),
    # Gloo connectFullMesh failed with [.../gloo/transport/tcp/pair.cc:144] no error
    # (the address is not said)
    rule(
        "gloo.connect",
        "connectFullMesh failed",
        r"connectFullMesh failed with \[[^\]]*\] (?P<why>.+)",
        address="",
    ),
    # connect [127.0.1.1]:5327: Connection refused
    rule("gloo.connect", "connect [", r"\bconnect (?P<address>\[[^\]]*\]:\d+): (?P<why>[^,]+)"),
    # pair.cc:456] op.preamble.length <= op.nbytes. 16 vs 8. Received data size doesn't match \
    #   expected size.
    rule(
        "gloo.size_mismatch",
        "op.preamble.length <= op.nbytes",
        r"op\.preamble\.length <= op\.nbytes\. (?P<a>\d+) vs (?P<b>\d+)",
    ),
    # device.cc:84] ifa != nullptr. Unable to find address for: eth9
    # Unable to find interface for: eth9
    # Unable to find interface named eth9
    *(
        rule(
            "gloo.no_interface",
            f"Unable to find {what}",
            rf"Unable to find {what}:? ?(?P<interface>[\w.^=:-]+)",
        )
        for what in ("address for", "interface for", "interface named")
    ),
    # RuntimeError: DDP expects same model across all ranks, but Rank 0 has 4 params, while rank 1 \
    #   has inconsistent 5 params.
    rule(
        "ddp.params",
        "has inconsistent",
        r"^(?P<message>.*(?P<ranks>Rank \d+ has \d+ params, while rank \d+) has inconsistent.*)",
        make=_two,
    ),
    # RuntimeError: [2]: params[3] in this process with sizes [10, 5] appears not to match sizes \
    #   of the same param in process 0.
    rule(
        "ddp.params",
        "in this process with",
        r"(?P<message>\[(?P<ranks>\d+)\]: params\[\d+\] in this process.*)",
        make=_ranks,
    ),
    # Parameter indices which did not receive grad for rank 1: 0 1
    rule(
        "ddp.params",
        "did not receive grad",
        r"^(?P<message>.*did not receive grad for rank (?P<ranks>\d+).*)",
        make=_ranks,
    ),
    # RuntimeError: Expected to have finished reduction in the prior iteration before starting a \
    #   new one.
    rule(
        "ddp.params",
        "Expected to have finished reduction",
        r"(?P<message>Expected to have finished reduction.*)",
        ranks=[],
    ),
    # Missing ranks:
    # 1: [DistributedOptimizer_Allreduce/grad_1, DistributedOptimizer_Allreduce/grad_2 ...]
    rule("horovod.stalled", "Missing ranks:", r"^Missing ranks:\s{0,80}$", make=_stalled),
    # Stalled ops: …  Allreduce_0 [missing ranks: 3, 6]
    rule(
        "horovod.stalled",
        "[missing ranks:",
        r"(?<!\S)(?P<op>\S{1,300}) \[missing ranks: ?(?P<ranks>[\d, ]+)\]",
        make=_ranks,
    ),
)
