"""ncclkit: the workbook for distributed training that hangs, crashes or crawls.

The front door, `import ncclkit as nk`.  In: logs, a job that runs, or this machine.  Out: verbs,
which do something at once (`nk.inspect`, `nk.diagnose`); forms, shown first and awaited in the next
cell (`nk.form.tune`); views, which show what a case holds (`nk.show.facts`).  Begin with
`nk.read_logs`, `nk.diagnose` and `nk.show.banner`.

Every name is loaded when it is first used (PEP 562, written out so that the agent runs from the
bare repository), so `import ncclkit` costs milliseconds and never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_VERBS = {
    "Case": "core.case:Case",
    "NcclkitError": "core.model:NcclkitError",
    "diagnose": "causes.engine:diagnose",
    "inject": "lab.faults.injection:inject",
    "inspect": "live.submit:inspect",
    "list_samples": "evidence.samples:list_samples",
    "measure_steps": "live.step:measure_steps",
    "open_sample": "evidence.samples:open_sample",
    "read_facts": "evidence.logs:read_facts",
    "read_logs": "evidence.logs:read_logs",
    "rehearse": "rehearsal.function:rehearse_function",
    "run_backends": "lab.course.runs:run_backends",
    "run_scaling": "lab.course.runs:run_scaling",
    "run_stages": "lab.course.runs:run_stages",
    "set_job_spec": "core.resources:set_job_spec",
    "sweep": "live.tune:sweep",
    "sweep_loaders": "lab.course.runs:sweep_loaders",
}
"""Name → module and what it is called there.

No name may equal a module's: importing that module would take its place.
"""
_FORMS = {
    "apply": "views.tune:ApplyForm",
    "ask": "views.ask:AskForm",
    "attach": "views.attach:AttachForm",
    "check": "views.experiments:CheckForm",
    "connect": "views.connect:ConnectForm",
    "job_spec": "views.job_spec:JobSpecForm",
    "lab": "lab.views.faulty_run:LabForm",
    "live_test": "views.live:live_test",
    "logs": "views.logs:LogsForm",
    "rehearse": "views.rehearsal:RehearsalForm",
    "rehearse_fix": "lab.views.rehearsed_fix:RehearseFixForm",
    "report": "views.report:ReportForm",
    "start": "views.start:StartForm",
    "step": "views.steps:StepForm",
    "story_ask": "lab.views.questions:StoryAskForm",
    "tune": "views.tune_batch:tune_form",
}
_VIEWS = {
    "answer": "views.answer:answer_view",
    "backend": "lab.views.course:backend_view",
    "banner": "views.banner:banner_view",
    "carriers": "views.tune:carriers_view",
    "case": "views.runs:case_view",
    "catalogue": "views.findings:catalogue_view",
    "checkpoints": "lab.views.course:checkpoints_view",
    "cluster": "views.cluster:cluster_view",
    "compare": "views.runs:compare_view",
    "connect": "views.connect:connect_view",
    "consistency": "views.facts:consistency_view",
    "curve": "views.runs:curve_view",
    "disagreement": "views.groups:disagreement_view",
    "events": "views.evidence:EventsView",
    "facts": "views.facts:facts_view",
    "findings": "views.findings:findings_view",
    "guess": "lab.views.questions:Guess",
    "inputs": "views.evidence:inputs_view",
    "job": "views.job:job_view",
    "loader_sweep": "lab.views.course:loader_sweep_view",
    "measurements": "views.runs:measurements_view",
    "network": "views.network:network_view",
    "pairs": "views.pairs:pairs_view",
    "planner": "views.planners:planner",
    "progress": "views.groups:progress_view",
    "proof": "lab.views.questions:proof_view",
    "quiz": "lab.views.questions:Quiz",
    "ranks": "views.ranks:ranks_view",
    "resume": "lab.views.course:resume_view",
    "rings": "views.network:rings_view",
    "scaling": "lab.views.course:scaling_view",
    "stages": "lab.views.course:stages_view",
    "step": "views.steps:step_view",
    "telemetry": "views.telemetry:telemetry_view",
    "topology": "views.topology:topology_view",
    "transports": "views.network:transports_view",
    "tuning": "views.runs:tuning_view",
}


class _Names:
    """Names that are loaded when they are first used; `dir` and completion list them."""

    _door = ""
    _places: Mapping[str, str] = {}

    def __init__(self, door: str, places: Mapping[str, str]) -> None:
        self._door = door
        self._places = places
        self.__doc__ = f"{door}: {', '.join(places)}."

    def __getattr__(self, name: str) -> Any:
        made = _load_name(self._door, self._places, name)
        # whatever a cell shows knows of the other cells of its page
        return import_module("ncclkit.views._page").on_page(made)

    def __dir__(self) -> list[str]:
        return sorted(self._places)

    def __repr__(self) -> str:
        return str(self.__doc__)


form = _Names("nk.form", _FORMS)
show = _Names("nk.show", _VIEWS)

__all__ = sorted([*_VERBS, "form", "show"])


def __getattr__(name: str) -> Any:
    return _load_name("nk", _VERBS, name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def _load_name(door: str, places: Mapping[str, str], name: str) -> Any:
    """What `name` stands for behind this door."""
    if name not in places:
        raise _UnknownNameError(door, name)
    module, _, attribute = places[name].partition(":")
    return getattr(import_module(f"ncclkit.{module}"), attribute)


class _UnknownNameError(AttributeError):
    """There is no such name behind this door; it says which ones are like it."""

    def __str__(self) -> str:
        # worked out when it is read, as `from ncclkit import evidence` asks for a name, too
        door, name = self.args
        near = _names_like(name)
        if near:
            return f"{door} has no name {name!r}; did you mean {' or '.join(near)}?"
        return f"{door} has no name {name!r}; dir({door}) lists those that there are."


def _names_like(name: str) -> list[str]:
    """The nearest names behind all three doors, as one writes them."""
    import difflib

    doors: dict[str, list[str]] = {}
    for door, places in (("nk", _VERBS), ("nk.form", _FORMS), ("nk.show", _VIEWS)):
        for known in places:
            doors.setdefault(known, []).append(f"{door}.{known}")
    # the functions behind nk.show are called banner_view
    short = name.removesuffix("_view").removesuffix("_form")
    found = []
    for known in difflib.get_close_matches(short, doors, 1):
        found += doors[known]
    return found
