"""What a launcher is.

It is how ranks come to run on this host, or on the nodes that somebody was given.  A scheduler that
ncclkit does not know is one more class like this; ``docs/launchers.md`` shows how to write it, and
where to announce it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from ncclkit.core.model import NcclkitError
from ncclkit.core.runs import Plan

Record = dict[str, Any]
OnRecord = Callable[[Record], None]


class Launcher(ABC):
    """Starts ranks, and one command on each node, where this process was given nodes."""

    name: ClassVar[str]
    """What it is called in sentences: ``Slurm``."""

    @abstractmethod
    def node_count(self) -> int:
        """Nodes that this process was given; 0 where it was given none."""

    @abstractmethod
    def starts_on_nodes(self) -> bool:
        """Whether ranks must be started through it.

        torchrun alone reaches this host only.
        """

    @abstractmethod
    async def node_names(self) -> list[str]:
        """The names of these nodes.

        Ranks meet at a port of the first one.
        """

    @abstractmethod
    def on_each_node(self, *options: str) -> list[str]:
        """The words before a command that each node runs once.

        `options` are those of this launcher.
        """

    @abstractmethod
    def agent_on_each_node(self, agent: Path, python: str, folder: Path) -> list[str]:
        """The words before a verb of the agent that each node runs once.

        `folder` is that of the run, where a launcher that sends no files may put the agent.
        """

    @abstractmethod
    async def run(self, plan: Plan, folder: Path, on_record: OnRecord) -> list[Record]:
        """Start the ranks of a plan; the records of the run, ``end`` last.

        When this returns, is cancelled or raises, everything that it started is dead.
        """

    @abstractmethod
    async def read_facts(self, python: str, folder: Path, paths: Mapping[str, str]) -> list[Record]:
        """Records of kind ``fact`` of each node.

        `paths` is label → folder that is looked at.
        """

    async def nodes_of_job(self, job: str) -> int:
        """How many nodes a running job of this user has, which is named as its scheduler does.

        It is 0 where this launcher knows of none.  Raises NcclkitError, which says why, where it
        cannot tell, and where the job does not run.
        """
        return 0

    def beside_job(self, job: str, agent: Path, folder: Path, *words: str) -> list[str]:
        """The command that runs a verb of the agent on each node of a running job.

        `nodes_of_job` was asked about it before.
        """
        raise NcclkitError(f"{self.name} cannot start anything beside job {job}.")

    def own_environ(self) -> dict[str, str] | None:
        """The environment of that command; None: as it is."""
        return None


def checked_program(python: str) -> str:
    """The interpreter as given.

    Raises NcclkitError for a name that would be taken for an option.
    """
    if python.startswith("-"):
        why = "begins with a dash; give its full path"
        raise NcclkitError(f"The training interpreter {python!r} {why}.")
    return python
