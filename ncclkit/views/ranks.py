"""Who spoke and who fell silent: one strip per rank, alike ranks together, 1,024 ranks on a page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ncclkit.case import Case
from ncclkit.model import Event
from ncclkit.views import _story
from ncclkit.views._base import View
from ncclkit.views._html import Html, el, fit, join, table
from ncclkit.views._story import Story
from ncclkit.views._words import the

SEPARATE = 32
"""Up to here every rank has a strip of its own; beyond, ranks of the same shape share one."""

MARKS = (
    ("init", "◆", "initialised"),
    ("work", "●", "last collective or step"),
    ("wrong", "▲", "first abnormal line"),
    ("end", "■", "end"),
)
WORDS = 160


@dataclass(frozen=True, slots=True)
class Scale:
    """From a place (time or line) to a part of the strip, 0 to 100."""

    start: float
    end: float
    in_time: bool

    def __call__(self, place: float) -> float:
        """The part of the strip before `place`."""
        return min(100.0, max(0.0, 100 * (place - self.start) / ((self.end - self.start) or 1.0)))

    def of(self, event: Event) -> float | None:
        """Where an event stands, None where nothing says so."""
        place = _story.place_in(self.in_time)(event)
        return None if place is None else self(place)

    def __str__(self) -> str:
        span = self.end - self.start
        return f"full width: {span:,.1f} s" if self.in_time else f"full width: {span:,.0f} lines (they have no times)"


def ranks_view(case: Case) -> View:
    """A strip per rank from its first line to its last, over time, or over line numbers where lines have no time."""
    known, in_time = _story.stories(case.events)
    places = [place for story in known for place in (story.first, story.last) if place is not None]
    scale = Scale(min(places, default=0.0), max(places, default=1.0), in_time)
    head = ("Rank", "First to last line", "First trouble, or last words")
    rows = [(_label(group), _strip(group, scale), _ending(group[0])) for group in _groups(known)]
    body = join(_legend(scale), fit(table(head, rows, "nk-ranks"))) if known else Html("")
    return View(_story.say(known, in_time), body)


def _groups(known: list[Story]) -> list[list[Story]]:
    """Stories that share a strip; the rarest first, as the odd one out is what one looks for."""
    if len(known) <= SEPARATE:
        return [[story] for story in known]
    alike: dict[tuple[str, ...], list[Story]] = {}
    for story in known:
        alike.setdefault(story.shape, []).append(story)
    return sorted(alike.values(), key=len)


def _legend(scale: Scale) -> Html:
    signs = ((el("span", symbol, cls=f"nk-mark-{name}"), words) for name, symbol, words in MARKS)
    keys = (el("span", sign, f" {words}", cls="nk-chip") for sign, words in signs)
    return el("p", *keys, str(scale), cls="nk-dim")


def _label(group: list[Story]) -> str:
    if len(group) == 1:
        return str(group[0].rank)
    return f"{the('Rank', (story.rank for story in group))} ({len(group):,})"


def _strip(group: list[Story], scale: Scale) -> Html:
    """One bar; a group shows its widest extent and the marks of its first member."""
    ends = [(scale(s.first), scale(s.last)) for s in group if s.first is not None and s.last is not None]
    if not ends:
        words = "never spoke" if group[0].final is None else "spoke, nothing says when"
        return el("div", el("span", words, cls="nk-mute"), cls="nk-strip")
    left, right = min(a for a, _ in ends), max(b for _, b in ends)
    bar = el("span", cls="nk-bar", style=f"left:{left:.2f}%;width:{max(right - left, 0.6):.2f}%")
    return el("div", bar, *_marks(group[0], scale), cls="nk-strip")


def _marks(story: Story, scale: Scale) -> Iterable[Html]:
    for name, symbol, words in MARKS:
        event: Event | None = getattr(story, name)
        place = scale.of(event) if event is not None else None
        if place is not None:
            where = f"left:{place:.2f}%"
            yield el("span", symbol, cls=f"nk-mark nk-mark-{name}", style=where, title=f"{words}: {event}")


def _ending(story: Story) -> Html:
    event = story.wrong or story.final
    if event is None:
        return el("span", "no line of this rank", cls="nk-dim")
    end = story.end if story.wrong is None and story.end not in (None, event) else None
    return join(_line(event), _line(end) if end else "")


def _line(event: Event) -> Html:
    place = f"{event.path}:{event.line}" if event.line else event.path
    first = next(iter(event.text.splitlines()), "")
    raw = first if len(first) <= WORDS else f"{first[:WORDS]} …"
    return el("div", el("b", event.kind), " ", el("span", place, cls="nk-path"), el("div", raw, cls="nk-raw"))
