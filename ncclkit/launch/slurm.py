"""Ranks on the nodes of a Slurm allocation: srun starts one torchrun per node.

Every node has a guard of its own, which collects the evidence of its ranks and
ends them; the guard on the launching node watches srun.
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
    srun = ["srun", "--nodes", str(count), "--ntasks-per-node", "1", "--wait=15", "--unbuffered"]
    own = (
        deadline - 10 if deadline > 30 else deadline / 2
    )  # each node looks at its own ranks before the whole run is ended
    node = [python, str(agent), "node", str(folder), str(own), str(count), str(ranks // count), head, str(port)]
    return await guarded([*srun, *node, *argv], env, deadline, folder, python, on_record)


async def _head() -> str:
    """Address of the allocation's first node, as Slurm itself reaches it (node names need not resolve)."""
    hosts = os.environ.get("SLURM_JOB_NODELIST", "")
    names = (await _scontrol("show", "hostnames", hosts)).split()
    if not names:
        raise NcclkitError(f"scontrol does not know the nodes {hosts!r} of this allocation.")
    address = re.search(r"\bNodeAddr=(\S+)", await _scontrol("show", "node", names[0]))
    return address.group(1) if address else names[0]


async def _scontrol(*words: str) -> str:
    process = await asyncio.create_subprocess_exec("scontrol", *words, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), 20)
    return out.decode("utf-8", "replace")
