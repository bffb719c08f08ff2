"""What a commit means beside the record: what the group notes of it, and what observers are told."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from controller_core.events import BrokerAdopted, EpochFloorRaised, MasterElected, SeatsLost

if TYPE_CHECKING:
    from brokergroup_operator.controller.group.notes import ActingNotes
    from brokergroup_operator.controller.group.own_changes import OwnChanges
    from brokergroup_operator.observe.observer import Observer
    from brokergroup_operator.records.store import GroupKey
    from controller_core.decision import Decision
    from controller_core.model import BrokerGroupRecord


def note_commit(
    key: GroupKey,
    changes: OwnChanges,
    recovery: ActingNotes,
    observer: Observer,
    *,
    before: BrokerGroupRecord | None,
    after: BrokerGroupRecord,
    decision: Decision,
) -> None:
    """A decision of ours became durable."""
    if after.granted_master_id is not None:
        changes.masterless(None)
    elif before is not None and before.granted_master_id is not None:
        changes.masterless(time.monotonic())
    observer.record_changed(key, before, after, decision.why)
    for event in decision.events:
        match event:
            case SeatsLost():
                if before is not None and before.granted_master_id in event.broker_ids:
                    recovery.deposed()
                for broker_id in sorted(event.broker_ids):
                    observer.seat_lost(key, broker_id, decision.why)
            case EpochFloorRaised():
                observer.epoch_floor_raised(key, event.epoch, decision.why)
            case BrokerAdopted():
                observer.broker_adopted(key, event.broker_id)
            case MasterElected():
                recovery.elected()
