"""How far NCCL's start came, where it never ended."""

from __future__ import annotations

from ncclkit.analysis.picks import family, initialized, of_job
from ncclkit.core.case import Case
from ncclkit.core.kinds import (
    C10dHint,
    NcclInit,
    NcclMessage,
    NcclNetwork,
    NcclTiming,
    StoreClients,
    WorkerPhase,
)
from ncclkit.core.model import Event

QUIET = frozenset(
    """
    nccl.version nccl.init nccl.env nccl.bootstrap nccl.network nccl.ib_devices nccl.info
    nccl.channel nccl.ring nccl.tree nccl.timing nccl.connected nccl.affinity nccl.socket_devices
    c10d.hint job.member printed.env printed.version
    """.split()
)
"""What NCCL says in a start that goes on, and what frameworks, torch and shells say before one."""
WATCHED = ("worker.", "telemetry.", "run.", "ras.", "stack", "elastic.signal", "elastic.stop")
"""How events begin that come from who looks at a job.

They do not come from the job, and tell nothing of how far it came.
"""


def hung_starts(case: Case) -> list[Event]:
    """The last lines of a start of NCCL that never ends.

    They count where nothing else is said.  There are none where the ranks are ours and not all of
    them have begun: the others wait for those, whatever path joins them.
    """
    starts = case.of(NcclInit, phase="start")
    begun = [*case.of(NcclNetwork), *starts]
    done = bool(initialized(case))
    # an error or a later step says more than the silence after a start
    other = any(map(_is_beyond, of_job(case)))
    # the ranks that have begun wait for those that have not: no path between them is at fault
    size = max((e.data.nranks or 0 for e in starts), default=0)
    absent = case.of(WorkerPhase) and len({e.data.rank for e in starts}) < size
    if done or other or absent:
        return []
    return begun[-3:]


def _is_beyond(event: Event) -> bool:
    """Whether a line says more than that a start goes on.

    It tells a later step, an error, or a program's end.
    """
    data = event.data
    # without InfiniBand NCCL goes on over sockets
    is_without_ib = isinstance(data, NcclMessage) and data.family == "no_ib_library"
    # somebody who looks at a job says nothing of how far it came
    if event.kind.startswith(WATCHED) or is_without_ib:
        return False
    is_left_open = isinstance(data, C10dHint) and data.what == "not_destroyed"
    return event.kind not in QUIET or is_left_open


def met_at_store(case: Case) -> list[Event]:
    """Lines that show that ranks reached the store.

    The store counts them, or gave them what NCCL's start begins with.
    """
    counted = []
    for event in case.of(StoreClients):
        if event.data.joined == event.data.expected is not None:
            counted.append(event)
    return [
        *counted,
        *case.of(NcclInit, phase="start"),
        *_nccl_sockets(case),
    ]


def _nccl_sockets(case: Case) -> list[Event]:
    """What NCCL says of connections between ranks.

    The addresses of the ranks came through the store.
    """
    socket_lines = []
    for event in family(case, "socket_connect", "socket_closed"):
        if event.kind.startswith("nccl."):
            socket_lines.append(event)
    return socket_lines


def bootstrapped(case: Case) -> list[Event]:
    """Lines of ranks whose bootstrap has gone once around the ring of all ranks.

    They reach each other's addresses.
    """
    return case.of(NcclTiming)
