"""Whether a stack stands in a collective."""

from __future__ import annotations

import pytest

from ncclkit.causes._frames import in_collective

TORCH = "/opt/env/lib/python3.11/site-packages/torch"
MINE = {"func": "main", "file": "/srv/app/fit.py", "line": 3}
STACKS = {
    "a work's wait": ([("wait", ""), ("all_reduce", f"{TORCH}/distributed/distributed_c10d.py")], True),
    "a lock file": ([("wait", f"{TORCH}/utils/file_baton.py"), ("load", f"{TORCH}/utils/cpp_extension.py")], False),
    "a child process": ([("wait", "/usr/lib/python3.11/subprocess.py")], False),
    "a wait of one's own": ([("wait", "/srv/app/queue_of_files.py")], False),
    "the GPU": ([("synchronize", f"{TORCH}/cuda/streams.py")], True),
}


@pytest.mark.parametrize("what", STACKS)
def test_only_what_waits_for_other_ranks_is_a_collective(what: str) -> None:
    frames, expected = STACKS[what]
    assert in_collective([*({"func": func, "file": file, "line": 1} for func, file in frames), MINE]) is expected
