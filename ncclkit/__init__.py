"""ncclkit: the workbook for distributed training that hangs, crashes or crawls.

The front door.  Every name is loaded when it is first used (PEP 562, written
out so that the agent runs from the bare repository), so `import ncclkit` costs
milliseconds and never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_VIEWS = {
    "ask": "ask_form:AskForm",
    "attach": "attach_form:AttachForm",
    "banner": "banner_view",
    "cluster": "cluster_view",
    "connect": "connect_form:ConnectForm connect_view",
    "course": (
        "scaling_view stages_view backend_view loader_sweep_view resume_view checkpoints_view"
    ),
    "evidence": "events_view:EventsView inputs_view",
    "experiments": "check_form:CheckForm",
    "facts": "facts_view consistency_view",
    "findings": "findings_view catalogue_view",
    "groups": "progress_view disagreement_view",
    "job": "job_view",
    "lab": "guess:Guess proof_view quiz_view:Quiz lab_form:LabForm",
    "live": "live_test",
    "network": "network_view transports_view rings_view",
    "pairs": "pairs_view",
    "planners": "planner",
    "ranks": "ranks_view",
    "report": "report_form:ReportForm",
    "runs": "measurements_view tuning_view case_view curve_view compare_view",
    "start": "start_form:StartForm",
    "steps": "step_form:StepForm step_view",
    "telemetry": "telemetry_view",
    "topology": "topology_view",
    "tune": "tune_form:TuneForm carriers_view apply_form:ApplyForm",
}
"""Module of `views` → what it offers, each under a name of its own or as name:class."""
_DOORS = {
    name: f"views.{module}:{attribute}"
    for module, names in _VIEWS.items()
    for name, _, attribute in (each.partition(":") for each in names.split())
} | {
    "Case": "core.case",
    "NcclkitError": "core.model",
    "sample": "evidence.samples",
    "sample_names": "evidence.samples:recording_names",
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
"""Public name → module, or module:name.  No name may equal a module's: importing that module would
take its place."""

__all__ = sorted(_DOORS)


def __getattr__(name: str) -> Any:
    if name not in _DOORS:
        raise AttributeError(f"module 'ncclkit' has no attribute {name!r}")
    module, _, attribute = _DOORS[name].partition(":")
    return getattr(import_module(f"ncclkit.{module}"), attribute or name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
