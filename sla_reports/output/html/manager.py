"""Page one: was the promise kept, by how much, how often and how long, and what to do."""

from collections.abc import Sequence
from zoneinfo import ZoneInfo

from sla_reports.measures.availability import sum_of
from sla_reports.measures.summary import GroupFigures, Summary
from sla_reports.outages.incidents import Incident
from sla_reports.output.html.advice import advice
from sla_reports.output.html.elements import Markup, duration, instant, minutes, percent, tag

_WORDS = {
    "met": "✔ Met: the objective holds for every group, also in the worst case",
    "breached": "✖ Breached: at least one group missed the objective, even in the best case",
    "undecidable": "? Undecidable: too little is known to say",
}


def manager_page(summary: Summary, zone: ZoneInfo) -> Markup:
    """One page on paper."""
    verdict = summary.verdict.value
    window = summary.agreement.window
    running = (
        "" if summary.until_ms == window.end_ms else f", still running, data up to {instant(summary.until_ms, zone)}"
    )
    period = f"{instant(window.start_ms, zone)} to {instant(window.end_ms, zone)} ({zone.key}){running}"
    objective = f"objective {percent(summary.agreement.objective)} for each of {len(summary.groups)} groups"
    todo = [tag("li", sentence) for sentence in advice(summary)]
    return tag(
        "div",
        tag("h1", "Service level report"),
        tag("p", f"{period}; {objective}", class_="soft"),
        tag("p", _WORDS[verdict], class_=f"verdict {verdict}"),
        tag("div", *_tiles(summary), class_="tiles"),
        tag("h2", "What to do"),
        tag("ul", *todo),
        class_="manager",
    )


def _tiles(summary: Summary) -> list[Markup]:
    incidents = [one for figures in summary.groups for one in figures.incidents]
    failovers = [one for one in incidents if one.logged is not None and not one.planned]
    unlogged = sum(one.logged is None for one in incidents)
    planned = sum(one.planned for one in incidents)
    tiles = [
        _tile("Failovers", str(len(failovers)), f"{planned} planned switchovers, {unlogged} outages without a log"),
        _worst_rto(failovers, summary.until_ms),
    ]
    if not summary.groups:
        return tiles
    whole = sum_of([one.availability for one in summary.groups])
    least = min(summary.groups, key=lambda one: (one.budget.left_ms, one.group))
    return [
        _tile(
            "Availability of an average group", percent(whole.availability),
            f"between {percent(whole.worst)} and {percent(whole.best)}; {percent(whole.coverage)} is known",
        ),
        _lowest(summary.groups),
        _tile(
            "Least budget left", minutes(least.budget.left_ms),
            f"{least.group}, of {minutes(least.budget.allowed_ms)}; {minutes(least.budget.spent_ms)} spent",
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


def _worst_rto(failovers: list[Incident], until_ms: int) -> Markup:
    if not failovers:
        return _tile("Worst recovery time (RTO)", "-", "no failover was logged")
    worst = max(failovers, key=lambda one: (one.length_ms(until_ms), one.id))
    at_least = "at least " if worst.is_open(until_ms) else ""
    return _tile(
        "Worst recovery time (RTO)", at_least + duration(worst.length_ms(until_ms)), f"{worst.id}, {worst.cause}"
    )


def _tile(name: str, value: str, below: str) -> Markup:
    return tag("div", name, tag("b", value), tag("span", below, class_="soft"), class_="tile")
