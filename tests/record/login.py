"""What somebody sees who has only a terminal on a login node: the README's session, for docs/login-node.md.

    python tests/record/login.py

A real Slurm of two nodes on simulated hosts; each line is typed into a shell of the login node, in a terminal of 110
columns.  Of a line of progress its last state is kept.  Needs root, Slurm, munge and iproute2.
"""

from __future__ import annotations

import os
import pty
import re
import select
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.live.slurm_cluster import cluster  # noqa: E402
from tests.namespaces import hosts  # noqa: E402

PAGE, FENCE = ROOT / "docs" / "login-node.md", "```text\n"
COLUMNS, PROMPT = "110", "login$ "
LONGEST = 480.0
"""Seconds for one answer."""
SESSION: tuple[tuple[str, dict[str, str]], ...] = (
    ("ncclkit inspect | tail -n 6", {}),
    ("ncclkit probe", {}),
    ("ncclkit submit -N 2 -p gpu probe", {"Submit this?": "y\r"}),
    ("ncclkit submit -N 2 -t 10 report", {"Submit this?": "y\r", " runs on ": "\x03"}),
    ("ncclkit status", {}),
    ("ncclkit status --follow", {}),
    ("ls case case/jobs/*", {}),
)
"""What is typed; what is then waited for, and typed there."""
BAR = "━━━"
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b[=>]")


def main() -> None:
    """Have the session, and write down what the terminal showed."""
    with tempfile.TemporaryDirectory(prefix="ncclkit-login-") as place, hosts(3) as made:
        shared = Path(place) / "shared"
        shared.mkdir()
        with cluster(Path(place) / "slurm", 2, made=made) as env:
            env |= {
                "PS1": PROMPT,
                "TERM": "xterm-256color",
                "COLUMNS": str(COLUMNS),
                "PYTHONPATH": str(ROOT),
            }
            env["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            shell = [*made[0].prefix, "bash", "--norc", "--noprofile"]
            told = session(shell, shared, env)
    told = re.sub(r"nk\d+-\d+-h\[2-3\]", "node[1-2]", told)  # as Slurm writes both
    for host, name in zip(made, ("login", "node1", "node2"), strict=True):
        told = told.replace(host.name, name)
    told = told.replace(str(shared), "/shared/me").replace(str(ROOT), "/shared/me/ncclkit")
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(FENCE)
    PAGE.write_text(f"{before}{FENCE}{told.strip()}\n```{rest.partition('```')[2]}", encoding="utf-8")


def session(shell: list[str], place: Path, env: dict[str, str]) -> str:
    """What the terminal showed, line by line."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(place)
        os.execvpe(shell[0], shell, env)
    shown, seen = b"", 0

    def expect(words: str) -> None:
        """Read until the terminal shows these words behind those that were awaited before."""
        nonlocal shown, seen
        until = time.monotonic() + LONGEST
        while (at := shown.find(words.encode(), seen)) < 0:
            if not select.select([terminal], [], [], until - time.monotonic())[0]:
                raise TimeoutError(f"no {words!r} in {shown[-2000:].decode()}")
            shown += os.read(terminal, 1 << 16)
        seen = at + len(words)

    expect(PROMPT)
    for line, answers in SESSION:
        os.write(terminal, f"{line}\r".encode())
        for awaited, answer in answers.items():
            expect(awaited)
            os.write(terminal, answer.encode())
        expect(PROMPT)
    os.write(terminal, b"exit\r")
    os.waitpid(child, 0)
    return kept(shown.decode("utf-8", "replace"))


def kept(shown: str) -> str:
    """The lines of the terminal, without colours; of a line of progress what it showed in the end."""
    parts = (CONTROL.sub("", line).split("\r") for line in shown.split("\n"))
    lines = [next((part.rstrip() for part in reversed(line) if part.strip()), "") for line in parts]
    told = [line for line, after in zip(lines, [*lines[1:], ""], strict=True) if BAR not in line or BAR not in after]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(told))


if __name__ == "__main__":
    main()
