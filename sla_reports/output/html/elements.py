"""Markup that cannot be broken by what stands in it: every text is escaped unless it is markup already.

Group names, notes and facts come from outside. A text becomes `Markup` only by `text` (which escapes it) or by `tag` (whose
children are escaped), so nothing gets into the page by being forgotten. The page is well-formed XML as well as HTML.
"""

import datetime as dt
import math
import re
from collections.abc import Iterable, Mapping
from html import escape
from zoneinfo import ZoneInfo

# Elements of HTML that end where they begin, and those of SVG that mostly have nothing in them.
_VOID = frozenset({"meta", "br", "rect", "line", "path", "circle", "polyline", "polygon"})
_SECOND_MS, _MINUTE_MS, _HOUR_MS, _DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_UNITS = ((_HOUR_MS, "min", _SECOND_MS, "s"), (_DAY_MS, "h", _MINUTE_MS, "min"), (math.inf, "d", _HOUR_MS, "h"))
_PARTS = {"min": 60, "h": 60, "d": 24}


class Markup(str):
    """Text that is markup: nobody escapes it again."""

    __slots__ = ()


def text(value: str) -> Markup:
    """The value as it is to be read. Characters that XML does not have are replaced, for one of them would break the page."""
    if isinstance(value, Markup):
        return value
    return Markup(escape(_NOT_XML.sub("\ufffd", value)))


def tag(name: str, /, *children: str, **attributes: str | float) -> Markup:
    """An element. `class_` is `class`, `stroke_width` is `stroke-width`; numbers are written short and the same everywhere."""
    written = "".join(f' {_name(key)}="{text(_value(value))}"' for key, value in attributes.items())
    inside = "".join(text(child) for child in children)
    return Markup(f"<{name}{written}/>" if name in _VOID and not children else f"<{name}{written}>{inside}</{name}>")


def counted(number: int, noun: str) -> str:
    """1 outage, 2 outages."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def join(parts: Iterable[str], between: str = "") -> Markup:
    """Several pieces as one."""
    return Markup(text(between).join(text(part) for part in parts))


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Markup:
    """A table; the first cell of a row names it."""
    top = tag("tr", *(tag("th", cell, scope="col") for cell in head))
    lines = [
        tag("tr", *(tag("td", cell) if number else tag("th", cell, scope="row") for number, cell in enumerate(row)))
        for row in rows
    ]
    return tag("div", tag("table", tag("thead", top), tag("tbody", join(lines, "\n"))), class_="wide")


def picture(title: str, *children: str, width: float, height: float) -> Markup:
    """An SVG picture that says in words what it shows."""
    view: dict[str, str | float] = {
        "viewBox": f"0 0 {number(width)} {number(height)}",
        "width": width,
        "height": height,
    }
    return tag("svg", tag("title", title), *children, role="img", aria_label=title, **view)


def section(anchor: str, title: str, *children: str) -> Markup:
    """A part of the page with its heading."""
    return tag("section", tag("h2", title), *children, id=anchor)


def number(value: float) -> str:
    """At most two digits after the point: finer than any screen, and the same on every machine."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def percent(share: float | None) -> str:
    """Cut and not rounded: 99.99996 % is not 100 %."""
    return "unknown" if share is None else f"{math.floor(share * 1e6 + 1e-6) / 1e4:.4f} %"


def duration(milliseconds: float | None) -> str:
    """Two units at most; `-` for what is not known."""
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
    """A budget is told in minutes, however small or large."""
    return f"{milliseconds / _MINUTE_MS:.1f} min"


def instant(at_ms: int, zone: ZoneInfo) -> str:
    """A wall clock's time to the second; the page says once of which zone."""
    return dt.datetime.fromtimestamp(at_ms / 1000, zone).strftime("%Y-%m-%d %H:%M:%S")


def plain(value: object) -> str:
    """A member of a document in a line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {plain(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(plain(one) for one in value) or "none"
    return "-" if value is None else str(value)


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _value(value: str | float) -> str:
    return value if isinstance(value, str) else number(value)
