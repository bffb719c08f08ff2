"""The parts of the page about incidents: their stages, recovery times, causes, what was at risk, and where numbers come from."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any
from zoneinfo import ZoneInfo

from sla_reports.measures.availability import BY_LOST_MASTER, Share
from sla_reports.measures.recovery import STAGES, Distribution, stages_of
from sla_reports.measures.summary import Summary
from sla_reports.output.html_elements import (
    Markup,
    duration,
    instant,
    join,
    percent,
    picture,
    plain,
    section,
    table,
    tag,
)
from sla_reports.states.incidents import Incident

_STEPS_WIDTH, _STEP = 240.0, 5.0
_HEAD = ("incident", "group", "began", "lasted", "cause", "source, error at an edge", "stages", "waterfall")
_BOUNDS_MS = tuple(base * 10**power for power in range(1, 8) for base in (1, 2, 5))
_WIDTH, _HEIGHT, _TOP, _BOTTOM = 720.0, 200.0, 28.0, 34.0
_SOURCES = (
    ("counts, times, stages and causes of incidents", "incident_log",
     "1 ms at each edge; a scrape interval where the log has no end, or no last sign of life"),
    ("outages that the log does not have; what is unknown or disputed", "gauge", "a scrape interval at each edge"),
    ("down time that neither of the two has", "counter", "when: a scrape interval"),
    ("bounds of the recovery times by phase", "histogram", "the width of a bucket"),
    ("time below promise, time with one copy", "gauge", "a scrape interval at each edge of each exposed time"),
    ("most bytes behind", "gauge", "seen at scrapes only; a member's offset is as old as its heartbeat"),
    ("what amendments correct", "correction", "as it was written"),
)  # fmt: skip


def waterfall(summary: Summary, zone: ZoneInfo) -> Markup:
    """All incidents in order of time."""
    incidents = sorted(summary.incidents, key=lambda one: (one.start_ms, one.id))
    if not incidents:
        return section("incidents", "Incidents and their stages", tag("p", "No incident in this period."))
    longest_ms = _longest_shown_ms(incidents, summary.until_ms)
    rows = [_incident_row(one, summary.until_ms, longest_ms, zone) for one in incidents]
    note = (
        f"A step for each stage, from left to right in time and from top to bottom in the order {', '.join(STAGES)};"
        f" the whole width is {duration(longest_ms)}, » stands where a bar goes on, dashed is what is still open."
    )
    return section("incidents", "Incidents and their stages", tag("p", note, class_="soft"), table(_HEAD, rows))


def stage_words(incident: Incident) -> str:
    """Return the stages in a line; empty if the log does not have them."""
    told = stages_of(incident.logged)
    return ", ".join(f"{stage} {duration(told[stage])}" for stage in STAGES if stage in told)


def _longest_shown_ms(incidents: Sequence[Incident], until_ms: int) -> float:
    """Wide enough for most: a single outage of hours must not make all others a line."""
    staged = [one for one in incidents if stage_words(one)]
    lengths = sorted(one.length_ms(until_ms) for one in staged or incidents)
    usual_ms = lengths[(len(lengths) - 1) // 2]
    return float(max([1, *(length for length in lengths if length <= 5 * usual_ms)]))


def _incident_row(one: Incident, until_ms: int, longest_ms: float, zone: ZoneInfo) -> list[str]:
    kind = "planned" if one.planned else "unplanned"
    flags = ["clocks differ"] if one.skewed else []
    flags += [f"disputed: {duration(one.disputed_ms)}"] if one.disputed_ms else []
    if one.logged is not None:
        flags += [name for name, is_so in (("unclean", one.logged.unclean), ("unfenced", one.logged.unfenced)) if is_so]
    length = f"{'at least ' if one.is_open(until_ms) else ''}{duration(one.length_ms(until_ms))}"
    return [
        one.id, str(one.group), instant(one.start_ms, zone), length, ", ".join([one.cause, kind, *flags]),
        f"{one.source.value.replace('_', ' ')}, {duration(one.error_ms)}", stage_words(one) or "unknown",
        _steps(one, until_ms, longest_ms),
    ]  # fmt: skip


def _steps(one: Incident, until_ms: int, longest_ms: float) -> Markup:
    told = stages_of(one.logged)
    length_ms = float(one.length_ms(until_ms))
    steps = [(number, told[stage]) for number, stage in enumerate(STAGES) if stage in told]
    # What is in no stage (only the gauge saw it) is one block.
    parts: list[Markup] = [] if steps else [_step("down", 0.0, length_ms, 0.0, 6 * _STEP, longest_ms)]
    begin_ms = 0.0
    for number, stage_ms in steps:
        parts.append(_step(f"s{number}", begin_ms, begin_ms + stage_ms, number * _STEP, _STEP, longest_ms))
        begin_ms += stage_ms
    if steps and one.is_open(until_ms) and length_ms > begin_ms:
        parts.append(_step("open", begin_ms, length_ms, _STEP, 4 * _STEP, longest_ms))
    if max(begin_ms, length_ms) > longest_ms:
        parts.append(tag("text", "»", x=_STEPS_WIDTH - 2, y=20, text_anchor="end"))
    words = stage_words(one) or f"{duration(length_ms)}, stages unknown"
    return picture(f"{one.id}: {words}", join(parts), width=_STEPS_WIDTH, height=6 * _STEP)


def _step(name: str, from_ms: float, to_ms: float, top: float, height: float, longest_ms: float) -> Markup:
    wide = _STEPS_WIDTH - 14
    low, high = (min(1.0, at_ms / longest_ms) * wide for at_ms in (from_ms, to_ms))
    # A step wholly beyond the edge is not drawn at it: there is the ».
    low = min(low, wide - 1)
    return tag("rect", class_=name, x=low, y=top, width=max(1.0, high - low), height=height)


def distribution_part(summary: Summary) -> Markup:
    """Show the recovery times of the unplanned incidents in the log: those of the quantiles."""
    durations = [
        one.whole(summary.until_ms, running=summary.running)
        for one in summary.incidents
        if one.logged is not None and not one.planned
    ]
    title = "Recovery times (RTO)"
    if not durations:
        return section("rto", title, tag("p", "No failover was logged in this period."))
    bins = _bins(durations)
    return section("rto", title, _bars(bins, summary.recovery.total), _bin_table(bins), _stages(summary))


def _bins(durations: Sequence[tuple[float, bool]]) -> dict[int, list[int]]:
    """How many ended and are still open, by bin; number n lies below `_BOUNDS_MS[n]`."""
    bins: dict[int, list[int]] = {}
    for length_ms, is_open in durations:
        bins.setdefault(bisect_right(_BOUNDS_MS, length_ms), [0, 0])[is_open] += 1
    return bins


def _bin_table(bins: Mapping[int, Sequence[int]]) -> Markup:
    rows = [
        [duration(_BOUNDS_MS[number - 1] if number else 0), duration(_BOUNDS_MS[number]) if number < len(_BOUNDS_MS) else "-",
         str(ended), str(still_open)]
        for number, (ended, still_open) in sorted(bins.items())
    ]  # fmt: skip
    return table(["from", "below", "recoveries", "still open"], rows)


def _bars(bins: Mapping[int, Sequence[int]], told: Distribution) -> Markup:
    """From the first bin to the last that holds something."""
    first, last = min(bins), max(bins)
    most = max(sum(counts) for counts in bins.values())
    wide = (_WIDTH - 20) / (last - first + 1)
    parts = [tag("line", class_="axis", x1=10, x2=_WIDTH - 10, y1=_HEIGHT - _BOTTOM, y2=_HEIGHT - _BOTTOM)]
    for number in range(first, last + 1):
        parts.append(_bar(10 + (number - first) * wide, wide, bins.get(number, [0, 0]), most))
        low = _BOUNDS_MS[number - 1] if number else 0
        bound = f"{low} ms" if low < 1000 else f"{low // 1000} s"
        parts.append(tag("text", bound, x=10 + (number - first) * wide, y=_HEIGHT - _BOTTOM + 14))
    for row, (name, value) in enumerate((("p50", told.p50_ms), ("p95", told.p95_ms), ("p99", told.p99_ms))):
        if value is not None:
            parts.append(_quantile(name, value, 10 + (_place(value) - first) * wide, row))
    ended = f"{told.n} {'recovery' if told.n == 1 else 'recoveries'}, {told.censored} still open"
    title = f"{ended}: p50 {duration(told.p50_ms)}, p95 {duration(told.p95_ms)}"
    return picture(title, join(parts), width=_WIDTH, height=_HEIGHT)


def _bar(x: float, wide: float, counts: Sequence[int], most: int) -> Markup:
    unit = (_HEIGHT - _TOP - _BOTTOM) / most
    ended, still_open = (count * unit for count in counts)
    base = _HEIGHT - _BOTTOM
    parts = []
    if counts[0]:
        parts.append(tag("rect", class_="s4", x=x + 2, y=base - ended, width=wide - 4, height=ended))
    if counts[1]:
        parts.append(
            tag("rect", class_="open", x=x + 2, y=base - ended - still_open, width=wide - 4, height=still_open)
        )
    if any(counts):
        parts.append(tag("text", str(sum(counts)), x=x + wide / 2, y=base - 4, text_anchor="middle"))
    return join(parts)


def _quantile(name: str, value: float, x: float, row: int) -> Markup:
    line = tag("line", class_="mark", x1=x, x2=x, y1=10, y2=_HEIGHT - _BOTTOM)
    anchor, beside = ("end", -3.0) if x > _WIDTH - 120 else ("start", 3.0)
    words = tag("text", f"{name} {duration(value)}", x=x + beside, y=10 + row * 11, text_anchor=anchor)
    return join([line, words])


def _place(value: float) -> float:
    """Which bin, and how far into it."""
    number = bisect_right(_BOUNDS_MS, value)
    low = float(_BOUNDS_MS[number - 1]) if number else 0.0
    high = float(_BOUNDS_MS[number]) if number < len(_BOUNDS_MS) else low * 2
    return number + (value - low) / (high - low)


def _stages(summary: Summary) -> Markup:
    recovery = summary.recovery
    rows = [
        [
            f"{stage} (most time)" if stage == recovery.dominant else stage, str(one.n), duration(one.p50_ms),
            duration(one.p95_ms), duration(one.p99_ms), duration(one.max_ms), percent(recovery.shares[stage]),
        ]
        for stage, one in recovery.stages.items() if stage in STAGES
    ]  # fmt: skip
    total = recovery.total
    whole = ["all", str(total.n), *(duration(v) for v in (total.p50_ms, total.p95_ms, total.p99_ms, total.max_ms)), ""]
    return table(["stage", "n", "p50", "p95", "p99", "longest", "of all time lost"], [*rows, whole])


def causes(summary: Summary) -> Markup:
    """Incidents by cause, by what the lost master was, and those that began together."""
    parts = [_shares("cause", summary.shares(lambda one: one.cause))]
    for name in BY_LOST_MASTER:
        shares = summary.shares_by_fact(name)
        # No incident has this fact: nothing to divide by.
        if any(share.value for share in shares):
            parts.append(_shares(name, shares))
    parts += [part for name in BY_LOST_MASTER if (part := _places(summary, name)) is not None]
    together = [
        [", ".join(one.id for one in event.incidents), ", ".join(map(str, event.groups)), plain(dict(event.common))]
        for event in summary.events
        if len(event.groups) > 1
    ]
    if together:
        parts.append(table(["began together", "groups", "in common"], together))
    return section("causes", "Causes", *parts)


def _places(summary: Summary, name: str) -> Markup | None:
    """Availability by a fact of the masters; nothing where no sample has it."""
    told = summary.availability_by_fact(name)
    if not any(told):
        return None
    rows = [
        [value or "unknown", percent(one.availability), duration(one.down_ms), duration(one.unknown_ms),
         duration(one.disputed_ms), percent(one.coverage)]
        for value, one in told.items()
    ]  # fmt: skip
    return table([f"{name} of the master", "availability", "down", "unknown", "disputed", "known"], rows)


def exposure(summary: Summary) -> Markup:
    """Show for how long acknowledged messages were on fewer disks than promised."""
    head = [
        "group", "below promise", "one copy", "unknown", "may be off by", "most bytes behind", "unclean elections",
        "bytes cut off", "unfenced",
    ]  # fmt: skip
    rows = [
        [
            str(one.group),
            *(
                duration(part)
                for part in (told.below_promise_ms, told.one_copy_ms, told.unknown_ms, told.error_ms)
            ),
            plain(told.most_behind_bytes), str(told.unclean_elections), str(told.truncated_bytes), str(told.unfenced),
        ]
        for one in summary.groups
        for told in (one.exposure,)
    ]  # fmt: skip
    note = (
        f"Promised: {summary.agreement.promised_copies} copies in sync; one by a group with one voting replica. Exposure is no loss"
        " while the copy lives."
    )
    return section("exposure", "Exposure (RPO)", tag("p", note, class_="soft"), table(head, rows))


def coverage(summary: Summary) -> Markup:
    """Show how much of each group's time is known, and from which source."""
    rows = [
        [str(one.group), percent(told.coverage), duration(told.unknown_ms), duration(told.disputed_ms), told.source.value,
         duration(told.error_ms)]
        for one in summary.groups
        for told in (one.availability,)
    ]  # fmt: skip
    head = ["group", "coverage", "unknown", "disputed", "down comes from", "may be off by"]
    return section("coverage", "Coverage", table(head, rows))


def amendments(summary: Summary, zone: ZoneInfo) -> Markup:
    """Every exclusion and correction with what it changed, also where that is nothing."""
    rows = [
        [
            str(one.group), one.amendment.state.value if one.amendment.state else "excluded",
            instant(one.amendment.start_ms, zone), instant(one.amendment.end_ms, zone), one.amendment.reason,
            one.amendment.by,
            f"up {duration(one.up_ms)}, down {duration(one.down_ms)}, unknown {duration(one.unknown_ms)}",
        ]
        for figures in summary.groups
        for one in figures.audit
    ]  # fmt: skip
    if not rows:
        return section("amendments", "Amendments", tag("p", "Nothing was excluded or corrected."))
    head = ["group", "made", "from", "to", "reason", "by", "what it was before"]
    return section("amendments", "Amendments", table(head, rows))


def provenance(document: Mapping[str, Any]) -> Markup:
    """Show the source of each figure, the inputs, the question, the quality of the samples, and versions."""
    parts = [table(["figure", "source", "error"], _SOURCES)]
    inputs: Sequence[Mapping[str, Any]] = document.get("inputs", ())
    parts.append(
        table(["input", "bytes", "SHA-256"], [[one["name"], str(one["bytes"]), str(one["sha256"])] for one in inputs])
    )
    for member, title in (("question", "asked"), ("quality", "about the samples"), ("versions", "version of")):
        told: Mapping[str, Any] = document.get(member, {})
        parts.append(table([title, ""], [[name, plain(value)] for name, value in told.items()]))
    return section("provenance", "Where the numbers come from", join(parts))


def _shares(name: str, shares: Sequence[Share]) -> Markup:
    rows = [
        [
            one.value or "(unknown)",
            str(one.incidents),
            duration(one.down_ms),
            percent(one.share),
            duration(one.rto.p95_ms),
        ]
        for one in shares
    ]
    return table([name, "incidents", "time lost", "of all time lost", "RTO p95"], rows)
