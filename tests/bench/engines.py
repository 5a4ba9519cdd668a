"""Attach on servers whose workers carry no RANK: eight ways to hang, and servers that go on, busy and idle.

    python tests/bench/engines.py [--ray] [--out OUT.json] [--seconds 3600] [NAME ...]

Each is begun over gloo as an engine that spawns, or forks, its workers (`tests.live.engines`, `servers`), with ``--ray``
as actors of Ray on this host alone (``pip install ray``).  Of a hang the rank and the cause have to be those of
`tests.live.hangs`; of a server that goes on nobody may be accused, and the first sentence says that it goes on.  OUT.json
is written after each; the status is 1 where one is not right.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit.analysis.motion import headline  # noqa: E402
from ncclkit.causes.engine import diagnose  # noqa: E402
from ncclkit.core.case import Case  # noqa: E402
from ncclkit.live.attach import AttachOptions, attach  # noqa: E402
from tests.bench.attach import installed, machine  # noqa: E402
from tests.live import engines, servers  # noqa: E402
from tests.live.hangs import WAYS  # noqa: E402

RANKS = 3
HANGS = (
    "barrier_in_branch", "divergent_branch", "gather_on_rank_0", "storage", "thread_lock", "sleeping", "silent_service",
    "unpaired_recv",
)  # fmt: skip
BUSY = ("batching_server", "http_server", "tensor_parallel", "pipeline", "long_steps")
IDLE = (*servers.IDLE, "idle_server")


@contextmanager
def begun(name: str, layout: str) -> Iterator[int]:
    """A process of a server that was begun."""
    if name in servers.IDLE:
        with servers.start(name, "ray" if layout == "ray" else "spawn") as pids:
            yield pids["front"]
        return
    with engines.start(name, layout, RANKS) as (engine, _):
        yield engine


def row_of(name: str, layout: str) -> dict[str, Any]:
    """What attach says of one server, and whether that is right."""
    with tempfile.TemporaryDirectory() as folder, begun(name, layout) as pid:
        case = Case.open(Path(folder) / "case")
        made = asyncio.run(attach(case, [str(pid)], None, AttachOptions()))
        found = diagnose(case)
    says = headline(made.events)
    if name not in HANGS:
        right = not found.findings and found.exit_code == 0 and says.startswith("The job goes on")
        return {"name": name, "layout": layout, "right": right, "says": says, "findings": len(found.findings)}
    way = WAYS[name]
    first = found.findings[0] if found.findings else None
    cause = first is not None and first.cause in way.causes
    rank = first is not None and (not way.ranks or tuple(first.culprits["ranks"]) == way.at_fault(RANKS))
    return {"name": name, "layout": layout, "right": cause and rank, "says": first.say if first else says}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="these only")
    parser.add_argument("--ray", action="store_true", help="workers are actors of Ray")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which no further one is begun")
    options = parser.parse_args()
    versions = machine("gloo")
    layouts: tuple[str, ...] = ("spawn", "fork")
    if options.ray:
        versions["ray"] = installed("ray")
        layouts = ("ray",)
    rows = play(options.names or (*IDLE, *BUSY, *HANGS), layouts, versions, options)
    return int(not all(row["right"] for row in rows))


def play(
    names: Sequence[str], layouts: Sequence[str], versions: dict[str, Any], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """A row for each, and all of them in the file after each."""
    until = time.monotonic() + options.seconds
    rows: list[dict[str, Any]] = []
    result: dict[str, Any] = {}
    for number, name in enumerate(names):
        if time.monotonic() > until:
            break
        layout = layouts[number % len(layouts)]
        try:
            rows.append(row_of(name, layout))
        except (RuntimeError, TimeoutError) as error:
            rows.append({"name": name, "layout": layout, "right": False, "says": str(error)[-500:]})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        result = versions | counts_of(rows) | {"rows": rows}
        if options.out:
            options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return rows


def counts_of(rows: list[dict[str, Any]]) -> dict[str, str]:
    """``8 of 8``, of each kind."""
    counts = {}
    for kind, names in (("hangs", HANGS), ("busy", BUSY), ("idle", IDLE)):
        held = [row for row in rows if row["name"] in names]
        counts[kind] = f"{sum(row['right'] for row in held)} of {len(held)}"
    return counts


if __name__ == "__main__":
    sys.exit(main())
