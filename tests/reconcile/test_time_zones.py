"""A time zone of `spec.slo` that is none: an API server refuses it; of one that is stored already a condition and an Event tell."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfoNotFoundError

import pytest

from brokergroup_operator.api import times
from brokergroup_operator.api.brokergroup_status import ConditionType, Reason
from brokergroup_operator.reconcile.plan import WriteStatus
from brokergroup_operator.reconcile.tell.events import transition_notes
from tests.reconcile import cases as c
from tests.reconcile.passes import run

SAID = f"spec.slo.timeZone is 'Europe/Berln': no such time zone; {times.EXPECTED_ZONE}"


def conditions(seen: Any) -> dict[str, dict[str, Any]]:
    [written] = [one for one in run(seen).actions if isinstance(one, WriteStatus)]
    return {one["type"]: one for one in written.status["conditions"]}


def zone(name: str) -> Any:
    return c.settled(slo={"availabilityPercent": "99.9", "window": "1M", "timeZone": name})


def test_a_zone_that_is_none_is_a_condition_with_field_value_and_what_is_expected() -> None:
    found = conditions(zone("Europe/Berln"))
    alarm = found[ConditionType.OBJECTIVE_INVALID]
    assert (alarm["status"], alarm["reason"]) == ("True", Reason.TIME_ZONE_UNKNOWN)
    assert alarm["message"].startswith(SAID)
    # Reports and alerts go by it, and brokers do not.
    assert (found["Ready"]["status"], found["Stalled"]["status"]) == ("True", "False")


def test_its_event_is_posted_once_and_the_condition_ends_with_the_correction() -> None:
    before, wrong = (list(conditions(zone(name)).values()) for name in ("Europe/Berlin", "Europe/Berln"))
    [note] = transition_notes(before, wrong)
    assert (note.reason, note.warning) == ("ObjectiveInvalid", True)
    assert note.message.startswith(SAID)
    assert list(transition_notes(wrong, wrong)) == []
    assert ConditionType.OBJECTIVE_INVALID not in {one["type"] for one in before}


@pytest.mark.parametrize("name", ["UTC", "Asia/Shanghai", "America/Argentina/Buenos_Aires", "Etc/GMT+5"])
def test_a_zone_that_is_one_is_none_of_its_business(name: str) -> None:
    assert ConditionType.OBJECTIVE_INVALID not in conditions(zone(name))


@pytest.mark.parametrize(
    "name", ["Europe/Berln", "europe/berlin", "Europe", "Local", "/etc/passwd", "-", "a" * 64, "a/" * 31]
)
def test_whatever_a_stored_object_holds_is_told_and_nothing_breaks(name: str) -> None:
    assert conditions(zone(name))[ConditionType.OBJECTIVE_INVALID]["reason"] == Reason.TIME_ZONE_UNKNOWN


def test_without_a_time_zone_database_the_list_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image without one would else call every group's zone wrong."""

    def none_of_them(name: str) -> None:
        raise ZoneInfoNotFoundError(name)

    monkeypatch.setattr(times, "ZoneInfo", none_of_them)
    assert ConditionType.OBJECTIVE_INVALID not in conditions(zone("Asia/Shanghai"))
    assert ConditionType.OBJECTIVE_INVALID in conditions(zone("Europe/Berln"))
