"""Topics made, changed (17) and deleted (215) by operators and tools, at the master alone: its slaves copy them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketmq_remoting.client_protocol import CreateTopicRequestHeader, DeleteTopicRequestHeader
from rocketmq_remoting.codes import ResponseCode
from rocketmq_replica.log.deleted_topics import TooManyDeletionsError
from rocketmq_replica.metadata.topics import (
    MAX_QUEUES,
    PERMISSION_READ,
    PERMISSION_WRITE,
    InvalidTopicError,
    Topic,
    changed_attributes,
)
from rocketmq_replica.term.broker import Broker, Role, wall_clock_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_replica.metadata.consumer_groups import ConsumerOffsets

MAX_PERMISSION = 7


class TopicRequests:
    """Handlers by the name of their request."""

    def __init__(
        self,
        broker: Broker,
        offsets: ConsumerOffsets,
        *,
        on_changed: Callable[[], None],
        on_deleted: Callable[[], None],
    ) -> None:
        """Keep what they change; ``on_changed``: there is another table, ``on_deleted``: pulls may wait at what is gone."""
        self._broker = broker
        self._offsets = offsets
        self._on_changed = on_changed
        self._on_deleted = on_deleted

    def create(self, request: RemotingCommand) -> RemotingCommand:
        """17: make a topic, or change one."""
        header = CreateTopicRequestHeader.decode(request.ext_fields)
        if self._broker.role is not Role.MASTER:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark="this broker is no master")
        try:
            known = self._broker.topics.find(header.topic or "")
            self._broker.topics.put(_topic_as_asked(header, known), now_ms=wall_clock_ms())
        except (InvalidTopicError, OSError) as error:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
        self._on_changed()
        return request.answer(ResponseCode.SUCCESS)

    def delete(self, request: RemotingCommand) -> RemotingCommand:
        """215: the topic, what consumers have read of it, and its messages for consumers; the log keeps them until they expire."""
        broker, name = self._broker, DeleteTopicRequestHeader.decode(request.ext_fields).topic or ""
        if broker.role is not Role.MASTER:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark="this broker is no master")
        if not name.strip():
            return request.answer(ResponseCode.INVALID_PARAMETER, remark="The specified topic is blank.")
        if broker.topics.is_of_the_system(name):
            remark = f"The topic[{name}] is conflict with system topic."
            return request.answer(ResponseCode.INVALID_PARAMETER, remark=remark)
        try:
            # First: a topic that is gone while its messages are there is made again from the log.
            broker.store.delete_topic(name)
            deleted = broker.topics.delete(name, now_ms=wall_clock_ms())
        except (OSError, TooManyDeletionsError) as error:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark=f"topic {name} not deleted, ask again: {error}")
        self._offsets.forget_topics({name})
        if deleted:
            self._on_deleted()
            self._on_changed()
        return request.answer(ResponseCode.SUCCESS)


def _topic_as_asked(header: CreateTopicRequestHeader, known: Topic | None) -> Topic:
    """Java changes what the request says and keeps the attributes that it does not name."""
    queues = (header.read_queue_nums or header.write_queue_nums or 0, header.write_queue_nums or 0)
    if not all(0 < count <= MAX_QUEUES for count in queues):
        raise InvalidTopicError(f"readQueueNums and writeQueueNums {queues}, expected 1 to {MAX_QUEUES}")
    permission = PERMISSION_READ | PERMISSION_WRITE if header.perm is None else header.perm
    if not 0 <= permission <= MAX_PERMISSION:
        raise InvalidTopicError(f"perm {permission}, expected 0 to {MAX_PERMISSION}")
    return Topic(
        header.topic or "",
        *queues,
        permission,
        header.topic_filter_type or "SINGLE_TAG",
        header.topic_sys_flag or 0,
        header.order,
        changed_attributes(known.attributes if known is not None else {}, header.attributes or ""),
    )
