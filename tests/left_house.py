"""A story that failed leaves its house in a state that nobody knows: the later stories of that house fail at once.

Else each of them would wait to its own deadlines, minutes at a time, and tell nothing that the first did not. They fail, for
they proved nothing; none is left out. A house is what the tests of a module share: the fixtures of `HOUSES`, each parameter
of theirs a house of its own, and each process of xdist has its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Hashable

# What the fixtures are called that start a system for a whole module. Of the same name for one test, they are no house.
HOUSES = frozenset({"any_house", "house", "java_house", "lab", "release", "scene"})


class LeftHouses:
    """Which houses of this run were left by a test that failed, and by which."""

    def __init__(self) -> None:
        self._shared: set[tuple[str, str]] = set()
        self._left_by: dict[Hashable, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
        if fixturedef.argname in HOUSES:  # of one test only, the node is that test, and never a module
            self._shared.add((request.node.nodeid, fixturedef.argname))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if (failed := self._left_by.get(self._house_of(item))) is not None:
            pytest.fail(f"the house was left by {failed}, which failed", pytrace=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        report: pytest.TestReport = yield
        house = self._house_of(item)
        if report.failed and house is not None:
            self._left_by.setdefault(house, item.nodeid)
        return report

    def _house_of(self, item: pytest.Item) -> Hashable:
        """None for a test that shares no house, or whose house was never started."""
        module = item.getparent(pytest.Module)
        if module is None or not isinstance(item, pytest.Function):
            return None
        if not any((module.nodeid, name) in self._shared for name in item.fixturenames):
            return None
        parameters = getattr(item, "callspec", None)
        chosen = {} if parameters is None else parameters.params
        return (module.nodeid, tuple((name, str(chosen[name])) for name in sorted(HOUSES & chosen.keys())))
