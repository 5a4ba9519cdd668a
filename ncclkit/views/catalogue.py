"""The catalogue of causes, as its modules' own docstrings tell it: one page to open for each cause."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclkit.causes import catalogue, page
from ncclkit.core.text import plural
from ncclkit.views._base import View
from ncclkit.views._html import Markup, code, el, fold, join


def catalogue_view(only: str = "") -> View:
    """The pages of all causes, or of those that hold the word `only` (any case) in their name or text."""
    pages = {name: page(name) for name in catalogue()}
    wanted = only.casefold()
    texts = {name: " ".join([name, *parts.values()]).casefold() for name, parts in pages.items()}
    shown = {name: parts for name, parts in pages.items() if wanted in texts[name]}
    folds = (_page(name, parts, is_open=len(shown) == 1) for name, parts in shown.items())
    about = f" of {len(pages)} speak{'s' if len(shown) == 1 else ''} of “{only}”" if only else ""
    return View(f"{plural(len(shown), 'cause')}{about or ' known'}", join(*folds))


def _page(name: str, parts: dict[str, str], is_open: bool) -> Markup:
    sections = (join(el("h5", heading), *_paragraphs(words)) for heading, words in parts.items() if heading)
    return fold(join(code(name), " ", parts.get("", "")), el("div", *sections, cls="nk-card"), is_open=is_open)


def _paragraphs(words: str) -> list[Markup]:
    """Hard-wrapped lines flow again; blank lines part paragraphs."""
    return [el("p", *_marked(" ".join(block.split()))) for block in words.split("\n\n") if block.strip()]


MARK = re.compile(r"`([^`]+)`|(?<!\w)\*([^*\s][^*]*)\*(?!\w)")


def _marked(words: str) -> Iterator[object]:
    """`code` and *stress* of a docstring as markup; everything else as text."""
    at = 0
    for match in MARK.finditer(words):
        yield words[at : match.start()]
        yield code(match[1]) if match[1] else el("em", match[2])
        at = match.end()
    yield words[at:]
