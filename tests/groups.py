"""Which tests run one after the other in one process, where several test processes run side by side (pytest-xdist).

What is made once for many tests is made in one process: a module's fixtures, a notebook's reports, JupyterLab.  By the
name of a test alone, as whoever deals the tests out has collected none.
"""

from __future__ import annotations

import re

from xdist.scheduler import LoadScopeScheduling

TOGETHER = {
    "browser/test_environment.py": "JupyterLab",
    "browser/test_lab.py": "JupyterLab",
    "browser/test_logs.py": "JupyterLab",
    "browser/test_loop.py": "JupyterLab",
    "causes/test_experiments.py": "specimens",
    "causes/test_specimens.py": "specimens",
    "notebooks/test_all_to_all.py": "5_all_to_all",
    "notebooks/test_lightning.py": "2_lightning",
    "notebooks/test_llama_recipes.py": "3_llama_recipes",
    "notebooks/test_logs.py": "03_logs",
    "notebooks/test_papermill.py": "guided",
    "notebooks/test_recbole.py": "1_recbole",
    "notebooks/test_wenet.py": "4_wenet",
}
"""Files, or tests of one, that share what others use, too."""
REPORTS = ("browser/test_report.py", "notebooks/test_nbval.py", "notebooks/test_papermill.py")
"""Files with tests of every notebook, which look at one report of it."""
APART = (
    "cli/test_cli.py",
    "live/test_launch.py",
    "live/test_pretended.py",
    "live/test_slurm.py",
    "probe/test_exchange.py",
    "probe/test_experiment.py",
    "probe/test_mend.py",
    "probe/test_probe.py",
)
"""Long files; their tests run apart, but for those that share a fixture of the module."""
SHARED = (
    "TestContract",
    "test_a_fix_is_shown",
    "test_a_healthy_run_has",
    "test_an_interpreter_that",
    "test_every_variable_that",
    "test_measures_and",
    "test_progress_arrives",
    "test_the_fix_of_another",
    "test_the_folder_is",
    "test_the_strip_is",
    "test_what_cannot_be_asked",
)
"""How those begin."""


def group(nodeid: str) -> str:
    """The tests of one group run in one process, in order."""
    path, _, name = nodeid.partition("::")
    file = path.removeprefix("tests/")
    notebook = re.search(r"\[(\d+_\w+|guided)\b", name)
    if file in REPORTS and notebook:
        return notebook[1]
    if file in APART and not name.startswith(SHARED):
        return nodeid
    return TOGETHER.get(f"{file}::{name}", TOGETHER.get(file, file))


class Groups(LoadScopeScheduling):
    """Deals out whole groups, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)
