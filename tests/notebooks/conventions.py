"""The conventions of notebooks, each as a function: notebook → what is wrong with it, one string for each place."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from itertools import pairwise

import nbformat
from nbformat import NotebookNode, ValidationError, validate
from papermill import inspect_notebook

Rule = Callable[[NotebookNode], Iterator[str]]

CHECKED = "nbval-check-output"
ANSWER_AGAIN = "nk.show.answer("
MAKES_A_FORM, OF_THE_REPORT = "nk.form.", "nk.form.report("
MOST_LINES, MOST_CELLS, LEAST_WORDS = 5, 18, 12
FORBIDDEN = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.With)
MACHINE_PATH = re.compile(r"""["'](?:~|/(?:home|root|tmp|usr|opt|etc|var|mnt|scratch|data|work|nfs|path|Users)\b)""")


def tags(cell: NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", []))


def code_cells(nb: NotebookNode) -> list[tuple[int, NotebookNode]]:
    return [(i, cell) for i, cell in enumerate(nb.cells) if cell.cell_type == "code"]


def lines(cell: NotebookNode) -> list[str]:
    """Lines of code: neither blank nor a comment."""
    return [line for line in cell.source.splitlines() if line.strip() and not line.strip().startswith("#")]


def tree(cell: NotebookNode) -> ast.Module | None:
    """The cell's syntax tree, or None for a magic, a shell escape or what is no Python."""
    try:
        return compile(cell.source, "cell", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError:
        return None


def opens_with_a_question(nb: NotebookNode) -> Iterator[str]:
    first = nb.cells[0]
    titles = re.findall(r"^# .*", first.source, re.M)
    if first.cell_type != "markdown" or len(titles) != 1 or not titles[0].rstrip().endswith(("?", "？")):
        yield "the first cell must be prose with one H1 that is a question"
    for promise, chinese in (("what you get", "收获"), ("what you need", "准备"), ("how long", "用时")):
        if promise not in first.source.lower() and chinese not in first.source:
            yield f"the first cell must say {promise}"


def has_one_title(nb: NotebookNode) -> Iterator[str]:
    for i, cell in enumerate(nb.cells[1:], 1):
        if cell.cell_type == "markdown" and re.search(r"^# ", cell.source, re.M):
            yield f"cell {i}: a second H1"


def declares_parameters(nb: NotebookNode) -> Iterator[str]:
    second = nb.cells[1] if len(nb.cells) > 1 else None
    if second is None or second.cell_type != "code" or "parameters" not in tags(second):
        yield "the second cell must be code with the tag parameters"
        return
    known = inspect_notebook(nb)
    for line in lines(second):
        name = re.match(r"\w+", line)
        told = known.get(name.group()) if name else None
        if told is None or told["inferred_type_name"] == "None" or not told["help"]:
            yield f"papermill --help-notebook cannot explain {line!r}: write `name: type = literal  # comment`"
            continue
        try:
            ast.literal_eval(told["default"])
        except (ValueError, SyntaxError):
            yield f"parameter line {line!r}: the default must be a literal"


def imports_once(nb: NotebookNode) -> Iterator[str]:
    code = [cell for _, cell in code_cells(nb) if "parameters" not in tags(cell)]
    for place, cell in enumerate(code):
        body = getattr(tree(cell), "body", [])
        kinds = {isinstance(node, (ast.Import, ast.ImportFrom)) for node in body}
        if kinds != {place == 0}:
            yield "the first code cell after the parameters must hold all imports and nothing else"
            return


def form_of(cell: NotebookNode) -> str:
    """The variable of the form that a cell shows, as `form = nk.form.tune(case)` and then `form`; "" for others."""
    body = getattr(tree(cell), "body", [])
    if len(body) < 2 or not isinstance(body[-1], ast.Expr) or not isinstance(body[-2], ast.Assign):
        return ""
    made, shown = body[-2], ast.unparse(body[-1])
    return shown if ast.unparse(made.targets[0]) == shown and MAKES_A_FORM in ast.unparse(made.value) else ""


def awaits(cell: NotebookNode, form: str) -> bool:
    """Whether a cell awaits this form."""
    return bool(form) and f"await {form}.run(" in cell.source


def forms_are_shown_and_then_awaited(nb: NotebookNode) -> Iterator[str]:
    """One rhythm, so that a click and Run All do the same; the report of the page itself only has its button."""
    code = code_cells(nb)
    for (i, cell), (_, following) in pairwise([*code, (-1, nbformat.v4.new_code_cell())]):
        if cell.source.startswith(OF_THE_REPORT):
            continue
        form = form_of(cell)
        if MAKES_A_FORM in cell.source and (not form or "await " + form in cell.source):
            yield f"cell {i}: a form is assigned to a name and shown by its last line, and awaited by the next cell"
        elif form and not awaits(following, form):
            yield f"cell {i}: the next code cell must await {form}.run()"


def prose_before_code(nb: NotebookNode) -> Iterator[str]:
    for i, cell in code_cells(nb):
        above = nb.cells[i - 1]
        if i > 2 and above.cell_type != "markdown" and not awaits(cell, form_of(above)):
            yield f"cell {i}: code without prose directly before it"


def cells_are_short(nb: NotebookNode) -> Iterator[str]:
    for i, cell in code_cells(nb):
        if "parameters" not in tags(cell) and len(lines(cell)) > MOST_LINES:
            yield f"cell {i}: {len(lines(cell))} lines of code, at most {MOST_LINES}"


def cells_are_few(nb: NotebookNode) -> Iterator[str]:
    """A form and the cell that awaits it are one step; the answer said once more at the end is none."""
    cells = [cell for _, cell in code_cells(nb) if not cell.source.startswith(ANSWER_AGAIN)]
    count = len(cells) - sum(awaits(after, form_of(cell)) for cell, after in pairwise(cells))
    if count > MOST_CELLS:
        yield f"{count} steps of code, at most {MOST_CELLS}"


def no_logic(nb: NotebookNode) -> Iterator[str]:
    for i, cell in code_cells(nb):
        nodes = tree(cell)
        if nodes is None:
            yield f"cell {i}: magic, shell escape or no Python"
            continue
        for node in ast.walk(nodes):
            if isinstance(node, FORBIDDEN):
                yield f"cell {i}: {type(node).__name__}; logic belongs into the package"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                yield f"cell {i}: print; show the object instead"


def no_machine_paths(nb: NotebookNode) -> Iterator[str]:
    for i, cell in code_cells(nb):
        if found := MACHINE_PATH.search(cell.source):
            yield f"cell {i}: the path {found.group()[1:]}… exists on one machine only"


def no_stored_outputs(nb: NotebookNode) -> Iterator[str]:
    for i, cell in code_cells(nb):
        if CHECKED in tags(cell):
            if not cell.outputs:
                yield f"cell {i}: marked for comparison, but no output is stored"
        elif cell.outputs or cell.execution_count is not None:
            yield f"cell {i}: a stored output or execution count"


def reads_like_a_book(nb: NotebookNode) -> Iterator[str]:
    words = sum(len(cell.source.split()) for cell in nb.cells if cell.cell_type == "markdown")
    code = sum(len(lines(cell)) for _, cell in code_cells(nb) if "parameters" not in tags(cell))
    if words < LEAST_WORDS * code:
        yield f"{words / max(code, 1):.1f} words of prose for a line of code, at least {LEAST_WORDS}"


def is_valid(nb: NotebookNode) -> Iterator[str]:
    if (nb.nbformat, nb.nbformat_minor) != (4, 5):
        yield f"format {nb.nbformat}.{nb.nbformat_minor}, must be 4.5"
    try:
        validate(nb, relax_add_props=False)
    except ValidationError as error:
        yield f"not valid: {error.message}"
    ids = [cell.get("id", "") for cell in nb.cells]
    if len(set(ids)) < len(ids) or any(re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f-]+)?", name) for name in ids):
        yield "cell ids must be there, different and given by hand (no random ones)"
    if "widgets" in nb.metadata:
        yield "widget state is stored"


RULES: tuple[Rule, ...] = (
    opens_with_a_question,
    has_one_title,
    declares_parameters,
    imports_once,
    forms_are_shown_and_then_awaited,
    prose_before_code,
    cells_are_short,
    cells_are_few,
    no_logic,
    no_machine_paths,
    no_stored_outputs,
    reads_like_a_book,
    is_valid,
)
