"""The parts of the page about groups: their table, what was left of each error budget, and a timeline of their states."""

from collections.abc import Iterator
from zoneinfo import ZoneInfo

from sla_reports.measures.periods import days_of
from sla_reports.measures.recovery import Estimate
from sla_reports.measures.summary import GroupFigures, Summary
from sla_reports.output.html_elements import (
    Markup,
    TimeScale,
    counted,
    duration,
    folded,
    instant,
    join,
    minutes,
    percent,
    picture,
    section,
    table,
    tag,
)
from sla_reports.states.existence import existed_words
from sla_reports.states.incidents import Incident
from sla_reports.states.spans import Span, State, Window, clip, without

VERDICT_SHAPES = {"met": "✔ met", "breached": "✖ breached", "undecidable": "? undecidable"}
_BARS_WIDTH, _BARS_HEIGHT = 124.0, 24.0
_MOST_BARS = 62
_TIMES_HEAD = (
    "group", "verdict; objective", "availability", "worst to best case", "coverage", "down", "disputed", "planned", "by",
    "may be off by",
)  # fmt: skip
_INCIDENTS_HEAD = ("group", "incidents", "RTO p50 / p95", "MTTR", "MTBF", "budget left", "down by day")
_WIDTH, _HEIGHT, _TOP, _BOTTOM, _LEFT = 720.0, 150.0, 12.0, 30.0, 70.0
_SHOWN = 6
_LANE, _AXIS = 26.0, 18.0


def group_table(summary: Summary, time_zone: str) -> Markup:
    """All groups in order of name, then the clusters they are in."""
    every = days_of(summary.agreement.window, time_zone)
    # Several together, if there are too many for a small picture.
    step = -(-len(every) // _MOST_BARS)
    days = [Window(every[n].start_ms, every[n : n + step][-1].end_ms) for n in range(0, len(every), step)]
    by_day = [row for figures in summary.groups for row in _down_by_day(figures, days, time_zone)]
    times = table(_TIMES_HEAD, [_times(figures) for figures in summary.groups])
    incidents = table(_INCIDENTS_HEAD, [_incidents(figures, days) for figures in summary.groups])
    clusters = [
        [
            f"{one.namespace}/{one.cluster}", str(one.groups), percent(one.write.availability),
            VERDICT_SHAPES[one.write_verdict.value], percent(one.ordered_write.availability),
            VERDICT_SHAPES[one.ordered_write_verdict.value],
        ]
        for one in summary.clusters
    ]  # fmt: skip
    head = ["cluster", "groups", "write: one group takes writes", "verdict", "ordered write: all do", "verdict"]
    note = (
        "Intervals in brackets: 95 %. Bars: downtime of a day, the tallest is the group's worst. Verdict and budget left are over"
        " the objective's window, all else is over the report's period."
    )
    numbers = folded("The bars as numbers", table(["group", "from", "to", "down"], by_day)) if by_day else ""
    return section("groups", "Groups", tag("p", note, class_="soft"), times, incidents, numbers, table(head, clusters))


def _down_by_day(figures: GroupFigures, days: list[Window], time_zone: str) -> Iterator[list[str]]:
    """Of each bar that is not empty."""
    downs, zone = counted_downs(figures), ZoneInfo(time_zone)
    for day in days:
        if spent_ms := sum(piece.length_ms for piece in clip(downs, day)):
            yield [str(figures.group), instant(day.start_ms, zone), instant(day.end_ms, zone), duration(spent_ms)]


def _times(figures: GroupFigures) -> list[str]:
    told = figures.availability
    planned_ms = sum(one.down_ms for one in figures.outages if one.incident.planned)
    return [
        # With the time for which it existed, if that is not all of the period.
        ", ".join([str(figures.group), *([existed_words(figures.existence, figures.window)] if figures.existence.absent else [])]),
        f"{VERDICT_SHAPES[figures.verdict.value]}; {percent(figures.objective)} over {figures.judged_over}",
        percent(told.availability), f"{percent(told.worst)} to {percent(told.best)}", percent(told.coverage),
        duration(told.down_ms), duration(told.disputed_ms), duration(planned_ms), told.source.value, duration(told.error_ms),
    ]  # fmt: skip


def _incidents(figures: GroupFigures, days: list[Window]) -> list[str]:
    rto = figures.recovery.total
    return [
        str(figures.group), str(len(figures.incidents)),
        f"{duration(rto.p50_ms)} / {duration(rto.p95_ms)}", _estimate(figures.mttr), _estimate(figures.mtbf),
        minutes(figures.judged.budget.left_ms), _sparkline(figures, days),
    ]  # fmt: skip


def _estimate(one: Estimate) -> str:
    if one.n == 0 and one.low_ms is None:
        return "-"
    return f"{duration(one.mean_ms)} [{duration(one.low_ms)}, {duration(one.high_ms)}]"


def _sparkline(figures: GroupFigures, days: list[Window]) -> Markup:
    downs = counted_downs(figures)
    spent_ms = [sum(piece.length_ms for piece in clip(downs, day)) for day in days]
    worst_ms, wide = max(spent_ms), _BARS_WIDTH / len(days)
    bars = [
        tag(
            "rect",
            class_="down",
            x=number * wide,
            y=_BARS_HEIGHT - 1 - height,
            width=max(1.0, wide - 0.6),
            height=height,
        )
        for number, one_ms in enumerate(spent_ms)
        if one_ms and (height := max(1.5, one_ms / worst_ms * (_BARS_HEIGHT - 2)))
    ]
    base = tag("line", class_="axis", x1=0, x2=_BARS_WIDTH, y1=_BARS_HEIGHT - 0.5, y2=_BARS_HEIGHT - 0.5)
    down = f"down on {sum(1 for one in spent_ms if one)} of {counted(len(days), 'bar')}, worst {duration(worst_ms)}"
    title = f"{figures.group}: {down}"
    return picture(title, base, join(bars), width=_BARS_WIDTH, height=_BARS_HEIGHT)


def burn_down(summary: Summary, zone: ZoneInfo) -> Markup:
    """Draw what was left of the budget over time for the groups with least left, then a table with forecasts."""
    worst = sorted(summary.groups, key=lambda one: (one.budget.left_ms, one.group))[:_SHOWN]
    pictures = [tag("figure", tag("figcaption", str(one.group)), _picture(one, summary, zone)) for one in worst]
    note = (
        "Solid: what is left. Dashed: spent evenly. Dotted: at the rate so far, with its interval (95 %)."
        f" Shown: {counted(len(worst), 'group')} of {len(summary.groups)}, with least left. All of it is over the report's period."
    )
    rows = [_budget_row(one, zone) for one in worst]
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
    """Return a group's down time outside of excluded time."""
    downs = [span for span in figures.held if span.state is State.DOWN]
    excluded = (audit.amendment for audit in figures.audit if audit.amendment.state is None)
    return without(downs, [(one.start_ms, one.end_ms) for one in excluded])


def _points(figures: GroupFigures, summary: Summary) -> list[tuple[int, float]]:
    """The budget left at each corner: constant while up, falling while down."""
    left_ms = figures.budget.allowed_ms
    points = [(summary.agreement.window.start_ms, left_ms)]
    for span in counted_downs(figures):
        points.append((span.start_ms, left_ms))
        left_ms -= span.length_ms
        points.append((span.end_ms, left_ms))
    return [*points, (summary.until_ms, left_ms), (summary.until_ms, figures.budget.left_ms)]


def _budget_row(figures: GroupFigures, zone: ZoneInfo) -> list[str]:
    told, ahead = figures.budget, figures.budget.forecast
    rates = ["-" if rate is None else f"{rate:.2f}" for rate in told.burn_rates.values()]
    likely = "-"
    if ahead is not None:
        likely = f"{minutes(ahead.spent_ms)} ({minutes(ahead.low_ms)} to {minutes(ahead.high_ms)})"
    gone = "-" if ahead is None or ahead.gone_at_ms is None else instant(ahead.gone_at_ms, zone)
    spent = [minutes(one) for one in (told.allowed_ms, told.spent_ms, told.left_ms)]
    return [str(figures.group), *spent, *rates, likely, gone]


def timeline(summary: Summary, zone: ZoneInfo) -> Markup:
    """Draw a lane of states and incidents for each group, as rows of a table, so that a print breaks between them."""
    scale = TimeScale(summary.agreement.window, 2.0, _WIDTH - 4)
    axis = picture("time axis", scale.axis(0.0, 4.0, zone), width=_WIDTH, height=_AXIS)
    rows = [(str(figures.group), _lane(figures, scale, summary.until_ms, zone)) for figures in summary.groups]
    times = [
        [str(one.group), str(len(one.incidents)), *(duration(ms) for ms in (told.up_ms, told.down_ms, told.unknown_ms)),
         duration(told.disputed_ms)]
        for one in summary.groups
        for told in (one.availability,)
    ]  # fmt: skip
    numbers = table(["group", "incidents", "up", "down", "unknown", "disputed"], times)
    return section(
        "timeline", "Timeline of incidents", _legend(), table(["group", axis], rows), folded("As numbers", numbers)
    )


def words_of(incident: Incident, until_ms: int, zone: ZoneInfo) -> str:
    """One incident in a line."""
    still = "open for at least " if incident.is_open(until_ms) else ""
    length = duration(incident.length_ms(until_ms))
    return f"{incident.id}: {incident.cause}, from {instant(incident.start_ms, zone)}, {still}{length}"


def _lane(figures: GroupFigures, scale: TimeScale, until_ms: int, zone: ZoneInfo) -> Markup:
    unknown = without(figures.held, figures.existence.absent)
    lines = (
        (State.UP, figures.held, 14, 3), (State.UNKNOWN, unknown, 10, 11), (State.DISPUTED, figures.held, 10, 11),
        (State.DOWN, figures.held, 9, 13),
    )  # fmt: skip
    parts = [
        _block(state.value, low, high, top, height)
        for state, spans, top, height in lines
        for low, high in scale.columns(spans, state)
    ]
    for low, high in scale.columns(_excluded_spans(figures), State.UNKNOWN):
        parts.append(tag("path", tag("title", "excluded"), class_="excluded", d=f"M{low:.0f} 22v3H{high:.0f}v-3"))
    parts += [_mark(one, scale, until_ms, zone) for one in figures.incidents]
    title = (
        f"{figures.group}: {counted(len(figures.incidents), 'incident')}, {duration(figures.availability.down_ms)} down"
    )
    return picture(title, *parts, width=_WIDTH, height=_LANE)


def _block(state: str, low: float, high: float, top: float, height: float) -> Markup:
    return tag("rect", class_=state, x=low, y=top, width=high - low, height=height)


def _excluded_spans(figures: GroupFigures) -> list[Span]:
    found = [one.amendment for one in figures.audit if one.amendment.state is None]
    ordered = sorted(found, key=lambda one: one.start_ms)
    window = Window(figures.held[0].start_ms, figures.held[-1].end_ms)
    inside = [one for one in ordered if one.start_ms < window.end_ms and one.end_ms > window.start_ms]
    return [Span(one.start_ms, one.end_ms, State.UNKNOWN) for one in inside]


def _mark(incident: Incident, scale: TimeScale, until_ms: int, zone: ZoneInfo) -> Markup:
    x = round(scale.x(incident.start_ms), 1)
    title = tag("title", words_of(incident, until_ms, zone))
    if incident.planned:
        return tag("g", title, tag("path", class_="planned", d=f"M{x} 0l4 4-4 4-4-4z"))
    shape = "open" if incident.is_open(until_ms) else "down"
    return tag("g", title, tag("path", class_=shape, d=f"M{x - 4:.1f} 0h8l-4 8z"))


def _legend() -> Markup:
    shapes = [
        (_block("up", 2, 22, 10, 3), "up"),
        (_block("down", 2, 22, 5, 13), "down"),
        (_block("unknown", 2, 22, 6, 11), "unknown"),
        (_block("disputed", 2, 22, 6, 11), "disputed"),
        (tag("path", class_="excluded", d="M2 10v3H22v-3"), "excluded"),
        (tag("path", class_="down", d="M8 6h8l-4 8z"), "unplanned"),
        (tag("path", class_="open", d="M8 6h8l-4 8z"), "still open"),
        (tag("path", class_="planned", d="M12 6l4 4-4 4-4-4z"), "planned"),
    ]
    pieces = [
        tag("g", shape, tag("text", name, x=28, y=15), transform=f"translate({number * 90} 0)")
        for number, (shape, name) in enumerate(shapes)
    ]
    return picture("What the shapes of the timeline are", join(pieces), width=_WIDTH, height=22)
