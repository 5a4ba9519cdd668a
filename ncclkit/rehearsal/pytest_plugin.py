"""For pytest: ``@pytest.mark.ranks(4)`` runs a test function on four ranks, without a GPU.

A test fails with the sentence and the lines of the ranks that do not agree.
"""

from __future__ import annotations

from typing import Any

MARKER = "ranks(number, **options): run this test on all ranks of a job (ncclkit.rehearse)"


def pytest_configure(config: Any) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", MARKER)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Put a function on ranks in the place of each marked one."""
    for item in items:
        marker = item.get_closest_marker("ranks")
        if marker is not None:
            _put_on_ranks(item, marker)


def _put_on_ranks(item: Any, marker: Any) -> None:
    function = item.obj

    def run_on_ranks(**values: Any) -> None:
        # a test run without a marked test loads nothing of ncclkit
        from ncclkit.rehearsal.function import rehearse_function

        __tracebackhide__ = True
        rehearse_function(function, *marker.args, values=values, **marker.kwargs)

    item.obj = run_on_ranks
