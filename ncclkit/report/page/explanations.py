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
    parts = section.find_all(PROSE, recursive=False)
    prose = [part for part in parts if "question" not in part.get_attribute_list("class")]
    if sum(len(part.get_text()) for part in prose) <= SHORT:
        return
    first, *others = prose
    rest = _cut_after_sentence(soup, first)
    if not rest and not others:
        return
    folded = soup.new_tag("details", attrs={"class": FOLDED})
    summary = soup.new_tag("summary")
    language = str(soup.html["lang"]) if soup.html else "en"
    summary.string = SUMMARY.get(language, SUMMARY["en"])
    folded.append(summary)
    first.insert_after(folded)
    folded.extend([*rest, *(part.extract() for part in others)])


def _cut_after_sentence(soup: BeautifulSoup, paragraph: Tag) -> list[Tag]:
    """Shorten a paragraph to its first sentence, and return the others as one, if there are any."""
    if paragraph.name != "p":
        return []
    for child in list(paragraph.contents):
        if type(child) is not NavigableString:
            continue
        end = SENTENCE_END.search(child)
        if end is None:
            continue
        after = [*child.next_siblings]
        tail = child[end.end() :].lstrip()
        if not tail and not after:
            return []
        rest = soup.new_tag("p")
        rest.append(tail)
        rest.extend([sibling.extract() for sibling in after])
        child.replace_with(child[: end.end()])
        return [rest]
    return []


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
    for part in [*section.find_all(True, recursive=False)]:
        if part.name != "details":
            explanation.append(part.extract())
            continue
        # its sentences belong together again
        for inner in part.find_all(PROSE, recursive=False):
            explanation.append(inner.extract())
    section.decompose()
