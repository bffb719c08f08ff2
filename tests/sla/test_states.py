"""States over time: checked instant by instant against the rule in one sentence, and the merge of several lines."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sla_reports.series import (
    Series,
    SeriesFormatError,
    canonical,
    labels_column,
    metric_column,
    parse_series,
    series_text,
)
from sla_reports.states.counters import Increase, histogram_quantile, increase
from sla_reports.states.entities import Fleet, GroupKey
from sla_reports.states.spans import (
    Run,
    Span,
    State,
    Window,
    all_up,
    any_up,
    at_least,
    by_series,
    clip,
    combine,
    combine_present,
    gap_limit_ms,
    spans_of,
)
from tests.sla.histories import INTERVAL_MS, START_MS, Sample, histories, instants, runs_of, series_of, state_at
from tests.support.draws import examples

GAP_MS = gap_limit_ms(INTERVAL_MS)
ORDERS = GroupKey("default", "c", "orders")
_VALUES = st.text(alphabet=st.sampled_from('a"\\n\n,={}é '), max_size=6)
_LABELS = st.dictionaries(st.sampled_from(["a", "b_1", "zone", "le"]), _VALUES, max_size=4)


@settings(max_examples=examples(100))
@given(samples=histories("up"), data=st.data())
def test_each_instant_has_the_state_of_the_rule(samples: list[Sample], data: st.DataObject) -> None:
    seen = [(at_ms, value) for _, at_ms, value, _ in instants(samples)]
    first, last = seen[0][0], seen[-1][0]
    start = data.draw(st.integers(first - 5000, last))
    # A window that ends before the last sample gets that one too: the next sample decides how long one holds.
    window = Window(start, data.draw(st.integers(max(start + 1, last - 5000), last + 5000)))
    spans = spans_of(runs_of(samples, GAP_MS), window, at_least(1), GAP_MS)
    assert (spans[0].start_ms, spans[-1].end_ms) == (window.start_ms, window.end_ms)
    for earlier, later in zip(spans, spans[1:], strict=False):  # noqa: RUF007
        assert earlier.end_ms == later.start_ms
        assert earlier.state != later.state
    edges = {edge + shift for span in spans for edge in (span.start_ms, span.end_ms) for shift in (-1, 0)}
    drawn = data.draw(st.lists(st.integers(window.start_ms, window.end_ms - 1), max_size=10))
    for at_ms in [*drawn, *(edge for edge in edges if window.start_ms <= edge < window.end_ms)]:
        state = next(span.state for span in spans if span.start_ms <= at_ms < span.end_ms)
        assert state.value == state_at(at_ms, seen, window.end_ms, GAP_MS), at_ms - START_MS


@st.composite
def _lines(draw: st.DrawFn) -> list[list[Span]]:
    """Draw some lines over one window."""
    found = []
    for _ in range(draw(st.integers(1, 5))):
        edges = sorted({0, 100, *draw(st.lists(st.integers(1, 99), max_size=8))})
        pieces = [Span(*pair, draw(st.sampled_from(State))) for pair in pairwise(edges)]
        found.append(clip(pieces, Window(0, 100)))
    return found


@settings(max_examples=examples(200))
@given(lines=_lines())
def test_a_step_for_each_change_finds_what_a_look_at_all_lines_finds(lines: list[list[Span]]) -> None:
    for decide in (any_up, all_up):
        assert combine_present(lines, decide) == combine(lines, decide)
    for together in (combine, combine_present):
        with pytest.raises(ValueError, match="different windows"):
            together([*lines, [Span(0, 99, State.UP)]], any_up)


def _run(series: str, *points: tuple[int, float]) -> tuple[Run, ...]:
    return tuple(Run(series, None if math.isnan(value) else value, at_ms, at_ms, 1) for at_ms, value in points)


def test_a_counter_rises_over_resets_and_gaps() -> None:
    runs = _run("c", (0, 5.0), (10, 7.0), (20, math.nan), (30, 2.0), (90, 3.5))
    assert increase(runs, Window(0, 100), began_ms=None) == Increase(2 + 2 + 1.5, 1)
    assert increase(runs, Window(0, 100), began_ms=0) == Increase(5.5, 1)
    # The counter existed before its first sample: it was zero at the group's first sample.
    assert increase(runs, Window(0, 100), began_ms=-1) == Increase(10.5, 1)
    assert increase(runs, Window(20, 31), began_ms=None) == Increase(2.0, 1)


def test_copies_of_a_gauge_fill_each_others_gaps_and_are_disputed_where_they_contradict_each_other() -> None:
    gauge = "brokergroup_group_writable"
    first = [Run(series_of(gauge, replica="a"), 1.0, 0, 90, 10), Run(series_of(gauge, replica="a"), 1.0, 200, 290, 10)]
    second = [Run(series_of(gauge, replica="b"), 1.0, 5, 95, 10), Run(series_of(gauge, replica="b"), 0.0, 105, 285, 18)]
    fleet = Fleet(by_series([*first, *second]), gap_ms=25)
    spans = fleet.spans(gauge, ORDERS, Window(0, 300), at_least(1))
    assert [(span.start_ms, span.end_ms, span.state.value) for span in spans] == [
        (0, 105, "up"), (105, 200, "down"), (200, 300, "disputed"),
    ]  # fmt: skip


def test_a_histogram_tells_bounds_of_a_quantile() -> None:
    buckets = {0.1: 2.0, 0.5: 9.0, 1.0: 10.0, math.inf: 10.0}
    assert histogram_quantile(buckets, 0.5) == (0.1, 0.5)
    assert histogram_quantile(buckets, 0.2) == (0.0, 0.1)
    assert histogram_quantile(buckets, 0.99) == (0.5, 1.0)
    assert histogram_quantile({math.inf: 0.0}, 0.5) is None


def test_a_gap_begins_one_millisecond_after_the_limit() -> None:
    for distance_ms, state in ((25, State.UP), (26, State.UNKNOWN)):
        runs = [Run("up", 1.0, 0, 0, 1), Run("up", 0.0, distance_ms, distance_ms, 1)]
        assert spans_of(runs, Window(0, 25), at_least(1), 25) == [Span(0, 25, state)]
    # A window that ends the limit after the last sample is known up to its end; one that ends later is not.
    assert spans_of(runs[:1], Window(0, 25), at_least(1), 25) == [Span(0, 25, State.UP)]
    assert spans_of(runs[:1], Window(0, 26), at_least(1), 25) == [Span(0, 26, State.UNKNOWN)]
    assert at_least(2)(2.0) is State.UP
    assert at_least(2)(1.0) is State.DOWN


@given(labels=_LABELS)
def test_text_and_parts_are_one(labels: dict[str, str]) -> None:
    text = series_text("up", labels)
    assert dict(parse_series(text).labels) == {name: value for name, value in labels.items() if value}
    assert canonical(text) == text


def test_a_text_in_another_order_is_the_same_series() -> None:
    assert canonical('up{b="2",a="1",c="",}') == 'up{a="1",b="2"}'
    assert canonical("up{}") == "up"
    assert parse_series('up{a="x\\ny"}') == Series("up", (("a", "x\ny"),))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "expected metric"),
        ('up{a="1"', "expected metric"),
        ('up{a="1"b="2"}', "expected label"),
        ('up{a="1",a="2"}', "label a stands twice"),
        ('up{a="\\x"}', "escape"),
        ('{"my.metric"}', "expected metric"),
    ],
)
def test_what_is_no_series_is_refused(text: str, expected: str) -> None:
    with pytest.raises(SeriesFormatError, match=expected):
        parse_series(text)


def test_names_are_checked() -> None:
    with pytest.raises(SeriesFormatError, match="metric name '1up'"):
        series_text("1up", {})
    with pytest.raises(SeriesFormatError, match=r"label name 'a\.b' of up"):
        series_text("up", {"a.b": "x"})


@pytest.mark.real("java")
@pytest.mark.timeout(600)
def test_the_jvm_says_the_same(spark: Any) -> None:
    values = ["plain", 'q"uote', "back\\slash", "line\nfeed", "\\n", '\\"', "\\\\n\n", 'x="y",z="', "é,{}"]
    planted = [("up", {"a": value, "b": "1", "empty": ""}) for value in values] + [
        ("up", {}),
        ("x:y", {"z": "1", "a": "2"}),
    ]
    texts = [(series_text(metric, labels), metric, labels) for metric, labels in planted]
    frame = spark.createDataFrame(texts, "text string, metric string, labels map<string,string>")
    rows = frame.select("*", metric_column(frame["text"]).alias("m"), labels_column(frame["text"]).alias("l")).collect()
    for row in rows:
        assert row["m"] == row["metric"]
        assert row["l"] == {name: value for name, value in row["labels"].items() if value}
    assert len(rows) == len(planted)
