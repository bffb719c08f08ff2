"""Reading topics, consumer groups and offsets, for slaves, Proxies and tools; creating, changing and deleting topics.

A Java slave deletes what the master does not list and overwrites the rest, so the answers contain the complete tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketmq_remoting.client_protocol import CreateTopicRequestHeader, DeleteTopicRequestHeader
from rocketmq_remoting.codes import ResponseCode
from rocketmq_remoting.errors import BodyError
from rocketmq_remoting.serialization import load_json
from rocketmq_replica.broker import Broker, Role, wall_clock_ms
from rocketmq_replica.log.disk import compact_json
from rocketmq_replica.log.side_files import WITH_QUEUE_OFFSETS, TooManyDeletionsError, queue_offset_rows
from rocketmq_replica.topics import (
    MAX_QUEUES,
    PERMISSION_READ,
    PERMISSION_WRITE,
    RETRY_PREFIX,
    InvalidTopicError,
    Topic,
    changed_attributes,
    check_topic_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_replica.clients.consumers import Clients
    from rocketmq_replica.tables import ConsumerOffsets, Metadata, SubscriptionGroups


class MetadataRequests:
    """Handlers, one method for each request."""

    def __init__(self, broker: Broker, metadata: Metadata, clients: Clients) -> None:
        self._broker = broker
        self._metadata = metadata
        self._clients = clients

    def all_topics(self, request: RemotingCommand) -> RemotingCommand:
        """21."""
        broker = self._broker
        broker.topics.adopt(broker.store.queues.names(), now_ms=wall_clock_ms())
        document = broker.topics.to_json() | {
            "mappingDataVersion": self._no_version(),
            "topicQueueMappingInfoMap": {},
            "topicQueueMappingDetailMap": {},
        }
        document["logBeginsAt"] = broker.store.log.min_offset
        if broker.store.deleted_topics:
            document["deletedTopics"] = dict(broker.store.deleted_topics)
        if WITH_QUEUE_OFFSETS in (request.ext_fields or {}):
            document |= queue_offset_rows(broker.store.queues.ended())
        return _answer(request, document)

    def topic(self, request: RemotingCommand) -> RemotingCommand:
        """351: one topic. A Proxy reads its message type before it sends."""
        name = (request.ext_fields or {}).get("topic", "")
        found = self._broker.topics.find(name)
        if found is None:
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, remark=f"No topic in this broker. topic: {name}")
        return _answer(request, found.to_json())

    def all_consumer_offsets(self, request: RemotingCommand) -> RemotingCommand:
        """43."""
        return _answer(request, self._metadata.offsets.to_json() | {"dataVersion": self._no_version()})

    def all_delay_offsets(self, request: RemotingCommand) -> RemotingCommand:
        """45."""
        return _answer(request, {"dataVersion": self._no_version()} | self._metadata.delay_offsets.document)

    def all_subscription_groups(self, request: RemotingCommand) -> RemotingCommand:
        """201: every consumer group ever seen in this broker group."""
        document = self._groups().to_json()
        total = str(len(document["subscriptionGroupTable"]))
        return _answer(request, document, totalGroupNum=total)

    def create_subscription_group(self, request: RemotingCommand) -> RemotingCommand:
        """200: create or change a group, which a Proxy requires of its consumers. Settings without effect here are refused."""
        if self._broker.role is not Role.MASTER:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark="this broker is no master")
        try:
            settings = load_json(request.body or b"")
            if isinstance(settings, dict) and (name := settings.get("groupName")):
                check_topic_name(f"{RETRY_PREFIX}{name}")
            self._groups().put(settings)
        except (BodyError, ValueError) as error:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
        return request.answer(ResponseCode.SUCCESS)

    def subscription_group(self, request: RemotingCommand) -> RemotingCommand:
        """352."""
        name = (request.ext_fields or {}).get("group", "")
        found = self._groups().find(name)
        if found is None:
            remark = f"No group in this broker. group: {name}"
            return request.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=remark)
        return _answer(request, found)

    def _groups(self) -> SubscriptionGroups:
        """Return the table, with groups that appeared since the last request."""
        self._metadata.groups.adopt(sorted(self._metadata.offsets.groups() | self._clients.groups()))
        return self._metadata.groups

    def _no_version(self) -> dict[str, int]:
        return {"stateVersion": 0, "timestamp": self._broker.started_ms, "counter": 0}


def _answer(request: RemotingCommand, document: object, **ext_fields: str) -> RemotingCommand:
    return request.answer(ResponseCode.SUCCESS, ext_fields=ext_fields or None, body=compact_json(document))


MAX_PERMISSION = 7


class TopicRequests:
    """Handlers, one method for each request."""

    def __init__(
        self,
        broker: Broker,
        offsets: ConsumerOffsets,
        *,
        on_changed: Callable[[], None],
        on_deleted: Callable[[], None],
    ) -> None:
        """``on_changed`` is called after a change, ``on_deleted`` after a deletion, when pulls may wait for a deleted topic."""
        self._broker = broker
        self._offsets = offsets
        self._on_changed = on_changed
        self._on_deleted = on_deleted

    def create(self, request: RemotingCommand) -> RemotingCommand:
        """17: create or change a topic."""
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
        """215: delete a topic, its consumers' offsets, and hide its messages; the log keeps them until they expire."""
        broker, name = self._broker, DeleteTopicRequestHeader.decode(request.ext_fields).topic or ""
        if broker.role is not Role.MASTER:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark="this broker is no master")
        if not name.strip():
            return request.answer(ResponseCode.INVALID_PARAMETER, remark="The specified topic is blank.")
        if broker.topics.is_of_the_system(name):
            remark = f"The topic[{name}] is conflict with system topic."
            return request.answer(ResponseCode.INVALID_PARAMETER, remark=remark)
        try:
            # Messages first: a deleted topic with visible messages would be created again from the log.
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
    """Return the topic of the request, with attributes that it does not name unchanged, as in Java."""
    queues = (header.read_queue_nums or header.write_queue_nums or 0, header.write_queue_nums or 0)
    # Without a queue to write to, consumers get the topic's queues, and producers none.
    if not (0 < queues[0] <= MAX_QUEUES and 0 <= queues[1] <= MAX_QUEUES):
        raise InvalidTopicError(
            f"readQueueNums and writeQueueNums {queues}, expected 1 to {MAX_QUEUES} and 0 to {MAX_QUEUES}"
        )
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
