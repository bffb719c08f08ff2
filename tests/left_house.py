"""A failed story leaves its house in an unknown state: the later stories of that house fail at once.

Otherwise each of them would wait for its own deadlines, minutes at a time, without new information. They fail, because
they proved nothing; none is skipped. A house is a system that the tests of a module share: the fixtures of `HOUSES`, each
parameter a separate house, in each process of xdist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Hashable

# The names of fixtures that start a system for a whole module. One of these names with the scope of a test is no house.
HOUSES = frozenset({"any_house", "house", "java_house", "lab", "release", "scene"})


class LeftHouses:
    """The houses of this run that a failed test left, with that test."""

    def __init__(self) -> None:
        self._shared: set[tuple[str, str]] = set()
        self._left_by: dict[Hashable, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
        if fixturedef.argname in HOUSES:  # with the scope of a test the node is that test, never a module
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
        """Return the test's house; None if it shares none, or if the house never started."""
        module = item.getparent(pytest.Module)
        if module is None or not isinstance(item, pytest.Function):
            return None
        if not any((module.nodeid, name) in self._shared for name in item.fixturenames):
            return None
        parameters = getattr(item, "callspec", None)
        chosen = {} if parameters is None else parameters.params
        return (module.nodeid, tuple((name, str(chosen[name])) for name in sorted(HOUSES & chosen.keys())))
