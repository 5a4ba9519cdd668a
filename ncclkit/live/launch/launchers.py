"""Which launcher starts what.

It knows all launchers, and the one whose nodes we were given.  A package of its own announces one
by an entry point of the group ``ncclkit.launchers``, which names a subclass of `base.Launcher`.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from ncclkit.core.runs import Plan
from ncclkit.live.launch.base import Launcher
from ncclkit.live.launch.local import LocalLauncher
from ncclkit.live.launch.mpi import MpiLauncher
from ncclkit.live.launch.simulated import SimulatedLauncher
from ncclkit.live.launch.slurm import SlurmLauncher

GROUP = "ncclkit.launchers"
OWN = (SlurmLauncher, MpiLauncher)


@cache
def known_launchers() -> tuple[Launcher, ...]:
    """Every launcher that may have been given nodes, those of other packages first."""
    announced = [found.load() for found in entry_points(group=GROUP)]
    return tuple(kind() for kind in (*announced, *OWN))


def launcher_here() -> Launcher:
    """The launcher whose nodes this process was given; without any, that of this host."""
    for launcher in known_launchers():
        if launcher.node_count() > 0:
            return launcher
    return LocalLauncher()


def starting_launcher() -> Launcher:
    """The launcher that starts ranks and asks for facts: torchrun reaches this host only."""
    launcher = launcher_here()
    if launcher.starts_on_nodes():
        return launcher
    return LocalLauncher()


def launcher_of_plan(plan: Plan) -> Launcher:
    """The launcher that starts the ranks of a plan."""
    if plan.network:
        return SimulatedLauncher()
    return starting_launcher()


def node_count() -> int:
    """Nodes that this process was given; 0 where it was given none."""
    return launcher_here().node_count()


def hosts_of_plan(plan: Plan) -> int:
    """Hosts, real or simulated, that the ranks of a plan run on."""
    if plan.network:
        return plan.sharing
    return plan.sharing * max(1, node_count())


async def launcher_of_job(job: str) -> Launcher | None:
    """The launcher that knows this running job; None where no one does."""
    for launcher in known_launchers():
        if await launcher.nodes_of_job(job):
            return launcher
    return None
