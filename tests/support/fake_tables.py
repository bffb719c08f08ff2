"""What a scripted broker has beside its log: topics, consumer groups and offsets, its configuration, and messages of clients."""

from __future__ import annotations

import asyncio
import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rocketmq_remoting.broker_protocol import BrokerRuntimeInfoBody, QueueOffsets, encode_topic_stats
from rocketmq_remoting.client_protocol import SendMessageRequestHeaderV2
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.serialization import decode_properties, encode_properties

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocketmq_remoting.command import RemotingCommand


class FakeTables:
    """The tables of one process. Refusals are worded like a Python replica's."""

    broker_id: int
    epoch: int
    # Where the queues of every topic end (202).
    queue_ends: Mapping[int, int] = MappingProxyType({})

    def __init__(self, broker_name: str, journal: list[str], minimum: int) -> None:
        self._broker_name, self._journal = broker_name, journal
        self.minimum = minimum
        self.config: dict[str, str] = {}
        # Topic to queues, groups to retries, topic@group to queue to offset.
        self.topics: dict[str, int] = {}
        self.groups: dict[str, int] = {}
        self.offsets: dict[str, dict[int, int]] = {}
        self.answers_metadata = True
        self.gives_metadata = asyncio.Event()
        self.gives_metadata.set()
        # 28: bytes of log that its consume queues lack; None: not in the answer.
        self.behind_dispatch: int | None = None
        # 310: it accepts messages of its topics.
        self.takes_messages = False
        # As Java: a slave copies a table whose version differs from the master's.
        self.takes_new_names = False
        self.copies_again: set[int] = set()
        self.copies_in_vain = False

    async def answer_of_tables(self, command: RemotingCommand) -> RemotingCommand | None:
        """Answer an operator, a client, a dashboard, a Proxy or a slave; None to all other requests."""
        match command.code:
            case (
                RequestCode.GET_ALL_TOPIC_CONFIG
                | RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
                | RequestCode.GET_ALL_CONSUMER_OFFSET
            ) if self.answers_metadata:
                await self.gives_metadata.wait()
                return command.answer(0, body=json.dumps(self._metadata(command.code)).encode())
            case (
                RequestCode.UPDATE_AND_CREATE_TOPIC
                | RequestCode.DELETE_TOPIC_IN_BROKER
                | RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
                | RequestCode.UPDATE_CONSUMER_OFFSET
            ) if self.takes_new_names:
                await self._take_name(command)
                return command.answer(0)
            case RequestCode.GET_BROKER_CONFIG:
                known = {"brokerName": self._broker_name, "minInSyncReplicas": str(self.minimum), **self.config}
                return command.answer(0, body=encode_properties(known))
            case RequestCode.UPDATE_BROKER_CONFIG:
                self._configure(command)
                return command.answer(0)
        return self._serve(command)

    def copy_from(self, master: FakeTables) -> None:
        """Copy the tables whose version differs from the master's, as a slave does periodically."""
        if self.copies_in_vain:
            return
        if RequestCode.UPDATE_AND_CREATE_TOPIC in self.copies_again:
            self.topics = dict(master.topics)
        if RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP in self.copies_again:
            self.groups = dict(master.groups)
        self.copies_again.clear()

    def _serve(self, command: RemotingCommand) -> RemotingCommand | None:
        match command.code:
            case RequestCode.GET_TOPIC_CONFIG if self.takes_new_names:
                return self._topic(command)
            case RequestCode.SEND_MESSAGE_V2 if self.takes_messages:
                topic = SendMessageRequestHeaderV2.decode(command.ext_fields).topic
                self._journal.append(f"310 {topic} to {self.broker_id}")
                return command.answer(0 if topic in self.topics else ResponseCode.TOPIC_NOT_EXIST)
            case RequestCode.GET_TOPIC_STATS_INFO if self.queue_ends:
                ends = {queue_id: QueueOffsets(0, end) for queue_id, end in self.queue_ends.items()}
                topic = (command.ext_fields or {})["topic"]
                return command.answer(0, body=encode_topic_stats(topic, self._broker_name, ends))
            case RequestCode.GET_BROKER_RUNTIME_INFO if self.behind_dispatch is not None:
                self._journal.append(f"28 to {self.broker_id}")
                table = {"dispatchBehindBytes": str(self.behind_dispatch)}
                return command.answer(0, body=BrokerRuntimeInfoBody(table=table).encode())
        return None

    def _topic(self, command: RemotingCommand) -> RemotingCommand:
        name = (command.ext_fields or {})["topic"]
        if name not in self.topics:
            return command.answer(ResponseCode.TOPIC_NOT_EXIST, remark=f"No topic in this broker. topic: {name}")
        queues = self.topics[name]
        found = {"topicName": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6, "attributes": {}}
        return command.answer(0, body=json.dumps(found).encode())

    def _configure(self, command: RemotingCommand) -> None:
        for name, value in decode_properties(command.body).items():
            if name == "minInSyncReplicas":
                self.minimum = int(value)
            else:
                self.config[name] = value
            self._journal.append(f"{name}={value} at {self.broker_id}")

    async def _take_name(self, command: RemotingCommand) -> None:
        fields = command.ext_fields or {}
        if command.code == RequestCode.UPDATE_AND_CREATE_TOPIC:
            self.topics[fields["topic"]] = int(fields["writeQueueNums"])
        elif command.code == RequestCode.DELETE_TOPIC_IN_BROKER:
            del self.topics[fields["topic"]]
        elif command.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            await self._take_offset(f"{fields['topic']}@{fields['consumerGroup']}", fields)
        else:
            self.groups[json.loads(command.body or b"")["groupName"]] = 16
        self.copies_again.add(command.code)

    async def _take_offset(self, name: str, fields: Mapping[str, str]) -> None:
        """As Java (ConsumerOffsetManager.commitOffset): of two first offsets of a name that come at once, one is lost."""
        queues = self.offsets.get(name)
        await asyncio.sleep(0.001)
        if queues is None:
            queues = self.offsets[name] = {}
        queues[int(fields["queueId"])] = int(fields["commitOffset"])

    def _metadata(self, code: int) -> dict[str, Any]:
        version = {"stateVersion": self.epoch, "timestamp": 1, "counter": len(self.topics)}
        if code == RequestCode.GET_ALL_TOPIC_CONFIG:
            topics = {
                name: {"topicName": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6}
                for name, queues in self.topics.items()
            }
            return {"topicConfigTable": topics, "dataVersion": version}
        if code == RequestCode.GET_ALL_CONSUMER_OFFSET:
            return {"offsetTable": self.offsets, "dataVersion": version}
        consumes = dict.fromkeys(("consumeEnable", "consumeFromMinEnable", "consumeBroadcastEnable"), True)
        groups = {
            name: {"groupName": name, **consumes, "retryQueueNums": 1, "retryMaxTimes": retries}
            for name, retries in self.groups.items()
        }
        return {"subscriptionGroupTable": groups, "dataVersion": version}
