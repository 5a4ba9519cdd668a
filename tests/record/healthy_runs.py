"""Record what healthy jobs log, over gloo or on GPUs, with what NCCL says of them.

    python tests/record/healthy_runs.py FOLDER [--backend nccl [--share-gpu]] [--only NAME …] [--side-by-side N]

Each program of `tests/live/healthy.py` runs some rounds with each setting of ``NCCL_DEBUG``, and goes on to its own
end.  FOLDER gets one JSON file for each: the log, its ``state`` (``ended well``: every rank returned 0), the hardware,
the versions and the date.  A job that did not succeed is written to standard error and not recorded.
With ``--share-gpu`` both ranks use the first GPU, each as a host of its own, so that NCCL goes over sockets.  Another
release of NCCL than torch's is recorded where ``LD_PRELOAD`` names its library.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit.agent import redact  # noqa: E402
from ncclkit.agent.run.processes import die_with_parent  # noqa: E402
from tests.live import healthy  # noqa: E402
from tests.bench.attach import loaded_nccl  # noqa: E402
from tests.live.hangs import package, place  # noqa: E402

NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0"}
"""Protects the hardware; never unset."""
SETTINGS = {
    "warn": {"NCCL_DEBUG": "WARN"},
    "info": {"NCCL_DEBUG": "INFO"},
    "network": {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV,NET,GRAPH,TUNING"},
    "calls": {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "COLL,P2P,SHM,PROXY,ALLOC,CALL,REG"},
    "torch": {"NCCL_DEBUG": "WARN", "TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "INFO"},
}
"""Name of a setting → its variables."""
LONGEST = 90.0
"""Seconds until a job is ended that does not end by itself."""
ROUNDS = {
    "long_steps": 2,
    "evaluation_on_rank_0": 1,
    "checkpoint_on_rank_0": 1,
    "gradient_accumulation": 4,
    "uneven_compute": 10,
    "pipeline": 12,
    "several_groups": 12,
    "slow_loader": 9,
    "http_server": 20,
}
"""Rounds of programs whose rounds take long; others make forty."""
NEVER_END = {"idle_server"}
"""Programs that wait for what never comes: no end of theirs can be recorded."""


def logged(
    name: str, backend: str, variables: dict[str, str], share_gpu: bool = False
) -> tuple[str, list[int]]:
    """What the two ranks of a healthy job write, and what each returns."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    common |= {"HANGS_BACKEND": backend, "HEALTHY_ROUNDS": str(ROUNDS.get(name, 40)), "OMP_NUM_THREADS": "1"}
    common |= {"GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""} if backend == "gloo" else {}
    common |= NO_MULTICAST | variables
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("NCCL", "TORCH", "GLOO"))}
    with healthy.workplace() as folder:
        log = folder / "job.log"
        with log.open("w") as out:
            ranks = [
                subprocess.Popen(
                    [sys.executable, healthy.__file__, name],
                    env=kept | common | {"HANGS": str(folder), "RANK": str(rank)} | place(rank, 2, share_gpu),
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    preexec_fn=die_with_parent,
                )
                for rank in range(2)
            ]
            codes = [_returned(rank, time.monotonic() + LONGEST) for rank in ranks]
        return log.read_text(errors="replace"), codes


def _returned(rank: subprocess.Popen[bytes], until: float) -> int:
    """What a rank returns; one that does not end in time is ended."""
    try:
        return rank.wait(max(0.1, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        rank.kill()
        return rank.wait()


def recordings(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, object]]]:
    """Name and record of each job that succeeded; so many jobs run at once."""
    wanted = [name for name in healthy.programs() if name not in NEVER_END]
    wanted = [name for name in wanted if not options.only or name in options.only]
    pairs = [(name, setting) for name in wanted for setting in SETTINGS]
    machine = _machine(options.backend)

    def ran(pair: tuple[str, str]) -> tuple[str, list[int]]:
        name, setting = pair
        return logged(name, options.backend, SETTINGS[setting], options.share_gpu)

    with ThreadPoolExecutor(options.side_by_side) as pool:
        for (name, setting), (log, codes) in zip(pairs, pool.map(ran, pairs), strict=True):
            print(f"{name} {setting}: {codes}, {len(log):,} characters", file=sys.stderr, flush=True)
            if any(codes):
                print(log[-2000:], file=sys.stderr)
                continue
            yield f"{name}-{setting}", {
                "id": f"{options.backend}-{name}-{setting}",
                "source": f"recorded {date.today()} by tests/record/healthy_runs.py",
                "log": _shortened(redact.text(log), options.largest),
                "state": "ended well",
                **machine,
            }


def _shortened(log: str, largest: int) -> str:
    """A log with its middle left out, as people post it, where it is long."""
    if len(log) <= largest:
        return log
    head, tail = log[: largest // 2], log[-largest // 2 :]
    return head.rpartition("\n")[0] + "\n[...]\n" + tail.partition("\n")[2]


def _machine(backend: str) -> dict[str, object]:
    versions = {name: package(name) for name in ("torch", "accelerate", "transformers", "lightning")}
    about: dict[str, object] = {"backend": backend, "python": platform.python_version()}
    about["versions"] = {name: version for name, version in versions.items() if version}
    if backend == "nccl":
        import torch

        about["gpus"] = [torch.cuda.get_device_name(gpu) for gpu in range(torch.cuda.device_count())]
        about["nccl"] = loaded_nccl()
    return about


def main() -> None:
    """Record all healthy jobs into a folder."""
    parser = argparse.ArgumentParser(description="Record what healthy jobs log.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--share-gpu", action="store_true", help="over nccl: both ranks on one GPU, each as a host")
    parser.add_argument("--only", nargs="*", help="these programs")
    parser.add_argument("--side-by-side", type=int, default=1, help="jobs at once")
    parser.add_argument("--largest", type=int, default=12_000, help="characters of a log that are kept")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, record in recordings(options):
        text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
        (options.folder / f"{options.backend}-{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
