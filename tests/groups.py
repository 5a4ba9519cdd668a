"""Which tests are long, and which run one after the other where several test processes run side by side.

What is made once for many tests is made in one process: a module's fixtures, a notebook's reports, JupyterLab.  By the
name of a test alone, as whoever deals the tests out has collected none.
"""

from __future__ import annotations

import re
from typing import Any

from xdist.scheduler import LoadScopeScheduling

TOGETHER = {
    "browser/test_buttons.py": "clicks",
    "browser/test_environment.py": "JupyterLab",
    "browser/test_lab.py": "JupyterLab",
    "browser/test_logs.py": "JupyterLab",
    "browser/test_loop.py": "JupyterLab",
    "browser/test_start.py": "clicks",
    "browser/test_submit.py": "JupyterLab",
    "browser/test_tuning.py": "JupyterLab",
    "causes/test_advice.py": "recordings",
    "causes/test_experiments.py": "recordings",
    "causes/test_preflight.py": "recordings",
    "causes/test_samples.py": "recordings",
    "causes/test_specimens.py": "recordings",
    "evidence/test_align.py": "recordings",
    "evidence/test_communicators.py": "recordings",
    "evidence/test_timeline.py": "recordings",
    "notebooks/test_all_to_all.py": "5_all_to_all",
    "notebooks/test_lightning.py": "2_lightning",
    "notebooks/test_llama_recipes.py": "3_llama_recipes",
    "notebooks/test_logs.py": "03_logs",
    "notebooks/test_papermill.py": "guided",
    "notebooks/test_papermill.py::test_a_reader_of_the_logs_finds_culprit_lines_and_advice": "03_logs",
    "notebooks/test_recbole.py": "1_recbole",
    "notebooks/test_wenet.py": "4_wenet",
    "views/test_headlines.py": "recordings",
}
"""Files, or tests of one, that share what others use, too."""
REPORTS = (
    "browser/test_report.py",
    "notebooks/test_nbval.py",
    "notebooks/test_papermill.py",
    "notebooks/test_stories.py",
)
"""Files with tests of every notebook, which look at one report of it."""
LONG = (
    "browser/test_answer.py",
    "browser/test_buttons.py",
    "browser/test_environment.py",
    "browser/test_lab.py",
    "browser/test_logs.py",
    "browser/test_report.py",
    "browser/test_submit.py",
    "browser/test_tuning.py",
    "causes/test_differential.py",
    "causes/test_exam.py",
    "causes/test_first_step.py",
    "causes/test_ranking.py",
    "causes/test_resemblance.py",
    "causes/test_sizes.py",
    "cli/test_exam.py",
    "cli/test_one_answer.py",
    "cli/test_page.py",
    "cli/test_streams.py",
    "evidence/test_frames.py",
    "evidence/test_fuzz.py",
    "facts/test_gate_acts.py",
    "hostile/test_drivers.py",
    "hostile/test_growth.py",
    "hostile/test_memory.py",
    "hostile/test_patterns.py",
    "hostile/test_records.py",
    "hostile/test_rendezvous.py",
    "hostile/test_secrets.py",
    "hostile/test_swap.py",
    "hostile/test_words.py",
    "live/test_attach_jobs.py",
    "live/test_engines.py",
    "live/test_gang.py",
    "live/test_hang_ways.py",
    "live/test_healthy_jobs.py",
    "live/test_kept_jobs.py",
    "live/test_launch.py",
    "live/test_launcher_waits.py",
    "live/test_restart_lines.py",
    "live/test_simulated_hosts.py",
    "live/test_slurm.py",
    "live/test_staged_test.py",
    "live/test_submit.py",
    "live/test_user_cluster.py",
    "live/test_user_situations.py",
    "notebooks/test_logs.py",
    "notebooks/test_report.py",
    "packaging/test_secrets.py",
    "packaging/test_wheel.py",
    "probe/test_experiment.py",
    "probe/test_probe.py",
    "probe/test_resource_checks.py",
    "probe/test_step.py",
    "probe/test_sweep.py",
    "rehearsal/test_fake.py",
    "rehearsal/test_gpu_choice.py",
    "rehearsal/test_lab.py",
    "rehearsal/test_scripts.py",
    "rehearsal/test_step_scripts.py",
    "views/test_attach.py",
    "views/test_job.py",
)
"""Files whose tests take two thirds of the time of all: `make test` leaves them to `make test-all`.

What they try is tried by a quicker test, too: the command starts and judges jobs
(`cli/test_cli.py`), a browser goes from a paste to a report (`browser/test_start.py`).
"""
LONG_REPORT = re.compile(r"\d_\w+|0[1245]_\w+")
"""How the groups of notebooks are called whose reports wait for jobs of their own.

`make test` makes those of guided (a machine), 03_logs (a job that ended) and 00_start_here.
"""


def is_long(nodeid: str) -> bool:
    """Whether a test is left to `make test-all`: of a long file, or of a long report."""
    file = nodeid.partition("::")[0].removeprefix("tests/")
    return file in LONG or bool(LONG_REPORT.fullmatch(group(nodeid)))


APART = (
    "cli/test_cli.py",
    "live/test_hang_ways.py",
    "live/test_healthy_jobs.py",
    "live/test_launch.py",
    "live/test_simulated_hosts.py",
    "probe/test_exchange.py",
    "probe/test_experiment.py",
    "probe/test_faults.py",
    "probe/test_probe.py",
)
"""Long files; their tests run apart, but for those that share a fixture of the module."""
SHARED = (
    "TestContract",
    "test_a_fix_is_shown",
    "test_a_healthy_run_has",
    "test_an_interpreter_that",
    "test_completion",
    "test_every_variable_that",
    "test_measures_and",
    "test_progress_arrives",
    "test_the_folder_is",
    "test_the_telemetry_is",
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

    def _assign_work_unit(self, node: Any) -> None:
        """One group to a worker; it stays in the queue where the worker has crashed, of which xdist hears next."""
        scope = next(iter(self.workqueue))
        try:
            super()._assign_work_unit(node)
        except OSError:
            self.workqueue[scope] = self.assigned_work[node].pop(scope)
            self.workqueue.move_to_end(scope, last=False)
            node.shutdown()

    def remove_node(self, node: Any) -> str | None:
        """The test in which a worker crashed, None where it had none left; its other tests go to other workers.

        xdist's own hands the test that crashed out again, to crash the next worker, and the next.
        """
        workload = self.assigned_work.pop(node)
        left = {scope: [test for test, done in unit.items() if not done] for scope, unit in workload.items()}
        crashed = next((test for tests in left.values() for test in tests), None)
        for scope, tests in left.items():
            if rest := dict.fromkeys((test for test in tests if test != crashed), False):
                self.workqueue[scope] = rest
        if crashed is not None:
            for other in self.nodes:
                self._reschedule(other)
        return crashed

    def _reschedule(self, node: Any) -> None:
        """More work for a worker; one that replaces another gets its first when it has collected the tests."""
        if node in self.registered_collections:
            super()._reschedule(node)
            # a worker begins a test when it knows the next one, and asks for more when one is done
            while self.workqueue and self._pending_of(self.assigned_work[node]) < 2 and not node.shutting_down:
                super()._reschedule(node)
