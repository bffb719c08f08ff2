"""The list of time zones that the kind's rule holds: whole, and no name that a report could not use."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from brokergroup_operator.api.times import TIME_ZONES, is_unknown
from sla_reports.measures.periods import zone_of

if TYPE_CHECKING:
    import pytest

# Of tzdata's own: what a machine has that nobody has set up.
NONE_TO_CHOOSE = {"Factory"}


def test_the_list_is_the_packages() -> None:
    """A newer tzdata in uv.lock may know more: write its names into `api/times.py`, and generate the kinds."""
    assert set(TIME_ZONES) == set((files("tzdata") / "zones").read_text().split()) - NONE_TO_CHOOSE
    assert len(TIME_ZONES) == len(set(TIME_ZONES))


def test_a_report_knows_each_of_them() -> None:
    assert [str(zone_of(name)) for name in TIME_ZONES] == list(TIME_ZONES)


def test_a_zone_that_only_this_machine_knows_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database of the machine may be newer than the list."""
    assert is_unknown("Mars/Olympus")
    monkeypatch.setattr("brokergroup_operator.api.times.ZoneInfo", str)
    assert not is_unknown("Mars/Olympus")
