"""ncclkit: the workbook for distributed training that hangs, crashes or crawls.

The front door.  Every name is loaded when it is first used (PEP 562, written
out so that the agent runs from the bare repository), so `import ncclkit` costs
milliseconds and never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_VIEWS = (
    "facts_view topology_view network_view consistency_view connect_form connect_view findings_view events_view "
    "ranks_view inputs_view job_view progress_view disagreement_view transports_view rings_view attach_form guess "
    "proof_view quiz_view lab_form check_form experiments_view scaling_view stages_view backend_view "
    "measurements_view tuning_view case_view curve_view pairs_view telemetry_view loader_sweep_view resume_view "
    "checkpoints_view catalogue_view live_test banner_view start_form report_form "
    "tune_form carriers_view apply_form cluster_view planner step_form step_view compare_view"
)
_DOORS = dict.fromkeys(_VIEWS.split(), "views") | {
    "Case": "core.case",
    "NcclkitError": "core.model",
    "sample": "evidence.samples",
    "sample_names": "evidence.samples:names",
    "inspect": "live.submit",
    "set_job_spec": "core.resources",
    "read_logs": "evidence.logs",
    "read_facts": "evidence.logs",
    "diagnosis": "causes.engine:diagnose",
    "sweep": "live.tune",
    "measure_steps": "live.step",
    "inject": "lab.faults.injection",
    "scaling_run": "lab.course.runs",
    "staged_run": "lab.course.runs",
    "backend_run": "lab.course.runs",
    "loader_sweep": "lab.course.runs",
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
