"""NCCL's own diagnostics (2.31 and later): ``HOST:PID NCCL DIAG [OK] …``.

A tag of OK says that something was checked and nothing was found; INFO is a finding or says that it
could not be checked, so the sentence decides.  Ranks are those of the communicator that it names.
"""

from __future__ import annotations

import re

from ncclkit.agent.run.nccl_words import PAIR, VERIFIED, WRONG_BYTES
from ncclkit.evidence.grammars.grammar import Data, Line, Rule, rule

ENVELOPE = r"(?P<_host>[^\s:]{1,255}):(?P<_pid>\d{1,10}) NCCL DIAG (?:\[(?:OK|INFO)\] +|INFO )?"
TAG = re.compile(r"^(?:\[(?:OK|INFO)\] +|INFO )")
XID = re.compile(r"S?Xid \d{1,9} detected")
SET = r"\{(?P<set>[\d,. ]{0,400})\}(?: \(N=(?P<number>\d{1,9})\))?"
"""Ranks: all up to eight of them, else the first eight and how many they are."""
ACROSS = re.compile(r"across (?P<of>\d{1,9}) ranks")
IN_COMM = re.compile(r"comm (0x[0-9a-f]{1,16})")
REFERENCE = re.compile(r"differ from rank (\d{1,9}) \(([^)]{0,80})\)")

DRIVER = r"^(?:CUDA|NVIDIA graphics) driver version: "

FINDING, CLEAN, UNCHECKED, NOTE = "finding", "clean", "unchecked", "note"
MEANINGS: tuple[tuple[str, str, re.Pattern[str]], ...] = tuple(
    (check, state, re.compile(pattern))
    for check, state, pattern in (
        # ECC: uncorrected volatile errors on rank(s) {11} (worst=3) across 16 ranks in comm 0x5f
        ("ecc_uncorrected", FINDING, rf"^ECC: uncorrected volatile errors on rank\(s\) {SET}"),
        # ECC: corrected volatile errors at or above threshold 10 on rank(s) {1,2} (worst=12) …
        ("ecc_corrected", NOTE, rf"^ECC: corrected volatile errors at or .{{0,60}}rank\(s\) {SET}"),
        # ECC: no uncorrected volatile errors across 16 ranks in comm 0x5f
        # … across 14 of 16 ranks … (ECC counters unavailable via NVML on 2 ranks)
        ("ecc_uncorrected", UNCHECKED, r"^ECC: .*unavailable via NVML"),
        ("ecc_uncorrected", CLEAN, r"^ECC: no uncorrected volatile errors"),
        # GPU inventory: count mismatch across 16 ranks in comm 0x5f, rank(s) {8,9} differ from \
        #   rank 0 (8)
        ("gpu_count", FINDING, rf"^GPU inventory: count mismatch .*rank\(s\) {SET}"),
        ("gpu_model", NOTE, rf"^GPU inventory: model mismatch .*rank\(s\) {SET}"),
        ("gpu_count", UNCHECKED, r"^GPU inventory: .*unavailable"),
        ("gpu_count", CLEAN, r"^GPU inventory: .*consistent"),
        # CUDA driver version: mismatch across 16 ranks in comm 0x5f, rank(s) {8} differ from rank \
        #   0 (13000)
        ("driver", FINDING, rf"{DRIVER}mismatch .*rank\(s\) {SET}"),
        ("driver", UNCHECKED, rf"{DRIVER}.*(?:unavail|no driver)"),
        ("driver", CLEAN, rf"{DRIVER}.*consistent"),
        # NVLink: inactive link(s) on rank(s) {3} across 16 ranks in comm 0x5f
        ("nvlink_inactive", FINDING, rf"^NVLink: inactive link\(s\) on rank\(s\) {SET}"),
        ("nvlink_count", FINDING, rf"^NVLink: link-count mismatch .*rank\(s\) {SET}"),
        ("nvlink_speed", FINDING, rf"^NVLink: inconsistent link speeds on rank\(s\) {SET}"),
        ("nvlink_inactive", CLEAN, r"^NVLink: .*all active"),
        # NCCL environment: NCCL_ALGO=(unset) on rank(s) {8,9,10,11,12,13,14,15}
        (
            "environment",
            FINDING,
            rf"^NCCL environment: (?P<variable>NCCL_\w{{1,80}})=(?P<value>.{{0,260}}) on rank\(s\)"
            rf" {SET}",
        ),
        # NCCL environment: mismatch across 16 ranks in comm 0x5f for NCCL_ALGO
        ("environment", FINDING, r"^NCCL environment: mismatch .* for (?P<variable>NCCL_\w{1,80})"),
        ("environment", NOTE, r"^NCCL environment: \d+ NCCL_\* env var"),
        ("environment", NOTE, r"rank\(s\) had >\d+ bytes of NCCL_\* env vars"),
        ("environment", CLEAN, r"^NCCL environment: .*consistent"),
        # p2p: write mismatch srcRank=11 srcCudaDev=3 srcNvmlDev=3 dstRank=13 dstCudaDev=5 \
        #   dstNvmlDev=5 path=PHB handle=CUMEM_POSIX_FD expected=0x4 got=0x0 verify=0x0; check …
        ("p2p_data", FINDING, rf"^{WRONG_BYTES}"),
        ("p2p_import", FINDING, rf"^p2p: peer-memory import failed {PAIR}"),
        ("p2p_data", UNCHECKED, rf"^p2p: .{{0,60}} {PAIR}"),
        # p2p: verified P2P access in both directions between every GPU pair (56 peer accesses)
        ("p2p_data", CLEAN, rf"^{VERIFIED}"),
        # p2p: only 54/56 GPU-to-GPU peer accesses passed verification
        (
            "p2p_count",
            FINDING,
            r"^p2p: (?:only )?(?P<value>\d{1,9}/\d{1,9}) (?:directed|GPU-to-GPU)",
        ),
        ("p2p_data", NOTE, r"^p2p: |^transport detect returned"),
        # net bw: same-nic rank 3 (node-1): 41.2 Gbit/s, >30% off median 180.1 Gbit/s
        (
            "net_bandwidth",
            FINDING,
            r"^net bw: (?P<value>(?:same|cross)-nic) rank (?P<src>\d{1,9}) \((?P<at>[^)]{1,255})\):"
            r" (?P<rate>[\d.]{1,20}) Gbit/s, >\d+% off median (?P<median>[\d.]{1,20})",
        ),
        ("net_bandwidth", NOTE, r"^net bw: [\d.]+/"),
        ("net_bandwidth", UNCHECKED, r"^net bw: "),
        # rdma_topo check: failed on rank(s) {3} across 8/8 ranks in comm 0x5f; first rank 3 exit \
        #   1: …
        ("rdma_topo", FINDING, rf"^rdma_topo check: failed on rank\(s\) {SET}"),
        ("rdma_topo", CLEAN, r"^rdma_topo check: passed"),
        ("rdma_topo", UNCHECKED, r"^rdma_topo check: "),
        ("iommu", CLEAN, r"^IOMMU (?:mode: (?:disabled|passthrough)|groups: .*match )"),
        ("iommu", NOTE, r"^IOMMU "),
        ("ats", NOTE, r"^ATS state: |^ATSCtl |^PCIe capabilities |^lspci "),
        ("paths", NOTE, r"^Paths: "),
        ("xid", CLEAN, r"^Xid/SXid: no events"),
        ("xid", UNCHECKED, r"^Xid/SXid: "),
        # CHECK: diagnostics incomplete, gathered 14/16 ranks in comm 0x5f
        (
            "incomplete",
            UNCHECKED,
            r"diagnostics incomplete, gathered (?P<value>\d{1,9}/\d{1,9}) ranks",
        ),
        ("report", NOTE, r"^=== .*Diagnostics ===|completed in [\d.]+ ms across"),
        ("report", UNCHECKED, r"^RAS diagnostics skipped|^ERROR: diagnostics|^BUSY: diagnostics"),
    )
)
"""(check, state, pattern) of the sentences; the first that fits decides."""


def _sentence(
    match: re.Match[str],
    data: Data,
    line: Line,
) -> Data | None:
    said = TAG.sub("", match["said"].strip())
    if XID.match(said):
        return None  # an event of the kernel's log, by a rule of its own
    found: Data = {"message": said, "check": "other", "state": NOTE}
    for check, state, pattern in MEANINGS:
        hit = pattern.search(said)
        if hit:
            found |= {"check": check, "state": state, **_details(hit.groupdict())}
            break
    across = ACROSS.search(said)
    if across:
        found["of"] = int(across["of"])
    named = IN_COMM.search(said)
    if named:
        found["comm"] = named[1]
    reference = REFERENCE.search(said)
    if reference:
        found["reference"] = int(reference[1])
        found["reference_value"] = reference[2]
    return found | {"_host": data.get("_host"), "_pid": data.get("_pid")}


def _details(groups: Data) -> Data:
    """What a sentence names: ranks, a pair, a variable."""
    found: Data = {}
    if groups.get("set") is not None:
        found["ranks"] = [int(rank) for rank in re.findall(r"\d{1,9}", groups["set"])]
        found["number"] = int(groups.get("number") or len(found["ranks"]))
    for name in ("src", "dst", "src_gpu", "dst_gpu"):
        if groups.get(name) is not None:
            found[name] = int(groups[name])
    for name in ("path", "handle", "variable", "value", "at"):
        if groups.get(name) is not None:
            found[name] = groups[name]
    for name in ("rate", "median"):
        if groups.get(name) is not None:
            found[name] = float(groups[name])
    return found


def _xid(
    match: re.Match[str],
    data: Data,
    line: Line,
) -> Data:
    return {
        "bus": "",
        "xid": int(data["xid"]),
        "previous": None,
        "message": match["said"],
        "_host": data["at"],
    }


def _sxid(
    match: re.Match[str],
    data: Data,
    line: Line,
) -> Data:
    fatal = "reported Fatal" in match["said"]
    return {
        "bus": "",
        "sxid": int(data["xid"]),
        "fatal": fatal,
        "message": match["said"],
        "_host": data["at"],
    }


SEEN = r"detected (?:at least )?\d{1,9} times?\b.{0,120}? on host (?P<at>[^\s.]{1,255})"
RULES: tuple[Rule, ...] = (
    # node1:4711 NCCL DIAG [INFO] Xid 79 detected 1 time on host node1. See NVIDIA's documentation
    rule(
        "kernel.xid",
        "NCCL DIAG ",
        rf"{ENVELOPE.replace('_host', 'by').replace('_pid', 'pid_')}"
        rf"(?P<said>Xid (?P<xid>\d{{1,9}}) {SEEN}.*)",
        make=_xid,
    ),
    # node1:4711 NCCL DIAG [INFO] SXid 20034 detected 2 times (NVSwitch driver reported Fatal, \
    #   link(s) {3,4}) on host node1.
    rule(
        "kernel.sxid",
        "NCCL DIAG ",
        rf"{ENVELOPE.replace('_host', 'by').replace('_pid', 'pid_')}"
        rf"(?P<said>SXid (?P<xid>\d{{1,9}}) {SEEN}.*)",
        make=_sxid,
    ),
    # node1:4711 NCCL DIAG [OK]   ECC: no uncorrected volatile errors across 16 ranks in comm 0x5f
    rule(
        "nccl.diagnostic",
        "NCCL DIAG ",
        rf"{ENVELOPE}(?P<said>.*)",
        make=_sentence,
    ),
    # BUSY: diagnostics already in progress        ERROR: diagnostics failed to start (3)
    rule(
        "nccl.diagnostic",
        "BUSY: diag",
        r"\b(?P<said>BUSY: diagnostics .*)",
        make=_sentence,
    ),
    rule(
        "nccl.diagnostic",
        "ERROR: diag",
        r"\b(?P<said>ERROR: diagnostics (?:summary )?(?:failed|only supports) .*)",
        make=_sentence,
    ),
)
