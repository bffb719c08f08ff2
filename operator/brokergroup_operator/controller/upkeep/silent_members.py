"""Members whose heartbeats do not arrive: whether each runs all the same, and the answer that makes a slave register again.

A process can be linked to its master and acknowledge without heartbeats: then it is no failover candidate, and nothing ends
that by itself. So the master (907), the member itself (907) and the other planes (1006) are asked. A member that runs and that
no plane hears gets 2008 to its next poll (1004): brokers register again (1003) on that answer only. A master that is not heard is
asked as well, for the status alone.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.controller.group import elections
from brokergroup_operator.controller.peers.ha_links import links_by_host
from brokergroup_operator.controller.peers.services import Part, doubled, is_running
from brokergroup_operator.observe.group_view import Silence

if TYPE_CHECKING:
    from brokergroup_operator.controller.group.group import Group
    from controller_core.model import BrokerGroupRecord

LONGEST_REGISTER_PAUSE_SECONDS = 3600.0

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _MemberCare:
    """One silence. It ends with a heartbeat; a registration alone does not prove that any will come."""

    silence: Silence
    register_again_seconds: float


@dataclass(slots=True)
class _GroupCare:
    members: dict[int, _MemberCare] = field(default_factory=dict)
    alarmed: frozenset[int] = frozenset()
    next_look_seconds: float = 0.0
    task: asyncio.Task[None] | None = None


class SilentMembers(Part):
    """Looks after the silent members of all groups; woken by the plane's tick, and by polls (1004)."""

    def look_at(self, group: Group) -> None:
        """Note which members are silent now, and begin to ask about them if it is time. Cheap: called at every tick."""
        record = group.record
        if record is None:
            return
        silent, care = self._silent(group, record), group.care(_GroupCare)
        if not silent and not care.members:
            return
        self._note(group, care, silent)
        if silent and not is_running(care.task) and self._now_seconds >= care.next_look_seconds:
            care.next_look_seconds = self._now_seconds + self._settings.unheard_check_seconds
            care.task = self._tasks.start(self._ask(group, record, care), f"rmq:silent {group.key}")

    def must_register(self, group: Group, host: str) -> bool:
        """Whether the poll (1004) from this host is of a member that must register again; counts as its answer."""
        care, record = group.care(_GroupCare), group.record
        if record is None or not care.members:
            return False
        hosts = group.binding.hosts_of_links(record, record.replicas)
        behind = [broker_id for broker_id, its_host in hosts.items() if its_host == host]
        slaves = group.unheard.silences.keys() - {record.granted_master_id} - elections.members_leaving(group)
        if len(behind) != 1 or behind[0] not in slaves:
            return False  # a registration of the master means another process, and costs an epoch
        member = care.members[behind[0]]
        if not member.silence.is_unheard_by_all or self._now_seconds < member.register_again_seconds:
            return False
        told = member.silence.told_to_register
        pause_seconds = doubled(self._settings.register_pause_seconds, told, LONGEST_REGISTER_PAUSE_SECONDS)
        member.register_again_seconds = self._now_seconds + pause_seconds
        member.silence = replace(member.silence, told_to_register=told + 1)
        log.warning("slave runs and is not heard: told to register again", group=str(group.key), broker_id=behind[0])
        self._show(group, care)
        return True

    def _silent(self, group: Group, record: BrokerGroupRecord) -> list[int]:
        """Return the registered members that are not live; none while this plane could not have heard them yet."""
        if record.granted_master_id is None or group.is_leaving:
            return []
        unheard = group.not_heard_yet()
        return [
            broker_id
            for broker_id, replica in record.replicas.items()
            if replica.registered and not group.is_live(broker_id) and broker_id not in unheard
        ]

    def _note(self, group: Group, care: _GroupCare, silent: list[int]) -> None:
        live, settings = group.live(), self._settings
        for broker_id in care.members.keys() - set(silent):
            if broker_id not in live or live[broker_id].has_reported:
                del care.members[broker_id]
        for broker_id in silent:
            if broker_id not in care.members:
                silent_seconds = group.silent_for_seconds(broker_id)
                longer_seconds = settings.register_after_timeouts * group.longest_silence_seconds
                care.members[broker_id] = _MemberCare(
                    Silence(since_unix_seconds=time.time() - silent_seconds),
                    self._now_seconds + longer_seconds - silent_seconds,
                )
        self._show(group, care)

    def _show(self, group: Group, care: _GroupCare) -> None:
        silences = {one: member.silence for one, member in care.members.items() if not group.is_live(one)}
        if silences == group.unheard.silences:
            return
        group.unheard.silences = silences
        group.changed()
        running = frozenset(one for one, silence in silences.items() if silence.is_unheard_by_all)
        if running == care.alarmed:
            return
        care.alarmed = running
        log.warning("members that run and are not heard", group=str(group.key), broker_ids=sorted(running))
        if self._planes.rank(group.key) == 0:
            self._observer.members_unheard(group.key, running)

    async def _ask(self, group: Group, record: BrokerGroupRecord, care: _GroupCare) -> None:
        """One round of questions, side by side, each with its own deadline."""
        asked = [
            one for one in care.members if one not in group.members.reported_dead and record.address_of(one) is not None
        ]
        links, answers = await asyncio.gather(
            self._links(group, record), asyncio.gather(*(self._about(group, record, one) for one in asked))
        )
        if elections.is_outdated(group, record):
            return
        for broker_id, (answers_itself, hearing) in zip(asked, answers, strict=True):
            if (member := care.members.get(broker_id)) is None:
                continue
            linked = links.get(broker_id)
            if broker_id == record.granted_master_id:
                linked = answers_itself
                if answers_itself and not group.is_changing:  # it was told this epoch, by whichever plane
                    group.master_said(record.master_epoch, is_master=True)
            member.silence = replace(member.silence, linked=linked, answers=answers_itself, heard_by=hearing)
        self._show(group, care)

    async def _links(self, group: Group, record: BrokerGroupRecord) -> dict[int, bool | None]:
        """Return whether the master has a link to each slave; empty if it does not answer."""
        master = record.granted_master_id
        status = await self._calls.ha_status_if_any(record.address_of(master))
        if status is None or not status.master:
            return {}
        slaves = [one for one in record.replicas if one != master and record.address_of(one) is not None]
        return links_by_host(group.binding.hosts_of_links(record, slaves), status)

    async def _about(self, group: Group, record: BrokerGroupRecord, broker_id: int) -> tuple[bool, tuple[str, ...]]:
        """Return whether the member answers in the role that the record gives it, and which other planes hear it."""
        elsewhere, status = await asyncio.gather(
            self._planes.who_hears(group.key, record.broker_name, broker_id),
            self._calls.ha_status_if_any(record.address_of(broker_id)),
        )
        answers = status is not None and status.master == (broker_id == record.granted_master_id)
        return answers, elsewhere.hearing
