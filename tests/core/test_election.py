"""The replicas that stay eligible after an election (rule 1), below the floor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller_core.election import Electorate, carried_over
from controller_core.model import LiveReplica
from controller_core.settings import ControllerSettings
from tests.core.small_world import warm_world

STRICT = ControllerSettings(shrink_floor=True, min_in_sync_replicas=2)
WINNER, OTHER = 2, 3


def electorate(other: LiveReplica) -> Electorate:
    """Broker 1, alone in the set, was lost; 2 and 3 are eligible, and 2 is about to be elected."""
    record = warm_world().record
    assert record is not None
    record = replace(record, sync_state_set=frozenset({1}), eligible=frozenset({WINNER, OTHER}))
    winner = LiveReplica(broker_id=WINNER, epoch=1, max_offset=9)
    return Electorate(record=record, live={WINNER: winner, OTHER: other}, settings=STRICT)


@pytest.mark.parametrize(
    ("other", "stays"),
    [
        (LiveReplica(broker_id=OTHER, epoch=1, max_offset=9), True),
        (LiveReplica(broker_id=OTHER, epoch=1, max_offset=10), True),
        (LiveReplica(broker_id=OTHER, epoch=1, max_offset=8), False),
        (LiveReplica(broker_id=OTHER, epoch=0, max_offset=9), False),
        # It may have truncated to a former master's log since that report.
        (LiveReplica(broker_id=OTHER, epoch=1, max_offset=10, fresh=False), False),
    ],
)
def test_an_eligible_replica_stays_so_if_a_fresh_report_holds_as_much_as_the_winner(
    other: LiveReplica, *, stays: bool
) -> None:
    assert (OTHER in carried_over(electorate(other), WINNER)) is stays


def test_an_eligible_replica_that_is_not_heard_does_not_stay_so() -> None:
    silent = replace(
        electorate(LiveReplica(broker_id=OTHER)), live={WINNER: LiveReplica(broker_id=WINNER, epoch=1, max_offset=9)}
    )
    assert OTHER not in carried_over(silent, WINNER)
