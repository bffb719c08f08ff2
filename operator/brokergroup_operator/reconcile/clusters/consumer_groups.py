"""Declared consumer groups (subscription groups): what each group's master has of them, made or changed where it differs.

Settings without a declaration stay as the broker has them. Nothing here deletes a consumer group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from brokergroup_operator.observe.group_view import BrokerRefusedError
from brokergroup_operator.reconcile.clusters.master_looks import Found, MasterLooks, Standing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from brokergroup_operator.api.consumer_group_fields import ConsumerGroupSpec
    from brokergroup_operator.observe.group_view import GroupView
    from brokergroup_operator.records.store import GroupKey
    from rocketmq_remoting.broker_protocol import SubscriptionGroupConfig

RETRY_TOPIC_PREFIX: Final = "%RETRY%"

log = structlog.get_logger(__name__)


def settings_of(declared: ConsumerGroupSpec) -> SubscriptionGroupConfig:
    """The declared settings under RocketMQ's names."""
    settings = {
        "consumeEnable": declared.consume_enable,
        "consumeBroadcastEnable": declared.consume_broadcast_enable,
        "consumeMessageOrderly": declared.consume_message_orderly,
        "retryMaxTimes": declared.retry_max_times,
        "retryQueueNums": declared.retry_queue_nums,
    }
    return {name: value for name, value in settings.items() if value is not None}


def change_of(declared: ConsumerGroupSpec, found: SubscriptionGroupConfig | None) -> SubscriptionGroupConfig | None:
    """What to ask of the master; None where it has the consumer group as declared."""
    settings = settings_of(declared)
    if found is not None and settings.items() <= {name: found.get(name) for name in settings}.items():
        return None
    # A broker replaces every setting but the attributes, which would be changes of those that it has.
    kept = {name: value for name, value in (found or {}).items() if name != "attributes"}
    return {**kept, "groupName": declared.name, **settings}


class ConsumerGroupKeeper:
    """Keeps the consumer groups of all clusters."""

    def __init__(self, view: GroupView, clock: Callable[[], float]) -> None:
        self._view = view
        self._looks = MasterLooks(view, clock, event="cluster.consumer_groups_pending")

    async def keep(
        self, namespace: str, declared: tuple[ConsumerGroupSpec, ...], groups: Mapping[str, str], *, count: int
    ) -> Standing:
        """Bring every group's consumer groups on. `groups`: the uids of the BrokerGroups there are of the `count`, by name."""

        async def bring_on(key: GroupKey) -> Found:
            return await self._bring_all_on(key, declared)

        return await self._looks.keep(namespace, declared, groups, count=count, bring_on=bring_on)

    def had(self, key: GroupKey, declared: tuple[ConsumerGroupSpec, ...], uid: str) -> frozenset[str] | None:
        """The declared consumer groups that this group was seen to have; None if it was not looked at, or one is waited for."""
        if not declared:
            return frozenset()
        found = self._looks.known(key, declared, uid)
        return found.ready if found is not None and not found.pending else None

    def forget(self, namespace: str, groups: Iterable[str]) -> None:
        self._looks.forget(namespace, groups)

    async def _bring_all_on(self, key: GroupKey, declared: tuple[ConsumerGroupSpec, ...]) -> Found:
        """One that the master refuses holds up no other. Raises GroupViewError."""
        there = await self._view.consumer_groups(key, [one.name for one in declared])
        refused: dict[str, str] = {}
        for one in declared:
            try:
                await self._bring_on(key, one, there.get(one.name))
            except BrokerRefusedError as error:
                refused[one.name] = f"consumer group {one.name}: {error}"
        ready = frozenset(one.name for one in declared if one.name not in refused)
        return Found(ready, pending=tuple(refused.values()))

    async def _bring_on(
        self, key: GroupKey, declared: ConsumerGroupSpec, found: SubscriptionGroupConfig | None
    ) -> None:
        change = change_of(declared, found)
        if change is not None:
            await self._view.put_consumer_group(key, change)
            log.info("cluster.consumer_group", group=str(key), consumer_group=declared.name, is_new=found is None)
        await self._widen_retry_topic(key, declared)

    async def _widen_retry_topic(self, key: GroupKey, declared: ConsumerGroupSpec) -> None:
        """A broker makes a retry topic once; with more `retryQueueNums` it sends retries to queues that no consumer reads."""
        wanted = declared.retry_queue_nums or 1
        found = await self._view.topic(key, f"{RETRY_TOPIC_PREFIX}{declared.name}") if wanted > 1 else None
        if found is not None and min(found.read_queue_nums, found.write_queue_nums) < wanted:
            queues = max(found.read_queue_nums, found.write_queue_nums, wanted)
            await self._view.put_topic(
                key, replace(found, read_queue_nums=queues, write_queue_nums=queues, attributes={})
            )
