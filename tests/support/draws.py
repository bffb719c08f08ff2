"""How hypothesis draws: by day always the same examples, by night others and twelve times as many.

A draw that fails by night prints a line to put above its test (`@reproduce_failure`), until it is an `@example` of its own.
"""

from __future__ import annotations

import os

from hypothesis import settings

# Set by `make test-nightly`.
NIGHTLY = os.environ.get("BROKERGROUP_NIGHTLY") == "1"
NIGHTLY_FACTOR = 12
EXAMPLES = 100


def examples(by_day: int) -> int:
    """How many examples a test draws in this run."""
    return NIGHTLY_FACTOR * by_day if NIGHTLY else by_day


def load_profile() -> None:
    """What every test takes that does not say otherwise. No example has a deadline: the machine may be busy."""
    settings.register_profile("day", deadline=None, derandomize=True, print_blob=True, max_examples=EXAMPLES)
    settings.register_profile(
        "nightly", deadline=None, database=None, print_blob=True, max_examples=NIGHTLY_FACTOR * EXAMPLES
    )
    settings.load_profile("nightly" if NIGHTLY else "day")
