"""What a fresh user and an administrator are told on a cluster as users have it: true, and of use, in each situation."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.live import slurm_accounts
from tests.live.slurm_cluster import available
from tests.live.test_user_cluster import python_of_users
from tests.live.user_cluster import UserCluster, user_cluster
from tests.live.user_situations import SITUATIONS, Situation, Stage, clear_stage, set_stage
from tests.namespaces import needs_namespaces
from tests.packaging.project import ROOT
from tests.processes import leftovers

PAGE = ROOT / "docs" / "cluster-situations.md"


@pytest.fixture(scope="module")
def cluster() -> Iterator[UserCluster]:
    python = python_of_users()
    if not python:
        pytest.skip("no interpreter that has torch may be run by a user here")
    with user_cluster(python) as made:
        set_stage(made)
        yield made


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(not available(), reason="Slurm and munge are not installed, or we are not root")
@pytest.mark.skipif(not slurm_accounts.available(), reason="slurmdbd and MariaDB are not installed")
@needs_namespaces
@pytest.mark.parametrize("each", SITUATIONS, ids=[each.play.__name__ for each in SITUATIONS])
def test_who_is_on_a_cluster_is_told_what_is_so(cluster: UserCluster, each: Situation) -> None:
    try:
        each.play(Stage(cluster, each))
        assert leftovers() == []
    finally:
        clear_stage(cluster)


def test_the_page_shows_each_situation() -> None:
    titles = re.findall(r"^## \d+\. (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert titles == [each.title for each in SITUATIONS]
    assert len(titles) >= 24
