"""Marks what this test process starts, so that test processes side by side look for their own leftovers only."""

from __future__ import annotations

import os
import signal
import uuid

from tests.processes import RUNNER

os.environ[RUNNER] = uuid.uuid4().hex
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in a shell's background: the programs that tests start
    signal.signal(signal.SIGINT, signal.default_int_handler)  # would inherit that, and not hear an interrupt
