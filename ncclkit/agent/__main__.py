"""``python -m ncclkit.agent VERB …`` or ``python agent.pyz VERB …``."""

import importlib
import os
import pkgutil
import shutil
import signal
import sys

from . import private, stories, wire

VERBS = tuple("facts record collective train guard launch node attach connect hosts limits".split())
STORIES = tuple("stories." + module.name for module in pkgutil.iter_modules(stories.__path__))


def main(argv=None):
    """Run one verb, after ``--own`` from a folder that goes with it; exit status 2 for a verb that does not exist."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == [private.OWN]:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # as Slurm ends a step
        try:
            return main(argv[1:])
        finally:
            shutil.rmtree(os.path.dirname(sys.argv[0]))
    if not argv or argv[0] not in VERBS + STORIES:
        sys.stderr.write("agent: say one of: %s\n" % ", ".join(VERBS + STORIES))
        return 2
    if argv[0] == "facts":
        return _facts(argv[1:])
    if argv[0] == "record":
        return importlib.import_module(".facts", __package__).record(argv[1]) or 0
    if argv[0] == "attach":
        return _attach(argv[1], [int(pid) for pid in argv[2:]])
    return importlib.import_module("." + argv[0], __package__).main(argv[1:])


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
    from . import attach, processes

    ranks = processes.ranks(pids or list(processes.parents()))
    wire.send("ranks", ranks={str(rank): attach.look(pid) for rank, pid in ranks.items()})
    for problem in attach.join(folder, ranks) if ranks else ():
        wire.send("problem", say=problem)
    return 0 if ranks else 1


if __name__ == "__main__":
    sys.exit(main())
