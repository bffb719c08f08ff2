"""Each fault of a group under load, by its client and by the operator, with the stages of the longest gap."""

from __future__ import annotations

import datetime as dt
import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass
class Strike:
    """One fault at one group. Times are seconds since 1970."""

    fault: str
    label: str
    began: float
    longest_gap_s: float
    # When each pause of the acknowledgements began, and how long it was.
    gaps: list[tuple[float, float]]
    # When the NameServer first named a master to the client.
    masters: list[tuple[float, str]]
    # None until they are looked for.
    incidents: list[dict[str, Any]] | None = None

    def stages(self) -> dict[str, float]:
        """Seconds from the fault to each step, in the order of time."""
        found: dict[str, float] = {}
        if self.gaps:
            begin, length = max(self.gaps, key=lambda gap: gap[1])
            found |= {"last acknowledged": begin, "acknowledged again": begin + length}
        later = [at for at, _ in self.masters if at > self.began]
        if later:
            found["route at the client"] = later[-1]
        for incident in (self.incidents or [])[-1:]:
            started = dt.datetime.fromisoformat(incident["startedAt"]).timestamp()
            found |= {step: started + ms / 1000 for step, ms in incident["stepsMilliseconds"].items()}
        return {step: round(at - self.began, 2) for step, at in sorted(found.items(), key=lambda item: item[1])}


def summary(strikes: Iterable[Strike]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return, by fault and kind of broker: the count, median and worst gap in seconds, and the stages of the worst."""
    by_kind: dict[tuple[str, str], list[Strike]] = defaultdict(list)
    for strike in strikes:
        by_kind[strike.fault, strike.label].append(strike)
    told: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for (fault, label), of_kind in by_kind.items():
        worst = max(of_kind, key=lambda strike: strike.longest_gap_s)
        told[fault][label] = {
            "rounds": len(of_kind),
            "median_s": round(statistics.median(strike.longest_gap_s for strike in of_kind), 2),
            "worst_s": worst.longest_gap_s,
            "stages_of_the_worst": worst.stages(),
        }
    return dict(told)
