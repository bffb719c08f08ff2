"""Each group's objective beside the window that it is judged over, and what of that window's error budget is left."""

from zoneinfo import ZoneInfo

from sla_reports.measures.summary import GroupFigures, Summary
from sla_reports.output.html.elements import Markup, instant, minutes, percent, section, table, tag
from sla_reports.output.html.group_table import VERDICT_SHAPES
from sla_reports.states.spans import Window

_HEAD = (
    "group", "objective", "window", "from, to", "verdict", "availability", "worst to best case", "known", "budget", "spent",
    "left", "gone at",
)  # fmt: skip


def objectives(summary: Summary, zone: ZoneInfo) -> Markup:
    """A row for each group: what it was promised, over which time, and what became of it."""
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
