"""Which tests run on one worker, and in which order: for the runs of `tests/run.py`, which use several workers.

Tests that share a system (a fixture of their module; with real parts also one of their folder) stay on one worker: each
worker would start that system for itself. The longest begin, so that no worker is left alone with one of them at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

# By the first part of a test's path; measured, in CI's order of minutes. What is not named here takes less.
LONGEST_FIRST = (
    "tests/e2e/test_operations.py",
    "tests/migrate/test_java_migration.py",
    "tests/e2e/",
    "tests/sla/",
    "tests/upstream/",
    "tests/real/test_java",
    "tests/real/test_chart_sla",
    "tests/real/",
    "tests/core/",
    "tests/fuzz/",
    "tests/availability/",
    "tests/demo/",
    "tests/controller/",
    "tests/migrate/",
)


def arrange(items: list[pytest.Item], root: Path) -> None:
    """Put the longest first, each file's own order as it was."""
    ranks: dict[Path, int] = {}
    for item in items:
        if item.path not in ranks:
            ranks[item.path] = _rank(item.path, root)
    items.sort(key=lambda item: ranks[item.path])


def _rank(path: Path, root: Path) -> int:
    relative = path.relative_to(root).as_posix() if path.is_relative_to(root) else ""
    matching = [index for index, start in enumerate(LONGEST_FIRST) if relative.startswith(start)]
    return min(matching, default=len(LONGEST_FIRST))


def mark(item: pytest.Item) -> None:
    """Name what this test shares with others as its xdist group; before `pytest_collection_modifyitems`, where xdist reads it."""
    if (name := group(item)) is not None:
        item.add_marker(pytest.mark.xdist_group(name))


def group(item: pytest.Item) -> str | None:
    """The name of what this test shares with others; None where it may run anywhere."""
    if not isinstance(item, pytest.Function):
        return None
    file = item.nodeid.partition("::")[0]
    shared = _shared_fixtures(item, "module")
    chosen = getattr(item, "callspec", None)
    parameters = {} if chosen is None else chosen.params
    if shared:
        return "-".join([file, *(str(parameters[name]) for name in sorted(shared.keys() & parameters.keys()))])
    if item.get_closest_marker("real") is None:
        return None
    folders = _shared_fixtures(item, "session").values()
    return min(folders, key=len, default=file)


def _shared_fixtures(item: pytest.Function, scope: str) -> dict[str, str]:
    """Fixtures of ours with that scope that the test asks for, each with the folder or file that defines it."""
    found = {name: definitions[-1] for name, definitions in item._fixtureinfo.name2fixturedefs.items() if definitions}
    return {name: one.baseid for name, one in found.items() if one.scope == scope and one.baseid}
