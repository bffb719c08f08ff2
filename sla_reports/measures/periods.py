"""Calendar windows in the time zone of the agreement: a month there has 743 hours when its clocks go forward.

2026-10     a month        2026-Q4       a quarter 2026-W43    an ISO week    2026-10-31    a day 2026        a year         30d
thirty days of 24 h up to the last midnight before now, or to a given end

A job that runs by itself asks for `previous-month` (or -day, -week, -quarter, -year): the last whole one before now.
"""

import datetime as dt
import re
import time
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sla_reports.states.spans import Window

_DAY_MS = 86_400_000
_EXPECTED = "expected 2026-10, 2026-Q4, 2026-W43, 2026-10-31, 2026, previous-month (day, week, quarter, year) or 30d"
_PREVIOUS = re.compile("previous-(day|week|month|quarter|year)")


class PeriodError(ValueError):
    """No such period or time zone; says what was expected."""


def window_of(period: str, time_zone: str, *, end_ms: int | None = None, now_ms: int | None = None) -> Window:
    """Return the period's instants. A rolling one ends at `end_ms`, else at the last midnight before `now_ms` (or before now).

    Raises PeriodError.
    """
    zone = zone_of(time_zone)
    if rolling := re.fullmatch(r"([1-9]\d{0,3})d", period):
        if end_ms is None:
            now = time.time() if now_ms is None else now_ms / 1000
            end_ms = _midnight_ms(dt.datetime.fromtimestamp(now, zone).date(), zone)
        return Window(end_ms - int(rolling[1]) * _DAY_MS, end_ms)
    try:
        first, after = _days(period)
    except (OverflowError, ValueError) as error:  # the last day of the year 9999 has no next one
        raise PeriodError(f"period {period!r}: {error}; {_EXPECTED}") from error
    return Window(_midnight_ms(first, zone), _midnight_ms(after, zone))


def named(period: str, time_zone: str, *, now_ms: int) -> str:
    """`previous-month` by its name as of now, 2026-10; any other period as it is. Raises PeriodError for an unknown time zone."""
    if not (told := _PREVIOUS.fullmatch(period)):
        return period
    today = dt.datetime.fromtimestamp(now_ms / 1000, zone_of(time_zone)).date()
    first, _ = _days(_holding(today, told[1]))
    return _holding(first - dt.timedelta(days=1), told[1])


def _holding(day: dt.date, unit: str) -> str:
    """The period of that length in which the day lies."""
    match unit:
        case "week":
            year, week, _ = day.isocalendar()
            return f"{year:04}-W{week:02}"
        case "quarter":
            return f"{day.year:04}-Q{(day.month + 2) // 3}"
        case _:
            return day.isoformat()[: {"year": 4, "month": 7, "day": 10}[unit]]


def window_holding(at_ms: int, unit: str, time_zone: str) -> Window:
    """Return the calendar's day, week, month, quarter or year that holds this instant. Raises PeriodError."""
    day = dt.datetime.fromtimestamp(at_ms / 1000, zone_of(time_zone)).date()
    return window_of(_holding(day, unit), time_zone)


def instant_of(text: str) -> int:
    """Parse an instant as 2026-10-05T02:00:00+08:00, in milliseconds. Raises PeriodError, also if the offset is missing."""
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise PeriodError(f"{text!r}: {error}; expected 2026-10-05T02:00:00+08:00") from error
    if moment.tzinfo is None:
        raise PeriodError(f"{text!r} has no offset from UTC; expected 2026-10-05T02:00:00+08:00")
    return round(moment.timestamp() * 1000)


def days_of(window: Window, time_zone: str) -> list[Window]:
    """Cut the window at each midnight of the time zone."""
    zone = zone_of(time_zone)
    day = dt.datetime.fromtimestamp(window.start_ms / 1000, zone).date()
    found = []
    start_ms = window.start_ms
    while start_ms < window.end_ms:
        day += dt.timedelta(days=1)
        end_ms = min(_midnight_ms(day, zone), window.end_ms)
        found.append(Window(start_ms, end_ms))
        start_ms = end_ms
    return found


def _days(period: str) -> tuple[dt.date, dt.date]:
    if month := re.fullmatch(r"(\d{4})-(\d{2})", period):
        return _months(int(month[1]), int(month[2]), 1)
    if quarter := re.fullmatch(r"(\d{4})-Q([1-4])", period):
        return _months(int(quarter[1]), int(quarter[2]) * 3 - 2, 3)
    if year := re.fullmatch(r"\d{4}", period):
        return _months(int(year[0]), 1, 12)
    if week := re.fullmatch(r"(\d{4})-W(\d{2})", period):
        monday = dt.date.fromisocalendar(int(week[1]), int(week[2]), 1)
        return monday, monday + dt.timedelta(days=7)
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", period):
        day = dt.date.fromisoformat(period)
        return day, day + dt.timedelta(days=1)
    raise ValueError("no period")


def _months(year: int, month: int, count: int) -> tuple[dt.date, dt.date]:
    after = year * 12 + month - 1 + count
    return dt.date(year, month, 1), dt.date(after // 12, after % 12 + 1, 1)


def _midnight_ms(day: dt.date, zone: ZoneInfo) -> int:
    return round(dt.datetime.combine(day, dt.time(), zone).timestamp() * 1000)


def zone_of(name: str) -> ZoneInfo:
    """Return a time zone by its name. Raises PeriodError."""
    try:
        return ZoneInfo(name)
    except (
        ZoneInfoNotFoundError,
        OSError,
        TypeError,
        ValueError,
    ) as error:  # OSError: a folder of zones (Europe), a name too long for a file; TypeError: a list in a file
        raise PeriodError(f"time zone {name!r}: unknown; expected a name as Asia/Shanghai or UTC") from error
