"""What there is to hold a report against, written down while the hour runs, and kept as one JSON file.

Of three kinds: what was done (`strokes`), what clients saw (`acks_ms`, and when the clients' own process stood still), and what the
operator says by other ways than its incident log: the group's record, its status, its counters as they stood at the end.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Stroke:
    """Something done to a group; from the first moment to when it was whole again."""

    group: str
    kind: str
    began_ms: int
    whole_ms: int


@dataclass(frozen=True)
class Span:
    """A time, half open."""

    start_ms: int
    end_ms: int


@dataclass
class GroupEvidence:
    """About one group. `acks_ms` in order; `epochs` that began in the hour; `failovers` as its status tells, to the second."""

    acks_ms: list[int] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    failovers: list[dict[str, object]] = field(default_factory=list)
    unavailable_seconds: float = 0.0
    failovers_by_outcome: dict[str, int] = field(default_factory=dict)


@dataclass
class Evidence:
    """About the hour. `stalls`: the clients' process did not run then, so nothing is known of the groups."""

    began_ms: int
    ended_ms: int
    scrape_ms: int
    retry_ms: int
    strokes: list[Stroke] = field(default_factory=list)
    stalls: list[Span] = field(default_factory=list)
    groups: dict[str, GroupEvidence] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Evidence:
        """What `write` wrote."""
        told = json.loads(path.read_text())
        told["strokes"] = [Stroke(**one) for one in told["strokes"]]
        told["stalls"] = [Span(**one) for one in told["stalls"]]
        told["groups"] = {name: GroupEvidence(**one) for name, one in told["groups"].items()}
        return cls(**told)
