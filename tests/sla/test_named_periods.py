"""`previous-month` as of an instant, in the time zone of the agreement."""

from __future__ import annotations

import datetime as dt

import pytest

from sla_reports.measures.periods import PeriodError, named, window_of


def _ms(text: str) -> int:
    return round(dt.datetime.fromisoformat(text).timestamp() * 1000)


@pytest.mark.parametrize(
    ("period", "zone", "now", "expected"),
    [
        ("previous-month", "UTC", "2026-11-01T01:00Z", "2026-10"),
        ("previous-month", "UTC", "2026-01-31T23:59Z", "2025-12"),
        # In Shanghai November has begun, in London it has not.
        ("previous-month", "Asia/Shanghai", "2026-10-31T16:30Z", "2026-10"),
        ("previous-month", "Europe/London", "2026-10-31T16:30Z", "2026-09"),
        ("previous-quarter", "UTC", "2026-02-14T00:00Z", "2025-Q4"),
        ("previous-quarter", "UTC", "2026-11-14T00:00Z", "2026-Q3"),
        ("previous-year", "UTC", "2026-11-14T00:00Z", "2025"),
        ("previous-day", "UTC", "2026-03-01T00:00Z", "2026-02-28"),
        ("previous-week", "UTC", "2026-01-05T09:00Z", "2026-W01"),
        ("previous-week", "UTC", "2026-01-04T09:00Z", "2025-W52"),
        ("2026-10", "UTC", "2030-01-01T00:00Z", "2026-10"),
    ],
)
def test_the_last_whole_period_before_now(period: str, zone: str, now: str, expected: str) -> None:
    found = named(period, zone, now_ms=_ms(now))
    assert found == expected
    assert window_of(found, zone).end_ms <= _ms(now)


def test_a_period_that_nobody_knows_is_told_with_what_is_known() -> None:
    assert named("previous-fortnight", "UTC", now_ms=0) == "previous-fortnight"
    with pytest.raises(PeriodError, match=r"'previous-fortnight'.*expected .*previous-month"):
        window_of("previous-fortnight", "UTC")
    with pytest.raises(PeriodError, match="'Mars/Olympus'"):
        named("previous-month", "Mars/Olympus", now_ms=0)


@pytest.mark.parametrize(
    "period", ["9999-12-31", "9999-W52", "9999-12", "9999", "0000-01", "2026-W54", "2026-02-30", "0d"]
)
def test_a_period_without_an_end_is_refused_with_words(period: str) -> None:
    with pytest.raises(PeriodError, match=rf"period '{period}': .*expected 2026-10"):
        window_of(period, "UTC")


@pytest.mark.parametrize("zone", ["Europe", "A" * 300, "../etc/passwd", "+08:00", ""])
def test_a_time_zone_that_is_none_is_refused_with_words(zone: str) -> None:
    with pytest.raises(PeriodError, match=r"time zone '.*': unknown; expected a name as Asia/Shanghai or UTC"):
        window_of("2026-10", zone)
