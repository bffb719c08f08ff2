"""Where a group's master was, and what it was, at each instant: by the gauge whose labels tell it.

A group that has lost its master is where the lost one was, until another one is seen. Before the first one was seen nobody knows:
those facts are empty, and stand under an empty name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from metric_names import MEMBER_FACTS, MEMBER_PLACE
from sla_reports.states.entities import Fleet, GroupKey
from sla_reports.states.spans import Span, State, Window, at_least, clip


@dataclass(frozen=True, slots=True)
class Stay:
    """The facts of the master from `start_ms` up to, not including, `end_ms`."""

    start_ms: int
    end_ms: int
    facts: Mapping[str, str]


def stays_of(fleet: Fleet, group: GroupKey, window: Window) -> tuple[Stay, ...]:
    """One line over the whole window. Where two are seen as master (a scrape around the change), the later one is it."""
    seen = sorted(
        (span.start_ms, tuple(entry.series.own_label(name) for name in MEMBER_FACTS))
        for entry in fleet.series_of(MEMBER_PLACE, group)
        for span in fleet.spans_of_series(entry, window, at_least(1))
        if span.state is State.UP
    )
    begins: list[tuple[int, tuple[str, ...]]] = [(window.start_ms, ("",) * len(MEMBER_FACTS))]
    for start_ms, values in seen:
        if begins[-1][0] == start_ms:
            begins.pop()
        if not begins or begins[-1][1] != values:
            begins.append((start_ms, values))
    ends = [*(start_ms for start_ms, _ in begins[1:]), window.end_ms]
    return tuple(
        Stay(start_ms, end_ms, {name: value for name, value in zip(MEMBER_FACTS, values, strict=True) if value})
        for (start_ms, values), end_ms in zip(begins, ends, strict=True)
    )


def facts_at(stays: Sequence[Stay], at_ms: int) -> Mapping[str, str]:
    """Of the master of that instant; a group that is down since then is where it was just before."""
    return next((one.facts for one in stays if one.start_ms < at_ms <= one.end_ms), stays[0].facts)


def divided(spans: Sequence[Span], stays: Sequence[Stay], fact: str) -> dict[str, list[Span]]:
    """The spans by the fact's value at the time, in order of the values; no span is lost."""
    found: dict[str, list[Span]] = {}
    for stay in stays:
        inside = [piece for span in spans for piece in clip([span], Window(stay.start_ms, stay.end_ms))]
        found.setdefault(stay.facts.get(fact, ""), []).extend(inside)
    return {value: found[value] for value in sorted(found) if found[value]}
