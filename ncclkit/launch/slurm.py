"""Ranks on the nodes of a Slurm allocation: srun starts one torchrun per node.

The guard watches srun on the launching node; when it ends srun, Slurm sends
SIGTERM to the ranks, whose black boxes then write stacks and Flight Recorder.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from ncclkit.launch.local import OnRecord, Record, guarded
from ncclkit.launch.pack import pack
from ncclkit.model import NcclkitError


def nodes() -> int:
    """Nodes of the allocation that this process runs in; 0 outside of one."""
    return int(os.environ.get("SLURM_JOB_NUM_NODES", "0")) if os.environ.get("SLURM_JOB_ID") else 0


async def run(
    argv: Sequence[str],
    ranks: int,
    env: Mapping[str, str],
    deadline: float,
    folder: Path,
    python: str,
    on_record: OnRecord = lambda record: None,
) -> list[Record]:
    """As `local.run`, on every node of the allocation; `folder` must lie on storage that all nodes share.

    ranks: over all nodes, a multiple of the number of nodes.
    """
    count = nodes()
    if count == 0 or shutil.which("srun") is None:
        raise NcclkitError("There is no Slurm allocation here; get one with salloc, or start this inside sbatch.")
    if ranks % count:
        raise NcclkitError(f"{ranks} ranks do not divide over {count} nodes; ask for a multiple of {count}.")
    agent = await asyncio.to_thread(pack, folder)
    head, port = await _head(), 20000 + int(os.environ["SLURM_JOB_ID"]) % 20000
    srun = ["srun", "--nodes", str(count), "--ntasks-per-node", "1", "--kill-on-bad-exit=1", "--unbuffered"]
    node = [python, str(agent), "node", str(count), str(ranks // count), head, str(port)]
    return await guarded([*srun, *node, *argv], env, deadline, folder, python, on_record)


async def _head() -> str:
    """Name of the first node, expanded by scontrol (or by hand for a plain name)."""
    hosts = os.environ.get("SLURM_JOB_NODELIST", "")
    if re.fullmatch(r"[\w.-]+", hosts):
        return hosts
    process = await asyncio.create_subprocess_exec("scontrol", "show", "hostnames", hosts, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), 20)
    names = out.decode("utf-8", "replace").split()
    if not names:
        raise NcclkitError(f"scontrol does not know the nodes {hosts!r} of this allocation.")
    return names[0]
