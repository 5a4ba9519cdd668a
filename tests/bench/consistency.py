"""What it costs to compare the facts of 1,000 hosts and to draw them: seconds, and bytes that a notebook stores.

python tests/bench/consistency.py [HOSTS]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit.analysis.consistency import compare  # noqa: E402
from ncclkit.core.case import Case  # noqa: E402
from ncclkit.views.facts import consistency_view  # noqa: E402
from tests.fleet import fleet  # noqa: E402

ODD: dict[str, dict[str, Any]] = {
    "node0003": {"software.nccl": "2.26.2", "limits.shm.size": 64 << 20},
    "node0417": {"gpu.5.nvlink.links": 17, "env.NCCL_ALGO": "Ring"},
    "node0998": {"gpu.topology": None},
}


def main(hosts: int) -> None:
    """Print one line for the facts, the comparison, and comparison with its view."""
    case = Case()
    case.facts = fleet(hosts, ODD)
    print(f"{'facts':10} {len(case.facts):,} of {hosts:,} hosts")
    work: dict[str, Callable[[], Any]] = {
        "compared": lambda: compare(case.facts),
        "drawn": lambda: consistency_view(case),
    }
    for name, run in work.items():
        wall, cpu = time.perf_counter(), time.process_time()
        made = run()
        took = f"{time.perf_counter() - wall:5.2f} s ({time.process_time() - cpu:.2f} s CPU)"
        size = f"{len(json.dumps(made._repr_mimebundle_())) / 1e3:.0f} kB  " if name == "drawn" else ""
        print(f"{name:10} {took}  {size}{made.summary}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 1000)
