"""What planners say of memory and files beside a running job: ``python tests/bench/planners.py OUT.json`` (gloo).

Jobs of two and three ranks are measured, without data; from them the planners tell what four ranks take with data.
Then four ranks load their data, train, and are read in /proc: RSS and open files of each.  Two ranks whose data loaders
have two workers each fill /dev/shm, which is read before and in a step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit.core import budgets  # noqa: E402
from ncclkit.live.launch import local  # noqa: E402
from tests.record.gpu import about_machine  # noqa: E402

MIB = 1 << 20
DATA, BATCH = 400 * MIB, 8 * MIB
"""Bytes of each rank's data set, and of a batch."""
SCRIPT = """
import json, os, sys
import torch
import torch.distributed as dist

data, batch, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo")
rows = torch.ones(data // 1024, 256) if data else None
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
for step in range(5):
    count = batch // 1024
    model(rows[step * count : (step + 1) * count] if data else torch.ones(8, 256)).sum().backward()
dist.barrier()
resident = next(line for line in open("/proc/self/status") if line.startswith("VmRSS"))
told = {"rss": 1024 * int(resident.split()[1]), "files": len(os.listdir("/proc/self/fd")) - 1}
with open(os.path.join(place, "rank%d.json" % dist.get_rank()), "w") as out:
    json.dump(told, out)
dist.barrier()
dist.destroy_process_group()
"""


LOADED, AHEAD, HELD = 2, 3, 16 * MIB
"""Workers of each of two ranks, batches that each has ready, bytes of a batch."""
LOADER = """
import json, os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 10000
    def __getitem__(self, index):
        return torch.ones(1 << 20)  # 4 MiB

def used():
    room = os.statvfs("/dev/shm")
    return (room.f_blocks - room.f_bfree) * room.f_frsize

workers, ahead, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
before, rank = used(), int(os.environ["RANK"])
torch.distributed.init_process_group("gloo")
torch.distributed.barrier()
batches = iter(DataLoader(Rows(), batch_size=4, num_workers=workers, prefetch_factor=ahead))
batch, last, until = next(batches), -1, time.monotonic() + 60
while used() != last and time.monotonic() < until:  # until every worker has its batches ready
    last = used()
    time.sleep(2)
torch.distributed.barrier()
with open(os.path.join(place, "rank%d.json" % rank), "w") as out:
    json.dump({"shm": used() - before}, out)
torch.distributed.barrier()
"""


async def measured(ranks: int, text: str, *given: int) -> list[dict[str, int]]:
    """What each rank of a job says of itself: RSS in bytes and open files, or what of /dev/shm is taken."""
    with tempfile.TemporaryDirectory() as place:
        script = Path(place) / "train.py"
        script.write_text(text)
        words = [str(script), *map(str, given), place]
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *words]
        job = await asyncio.create_subprocess_exec(sys.executable, *launch)
        try:
            code = await asyncio.wait_for(job.wait(), 200)
        finally:
            if job.returncode is None:
                job.terminate()
        if code:
            raise SystemExit(f"The job of {ranks} ranks ended with {code}.")
        return [json.loads((Path(place) / f"rank{rank}.json").read_text()) for rank in range(ranks)]


def row(what: str, planned: budgets.Budget, real: float) -> dict[str, Any]:
    """One planned number beside the real one."""
    told = {"what": what, "planned": planned.value, "measured": real, "off": planned.value / real - 1}
    return told | {"reasoning": planned.words, "within_10_percent": abs(planned.value / real - 1) <= 0.1}


async def main() -> int:
    """Measure, plan, compare; exit status 1 where a plan is off by more than 10 %."""
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    small = {ranks: await measured(ranks, SCRIPT, 0, BATCH) for ranks in (2, 3)}
    real = await measured(4, SCRIPT, DATA, BATCH)
    loaded = await measured(2, LOADER, LOADED, AHEAD)
    each = max(one["rss"] for one in small[2])
    memory = budgets.host_memory(DATA, 4, 0, 0, BATCH, each=each)
    files = budgets.open_files_budget({ranks: max(one["files"] for one in rows) for ranks, rows in small.items()}, 4)
    rows = [row("host memory of four ranks, bytes", memory, sum(one["rss"] for one in real))]
    rows += [row("open files of a rank", files, max(one["files"] for one in real))]
    shm = budgets.loader_memory(2, LOADED, AHEAD, HELD)
    rows += [row("/dev/shm of two ranks' data loaders, bytes", shm, max(one["shm"] for one in loaded))]
    machine = about_machine(await local.check_interpreter(sys.executable))
    told = {"date": time.strftime("%Y-%m-%d"), **machine, "rows": rows, "ranks": real}
    out.write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(rows, indent=1))
    return 0 if all(one["within_10_percent"] for one in rows) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
