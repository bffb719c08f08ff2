"""Lag that does not flicker, and where a member runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from controller_core.model import LiveReplica
from tests.reconcile import cases as c
from tests.reconcile.passes import status_of

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed


def second(seen: Observed) -> dict[str, Any]:
    member: dict[str, Any] = status_of(seen)["members"][1]
    return member


@pytest.mark.parametrize(
    ("master", "slave", "lag"),
    [
        (5_000_000, 5_000_000, 0),
        (5_000_000, 4_500_000, 0),
        (5_000_000, 5_100_000, 0),
        (5_000_000, 0, 4 * 2**20),
        (9 * 2**20, 2**20, 8 * 2**20),
        (9 * 2**20, 0, 8 * 2**20),
        (-1, 0, None),
        (0, -1, None),
    ],
)
def test_lag_is_coarse(master: int, slave: int, lag: int | None) -> None:
    seen = c.settled()
    assert seen.snapshot is not None
    live = {
        1: LiveReplica(broker_id=1, epoch=7, max_offset=master),
        2: LiveReplica(broker_id=2, epoch=7, max_offset=slave),
    }
    assert second(replace(seen, snapshot=replace(seen.snapshot, live=live))).get("lagBytes") == lag


def test_node_and_zone_where_nodes_can_be_read() -> None:
    told = second(c.on_nodes(c.settled(), node_2=c.node("node-2")))
    assert (told["node"], told["zone"]) == ("node-2", "zone-of-node-2")
    assert "zone" not in second(c.on_nodes(c.settled()))


def test_a_fenced_and_a_sleeping_member() -> None:
    fenced = c.with_pods(
        c.settled(), lambda pod: pod["metadata"].update(finalizers=[names.FINALIZER_FENCE]), "orders-2"
    )
    assert second(fenced)["state"] == "Fenced"
    asleep = c.without_pods(c.settled(maintenance={"hibernated": True}), "orders-2")
    assert second(asleep)["state"] == "Stopped"


def test_an_outdated_pod_shows_what_it_runs() -> None:
    status = status_of(c.outdated(c.settled(), "orders-2"))
    assert status["members"][1]["revision"] == "older"
    assert status["members"][0]["revision"] == status["updateRevision"]
    assert (status["updatedReplicas"], "currentRevision" in status) == (2, False)


def test_an_outdated_pod_that_is_going_still_runs_what_it_ran() -> None:
    """Counted as a new one it would say that an update had begun to arrive while its first pod was only being deleted."""
    seen = c.going(c.outdated(c.settled(), "orders-2"), "orders-2")
    status = status_of(seen)
    assert status["members"][1]["revision"] == "older"
    assert (status["updatedReplicas"], "currentRevision" in status) == (2, False)


def test_a_pod_that_is_going_and_runs_what_the_spec_says_is_counted() -> None:
    status = status_of(c.going(c.settled(), "orders-2"))
    assert status["members"][1]["revision"] == status["updateRevision"] == status["currentRevision"]
    assert status["updatedReplicas"] == 3


def test_an_update_whose_last_pod_has_yet_to_come_is_not_complete() -> None:
    missing = c.live(c.rolling(c.without_pods(c.settled(), "orders-2")), 1, 3)
    status = status_of(missing)
    assert (status["updatedReplicas"], "currentRevision" in status) == (2, False)
    assert status_of(c.rolling(c.settled()))["currentRevision"] == status["updateRevision"]
