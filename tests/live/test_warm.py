"""A rank that tests fork from torchrun is, for all who look at it, as one that torchrun has started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import warm

RANK = """
import json, os, sys
def own(name):
    with open("/proc/self/" + name) as file:
        return file.read().split(chr(0))[:-1]
rank = os.environ["RANK"]
told = {
    "rank": rank,
    "torch": "torch" in sys.modules,
    "words": [word for word in own("cmdline") if word],
    "argv": sys.argv,
    "strange": sorted(set(filter(None, own("environ"))) ^ {f"{name}={value}" for name, value in os.environ.items()}),
    "leads": os.getsid(0) == os.getpid() != os.getppid(),
    "files": [name for name in os.listdir("/proc/self/fd") if int(name) > 3],
}
with open(f"{sys.argv[1]}/{rank}", "w") as out:
    json.dump(told, out)
assert rank == "0", "the other one fails"
"""


@pytest.mark.slow
def test_a_forked_rank_has_its_own_words_variables_session_and_end(tmp_path: Path) -> None:
    program = tmp_path / "rank.py"
    program.write_text(RANK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    done = subprocess.run(
        [*command, str(tmp_path)], env=warm(os.environ), capture_output=True, text=True, timeout=90, check=False
    )
    for rank in ("0", "1"):
        assert json.loads((tmp_path / rank).read_text()) == {
            "rank": rank,
            "torch": True,
            "words": [sys.executable, "-u", str(program), str(tmp_path)],
            "argv": [str(program), str(tmp_path)],
            "strange": [],
            "leads": True,
            "files": [],
        }
    assert done.returncode == 1 and "AssertionError: the other one fails" in done.stderr
    assert "rank      : 1 (local_rank: 1)\n  exitcode  : 1" in done.stderr
