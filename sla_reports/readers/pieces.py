"""Pieces of a text as an Arrow array that points into it: no text is copied, and none is made for Python.

In an array of texts each one ends where the next begins. So what is between two pieces is an element as well, but a null one, and
Arrow's kernels pass over those: piece i is element 2 i.
"""

import numpy as np
import pyarrow as pa

# Validity bits of four pieces, the lowest first: valid, null, valid, null and so on.
_FOUR_PIECES = 0b01010101


def pieces(content: bytes, begins: np.ndarray, ends: np.ndarray) -> pa.StringArray:
    """The pieces [begins[i], ends[i]) of UTF-8; they stand in their order and do not overlap."""
    count = len(begins)
    offsets = np.empty(2 * count + 1, dtype=np.int32)
    offsets[0:-1:2] = begins
    offsets[1::2] = ends
    offsets[-1] = ends[-1] if count else 0
    valid = np.full(count // 4 + 1, _FOUR_PIECES, dtype=np.uint8)
    return pa.StringArray.from_buffers(2 * count, pa.py_buffer(offsets), pa.py_buffer(content), pa.py_buffer(valid))


def numbers(texts: pa.StringArray) -> np.ndarray:
    """The number that each piece is. Raises ArrowInvalid if one is none."""
    return of_each(texts.cast(pa.float64()))


def of_each(made: pa.Array) -> np.ndarray:
    """What a kernel has made of the pieces: a number for each."""
    return np.ascontiguousarray(made.fill_null(0).to_numpy()[::2])
