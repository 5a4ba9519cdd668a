"""``python lab.pyz VERB …``: the jobs that the lab breaks.

It does also all that the agent does.
"""

import importlib
import pkgutil
import sys

from ncclkit.agent import __main__ as agent
from ncclkit.agent.run import collective
from ncclkit.lab.programs import inject, stories

JOBS = ("train", *("stories." + module.name for module in pkgutil.iter_modules(stories.__path__)))


def main(argv=None):
    """Run one job of the lab, or a verb of the agent.

    A job may be the live test with a fault in it.
    """
    argv = sys.argv[1:] if argv is None else argv
    verb = argv[0] if argv else ""
    if verb == "collective":
        return collective.main(argv[1:], inject.LabJob, inject.add_options)
    if verb not in JOBS:
        return agent.main(argv)
    return importlib.import_module("." + verb, __package__).main(argv[1:])


if __name__ == "__main__":
    sys.exit(main())
