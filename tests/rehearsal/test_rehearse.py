"""Three scripts through the whole command: would hang, agrees, could not tell."""

import json
import sys

from ncclkit.agent.rehearsal import ranks
from ncclkit.cli import main
from ncclkit.rehearsal.example import example_in
from tests.rehearsal.rehearsed import SCRIPTS, lines_of, marked_line, printed, rehearse


def test_a_barrier_of_rank_0_alone_would_hang(tmp_path):
    answer = rehearse(tmp_path, "barrier_rank0.py")
    assert (answer["exit"], answer["kind"], answer["odd"]) == (1, "mismatch", [0])
    odd, others = answer["waiting"]
    assert odd["place"].endswith(marked_line("barrier_rank0.py", "culprit"))
    assert others["place"].endswith(marked_line("barrier_rank0.py", "others"))
    assert odd["ranks"] == [0] and odd["code"].startswith("dist.barrier()")
    assert others["ranks"] == [1, 2, 3] and others["code"].startswith("dist.all_reduce(values)")
    assert answer["sentence"].startswith("Rehearsal of 4 ranks: the job would hang or compute")


def test_healthy_exchanges_agree_and_have_their_values(tmp_path):
    answer = rehearse(tmp_path, "healthy_exchange.py")
    assert (answer["exit"], answer["kind"]) == (0, "agree"), answer["sentence"]
    assert len(printed(answer)) == 4


def test_what_needs_a_gpu_is_named_and_nobody_is_accused(tmp_path):
    answer = rehearse(tmp_path, "gpu_kernel.py", "--ranks", "2")
    assert (answer["exit"], answer["kind"]) == (2, "unknown")
    line = lines_of("gpu_kernel.py", "CUDAGraph")[0]
    assert f"gpu_kernel.py:{line}" in answer["sentence"]


def test_what_cannot_be_started_is_said_in_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words, expected in (
        (["python", "-O", str(SCRIPTS / "healthy_ddp.py")], "options cannot be passed on"),
        (["python", "missing.py"], "no script"),
        (["sleep", "1"], "starts `python …`, `torchrun …` and `accelerate launch …`"),
    ):
        assert main(["rehearse", "--", *words]) == 2
        assert expected in capsys.readouterr().err


HOSTS = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
own, _ = dist.new_subgroups()
told = [os.environ[name] for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")]
seen = [torch.cuda.device_count(), *dist.get_process_group_ranks(own)]
words = ["rank", dist.get_rank(), *told, *seen]
print(" ".join(map(str, words)) + "\\n", end="", flush=True)
dist.barrier()
"""


def test_ranks_may_seem_to_be_on_several_hosts(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(HOSTS)
    answer = rehearse(tmp_path, script, "--ranks", "4", "--hosts", "2")
    assert answer["exit"] == 0, answer["sentence"]
    seen = ["0 0 2 0 2 0 1", "1 1 2 0 2 0 1", "2 0 2 1 2 2 3", "3 1 2 1 2 2 3"]
    assert printed(answer, "rank") == [f"rank {words}" for words in seen]
    assert "--ranks 4 --hosts 2 --" in answer["again"]


def test_the_example_of_the_notebook_hangs_until_it_is_mended(tmp_path):
    script = example_in(tmp_path)
    faulty = rehearse(tmp_path, script, "--ranks", "2")
    assert (faulty["exit"], faulty["odd"]) == (1, []), faulty["sentence"]
    assert "dist.barrier()" in [stand["code"] for stand in faulty["waiting"]]
    lines = script.read_text().replace("        dist.barrier()", "    dist.barrier()")
    script.write_text(lines)
    assert rehearse(tmp_path, script, "--ranks", "2")["exit"] == 0


def test_an_interpreter_without_torch_is_named_with_what_to_do(tmp_path, monkeypatch):
    # it sets these for its ranks; here they are to be as before when the test ends
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTORCH_NVML_BASED_CUDA_CHECK"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(ranks, "_load_torch", lambda is_fake: "No module named 'torch'")
    asked = {"answer": str(tmp_path / "rehearsal.json"), "ranks": 4, "host_ranks": 4}
    asked.update({"fake": False, "gpu": False})
    assert ranks.main([json.dumps(asked), "train.py"]) == 2
    told = json.loads((tmp_path / "rehearsal.json").read_text())
    assert sys.executable in told["why"] and "after -- name one that has PyTorch" in told["why"]
