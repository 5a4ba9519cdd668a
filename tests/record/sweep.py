"""Records the rounds of two sweeps over gloo for tests/probe/test_sweep.py: ``python tests/record/sweep.py``.

Twenty sizes with a setting that is the default, and ten with one that takes away what slows calls from 1 to 6 ms.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit.core.case import Case  # noqa: E402
from ncclkit.core.tuning import Setting, setting  # noqa: E402
from ncclkit.live import tune  # noqa: E402
from ncclkit.live.options import ProbeOptions  # noqa: E402
from tests.brakes import gloo  # noqa: E402

FOLDER = Path(__file__).parents[1] / "probe" / "sweeps"


def record(name: str, asked: Setting, sizes: list[int], **env: str) -> None:
    """Keep what a sweep is told of its rounds, a line for each setting, size and phase."""
    lines = []

    def keep(record: dict[str, Any]) -> None:
        if record["kind"] == "sweep":
            told = {key: record[key] for key in ("kind", "setting", "op", "bytes", "phase", "wrong", "times_us")}
            lines.append(json.dumps(told) + "\n")

    options = ProbeOptions(backend="gloo", ranks=2, env=env, timeout=180)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(tune.sweep(Case.open(folder), [asked], options, sizes, on_record=keep))
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    record("equal", Setting(), [4096 + 64 * seed for seed in range(20)])
    with tempfile.TemporaryDirectory() as brake:
        Path(brake, "sitecustomize.py").write_text(gloo(0.006, 0.001))
        os.environ["GLOO_SOCKET_IFNAME"] = "lo,lo"
        sizes = [4096 + 64 * seed for seed in range(10)]
        record("gain", setting("GLOO_SOCKET_IFNAME=lo"), sizes, PYTHONPATH=brake)
