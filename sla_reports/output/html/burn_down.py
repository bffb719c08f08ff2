"""What was left of the error budget at each instant: falls while a group is down, and must not reach nothing before the end.

Shown for the groups that have least left; every other one's number stands in the table of groups.
"""

from zoneinfo import ZoneInfo

from sla_reports.measures.summary import GroupFigures, Summary
from sla_reports.output.html.elements import Markup, instant, join, minutes, picture, section, table, tag
from sla_reports.output.html.scale import TimeScale
from sla_reports.states.spans import Span, State, without

_WIDTH, _HEIGHT, _TOP, _BOTTOM, _LEFT = 720.0, 150.0, 12.0, 30.0, 70.0
_SHOWN = 6


def burn_down(summary: Summary, zone: ZoneInfo) -> Markup:
    """A picture for each of the worst groups, then what the budget will probably come to."""
    worst = sorted(summary.groups, key=lambda one: (one.budget.left_ms, one.group))[:_SHOWN]
    pictures = [tag("figure", tag("figcaption", str(one.group)), _picture(one, summary, zone)) for one in worst]
    note = (
        "Solid: what is left. Dashed: spent evenly. Dotted: at the rate so far, with its interval (95 %)."
        f" Shown: the {len(worst)} groups with least left of {len(summary.groups)}. All of it is over the report's period."
    )
    rows = [_row(one, zone) for one in worst]
    head = ["group", "allowed", "spent", "left", "burn rate 1 h", "6 h", "3 d", "spent at the end, probably", "gone at"]
    return section("budget", "Error budget", tag("p", note, class_="soft"), *pictures, table(head, rows))


def _picture(figures: GroupFigures, summary: Summary, zone: ZoneInfo) -> Markup:
    scale = TimeScale(summary.agreement.window, _LEFT, _WIDTH - _LEFT - 4)
    told = figures.budget
    ends = [told.allowed_ms, told.left_ms, 0.0]
    if told.forecast is not None:
        ends.append(told.allowed_ms - min(told.forecast.high_ms, told.spent_ms + 2 * told.allowed_ms))
    high, low = max(ends), min(ends)
    unit = (_HEIGHT - _TOP - _BOTTOM) / ((high - low) or 1.0)

    def y(left_ms: float) -> float:
        return round(_TOP + (high - max(low, left_ms)) * unit, 2)

    points = [(scale.x(at_ms), y(left_ms)) for at_ms, left_ms in _points(figures, summary)]
    path = "M" + "L".join(f"{x:.1f} {height}" for x, height in points)
    start, end, now = (
        scale.x(at) for at in (summary.agreement.window.start_ms, summary.agreement.window.end_ms, summary.until_ms)
    )
    parts = [
        scale.axis(_TOP, _HEIGHT - _TOP - _BOTTOM, zone),
        tag("line", class_="mark", x1=start, x2=end, y1=y(0), y2=y(0)),
        tag("line", class_="even", x1=start, x2=end, y1=y(told.allowed_ms), y2=y(0)),
        tag("path", class_="left", d=path),
        tag("text", minutes(told.allowed_ms), x=_LEFT - 6, y=y(told.allowed_ms) + 4, text_anchor="end"),
        tag("text", "0", x=_LEFT - 6, y=y(0) + 4, text_anchor="end"),
    ]
    if told.forecast is not None and now < end:
        edges = [y(told.allowed_ms - one) for one in (told.forecast.low_ms, told.forecast.high_ms)]
        here = y(told.left_ms)
        corners = f"{now:.1f},{here} {end:.1f},{edges[0]} {end:.1f},{edges[1]}"
        middle = y(told.allowed_ms - told.forecast.spent_ms)
        parts.append(tag("polygon", class_="likely", points=corners))
        parts.append(tag("line", class_="forecast", x1=now, x2=end, y1=here, y2=middle))
    title = f"{figures.group}: {minutes(told.left_ms)} of {minutes(told.allowed_ms)} left"
    return picture(title, join(parts), width=_WIDTH, height=_HEIGHT)


def counted_downs(figures: GroupFigures) -> list[Span]:
    """The downs that count: not those in excluded time."""
    downs = [span for span in figures.held if span.state is State.DOWN]
    excluded = (audit.amendment for audit in figures.audit if audit.amendment.state is None)
    return without(downs, [(one.start_ms, one.end_ms) for one in excluded])


def _points(figures: GroupFigures, summary: Summary) -> list[tuple[int, float]]:
    """Level while up, falling while down."""
    left_ms = figures.budget.allowed_ms
    points = [(summary.agreement.window.start_ms, left_ms)]
    for span in counted_downs(figures):
        points.append((span.start_ms, left_ms))
        left_ms -= span.length_ms
        points.append((span.end_ms, left_ms))
    return [*points, (summary.until_ms, left_ms), (summary.until_ms, figures.budget.left_ms)]


def _row(figures: GroupFigures, zone: ZoneInfo) -> list[str]:
    told, ahead = figures.budget, figures.budget.forecast
    rates = ["-" if rate is None else f"{rate:.2f}" for rate in told.burn_rates.values()]
    likely = "-"
    if ahead is not None:
        likely = f"{minutes(ahead.spent_ms)} ({minutes(ahead.low_ms)} to {minutes(ahead.high_ms)})"
    gone = "-" if ahead is None or ahead.gone_at_ms is None else instant(ahead.gone_at_ms, zone)
    spent = [minutes(one) for one in (told.allowed_ms, told.spent_ms, told.left_ms)]
    return [str(figures.group), *spent, *rates, likely, gone]
