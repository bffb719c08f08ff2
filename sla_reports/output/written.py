"""Read a written report back: compare two of them, or explain one incident, without the report's inputs, Spark or Java."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq

from sla_reports.measures.recovery import STAGES, stages_of
from sla_reports.measures.summary import Summary
from sla_reports.output.files import LOGGED_MEMBERS, SCHEMA_VERSION, camel, camel_case, summary_document
from sla_reports.output.html_elements import duration, instant, minutes, percent
from sla_reports.states.entities import Fleet, GroupKey
from sla_reports.states.incidents import UNATTRIBUTED, Incident, Source
from sla_reports.states.logged import UNKNOWN_CAUSE, LoggedIncident
from sla_reports.states.spans import Run, Window, by_series, gap_limit_ms

_BAR = 40
_SHOWN_NAMES = 10


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
        """The time from the period's begin to where the data ends."""
        period = self.summary["period"]
        return Window(period["startMs"], period["dataUntilMs"])

    def figures(self, group: GroupKey) -> Mapping[str, Any]:
        """Return the group's member of summary.json. Raises KeyError if the report has no such group."""
        name = (group.namespace, group.cluster, group.broker_group)
        for one in self.summary["groups"]:
            if (one["namespace"], one["cluster"], one["brokerGroup"]) == name:
                found: Mapping[str, Any] = one
                return found
        raise KeyError(f"{group}: not in the report {self.folder}")


def read_report(folder: Path) -> WrittenReport:
    """Read the report of a folder. Raises WrittenReportError."""
    summary = _document(folder / "summary.json", _text(folder / "summary.json"))
    keys = [GroupKey(one["namespace"], one["cluster"], one["brokerGroup"]) for one in summary["groups"]]
    incidents: dict[GroupKey, list[Incident]] = {key: [] for key in keys}
    path = folder / "incidents.jsonl"
    for number, line in enumerate(_text(path).splitlines(), start=1):
        try:
            incident = _read_incident(_document(path, line))
        except KeyError as error:
            raise WrittenReportError(
                f"{path}:{number}: {error.args[0]}: missing; expected a report made anew"
            ) from error
        incidents.setdefault(incident.group, []).append(incident)
    ordered = {
        key: tuple(sorted(own, key=lambda one: (one.start_ms, one.id))) for key, own in sorted(incidents.items())
    }
    return WrittenReport(folder, summary, ordered)


def as_written(summary: Summary) -> WrittenReport:
    """Return a report that is not written as if it had been."""
    incidents = {
        one.group: tuple(sorted(one.incidents, key=lambda incident: (incident.start_ms, incident.id)))
        for one in summary.groups
    }
    return WrittenReport(Path(), summary_document(summary), incidents)


def read_fleet(folder: Path) -> Fleet:
    """Read the runs of the report. Raises WrittenReportError."""
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


def _read_incident(one: Mapping[str, Any]) -> Incident:
    """The reverse of `incident_document`. Raises KeyError: a report of an older version lacks members that later ones have."""
    group = GroupKey(one["namespace"], one["cluster"], one["brokerGroup"])
    facts = MappingProxyType(dict(one["facts"]))
    logged = None
    if one["kind"] is not None:
        logged = LoggedIncident(
            one["id"], group, cause=one["loggedCause"], facts=facts, evidence=tuple(one["evidence"]),
            steps_ms=MappingProxyType(dict(one["stepsMs"])), **{name: one[camel(name)] for name in LOGGED_MEMBERS},
        )  # fmt: skip
    return Incident(
        group, one["startMs"], one["endMs"], Source(one["source"]), one["errorMs"], cause=one["cause"],
        planned=one["planned"], logged=logged, seen_by_gauge=one["seenByGauge"], skewed=one["skewedClocks"],
        disputed_ms=one["disputedMs"], facts=facts, circumstances=tuple(one["circumstances"]),
    )  # fmt: skip


def changes(before: WrittenReport, after: WrittenReport) -> list[dict[str, Any]]:
    """Compare two reports group by group, the greatest rise of down time first. A side that lacks the group is null."""
    groups = {*before.incidents, *after.incidents}
    told = [_change(group, _side(before, group), _side(after, group)) for group in sorted(groups)]
    return sorted(told, key=lambda one: one["downMs"] if one["downMs"] is not None else 0, reverse=True)


def _side(report: WrittenReport, group: GroupKey) -> dict[str, Any] | None:
    if group not in report.incidents:  # which has every group of the report
        return None
    figures = report.figures(group)
    causes: dict[str, float] = {}
    for one in report.incidents[group]:
        causes[one.cause] = causes.get(one.cause, 0) + one.length_ms(report.window.end_ms)
    write, rto = figures["write"], figures["recovery"]["rto"]
    return {
        "verdict": figures["verdict"], "availability": write["availability"], "downMs": write["downMs"],
        "unknownMs": write["unknownMs"], "outages": figures["incidents"], "rtoP95Ms": rto["p95Ms"],
        "outageMsByCause": causes,
    }  # fmt: skip


def _change(group: GroupKey, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> dict[str, Any]:
    both = before is not None and after is not None
    names = ("availability", "downMs", "unknownMs", "outages", "rtoP95Ms")
    moved = {name: _difference(before, after, name) if both else None for name in names}
    causes = sorted({*(before or {}).get("outageMsByCause", {}), *(after or {}).get("outageMsByCause", {})})
    by_cause = {
        cause: round(
            sum(sign * (one or {}).get("outageMsByCause", {}).get(cause, 0) for sign, one in ((-1, before), (1, after)))
        )
        for cause in causes
    }
    return camel_case({"group": str(group), **moved, "outageMsByCause": by_cause, "before": before, "after": after})


def _difference(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, name: str) -> float | None:
    if before is None or after is None or before[name] is None or after[name] is None:
        return None
    return float(after[name] - before[name]) if name in {"availability", "rtoP95Ms"} else after[name] - before[name]


def changes_table(told: list[dict[str, Any]]) -> str:
    """Return the comparison as text, a line for each group."""
    return "\n".join(_comparison_lines(told)) or "no group in either report"


def _comparison_lines(told: list[dict[str, Any]]) -> Iterator[str]:
    for one in told:
        before, after = one["before"], one["after"]
        if before is None or after is None:
            yield f"{one['group']}: {'new' if before is None else 'not in the later report'}"
            continue
        causes = ", ".join(f"{cause} {ms / 1000:+.3f} s" for cause, ms in one["outageMsByCause"].items() if ms)
        yield (
            f"{one['group']}: {percent(before['availability'])} -> {percent(after['availability'])}"
            f" ({before['verdict']} -> {after['verdict']}),"
            f" down {one['downMs'] / 1000:+.3f} s, outages {before['outages']} -> {after['outages']},"
            f" RTO p95 {_ms(before)} -> {_ms(after)}; {causes or 'no cause changed'}"
        )


def _ms(side: Mapping[str, Any]) -> str:
    return "-" if side["rtoP95Ms"] is None else f"{side['rtoP95Ms']:.0f} ms"


class NoSuchIncidentError(ValueError):
    """No group or incident of that name, or several; says which there are."""


def find_incident(report: WrittenReport, group: str, incident: str) -> Incident:
    """Find an incident by the group's name and the incident's id, or their last parts. Raises NoSuchIncidentError."""
    keys = [key for key in report.incidents if group in {str(key), key.broker_group}]
    if len(keys) != 1:
        raise NoSuchIncidentError(_expected("group", group, [str(key) for key in keys or report.incidents]))
    own = report.incidents[keys[0]]
    # Two attempts may have one id: the whole id with its start is unique.
    exact = [one for one in own if incident in {one.id, f"{one.id}@{one.start_ms}"}]
    found = exact or [one for one in own if one.id.rpartition("/")[2] == incident]
    if len(found) != 1:
        raise NoSuchIncidentError(_expected("incident", incident, [f"{one.id}@{one.start_ms}" for one in found] or
                                            [one.id for one in own]))  # fmt: skip
    return found[0]


def explain(report: WrittenReport, incident: Incident, zone: ZoneInfo) -> str:
    """Return all that the report knows of an incident, as lines of text."""
    return "\n".join(_printable(line) for line in _explanation_lines(report, incident, zone))


def _explanation_lines(report: WrittenReport, one: Incident, zone: ZoneInfo) -> Iterator[str]:
    until_ms = report.window.end_ms
    length_ms = one.length_ms(until_ms)
    yield f"incident {one.id} of {one.group}"
    yield f"  began   {instant(one.start_ms, zone)} {zone.key} (by {one.source.value}, may be off by {duration(one.error_ms)})"
    if one.is_open(until_ms):
        yield f"  ended   not before {instant(until_ms, zone)}, where the data ends: it lasted at least {duration(length_ms)}"
    else:
        yield f"  ended   {instant(one.start_ms + length_ms, zone)}, after {duration(length_ms)}"
    yield f"  cause   {one.cause}: {_why(one)}"
    proves = "proof   " if one.cause not in (UNKNOWN_CAUSE, UNATTRIBUTED) else "near    "
    yield from (f"  {proves}{words}" for words in one.circumstances)
    yield from _logged_lines(one)
    yield from _stage_lines(one, until_ms)
    seen = "shows it too" if one.seen_by_gauge else "does not show it: it fell between scrapes, or was not scraped"
    yield "  source  the gauge alone" if one.logged is None and one.seen_by_gauge else f"  source  the gauge {seen}"
    if one.skewed:
        yield "  clocks  the gauge shows it before the log: the clocks of operator and Prometheus differ"
    allowed_ms = report.figures(one.group)["budget"]["allowedMs"]
    share = f" ({percent(length_ms / allowed_ms)})" if allowed_ms else ""
    yield f"  budget  it took {minutes(length_ms)} of the {minutes(allowed_ms)} of the period{share}"


def _why(one: Incident) -> str:
    if one.logged is None:
        return "no incident log has it" if one.cause == UNATTRIBUTED else "by what went on at that time"
    if one.cause == one.logged.cause != UNKNOWN_CAUSE:
        return "the operator's log names it"
    if one.cause == UNKNOWN_CAUSE:
        return f"the trigger {one.logged.trigger or '(none)'} proves none, and nothing else is known"
    if one.cause == "plannedSwitchover":
        return "it was asked for"
    if one.cause == "crash":
        return f"the trigger {one.logged.trigger} proves it"
    return "by what went on at that time"


def _logged_lines(one: Incident) -> Iterator[str]:
    logged = one.logged
    if logged is None:
        return
    yield f"  log     {logged.kind}, trigger {logged.trigger or '-'}, outcome {logged.outcome}"
    if logged.unfenced:
        yield "  fence   the old master was not fenced"
    if logged.unclean or logged.truncated_bytes:
        yield f"  loss    {'elected uncleanly, ' if logged.unclean else ''}{logged.truncated_bytes} bytes cut off"
    for name, value in sorted(one.facts.items()):
        yield f"  fact    {name}: {value}"
    for words in logged.evidence:
        yield f"  evidence {words}"


def _stage_lines(one: Incident, until_ms: int) -> Iterator[str]:
    told = stages_of(one.logged)
    if not told:
        yield "  stages  unknown"
        return
    whole_ms = max(sum(told.values()), 1e-9)
    begin_ms = 0.0
    for stage in (stage for stage in STAGES if stage in told):
        low, high = (round(at_ms / whole_ms * _BAR) for at_ms in (begin_ms, begin_ms + told[stage]))
        bar = " " * low + "=" * max(1, high - low)
        yield f"  {stage:<13} {duration(told[stage]):>12} {percent(told[stage] / whole_ms):>11} |{bar:<{_BAR + 1}}|"
        begin_ms += told[stage]
    rest_ms = one.length_ms(until_ms) - whole_ms
    if rest_ms > 1:
        yield f"  in no stage   {duration(rest_ms):>12}"


def _expected(what: str, value: str, known: Sequence[str]) -> str:
    more = f" and {len(known) - _SHOWN_NAMES} more" if len(known) > _SHOWN_NAMES else ""
    names = _printable(", ".join(known[:_SHOWN_NAMES])) or "none: the report has no incident of it"
    return f"{what} {value!r}: expected one of {names}{more}"


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else "\ufffd" for one in text)
