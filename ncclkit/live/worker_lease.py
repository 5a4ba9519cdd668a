"""Loaded by each batch job that is a worker of Dask.

The job ends with the reading that it works for.  A worker that Slurm asks to end waits in asyncio
for tasks that never end, and lives on where nobody kills it, as when slurmd itself has died.  The
keys are made for one reading and are removed with it, so a worker whose keys are gone has nobody
left to work for.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

LOOK = 1.0
"""Seconds between two looks."""
GRACE = 4.0
"""Seconds in which a worker may end by itself."""
ENDING = ("closing", "closed", "failed")
"""States of a worker that does not work any more."""


def dask_setup(worker: Any) -> None:
    """Begin to watch.

    Dask calls this when the worker starts.
    """
    key = str(worker.security.tls_worker_key or "")
    threading.Thread(target=_watch, args=(worker, key), daemon=True, name="ncclkit-lease").start()


def _watch(worker: Any, key: str) -> None:
    """End this process as soon as its work has been over for a while."""
    over_since = None
    while True:
        time.sleep(LOOK)
        is_over = worker.status.name in ENDING or bool(key and not os.path.exists(key))
        if not is_over:
            over_since = None
        elif over_since is None:
            over_since = time.monotonic()
        elif time.monotonic() - over_since > GRACE:
            sys.stderr.write("ncclkit: the reading is over, and so is this worker\n")
            # `sys.exit` would end this thread alone
            os._exit(0)
