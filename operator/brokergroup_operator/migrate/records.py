"""Writes planned records into our store; never over one that would lose something by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.migrate.plan import Standing, compare

if TYPE_CHECKING:
    from brokergroup_operator.records.store import GroupKey, RecordStore
    from controller_core.model import BrokerGroupRecord


class RecordInTheWayError(Exception):
    """The store holds a record that is not simply an older state of the one to write."""


async def write_record(
    store: RecordStore, key: GroupKey, planned: BrokerGroupRecord, *, replace_older: bool
) -> Standing:
    """Make the planned record durable; returns how the one before stood to it. ``RecordStoreError`` as the store raises it."""
    stored = await store.read(key)
    standing = check_record(key, stored.record if stored is not None else None, planned, replace_older=replace_older)
    if standing is not Standing.SAME:
        await store.commit(key, planned, stored)
    return standing


def check_record(
    key: GroupKey, stored: BrokerGroupRecord | None, planned: BrokerGroupRecord, *, replace_older: bool
) -> Standing:
    """How the stored record stands to the planned one. ``RecordInTheWayError`` if it may not be overwritten."""
    standing = compare(stored, planned)
    if standing is Standing.DIFFERENT or (standing is Standing.BEHIND and not replace_older):
        assert stored is not None
        remedy = (
            "it is an older state of the same group: say --replace to write over it"
            if standing is Standing.BEHIND
            else "it is ahead, or another group: find out whose it is, and delete it by hand if nobody needs it"
        )
        raise RecordInTheWayError(
            f"the store holds another record of {key} (epoch {stored.master_epoch}, set epoch "
            f"{stored.sync_state_set_epoch}, next id {stored.next_broker_id}; planned {planned.master_epoch}, "
            f"{planned.sync_state_set_epoch}, {planned.next_broker_id}); {remedy}"
        )
    return standing
