"""Sections without data: left out of a report, and named in one line at its end."""

from __future__ import annotations

from bs4 import BeautifulSoup, Tag

HEADINGS = ("h2", "h3")
"""Headings of sections that may be left out; the title of the page never is."""
NO_SMALLER = {"h2": ["h1", "h2"], "h3": ["h1", "h2", "h3"]}
"""The headings that end a section of each."""
ANY_HEADING = NO_SMALLER["h3"]
SHOWN = ".out, .error, .aside"
"""What a cell shows: an output, why it failed, what it said on standard error."""
NO_DATA = ".nk-no-data"
IDLE = ".nk-idle"
"""What awaits a form that nobody used."""
STOPPED = "stopped"
"""The anchor of the cell where a notebook stopped."""


def leave_out_empty_sections(soup: BeautifulSoup) -> None:
    """Take away what has nothing to show, with its heading, and say at the end what and why."""
    main = soup.find("main")
    if not isinstance(main, Tag):
        return
    # a story tells its sections whether or not somebody made its experiments
    if main.select_one(".nk-guess"):
        for output in main.select(f".out:has({IDLE})"):
            output.decompose()
        return
    missing = _missing_data(main)
    emptied = _drop_outputs(main)
    # what is inside of others first, so that a part that lost all of its own goes, too
    for level in reversed(HEADINGS):
        for heading in main.select(f"section.prose > {level}:first-child"):
            section = _section_of(heading)
            if _lost_all(section, emptied):
                _drop(section)
    for step in emptied:
        _drop_words_before(step)
    footer = main.find("footer")
    if missing and footer is not None:
        sentence = f"Not shown, because there are no data: {missing}."
        line = soup.new_tag("p", attrs={"class": "not-shown"})
        line.string = sentence
        footer.insert_before(line)


def _missing_data(main: Tag) -> str:
    """What is not shown, and why: ``the rings and the transports (the logs hold none)``."""
    missing: dict[str, list[str]] = {}
    for said in main.select(f".out {NO_DATA}"):
        if said.find_parent(id=STOPPED) is None:
            subject = str(said["data-subject"])
            why = str(said["data-why"])
            missing.setdefault(why, []).append(subject)
    rows = []
    for why, subjects in missing.items():
        named = " and ".join(dict.fromkeys(subjects))
        rows.append(f"{named} ({why})")
    return "; ".join(rows)


def _drop_outputs(main: Tag) -> list[Tag]:
    """Take away the outputs without data, and return the steps that lost one."""
    emptied = []
    without_data = f".out:has({NO_DATA}), .out:has({IDLE})"
    for output in main.select(without_data):
        step = output.find_parent("section", class_="step")
        # where a notebook stopped, everything stays that may say why
        if step is not None and step.get("id") != STOPPED:
            output.decompose()
            emptied.append(step)
    return emptied


def _section_of(heading: Tag) -> list[Tag]:
    """The cells from a heading up to the next one that is no smaller."""
    first = heading.find_parent("section")
    if first is None:
        return []
    section = [first]
    larger = NO_SMALLER[heading.name]
    for cell in first.find_next_siblings():
        if cell.name == "footer":
            break
        if cell.find(larger, recursive=False):
            break
        section.append(cell)
    return section


def _lost_all(section: list[Tag], emptied: list[Tag]) -> bool:
    """Whether a section had something to show before these steps lost it, and now has nothing."""
    for step in emptied:
        if step in section:
            return _is_empty(section)
    return False


def _is_empty(section: list[Tag]) -> bool:
    """Whether no cell of a section shows anything, and one heading is all that it has."""
    headings = 0
    for cell in section:
        if cell.get("id") == STOPPED:
            return False
        if _shows_something(cell):
            return False
        headings += len(cell.find_all(ANY_HEADING, recursive=False))
    return headings == 1


def _shows_something(cell: Tag) -> bool:
    return cell.select_one(SHOWN) is not None


def _drop(section: list[Tag]) -> None:
    for cell in section:
        cell.extract()


def _drop_words_before(step: Tag) -> None:
    """Take away a paragraph that only leads to what is not shown."""
    before = step.find_previous_sibling()
    if step.parent is None or before is None:
        return
    if _shows_something(step) or before.find(ANY_HEADING):
        return
    if "prose" in before.get_attribute_list("class"):
        before.extract()
