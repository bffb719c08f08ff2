"""The page of `kubectl brokergroup status`, from objects alone."""

from __future__ import annotations

from typing import Any

from brokergroup_operator.kubectl.status_page import page


def group(**annotations: str) -> dict[str, Any]:
    metadata = {"namespace": "shop", "name": "orders", "annotations": annotations}
    return {"metadata": metadata, "spec": {"replicas": 3}, "status": {}}


def test_the_operator_of_a_group_is_named_and_how_to_hand_it_over() -> None:
    """One that is gone leaves its last status behind for ever, and nothing said whose it was."""
    shown = page(group(**{"brokergroup.dev/operator": "old/brokergroup-operator"}), [])
    assert "operator old/brokergroup-operator" in shown
    assert "kubectl annotate -n shop brokergroup orders brokergroup.dev/operator-" in shown
    assert "operator" not in page(group(), [])
