"""Spans: what held from one instant up to another, without holes, as up, down or unknown.

A sample holds until the next one, where that is not further away than the gap limit. Otherwise nobody knows what held from the last
sample on: an exporter that is silent during an outage must not turn it into availability. After a series' last sample, and
before its first, all is unknown too; only where the window ends within the gap limit of the last sample that sample still holds,
for the next one would have said so.

Spans are half-open `[start_ms, end_ms)`, adjacent, never empty, and neighbours differ in state.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from sla_reports.reduction.runs import Run


class State(StrEnum):
    """What is known of an instant."""

    UP = "up"
    DOWN = "down"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """One state from `start_ms` up to, not including, `end_ms`."""

    start_ms: int
    end_ms: int
    state: State

    @property
    def length_ms(self) -> int:
        return self.end_ms - self.start_ms


@dataclass(frozen=True, slots=True)
class Window:
    """The time a figure is about: `[start_ms, end_ms)`."""

    start_ms: int
    end_ms: int

    def __post_init__(self) -> None:
        if self.start_ms >= self.end_ms:
            raise ValueError(f"window: start {self.start_ms} ms, end {self.end_ms} ms; expected a start before the end")

    @property
    def length_ms(self) -> int:
        return self.end_ms - self.start_ms


def at_least(threshold: float) -> Callable[[float | None], State]:
    """Up while the value is `threshold` or more: 1 for a gauge of health, the promised size for the SyncStateSet's size."""

    def state(value: float | None) -> State:
        if value is None:
            return State.UNKNOWN
        return State.UP if value >= threshold else State.DOWN

    return state


def spans_of(runs: Sequence[Run], window: Window, state_of: Callable[[float | None], State], gap_ms: int) -> list[Span]:
    """The spans of one series over the whole window; `runs` in order of time, also those shortly before the window."""
    pieces: list[Span] = []
    known_until = window.start_ms
    for number, run in enumerate(runs):
        if run.start_ms > known_until:
            pieces.append(Span(known_until, run.start_ms, State.UNKNOWN))
        following = runs[number + 1].start_ms if number + 1 < len(runs) else window.end_ms
        holds_until = following if following - run.end_ms <= gap_ms else run.end_ms
        if holds_until > run.start_ms:
            pieces.append(Span(run.start_ms, holds_until, state_of(run.value)))
        known_until = max(holds_until, known_until)
    pieces.append(Span(known_until, max(known_until, window.end_ms), State.UNKNOWN))
    return clip(pieces, window)


def clip(spans: Iterable[Span], window: Window) -> list[Span]:
    """What of the spans lies in the window; neighbours of one state become one."""
    joined: list[Span] = []
    for span in spans:
        start_ms, end_ms = max(span.start_ms, window.start_ms), min(span.end_ms, window.end_ms)
        if start_ms >= end_ms:
            continue
        if joined and joined[-1].state == span.state and joined[-1].end_ms == start_ms:
            joined[-1] = replace(joined[-1], end_ms=end_ms)
        else:
            joined.append(Span(start_ms, end_ms, span.state))
    return joined


def combine(lines: Sequence[Sequence[Span]], decide: Callable[[Sequence[State]], State]) -> list[Span]:
    """One line of spans out of several over the same window, by what `decide` says to the states at each instant."""
    if not lines or not all(lines):
        raise ValueError("combine: expected at least one line of spans, and none of them empty")
    edges = sorted({edge for line in lines for span in line for edge in (span.start_ms, span.end_ms)})
    window = Window(edges[0], edges[-1])
    if any((line[0].start_ms, line[-1].end_ms) != (window.start_ms, window.end_ms) for line in lines):
        raise ValueError("combine: the lines are about different windows")
    at = [0] * len(lines)
    pieces = []
    for start_ms, end_ms in pairwise(edges):
        for number, line in enumerate(lines):
            while line[at[number]].end_ms <= start_ms:
                at[number] += 1
        states = [line[at[number]].state for number, line in enumerate(lines)]
        pieces.append(Span(start_ms, end_ms, decide(states)))
    return clip(pieces, window)


def first_known(states: Sequence[State]) -> State:
    """Of copies of one thing (HA pairs of Prometheus, operator pods): the first that knows. Neither biased up nor down."""
    return next((state for state in states if state is not State.UNKNOWN), State.UNKNOWN)


def any_up(states: Sequence[State]) -> State:
    """Up while one is (cluster write: an unordered producer goes to another group); down only if all are known to be down."""
    if State.UP in states:
        return State.UP
    return State.UNKNOWN if State.UNKNOWN in states else State.DOWN


def all_up(states: Sequence[State]) -> State:
    """Up while all are (ordered write: every group has its queues); down as soon as one is known to be down."""
    if State.DOWN in states:
        return State.DOWN
    return State.UNKNOWN if State.UNKNOWN in states else State.UP


def overlay(spans: Sequence[Span], more: Iterable[Span]) -> list[Span]:
    """`spans` with what `more` says put over it, later entries over earlier ones; the window stays."""
    window = Window(spans[0].start_ms, spans[-1].end_ms)
    line = list(spans)
    for put in more:
        inside = clip([put], window)
        if not inside:
            continue
        over = inside[0]
        left = [Span(s.start_ms, min(s.end_ms, over.start_ms), s.state) for s in line if s.start_ms < over.start_ms]
        right = [Span(max(s.start_ms, over.end_ms), s.end_ms, s.state) for s in line if s.end_ms > over.end_ms]
        line = clip([*left, over, *right], window)
    return line


def total_ms(spans: Iterable[Span], state: State) -> int:
    """How long the state held."""
    return sum(span.length_ms for span in spans if span.state is state)
