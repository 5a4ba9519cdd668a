"""Story 5, run headless: the odd rank is named, the fix works, and a missing rank is called by its number."""

from __future__ import annotations

import json
import re

import pytest
from bs4 import BeautifulSoup

from ncclkit.core.case import Case
from ncclkit.experiments import baseline, fixes
from ncclkit.report import report_file
from tests.reports import NOTEBOOKS, made


@pytest.mark.timeout(300)
def test_the_unpaired_rank_is_found_and_fixed_and_the_missing_one_named() -> None:
    story = next(path for path in NOTEBOOKS if path.stem == "5_all_to_all")
    folder, run = made(story)
    assert run.returncode == 0, run.stderr
    first = json.loads((folder / "findings.json").read_text(encoding="utf-8"))[0]
    assert (first["cause"], first["culprits"]["ranks"]) == ("send_recv_mismatch", [2])
    *_, fix = fixes.experiments(Case.open(folder, read_only=True))
    assert (fix.kind, fix.observed, fix.verdicts["send_recv_mismatch"]) == ("fix", "works", "proven")
    main = BeautifulSoup(report_file(folder, story).read_text(encoding="utf-8"), "html.parser").main
    assert main is not None
    read = main.get_text(" ")
    assert "On 2 and 3 ranks every value is right" in read
    assert "Rank 0 waits in all_reduce 8 of default_pg; ranks 1 and 2 never entered it" in read
    assert "rank 2 has not come, it is at 12" in read
    # the last step: the mended program, before it takes GPUs again
    assert re.search(r"Rehearsal of \d ranks: all ranks agree", read)
    assert baseline.last(Case.open(folder / "works", read_only=True)).reason == "done"  # the same program on two ranks
    steps = [event.data for event in Case.open(folder / "practice").of("worker.phase") if event.data.phase == "shares"]
    assert len(steps) == 5 and not any(data.wrong for data in steps)  # an empty share and odd counts, each rank
