"""Time on a line: from milliseconds to where they stand in a picture, and the axis that says so."""

from collections.abc import Iterable
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from sla_reports.output.html.elements import Markup, instant, join, tag
from sla_reports.states.spans import Span, State, Window

_TICKS = 6


@dataclass(frozen=True, slots=True)
class TimeScale:
    """A window over `width` units from `left` on."""

    window: Window
    left: float
    width: float

    def x(self, at_ms: float) -> float:
        """Where an instant stands; what is outside of the window stands at its edge."""
        share = (at_ms - self.window.start_ms) / self.window.length_ms
        return self.left + self.width * min(1.0, max(0.0, share))

    def columns(self, spans: Iterable[Span], state: State) -> list[tuple[float, float]]:
        """Where the state holds, in whole units: what is shorter is still one wide, and a flapping month stays small."""
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
