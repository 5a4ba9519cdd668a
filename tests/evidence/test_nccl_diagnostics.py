"""NCCL's own diagnostics: what each sentence is as an event, and what causes make of it.

Texts are made from the format strings of 2.31 and 2.32.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ncclkit import evidence
from ncclkit.analysis.diagnostics import open_checks
from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.causes.summary import summarize
from ncclkit.core.case import Case
from ncclkit.core.kinds import NcclDiagnostic
from ncclkit.evidence.logs import fill

COMM = "across 16 ranks in comm 0x5f3a9c0012d4e8b7"
PAIR = (
    "srcRank=11 srcCudaDev=3 srcNvmlDev=3 dstRank=13 dstCudaDev=5 dstNvmlDev=5 path=PHB handle={} {}; check the "
    "affected pair with 'nvidia-smi topo -p2p p'"
)
ECC = f"[INFO] ECC: uncorrected volatile errors on rank(s) {{11}} (worst=3) {COMM}"
ALGO = [
    f"[INFO] NCCL environment: mismatch {COMM} for NCCL_ALGO",
    "[INFO] NCCL environment: NCCL_ALGO=Ring on rank(s) {0,1,2,3,4,5,6,7}",
    "[INFO] NCCL environment: NCCL_ALGO=(unset) on rank(s) {8,9,10,11,12,13,14,15}",
]
WRITE = "[INFO] p2p: write mismatch " + PAIR.format("CUMEM_POSIX_FD", "expected=0x400000058000000d got=0x0000000000000000")
IMPORT = "[INFO] p2p: peer-memory import failed " + PAIR
WELL = [
    f"[OK]   GPU inventory: 8x NVIDIA H100 80GB HBM3 per node consistent {COMM}",
    f"[OK]   CUDA driver version: 13000 consistent {COMM}",
    f"[OK]   ECC: no uncorrected volatile errors {COMM}",
    f"[OK]   NVLink: found 18 link(s) per device, all active {COMM}",
    f"[OK]   NCCL environment: NCCL_* env vars consistent {COMM}",
    "[OK]   p2p: all 240 directed GPU P2P edges verified (skipped indirect=0)",
    "[OK] net bw: 170/180/190 Gbit/s min/median/max same-nic bw (across 16 ranks) in comm 0x5f3a9c0012d4e8b7",
    "[OK]   Xid/SXid: no events requiring immediate attention across 2 hosts",
]
SENTENCES: list[tuple[str, dict[str, Any]]] = [
    (WELL[0], {"check": "gpu_count", "state": "clean", "of": 16, "comm": "0x5f3a9c0012d4e8b7"}),
    (WELL[1], {"check": "driver", "state": "clean"}),
    (WELL[3], {"check": "nvlink_inactive", "state": "clean"}),
    (WELL[5], {"check": "p2p_data", "state": "clean"}),
    ("[OK]   p2p: verified P2P access in both directions between every GPU pair (56 peer accesses)", {"state": "clean"}),
    ("[INFO] p2p: only 54/56 GPU-to-GPU peer accesses passed verification", {"check": "p2p_count", "state": "finding"}),
    (ECC, {"check": "ecc_uncorrected", "state": "finding", "ranks": [11], "number": 1}),
    (
        "[INFO] ECC: no uncorrected volatile errors across 14 of 16 ranks in comm 0x5f (ECC counters unavailable via "
        "NVML on 2 ranks)",
        {"check": "ecc_uncorrected", "state": "unchecked"},
    ),
    (
        f"[INFO] ECC: corrected volatile errors at or above threshold 10 on rank(s) {{1,2}} (worst=12) {COMM}",
        {"check": "ecc_corrected", "state": "note", "ranks": [1, 2]},
    ),
    (
        f"[INFO] CUDA driver version: mismatch {COMM}, rank(s) {{0,1,2,3,4,5,6,7,...}} (N=12) differ from rank 0 (13000)",
        {"check": "driver", "state": "finding", "number": 12, "reference": 0, "reference_value": "13000"},
    ),
    (WRITE, {"check": "p2p_data", "state": "finding", "src": 11, "dst": 13, "src_gpu": 3, "dst_gpu": 5, "path": "PHB"}),
    (IMPORT.format("CUMEM_FABRIC", "reason=import"), {"check": "p2p_import", "handle": "CUMEM_FABRIC"}),
    (ALGO[1], {"check": "environment", "variable": "NCCL_ALGO", "value": "Ring", "ranks": [*range(8)]}),
    ("CHECK: diagnostics incomplete, gathered 14/16 ranks in comm 0x5f", {"check": "incomplete", "state": "unchecked"}),
    ("RAS diagnostics completed in 41.7 ms across 16 RAS peers", {"check": "report", "state": "note"}),
    ("INFO RAS diagnostics skipped: NCCL_RAS_ENABLE=0", {"check": "report", "state": "unchecked"}),
    (
        "[INFO] net bw: same-nic rank 3 (node-1): 41.2 Gbit/s, >30% off median 180.1 Gbit/s",
        {"check": "net_bandwidth", "state": "finding", "src": 3, "at": "node-1", "rate": 41.2},
    ),
    (
        f"[INFO] ATS state: disabled on 8 rank/NIC pair(s) {COMM}",
        {"check": "ats", "state": "note"},
    ),
]


def log(*sentences: str, after: str = "") -> str:
    return "".join(f"node1:4711 NCCL DIAG {said}\n" for said in sentences) + after


def judged(tmp_path: Path, *sentences: str, after: str = "") -> Diagnosis:
    (tmp_path / "job.log").write_text(log(*sentences, after=after))
    case = Case()
    fill(case, evidence.read([tmp_path]))
    return diagnose(case)


@pytest.mark.parametrize(("said", "fields"), SENTENCES, ids=[said[:60] for said, _ in SENTENCES])
def test_a_sentence_is_an_event(read_text: Callable[..., Any], said: str, fields: dict[str, Any]) -> None:
    (event,) = [one for one in read_text(log(said)).events if isinstance(one.data, NcclDiagnostic)]
    assert {name: getattr(event.data, name) for name in fields} == fields
    assert (event.host, event.pid, event.rank) == ("node1", 4711, None)


@pytest.mark.parametrize("said", ["BUSY: diagnostics already in progress", "ERROR: diagnostics failed to start (3)"])
def test_a_reply_without_an_envelope(read_text: Callable[..., Any], said: str) -> None:
    (event,) = read_text(said + "\n").events
    assert (event.data.check, event.data.state) == ("report", "unchecked")


def test_an_xid_is_that_of_the_kernel_on_its_host(read_text: Callable[..., Any]) -> None:
    said = ["[INFO] Xid 79 detected at least 2 times on host node7. See NVIDIA's Xid documentation."]
    said += ["[INFO] SXid 20034 detected 2 times (NVSwitch driver reported Fatal, link(s) {3,4}) on host node7. x"]
    events = read_text(log(*said)).events
    assert [(one.kind, one.host) for one in events] == [("kernel.xid", "node7"), ("kernel.sxid", "node7")]
    assert (events[0].data.xid, events[1].data.sxid, events[1].data.fatal) == (79, 20034, True)


FOUND = {
    "ECC": ([ECC, *ALGO], ("gpu_hardware_error", "likely", [11])),
    "links": ([f"[INFO] NVLink: inactive link(s) on rank(s) {{3}} {COMM}"], ("gpu_hardware_error", "possible", [3])),
    "Xid": (["[INFO] Xid 79 detected 1 time on host node7. See x"], ("gpu_hardware_error", "proven", [])),
    "data": ([WRITE], ("p2p_broken", "proven", [11, 13])),
    "descriptor": ([IMPORT.format("CUMEM_POSIX_FD", "reason=import")], ("cumem_container", "likely", [])),
    "fabric": ([IMPORT.format("CUMEM_FABRIC", "reason=import")], ("nvswitch_fabric", "likely", [])),
    "direct": ([IMPORT.format("DIRECT", "reason=import")], ("p2p_broken", "likely", [11, 13])),
    "variable": (ALGO, ("bad_env_value", "possible", [])),
    "driver": (
        [f"[INFO] CUDA driver version: mismatch {COMM}, rank(s) {{0,1,2,3,4,5,6,7,...}} (N=12) differ from rank 0 (1)"],
        ("version_mismatch", "possible", [0]),
    ),
    "card": (
        ["[INFO] net bw: same-nic rank 3 (node-1): 41.2 Gbit/s, >30% off median 180.1 Gbit/s"],
        ("ib_link_error", "possible", [3]),
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_it_finds(tmp_path: Path, name: str) -> None:
    said, wanted = FOUND[name]
    first = judged(tmp_path, *said).findings[0]
    assert (first.cause, first.strength, list(first.culprits.get("ranks", ()))) == wanted


ONLY_54 = "[INFO] p2p: only 54/56 GPU-to-GPU peer accesses passed verification"
RDMA_TOPO = (
    "[INFO] rdma_topo check: failed on rank(s) {3} across 8/8 ranks in comm 0x5f; first rank 3 exit 1: no NIC below the switch"
)
CROSS = "[INFO] net bw: cross-nic rank 3 (node-1): 4.2 Gbit/s, >30% off median 180.1 Gbit/s"
FOUND |= {
    "count of pairs": ([ONLY_54], ("p2p_broken", "possible", [])),
    "count of 2.31": (["[INFO] p2p: 54/56 directed GPU P2P edges verified"], ("p2p_broken", "possible", [])),
    "RDMA topology": ([RDMA_TOPO], ("ib_config", "possible", [3])),
    "rails": ([CROSS], ("ib_config", "possible", [3])),
}


def test_sentences_say_what_nccl_counted_and_why(tmp_path: Path) -> None:
    assert "54 of 56 accesses" in judged(tmp_path, ONLY_54).findings[0].say
    assert '"no NIC below the switch"' in judged(tmp_path, RDMA_TOPO).findings[0].say
    rails = judged(tmp_path, CROSS).findings[0]
    assert "4.2 Gbit/s" in rails.say and rails.culprits["hosts"] == ("node-1",)


def test_a_pair_that_is_named_stands_before_the_count(tmp_path: Path) -> None:
    findings = judged(tmp_path, IMPORT.format("CUMEM_POSIX_FD", "reason=import"), ONLY_54).findings
    assert [one.cause for one in findings if one.evidence] == ["cumem_container"]


TWINS = {
    "all pairs": ["[INFO] p2p: 56/56 directed GPU P2P edges verified"],
    "RDMA topology": [
        "[OK]   rdma_topo check: passed on 8/8 ranks in comm 0x5f",
        "[INFO] rdma_topo check: not usable on 8/8 ranks in comm 0x5f (lspci missing)",
    ],
    "rails in range": [
        "[OK] net bw: 170/180/190 Gbit/s min/median/max cross-nic bw (across 16 ranks) in comm 0x5f",
        "[INFO] net bw: cross-nic rank 3 (n): 340.2 Gbit/s, >30% off median 180.1 Gbit/s",
    ],
    "busy": ["BUSY: diagnostics already in progress"],
    "all is well": WELL,
    "corrected errors": [f"[INFO] ECC: corrected volatile errors at or above threshold 1 on rank(s) {{1}} (worst=2) {COMM}"],
    "names of devices": [
        f"[INFO] NCCL environment: mismatch {COMM} for NCCL_SOCKET_IFNAME",
        "[INFO] NCCL environment: NCCL_SOCKET_IFNAME=eth0 on rank(s) {0}",
        "[INFO] NCCL environment: NCCL_SOCKET_IFNAME=eth1 on rank(s) {1}",
    ],
    "a fast card": ["[INFO] net bw: same-nic rank 3 (n): 340.2 Gbit/s, >30% off median 180.1 Gbit/s"],
    "not checked": ["CHECK: diagnostics incomplete, gathered 14/16 ranks in comm 0x5f (RAS overlay may not be ready)"],
    "paths": ["[INFO] Paths: self+NVL+NET(6/7) across 7 ranks in comm 0x5f", "[INFO] ATS state: disabled on 8 rank/NIC pair(s)"],
}


@pytest.mark.parametrize("name", TWINS)
def test_what_it_leaves_alone(tmp_path: Path, name: str) -> None:
    assert [one.cause for one in judged(tmp_path, *TWINS[name], after="x\n").findings if one.strength != "possible"] == []
    assert not [one for one in judged(tmp_path, *TWINS[name], after="x\n").findings if one.evidence]


def test_counts_older_than_a_job_that_went_well_accuse_nobody(tmp_path: Path) -> None:
    done = "".join(f"node1:{pid}:{pid} [0] NCCL INFO comm 0x1 rank {pid} nranks 2 - Destroy COMPLETE\n" for pid in (0, 1))
    done += "Training finished successfully\n"
    assert not judged(tmp_path, ECC, *ALGO, ONLY_54, RDMA_TOPO, CROSS, after=done).findings


def test_every_pair_verified_clears_p2p(tmp_path: Path) -> None:
    assert "p2p_broken" in [one.cause for one in judged(tmp_path, *WELL).clear]


NTHREADS = [
    f"[INFO] NCCL environment: mismatch {COMM} for NCCL_NTHREADS",
    "[INFO] NCCL environment: NCCL_NTHREADS={} on rank(s) {{0,1,2,3}}",
    "[INFO] NCCL environment: NCCL_NTHREADS=(unset) on rank(s) {4,5,6,7}",
]
VERSION = "node1:4711:4711 [0] NCCL INFO NCCL version 2.31.2+cuda13.3\n"


@pytest.mark.parametrize(("value", "causes"), [("-2", []), ("512", ["bad_env_value"])])
def test_a_variable_set_to_its_own_default_is_no_difference(tmp_path: Path, value: str, causes: list[str]) -> None:
    said = [sentence.format(value) if "={}" in sentence else sentence for sentence in NTHREADS]
    findings = judged(tmp_path, *said, after=VERSION).findings
    assert [one.cause for one in findings if one.evidence] == causes


OPEN = {
    "[INFO] ECC: diagnostics incomplete, gathered 14/16 ranks in comm 0x5f (RAS overlay may not be ready)": (
        "NCCL's check of ECC did not end: it heard 14 of 16 ranks; ask again"
    ),
    "BUSY: diagnostics already in progress": "gave no answer; ask again",
    "ERROR: diagnostics failed to start (3)": "NCCL's diagnostics did not run: ERROR",
    "INFO RAS diagnostics skipped: NCCL_RAS_ENABLE=0": "did not run: RAS diagnostics skipped",
}


@pytest.mark.parametrize("said", OPEN)
def test_a_check_that_did_not_end_is_told(tmp_path: Path, said: str) -> None:
    (tmp_path / "job.log").write_text(log(said))
    case = Case()
    fill(case, evidence.read([tmp_path]))
    (told,) = open_checks(case)
    assert OPEN[said] in told
    assert told in summarize(case, diagnose(case)).missing


def test_checks_that_ended_leave_nothing_to_ask(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(log(*WELL, ECC))
    case = Case()
    fill(case, evidence.read([tmp_path]))
    assert open_checks(case) == []
