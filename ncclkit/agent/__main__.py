"""``python -m ncclkit.agent VERB …`` or ``python agent.pyz VERB …``."""

import importlib
import sys

from . import wire

VERBS = {
    "collective": "run.collective",
    "connect": "connect.session",
    "guard": "run.guard",
    "hosts": "run.simulated_hosts",
    "resources": "run.resource_checks",
    "node": "run.node",
}
"""Verb → the module whose ``main`` runs it; beside these there are ``facts``, ``record`` and ``attach``."""


def main(argv=None):
    """Run one verb; exit status 2 for a verb that does not exist."""
    argv = sys.argv[1:] if argv is None else argv
    verb = argv[0] if argv else ""
    if verb == "facts":
        return _facts(argv[1:])
    if verb == "record":
        return importlib.import_module(".facts", __package__).record(argv[1]) or 0
    if verb == "attach":
        return _attach(argv[1], [int(pid) for pid in argv[2:]])
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


def _attach(folder, pids):
    """``attach FOLDER [PID …]``: evidence of these processes, or of every process of this user that has a RANK."""
    from .monitor import attach
    from .run import processes

    ranks = processes.ranks(pids or list(processes.parents()))
    wire.send("ranks", ranks={str(rank): attach.look(pid) for rank, pid in ranks.items()})
    for problem in attach.join(folder, ranks) if ranks else ():
        wire.send("problem", say=problem)
    return 0 if ranks else 1


if __name__ == "__main__":
    sys.exit(main())
