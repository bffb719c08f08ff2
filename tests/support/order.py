"""Assign tests to workers and order them, for the runs of `tests/run.py` with several workers.

Tests that share a system (a fixture of their module; with real parts also of their folder) stay on one worker: each
worker would start its own. The longest run first, so that none of them runs alone at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

# By the first part of a test's path; measured, in CI's order of minutes. Folders not listed take less.
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
    """Sort the longest first, and keep each file's own order."""
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
    """Set a test's xdist group by its shared system; before `pytest_collection_modifyitems`, where xdist reads it."""
    if (name := group(item)) is not None:
        item.add_marker(pytest.mark.xdist_group(name))


def group(item: pytest.Item) -> str | None:
    """Return the name of the system that a test shares; None if it may run on any worker."""
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
    """Return the test's fixtures of ours with that scope, each with its defining folder or file."""
    found = {name: definitions[-1] for name, definitions in item._fixtureinfo.name2fixturedefs.items() if definitions}
    return {name: one.baseid for name, one in found.items() if one.scope == scope and one.baseid}
