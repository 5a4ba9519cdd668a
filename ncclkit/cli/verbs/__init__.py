"""The verbs of the command, one a module.

In: the options of a command line.  Out: a `VerbAnswer`, which `ncclkit.cli.runner` prints.  A new
verb is one module with a subclass of `Verb`, and its line in `VERBS`.

Begin with `compare`, which is the smallest with text, JSON and a verdict.
"""

from __future__ import annotations

from ncclkit.cli.runner import Verb
from ncclkit.cli.verbs.ask import AskVerb
from ncclkit.cli.verbs.attach import AttachVerb
from ncclkit.cli.verbs.causes import CausesVerb
from ncclkit.cli.verbs.compare import CompareVerb
from ncclkit.cli.verbs.completion import CompletionVerb
from ncclkit.cli.verbs.connect import ConnectVerb
from ncclkit.cli.verbs.decide import DecideVerb
from ncclkit.cli.verbs.diagnose import DiagnoseVerb
from ncclkit.cli.verbs.exam import ExamVerb
from ncclkit.cli.verbs.gate import GateVerb
from ncclkit.cli.verbs.inspect import InspectVerb
from ncclkit.cli.verbs.lab import LabVerb
from ncclkit.cli.verbs.mcp import McpVerb
from ncclkit.cli.verbs.open import OpenVerb
from ncclkit.cli.verbs.probe import ProbeVerb
from ncclkit.cli.verbs.rehearse import RehearseVerb
from ncclkit.cli.verbs.report import ReportVerb
from ncclkit.cli.verbs.status import StatusVerb
from ncclkit.cli.verbs.step import StepVerb
from ncclkit.cli.verbs.submit import SubmitVerb
from ncclkit.cli.verbs.tune import TuneVerb

VERBS: tuple[Verb, ...] = (
    DiagnoseVerb(),
    DecideVerb(),
    AskVerb(),
    AttachVerb(),
    InspectVerb(),
    ConnectVerb(),
    ProbeVerb(),
    TuneVerb(),
    StepVerb(),
    RehearseVerb(),
    CompareVerb(),
    LabVerb(),
    ExamVerb(),
    SubmitVerb(),
    StatusVerb(),
    GateVerb(),
    ReportVerb(),
    OpenVerb(),
    CausesVerb(),
    McpVerb(),
    CompletionVerb(),
)
"""In the order of ``ncclkit --help``: what is asked most comes first."""
