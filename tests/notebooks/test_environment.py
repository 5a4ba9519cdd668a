"""01_environment headless, with the facts of two captured machines beside this host's, and two peers on this host."""

from __future__ import annotations

import pytest
from bs4 import BeautifulSoup

from ncclkit.report import report_file
from tests.reports import NOTEBOOKS, made
from tests.views.machines import CONCLUSIONS, given

ENVIRONMENT = next(path for path in NOTEBOOKS if path.stem == "01_environment")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> BeautifulSoup:
    case, run = made(ENVIRONMENT, tuple(given(tmp_path_factory.mktemp("others")).items()))
    assert run.returncode == 0, run.stderr
    return BeautifulSoup(report_file(case, ENVIRONMENT).read_text(encoding="utf-8"), "html.parser")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("said", CONCLUSIONS)
def test_each_part_states_its_conclusion(page: BeautifulSoup, said: str) -> None:
    assert page.main is not None and said in page.main.get_text(" ")


@pytest.mark.timeout(300)
def test_topology_and_ways_are_drawn(page: BeautifulSoup) -> None:
    figures = [script.text for script in page.find_all("script", class_="figure-data")]
    assert any("NV18" in figure and "GPU with fewer NVLinks" in figure for figure in figures) and len(figures) == 2
