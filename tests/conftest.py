"""Marks what this test process starts, so that test processes side by side look for their own leftovers only."""

from __future__ import annotations

import os
import uuid

from tests.processes import RUNNER

os.environ[RUNNER] = uuid.uuid4().hex
