"""Runs a notebook with nobody at it.

It uses papermill, with a kernel of the running interpreter.
"""

from __future__ import annotations

import logging
import os
import sys
import time
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

from ncclkit.agent.redact import texts
from ncclkit.core.model import NcclkitError
from ncclkit.core.secrets import text
from ncclkit.core.storage import write
from ncclkit.report.parameters import read_notebook


class Kernel(AsyncKernelManager):
    """A kernel of the running interpreter, with encrypted sockets.

    No kernelspec is installed anywhere for it.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if zmq.has("curve") and self.has_trait("transport_encryption"):
            self.transport_encryption = "auto"

    @property
    def kernel_spec(self) -> KernelSpec:
        """What starts it.

        The host's own ``python3`` kernelspec may belong to another environment.
        """
        argv = [
            sys.executable,
            "-Xfrozen_modules=off",
            "-m",
            "ipykernel_launcher",
            "-f",
            "{connection_file}",
        ]
        ability = {"supported_encryption": "curve"}
        return KernelSpec(argv=argv, display_name="ncclkit", language="python", metadata=ability)


QUIET = (
    "--log-level=CRITICAL",
    "--IPKernelApp.exec_lines="
    "__import__('logging').getLogger('tornado.general').setLevel('CRITICAL')",
)
"""Keep a kernel's own log off the terminal.

That is also what it says while it ends; what matters comes as an exception.
"""


class _Drafts(LocalHandler):  # type: ignore[misc]
    """How papermill writes a notebook.

    Its own handler fails where a path holds a byte that is no UTF-8.
    """

    def write(self, buf: str, path: str) -> None:
        write(Path(path), buf)


papermill_io.register("/", _Drafts())


def execute(
    notebook: Path, executed: Path, values: dict[str, Any], deadline: float
) -> tuple[nbformat.NotebookNode, BaseException | None]:
    """Execute all cells into `executed`, replaced whole at the end.

    Returns the cells, and what stopped it early.
    """
    # what it logs also comes as an exception
    logging.getLogger("papermill").setLevel(logging.CRITICAL)
    draft = executed.with_name(f".{executed.name}")
    end = time.monotonic() + deadline
    failed: BaseException | None = None
    try:
        execute_notebook(
            read_notebook(notebook),
            draft,
            values,
            kernel_name="python3",
            language="python",
            progress_bar=sys.stderr.isatty(),
            start_timeout=min(deadline, 120),
            # all cells share one deadline
            timeout_func=lambda _cell: max(1, round(end - time.monotonic())),
            kernel_manager_class=Kernel,
            extra_arguments=[*QUIET],
            store_widget_state=False,
        )
    except KeyboardInterrupt:
        # nobody awaits the cell's task any more; it ends with the kernel, of which asyncio would
        # print a traceback
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        failed = KeyboardInterrupt("It was interrupted.")
    except (PapermillExecutionError, CellTimeoutError, DeadKernelError) as error:
        failed = NcclkitError(text(_why_stopped(error, deadline)))
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
    return cleaned, failed


def _why_stopped(error: Exception, deadline: float) -> str:
    """Why the notebook stopped, for a person who did not write it."""
    if isinstance(error, PapermillExecutionError):
        if error.ename == "NcclkitError":
            return str(error.evalue)
        return (
            f"Cell [{error.exec_count}] of the notebook raised {error.ename}:"
            f" {_first_line(error.evalue)}."
        )
    if isinstance(error, CellTimeoutError):
        return f"The notebook was not done after {deadline:.0f} s and was stopped."
    return "The notebook's kernel died, most likely of a lack of memory; `dmesg` says."


def _first_line(error: object) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
