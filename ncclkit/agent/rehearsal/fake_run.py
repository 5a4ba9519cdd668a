"""Whether this rank's tensors have values, which every call of a rehearsal asks.

What a fake run does to torch is in `fake_values`, which loads much of it: only a fake run does.
"""

from __future__ import annotations

import threading
from typing import Any, Callable


class FakeRun:
    """What a rank knows of its fake run."""

    mode: Any = None
    """None where tensors have their values."""
    stop_rank: Callable[[str, str], None]
    """Ends the rank; is told why and where."""
    local = threading.local()


def makes_calls() -> bool:
    """Whether calls of this thread move values: in a fake run only those of Python objects do."""
    if FakeRun.mode is None:
        return True
    return getattr(FakeRun.local, "is_outside", False)


def forget_values(tensors: Any) -> None:
    """A call has changed tensors whose values were known as long as only this rank wrote them."""
    for tensor in tensors:
        constant = getattr(tensor, "constant", None)
        if constant is not None:
            tensor.fake_mode.fake_tensor_converter.invalidate_constant_aliases(constant)
            tensor.constant = None
