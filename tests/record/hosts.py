"""Record the faults of two hosts over gloo: four ranks on two hosts that this machine simulates.

    python tests/record/hosts.py OUT [FAULT …]

One recording a fault, OUT/<fault>.  Copy them into ncclkit/evidence/samples/ after a look at their size;
the notebook of story 3 shows them where hosts cannot be simulated.
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

RANKS = 4


async def main(out: Path, names: list[str]) -> int:
    """Record each fault; returns how many runs did not end as they must."""
    about = about_machine(await local.check_interpreter(sys.executable))
    wrong = 0
    for name in names:
        chosen = injection.fault(name)
        case = Case.open(out / "work" / name)
        run = await injection.inject(case, name, ranks=RANKS, backend="gloo", timeout=8)
        recording.bundle(run, out / name, about | {"fault": chosen.says})
        wrong += run.reason != ("failed" if chosen.cause else "done")
        print(f"{name}: {run.summary} ({run.reason})", flush=True)
    return wrong


if __name__ == "__main__":
    two_hosts = [name for name, fault in injection.FAULTS.items() if fault.hosts and "gloo" in fault.backends]
    sys.exit(asyncio.run(main(Path(sys.argv[1]).absolute(), sys.argv[2:] or two_hosts)))
