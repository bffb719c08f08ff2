"""The size of a test's draw: a sample in `make test`, the whole in `make proofs`, twelve times as much by night.

By day hypothesis draws the same examples each time. A failing draw by night prints a line to put above its test
(`@reproduce_failure`), until it becomes an `@example`.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, TypeVar

from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")

# Set by `make test-nightly`.
NIGHTLY = os.environ.get("BROKERGROUP_NIGHTLY") == "1"
# Set by the lane `whole`: tests marked `sampled` run in their whole form.
WHOLE = NIGHTLY or os.environ.get("BROKERGROUP_WHOLE") == "1"
NIGHTLY_FACTOR = 12
EXAMPLES = 100
SEED = 20261127


def examples(by_day: int, whole: int | None = None) -> int:
    """Return a test's number of examples in this run; `whole`: the number in the whole form of a test marked `sampled`."""
    drawn = whole if WHOLE and whole is not None else by_day
    return NIGHTLY_FACTOR * drawn if NIGHTLY else drawn


def sample(every: Sequence[T], at_most: int, *, salt: str = "") -> list[T]:
    """Return all items in the whole form, else `at_most` of them in order: the same in each run, another draw for each `salt`."""
    if WHOLE or len(every) <= at_most:
        return list(every)
    chosen = random.Random(f"{SEED}{salt}" if salt else SEED).sample(range(len(every)), at_most)
    return [every[index] for index in sorted(chosen)]


def load_profile() -> None:
    """Set the default profile of all tests. No example has a deadline: the machine may be busy."""
    settings.register_profile("day", deadline=None, derandomize=True, print_blob=True, max_examples=EXAMPLES)
    settings.register_profile(
        "nightly", deadline=None, database=None, print_blob=True, max_examples=NIGHTLY_FACTOR * EXAMPLES
    )
    settings.load_profile("nightly" if NIGHTLY else "day")
