"""Living slaves without a link to the master: the alarm, and repairs that escalate.

A slave's own 907 may show the right address while it is chained behind another slave: the *master's* 907, which names its links,
is the proof (measured). A slave without a link:

1. is told again, with backoff: 1008, and 906 with another spelling of the same address first, because a Java HA client that
   sleeps in its retry wakes up only for a changed address;
2. is an alarm after a while (`GroupSnapshot.unlinked`, Event, metric), and does not count for voluntary work;
3. leaves the SyncStateSet if it can't be told, while its master counts it: a Java slave that stops may lose its link while a
   1001 that puts it into the set is under way, and the master waits for it for 3 s and more at every message. Under the next epoch
   (`RenewMaster`) the master takes the smaller set at once;
4. is cured if it was told and still is not linked: the master's epoch is raised twice (`RenewMaster`), the slave alone is told
   of another master under the first new epoch, and all of the real one under the second. Rarely repeated: if the network
   separates the two, no epoch helps;
5. is given up if that helped nothing either: its process is replaced (`reconcile/decide/silent_members.py`). A Java HA client may
   have written a frame's header into its log.

A Java master counts a set from the moment at which it proposes it (1001), and a refusal does not undo that. If the link of a member
that was refused so ends, each send would fail until that member is back (docs/adr/0008): under the next epoch the master takes the
record's set.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.controller.group.elections import live_members
from brokergroup_operator.controller.peers.broker_calls import BrokerCallError
from brokergroup_operator.controller.peers.ha_links import (
    counted_without_link,
    silent,
    speeds_of_links,
    surely_unlinked,
    unlinked,
)
from brokergroup_operator.controller.peers.services import Part, Services, doubled, is_running
from brokergroup_operator.observe.group_view import LostLink
from brokergroup_operator.records.store import RecordStoreError
from controller_core.change import Tell
from controller_core.decision import ControllerCode
from controller_core.model import BrokerGroupRecord, ChangeKind
from controller_core.requests import RenewMaster

if TYPE_CHECKING:
    import asyncio

    from brokergroup_operator.controller.change.executor import Executor
    from brokergroup_operator.controller.change.failover import Failover
    from brokergroup_operator.controller.group.group import Group
    from rocketmq_remoting.broker_protocol import HARuntimeInfoBody

# A slave that was told this often, answered, and is not linked, is not told once more: its link is at the wrong place.
TOLD_BEFORE_CURE = 3
# Between two jumps of the epoch for one master that goes on denying its role.
LONGEST_DENIAL_SECONDS = 600.0

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Doubt:
    """What is counted against a slave until a link of it has stood for a while. New epochs, and links that end at once, keep it."""

    looked_seconds: float
    missing_seconds: float = 0.0
    told: int = 0
    linked_since_seconds: float | None = None
    cures: int = 0
    next_cure_seconds: float = 0.0
    lost: LostLink | None = None
    # Whether it had only a link without an acknowledgement at the last look, and how many of those have ended so.
    is_dialling: bool = False
    dialled_in_vain: int = 0


@dataclass(slots=True)
class _Missing:
    """A living slave without a link under the present epoch."""

    doubt: _Doubt
    since_seconds: float
    tell_again_seconds: float
    # How often it was told again, and how often it answered.
    tries: int = 0
    told: int = 0


@dataclass(frozen=True, slots=True)
class _WithoutLink:
    """`refusal`: its epochs, and the members."""

    refusal: tuple[tuple[int, int], frozenset[int]]
    since_seconds: float


@dataclass(slots=True)
class _Care:
    epoch: int = 0
    # When the first look under this epoch was, if this process saw it begin.
    since_seconds: float = -math.inf
    missing: dict[int, _Missing] = field(default_factory=dict)
    alarmed: frozenset[int] = frozenset()
    doubts: dict[int, _Doubt] = field(default_factory=dict)
    looked_seconds: float = -math.inf
    next_look_seconds: float = 0.0
    # Refused members that had no link at each look since.
    without_link: _WithoutLink | None = None
    # How often in a row the master did not answer 907: logged once, and asked with backoff.
    unanswered: int = 0
    task: asyncio.Task[None] | None = None
    # Under which epoch, and since when, the master has denied its role.
    denied_epoch: int = 0
    denied_since_seconds: float = 0.0
    # The master for which the epoch was raised, and how often, until it says that it is master.
    raised_for: int | None = None
    raises: int = 0


class Links(Part):
    """Watches and repairs the links of all groups, and hears by the way whether each master knows its role."""

    def __init__(self, services: Services, *, executor: Executor, failover: Failover) -> None:
        super().__init__(services)
        self._executor, self._failover = executor, failover

    def look_at(self, group: Group, record: BrokerGroupRecord) -> None:
        care = group.care(_Care)
        if not is_running(care.task) and self._now_seconds >= self._due_seconds(group, care):
            work, name = self.check(group, record), f"rmq:links {group.key}"
            care.task = self._tasks.start(work, name, on_end=lambda _: group.look_soon())

    def next_look_seconds(self, group: Group) -> float:
        """Return when the master is asked again; while it is being asked, the answer wakes the group."""
        care = group.care(_Care)
        return math.inf if is_running(care.task) else self._due_seconds(group, care)

    def _due_seconds(self, group: Group, care: _Care) -> float:
        """While a refused member may lose its link, the master is asked more often: its sends would wait from then on."""
        if not group.refused_set.members_by(group.record):
            return care.next_look_seconds
        return min(care.next_look_seconds, care.looked_seconds + self._settings.keeper_slow_poll_seconds)

    async def check(self, group: Group, record: BrokerGroupRecord) -> None:
        """Ask the master for its links; do what is next for the slaves that have none."""
        care = group.care(_Care)
        if not await self._look(group, record, care) or await self._end_wait(group, record, care):
            return
        now_seconds = self._now_seconds
        for broker_id, state in care.missing.items():
            if self._needs_cure(group, state, now_seconds):
                await self._cure(group, record, broker_id, state.doubt)
                # The group is under another epoch now. Callers that wait for it to be safe see the link at once.
                if group.record is not None:
                    await self._look(group, group.record, care)
                return
            # While it dials, another 906 would only end that.
            if now_seconds >= state.tell_again_seconds and not state.doubt.is_dialling:
                is_told = await self._link_again(group, record, broker_id, state)
                if not is_told:
                    await self._go_on_without(group, record, broker_id)
                    return  # the record may be another one now: the others are due at the next look

    async def _look(self, group: Group, record: BrokerGroupRecord, care: _Care) -> bool:
        """Note which slaves have no link now; return False if the master did not answer."""
        if care.epoch != record.master_epoch:
            # The frequent looks are for epochs that this process saw begin: after a start they would be for all groups at once.
            care.since_seconds = self._now_seconds if group.saw_master_begin else -math.inf
            care.epoch, care.missing = record.master_epoch, {}
        settings, master_address = self._settings, record.address_of(record.master_broker_id)
        care.looked_seconds = self._now_seconds
        slaves = [broker_id for broker_id in live_members(group, record) if broker_id != record.master_broker_id]
        absent, quiet, speeds = list[int](), list[int](), dict[int, int]()
        if master_address is not None:  # also without slaves: it says whether it is master
            try:
                hosts = group.binding.hosts_of_links(record, slaves)
                status = await self._calls.ha_status(master_address)
                absent, quiet, speeds = unlinked(hosts, status), silent(hosts, status), speeds_of_links(hosts, status)
                await self._master_said(group, record, care, is_master=status.master)
            except BrokerCallError as error:
                complain = log.debug if care.unanswered else log.warning
                complain("links unknown", group=str(group.key), error=str(error))
                pause_seconds = doubled(settings.keeper_slow_poll_seconds, care.unanswered, settings.link_check_seconds)
                care.next_look_seconds = self._now_seconds + pause_seconds
                care.unanswered, group.links.speeds = care.unanswered + 1, {}
                return False
        care.unanswered, group.links.speeds = 0, speeds
        now_seconds = self._now_seconds
        for broker_id in absent:
            care.doubts.setdefault(broker_id, _Doubt(now_seconds))
        missing = [*absent, *_dialling_in_vain(care.doubts, absent, quiet)]
        care.doubts = {
            one: doubt
            for one, doubt in care.doubts.items()
            if one in slaves
            and not self._is_over(doubt, now_seconds, is_linked=one not in missing and not doubt.is_dialling)
        }
        tell_again_seconds = now_seconds + settings.link_missing_seconds
        care.missing = {
            one: care.missing.get(one) or _Missing(care.doubts[one], now_seconds, tell_again_seconds) for one in missing
        }
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

    def _is_over(self, doubt: _Doubt, now_seconds: float, *, is_linked: bool) -> bool:
        """Count this look for or against the slave; return whether its link has stood for long enough."""
        if is_linked:
            doubt.linked_since_seconds = doubt.linked_since_seconds or now_seconds
            if now_seconds - doubt.linked_since_seconds >= self._settings.link_trusted_seconds:
                return True
        elif doubt.linked_since_seconds is None:
            # While the master does not answer, its links are unknown: no more counts than two pauses between looks.
            longest_seconds = 2 * self._settings.keeper_slow_poll_seconds
            doubt.missing_seconds += min(now_seconds - doubt.looked_seconds, longest_seconds)
        else:
            doubt.linked_since_seconds = None
        doubt.looked_seconds = now_seconds
        is_late = doubt.missing_seconds >= self._settings.link_given_up_seconds
        if is_late and doubt.told >= TOLD_BEFORE_CURE:
            doubt.lost = LostLink(doubt.lost.since_unix_seconds if doubt.lost else time.time(), doubt.told)
        return False

    def _alarm(self, group: Group, care: _Care, now_seconds: float) -> None:
        patience_seconds = self._settings.unlinked_alarm_seconds
        late = frozenset(
            one for one, state in care.missing.items() if now_seconds - state.since_seconds >= patience_seconds
        )
        lost = {one: doubt.lost for one, doubt in care.doubts.items() if doubt.lost is not None}
        # A missing member does not count for voluntary work at once; the alarm waits.
        if group.links.unlinked != frozenset(care.missing) or group.links.lost.keys() != lost.keys():
            group.links.unlinked, group.links.lost = frozenset(care.missing), lost
            group.changed()
        if late != care.alarmed:
            care.alarmed = late
            self._observer.members_unlinked(group.key, late)

    async def _link_again(self, group: Group, record: BrokerGroupRecord, broker_id: int, state: _Missing) -> bool:
        """Make the slave dial again; return whether it was told of its master."""
        tell = log.debug if state.tries else log.warning
        tell("slave alive and not linked: told again", group=str(group.key), broker_id=broker_id)
        # One that ends closes its ports, and is heard for seconds after that (Java): no epochs are spent on it.
        if is_told := await self._executor.tell(group, record, Tell(broker_id, record.master_epoch)):
            state.told += 1
            state.doubt.told += 1
        ha_address = group.binding.ha_address_of(record.address_of(record.master_broker_id) or "")
        await self._executor.point(group, record, broker_id, respelled(ha_address))
        await self._executor.point(group, record, broker_id)
        state.tries, settings = state.tries + 1, self._settings
        pause_seconds = doubled(settings.link_missing_seconds, state.tries, settings.link_missing_longest_seconds)
        state.tell_again_seconds = self._now_seconds + pause_seconds
        return is_told

    async def _go_on_without(self, group: Group, record: BrokerGroupRecord, broker_id: int) -> None:
        """If the master counts this slave without a link, take it out of the set, and tell the master at once."""
        master = record.granted_master_id
        if master is None or group.master_change is not None:
            return
        # The telling may have taken seconds. A slave that was linked since may hold what another member of the set lacks.
        status = await self._calls.ha_status_if_any(record.address_of(master))
        slaves = record.sync_state_set - {master}
        if status is None or broker_id not in counted_without_link(
            group.binding.hosts_of_links(record, slaves), status
        ):
            return
        wanted = RenewMaster(broker_id=master, master_epoch=record.master_epoch, without=frozenset({broker_id}))
        await self._renew(group, wanted, what="slave not linked and not told: out of the set", broker_id=broker_id)

    async def _end_wait(self, group: Group, record: BrokerGroupRecord, care: _Care) -> bool:
        """Tell the master the record's set under the next epoch if for a while each look has shown a refused member without a link;
        return whether it did.
        """
        refused, master, change = group.refused_set.members_by(record), record.granted_master_id, record.change
        is_changing = group.master_change is not None or (change is not None and not change.is_told)
        if not refused or master is None or is_changing:
            return False
        status = await self._calls.ha_status_if_any(record.address_of(master))
        if status is None or not _waits_in_vain(group, record, status, refused):
            care.without_link = None
            return False
        refusal = (group.refused_set.epochs, refused)
        if care.without_link is None or care.without_link.refusal != refusal:
            care.without_link = _WithoutLink(refusal, self._now_seconds)
            return False
        # A slave that restarts is back by then, and under load its master proposes it again with each acknowledgement: an epoch
        # would end that wait for a moment. And a 1001 that was accepted while we asked has ended it.
        lasts_seconds = self._now_seconds - care.without_link.since_seconds
        if lasts_seconds < self._settings.link_refused_seconds or group.refused_set.members_by(group.record) != refused:
            return False
        wanted = RenewMaster(broker_id=master, master_epoch=record.master_epoch)
        what = "slave refused and not linked: the master no longer waits for it"
        return await self._renew(group, wanted, what=what, broker_id=min(refused))

    async def _renew(self, group: Group, wanted: RenewMaster, *, what: str, broker_id: int) -> bool:
        """Commit the next epoch and tell the master, which takes the record's set with it; return whether it was committed."""
        try:
            decision = await group.decide(wanted)
        except RecordStoreError as error:
            log.warning("no new epoch for it", group=str(group.key), broker_id=broker_id, error=str(error))
            return False
        if decision.code != ControllerCode.SUCCESS or decision.record is None:
            return False
        log.warning(what, group=str(group.key), broker_id=broker_id)
        await self._executor.tell(group, decision.record, Tell(wanted.broker_id, decision.record.master_epoch))
        return True

    def _needs_cure(self, group: Group, state: _Missing, now_seconds: float) -> bool:
        """Whether only a cure is left. Planes of worse rank wait longer: they see the cure's epochs, and count anew."""
        patience_seconds = self._settings.cure_after_seconds * (1 + self._planes.rank(group.key))
        return (
            state.told >= TOLD_BEFORE_CURE
            and now_seconds - state.since_seconds >= patience_seconds
            and now_seconds >= state.doubt.next_cure_seconds
            and group.master_change is None
        )

    async def _cure(self, group: Group, record: BrokerGroupRecord, broker_id: int, doubt: _Doubt) -> None:
        """Raise the epoch twice in one commit, and tell the brokers. The plan is in the record, so any plane can go on with it."""
        pause_seconds = doubled(self._settings.cure_pause_seconds, doubt.cures, math.inf)
        doubt.next_cure_seconds = self._now_seconds + pause_seconds
        doubt.cures += 1
        master = record.master_broker_id
        assert master is not None
        plan = replace(
            self._executor.plan(ChangeKind.CURE, f"broker {broker_id} hangs on a wrong link"), slave=broker_id
        )
        wanted = RenewMaster(broker_id=master, master_epoch=record.master_epoch, epochs=2, plan=plan)
        try:
            decision = await group.decide(wanted)
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

    async def _master_said(self, group: Group, record: BrokerGroupRecord, care: _Care, *, is_master: bool) -> None:
        """Take the recorded master's own word; raise the epoch if it goes on denying its role.

        It does so because a foreign 1008 gave it another role under a far higher epoch: a Java broker ignores every epoch that is
        not above its own, and answers 0 all the same; its heartbeats do not show it. After `denied_master_seconds` its epoch is
        raised as far as one may jump (safety rule 3). If it denies its role under that epoch too, another member is elected; if no
        other can lead, it is raised again, and from then on each time after twice the time.
        """
        master, epoch = record.granted_master_id, record.master_epoch
        if master is None or group.changes.told.get(master) != epoch:
            return  # it has not answered this plane's 1008: a change of roles is under way
        group.master_said(epoch, is_master=is_master)
        now_seconds = self._now_seconds
        if is_master:
            care.denied_epoch, care.raised_for = 0, None
            return
        if care.denied_epoch != epoch:
            care.denied_epoch, care.denied_since_seconds = epoch, now_seconds
            return
        raises = care.raises if care.raised_for == master else 0
        # The plane of rank 0 has raised it, and judged that it did not help, before another one raises it.
        first_seconds = self._settings.denied_master_seconds * (1 + 2 * self._planes.rank(group.key))
        patience_seconds = doubled(first_seconds, max(raises - 1, 0), LONGEST_DENIAL_SECONDS)
        if now_seconds - care.denied_since_seconds < patience_seconds or group.master_change is not None:
            return
        if care.raised_for == master and self._failover.replace_deaf(group, record, master):
            return
        care.raised_for, care.raises = master, raises + 1
        wanted = RenewMaster(broker_id=master, master_epoch=epoch, epochs=group.binding.settings.max_epoch_jump)
        try:
            decision = await group.decide(wanted)
        except RecordStoreError as error:
            log.warning("epoch not raised yet", group=str(group.key), broker_id=master, error=str(error))
            return
        what = "the master denies its role, it was told an epoch that no controller committed: the epoch is raised"
        log.error(what, group=str(group.key), broker_id=master, why=decision.why)


def _waits_in_vain(group: Group, record: BrokerGroupRecord, status: HARuntimeInfoBody, refused: frozenset[int]) -> bool:
    """Whether this master has no link to one of the members that it was refused, and counts the record's set beside them.

    One that counts fewer has dropped some by itself, and may acknowledge without them: its 1001, which ends the wait too, would be
    refused under another epoch.
    """
    # Also those that are not heard here: their links are no strangers'.
    known = {one for one in record.replicas if record.address_of(one) is not None}
    slaves = (known | refused) - {record.master_broker_id}
    counts_all = status.in_sync_slave_nums >= len(record.sync_state_set) - 1
    return counts_all and bool(surely_unlinked(group.binding.hosts_of_links(record, slaves), status, refused))


def _dialling_in_vain(doubts: dict[int, _Doubt], absent: list[int], quiet: list[int]) -> list[int]:
    """Return the slaves whose link has no acknowledgement yet, after one that ended so. The first gets the time to be acknowledged.

    A Java slave that finds no epoch in common with its master dials for ever: most looks see a link in its handshake.
    """
    for one, doubt in doubts.items():
        doubt.dialled_in_vain += doubt.is_dialling and one in absent
        doubt.is_dialling = one in quiet and one not in absent
    return [one for one, doubt in doubts.items() if doubt.is_dialling and doubt.dialled_in_vain]


def respelled(address: str) -> str:
    """Return the same address in other characters: a leading zero before the port."""
    host, _, port = address.rpartition(":")
    return f"{host}:0{port}"
