"""Times and time zones in a spec: accepted or refused, and never a zone that a report cannot use."""

from __future__ import annotations

import datetime as dt
from importlib.resources import files

import pytest

from brokergroup_operator.api.times import TIME_ZONES, MomentError, is_unknown, moment
from sla_reports.measures.periods import zone_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2030-01-02T03:04:05Z", dt.datetime(2030, 1, 2, 3, 4, 5, tzinfo=dt.UTC)),
        ("2030-01-02T03:04:05.25Z", dt.datetime(2030, 1, 2, 3, 4, 5, 250_000, tzinfo=dt.UTC)),
        ("2030-01-02T03:04:05+05:45", dt.datetime(2030, 1, 1, 21, 19, 5, tzinfo=dt.UTC)),
        # Berlin's repeated hour: the offset distinguishes the two.
        ("2026-10-25T02:30:00+02:00", dt.datetime(2026, 10, 25, 0, 30, tzinfo=dt.UTC)),
        ("2026-10-25T02:30:00+01:00", dt.datetime(2026, 10, 25, 1, 30, tzinfo=dt.UTC)),
        ("2028-02-29T00:00:00Z", dt.datetime(2028, 2, 29, tzinfo=dt.UTC)),
        ("9999-12-31T23:59:59Z", dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)),
    ],
)
def test_a_time_with_an_offset(text: str, expected: dt.datetime) -> None:
    assert moment(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "tonight", "2030-01-02", "2030-01-02T03:04:05", "2030-01-02 03:04:05Z", "2030-01-02T03:04Z",
        "2030-01-02t03:04:05z", "2030-01-02T24:00:00Z", "2030-06-30T23:59:60Z", "2030-01-02T03:04:05+99:99",
        "2030-01-02T03:04:05+24:00", "2030-01-02T03:04:05 CET", "2030-01-02T03:04:05[Europe/Berlin]", "2030-02-30T00:00:00Z",
        "2027-02-29T00:00:00Z", "2030-W01-1T00:00:00Z", "0000-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59",
        "0001-01-01T00:00:00+14:00", "12026-01-01T00:00:00Z", "-2026-01-01T00:00:00Z", "2030-01-02T03:04:05x5Z",
        "2030-01-02T03:04:05Z\n", "٢٠٣٠-01-02T03:04:05Z", "1893553445",
    ],
)  # fmt: skip
def test_what_is_no_time_is_named(text: str) -> None:
    with pytest.raises(MomentError, match="expected RFC 3339 with an offset, as 2030-01-02T03:04:05Z") as caught:
        moment(text)
    assert repr(text) in str(caught.value)


# tzdata's own name for the zone of an unconfigured machine.
NONE_TO_CHOOSE = {"Factory"}


def test_the_list_is_the_packages() -> None:
    """A newer tzdata in uv.lock may have more names: add them to `api/times.py`, and generate the kinds."""
    assert set(TIME_ZONES) == set((files("tzdata") / "zones").read_text().split()) - NONE_TO_CHOOSE
    assert len(TIME_ZONES) == len(set(TIME_ZONES))


def test_a_report_knows_each_of_them() -> None:
    assert [str(zone_of(name)) for name in TIME_ZONES] == list(TIME_ZONES)


def test_a_zone_that_only_this_machine_knows_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's database may be newer than the list."""
    assert is_unknown("Mars/Olympus")
    monkeypatch.setattr("brokergroup_operator.api.times.ZoneInfo", str)
    assert not is_unknown("Mars/Olympus")
