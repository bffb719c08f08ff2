"""When each group was up, down or unknown: a lane for each, and a mark for every incident, however short.

up: a thin line. down: a full block. unknown: a dashed box. disputed: a box with a thick line. Nothing: no such group then.
excluded: a line below. Incidents: a triangle (unplanned, hollow while open), a diamond (planned), each with its words as a title.
"""

from zoneinfo import ZoneInfo

from sla_reports.measures.summary import GroupFigures, Summary
from sla_reports.outages.incidents import Incident
from sla_reports.output.html.elements import Markup, counted, duration, instant, join, picture, section, table, tag
from sla_reports.output.html.scale import TimeScale
from sla_reports.states.spans import Span, State, Window, without

_WIDTH, _LANE, _AXIS = 720.0, 26.0, 18.0


def timeline(summary: Summary, zone: ZoneInfo) -> Markup:
    """A lane for each group, as rows of a table: it breaks over pages."""
    scale = TimeScale(summary.agreement.window, 2.0, _WIDTH - 4)
    axis = picture(
        "time axis", scale.axis(0.0, 4.0, zone), width=_WIDTH, height=_AXIS
    )  # fmt: skip
    rows = [(str(figures.group), _lane(figures, scale, summary.until_ms, zone)) for figures in summary.groups]
    return section("timeline", "Timeline of incidents", _legend(), table(["group", axis], rows))


def words_of(incident: Incident, until_ms: int, zone: ZoneInfo) -> str:
    """One incident in a line."""
    still = "open for at least " if incident.is_open(until_ms) else ""
    length = duration(incident.length_ms(until_ms))
    return f"{incident.id}: {incident.cause}, from {instant(incident.start_ms, zone)}, {still}{length}"


def _lane(figures: GroupFigures, scale: TimeScale, until_ms: int, zone: ZoneInfo) -> Markup:
    unknown = without(figures.held, figures.existence.absent)
    parts = [
        *(_block("up", low, high, 14, 3) for low, high in scale.columns(figures.held, State.UP)),
        *(_block("unknown", low, high, 10, 11) for low, high in scale.columns(unknown, State.UNKNOWN)),
        *(_block("disputed", low, high, 10, 11) for low, high in scale.columns(figures.held, State.DISPUTED)),
        *(_block("down", low, high, 9, 13) for low, high in scale.columns(figures.held, State.DOWN)),
        *(_excluded(low, high) for low, high in scale.columns(_excluded_spans(figures), State.UNKNOWN)),
        *(_mark(one, scale, until_ms, zone) for one in figures.incidents),
    ]
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


def _excluded(low: float, high: float) -> Markup:
    return tag("path", tag("title", "excluded"), class_="excluded", d=f"M{low:.0f} 22v3H{high:.0f}v-3")


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
