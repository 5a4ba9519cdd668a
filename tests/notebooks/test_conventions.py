from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from tests.notebooks.conventions import RULES, Rule, reads_like_a_book
from tests.reports import CHINESE, DATA, NOTEBOOKS, ROOT


def broken(rule: Rule, path: Path) -> list[str]:
    return list(rule(nbformat.read(path, as_version=nbformat.NO_CONVERT)))


def test_the_guided_notebook_is_among_those_that_are_counted() -> None:
    assert ROOT / "notebooks" / "guided.ipynb" in NOTEBOOKS


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", [*NOTEBOOKS, DATA / "good.ipynb"], ids=lambda path: path.stem)
def test_notebooks_keep_the_conventions(path: Path, rule: Rule) -> None:
    assert broken(rule, path) == []


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if rule is not reads_like_a_book], ids=lambda one: one.__name__
)
@pytest.mark.parametrize("path", CHINESE, ids=lambda path: path.stem)
def test_chinese_notebooks_keep_those_that_count_no_words(path: Path, rule: Rule) -> None:
    assert broken(rule, path) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_convention_can_be_broken(rule: Rule) -> None:
    assert broken(rule, DATA / "bad.ipynb")
