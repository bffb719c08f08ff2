"""Who acts as master where the record names nobody: asked of the brokers themselves before an election on their data.

A record that went back in time (safety rule 3) has no master and no SyncStateSet to go by, while the brokers may be serving
as if nothing had happened. The one that in fact acts as master (907) is the one whose acknowledgements count, so it is preferred
if nobody has a higher epoch; that is for the core to weigh (``ElectMaster.incumbent``). Others that act as master besides, from
before, must be told first: a third replica must never be linked to one master while another one is elected (hole C of
``switchover-and-strict.md``).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.controller.adoption import follow_the_moved
from brokergroup_operator.controller.broker_calls import BrokerCallError
from brokergroup_operator.controller.group import PremiseGoneError
from brokergroup_operator.controller.role_sequence import live_members
from brokergroup_operator.records.store import RecordStoreError

if TYPE_CHECKING:
    from brokergroup_operator.controller.broker_calls import BrokerCalls
    from brokergroup_operator.controller.group import Group
    from controller_core.model import LiveReplica

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ActingMasters:
    """Which living members say that they are master, the weightiest first."""

    broker_ids: tuple[int, ...] = ()

    @property
    def incumbent(self) -> int | None:
        """The one whose acknowledgements count."""
        return self.broker_ids[0] if self.broker_ids else None

    def besides(self, broker_id: int | None) -> tuple[int, ...]:
        """Those that must hear of another master before anybody else does."""
        return tuple(one for one in self.broker_ids if one != broker_id)


class Recovery:
    """Asks the brokers."""

    def __init__(self, calls: BrokerCalls) -> None:
        self._calls = calls

    async def acting_masters(self, group: Group) -> ActingMasters:
        """907 to every living member, side by side; one that does not answer within its deadline acts for nobody."""
        try:
            await follow_the_moved(group)
        except (RecordStoreError, PremiseGoneError) as error:
            log.warning("addresses not followed yet", group=str(group.key), error=str(error))
        live, record = group.live(), group.record
        if record is None:
            return ActingMasters()
        members = live_members(group, record)
        links = await asyncio.gather(*(self._links_as_master(record.address_of(one) or "") for one in members))
        acting = {one: found for one, found in zip(members, links, strict=True) if found is not None}
        return ActingMasters(tuple(sorted(acting, key=lambda one: _weight(live.get(one), acting[one], one))))

    async def _links_as_master(self, address: str) -> int | None:
        """How many slaves are linked to it; None if it does not act as master."""
        try:
            status = await self._calls.ha_status(address)
        except BrokerCallError:
            return None
        return len(status.ha_connection_info) if status.master else None


def _weight(replica: LiveReplica | None, links: int, broker_id: int) -> tuple[int, int, int]:
    """Sorts the highest epoch first, then the one with more slaves."""
    return (-replica.epoch if replica is not None else 1, -links, broker_id)
