"""The words of the course in the language of the notebook.

`words/zh.json` beside this module pairs each English text of the questions, of their forms and of
the lab's faults with its Chinese one, and so does the file of each other language.  Verdicts,
causes and logs stay English, as they are what one searches for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files

import msgspec

from ncclkit.core.model import NcclkitError

SENTENCE_GAPS = {
    "en": " ",
    "zh": "",
}
"""Language → what stands between two sentences."""
LANGUAGES = tuple(SENTENCE_GAPS)
WRITTEN_IN = "en"
"""The language in which the course is written; each other one has a file of words."""


class Translator:
    """Gives an English text of the course in one language.

    Raises NcclkitError for a language that the course does not have.
    """

    def __init__(self, language: str) -> None:
        if language not in LANGUAGES:
            known = " and ".join(LANGUAGES)
            raise NcclkitError(f"The course is in {known}, not in {language!r}.")
        self.language = language

    def __call__(self, english: str, **fields: object) -> str:
        """The text in this language, with `fields` in the places that it names in braces."""
        text = english
        if self.language != WRITTEN_IN:
            text = texts_in(self.language)[english]
        if fields:
            return text.format(**fields)
        return text

    def join_sentences(self, sentences: Iterable[str]) -> str:
        """Translated sentences one after the other."""
        gap = SENTENCE_GAPS[self.language]
        return gap.join(sentences)


@cache
def pairs_by_section(language: str) -> Mapping[str, Mapping[str, str]]:
    """Section of the course → English text → its text in this language."""
    words = files("ncclkit.lab.course") / "words"
    table = words.joinpath(f"{language}.json").read_bytes()
    return msgspec.json.decode(table, type=dict[str, dict[str, str]])


@cache
def texts_in(language: str) -> Mapping[str, str]:
    """English text → its text in this language, of all sections."""
    texts: dict[str, str] = {}
    for pairs in pairs_by_section(language).values():
        texts.update(pairs)
    return texts


ENGLISH = Translator("en")
