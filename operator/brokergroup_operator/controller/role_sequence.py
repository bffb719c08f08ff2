"""Telling a broker group who is master, in the order that was measured to be safe (docs/architecture.md).

The order after the loss of a master: off the NameServers with the old one (104), role change to the slaves (1008), role change to
the new master, then the new master's HA address to the slaves (906). A slave that is told before the NameServers know would go
back to the old master; a 906 before the answer to 1008 is wiped. While this runs, 1004 tells the old state.

Each step has a deadline and none is a condition of the next: a member that does not answer is told again by the keeper, as often as
it takes. Only what makes the new master master is waited for.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.controller.broker_calls import BrokerCallError
from brokergroup_operator.controller.places import ha_address_of
from brokergroup_operator.observe.timeline import FailoverTimeline, Step

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from brokergroup_operator.controller.broker_calls import BrokerCalls
    from brokergroup_operator.controller.group import Group
    from controller_core.model import BrokerGroupRecord

# What the old master's first 104 may cost a switchover: it makes a rare stall rarer, and a NameServer may be dead.
EARLY_UNREGISTER_SECONDS = 0.1
# The discard port of the broker's own host, which refuses without a way through any network.
NOWHERE = "127.0.0.1:9"

log = structlog.get_logger(__name__)


class RoleSequence:
    """Runs the sequence; remembers the tail of it (members that are told late) so that nothing is lost at the end."""

    def __init__(self, calls: BrokerCalls) -> None:
        self._calls = calls
        self._tails: set[asyncio.Task[None]] = set()

    async def announce(
        self,
        group: Group,
        record: BrokerGroupRecord,
        *,
        gone_addresses: tuple[str, ...],
        slaves_first_seconds: float,
        timeline: FailoverTimeline | None = None,
    ) -> bool:
        """Take the old master off the NameServers, then tell everybody alive; returns whether the new master is master now."""
        await self.unregister(group, record, gone_addresses)
        slaves = self.spawn_slaves(group, record)
        if slaves:
            await asyncio.wait(slaves, timeout=slaves_first_seconds)
        if timeline is not None:
            timeline.reach(Step.NOTIFIED, time.monotonic())
        changed = await self.tell_master(group, record)
        group.hold_back(None)
        if changed and timeline is not None:
            timeline.reach(Step.ROLE_CHANGED, time.monotonic())
        self.spawn_pushes(group, record, slaves)
        return changed

    async def depose(
        self, group: Group, record: BrokerGroupRecord, acting: tuple[int, ...], *, wait_seconds: float
    ) -> None:
        """Tell those that act as master and are not the one elected, before anybody else hears of it.

        A third replica linked to one of them goes on acknowledging to it while the elected one has none of that (hole C).
        """
        addresses = [address for one in acting if (address := record.address_of(one)) is not None]
        told = [self.spawn(self.tell(group, record, one), name=f"rmq:depose {group.key} {one}") for one in acting]
        if told:
            await asyncio.wait(told, timeout=wait_seconds)
            await self.unregister(group, record, tuple(addresses))

    async def unregister(self, group: Group, record: BrokerGroupRecord, addresses: tuple[str, ...]) -> None:
        """104 for each address that is master no more."""
        for address in addresses:
            failed = await self._calls.unregister(group.binding.name_servers, record, address)
            for server, error in failed.items():
                log.warning("not unregistered", group=str(group.key), name_server=server, error=str(error))

    async def unregister_early(self, group: Group, record: BrokerGroupRecord, address: str) -> None:
        """104 for an old master that has yet to be told, before anybody is pointed nowhere.

        A slave registers every 10 s, and takes its master's HA address from the answer. One that did so between 906 and its own
        1008 was pointed at the old master again, dialled it, and slept 5 s over its role change (5 of 93 switchovers).
        """
        early = self.spawn(self.unregister(group, record, (address,)), name=f"rmq:unregister {group.key}")
        await asyncio.wait([early], timeout=EARLY_UNREGISTER_SECONDS)

    def spawn_slaves(
        self, group: Group, record: BrokerGroupRecord, *, but: int | None = None
    ) -> list[asyncio.Task[None]]:
        """Tell every live slave but one, side by side."""
        return [
            self.spawn(self.tell(group, record, broker_id), name=f"rmq:tell {group.key} {broker_id}")
            for broker_id in live_members(group, record)
            if broker_id not in (record.master_broker_id, but)
        ]

    async def tell_master(self, group: Group, record: BrokerGroupRecord) -> bool:
        """1008 to the new master; returns whether it said that it is master."""
        master = record.master_broker_id
        if master is None:
            return False
        await self.tell(group, record, master)
        if group.told.get(master) != record.master_epoch:
            return False
        group.confirm_master(record.master_epoch)
        return True

    async def tell(self, group: Group, record: BrokerGroupRecord, broker_id: int) -> None:
        """1008 to one member, whether it answers or not."""
        await self.is_told(group, record, broker_id)

    async def is_told(self, group: Group, record: BrokerGroupRecord, broker_id: int) -> bool:
        """1008 to one member, if it is still the member at that address; success is remembered in ``group.told``."""
        address = record.address_of(broker_id)
        if address is None or is_outdated(group, record) or group.registering[broker_id]:
            return False
        try:
            await self._calls.change_role(address, record)
        except BrokerCallError as error:
            log.warning("role change not confirmed", group=str(group.key), broker_id=broker_id, error=str(error))
            return False
        if is_outdated(group, record):
            return False
        group.told[broker_id] = record.master_epoch
        group.changed()
        return True

    async def push_ha_address(
        self, group: Group, record: BrokerGroupRecord, broker_id: int, *, ha_address: str | None = None
    ) -> None:
        """906 to one slave."""
        address = record.address_of(broker_id)
        master_address = record.address_of(record.master_broker_id)
        if address is None or master_address is None or is_outdated(group, record):
            return
        try:
            await self._calls.push_ha_address(address, ha_address or ha_address_of(group.binding, master_address))
        except BrokerCallError as error:
            log.warning("HA address not taken", group=str(group.key), broker_id=broker_id, error=str(error))

    async def point_nowhere(self, group: Group, record: BrokerGroupRecord, *, but: int) -> None:
        """906 with an address where nobody listens, to all but the old master, before it is told.

        It closes its links while it changes its role, and goes on serving its HA port. A Java slave that still has a wake-up
        stored (each 906 leaves one) dials it again at once; told in the midst of that link, it sleeps 5 s over its own role
        change (3 of 9 switchovers on a busy machine). One whose dial is refused waits, and a role change wakes it.
        """
        others = [broker_id for broker_id in live_members(group, record) if broker_id != but]
        await asyncio.gather(*(self.push_ha_address(group, record, one, ha_address=NOWHERE) for one in others))

    async def push_to_slaves(
        self, group: Group, record: BrokerGroupRecord, *, but: frozenset[int] = frozenset()
    ) -> frozenset[int]:
        """906 to every live slave that was told of this epoch, but those; returns to whom."""
        told = frozenset(
            broker_id
            for broker_id in live_members(group, record)
            if broker_id != record.master_broker_id and group.told.get(broker_id) == record.master_epoch
        )
        await asyncio.gather(*(self.push_ha_address(group, record, broker_id) for broker_id in sorted(told - but)))
        return told - but

    def spawn_pushes(
        self, group: Group, record: BrokerGroupRecord, slaves: list[asyncio.Task[None]]
    ) -> asyncio.Task[None]:
        """906 to every slave that was told, and to the others when they are: nobody waits for one that sleeps over its change."""
        return self.spawn(self._push_when_told(group, record, slaves), name=f"rmq:push {group.key}")

    async def _push_when_told(self, group: Group, record: BrokerGroupRecord, slaves: list[asyncio.Task[None]]) -> None:
        late = [task for task in slaves if not task.done()]  # before the push, or who is told while it lasts gets none
        pushed = await self.push_to_slaves(group, record)
        if late:
            await asyncio.wait(late)
            await self.push_to_slaves(group, record, but=pushed)

    def spawn(self, work: Coroutine[None, None, None], *, name: str) -> asyncio.Task[None]:
        """Run something to its end beside the sequence."""
        task = asyncio.create_task(work, name=name)
        self._tails.add(task)
        task.add_done_callback(self._tails.discard)
        return task

    async def stop(self) -> None:
        """Give up what is still under way; the record says what is to be done, and the next process does it."""
        for task in list(self._tails):
            task.cancel()
        await asyncio.gather(*self._tails, return_exceptions=True)


def is_outdated(group: Group, record: BrokerGroupRecord) -> bool:
    """Whether the group has moved on to another epoch than the one this sequence tells of."""
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
