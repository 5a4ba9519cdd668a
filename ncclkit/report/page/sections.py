"""Sections without data: left out of a report, and named in one line at its end."""

from __future__ import annotations

from bs4 import BeautifulSoup, Tag

HEADINGS = ("h2", "h3")
"""Headings of sections that may be left out; the title of the page never is."""
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
            if _is_empty(section) and any(step in emptied for step in section):
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
        if step is None or step.get("id") == "stopped":
            continue
        said = output.select_one(NO_DATA)
        if said is not None:
            subjects = missing.setdefault(str(said["data-why"]), [])
            subjects.append(str(said["data-subject"]))
        output.decompose()
        emptied.append(step)
    main["data-missing"] = "; ".join(
        f"{_listed(subjects)} ({why})" for why, subjects in missing.items()
    )
    return emptied


def _listed(subjects: list[str]) -> str:
    named = list(dict.fromkeys(subjects))
    if len(named) == 1:
        return named[0]
    return f"{', '.join(named[:-1])} and {named[-1]}"


def _section_of(heading: Tag) -> list[Tag]:
    """The cells from a heading up to the next one that is no smaller."""
    first = heading.find_parent("section")
    if first is None:
        return []
    section = [first]
    for cell in first.find_next_siblings():
        if cell.find(_headings_down_to(heading.name), recursive=False) or cell.name == "footer":
            break
        section.append(cell)
    return section


def _headings_down_to(name: str) -> list[str]:
    """The names of all headings that are no smaller than this one."""
    return [f"h{number}" for number in range(1, int(name[1]) + 1)]


def _is_empty(section: list[Tag]) -> bool:
    """Whether no cell of a section shows anything, and one heading is all that it has."""
    headings = 0
    for cell in section:
        if cell.get("id") == "stopped" or cell.select_one(".out, .error, .aside"):
            return False
        headings += len(cell.find_all(["h1", *HEADINGS], recursive=False))
    return headings == 1


def _drop(section: list[Tag]) -> None:
    for cell in section:
        cell.extract()


def _drop_words_before(step: Tag) -> None:
    """Take away a paragraph that only leads to what is not shown."""
    before = step.find_previous_sibling()
    if step.parent is None or before is None or step.select_one(".out, .error, .aside"):
        return
    if "prose" in before.get_attribute_list("class") and not before.find(["h1", *HEADINGS]):
        before.extract()


def _name_missing(soup: BeautifulSoup, main: Tag) -> None:
    """One line before the foot of the page: what is not shown, and why."""
    missing = main["data-missing"]
    del main["data-missing"]
    footer = main.find("footer")
    if not missing or footer is None:
        return
    line = soup.new_tag("p", attrs={"class": "not-shown"})
    line.string = f"Not shown, because there are no data: {missing}."
    footer.insert_before(line)
