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
from tests.bench.nccl_texts import Image, Variables, variables_of_library
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
    read = [(variables_of_library(path), path) for path in libraries]
    read.sort(key=lambda one: version_key(one[0].version))
    releases = [release for release, _ in read]
    images = {}
    for release, path in read:
        images[release.version] = b"\n".join(text.encode() for text in Image(path).texts())
    versions = [one.version for one in releases]
    names = sorted(set().union(*(one.names for one in releases)))
    found = []
    for name in names:
        has = {version: name.encode() in images[version] for version in versions}
        since = until = "-"
        for before, after in pairwise(versions):
            if has[after] and not has[before]:
                since = f"{before}<{_first(name) or after}"
            if has[before] and not has[after]:
                until = f"{before}<{after}"
        readers = [one for one in releases if has[one.version]]
        found.append(" ".join([name, since, until, _defaults(name, readers)]))
    return found


def _first(name: str) -> str:
    return next(
        (version for version, names in FIRST.items() if name.removeprefix("NCCL_") in names.split()),
        "",
    )


def _defaults(name: str, readers: list[Variables]) -> str:
    """What stands in the table: a number, what it became in which release, ``?`` from where it is not known."""
    said: list[str] = []
    last = "-"
    for one in readers:
        default = str(one.defaults.get(name, "-"))
        if default == last:
            continue
        last = default
        word = "?" if default == "-" else default
        said.append(f"{one.version}={word}" if said or one is not readers[0] else word)
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
