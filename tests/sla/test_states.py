"""What series and incident logs say: states over time, instant by instant against the rule; counters; every line of a log."""

from __future__ import annotations

import datetime as dt
import json
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokergroup_operator.observe.incidents import (
    Circumstance,
    IncidentFile,
    IncidentLog,
    circumstance_to_json,
    circumstances_beside,
    incident_to_json,
)
from brokergroup_operator.observe.timeline import Outcome, Step
from sla_reports.readers.samples import ExportFormatError
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
from sla_reports.states.logged import Circumstance as LoggedCircumstance
from sla_reports.states.logged import read_logs
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
from tests.observe.test_metrics import KEY, timeline
from tests.sla.histories import INTERVAL_MS, START_MS, Sample, histories, instants, runs_of, series_of, state_at
from tests.support.draws import examples

if TYPE_CHECKING:
    from pathlib import Path

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


def line(**changes: Any) -> str:
    return json.dumps({**incident_to_json(timeline()), **changes}) + "\n"


async def test_what_the_operator_writes_is_read_with_all_that_was_rotated_away(tmp_path: Path) -> None:
    path = tmp_path / "incidents.jsonl"
    log = IncidentLog(path, written_by="operator-0", max_bytes=1500, kept_files=3)
    log.start()
    for epoch in range(10, 16):
        log.incident_closed(timeline(epoch_after=epoch, started_at_unix_seconds=1_780_000_000.5 + epoch))
    log.master_lost(timeline(epoch_after=None, outcome=Outcome.RUNNING, steps={Step.DETECTED: 100.0}))
    await log.stop()
    found = read_logs([path])
    assert found.unreadable == ()
    assert [one.id.rpartition("/")[2] for one in found.incidents[1:]] == ["10", "11", "12", "13", "14", "15"]
    assert [one.outcome for one in found.incidents] == ["running"] + ["completed"] * 6
    first = found.incidents[1]
    assert first.started_at_ms == 1_780_000_010_500
    assert (first.id, first.group) == ("default/orders/10", GroupKey("default", "DefaultCluster", "orders"))
    assert (first.detection_ms, first.end_ms, first.steps_ms["roleChanged"]) == (3000.0, 1_780_000_010_700, 200.0)
    assert first.evidence == ()


def test_the_note_of_what_has_ended_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "incidents.jsonl"
    path.write_text(line())
    begun = timeline(epoch_after=None, outcome=Outcome.RUNNING, steps={Step.DETECTED: 100.0})
    IncidentFile(path).note_open([incident_to_json(begun)])
    assert [one.outcome for one in read_logs([path]).incidents] == ["completed"]


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        ({"outcome": "interrupted", "censored": True}, {}),
        # Seen on two nodes: the end of a switchover of 0.9 s could not be written, and the pod that took over logged 5.7 s.
        ({"durationMilliseconds": 5695.3}, {"durationMilliseconds": 938.4}),
    ],
    ids=["not whole", "told later"],
)
def test_of_two_pods_lines_the_whole_one_wins_and_of_two_whole_ones_the_first_told(
    tmp_path: Path, worse: dict[str, Any], better: dict[str, Any]
) -> None:
    for pod, changes in (("worse", worse), ("better", better)):
        (tmp_path / pod).mkdir()
        (tmp_path / pod / "incidents.jsonl").write_text(line(**changes, trigger=pod))
    for order in (("worse", "better"), ("better", "worse")):
        [one] = read_logs([tmp_path / pod for pod in order]).incidents
        assert (one.trigger, one.outcome) == ("better", "completed")


def test_older_versions_are_still_read_and_a_newer_cause_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "incidents.jsonl"
    for version, cause, known in ((1, None, "unknown"), (2, "crash", "crash"), (3, "of a newer operator", "unknown")):
        old = incident_to_json(timeline()) | {"schemaVersion": version, "cause": cause}
        path.write_text(json.dumps(old) + "\n")
        [one] = read_logs([path]).incidents
        assert one.cause == known


def _noted(minutes: int) -> str:
    began = dt.datetime(2026, 11, 21, 0, 10, tzinfo=dt.UTC)
    told = Circumstance(
        group=KEY, cluster_name="DefaultCluster", broker_name="orders", broker_id=1, cause="disk", what="DiskPressure",
        started_at=began, ended_at=began + dt.timedelta(minutes=minutes), pod="orders-1", node="node-1", message="full",
    )  # fmt: skip
    return json.dumps(circumstance_to_json(told)) + "\n"


def test_circumstances_are_read_from_beside_the_log_and_from_within_it(tmp_path: Path) -> None:
    path = tmp_path / "incidents.jsonl"
    beside = circumstances_beside(path)
    path.write_text(line())
    beside.with_name(f"{beside.name}.1").write_text(_noted(0))
    beside.write_text(_noted(10) + _noted(5))
    shipped = tmp_path / "shipped" / "all.jsonl"
    shipped.parent.mkdir()
    shipped.write_text(_noted(5) + line() + _noted(10))
    for told in ([path], [tmp_path], [shipped], [path, shipped]):
        found = read_logs(told)
        assert len(found.incidents) == 1
        [one] = found.circumstances
        assert one == LoggedCircumstance(
            "disk", 1_795_219_800_000, 1_795_220_400_000, GroupKey("default", "DefaultCluster", "orders"),
            broker_id=1, note="DiskPressure: full",
        )  # fmt: skip


def test_a_circumstance_of_a_newer_operator_proves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "incidents.jsonl"
    path.write_text(_noted(0).replace('"cause": "disk"', '"cause": "meteor"'))
    [one] = read_logs([path]).circumstances
    assert (one.cause, one.note) == ("unknown", "DiskPressure: full")


def test_a_torn_line_is_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "incidents.jsonl"
    path.write_text('{"schemaVersion": 2, "id": "def\n' + line())
    found = read_logs([path])
    assert len(found.incidents) == 1
    assert [(one.line, one.kind.value) for one in found.unreadable] == [(1, "truncated")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (line(schemaVersion=99), "Expected `int` <= 3 - at `$.schemaVersion`"),
        (line(schemaVersion=None), "Expected `int`, got `null` - at `$.schemaVersion`"),
        (line(id=None), "Expected `str`, got `null` - at `$.id`"),
        (line().replace('"id"', '"name"', 1), "missing required field `id`"),
        (line(**{"from": "one"}), "got `str` - at `$.from`"),
        (line(epoch=True), "got `bool` - at `$.epoch`"),
        (line(unfenced="no"), "got `str` - at `$.unfenced`"),
        (line(startedAt="yesterday"), "Invalid RFC3339 encoded datetime - at `$.startedAt`"),
        (line(startedAt="2026-05-28T20:26:40.500"), "with a timezone component - at `$.startedAt`"),
        (line(brokerName=None, name=None), "brokerName: missing"),
        (line(stepsMilliseconds={"detected": "soon"}), "Expected `float`, got `str` - at `$.stepsMilliseconds[...]`"),
        (line(detectionMilliseconds=-1000.0), "Expected `float` >= 0.0 - at `$.detectionMilliseconds`"),
        (line(detectionMilliseconds=40 * 86_400_000.0),
         "Expected `float` <= 604800000.0 - at `$.detectionMilliseconds`"),
        (line(durationMilliseconds=-1), "Expected `float` >= 0.0 - at `$.durationMilliseconds`"),
        (line(truncatedBytes=-5), "Expected `int` >= 0 - at `$.truncatedBytes`"),
        (line(stepsMilliseconds={"detected": 0.0, "inSync": -1}),
         "Expected `float` >= 0.0 - at `$.stepsMilliseconds[...]`"),
        (_noted(0).replace('"endedAt"', '"gone"'), "missing required field `endedAt`"),
        (_noted(0).replace('"cause"', '"gone"'), "missing required field `cause`"),
        (_noted(0).replace('"brokerId": 1', '"brokerId": "1"'), "got `str` - at `$.brokerId`"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_incident_or_tells_what_nothing_can_take_is_an_error_with_its_line(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "incidents.jsonl"
    path.write_text(line() + text)
    with pytest.raises(ExportFormatError) as told:
        read_logs([path])
    assert str(told.value).startswith(f"{path}:2: ")
    assert message in str(told.value)


def test_a_log_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportFormatError, match="no such file"):
        read_logs([tmp_path / "incidents.jsonl"])
