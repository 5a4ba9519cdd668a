"""Jobs of `hangs` and `healthy` in the layout of a server: an engine that starts its workers, which carry no RANK.

``python engines.py LAYOUT FILE NAME RANKS``: `LAYOUT` is ``spawn`` or ``fork``, as vLLM and SGLang start workers, or
``ray``, where the workers are actors.  The file is that of `hangs` or of `healthy`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.live import hangs, healthy, ray_actors  # noqa: E402

NUMBERED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
DIE_WITH_PARENT = 1


@contextmanager
def start(name: str, layout: str = "spawn", ranks: int = 3) -> Iterator[tuple[int, dict[int, int]]]:
    """Begin a server, and wait until its workers are where the job hangs or works: (engine, {rank: process})."""
    program = healthy.__file__ if name in healthy.PROGRAMS else hangs.__file__
    ours = ("TORCH", "NCCL", "SLURM", "GLOO", "RAY")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(ours) and key not in NUMBERED}
    with tempfile.TemporaryDirectory() as folder:
        more = {"HANGS": folder, "HANGS_BACKEND": "gloo", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        if layout == "ray":
            more |= ray_actors.variables()
        with open(os.path.join(folder, "output"), "w") as out:
            words = [sys.executable, __file__, layout, program, name, str(ranks)]
            engine = subprocess.Popen(
                words, env=clean | more, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, text=True
            )
        try:
            patience = ray_actors.READY if layout == "ray" else hangs.PATIENCE["gloo"]
            hangs._await(Path(folder), dict.fromkeys(range(ranks), engine), "engine", patience)
            yield engine.pid, {rank: int(Path(folder, f"pid.{rank}").read_text()) for rank in range(ranks)}
        finally:
            if layout == "ray":
                ray_actors.end_driver(engine)
            with suppress(ProcessLookupError):
                os.killpg(engine.pid, signal.SIGKILL)
            engine.wait()


def main(layout: str, program: str, name: str, ranks: int) -> None:
    """The engine: starts its workers, and waits for them as for answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    if layout == "ray":
        ray_actors.run_as_actors(ranks, run_rank, ranks, port, program, name)
        return
    context = multiprocessing.get_context("fork" if layout == "fork" else "spawn")
    workers = []
    # in another order than that of their ranks, as a server under load starts them
    for rank in sorted(range(ranks), key=lambda rank: -rank):
        worker = context.Process(target=worker_main, args=(rank, ranks, port, program, name))
        worker.start()
        workers.append(worker)
    for worker in workers:
        worker.join()


def worker_main(rank: int, ranks: int, port: int, program: str, name: str) -> None:
    """One worker that the engine has started itself."""
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    run_rank(rank, ranks, port, program, name)


def run_rank(rank: int, ranks: int, port: int, program: str, name: str) -> None:
    """What a launcher tells a rank by variables this one is told as arguments."""
    Path(os.environ["HANGS"], f"pid.{rank}").write_text(str(os.getpid()))
    told = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    os.environ.update({key: str(value) for key, value in told.items()} | {"MASTER_ADDR": "127.0.0.1"})
    spec = importlib.util.spec_from_file_location("program", program)
    assert spec is not None and spec.loader is not None
    module = sys.modules["program"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(name)


if __name__ == "__main__":
    # the driver of a cluster ends that first
    number = signal.SIGTERM if sys.argv[1] == "ray" else signal.SIGKILL
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, number)
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
