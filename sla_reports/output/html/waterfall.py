"""Every incident in a row: its times, its cause, where they come from, and its stages as steps going down one after the other."""

from collections.abc import Sequence
from zoneinfo import ZoneInfo

from sla_reports.measures.recovery import STAGES, stages_of
from sla_reports.measures.summary import Summary
from sla_reports.outages.incidents import Incident
from sla_reports.output.html.elements import Markup, duration, instant, join, picture, section, table, tag

_WIDTH, _STEP = 300.0, 5.0
_HEAD = ("incident", "group", "began", "lasted", "cause", "source", "error at an edge", "stages", "waterfall")


def waterfall(summary: Summary, zone: ZoneInfo) -> Markup:
    """All incidents in order of time."""
    incidents = sorted(
        (one for figures in summary.groups for one in figures.incidents), key=lambda one: (one.start_ms, one.id)
    )
    if not incidents:
        return section("incidents", "Incidents and their stages", tag("p", "No incident in this period."))
    longest_ms = _longest_shown_ms(incidents, summary.until_ms)
    rows = [_row(one, summary.until_ms, longest_ms, zone) for one in incidents]
    note = (
        f"A step for each stage, from left to right in time and from top to bottom in the order {', '.join(STAGES)};"
        f" the whole width is {duration(longest_ms)}, » stands where a bar goes on, dashed is what is still open."
    )
    return section("incidents", "Incidents and their stages", tag("p", note, class_="soft"), table(_HEAD, rows))


def stage_words(incident: Incident) -> str:
    """The stages in a line; empty where the log does not tell them."""
    if incident.logged is None:
        return ""
    told = stages_of(incident.logged)
    return ", ".join(f"{stage} {duration(told[stage])}" for stage in STAGES if stage in told)


def _longest_shown_ms(incidents: Sequence[Incident], until_ms: int) -> float:
    """Wide enough for most: a single outage of hours must not make all others a line."""
    staged = [one for one in incidents if stage_words(one)]
    lengths = sorted(one.length_ms(until_ms) for one in staged or incidents)
    usual_ms = lengths[(len(lengths) - 1) // 2]
    return float(max([1, *(length for length in lengths if length <= 5 * usual_ms)]))


def _row(one: Incident, until_ms: int, longest_ms: float, zone: ZoneInfo) -> list[str]:
    kind = "planned" if one.planned else "unplanned"
    flags = ["clocks differ"] if one.skewed else []
    flags += [f"disputed: {duration(one.disputed_ms)}"] if one.disputed_ms else []
    if one.logged is not None:
        flags += [name for name, is_so in (("unclean", one.logged.unclean), ("unfenced", one.logged.unfenced)) if is_so]
    length = f"{'at least ' if one.is_open(until_ms) else ''}{duration(one.length_ms(until_ms))}"
    return [
        one.id, str(one.group), instant(one.start_ms, zone), length, ", ".join([one.cause, kind, *flags]),
        one.source.value, duration(one.error_ms), stage_words(one) or "not told", _bar(one, until_ms, longest_ms),
    ]  # fmt: skip


def _bar(one: Incident, until_ms: int, longest_ms: float) -> Markup:
    told = stages_of(one.logged) if one.logged is not None else {}
    length_ms = float(one.length_ms(until_ms))
    steps = [(number, told[stage]) for number, stage in enumerate(STAGES) if stage in told]
    # What no stage tells (only the gauge saw it) is one block.
    parts: list[Markup] = [] if steps else [_step("down", 0.0, length_ms, 0.0, 6 * _STEP, longest_ms)]
    begin_ms = 0.0
    for number, stage_ms in steps:
        parts.append(_step(f"s{number}", begin_ms, begin_ms + stage_ms, number * _STEP, _STEP, longest_ms))
        begin_ms += stage_ms
    if steps and one.is_open(until_ms) and length_ms > begin_ms:
        parts.append(_step("open", begin_ms, length_ms, _STEP, 4 * _STEP, longest_ms))
    if max(begin_ms, length_ms) > longest_ms:
        parts.append(tag("text", "»", x=_WIDTH - 2, y=20, text_anchor="end"))
    words = stage_words(one) or f"{duration(length_ms)}, no stages told"
    return picture(f"{one.id}: {words}", join(parts), width=_WIDTH, height=6 * _STEP)


def _step(name: str, from_ms: float, to_ms: float, top: float, height: float, longest_ms: float) -> Markup:
    wide = _WIDTH - 14
    low, high = (min(1.0, at_ms / longest_ms) * wide for at_ms in (from_ms, to_ms))
    # What lies wholly beyond the edge is not drawn at it: » stands there.
    low = min(low, wide - 1)
    return tag("rect", class_=name, x=low, y=top, width=max(1.0, high - low), height=height)
