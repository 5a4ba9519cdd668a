"""The report: a notebook run headless by papermill, kept as one offline HTML file in the case folder.

Whatever happens (a cell fails, the deadline passes, the kernel dies, Ctrl-C), what was done so far
is written first and the error is raised afterwards.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
import zmq
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill import execute_notebook
from papermill.exceptions import PapermillExecutionError
from papermill.iorw import LocalHandler, papermill_io

from ncclkit.agent.anonymize import Aliases
from ncclkit.agent.redact import texts
from ncclkit.core.case import Case
from ncclkit.core.model import NcclkitError
from ncclkit.core.secrets import text
from ncclkit.core.storage import write
from ncclkit.report import page
from ncclkit.report.page import anonymized
from ncclkit.report.parameters import check, declared, literals, notebook, read

__all__ = ["DEADLINE", "Kernel", "declared", "keep", "literals", "make", "notebook"]

DEADLINE = 900.0
"""Seconds that a whole notebook may take."""


class Kernel(AsyncKernelManager):
    """A kernel of the running interpreter, with no kernelspec installed anywhere and encrypted sockets."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if zmq.has("curve") and self.has_trait("transport_encryption"):
            self.transport_encryption = "auto"

    @property
    def kernel_spec(self) -> KernelSpec:
        """What starts it; the host's own ``python3`` kernelspec may belong to another environment."""
        argv = [sys.executable, "-Xfrozen_modules=off", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        ability = {"supported_encryption": "curve"}
        return KernelSpec(argv=argv, display_name="ncclkit", language="python", metadata=ability)


class _Drafts(LocalHandler):  # type: ignore[misc]
    """How papermill writes a notebook; its own handler fails where a path holds a byte that is no UTF-8."""

    def write(self, buf: str, path: str) -> None:
        write(Path(path), buf)


papermill_io.register("/", _Drafts())


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

    `out` is the HTML file (default ``<case_dir>/report.html``; the executed notebook is always
    ``<case_dir>/report.ipynb``), `deadline` in seconds is for all cells together.  A parameter ``case_dir`` is filled
    in.  Secrets are in neither file; `redact`, or a parameter of that name, also takes hosts, addresses, users and
    homes out of the HTML file, each replaced by the same word everywhere.  Relative paths mean what they mean to the
    caller.  `names` are taken out too; what was replaced by what is written beside the HTML file, for the sender alone
    (`replaced`).  Raises NcclkitError in one sentence: for bad input before anything runs; for a notebook that stopped
    early after the report of its beginning was written.
    """
    folder = Case.open(case_dir).path or Path(case_dir)
    out = Path(out).expanduser().absolute() if out else folder / "report.html"
    if not os.access(out.parent, os.W_OK):
        raise NcclkitError(f"Cannot write the report {out}: {out.parent} is not a folder you may write to.")
    given = {**({"case_dir": folder} if "case_dir" in declared(notebook) else {}), **parameters}
    values = {name: str(value) if isinstance(value, os.PathLike) else value for name, value in given.items()}
    check(notebook, values)
    executed = folder / "report.ipynb"
    try:
        failed = _execute(notebook, executed, values, deadline)
        hide = redact or bool(names) or values.get("redact") is True
        aliases = anonymized.names(Case.open(folder), names) if hide else None
        cells, why = nbformat.read(executed, as_version=4), str(failed or "")
        _write_page(out, cells, notebook, aliases, why)
    except OSError as error:
        raise NcclkitError(_unwritten(error, out)) from error
    if isinstance(failed, KeyboardInterrupt):
        raise failed
    if failed:
        raise NcclkitError(f"{failed} The report up to there is {out}.") from failed
    return out


def replaced(out: Path) -> Path:
    """The file beside a redacted report that says which names were replaced by which."""
    return out.with_suffix(".names.txt")


def keep(notebook: Path, folder: Path, parameters: Mapping[str, Any], shown: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write the HTML file of a notebook that is open in a kernel, with what its cells show there; returns its path.

    parameters: their values there; shown: the source of each cell that was run → its output as MIME types.  A cell
    that was not run shows nothing.
    """
    cells = read(notebook)
    for cell in cells.cells:
        if cell.cell_type == "code":
            data = shown.get(cell.source) or {}
            cell.outputs = [nbformat.v4.new_output("display_data", data=dict(data))] if data else []
    defaults = literals({name: parameter.default for name, parameter in declared(notebook).items()})
    given = {name: value for name, value in parameters.items() if value != defaults.get(name)}
    cells.metadata["papermill"] = {"parameters": given | {"case_dir": str(folder)}}
    aliases = anonymized.names(Case.open(folder)) if parameters.get("redact") is True else None
    out = folder / "report.html"
    try:
        cleaned = nbformat.from_dict(texts(cells, text))
        _write_page(out, cleaned, notebook, aliases)
    except OSError as error:
        raise NcclkitError(_unwritten(error, out)) from error
    return out


def _write_page(
    out: Path, cells: nbformat.NotebookNode, notebook: Path, aliases: Aliases | None, failed: str = ""
) -> None:
    """Write the HTML file of executed cells, and beside it the list of the names that were replaced in it."""
    write(out, page.render(cells, name=notebook.name, folder=notebook.parent, failed=failed, aliases=aliases))
    if aliases is not None:
        write(replaced(out), "".join(f"{name} → {alias}\n" for name, alias in sorted(aliases.replaced.items())))
        replaced(out).chmod(0o600)


def _execute(notebook: Path, executed: Path, values: dict[str, Any], deadline: float) -> BaseException | None:
    """Run all cells into `executed`, replaced whole at the end; returns what stopped it early, if anything."""
    logging.getLogger("papermill").setLevel(logging.CRITICAL)  # what it logs also comes as an exception
    draft = executed.with_name(".report.ipynb")
    end = time.monotonic() + deadline
    failed: BaseException | None = None
    try:
        execute_notebook(
            read(notebook),
            draft,
            values,
            kernel_name="python3",
            language="python",
            progress_bar=sys.stderr.isatty(),
            start_timeout=min(deadline, 120),
            timeout_func=lambda _cell: max(1, round(end - time.monotonic())),
            kernel_manager_class=Kernel,
            extra_arguments=["--log-level=CRITICAL"],
            store_widget_state=False,
        )
    except KeyboardInterrupt:
        # nobody awaits the cell's task any more; it ends with the kernel, of which asyncio would print a traceback
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        failed = KeyboardInterrupt("It was interrupted.")
    except (PapermillExecutionError, CellTimeoutError, DeadKernelError) as error:
        failed = NcclkitError(text(_sentence(error, deadline)))
    except RuntimeError as error:  # what jupyter_client raises for a kernel that does not come up
        draft.unlink(missing_ok=True)
        raise NcclkitError(f"The notebook's kernel did not start: {_first_line(error)}.") from error
    except OSError:
        draft.unlink(missing_ok=True)  # half a notebook must not replace the last whole one
        raise
    cells = nbformat.read(draft, as_version=4)
    cleaned = nbformat.from_dict(texts(cells, text))
    if cleaned != cells:  # a secret among the parameters, or in what a cell printed
        write(draft, nbformat.writes(cleaned))
    os.replace(draft, executed)
    return failed


def _sentence(error: Exception, deadline: float) -> str:
    """Why the notebook stopped, for a person who did not write it."""
    if isinstance(error, PapermillExecutionError):
        if error.ename == "NcclkitError":
            return str(error.evalue)
        return f"Cell [{error.exec_count}] of the notebook raised {error.ename}: {_first_line(error.evalue)}."
    if isinstance(error, CellTimeoutError):
        return f"The notebook was not done after {deadline:.0f} s and was stopped."
    return "The notebook's kernel died, most likely of a lack of memory; `dmesg` says."


def _first_line(error: object) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _unwritten(error: OSError, out: Path) -> str:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    reason = "no space is left" if full else error.strerror or str(error)
    return f"Cannot write the report {out}: {reason}; what was there before is untouched; name another folder."
