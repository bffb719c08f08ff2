"""Two groups of a cluster whose declared topics and consumer groups are kept, and masters that refuse or do not answer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from brokergroup_operator.api.consumer_group_fields import ConsumerGroupSpec
from brokergroup_operator.observe.group_view import BrokerRefusedError, BrokerUnreachableError
from brokergroup_operator.reconcile.clusters.consumer_groups import ConsumerGroupKeeper
from brokergroup_operator.reconcile.clusters.master_looks import AGAIN_SECONDS
from brokergroup_operator.reconcile.clusters.topics import TopicKeeper
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey
from rocketmq_remoting.broker_protocol import TopicConfig
from tests.reconcile.fake_view import FakeGroupView, led_by

if TYPE_CHECKING:
    from collections.abc import Collection

    from brokergroup_operator.api.rocketmq_cluster import TopicSpec
    from brokergroup_operator.observe.group_view import GroupSnapshot
    from brokergroup_operator.reconcile.clusters.master_looks import Standing
    from controller_core.model import BrokerGroupRecord
    from rocketmq_remoting.broker_protocol import SubscriptionGroupConfig

FIRST, SECOND = GroupKey("n", "shop-0"), GroupKey("n", "shop-1")
BILLING = ConsumerGroupSpec(name="billing", retry_max_times=3)


def topic(name: str, read: int, write: int | None = None, message_type: str = "", **more: Any) -> TopicConfig:
    attributes = {"message.type": message_type} if message_type else {}
    values = {"attributes": attributes} | more
    return TopicConfig(
        topic_name=name, read_queue_nums=read, write_queue_nums=read if write is None else write, **values
    )


def record_of(snapshot: GroupSnapshot) -> BrokerGroupRecord:
    assert snapshot.record is not None
    return snapshot.record


class View(FakeGroupView):
    """Groups whose master does not answer, while they are named; and the changes in their order."""

    def __init__(self) -> None:
        super().__init__(MemoryRecordStore())
        self.unreachable: set[GroupKey] = set()
        # The groups whose master does not say which topics it has; and every question for one.
        self.hides_topics: set[GroupKey] = set()
        self.asked: list[tuple[GroupKey, str]] = []
        # The groups whose master refuses every offset, or every consumer group.
        self.refuses_offsets: set[GroupKey] = set()
        self.refuses_consumer_groups: set[GroupKey] = set()
        # Topics and consumer groups that every master refuses.
        self.refused_names: set[str] = set()
        self.written: list[tuple[GroupKey, int]] = []
        self.asked_for_readers: list[GroupKey] = []
        # Topics that another client makes while readers are asked for.
        self.made_meanwhile: dict[tuple[GroupKey, str], TopicConfig] = {}

    async def topic(self, key: GroupKey, name: str) -> TopicConfig | None:
        self.asked.append((key, name))
        if key in self.hides_topics:
            raise BrokerUnreachableError(f"group {key}: topic {name}: no answer")
        return await super().topic(key, name)

    async def consumer_groups(self, key: GroupKey, names: Collection[str]) -> dict[str, SubscriptionGroupConfig]:
        self._answer(key)
        return await super().consumer_groups(key, names)

    async def put_consumer_group(self, key: GroupKey, settings: SubscriptionGroupConfig) -> None:
        if key in self.refuses_consumer_groups or settings["groupName"] in self.refused_names:
            raise BrokerRefusedError(f"group {key}: 200 answered 16")
        await super().put_consumer_group(key, settings)

    async def put_first_offsets(
        self, key: GroupKey, topic: str, queues: range, readers: Collection[str], *, only_empty: bool
    ) -> int:
        if key in self.refuses_offsets:
            raise BrokerUnreachableError(f"group {key}: 15 answered 16")
        return await super().put_first_offsets(key, topic, queues, readers, only_empty=only_empty)

    async def topic_readers(self, key: GroupKey, topic: str) -> frozenset[str]:
        self.asked_for_readers.append(key)
        self.topics |= self.made_meanwhile
        self._answer(key)
        return await super().topic_readers(key, topic)

    async def put_topic(self, key: GroupKey, topic: TopicConfig) -> None:
        if topic.topic_name in self.refused_names:
            raise BrokerRefusedError(f"group {key}: 17 answered 16")
        self.written.append((key, topic.write_queue_nums))
        await super().put_topic(key, topic)

    def _answer(self, key: GroupKey) -> None:
        if key in self.unreachable:
            raise BrokerUnreachableError(f"group {key}: no answer")


class Kept:
    """Two groups of a cluster, of which the first is led, and a clock that a test moves."""

    def __init__(self, *led: GroupKey) -> None:
        self.view = View()
        self.now_seconds = 0.0
        self.consumer_groups = ConsumerGroupKeeper(self.view, lambda: self.now_seconds)
        self.topics = TopicKeeper(self.view, lambda: self.now_seconds)
        self.uids = {"shop-0": "u0", "shop-1": "u1"}
        for name in self.uids:
            self.never_led(GroupKey("n", name))
        self.lead(*led)

    def never_led(self, key: GroupKey) -> None:
        record = replace(record_of(led_by(key, 1, epoch=0)), master_broker_id=None)
        self.view.snapshots[key] = replace(led_by(key, 1, epoch=0), record=record)

    async def keep(self, *declared: ConsumerGroupSpec) -> Standing:
        return await self.consumer_groups.keep("n", declared, self.uids, count=2)

    async def keep_topics(
        self, *declared: TopicSpec, consumer_groups: tuple[ConsumerGroupSpec, ...] = (BILLING,)
    ) -> Standing:
        """A pass: consumer groups first."""
        await self.keep(*consumer_groups)
        had = {
            name: self.consumer_groups.had(GroupKey("n", name), consumer_groups, uid) for name, uid in self.uids.items()
        }
        return await self.topics.keep("n", declared, self.uids, count=2, consumer_groups=had)

    async def only_topics(self, *declared: TopicSpec) -> Standing:
        return await self.topics.keep("n", declared, self.uids, count=2)

    def asked_again_for(self, why: str) -> None:
        """The next pass looks at the first group again: it has a new master, or the time has come."""
        if why == "a new master":
            self.lead(FIRST, epoch=2)
        else:
            self.now_seconds = AGAIN_SECONDS

    def lead(self, *keys: GroupKey, epoch: int = 1) -> None:
        for key in keys:
            self.view.snapshots[key] = led_by(key, 1, epoch=epoch)
