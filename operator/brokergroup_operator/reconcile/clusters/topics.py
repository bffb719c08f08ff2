"""Declared topics: what each group's master has of them, made or changed where it differs.

A slave copies its master's topics every few seconds and not with the log, so a new master may lack the newest one: after each
change of master the topics of a group are looked at again, and from time to time anyway, for a person may have deleted one. Nothing
here deletes a topic, lowers the number of queues that are read, or changes what kind of messages a topic has: each could hide
messages (tests/reconcile/test_clusters.py::test_fewer_queues_are_still_read, ::test_another_message_type_is_left_and_told).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from brokergroup_operator.observe.group_view import GroupViewError
from brokergroup_operator.records.store import GroupKey
from rocketmq_remoting.broker_protocol import TopicConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from brokergroup_operator.api.rocketmq_cluster import TopicSpec
    from brokergroup_operator.observe.group_view import GroupView

# RocketMQ's attribute, and what a topic without it is.
MESSAGE_TYPE: Final = "message.type"
NORMAL: Final = "NORMAL"
# So long a group is taken to have the topics that it was seen to have, while its master is the same.
AGAIN_SECONDS: Final = 300.0

log = structlog.get_logger(__name__)


class TopicDiffersError(Exception):
    """A topic is there and is of another kind; a person has to decide."""


@dataclass(frozen=True)
class TopicsStanding:
    """How many topics are declared, how many every group has so, which groups are waited for, and which topics differ."""

    desired: int = 0
    ready: int = 0
    pending: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()


def change_of(declared: TopicSpec, found: TopicConfig | None) -> TopicConfig | None:
    """What to ask of the master; None where it has the topic as declared. Raises TopicDiffersError."""
    kind = declared.message_type.value.upper()
    if found is None:
        attributes = {} if kind == NORMAL else {MESSAGE_TYPE: kind}
        return TopicConfig(
            topic_name=declared.name,
            read_queue_nums=declared.queues,
            write_queue_nums=declared.queues,
            attributes=attributes,
        )
    if (present := found.attributes.get(MESSAGE_TYPE, NORMAL)) != kind:
        raise TopicDiffersError(f"topic {declared.name} has {present} messages, spec.topics wants {kind}")
    read = max(found.read_queue_nums, declared.queues)
    if (found.read_queue_nums, found.write_queue_nums) == (read, declared.queues):
        return None
    # Attributes that are not named stay; some may not be named again.
    return replace(found, read_queue_nums=read, write_queue_nums=declared.queues, attributes={})


@dataclass(frozen=True)
class _Held:
    """What a group was seen to have, and when it was: of which declaration, under which master."""

    uid: str
    epoch: int
    declared: tuple[TopicSpec, ...]
    at_seconds: float
    ready: frozenset[str]
    differing: tuple[str, ...]


class TopicKeeper:
    """Keeps the topics of all clusters. What it remembers only spares requests."""

    def __init__(self, view: GroupView, clock: Callable[[], float]) -> None:
        self._view = view
        self._clock = clock
        self._held: dict[GroupKey, _Held] = {}

    async def keep(
        self, namespace: str, declared: tuple[TopicSpec, ...], groups: Mapping[str, str], *, count: int
    ) -> TopicsStanding:
        """Bring every group's topics on. `groups`: the uids of the BrokerGroups there are of the `count` asked for, by name."""
        if not declared:
            return TopicsStanding()
        waits = await asyncio.gather(
            *(self._keep_one(GroupKey(namespace, name), declared, uid) for name, uid in groups.items())
        )
        held = {name: self._known(GroupKey(namespace, name), declared, uid) for name, uid in groups.items()}
        as_declared = [one.ready for one in held.values() if one is not None]
        everywhere = frozenset.intersection(*as_declared) if len(as_declared) == count else frozenset()
        return TopicsStanding(
            desired=len(declared),
            ready=len(everywhere),
            pending=tuple(wait for wait in waits if wait),
            differing=tuple(f"group {name}: {text}" for name, one in held.items() if one for text in one.differing),
        )

    def forget(self, namespace: str, groups: Iterable[str]) -> None:
        for name in groups:
            self._held.pop(GroupKey(namespace, name), None)

    def _known(self, key: GroupKey, declared: tuple[TopicSpec, ...], uid: str) -> _Held | None:
        """What this very group was seen to have of this declaration."""
        held = self._held.get(key)
        return held if held is not None and (held.uid, held.declared) == (uid, declared) else None

    async def _keep_one(self, key: GroupKey, declared: tuple[TopicSpec, ...], uid: str) -> str:
        """Returns what is waited for, or nothing. What a group had it still has, until its master says otherwise."""
        snapshot = self._view.snapshot(key)
        record = snapshot.record if snapshot is not None else None
        known = self._known(key, declared, uid)
        if record is None or record.granted_master_id is None:
            return "" if known else f"group {key.name} has no master"
        now_seconds = self._clock()
        if known and known.epoch == record.master_epoch and now_seconds - known.at_seconds < AGAIN_SECONDS:
            return ""
        try:
            ready, differing = await self._bring_all_on(key, declared)
        except GroupViewError as error:
            log.info("cluster.topics_pending", group=str(key), error=str(error))
            return "" if known else str(error)
        self._held[key] = _Held(uid, record.master_epoch, declared, now_seconds, ready, differing)
        return ""

    async def _bring_all_on(
        self, key: GroupKey, declared: tuple[TopicSpec, ...]
    ) -> tuple[frozenset[str], tuple[str, ...]]:
        """Returns the topics that are as declared, and what is said of the others. Raises GroupViewError."""
        ready, differing = set(), []
        for one in declared:
            found = await self._view.topic(key, one.name)
            try:
                change = change_of(one, found)
            except TopicDiffersError as error:
                differing.append(str(error))
                continue
            if change is not None:
                await self._view.put_topic(key, change)
                log.info("cluster.topic", group=str(key), topic=one.name, is_new=found is None)
            ready.add(one.name)
        return frozenset(ready), tuple(differing)
