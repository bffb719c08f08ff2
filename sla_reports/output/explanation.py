"""One incident told from its beginning to its end: stages, cause, evidence, and where each of it comes from.

Texts come from outside and go to a terminal: what is not printable is replaced, so that no note moves a cursor.
"""

from collections.abc import Iterator, Sequence
from zoneinfo import ZoneInfo

from sla_reports.measures.recovery import STAGES, stages_of
from sla_reports.outages.incidents import UNATTRIBUTED, Incident
from sla_reports.outages.logged import UNKNOWN_CAUSE
from sla_reports.output.html.elements import duration, instant, minutes, percent
from sla_reports.output.written import WrittenReport
from sla_reports.states.entities import GroupKey

_BAR = 40
_SHOWN_NAMES = 10


class NoSuchIncidentError(ValueError):
    """No group or incident of that name, or several; says which there are."""


def find_incident(report: WrittenReport, group: str, incident: str) -> Incident:
    """By the group's whole name or its last part, and the incident's id or its last part. Raises NoSuchIncidentError."""
    keys = [key for key in report.incidents if group in {str(key), key.broker_group}]
    if len(keys) != 1:
        raise NoSuchIncidentError(_expected("group", group, [str(key) for key in keys or report.incidents]))
    own = report.incidents[keys[0]]
    # Two attempts may bear one id: the whole id with its start tells them apart.
    exact = [one for one in own if incident in {one.id, f"{one.id}@{one.start_ms}"}]
    found = exact or [one for one in own if one.id.rpartition("/")[2] == incident]
    if len(found) != 1:
        raise NoSuchIncidentError(_expected("incident", incident, [f"{one.id}@{one.start_ms}" for one in found] or
                                            [one.id for one in own]))  # fmt: skip
    return found[0]


def explain(report: WrittenReport, incident: Incident, zone: ZoneInfo) -> str:
    """The incident in lines."""
    return "\n".join(_printable(line) for line in _lines(report, incident, zone))


def _lines(report: WrittenReport, one: Incident, zone: ZoneInfo) -> Iterator[str]:
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
    yield from _source_lines(one)
    yield _budget_line(report, one.group, length_ms)


def _why(one: Incident) -> str:
    if one.logged is None:
        return "no incident log tells of it" if one.cause == UNATTRIBUTED else "by what went on at that time"
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
    told = stages_of(one.logged) if one.logged is not None else {}
    if not told:
        yield "  stages  not told"
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
        yield f"  not told      {duration(rest_ms):>12}"


def _source_lines(one: Incident) -> Iterator[str]:
    seen = "shows it too" if one.seen_by_gauge else "does not show it: it fell between scrapes, or was not scraped"
    yield "  source  the gauge alone" if one.logged is None and one.seen_by_gauge else f"  source  the gauge {seen}"
    if one.skewed:
        yield "  clocks  the gauge shows it before the log: the clocks of operator and Prometheus differ"


def _budget_line(report: WrittenReport, group: GroupKey, length_ms: int) -> str:
    allowed_ms = report.figures(group)["budget"]["allowedMs"]
    share = f" ({percent(length_ms / allowed_ms)})" if allowed_ms else ""
    return f"  budget  it took {minutes(length_ms)} of the {minutes(allowed_ms)} of the period{share}"


def _expected(what: str, value: str, known: Sequence[str]) -> str:
    more = f" and {len(known) - _SHOWN_NAMES} more" if len(known) > _SHOWN_NAMES else ""
    names = _printable(", ".join(known[:_SHOWN_NAMES])) or "none: the report has no incident of it"
    return f"{what} {value!r}: expected one of {names}{more}"


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else "\ufffd" for one in text)
