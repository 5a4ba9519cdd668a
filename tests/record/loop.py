"""The closed loop, for every fault of the lab: break, diagnose, ask the experiment, apply the fix, look at the proof.

    python tests/record/loop.py [--backend gloo] [--ranks 3] [--split 1] [--only FAULT …] [--out docs/loop] [--keep DIR]

Rows are kept in OUT.json after each fault and replace those of the same fault and backend, so a few faults at a time
fill the table; OUT.md is written from it.  DIR gets what each broken job left behind, as `ncclkit lab --record` does.
A cell is ``yes``, ``NO``, or ``-`` where the question does not arise.  Exit status 1 when a cell of this call fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from ncclkit.causes.diagnosis import Diagnosis  # noqa: E402
from ncclkit.causes.engine import diagnose  # noqa: E402
from ncclkit.core.case import Case  # noqa: E402
from ncclkit.core.experiment_records import ExperimentRecord  # noqa: E402
from ncclkit.core.model import NcclkitError  # noqa: E402
from ncclkit.experiments.fixes import close  # noqa: E402
from ncclkit.lab.faults import catalogue, injection, recording  # noqa: E402
from ncclkit.lab.faults.catalogue import Fault  # noqa: E402
from ncclkit.live.launch import local  # noqa: E402
from tests.record.gpu import about_machine  # noqa: E402

TIMEOUT, DEADLINE = 10.0, 150.0
"""Seconds that a collective may take, and after which a run is ended: NCCL's watchdog speaks a minute after that."""
LIVE = ("p2p_off", "sockets_only")
"""Faults that are only slow: the live test measures them, the training job does not."""
MARK = {True: "yes", False: "**NO**", None: "-"}


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one fault from symptom to proof; None: the question does not arise."""

    backend: str
    """With the number of simulated hosts, where there are several, and what makes NCCL take them for hosts."""
    fault: str
    cause: str
    """The truth."""
    named: bool
    """The right cause stands first when the loop has ended; for a healthy job, nothing does."""
    culprit: bool | None
    """The right ranks or hosts."""
    before: str
    """What stood first before any experiment, and how sure that was."""
    experiment: str
    observed: str
    after: str
    """Strength of the right cause when the loop has ended."""
    fix: str
    fixed: bool | None
    """The same small job ended well with the fix, and its cause was gone."""
    proof: str
    gone: bool
    """No process of any of its runs is left."""
    seconds: float

    @property
    def passed(self) -> bool:
        """No cell says no."""
        return False not in (self.named, self.culprit, self.fixed, self.gone) and self.after in ("proven", "-")


async def row(name: str, where: dict[str, Any], keep: Path | None, about: dict[str, Any]) -> Row:
    """Break the job in this way, and close the loop; what the broken job left behind goes to `keep`."""
    chosen, begun = injection.fault(name), time.monotonic()
    where = where | ({"simulate_hosts": 1} if chosen.net else {})  # it has hosts of its own
    with tempfile.TemporaryDirectory() as place:
        case = Case.open(Path(place) / "case")
        run = await injection.inject(case, name, timeout=TIMEOUT, deadline=DEADLINE, live=name in LIVE, **where)
        truth = json.loads((run.folder / "truth.json").read_text())
        if keep:
            recording.bundle(run, keep / name, about | {"fault": chosen.says})
        first, problem = diagnose(case), ""
        made: tuple[ExperimentRecord, ...] = ()
        try:
            made = await close(case)
        except NcclkitError as error:
            problem = str(error)
        last = diagnose(case)
        gone = not _left(place)
    took = round(time.monotonic() - begun, 1)
    checks, fixes = ([trial for trial in made if trial.kind == kind] for kind in ("check", "fix"))
    well = chosen.cause == ""
    found = next(iter(last.findings), None)
    return Row(
        _label(where, chosen),
        name,
        chosen.cause,
        named=found is None if well else found is not None and found.cause == chosen.cause,
        culprit=None if well else _culprit(last, truth),
        before=f"{first.findings[0].cause} ({first.findings[0].strength})" if first.findings else "nothing",
        experiment="; ".join(trial.question for trial in checks) or "-",
        observed="; ".join(trial.observed for trial in checks) or "-",
        after="-" if well else str(found.strength) if found else "nothing",
        fix=_words(fixes[-1]) if fixes else problem or "-",
        fixed=None if well else bool(fixes) and fixes[-1].worked,
        proof=fixes[-1].after.summary if fixes and fixes[-1].after else "-",
        gone=gone,
        seconds=took,
    )


def _label(where: dict[str, Any], chosen: Fault) -> str:
    if chosen.net and where["backend"] == "nccl":
        return "nccl, 2 hosts in network namespaces"
    return str(where["backend"]) + (f", {where['split']} simulated hosts" if where["simulate_hosts"] > 1 else "")


def _left(place: str) -> list[int]:
    """Processes of the runs in this folder; each has the agent of its run folder on its command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile
            found += [int(folder.name)] * (place.encode() in (folder / "cmdline").read_bytes())
    return found


def _culprit(verdict: Diagnosis, truth: dict[str, Any]) -> bool | None:
    """Whether the first finding blames whom the fault changed; None where everybody has it."""
    if not verdict.findings or not (truth["ranks"] or truth.get("hosts")):
        return None
    blamed, key = verdict.findings[0].culprits, "hosts" if truth.get("hosts") else "ranks"
    named = set(blamed[key])
    return bool(named) and named <= set(truth[key])


def _words(trial: ExperimentRecord) -> str:
    """A change in a few words: ``NCCL_ALGO unset, fix bad_env_value``."""
    said = []
    for key, value in trial.change.items():
        items = [f"{name}={one}" for name, one in value.items()] if isinstance(value, dict) else value
        said.append(f"{key} {' '.join(items) if isinstance(items, (list, tuple)) else items}")
    return ", ".join(said)


def markdown(rows: list[Row], about: dict[str, Any]) -> str:
    """One table for each backend."""
    names = ["fault", "cause", "named", "culprit", "before", "experiment", "observed", "after", "fix", "fixed", "proof"]
    text = __doc__.partition("\n\n")[0].lstrip() + "\n" if __doc__ else ""
    text = f"# From symptom to proof\n\n{text}\n{sum(row.passed for row in rows)} of {len(rows)} rows pass.\n"
    for backend in sorted({row.backend for row in rows}):
        told = ", ".join(f"{name} {value}" for name, value in about.get(backend, {}).items())
        text += f"\n## {backend}\n\n{told}\n\n| {' | '.join([*names, 'gone', 's'])} |\n" + "|---" * 13 + "|\n"
        for one in (one for one in rows if one.backend == backend):
            marks = {name: MARK[getattr(one, name)] for name in ("named", "culprit", "fixed", "gone")}
            cells = [*(marks.get(name, str(getattr(one, name))) for name in names), marks["gone"], f"{one.seconds:.0f}"]
            text += "| " + " | ".join(cell.replace("|", "/").replace("\n", " ")[:160] for cell in cells) + " |\n"
    return text


def _kept(path: Path) -> tuple[list[Row], dict[str, Any]]:
    """Rows of earlier calls, and what machines they were made on."""
    if not path.exists():
        return [], {}
    value = json.loads(path.read_text())
    return [Row(**one) for one in value["rows"]], value["about"]


async def main() -> int:
    """Every fault of the backend; 1 when a cell fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", choices=("nccl", "gloo"))
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--simulate-hosts", type=int, default=1, help="simulated hosts, which share the GPUs")
    parser.add_argument("--only", nargs="+", metavar="FAULT")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[2] / "docs" / "loop")
    parser.add_argument("--keep", type=Path, metavar="DIR")
    options = parser.parse_args()
    answer = await local.check_interpreter(sys.executable)
    backend = options.backend or ("nccl" if answer["gpus"] else "gloo")
    ranks = options.ranks or (answer["gpus"] if backend == "nccl" else 3)
    where: dict[str, Any] = {"backend": backend, "ranks": ranks, "simulate_hosts": options.simulate_hosts}
    kept, about = _kept(options.out.with_suffix(".json"))
    failed = 0
    for name in options.only or [name for name, fault in catalogue.FAULTS.items() if backend in fault.backends]:
        made = await row(name, where, options.keep, about_machine(answer))
        about[made.backend] = {"date": time.strftime("%Y-%m-%d"), "ranks": ranks, **about_machine(answer)}
        failed += not made.passed
        kept = [one for one in kept if (one.backend, one.fault) != (made.backend, name)] + [made]
        value = {"about": about, "rows": [asdict(one) for one in kept]}
        options.out.with_suffix(".json").write_text(json.dumps(value, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(markdown(kept, about))
        print(markdown([made], {}).splitlines()[-1], flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
