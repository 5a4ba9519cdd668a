"""What each view of `03_logs` costs with 1,024 ranks, and each of `01_environment` with as many hosts.

CPU seconds to make both faces, bytes that a notebook stores:

python tests/bench/views.py [RANKS]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import ncclkit as nk  # noqa: E402
from ncclkit.causes.engine import diagnose  # noqa: E402
from ncclkit.core.case import Case  # noqa: E402
from ncclkit.evidence.logs import read_logs  # noqa: E402
from tests.record import thousand  # noqa: E402
from tests.views.machines import copies  # noqa: E402

FACTS = ("facts", "topology", "network", "consistency")
VIEWS = ("inputs", "job", "ranks", "progress", "disagreement", "transports", "rings", "events")


def main(ranks: int) -> None:
    """Print one line for reading, judging and each view."""
    with tempfile.TemporaryDirectory() as folder:
        thousand.write(Path(folder), ranks, ranks // 2 + 5)
        started = time.process_time()
        case = read_logs(folder)
        print(f"{'read':13} {time.process_time() - started:6.2f} s  {len(case.events):,} events of {ranks:,} ranks")
        started = time.process_time()
        said = diagnose(case).headline
        print(f"{'diagnosis':13} {time.process_time() - started:6.2f} s  {said}")
        cost(case, VIEWS)
    hosts = copies("h200-x8-slurm", ranks, {ranks // 2 + 5: {"gpu.3.nvlink.links": 12, "limits.shm.size": 64 << 20}})
    print(f"{'facts':13} {'':6}    {len(hosts.facts):,} facts of {ranks:,} hosts")
    cost(hosts, FACTS)


def cost(case: Case, names: Sequence[str]) -> None:
    """Print one line for each view."""
    for name in names:
        started = time.process_time()
        view = getattr(nk.show, name)(case)
        size = len(json.dumps(view._repr_mimebundle_()))
        print(f"{name:13} {time.process_time() - started:6.2f} s  {size / 1e3:5.0f} kB  {view.summary}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else thousand.RANKS)
