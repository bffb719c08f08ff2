"""How long recoveries took: bars over 1-2-5 steps of time (open ones dashed), with the quantiles as lines; then stage by stage."""

from bisect import bisect_right
from collections.abc import Sequence

from sla_reports.measures.recovery import STAGES, Distribution
from sla_reports.measures.summary import Summary
from sla_reports.output.html.elements import Markup, duration, join, percent, picture, section, table, tag

_BOUNDS_MS = tuple(base * 10**power for power in range(1, 8) for base in (1, 2, 5))
_WIDTH, _HEIGHT, _TOP, _BOTTOM = 720.0, 200.0, 28.0, 34.0


def distribution_part(summary: Summary) -> Markup:
    """Of the unplanned incidents that the operator logged; the same the quantiles are made of."""
    durations = [
        one.whole(summary.until_ms, running=summary.running)
        for figures in summary.groups
        for one in figures.incidents
        if one.logged is not None and not one.planned
    ]
    title = "Recovery times (RTO)"
    if not durations:
        return section("rto", title, tag("p", "No failover was logged in this period."))
    return section("rto", title, _bars(durations, summary.recovery.total), _stages(summary))


def _bars(durations: Sequence[tuple[float, bool]], told: Distribution) -> Markup:
    """Bin number n lies below `_BOUNDS_MS[n]`; only from the first to the last that holds something."""
    bins: dict[int, list[int]] = {}
    for length_ms, is_open in durations:
        bins.setdefault(bisect_right(_BOUNDS_MS, length_ms), [0, 0])[is_open] += 1
    first, last = min(bins), max(bins)
    most = max(sum(counts) for counts in bins.values())
    wide = (_WIDTH - 20) / (last - first + 1)
    parts = [tag("line", class_="axis", x1=10, x2=_WIDTH - 10, y1=_HEIGHT - _BOTTOM, y2=_HEIGHT - _BOTTOM)]
    for number in range(first, last + 1):
        parts.append(_bar(10 + (number - first) * wide, wide, bins.get(number, [0, 0]), most))
        low = _BOUNDS_MS[number - 1] if number else 0
        parts.append(tag("text", _short(low), x=10 + (number - first) * wide, y=_HEIGHT - _BOTTOM + 14))
    for row, (name, value) in enumerate((("p50", told.p50_ms), ("p95", told.p95_ms), ("p99", told.p99_ms))):
        if value is not None:
            parts.append(_quantile(name, value, 10 + (_place(value) - first) * wide, row))
    title = f"{told.n} recoveries, {told.censored} still open: p50 {duration(told.p50_ms)}, p95 {duration(told.p95_ms)}"
    return picture(title, join(parts), width=_WIDTH, height=_HEIGHT)


def _bar(x: float, wide: float, counts: Sequence[int], most: int) -> Markup:
    unit = (_HEIGHT - _TOP - _BOTTOM) / most
    ended, still_open = (count * unit for count in counts)
    base = _HEIGHT - _BOTTOM
    parts = []
    if counts[0]:
        parts.append(tag("rect", class_="s4", x=x + 2, y=base - ended, width=wide - 4, height=ended))
    if counts[1]:
        parts.append(
            tag("rect", class_="open", x=x + 2, y=base - ended - still_open, width=wide - 4, height=still_open)
        )
    if any(counts):
        parts.append(tag("text", str(sum(counts)), x=x + wide / 2, y=base - 4, text_anchor="middle"))
    return join(parts)


def _quantile(name: str, value: float, x: float, row: int) -> Markup:
    line = tag("line", class_="mark", x1=x, x2=x, y1=10, y2=_HEIGHT - _BOTTOM)
    anchor, beside = ("end", -3.0) if x > _WIDTH - 120 else ("start", 3.0)
    words = tag("text", f"{name} {duration(value)}", x=x + beside, y=10 + row * 11, text_anchor=anchor)
    return join([line, words])


def _place(value: float) -> float:
    """Which bin, and how far into it."""
    number = bisect_right(_BOUNDS_MS, value)
    low = float(_BOUNDS_MS[number - 1]) if number else 0.0
    high = float(_BOUNDS_MS[number]) if number < len(_BOUNDS_MS) else low * 2
    return number + (value - low) / (high - low)


def _short(milliseconds: int) -> str:
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    return f"{milliseconds // 1000} s"


def _stages(summary: Summary) -> Markup:
    recovery = summary.recovery
    rows = [
        [
            f"{stage} (most time)" if stage == recovery.dominant else stage, str(one.n), duration(one.p50_ms),
            duration(one.p95_ms), duration(one.p99_ms), duration(one.max_ms), percent(recovery.shares[stage]),
        ]
        for stage, one in recovery.stages.items() if stage in STAGES
    ]  # fmt: skip
    total = recovery.total
    whole = ["all", str(total.n), *(duration(v) for v in (total.p50_ms, total.p95_ms, total.p99_ms, total.max_ms)), ""]
    return table(["stage", "n", "p50", "p95", "p99", "longest", "of all time lost"], [*rows, whole])
