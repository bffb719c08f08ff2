"""A master by the record that denies it: it was told another role under an epoch that no controller of ours committed.

A stranger's 1008, or a stale controller's, with an epoch far above the record's makes a broker deaf: it ignores every epoch that is
not above its own, and answers 0 all the same. Its heartbeats show nothing, for a slave's epoch file keeps what its data was written
under; only its own 907 does. So what it says there counts for `writable` (`Group.master_said`), and one that goes on denying, after
it has answered our 1008, is told again under an epoch as far above the record's as one may jump (`RenewMaster`). Where that was not
enough it denies again, and the next time follows; the bound of each is that of safety rule 3.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import structlog

from brokergroup_operator.controller.group.ranks import rank_of
from brokergroup_operator.records.store import RecordStoreError
from controller_core.requests import RenewMaster

if TYPE_CHECKING:
    from brokergroup_operator.controller.group.group import Group
    from brokergroup_operator.controller.settings import PlaneSettings
    from controller_core.model import BrokerGroupRecord

log = structlog.get_logger(__name__)


class DeniedMasters:
    """Hears what masters say of themselves (907). `own_address`: which of the planes this one is, known when it listens."""

    def __init__(self, settings: PlaneSettings) -> None:
        self._settings = settings
        self.own_address = settings.advertise_address
        # Under which epoch, and since when, the master of a group has denied its role.
        self._since: WeakKeyDictionary[Group, tuple[int, float]] = WeakKeyDictionary()

    async def said(self, group: Group, record: BrokerGroupRecord, *, is_master: bool) -> None:
        """The recorded master's own word; raises the epoch if it goes on denying."""
        master, epoch = record.granted_master_id, record.master_epoch
        if master is None or group.told.get(master) != epoch:
            return  # it was not told by us, or has not answered: a change of roles is under way
        group.master_said(epoch, is_master=is_master)
        if is_master:
            self._since.pop(group, None)
            return
        now_seconds = asyncio.get_running_loop().time()
        since_epoch, since_seconds = self._since.get(group, (0, 0.0))
        if since_epoch != epoch:
            self._since[group] = (epoch, now_seconds)
            return
        rank = rank_of(self.own_address, self._settings.peer_addresses, str(group.key))
        patience_seconds = self._settings.denied_master_seconds * (1 + rank)
        if now_seconds - since_seconds >= patience_seconds and group.master_change is None:
            await self._raise(group, record, master)

    async def _raise(self, group: Group, record: BrokerGroupRecord, master: int) -> None:
        wanted = RenewMaster(
            broker_name=record.broker_name,
            broker_id=master,
            master_epoch=record.master_epoch,
            epochs=group.binding.settings.max_epoch_jump,
        )
        try:
            decision = await group.decide(wanted)
        except RecordStoreError as error:
            log.warning("epoch not raised yet", group=str(group.key), broker_id=master, error=str(error))
            return
        log.error(
            "the master denies its role, it was told an epoch from nowhere: the record goes on above it",
            group=str(group.key),
            broker_id=master,
            why=decision.why,
        )
