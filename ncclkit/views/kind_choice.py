"""The field of a form that asks for one of the kinds of nodes that a partition mixes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ipywidgets as W

from ncclkit.core.case import Case
from ncclkit.live import node_kinds, scheduler

ANY_KIND = (-1, "", "")
"""The GPUs, their type and the constraint of a job that names no kind."""


class KindChoice:
    """Choosing a kind fills the job's fields of GPUs, type and constraint.

    case: what the cluster has; job: the fields, by the names of `JobOptions`.
    """

    def __init__(self, case: Case, job: Mapping[str, Any], label_width: str) -> None:
        self._case = case
        self._job = job
        self._chosen: tuple[int, str, str] = ANY_KIND
        self.field = W.Dropdown(
            description="Kind of nodes",
            style={"description_width": label_width},
            layout=W.Layout(width="auto", flex="1 1 18em", max_width="38em"),
        )
        self._offer_kinds()
        job["partition"].observe(self._offer_kinds, "value")
        self.field.observe(self._take_kind, "value")

    def _offer_kinds(self, _: Any = None) -> None:
        """Offer the kinds of nodes of the partition that is named; nothing where it has one."""
        rows = scheduler.known(self._case).get("partitions", [])
        row = scheduler.partition(rows, self._job["partition"].value.strip())
        kinds = node_kinds.kinds_to_ask_for(row)
        # what `default_gpus` does
        offered = [("any: the most GPUs that this many nodes have each", ANY_KIND)]
        if len(kinds) > 1:
            for kind in kinds:
                idle = f"{kind['idle']} of {kind['nodes']} idle"
                gpu_type = ""
                if "+" not in kind["model"]:
                    gpu_type = kind["model"]
                asked = (kind["gpus"], gpu_type, kind["constraint"])
                offered.append((f"{node_kinds.kind_words(kind)} ({idle})", asked))
        self.field.options = offered
        self.field.layout.display = "none"
        if len(offered) > 1:
            self.field.layout.display = ""

    def _take_kind(self, _: Any = None) -> None:
        """Ask for the GPUs of the kind that was chosen."""
        # the list is made anew; what was typed stays, and what another kind wrote goes
        before = self._chosen
        self._chosen = self.field.value or before
        if self._chosen == before:
            return
        gpus, gpu_type, constraint = self._chosen
        self._job["gpus_per_node"].value = gpus
        self._job["gpu_type"].value = gpu_type
        # a constraint that a person typed is not a kind's
        if constraint or self._job["constraint"].value == before[2]:
            self._job["constraint"].value = constraint
