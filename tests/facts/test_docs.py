"""docs/facts.md lists exactly the facts that the agent gives, with their units."""

import re
from pathlib import Path

from tests.facts.test_machines import MACHINES, read

PAGE = Path(__file__).parents[2] / "docs" / "facts.md"
ROW = re.compile(r"^\| `([a-z][\w.<>]*)` \| ([^|]*) \| ([^|]+) \| ([^|]+) \|$", re.M)


def general(name: str) -> str:
    """gpu.3.model → gpu.<i>.model"""
    if name in ("env.problems", "env.notes"):
        return name
    name = re.sub(r"^gpu\.\d+\.", "gpu.<i>.", name)
    name = re.sub(r"^storage\.\w+\.", "storage.<label>.", name)
    return re.sub(r"^env\..*", "env.<NAME>", name)


def test_page_and_code_agree():
    rows = [row for machine in MACHINES for row in read(machine).values()]
    given = {general(row["name"]): row["unit"] for row in rows}
    listed = {name: unit.strip() for name, unit, _, _ in ROW.findall(PAGE.read_text(encoding="utf-8"))}
    assert listed == given


def test_every_fact_could_be_read_on_some_machine():
    rows = [row for machine in MACHINES for row in read(machine).values()]
    assert {general(row["name"]) for row in rows} == {general(row["name"]) for row in rows if row["value"] is not None}
