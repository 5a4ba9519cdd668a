"""The answer once more at the end of a page, in one line, with the way back up to it.

*Run All* ends at the bottom, while what everybody looks for stands screens above.
"""

from __future__ import annotations

from ncclkit.causes.diagnosis import Diagnosis
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.views._base import View
from ncclkit.views._html import badge, el
from ncclkit.views.banner import ANCHOR, VERDICTS
from ncclkit.views.findings import strength_part


def answer_view(case: Case, diagnosis: Diagnosis | None = None) -> View:
    """The verdict on a case in one line, and a link to its banner above.

    Without `diagnosis` the case is judged now.
    """
    diagnosis = diagnosis or diagnose(case)
    if diagnosis.verdict == "found":
        mark = strength_part(diagnosis.findings[0])
    else:
        mark = badge(*VERDICTS[diagnosis.verdict])
    link = el("a", "↑ to the answer", href=f"#{ANCHOR}", target="_self")
    line = el("p", mark, " ", diagnosis.headline, " ", link)
    return View(diagnosis.headline, line, titled=False)
