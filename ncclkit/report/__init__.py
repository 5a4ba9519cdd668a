"""The report: a notebook kept as one offline HTML file in the case folder.

In: a notebook and its parameters, or the cells of one that is open.  Out: ``report.html``.
Whatever happens (a cell fails, the deadline passes, the kernel dies, Ctrl-C), what was done so far
is written first and the error is raised afterwards.  What only makes it (papermill, nbconvert) is
loaded when it is made: every open notebook has a button for it.

Begin with `make`; `keep` is for an open notebook, `page` draws the HTML.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncclkit.agent.redact import texts
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.core.secrets import text
from ncclkit.core.storage import write
from ncclkit.report.parameters import check_values, declared, literals, notebook, read_notebook

if TYPE_CHECKING:
    import nbformat

    from ncclkit.agent.anonymize import Aliases

__all__ = [
    "DEADLINE",
    "declared",
    "keep",
    "literals",
    "make",
    "notebook",
    "page_of_logs",
    "report_file",
]

MAIN_NOTEBOOKS = ("guided", "guided.zh")
"""The notebook whose report is the one of its case folder, in both languages."""
DEADLINE = 900.0
"""Seconds that a whole notebook may take."""


def make(
    notebook: Path,
    case_dir: Path,
    parameters: Mapping[str, Any],
    out: Path | None = None,
    deadline: float = DEADLINE,
    redact: bool = False,
    names: Sequence[str] = (),
) -> Path:
    """Run `notebook` with `parameters`, write its HTML file, return that file's path.

    `out` is the HTML file (default: `report_file`, and the executed notebook always lies there),
    `deadline` in seconds is for all cells together.  A parameter ``case_dir`` is filled in.
    Secrets are in neither file; `redact`, or a parameter of that name, also takes hosts, addresses,
    users and homes out of the HTML file, each replaced by the same word everywhere.  Relative paths
    mean what they mean to the caller.  `names` are taken out too; what was replaced by what is
    written beside the HTML file, for the sender alone (`replaced`).
    Raises NcclkitError in one sentence: for bad input before anything runs; for a notebook that
    stopped early after the report of its beginning was written.
    """
    from ncclkit.report import headless

    folder = Case.open(case_dir).path or Path(case_dir)
    usual = report_file(folder, notebook)
    if out:
        out = Path(out).expanduser().absolute()
    else:
        out = usual
    check_target(out)
    # a notebook that does not declare the parameter would refuse it
    given = {**({"case_dir": folder} if "case_dir" in declared(notebook) else {}), **parameters}
    values = {}
    for name, value in given.items():
        values[name] = str(value) if isinstance(value, os.PathLike) else value
    check_values(notebook, values)
    executed = usual.with_suffix(".ipynb")
    try:
        cells, failed = headless.execute(notebook, executed, values, deadline)
        hide = redact or bool(names) or values.get("redact") is True
        _write_page(
            out,
            cells,
            notebook,
            _aliases_of_case(folder, names) if hide else None,
            str(failed or ""),
        )
    except OSError as error:
        raise NcclkitError(_why_unwritten(error, out)) from error
    # only now: the report of what was done is written
    if isinstance(failed, KeyboardInterrupt):
        raise failed
    if failed:
        raise NcclkitError(f"{failed} The report up to there is {out}.") from failed
    return out


def report_file(folder: Path, notebook: Path) -> Path:
    """The HTML file of a notebook in a case folder.

    Each notebook has one of its own.
    """
    if notebook.stem in MAIN_NOTEBOOKS:
        return folder / "report.html"
    return folder / f"report-{notebook.stem}.html"


def page_of_logs(
    case: Case,
    out: Path,
    command: str,
    redact: bool = False,
    names: Sequence[str] = (),
) -> None:
    """Write the page of 03_logs about a case that was read already.

    It takes no kernel.  `command` is what makes it again; `redact` and `names` are as of `make`.
    """
    import nbformat

    from ncclkit.report import direct

    path = notebook("03_logs")
    aliases = None
    if redact or names:
        from ncclkit.report.page import anonymized

        aliases = anonymized.other_names(case, names)
    cells = direct.run_without_kernel(path, {"logs": case})
    cells.metadata["papermill"] = {"parameters": {"logs": str(case.about.get("logs") or "")}}
    cleaned = nbformat.from_dict(texts(cells, text))
    try:
        _write_page(out, cleaned, path, aliases, command=command)
    except OSError as error:
        raise NcclkitError(_why_unwritten(error, out)) from error


def check_target(out: Path) -> None:
    """Raise NcclkitError where no page can be written to this path."""
    problem = ""
    if out.is_dir():
        problem = f"it is a folder; name a file, such as {out / 'report.html'}"
    elif not os.access(out.parent, os.W_OK):
        problem = f"{out.parent} is not a folder you may write to"
    elif out.exists() and not out.is_file():
        problem = "it is not a file but a device or a pipe"
    elif out.exists() and not os.access(out, os.W_OK):
        problem = "you may not write to that file"
    if problem:
        raise NcclkitError(f"Cannot write the report {out}: {problem}.")


def replaced(out: Path) -> Path:
    """The file beside a redacted report that says which names were replaced by which."""
    return out.with_suffix(".names.txt")


def keep(
    notebook: Path,
    folder: Path,
    parameters: Mapping[str, Any],
    shown: Mapping[str, Mapping[str, Any]],
) -> Path:
    """Write the HTML file of an open notebook; returns its path.

    The notebook is open in a kernel, and is written with what its cells show there.  `parameters`
    are their values there; `shown` is the source of each cell that was run → its output as MIME
    types.  A cell that was not run shows nothing.
    """
    import nbformat

    cells = read_notebook(notebook)
    for cell in cells.cells:
        if cell.cell_type == "code":
            data = shown.get(cell.source) or {}
            if data:
                cell.outputs = [nbformat.v4.new_output("display_data", data=dict(data))]
            else:
                cell.outputs = []
    defaults = literals({name: parameter.default for name, parameter in declared(notebook).items()})
    # what stands at its default need not be typed again
    given = {name: value for name, value in parameters.items() if value != defaults.get(name)}
    cells.metadata["papermill"] = {"parameters": given | {"case_dir": str(folder)}}
    aliases = None
    if parameters.get("redact") is True:
        aliases = _aliases_of_case(folder)
    out = report_file(folder, notebook)
    try:
        cleaned = nbformat.from_dict(texts(cells, text))
        _write_page(out, cleaned, notebook, aliases)
    except OSError as error:
        raise NcclkitError(_why_unwritten(error, out)) from error
    return out


def _aliases_of_case(folder: Path, names: Sequence[str] = ()) -> Aliases:
    """What takes the names of this case's hosts and users out of its report.

    The `names` are taken out, too.
    """
    from ncclkit.report.page import anonymized

    return anonymized.other_names(Case.open(folder), names)


def _write_page(
    out: Path,
    cells: nbformat.NotebookNode,
    notebook: Path,
    aliases: Aliases | None,
    failed: str = "",
    command: str = "",
) -> None:
    """Write the HTML file of executed cells.

    Beside it is written the list of the names that were replaced in it.
    """
    from ncclkit.report import page

    write(
        out,
        page.render(
            cells,
            name=notebook.name,
            folder=notebook.parent,
            failed=failed,
            aliases=aliases,
            command=command,
        ),
    )
    if aliases is not None:
        write(
            replaced(out),
            "".join(
                f"{name} → {replacement}\n"
                for name, replacement in sorted(aliases.replaced.items())
            ),
        )
        # it tells what the report hides
        replaced(out).chmod(0o600)


def _why_unwritten(error: OSError, out: Path) -> str:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    if full:
        reason = "no space is left"
    else:
        reason = error.strerror or str(error)
    return (
        f"Cannot write the report {out}: {reason}; what was there before is untouched; name another"
        " folder."
    )
