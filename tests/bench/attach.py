"""Attach on jobs that nobody prepared: all ways to hang of `tests.live.hangs`, judged by the first sentence.

    python tests/bench/attach.py [--side-by-side 3] [--dump] [WAY ...] [--out OUT.json]

Each job runs three ranks over gloo without a variable of ours.  A cause counts where the first finding is one of those
that the way lists; a rank where the first finding names exactly those at fault.  With ``--side-by-side`` so many jobs
of one user hang at once, and each is looked at by itself.  Bar: the right cause in at least 12 of 15, the right rank
wherever single ones are at fault, no wrong finding at `proven`, and nothing of another job in any output.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit.causes.engine import diagnose  # noqa: E402
from ncclkit.core.case import Case  # noqa: E402
from ncclkit.core.model import NcclkitError  # noqa: E402
from ncclkit.live.attach import AttachOptions, attach  # noqa: E402
from tests.live.hangs import WAYS, start  # noqa: E402

BAR = 12 / 15


def look(name: str, job: Any, others: list[Any], dump: bool) -> dict[str, Any]:
    """What attach says of one job, and whether that is right."""
    begun, wanted = time.monotonic(), WAYS[name]
    with tempfile.TemporaryDirectory() as folder:
        case = Case.open(folder)
        try:  # one of its processes stands for the job
            made = asyncio.run(attach(case, [str(job[0].pid)], None, AttachOptions(dump=dump)))
        except NcclkitError as error:
            return {"way": name, "framework": wanted.framework, "cause": False, "rank": False, "says": str(error)}
        found = diagnose(case).findings
        seconds = time.monotonic() - begun
        kept = [path.read_text(errors="replace") for path in made.folder.glob("*") if path.name.startswith("attached")]
        foreign = [p.pid for other in others for p in other.values() if f'"pid": {p.pid},' in "".join(kept)]
    first = found[0] if found else None
    ranks = tuple(first.culprits["ranks"]) if first else ()
    proven = [one.cause for one in found if one.strength == "proven" and one.cause not in wanted.causes]
    return {
        "way": name,
        "framework": wanted.framework,
        "cause": first is not None and first.cause in wanted.causes,
        "rank": not wanted.ranks or ranks == wanted.ranks,
        "wrong_proven": proven,
        "foreign": foreign,
        "seconds": round(seconds, 1),
        "found": first.cause if first else "",
        "strength": first.strength if first else "",
        "ranks": ranks,
        "says": first.say if first else "",
        "missing": list(made.problems),
    }


def rows(names: list[str], together: int, dump: bool) -> list[dict[str, Any]]:
    """One row for each way, so many jobs at a time."""
    done: list[dict[str, Any]] = []
    for begin in range(0, len(names), together):
        batch = names[begin : begin + together]
        with ExitStack() as stack:
            jobs: dict[str, Any] = {}
            for name in batch:
                try:
                    jobs[name] = stack.enter_context(start(name))
                except (RuntimeError, TimeoutError) as error:
                    done.append({"way": name, "cause": False, "rank": False, "says": f"did not hang: {error}"[:300]})
            for name, job in jobs.items():
                others = [other for other in jobs.values() if other is not job]
                done.append(look(name, job, others, dump))
                print(json.dumps(done[-1]), file=sys.stderr, flush=True)
    return done


def main() -> int:
    """Print the table, write it where asked, and return 1 where it is below the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", default=[], help="these only")
    parser.add_argument("--side-by-side", type=int, default=1)
    parser.add_argument("--dump", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    table = rows(options.ways or list(WAYS), options.side_by_side, options.dump)
    if options.ways and options.out and options.out.exists():  # these rows anew, the others as they were
        kept = {row["way"]: row for row in json.loads(options.out.read_text())["ways"]}
        table = list((kept | {row["way"]: row for row in table}).values())
    right = sum(row["cause"] for row in table)
    result = {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        **{name: version(name) for name in ("torch", "accelerate", "lightning", "py-spy", "pystack")},
        "side_by_side": options.side_by_side,
        "dump": options.dump,
        "cause_right": f"{right} of {len(table)}",
        "rank_right": f"{sum(row['rank'] for row in table)} of {len(table)}",
        "wrong_proven": sum(len(row.get("wrong_proven", ())) for row in table),
        "foreign": sum(len(row.get("foreign", ())) for row in table),
        "slowest": max((row.get("seconds", 0) for row in table), default=0),
        "ways": table,
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    bad = right < BAR * len(table) or result["wrong_proven"] or result["foreign"]
    return int(bool(bad) or not all(row["rank"] for row in table))


if __name__ == "__main__":
    sys.exit(main())
