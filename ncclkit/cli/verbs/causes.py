"""`ncclkit causes`: the known causes and symptoms, or the page of one of them."""

from __future__ import annotations

import argparse

from ncclkit.cli.arguments import add_json
from ncclkit.cli.runner import CataloguePage, NameTable, Verb, VerbAnswer


class CausesVerb(Verb):
    """Print the known causes, or the page of one, or of a symptom."""

    name = "causes"
    group = "Learn"
    what = "the known causes, or the page of one of them"
    example = "causes slow_rank"
    needs_folder = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare whose page it is."""
        parser.add_argument(
            "cause",
            nargs="?",
            metavar="ID",
            help="a cause or a symptom, as `ncclkit diagnose` and `ask` name it",
        )
        parser.add_argument(
            "--symptoms",
            action="store_true",
            help="all symptoms with their suspects and looks, as Markdown",
        )
        add_json(parser)

    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        """The list where nothing is named, else the page of what is named."""
        from ncclkit.causes import catalogue, page
        from ncclkit.causes.symptoms import symptoms

        if options.symptoms:
            return _symptoms_answer()
        if not options.cause:
            titles = {name: page(name)[""] for name in catalogue()}
            return VerbAnswer(0, [NameTable("", list(titles.items()))], lambda: titles)
        if options.cause in symptoms():
            sections = _symptom_sections(options.cause)
        else:
            sections = page(options.cause)
        return VerbAnswer(
            0,
            parts=[CataloguePage(options.cause, sections)],
            data=lambda: {options.cause: sections},
        )


def _symptoms_answer() -> VerbAnswer:
    from ncclkit.causes.symptoms import page_of, symptoms
    from ncclkit.causes.symptoms.document import symptoms_document

    titles = {name: page_of(name)[""] for name in symptoms()}
    return VerbAnswer(0, [symptoms_document().rstrip("\n")], lambda: titles)


def _symptom_sections(symptom: str) -> dict[str, str]:
    """The page of a symptom, with its usual suspects as the last section."""
    from ncclkit.causes.symptoms import page_of, symptoms

    suspects = [f"{name}: {why}" for name, why in symptoms()[symptom].SUSPECTS.items()]
    return page_of(symptom) | {"Usual suspects": "\n".join(suspects)}
