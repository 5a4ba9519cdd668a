"""Prose of a report: the first sentence of each part stays open, the rest is folded.

A report goes into a ticket.  Who opens it wants what was found; how a thing is measured and read is
one click away, and is left out on paper.
"""

from __future__ import annotations

import re

from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString

from ncclkit.report.page.sections import ANY_HEADING, SHOWN

PROSE = ("p", "ul", "ol", "blockquote", "table", "pre")
"""What explains; headings and outputs stay where they are."""
SHORT = 200
"""Characters of prose that stay open as a whole: two lines."""
SENTENCE_END = re.compile(r"[.?!](?=\s)|[。？！]")
FOLDED = "nk-fold explanation"
SUMMARY = {"en": "Explanation", "zh-CN": "说明"}


def fold_explanations(soup: BeautifulSoup) -> None:
    """Fold what explains the parts of a page that begins with its answer."""
    if soup.select_one(".question") is None or soup.select_one(".nk-guess"):
        return
    for section in soup.select("main > section.prose"):
        _fold_rest(soup, section)
    for section in soup.select("main > section.prose"):
        _join_with_part_before(section)


def _fold_rest(soup: BeautifulSoup, section: Tag) -> None:
    """Leave the first sentence of a section open."""
    prose = _prose_of(section)
    length = 0
    for part in prose:
        length += len(part.get_text())
    if length <= SHORT:
        return
    first, *others = prose
    rest = _cut_after_sentence(soup, first)
    if rest is not None:
        others.insert(0, rest)
    if not others:
        return
    folded = _folded_part(soup)
    first.insert_after(folded)
    for part in others:
        folded.append(part.extract())


def _prose_of(section: Tag) -> list[Tag]:
    """What explains in a section, in order."""
    prose = []
    for part in section.find_all(PROSE, recursive=False):
        classes = part.get_attribute_list("class")
        if "question" not in classes:
            prose.append(part)
    return prose


def _folded_part(soup: BeautifulSoup) -> Tag:
    """An explanation without its words."""
    folded = soup.new_tag("details", attrs={"class": FOLDED})
    summary = soup.new_tag("summary")
    language = "en"
    if soup.html is not None:
        language = str(soup.html["lang"])
    summary.string = SUMMARY[language]
    folded.append(summary)
    return folded


def _cut_after_sentence(soup: BeautifulSoup, paragraph: Tag) -> Tag | None:
    """Shorten a paragraph to its first sentence, and return the others as one, if there are any."""
    if paragraph.name != "p":
        return None
    for child in list(paragraph.contents):
        if type(child) is not NavigableString:
            continue
        found = SENTENCE_END.search(child)
        if found is None:
            continue
        end = found.end()
        after = list(child.next_siblings)
        tail = child[end:].lstrip()
        if not tail and not after:
            return None
        rest = soup.new_tag("p")
        rest.append(tail)
        for sibling in after:
            rest.append(sibling.extract())
        child.replace_with(child[:end])
        return rest
    return None


def _join_with_part_before(section: Tag) -> None:
    """Put prose without a heading into the explanation right above it."""
    before = section.find_previous_sibling()
    # a cell that only computes shows nothing in between
    while isinstance(before, Tag) and "step" in before.get_attribute_list("class"):
        if before.select_one(SHOWN):
            return
        before = before.find_previous_sibling()
    if not isinstance(before, Tag) or section.find(ANY_HEADING, recursive=False):
        return
    explanation = before.find("details", class_="explanation", recursive=False)
    if not isinstance(explanation, Tag):
        return
    parts = list(section.find_all(True, recursive=False))
    for part in parts:
        if part.name != "details":
            explanation.append(part.extract())
            continue
        # its sentences belong together again
        for inner in part.find_all(PROSE, recursive=False):
            explanation.append(inner.extract())
    section.decompose()
