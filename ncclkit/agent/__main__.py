"""``python -m ncclkit.agent VERB …`` or ``python agent.pyz VERB …``."""

import importlib
import json
import os
import shutil
import signal
import sys

from . import private, wire

VERBS = {
    "collective": "run.collective",
    "connect": "connect.session",
    "gate": "gate",
    "guard": "run.guard",
    "hosts": "run.simulated_hosts",
    "launch": "run.launch",
    "resources": "run.resource_checks",
    "node": "run.node",
    "sweep": "run.sweep",
}
"""Verb → the module whose ``main`` runs it; beside these there are ``facts``, ``record`` and ``attach``."""


def main(argv=None):
    """Run one verb and return its exit status, 2 for an unknown one; after ``--own`` remove the program's folder."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == [private.OWN]:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # as Slurm ends a step
        try:
            return main(argv[1:])
        finally:
            shutil.rmtree(os.path.dirname(sys.argv[0]))
    verb = argv[0] if argv else ""
    if verb == "facts":
        return _facts(argv[1:])
    if verb == "record":
        return importlib.import_module(".facts", __package__).record(argv[1]) or 0
    if verb == "attach":
        return _attach(argv[1], json.loads(argv[2]), argv[3:])
    if verb not in VERBS:
        sys.stderr.write("agent: say one of: %s\n" % ", ".join(sorted([*VERBS, "attach", "facts", "record"])))
        return 2
    return importlib.import_module("." + VERBS[verb], __package__).main(argv[1:])


def _facts(argv):
    """``facts [label=path …]``: one record per fact, and one at the end; labelled paths are looked at as storage."""
    facts = importlib.import_module(".facts", __package__)
    paths = dict(item.split("=", 1) for item in argv if "=" in item)
    for fact in facts.collect(torch="--no-torch" not in argv, paths=paths or {"work": "."}):
        wire.send("fact", **fact)
    wire.send("complete")
    return 0


def _attach(folder, options, words):
    """``attach FOLDER OPTIONS RANK=PID …`` or ``… job=ID``: evidence of these processes, or of a Slurm job's here.

    options: those of `monitor.attach.collect_and_sample`, as JSON.  Sends a record for each thing that is missing.
    """
    from .monitor import attach
    from .run import processes

    node = ""
    processes.die_with_parent()
    if words[0].startswith("job="):
        node = os.environ["SLURM_NODEID"]
        jobs = processes.jobs(processes.of_slurm(words[0][4:], os.environ["SLURM_STEP_ID"], node))
        ranks = jobs[0] if jobs else {}
        wire.send("ranks", ranks={str(rank): pid for rank, pid in ranks.items()})
    else:
        ranks = {int(rank): int(pid) for rank, pid in (word.split("=") for word in words)}
    for problem in attach.collect_and_sample(folder, ranks, node=node, **options) if ranks else ():
        wire.send("problem", say=problem)
    return 0


if __name__ == "__main__":
    sys.exit(main())
