"""What a report says of groups that did not exist, or were not seen, for a part of its period."""

from collections.abc import Iterator, Mapping, Sequence

from sla_reports.instants import utc
from sla_reports.states.entities import GroupKey
from sla_reports.states.existence import Existence
from sla_reports.states.spans import Window

_SHOWN = 3
_UNKNOWN = "That time is unknown; if there was no such group, exclude it by --amendments"
_BEFORE = (
    "Nothing proves that the group was made then: no earlier scrape of its operator, no creation time, or an incident in the log."
    f" {_UNKNOWN}"
)
_AFTER = (
    "Nothing proves that the group was deleted then: its operator was not scraped without it, or the log has a later incident."
    f" {_UNKNOWN}"
)


def existence_notes(existences: Mapping[GroupKey, Existence], window: Window) -> Iterator[str]:
    """A sentence for those that existed for a part of the period, for those not at all, and for each edge that nobody saw."""
    part = [
        f"{key} {existed_words(one, window)}" for key, one in existences.items() if one.absent and one.existed(window)
    ]
    if part:
        yield f"judged for the time in which it existed: {_named(part)}"
    gone = [str(key) for key, one in existences.items() if not one.existed(window)]
    if gone:
        yield f"not in this report, it did not exist in the period: {_named(gone)}"
    for at, words in (("before", _BEFORE), ("after", _AFTER)):
        unseen: dict[int, list[str]] = {}
        for key, one in existences.items():
            if (edge_ms := one.unseen_before_ms if at == "before" else one.unseen_after_ms) is not None:
                unseen.setdefault(edge_ms, []).append(str(key))
        if unseen:
            edge_ms = min(unseen)
            names = sorted(name for some in unseen.values() for name in some)
            since = utc(edge_ms) if len(unseen) == 1 else f"{utc(edge_ms)} (the first of them)"
            yield f"no sample {at} {since}: {_named(names)}. {words}"


def existed_words(one: Existence, window: Window) -> str:
    """`existed from ... to ...`, with an end only where it is one of the group's own."""
    times = []
    for low, high in one.existed(window):
        ends = [f"from {utc(low)}"] if low > window.start_ms else []
        ends += [f"to {utc(high)}"] if high < window.end_ms else []
        times.append(" ".join(ends))
    return f"existed {' and '.join(filter(None, times))}"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
