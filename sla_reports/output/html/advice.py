"""What to do, by rule: each sentence follows from figures of this report and names them."""

from collections.abc import Iterator

from sla_reports.measures.breakdown import incidents_by
from sla_reports.measures.summary import Summary
from sla_reports.output.html.elements import counted, duration, minutes, percent

_OF_STAGE = {
    "detect": "losses are noticed late: look at the heartbeat's interval and the silence timeout",
    "elect": "fencing or writing the record takes long: look at the Kubernetes API's latency and at fencing",
    "roleChange": "the new master takes long to change its role: look at its disk and its load",
    "index": "indexes catch up late: look at the rate of dispatch and at the disks of slaves",
    "route": "routes are told late: look at the NameServers and the interval of registration",
    "firstSuccess": "members come back into the SyncStateSet late: look at replication and at minInSync",
}


def advice(summary: Summary) -> list[str]:
    """The most urgent first; one sentence where there is nothing."""
    return list(_sentences(summary)) or ["Nothing: the objective is met and nothing odd was seen."]


def _sentences(summary: Summary) -> Iterator[str]:
    incidents = [one for figures in summary.groups for one in figures.incidents]
    yield from _verdicts(summary)
    yield from _causes(summary)
    yield from _exposure(summary)
    unattributed = sum(one.logged is None for one in incidents)
    if unattributed:
        yield f"{counted(unattributed, 'outage')} in no incident log: hold the operator's log and its pods against those times."
    disputed_ms = sum(figures.availability.disputed_ms for figures in summary.groups)
    if disputed_ms:
        yield (
            f"Sources contradict each other about {duration(disputed_ms)}, which counts neither as up nor as down: hold the"
            " incidents marked disputed against the brokers' logs, and correct what you know."
        )
    if any(one.skewed for one in incidents):
        yield "The clocks of operator and Prometheus differ: set them right, times are off by as much."


def _verdicts(summary: Summary) -> Iterator[str]:
    for figures in sorted(summary.groups, key=lambda one: (one.judged.budget.left_ms, one.group)):
        told = figures.judged.budget
        if figures.verdict.value == "breached":
            yield (
                f"{figures.group} spent {minutes(told.spent_ms)} of {minutes(told.allowed_ms)} over {figures.judged_over}:"
                " hold what may wait."
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
    unplanned = [one for one in summary.outages if not one.incident.planned]
    shares = incidents_by(lambda one: one.cause, unplanned, until_ms=summary.until_ms, running=summary.running)
    if shares:
        first = shares[0]
        yield f"Most time was lost to {first.value}: {counted(first.incidents, 'incident')}, {duration(first.down_ms)}."
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
        yield f"Acknowledged messages stood on one disk for {duration(alone_ms)}: add replicas or raise minInSync."
