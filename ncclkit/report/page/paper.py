"""A story on paper: its question ends a sheet, and what solves it waits on the last one.

On a screen a reader scrolls on, or opens what is folded, when the guess is made.  Paper is seen as
a whole, so page.js moves what solves a question to the end while it is printed.
"""

from __future__ import annotations

from bs4 import BeautifulSoup, Tag

GUESS = ".nk-guess"
WORDS = {
    "en": {
        "turn": "Choose before you turn the page.",
        "answers": "Answers",
        "elsewhere": "The answer is on the last page.",
    },
    "zh-CN": {"turn": "请先选择，再翻页。", "answers": "答案", "elsewhere": "答案在最后一页。"},
}
"""Language of the page → what paper alone says."""


def part_at_guess(soup: BeautifulSoup, language: str) -> None:
    """End the sheet of a printed story below its question, and make room for the answers."""
    guess = soup.select_one(GUESS)
    main = soup.find("main")
    if guess is None or not isinstance(main, Tag):
        return
    words = WORDS[language]
    asked = guess.find_parent("section", class_="step")
    if asked is not None:
        turn = soup.new_tag("p", attrs={"class": "on-paper turn"})
        turn.string = words["turn"]
        asked.append(turn)
    answers = soup.new_tag("section", attrs={"class": "on-paper answers"})
    answers["data-elsewhere"] = words["elsewhere"]
    heading = soup.new_tag("p", attrs={"class": "answers-title"})
    heading.string = words["answers"]
    answers.append(heading)
    main.append(answers)
