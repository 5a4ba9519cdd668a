"""Runs a notebook of ours without a kernel: its cells in this process.

They run one after the other, for a page of what was read already: a kernel takes longer to start
than small logs to be judged.  What a cell shows is what its last line shows in Jupyter; what a form
waits for, nobody clicks.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat

from ncclkit.report.parameters import FOR_A_PERSON, PARAMETERS, read_notebook


def run_without_kernel(notebook: Path, values: Mapping[str, Any]) -> nbformat.NotebookNode:
    """The cells of `notebook` with what each shows.

    Its parameters are set to `values`.  The notebook must be one of ours, as its code runs here
    with all rights of this process.
    """
    cells = read_notebook(notebook)
    asyncio.run(_run_cells(cells, values))
    return cells


async def _run_cells(cells: nbformat.NotebookNode, values: Mapping[str, Any]) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells.cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type != "code" or FOR_A_PERSON in tags:
            continue
        shown = await _shown_by(cell.source, names)
        if PARAMETERS in tags:
            names |= values
        if shown is not None:
            # as plain text, which is what a kernel sends
            bundle = json.loads(json.dumps(shown._repr_mimebundle_()))
            cell.outputs = [nbformat.v4.new_output("display_data", data=bundle)]


async def _shown_by(source: str, names: dict[str, Any]) -> Any:
    """The value of the last line of a cell, where that is an expression."""
    module = ast.parse(source)
    last = None
    if module.body and isinstance(module.body[-1], ast.Expr):
        last = module.body.pop()
    await _evaluated(module, "exec", names)
    if last is None:
        return None
    assert isinstance(last, ast.Expr)
    return await _evaluated(ast.Expression(last.value), "eval", names)


async def _evaluated(tree: ast.Module | ast.Expression, mode: str, names: dict[str, Any]) -> Any:
    code = compile(tree, "<cell>", mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    value = eval(code, names)
    if inspect.iscoroutine(value):
        return await value
    return value
