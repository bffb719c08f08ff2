"""Makes the brokers agree with the record, for as long as it takes: a change of master tells each member once.

The keeper repeats what does not hold: 1008, the links of live slaves (`links.py`), `minInSyncReplicas` at a broker that a dead
switchover left at 99. In a settled group the master is asked for its links now and then, and every member for its configuration:
after each change of master, restart and change of ours, and every `configuration_check_seconds`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.controller.group.elections import is_outdated, live_members
from brokergroup_operator.controller.peers import broker_calls
from brokergroup_operator.controller.peers.services import Part, Services, doubled

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from brokergroup_operator.controller.change.executor import Executor
    from brokergroup_operator.controller.directory.group_directory import GroupBinding
    from brokergroup_operator.controller.group.group import Group
    from brokergroup_operator.controller.settings import PlaneSettings
    from brokergroup_operator.controller.upkeep.links import Links
    from brokergroup_operator.records.store import GroupKey
    from controller_core.model import BrokerGroupRecord

# Of all groups that settle at the same time. A thousand that lose their masters at once leave time for heartbeats.
MOST_REPAIRS_PER_SECOND = 500

log = structlog.get_logger(__name__)


class _Tries:
    """The members that do not answer: how often each was asked in vain, and when it is asked again.

    A pause ends early when the subject of the question, a number, has changed: the epoch, the version of the configuration.
    """

    def __init__(self) -> None:
        self._in_vain: dict[int, tuple[int, int, float]] = {}

    def is_due(self, broker_id: int, subject: int, now_seconds: float) -> bool:
        asked, _, due_seconds = self._in_vain.get(broker_id, (subject, 0, 0.0))
        return asked != subject or due_seconds <= now_seconds

    def failed(self, broker_id: int, subject: int, now_seconds: float, settings: PlaneSettings) -> int:
        """Begin the next pause; return how often the member was asked in vain."""
        asked, tries, _ = self._in_vain.get(broker_id, (subject, 0, 0.0))
        tries = tries + 1 if asked == subject else 1
        self._in_vain[broker_id] = subject, tries, now_seconds + pause_after(tries, settings)
        return tries

    def answered(self, broker_id: int) -> None:
        self._in_vain.pop(broker_id, None)

    def end_pauses(self) -> None:
        self._in_vain = {one: (subject, tries, 0.0) for one, (subject, tries, _) in self._in_vain.items()}


@dataclass(slots=True)
class _Care:
    task: asyncio.Task[None] | None = None
    next_look_seconds: float = 0.0
    # When a leftover of a switchover was first seen at a broker.
    leftover_since_seconds: dict[int, float] = field(default_factory=dict)
    untold: _Tries = field(default_factory=_Tries)
    # Those that did not answer 26.
    unread: _Tries = field(default_factory=_Tries)
    look_at_configuration_seconds: float = 0.0
    unsettled_since_seconds: float = 0.0
    # The epochs and the living members of the last look, and how many looks have found the same although it should have settled.
    seen: tuple[int, int, tuple[int, ...]] = (0, 0, ())
    looks: int = 0
    # By the last look nothing is left to do but to watch the links.
    settled: bool = False


class Keeper(Part):
    """Looks after the settled state of all groups; woken by the plane's tick."""

    def __init__(
        self,
        services: Services,
        *,
        executor: Executor,
        links: Links,
        binding_now: Callable[[GroupKey], Awaitable[GroupBinding | None]],
    ) -> None:
        super().__init__(services)
        self._executor, self._links, self._binding_now = executor, links, binding_now
        # When the last of the repairs that are due soon has its turn.
        self._last_turn_seconds = 0.0

    def look_at(self, group: Group) -> None:
        """Begin to repair if something is not as recorded and no change is under way."""
        record = group.record
        if record is None or record.granted_master_id is None or group.master_change is not None:
            return
        if group.changes.is_left_alone or not group.is_live(record.granted_master_id):
            return
        care, now_seconds = group.care(_Care), self._now_seconds
        if care.task is not None:
            return
        members = live_members(group, record)
        seen = (record.master_epoch, record.sync_state_set_epoch, tuple(members))
        if seen != care.seen:
            if record.master_epoch != care.seen[0]:
                care.unsettled_since_seconds = care.look_at_configuration_seconds = 0.0
            # A member that was silent may answer 26 again.
            care.unread.end_pauses()
            care.seen, care.looks = seen, 0
            care.next_look_seconds = min(care.next_look_seconds, now_seconds + self._settings.keeper_poll_seconds)
        if now_seconds < care.next_look_seconds:
            return
        care.settled = self._is_settled(group, record, members)
        if now_seconds >= care.look_at_configuration_seconds:
            # Each group has a period of its own: those that were met together are not all asked together.
            pause_seconds = self._settings.configuration_check_seconds * (0.75 + 0.5 * group.stagger)
            care.look_at_configuration_seconds = now_seconds + pause_seconds
            group.configuration.checked.clear()
        if care.settled:
            care.unsettled_since_seconds = 0.0
            self._links.look_at(group, record)
            return
        care.task = self._tasks.start(
            self._repair(group, record, care), f"rmq:keeper {group.key}", on_end=lambda _: self._ended(group, care)
        )

    def rests_until(self, group: Group) -> float:
        """Return until when the group is left alone, unless something in it changes: the end of a repair wakes it."""
        care, master = group.care(_Care), group.granted_master_id
        if master is None or not group.is_live(master):
            return 0.0
        if care.task is not None:
            return math.inf
        return self._links.next_look_seconds(group) if care.settled else care.next_look_seconds

    def _is_settled(self, group: Group, record: BrokerGroupRecord, members: list[int]) -> bool:
        told, settings = group.changes.told, group.binding.settings
        return all(
            told.get(one) == record.master_epoch
            and (one in record.sync_state_set or one in settings.never_elect)
            and one in group.configuration.checked
            for one in members
        )

    def _ended(self, group: Group, care: _Care) -> None:
        care.task = None
        group.look_soon()
        now_seconds, settings = self._now_seconds, self._settings
        care.unsettled_since_seconds = care.unsettled_since_seconds or now_seconds
        if now_seconds - care.unsettled_since_seconds >= settings.settling_seconds:
            # No longer than a settled group is left alone.
            pause_seconds = doubled(settings.keeper_slow_poll_seconds, care.looks, settings.link_check_seconds)
            care.looks += 1
            care.next_look_seconds = now_seconds + pause_seconds
            return
        turn_seconds = self._last_turn_seconds + 1 / MOST_REPAIRS_PER_SECOND
        care.next_look_seconds = self._last_turn_seconds = max(turn_seconds, now_seconds + settings.keeper_poll_seconds)

    async def _repair(self, group: Group, record: BrokerGroupRecord, care: _Care) -> None:
        members = live_members(group, record)
        untold = {one for one in members if group.changes.told.get(one) != record.master_epoch}
        # A member that could not be reached is told less and less often.
        due = frozenset(one for one in untold if care.untold.is_due(one, record.master_epoch, self._now_seconds))
        asked = [one for one in members if one in due or one not in untold]
        if due and not is_outdated(group, record):
            await self._executor.agree(group, record, due)
            for broker_id in due:
                if group.changes.told.get(broker_id) == record.master_epoch:
                    care.untold.answered(broker_id)
                else:
                    care.untold.failed(broker_id, record.master_epoch, self._now_seconds, self._settings)
        if asked and not is_outdated(group, record):
            await self._links.check(group, record)
        # Last: a broker that does not answer 26 must not hold up what it is told.
        if not is_outdated(group, record):
            await self._check_configuration(group, record, asked, care)

    async def _check_configuration(
        self, group: Group, record: BrokerGroupRecord, members: list[int], care: _Care
    ) -> None:
        """Ask each member that is due for its configuration (26), and repair a `minInSyncReplicas` that was left at 99."""
        for broker_id in members:
            address, version = record.address_of(broker_id), group.configuration.asking(broker_id)
            if broker_id in group.configuration.checked or address is None:
                continue
            if not care.unread.is_due(broker_id, version, self._now_seconds):
                continue
            try:
                await self._read(group, record, broker_id, address, version, care)
            except broker_calls.BrokerCallError as error:
                tries = care.unread.failed(broker_id, version, self._now_seconds, self._settings)
                complain = log.warning if tries == 1 else log.debug
                complain("configuration unknown", group=str(group.key), broker_id=broker_id, error=str(error))
                continue
            care.unread.answered(broker_id)

    async def _read(
        self, group: Group, record: BrokerGroupRecord, broker_id: int, address: str, asked: int, care: _Care
    ) -> None:
        """Note the configuration; not while the broker is kept quiet on purpose, or may be."""
        values = await self._calls.broker_config(address)
        minimum = broker_calls.live_minimum(values)
        if minimum == broker_calls.FENCING_MIN_IN_SYNC_REPLICAS or broker_calls.refuses_sends_seconds(values):
            # A broker put to sleep must not acknowledge on its way down, however long that takes (decide/deletion.py).
            # Nor one of a group that is about to be deleted since everything is read (decide/retiring.py), nor one that does not
            # know yet that another is master.
            is_told = group.changes.told.get(broker_id) == record.master_epoch
            if group.is_leaving or group.binding.closed or not is_told:
                return
            # Not before it was quiet for longer than any switchover: another plane may be in the middle of one.
            since_seconds = care.leftover_since_seconds.setdefault(broker_id, self._now_seconds)
            if self._now_seconds - since_seconds < self._settings.leftover_fence_seconds:
                return
            if (wanted := await self._minimum_now(group)) is None:
                return
            minimum, values = wanted, values | {broker_calls.MIN_IN_SYNC_REPLICAS: str(wanted)}
            await self._calls.set_min_in_sync_replicas(address, minimum, shown=values)
            log.warning("leftover of a switchover repaired", group=str(group.key), broker_id=broker_id)
            self._observer.acknowledges_again(group.key, broker_id, minimum)
        if not group.configuration.is_of_now(broker_id, asked=asked):
            return  # of another process, or of before a change: it is asked again
        if minimum is not None:
            group.configuration.minimums[broker_id] = minimum
        if group.configuration.heard(broker_id, values, group.binding.watched_keys, asked=asked):
            group.changed()
        care.leftover_since_seconds.pop(broker_id, None)
        group.configuration.checked.add(broker_id)

    async def _minimum_now(self, group: Group) -> int | None:
        """Return the group's minimum as the API has it now; None if its brokers may acknowledge nothing, or if that is not known.

        By a watch's copy a plane that was cut from the API opened a group that a Retire had closed: what its brokers acknowledged
        then went with it.
        """
        asked_seconds = self._now_seconds
        now = await self._binding_now(group.key)
        is_late = self._now_seconds - asked_seconds > self._settings.binding_is_now_seconds
        if now is None or now.closed or now.deleting or is_late:
            return None
        return now.settings.min_in_sync_replicas


def pause_after(tries: int, settings: PlaneSettings) -> float:
    """Return how long a member that did not answer so often is left alone: it may be starting with its port still closed."""
    longest_seconds = settings.keeper_longest_retry_seconds
    beyond = tries - settings.keeper_patient_tries
    if beyond > 0:  # it is not starting, then
        return doubled(longest_seconds, beyond, settings.keeper_longest_pause_seconds)
    return doubled(settings.keeper_poll_seconds, tries - 1, longest_seconds)
