"""Whether a window of spec.updateStrategy is open, and when the next one opens. Pure: the time is an argument.

A window begins at a time of day in a time zone, and lasts a number of minutes. Where the clocks skip its start it begins as much
later, and where its start comes twice it begins at the first: once for each of its days, and for its whole length
(docs/adr/0024-update-windows.md).
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import times
from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.api.update_fields import Weekday
from brokergroup_operator.reconcile.plan import Step, Verb
from brokergroup_operator.reconcile.see import observed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from zoneinfo import ZoneInfo

    from brokergroup_operator.api.update_fields import UpdateWindow
    from brokergroup_operator.reconcile.see.observed import Observed

WEEKDAYS: Final = tuple(Weekday)
# Days around today on which a window may begin that is open now, or that is the next one.
DAYS_BEFORE, DAYS_AFTER = 2, 9


@dataclass(frozen=True, kw_only=True)
class Opening:
    """Whether a window is open now. If not: when the next one opens (None: no window ever will), as a sentence too."""

    is_open: bool
    opens_at: dt.datetime | None = None
    told: str = ""


ANY_TIME: Final = Opening(is_open=True)


@observed.derived
def opening_now(seen: Observed) -> Opening:
    """By the group's spec and the time of the pass."""
    windows = seen.group.spec.update_strategy.windows
    return opening(windows, observed.moment(seen.now)) if windows else ANY_TIME


def opening(windows: Sequence[UpdateWindow], now: dt.datetime) -> Opening:
    """Of no windows: open at any time. A window in an unknown time zone never opens, and is named."""
    if not windows:
        return ANY_TIME
    coming: list[tuple[dt.datetime, ZoneInfo]] = []
    wrong = []
    for index, window in enumerate(windows):
        if (zone := times.zone_of(window.time_zone)) is None:
            field = f"spec.updateStrategy.windows[{index}].timeZone"
            wrong.append(f"{field} is {window.time_zone!r}: no such time zone here; {times.EXPECTED_ZONE}")
            continue
        for begins, ends in _times_of(window, zone, now):
            if begins <= now < ends:
                return ANY_TIME
            if begins > now:
                coming.append((begins, zone))
    if not coming:
        return Opening(is_open=False, told="; ".join(wrong))
    opens_at, zone = min(coming, key=lambda found: found[0])
    told = f"outside spec.updateStrategy.windows until {times.told(opens_at)} ({_local(opens_at, zone)})"
    return Opening(is_open=False, opens_at=opens_at, told="; ".join([told, *wrong]))


def _times_of(window: UpdateWindow, zone: ZoneInfo, now: dt.datetime) -> Iterator[tuple[dt.datetime, dt.datetime]]:
    """The beginnings and ends of a window around now, in UTC, where a difference is elapsed time."""
    today, start = now.astimezone(zone).date(), dt.time.fromisoformat(window.start)
    for number in range(-DAYS_BEFORE, DAYS_AFTER):
        day = today + dt.timedelta(days=number)
        if not window.days or WEEKDAYS[day.weekday()] in window.days:
            begins = dt.datetime.combine(day, start, tzinfo=zone).astimezone(dt.UTC)
            yield begins, begins + dt.timedelta(minutes=window.duration_minutes)


def _local(then: dt.datetime, zone: ZoneInfo) -> str:
    there = then.astimezone(zone)
    return f"{WEEKDAYS[there.weekday()]} {there:%H:%M} {zone.key}"


def waiting_step(opening: Opening, what: str, meanwhile: str) -> Step:
    """The step in place of one that waits for a window. `meanwhile`: the command that does not wait."""
    why = f"{what}: {opening.told}; {meanwhile} does not wait"
    if opening.opens_at is None:
        return Step(verb=Verb.REFUSE, reason=Reason.INVALID_SPEC, why=why)
    return Step(verb=Verb.WAIT, reason=Reason.OUTSIDE_WINDOW, why=why)
