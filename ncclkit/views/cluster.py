"""Where this notebook is, and what will run where.

It shows partitions of the cluster, your accounts, and jobs of the case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ipywidgets as W

from ncclkit.core.case import Case
from ncclkit.core.text import some
from ncclkit.live import node_kinds, scheduler, submit
from ncclkit.live.job_outcomes import job_outcomes
from ncclkit.views._base import View
from ncclkit.views._html import Markup, code, el, fit, fold, join, table

NOTHING_HEAVY = (
    "Facts are read and logs are judged on this host. A test starts ranks, so it goes to nodes as a"
    " batch job: "
)


def cluster_view(case: Case, verb: str = "") -> View:
    """Where this is, what the cluster has, and this case's jobs.

    It is a login node, an allocation, or a machine of its own.  `verb` is that of the command that
    sends the notebook's test to nodes, where no form and no parameter `job` does.
    """
    login = scheduler.is_login_node()
    if login and not case.facts_of("scheduler."):
        case.replace_facts(scheduler.read_facts())
    return View(
        scheduler.scheduler_sentence(case), join(_login(case, verb) if login else "", _jobs(case))
    )


def login_card(case: Case, verb: str) -> list[W.Widget]:
    """What a form shows above its fields on a login node.

    Nothing of it runs there; nothing is shown elsewhere.
    """
    if scheduler.is_login_node():
        return [W.HTML(str(cluster_view(case, verb).static()))]
    return []


def _login(case: Case, verb: str) -> Markup:
    """The card of a login node."""
    answers = scheduler.known(case)
    if verb:
        where = join("in a terminal ", code(f"ncclkit submit -N 2 {verb}"), ".")
    else:
        here = join(code("job='here'"), " runs it on this host.")
        parameter = code("job='-N 2 -t 10'")
        where = join("fill in the form, or set the parameter ", parameter, "; ", here)
    head = ("Partition", "Nodes", "Idle", "GPUs a node", "Features", "Slurm's time limit", "For")
    rows = [_partition(row) for row in answers.get("partitions", [])]
    accounts = []
    for row in answers.get("accounts", []):
        accounts.append([row.get(name) or "–" for name in ("account", "partition", "qos")])
    queue = []
    for job in answers.get("jobs", []):
        queue.append((scheduler.job_number_words(job.get("id", "")), scheduler.job_words(job)))
    unread = []
    for fact in case.facts_of("scheduler."):
        if fact.value is None:
            unread.append((fact.source, fact.why))
    return join(
        el("p", NOTHING_HEAVY, where),
        fit(table(head, rows)),
        fold("Your accounts", fit(table(("Account", "Partition", "QoS"), accounts))),
        fold("Your jobs", fit(table(("Id", "Job"), queue))),
        fold("What Slurm did not answer", fit(table(("Command", "Why"), unread))),
    )


def _partition(row: Mapping[str, Any]) -> tuple[object, ...]:
    gpus = scheduler.gpus_of_partition(row).removesuffix(" a node").removesuffix(" GPUs")
    if gpus == "no":
        gpus = "none"
    features = some(node_kinds.features_of([row])) or "–"
    # Slurm writes ALL where nobody is excluded
    if row["accounts"] in ("", "ALL"):
        allowed = "everybody"
    else:
        allowed = row["accounts"]
    if row["state"] == "UP":
        state = ""
    else:
        state = f" {row['state']}"
    name = join(code(row["name"]), " (default)" if row["default"] else "", state)
    return (name, row["nodes"], row["idle"], gpus, features, row["time_limit"].lower(), allowed)


def _jobs(case: Case) -> Markup:
    """The batch jobs that were submitted from this case, and what became of them."""
    rows = []
    for outcome in job_outcomes(submit.submitted_jobs(case), case):
        rows.append((code(" ".join(outcome.job.words[:1])), outcome.state.sentence))
    return fit(table(("Verb", "Batch jobs of this case"), rows))
