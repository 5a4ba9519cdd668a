"""Notebooks by name, and their parameters.

It tells which there are and what type each wants, and makes values of text.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncclkit.core.model import NcclkitError
from ncclkit.core.text import did_you_mean, parse_size

if TYPE_CHECKING:
    import nbformat

PARAMETERS = "parameters"
"""Tag of the cell that declares them, as papermill knows it."""
FOR_A_PERSON = "remove-cell"
"""Tag, as Jupyter Book knows it, of a cell that no page holds.

It is a form, an example, or what to click.
"""
TYPES: dict[str, type] = {kind.__name__: kind for kind in (int, float, str, bool, list, dict)}
NOTEBOOK_FOLDERS = (
    Path(__file__).parents[1] / "notebooks",
    Path(__file__).parents[2] / "notebooks",
)
"""Where the kit's own notebooks are: in an installed wheel, in a clone."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a notebook, as its ``parameters`` cell writes it."""

    default: str
    """Source text."""
    annotation: str = ""
    what: str = ""
    """What its line says of it."""

    @property
    def type(self) -> type | None:
        """The type it wants; None for anything.

        It is its annotation where that is plain, else that of its default.
        """
        default = _literal_value(self.default)
        return TYPES.get(self.annotation) or (
            None if self.annotation or default is None else type(default)
        )


def notebook(name: str) -> Path:
    """The notebook at the path `name`, or the kit's own notebook of that name (``guided``)."""
    known = own()
    path = Path(name).expanduser()
    if not path.is_file() and name not in known:
        raise NcclkitError(f"There is no notebook {name}; {_hint_on_name(name, known)}")
    if path.is_file():
        return path.absolute()
    return known[name]


def own() -> dict[str, Path]:
    """The kit's own notebooks by name."""
    found = {}
    for folder in NOTEBOOK_FOLDERS:
        for file in sorted(folder.rglob("*.ipynb")):
            found[str(file.relative_to(folder).with_suffix(""))] = file
    return found


def read_notebook(path: Path) -> nbformat.NotebookNode:
    """The notebook of a file, told to be Python.

    Tools that strip notebooks remove what papermill asks for.
    """
    import nbformat

    try:
        cells: nbformat.NotebookNode = nbformat.read(path, as_version=4)
    except OSError as error:
        raise NcclkitError(
            f"Cannot read the notebook {path}: {error.strerror or error}."
        ) from error
    except Exception as error:  # nbformat and json raise a dozen kinds for what is not a notebook
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise NcclkitError(f"{path} is not a Jupyter notebook of format 4: {reason}") from error
    cells.metadata.setdefault(
        "kernelspec", {"name": "python3", "display_name": "Python 3", "language": "python"}
    )
    return cells


def declared(path: Path) -> dict[str, Parameter]:
    """The parameters of the notebook's cell tagged ``parameters``, by name.

    It is None where no cell is tagged.
    """
    cells = [
        cell.source
        for cell in read_notebook(path).cells
        if PARAMETERS in cell.metadata.get("tags", [])
    ]
    source = cells[0] if cells else ""
    try:
        lines = ast.parse(source).body
    except SyntaxError as error:
        raise NcclkitError(
            f"The parameters cell of {path} is not Python: line {error.lineno}, {error.msg}."
        ) from error
    found = {}
    for line in lines:
        if isinstance(line, (ast.Assign, ast.AnnAssign)) and line.value is not None:
            target = line.target if isinstance(line, ast.AnnAssign) else line.targets[0]
            annotation = ""
            if isinstance(line, ast.AnnAssign):
                annotation = ast.unparse(line.annotation)
            written = source.splitlines()[(line.end_lineno or line.lineno) - 1]
            comment = written.encode()[line.end_col_offset :].decode().partition("#")[2]
            found[ast.unparse(target)] = Parameter(
                ast.unparse(line.value), annotation, comment.strip()
            )
    return found


def literals(pairs: Mapping[str, str], path: Path | None = None) -> dict[str, Any]:
    """Values typed on a command line, as Python literals or text.

    They are literals where they can be.  What the notebook `path` declares as text stays text
    (``job=4711``); a whole number may be a size (``64MB``).
    """
    known = {}
    if path:
        known = {name: parameter.type for name, parameter in declared(path).items()}
    values = {
        name: text if known.get(name) is str else _literal_value(text)
        for name, text in pairs.items()
    }
    sizes = {
        name
        for name, value in values.items()
        if known.get(name) is int and re.match(r"\d", str(value))
    }
    return values | {name: parse_size(values[name], f"The parameter {name}") for name in sizes}


def check_values(path: Path, values: Mapping[str, Any]) -> None:
    """Raise NcclkitError when `values` do not fit the notebook's declarations.

    They do not when they hold a name that it does not declare, or a value of the wrong type.
    """
    known = declared(path)
    for name, value in values.items():
        if name not in known:
            raise NcclkitError(f"{path.name} has no parameter {name}; {_hint_on_name(name, known)}")
        kind = known[name].type
        if kind and not _fits_type(value, kind):
            raise NcclkitError(
                f"The parameter {name} of {path.name} must be {kind.__name__}, such as"
                f" {known[name].default}, but it is {value!r} ({type(value).__name__})."
            )


def _fits_type(value: Any, kind: type) -> bool:
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if isinstance(value, float) and not math.isfinite(value):  # 1e999 is read as infinity
        return False
    return isinstance(value, (int, float) if kind is float else kind)


def _literal_value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _hint_on_name(name: str, known: Iterable[str]) -> str:
    return did_you_mean(name, known, f"there is: {', '.join(known) or 'none'}.")
