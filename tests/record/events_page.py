"""Print the table of docs/events.md from the classes of events: ``python -m tests.record.events_page`` writes the page.

The first column is the kind, the second its fields with what stands below them in `ncclkit/core/kinds.py`, the third
the docstring of its class: what the kind is read from.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from ncclkit.core import kinds
from ncclkit.core.kinds import KINDS, Fields
from tests.packaging.project import ROOT

PAGE = ROOT / "docs" / "events.md"
HEAD = "| kind | data | from |\n|---|---|---|\n"


def documented() -> dict[tuple[str, str], str]:
    """(class, field) → the text below the field, in one line."""
    tree = ast.parse(Path(kinds.__file__).read_text(encoding="utf-8"))
    found = {}
    for holder in tree.body:
        if isinstance(holder, ast.ClassDef):
            for field, below in zip(holder.body, holder.body[1:], strict=False):
                note = _text(below)
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and note:
                    found[holder.name, field.target.id] = " ".join(note.split())
    return found


def _text(statement: ast.stmt) -> str:
    """What a statement says that is a text alone; empty for any other."""
    is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return str(ast.literal_eval(ast.unparse(statement))) if is_constant else ""


def table() -> str:
    """Every kind with its fields and what it is read from, as Markdown."""
    notes = documented()
    return HEAD + "".join(f"{_row(kind, notes)}\n" for kind in KINDS)


def _row(kind: str, notes: dict[tuple[str, str], str]) -> str:
    fields = KINDS[kind]
    cells = [_field(name, _note(fields, name, notes)) for name in fields.__struct_fields__]
    source = " ".join((inspect.getdoc(fields) or "").split())
    return f"| `{kind}` | {', '.join(cells) or '–'} | {source} |".replace("||", "\\|\\|")


def _note(fields: type[Fields], name: str, notes: dict[tuple[str, str], str]) -> str:
    holders = [holder.__name__ for holder in fields.__mro__ if (holder.__name__, name) in notes]
    return notes[holders[0], name] if holders else ""


def _field(name: str, note: str) -> str:
    if not note:
        return f"`{name}`"
    return f"`{name}` {note}" if note.startswith(("[", "{")) else f"`{name}` ({note})"


def page() -> str:
    """The page as it is, with the table as it must be."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(HEAD)
    rows = rest.splitlines(keepends=True)
    after = next(number for number, row in enumerate(rows) if not row.startswith("|"))
    return before + table() + "".join(rows[after:])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
