"""Calls that may hang, in threads that nobody has to wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Callable


def side_by_side(
    call: Callable[[Any], Any], items: Sequence[Any], seconds: float, late: Any
) -> list[Any]:
    """`call` of each item, side by side; `late` for those that fail.

    To take longer than `seconds` is to fail, too.  The threads are daemons: one that hangs in the
    kernel must not keep the program from ending.
    """
    results = [late] * len(items)

    def one(place: int, item: Any) -> None:
        results[place] = call(item)

    threads = [threading.Thread(target=one, args=item, daemon=True) for item in enumerate(items)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return list(results)
