"""Workers of a server of models: whose traceback decides, and how the worker is called."""

from __future__ import annotations

import pytest

from tests.cases import judged_text

START = "(EngineCore_DP0 pid=100) INFO 11-02 11:59:31 [core.py:77] Initializing a V1 LLM engine (v0.11.0)\n"
OF_WORKER = (
    "WorkerProc hit an exception.",
    "Traceback (most recent call last):",
    '  File "/usr/lib/python3.12/site-packages/vllm/v1/executor/multiproc_executor.py", line 592, in worker_busy_loop',
    "    output = func(*args, **kwargs)",
    '  File "/app/mine.py", line 44, in forward',
    "    x = self.layers(x)",
    "ValueError: unsupported rope scaling",
)
OF_ENGINE = (
    "EngineCore encountered a fatal error.",
    "Traceback (most recent call last):",
    '  File "/usr/lib/python3.12/site-packages/vllm/v1/engine/core.py", line 701, in run_engine_core',
    "    engine_core.run_busy_loop()",
    "RuntimeError: Worker failed with error 'unsupported rope scaling', please check the stack trace above for the root cause",
)


def logged(head: str, place: str, lines: tuple[str, ...]) -> str:
    return "".join(f"({head} pid=123) ERROR 11-02 12:00:00 [{place}] {line}\n" for line in lines)


ENGINE = logged("EngineCore_DP0", "core.py:710", OF_ENGINE)


@pytest.mark.parametrize(
    ("head", "who"),
    [
        ("Worker_TP1", "Rank 1"),
        ("Worker_DP1_TP0", "The worker DP1 TP0 of the server"),
        ("Worker_PP1_TP0", "The worker PP1 TP0 of the server"),
        ("DP0_EP1", "The worker DP0 EP1 of the server"),
        ("Worker", "The worker pid 123 of the server"),
    ],
)
def test_the_traceback_of_a_worker_decides(head, who):
    finding = judged_text(START + logged(head, "multiproc_executor.py:597", OF_WORKER) + ENGINE).findings[0]
    assert (finding.cause, finding.strength) == ("rank_exception", "proven")
    assert finding.say.startswith(f"{who} raised ValueError: unsupported rope scaling at mine.py:44")
    assert finding.culprits.get("ranks", ()) == ((1,) if who == "Rank 1" else ())


def test_a_worker_whose_job_went_on_accuses_nobody():
    caught = logged("Worker_DP1_TP0", "multiproc_executor.py:597", OF_WORKER[1:])
    steps = "".join(f"(TaskRunner pid=9) step:{number} loss 2.1\n" for number in range(1, 70))
    findings = judged_text(START + caught + steps).findings
    assert [found.cause for found in findings if found.strength != "possible"] == []


def test_an_engine_that_tells_of_an_end_alone_proves_no_worker():
    assert [found for found in judged_text(START + ENGINE).findings if found.strength == "proven"] == []
