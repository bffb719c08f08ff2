"""Living slaves without a link to the master: the alarm, and repairs that escalate.

A slave's own 907 may show the right address while it is chained behind another slave; the *master's* 907 names its links, and
is the proof (measured). The master is asked after every change of roles until every living slave is linked, then every few
seconds. A slave without a link:

1. is told again, with backoff: 1008, and 906 with another spelling of the same address first, because a Java HA client that
   sleeps in its retry wakes up only for a changed address;
2. is an alarm after a while (`GroupSnapshot.unlinked`, Event, metric), and does not count for voluntary work;
3. is cured if it was told and still is not linked: the master's epoch is raised twice (`RenewMaster`), the slave alone is told
   of another master under the first new epoch, and all of the real one under the second (linked 11 ms later, measured). Rarely
   repeated: if the network separates the two, no epoch helps;
4. is given up if that helped nothing either: its process is replaced (`reconcile/decide/silent_members.py`). A Java HA client
   that misread a frame wrote the frame's header into its log, and each new link ended at once by "offset is not align".
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import structlog

from brokergroup_operator.controller.directory.places import (
    ha_address_of,
    hosts_of_links,
    respelled,
    speeds_of_links,
    unlinked,
)
from brokergroup_operator.controller.group.election_premises import live_members
from brokergroup_operator.controller.peers.broker_calls import BrokerCallError
from brokergroup_operator.controller.peers.services import Part, is_running
from brokergroup_operator.observe.group_view import LostLink
from brokergroup_operator.records.store import RecordStoreError
from controller_core.change import Tell
from controller_core.decision import ControllerCode
from controller_core.plan import ChangeKind
from controller_core.requests import RenewMaster

if TYPE_CHECKING:
    from brokergroup_operator.controller.change.executor import Executor
    from brokergroup_operator.controller.change.failover import Failover
    from brokergroup_operator.controller.group.group import Group
    from brokergroup_operator.controller.peers.services import Services
    from controller_core.model import BrokerGroupRecord

# A slave that was told this often, answered, and is not linked, is not told once more: its link is at the wrong place.
TOLD_BEFORE_CURE = 3

log = structlog.get_logger(__name__)


class DeniedMasters(Part):
    """A master by the record that denies it by its own 907, because a foreign 1008 gave it another role under a far higher
    epoch.

    A Java broker ignores every epoch that is not above its own, and answers 0 all the same; its heartbeats do not show it.
    After `denied_master_seconds` its epoch is raised as far as one may jump (safety rule 3). If it denies its role under that
    epoch too, another member is elected (`Failover.replace_deaf`); if no other can lead, the next jump follows.
    """

    def __init__(self, services: Services, failover: Failover) -> None:
        super().__init__(services)
        self._failover = failover
        # Under which epoch, and since when, the master of a group has denied its role.
        self._since: WeakKeyDictionary[Group, tuple[int, float]] = WeakKeyDictionary()
        # The master for which the epoch was raised, until it says that it is master.
        self._raised_for: WeakKeyDictionary[Group, int] = WeakKeyDictionary()

    async def said(self, group: Group, record: BrokerGroupRecord, *, is_master: bool) -> None:
        """Take the recorded master's own word; raise the epoch if it goes on denying."""
        master, epoch = record.granted_master_id, record.master_epoch
        if master is None or group.changes.told.get(master) != epoch:
            return  # it has not answered this plane's 1008: a change of roles is under way
        group.master_said(epoch, is_master=is_master)
        if is_master:
            self._since.pop(group, None)
            self._raised_for.pop(group, None)
            return
        now_seconds = asyncio.get_running_loop().time()
        since_epoch, since_seconds = self._since.get(group, (0, 0.0))
        if since_epoch != epoch:
            self._since[group] = (epoch, now_seconds)
            return
        patience_seconds = self._settings.denied_master_seconds * (1 + self._planes.rank(group.key))
        if now_seconds - since_seconds < patience_seconds or group.master_change is not None:
            return
        if self._raised_for.get(group) == master and self._failover.replace_deaf(group, record, master):
            return
        self._raised_for[group] = master
        await self._raise(group, record, master)

    async def _raise(self, group: Group, record: BrokerGroupRecord, master: int) -> None:
        wanted = RenewMaster(
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
            "the master denies its role, it was told an epoch that no controller committed: the epoch is raised",
            group=str(group.key),
            broker_id=master,
            why=decision.why,
        )


@dataclass(slots=True)
class _Missing:
    """A living slave without a link."""

    since_seconds: float
    tell_again_seconds: float
    patience_seconds: float | None = None
    # How often it was told again, and answered.
    told: int = 0


@dataclass(slots=True)
class _Doubt:
    """What is held against a slave's link until one has stood for a while: links that end at once, and new epochs, end nothing."""

    looked_seconds: float
    missing_seconds: float = 0.0
    told: int = 0
    linked_since_seconds: float | None = None
    cures: int = 0
    next_cure_seconds: float = 0.0
    lost: LostLink | None = None


@dataclass(slots=True)
class _Care:
    """What is remembered of one group."""

    epoch: int = 0
    # When the first look under this epoch was, if this process saw it begin.
    since_seconds: float = -math.inf
    missing: dict[int, _Missing] = field(default_factory=dict)
    alarmed: frozenset[int] = frozenset()
    doubts: dict[int, _Doubt] = field(default_factory=dict)
    next_look_seconds: float = 0.0
    # How often in a row the master did not answer 907: logged once, and asked with backoff.
    unanswered: int = 0
    task: asyncio.Task[None] | None = None


class Links(Part):
    """Looks after the links of all groups; woken by the keeper."""

    def __init__(self, services: Services, *, executor: Executor, denied_masters: DeniedMasters) -> None:
        super().__init__(services)
        self._executor, self._denied_masters = executor, denied_masters
        self._cares: WeakKeyDictionary[Group, _Care] = WeakKeyDictionary()

    def look_at(self, group: Group, record: BrokerGroupRecord) -> bool:
        """Begin a check of a settled group if it is time; return whether some member is missing now."""
        care = self._cares.setdefault(group, _Care())
        if not is_running(care.task) and asyncio.get_running_loop().time() >= care.next_look_seconds:
            care.task = self._tasks.start(self.check(group, record), f"rmq:links {group.key}")
        return bool(care.missing)

    def next_look_seconds(self, group: Group) -> float:
        """Return when the master is asked again; 0.0 while it is being asked."""
        care = self._cares.get(group)
        return care.next_look_seconds if care is not None and not is_running(care.task) else 0.0

    async def check(self, group: Group, record: BrokerGroupRecord) -> None:
        """Ask the master for its links; do what is next for the slaves that have none."""
        care = self._cares.setdefault(group, _Care())
        if not await self._look(group, record, care):
            return
        now_seconds = asyncio.get_running_loop().time()
        for broker_id, state in care.missing.items():
            if self._needs_cure(group, care, broker_id, state, now_seconds):
                await self._cure(group, record, broker_id, care)
                # The group is under another epoch now. Callers that wait for it to be safe see the link at once.
                if group.record is not None:
                    await self._look(group, group.record, care)
                return
            if now_seconds >= state.tell_again_seconds:
                await self._link_again(group, record, broker_id, state, care.doubts[broker_id])

    async def _look(self, group: Group, record: BrokerGroupRecord, care: _Care) -> bool:
        """Note which slaves have no link now; return False if the master did not answer."""
        if care.epoch != record.master_epoch:
            # Not of what was so when we started: all groups at once would be a lot.
            care.since_seconds = asyncio.get_running_loop().time() if group.saw_master_begin else -math.inf
            care.epoch, care.missing = record.master_epoch, {}
        master_address = record.address_of(record.master_broker_id)
        slaves = [broker_id for broker_id in live_members(group, record) if broker_id != record.master_broker_id]
        missing: list[int] = []
        speeds: dict[int, int] = {}
        if master_address is not None:  # also without slaves: it says whether it is master
            try:
                hosts = hosts_of_links(group.binding, record, slaves)
                status = await self._calls.ha_status(master_address)
                missing = unlinked(hosts, status)
                speeds = speeds_of_links(hosts, status)
                await self._denied_masters.said(group, record, is_master=status.master)
            except BrokerCallError as error:
                complain = log.debug if care.unanswered else log.warning
                complain("links unknown", group=str(group.key), error=str(error))
                care.unanswered, group.links.speeds = care.unanswered + 1, {}
                pause_seconds = self._settings.keeper_slow_poll_seconds * float(2 ** min(care.unanswered - 1, 10))
                pause_seconds = min(pause_seconds, self._settings.link_check_seconds)
                care.next_look_seconds = asyncio.get_running_loop().time() + pause_seconds
                return False
        care.unanswered, group.links.speeds = 0, speeds
        now_seconds = asyncio.get_running_loop().time()
        care.missing = {
            one: care.missing.get(one) or _Missing(now_seconds, now_seconds + self._settings.link_missing_seconds)
            for one in missing
        }
        care.doubts = {one: doubt for one, doubt in care.doubts.items() if one in slaves}
        for broker_id in slaves:
            self._doubt(care, broker_id, now_seconds, is_linked=broker_id not in missing)
        care.next_look_seconds = now_seconds + self._pause_seconds(care, now_seconds)
        self._alarm(group, care, now_seconds)
        return True

    def _pause_seconds(self, care: _Care, now_seconds: float) -> float:
        if care.missing:
            # A tenth of the time that the latest of them has been missing: one that does not come is looked for seldom.
            missing_seconds = now_seconds - max(state.since_seconds for state in care.missing.values())
            longest_seconds = self._settings.keeper_slow_poll_seconds
            return min(max(self._settings.keeper_poll_seconds, missing_seconds / 10), longest_seconds)
        # A Java slave may give up its first link to a new master at once (a handshake that arrives in two parts is answered
        # twice), and calls again after 5 s: until then nothing is acknowledged.
        if now_seconds - care.since_seconds < self._settings.new_links_seconds:
            return min(self._settings.new_links_check_seconds, self._settings.link_check_seconds)
        return self._settings.link_check_seconds

    def _doubt(self, care: _Care, broker_id: int, now_seconds: float, *, is_linked: bool) -> None:
        doubt = care.doubts.get(broker_id)
        if doubt is None:
            if not is_linked:
                care.doubts[broker_id] = _Doubt(now_seconds)
            return
        if is_linked:
            doubt.linked_since_seconds = doubt.linked_since_seconds or now_seconds
            if now_seconds - doubt.linked_since_seconds >= self._settings.link_trusted_seconds:
                del care.doubts[broker_id]
        elif doubt.linked_since_seconds is None:
            # While the master does not answer, its links are unknown: no more counts than two pauses between looks.
            longest_seconds = 2 * self._settings.keeper_slow_poll_seconds
            doubt.missing_seconds += min(now_seconds - doubt.looked_seconds, longest_seconds)
        else:
            doubt.linked_since_seconds = None
        doubt.looked_seconds = now_seconds
        is_late = doubt.missing_seconds >= self._settings.link_given_up_seconds
        if is_late and doubt.told >= TOLD_BEFORE_CURE:
            since = doubt.lost.since_unix_seconds if doubt.lost else time.time()
            doubt.lost = LostLink(since, doubt.told)

    def _alarm(self, group: Group, care: _Care, now_seconds: float) -> None:
        late = frozenset(
            one
            for one, state in care.missing.items()
            if now_seconds - state.since_seconds >= self._settings.unlinked_alarm_seconds
        )
        lost = {one: doubt.lost for one, doubt in care.doubts.items() if doubt.lost is not None}
        # A missing member does not count for voluntary work at once; the alarm waits.
        if group.links.unlinked != frozenset(care.missing) or group.links.lost.keys() != lost.keys():
            group.links.unlinked, group.links.lost = frozenset(care.missing), lost
            group.changed()
        if late != care.alarmed:
            care.alarmed = late
            self._observer.members_unlinked(group.key, late)

    async def _link_again(
        self, group: Group, record: BrokerGroupRecord, broker_id: int, state: _Missing, doubt: _Doubt
    ) -> None:
        tell = log.warning if state.patience_seconds is None else log.debug
        tell("slave alive and not linked: told again", group=str(group.key), broker_id=broker_id)
        # One that ends closes its ports, and is heard for seconds after that (Java): no epochs are spent on it.
        if await self._executor.tell(group, record, Tell(broker_id, record.master_epoch)):
            state.told += 1
            doubt.told += 1
        master_address = record.address_of(record.master_broker_id) or ""
        other_spelling = respelled(ha_address_of(group.binding, master_address))
        await self._executor.point(group, record, broker_id, other_spelling)
        await self._executor.point(group, record, broker_id)
        state.patience_seconds = min(
            2 * (state.patience_seconds or self._settings.link_missing_seconds),
            self._settings.link_missing_longest_seconds,
        )
        state.tell_again_seconds = asyncio.get_running_loop().time() + state.patience_seconds

    # ---- the cure

    def _needs_cure(self, group: Group, care: _Care, broker_id: int, state: _Missing, now_seconds: float) -> bool:
        """Whether nothing else is left. The planes go one after the other: each sees the next epoch and counts anew."""
        patience_seconds = self._settings.cure_after_seconds * (1 + self._planes.rank(group.key))
        return (
            state.told >= TOLD_BEFORE_CURE
            and now_seconds - state.since_seconds >= patience_seconds
            and now_seconds >= care.doubts[broker_id].next_cure_seconds
            and group.master_change is None
        )

    async def _cure(self, group: Group, record: BrokerGroupRecord, broker_id: int, care: _Care) -> None:
        """Two epochs for one slave in one commit. The record has it, so it can be cut off anywhere."""
        doubt = care.doubts[broker_id]
        pause_seconds = self._settings.cure_pause_seconds * 2.0 ** min(doubt.cures, 10)
        doubt.next_cure_seconds = asyncio.get_running_loop().time() + pause_seconds
        doubt.cures += 1
        master = record.master_broker_id
        assert master is not None
        plan = self._executor.plan(ChangeKind.CURE, f"broker {broker_id} hangs on a wrong link")
        request = RenewMaster(
            broker_id=master, master_epoch=record.master_epoch, epochs=2, plan=replace(plan, slave=broker_id)
        )
        try:
            decision = await group.decide(request)
        except RecordStoreError as error:
            log.warning("cure cut off", group=str(group.key), broker_id=broker_id, error=str(error))
            return
        renewed = decision.record
        if decision.code != ControllerCode.SUCCESS or renewed is None or renewed.change is None:
            return
        log.warning("slave on a wrong link: cured by two epochs", group=str(group.key), broker_id=broker_id)
        await self._executor.run(self._executor.course_of(group, renewed.change))
        if group.changes.told.get(broker_id) == renewed.master_epoch:
            self._observer.member_relinked(group.key, broker_id, renewed.master_epoch)
