"""Figures of many runs in few numbers, and whether they reach what was asked for."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Final

TARGETS: Final = {
    # what: (figure, at least)
    "sends_per_second_1_replica": ("1_replicas", "sends_per_second", 15_000),
    "sends_per_second_3_replicas": ("3_replicas", "sends_per_second", 8_000),
    "replication_megabytes_per_second": ("replication", "megabytes_per_second", 200),
}
_PER_PROCESSOR = {
    "sends_per_second": "sends_per_processor_second",
    "megabytes_per_second": "megabytes_per_processor_second",
}


@dataclass
class Figure:
    """One figure of every run. ``more_is_better`` says which end is the worst."""

    more_is_better: bool
    values: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        """The median and both ends."""
        best, worst = (max, min) if self.more_is_better else (min, max)
        return {
            "median": round(statistics.median(self.values), 2),
            "worst": round(worst(self.values), 2),
            "best": round(best(self.values), 2),
        }


@dataclass
class Figures:
    """The figures of one kind of broker in one arrangement."""

    by_name: dict[str, Figure] = field(default_factory=dict)
    also: dict[str, object] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, value: float | None, *, more_is_better: bool = False) -> None:
        """One run's."""
        if value is not None:
            self.by_name.setdefault(name, Figure(more_is_better)).values.append(value)

    def note_refused(self, codes: dict[int, int]) -> None:
        """Answers other than 0: those messages are not counted as sent."""
        for code, count in codes.items():
            if code:
                self.refused[str(code)] = self.refused.get(str(code), 0) + count

    def runs(self) -> int:
        """How many runs every figure has."""
        return min((len(figure.values) for figure in self.by_name.values()), default=0)

    def summary(self) -> dict[str, object]:
        """All of them."""
        return {
            **{name: figure.summary() for name, figure in self.by_name.items()},
            "refused": self.refused,
            "runs": self.runs(),
            **self.also,
        }


def judge_targets(python: dict[str, Figures]) -> dict[str, object]:
    """What was asked for, what the median of the Python replica is, and what it is per second of the busiest broker's core.

    The machine's cores are shared by the brokers, the load and whoever else is there, and the target speaks of one core for a
    broker: so the second figure is what a broker does with a core of its own; the first is what was seen.
    """
    judged: dict[str, object] = {}
    for target, (arrangement, name, least) in TARGETS.items():
        if arrangement not in python or name not in python[arrangement].by_name:
            continue
        figures = python[arrangement].by_name
        seen = statistics.median(figures[name].values)
        alone = statistics.median(figures[_PER_PROCESSOR[name]].values)
        judged[target] = {
            "wanted": least,
            "as_measured": round(seen),
            "met_as_measured": seen >= least,
            "per_processor_second_of_the_busiest_broker": round(alone),
            "met_on_one_core": alone >= least,
        }
    return judged


def times_before(now: dict[str, Figures], before: dict[str, Figures]) -> dict[str, dict[str, float]]:
    """How much better each figure's median is than the other checkout's: above 1 is better, whichever way the figure goes."""
    found: dict[str, dict[str, float]] = {}
    for arrangement in now.keys() & before.keys():
        ours, theirs = now[arrangement].by_name, before[arrangement].by_name
        found[arrangement] = {name: round(_ratio(ours[name], theirs[name]), 2) for name in ours.keys() & theirs.keys()}
    return found


def cost_of_waiting(synchronous: Figures, asynchronous: Figures) -> dict[str, float]:
    """Return sends per second with all members acknowledging, as a share of those with the master alone, run by run."""
    pairs = zip(
        synchronous.by_name["sends_per_second"].values, asynchronous.by_name["sends_per_second"].values, strict=True
    )
    shares = [one / other for one, other in pairs]
    return {
        "median": round(statistics.median(shares), 3),
        "worst": round(min(shares), 3),
        "best": round(max(shares), 3),
    }


def _ratio(ours: Figure, theirs: Figure) -> float:
    one, other = statistics.median(ours.values), statistics.median(theirs.values)
    if not ours.more_is_better:
        one, other = other, one
    return one / other if other else 0.0
