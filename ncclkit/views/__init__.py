"""Views: each function returns one object with two faces, a widget for a person and static HTML for a report.

Only this package and `ncclkit.plots` import plotly and ipywidgets.
"""

from ncclkit.views._base import Chart, View, style
from ncclkit.views.catalogue import catalogue_view
from ncclkit.views.evidence import events_view
from ncclkit.views.facts import facts_view
from ncclkit.views.findings import findings_view
from ncclkit.views.live import LiveTest
from ncclkit.views.ranks import ranks_view
from ncclkit.views.runs import curve_view, live_test, measurements_view, tuning_view
from ncclkit.views.tables import case_view

__all__ = [
    "Chart",
    "LiveTest",
    "View",
    "case_view",
    "catalogue_view",
    "curve_view",
    "events_view",
    "facts_view",
    "findings_view",
    "live_test",
    "measurements_view",
    "ranks_view",
    "style",
    "tuning_view",
]
