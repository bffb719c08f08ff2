"""A group that is retired while clients send and read: brokers that say what is unread, and the law that no message is lost.

A producer leaves two seconds after the master lost the write permission. A straggler never leaves: it has a route of its own, and a
Java broker goes on taking its sends. It sends seldom, so that the group can be read to its end; twice a second once the group is
marked as closed, also while it is being deleted. A send is acknowledged if as many members have it as `minInSyncReplicas` says. The
consumer reads twice a second.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from brokergroup_operator.api import names
from rocketmq_remoting.broker_protocol import (
    BrokerRuntimeInfoBody,
    DelayOffsetBody,
    GroupListBody,
    QueueOffsets,
    encode_topic_stats,
)
from rocketmq_remoting.codes import RequestCode
from tests.sieve.cluster import MESSAGES, Broker

if TYPE_CHECKING:
    from rocketmq_remoting.command import RemotingCommand
    from tests.sieve.world import World

TOPIC, READERS = "Orders", "readers"
STEP_SECONDS = 0.5
LEAVES_AFTER_SECONDS = 2.0
# Longer than a Retire waits for more once everything is read: else it would never close the group.
STRAGGLER_SECONDS = 9.0


class BrokerWithTopic(Broker):
    """Has one topic of one queue: its log beyond what every disk has from the start."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.topics, self.groups = {TOPIC: 1}, {READERS: 16}
        self.config["brokerPermission"] = "6"

    @property
    def queue_end(self) -> int:
        return max(0, self.max_offset - MESSAGES)

    async def _answer(self, command: RemotingCommand) -> RemotingCommand:
        match command.code:
            case RequestCode.GET_BROKER_RUNTIME_INFO:
                confirmed = str(self.max_offset)
                table = {"runtime": "[ 1 days, 0 hours, 0 minutes, 0 seconds ]", "confirmOffset": confirmed}
                return command.answer(0, body=BrokerRuntimeInfoBody(table=table).encode())
            case RequestCode.GET_TOPIC_STATS_INFO:
                queues = {0: QueueOffsets(0, self.queue_end, 1)}
                return command.answer(0, body=encode_topic_stats(TOPIC, self.group.name, queues))
            case RequestCode.QUERY_TOPIC_CONSUME_BY_WHO:
                return command.answer(0, body=GroupListBody(group_list=(READERS,)).encode())
            case RequestCode.GET_ALL_DELAY_OFFSET:
                return command.answer(0, body=DelayOffsetBody().encode())
        return await super()._answer(command)


class Clients:
    """Sends and reads at the master, for as long as there is one; complains in `world.laws_broken`."""

    def __init__(self, world: World) -> None:
        self._world = world
        # By their offsets in the queue; what the consumer has read so far comes before `read`.
        self.acknowledged: list[int] = []
        self.refused = 0
        self.read = 0
        self._is_deleted = self._is_marked = False
        self._leaves_at_seconds: float | None = None
        world.server.store.storage.listeners.append(self._committed)

    async def run(self) -> None:
        steps, of_straggler = 0, round(STRAGGLER_SECONDS / STEP_SECONDS)
        while True:
            await asyncio.sleep(STEP_SECONDS)
            steps += 1
            if (master := self._master()) is None:
                continue
            self._read(master)
            if self._is_marked or steps % of_straggler == 0 or self._producer_sends(master):
                self._send(master)

    def _master(self) -> BrokerWithTopic | None:
        alive = [one for one in self._world.node.group.brokers.values() if one.is_master and not one.dead]
        found = max(alive, key=lambda one: one.epoch, default=None)
        return found if isinstance(found, BrokerWithTopic) else None

    def _producer_sends(self, master: BrokerWithTopic) -> bool:
        now_seconds = self._world.loop.time()
        if int(master.config["brokerPermission"]) & 2:
            self._leaves_at_seconds = None
        elif self._leaves_at_seconds is None:
            self._leaves_at_seconds = now_seconds + LEAVES_AFTER_SECONDS
        return self._leaves_at_seconds is None or now_seconds < self._leaves_at_seconds

    def _send(self, master: BrokerWithTopic) -> None:
        members = self._world.node.group.brokers
        have_it = [master, *(members[one] for one in master.linked & master.sync_state_set if not members[one].dead)]
        if len(have_it) < master.minimum:
            self.refused += 1  # a Java broker checks before it stores
            return
        self.acknowledged.append(master.queue_end)
        end = master.max_offset + 1
        for one in have_it:
            one.max_offset = end
        if self._is_deleted:
            self._world.laws_broken.append(f"message {self.acknowledged[-1]} was acknowledged after the deletion")

    def _read(self, master: BrokerWithTopic) -> None:
        self.read = master.queue_end
        for one in self._world.node.group.brokers.values():
            one.offsets = {f"{TOPIC}@{READERS}": {0: self.read}}

    def _committed(self, _key: Any, _name: Any, change: Any) -> None:
        obj = change.version.obj
        if obj.get("kind") != names.BROKER_GROUP_KIND or self._is_deleted:
            return
        self._is_marked = names.ANNOTATION_CLOSED_BY in (obj["metadata"].get("annotations") or {})
        self._is_deleted = change.type == "DELETED" or "deletionTimestamp" in obj["metadata"]
        unread = [one for one in self.acknowledged if one >= self.read]
        if self._is_deleted and unread:
            self._world.laws_broken.append(f"deleted with acknowledged messages that no consumer has read: {unread}")
