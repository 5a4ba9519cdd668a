"""`ncclkit inspect` with the numbers of the job that is to run."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclkit.cli import main
from ncclkit.core.case import Case


@pytest.mark.usefixtures("warm_ranks")
def test_a_job_that_does_not_fit_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = ["--ranks", "2", "--workers", "4096", "--dataset-bytes", str(1 << 60)]
    assert main(["inspect", "--case", str(tmp_path / "case"), *job]) == 1
    said = capsys.readouterr().out
    assert "2 ranks with 4096 data-loader workers each are 8194 processes" in said
    assert "the data of 2 ranks needs 2,097,152 TiB" in said
    assert [fact.value for fact in Case.open(tmp_path / "case").facts_of("job.workers")] == [4096]


def test_a_job_that_cannot_be_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--case", str(tmp_path / "case"), "--workers", "-1"]) == 2
    assert "--workers must be a whole number between 0 and 100,000" in capsys.readouterr().err
