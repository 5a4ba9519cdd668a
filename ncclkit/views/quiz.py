"""A guess before the answer: whoever has decided remembers what comes next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ipywidgets as W

from ncclkit.core.model import NcclkitError
from ncclkit.views._base import View, style
from ncclkit.views._html import Markup, badge, el, fold, join, text


def guess(question: str, choices: Mapping[str, str], right: str) -> Guess:
    """A question with a choice widget; on paper the choices, and the answers folded below them.

    choices: what can be picked → what is said to whoever picks it (why it is right, or what speaks against it);
    right: the one of them that holds.  Raises NcclkitError where there is nothing to choose, or `right` is none
    of them.
    """
    if len(choices) < 2 or right not in choices:
        raise NcclkitError(f"The question {question!r} needs two choices or more, and {right!r} must be one of them.")
    return Guess(question, choices, right)


class Guess(View):
    """See `guess`."""

    def __init__(self, question: str, choices: Mapping[str, str], right: str) -> None:
        self._choices, self._right = choices, right
        listed = el("ul", *(el("li", choice) for choice in choices))
        answers = (el("div", self._answer(choice, named=True), cls="nk-answer") for choice in choices)
        super().__init__(question, join(listed, fold("What speaks for each, and against it", *answers)))
        self.pick = W.RadioButtons(options=list(choices), value=None, layout=W.Layout(width="auto"))
        self.told = W.HTML()
        self.pick.observe(self._tell, "value")
        asked = W.HTML(join(style(), el("div", el("p", question, cls="nk-say"), cls="nk")))
        self._box = W.VBox([asked, self.pick, self.told], layout=W.Layout(width="100%"))

    def widget(self) -> W.Widget:
        """The question, the choices, and below them what is said of the one that was picked."""
        return self._box

    def _tell(self, change: Mapping[str, Any]) -> None:
        chosen = change["new"]
        told = Markup("") if chosen is None else self._answer(chosen)
        self.told.value = el("div", told, role="status", cls="nk")

    def _answer(self, choice: str, *, named: bool = False) -> Markup:
        mark = badge("✓", "right", "state-done") if choice == self._right else badge("✕", "not this", "possible")
        head = join(mark, " ", el("b", choice)) if named else mark
        return el("p", head, " ", text(self._choices[choice]))
