"""`ncclkit compare`: what is compared with what.

It is cases over time, a case with the baseline of its cluster, or nodes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ncclkit.cli.arguments import add_json
from ncclkit.cli.runner import Verb, VerbAnswer


class CompareVerb(Verb):
    """Compare cases over time, or one with the baseline of this cluster."""

    name = "compare"
    group = "My job"
    what = (
        "the same test of several cases: what became slower, and what changed on the hosts between"
    )
    example = "compare case-october case-november"
    needs_folder = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare what is compared, and the baseline."""
        parser.add_argument(
            "cases",
            nargs="+",
            metavar="PATH",
            help=(
                "case folders, the oldest first (one: with the baseline); or what `ncclkit gate`"
                " printed on many nodes"
            ),
        )
        parser.add_argument(
            "--save-baseline", action="store_true", help="keep what the last of them measured"
        )
        parser.add_argument(
            "--baseline", metavar="FILE", type=Path, help="another file than that of this cluster"
        )
        add_json(parser)

    def job_paths(self, options: argparse.Namespace) -> list[str]:
        """The cases."""
        return list(options.cases)

    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        """Compare nodes where files are named, else cases; or save the baseline."""
        from ncclkit.analysis.gates import compare_nodes
        from ncclkit.analysis.history import compare_cases

        if all(Path(one).is_file() for one in options.cases):
            nodes = compare_nodes(options.cases)
            is_odd = bool(nodes.outliers or nodes.shared)
            return VerbAnswer(int(is_odd), parts=[nodes.text()], data=nodes.to_dict)
        if options.save_baseline:
            return _baseline_answer(options)
        found = compare_cases(options.cases, options.baseline)
        is_slower = found.worst is not None and found.worst.slower > 0
        return VerbAnswer(int(is_slower), parts=[found.text()], data=found.to_dict)


def _baseline_answer(options: argparse.Namespace) -> VerbAnswer:
    from ncclkit.analysis.history import save_baseline
    from ncclkit.core.case import Case

    last = Case.open(options.cases[-1], read_only=True)
    file = save_baseline(last, options.baseline)
    return VerbAnswer(0, [f"The baseline is now that of {last.path}, in {file}."])
