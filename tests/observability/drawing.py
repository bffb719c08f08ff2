"""Draws a dashboard of `dashboards/` from its JSON, with a Prometheus' answers: the visible data of each panel.

No Grafana server comes with the registries that this project may use, so this is a rendering and not Grafana: places, questions,
queries, legends, units, thresholds, value mappings and annotations are the JSON's; look and interaction are not. It also checks:
a panel without a mark is one that would be empty.
"""

from __future__ import annotations

import datetime as dt
import html
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from brokergroup_operator.observe.dashboards.model import filled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Json = dict[str, Any]
# Grafana's grid has 24 columns; of a picture as wide as a page.
COLUMN_PIXELS, ROW_PIXELS = 60, 36
# Of the names beside lanes and the values beside an axis.
LEFT_PIXELS = 130
COLOURS: Final = {
    "green": "#2f8f46",
    "orange": "#d97706",
    "dark-red": "#b42318",
    "blue": "#3b6fd4",
    "purple": "#8b5cc9",
}
PALETTE: Final = ("#3b6fd4", "#d97706", "#2f8f46", "#8b5cc9", "#b42318", "#0e8a97", "#a16207", "#be3a8a", "#5b6472")
MOST_COLUMNS = 48
STYLE: Final = """
body { margin: 0; padding: 16px; width: 1448px; background: #eef0f3; color: #1c2530; font: 13px/1.35 'DejaVu Sans', sans-serif }
h1 { font-size: 20px; margin: 0 } header p { margin: 2px 0 12px; color: #4c5a68 }
main { display: grid; grid-template-columns: repeat(24, 1fr); grid-auto-rows: 36px; gap: 0 8px }
section { background: #fff; border: 1px solid #d5dae1; border-radius: 4px; margin-bottom: 8px; padding: 6px 10px; overflow: hidden }
h2 { font-size: 13px; margin: 0 0 4px } svg { display: block } text { font-size: 11px; fill: #4c5a68 }
h2, li { white-space: nowrap; overflow: hidden; text-overflow: ellipsis }
ul { list-style: none; margin: 0; padding: 0; columns: 2; font-size: 11px } i { display: inline-block; width: 10px; height: 3px;
margin: 0 4px 3px 0 } td, th { text-align: left; padding: 1px 10px 1px 0; font-size: 11px }
.stats { display: flex; gap: 6px; height: calc(100% - 24px) }
.stats div { flex: 1; color: #fff; border-radius: 3px; padding: 4px 8px }
.stats b { display: block; font-size: 26px } .none { color: #b42318; font-weight: bold }
"""


class Source(Protocol):
    """Answers PromQL, as Prometheus's HTTP API does."""

    def instant(self, expression: str) -> list[Json]: ...

    def over_time(self, expression: str, window: Window) -> list[Json]: ...


@dataclass(frozen=True)
class Window:
    """The chosen time range, in Unix seconds."""

    start_seconds: float
    end_seconds: float
    step_seconds: float

    @property
    def seconds(self) -> float:
        return self.end_seconds - self.start_seconds

    def filled(self, expression: str) -> str:
        """The query with this range, and every other variable at its widest."""
        whole = max(1, round(self.seconds))
        return filled(expression.replace("$__range_s", str(whole)).replace("$__range", f"{whole}s"))

    def x(self, at_seconds: float, width: float) -> float:
        return width * (at_seconds - self.start_seconds) / self.seconds


@dataclass
class Drawing:
    """A dashboard as a page of HTML; `marks` are how many pieces of data each panel shows, by its question."""

    html: str
    marks: dict[str, int] = field(default_factory=dict)

    @property
    def empty(self) -> list[str]:
        return [question for question, marks in self.marks.items() if not marks]


def draw(dashboard: Mapping[str, Any], source: Source, window: Window) -> Drawing:
    """Ask every query of every panel and draw what is answered."""
    moments = [
        moment / 1000
        for annotation in dashboard["annotations"]["list"]
        for one in source.over_time(window.filled(annotation["expr"]), window)
        for moment in sorted({float(value) for _, value in one["values"]})
    ]
    drawn, marks = [], {}
    for panel in dashboard["panels"]:
        body, marks[panel["title"]] = _Panel(panel, source, window, moments).draw()
        place = panel["gridPos"]
        style = f"grid-column:{place['x'] + 1}/span {place['w']};grid-row:{place['y'] + 1}/span {place['h']}"
        shown = body if marks[panel["title"]] else '<p class="none">no data</p>'
        drawn.append(f'<section style="{style}"><h2>{_text(panel["title"])}</h2>{shown}</section>')
    head = f"<h1>{_text(dashboard['title'])}</h1><p>{_text(dashboard['description'])}</p>"
    note = f"<p>Rendered from dashboards/{dashboard['uid']}.json with the data of a demo; not a picture of Grafana.</p>"
    text = f'<!doctype html><meta charset="utf-8"><style>{STYLE}</style><header>{head}</header>'
    return Drawing(f"{text}<main>{''.join(drawn)}</main>{note}", marks)


class _Panel:
    def __init__(self, panel: Mapping[str, Any], source: Source, window: Window, moments: Sequence[float]) -> None:
        self.panel, self.source, self.window, self.moments = panel, source, window, moments
        defaults = panel["fieldConfig"]["defaults"]
        self.unit, self.steps = defaults["unit"], defaults["thresholds"]["steps"]
        self.decimals: int | None = defaults.get("decimals")
        self.mapped: Json = {key: value for one in defaults["mappings"] for key, value in one["options"].items()}
        place = panel["gridPos"]
        self.width = place["w"] * COLUMN_PIXELS - 30
        self.height = place["h"] * ROW_PIXELS - 46

    def draw(self) -> tuple[str, int]:
        """Its body, and how many pieces of data are on it."""
        how = {
            "stat": self._stat,
            "bargauge": self._bars,
            "table": self._table,
            "timeseries": self._lines,
            "state-timeline": self._stripes,
            "heatmap": self._heatmap,
        }
        return how[self.panel["type"]]()

    # ---- of one moment

    def _now(self) -> list[tuple[str, Json, float]]:
        """Legend, labels and value of each series."""
        return [
            (_legend(target["legendFormat"], one["metric"]), one["metric"], float(one["value"][1]))
            for target in self.panel["targets"]
            for one in self.source.instant(self.window.filled(target["expr"]))
            if float(one["value"][1]) == float(one["value"][1])  # a NaN is drawn as nothing, as there
        ]

    def _stat(self) -> tuple[str, int]:
        tiles = [
            f'<div style="background:{self._colour(value)}"><b>{self._said(value)}</b>{_text(legend)}</div>'
            for legend, _, value in self._now()
        ]
        return f'<div class="stats">{"".join(tiles)}</div>', len(tiles)

    def _bars(self) -> tuple[str, int]:
        rows = self._now()
        if not rows:
            return "", 0
        most = max(abs(value) for _, _, value in rows) or 1.0
        each = min(44.0, self.height / len(rows))
        drawn = []
        for number, (legend, _, value) in enumerate(rows):
            y, long = number * each, (self.width - 330) * abs(value) / most
            drawn.append(f'<text x="0" y="{y + each * 0.65:.1f}">{_text(legend)}</text>')
            bar = f'x="250" y="{y + 2:.1f}" width="{max(1.0, long):.1f}" height="{each - 5:.1f}"'
            drawn.append(f'<rect {bar} fill="{self._colour(value)}"/>')
            drawn.append(f'<text x="{256 + long:.1f}" y="{y + each * 0.65:.1f}">{self._said(value)}</text>')
        return self._svg(drawn), len(rows)

    def _table(self) -> tuple[str, int]:
        rows = self._now()
        names = sorted({name for _, labels, _ in rows for name in labels})
        head = "".join(f"<th>{_text(name)}</th>" for name in [*names, "Value"])
        body = "".join(
            "<tr>"
            + "".join(f"<td>{_text(labels.get(name, ''))}</td>" for name in names)
            + f"<td>{self._said(value)}</td></tr>"
            for _, labels, value in rows
        )
        return f"<table><tr>{head}</tr>{body}</table>", len(rows)

    # ---- over time

    def _over_time(self) -> list[tuple[str, Json, list[tuple[float, float]]]]:
        return [
            (
                _legend(target["legendFormat"], one["metric"]),
                one["metric"],
                [(float(at), float(value)) for at, value in one["values"] if float(value) == float(value)],
            )
            for target in self.panel["targets"]
            for one in self.source.over_time(self.window.filled(target["expr"]), self.window)
        ]

    def _lines(self) -> tuple[str, int]:
        series = [(legend, points) for legend, _, points in self._over_time() if points]
        if not series:
            return "", 0
        # The legend is below, in two columns.
        height = self.height - 22 - 16 * -(-len(series) // 2)
        values = [value for _, points in series for _, value in points]
        low, high, ticks = scale(values, 1024.0 if self.unit in ("bytes", "Bps") else 1.0)
        drawn = [self._axis(low, high, ticks, height), self._thresholds(low, high, height), self._annotations(height)]
        for number, (_, points) in enumerate(series):
            for part in _unbroken(points, 2.5 * self.window.step_seconds):
                corners = " ".join(
                    f"{self._x(at):.1f},{height * (1 - (value - low) / (high - low)):.1f}" for at, value in part
                )
                drawn.append(f'<polyline points="{corners}" fill="none" stroke="{_of(number)}" stroke-width="1.6"/>')
        legend = "".join(
            f'<li><i style="background:{_of(number)}"></i>{_text(name)}: last {self._said(points[-1][1])}, '
            f"max {self._said(max(value for _, value in points))}</li>"
            for number, (name, points) in enumerate(series)
        )
        return self._svg(drawn, height + 18) + f"<ul>{legend}</ul>", sum(len(points) for _, points in series)

    def _stripes(self) -> tuple[str, int]:
        series = [(legend, points) for legend, _, points in self._over_time() if points]
        if not series:
            return "", 0
        height = self.height - 40
        each, drawn, marks = min(40.0, height / len(series)), [], 0
        for number, (legend, points) in enumerate(series):
            y = number * each
            drawn.append(f'<text x="0" y="{y + each * 0.6:.1f}">{_text(legend)}</text>')
            for began, ended, value in _runs(points, self.window.step_seconds):
                x, long = self._x(began), max(1.0, self._x(ended) - self._x(began))
                place = f'x="{x:.1f}" y="{y + 2:.1f}" width="{long:.1f}" height="{each - 4:.1f}"'
                drawn.append(f'<rect {place} fill="{self._colour(value)}"/>')
                marks += 1
        drawn += [self._times(each * len(series)), self._annotations(each * len(series))]
        said = "".join(
            f'<li><i style="background:{COLOURS[one["color"]]}"></i>{_text(one["text"])}</li>'
            for one in self.mapped.values()
        )
        return self._svg(drawn, each * len(series) + 18) + f"<ul>{said}</ul>", marks

    def _heatmap(self) -> tuple[str, int]:
        """Buckets are cumulative; a cell is what came into its bucket meanwhile."""
        found = {_bound(labels["le"]): dict(points) for _, labels, points in self._over_time()}
        bounds = sorted(found)
        cells: dict[tuple[int, int], float] = {}
        for row, bound in enumerate(bounds):
            below = found[bounds[row - 1]] if row else {}
            for at, value in found[bound].items():
                column = min(MOST_COLUMNS - 1, int(self.window.x(at, MOST_COLUMNS)))
                cells[column, row] = max(cells.get((column, row), 0.0), value - below.get(at, 0.0))
        cells = {place: value for place, value in cells.items() if value > 0}
        if not cells:
            return "", 0
        height, most = self.height - 20, max(cells.values())
        lowest, highest = min(row for _, row in cells), max(row for _, row in cells)
        each, drawn = height / (highest - lowest + 1), [self._times(height)]
        wide = (self.width - LEFT_PIXELS) / MOST_COLUMNS
        for row in range(lowest, highest + 1):
            y = height - (row - lowest) * each
            name = "more" if bounds[row] == float("inf") else self._said(bounds[row])
            drawn.append(f'<text x="0" y="{y - each * 0.35:.1f}">≤ {name}</text>')
        for (column, row), value in cells.items():
            y = height - (row - lowest + 1) * each
            place = f'x="{LEFT_PIXELS + column * wide:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{each - 1:.1f}"'
            drawn.append(f'<rect {place} fill="{COLOURS["blue"]}" opacity="{0.25 + 0.75 * value / most:.2f}"/>')
        return self._svg(drawn, height + 18), len(cells)

    # ---- what they share

    def _svg(self, parts: Iterable[str], height: float | None = None) -> str:
        return f'<svg width="{self.width}" height="{height or self.height:.0f}">{"".join(parts)}</svg>'

    def _x(self, at_seconds: float) -> float:
        return LEFT_PIXELS + self.window.x(at_seconds, self.width - LEFT_PIXELS)

    def _times(self, height: float) -> str:
        marks = [self.window.start_seconds + self.window.seconds * part / 4 for part in range(5)]
        names = [dt.datetime.fromtimestamp(at, tz=dt.UTC).strftime("%H:%M:%S") for at in marks]
        anchors = ("start", "middle", "middle", "middle", "end")
        return "".join(
            f'<text x="{self._x(at):.1f}" y="{height + 14:.1f}" text-anchor="{anchor}">{name}</text>'
            for at, name, anchor in zip(marks, names, anchors, strict=True)
        )

    def _axis(self, low: float, high: float, ticks: Sequence[float], height: float) -> str:
        lines = []
        for value in ticks:
            y = height * (1 - (value - low) / (high - low))
            lines.append(f'<line x1="{LEFT_PIXELS}" x2="{self.width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e3e7ec"/>')
            lines.append(f'<text x="0" y="{min(height, y + 10):.1f}">{self._said(value)}</text>')
        return "".join(lines) + self._times(height)

    def _thresholds(self, low: float, high: float, height: float) -> str:
        lines = []
        for step in self.steps:
            if step["value"] is not None and low <= step["value"] <= high:
                y = height * (1 - (step["value"] - low) / (high - low))
                place = f'x1="{LEFT_PIXELS}" x2="{self.width}" y1="{y:.1f}" y2="{y:.1f}"'
                lines.append(f'<line {place} stroke="{COLOURS[step["color"]]}" stroke-dasharray="6 4"/>')
        return "".join(lines)

    def _annotations(self, height: float) -> str:
        shown = [at for at in self.moments if self.window.start_seconds <= at <= self.window.end_seconds]
        return "".join(
            f'<line x1="{self._x(at):.1f}" x2="{self._x(at):.1f}" y1="0" y2="{height:.1f}" stroke="{COLOURS["dark-red"]}" '
            'stroke-dasharray="2 3"/>'
            for at in shown
        )

    def _colour(self, value: float) -> str:
        """Return a value's colour by its mapping, else by the highest threshold that it reaches; the first one has no value."""
        mapped = self.mapped.get(f"{value:g}")
        if mapped is not None:
            return COLOURS[mapped["color"]]
        return COLOURS[[one for one in self.steps if one["value"] is None or value >= one["value"]][-1]["color"]]

    def _said(self, value: float) -> str:
        return said(value if self.decimals is None else round(value, self.decimals), self.unit)


def scale(values: Sequence[float], thousand: float) -> tuple[float, float, list[float]]:
    """Least, most and ticks of an axis: round steps, 0 among them. `thousand`: 1024 for bytes."""
    low, high = min(0.0, *values), max(0.0, *values) or 1.0
    unit = thousand ** int(math.log(high - low, thousand)) if thousand > 1 and high - low > 1 else 1.0
    wanted = (high - low) / unit / 3
    power = 10.0 ** math.floor(math.log10(wanted))
    step = unit * power * next(one for one in (1, 2, 2.5, 5, 10) if one * power >= wanted)
    first, last = math.floor(low / step), math.ceil(high / step)
    return first * step, last * step, [number * step for number in range(first, last + 1)]


def said(value: float, unit: str) -> str:
    """A value with its unit, by Grafana's name of the unit. KeyError for one that no panel had so far."""
    return _UNITS[unit](value)


def _bytes(value: float) -> str:
    for size, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(value) >= size:
            return f"{value / size:.1f} {name}"
    return f"{value:.0f} B"


_UNITS: Final[dict[str, Callable[[float], str]]] = {
    "short": lambda value: f"{value:.0f}" if value == round(value) else f"{value:.2f}",
    "s": lambda value: f"{value * 1000:.0f} ms" if abs(value) < 1 else f"{value:.1f} s",
    "µs": lambda value: f"{value / 1000:.1f} ms" if abs(value) >= 1000 else f"{value:.0f} µs",
    "m": lambda value: f"{value:.1f} min",
    "percentunit": lambda value: f"{value * 100:.2f} %",
    "reqps": lambda value: f"{value:.1f} req/s",
    "bytes": _bytes,
    "Bps": lambda value: f"{_bytes(value)}/s",
}


def _legend(template: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda name: labels.get(name[1], ""), template)


def _unbroken(points: Sequence[tuple[float, float]], gap_seconds: float) -> list[list[tuple[float, float]]]:
    parts: list[list[tuple[float, float]]] = []
    for point in points:
        if not parts or point[0] - parts[-1][-1][0] > gap_seconds:
            parts.append([])
        parts[-1].append(point)
    return parts


def _runs(points: Sequence[tuple[float, float]], step_seconds: float) -> list[tuple[float, float, float]]:
    """Begin, end and value of each time without a change or a gap."""
    runs: list[tuple[float, float, float]] = []
    for at, value in points:
        if runs and runs[-1][2] == value and at - runs[-1][1] < step_seconds * 1.5:
            runs[-1] = (runs[-1][0], at + step_seconds, value)
        else:
            runs.append((at, at + step_seconds, value))
    return runs


def _bound(le: str) -> float:
    return float("inf") if le == "+Inf" else float(le)


def _of(number: int) -> str:
    return PALETTE[number % len(PALETTE)]


def _text(value: object) -> str:
    return html.escape(str(value))
