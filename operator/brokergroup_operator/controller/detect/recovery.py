"""Which brokers act as master while the record names none: asked (907) before an election on their data (safety rule 3, hole
C).

A record that went back in time has no master and no SyncStateSet, while the brokers may serve as before. The acknowledgements
of the acting master count, so it is preferred unless another member has a higher epoch (`ElectMaster.incumbent`). Other acting
masters are told first: a third replica must not stay linked to one of them while another is elected.

They are asked before the record says that there is no master (`find_incumbent`): a Python master that polls so stops
acknowledging. If none acts as master, an election waits for reports younger than that answer (`_until_reported_anew`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.controller.group.adoption import follow_the_moved, moved_to
from brokergroup_operator.controller.group.election_premises import could_have_been_heard, silence_seconds
from brokergroup_operator.controller.group.group import PremiseGoneError
from brokergroup_operator.controller.peers.broker_calls import BrokerCallError
from brokergroup_operator.controller.peers.services import Part
from brokergroup_operator.records.store import RecordStoreError

if TYPE_CHECKING:
    from brokergroup_operator.controller.group.group import Group
    from controller_core.model import LiveReplica

POLL_SECONDS = 0.05

log = structlog.get_logger(__name__)


class Recovery(Part):
    """Asks the brokers."""

    async def find_incumbent(self, group: Group) -> None:
        """Note which members act as master while the record is still the old one, until one of the highest reported epoch is
        found, or all members were or could have been heard.
        """
        while True:
            acting = await self._ask(group)
            group.recovery.acting = acting
            live = group.live()
            highest = max((replica.epoch for replica in live.values()), default=-1)
            is_found = bool(acting) and acting[0] in live and live[acting[0]].epoch >= highest
            if is_found or self._nobody_is_missing(group):
                return
            await asyncio.sleep(POLL_SECONDS)

    async def acting_masters(self, group: Group) -> tuple[int, ...]:
        """Return the members that act as master, or did when `find_incumbent` asked; first the one whose acknowledgements
        count.
        """
        try:
            await follow_the_moved(group)
        except (RecordStoreError, PremiseGoneError) as error:
            log.warning("addresses not followed yet", group=str(group.key), error=str(error))
        if acting := await self._ask(group):
            return acting
        live = group.live()
        noted = tuple(one for one in group.recovery.acting if one in live)
        if not noted:
            await self._until_reported_anew(group)
        return noted

    async def _until_reported_anew(self, group: Group) -> None:
        """No member acts as master now, so reports from now on are complete. Members that stay silent time out."""
        group.table.ask_anew()
        deadline_seconds = asyncio.get_running_loop().time() + silence_seconds(group, self._settings)
        while asyncio.get_running_loop().time() < deadline_seconds:
            if all(replica.fresh for replica in group.live().values()):
                return
            await asyncio.sleep(POLL_SECONDS)

    def _nobody_is_missing(self, group: Group) -> bool:
        record, live = group.record, group.live()
        if record is None or could_have_been_heard(group, self._settings):
            return True
        return all(one.broker_id in live for one in record.replicas.values() if one.registered)

    async def _ask(self, group: Group) -> tuple[int, ...]:
        """907 to every living member, side by side; one that does not answer by its deadline does not act as master."""
        live, addresses = group.live(), _addresses(group)
        links = await asyncio.gather(*(self._links_as_master(address) for address in addresses.values()))
        acting = {one: found for one, found in zip(addresses, links, strict=True) if found is not None}
        return tuple(sorted(acting, key=lambda one: _weight(live.get(one), acting[one], one)))

    async def _links_as_master(self, address: str) -> int | None:
        """Return how many slaves are linked to it; None if it does not act as master."""
        try:
            status = await self._calls.ha_status(address)
        except BrokerCallError:
            return None
        return len(status.ha_connection_info) if status.master else None


def _weight(replica: LiveReplica | None, links: int, broker_id: int) -> tuple[int, int, int]:
    """Sort the highest epoch first, then the one with more slaves."""
    return (-replica.epoch if replica is not None else 1, -links, broker_id)


def _addresses(group: Group) -> dict[int, str]:
    """Return where the living members are, by their own word if an older record says otherwise (safety rule 8)."""
    record, found = group.record, {}
    for broker_id, replica in sorted(group.live().items()):
        address = moved_to(group, broker_id) or (record.address_of(broker_id) if record is not None else None)
        if address is not None and replica.address in ("", address):
            found[broker_id] = address
    return found
