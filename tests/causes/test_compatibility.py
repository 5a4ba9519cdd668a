"""Tables of what fits together have sources, and judge a failed job by what was printed of its GPU and libraries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ncclkit.causes import _compatibility
from tests.cases import judged_log

VAGUE = (
    "[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:317, unhandled cuda error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.21.5\n"
)
SMI = "| NVIDIA-SMI 470.57.02    Driver Version: 470.57.02    CUDA Version: 11.4     |\n"


def test_every_row_has_a_source_and_a_sense() -> None:
    kinds, defects = _compatibility.gpus(), _compatibility.defects()
    assert len(kinds) >= 13 and all(
        gpu.source and gpu.since and (gpu.until > gpu.since or not gpu.until) for gpu in kinds
    )
    assert len(defects) >= 6 and all(one.source and one.what and one.fragments and one.instead for one in defects)
    assert all(one.fixed is None or one.fixed > one.since for one in defects)
    assert set(_compatibility.drivers()) == {11, 12, 13}


def test_what_nobody_looked_up_proves_nothing(tmp_path: Path) -> None:
    rows = json.loads(_compatibility.FILE.read_text())
    assert all(
        row["source"] and (row.get("unsure") or "looked up 20" in row["source"]) for t in rows.values() for row in t
    )
    said = "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
    first = judged_log(tmp_path, "NVIDIA GeForce RTX 5090\ntorch==2.5.1+cu124\n" + said).findings[0]
    assert (first.cause, first.strength) == ("driver_too_old", "proven") and "12.4" not in first.say


def test_the_wheels_of_torch() -> None:
    wheels = {wheel.torch: wheel for wheel in _compatibility.wheels()}
    assert wheels[2, 5].cuda == (12, 4) and wheels[2, 5].nccl == (2, 21, 5) and len(wheels) >= 11


@pytest.mark.parametrize(
    ("model", "capability"),
    [
        ("NVIDIA GeForce RTX 5090", "12.0"), ("NVIDIA B200", "10.0"), ("NVIDIA H100 80GB HBM3", "9.0"),
        ("Tesla V100-SXM2-32GB", "7.0"), ("NVIDIA A100-SXM4-80GB", "8.0"), ("NVIDIA A10G", "8.6"),
        ("NVIDIA L40S", "8.9"),
        ("Tesla T4", "7.5"), ("NVIDIA GH200 480GB", "9.0"), ("NVIDIA GB200", "10.0"), ("Tesla P100-PCIE-16GB", "6.0"),
        ("NVIDIA RTX PRO 6000 Blackwell", "12.0"), ("NVIDIA GeForce GTX 1080 Ti", "6.1"), ("Tesla K80", "3.7"),
    ],
)  # fmt: skip
def test_a_model_is_of_one_kind(model: str, capability: str) -> None:
    assert [gpu.capability for gpu in _compatibility.gpus() if gpu.name.search(model)] == [capability]


@pytest.mark.parametrize(
    ("text", "words"),
    {
        "too new": ("GPU 0: NVIDIA B200\ntorch==2.5.1+cu124\n" + VAGUE, "CUDA 12.4"),
        "dropped": ("Tesla V100-SXM2-32GB\ntorch 2.10.0+cu130\n" + VAGUE, "ended with 13.0"),
        "by NCCL's CUDA": ("NVIDIA GeForce RTX 5090\nNCCL version 2.21.5+cuda12.4\n" + VAGUE, "CUDA 12.4"),
        "NCCL": ("NVIDIA GeForce RTX 5090\ntorch 2.7.0+cu128\nNCCL version 2.21.5+cuda12.8\n" + VAGUE, "NCCL 2.21.5"),
        "PyPI's wheel": ("NVIDIA GeForce RTX 5090\ntorch==2.6.0\n" + VAGUE, "CUDA 12.4"),
        "driver": (SMI + "torch==2.3.0+cu121\n" + VAGUE, "driver 525"),
        "collect_env": (
            "PyTorch version: 2.5.1+cu124\nIs debug build: False\nCUDA used to build PyTorch: 12.4\n\n"
            "GPU models and configuration: GPU 0: NVIDIA B200\n\nNvidia driver version: 570.86.10\n\n" + VAGUE,
            "CUDA 12.4",
        ),
    }.values(),
)
def test_a_misfit_by_the_tables(text: str, words: str, tmp_path: Path) -> None:
    first = judged_log(tmp_path, text).findings[0]
    assert (first.cause, first.strength) == ("driver_too_old", "likely") and words in first.say


@pytest.mark.parametrize(
    "text",
    [
        "NVIDIA B200\ntorch==2.7.0+cu128\n" + VAGUE.replace("2.21.5", "2.26.2"),
        "NVIDIA H100 80GB HBM3\ntorch==2.5.1+cu124\n" + VAGUE,
        "NVIDIA GeForce RTX 5090\ntorch==2.5.1+cu124\nTraining completed.\n",
    ],
)
def test_what_fits_or_did_not_fail_is_no_misfit(text: str, tmp_path: Path) -> None:
    firm = {f.cause for f in judged_log(tmp_path, text).findings if f.strength != "possible"}
    assert "driver_too_old" not in firm


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: CUDA error: named symbol not found",
        "ptxas fatal   : Value 'sm_120' is not defined for option 'gpu-name'",
        "nvrtc: error: invalid value for --gpu-architecture (-arch)",
        "RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
    ],
)
def test_code_for_another_architecture(line: str, tmp_path: Path) -> None:
    assert judged_log(tmp_path, line + "\n").findings[0].cause == "driver_too_old"


@pytest.mark.parametrize(
    ("place", "text", "found"),
    [
        ("graph/topo.cc:680", "Error : too many XML nodes (max 256)", True),
        ("graph/xml.h:77", "Attribute busid of node nic not found", True),
        ("transport/net.cc:77", "too many XML nodes", False),
    ],
)
def test_a_defect_is_known_by_source_file_and_message(place: str, text: str, found: bool, tmp_path: Path) -> None:
    log = f"NCCL version 2.19.3+cuda12.3\nnode-1:812:870 [0] {place} NCCL WARN {text}\n"
    rules = {f.cause for f in judged_log(tmp_path, log).findings if not f.say.startswith("No rule")}
    assert ("nccl_bug" in rules) == found
