"""Why it happened, what was at risk, what is known at all, what people amended, and where each number comes from."""

from collections.abc import Mapping, Sequence
from typing import Any
from zoneinfo import ZoneInfo

from sla_reports.measures.breakdown import BY_LOST_MASTER, Share
from sla_reports.measures.summary import Summary
from sla_reports.output.documents import by_fact, places_of, shares_of
from sla_reports.output.html.elements import Markup, duration, instant, join, percent, plain, section, table, tag

_SOURCES = (
    ("counts, times, stages and causes of incidents", "incident_log",
     "1 ms at each edge; a scrape interval where the log has no end, or no last sign of life"),
    ("outages that the log does not tell; what is unknown or disputed", "gauge", "a scrape interval at each edge"),
    ("down time that neither of the two has", "counter", "when: a scrape interval"),
    ("bounds of the recovery times by phase", "histogram", "the width of a bucket"),
    ("time below promise, time with one copy", "gauge", "a scrape interval at each edge of each exposed time"),
    ("most bytes behind", "gauge", "seen at scrapes only; a member's offset is as old as its heartbeat"),
    ("what people know better", "correction", "as it was written"),
)  # fmt: skip


def causes(summary: Summary) -> Markup:
    """Incidents by cause, by what the lost master was, and those that began together."""
    parts = [_shares("cause", shares_of(summary, lambda one: one.cause))]
    for name in BY_LOST_MASTER:
        shares = by_fact(summary, name)
        # Where no incident tells of it there is nothing to divide by.
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
    """Availability by a fact of the masters; nothing where no sample tells it."""
    told = places_of(summary, name)
    if not any(told):
        return None
    rows = [
        [value or "not told", percent(one.availability), duration(one.down_ms), duration(one.unknown_ms),
         duration(one.disputed_ms), percent(one.coverage)]
        for value, one in told.items()
    ]  # fmt: skip
    return table([f"{name} of the master", "availability", "down", "unknown", "disputed", "known"], rows)


def exposure(summary: Summary) -> Markup:
    """What stood on fewer disks than promised."""
    head = [
        "group",
        "below promise",
        "one copy",
        "unknown",
        "may be off by",
        "most bytes behind",
        "unclean elections",
        "bytes cut off",
        "unfenced",
    ]
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
    note = f"Promised: {summary.agreement.promised_copies} copies in sync. Exposure is no loss while the copy lives."
    return section("exposure", "Exposure (RPO)", tag("p", note, class_="soft"), table(head, rows))


def coverage(summary: Summary) -> Markup:
    """How much is known of each group, and from what."""
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
    """Which number is from where, and the inputs, the question, what was odd, and the versions."""
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
            one.value or "(not told)",
            str(one.incidents),
            duration(one.down_ms),
            percent(one.share),
            duration(one.rto.p95_ms),
        ]
        for one in shares
    ]
    return table([name, "incidents", "time lost", "of all time lost", "RTO p95"], rows)
