"""``python -m ncclkit`` is the command ``ncclkit``."""

import sys

from ncclkit.cli import main

sys.exit(main())
