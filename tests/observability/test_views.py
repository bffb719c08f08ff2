"""When a view of a change of master agrees with the incident log: id, moment and every step, to the millisecond."""

from dataclasses import replace

import pytest

from tests.observability.views import Telling

TRUTH = Telling(
    "shop/orders/7", 97, 1_780_000_000_123, 2, {"detected": 0, "committed": 6, "roleChanged": 97, "inSync": 410}
)


@pytest.mark.parametrize(
    ("changes", "agrees"),
    [
        ({}, True),
        ({"started_at_ms": None, "to": None, "steps": None}, True),
        ({"id": "shop/orders/6"}, False),
        ({"milliseconds": 98}, False),
        ({"started_at_ms": 1_780_000_000_124}, False),
        ({"to": 3}, False),
        ({"steps": {"detected": 0, "committed": 7, "roleChanged": 97, "inSync": 410}}, False),
        ({"steps": {"detected": 0, "committed": 6, "roleChanged": 97}}, False),
        ({"steps": {"detected": 0, "committed": 6, "roleChanged": 97}, "so_far": True}, True),
        ({"steps": {"detected": 0, "committed": 7, "roleChanged": 97}, "so_far": True}, False),
        ({"steps": {"detected": 0, "firstAck": 410}, "so_far": True}, False),
    ],
)
def test_a_view_agrees_in_all_that_it_tells(changes: dict[str, object], agrees: bool) -> None:
    assert replace(TRUTH, **changes).agrees_with(TRUTH) is agrees  # type: ignore[arg-type]
