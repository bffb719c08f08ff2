"""Brokers whose id the record does not know: taken in again by the rules, instead of asking for ever (F28, F29, issue 4.8).

A Java broker with an identity file never applies for an id again: after the record was lost, restored from an older copy, or
created anew with the group, its 1003 would be answered 2010 until somebody deletes the file, and with it its place. Its 1003 and
its heartbeats are proposed to the core as ``AdoptBroker``; who may bring an unknown id is the core's rule
(``ControllerSettings.adoption``): by default a pod of this very group. A refusal is remembered for a while, so that
heartbeats of a broker that was cleaned on purpose do not read the store at every beat.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.records.store import RecordStoreError
from controller_core.decision import AdoptBrokerAnswer
from controller_core.requests import AdoptBroker

if TYPE_CHECKING:
    from brokergroup_operator.controller.group import Group
    from brokergroup_operator.controller.settings import PlaneSettings

log = structlog.get_logger(__name__)


class AdoptionDesk:
    """Proposes unknown brokers to the core, for all groups."""

    def __init__(self, settings: PlaneSettings) -> None:
        self._settings = settings
        self._proposals: set[asyncio.Task[None]] = set()

    async def before_register(
        self, group: Group, broker_id: int | None, address: str | None, requester: str | None
    ) -> None:
        """A 1003 came: if its id is unknown, propose it first, so that the registration finds it."""
        await group.load()
        if broker_id is not None and address and _is_unknown(group, broker_id):
            await self._propose(group, broker_id, address, requester)

    def heard(self, group: Group, broker_id: int, address: str, requester: str | None) -> None:
        """A heartbeat came: if its id is unknown, propose it beside. Cheap for known ones."""
        if not group.loaded or not address or not _is_unknown(group, broker_id):
            return
        now_seconds = asyncio.get_running_loop().time()
        if now_seconds < group.not_adopted_until_seconds.get(broker_id, 0.0):
            return
        group.not_adopted_until_seconds[broker_id] = now_seconds + self._settings.adoption_pause_seconds
        task = asyncio.create_task(
            self._propose_beside(group, broker_id, address, requester), name=f"rmq:adopt {group.key}"
        )
        self._proposals.add(task)
        task.add_done_callback(self._proposals.discard)

    async def stop(self) -> None:
        """Stop proposing."""
        for task in list(self._proposals):
            task.cancel()
        await asyncio.gather(*self._proposals, return_exceptions=True)

    async def _propose_beside(self, group: Group, broker_id: int, address: str, requester: str | None) -> None:
        try:
            await self._propose(group, broker_id, address, requester)
        except RecordStoreError as error:
            log.warning("unknown broker not adopted yet", group=str(group.key), broker_id=broker_id, error=str(error))

    async def _propose(self, group: Group, broker_id: int, address: str, requester: str | None) -> None:
        binding = group.binding
        request = AdoptBroker(
            cluster_name=binding.cluster_name,
            broker_name=binding.broker_name,
            broker_id=broker_id,
            broker_address=address,
            requester=requester,
        )
        decision = await group.decide(request)
        if isinstance(decision.answer, AdoptBrokerAnswer) and not decision.answer.adopted:
            log.warning("unknown broker not adopted", group=str(group.key), broker_id=broker_id, why=decision.why)


def _is_unknown(group: Group, broker_id: int) -> bool:
    return group.record is None or group.record.claimed_replica(broker_id) is None
