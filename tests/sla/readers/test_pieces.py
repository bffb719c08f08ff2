"""Pieces of a text as an Arrow array: each is there, at its place, and what is between two of them is never looked at."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from sla_reports.readers.pieces import numbers, of_each, pieces


def _of(text: str, *spans: tuple[int, int]) -> pa.StringArray:
    begins, ends = (np.array([span[at] for span in spans], dtype=np.int64) for at in (0, 1))
    return pieces(text.encode(), begins, ends)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 8, 9])
def test_each_piece_is_at_its_place(count: int) -> None:
    text = "".join(f"<{number}>no" for number in range(count)) + "end"
    found = _of(text, *((5 * number + 1, 5 * number + 2) for number in range(count)))
    assert found[::2].to_pylist() == [str(number) for number in range(count)]
    assert found[1::2].to_pylist() == [None] * count
    assert numbers(found).tolist() == [float(number) for number in range(count)]


def test_neighbours_and_empty_pieces_are_pieces() -> None:
    found = _of("abcé", (0, 1), (1, 1), (1, 3), (3, 5))
    assert found[::2].to_pylist() == ["a", "", "bc", "é"]


def test_what_is_equal_has_one_code() -> None:
    encoded = _of("up 1 down 2 up 3", (0, 2), (5, 9), (12, 14)).dictionary_encode()
    assert encoded.dictionary.to_pylist() == ["up", "down"]
    assert of_each(encoded.indices).tolist() == [0, 1, 0]


def test_not_a_number_is_one_and_a_piece_that_is_none_is_an_error() -> None:
    assert np.isnan(numbers(_of("NaN", (0, 3)))).tolist() == [True]
    with pytest.raises(pa.ArrowInvalid):
        numbers(_of("1 x", (0, 1), (2, 3)))
