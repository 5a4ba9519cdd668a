"""How ranks, hosts, collectives, sizes and times are written for people.

Sizes are read from what people write, too.
"""

from __future__ import annotations

import difflib
import math
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from typing import Any

from ncclkit.core.model import NcclkitError

SHOWN = 8
"""Ranges of ranks that a text names before it counts the rest."""
MANY = 12
"""Names listed before the rest is only counted."""
HOSTS = 4
"""Pieces such as ``node[1-8]`` that a text names before it counts the other hosts."""
WIDE = 6
"""Ranges in one pair of brackets."""
# one number only, at the end of the first label: lists of that form are also replaced in reports
# that name no host
NUMBERED = re.compile(r"([^.]*[A-Za-z_-])([0-9]{1,9})((?:\..*)?)", re.DOTALL)
NUMBER = re.compile(r"([0-9]{1,18})")

Piece = tuple[str, int]
"""Text, and how many hosts it stands for."""
OPS = {
    "_allgather_base": "all_gather",
    "_all_gather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "all_to_all_base": "all_to_all",
    "alltoall_base": "all_to_all",
    "alltoall": "all_to_all",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
}
"""Lower-case names of c10d, the Flight Recorder and NCCL → torch.distributed's own."""


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of each unbroken run of numbers, in order."""
    known = sorted(set(numbers))
    starts = [0, *(i for i, (a, b) in enumerate(pairwise(known), 1) if b != a + 1), len(known)]
    rows = []
    for a, b in pairwise(starts):
        if a < b:
            rows.append((known[a], known[b - 1]))
    return rows


def ranks(numbers: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0, 2 and 5``, ``ranks 0-16 and 18-63``, ``no rank``."""
    parts: list[str] = []
    for first, last in runs(numbers):
        parts += [f"{first}-{last}"] if last - first > 1 else map(str, dict.fromkeys((first, last)))
    if len(parts) < 2:
        if parts:
            return f"rank{'s' if '-' in parts[0] else ''} {parts[0]}"
        return "no rank"
    if len(parts) > SHOWN + 1:
        tail = f"{sum(map(_width_of_range, parts[SHOWN:]))} more"
    else:
        tail = parts.pop()
    return f"ranks {', '.join(parts[:SHOWN])} and {tail}"


def _width_of_range(part: str) -> int:
    first, _, last = part.partition("-")
    return int(last or first) - int(first) + 1


def rate(speed: float) -> str:
    """``160.00 GB/s``; a low rate has two digits that count, ``0.0032``.

    A high one has no fraction.
    """
    if speed >= 1000:
        return f"{speed:,.0f} GB/s"
    if speed >= 0.1:
        return f"{speed:.2f} GB/s"
    return f"{speed:.2g} GB/s"


def verb(numbers: Iterable[int], one: str, many: str) -> str:
    """The form of a verb that agrees with the ranks before it."""
    if len(set(numbers)) == 1:
        return one
    return many


def start(sentence: str) -> str:
    """The sentence with a capital letter at its beginning."""
    return sentence[:1].upper() + sentence[1:]


def op(name: str) -> str:
    """``ALLREDUCE``, ``AllReduce``, ``nccl:all_reduce`` → ``all_reduce``.

    It is ``collective`` where there is no name.
    """
    # the profiler and the Flight Recorder write the backend before the name, as in nccl:all_reduce
    plain = name.rpartition(":")[2].lower()
    return OPS.get(plain, plain) or "collective"


def group(name: str, desc: str) -> str:
    """A process group as people know it: its description, else its name."""
    # what c10d calls a group that was given no description
    if desc and desc != "undefined":
        return desc
    if name:
        return f"group {name}"
    return "an unnamed group"


def collective(name: str, seq: int | None, group_name: str, desc: str) -> str:
    """``all_reduce 42 of default_pg``; without the group where nothing names it."""
    if seq is not None and seq >= 0:
        call = f"{op(name)} {seq}"
    else:
        call = op(name)
    if group_name or desc:
        return f"{call} of {group(group_name, desc)}"
    return call


# at most 19 digits: of thousands `int` raises an error that nobody expects
_SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)\s*(?:([KMGT])(iB|B)?|B)?", re.IGNORECASE)


def parse_size(value: Any, what: str = "The size") -> int:
    """Bytes from a whole number or from text.

    The text is such as ``4096``, ``64MB`` (powers of 1000), ``1GiB`` or ``1G`` (of 1024).  Raises
    NcclkitError, about `what`, for anything else.
    """
    # True is an int in Python
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    match = None
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise NcclkitError(
            f"{what} must be a number of bytes such as 4096, 64MB or 1GiB, but it is {value!r}."
        )
    number, letter, rest = match.groups()
    power = 0
    if letter:
        power = "KMGT".index(letter.upper()) + 1
    # KB, MB are powers of ten by SI; nccl-tests and NCCL take a bare K or M as 1024
    factor = int((1000 if (rest or "").upper() == "B" else 1024) ** power)
    if "." in number:
        return round(float(number) * factor)
    return int(number) * factor


def split_words(text: str, what: str, comments: bool = False) -> list[str]:
    """The words of a text as a shell splits it.

    With `comments`, what follows a ``#`` is no word.  Raises NcclkitError, about `what`, where
    quotes stay open.
    """
    try:
        return shlex.split(text, comments=comments)
    except (ValueError, AttributeError) as error:
        # shlex asks its argument for a method, so a value that is no text is an AttributeError
        raise NcclkitError(
            f"{what} {text!r} cannot be split into words ({error}); close its quotes."
        ) from error


def format_number(value: float) -> str:
    """Three significant digits without an exponent: ``0.0123``, ``1.90``, ``12.3``, ``1,234``."""
    if value != 0 and abs(value) < 1:
        return f"{value:.{min(2 - math.floor(math.log10(abs(value))), 9)}f}"
    if abs(value) < 10:
        return f"{value:,.2f}"
    if abs(value) < 100:
        return f"{value:,.1f}"
    return f"{value:,.0f}"


def format_bytes(count: float) -> str:
    """Bytes for people: ``512 B``, ``4 KiB``, ``1.50 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            break
        count /= 1024
    if count == int(count):
        return f"{count:,.0f} {unit}"
    return f"{format_number(count)} {unit}"


def format_time(microseconds: float | None) -> str:
    """A time for people: ``62.0 µs``, ``1.20 ms``, ``3.40 s``.

    It is a dash for a time that was not measured.
    """
    if microseconds is None:
        return "–"
    for unit, factor in (("µs", 1.0), ("ms", 1e3)):
        if abs(microseconds) < factor * 1e3:
            return f"{format_number(microseconds / factor)} {unit}"
    return f"{format_number(microseconds / 1e6)} s"


def percent(share: float, digits: int = 0) -> str:
    """A share for people: ``14 %``."""
    return f"{100 * share:.{digits}f} %"


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """``did you mean rank_late?``, with the name that is most like this one.

    It is `otherwise` where none is.
    """
    close = difflib.get_close_matches(name, list(known), 1)
    if close:
        return f"did you mean {close[0]}?"
    return otherwise


def format_age(seconds: float) -> str:
    """An age for people: ``40 s``, ``12 min``, ``5 h``, ``3 days``."""
    for unit, size, least in (("days", 86400, 2), ("h", 3600, 2), ("min", 60, 2)):
        if seconds >= least * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def plural(count: int, noun: str) -> str:
    """``1 rank``, ``2 ranks``, ``1,024 ranks``."""
    if count == 1:
        ending = ""
    elif noun.endswith(("s", "x", "ch")):
        ending = "es"
    else:
        ending = "s"
    return f"{count:,} {noun}{ending}"


def ranges(numbers: Iterable[int]) -> str:
    """``[0, 1, 2, 5]`` → ``0–2, 5``."""
    found = []
    for a, b in runs(numbers):
        if a == b:
            found.append(f"{a}")
        else:
            found.append(f"{a}, {b}" if b == a + 1 else f"{a}–{b}")
    return ", ".join(found)


def some(names: Iterable[Any]) -> str:
    """All names, numbers as ranges; past `MANY` the others are counted."""
    known = list(names)
    if known and all(isinstance(name, int) for name in known):
        known = ranges(known).split(", ")
    more = ""
    if len(known) > MANY:
        more = f" and {len(known) - MANY:,} more"
    return ", ".join(str(name) for name in known[:MANY]) + more


def numbered(noun: str, numbers: Iterable[int]) -> str:
    """``Rank 5``, ``Ranks 0–2, 5``: a noun that agrees with its numbers."""
    known = list(numbers)
    return f"{noun}{'s' if len(known) != 1 else ''} {some(known)}"


def quantity(value: Any, unit: str) -> Any:
    """A value with its unit for people.

    Bytes are written as KiB…TiB, times scaled, -1 of something as unlimited; all else as it is.
    """
    if unit and isinstance(value, list) and all(isinstance(item, (int, float)) for item in value):
        return f"{', '.join(str(item) for item in value)} {unit}"
    # True is an int in Python, and means yes here
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    scale = {"bytes": 1.0, "B": 1.0, "KiB": 2.0**10, "kB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
    times = {"us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}
    if unit and value == -1:  # how the agent writes a limit that is not there
        return "unlimited"
    if unit in scale:
        return format_bytes(value * scale[unit])
    if unit in times:
        return format_time(value * times[unit])
    if not unit:  # a port, a pid, a version: digits only
        return value
    if isinstance(value, int):
        return f"{value:,} {unit}"
    return f"{format_number(value)} {unit}"


def host_list(names: Iterable[str]) -> str:
    """``node-3``, ``login, node[1-8]``, ``node[001-997]``.

    Past `HOSTS` pieces the other hosts are counted.
    """
    pieces = fold_hosts(names)
    rest = sum(count for _, count in pieces[HOSTS:])
    return ", ".join(text for text, _ in pieces[:HOSTS]) + (f" and {rest:,} more" if rest else "")


def fold_hosts(names: Iterable[str]) -> list[Piece]:
    """Each name once, those that differ in their last number only in one piece.

    Leading zeros are kept.
    """
    families: dict[tuple[str, str], list[str]] = defaultdict(list)
    pieces: list[Piece] = []
    for name in set(names):
        match = NUMBERED.fullmatch(name)
        if match:
            families[match[1], match[3]].append(match[2])
        else:
            pieces.append((name, 1))
    for (head, tail), numbers in families.items():
        pieces += [(head + text + tail, count) for text, count in _bracketed_numbers(numbers)]
    # by number, as node10 before node9 makes a list that nobody can check
    return sorted(pieces, key=lambda piece: natural(piece[0]))


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts ``node9`` before ``node10``."""
    found: list[tuple[int, str]] = []
    for place, part in enumerate(NUMBER.split(name)):
        if place % 2:
            found.append((int(part), ""))
        else:
            found.append((0, part))
    return found


def _bracketed_numbers(numbers: list[str]) -> Iterator[Piece]:
    """``7``, ``[1-3,7]``: the numbers of one family.

    They take as many pieces as needed.
    """
    # node007 and node7 are two hosts, so numbers with zeros are joined only with those as long
    padded = any(number.startswith("0") and len(number) > 1 for number in numbers)
    numbers = sorted(numbers, key=lambda number: (len(number), number))
    for _, same in groupby(numbers, key=len if padded else bool):
        joined: list[list[str]] = []
        for number in same:
            if joined and int(number) == int(joined[-1][-1]) + 1:
                joined[-1].append(number)
            else:
                joined.append([number])
        for start in range(0, len(joined), WIDE):
            part = joined[start : start + WIDE]
            texts = []
            for run in part:
                if len(run) == 1:
                    texts.append(run[0])
                else:
                    texts.append(f"{run[0]}-{run[-1]}")
            count = sum(map(len, part))
            yield (texts[0] if count == 1 else f"[{','.join(texts)}]"), count
