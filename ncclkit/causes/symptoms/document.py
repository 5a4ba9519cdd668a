"""``docs/symptoms.md``: all symptoms with their pages, suspects and looks, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from ncclkit.causes import page
from ncclkit.causes.differential import settled_table
from ncclkit.causes.looks import all_questions, cause_looks
from ncclkit.causes.symptoms import HEADINGS, page_of, symptoms

HEAD = """# Symptoms

What a person holds first is mostly a line that many causes share. `ncclkit ask LOG` shows which
causes it usually has, and asks the one question that tells most; here is all of it. The counts are
of settled cases: posted failures, the examination, and recorded runs. This page is printed by
`ncclkit causes --symptoms`.
"""


def symptoms_document() -> str:
    """The whole page, in Markdown."""
    parts = [HEAD]
    for symptom in symptoms():
        parts.append("\n".join(_symptom_page(symptom)))
    parts.append("\n".join(_looks_table()))
    return "\n".join(parts).rstrip() + "\n"


def _symptom_page(symptom: str) -> Iterator[str]:
    about = page_of(symptom)
    yield f"## {about['']}"
    yield ""
    yield f"`{symptom}`"
    for heading in HEADINGS:
        yield ""
        yield f"**{heading}.** {' '.join(about[heading].split())}"
    yield ""
    counts = settled_table().named[symptom]
    yield f"| suspect | why it shows this | settled cases of {counts.total()} |"
    yield "|---|---|---|"
    for cause, why in symptoms()[symptom].SUSPECTS.items():
        yield f"| `{cause}` | {_table_cell(why)} | {counts[cause]} |"
    yield ""


def _looks_table() -> Iterator[str]:
    """Every question with what each answer means: the broad ones first."""
    yield "## The looks that decide"
    yield ""
    yield "| look | question | now | yes | no | next time |"
    yield "|---|---|---|---|---|---|"
    causes = cause_looks()
    for name, look in all_questions().items():
        title = f"`{name}`"
        if name in causes:
            title += f": {page(name)[''].rstrip('.')}"
        now = ""
        if look.now:
            now = f"`{look.now}`"
        later = ""
        if look.next_time:
            later = f"`{look.next_time}`"
        cells = (title, look.question, now, look.yes, look.no, later)
        yield f"| {' | '.join(map(_table_cell, cells))} |"


def _table_cell(text: str) -> str:
    """A text as a cell of a Markdown table."""
    return text.replace("|", "\\|")
