"""What people add afterwards: agreed maintenance that does not count, and corrections of what was measured.

One YAML (or JSON) file, kept beside the agreement, has lists of `exclusions` and `corrections` (docs/tasks/sla.md). Samples and
runs are never changed: amendments are put over the line of states at the end, so they work for a month that is long over. Every
one is shown with what it changed (the audit trail), also if it changed nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from sla_reports.measures.periods import PeriodError, instant_of
from sla_reports.states.entities import GroupKey
from sla_reports.states.incidents import Incident, Source
from sla_reports.states.spans import Span, State, Window, clip, overlay, total_ms, without

# What people may say; that sources dispute a time is nothing to decide.
_CORRECTED = (State.UP, State.DOWN, State.UNKNOWN)


class AmendmentError(ValueError):
    """A file of amendments that can't be used; says where and what was expected."""


@dataclass(frozen=True, slots=True)
class Amendment:
    """One entry. Without a state it is an exclusion: the time does not count at all."""

    groups: str
    start_ms: int
    end_ms: int
    state: State | None
    reason: str
    by: str

    def is_about(self, group: GroupKey) -> bool:
        return fnmatchcase(str(group), self.groups)


@dataclass(frozen=True, slots=True)
class Audit:
    """How much time of each state one amendment excluded or corrected for one group."""

    amendment: Amendment
    group: GroupKey
    up_ms: int
    down_ms: int
    unknown_ms: int
    disputed_ms: int = 0


@dataclass(frozen=True, slots=True)
class Account:
    """The line after corrections, the pieces of it that count, and the audit trail."""

    held: tuple[Span, ...]
    counted: tuple[Span, ...]
    audit: tuple[Audit, ...] = field(default=())

    @property
    def counted_ms(self) -> int:
        return sum(span.length_ms for span in self.counted)


def amend(group: GroupKey, held: Sequence[Span], about: Sequence[Amendment]) -> Account:
    """Apply amendments to a line of states: corrections first, in the order of the file, then exclusions."""
    line = list(held)
    audit = []
    for one in about:
        if one.state is not None:
            audit.append(_audit(one, group, line))
            line = overlay(line, [Span(one.start_ms, one.end_ms, one.state)])
    counted = list(line)
    for one in about:
        if one.state is None:
            audit.append(_audit(one, group, counted))
            counted = without(counted, [(one.start_ms, one.end_ms)])
    return Account(held=tuple(line), counted=tuple(counted), audit=tuple(audit))


def counted_incidents(group: GroupKey, account: Account, incidents: Sequence[Incident]) -> list[Incident]:
    """Return the incidents with time that counts as down or disputed, and one for each down that only a correction has."""
    kept = [
        one
        for one in incidents
        if any(one.overlaps(span) for span in account.counted if span.state in {State.DOWN, State.DISPUTED})
    ]
    downs = [span for span in account.counted if span.state is State.DOWN]
    corrected = [
        Incident(group, piece.start_ms, piece.end_ms, Source.CORRECTION, 0)
        for piece in without(downs, ((one.start_ms, one.end_ms) for one in kept))
    ]
    return sorted([*kept, *corrected], key=lambda one: (one.start_ms, one.id))


def read_amendments(path: Path) -> list[Amendment]:
    """Read the entries of a file, exclusions first. Raises AmendmentError."""
    try:
        # Texts only: YAML would make dates of its own, in UTC.
        document = yaml.load(path.read_bytes(), Loader=yaml.BaseLoader)  # noqa: S506 - makes texts, lists and maps only
    except OSError as error:
        raise AmendmentError(f"amendments {path}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise AmendmentError(f"amendments {path}: not YAML ({error})") from error
    if not isinstance(document, dict) or set(document) - {"exclusions", "corrections"}:
        raise AmendmentError(f"amendments {path}: expected the lists exclusions and corrections, and nothing else")
    found = []
    for kind in ("exclusions", "corrections"):
        for number, entry in enumerate(document.get(kind, [])):
            found.append(_amendment(entry, f"amendments {path}: {kind}[{number}]", corrects=kind == "corrections"))
    return found


def _amendment(entry: Any, where: str, *, corrects: bool) -> Amendment:
    fields = {"group", "start", "end", "reason", "by"} | ({"state"} if corrects else set())
    if not isinstance(entry, dict) or set(entry) != fields or not all(isinstance(v, str) and v for v in entry.values()):
        raise AmendmentError(f"{where}: expected exactly the members {', '.join(sorted(fields))}, each a text")
    start_ms, end_ms = (_instant_ms(entry[name], f"{where}.{name}") for name in ("start", "end"))
    if start_ms >= end_ms:
        raise AmendmentError(f"{where}: start {entry['start']} is not before end {entry['end']}")
    if corrects and entry["state"] not in _CORRECTED:
        raise AmendmentError(f"{where}.state: {entry['state']!r}; expected one of {', '.join(_CORRECTED)}")
    state = State(entry["state"]) if corrects else None
    return Amendment(entry["group"], start_ms, end_ms, state, entry["reason"], entry["by"])


def _instant_ms(text: str, where: str) -> int:
    try:
        return instant_of(text)
    except PeriodError as error:
        raise AmendmentError(f"{where}: {error}") from error


def _audit(one: Amendment, group: GroupKey, line: Sequence[Span]) -> Audit:
    inside = [piece for span in line for piece in clip([span], Window(one.start_ms, one.end_ms))]
    up, down, unknown, disputed = (total_ms(inside, state) for state in State)
    return Audit(one, group, up_ms=up, down_ms=down, unknown_ms=unknown, disputed_ms=disputed)
