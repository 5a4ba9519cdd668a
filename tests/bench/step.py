"""What `ncclkit step` names first: ``python tests/bench/step.py OUT.json`` (minutes; two ranks, gloo without GPUs).

1. Three scripts as their libraries' documentation has them, each with one of three planted brakes: is it named first?
2. What measuring costs: steps that are measured against those between them, in pairs, and the hook's own account.
3. Settings that help (workers for a slow loader, larger buckets, accumulation) and settings that do not, in six rounds.
4. Eight scripts as users write them (`step/own`), each with a brake of another kind, and a healthy twin: is the brake
   named first, with its line?  Those lines end in ``# planted``.

With one GPU, `--share-gpu`: two ranks on the card, each as a node of its own, so that gradients go through sockets.

OUT.json is kept: a row that is there already is not made again, and each is written as soon as it is there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit.core.case import Case  # noqa: E402
from ncclkit.core.tuning import Comparison, Setting  # noqa: E402
from ncclkit.live.launch import local  # noqa: E402
from ncclkit.live.step import StepOptions, compared, measure_steps  # noqa: E402
from tests.record.gpu import about_machine  # noqa: E402

SCRIPTS = Path(__file__).parent / "step"
BRAKES = {"loader": "data", "buckets": "communication", "logging": "script"}
"""What is planted → the part that must be named first."""
PARTS = ("named", "cost", "tried", "own")
OWN = {
    "tokenize_loop": ("script", "python"),
    "accelerate_state": ("checkpoint", ""),
    "lightning_validation": ("evaluation", ""),
    "fsdp_uneven": ("waiting", ""),
    "metrics_each": ("communication", ""),
    "trainer_prints": ("script", "print"),
    "clip_loop": ("script", ""),
    "barrier_report": ("script", "file"),
    "healthy": ("", ""),
}
"""An own script → the part and, where it matters, the kind of work that must be named first."""
PLANTED = "# planted"
"""What stands behind a line of an own script that is the brake."""
SHARED_CARD = "two ranks on one card, as two nodes: gradients go through sockets, and the ranks take turns"
SHARE = """
import os
rank = os.environ.get("RANK")
if rank:
    nodes = {"GROUP_RANK": rank, "GROUP_WORLD_SIZE": os.environ["WORLD_SIZE"], "NCCL_HOSTID": "node-" + rank}
    os.environ.update(nodes, LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
"""
"""The ``sitecustomize`` of ranks that share a card."""
SCRIPTED = ("ddp.py", "accelerated.py", "lit.py")
TRIED = (
    *(("loader", ("workers=2",)), ("", ("gradient_as_bucket_view=1",)), ("worker", ("prefetch=8",))),
    ("buckets", ("bucket_cap_mb=25", "--accumulate=4")),
)


async def run(script: str, brake: str, **options: Any) -> tuple[dict[str, Any], Path]:
    """One script with one brake: what was said of it, and its run folder."""
    folder = Path(tempfile.mkdtemp(dir=options.pop("place")))
    words = [sys.executable, str(SCRIPTS / script), *(["--brake", brake] if brake else [])]
    began = time.monotonic()
    done = await measure_steps(Case.open(folder), words, StepOptions(timeout=200, **options))
    first = done.times.brakes[0] if done.times and done.times.brakes else None
    row: dict[str, Any] = {"script": script, "brake": brake, "seconds": round(time.monotonic() - began, 1)}
    row |= {"first": first.part if first else "", "said": done.summary, "ended": done.reason}
    row |= {"effects": [str(one) for one in done.effects], "answer": compared(done.effects)} if done.effects else {}
    row |= {"right": (first.part if first else "") == BRAKES.get(brake, ""), "cost": done.times and done.times.cost}
    return row, done.folder


async def run_own(name: str, part: str, kind: str, place: str) -> dict[str, Any]:
    """What is said of one own script first, and whether it is its planted brake, with its line."""
    path = SCRIPTS / "own" / f"{name}.py"
    planted = set()
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.endswith(PLANTED):
            planted.add(number)
    began = time.monotonic()
    case = Case.open(Path(tempfile.mkdtemp(dir=place)))
    done = await measure_steps(case, [sys.executable, str(path)], StepOptions(timeout=200))
    row: dict[str, Any] = {"script": name, "part": part, "kind": kind, "seconds": round(time.monotonic() - began, 1)}
    row |= {"said": done.summary, "ended": done.reason, "right": False}
    if done.times is None:
        return row
    row |= {"cost": done.times.cost, "load": os.getloadavg()[0]}
    if not done.times.brakes:
        return row | {"first": "", "lines": [], "right": not part}
    first = done.times.brakes[0]
    named = {int(line.partition(" ")[0].rpartition(":")[2]) for line in first.lines}
    row |= {"first": first.part, "does": first.kind, "lines": [*first.lines], "advice": first.advice}
    right = first.part == part and kind in ("", first.kind) and bool(named & planted)
    return row | {"right": right, "others": [str(one) for one in done.times.brakes[1:]]}


def cost(folder: Path) -> dict[str, Any]:
    """Measured blocks of steps against the blocks between them: CPU time of rank 0, which neighbours do not disturb."""
    rows = json.loads((folder / "steps_rank0.json").read_text())["rows"]
    blocks: dict[bool, list[float]] = {True: [], False: []}
    for start in range(0, len(rows) - 4, 5):
        chosen = [1e6 * row["cpu"] for row in rows[start : start + 5]]
        blocks[rows[start]["on"]].append(statistics.median(chosen))
    count = min(map(len, blocks.values()))
    pair = Comparison(Setting(), "step", 0, tuple(blocks[False][:count]), tuple(blocks[True][:count]))
    low, high = pair.interval
    usual = statistics.median(blocks[False])
    wall = statistics.median(1e3 * (row["end"] - row["begin"]) for row in rows if not row["on"])
    share = usual / 1e3 / wall
    told = {"pairs": count, "step_ms": wall, "cpu_ms_of_a_step": usual / 1e3, "of_cpu_time": -pair.gain}
    return told | {"of_a_step": -pair.gain * share, "interval": [-high * share, -low * share]}


class Out:
    """The file of results, and what is to be put into it."""

    def __init__(self, told: argparse.Namespace, about: dict[str, Any]) -> None:
        known: dict[str, Any] = {part: [] for part in PARTS}
        if told.out.exists():
            known |= json.loads(told.out.read_text())
        self.told, self.found, self.ends = told, known | about, time.monotonic() + told.within

    def lacks(self, part: str, **what: Any) -> bool:
        """Whether a row is asked for and not there yet, and there is time for it."""
        known = any(what.items() <= row.items() for row in self.found[part])
        asked = str(1 + PARTS.index(part)) in self.told.parts
        return asked and not known and time.monotonic() < self.ends

    def keep(self, part: str, row: dict[str, Any]) -> None:
        """Write one row."""
        self.found[part].append(row)
        print(json.dumps(row), flush=True)
        self.told.out.write_text(json.dumps(self.found, indent=1) + "\n")


async def main() -> int:
    """Make the parts that are asked for; returns 1 where a brake was not named first."""
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=1000, help="of the run whose cost is measured")
    parser.add_argument("--parts", default="123")
    parser.add_argument("--within", type=float, default=3600.0, help="seconds after which nothing more is begun")
    parser.add_argument("--times", type=int, default=1, help="runs of each own script")
    parser.add_argument("--share-gpu", action="store_true", help="two ranks on one GPU")
    told = parser.parse_args()
    about = {"date": time.strftime("%Y-%m-%d"), **about_machine(await local.check_interpreter(sys.executable))}
    out = Out(told, about | ({"shared": SHARED_CARD} if told.share_gpu else {}))
    with tempfile.TemporaryDirectory(prefix="ncclkit-step-") as place:
        if told.share_gpu:
            (Path(place) / "sitecustomize.py").write_text(SHARE)
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [place, os.environ.get("PYTHONPATH", "")]))
        await parts(out, place)
    return 0 if all(row["right"] for row in [*out.found["named"], *out.found["own"]]) else 1


async def parts(out: Out, place: str) -> None:
    """Make the rows that `out` lacks; the cases of their runs lie in `place`."""
    for script, brake in ((script, brake) for script in SCRIPTED for brake in BRAKES):
        if out.lacks("named", script=script, brake=brake):
            out.keep("named", (await run(script, brake, place=place))[0])
    for script in SCRIPTED:
        if out.lacks("cost", script=script):
            row, folder = await run(script, "", steps=out.told.steps, place=place)
            out.keep("cost", {"script": script, "own_account": row["cost"], **cost(folder)})
    for brake, tries in TRIED:
        if out.lacks("tried", brake=brake, tries=[*tries]):
            row, _ = await run("ddp.py", brake, steps=10, warmup=3, tries=tries, place=place)
            out.keep("tried", {"brake": brake, "tries": [*tries], "said": row["effects"], "answer": row["answer"]})
    for name, (part, kind) in OWN.items():
        for again in range(out.told.times):
            if out.lacks("own", script=name, run=again):
                out.keep("own", {"run": again, **await run_own(name, part, kind, place)})


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
