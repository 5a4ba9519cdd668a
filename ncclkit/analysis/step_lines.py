"""The lines of a script behind the parts of its steps.

It tells what each line does, and what helps there.  In: the sites of `step.rank` events, which say
how long the main thread stood in which line.  Out: a `Work` for each line of the training loop.

Begin with `work_of_part`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOSTLY = 0.6
"""Share of a line's time that one line below it must take to be named instead."""
PRINTS = frozenset({"print", "pprint"})
FILES = frozenset(
    {
        *("open", "write", "writelines", "flush", "fsync", "read", "readline", "readlines"),
        *("dump", "savez", "savetxt", "to_csv", "to_parquet", "savefig", "copyfile", "urlopen"),
    }
)
LOGS = frozenset({"add_scalar", "add_scalars", "add_histogram", "log_metrics", "log_dict"})
SYNCS = frozenset({"item", "cpu", "numpy", "tolist", "synchronize", "bool", "nonzero"})
COPIES = frozenset({"to", "cuda"})
CLIPS = frozenset({"clip_grad_norm_", "clip_grad_value_"})
"""Last names of functions that a line of a script calls."""
OF_CALLS: tuple[tuple[str, frozenset[str]], ...] = (
    ("print", PRINTS),
    ("file", FILES),
    ("log", LOGS),
    ("sleep", frozenset({"sleep"})),
    ("gc", frozenset({"collect"})),
    ("clip", CLIPS),
    ("zero_grad", frozenset({"zero_grad"})),
)
OF_GPU_CALLS: tuple[tuple[str, frozenset[str]], ...] = (("sync", SYNCS), ("copy", COPIES))
OF_PHASES = frozenset({"print", "log", "clip", "zero_grad", "framework", "gc"})
"""Phases of the hook that say by themselves what is done."""
WORDS: Mapping[str, str] = {
    "print": "Printing takes time",
    "file": "Reading or writing files stops training",
    "log": "Logging stops training",
    "sleep": "The script sleeps",
    "gc": "Python collects garbage",
    "clip": "Clipping gradients takes time",
    "zero_grad": "Clearing gradients takes time",
    "sync": "The script waits for the GPU to read a value",
    "copy": "Copies to the GPU stop the script",
    "framework": "Code of the training framework between the steps takes time",
    "python": "Python code of the script in the main thread takes time",
}
"""What a line does → the beginning of the sentence on it."""
ADVICE: Mapping[str, str] = {
    "print": "print every hundredth step, and a number or two instead of whole tensors",
    "file": "write from a thread, or collect rows and write every hundredth step, without fsync",
    "log": "log every tenth step, from a thread",
    "sleep": "leave out the sleep, or wait in a thread",
    "gc": (
        "call gc.freeze() after setting up, gc.disable(), and gc.collect() every few hundred steps"
    ),
    "clip": (
        "clip with torch.nn.utils.clip_grad_norm_(…, foreach=True), all gradients at once and"
        " without .item() for each"
    ),
    "zero_grad": "call zero_grad(set_to_none=True), and keep fewer, larger parameters",
    "sync": (
        "read values every tenth step; sum them on the GPU until then, and print after the copy"
    ),
    "copy": "load with pin_memory=True, and copy with non_blocking=True",
    "framework": "see which callbacks and logs run in each step, and run them less often",
    "python": (
        "compute on whole tensors and not on one value after the other; what prepares data can be"
        " done before training, or in the workers of a DataLoader"
    ),
}
"""What a line does → what to do about it."""


@dataclass(frozen=True, slots=True)
class Site:
    """A line in which the main thread stood, with the lines that called it."""

    seconds: float
    """Of a step."""
    lines: tuple[str, ...]
    """The innermost first; the last is in the training loop."""
    called: str
    phase: str

    @classmethod
    def of(cls, row: Sequence[Any]) -> Site:
        """A row of `StepRank.sites`; an older recording has neither phase nor callers."""
        _, place, seconds, _, called, *more = row
        phase, callers = more or ("", ())
        return cls(float(seconds), (str(place), *map(str, callers)), str(called), str(phase))

    def kind(self, gpus: bool) -> str:
        """What the line does: a key of `WORDS`."""
        if self.phase in OF_PHASES:
            return self.phase
        name = self.called.rpartition(".")[2]
        for kind, names in (*OF_CALLS, *(OF_GPU_CALLS if gpus else ())):
            if name in names:
                return kind
        return "python"


@dataclass(frozen=True, slots=True)
class Work:
    """What one line of the training loop takes of a step, by the lines below it."""

    seconds: float
    kind: str
    lines: tuple[str, ...]
    """The line that takes most of it, and that of the loop where it is another one."""
    called: str
    """What is called in the first line; empty where that is not known."""

    @property
    def at(self) -> str:
        """Where it is, as the end of a sentence's first half."""
        if not self.lines:
            return ""
        call = ""
        if self.called and self.called != "bool":
            call = f"in {self.called.lstrip('.')}() "
        below = ""
        if len(self.lines) > 1:
            below = f", called at {shown_line(self.lines[1])}"
        return f", most {call}at {shown_line(self.lines[0])}{below}"


def shown_line(place: str) -> str:
    """``train.py:42 main`` as ``train.py:42 (main)``."""
    line, _, function = place.partition(" ")
    if function and function != "<module>":
        return f"{line} ({function})"
    return line


def work_of_part(sites: Iterable[Site], gpus: bool) -> list[Work]:
    """What each line of the training loop takes of a part, the longest first."""
    by_line: dict[str, list[Site]] = defaultdict(list)
    for site in sites:
        by_line[site.lines[-1]].append(site)
    found = [_work_of_line(group, gpus) for group in by_line.values()]
    return sorted(found, key=lambda work: -work.seconds)


def _work_of_line(sites: Sequence[Site], gpus: bool) -> Work:
    """The work of one line of the training loop, through which all sites go."""
    kinds: dict[str, float] = defaultdict(float)
    for site in sites:
        kinds[site.kind(gpus)] += site.seconds
    seconds = sum(kinds.values())
    loop = sites[0].lines[-1]
    inner = _deepest_line(sites, MOSTLY * seconds)
    # a comprehension is a function of its own in the same line
    same = inner.partition(" ")[0] == loop.partition(" ")[0]
    lines = (loop,) if same else (inner, loop)
    called: dict[str, float] = defaultdict(float)
    for site in sites:
        if inner in site.lines:
            called[_called_in_line(site, inner)] += site.seconds
    name = max(called, key=lambda one: called[one], default="")
    return Work(seconds, max(kinds, key=lambda kind: kinds[kind]), lines, name)


def _called_in_line(site: Site, line: str) -> str:
    """The function that a line calls, where it is the script's own.

    Otherwise it is what is known of that function.
    """
    below = site.lines.index(line) - 1
    if below < 0:
        return site.called
    return site.lines[below].partition(" ")[2]


def _deepest_line(sites: Sequence[Site], enough: float) -> str:
    """The innermost line through which so many seconds go.

    Where there is none, it is the line of the loop.
    """
    through: dict[str, float] = defaultdict(float)
    depths: dict[str, int] = {}
    for site in sites:
        # a recursive function goes through a line more than once
        for line in dict.fromkeys(site.lines):
            through[line] += site.seconds
            depth = len(site.lines) - site.lines.index(line)
            depths[line] = max(depth, depths.get(line, 0))
    chosen = [line for line in through if through[line] >= enough]
    return max(chosen, key=lambda line: depths[line])


def excess_sites(late: Iterable[Site], others: Sequence[Iterable[Site]]) -> list[Site]:
    """Lines in which one rank stands longer than the others do.

    Each comes with the seconds beyond those of the others.
    """
    usual: dict[tuple[str, ...], float] = defaultdict(float)
    for sites in others:
        for site in sites:
            usual[site.lines] += site.seconds / len(others)
    own: dict[tuple[str, ...], float] = defaultdict(float)
    calls: dict[tuple[str, ...], Site] = {}
    for site in late:
        own[site.lines] += site.seconds
        calls.setdefault(site.lines, site)
    found = []
    for lines, seconds in own.items():
        more = seconds - usual[lines]
        if more > 0:
            found.append(Site(more, lines, calls[lines].called, calls[lines].phase))
    return found
