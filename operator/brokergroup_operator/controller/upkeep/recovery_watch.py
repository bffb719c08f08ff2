"""Watches what heartbeats do not show of a recovery: the new master's index has caught up, clients are routed to it and served.

A Java broker that becomes master serves as one only when its consume queues hold all of its log (28). A producer finds the new
master by its NameServer (901). With a canary (`canary.py`), its first acknowledged message shows that clients are served; a
master that refuses the canary serves them all the same, and that step is given up.

A step is stamped when it was seen; without an answer it stays open. No failover waits for any of this.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.controller.peers.broker_calls import BrokerCallError
from brokergroup_operator.controller.peers.services import Part
from brokergroup_operator.observe.timeline import Step

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from brokergroup_operator.controller.directory.group_directory import GroupBinding
    from brokergroup_operator.controller.group.group import Group
    from brokergroup_operator.controller.peers.services import Services
    from brokergroup_operator.controller.upkeep.canary import Canary
    from brokergroup_operator.observe.timeline import FailoverTimeline

# The pause between two looks grows with the time that has passed, so that a step is seen at most a tenth too late.
FIRST_PAUSE_SECONDS = 0.02
PAUSE_SHARE = 0.1

log = structlog.get_logger(__name__)


class RecoveryWatch(Part):
    """One task for each incident that has a new master."""

    def __init__(self, services: Services, canary: Canary) -> None:
        super().__init__(services)
        self._canary = canary
        # By the identity of its timeline.
        self._watched: set[int] = set()

    def look_at(self, group: Group) -> None:
        """Begin to watch the group's incident, if there is one to watch."""
        recovering = group.incidents.recovering
        if recovering is None or id(recovering[0]) in self._watched:
            return
        timeline, awaited = recovering
        self._watched.add(id(timeline))
        self._tasks.start(
            self._watch(group, timeline, awaited),
            f"rmq:recovery {group.key}",
            on_end=lambda _: self._ended(group, timeline, awaited),
        )

    def _ended(self, group: Group, timeline: FailoverTimeline, awaited: frozenset[Step]) -> None:
        self._watched.discard(id(timeline))
        group.incidents.await_no_longer(timeline, *awaited)

    async def _watch(self, group: Group, timeline: FailoverTimeline, awaited: frozenset[Step]) -> None:
        record = group.record
        address = record.address_of(timeline.to_broker_id) if record is not None else None
        if address is None:
            return
        await asyncio.gather(*(self._stamp(group, timeline, step, address) for step in awaited))

    async def _stamp(self, group: Group, timeline: FailoverTimeline, step: Step, address: str) -> None:
        try:
            match step:
                case Step.ROUTE_VISIBLE:
                    seen_seconds = await self._sees_route(group, address)
                case Step.FIRST_ACK:
                    seen_seconds = await self._sees_first_ack(group, address, _since_seconds(timeline))
                case _:
                    seen_seconds = await self._sees_index(address)
            if seen_seconds is not None:
                group.incidents.saw(timeline, step, seen_seconds)
        except BrokerCallError as error:
            log.info("a step of the recovery was not seen", group=str(group.key), step=step.value, error=str(error))
        group.incidents.await_no_longer(timeline, step)

    async def _sees_index(self, address: str) -> float | None:
        async for _ in self._looks():
            behind_bytes = await self._calls.bytes_behind_dispatch(address)
            if not behind_bytes:
                return None if behind_bytes is None else time.monotonic()
        return None

    async def _sees_first_ack(self, group: Group, address: str, since_seconds: float) -> float | None:
        async for _ in self._looks():
            first = self._canary.first_acknowledged_seconds(group.key, address, since_seconds=since_seconds)
            if first is not None:
                return first
            if (refusal := self._canary.refusal(group.key, address, since_seconds=since_seconds)) is not None:
                raise refusal
        return None

    async def _sees_route(self, group: Group, address: str) -> float | None:
        to_ask, seen = set(group.binding.name_servers), False
        async for _ in self._looks():
            asked = sorted(to_ask)
            told = await asyncio.gather(*(self._master_by(server, group.binding) for server in asked))
            seen = seen or address in told
            to_ask = {server for server, master in zip(asked, told, strict=True) if master not in (None, address)}
            if not to_ask:
                return time.monotonic() if seen else None
        return None

    async def _master_by(self, name_server: str, binding: GroupBinding) -> str | None:
        """Return the master that a NameServer routes to, empty while it knows none; None if it does not answer."""
        try:
            return await self._calls.routed_master(name_server, binding.cluster_name, binding.broker_name) or ""
        except BrokerCallError as error:
            log.info("a NameServer does not tell its route", name_server=name_server, error=str(error))
            return None

    async def _looks(self) -> AsyncIterator[None]:
        """Yield for each look, until it has lasted too long."""
        loop = asyncio.get_running_loop()
        began_seconds = loop.time()
        while (passed_seconds := loop.time() - began_seconds) < self._settings.recovery_watch_seconds:
            yield
            await asyncio.sleep(max(FIRST_PAUSE_SECONDS, passed_seconds * PAUSE_SHARE))


def _since_seconds(timeline: FailoverTimeline) -> float:
    """Return from when the new master can acknowledge: the commit, or the begin of a change that another plane committed."""
    return timeline.steps.get(Step.COMMITTED, timeline.steps[Step.DETECTED])
