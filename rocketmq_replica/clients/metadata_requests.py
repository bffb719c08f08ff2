"""What is not in the log, for slaves, Proxies and tools: topics, consumer groups, offsets.

A Java slave deletes what the master does not list and overwrites the rest, so the answers are everything there is, as it came.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rocketmq_remoting.codes import ResponseCode
from rocketmq_remoting.errors import BodyError
from rocketmq_remoting.serialization import load_json
from rocketmq_replica.term.broker import Role, wall_clock_ms

if TYPE_CHECKING:
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_replica.metadata.consumer_groups import Clients
    from rocketmq_replica.metadata.subscription_groups import SubscriptionGroups
    from rocketmq_replica.metadata.tables import Metadata
    from rocketmq_replica.term.broker import Broker


class MetadataRequests:
    """Handlers by the name of their request."""

    def __init__(self, broker: Broker, metadata: Metadata, clients: Clients) -> None:
        """Keep what they read."""
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
        return _answer(request, document)

    def topic(self, request: RemotingCommand) -> RemotingCommand:
        """351: a Proxy reads a topic's message type here, and sends nothing before it has."""
        name = (request.ext_fields or {}).get("topic", "")
        found = self._broker.topics.find(name)
        if found is None:
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, remark=f"No topic in this broker. topic: {name}")
        return _answer(request, found.to_json())

    def all_consumer_offsets(self, request: RemotingCommand) -> RemotingCommand:
        """43."""
        return _answer(request, self._metadata.offsets.to_json() | {"dataVersion": self._no_version()})

    def all_delay_offsets(self, request: RemotingCommand) -> RemotingCommand:
        """45: none of our own, those of the Java master before."""
        return _answer(request, {"dataVersion": self._no_version()} | self._metadata.delay_offsets.document)

    def all_subscription_groups(self, request: RemotingCommand) -> RemotingCommand:
        """201: every consumer group that was ever seen in this group of brokers."""
        document = self._groups().to_json()
        total = str(len(document["subscriptionGroupTable"]))
        return _answer(request, document, totalGroupNum=total)

    def create_subscription_group(self, request: RemotingCommand) -> RemotingCommand:
        """200: a Proxy lets no consumer in before its group exists. Settings that would not be acted on are refused."""
        if self._broker.role is not Role.MASTER:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark="this broker is no master")
        try:
            self._groups().create(load_json(request.body or b""))
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
        """With those that were heard of since it was last asked for."""
        self._metadata.groups.adopt(sorted(self._metadata.offsets.groups() | self._clients.groups()))
        return self._metadata.groups

    def _no_version(self) -> dict[str, int]:
        return {"stateVersion": 0, "timestamp": self._broker.started_ms, "counter": 0}


def _answer(request: RemotingCommand, document: object, **ext_fields: str) -> RemotingCommand:
    body = json.dumps(document, separators=(",", ":")).encode()
    return request.answer(ResponseCode.SUCCESS, ext_fields=ext_fields or None, body=body)
