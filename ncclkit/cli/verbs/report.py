"""`ncclkit report`: a notebook is run headless and becomes one HTML file."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from pathlib import Path

from ncclkit.cli.judging import replaced_names_note
from ncclkit.cli.runner import Part, ReportPage, Verb, VerbAnswer
from ncclkit.core.model import NcclkitError
from ncclkit.live.options import add_options


class ReportVerb(Verb):
    """Run a notebook headless, as one HTML file."""

    name = "report"
    group = "My job"
    what = "run the guided notebook, or another one, and write it as one HTML file"
    example = "report -p ranks=4"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the notebook, its parameters, and what is left unnamed."""
        parser.add_argument("--case", default="case", help="the case folder (default: ./case)")
        parser.add_argument(
            "--notebook",
            metavar="NOTEBOOK",
            default="guided",
            help="another notebook of the list below, or a file (default guided)",
        )
        parser.add_argument(
            "-p",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="a parameter of the notebook, as below",
        )
        parser.add_argument(
            "--redact", action="store_true", help="name no host, address or user in the HTML file"
        )
        parser.add_argument(
            "--redact-name",
            metavar="NAME",
            action="append",
            help="and not this name; may be repeated",
        )
        add_options(parser, "python")

    def more_help(self) -> str:
        """The notebooks, and what ``-p`` sets in each."""
        from ncclkit import report
        from ncclkit.report.parameters import own, read_notebook

        notebooks = own()
        lines = ["Notebooks, and the parameters that -p NAME=VALUE sets in them:"]
        for name, path in notebooks.items():
            # its pair in another language has the same parameters
            if path.stem.endswith(".zh"):
                continue
            chinese = ""
            if f"{name}.zh" in notebooks:
                chinese = f" ({name}.zh: in Chinese)"
            title = read_notebook(path).cells[0].source.splitlines()[0].lstrip("# ")
            lines += ["", f"{name}{chinese}: {title}"]
            for parameter, about in report.declared(path).items():
                lines.append(f"  {parameter}={about.default}")
                lines += textwrap.wrap(
                    about.what, 80, initial_indent=" " * 8, subsequent_indent=" " * 8
                )
        return "\n".join(lines)

    def check_options(self, options: argparse.Namespace) -> None:
        """Refuse a notebook that there is not, and parameters that it does not have."""
        from ncclkit import report

        report.literals(_given_parameters(options.p), report.notebook(options.notebook))

    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        """Run the notebook; the text says what it found, and where it lies."""
        from ncclkit import report

        path = report.notebook(options.notebook)
        parameters = report.literals(_given_parameters(options.p), path)
        if options.python:
            parameters["train_python"] = options.python
        folder = Path(parameters.get("case_dir") or options.case).expanduser().absolute()
        if "case_dir" in parameters:
            parameters["case_dir"] = folder
        names = options.redact_name or ()
        html = report.make(path, folder, parameters, redact=options.redact, names=names)
        return VerbAnswer(0, _report_parts(html, is_redacted=options.redact or bool(names)))


def _given_parameters(words: list[str]) -> dict[str, str]:
    given = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise NcclkitError(
                f"The parameter {word!r} is not NAME=VALUE; write for example -p ranks=4."
            )
        given[name] = value
    return given


def _report_parts(html: Path, is_redacted: bool) -> Iterator[Part]:
    sentence = ""
    if (html.parent / "case.json").exists():  # a catalogue of causes judges nothing
        sentence = _verdict_sentence(html.parent)
    yield ReportPage(html, sentence)
    yield f"Case folder: {html.parent}"
    if is_redacted:
        yield replaced_names_note(html)


def _verdict_sentence(folder: Path) -> str:
    """What the page says of the case, of which run it may be."""
    from ncclkit.analysis.speed import measured_speed
    from ncclkit.causes.engine import diagnose
    from ncclkit.core.case import Case

    case = Case.open(folder, read_only=True)
    for finding in case.findings:
        if finding.verdict == "found":
            # not judged again: that takes long in large cases
            return finding.say
    speed = measured_speed(case.latest())
    if speed and speed.warning:
        return speed.warning
    return diagnose(case).headline
