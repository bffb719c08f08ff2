"""Declared topics: what each group's master has of them, made or changed where it differs.

Nothing here deletes a topic, lowers the number of queues that are read, or changes what kind of messages a topic has: each could
hide messages (tests/reconcile/test_clusters.py::test_fewer_queues_are_still_read, ::test_another_message_type_is_left_and_told).
Before a queue takes its first message, the declared consumer groups that read the topic get its beginning as their offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from brokergroup_operator.reconcile.clusters.master_looks import Found, MasterLooks, Standing
from brokergroup_operator.reconcile.clusters.readers import TopicReaders
from rocketmq_remoting.broker_protocol import TopicConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from brokergroup_operator.api.rocketmq_cluster import TopicSpec
    from brokergroup_operator.observe.group_view import GroupView
    from brokergroup_operator.records.store import GroupKey

# RocketMQ's attribute, and what a topic without it is.
MESSAGE_TYPE: Final = "message.type"
NORMAL: Final = "NORMAL"

log = structlog.get_logger(__name__)


class TopicDiffersError(Exception):
    """A topic is there and is of another kind; a person has to decide."""


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


class TopicKeeper:
    """Keeps the topics of all clusters."""

    def __init__(self, view: GroupView, clock: Callable[[], float]) -> None:
        self._view = view
        self._looks = MasterLooks(view, clock, event="cluster.topics_pending")
        self._readers = TopicReaders(view, clock)

    async def keep(
        self,
        namespace: str,
        declared: tuple[TopicSpec, ...],
        groups: Mapping[str, str],
        *,
        count: int,
        consumer_groups: Mapping[str, frozenset[str] | None] | None = None,
    ) -> Standing:
        """Bring every group's topics on. `groups`: the uids of the BrokerGroups there are of the `count` asked for, by name.

        `consumer_groups`: by group, the declared consumer groups that its master has; None while that is not known.
        """

        async def bring_on(key: GroupKey) -> Found:
            return await self._bring_all_on(
                key, declared, tuple(groups), (consumer_groups or {}).get(key.name, frozenset())
            )

        return await self._looks.keep(namespace, declared, groups, count=count, bring_on=bring_on)

    def forget(self, namespace: str, groups: Iterable[str]) -> None:
        self._looks.forget(namespace, groups)
        self._readers.forget(namespace, groups)

    async def _bring_all_on(
        self,
        key: GroupKey,
        declared: tuple[TopicSpec, ...],
        groups: tuple[str, ...],
        consumer_groups: frozenset[str] | None,
    ) -> Found:
        """Raises GroupViewError."""
        ready, differing = set(), []
        for one in declared:
            found = await self._view.topic(key, one.name)
            try:
                change = change_of(one, found)
            except TopicDiffersError as error:
                differing.append(str(error))
                continue
            if change is not None:
                await self._put(key, change, found, groups, consumer_groups)
                log.info("cluster.topic", group=str(key), topic=one.name, is_new=found is None)
            ready.add(one.name)
        return Found(frozenset(ready), tuple(differing))

    async def _put(
        self,
        key: GroupKey,
        change: TopicConfig,
        found: TopicConfig | None,
        groups: tuple[str, ...],
        consumer_groups: frozenset[str] | None,
    ) -> None:
        """Change the topic; where queues take messages for the first time, in two steps with their readers' offsets between.

        A broker without an offset sends a consumer to the end of a queue that is empty when it asks: what is stored until it
        asks where that end is, it never reads (tests/real/test_java_consumer_groups.py). An operator that dies between the steps
        leaves fewer written queues than declared, and the next look does the rest.
        """
        name, written = change.topic_name, found.write_queue_nums if found is not None else 0
        if change.write_queue_nums > written and consumer_groups != frozenset():
            readers = await self._readers.of(key, name, groups, consumer_groups, is_new=not written)
            if readers:
                await self._view.put_topic(key, replace(change, write_queue_nums=written))
                await self._view.put_first_offsets(key, name, range(written, change.write_queue_nums), readers)
                log.info("cluster.first_offsets", group=str(key), topic=name, readers=sorted(readers))
                change = replace(change, attributes={})
        await self._view.put_topic(key, change)
