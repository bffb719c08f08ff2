"""Answers of a server: read as columns or one sample at a time they say the same, and no broken byte is passed over."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sla_reports.readers.matrix import _careful, _plain, decode
from sla_reports.readers.selection import Selection
from tests.support.draws import examples

if TYPE_CHECKING:
    from sla_reports.readers.columns import Columns

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
    """NaN is no number, so values are compared as texts."""
    return [(row["series"], row["ts_ms"], repr(row["value"])) for one in found for row in one.rows().to_pylist()]


@settings(max_examples=examples(150))
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
    assert (rows(_careful(content, "x", Selection())[0]), _careful(content, "x", Selection())[1]) == (expected, [])
    packed = [
        (row["series"], one["ts_ms"], repr(one["value"]))
        for row in plain.packed().to_pylist()
        for one in row["samples"]
    ]
    assert packed == expected


@settings(max_examples=examples(400))
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
        assert (rows([plain]), []) == (
            rows(_careful(content, "x", Selection())[0]),
            _careful(content, "x", Selection())[1],
        )


def test_numbers_that_json_does_not_have_are_an_error() -> None:
    good = answer([[(1_790_812_800_000, "1"), (1_790_812_815_000, "1")]], (",", ":"))
    assert decode(good, "x")[1] == []
    for wrong in (
        b'[+1790812815.0,"1"]',
        b"[1790812815.0,1]",
        b'[1790812815.0,"1","1"]',
        b'[1790812815.0,"1"]1',
        b'[01790812815,"1"]',
    ):
        _, anomalies = decode(good.replace(b'[1790812815.0,"1"]', wrong), "x")
        assert [one.kind.value for one in anomalies] == ["not_an_answer"], wrong
    columns, _ = decode(good.replace(b'"1"]]', b'"nan"]]'), "x")
    assert math.isnan(columns[0].values[-1])
