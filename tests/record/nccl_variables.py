"""Which NCCL reads which variable, from its libraries: ``python -m tests.record.nccl_variables LIBRARY…`` writes it.

Give the library of every release that `tests/bench/results/messages.json` knows.  A name that stands nowhere in the
constant data of a release is not read by it; what comes first in a release between two measured ones is known from
its source (`FIRST`).
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

from tests.bench.messages import version_key
from tests.bench.nccl_texts import Image, Release, read_release
from tests.packaging.project import ROOT

MODULE = ROOT / "ncclkit" / "agent" / "facts" / "nccl_variables.py"
FIRST = {
    "2.29.7": """
    ENABLE_VERSION_CHECK IPC_USE_ABSTRACT_SOCKET SOCKET_POLL_TIMEOUT_MSEC IB_DEVICE_PCI_ORDER
    IB_PREPOST_RECEIVE_WORK_REQUESTS IB_RECEIVER_SIDE_MATCHING_SCHEME IB_RESILIENCY_PORT_FAILOVER
    IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY P2P_EPOCH_ENABLE
    P2P_PER_CHANNEL_NET_BW MULTI_SEGMENT_REGISTER NUM_RMA_CTX RMA_PROXY_DUMP_SIGNAL SYM_CE_THRESHOLD
    ALLGATHERV_ENABLE DISABLE_MEM_MANAGER CHECK_MODE NO_CACHE GIN_PLUGIN
    """
}


def rows(libraries: list[Path]) -> list[str]:
    """A row for each variable: name, since, until, defaults."""
    releases = sorted((read_release(path) for path in libraries), key=lambda one: version_key(one.version))
    images = {one.version: b"\n".join(text.encode() for text in Image(path).texts()) for one, path in _with(libraries)}
    versions = [one.version for one in releases]
    names = sorted(set().union(*(one.variables for one in releases)))
    found = []
    for name in names:
        has = {version: name.encode() in images[version] for version in versions}
        since = until = "-"
        for before, after in pairwise(versions):
            if has[after] and not has[before]:
                since = f"{before}<{_first(name) or after}"
            if has[before] and not has[after]:
                until = f"{before}<{after}"
        found.append(" ".join([name, since, until, _defaults(name, releases)]))
    return found


def _with(libraries: list[Path]) -> list[tuple[Release, Path]]:
    return [(read_release(path), path) for path in libraries]


def _first(name: str) -> str:
    return next(
        (version for version, names in FIRST.items() if name.removeprefix("NCCL_") in names.split()),
        "",
    )


def _defaults(name: str, releases: list[Release]) -> str:
    said: list[str] = []
    last = None
    for one in releases:
        default = one.defaults.get(name)
        if default is not None and default != last:
            said.append(f"{one.version}={default}" if said else str(default))
            last = default
    return ",".join(said) or "-"


def main() -> None:
    text = MODULE.read_text()
    head, _, rest = text.partition('TABLE = """\n')
    _, _, tail = rest.partition('"""')
    MODULE.write_text(
        head + 'TABLE = """\n' + "".join(f"{row}\n" for row in rows([Path(one) for one in sys.argv[1:]])) + '"""' + tail
    )


if __name__ == "__main__":
    main()
