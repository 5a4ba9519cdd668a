"""The records of a run, as its progress on standard error."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

from ncclkit.cli.terminal import Activity

Record = dict[str, Any]


def follow_run(activity: Activity) -> Callable[[Record], None]:
    """What shows the records of a run as they come."""
    return _RunProgress(activity).show_record


class _RunProgress:
    """How far the run is; of a curve it is known how many sizes there are."""

    def __init__(self, activity: Activity) -> None:
        self.activity = activity
        self.all_sizes = 0
        # the first size is announced before it is measured
        self.sizes_done = -1

    def show_record(self, record: Record) -> None:
        kind = record["kind"]
        if kind == "plan":
            self._show_plan(record)
        elif kind == "phase" and record.get("rank") == 0:
            self._show_phase(record)
        elif kind in ("stage", "problem"):
            self.activity.note(f"  {record['say']}")

    def _show_plan(self, plan: Record) -> None:
        env = [f"{name}={value}" for name, value in plan["env"].items()]
        self.activity.within(plan["deadline"])
        self.activity.note(f"  set for the ranks: {shlex.join(env)}")
        self.all_sizes = len(plan["sizes"]) * len(plan["ops"])
        self.sizes_done = -1

    def _show_phase(self, record: Record) -> None:
        """Rank 0 speaks for all of them: ranks of a collective move together."""
        phase = record["phase"]
        if phase == "size":
            self.sizes_done += 1
        if phase == "done":
            self.sizes_done = self.all_sizes
        words = [phase, str(record.get("bytes", "")), str(record.get("op", ""))]
        text = f"rank 0: {' '.join(filter(None, words))}"
        # more sizes than planned: stages repeat some, and a share would be wrong
        if 0 <= self.sizes_done <= self.all_sizes:
            self.activity.step(text, self.sizes_done, self.all_sizes)
        else:
            self.activity.step(text)
