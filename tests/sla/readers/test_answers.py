"""Answers of a server: reading by column and by sample gives the same, and no broken byte is ignored."""

from __future__ import annotations

import gzip
import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metric_names import GROUP_WRITABLE as OWN
from sla_reports.readers.json_forms import _careful, _plain, decode
from sla_reports.readers.lines import content_of
from sla_reports.readers.samples import ExportFormatError, Selection
from tests.support.draws import examples

if TYPE_CHECKING:
    from pathlib import Path

    from sla_reports.readers.samples import Columns

AT = 1_790_812_800
Rows = list[tuple[str, int, str]]

VALUES = st.sampled_from(["0", "1", "-2.5", "1e-05", "NaN", "+Inf", "-Inf", "3.0000000000000004"])
SAMPLES = st.lists(st.tuples(st.integers(946_684_800_000, 4_102_444_799_999), VALUES), max_size=6)
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


def rows(found: list[Columns]) -> Rows:
    """Return rows with values as texts, since NaN equals no number."""
    return [(row["series"], row["ts_ms"], repr(row["value"])) for one in found for row in one.rows().to_pylist()]


@pytest.mark.sampled
@settings(max_examples=examples(50, 150))
@given(entries=st.lists(SAMPLES, max_size=4), separators=SEPARATORS)
def test_a_whole_answer_is_read_as_columns(entries: list[list[tuple[int, str]]], separators: tuple[str, str]) -> None:
    content = answer(entries, separators, a="é, [")
    plain = _plain(content, Selection())
    assert plain is not None
    expected = [
        (f'up{number}{{a="é, ["}}', at_ms, repr(float(value)))
        for number, samples in enumerate(entries)
        for at_ms, value in samples
    ]
    assert rows([plain]) == expected
    assert rows(_careful(content, Selection())) == expected
    packed = [
        (row["series"], one["ts_ms"], repr(one["value"]))
        for row in plain.packed().to_pylist()
        for one in row["samples"]
    ]
    assert packed == expected


@pytest.mark.sampled
@settings(max_examples=examples(130, 400))
@given(
    samples=st.lists(SAMPLES, min_size=1, max_size=3),
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
        assert rows([plain]) == rows(_careful(content, Selection()))


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
        (
            '"success"',
            '"error", "errorType": "timeout", "error": "query timed out"',
            "not_an_answer: .*timeout query timed out",
        ),
        ('"success"', '"success", "warnings": ["store away"]', "partial_answer: the server warns: store away"),
        (f"[{AT}, ", f"[{AT}000, ", "wrong_time_unit"),
        ('"1"', '"one"', "not_a_number"),
        ('"values": ', '"histograms": ', "not_a_sample: .* is a native histogram"),
        (json.dumps(ANSWER)[16:], "", "truncated"),
        (json.dumps(ANSWER), "<html>", "not_an_answer"),
    ],
)
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
