"""What changed from one period to the next: of each group its availability, down time by cause, outages and recovery times.

Two written reports are all it needs. Periods need not be equally long: down time is told beside the share of the time that it is.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from sla_reports.output.documents import camel_case
from sla_reports.output.written import WrittenReport
from sla_reports.states.entities import GroupKey


def changes(before: WrittenReport, after: WrittenReport) -> list[dict[str, Any]]:
    """One entry for each group of either report, what got worse first. A side that lacks the group is null."""
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


def as_table(told: list[dict[str, Any]]) -> str:
    """A line for each group that is in both, and one for each that is not."""
    return "\n".join(_lines(told)) or "no group in either report"


def _lines(told: list[dict[str, Any]]) -> Iterator[str]:
    for one in told:
        before, after = one["before"], one["after"]
        if before is None or after is None:
            yield f"{one['group']}: {'new' if before is None else 'not in the later report'}"
            continue
        causes = ", ".join(f"{cause} {ms / 1000:+.3f} s" for cause, ms in one["outageMsByCause"].items() if ms)
        yield (
            f"{one['group']}: {_percent(before)} -> {_percent(after)} ({before['verdict']} -> {after['verdict']}),"
            f" down {one['downMs'] / 1000:+.3f} s, outages {before['outages']} -> {after['outages']},"
            f" RTO p95 {_ms(before)} -> {_ms(after)}; {causes or 'no cause changed'}"
        )


def _percent(side: Mapping[str, Any]) -> str:
    return "unknown" if side["availability"] is None else f"{side['availability'] * 100:.4f} %"


def _ms(side: Mapping[str, Any]) -> str:
    return "-" if side["rtoP95Ms"] is None else f"{side['rtoP95Ms']:.0f} ms"
