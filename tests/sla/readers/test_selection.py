"""Series of others in every form: passed over and counted, ours beside them read or refused; and packed or listed answers."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from sla_reports.readers.contract import Anomaly, ExportFormatError
from sla_reports.readers.lines import parsed
from sla_reports.readers.matrix import decode
from sla_reports.readers.openmetrics import OpenMetrics
from sla_reports.readers.selection import Selection
from sla_reports.readers.splits import content_of, plan
from sla_reports.readers.tsdb_dump import TsdbDump
from sla_reports.readers.victoriametrics import VictoriaMetrics

if TYPE_CHECKING:
    from pathlib import Path

OWN = "brokergroup_group_writable"
AT = 1_790_812_800
FORMS: dict[str, Any] = {"om": OpenMetrics, "dump": TsdbDump, "jsonl": VictoriaMetrics}
OURS = {
    "om": f'{OWN}{{a="b"}} 1 {AT}',
    "dump": f'{{__name__="{OWN}", a="b"}} 1 {AT}000',
    "jsonl": f'{{"metric":{{"__name__":"{OWN}","a":"b"}},"values":[1],"timestamps":[{AT}000]}}',
}
ANSWER = {
    "status": "success",
    "data": {"resultType": "matrix", "result": [{"metric": {"__name__": OWN}, "values": [[AT, "1"]]}]},
}


def read(path: Path, selection: Selection) -> tuple[list[str], list[Anomaly]]:
    series: list[str] = []
    anomalies: list[Anomaly] = []
    form = FORMS[path.name.rpartition(".")[2]]
    for split in plan([path]):
        for found in parsed(split, form(selection)):
            if isinstance(found, pa.RecordBatch):
                series += [row["series"] for row in found.to_pylist()]
            else:
                anomalies.append(found)
    return series, anomalies


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


@pytest.mark.parametrize(("form", "line"), FOREIGN)
def test_a_line_of_others_is_passed_over_and_counted(form: str, line: str, tmp_path: Path) -> None:
    """Native histograms in a dump, +Inf in an export. Reports: prometheus #12775, VictoriaMetrics #3161."""
    path = tmp_path / f"a.{form}"
    end = "\n# EOF\n" if form == "om" else "\n"
    path.write_bytes(f"{OURS[form]}\n{line}\n{OURS[form]}{end}".encode("latin-1"))
    selection = Selection(frozenset({OWN}))
    assert read(path, selection) == ([f'{OWN}{{a="b"}}'] * (1 if form != "jsonl" else 2), [])
    assert len(selection.foreign) == 1


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("om", f'brokergroup_master_epoch{{a="b"}} 3 {AT}'),
        ("om", f"brokergroup_failover_phase_seconds_count 3 {AT}"),
        ("dump", f'{{__name__="brokergroup_master_epoch"}} {{count:1, sum:1}} {AT}000'),
        ("jsonl", f'{{"metric":{{"__name__":"brokergroup_master_epoch"}},"values":[1],"timestamps":[{AT}000]}}'),
    ],
)
def test_a_series_of_the_operator_that_a_report_does_not_read_is_passed_over_and_is_none_of_others(
    form: str, line: str, tmp_path: Path
) -> None:
    path = tmp_path / f"a.{form}"
    path.write_text(f"{line}\n{OURS[form]}\n" + ("# EOF\n" if form == "om" else ""))
    selection = Selection(frozenset({OWN}))
    assert read(path, selection) == ([f'{OWN}{{a="b"}}'], [])
    assert selection.foreign == set()


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
    _, anomalies = read(path, Selection(frozenset({OWN})))
    assert said in str(anomalies[0].as_error())
    assert f"a.{form}:2: " in str(anomalies[0].as_error())


def test_a_label_of_ours_with_any_name_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.dump").write_text(f'{{__name__="{OWN}", "k8s.pod_x"="y"}} 1 {AT}000\n')
    assert read(tmp_path / "a.dump", Selection())[0] == [f'{OWN}{{U__k8s_2e_pod__x="y"}}']


def test_answers_in_a_list_on_lines_packed_and_with_others(tmp_path: Path) -> None:
    """The array that `promtool query range -o json` writes, among others. Reports: prometheus #4848."""
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
        columns, anomalies = decode(content_of(tmp_path / "a.json"), "x", selection)
        assert (sum(map(len, columns)), anomalies, len(selection.foreign)) == (expected, [], others), content[:60]
    for mark in (b'"isPartial":true,', b'"warnings":["store away"],'):
        part = whole.replace(b"{", b"{" + mark, 1)
        for content in (part, b"[" + whole + b"," + part + b"]"):
            assert [one.kind.value for one in decode(content, "x")[1]] == ["partial_answer"]
            accepted = Selection(accept_partial=True)
            assert decode(content, "x", accepted)[1] == []
            assert len(accepted.lacks) == 1
    assert decode(whole.replace(b"{", b'{"infos":["a remark"],"warnings":null,"isPartial":false,', 1), "x")[1] == []


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
