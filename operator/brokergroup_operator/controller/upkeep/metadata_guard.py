"""Compares what masters and slaves know besides their logs: topics, subscription groups, consumer offsets.

A slave copies these by asking its master (Java: at most every 10 s), not through the log. So a slave that is in sync may lack a
topic, and a switchover to it loses the topic (upstream #9804).

* *Before a switchover* the target must have every topic and subscription group of the master; it is waited for a few seconds.
* *After a change of master* what the new master lacks of the old one's last picture is lost, and reported for an hour or until
  it is back.
* *Now and then* each slave is compared with what the master had a while ago and has still. A slave that lacks the same twice
  running will not get it (upstream #11041: it has the data version already). So the slave's own version is raised by a name that
  comes and goes (17 and 215, 200), and its next copy replaces the whole table. Consumer offsets that it lacks are written there
  (`offset_carrier.py`): a slave copies those whatever their version is, or it can't.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import structlog

from brokergroup_operator.controller.group.elections import is_outdated, live_members
from brokergroup_operator.controller.peers.broker_calls import BrokerCallError
from brokergroup_operator.controller.peers.metadata import Metadata, Offsets, without_leftovers
from brokergroup_operator.controller.peers.services import Part, Services
from brokergroup_operator.controller.upkeep.offset_carrier import OffsetCarrier
from brokergroup_operator.observe.group_view import MetadataDifference, MetadataKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from brokergroup_operator.controller.group.group import Group
    from controller_core.model import BrokerGroupRecord

POLL_SECONDS = 0.25
LOST_REMEMBERED_SECONDS = 3600.0
# The longest pause between two requests to copy again has so many periods.
MOST_PERIODS = 64
# Of a member that lacks thousands of topics, this many are named.
MOST_DIFFERENCES = 50
# A subscription group of default settings, by the fields that `read_metadata` reads.
_DEFAULT_GROUP = (True, True, True, 1, 16)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Picture:
    metadata: Metadata
    epoch: int
    broker_id: int
    taken_seconds: float


@dataclass(slots=True)
class _CopyAgain:
    """When a member was last made to copy all of a kind, or refused to, and the pause after it."""

    at_seconds: float
    periods: int = 1


@dataclass(slots=True)
class _Care:
    picture: _Picture | None = None
    # What the old master had and the present one lacks, and until when it is remembered.
    lost: Metadata | None = None
    lost_until_seconds: float = 0.0
    differences: tuple[MetadataDifference, ...] = ()
    # Under which epoch a switchover was refused, and for which differences, if no comparison has looked at them since. They may be
    # younger than the picture, which then does not have them.
    refusal: tuple[int, tuple[MetadataDifference, ...]] | None = None
    next_seconds: float = 0.0
    copied_again: dict[tuple[int, MetadataKind], _CopyAgain] = field(default_factory=dict)
    # The epoch whose master was looked at, or tried to.
    looked_at_epoch: int = 0
    task: asyncio.Task[float] | None = None


class MetadataGuard(Part):
    """Woken by the plane's tick, and before switchovers."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._turns = asyncio.Semaphore(2)  # a metadata body may have megabytes
        self._offsets = OffsetCarrier(services)

    def differences(self, group: Group) -> tuple[MetadataDifference, ...]:
        return group.care(_Care).differences

    def look_at(self, group: Group) -> None:
        """Begin a comparison if it is time. Cheap."""
        record = group.record
        if record is None or record.granted_master_id is None or group.master_change is not None:
            return
        if not group.is_live(record.granted_master_id) or group.confirmed_epoch < record.master_epoch:
            return
        care = group.care(_Care)
        changed = care.looked_at_epoch != record.master_epoch
        if care.task is None and (changed or self._now_seconds >= care.next_seconds):
            care.looked_at_epoch = record.master_epoch
            care.task = self._tasks.start(
                self._compare(group, record, care),
                f"rmq:metadata {group.key}",
                on_end=lambda task: self._ended(care, task),
            )

    def _ended(self, care: _Care, task: asyncio.Task[float]) -> None:
        care.task = None
        if task.cancelled():
            return
        failed = task.exception() is not None
        pause_seconds = self._settings.metadata_period_seconds if failed else task.result()
        if care.refusal is not None:
            pause_seconds = min(pause_seconds, self._settings.metadata_copy_seconds)
        care.next_seconds = self._now_seconds + pause_seconds

    async def lacking_now(
        self, group: Group, record: BrokerGroupRecord, broker_id: int, *, within_seconds: float
    ) -> tuple[MetadataDifference, ...]:
        """Return what this member lacks of the master's topics and groups, after waiting at most this long for its next copy."""
        missing = await self._lacking(group, record, broker_id, within_seconds)
        if not missing:
            await self._carry_before_a_change(group, record, broker_id)
        return missing or ()

    async def _carry_before_a_change(self, group: Group, record: BrokerGroupRecord, broker_id: int) -> None:
        """Write the master's offsets of this moment at a member that copies none: else consumers receive more again."""
        of_offsets = [one for one in self.differences(group) if one.kind is MetadataKind.CONSUMER_OFFSET]
        is_behind = broker_id in {one.broker_id for one in of_offsets}
        if not is_behind and not self._offsets.copies_none(group, record, broker_id):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.metadata_deadline_seconds):
                if (own := await self._picture_of(group, record, broker_id)) is not None:
                    await self._carried(group, record, broker_id, own, is_behind=True)

    async def why_incomplete(
        self, group: Group, record: BrokerGroupRecord, broker_id: int, *, within_seconds: float
    ) -> str:
        """Why this member is not known to have the master's topics, groups and offsets, after waiting as long; empty: it has them.

        An offset may be older than the master's: some messages are then read twice. Without one a consumer may begin at the end.
        """
        missing = await self._lacking(group, record, broker_id, within_seconds, with_offsets=True)
        if missing is None:
            return f"the topics and groups of broker {broker_id} or of its master can't be read"
        named = ", ".join(f"{one.kind.value} {one.name!r}" for one in missing[:3])
        return f"broker {broker_id} lacks {len(missing)} of the master's metadata, as {named}" if missing else ""

    async def _lacking(
        self,
        group: Group,
        record: BrokerGroupRecord,
        broker_id: int,
        within_seconds: float,
        *,
        with_offsets: bool = False,
    ) -> tuple[MetadataDifference, ...] | None:
        """None: it can't be read from one of the two."""
        deadline_seconds = self._now_seconds + within_seconds
        while True:
            now = await self._picture_of(group, record, record.granted_master_id)
            own = await self._picture_of(group, record, broker_id)
            if now is None or own is None:
                return None
            makes_groups = await self._makes_groups(record, broker_id)
            # Offsets follow the consumers: what they lack of this very moment is consumed again, and nothing is lost.
            any_offset = {
                name: {queue: min(offset, 1) for queue, offset in queues.items()}
                for name, queues in (without_leftovers(now).offsets if with_offsets else {}).items()
            }
            missing = lacking(broker_id, replace(now, offsets=any_offset), own, makes_groups=makes_groups)
            if not missing or self._now_seconds + POLL_SECONDS > deadline_seconds:
                return missing
            await asyncio.sleep(POLL_SECONDS)

    def refused(self, group: Group, record: BrokerGroupRecord, differences: Collection[MetadataDifference]) -> None:
        """A switchover was refused for these: report them now, not at the next period."""
        care = group.care(_Care)
        care.refusal = (record.master_epoch, tuple(sorted(differences)))
        care.next_seconds = min(care.next_seconds, self._now_seconds + self._settings.metadata_copy_seconds)
        self._tell(group, care, _together(care.differences, differences))

    async def _compare(self, group: Group, record: BrokerGroupRecord, care: _Care) -> float:
        """Compare once; return how long the next comparison may wait."""
        async with self._turns:
            master, refusal, found_before = record.granted_master_id, care.refusal, care.differences
            now = await self._picture_of(group, record, master)
            if now is None or master is None:
                return self._settings.metadata_period_seconds
            makes_groups = await self._makes_groups(record, master)
            before, taken_seconds, wrote = care.picture, self._now_seconds, False
            if before is not None and before.epoch != record.master_epoch:
                self._note_losses(care, before, master, now, makes_groups=makes_groups)
                before = None
            elif before is not None and taken_seconds - before.taken_seconds < self._settings.metadata_copy_seconds:
                return self._settings.metadata_copy_seconds
            found = [*self._still_lost(care, master, now, makes_groups=makes_groups)]
            named = refusal[1] if refusal is not None and refusal[0] == record.master_epoch else ()
            for broker_id, expected in _expected_of(group, record, before, without_leftovers(now), named).items():
                own = await self._picture_of(group, record, broker_id)
                if own is not None:
                    is_behind = bool(_behind(expected.offsets, own.offsets))
                    has = await self._carried(group, record, broker_id, own, is_behind=is_behind)
                    found += lacking(broker_id, expected, has, makes_groups=makes_groups)
                    wrote |= has is not own
        if is_outdated(group, record):
            return 0.0
        care.picture = _Picture(now, record.master_epoch, master, taken_seconds)
        if care.refusal is refusal:
            care.refusal = None
        elif care.refusal is not None:  # while this was on its way
            found += care.refusal[1]
        self._tell(group, care, _together(found))
        await self._copy_again(group, record, care, set(found_before) & set(found))
        is_soon = before is None or found or wrote
        return self._settings.metadata_copy_seconds if is_soon else self._settings.metadata_period_seconds

    async def _carried(
        self, group: Group, record: BrokerGroupRecord, broker_id: int, own: Metadata, *, is_behind: bool
    ) -> Metadata:
        return await self._offsets.carry(
            group,
            record,
            broker_id,
            own,
            is_behind=is_behind,
            may_write=lambda: _is_linked_slave(group, record, broker_id),
        )

    async def _copy_again(
        self, group: Group, record: BrokerGroupRecord, care: _Care, lasting: Collection[MetadataDifference]
    ) -> None:
        asked: list[MetadataDifference] = []
        wanted = {(one.broker_id, one.kind) for one in lasting if one.kind is not MetadataKind.CONSUMER_OFFSET}
        for helped in care.copied_again.keys() - {(one.broker_id, one.kind) for one in care.differences}:
            care.copied_again[helped].periods = 1
        for broker_id, kind in sorted(wanted):
            is_due = _is_linked_slave(group, record, broker_id) and self._is_its_turn(care, broker_id, kind)
            if is_due and await self._asked_to_copy_again(group, record, broker_id, kind):
                asked += [one for one in lasting if (one.broker_id, one.kind) == (broker_id, kind)]
        if asked:
            self._observer.metadata_copied_again(group.key, tuple(sorted(asked)))

    def _is_its_turn(self, care: _Care, broker_id: int, kind: MetadataKind) -> bool:
        now_seconds, last = self._now_seconds, care.copied_again.get((broker_id, kind))
        if last is not None and now_seconds - last.at_seconds < last.periods * self._settings.metadata_period_seconds:
            return False
        periods = 1 if last is None else min(2 * last.periods, MOST_PERIODS)
        care.copied_again[broker_id, kind] = _CopyAgain(now_seconds, periods)
        return True

    async def _asked_to_copy_again(
        self, group: Group, record: BrokerGroupRecord, broker_id: int, kind: MetadataKind
    ) -> bool:
        calls, its_log = self._calls, log.bind(group=str(group.key), broker_id=broker_id, kind=kind)
        copy_again = calls.copy_topics_again if kind is MetadataKind.TOPIC else calls.copy_groups_again
        try:
            await copy_again(record.address_of(broker_id) or "")
        except BrokerCallError as error:
            its_log.warning("slave not made to copy again", error=str(error))
            return False
        its_log.info("slave made to copy again")
        return True

    def _note_losses(self, care: _Care, before: _Picture, master: int, now: Metadata, *, makes_groups: bool) -> None:
        """After a change of master: note what the old one had and the new one lacks."""
        old_enough = self._now_seconds - before.taken_seconds >= self._settings.metadata_copy_seconds
        old, care.lost = before.metadata, None
        had = old if old_enough else Metadata(topics=old.topics, groups=old.groups)
        if before.broker_id != master and lacking(master, had, now, makes_groups=makes_groups):
            care.lost, care.lost_until_seconds = had, self._now_seconds + LOST_REMEMBERED_SECONDS

    def _still_lost(
        self, care: _Care, master: int, now: Metadata, *, makes_groups: bool
    ) -> tuple[MetadataDifference, ...]:
        if care.lost is None or self._now_seconds > care.lost_until_seconds:
            care.lost = None
            return ()
        # What was changed since then on purpose is no loss: only what is not there at all, and offsets that went back.
        known = Metadata(
            topics={name: care.lost.topics.get(name, entry) for name, entry in now.topics.items()},
            groups={name: care.lost.groups.get(name, entry) for name, entry in now.groups.items()},
            offsets=now.offsets,
        )
        return lacking(master, care.lost, known, makes_groups=makes_groups)

    def _tell(self, group: Group, care: _Care, found: tuple[MetadataDifference, ...]) -> None:
        if found == care.differences:
            return
        news = set(found) - set(care.differences)
        care.differences = found
        if news:
            log.warning("metadata diverged", group=str(group.key), differences=len(found), first=str(found[0]))
            self._observer.metadata_diverged(group.key, found)
        group.changed()

    async def _picture_of(self, group: Group, record: BrokerGroupRecord, broker_id: int | None) -> Metadata | None:
        if (address := record.address_of(broker_id)) is None:
            return None
        try:
            return await self._calls.metadata(address)
        except BrokerCallError as error:
            log.info("metadata unknown", group=str(group.key), broker_id=broker_id, error=str(error))
            return None

    async def _makes_groups(self, record: BrokerGroupRecord, broker_id: int) -> bool:
        """Whether the broker creates a subscription group for the first consumer; Java does unless configured otherwise."""
        try:
            configuration = await self._calls.broker_config(record.address_of(broker_id) or "")
        except BrokerCallError:
            return True
        return configuration.get("autoCreateSubscriptionGroup", "true") != "false"


def _is_linked_slave(group: Group, record: BrokerGroupRecord, broker_id: int) -> bool:
    """Whether it is alive, linked, and still a slave of the master that it was compared with."""
    return (
        group.master_change is None
        and not is_outdated(group, record)
        and broker_id != record.master_broker_id
        and broker_id in live_members(group, record)
        and broker_id not in group.links.unlinked
    )


def _together(*several: Iterable[MetadataDifference]) -> tuple[MetadataDifference, ...]:
    """Return each difference once, as it was found last."""
    return tuple(sorted({(one.broker_id, one.kind, one.name): one for found in several for one in found}.values()))


def _expected_of(
    group: Group,
    record: BrokerGroupRecord,
    before: _Picture | None,
    now: Metadata,
    named: Collection[MetadataDifference],
) -> dict[int, Metadata]:
    """Return what each slave must have by now; without an older picture, only that for which a switchover was refused."""
    old = before.metadata if before is not None else Metadata()
    of_all, expected = settled(old, now), dict[int, Metadata]()
    for broker_id in live_members(group, record):
        of_it = [one.name for one in named if one.broker_id == broker_id]
        if broker_id != record.master_broker_id and (before is not None or of_it):
            expected[broker_id] = settled(old, now, of_it) if of_it else of_all
    return expected


def settled(before: Metadata, now: Metadata, named: Collection[str] = ()) -> Metadata:
    """Return what the master had before and has still, and its topics and groups of these names: slaves must have it by now."""
    has = now.offsets
    return replace(
        now,
        topics={name: one for name, one in now.topics.items() if name in named or before.topics.get(name) == one},
        groups={name: one for name, one in now.groups.items() if name in named or before.groups.get(name) == one},
        offsets={
            name: {queue: min(offset, has[name][queue]) for queue, offset in queues.items() if queue in has[name]}
            for name, queues in before.offsets.items()
            if name in has
        },
    )


def lacking(
    broker_id: int, expected: Metadata, found: Metadata, *, makes_groups: bool
) -> tuple[MetadataDifference, ...]:
    """Return what this broker lacks of what is expected, or has otherwise; of offsets it must have as much or more.

    A default subscription group is no difference where brokers create such groups for the first consumer.
    """
    entries, missing, older = list[MetadataDifference](), list[MetadataDifference](), list[MetadataDifference]()
    if_absent = _DEFAULT_GROUP if makes_groups else None
    for name, entry in expected.topics.items():
        if found.topics.get(name) != entry:
            entries.append(MetadataDifference(broker_id, MetadataKind.TOPIC, name, expected.topics_version))
    for name, entry in expected.groups.items():
        if found.groups.get(name, if_absent) != entry:
            entries.append(
                MetadataDifference(broker_id, MetadataKind.SUBSCRIPTION_GROUP, name, expected.groups_version)
            )
    for name, queues in _behind(expected.offsets, found.offsets).items():
        only_older = queues <= found.offsets.get(name, {}).keys()
        difference = MetadataDifference(broker_id, MetadataKind.CONSUMER_OFFSET, name, only_older=only_older)
        (older if only_older else missing).append(difference)
    # By what they cost: fifty offsets that are late must not hide a topic that is not there.
    return tuple(sorted([*sorted(entries), *sorted(missing), *sorted(older)][:MOST_DIFFERENCES]))


def _behind(expected: Offsets, found: Offsets) -> dict[str, set[int]]:
    """Return, by `topic@group`, the queues whose offset is not there, or lower than expected."""
    behind = {
        name: {queue for queue, offset in queues.items() if found.get(name, {}).get(queue, 0) < offset}
        for name, queues in expected.items()
    }
    return {name: queues for name, queues in behind.items() if queues}
