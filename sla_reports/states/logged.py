"""The operator's incident logs (`docs/reference/incident-log.md`), schema versions 1 to 3, of all operator pods.

The log is exact where scraped gauges are not: monotonic durations, wall-clock start in milliseconds. Three things in it are not
whole outages, and are made so here: what was cancelled never happened and is left out; an attempt that found no eligible replica
and was taken up again, before any master came, is one outage with the later attempt; what the operator did not live to close is
open.
"""

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

import msgspec

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
# Of a line: a number of milliseconds that can be; a loss that is detected after more than a week shows a wrong clock.
_Length = Annotated[float, msgspec.Meta(ge=0)]
_Detection = Annotated[float, msgspec.Meta(ge=0, le=7 * 86_400_000)]
_Instant = Annotated[dt.datetime, msgspec.Meta(tz=True)]
_Name = Annotated[str, msgspec.Meta(min_length=1)]


class _IncidentLine(msgspec.Struct, rename="camel", frozen=True):
    id: str
    kind: str
    namespace: str
    outcome: str
    started_at: _Instant
    broker_name: str | None = None
    name: str | None = None
    cluster: str | None = None
    trigger: str | None = None
    cause: str | None = None
    detection_milliseconds: _Detection | None = None
    duration_milliseconds: _Length | None = None
    steps_milliseconds: dict[str, _Length] | None = None
    unfenced: bool | None = None
    unclean: bool | None = None
    truncated_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None
    from_: int | None = msgspec.field(name="from", default=None)
    epoch_before: int | None = None
    epoch: int | None = None
    evidence: list[str] | None = None
    facts: dict[str, str] | None = None
    censored: bool | None = None


class _CircumstanceLine(msgspec.Struct, rename="camel", frozen=True):
    id: _Name
    namespace: _Name
    broker_name: _Name
    cause: _Name
    started_at: _Instant
    ended_at: _Instant
    cluster: str | None = None
    broker_id: int | None = None
    what: str | None = None
    node: str | None = None
    message: str | None = None


class _AnyLine(msgspec.Struct, rename="camel", frozen=True):
    schema_version: Annotated[int, msgspec.Meta(ge=1, le=SCHEMA_VERSION)]
    kind: str


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
            told = _read(line)
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


def _read(line: bytes) -> _Logged | _Noted:
    """Raises FlawError."""
    try:
        if msgspec.json.decode(line, type=_AnyLine).kind == _CIRCUMSTANCE:
            return _circumstance(msgspec.json.decode(line, type=_CircumstanceLine))
        return _incident(msgspec.json.decode(line, type=_IncidentLine))
    except msgspec.ValidationError as error:
        raise FlawError(AnomalyKind.NOT_A_SAMPLE, str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FlawError(AnomalyKind.TRUNCATED, f"no JSON: {error}; expected one incident a line") from error


def _incident(told: _IncidentLine) -> _Logged:
    """Return an incident with its rank: a whole line comes first; of two whole ones the shorter, which was written first.

    A pod that takes a change over because its end was not written measures the time until it took over.
    """
    name = told.broker_name or told.name
    if name is None:
        raise FlawError(AnomalyKind.NOT_A_SAMPLE, "brokerName: missing; expected the group's name")
    duration_ms = told.duration_milliseconds
    return _Logged((bool(told.censored), float("inf") if duration_ms is None else duration_ms), LoggedIncident(
        id=told.id, group=GroupKey(told.namespace, told.cluster or "", name), started_at_ms=_unix_ms(told.started_at),
        kind=told.kind, trigger=told.trigger or "", cause=_known_cause(told.cause), outcome=told.outcome or _RUNNING,
        detection_ms=told.detection_milliseconds, steps_ms=MappingProxyType(told.steps_milliseconds or {}),
        unfenced=bool(told.unfenced), unclean=bool(told.unclean), truncated_bytes=told.truncated_bytes or 0,
        epoch_before=told.epoch_before, from_broker_id=told.from_, facts=MappingProxyType(told.facts or {}),
        evidence=tuple(told.evidence or ()),
    ))  # fmt: skip


def _circumstance(told: _CircumstanceLine) -> _Noted:
    return _Noted(told.id, Circumstance(
        cause=_known_cause(told.cause), start_ms=_unix_ms(told.started_at), end_ms=_unix_ms(told.ended_at),
        group=GroupKey(told.namespace, told.cluster or "", told.broker_name),
        # The member says more than its node: what happened to the node is noted for each member on it.
        node="" if told.broker_id is not None else told.node or "",
        broker_id=told.broker_id, note=": ".join(filter(None, (told.what, told.message))),
    ))  # fmt: skip


def _known_cause(cause: str | None) -> str:
    """A cause of a newer operator is not ours to name: it is shown as unknown, never as another one."""
    return cause if cause in CAUSES else UNKNOWN_CAUSE


def _unix_ms(moment: dt.datetime) -> int:
    return round(moment.timestamp() * 1000)
