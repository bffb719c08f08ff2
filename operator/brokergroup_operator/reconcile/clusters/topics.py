"""Declared topics: what each group's master has of them, made or changed where it differs.

Nothing here deletes a topic, lowers the number of queues that are read, or changes what kind of messages a topic has: each could
hide messages (tests/reconcile/test_consumer_groups.py::test_fewer_queues_are_still_read,
::test_another_message_type_is_left_and_told).
Before a queue takes its first message, the declared consumer groups that read the topic get its beginning as their offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from brokergroup_operator.observe.group_view import BrokerRefusedError, BrokerUnreachableError
from brokergroup_operator.reconcile.clusters.master_looks import Found, MasterLooks, Standing
from brokergroup_operator.reconcile.clusters.readers import Look, TopicReaders, TopicWaitsError
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
            has = (consumer_groups or {}).get(key.name, frozenset())
            return await self._bring_all_on(declared, Look(key, tuple(groups), has))

        return await self._looks.keep(namespace, declared, groups, count=count, bring_on=bring_on)

    def forget(self, namespace: str, groups: Iterable[str]) -> None:
        self._looks.forget(namespace, groups)
        self._readers.forget(namespace, groups)

    async def _bring_all_on(self, declared: tuple[TopicSpec, ...], look: Look) -> Found:
        """A topic that waits, or that the master refuses, holds up no other. Raises GroupViewError."""
        ready, differing = set(), []
        pending: dict[str, str] = {}
        for one in declared:
            try:
                found = await self._view.topic(look.key, one.name)
                change = change_of(one, found)
                if change is not None:
                    await self._put(look, change, found)
                    log.info("cluster.topic", group=str(look.key), topic=one.name, is_new=found is None)
            except TopicDiffersError as error:
                differing.append(str(error))
            except TopicWaitsError as error:
                pending[one.name] = str(error)
            except BrokerRefusedError as error:
                pending[one.name] = f"topic {one.name}: {error}"
            else:
                ready.add(one.name)
        self._readers.wait_no_more(look.key, but=pending)
        return Found(frozenset(ready), tuple(differing), tuple(pending.values()))

    async def _put(self, look: Look, change: TopicConfig, found: TopicConfig | None) -> None:
        """Change the topic; where queues take messages for the first time, in two steps with their readers' offsets between.

        A broker without an offset sends a consumer to the end of a queue that is empty when it asks: what is stored until it
        asks where that end is, it never reads (tests/real/test_java_consumer_groups.py). An operator that dies between the steps
        leaves fewer written queues than declared, and the next look does the rest. Raises TopicWaitsError.
        """
        name, written = change.topic_name, found.write_queue_nums if found is not None else 0
        if change.write_queue_nums > written and look.consumer_groups != frozenset():
            readers = await self._readers.of(look, name, is_new=not written)
            if readers:
                # A broker makes a topic by itself for a producer's first message; that one's queues stay written.
                if await self._view.topic(look.key, name) != found:
                    raise TopicWaitsError(f"group {look.key.name}: topic {name} was changed during the look at it")
                if found is None or found.read_queue_nums < change.read_queue_nums:
                    await self._view.put_topic(look.key, replace(change, write_queue_nums=written))
                await self._put_first_offsets(look.key, name, range(written, change.write_queue_nums), readers)
                change = replace(change, attributes={})
        await self._view.put_topic(look.key, change)

    async def _put_first_offsets(self, key: GroupKey, topic: str, queues: range, readers: frozenset[str]) -> None:
        """Raises TopicWaitsError while some are missing, but not for long where the broker refuses them."""
        # Where queues are added, those that hold messages were written before: an offset that a consumer commits there at this
        # moment would go back to 0. A topic that a new master lacks takes what it holds from the beginning.
        only_empty = bool(queues.start)
        try:
            left = await self._view.put_first_offsets(key, topic, queues, readers, only_empty=only_empty)
        except BrokerUnreachableError as error:
            self._readers.wait(key, topic, f"offsets of its readers: {error}")
            return
        if left:
            raise TopicWaitsError(f"group {key.name}: topic {topic} waits for {left} more offsets of its readers")
        log.info("cluster.first_offsets", group=str(key), topic=topic, readers=sorted(readers))
