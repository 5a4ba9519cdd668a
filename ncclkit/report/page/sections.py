"""Sections without data: left out of a report, and named in one line at its end."""

from __future__ import annotations

from bs4 import BeautifulSoup, Tag

HEADINGS = ("h2", "h3")
"""Headings of sections that may be left out; the title of the page never is."""
ANY_HEADING = ["h1", *HEADINGS]
SHOWN = ".out, .error, .aside"
"""What a cell shows: an output, why it failed, what it said on standard error."""
NO_DATA = ".nk-no-data"
IDLE = ".nk-idle"
"""What awaits a form that nobody used."""


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
    emptied = _drop_outputs(main)
    # what is inside of others first, so that a part that lost all of its own goes, too
    for level in reversed(HEADINGS):
        for heading in main.select(f"section.prose > {level}:first-child"):
            section = _section_of(heading)
            if _lost_all(section, emptied):
                _drop(section)
    for step in emptied:
        _drop_words_before(step)
    _name_missing(soup, main)


def _drop_outputs(main: Tag) -> list[Tag]:
    """Take away the outputs without data.  The steps that lost one, by which sections are judged.

    What is missing is kept in `data-missing` of ``main``.
    """
    emptied = []
    missing: dict[str, list[str]] = {}
    for output in main.select(f".out:has({NO_DATA}), .out:has({IDLE})"):
        step = output.find_parent("section", class_="step")
        # where a notebook stopped, everything stays that may say why
        if step is None:
            continue
        if step.get("id") == "stopped":
            continue
        said = output.select_one(NO_DATA)
        if said is not None:
            why = str(said["data-why"])
            subject = str(said["data-subject"])
            missing.setdefault(why, []).append(subject)
        output.decompose()
        emptied.append(step)
    said_missing = []
    for why, subjects in missing.items():
        said_missing.append(f"{_listed(subjects)} ({why})")
    main["data-missing"] = "; ".join(said_missing)
    return emptied


def _listed(subjects: list[str]) -> str:
    named = list(dict.fromkeys(subjects))
    if len(named) == 1:
        return named[0]
    before = ", ".join(named[:-1])
    return f"{before} and {named[-1]}"


def _section_of(heading: Tag) -> list[Tag]:
    """The cells from a heading up to the next one that is no smaller."""
    first = heading.find_parent("section")
    if first is None:
        return []
    section = [first]
    larger = _headings_down_to(heading.name)
    for cell in first.find_next_siblings():
        if cell.name == "footer":
            break
        if cell.find(larger, recursive=False):
            break
        section.append(cell)
    return section


def _headings_down_to(name: str) -> list[str]:
    """The names of all headings that are no smaller than this one."""
    level = int(name[1])
    names = []
    for number in range(1, level + 1):
        names.append(f"h{number}")
    return names


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
        if cell.get("id") == "stopped":
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


def _name_missing(soup: BeautifulSoup, main: Tag) -> None:
    """One line before the foot of the page: what is not shown, and why."""
    missing = main["data-missing"]
    del main["data-missing"]
    footer = main.find("footer")
    if not missing:
        return
    if footer is None:
        return
    said = f"Not shown, because there are no data: {missing}."
    line = soup.new_tag("p", attrs={"class": "not-shown"})
    line.string = said
    footer.insert_before(line)
