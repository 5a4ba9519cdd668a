"""The training scripts whose steps are measured elsewhere, rehearsed: all are healthy, some are slow."""

from pathlib import Path

import pytest

from tests.rehearsal.rehearsed import ROOT, rehearse_words

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
FOLDER = ROOT / "tests" / "bench" / "step"
SCRIPTS = sorted([*FOLDER.glob("*.py"), *FOLDER.glob("own/*.py")])
LIBRARIES = {
    "accelerate_state": "accelerate",
    "accelerated": "accelerate",
    "lightning_validation": "lightning",
    "lit": "lightning",
    "trainer_prints": "transformers",
}
"""Script → the library that it needs."""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_training_script_agrees(tmp_path: Path, script: Path) -> None:
    if script.stem in LIBRARIES:
        pytest.importorskip(LIBRARIES[script.stem])
    answer = rehearse_words(tmp_path, [str(script)], "--ranks", "2", "--steps", "3")
    assert (answer["exit"], answer["kind"]) == (0, "agree"), answer["sentence"]
    assert answer["shared"] == [] and answer["figures"]["calls"] > 3
