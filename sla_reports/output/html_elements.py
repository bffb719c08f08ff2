"""Elements, words and scales of `report.html`. Every text is escaped unless it is markup already.

Group names, notes and facts come from outside. A text becomes `Markup` only by `text` (which escapes it) or by `tag` (whose
children are escaped), so a forgotten escape cannot break the page. The page is well-formed XML as well as HTML.
"""

import datetime as dt
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from zoneinfo import ZoneInfo

from sla_reports.states.spans import Span, State, Window

# Elements of HTML that end where they begin, and those of SVG that mostly have nothing in them.
_VOID = frozenset({"meta", "br", "rect", "line", "path", "circle", "polyline", "polygon"})
_SECOND_MS, _MINUTE_MS, _HOUR_MS, _DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_UNITS = ((_HOUR_MS, "min", _SECOND_MS, "s"), (_DAY_MS, "h", _MINUTE_MS, "min"), (math.inf, "d", _HOUR_MS, "h"))
_PARTS = {"min": 60, "h": 60, "d": 24}
_TICKS = 6
_LONG_WORD = 20
STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --paper: #ffffff; --line: #d0d7de; --band: #f6f8fa;
  --up: #1a7f37; --down: #cf222e; --unknown: #8250df; --planned: #0969da; --excluded: #9a6700;
  --s0: #cf222e; --s1: #bc4c00; --s2: #9a6700; --s3: #1a7f37; --s4: #0969da; --s5: #8250df; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --paper: #0d1117; --line: #3d444d;
  --band: #151b23; --up: #3fb950; --down: #ff7b72; --unknown: #bc8cff; --planned: #58a6ff; --excluded: #d29922;
  --s0: #ff7b72; --s1: #f0883e; --s2: #d29922; --s3: #3fb950; --s4: #58a6ff; --s5: #bc8cff; } }
* { box-sizing: border-box; }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto; padding: 1.5rem;
  max-width: 72rem; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .6rem; } h3 { font-size: 1rem; }
p.soft, .soft, figcaption { color: var(--soft); font-size: .87rem; }
.verdict { font-size: 1.6rem; font-weight: 700; border-left: .5rem solid; padding: .4rem .8rem; margin: 1rem 0;
  background: var(--band); }
.met { color: var(--up); } .breached { color: var(--down); } .undecidable { color: var(--unknown); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .8rem; }
.tile { border: 1px solid var(--line); padding: .7rem .9rem; overflow-wrap: anywhere; }
.tile b { display: block; font-size: 1.35rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .87rem; }
th, td { text-align: left; vertical-align: middle; padding: .25rem .5rem; border-bottom: 1px solid var(--line); }
thead th { background: var(--band); } tbody th { font-weight: 600; min-width: 9rem; overflow-wrap: anywhere; }
td { font-variant-numeric: tabular-nums; } .long { overflow-wrap: anywhere; min-width: 8rem; } .wide + .wide { margin-top: 1rem; }
svg { max-width: 100%; height: auto; display: block; } svg text { fill: var(--ink); font: 11px system-ui, sans-serif; }
nav { display: flex; flex-wrap: wrap; column-gap: 1rem; } a { color: var(--planned); }
.up { fill: var(--up); } .down { fill: var(--down); } .axis { stroke: var(--line); stroke-width: 1; fill: none; }
.unknown { fill: none; stroke: var(--unknown); stroke-width: 1.2; stroke-dasharray: 3 2; }
.disputed { fill: none; stroke: var(--s1); stroke-width: 2.5; }
.excluded { fill: none; stroke: var(--excluded); stroke-width: 2; }
.planned { fill: var(--paper); stroke: var(--planned); stroke-width: 1.5; } .open { fill: none; stroke: var(--down);
  stroke-width: 1.5; stroke-dasharray: 3 2; }
.left { fill: none; stroke: var(--up); stroke-width: 1.8; } .even { fill: none; stroke: var(--soft); stroke-dasharray: 5 4; }
.forecast { fill: none; stroke: var(--planned); stroke-width: 1.5; stroke-dasharray: 2 3; }
.likely { fill: var(--planned); opacity: .15; } .mark { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 4 2; }
.s0 { fill: var(--s0); } .s1 { fill: var(--s1); } .s2 { fill: var(--s2); } .s3 { fill: var(--s3); } .s4 { fill: var(--s4); }
.s5 { fill: var(--s5); }
@media print { :root { --ink: #000; --soft: #444; --paper: #fff; --band: #fff; --line: #999; --up: #1a7f37; --down: #cf222e;
    --unknown: #8250df; --planned: #0969da; --excluded: #9a6700; color-scheme: light; }
  body { max-width: none; padding: 0; font-size: 10pt; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  nav { display: none; } .manager { break-after: page; } tr, svg, .tile { break-inside: avoid; } h2 { break-after: avoid; }
  thead { display: table-header-group; } .wide { overflow: visible; } @page { margin: 15mm; }
  table { font-size: 7.5pt; } th, td { padding: .15rem .25rem; overflow-wrap: anywhere; } }
"""


class Markup(str):
    """Text that is markup already, and is not escaped again."""

    __slots__ = ()


def text(value: str) -> Markup:
    """Escape a value. Characters that XML does not have are replaced: one of them would break the page."""
    if isinstance(value, Markup):
        return value
    return Markup(escape(_NOT_XML.sub("\ufffd", value)))


def tag(name: str, /, *children: str, **attributes: str | float) -> Markup:
    """Make an element. `class_` is `class`, `stroke_width` is `stroke-width`; numbers have at most two decimals."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value if isinstance(value, str) else number(value))}"'
        for key, value in attributes.items()
    )
    inside = "".join(text(child) for child in children)
    return Markup(f"<{name}{written}/>" if name in _VOID and not children else f"<{name}{written}>{inside}</{name}>")


def counted(number: int, noun: str) -> str:
    """Format a count with its noun: 1 outage, 2 outages."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def join(parts: Iterable[str], between: str = "") -> Markup:
    """Several pieces as one."""
    return Markup(text(between).join(text(part) for part in parts))


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Markup:
    """Make a table; the first cell of a row is its heading."""
    top = tag("tr", *(tag("th", cell, scope="col") for cell in head))
    lines = [
        tag("tr", *(_cell(cell) if number else tag("th", cell, scope="row") for number, cell in enumerate(row)))
        for row in rows
    ]
    return tag("div", tag("table", tag("thead", top), tag("tbody", join(lines, "\n"))), class_="wide")


def _cell(cell: str) -> Markup:
    """A name may be broken anywhere, a figure may not."""
    is_long = not isinstance(cell, Markup) and any(len(word) > _LONG_WORD for word in cell.split())
    return tag("td", cell, class_="long") if is_long else tag("td", cell)


def folded(title: str, *children: str) -> Markup:
    """Make a part that a reader opens."""
    return tag("details", tag("summary", title), *children)


def picture(title: str, *children: str, width: float, height: float) -> Markup:
    """Make an SVG picture with a title for screen readers."""
    view: dict[str, str | float] = {
        "viewBox": f"0 0 {number(width)} {number(height)}",
        "width": width,
        "height": height,
    }
    return tag("svg", tag("title", title), *children, role="img", aria_label=title, **view)


def section(anchor: str, title: str, *children: str) -> Markup:
    """Make a section of the page with its heading."""
    return tag("section", tag("h2", title), *children, id=anchor)


def number(value: float) -> str:
    """Format a number with at most two decimals: finer than a screen, and the same bytes on every machine."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def percent(share: float | None) -> str:
    """Format a share, cut and not rounded: 99.99996 % is not 100 %."""
    return "unknown" if share is None else f"{math.floor(share * 1e6 + 1e-6) / 1e4:.4f} %"


def duration(milliseconds: float | None) -> str:
    """Format a duration in at most two units; `-` if it is unknown."""
    if milliseconds is None:
        return "-"
    if abs(milliseconds) < _SECOND_MS:
        return f"{milliseconds:.0f} ms"
    if abs(milliseconds) < _MINUTE_MS:
        return f"{milliseconds / _SECOND_MS:.1f} s"
    for limit_ms, unit, part_ms, part in _UNITS:
        if abs(milliseconds) < limit_ms:
            whole, rest = divmod(round(abs(milliseconds) / part_ms), _PARTS[unit])
            return f"{'-' if milliseconds < 0 else ''}{whole} {unit} {rest} {part}"
    raise ValueError(f"duration {milliseconds}: expected a finite number")


def minutes(milliseconds: float) -> str:
    """Return a budget in minutes, however large; below one in seconds: 8 s spent of "0.0 min" says nothing."""
    return f"{milliseconds / _MINUTE_MS:.1f} min" if abs(milliseconds) >= _MINUTE_MS else duration(milliseconds)


def instant(at_ms: int, zone: ZoneInfo) -> str:
    """Format an instant to the second, without its zone: the page names the zone once."""
    return dt.datetime.fromtimestamp(at_ms / 1000, zone).strftime("%Y-%m-%d %H:%M:%S")


def plain(value: object) -> str:
    """Format a member of a document in one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {plain(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(plain(one) for one in value) or "none"
    return "-" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class TimeScale:
    """Maps the instants of a window to `width` units from `left` on."""

    window: Window
    left: float
    width: float

    def x(self, at_ms: float) -> float:
        """Return the x of an instant; outside of the window, that of its edge."""
        share = (at_ms - self.window.start_ms) / self.window.length_ms
        return self.left + self.width * min(1.0, max(0.0, share))

    def columns(self, spans: Iterable[Span], state: State) -> list[tuple[float, float]]:
        """Return the columns in which the state holds, in whole units, at least one wide: a flapping month stays small."""
        found: list[tuple[float, float]] = []
        for span in spans:
            if span.state is not state:
                continue
            low = float(int(self.x(span.start_ms)))
            high = max(low + 1, float(round(self.x(span.end_ms))))
            if found and low <= found[-1][1]:
                found[-1] = (found[-1][0], max(found[-1][1], high))
            else:
                found.append((low, high))
        return found

    def axis(self, top: float, height: float, zone: ZoneInfo) -> Markup:
        """Lines at a few instants with their dates below."""
        parts = []
        for number in range(_TICKS + 1):
            at_ms = self.window.start_ms + self.window.length_ms * number // _TICKS
            x = self.x(at_ms)
            anchor = "start" if number == 0 else "end" if number == _TICKS else "middle"
            parts.append(tag("line", class_="axis", x1=x, x2=x, y1=top, y2=top + height))
            parts.append(tag("text", instant(at_ms, zone)[5:16], x=x, y=top + height + 13, text_anchor=anchor))
        return join(parts)
