"""README.md names the commands and options that exist, and every command that exists."""

import io
import json
import re
import subprocess
import sys
from contextlib import redirect_stdout
from functools import cache

import pytest

from ncclkit import cli
from ncclkit.causes.diagnosis import EXIT_STATUS
from ncclkit.causes.order import STRENGTHS
from tests.packaging.project import ROOT

README = (ROOT / "README.md").read_text()


@cache
def help_of(*command: str) -> str:
    with redirect_stdout(io.StringIO()) as said:
        assert cli.main([*command, "--help"]) == 0
    return said.getvalue()


def commands() -> set[str]:
    return set(re.findall(r"^    ([a-z]+)\b", help_of(), re.MULTILINE))


PAGES = ["README.md", "docs/agents.md"]


def uses(page: str) -> list[tuple[str, str]]:
    """Verbs with what stands behind them, in the code of a page."""
    code = "\n".join(re.findall(r"`{1,3}[^`]+`{1,3}", (ROOT / page).read_text()))
    return sorted(set(re.findall(r"\bncclkit ([a-z]+)([^\n|`#]*)", code)))


def test_readme_names_every_command_and_no_other():
    assert {command for command, _ in uses("README.md")} == commands()


@pytest.mark.parametrize(
    "command, rest", [use for page in PAGES for use in uses(page)], ids=lambda value: value.strip()
)
def test_options_that_a_page_names_exist(command, rest):
    assert command in commands()
    for option in re.findall(r"--[a-z-]+", rest):
        assert re.search(rf"{option}\b", help_of(command)), f"ncclkit {command} has no {option}"


def test_readme_takes_one_and_a_half_screens():
    assert len(README.splitlines()) <= 84
    assert re.findall(r"^    (git clone \S.*|make report)", README, re.MULTILINE)
    pictures = re.findall(r"!\[[^\]]+\]\((docs/[^)]+)\)", README)
    assert len(pictures) == 4 and all((ROOT / path).stat().st_size < 300_000 for path in pictures)


def test_the_page_for_agents_says_what_the_command_says():
    page = (ROOT / "docs" / "agents.md").read_text()
    sample = ROOT / "ncclkit" / "evidence" / "samples" / "rank_late"
    done = subprocess.run(
        [sys.executable, "-m", "ncclkit", "diagnose", "--json", str(sample)], capture_output=True, text=True, timeout=60
    )
    answer = json.loads(done.stdout)
    first = answer["findings"][0]
    example = json.loads(re.findall(r"```json\n(.*?)```", page, re.DOTALL)[-1])
    assert example == {"verdict": answer["verdict"], **{key: first[key] for key in ("cause", "strength", "say")}}
    named = set(re.findall(r"`(verdict|errors|say|culprits|evidence|advice|strength|unknown|next)`", page))
    assert named <= {*answer, *first} and len(named) == 9
    assert all(f"`{word}`" in page for word in (*EXIT_STATUS, *STRENGTHS) if word)


@pytest.mark.parametrize("file", ["README.md", "CONTRIBUTING.md"])
def test_make_targets_exist(file):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = set(re.findall(r"\bmake ([a-z]+)", (ROOT / file).read_text()))
    assert asked <= targets
    assert file != "README.md" or {"report", "test", "lab"} <= asked


@pytest.mark.parametrize("file", [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"])
def test_links_lead_somewhere(file):
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / file).read_text()) if "://" not in link]
    assert [link for link in links if not (ROOT / link).exists()] == []
