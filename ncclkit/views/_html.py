"""Elements of a page, escaped by construction.

Whatever is not `Markup` is text.  External text (log lines, host names, variables) reaches a page
only through `escaped_text`; a view cannot forget to escape, because it never joins strings itself.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from markupsafe import Markup as Markup
from markupsafe import escape

from ncclkit.core.text import plural

_QUOTED = re.compile(r"`([^`\n]+)`")
_RANGE = re.compile(r"(?<![\w.-])\d+-\d+(?![\w-])|(?<![\w.])[\d.]+ (?:%|[kMGT]?B/s|s\b)")
"""Numbers from one to another, such as the ranks 0-4, and with a unit.

It is no date and no part of a name.
"""

# Control characters are shown as their pictures: a raw NUL or ESC in a page is invalid or
# invisible.
_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {127: 0x2421}


def escaped_text(value: object) -> Markup:
    """One value as escaped text.

    Control characters and lone surrogates become visible ones.
    """
    if isinstance(value, Markup):
        return value
    return escape(str(value).translate(_PICTURES).encode("utf-8", "replace").decode())


def join(*parts: object) -> Markup:
    """Parts one after the other; None and empty ones are left out."""
    escaped_texts = []
    for part in parts:
        if part is not None and part != "":
            escaped_texts.append(escaped_text(part))
    return Markup("").join(escaped_texts)


def el(name: str, *children: object, cls: str = "", **attrs: object) -> Markup:
    """Make one element.

    ``data_label="x"`` becomes the attribute ``data-label``, True one without a value.
    """
    if cls:
        given = {"class": cls, **attrs}
    else:
        given = attrs
    named = {}
    for key, value in given.items():
        if value is not False:
            named[key.replace("_", "-")] = value
    attributes = []
    for key, value in named.items():
        attributes.append(f" {key}" if value is True else f' {key}="{escaped_text(value)}"')
    written = "".join(attributes)
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def fold(summary: object, *body: object, is_open: bool = False) -> Markup:
    """A `<details>` that needs no script.

    With nothing to hide, nothing is shown.
    """
    if not join(*body):
        return Markup("")
    return el("details", el("summary", summary), *body, cls="nk-fold", open=is_open)


def table(head: Sequence[str], rows: Iterable[Sequence[object]], cls: str = "") -> Markup:
    """A table whose rows stack on a phone.

    There each cell shows its column's name; one of two columns need not.
    """
    body = []
    for row in rows:
        body.append(
            el(
                "tr",
                *(
                    el("td", el("div", cell), data_label=name)
                    for name, cell in zip(head, row, strict=True)
                ),
            )
        )
    if not body:
        return Markup("")
    top = el("thead", el("tr", *(el("th", name, scope="col") for name in head)))
    return el(
        "table", top, el("tbody", *body), cls=f"nk-table {'nk-two' if len(head) == 2 else ''} {cls}"
    )


def code(value: object) -> Markup:
    """Short monospace text in a line."""
    return el("code", value)


def unbroken_ranges(value: object) -> Markup:
    """A sentence in large letters, whose ranges (0-4) and quantities (20 s) no line breaks."""
    whole = r'<span class="nk-whole">\g<0></span>'
    return Markup(_RANGE.sub(whole, str(escaped_text(value))))


def sentence(value: object) -> Markup:
    """A sentence in which `commands` between backticks stand as code.

    A backtick alone stays one.
    """
    return Markup(_QUOTED.sub(r"<code>\1</code>", str(escaped_text(value))))


SHORT = 48
"""Characters of a path that are shown: two lines on a phone."""


def location(path: object, line: int = 0, base: str = "") -> Markup:
    """A path, and its line, shortened in the middle.

    It is shown from `base` on; a pointer that rests on it shows all of it.
    """
    whole = str(path)
    # how a command line names what was pasted
    if whole == "-":
        whole = "pasted text"
    if base and whole.startswith(f"{base.rstrip('/')}/"):
        shown = os.path.relpath(whole, base)
    else:
        shown = whole
    names = shown.split("/")
    first = names[:2]
    last = names[2:]
    left = ""
    while len(last) > 1 and len("/".join([*first, left, *last])) > SHORT:
        # whole names: a name that a redacted page replaces must not stand there in part
        left = "…"
        last = last[1:]
    shown = "/".join([*first, *filter(None, [left]), *last])
    number = ""
    if line:
        number = f":{line}"
    return el("span", f"{shown}{number}", cls="nk-path", title=f"{whole}{number}")


def common(paths: Iterable[object]) -> str:
    """The folder that holds all of these files.

    Their places are shown from it on; it is empty where some are relative.
    """
    folders = {os.path.dirname(str(path)) for path in paths}
    # `commonpath` raises where relative paths are among absolute ones
    if folders and all(map(os.path.isabs, folders)):
        return os.path.commonpath(folders)
    return ""


def pre(value: object) -> Markup:
    """Raw lines, monospace, as they are."""
    return el("pre", value, cls="nk-pre")


def badge(symbol: str, word: str, cls: str) -> Markup:
    """A coloured label that also reads without colour: symbol and word."""
    return el("span", el("span", symbol, aria_hidden="true"), f" {word}", cls=f"nk-badge nk-{cls}")


def value(thing: Any) -> Markup:
    """A plain JSON value for people.

    Lists of dicts become tables, mappings become pairs.
    """
    if isinstance(thing, bool):
        return escaped_text("yes" if thing else "no")
    if isinstance(thing, dict):
        return el(
            "dl", *(join(el("dt", k), el("dd", value(v))) for k, v in thing.items()), cls="nk-pairs"
        )
    if isinstance(thing, (list, tuple)):
        return _list(list(thing))
    return escaped_text("–" if thing is None or thing == "" else thing)


def _list(items: list[Any]) -> Markup:
    if not items:
        return escaped_text("none")
    if all(isinstance(item, dict) for item in items):
        keys = chain.from_iterable(items)
        head = list(dict.fromkeys(map(str, keys)))
        rows = []
        for item in items:
            rows.append([value(item.get(key)) for key in head])
        return fit(table(head, rows, "nk-inner"))
    if all(not isinstance(item, (dict, list, tuple)) for item in items):
        return escaped_text(", ".join(str(item) for item in items))
    return pre(json.dumps(items, indent=1, ensure_ascii=False, default=str))


def long_table(
    head: Sequence[str], rows: Sequence[Sequence[object]], most: int, noun: str = "row"
) -> Markup:
    """A table of the first rows; the others are folded."""
    rest = fold(plural(len(rows) - most, f"more {noun}"), fit(table(head, rows[most:])))
    return join(fit(table(head, rows[:most])), rest)


def left_out(count: int, noun: str = "") -> Markup:
    """How many more there are than those that are shown.

    It is empty where there are none.
    """
    if count > 0:
        return el("p", f"… and {count:,} more{noun and f' {noun}'}", cls="nk-dim")
    return Markup("")


def fit(wide: Markup) -> Markup:
    """Wide content that scrolls inside its card instead of widening the page."""
    if wide:
        return el("div", wide, cls="nk-scroll")
    return wide
