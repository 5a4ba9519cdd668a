"""Draw the map of the package from its imports: ``python tests/record/map.py`` writes docs/map.svg.

One box a package, one row a floor (`FLOORS` in tests/packaging/test_structure.py), one line an import from one package
to another.  A line that other lines imply is left out: views → analysis → core also says views → core.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.packaging.imports import Package  # noqa: E402

PICTURE = ROOT / "docs" / "map.svg"
WIDTH, BOX, HIGH, ROW, LEFT = 760, 130, 34, 74, 70
"""Pixels: width of the picture, width and height of a box, from floor to floor, room for the floor's number."""
STYLE = (
    "text{font:14px system-ui,sans-serif;fill:#1f2328}rect{fill:#eef3fb;stroke:#3b6fb6}"
    "path{stroke:#7d8590;fill:none;marker-end:url(#to)}svg{background:#fff}"
)

Pair = tuple[str, str]


def reduced(pairs: Collection[Pair]) -> set[Pair]:
    """The imports that no chain of other imports implies; `pairs` must hold no circle."""
    below: dict[str, set[str]] = {}
    for importer, imported in pairs:
        below.setdefault(importer, set()).add(imported)

    def reaches(start: str, end: str) -> bool:
        return end in below.get(start, ()) or any(reaches(middle, end) for middle in below.get(start, ()))

    return {(a, b) for a, b in pairs if not any(reaches(middle, b) for middle in below[a] - {b})}


def places(floors: Mapping[int, Collection[str]]) -> dict[str, tuple[float, float]]:
    """Package → the left upper corner of its box: the lowest floor at the bottom, each row centred."""
    found: dict[str, tuple[float, float]] = {}
    for row, floor in enumerate(sorted(floors, reverse=True)):
        step = (WIDTH - LEFT) / len(floors[floor])
        for column, package in enumerate(floors[floor]):
            found[package] = (LEFT + step * (column + 0.5) - BOX / 2, 10 + ROW * row)
    return found


def line(upper: tuple[float, float], lower: tuple[float, float]) -> str:
    """A curve from the bottom of one box to the top of another."""
    x, y, end, down = upper[0] + BOX / 2, upper[1] + HIGH, lower[0] + BOX / 2, lower[1] - 3
    middle = (y + down) / 2
    return f'<path d="M{x:.0f} {y:.0f}C{x:.0f} {middle:.0f} {end:.0f} {middle:.0f} {end:.0f} {down:.0f}"/>'


def draw(floors: Mapping[int, Collection[str]], pairs: Collection[Pair]) -> str:
    """The whole picture as the text of an SVG file."""
    at = places(floors)
    known = [(a, b) for a, b in pairs if a in at and b in at]
    height = 10 + ROW * (len(floors) - 1) + HIGH + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'aria-label="Packages of ncclkit on their floors, and which imports which">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="to" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" style="fill:#7d8590;stroke:none;marker-end:none"/></marker></defs>',
        *(line(at[a], at[b]) for a, b in sorted(reduced(known))),
    ]
    for row, floor in enumerate(sorted(floors, reverse=True)):
        parts.append(f'<text x="8" y="{10 + ROW * row + 22}">floor {floor}</text>')
    for package, (x, y) in sorted(at.items()):
        parts.append(f'<rect x="{x:.0f}" y="{y:.0f}" width="{BOX}" height="{HIGH}" rx="5"/>')
        parts.append(f'<text x="{x + BOX / 2:.0f}" y="{y + 22:.0f}" text-anchor="middle">{escape(package)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def picture() -> str:
    """The map of the package as it is now."""
    from tests.packaging.test_structure import FLOORS

    return draw(FLOORS, Package(ROOT / "ncclkit").unit_edges)


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    print(PICTURE.relative_to(ROOT))
