"""What a commit means beside the record: what the group remembers of it, and what observers are told."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from controller_core.events import BrokerAdopted, EpochFloorRaised, MasterElected, SeatsLost

if TYPE_CHECKING:
    from brokergroup_operator.controller.group.group import Group
    from brokergroup_operator.observe.observer import Observer
    from controller_core.decision import Decision
    from controller_core.model import BrokerGroupRecord


def note_commit(
    group: Group, observer: Observer, before: BrokerGroupRecord | None, after: BrokerGroupRecord, decision: Decision
) -> None:
    """A decision of ours became durable."""
    if after.granted_master_id is not None:
        group.masterless_since_seconds = None
    elif before is not None and before.granted_master_id is not None:
        group.masterless_since_seconds = time.monotonic()
    observer.record_changed(group.key, before, after, decision.why)
    for event in decision.events:
        match event:
            case SeatsLost():
                group.deposed_in_office |= before is not None and before.granted_master_id in event.broker_ids
                for broker_id in sorted(event.broker_ids):
                    observer.seat_lost(group.key, broker_id, decision.why)
            case EpochFloorRaised():
                observer.epoch_floor_raised(group.key, event.epoch, decision.why)
            case BrokerAdopted():
                observer.broker_adopted(group.key, event.broker_id)
            case MasterElected():
                group.deposed_in_office = False
                group.acting = ()
