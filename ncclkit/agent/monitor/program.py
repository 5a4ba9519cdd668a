"""What the program of a rank says of the lines in its stack.

It tells calls, loops, and the conditions on the rank around them, of a process that `snapshots`
looks at and of a job that died (`ncclkit.evidence.programs`).  Only its source is read, as text:
nothing of it is imported or run.
"""

import ast
import re
from functools import lru_cache

from .. import redact

LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python\d|^<")
BY_RANK = re.compile(
    r"rank|main_process|process_zero|global_zero|is_master|is_chief", re.IGNORECASE
)
"""Conditions that are true on some ranks only."""
IDLES = re.compile(r"(?:\w+\.)?sleep\(")
"""A statement of a loop that only waits."""
OWN, FILES, BRANCHES = 12, 4, 100
"""Own lines of a stack, source files of a rank whose branches are read, and branches of each, at
most."""
TAKEN_AT = 4
"""Lines that take a lock, or locks around a line, at most."""


def own_files(frames):
    """The source files of the user's own code in a stack."""
    return list(
        dict.fromkeys(frame["file"] for frame in frames if not LIBRARY.search(frame["file"]))
    )


def sources(texts, frames):
    """What a process's program says of the lines in its stack.

    It tells the branches in their files, too.  `texts` is {path: source} of its `own_files`, as
    everywhere in this module.
    """
    program_rows, called = [], []  # type: ignore[var-annotated]
    for frame in frames:
        if not LIBRARY.search(frame["file"]):
            program_rows.append(
                source_line(texts, frame["file"], int(frame["line"]), frame["func"], called)
            )
            called = []
        called = [*called, frame["func"].rpartition(".")[2]]
    files = list(dict.fromkeys(row["file"] for row in program_rows))
    rows = [row for file in files[:FILES] for row in branches(texts, file)]
    return {"program": program_rows[:OWN], "branches": rows}


def source_line(texts, path, line, func="", called=()):
    """What the source of a line of a process says.

    It tells the call, its group, and the loops and conditions on the rank around it.  `func` is the
    function that the line is in, as the stack names it; `called` are those that it has called,
    where more than one call stands in the line.
    """
    source = texts.get(path, "")
    around = [
        node
        for node in _nodes(source)
        if node.__dict__.get("lineno", line + 1) <= line <= _end(node)
    ]
    keywords = [
        word
        for node in around
        if isinstance(node, ast.Call)
        for word in node.keywords
        if word.arg == "group"
    ]
    group = next((ast.unparse(word.value) for word in keywords), "")
    peers = [
        word.value
        for node in around
        if isinstance(node, ast.Call)
        for word in node.keywords
        if word.arg in ("src", "dst")
    ]
    peer = next(
        (
            node.value
            for node in peers
            if isinstance(node, ast.Constant) and isinstance(node.value, int)
        ),
        None,
    )
    loops = [
        [node.lineno, _end(node.body[-1])]
        for node in around
        if isinstance(node, (ast.For, ast.While))
    ]
    text = text_of_line(source, line)
    if func.endswith("<lambda>"):
        text = _body_of_lambda(around) or text
    return {
        "file": path,
        "line": line,
        "func": func,
        "text": redact.text(text)[:160],
        "group": group[:60],
        "peer": peer,
        "conditions": [redact.text(one)[:120] for one in conditions(source, line, called)],
        "loops": [loop for loop in loops if loop[0] <= line <= loop[1]],
        "retries": redact.text(retried_text(around, line))[:120],
        **locks_at(source, line),
    }


def text_of_line(source, line):
    """The text of a line of a program; "" behind its end."""
    if line <= source.count("\n") + 1:
        return source.splitlines()[line - 1].strip()
    return ""


def _body_of_lambda(around):
    """What the only lambda in a line does; "" where there is none, or are several."""
    found = []
    for node in around:
        if isinstance(node, ast.Lambda):
            found.append(node)
    if len(found) != 1:
        return ""
    body = found[0].body
    return ast.unparse(body)


def locks_at(source, line):
    """{takes, taken_at, holds}: the locks of a line of a program, by the names that it gives them.

    `takes` is the one that is taken in the line, by ``with`` or ``acquire``, and `taken_at` the
    other lines of the file that take one of that name; `holds` are those of ``with`` around it.
    """
    lines = _taken_locks(source)
    here = [name for name, taken in lines.items() if line in taken]
    takes = ""
    elsewhere = set()  # type: set[int]
    if len(here) == 1:
        takes = here[0]
        elsewhere = lines[takes] - {line}
    holds = []  # type: list[str]
    for node in _nodes(source):
        if not isinstance(node, (ast.With, ast.AsyncWith)):
            continue
        if _spans(node.body, line):
            names = map(_lock_name, node.items)
            holds += filter(None, names)
    return {
        "takes": _short_name(takes),
        "taken_at": sorted(elsewhere)[:TAKEN_AT],
        "holds": list(map(_short_name, holds[:TAKEN_AT])),
    }


def _short_name(name):
    return redact.text(name)[:60]


def _taken_locks(source):
    """{name of a lock: lines that take it} of a program."""
    found = {}  # type: dict[str, set[int]]
    for node in _nodes(source):
        if isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                name = _lock_name(item)
                found.setdefault(name, set()).add(item.context_expr.lineno)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "acquire":
                name = ast.unparse(node.func.value)
                found.setdefault(name, set()).add(node.lineno)
    found.pop("", None)
    return found


def _lock_name(item):
    """``self._lock`` of a ``with`` on an object that has a name; "" of what is made in place."""
    if isinstance(item.context_expr, (ast.Name, ast.Attribute)):
        return ast.unparse(item.context_expr)
    return ""


def with_program(texts, frames):
    """Frames of a thread, each of the user's own code with its text and its `locks_at`."""
    found = []
    for frame in frames:
        source = texts.get(frame["file"], "")
        line = int(frame["line"])
        more = {}  # type: dict[str, object]
        if source:
            text = text_of_line(source, line)
            more = locks_at(source, line)
            more["text"] = redact.text(text)[:160]
        row = {**frame, **more}
        found.append(row)
    return found


def retried_text(around, line):
    """What the innermost loop around a line tries again and again; "" where it is no such loop.

    It is the condition of a ``while``, or of an endless one the first statement of its ``try``.
    """
    innermost = None
    for node in around:
        if not isinstance(node, (ast.For, ast.While)):
            continue
        if not _spans(node.body, line) and not _only_waits(node, line):
            continue
        # where a loop stands in another one, the inner one begins later
        if innermost is None or node.lineno > innermost.lineno:
            innermost = node
    if innermost is None:
        return ""
    if isinstance(innermost, ast.While) and not isinstance(innermost.test, ast.Constant):
        return "while " + ast.unparse(innermost.test)
    for one in innermost.body:
        if isinstance(one, ast.Try):
            return ast.unparse(one.body[0])
    return ""


def _only_waits(node, line):
    """Whether a line is in the condition of a loop that does nothing but wait for it."""
    if not isinstance(node, ast.While) or not _spans([node.test], line):
        return False
    for one in node.body:
        text = ast.unparse(one)
        is_idle = isinstance(one, ast.Pass) or IDLES.match(text)
        if not is_idle:
            return False
    return True


def targets(texts, path, line):
    """The variables of the loops around a line of a process, outermost first.

    Those that number ranks are left out.
    """
    names = []
    for loop in _nodes(texts.get(path, "")):
        if not isinstance(loop, (ast.For, ast.AsyncFor)):
            continue
        if not loop.body[0].lineno <= line <= _end(loop.body[-1]):
            continue
        for one in ast.walk(loop.target):
            # _ is what a script calls a variable that it does not read
            if isinstance(one, ast.Name) and one.id.strip("_") and not BY_RANK.search(one.id):
                names.append(one.id)
    return names


def calls_in_function(source, line, func):
    """The functions that are called in a line; None where the line is not in that function.

    An object that is called has no name, and the module itself is ``<module>``.
    """
    names = []
    for node in _nodes(source):
        if not isinstance(node, _SCOPES):
            continue
        if node.lineno <= line <= _end(node):
            names.append(getattr(node, "name", "<lambda>"))
    # a comprehension is a function of its own up to Python 3.11, which no statement names
    if func == "<module>":
        is_inside = not names
    else:
        is_inside = func in names or func.startswith("<")
    if not is_inside:
        return None
    return _calls(_nodes(source)[:1], line)


def conditions(source, line, called=()):
    """The conditions on the rank under which a line is reached, innermost first.

    `called` are the functions that were called from the line.  They decide where a condition and
    what depends on it stand in one line; where they do not, the condition is left out.
    """
    found = [
        (parts[0].lineno, text)
        for parts, text, others in _guarded(_nodes(source))
        if BY_RANK.search(text) and _is_at(parts, others, line, called)
    ]
    return list(dict.fromkeys(text for _, text in sorted(found, key=lambda row: -row[0])))


def branches(texts, path):
    """Lines of a file that only some ranks reach: [{file, first, last, condition}].

    A Flight Recorder names lines that no stack shows any more.
    """
    found = []
    for parts, text, others in _guarded(_nodes(texts.get(path, ""))):
        if BY_RANK.search(text):
            lines = range(parts[0].lineno, _end(parts[-1]) + 1)
            alone = [line for line in lines if _is_at(parts, others, line)]
            if alone:
                row = {"file": path, "first": alone[0], "last": alone[-1]}
                found.append({**row, "condition": redact.text(text)[:120]})
    return found[:BRANCHES]


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
"""What runs under a name of its own in a stack."""


def _guarded(nodes):
    """Parts of a program, each with the condition under which it is reached.

    A third value holds other parts that may stand in their lines.  A condition is that of an ``if``
    unless it says ``while`` or, after an ``if`` that leaves, ``past``.
    """
    for node in nodes:
        if isinstance(node, (ast.If, ast.IfExp)):
            sides = [[node.test], _parts(node.body), _parts(node.orelse)]
            yield sides[1], ast.unparse(node.test), [sides[0], sides[2]]
            if sides[2]:
                yield sides[2], _not(node.test), sides[:2]
        elif isinstance(node, ast.While) and not any(
            isinstance(one, ast.Call) for one in ast.walk(node.test)
        ):
            yield node.body, "while " + ast.unparse(node.test), [[node.test]]
        elif isinstance(node, ast.BoolOp):
            for number, value in enumerate(node.values[1:], 1):
                if number == 1:
                    whole = node.values[0]
                else:
                    whole = ast.BoolOp(node.op, node.values[:number])
                rest = [[one] for one in node.values if one is not value]
                yield (
                    [value],
                    ast.unparse(whole) if isinstance(node.op, ast.And) else _not(whole),
                    rest,
                )
        for name in ("body", "orelse", "finalbody"):
            yield from _past(getattr(node, name, None))


def _past(block):
    """As `_guarded`, of what follows an ``if`` that leaves its block."""
    for number, one in enumerate(block[:-1] if isinstance(block, list) else ()):
        if isinstance(one, ast.If):
            how = [_leaves(side) for side in (one.body, one.orelse)]
        else:
            how = ["", ""]
        if bool(how[0]) != bool(how[1]):
            if how[0]:
                test = ast.unparse(one.test)
            else:
                test = _not(one.test)
            yield block[number + 1 :], "past if %s: %s" % (test, how[0] or how[1]), []


def _parts(body):
    if isinstance(body, list):
        return body
    return [body]


def _leaves(block):
    """The ``return``, ``exit`` … by which a block is surely left.

    It is "" where what follows the block may be reached from it.
    """
    last = None
    if block:
        last = block[-1]
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        called = str(getattr(last.value.func, "attr", getattr(last.value.func, "id", "")))
        if called in ("exit", "_exit", "quit"):
            return "exit"
        return ""
    if isinstance(last, (ast.Return, ast.Raise, ast.Continue, ast.Break)):
        return type(last).__name__.lower()
    return ""


_PAIRS = (
    (ast.Eq, ast.NotEq),
    (ast.Lt, ast.GtE),
    (ast.Gt, ast.LtE),
    (ast.In, ast.NotIn),
    (ast.Is, ast.IsNot),
)
OPPOSITE = dict(_PAIRS)  # type: dict[type[ast.cmpop], type[ast.cmpop]]
OPPOSITE.update((other, one) for one, other in _PAIRS)


def _not(test):
    """The opposite of a condition, as one would write it."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return ast.unparse(test.operand)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return ast.unparse(
            ast.Compare(test.left, [OPPOSITE[type(test.ops[0])]()], test.comparators)
        )
    return ast.unparse(ast.UnaryOp(ast.Not(), test))


def _is_at(parts, others, line, called=()):
    """Whether a process that is at a line is in these parts.

    It must not be in another part of the same line.
    """
    if not _spans(parts, line):
        return False
    rivals = [other for other in others if other and _spans(other, line)]
    if not rivals:
        return True
    calls = {number: _calls(part, line) for number, part in enumerate([parts, *rivals])}
    fit = [number for number, names in calls.items() if names.intersection(called)]
    return (fit or [number for number, names in calls.items() if names]) == [0]


def _spans(parts, line):
    return parts[0].lineno <= line <= _end(parts[-1])


def _calls(parts, line):
    """The functions that parts of a program call in a line.

    A decorated or a computed one gets a name that no function has.
    """
    found = [
        node
        for part in parts
        for node in ast.walk(part)
        if isinstance(node, ast.Call) and _spans([node], line)
    ]
    return {str(getattr(node.func, "attr", getattr(node.func, "id", "()"))) for node in found}


@lru_cache(maxsize=64)
def _nodes(source):
    """All nodes of a program; none of what is no Python."""
    try:
        return list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _end(node):
    return getattr(node, "end_lineno", None) or 0
