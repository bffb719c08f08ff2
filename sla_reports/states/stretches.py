"""How far apart samples may be, judged by stretch of time: a scrape interval can change within a period.

A series has one usual interval, the shortest that held for long. Where its samples are further apart than that interval's gap
limit, ten distances in a row of which seven are alike (within a tenth) are a longer interval: of a changed `scrape_interval`, or of
a store that keeps older samples more seldom. Its gap limit then holds in that stretch and at its edges, so that of 60 s in place of
15 s one lost scrape is no silence, and two are. A silence, or scrapes that are lost now and then, are never ten alike.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from sla_reports.reduction.runs import Run, gap_limit_ms

_IN_A_ROW = 10
_ALIKE = 7


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which samples came at another interval than the usual one."""

    start_ms: int
    end_ms: int
    interval_ms: int

    @property
    def length_ms(self) -> int:
        return self.end_ms - self.start_ms


@dataclass(frozen=True, slots=True)
class ScrapeInterval:
    """The interval that held at an instant: that of the stretch, else the usual one."""

    usual_ms: int
    stretches: tuple[Stretch, ...] = ()

    @classmethod
    def of(cls, interval: "int | ScrapeInterval") -> "ScrapeInterval":
        """Of an interval that never changed."""
        return cls(interval) if isinstance(interval, int) else interval

    def at(self, at_ms: int) -> int:
        """The interval that held then."""
        inside = (one.interval_ms for one in self.stretches if one.start_ms <= at_ms <= one.end_ms)
        return max(inside, default=self.usual_ms)


# How far the first sample of the next run is, and after which run; of samples within a run: how far the next one is, and which run.
_Distance = tuple[int, int]


def gap_limits(runs: Sequence[Run], gap_ms: int) -> list[int]:
    """The gap limit after each run: that of the series, or of the longer interval that held there."""
    limits = [gap_ms] * len(runs)
    for row in _rows(runs, gap_ms):
        for begin, interval_ms in _even(row):
            # Also what leads to the first and follows the last of them.
            for _, number in row[max(0, begin - 1) : begin + _IN_A_ROW + 1]:
                limits[number] = max(limits[number], gap_limit_ms(interval_ms))
    return limits


def stretches(runs: Sequence[Run], gap_ms: int) -> tuple[Stretch, ...]:
    """Where another interval held, in order."""
    found: list[Stretch] = []
    limits = gap_limits(runs, gap_ms)
    for number, run in enumerate(runs):
        if _is_thin(run, gap_ms):
            _add(found, Stretch(run.start_ms, run.end_ms, run.longer_ms))
        distance_ms = runs[number + 1].start_ms - run.end_ms if number + 1 < len(runs) else 0
        if gap_ms < distance_ms <= limits[number]:
            _add(found, Stretch(run.end_ms, runs[number + 1].start_ms, limits[number] * 2 // 5))
    return tuple(found)


def _add(found: list[Stretch], one: Stretch) -> None:
    """As a stretch of its own, or as more of the last one."""
    last = found[-1] if found else None
    if last and last.end_ms == one.start_ms and abs(last.interval_ms - one.interval_ms) * 10 <= last.interval_ms:
        found[-1] = replace(last, end_ms=one.end_ms)
    else:
        found.append(one)


def _is_thin(run: Run, gap_ms: int) -> bool:
    """Whether the samples within a run are further apart than the gap limit (`reduction/longer.py`)."""
    return run.longer_ms > gap_ms and run.end_ms > run.start_ms


def _rows(runs: Sequence[Run], gap_ms: int) -> Iterator[list[_Distance]]:
    """The distances over the gap limit; together those that follow each other without samples at the usual interval in between."""
    row: list[_Distance] = []
    for number, run in enumerate(runs):
        if _is_thin(run, gap_ms):
            # Ten of them say what all of them do: no more are looked at in a row.
            inner = min(_IN_A_ROW, max(1, round((run.end_ms - run.start_ms) / run.longer_ms)))
            row += [(run.longer_ms, number)] * inner
        elif run.end_ms > run.start_ms:
            yield row
            row = []
        # The last one has no next sample: what leads to the window's end belongs to its row.
        distance_ms = runs[number + 1].start_ms - run.end_ms if number + 1 < len(runs) else 0
        if 0 < distance_ms <= gap_ms:
            yield row
            row = []
        else:
            row.append((distance_ms, number))
    yield row


def _even(row: Sequence[_Distance]) -> Iterator[tuple[int, int]]:
    """Where ten distances in a row are of one interval, and which."""
    lengths = [length for length, _ in row]
    for begin in range(len(lengths) - _IN_A_ROW + 1):
        ten = lengths[begin : begin + _IN_A_ROW]
        interval_ms = median_low(ten)
        if sum(abs(one - interval_ms) * 10 <= interval_ms for one in ten) >= _ALIKE:
            yield begin, interval_ms
