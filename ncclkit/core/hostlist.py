"""Many host names in few words, as Slurm writes them: ``node[001-997]``."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby

SHOWN = 4
"""Pieces such as ``node[1-8]`` that a text names before it counts the other hosts."""
WIDE = 6
"""Ranges in one pair of brackets."""
# one number only, at the end of the first label: lists of that form are also replaced in reports that name no host
NUMBERED = re.compile(r"([^.]*[A-Za-z_-])([0-9]{1,9})((?:\..*)?)", re.DOTALL)
NUMBER = re.compile(r"([0-9]{1,18})")

Piece = tuple[str, int]
"""Text, and how many hosts it stands for."""


def hosts(names: Iterable[str], shown: int = SHOWN) -> str:
    """``node-3``, ``login, node[1-8]``, ``node[001-997]``; past `shown` pieces the other hosts are counted."""
    pieces = fold(names)
    rest = sum(count for _, count in pieces[shown:])
    return ", ".join(text for text, _ in pieces[:shown]) + (f" and {rest:,} more" if rest else "")


def fold(names: Iterable[str]) -> list[Piece]:
    """Each name once, those that differ in their last number only in one piece; leading zeros are kept."""
    families: dict[tuple[str, str], list[str]] = defaultdict(list)
    pieces: list[Piece] = []
    for name in set(names):
        if match := NUMBERED.fullmatch(name):
            families[match[1], match[3]].append(match[2])
        else:
            pieces.append((name, 1))
    for (head, tail), numbers in families.items():
        pieces += [(head + text + tail, count) for text, count in _brackets(numbers)]
    return sorted(pieces, key=lambda piece: natural(piece[0]))


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts ``node9`` before ``node10``."""
    return [(int(part), "") if place % 2 else (0, part) for place, part in enumerate(NUMBER.split(name))]


def _brackets(numbers: list[str]) -> Iterator[Piece]:
    """``7``, ``[1-3,7]``: the numbers of one family, in as many pieces as it takes."""
    padded = any(number.startswith("0") and len(number) > 1 for number in numbers)
    numbers = sorted(numbers, key=lambda number: (len(number), number))
    for _, same in groupby(numbers, key=len if padded else bool):
        runs: list[list[str]] = []
        for number in same:
            if runs and int(number) == int(runs[-1][-1]) + 1:
                runs[-1].append(number)
            else:
                runs.append([number])
        for start in range(0, len(runs), WIDE):
            some = runs[start : start + WIDE]
            texts = [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in some]
            count = sum(map(len, some))
            yield (texts[0] if count == 1 else f"[{','.join(texts)}]"), count
