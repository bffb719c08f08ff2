"""Reads the operator's incident logs (`docs/reference/incident-log.md`), schema versions 1 to 3, of all operator pods.

A path stands for the log and what was rotated away from it (`incidents.jsonl.1` and so on), and for the note of what has begun
and not ended (`incidents.jsonl.open`, outcome `running`), and for what was going on with members
(`incidents.jsonl.circumstances`; such lines are known by their kind, so one file may hold both). A line that is no JSON was torn
by a crash of the machine, which the log allows: it is counted. Anything else that is no incident is an error with file and line.

Logs are small (8 MiB a file), so they are read here and not by tasks.
"""

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sla_reports.readers.lines import FlawError
from sla_reports.readers.samples import Anomaly, AnomalyKind, ExportFormatError

SCHEMA_VERSION: Final = 3
_NOTE: Final = ".open"
_BESIDE: Final = ".circumstances"
_CIRCUMSTANCE: Final = "circumstance"
# Column, member of the log, its type; those that an incident can't be without are in _REQUIRED.
_MEMBERS: Final[tuple[tuple[str, str, Any], ...]] = (
    ("id", "id", str),
    ("kind", "kind", str),
    ("namespace", "namespace", str),
    ("cluster", "cluster", str),
    ("trigger", "trigger", str),
    ("cause", "cause", str),
    ("outcome", "outcome", str),
    ("detection_ms", "detectionMilliseconds", (int, float)),
    ("duration_ms", "durationMilliseconds", (int, float)),
    ("steps_ms", "stepsMilliseconds", dict),
    ("unfenced", "unfenced", bool),
    ("unclean", "unclean", bool),
    ("truncated_bytes", "truncatedBytes", int),
    ("from_broker_id", "from", int),
    ("to_broker_id", "to", int),
    ("epoch_before", "epochBefore", int),
    ("epoch", "epoch", int),
    ("evidence", "evidence", list),
    ("facts", "facts", dict),
    ("censored", "censored", bool),
    ("written_by", "writtenBy", str),
    ("schema_version", "schemaVersion", int),
)
_CIRCUMSTANCE_TEXTS: Final = (
    ("id", "id"), ("namespace", "namespace"), ("cluster", "cluster"), ("broker_group", "brokerName"), ("cause", "cause"),
    ("what", "what"), ("pod", "pod"), ("node", "node"), ("message", "message"),
)  # fmt: skip
# Smallest and greatest value of what cannot have any: a loss that nobody noticed for a week is a clock that is wrong.
_LIMITS: Final = {
    "detectionMilliseconds": (0, 7 * 86_400_000),
    "durationMilliseconds": (0, None),
    "truncatedBytes": (0, None),
}
_REQUIRED: Final = frozenset({"id", "kind", "namespace", "outcome", "schema_version"})


@dataclass(frozen=True, slots=True)
class IncidentLogs:
    """The incidents as rows (by the columns of _MEMBERS; what is not known is None), and the torn lines."""

    rows: tuple[Mapping[str, Any], ...]
    unreadable: tuple[Anomaly, ...]
    # Each once, with the latest end that was noted.
    circumstances: tuple[Mapping[str, Any], ...] = ()


def read_rows(paths: Sequence[Path | str]) -> IncidentLogs:
    """All incidents of the logs, oldest file first. A line that stands in two files stands once. Raises ExportFormatError."""
    rows: dict[tuple[str, int], Mapping[str, Any]] = {}
    circumstances: dict[str, Mapping[str, Any]] = {}
    unreadable: list[Anomaly] = []
    for path in _files(paths):
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            if not line.strip():
                continue
            try:
                row = _row(line)
            except FlawError as error:
                anomaly = Anomaly(str(path), number, error.kind, str(error))
                if error.kind is not AnomalyKind.TRUNCATED:
                    raise anomaly.as_error() from error
                unreadable.append(anomaly)
                continue
            if row["kind"] == _CIRCUMSTANCE:
                noted = circumstances.get(row["id"])
                if noted is None or noted["ended_at_ms"] < row["ended_at_ms"]:
                    circumstances[row["id"]] = row
                continue
            # A note is read after its log: it tells nothing new of what has ended.
            known = rows.get(_key(row))
            if known is None or _rank(row) < _rank(known):
                rows[_key(row)] = row
    return IncidentLogs(_ended(rows.values()), tuple(unreadable), tuple(circumstances.values()))


def files_of(paths: Sequence[Path | str]) -> list[Path]:
    """Every file that is read for these paths. Raises ExportFormatError where there is none."""
    return list(_files(paths))


def _ended(rows: Any) -> tuple[Mapping[str, Any], ...]:
    """Without the notes of what has a line by now: its id may be another one, its start is the same."""
    found = list(rows)
    starts = {_start(row) for row in found if row["outcome"] != "running"}
    return tuple(row for row in found if row["outcome"] != "running" or _start(row) not in starts)


def _key(row: Mapping[str, Any]) -> tuple[str, int]:
    return row["id"], row["started_at_ms"]


def _rank(row: Mapping[str, Any]) -> tuple[bool, float]:
    """Of two lines of one incident the one with the lower rank counts: a whole one; of two whole ones the shorter, written first.

    A pod that takes a change over because its end was not written measures the time until it took over.
    """
    return row["censored"], row["duration_ms"] if row["duration_ms"] is not None else float("inf")


def _start(row: Mapping[str, Any]) -> tuple[str, str, int]:
    return row["namespace"], row["broker_group"], row["started_at_ms"]


def _files(paths: Sequence[Path | str]) -> Iterator[Path]:
    for path in map(Path, paths):
        folder = path.parent if not path.is_dir() else path
        logs = [path] if not path.is_dir() else sorted(folder.glob("*.jsonl"))
        bases = [base for log in logs for base in (log, log.with_name(log.name + _BESIDE))]
        rotated = {base: _rotated(base) for base in bases}
        note = {base: base.with_name(base.name + _NOTE) for base in bases}
        if not any(one.is_file() for base in bases for one in (base, note[base], *rotated[base])):
            raise ExportFormatError(f"incident log {path}: no such file; expected JSON lines of the operator")
        for base in bases:
            yield from (one for one in (*rotated[base], base, note[base]) if one.is_file())


def _rotated(base: Path) -> list[Path]:
    numbered = [(one.name.removeprefix(base.name + "."), one) for one in base.parent.glob(f"{base.name}.*")]
    return [one for _, one in sorted(((int(end), one) for end, one in numbered if end.isdigit()), reverse=True)]


def _row(line: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(line)
    except ValueError as error:
        raise FlawError(AnomalyKind.TRUNCATED, f"no JSON: {error}; expected one incident a line") from error
    version = document.get("schemaVersion") if isinstance(document, dict) else None
    if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
        detail = f"schemaVersion: {version!r}; expected 1 to {SCHEMA_VERSION}"
        raise FlawError(AnomalyKind.NOT_A_SAMPLE, detail)
    if document.get("kind") == _CIRCUMSTANCE:
        return _circumstance(document)
    row: dict[str, Any] = {column: _member(document, member, types) for column, member, types in _MEMBERS}
    for column, member, _ in _MEMBERS:
        if column in _REQUIRED and row[column] is None:
            raise FlawError(AnomalyKind.NOT_A_SAMPLE, f"{member}: missing; expected a value")
    name = _member(document, "brokerName", str) or _member(document, "name", str)
    if name is None:
        raise FlawError(AnomalyKind.NOT_A_SAMPLE, "brokerName: missing; expected the group's name")
    started_at_ms = _unix_ms(document, "startedAt")
    row.update(broker_group=name, started_at_ms=started_at_ms, censored=bool(row["censored"]))
    return row


def _circumstance(document: Mapping[str, Any]) -> Mapping[str, Any]:
    row: dict[str, Any] = {"kind": _CIRCUMSTANCE, "broker_id": _member(document, "brokerId", int)}
    for column, member in _CIRCUMSTANCE_TEXTS:
        row[column] = _member(document, member, str)
    for column in ("id", "namespace", "broker_group", "cause"):
        if not row[column]:
            member = dict(_CIRCUMSTANCE_TEXTS)[column]
            raise FlawError(AnomalyKind.NOT_A_SAMPLE, f"{member}: missing; expected a value")
    row.update(started_at_ms=_unix_ms(document, "startedAt"), ended_at_ms=_unix_ms(document, "endedAt"))
    return row


def _member(document: Mapping[str, Any], name: str, types: Any) -> Any:
    value: Any = document.get(name)
    if value is None:
        return None
    # True is an int in Python, and no broker id.
    if not isinstance(value, types) or (isinstance(value, bool) and types is not bool):
        expected = " or ".join(one.__name__ for one in (types if isinstance(types, tuple) else (types,)))
        raise FlawError(AnomalyKind.NOT_A_SAMPLE, f"{name}: {value!r}; expected {expected}")
    low, high = _LIMITS.get(name, (None, None))
    if (low is not None and value < low) or (high is not None and value > high):
        expected = f"{low} or more" if high is None else f"{low} to {high}"
        raise FlawError(AnomalyKind.NOT_A_SAMPLE, f"{name}: {value}; expected {expected}")
    if name == "stepsMilliseconds":
        steps = {step: _member(value, step, (int, float)) for step in value}
        if early := next(
            (f"{step}: {at_ms}" for step, at_ms in steps.items() if at_ms is not None and at_ms < 0), None
        ):
            raise FlawError(AnomalyKind.NOT_A_SAMPLE, f"{name}: {early}; expected 0 or more")
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
