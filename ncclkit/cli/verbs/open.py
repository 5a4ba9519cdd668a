"""`ncclkit open`: JupyterLab on a notebook."""

from __future__ import annotations

import argparse

from ncclkit.cli.arguments import PORT
from ncclkit.cli.runner import Verb, VerbAnswer


class OpenVerb(Verb):
    """Start JupyterLab."""

    name = "open"
    group = "Learn"
    what = "JupyterLab on a notebook, with the ssh line to reach it"
    example = "open 03_logs"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the notebook, and the port."""
        parser.add_argument(
            "notebook",
            nargs="?",
            metavar="NOTEBOOK",
            default="guided",
            help="a notebook by name or path (default guided)",
        )
        parser.add_argument(
            "--port", type=PORT, default=8888, help="the first port to try (default 8888)"
        )

    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        """Serve until the person leaves."""
        from ncclkit import report
        from ncclkit.report import jupyter

        jupyter.open_lab(report.notebook(options.notebook), port=options.port)
        return VerbAnswer(0)
