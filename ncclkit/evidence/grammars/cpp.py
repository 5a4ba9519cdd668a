"""The grammar of C++ ends: an exception that nobody caught, its message and its stack."""

from __future__ import annotations

import re
from itertools import takewhile

from ncclkit.evidence.grammars.grammar import Data, Line, Rule, frame, rule
from ncclkit.evidence.grammars.victims import is_victim

LIMIT = 160
"""Lines after the first that may belong to it."""

WHAT = re.compile(r"\s*what\(\):\s{0,4}(.*)")
# Exception raised from checkTimeout at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:632 (most recent call
RAISED = re.compile(r"Exception raised from (?P<func>\S{1,300}) at (?P<file>\S{1,400}):(?P<line>\d{1,7}) \(most recent")
# frame #2: c10d::ProcessGroupNCCL::ncclCommWatchdog() + 0x10c (0x7f01 in /opt/torch/lib/libtorch_cuda.so)
FRAME = re.compile(
    r"\s*frame #(?P<number>\d{1,4}): (?P<func>.{1,400}?) (?:\+ 0x\w+ )?\((?:0x\w+ in )?(?P<lib>[^()\s]{1,400})\)\s*$"
)


def _uncaught(match: re.Match[str], data: Data, line: Line) -> Data:
    """Message and stack stand in the next lines of the same process; of several mixed ones nothing is guessed."""
    lines = [later.body for later in takewhile(lambda later: "terminate called" not in later.body, line.own(LIMIT))]
    said = {found[1].strip() for found in map(WHAT.match, lines) if found}
    places = [found for found in map(RAISED.search, lines) if found]
    message = said.pop() if len(said) == 1 else ""
    frames = _frames(lines)
    return data | {
        "message": message,
        "raised": frame(places[0]["file"], places[0]["line"], places[0]["func"]) if places and frames else None,
        "frames": frames,
        "victim": is_victim(data["type"].rpartition("::")[2], message),
    }


def _frames(lines: list[str]) -> list[Data]:
    """The first stack; empty where the numbers show that stacks of several processes are mixed."""
    found = [match for match in map(FRAME.match, lines) if match]
    starts = [place for place, match in enumerate(found) if match["number"] == "0"]
    runs = [found[start:end] for start, end in zip(starts, [*starts[1:], None], strict=False)]
    whole = all([int(match["number"]) for match in run] == list(range(len(run))) and len(run) > 1 for run in runs)
    return [frame(match["lib"], 0, match["func"]) for match in runs[0][:60]] if runs and whole else []


RULES: tuple[Rule, ...] = (
    # terminate called after throwing an instance of 'c10::DistBackendError'
    #   what():  [PG ID 0 PG GUID 0(default_pg) Rank 2] Process group watchdog thread terminated with exception: …
    # Exception raised from checkTimeout at /pytorch/torch/csrc/…/ProcessGroupNCCL.cpp:632 (most recent call first):
    # frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f01 in /opt/torch/lib/libc10.so)
    rule(
        "cpp.exception",
        "terminate called after throwing",
        r"terminate called after throwing an instance of '(?P<type>[^']{1,300})'",
        make=_uncaught,
    ),
)
