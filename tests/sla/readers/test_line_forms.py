"""Each text form, without Spark: its samples, each broken input with its line, and that cuts never change what is read."""

from __future__ import annotations

import gzip
import json
import math
import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sla_reports.readers.contract import STALE_NAN_BITS, Anomaly, ExportFormatError
from sla_reports.readers.lines import parsed
from sla_reports.readers.openmetrics import OpenMetrics
from sla_reports.readers.splits import files_of, plan
from sla_reports.readers.tsdb_dump import TsdbDump
from sla_reports.readers.victoriametrics import VictoriaMetrics
from tests.support.draws import examples

if TYPE_CHECKING:
    from pathlib import Path

Rows = list[tuple[str, int, float]]
FORMS: dict[str, Any] = {"om": OpenMetrics, "dump": TsdbDump, "jsonl": VictoriaMetrics}
VM_LINE = '{"metric":{"__name__":"up"},"values":[1],"timestamps":[1790000000000]}'


def read(path: Path, *, split_bytes: int = 1 << 20) -> tuple[Rows, list[Anomaly]]:
    form = FORMS[path.name.removesuffix(".gz").rpartition(".")[2]]
    rows: Rows = []
    anomalies: list[Anomaly] = []
    for split in plan([path], split_bytes=split_bytes):
        for found in parsed(split, form()):
            if isinstance(found, pa.RecordBatch):
                rows += [
                    (row["series"], sample["ts_ms"], sample["value"])
                    for row in found.to_pylist()
                    for sample in row["samples"]
                ]
            else:
                anomalies.append(found)
    # A reader hands out samples in no order.
    return sorted(rows, key=lambda row: row[1]), anomalies


def written(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_openmetrics(tmp_path: Path) -> None:
    text = """\
# HELP up A help text with up{a="b"} 1 1790000000 in it.
# TYPE up gauge
up 1 1790000000
up{z="1",a="a b # {c} \\"d\\" \\\\ \\n"} -2.5e3 1790000000.123
up{a="",b="2"} +Inf 1790000001.5
lat_bucket{le="+Inf"} 3 1790000002 # {trace_id="7 8"} 0.67 1790000001.9
lat_bucket{le="1",x="y # {z"} NaN 1790000003
# EOF
"""
    rows, anomalies = read(written(tmp_path, "a.om", text))
    assert anomalies == []
    assert [(series, ts_ms) for series, ts_ms, _ in rows] == [
        ("up", 1790000000000),
        ('up{a="a b # {c} \\"d\\" \\\\ \\n",z="1"}', 1790000000123),
        ('up{b="2"}', 1790000001500),
        ('lat_bucket{le="+Inf"}', 1790000002000),
        ('lat_bucket{le="1",x="y # {z"}', 1790000003000),
    ]
    values = [value for _, _, value in rows]
    assert values[:4] == [1.0, -2500.0, math.inf, 3.0]
    assert math.isnan(values[4])


def test_tsdb_dump_with_labels_quoted_as_go_does_it(tmp_path: Path) -> None:
    text = '{__name__="up", a="tab\\t \\u00e9 \\xc3\\xa9 \\"q\\" \\\\n é"} 1e+06 1790000000123\n{__name__="up"} NaN 1790000000124\n'
    rows, anomalies = read(written(tmp_path, "a.dump", text))
    assert anomalies == []
    assert rows[0] == ('up{a="tab\t é é \\"q\\" \\\\n é"}', 1790000000123, 1e6)
    assert rows[1][:2] == ("up", 1790000000124)


def test_victoriametrics_with_stale_markers_and_infinities(tmp_path: Path) -> None:
    stamps = [1790000000000 + number for number in range(4)]
    metric = {"__name__": "up", "b": "2", "a": "1"}
    line = {"metric": metric, "values": [1, None, "-Infinity", 0.1], "timestamps": stamps}
    rows, anomalies = read(written(tmp_path, "a.jsonl", json.dumps(line)))
    assert anomalies == []
    assert {series for series, _, _ in rows} == {'up{a="1",b="2"}'}
    values = [value for _, _, value in rows]
    assert [values[0], values[2], values[3]] == [1.0, -math.inf, 0.1]
    assert struct.unpack("<Q", struct.pack("<d", values[1]))[0] == STALE_NAN_BITS


BROKEN = [
    ("om", "up 1 1790000000\n", 1, "missing_eof", "expected '# EOF'"),
    ("om", "", 1, "missing_eof", "the file ends with nothing"),
    ("om", "up 1 1790000000\n# EOF\nup 1 1790000001\n# EOF\n", 3, "after_eof", "goes on"),
    ("om", "up 1 1790000000\nup 1 17900", 2, "truncated", "expected a line feed"),
    ("om", "\nup 1\n# EOF\n", 2, "no_timestamp", "'up 1' has no timestamp"),
    ("om", 'up{a="b c"} 1\n# EOF\n', 1, "no_timestamp", "has no timestamp"),
    ("om", "what now\n# EOF\n", 1, "not_a_sample", "'what now'"),
    ("om", "what is this\n# EOF\n", 1, "not_a_number", "'what is this'"),
    ("om", '# c\n\nup{a="b} 1 1790000000\n# EOF\n', 3, "not_a_sample", "expected series value timestamp"),
    ("om", "<html>\n# EOF\n", 1, "not_a_sample", "<html>"),
    ("om", "up 1x 1790000000\n# EOF\n", 1, "not_a_number", "expected a number"),
    ("om", "up 0x1 1790000000\n# EOF\n", 1, "not_a_number", "expected a number"),
    ("om", "up 1 yesterday\n# EOF\n", 1, "not_a_timestamp", "expected seconds"),
    ("om", "up 1 1790000000000\n# EOF\n", 1, "wrong_time_unit", "expected seconds"),
    ("om", "up 1 NaN\n# EOF\n", 1, "wrong_time_unit", "expected seconds"),
    ("om", b'up 1 1790000000\nup{a="\xff"} 1 1790000000\n# EOF\n', 2, "not_utf8", "expected UTF-8"),
    ("dump", '{__name__="up"} 1 1790000000\n', 1, "wrong_time_unit", "expected milliseconds"),
    ("dump", '{__name__="up"} 1 1790000000000\n{__name__="up"} 1 179000000', 2, "truncated", "the file ends inside of"),
    ("dump", "up 1 1790000000000\n", 1, "not_a_sample", "expected series"),
    ("dump", '{a="b"} 1 1790000000000\n', 1, "not_a_sample", "expected series"),
    ("dump", '{__name__="up", a="b} 1 1790000000000\n', 1, "not_a_sample", "expected series"),
    ("dump", '{__name__="up"} one 1790000000000\n', 1, "not_a_number", "expected a number"),
    ("jsonl", f'{VM_LINE}\n{{"metric":{{"__na', 2, "truncated", "expected metric, values, timestamps"),
    ("jsonl", f'{{"metric":{{"__na\n{VM_LINE}\n', 1, "truncated", "expected metric, values, timestamps"),
    ("jsonl", VM_LINE.replace("[1]", "[1,2]"), 1, "length_mismatch", "2 values and 1 timestamps"),
    ("jsonl", VM_LINE.replace("[1]", '["one"]'), 1, "not_a_number", "expected numbers"),
    ("jsonl", VM_LINE.replace("[1]", '[{"a":1}]'), 1, "not_a_sample", "expected metric, values, timestamps"),
    ("jsonl", VM_LINE.replace("1790000000000", "1790000000"), 1, "wrong_time_unit", "expected milliseconds"),
    ("jsonl", VM_LINE.replace('"__name__":"up"', '"a":"b"'), 1, "not_a_sample", "metric name ''"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text", "line", "kind", "detail"), BROKEN)
def test_what_is_broken_is_told_with_its_line_wherever_the_file_is_cut(
    tmp_path: Path, form: str, text: str | bytes, line: int, kind: str, detail: str
) -> None:
    path = written(tmp_path, f"a.{form}", text)
    for split_bytes in (1 << 20, 7, 1):
        _, anomalies = read(path, split_bytes=split_bytes)
        first = min(anomalies, key=lambda one: one.line) if kind != "missing_eof" else anomalies[-1]
        assert (first.line, first.kind.value) == (line, kind), (split_bytes, anomalies)
        assert detail in first.detail
        assert str(first.as_error()).startswith(f"{path}:{line}: {kind}: ")


def test_a_broken_sample_takes_no_other_with_it(tmp_path: Path) -> None:
    good = [f"up {number} {1790000000 + number}\n" for number in range(50)]
    lines = [*good[:20], "up x 1790000000\n", "oops\n", *good[20:], "# EOF\n"]
    rows, anomalies = read(written(tmp_path, "a.om", "".join(lines)))
    assert [value for _, _, value in rows] == [float(number) for number in range(50)]
    assert [one.line for one in anomalies] == [21, 22]


def test_a_packed_file_that_ends_too_early_is_told(tmp_path: Path) -> None:
    text = "".join(f"up {number} {1790000000 + number}\n" for number in range(5000)) + "# EOF\n"
    packed = gzip.compress(text.encode())
    rows, anomalies = read(written(tmp_path, "a.om.gz", packed))
    assert (len(rows), anomalies) == (5000, [])
    _, anomalies = read(written(tmp_path, "b.om.gz", packed[: len(packed) // 2]))
    assert [one.kind.value for one in anomalies] == ["truncated"]


def test_paths_that_hold_nothing_are_named(tmp_path: Path) -> None:
    with pytest.raises(ExportFormatError, match=r"nowhere\.om: no such file"):
        files_of([tmp_path / "nowhere.om"])
    with pytest.raises(ExportFormatError, match="holds no files"):
        files_of([tmp_path], (".om",))


LABEL_VALUES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"], exclude_characters="\r\0"), max_size=6)
SAMPLES = st.lists(
    st.tuples(LABEL_VALUES, st.floats(allow_nan=False), st.integers(946_684_800_000, 4_102_444_799_999)), max_size=25
)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@settings(max_examples=examples(120), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(samples=SAMPLES, split_bytes=st.integers(1, 400), broken=st.lists(st.integers(0, 25), max_size=3))
def test_cuts_never_change_what_is_read(tmp_path: Path, samples: Any, split_bytes: int, broken: list[int]) -> None:
    lines = [f'up{{a="{_escaped(a)}"}} {value!r} {ts_ms // 1000}.{ts_ms % 1000:03d}\n' for a, value, ts_ms in samples]
    for at in broken:
        lines.insert(min(at, len(lines)), "broken\n")
    path = written(tmp_path, "a.om", "".join(lines) + "# EOF\n")
    rows, anomalies = read(path)
    series = ['up{a="%s"}' % _escaped(a) if a else "up" for a, _, _ in samples]  # noqa: UP031 - braces
    planted = [(name, ts_ms, value) for name, (_, value, ts_ms) in zip(series, samples, strict=True)]
    assert sorted(rows) == sorted(planted)
    assert len(anomalies) == len(broken)
    cut_rows, cut_anomalies = read(path, split_bytes=split_bytes)
    assert (sorted(cut_rows), cut_anomalies) == (sorted(rows), anomalies)
