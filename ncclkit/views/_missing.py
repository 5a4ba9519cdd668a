"""A view that has nothing to show, which a report names in one line at its end."""

from __future__ import annotations

from ncclkit.views._base import NOTHING, View
from ncclkit.views._html import Markup, el


class NoData(View):
    """What a view shows where its data are not there: why, in a sentence.

    In a notebook the sentence stands in its place; a report (`ncclkit.report.page`) leaves the
    section out and names it at the end.
    """

    def __init__(self, subject: str, why: str, sentence: str = "", body: Markup = NOTHING):
        """subject: what is not shown, such as ``the rings``; why: in a clause.

        sentence: what the notebook says, where that is more.
        """
        super().__init__(sentence or f"Nothing is known of {subject}: {why}", body)
        self.subject = subject
        self.why = why

    def static(self) -> Markup:
        """The sentence, and for a report what is missing and why."""
        return el(
            "div",
            super().static(),
            cls="nk-no-data",
            data_subject=self.subject,
            data_why=self.why,
        )
