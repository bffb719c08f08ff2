"""The operator's incident logs (`docs/reference/incident-log.md`), schema versions 1 to 3, of all operator pods.

The log is exact where scraped gauges are not: monotonic durations, wall-clock start in milliseconds. Three things in it are not
whole outages, and are made so here: what was cancelled never happened and is left out; an attempt that found no eligible replica
and was taken up again, before any master came, is one outage with the later attempt; what the operator did not live to close is
open.
"""

import datetime as dt
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from metric_names import CAUSE_UNKNOWN, CAUSES
from sla_reports.readers.lines import FlawError
from sla_reports.readers.samples import Anomaly, AnomalyKind, ExportFormatError
from sla_reports.states.entities import GroupKey

FAILOVER: Final = "failover"
SWITCHOVER: Final = "switchover"
COMPLETED: Final = "completed"
CANCELLED: Final = "cancelled"
INTERRUPTED: Final = "interrupted"
NO_ELIGIBLE_REPLICA: Final = "noEligibleReplica"
UNKNOWN_CAUSE: Final = CAUSE_UNKNOWN
SCHEMA_VERSION: Final = 3
_RUNNING: Final = "running"
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_NOTE: Final = ".open"
_BESIDE: Final = ".circumstances"
_CIRCUMSTANCE: Final = "circumstance"
_TABLE: Final = "log in the table"
_NUMBER: Final = (int, float)
# The members of an incident, and their types.
_MEMBERS: Final[Mapping[str, Any]] = {
    "id": str, "kind": str, "namespace": str, "cluster": str, "trigger": str, "cause": str, "outcome": str,
    "detectionMilliseconds": _NUMBER, "durationMilliseconds": _NUMBER, "stepsMilliseconds": dict, "unfenced": bool,
    "unclean": bool, "truncatedBytes": int, "from": int, "to": int, "epochBefore": int, "epoch": int, "evidence": list,
    "facts": dict, "censored": bool, "writtenBy": str, "schemaVersion": int,
}  # fmt: skip
_REQUIRED: Final = ("id", "kind", "namespace", "outcome", "schemaVersion")
_TEXTS_OF_CIRCUMSTANCE: Final = (
    "id", "namespace", "cluster", "brokerName", "cause", "what", "pod", "node", "message",
)  # fmt: skip
# Smallest and greatest value: a loss that is detected after more than a week shows a wrong clock.
_LIMITS: Final = {
    "detectionMilliseconds": (0, 7 * 86_400_000),
    "durationMilliseconds": (0, None),
    "truncatedBytes": (0, None),
}


class NoLogError(ExportFormatError):
    """A path has no incident log: none is shipped there yet, or the path is wrong."""


@dataclass(frozen=True, slots=True)
class LoggedIncident:
    """One line of the incident log. `steps_ms` count from `started_at_ms`; the last sign of life was `detection_ms` before."""

    id: str
    group: GroupKey
    started_at_ms: int
    kind: str = FAILOVER
    trigger: str = ""
    cause: str = UNKNOWN_CAUSE
    outcome: str = COMPLETED
    detection_ms: float | None = None
    steps_ms: Mapping[str, float] = field(default_factory=lambda: _NOTHING)
    unfenced: bool = False
    unclean: bool = False
    truncated_bytes: int = 0
    epoch_before: int | None = None
    from_broker_id: int | None = None
    facts: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    evidence: tuple[str, ...] = ()

    @property
    def start_ms(self) -> int:
        """The lost master's last sign of life; without one, the detection."""
        return self.started_at_ms - round(self.detection_ms or 0.0)

    @property
    def end_ms(self) -> int | None:
        """When a write could be acknowledged again; None if that is not known."""
        if self.outcome != COMPLETED or not self.steps_ms:
            return None
        return self.started_at_ms + round(max(self.steps_ms.values()))

    @property
    def start_is_late(self) -> bool:
        """Whether the fault was earlier than we can say."""
        return self.kind == FAILOVER and self.detection_ms is None


@dataclass(frozen=True, slots=True)
class Circumstance:
    """Something that was going on: a drain, a kill for memory, an upgrade. Without a group: about its `node`, or all.

    With a `broker_id` it is about that member alone. The cause `unknown` proves nothing, and is shown as what was near.
    """

    cause: str
    start_ms: int
    end_ms: int
    group: GroupKey | None = None
    node: str = ""
    broker_id: int | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.cause not in CAUSES:
            raise ValueError(f"circumstance: cause {self.cause!r}; expected one of {', '.join(CAUSES)}")


@dataclass(frozen=True, slots=True)
class IncidentLogs:
    """What the logs hold, in order of time, and the lines that were torn by a crash of the machine."""

    incidents: tuple[LoggedIncident, ...]
    circumstances: tuple[Circumstance, ...] = ()
    unreadable: tuple[Anomaly, ...] = ()


def read_logs(paths: Sequence[Path | str], stored: Iterable[str] = ()) -> IncidentLogs:
    """Read all incidents and circumstances of the logs, and of the lines that a table has, each once. Raises ExportFormatError.

    A path stands for the log, for what was rotated away from it (`incidents.jsonl.1` and so on), for the note of what has begun and
    not ended (`incidents.jsonl.open`), and for the circumstances (`incidents.jsonl.circumstances`; one file may hold both).
    """
    # With a rank: of two lines of one incident the one with the lower rank counts.
    incidents: dict[tuple[str, int], tuple[tuple[bool, float], LoggedIncident]] = {}
    circumstances: dict[str, Circumstance] = {}
    unreadable: list[Anomaly] = []
    for _, told in _told([*_lines_of(paths), *((_TABLE, 0, line.encode()) for line in stored)], unreadable):
        if isinstance(told, _Noted):
            if told.id not in circumstances or circumstances[told.id].end_ms < told.what.end_ms:
                circumstances[told.id] = told.what
            continue
        # A note is read after its log: it says nothing new of what has ended.
        key = (told.what.id, told.what.started_at_ms)
        if key not in incidents or told.rank < incidents[key][0]:
            incidents[key] = told.rank, told.what
    in_order = sorted(circumstances.values(), key=lambda one: (one.start_ms, one.end_ms, one.cause, one.note))
    return IncidentLogs(tuple(once(one for _, one in incidents.values())), tuple(in_order), tuple(unreadable))


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of the log as it stands, for the table that keeps it; `end_ms` is None while nothing says when it ended."""

    group: GroupKey
    start_ms: int
    end_ms: int | None
    text: str


def lines_of_logs(paths: Sequence[Path | str]) -> list[LogLine]:
    """Return the lines of the logs that can be read, each once. Raises ExportFormatError."""
    found = {}
    for text, told in _told(_lines_of(paths), []):
        one = told.what
        if one.group is not None:
            found[text] = LogLine(one.group, one.start_ms, one.end_ms, text)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class _Logged:
    rank: tuple[bool, float]
    what: LoggedIncident


@dataclass(frozen=True, slots=True)
class _Noted:
    id: str
    what: Circumstance


def _lines_of(paths: Sequence[Path | str]) -> Iterator[tuple[str, int, bytes]]:
    for path in files_of(paths):
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            if line.strip():
                yield str(path), number, line


def _told(lines: Iterable[tuple[str, int, bytes]], unreadable: list[Anomaly]) -> Iterator[tuple[str, _Logged | _Noted]]:
    """Each line with what it says; a line that a crash tore goes to `unreadable`."""
    for path, number, line in lines:
        try:
            document = _document(line)
            told = (
                _Noted(*_circumstance(document))
                if document.get("kind") == _CIRCUMSTANCE
                else _Logged(*_incident(document))
            )
        except FlawError as error:
            anomaly = Anomaly(path, number, error.kind, str(error))
            if error.kind is not AnomalyKind.TRUNCATED:
                raise anomaly.as_error() from error
            unreadable.append(anomaly)
            continue
        yield line.decode(), told


def once(incidents: Iterable[LoggedIncident]) -> list[LoggedIncident]:
    """Return each incident once, in order of time: a closed line wins over what a pod that died left open."""
    every = {(one.id, one.started_at_ms): one for one in incidents}.values()
    # The id of a note may be another one than its line's; its start is the same.
    ended = {_start(one) for one in every if one.outcome != _RUNNING}
    found = [one for one in every if one.outcome != _RUNNING or _start(one) not in ended]
    closed = {one.id for one in found if one.outcome != INTERRUPTED}
    kept = (one for one in found if one.outcome != INTERRUPTED or one.id not in closed)
    return sorted(kept, key=lambda one: (one.group, one.started_at_ms, one.id))


def _start(one: LoggedIncident) -> tuple[str, str, int]:
    return one.group.namespace, one.group.broker_group, one.started_at_ms


def whole_outages(incidents: Sequence[LoggedIncident]) -> list[LoggedIncident]:
    """Return the outages of the log, each from its first sign to its end: attempts at one loss become one."""
    found: list[LoggedIncident] = []
    for incident in sorted(incidents, key=lambda one: (one.group, one.start_ms, one.id)):
        if incident.outcome == CANCELLED:
            continue
        if found and _goes_on(found[-1], incident):
            found[-1] = _joined(found[-1], incident)
        else:
            found.append(incident)
    return found


def _goes_on(earlier: LoggedIncident, later: LoggedIncident) -> bool:
    """Whether it is the same loss: no master came between. An attempt without an eligible replica may take an epoch itself."""
    if earlier.group != later.group or earlier.end_ms is not None or earlier.epoch_before is None:
        return False
    next_before = (earlier.epoch_before, earlier.epoch_before + (earlier.outcome == NO_ELIGIBLE_REPLICA))
    return later.epoch_before in next_before


def _joined(earlier: LoggedIncident, later: LoggedIncident) -> LoggedIncident:
    """Return the later attempt's end, counted from the earlier one's beginning; the earlier one knew the cause."""
    shift_ms = later.started_at_ms - earlier.started_at_ms
    steps = {step: at_ms + shift_ms for step, at_ms in later.steps_ms.items()}
    return replace(
        earlier, outcome=later.outcome, epoch_before=later.epoch_before,
        steps_ms=MappingProxyType({**steps, **earlier.steps_ms}),
        cause=earlier.cause if earlier.cause != UNKNOWN_CAUSE else later.cause,
        unfenced=earlier.unfenced or later.unfenced, unclean=earlier.unclean or later.unclean,
        truncated_bytes=earlier.truncated_bytes + later.truncated_bytes,
    )  # fmt: skip


def files_of(paths: Sequence[Path | str]) -> Iterator[Path]:
    """Yield every file that is read for these paths, the oldest first. Raises ExportFormatError if there is none."""
    for path in map(Path, paths):
        logs = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        bases = [base for log in logs for base in (log, log.with_name(log.name + _BESIDE))]
        files = [one for base in bases for one in (*_rotated(base), base, base.with_name(base.name + _NOTE))]
        there = [one for one in files if one.is_file()]
        if not there:
            raise NoLogError(f"incident log {path}: no such file; expected JSON lines of the operator")
        yield from there


def _rotated(base: Path) -> list[Path]:
    numbered = [(one.name.removeprefix(base.name + "."), one) for one in base.parent.glob(f"{base.name}.*")]
    return [one for _, one in sorted(((int(end), one) for end, one in numbered if end.isdigit()), reverse=True)]


def _document(line: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(line)
    except ValueError as error:
        raise FlawError(AnomalyKind.TRUNCATED, f"no JSON: {error}; expected one incident a line") from error
    version = document.get("schemaVersion") if isinstance(document, dict) else None
    if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
        raise _flaw(f"schemaVersion: {version!r}; expected 1 to {SCHEMA_VERSION}")
    found: Mapping[str, Any] = document
    return found


def _incident(document: Mapping[str, Any]) -> tuple[tuple[bool, float], LoggedIncident]:
    """Return an incident with its rank: a whole line comes first; of two whole ones the shorter, which was written first.

    A pod that takes a change over because its end was not written measures the time until it took over.
    """
    told = {member: _member(document, member, types) for member, types in _MEMBERS.items()}
    _check_present(told, _REQUIRED)
    name = _member(document, "brokerName", str) or _member(document, "name", str)
    if name is None:
        raise _flaw("brokerName: missing; expected the group's name")
    duration_ms = told["durationMilliseconds"]
    return (bool(told["censored"]), float("inf") if duration_ms is None else duration_ms), LoggedIncident(
        id=told["id"],
        group=GroupKey(told["namespace"], told["cluster"] or "", name),
        started_at_ms=_unix_ms(document, "startedAt"),
        kind=told["kind"],
        trigger=told["trigger"] or "",
        cause=_known_cause(told["cause"]),
        outcome=told["outcome"] or _RUNNING,
        detection_ms=told["detectionMilliseconds"],
        steps_ms=MappingProxyType(dict(told["stepsMilliseconds"] or {})),
        unfenced=bool(told["unfenced"]),
        unclean=bool(told["unclean"]),
        truncated_bytes=told["truncatedBytes"] or 0,
        epoch_before=told["epochBefore"],
        from_broker_id=told["from"],
        facts=MappingProxyType(dict(told["facts"] or {})),
        evidence=tuple(told["evidence"] or ()),
    )


def _circumstance(document: Mapping[str, Any]) -> tuple[str, Circumstance]:
    """Return the id of a record of what was going on, and the record."""
    broker_id = _member(document, "brokerId", int)
    told = {member: _member(document, member, str) for member in _TEXTS_OF_CIRCUMSTANCE}
    _check_present(told, ("id", "namespace", "brokerName", "cause"), missing=(None, ""))
    return told["id"], Circumstance(
        cause=_known_cause(told["cause"]),
        start_ms=_unix_ms(document, "startedAt"),
        end_ms=_unix_ms(document, "endedAt"),
        group=GroupKey(told["namespace"], told["cluster"] or "", told["brokerName"]),
        # The member says more than its node: what happened to the node is noted for each member on it.
        node="" if broker_id is not None else told["node"] or "",
        broker_id=broker_id,
        note=": ".join(filter(None, (told["what"], told["message"]))),
    )


def _known_cause(cause: str | None) -> str:
    """A cause of a newer operator is not ours to name: it is shown as unknown, never as another one."""
    return cause if cause in CAUSES else UNKNOWN_CAUSE


def _check_present(told: Mapping[str, Any], members: Iterable[str], missing: Sequence[Any] = (None,)) -> None:
    for member in members:
        if told[member] in missing:
            raise _flaw(f"{member}: missing; expected a value")


def _member(document: Mapping[str, Any], name: str, types: Any) -> Any:
    value: Any = document.get(name)
    if value is None:
        return None
    # True is an int in Python, and no broker id.
    if not isinstance(value, types) or (isinstance(value, bool) and types is not bool):
        expected = " or ".join(one.__name__ for one in (types if isinstance(types, tuple) else (types,)))
        raise _flaw(f"{name}: {value!r}; expected {expected}")
    low, high = _LIMITS.get(name, (None, None))
    if (low is not None and value < low) or (high is not None and value > high):
        raise _flaw(f"{name}: {value}; expected {f'{low} or more' if high is None else f'{low} to {high}'}")
    if name == "stepsMilliseconds":
        steps = {step: _member(value, step, _NUMBER) for step in value}
        early = [f"{step}: {at_ms}" for step, at_ms in steps.items() if at_ms is not None and at_ms < 0]
        if early:
            raise _flaw(f"{name}: {early[0]}; expected 0 or more")
        return steps
    return float(value) if isinstance(types, tuple) else value


def _unix_ms(document: Mapping[str, Any], name: str) -> int:
    text: Any = document.get(name)
    try:
        moment = dt.datetime.fromisoformat(text)
    except (TypeError, ValueError) as error:
        expected = "expected a time such as 2026-11-21T00:10:00.123Z"
        raise FlawError(AnomalyKind.NOT_A_TIMESTAMP, f"{name}: {text!r}; {expected}") from error
    if moment.tzinfo is None:
        raise FlawError(AnomalyKind.NOT_A_TIMESTAMP, f"{name}: {text!r} has no time zone; expected one")
    return round(moment.timestamp() * 1000)


def _flaw(detail: str) -> FlawError:
    return FlawError(AnomalyKind.NOT_A_SAMPLE, detail)
