"""A series has one text, both ways, in Python and in the JVM."""

from typing import Any

import pytest
from hypothesis import given
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

_VALUES = st.text(alphabet=st.sampled_from('a"\\n\n,={}é '), max_size=6)
_LABELS = st.dictionaries(st.sampled_from(["a", "b_1", "zone", "le"]), _VALUES, max_size=4)


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
