"""Views: each function returns one object with two faces, a widget for a person and static HTML for a report.

Only this package and `ncclkit.plots` import plotly and ipywidgets.
"""

from ncclkit.views._base import Chart, Drawn, View, style
from ncclkit.views.attach import Attach, attach_form
from ncclkit.views.catalogue import catalogue_view
from ncclkit.views.evidence import events_view
from ncclkit.views.facts import facts_view
from ncclkit.views.findings import findings_view
from ncclkit.views.groups import disagreement_view, progress_view
from ncclkit.views.inputs import inputs_view
from ncclkit.views.job import job_view
from ncclkit.views.live import LiveTest
from ncclkit.views.ranks import ranks_view
from ncclkit.views.runs import curve_view, live_test, measurements_view, tuning_view
from ncclkit.views.tables import case_view
from ncclkit.views.transports import rings_view, transports_view

__all__ = [
    "Attach",
    "Chart",
    "Drawn",
    "LiveTest",
    "View",
    "attach_form",
    "case_view",
    "catalogue_view",
    "curve_view",
    "disagreement_view",
    "events_view",
    "facts_view",
    "findings_view",
    "inputs_view",
    "job_view",
    "live_test",
    "measurements_view",
    "progress_view",
    "ranks_view",
    "rings_view",
    "style",
    "transports_view",
    "tuning_view",
]
