"""Where the rank is not known, the sentence names what the line came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import judged_files, judged_text

FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


@pytest.mark.parametrize(
    ("prefix", "who"),
    [
        ("(RayWorkerWrapper pid=4711, ip=10.0.0.7) ", "A rank (process 4711 on 10.0.0.7) ran out"),
        ("(RayWorkerWrapper pid=4711) ", "A rank (process 4711) ran out"),
        ("[pod/job-worker-3/pytorch] ", "A rank on job-worker-3 ran out"),
        ("trainer-2  | ", "A rank on trainer-2 ran out"),
        ("", "A rank ran out"),
        ("[rank3]: ", "Rank 3 ran out"),
    ],
    ids=["ray", "ray on one host", "pod", "container", "nothing", "rank"],
)
def test_the_source_stands_in_the_place_of_the_rank(prefix: str, who: str) -> None:
    assert judged_text(prefix + FULL).findings[0].say.startswith(who)


def test_of_several_files_the_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "worker_a.log").write_text(FULL)
    (tmp_path / "worker_b.log").write_text("step 1/20 loss 2.1\n")
    assert judged_files(tmp_path).findings[0].say.startswith("A rank (in worker_a.log) ran out")


def test_a_file_name_tells_the_rank(tmp_path: Path) -> None:
    (tmp_path / "launcher.log").write_text("starting 2 ranks\n")
    (tmp_path / "rank0.log").write_text("step 1/20 loss 2.1\n")
    (tmp_path / "rank1.log").write_text(FULL)
    assert judged_files(tmp_path).findings[0].say.startswith("Rank 1 ran out")


def test_a_file_whose_name_is_no_name_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "a b; rm -r.log").write_text(FULL)
    (tmp_path / "worker_b.log").write_text("step 1/20 loss 2.1\n")
    assert judged_files(tmp_path).findings[0].say.startswith("A rank ran out")
