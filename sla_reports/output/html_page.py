"""`report.html`: one page that loads and runs nothing (its policy forbids both), so a mailed report is as good as a served one.

First a manager's page: was the promise kept, by how much, how often and how long, and what to do. Then what an engineer asks
for.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from zoneinfo import ZoneInfo

from sla_reports.measures.availability import sum_of
from sla_reports.measures.reconciliation import reconcile_totals
from sla_reports.measures.summary import GroupFigures, Summary
from sla_reports.output.html_elements import (
    STYLE,
    Markup,
    counted,
    duration,
    instant,
    minutes,
    percent,
    section,
    table,
    tag,
)
from sla_reports.output.html_groups import VERDICT_SHAPES, burn_down, group_table, timeline
from sla_reports.output.html_incidents import (
    amendments,
    causes,
    coverage,
    distribution_part,
    exposure,
    provenance,
    waterfall,
)
from sla_reports.states.incidents import Incident
from sla_reports.states.spans import Window

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_PARTS = {
    "timeline": "Timeline", "incidents": "Incidents", "rto": "Recovery times",
    "objectives": "Objectives", "budget": "Budget", "groups": "Groups",
    "causes": "Causes", "exposure": "Exposure", "coverage": "Coverage", "amendments": "Amendments",
    "provenance": "Provenance",
}  # fmt: skip
_WORDS = {
    "met": "✔ Met: the objective holds for every group, also in the worst case",
    "breached": "✖ Breached: at least one group missed the objective, even in the best case",
    "undecidable": "? Undecidable: too little is known to say",
}
_OF_STAGE = {
    "detect": "losses are noticed late: look at spec.failover.heartbeatTimeoutMilliseconds",
    "elect": "fencing or writing the record takes long: look at the Kubernetes API's latency and at fencing",
    "roleChange": "the new master takes long to change its role: look at its disk and its load",
    "index": "indexes catch up late: look at the rate of dispatch and at the disks of slaves",
    "route": "routes are published late: look at the NameServers and the interval of registration",
    "firstSuccess": "members come back into the SyncStateSet late: look at replication and at spec.durability",
}
_HEAD = (
    "group", "objective", "window", "from, to", "verdict", "availability", "worst to best case", "known", "budget", "spent",
    "left", "gone at",
)  # fmt: skip


def report_html(summary: Summary, document: Mapping[str, Any], *, time_zone: str = "UTC") -> str:
    """Return the page; `document` is the provenance. Times are in `time_zone`. The same input gives the same bytes."""
    zone = ZoneInfo(time_zone)
    head = tag(
        "head", tag("meta", charset="utf-8"), tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", "Service level report"), tag("style", Markup(STYLE)),
    )  # fmt: skip
    links = [tag("a", title, href=f"#{anchor}") for anchor, title in _PARTS.items()]
    main = tag(
        "main", manager_page(summary, zone), tag("nav", *links, aria_label="Parts of the report"),
        timeline(summary, zone), waterfall(summary, zone), distribution_part(summary), objectives(summary, zone),
        burn_down(summary, zone), group_table(summary, time_zone), causes(summary), exposure(summary),
        coverage(summary), amendments(summary, zone), provenance(document),
    )  # fmt: skip
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', main), lang='en')}\n"


def manager_page(summary: Summary, zone: ZoneInfo) -> Markup:
    """One page on paper."""
    verdict = summary.verdict.value
    window = summary.agreement.window
    running = (
        "" if summary.until_ms == window.end_ms else f", still running, data up to {instant(summary.until_ms, zone)}"
    )
    period = f"{instant(window.start_ms, zone)} to {instant(window.end_ms, zone)} ({zone.key}){running}"
    met = sum(one.verdict.value == "met" for one in summary.groups)
    objective = f"objective {_objectives(summary)}: {met} of {counted(len(summary.groups), 'group')} met it"
    todo = [tag("li", sentence) for sentence in advice(summary)]
    return tag(
        "div", tag("h1", "Service level report"), tag("p", _whose(summary)),
        tag("p", f"{period}; {objective}", class_="soft"),
        *_incomplete(summary), *_unreconciled(summary), tag("p", _WORDS[verdict], class_=f"verdict {verdict}"),
        tag("div", *_tiles(summary), class_="tiles"),
        *(
            [tag("h2", "About the inputs"), tag("ul", *(tag("li", one) for one in summary.warnings))]
            if summary.warnings
            else []
        ),
        tag("h2", "What to do"), tag("ul", *todo), class_="manager",
    )  # fmt: skip


def _whose(summary: Summary) -> str:
    groups = counted(len(summary.groups), "broker group")
    return f"Service: {summary.service or 'not named (--service)'}. Owner: {summary.owner or 'not named (--owner)'}. {groups}."


def _objectives(summary: Summary) -> str:
    """With the windows: the same share allows 43 s of a day and 22 min of thirty days."""
    told = sorted({one.objective for one in summary.groups}) or [summary.agreement.objective]
    *most, last = sorted({one.judged_over for one in summary.groups}) or ["the report's period"]
    over = f"{', '.join(most)} or {last}" if most else last
    if len(told) == 1:
        return f"{percent(told[0])} for each broker group over {over}"
    return f"{percent(told[0])} to {percent(told[-1])}, each broker group's own, over {over}"


def _incomplete(summary: Summary) -> list[Markup]:
    """Before the verdict: what was answered in part cannot be met."""
    if not summary.incomplete:
        return []
    words = "✖ Incomplete: the server answered in part, so groups or outages may be missing. Nothing counts as met."
    return [tag("p", words, class_="verdict undecidable"), tag("ul", *(tag("li", one) for one in summary.incomplete))]


def _unreconciled(summary: Summary) -> list[Markup]:
    """Before the verdict: of figures that do not add up none can be relied on."""
    totals = reconcile_totals(summary)
    if totals.holds:
        return []
    words = f"✖ The figures do not add up: {len(totals.faults)} of {totals.checks} sums. Do not use this report."
    return [tag("p", words, class_="verdict breached"), tag("ul", *(tag("li", one) for one in totals.faults[:5]))]


def _tiles(summary: Summary) -> list[Markup]:
    failovers = [one for one in summary.incidents if one.logged is not None and not one.planned]
    unlogged = sum(one.logged is None for one in summary.incidents)
    planned = sum(one.planned for one in summary.incidents)
    tiles = [
        _tile(
            "Failovers",
            str(len(failovers)),
            f"{counted(planned, 'planned switchover')}, {counted(unlogged, 'outage')} without a log",
        ),
        _worst_rto(failovers, summary),
    ]
    if not summary.groups:
        return tiles
    whole = sum_of([one.availability for one in summary.groups])
    least = min(summary.groups, key=lambda one: (one.judged.budget.left_ms, one.group))
    spent = least.judged.budget
    return [
        _tile(
            "Availability of an average group", percent(whole.availability),
            f"between {percent(whole.worst)} and {percent(whole.best)}; {percent(whole.coverage)} is known"
            + (f", {duration(whole.disputed_ms)} is disputed" if whole.disputed_ms else ""),
        ),
        _lowest(summary.groups),
        _tile(
            "Least budget left", minutes(spent.left_ms),
            f"{least.group}, of {minutes(spent.allowed_ms)} over {least.judged_over}; {minutes(spent.spent_ms)} spent",
        ),
        *tiles,
    ]  # fmt: skip


def _lowest(groups: Sequence[GroupFigures]) -> Markup:
    """The group with the lowest figure; where another one's unknown time may hide a lower one, that one is named below it."""
    known = [one for one in groups if one.availability.availability is not None]
    doubtful = min(groups, key=lambda one: (one.availability.worst, one.group))
    if not known:
        return _tile("Lowest availability", "-", "nothing is known of any group")
    low = min(known, key=lambda one: (one.availability.availability or 0.0, one.group))
    told = low.availability
    below = f"{low.group}, between {percent(told.worst)} and {percent(told.best)}"
    if doubtful.group != low.group:
        below += f"; {doubtful.group} is {percent(doubtful.availability.worst)} if all that is unknown of it was down"
    return _tile("Lowest availability", percent(told.availability), below)


def _worst_rto(failovers: list[Incident], summary: Summary) -> Markup:
    if not failovers:
        return _tile("Worst recovery time (RTO)", "-", "no failover was logged")
    durations = [(one.whole(summary.until_ms, running=summary.running), one) for one in failovers]
    (length_ms, is_open), worst = max(durations, key=lambda pair: (pair[0][0], pair[1].id))
    at_least = "at least " if is_open else ""
    return _tile("Worst recovery time (RTO)", at_least + duration(length_ms), f"{worst.id}, {worst.cause}")


def _tile(name: str, value: str, below: str) -> Markup:
    return tag("div", name, tag("b", value), tag("span", below, class_="soft"), class_="tile")


def advice(summary: Summary) -> list[str]:
    """Return what to do, the most urgent first; one sentence if nothing is to be done."""
    return list(_sentences(summary)) or ["Nothing: the objective is met and nothing odd was seen."]


def _sentences(summary: Summary) -> Iterator[str]:
    yield from _verdicts(summary)
    yield from _causes(summary)
    yield from _exposure(summary)
    unattributed = sum(one.logged is None for one in summary.incidents)
    if unattributed:
        yield f"{counted(unattributed, 'outage')} in no incident log: read the log of the operator's pods of those times."
    disputed_ms = sum(figures.availability.disputed_ms for figures in summary.groups)
    if disputed_ms:
        yield (
            f"Sources contradict each other about {duration(disputed_ms)}, which counts neither as up nor as down: compare the"
            " incidents marked disputed with the brokers' logs, and correct what you know."
        )
    if any(one.skewed for one in summary.incidents):
        yield "The clocks of operator and Prometheus differ: set them right, times are off by as much."


def _verdicts(summary: Summary) -> Iterator[str]:
    for figures in sorted(summary.groups, key=lambda one: (one.judged.budget.left_ms, one.group)):
        told = figures.judged.budget
        if figures.verdict.value == "breached":
            yield (
                f"{figures.group} spent {minutes(told.spent_ms)} of {minutes(told.allowed_ms)} over {figures.judged_over}:"
                " put off changes that can wait."
            )
        elif told.left_ms > 0 and told.forecast is not None and told.forecast.gone_at_ms is not None:
            yield f"{figures.group} spends its {minutes(told.allowed_ms)} before the end of {figures.judged_over}, at this rate."
    open_ones = [one for one in summary.groups if one.verdict.value == "undecidable"]
    if summary.incomplete:
        yield "The samples are incomplete: bring back what the server lacked, and make this report anew."
    elif open_ones:
        least = min(open_ones, key=lambda one: (one.judged.availability.coverage, one.group))
        yield (
            f"{counted(len(open_ones), 'group')} undecidable: of {least.group} only"
            f" {percent(least.judged.availability.coverage)} of {least.judged_over} is known. Look after its scrapes, or correct"
            " what people know."
        )


def _causes(summary: Summary) -> Iterator[str]:
    shares = summary.shares(lambda one: one.cause, planned=False)
    if shares:
        first = shares[0]
        yield f"Most time was lost to the cause {first.value}: {counted(first.incidents, 'incident')}, {duration(first.down_ms)}."
    dominant = summary.recovery.dominant
    if dominant is not None:
        share = percent(summary.recovery.shares[dominant])
        yield f"Recovery spent {share} of its time in {dominant}: {_OF_STAGE[dominant]}."
    for event in summary.events:
        if len(event.groups) > 1:
            common = ", ".join(f"{name} {value}" for name, value in event.common) or "nothing that is known"
            yield f"{len(event.groups)} groups went down together; in common: {common}."


def _exposure(summary: Summary) -> Iterator[str]:
    told = [one.exposure for one in summary.groups]
    unclean, truncated = sum(one.unclean_elections for one in told), sum(one.truncated_bytes for one in told)
    if unclean or truncated:
        yield f"{counted(unclean, 'unclean election')}, {counted(truncated, 'byte')} cut off: acknowledged messages may be lost."
    unfenced = sum(one.unfenced for one in told)
    if unfenced:
        yield f"{counted(unfenced, 'old master')} not fenced: look at how fencing fails."
    alone_ms = sum(one.one_copy_ms for one in told)
    if alone_ms:
        yield f"Acknowledged messages stood on one disk for {duration(alone_ms)}: add replicas, or set spec.durability to Strict."


def objectives(summary: Summary, zone: ZoneInfo) -> Markup:
    """Show each group's objective, its window, the availability and the budget."""
    note = (
        "A group with an objective of its own is judged over that objective's window, as of the end of the report's data; what no"
        " sample tells of is unknown there. Gone at: the moment, or at the rate so far."
    )
    rows = [_row(one, summary.agreement.window, zone) for one in summary.groups]
    return section("objectives", "Objectives", tag("p", note, class_="soft"), table(_HEAD, rows))


def _row(figures: GroupFigures, period: Window, zone: ZoneInfo) -> list[str]:
    window = period if figures.own is None else figures.own.window
    told, spent = figures.judged.availability, figures.judged.budget
    gone_at_ms = None if spent.forecast is None else spent.forecast.gone_at_ms
    return [
        str(figures.group), percent(figures.objective), figures.judged_over,
        f"{instant(window.start_ms, zone)} to {instant(window.end_ms, zone)}", VERDICT_SHAPES[figures.verdict.value],
        percent(told.availability), f"{percent(told.worst)} to {percent(told.best)}", percent(told.coverage),
        *(minutes(one) for one in (spent.allowed_ms, spent.spent_ms, spent.left_ms)),
        "-" if gone_at_ms is None else instant(gone_at_ms, zone),
    ]  # fmt: skip
