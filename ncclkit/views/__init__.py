"""Views: each function returns one object with two faces, a widget for a person and static HTML for a report.

Only this package and `ncclkit.views.plots` import plotly and ipywidgets.
"""

from ncclkit.views._base import Chart, Drawn, View, style
from ncclkit.views.attach import AttachForm, attach_form
from ncclkit.views.banner import banner_view
from ncclkit.views.cluster import cluster_view
from ncclkit.views.connect import ConnectForm, connect_form, connect_view
from ncclkit.views.course import (
    backend_view,
    checkpoints_view,
    loader_sweep_view,
    resume_view,
    scaling_view,
    stages_view,
)
from ncclkit.views.evidence import events_view, inputs_view
from ncclkit.views.experiments import check_form, experiments_view
from ncclkit.views.facts import consistency_view, facts_view
from ncclkit.views.findings import catalogue_view, findings_view
from ncclkit.views.groups import disagreement_view, progress_view
from ncclkit.views.job import job_view
from ncclkit.views.lab import guess, lab_form, proof_view, quiz_view
from ncclkit.views.live import LiveTest, live_test
from ncclkit.views.network import network_view, rings_view, transports_view
from ncclkit.views.pairs import pairs_view
from ncclkit.views.planners import planner
from ncclkit.views.ranks import ranks_view
from ncclkit.views.report import report_form
from ncclkit.views.runs import case_view, compare_view, curve_view, measurements_view, tuning_view
from ncclkit.views.start import start_form
from ncclkit.views.steps import step_form, step_view
from ncclkit.views.telemetry import telemetry_view
from ncclkit.views.topology import topology_view
from ncclkit.views.tune import apply_form, carriers_view, tune_form
