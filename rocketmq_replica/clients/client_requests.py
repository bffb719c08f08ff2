"""Clients' requests about offsets, consumer groups and queue locks; heartbeats, and notices of changed groups."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from rocketmq_remoting.client_protocol import (
    ConsumerListBody,
    GetConsumerListByGroupRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    HeartbeatDataBody,
    LockBatchAnswerBody,
    LockBatchBody,
    NotifyConsumerIdsChangedRequestHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.errors import BodyError, RemotingError
from rocketmq_replica.broker import Broker, Role, monotonic_seconds, wall_clock_ms
from rocketmq_replica.clients.consumers import QueueLocks, Subscription, TooManyGroupsError
from rocketmq_replica.topics import RETRY_PREFIX, InvalidTopicError, check_topic_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rocketmq_remoting.client_protocol import ConsumerData
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection
    from rocketmq_replica.clients.consumers import Clients
    from rocketmq_replica.tables import ConsumerOffsets


logger = logging.getLogger(__name__)

MAX_GROUPS_OF_ONE_CLIENT = 100
"""The limit of consumer groups in one heartbeat (34). A Java client has one for each consumer of its process."""


class ClientRequests:
    """Handlers, one method for each request."""

    def __init__(
        self, broker: Broker, offsets: ConsumerOffsets, clients: Clients, *, on_topic_created: Callable[[], None]
    ) -> None:
        self._broker = broker
        self._offsets = offsets
        self._clients = clients
        self._on_topic_created = on_topic_created
        self._notices = GroupNotices(clients)
        self._locks = QueueLocks()

    def max_offset(self, request: RemotingCommand) -> RemotingCommand:
        """30: the end of a queue; by default of its confirmed messages."""
        header = GetMaxOffsetRequestHeader.decode(request.ext_fields)
        queue = self._broker.store.queues.find(header.topic or "", header.queue_id or 0)
        offset = 0
        if queue is not None:
            offset = queue.visible_end(self._broker.store.confirm_offset) if header.committed else queue.next_offset
        return _offset(request, offset)

    def min_offset(self, request: RemotingCommand) -> RemotingCommand:
        """31."""
        header = GetMinOffsetRequestHeader.decode(request.ext_fields)
        queue = self._broker.store.queues.find(header.topic or "", header.queue_id or 0)
        return _offset(request, queue.min_offset if queue is not None else 0)

    def search_offset(self, request: RemotingCommand) -> RemotingCommand:
        """29: the first message stored at a time or later."""
        header = SearchOffsetRequestHeader.decode(request.ext_fields)
        queue = self._broker.store.queues.find(header.topic or "", header.queue_id or 0)
        if queue is None:
            return _offset(request, 0)
        found = queue.first_stored_at_or_after(header.timestamp or 0)
        return _offset(request, min(found, queue.visible_end(self._broker.store.confirm_offset)))

    def query_consumer_offset(self, request: RemotingCommand) -> RemotingCommand:
        """14."""
        header = QueryConsumerOffsetRequestHeader.decode(request.ext_fields)
        topic, queue_id = header.topic or "", header.queue_id or 0
        offset = self._offsets.get(header.consumer_group or "", topic, queue_id)
        if offset is not None:
            return _offset(request, offset)
        queue = self._broker.store.queues.find(topic, queue_id)
        if header.set_zero_if_not_found is not False and (queue is None or queue.min_offset <= 0):
            return _offset(request, 0)  # nothing was ever deleted: a new group starts at 0, as in Java
        return request.answer(ResponseCode.QUERY_NOT_FOUND, remark="Not found, maybe this group consumer boot first")

    def update_consumer_offset(self, request: RemotingCommand) -> RemotingCommand:
        """15."""
        header = UpdateConsumerOffsetRequestHeader.decode(request.ext_fields)
        if self._broker.role is Role.FENCED:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark="this broker has no role yet")
        if not header.consumer_group or not header.topic or header.queue_id is None or header.commit_offset is None:
            return request.answer(
                ResponseCode.SYSTEM_ERROR, remark="consumerGroup, topic, queueId and commitOffset are needed"
            )
        if self._broker.topics.find(header.topic) is None:
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, remark=f"Topic {header.topic} not exist!")
        read = (header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        if self._broker.role is Role.MASTER and not header.only_forward:
            self._offsets.put(*read)
            return request.answer(ResponseCode.SUCCESS)
        # Refuse offsets beyond the queue: they could not move back, and its next messages would be skipped.
        end = self._broker.store.queues.end(header.topic, header.queue_id)
        if header.commit_offset > end:
            remark = f"commitOffset {header.commit_offset}, expected at most {end}, where the queue ends here"
            return request.answer(ResponseCode.INVALID_PARAMETER, remark=remark)
        move = self._offsets.advance if self._broker.role is Role.MASTER else self._offsets.take
        move(*read)
        return request.answer(ResponseCode.SUCCESS)

    def client_heartbeat(self, request: RemotingCommand, connection: RemotingConnection) -> RemotingCommand:
        """34."""
        try:
            body = HeartbeatDataBody.decode(request.body)
        except BodyError as error:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
        groups = [consumer.group_name for consumer in body.consumer_data_set]
        try:
            _check_groups(groups)
            joined = self._clients.heartbeat(body.client_id, groups, connection, now_seconds=monotonic_seconds())
        except (InvalidTopicError, TooManyGroupsError) as error:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark=f"heartbeat: {error}")
        for consumer in body.consumer_data_set:
            self._clients.subscribe(consumer.group_name, _subscriptions(consumer))
        self._notices.changed(joined)
        self._prepare_retries(groups)
        return request.answer(ResponseCode.SUCCESS)

    def _prepare_retries(self, groups: list[str]) -> None:
        """Create the retry topics of these groups, which their consumers also subscribe to."""
        topics = self._broker.topics
        if self._broker.role is not Role.MASTER:
            return
        missing = [name for group in groups if topics.find(name := f"{RETRY_PREFIX}{group}") is None]
        try:
            for name in missing:
                topics.create(name, queue_count=1, now_ms=wall_clock_ms())
        except InvalidTopicError as error:
            logger.warning("no retry topic: %s", error)
        if missing:
            self._on_topic_created()

    def unregister_client(self, request: RemotingCommand) -> RemotingCommand:
        """35."""
        header = UnregisterClientRequestHeader.decode(request.ext_fields)
        if header.client_id and header.consumer_group:
            self._notices.changed(self._clients.unregister(header.client_id, header.consumer_group))
        return request.answer(ResponseCode.SUCCESS)

    def connection_closed(self, connection: RemotingConnection) -> None:
        """Its clients left their groups without a word."""
        self._notices.changed(self._clients.connection_closed(connection))

    def consumer_list(self, request: RemotingCommand) -> RemotingCommand:
        """38."""
        header = GetConsumerListByGroupRequestHeader.decode(request.ext_fields)
        members = self._clients.members(header.consumer_group or "", now_seconds=monotonic_seconds())
        if not members:
            return request.answer(
                ResponseCode.SYSTEM_ERROR, remark=f"no consumer for this group, {header.consumer_group}"
            )
        return request.answer(ResponseCode.SUCCESS, body=ConsumerListBody(consumer_id_list=members).encode())

    def lock_queues(self, request: RemotingCommand) -> RemotingCommand:
        """41: ordered consumers take queues for themselves; only the master gives them."""
        if self._broker.role is not Role.MASTER:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark="this broker is no master")
        try:
            body = LockBatchBody.decode(request.body)
        except BodyError as error:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
        now = monotonic_seconds()
        locked = tuple(
            queue
            for queue in body.mq_set
            if self._locks.lock(body.consumer_group, queue.topic, queue.queue_id, body.client_id, now_seconds=now)
        )
        return request.answer(ResponseCode.SUCCESS, body=LockBatchAnswerBody(locked=locked).encode())

    def unlock_queues(self, request: RemotingCommand) -> RemotingCommand:
        """42."""
        try:
            body = LockBatchBody.decode(request.body)
        except BodyError as error:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
        for queue in body.mq_set:
            self._locks.unlock(body.consumer_group, queue.topic, queue.queue_id, body.client_id)
        return request.answer(ResponseCode.SUCCESS)


def _subscriptions(consumer: ConsumerData) -> dict[str, Subscription]:
    return {
        each.topic: Subscription(
            frozenset(each.tags_set) if each.sub_string not in ("", "*") else frozenset(),
            each.expression_type,
            each.sub_version,
        )
        for each in consumer.subscription_data_set
    }


def _check_groups(groups: list[str]) -> None:
    """Raise TooManyGroupsError or InvalidTopicError: each group costs a topic, and one request must not cost thousands."""
    if len(groups) > MAX_GROUPS_OF_ONE_CLIENT:
        raise TooManyGroupsError(f"{len(groups)} consumer groups, expected at most {MAX_GROUPS_OF_ONE_CLIENT}")
    for group in groups:
        if not group:
            raise InvalidTopicError("a consumer group without groupName")
        try:
            check_topic_name(f"{RETRY_PREFIX}{group}")
        except InvalidTopicError as error:
            raise InvalidTopicError(f"groupName {group[:50]!r}: its retry {error}") from error


def _offset(request: RemotingCommand, offset: int) -> RemotingCommand:
    return request.answer(ResponseCode.SUCCESS, ext_fields=OffsetResponseHeader(offset=offset).encode())


_WRITE_SECONDS = 1.0


class GroupNotices:
    """Notifies the consumers of a group (40) when one joins or leaves, so that they rebalance at once.

    40 has no answer; a consumer that misses it rebalances within 20 seconds. Changes in one turn of the event loop make one notice
    per consumer and group.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._changed: set[str] = set()
        self._telling: set[asyncio.Task[None]] = set()

    def changed(self, groups: Iterable[str]) -> None:
        """Notify the consumers of these groups in the next turn of the event loop."""
        before = len(self._changed)
        self._changed.update(groups)
        if self._changed and not before:
            asyncio.get_running_loop().call_soon(self._tell_all)

    def _tell_all(self) -> None:
        groups, self._changed = sorted(self._changed), set()
        for group in groups:
            for connection in self._clients.connections(group):
                task = asyncio.create_task(_tell(connection, group), name=f"tell a consumer of {group}")
                self._telling.add(task)
                task.add_done_callback(self._telling.discard)


async def _tell(connection: RemotingConnection, group: str) -> None:
    header = NotifyConsumerIdsChangedRequestHeader(consumer_group=group)
    command = request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext_fields=header.encode(), oneway=True)
    try:
        await connection.send_oneway(command, timeout_seconds=_WRITE_SECONDS)
    except RemotingError as error:
        logger.debug("group %s: a consumer was not notified of a change: %s", group, error)
