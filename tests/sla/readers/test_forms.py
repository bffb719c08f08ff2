"""Each text form, without Spark: its samples, each broken input with its line; splits and ways to read never change the result."""

from __future__ import annotations

import gzip
import json
import math
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metric_names import GROUP_WRITABLE as OWN
from sla_reports.readers import samples as under_test
from sla_reports.readers.json_forms import VictoriaMetrics, _careful, _plain, decode
from sla_reports.readers.lines import content_of, files_of, parsed, plan
from sla_reports.readers.samples import (
    STALE_NAN_BITS,
    Anomaly,
    Columns,
    ExportFormatError,
    Selection,
    numbers,
    of_each,
    pieces,
)
from sla_reports.readers.text import OpenMetrics, TsdbDump
from tests.support.draws import examples

if TYPE_CHECKING:
    from pathlib import Path

Rows = list[tuple[str, int, float]]
FORMS: dict[str, Any] = {"om": OpenMetrics, "dump": TsdbDump, "jsonl": VictoriaMetrics}
VM_LINE = '{"metric":{"__name__":"up"},"values":[1],"timestamps":[1790000000000]}'
AT = 1_790_812_800
OURS = {
    "om": f'{OWN}{{a="b"}} 1 {AT}',
    "dump": f'{{__name__="{OWN}", a="b"}} 1 {AT}000',
    "jsonl": f'{{"metric":{{"__name__":"{OWN}","a":"b"}},"values":[1],"timestamps":[{AT}000]}}',
}


def read(path: Path, *, split_bytes: int = 1 << 20, selection: Selection | None = None) -> tuple[Rows, list[Anomaly]]:
    form = FORMS[path.name.removesuffix(".gz").rpartition(".")[2]]
    rows: Rows = []
    anomalies: list[Anomaly] = []
    for split in plan([path], split_bytes=split_bytes):
        for found in parsed(split, form(selection)):
            if isinstance(found, pa.RecordBatch):
                rows += [
                    (row["series"], sample["ts_ms"], sample["value"])
                    for row in found.to_pylist()
                    for sample in row["samples"]
                ]
            else:
                anomalies.append(found)
    # A reader yields samples in any order.
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


@pytest.mark.sampled
@settings(max_examples=examples(40, 120), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(samples=SAMPLES, split_bytes=st.integers(1, 400), broken=st.lists(st.integers(0, 25), max_size=3))
def test_cuts_never_change_what_is_read(tmp_path: Path, samples: Any, split_bytes: int, broken: list[int]) -> None:
    lines = [f'up{{a="{_escaped(a)}"}} {value!r} {ts_ms // 1000}.{ts_ms % 1000:03d}\n' for a, value, ts_ms in samples]
    for at in broken:
        lines.insert(min(at, len(lines)), "broken\n")
    path = written(tmp_path, "a.om", "".join(lines) + "# EOF\n")
    rows, anomalies = read(path)
    series = ['up{a="%s"}' % _escaped(a) if a else "up" for a, _, _ in samples]  # noqa: UP031
    planted = [(name, ts_ms, value) for name, (_, value, ts_ms) in zip(series, samples, strict=True)]
    assert sorted(rows) == sorted(planted)
    assert len(anomalies) == len(broken)
    cut_rows, cut_anomalies = read(path, split_bytes=split_bytes)
    assert (sorted(cut_rows), cut_anomalies) == (sorted(rows), anomalies)


def read_selected(path: Path, selection: Selection) -> tuple[list[str], list[Anomaly]]:
    rows, anomalies = read(path, selection=selection)
    return [series for series, _, _ in rows], anomalies


FOREIGN = [
    ("om", f"other 1 {AT}"),
    ("om", f'{{"http.server.duration",le="1"}} 3 {AT}'),
    ("om", f'other{{"k8s.pod"="x"}} 3 {AT} # {{trace_id="1"}} 1'),
    ("om", f"other {{count:3,sum:1.5,schema:0}} {AT}"),
    ("om", 'other{a="b"} 1'),
    ("om", f"other nonsense {AT}"),
    ("om", "other_created 1 99999999999999"),
    ("dump", f'{{__name__="h", code="200"}} {{count:822093, sum:4.9, [-0.05,0.05]:3409}} {AT}000'),
    ("dump", f'{{__name__="a.b", "k8s.pod"="x"}} +Inf {AT}000'),
    ("dump", f'{{__name__="other"}} 0x1 {AT}000'),
    ("dump", f'{{__name__="other", a="\xff"}} 1 {AT}000'),
    ("jsonl", '{"metric":{"__name__":"cpu-load","host":"w"},"values":[0.5],"timestamps":[1]}'),
    ("jsonl", '{"metric":{"__name__":"other","host":"{\\"}"},"values":[+Inf,NaN],"timestamps":[1,2]}'),
    ("jsonl", '{"metric":{"__name__":"other"},"values":[{"a":1}],"timestamps":[1]}'),
    ("jsonl", '{"metric":{"host":"w"},"values":["Infinity",1],"timestamps":[1]}'),
]


# The operator's own, which no report reads.
NOT_READ = [
    ("om", f'brokergroup_master_epoch{{a="b"}} 3 {AT}'),
    ("om", f"brokergroup_failover_phase_seconds_count 3 {AT}"),
    ("dump", f'{{__name__="brokergroup_master_epoch"}} {{count:1, sum:1}} {AT}000'),
    ("jsonl", f'{{"metric":{{"__name__":"brokergroup_master_epoch"}},"values":[1],"timestamps":[{AT}000]}}'),
]


@pytest.mark.parametrize(
    ("form", "line", "foreign"), [*((*one, 1) for one in FOREIGN), *((*one, 0) for one in NOT_READ)]
)
def test_a_line_of_others_is_passed_over_and_counted(form: str, line: str, foreign: int, tmp_path: Path) -> None:
    """Native histograms in a dump, +Inf in an export. Reports: prometheus #12775, VictoriaMetrics #3161."""
    path = tmp_path / f"a.{form}"
    end = "\n# EOF\n" if form == "om" else "\n"
    path.write_bytes(f"{OURS[form]}\n{line}\n{OURS[form]}{end}".encode("latin-1"))
    selection = Selection(frozenset({OWN}))
    assert read_selected(path, selection) == ([f'{OWN}{{a="b"}}'] * 2, [])
    assert len(selection.foreign) == foreign


@pytest.mark.parametrize(
    ("form", "line", "said"),
    [
        ("om", f"{OWN} one {AT}", "not_a_number: value of"),
        ("om", "<html>", "not_a_sample"),
        ("om", "error: connection refused", "not_a_"),
        ("dump", f'{{__name__="{OWN}"}} {{count:1, sum:1}} {AT}000', "not_a_"),
        ("jsonl", OURS["jsonl"].replace("[1]", "[+Inf]"), "not_a_sample"),
        ("jsonl", '{"status":"error","error":"no storage"}', "no storage"),
        ("jsonl", OURS["jsonl"].replace('{"metric"', '{"isPartial":true,"metric"'), "partial_answer"),
    ],
)
def test_what_is_ours_or_no_series_at_all_is_an_error_with_its_line(
    form: str, line: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / f"a.{form}"
    path.write_text(f"{OURS[form]}\n{line}\n" + ("# EOF\n" if form == "om" else ""))
    _, anomalies = read_selected(path, Selection(frozenset({OWN})))
    assert said in str(anomalies[0].as_error())
    assert f"a.{form}:2: " in str(anomalies[0].as_error())


def test_a_label_of_ours_with_any_name_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.dump").write_text(f'{{__name__="{OWN}", "k8s.pod_x"="y"}} 1 {AT}000\n')
    assert read_selected(tmp_path / "a.dump", Selection())[0] == [f'{OWN}{{U__k8s_2e_pod__x="y"}}']


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(b"[]" * 500)[:20], "truncated"),
        (b"\x28\xb5\x2f\xfd1234", "packed by zstd"),
        (b"\xff\xfe[\x00", "UTF-16"),
        (b"PK\x03\x04zip", "zip archive"),
        (b"BZh9", "packed by bzip2"),
    ],
    ids=["gzip", "zstd", "utf-16", "zip", "bzip2"],
)
def test_what_cannot_be_unpacked_is_told_by_its_first_bytes(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ExportFormatError, match=said):
        content_of(tmp_path / "a.json")


@pytest.mark.parametrize("most", [1, 3, 1 << 16])
@pytest.mark.parametrize("codes", [[0, 0, 0, 1, 1], [1, 0, 2, 1, 0, 2, 1], [2] * 7, []])
def test_packed_rows_hold_each_sample_once_and_in_order(
    codes: list[int], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "_SAMPLES_A_ROW", most)
    count = len(codes)
    made = Columns(["a", "b", "c"], np.array(codes, np.int32), np.arange(count) + 7, np.arange(count) / 2)
    packed = made.packed().to_pylist()
    found = [(row["series"], one["ts_ms"], one["value"]) for row in packed for one in row["samples"]]
    expected = [(row["series"], row["ts_ms"], row["value"]) for row in made.rows().to_pylist()]
    assert found == sorted(expected)
    assert all(len(row["samples"]) <= most for row in packed)
    kept = made.where(np.array(codes, np.int32) == 1)
    assert kept.rows().to_pylist() == [row for row in made.rows().to_pylist() if row["series"] == "b"]


def _pieces_of(text: str, *spans: tuple[int, int]) -> pa.StringArray:
    begins, ends = (np.array([span[at] for span in spans], dtype=np.int64) for at in (0, 1))
    return pieces(text.encode(), begins, ends)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 8, 9])
def test_each_piece_is_at_its_place(count: int) -> None:
    text = "".join(f"<{number}>no" for number in range(count)) + "end"
    found = _pieces_of(text, *((5 * number + 1, 5 * number + 2) for number in range(count)))
    assert found[::2].to_pylist() == [str(number) for number in range(count)]
    assert found[1::2].to_pylist() == [None] * count
    assert numbers(found).tolist() == [float(number) for number in range(count)]


def test_neighbours_and_empty_pieces_are_pieces() -> None:
    found = _pieces_of("abcé", (0, 1), (1, 1), (1, 3), (3, 5))
    assert found[::2].to_pylist() == ["a", "", "bc", "é"]


def test_what_is_equal_has_one_code() -> None:
    encoded = _pieces_of("up 1 down 2 up 3", (0, 2), (5, 9), (12, 14)).dictionary_encode()
    assert encoded.dictionary.to_pylist() == ["up", "down"]
    assert of_each(encoded.indices).tolist() == [0, 1, 0]


def test_not_a_number_is_one_and_a_piece_that_is_none_is_an_error() -> None:
    assert np.isnan(numbers(_pieces_of("NaN", (0, 3)))).tolist() == [True]
    with pytest.raises(pa.ArrowInvalid):
        numbers(_pieces_of("1 x", (0, 1), (2, 3)))


TextRows = list[tuple[str, int, str]]

VALUES = st.sampled_from(["0", "1", "-2.5", "1e-05", "NaN", "+Inf", "-Inf", "3.0000000000000004"])
ANSWERED = st.lists(st.tuples(st.integers(946_684_800_000, 4_102_444_799_999), VALUES), max_size=6)
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": ")])


def answer(entries: list[list[tuple[int, str]]], separators: tuple[str, str], **metric: str) -> bytes:
    result: list[dict[str, Any]] = [
        {
            "metric": {"__name__": f"up{number}", **metric},
            "values": [[at_ms / 1000, value] for at_ms, value in samples],
        }
        for number, samples in enumerate(entries)
    ]
    told = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    return json.dumps(told, separators=separators, ensure_ascii=False).encode()


def texts_of(found: list[Columns]) -> TextRows:
    """Return texts_of with values as texts, since NaN equals no number."""
    return [(row["series"], row["ts_ms"], repr(row["value"])) for one in found for row in one.rows().to_pylist()]


@pytest.mark.sampled
@settings(max_examples=examples(50, 150))
@given(entries=st.lists(ANSWERED, max_size=4), separators=SEPARATORS)
def test_a_whole_answer_is_read_as_columns(entries: list[list[tuple[int, str]]], separators: tuple[str, str]) -> None:
    content = answer(entries, separators, a="é, [")
    plain = _plain(content, Selection())
    assert plain is not None
    expected = [
        (f'up{number}{{a="é, ["}}', at_ms, repr(float(value)))
        for number, samples in enumerate(entries)
        for at_ms, value in samples
    ]
    assert texts_of([plain]) == expected
    assert texts_of(_careful(content, Selection())) == expected
    packed = [
        (row["series"], one["ts_ms"], repr(one["value"]))
        for row in plain.packed().to_pylist()
        for one in row["samples"]
    ]
    assert packed == expected


@pytest.mark.sampled
@settings(max_examples=examples(130, 400))
@given(
    samples=st.lists(ANSWERED, min_size=1, max_size=3),
    separators=SEPARATORS,
    at=st.integers(0, 10_000),
    byte=st.sampled_from(sorted(b'0123456789.,"[]{} -+eNaI\\\n\xff')),
    how=st.sampled_from(["replace", "insert", "delete"]),
)
def test_an_answer_with_a_wrong_byte_says_the_same_either_way(
    samples: list[list[tuple[int, str]]], separators: tuple[str, str], at: int, byte: int, how: str
) -> None:
    content = answer(samples, separators)
    at %= len(content)
    rest = content[at:] if how == "insert" else content[at + 1 :]
    content = content[:at] + (b"" if how == "delete" else bytes([byte])) + rest
    plain = _plain(content, Selection())
    if plain is not None:
        assert texts_of([plain]) == texts_of(_careful(content, Selection()))


def test_numbers_that_json_does_not_have_are_an_error() -> None:
    good = answer([[(1_790_812_800_000, "1"), (1_790_812_815_000, "1")]], (",", ":"))
    assert sum(map(len, decode(good, "x"))) == 2
    for wrong in (
        b'[+1790812815.0,"1"]',
        b"[1790812815.0,1]",
        b'[1790812815.0,"1","1"]',
        b'[1790812815.0,"1"]1',
        b'[01790812815,"1"]',
    ):
        with pytest.raises(ExportFormatError, match=r"^x: not_an_answer: "):
            decode(good.replace(b'[1790812815.0,"1"]', wrong), "x")
    [columns] = decode(good.replace(b'"1"]]', b'"nan"]]'), "x")
    assert math.isnan(columns.values[-1])


ANSWER = {
    "status": "success",
    "data": {"resultType": "matrix", "result": [{"metric": {"__name__": OWN}, "values": [[AT, "1"]]}]},
}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"matrix"', '"vector"', "not_an_answer: data.resultType is 'vector'"),
        ('"status": "success", ', "", "not_an_answer: has no member status"),
        ('"success"', '"error", "errorType": "timeout", "error": "query timed out"',
         "not_an_answer: .*timeout query timed out"),
        ('"success"', '"success", "warnings": ["store away"]', "partial_answer: the server warns: store away"),
        (f"[{AT}, ", f"[{AT}000, ", "wrong_time_unit"),
        ('"1"', '"one"', "not_a_number"),
        ('"values": ', '"histograms": ', "not_a_sample: .* is a native histogram"),
        (json.dumps(ANSWER)[16:], "", "truncated"),
        (json.dumps(ANSWER), "<html>", "not_an_answer"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_answer_is_told(old: str, new: str, said: str) -> None:
    whole = json.dumps(ANSWER)
    assert old in whole
    with pytest.raises(ExportFormatError, match=f"^x: {said}"):
        decode(whole.replace(old, new).encode(), "x")


def test_answers_in_a_list_on_lines_packed_and_with_others(tmp_path: Path) -> None:
    """Such as the array that `promtool query range -o json` writes. Reports: prometheus #4848."""
    whole = json.dumps(ANSWER).encode()
    foreign = b'{"metric":{"__name__":"a.b"},"histograms":[[1,{}]]},{"metric":{"__name__":"o"},"values":[[1,+Inf]]},'
    series = json.dumps(ANSWER["data"]["result"]).encode()  # type: ignore[index]
    for content, expected, others in (
        (whole, 1, 0), (b"[" + whole + b"," + whole + b"]", 2, 0), (whole + b"\n" + whole + b"\n", 2, 0), (series, 1, 0),
        (b"\xef\xbb\xbf" + series, 1, 0), (gzip.compress(whole), 1, 0),
        (gzip.compress(b"[") + gzip.compress(whole[:0] + series[1:]), 1, 0),
        (whole.replace(b'"result": [', b'"result": [' + foreign), 1, 2), (b"[]", 0, 0),
    ):  # fmt: skip
        (tmp_path / "a.json").write_bytes(content)
        selection = Selection(frozenset({OWN}))
        columns = decode(content_of(tmp_path / "a.json"), "x", selection)
        assert (sum(map(len, columns)), len(selection.foreign)) == (expected, others), content[:60]
    for mark in (b'"isPartial":true,', b'"warnings":["store away"],'):
        part = whole.replace(b"{", b"{" + mark, 1)
        for content in (part, b"[" + whole + b"," + part + b"]"):
            with pytest.raises(ExportFormatError, match="partial_answer: "):
                decode(content, "x")
            accepted = Selection(accept_partial=True)
            assert sum(map(len, decode(content, "x", accepted))) > 0
            assert len(accepted.lacks) == 1
    remarked = whole.replace(b"{", b'{"infos":["a remark"],"warnings":null,"isPartial":false,', 1)
    assert sum(map(len, decode(remarked, "x"))) == 1
