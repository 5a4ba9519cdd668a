"""The form of the connection test: hosts, how to get there, Test and Cancel."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import ipywidgets as W

from ncclkit.core.case import Case
from ncclkit.live import connect
from ncclkit.live.launch import slurm
from ncclkit.views._base import View
from ncclkit.views._form import Form
from ncclkit.views.connect import connect_view


def connect_form(case: Case, hosts: str = "", remote_command: str = "") -> Reach:
    """The form that tests connections between hosts; ``await form.run()`` does what its Test button does.

    hosts: names or addresses separated by spaces or commas; empty are the nodes of the Slurm allocation, and outside
    of one nothing is done.  remote_command: how to start a program there, as `ncclkit.live.connect.plan` wants it.
    """
    return Reach(case, hosts, remote_command)


class Reach(Form):
    """See `connect_form`."""

    IDLE = "No connection was tested: no hosts are named, and this is no allocation of several nodes"
    ASK = "Say which hosts to test: two or more names, space-separated"
    BUSY = "Testing …"
    CANCELLED = "Cancelled; what was found until then stays in the case folder"

    def __init__(self, case: Case, hosts: str, remote_command: str) -> None:
        self._case = case
        wide = W.Layout(width="30em")
        self.hosts = W.Text(value=hosts, placeholder="node-1 node-2", description="Hosts", layout=wide)
        self.remote_command = W.Text(
            value=remote_command,
            placeholder="ssh, srun or a prefix with {host}",
            description="Remote command",
            style={"description_width": "initial"},
            layout=wide,
        )
        test = W.Button(description="Test", icon="exchange", button_style="primary")
        said = f"The form tests {hosts}" if hosts else "The form names no hosts"
        super().__init__(said, [self.hosts, self.remote_command], test)

    def asks(self) -> bool:
        """Whether hosts are named, here or by the allocation."""
        return bool(self._names()) or slurm.nodes() > 1

    def prepare(self) -> Coroutine[Any, Any, View]:
        """The test, between the hosts that are named now."""
        return self._test(self._names(), self.remote_command.value.strip())

    def _names(self) -> list[str]:
        return str(self.hosts.value).replace(",", " ").split()

    async def _test(self, hosts: list[str], remote_command: str) -> View:
        await connect.connectivity(self._case, hosts, remote_command=remote_command)
        return connect_view(self._case)
