"""A test of the checker: it breaks each law of `history.py` once, and each must be found."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.e2e.history import RecordHistory

GOOD: dict[str, Any] = {
    "nextBrokerId": 4,
    "masterEpoch": 7,
    "masterBrokerId": 1,
    "syncStateSet": [1, 2],
    "syncStateSetEpoch": 12,
    "replicas": [
        {"brokerId": 1, "registerCheckCode": "a", "reservedFor": "g-1"},
        {"brokerId": 2, "registerCheckCode": "b", "reservedFor": "g-2"},
        {"brokerId": 3, "registerCheckCode": "", "reservedFor": "g-3"},
    ],
}


def replicas_with(**change: Any) -> list[dict[str, Any]]:
    replicas: list[dict[str, Any]] = copy.deepcopy(GOOD["replicas"])
    replicas[0] |= change
    return replicas


@pytest.mark.parametrize(
    ("change", "law"),
    [
        ({"masterEpoch": 6}, "masterEpoch fell"),
        ({"syncStateSetEpoch": 11}, "syncStateSetEpoch fell"),
        ({"nextBrokerId": 3}, "nextBrokerId fell"),
        ({"masterEpoch": 9}, "more than one in one step"),
        ({"masterEpoch": 8, "masterBrokerId": 3}, "outside the SyncStateSet"),
        ({"masterBrokerId": 2}, "epoch 7 has two masters"),
        ({"syncStateSet": []}, "was emptied"),
        ({"replicas": replicas_with(registerCheckCode="z")}, "check code of 1 changed"),
        ({"replicas": replicas_with(reservedFor="g-9")}, "1 went to another pod"),
        ({"replicas": [*GOOD["replicas"], {"brokerId": 9}]}, "9 is not below nextBrokerId"),
    ],
)
def test_a_broken_law_is_seen(change: dict[str, Any], law: str) -> None:
    assert any(law in broken for broken in RecordHistory([GOOD, GOOD | change]).violations())


def test_an_id_handed_out_twice_is_seen() -> None:
    cleaned = GOOD | {"replicas": GOOD["replicas"][1:]}
    assert any("handed out again" in broken for broken in RecordHistory([GOOD, cleaned, GOOD]).violations())


def test_a_failover_keeps_the_laws() -> None:
    after = GOOD | {"masterEpoch": 8, "masterBrokerId": 2, "syncStateSet": [2], "syncStateSetEpoch": 13}
    taken = {"replicas": [*GOOD["replicas"][:2], GOOD["replicas"][2] | {"registerCheckCode": "c"}]}
    history = RecordHistory([GOOD, GOOD, after, after | taken])
    assert history.violations() == []
    assert history.epochs == [7, 8]
