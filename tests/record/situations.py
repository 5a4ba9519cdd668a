"""What users and administrators are told on a cluster, for docs/cluster-situations.md.

    python tests/record/situations.py

Plays `tests/live/user_situations.py` on a real Slurm with accounts, whose nodes are simulated hosts.  Each sentence of
the page was printed in this run.  Needs root, Slurm, munge, slurmdbd, MariaDB and iproute2.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.live.test_user_cluster import python_of_users  # noqa: E402
from tests.live.user_cluster import user_cluster  # noqa: E402
from tests.live.user_situations import SITUATIONS, Situation, Stage, clear_stage, set_stage  # noqa: E402

PAGE = ROOT / "docs" / "cluster-situations.md"
HEAD = """# What a fresh user is told on a cluster

`python tests/record/situations.py` has played these {count} situations on {date}: Slurm {slurm} with
accounts (slurmdbd), a partition of two kinds of nodes, two users without rights, no variable
exported, and a disk of each node's own; its five hosts are network namespaces on one machine of
{cores} cores. Ann and Bob are users, root is the administrator. Each line below was typed, and each
sentence printed, but for names of hosts, users and folders; of an answer those lines are shown that
were looked for. What a sentence must say, and must not, is written down beside its situation in
`tests/live/user_situations.py` by whoever made the situation, and CI plays them all:
`tests/live/test_user_situations.py`.

**{held} of {count} hold.**{failed} Two readers who know Slurm and had seen nothing but this page
judged the answers of 2026-11-28: 29 of 32 were true, 31 useful, both 28; after what they named was
mended another one called 32 true and useful, and named three sentences that said a little more than
was known (27), might not help (15), or rested on what the page does not show (24); 27 and 15 are
mended. When they were first played by hand, on 2026-11-27, eight did not: a
job of a closed partition had an expected start; a submission into silence "was not submitted",
and was in the queue; accounts were "none"; another user's job, parts of a heterogeneous job, tasks
of an array and jobs without ranks were refused or misread by `attach --job`; Slurm's own limit of
memory was a control group's; an option before its verb had a strange neighbour recommended.
"""


def main() -> None:
    """Play all situations, and write the page."""
    failed: dict[str, str] = {}
    with user_cluster(python_of_users()) as cluster:
        set_stage(cluster)
        slurm = cluster.types("ann", "sinfo --version").text.split()[-1]
        for each in SITUATIONS:
            try:
                each.play(Stage(cluster, each))
            except (AssertionError, RuntimeError, subprocess.TimeoutExpired) as error:
                failed[each.title] = str(error)
                print(f"{each.title}: {error}", file=sys.stderr)
            finally:
                clear_stage(cluster)
            print(each.title, file=sys.stderr)
    count = len(SITUATIONS)
    where = {"slurm": slurm, "cores": os.cpu_count(), "date": datetime.date.today().isoformat()}
    listed = "".join(f" Not: {title}." for title in failed)
    head = HEAD.format(count=count, held=count - len(failed), failed=listed, **where)
    parts = [head, *(text_of(number, each) for number, each in enumerate(SITUATIONS, 1))]
    PAGE.write_text("\n".join(parts), encoding="utf-8")


def text_of(number: int, each: Situation) -> str:
    """A situation as a part of the page."""
    return "\n".join([f"## {number}. {each.title}", "", "```text", *lines_of(each), "```", ""])


def lines_of(each: Situation) -> Iterator[str]:
    """What was typed, and the sentences that counted."""
    for user, line, kept in each.told:
        sign = "#" if user.partition("@")[0] == "root" else "$"
        yield f"{user}{sign} {line}"
        yield from kept


if __name__ == "__main__":
    main()
