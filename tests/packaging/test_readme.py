"""README.md names the commands and options that exist, and every command that exists."""

import re
import subprocess
import sys
from functools import cache

import pytest

from tests.packaging.project import ROOT

README = (ROOT / "README.md").read_text()
USES = sorted(set(re.findall(r"\bncclkit ([a-z]+)([^\n|`#]*)", "\n".join(re.findall(r"`{1,3}[^`]+`{1,3}", README)))))


@cache
def help_of(*command: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "ncclkit", *command, "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    return result.stdout


def commands() -> set[str]:
    return set(re.findall(r"^    ([a-z]+)\b", help_of(), re.MULTILINE))


def test_readme_names_every_command_and_no_other():
    assert {command for command, _ in USES} == commands()


@pytest.mark.parametrize("command, rest", USES, ids=lambda value: value.strip())
def test_options_of_the_readme_exist(command, rest):
    for option in re.findall(r"--[a-z-]+", rest):
        assert re.search(rf"{option}\b", help_of(command)), f"ncclkit {command} has no {option}"


@pytest.mark.parametrize("file", ["README.md", "CONTRIBUTING.md"])
def test_make_targets_exist(file):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = set(re.findall(r"\bmake ([a-z]+)", (ROOT / file).read_text()))
    assert asked <= targets
    assert file != "README.md" or {"report", "test", "lab"} <= asked


@pytest.mark.parametrize("file", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"])
def test_links_lead_somewhere(file):
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / file).read_text()) if "://" not in link]
    assert [link for link in links if not (ROOT / link).exists()] == []
