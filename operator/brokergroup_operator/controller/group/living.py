"""Which members of a group are alive where the record says they are, and whether a record is still the group's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brokergroup_operator.controller.group.group import Group
    from controller_core.model import BrokerGroupRecord


def is_outdated(group: Group, record: BrokerGroupRecord) -> bool:
    """Whether the group has moved on to another epoch than this record's."""
    current = group.record
    return current is None or current.master_epoch != record.master_epoch


def live_members(group: Group, record: BrokerGroupRecord) -> list[int]:
    """The members that are alive, and are where the record says they are (safety rule 8: an address is not identity)."""
    live = group.live()
    return [
        broker_id
        for broker_id in sorted(record.replicas)
        if broker_id in live
        and (address := record.address_of(broker_id)) is not None
        and live[broker_id].address in ("", address)
    ]
