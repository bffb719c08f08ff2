"""The page of `kubectl brokergroup status`, from objects alone."""

from __future__ import annotations

from typing import Any

from brokergroup_operator.kubectl.its_operator import Heartbeat, Presence
from brokergroup_operator.kubectl.status import page, status_written


def group(**annotations: str) -> dict[str, Any]:
    metadata = {"namespace": "shop", "name": "orders", "annotations": annotations}
    return {"metadata": metadata, "spec": {"replicas": 3}, "status": {}}


HERE = Heartbeat(Presence.HERE, "operator old/brokergroup-operator renewed its Lease 1s ago (brokergroup-operator-0)")
AWAY = Heartbeat(Presence.AWAY, "operator old/brokergroup-operator is away (its Lease is gone)")


def test_how_old_the_page_is_stands_on_it() -> None:
    """One that is gone leaves its last status behind for ever, and the page looked as if all were well."""
    assert f"\n  {HERE.message}\n" in page(group(), [], heard=HERE) + "\n"
    assert f"\n! {AWAY.message}\n" in page(group(), [], heard=AWAY) + "\n"


def test_the_status_says_when_it_was_written() -> None:
    written = group()
    written["metadata"]["managedFields"] = [
        {"manager": "operator", "subresource": "status", "time": "2026-01-02T00:00:00Z"},
        {"manager": "operator", "subresource": "status", "time": "2026-01-01T00:00:00Z"},
        {"manager": "kubectl", "time": "2999-01-01T00:00:00Z"},
    ]
    assert status_written(written["metadata"]) == "2026-01-02T00:00:00Z"
    assert "d ago, and holds" in page(written, [], heard=HERE)
    assert "d ago, and nothing proves that it still holds" in page(written, [], heard=AWAY)
    assert "status written" not in page(group(), [], heard=HERE)
