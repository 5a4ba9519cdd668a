"""A verdict is no firmer than what it rests on: one rank, an excerpt, a quotation, sizes of different calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ncclkit.causes import send_recv_mismatch
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.model import Event, Fact, Finding
from ncclkit.evidence.quotation import is_quotation
from tests.evidence import quoted
from tests.cases import case_of, judged_log
from tests.evidence.jobs import started
from tests.views.records import event_of


def of(case: Case, cause: str) -> Finding:
    diagnose(case)
    return next(finding for finding in case.findings if finding.cause == cause)


@pytest.mark.parametrize("quote", quoted.QUOTES)
def test_a_quoted_line_proves_something_where_a_job_says_it(quote: str, tmp_path: Path) -> None:
    log = started("2.21.5", range(2), 2) + quoted.QUOTES[quote] + "\n"
    first = judged_log(tmp_path, log).findings[:1]
    assert [finding.strength for finding in first] in (["proven"], ["likely"], ["possible"])


def test_most_quoted_lines_prove_their_cause_where_a_job_says_them(tmp_path: Path) -> None:
    """Or the texts below would show nothing."""
    logs = (started("2.21.5", range(2), 2) + line + "\n" for line in quoted.QUOTES.values())
    found = [judged_log(tmp_path, log).findings[0].strength for log in logs]
    assert found.count("proven") >= 10


@pytest.mark.parametrize("form", quoted.FORMS)
def test_what_documentation_source_code_and_settings_quote_is_at_most_possible(form: str, tmp_path: Path) -> None:
    texts = {quote: text for quote, name, text in quoted.texts() if name == form}
    firm = {
        quote: [(f.cause, f.strength) for f in judged_log(tmp_path, text, form).findings if f.strength != "possible"]
        for quote, text in texts.items()
    }
    assert len(texts) == len(quoted.QUOTES) and not any(firm.values()), firm


@pytest.mark.parametrize("form", [form for form in quoted.FORMS if form != "explain.patch"])
def test_such_a_text_is_known_whatever_its_name(form: str, tmp_path: Path) -> None:
    texts = {quote: text for quote, name, text in quoted.texts() if name == form}
    firm = {
        quote: [(f.cause, f.strength) for f in judged_log(tmp_path, text, "a.txt").findings if f.strength != "possible"]
        for quote, text in texts.items()
    }
    assert texts and not any(firm.values()), firm


@pytest.mark.parametrize("form", quoted.SHORT)
def test_a_line_that_speaks_of_an_error_is_no_report_of_it(form: str, tmp_path: Path) -> None:
    logs = quoted.short(form)
    found = [f for text in logs for f in judged_log(tmp_path, text, "a.txt").findings if f.strength != "possible"]
    assert len(logs) == len(quoted.QUOTES) and [(f.cause, f.strength) for f in found] == []


@pytest.mark.parametrize(
    "line",
    [
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "../aten/src/ATen/native/cuda/Indexing.cu:1290: indexSelectSmallIndex: block: [3,0,0] Assertion `a < b` failed",
        "NCCL WARN Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'",
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.",
        'node-1 kernel: INFO: task "python" blocked: Out of memory: Killed process 4711 (python) total-vm:1kB',
        "Traceback (most recent call last):\n  raise RuntimeError('CUDA error: the launch failed in the first step')",
        '{"level": "error", "msg": "CUDA error: an illegal memory access was encountered"}',
        '{"role": "worker", "message": "CUDA error: an illegal memory access was encountered"}',
        '{"prompt": "tell me a story", "error": "CUDA error: an illegal memory access was encountered"}',
        "#       size         count      type   redop    root     time",
    ],
)
def test_a_programs_own_report_is_no_quotation(line: str) -> None:
    assert not is_quotation(line)


def test_a_log_is_a_log_whatever_its_name(tmp_path: Path) -> None:
    log = started("2.21.5", range(2), 2) + quoted.QUOTES["same-gpu"] + "\n"
    assert judged_log(tmp_path, log, "issue.md").findings[0].strength == "proven"


@pytest.mark.parametrize("glue", [" ", "\n"])
def test_a_file_of_shared_memory_that_cannot_be_opened_for_lack_of_descriptors(glue: str, tmp_path: Path) -> None:
    said = "RuntimeError: unable to open shared memory object </torch_4114_1931> in read-write"
    log = f"{said}{glue}mode: Too many open files (24)\n"
    assert [finding.cause for finding in judged_log(tmp_path, log).findings] == ["fd_limit"]


def test_one_rank_has_no_peer_to_copy_to(tmp_path: Path) -> None:
    text = started("2.21.5", range(1), 1) + "n0:1000:1000 [0] transport/p2p.cc:272 NCCL WARN Cuda failure 'peer access"
    text += " is not supported between these two devices'\n"
    assert "p2p_broken" not in {finding.cause for finding in judged_log(tmp_path, text).findings}
    two = text.replace("nranks 1", "nranks 2")
    assert judged_log(tmp_path, two).findings[0].cause == "p2p_broken"


def test_an_excerpt_that_stops_in_the_start_is_no_broken_p2p(tmp_path: Path) -> None:
    start = started("2.21.5", range(2), 2).replace("Init COMPLETE", "Init START")
    lines = "".join(f"n0:100{rank}:100{rank} [{rank}] NCCL INFO Using network Socket\n" for rank in range(2))
    via = "n0:1000:1000 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
    assert "p2p_broken" not in {f.cause for f in judged_log(tmp_path, start + lines + via).findings}


BUSY = "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"


def test_busy_or_unavailable_alone_is_possible() -> None:
    event = event_of("cuda.error", BUSY, rank=1, message=BUSY)
    alone = of(case_of([event]), "duplicate_gpu")
    assert (alone.verdict, alone.strength, alone.culprits["ranks"]) == ("found", "possible", (1,))
    held = case_of([event])
    held.facts = [Fact("gpu.0.compute_mode", "Exclusive_Process", source="nvidia-smi")]
    assert of(held, "duplicate_gpu").strength == "likely"


def mismatch(most: list[Any], odd: list[Any], sites: list[str]) -> Case:
    """Dumps of ranks 0 to 2 and of rank 3 that hold these shapes at one place of the sequence."""
    sides = {"majority": {"value": most, "ranks": [0, 1, 2]}, "odd": [{"value": odd, "ranks": [3]}]}
    data = {"group": "0", "desc": "default_pg", "seq": 12, "field": "sizes", "op": "all_reduce", "sites": sites}
    return case_of([event_of("flight.mismatch", "collective 12 differs in sizes", **data, **sides, root="", holds=[])])


@pytest.mark.parametrize(
    ("sites", "strength"), [(["", "train.py:70 in log_loss"], "likely"), (["a.py:3 in f", "a.py:9 in g"], "proven")]
)
def test_a_bucket_of_gradients_beside_a_scalar_is_another_call(sites: list[str], strength: str) -> None:
    case = mismatch([[6553600]], [[1]], sites)
    first = diagnose(case).findings[0]
    assert (first.cause, first.strength, first.culprits["ranks"]) == ("rank_divergence", strength, (3,))
    assert of(case, "shape_mismatch").strength != "proven"


@pytest.mark.parametrize("sites", [["", ""], ["train.py:70 in step"] * 2])
def test_a_smaller_batch_is_a_mismatch_of_shapes(sites: list[str]) -> None:
    first = diagnose(mismatch([[1024]], [[512]], sites)).findings[0]
    assert (first.cause, first.strength) == ("shape_mismatch", "proven")


def test_one_line_of_the_program_makes_one_call_whatever_the_sizes() -> None:
    first = diagnose(mismatch([[6553600]], [[1]], ["train.py:70 in step"] * 2)).findings[0]
    assert (first.cause, first.strength) == ("shape_mismatch", "proven")


@pytest.mark.parametrize(("shape", "cause"), [("[1]", "rank_divergence"), ("[10]", "shape_mismatch")])
def test_fingerprints_of_different_calls(shape: str, cause: str) -> None:
    text = f"Rank 0 is running collective: X(OpType=ALLREDUCE, TensorShape=[20000]), rank 1: X(TensorShape={shape})"
    text = text if shape == "[1]" else text.replace("20000", "20")
    data = {"a": 0, "b": 1, "a_op": "ALLREDUCE", "b_op": "ALLREDUCE", "a_seq": 9, "b_seq": 9, "differs": ["sizes"]}
    assert diagnose(case_of([event_of("c10d.mismatch", text, **data)])).findings[0].cause == cause


def splits(*rows: tuple[list[int], list[int]]) -> Case:
    events = [event_of("printed.splits", rank=rank, inputs=sent, outputs=due) for rank, (sent, due) in enumerate(rows)]
    return case_of(events)


@pytest.mark.parametrize(
    ("rows", "odd"),
    [
        # rank 2 expects 5 rows of rank 0, which sends 4: all send eight rows in all
        ((([2, 2, 4], [2, 3, 3]), ([3, 2, 3], [2, 2, 4]), ([3, 4, 1], [5, 3, 1])), 2),
        # rank 1 sends one row less than all others do, to rank 0
        ((([2, 3, 3], [2, 3, 2]), ([2, 2, 3], [3, 2, 4]), ([2, 4, 2], [3, 3, 2])), 1),
        # rank 1 sends too little to both others, and these notice it
        ((([4, 4, 4], [4, 4, 4]), ([2, 4, 2], [4, 4, 4]), ([4, 4, 4], [4, 4, 4])), 1),
    ],
)
def test_the_rank_with_the_odd_split_is_named(rows: tuple[tuple[list[int], list[int]], ...], odd: int) -> None:
    first = diagnose(splits(*rows)).findings[0]
    assert (first.cause, first.culprits["ranks"]) == ("send_recv_mismatch", (odd,))


def test_of_gloo_the_rank_is_named_that_did_not_notice() -> None:
    frames = [{"file": "train.py", "line": 3, "func": "all_to_all_single"}]
    stacks = [event_of("stack", rank=rank, frames=frames) for rank in range(4)]
    noticed: list[Event] = [event_of("gloo.size_mismatch", rank=rank, a=16, b=8) for rank in (0, 1, 3)]
    first = of(case_of([*stacks, *noticed]), "send_recv_mismatch")
    assert (first.culprits["ranks"], first.say.endswith("rank 2 sends too much.")) == ((2,), True)


def test_a_function_of_that_name_is_no_send_of_torch() -> None:
    """A rank that is caught while its program sends a line to a logger waits for no peer."""
    assert send_recv_mismatch._is_single_call({"file": "/x/torch/distributed/distributed_c10d.py", "func": "send"})
    assert not send_recv_mismatch._is_single_call({"file": "agent.pyz/ncclkit/agent/wire.py", "func": "send"})


STEPS = "".join(f"[rank0]: step {step} loss 2.{step} 3.1 it/s\n" for step in range(1, 20))


@pytest.mark.parametrize(
    "line",
    [
        "Tesla V100-SXM2-32GB\ntorch 2.10.0+cu130",
        "ddp_timeout=18000",
        "[rank1]: skipping evaluation this epoch",
        "[rank0]: cache hit for shard 7, skipping download",
        "INFO: Uvicorn running on http://0.0.0.0:8000",
        "+ export NCCL_IB_HCA=mlx5_0",
        "[istio-proxy] Envoy proxy is ready",
        "wandb: ERROR Unable to resolve hostname api.wandb.ai: Name or service not known",
        "libibverbs: Warning: couldn't load driver 'libmlx5-rdmav34.so': cannot open shared object file",
        "UserWarning: 打开的文件过多 may occur",
        "2026-11-21 00:00:00 ERROR loader: shard 7 failed, retrying",
        "I have read that `RuntimeError: CUDA error: out of memory` means something else",
    ],
)
def test_a_job_that_is_well_is_left_alone(line: str, tmp_path: Path) -> None:
    text = started("2.21.5", range(2), 2) + line + "\n" + STEPS + "Training completed.\n"
    result = judged_log(tmp_path, text)
    assert (result.verdict, [finding.cause for finding in result.findings]) == ("healthy", [])
