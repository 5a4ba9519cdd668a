"""``python -m ncclkit.agent VERB …`` or ``python agent.pyz VERB …``."""

import importlib
import os
import shutil
import signal
import sys

from . import private

VERBS = {
    "attach": "monitor.attach",
    "collective": "run.collective",
    "connect": "connect.session",
    "facts": "facts.gather",
    "gang": "gang",
    "gate": "gate",
    "guard": "run.guard",
    "hosts": "run.simulated_hosts",
    "launch": "run.launch",
    "rehearse": "rehearsal.ranks",
    "resources": "run.resource_checks",
    "node": "run.node",
    "sweep": "run.sweep",
}
"""Verb → the module whose ``main`` runs it."""


def main(argv=None):
    """Run one verb and return its exit status, 2 for an unknown one.

    After ``--own`` the program's folder is removed.
    """
    if argv is None:
        argv = sys.argv[1:]
    if argv[:1] == [private.OWN]:
        # as Slurm ends a step
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        try:
            return main(argv[1:])
        finally:
            shutil.rmtree(os.path.dirname(sys.argv[0]))
    verb = ""
    if argv:
        verb = argv[0]
    if verb not in VERBS:
        sys.stderr.write("agent: say one of: %s\n" % ", ".join(sorted(VERBS)))
        return 2
    return importlib.import_module("." + VERBS[verb], __package__).main(argv[1:])


if __name__ == "__main__":
    sys.exit(main())
