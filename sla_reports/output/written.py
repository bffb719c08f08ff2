"""Reads a written report back: what it says can be told and replayed without its inputs, without Spark and without Java."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sla_reports.outages.incidents import Incident, Source
from sla_reports.outages.logged import LoggedIncident
from sla_reports.output.documents import SCHEMA_VERSION
from sla_reports.reduction.runs import Run, by_series, gap_limit_ms
from sla_reports.states.entities import Fleet, GroupKey
from sla_reports.states.spans import Window


class WrittenReportError(Exception):
    """A folder is no report that this version can read; says which file and what was expected."""


@dataclass(frozen=True, slots=True)
class WrittenReport:
    """`summary` as it is in summary.json, and the incidents of every group, in order of time."""

    folder: Path
    summary: Mapping[str, Any]
    incidents: Mapping[GroupKey, tuple[Incident, ...]]

    @property
    def window(self) -> Window:
        """From the period's begin to where the data ends."""
        period = self.summary["period"]
        return Window(period["startMs"], period["dataUntilMs"])

    def figures(self, group: GroupKey) -> Mapping[str, Any]:
        """The group's member of summary.json. KeyError where the report has no such group."""
        name = (group.namespace, group.cluster, group.broker_group)
        for one in self.summary["groups"]:
            if (one["namespace"], one["cluster"], one["brokerGroup"]) == name:
                found: Mapping[str, Any] = one
                return found
        raise KeyError(f"{group}: not in the report {self.folder}")


def read_report(folder: Path) -> WrittenReport:
    """The report in a folder. Raises WrittenReportError."""
    summary = _document(folder / "summary.json", _text(folder / "summary.json"))
    keys = [GroupKey(one["namespace"], one["cluster"], one["brokerGroup"]) for one in summary["groups"]]
    incidents: dict[GroupKey, list[Incident]] = {key: [] for key in keys}
    path = folder / "incidents.jsonl"
    for number, line in enumerate(_text(path).splitlines(), start=1):
        try:
            incident = _incident(_document(path, line))
        except KeyError as error:
            # A report of an older version lacks members that later ones have.
            raise WrittenReportError(
                f"{path}:{number}: {error.args[0]}: missing; expected a report made anew"
            ) from error
        incidents.setdefault(incident.group, []).append(incident)
    ordered = {
        key: tuple(sorted(own, key=lambda one: (one.start_ms, one.id))) for key, own in sorted(incidents.items())
    }
    return WrittenReport(folder, summary, ordered)


def read_fleet(folder: Path) -> Fleet:
    """The runs of the report. Raises WrittenReportError."""
    path = folder / "runs.parquet"
    try:
        columns = pq.read_table(path).to_pydict()
        usual: dict[str, int] = {}
        for series, interval_ms in zip(columns["series"], columns["interval_ms"], strict=True):
            usual[series] = min(interval_ms, usual.get(series, interval_ms))
    except (OSError, pa.ArrowException, KeyError) as error:
        raise WrittenReportError(f"{path}: {error}; expected the runs of a report, with interval_ms") from error
    rows = zip(*(columns[name] for name in ("series", "value", "start_ms", "end_ms", "n", "interval_ms")), strict=True)
    gaps = {series: gap_limit_ms(interval_ms) for series, interval_ms in usual.items()}
    runs = (replace(Run(*row[:5]), longer_ms=row[5] if row[5] > gaps[row[0]] else 0) for row in rows)
    return Fleet(by_series(runs), gap_ms=gaps)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise WrittenReportError(
            f"{path}: {error.strerror}; expected a folder that `sla report --out` wrote"
        ) from error


def _document(path: Path, text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise WrittenReportError(f"{path}: no JSON: {error}") from error
    version = document.get("schemaVersion") if isinstance(document, dict) else None
    if version != SCHEMA_VERSION:
        raise WrittenReportError(f"{path}: schemaVersion: {version!r}; expected {SCHEMA_VERSION}")
    found: dict[str, Any] = document
    return found


def _incident(one: Mapping[str, Any]) -> Incident:
    group = GroupKey(one["namespace"], one["cluster"], one["brokerGroup"])
    facts = MappingProxyType(dict(one["facts"]))
    return Incident(
        group=group,
        start_ms=one["startMs"],
        end_ms=one["endMs"],
        source=Source(one["source"]),
        error_ms=one["errorMs"],
        cause=one["cause"],
        planned=one["planned"],
        logged=_logged(one, group, facts) if one["kind"] is not None else None,
        seen_by_gauge=one["seenByGauge"],
        skewed=one["skewedClocks"],
        disputed_ms=one["disputedMs"],
        facts=facts,
        circumstances=tuple(one["circumstances"]),
    )


def _logged(one: Mapping[str, Any], group: GroupKey, facts: Mapping[str, str]) -> LoggedIncident:
    return LoggedIncident(
        id=one["id"],
        group=group,
        started_at_ms=one["startedAtMs"],
        kind=one["kind"],
        trigger=one["trigger"],
        cause=one["loggedCause"],
        outcome=one["outcome"],
        detection_ms=one["detectionMs"],
        steps_ms=MappingProxyType(dict(one["stepsMs"])),
        unfenced=one["unfenced"],
        unclean=one["unclean"],
        truncated_bytes=one["truncatedBytes"],
        facts=facts,
        evidence=tuple(one["evidence"]),
    )
