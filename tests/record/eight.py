"""Record the eight-rank run that `03_logs` opens by default: one rank comes too late to a collective.

    python tests/record/eight.py OUT

Eight ranks on eight GPUs, or on gloo where there are fewer; the recording is OUT/eight_ranks_late.  Copy it into
ncclkit/evidence/samples/ after a look at its size (below 300 kB).
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit.core.case import Case  # noqa: E402
from ncclkit.lab.faults import injection, recording  # noqa: E402
from ncclkit.live.launch import local  # noqa: E402
from tests.record.gpu import about_machine  # noqa: E402

NAME, RANKS, CULPRIT = "eight_ranks_late", 8, 5


async def main(out: Path) -> int:
    """Record the run; 1 when it did not end as it must."""
    about = about_machine(answer := await local.check_interpreter(sys.executable))
    backend = "nccl" if answer["gpus"] >= RANKS else "gloo"
    case = Case.open(out / "work")
    run = await injection.inject(
        case, "rank_late", ranks=RANKS, culprit=CULPRIT, backend=backend, timeout=20, deadline=150
    )
    recording.bundle(run, out / NAME, about | {"fault": injection.fault("rank_late").says})
    print(f"{NAME}: {run.summary} ({run.reason})")
    return 0 if run.reason == "failed" else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(Path(sys.argv[1]).absolute())))
