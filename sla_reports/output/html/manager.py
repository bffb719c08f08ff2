"""Page one: was the promise kept, by how much, how often and how long, and what to do."""

from collections.abc import Sequence
from zoneinfo import ZoneInfo

from sla_reports.measures.availability import sum_of
from sla_reports.measures.reconciliation import reconcile_totals
from sla_reports.measures.summary import GroupFigures, Summary
from sla_reports.outages.incidents import Incident
from sla_reports.output.html.advice import advice
from sla_reports.output.html.elements import Markup, counted, duration, instant, minutes, percent, tag

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
    met = sum(one.verdict.value == "met" for one in summary.groups)
    objective = f"objective {_objectives(summary)}: {met} of {counted(len(summary.groups), 'group')} met it"
    todo = [tag("li", sentence) for sentence in advice(summary)]
    return tag(
        "div",
        tag("h1", "Service level report"),
        tag("p", f"{period}; {objective}", class_="soft"),
        *_incomplete(summary),
        *_unreconciled(summary),
        tag("p", _WORDS[verdict], class_=f"verdict {verdict}"),
        tag("div", *_tiles(summary), class_="tiles"),
        *(
            [tag("h2", "About the inputs"), tag("ul", *(tag("li", one) for one in summary.warnings))]
            if summary.warnings
            else []
        ),
        tag("h2", "What to do"),
        tag("ul", *todo),
        class_="manager",
    )


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
    """Before the verdict: of figures that do not add up none is to be believed."""
    totals = reconcile_totals(summary)
    if totals.holds:
        return []
    words = f"✖ The figures do not add up: {len(totals.faults)} of {totals.checks} sums. Do not use this report."
    return [tag("p", words, class_="verdict breached"), tag("ul", *(tag("li", one) for one in totals.faults[:5]))]


def _tiles(summary: Summary) -> list[Markup]:
    incidents = [one for figures in summary.groups for one in figures.incidents]
    failovers = [one for one in incidents if one.logged is not None and not one.planned]
    unlogged = sum(one.logged is None for one in incidents)
    planned = sum(one.planned for one in incidents)
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
