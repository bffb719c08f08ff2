"""What a broker says of itself is read without trust: it may be broken, or an attacker's."""

from __future__ import annotations

import pytest

from brokergroup_operator.controller.peers.broker_calls import live_minimum


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("2", 2),
        ("2147483647", 2147483647),
        ("9" * 5000, None),
        ("99999999999", None),
        ("-1", None),
        ("\u0662", None),
        ("", None),
    ],
)
def test_a_minimum_that_is_no_number_of_java_is_none(said: str, expected: int | None) -> None:
    """5000 digits raised a ValueError out of the keeper: Python refuses to read more than 4300."""
    assert live_minimum({"minInSyncReplicas": said}) == expected


def test_a_broker_that_says_nothing() -> None:
    assert live_minimum({}) is None
