"""How far the queues of a topic reach (202), and which consumer groups read it (300): for operators and tools.

The answers are Java's (`mqadmin topicStatus`, `consumerProgress`). Both are about this replica's own log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketmq_remoting.broker_protocol import QueueOffsets, encode_topic_stats
from rocketmq_remoting.codes import ResponseCode
from rocketmq_replica.broker import Broker, monotonic_seconds
from rocketmq_replica.log.disk import compact_json

if TYPE_CHECKING:
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_replica.clients.consumers import Clients
    from rocketmq_replica.tables import ConsumerOffsets


class StatisticsRequests:
    """Handlers, one method for each request."""

    def __init__(self, broker: Broker, offsets: ConsumerOffsets, clients: Clients) -> None:
        self._broker = broker
        self._offsets = offsets
        self._clients = clients

    def topic_stats(self, request: RemotingCommand) -> RemotingCommand:
        """202: the first and the next offset of every queue, of confirmed messages as in Java."""
        name = (request.ext_fields or {}).get("topic", "")
        topic = self._broker.topics.find(name)
        if topic is None:
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{name}] not exist")
        # Also queues beyond today's number that hold messages: the topic had more once.
        stored = self._broker.store.queues.of_topic(name)
        queues = sorted(stored.union(range(max(topic.read_queues, topic.write_queues))))
        body = encode_topic_stats(
            name,
            self._broker.configuration.broker_name,
            {queue_id: self._offsets_of(name, queue_id) for queue_id in queues},
        )
        return request.answer(ResponseCode.SUCCESS, body=body)

    def topic_readers(self, request: RemotingCommand) -> RemotingCommand:
        """300: the groups with a consumer that subscribes to the topic, and those that ever committed an offset of it."""
        name = (request.ext_fields or {}).get("topic", "")
        groups = self._clients.readers(name, now_seconds=monotonic_seconds()) | self._offsets.groups_of(name)
        return request.answer(ResponseCode.SUCCESS, body=compact_json({"groupList": sorted(groups)}))

    def _offsets_of(self, topic: str, queue_id: int) -> QueueOffsets:
        store = self._broker.store
        queue = store.queues.find(topic, queue_id)
        if queue is None:
            return QueueOffsets(minimum=0, maximum=0)
        end = queue.visible_end(store.confirm_offset)
        return QueueOffsets(minimum=queue.min_offset, maximum=end, last_update_ms=queue.stored_at_ms(end - 1))
