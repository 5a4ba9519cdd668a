"""ncclkit: the workbook for distributed training that hangs, crashes or crawls.

The front door.  Every name is loaded when it is first used (PEP 562, written
out so that the agent runs from the bare repository), so `import ncclkit` costs
milliseconds and never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_DOORS = {
    "Case": "case",
    "NcclkitError": "model",
    "sample": "samples",
    "sample_names": "samples:names",
    "inspect": "probe",
    "intend": "intended",
    "read_logs": "logs",
    "read_facts": "logs",
    "diagnosis": "diagnose:diagnose",
    "sweep": "tune",
    "break_it": "faults",
    "facts_view": "views",
    "topology_view": "views",
    "network_view": "views",
    "consistency_view": "views",
    "connect_form": "views",
    "connect_view": "views",
    "findings_view": "views",
    "events_view": "views",
    "ranks_view": "views",
    "inputs_view": "views",
    "job_view": "views",
    "progress_view": "views",
    "disagreement_view": "views",
    "transports_view": "views",
    "rings_view": "views",
    "attach_form": "views",
    "guess": "views",
    "lab_form": "views",
    "check_form": "views",
    "trials_view": "views",
    "rehearse": "rehearsal",
    "rehearsal_view": "views",
    "staged": "stages",
    "stages_view": "views",
    "measurements_view": "views",
    "tuning_view": "views",
    "case_view": "views",
    "curve_view": "views",
    "pairs_view": "views",
    "watch_view": "views",
    "loading_sweep": "loading:sweep",
    "loading_view": "views",
    "resumed_view": "views",
    "checkpoints_view": "views",
    "catalogue_view": "views",
    "live_test": "views",
}
"""Public name → module, or module:name.  No name may equal a module's: importing that module would take its place."""

__all__ = sorted(_DOORS)


def __getattr__(name: str) -> Any:
    if name not in _DOORS:
        raise AttributeError(f"module 'ncclkit' has no attribute {name!r}")
    module, _, attribute = _DOORS[name].partition(":")
    return getattr(import_module(f"ncclkit.{module}"), attribute or name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
