"""Three Java brokers whose commit log is a DLedger log, and a client of every kind of message that such a log has."""

from __future__ import annotations

import asyncio
import json
import re
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from brokergroup_operator.demo.client import read_messages
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.errors import RemotingError
from rocketmq_remoting.message_record import decode_records
from tests.support.java_rig import JavaRig, eventually
from tests.support.places import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.message_record import StoredMessage

CLUSTER = "DefaultCluster"
CONSUMERS = "readers"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
END_TRANSACTION = 37
PREPARED, COMMIT, ROLLBACK = 4, 8, 12
SEND_SECONDS = 20.0
STOP_SECONDS = 60.0
_LENGTHS = struct.Struct(">iiiii")


@dataclass
class Message:
    """What a test sends."""

    key: str
    queue: int
    body: bytes = b""
    properties: dict[str, str] = field(default_factory=dict)
    sys_flag: int = 0
    batch: bool = False

    @property
    def encoded_properties(self) -> bytes:
        return "".join(f"{k}\x01{v}\x02" for k, v in ({"KEYS": self.key} | self.properties).items()).encode()


@dataclass
class DLedgerGroup:
    """The brokers `n0`, `n1`, …, each in a folder of that name. `acknowledged`: the keys that a client got an answer for."""

    rig: JavaRig
    name: str
    topic: str
    queues: int = 4
    client: RemotingClient = field(default_factory=RemotingClient)
    acknowledged: list[str] = field(default_factory=list)

    def store(self, member: str) -> Path:
        return self.rig.folder / member / "store"

    async def start(self, members: int, **extra: Any) -> None:
        ports = [free_port("127.0.0.1") for _ in range(members)]
        peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
        for number in range(members):
            settings = {
                "brokerName": self.name,
                "enableControllerMode": "false",
                "brokerId": 0,
                "brokerRole": "ASYNC_MASTER",
                "enableDLegerCommitLog": "true",
                "dLegerGroup": self.name,
                "dLegerPeers": peers,
                "dLegerSelfId": f"n{number}",
                "waitTimeMillsInSendQueue": 20000,
                "defaultTopicQueueNums": self.queues,
                **extra,
            }
            self.rig.start_broker(f"n{number}", controllers="127.0.0.1:1", **settings)
        for number in range(members):
            await asyncio.to_thread(self.rig.programs[f"n{number}"].wait_until_listening)

    async def leader(self, *, but: str = "") -> str:
        """Return the member that is registered as master, once there is one; `but`: another one than this."""
        found: list[str] = []

        async def there() -> bool:
            ask = request(RequestCode.GET_BROKER_CLUSTER_INFO)
            answer = await self.client.invoke(self.rig.name_server_address, ask, timeout_seconds=5.0)
            table = json.loads(_quoted(answer.body or b"{}")).get("brokerAddrTable") or {}
            address = ((table.get(self.name) or {}).get("brokerAddrs") or {}).get("0", "")
            found[:] = [name for name, one in self.rig.programs.items() if one.address == address and name != but]
            return bool(found)

        await eventually(there, f"a leader of {self.name}\n{self.rig.logs()}")
        return found[0]

    async def send(self, leader: str, message: Message) -> dict[str, str]:
        """Send until it is acknowledged; returns the answer's fields. A follower, or a leader to be, refuses it."""
        return await self.send_to(self.rig.programs[leader].address, message)

    async def send_to(self, address: str, message: Message) -> dict[str, str]:
        fields: dict[str, str] = {}

        async def accepted() -> bool:
            try:
                answer = await self.client.invoke(address, self._command(message), timeout_seconds=SEND_SECONDS)
            except RemotingError:
                return False
            fields.update(answer.ext_fields or {})
            return answer.code == ResponseCode.SUCCESS

        await eventually(accepted, f"{message.key} is acknowledged\n{self.rig.logs()}")
        self.acknowledged.append(message.key)
        return fields

    def _command(self, message: Message) -> RemotingCommand:
        fields = {
            "a": "producers", "b": self.topic, "c": "TBW102", "d": str(self.queues), "e": str(message.queue),
            "f": str(message.sys_flag), "g": str(time.time_ns() // 1_000_000), "h": "0",
            "i": message.encoded_properties.decode(), "j": "0", "k": "false", "m": str(message.batch).lower(), "n": self.name,
        }  # fmt: skip
        code = RequestCode.SEND_BATCH_MESSAGE if message.batch else RequestCode.SEND_MESSAGE_V2
        body = message.body if message.batch else message.key.encode().ljust(120, b".")
        return request(code, ext_fields=fields, body=body)

    async def send_batch(self, leader: str, keys: list[str], queue: int) -> None:
        """Send messages in one request, as a client's batch."""
        body = b""
        for key in keys:
            one = Message(key, queue)
            content, properties = key.encode().ljust(120, b"."), one.encoded_properties
            size = _LENGTHS.size + len(content) + 2 + len(properties)
            body += (
                _LENGTHS.pack(size, 0, 0, 0, len(content)) + content + struct.pack(">h", len(properties)) + properties
            )
        await self.send(leader, Message(keys[0], queue, body=body, batch=True))
        self.acknowledged += keys[1:]

    async def prepare(self, leader: str, key: str) -> dict[str, str]:
        """Send the half of a transaction; the key counts as acknowledged once it is committed."""
        properties = {"TRAN_MSG": "true", "PGROUP": "producers", "UNIQ_KEY": key.rjust(32, "0")}
        fields = await self.send(leader, Message(key, 0, properties=properties, sys_flag=PREPARED))
        self.acknowledged.remove(key)
        return {"queueOffset": fields["queueOffset"], "logOffset": str(int(fields["msgId"][-16:], 16)), "key": key}

    async def end(self, address: str, half: dict[str, str], verdict: int) -> None:
        fields = {
            "topic": self.topic, "producerGroup": "producers", "tranStateTableOffset": half["queueOffset"],
            "commitLogOffset": half["logOffset"], "commitOrRollback": str(verdict), "fromTransactionCheck": "false",
            "msgId": half["key"].rjust(32, "0"), "transactionId": half["key"].rjust(32, "0"), "bname": self.name,
        }  # fmt: skip
        answer = await self.client.invoke(
            address, request(END_TRANSACTION, ext_fields=fields), timeout_seconds=SEND_SECONDS
        )
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        if verdict == COMMIT:
            self.acknowledged.append(half["key"])

    async def commit_offset(self, address: str, queue: int, offset: int) -> None:
        fields = {"consumerGroup": CONSUMERS, "topic": self.topic, "queueId": str(queue), "commitOffset": str(offset)}
        for command in (
            request(
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps({"groupName": CONSUMERS}).encode()
            ),
            request(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=fields),
        ):
            answer = await self.client.invoke(address, command, timeout_seconds=SEND_SECONDS)
            assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def offset_of_consumers(self, address: str, queue: int) -> int:
        """Return how far the consumers have read, as a broker knows it; -1 for one that does not."""
        fields = {"consumerGroup": CONSUMERS, "topic": self.topic, "queueId": str(queue)}
        ask = request(RequestCode.QUERY_CONSUMER_OFFSET, ext_fields=fields)
        answer = await self.client.invoke(address, ask, timeout_seconds=SEND_SECONDS)
        return int((answer.ext_fields or {})["offset"]) if answer.code == ResponseCode.SUCCESS else -1

    async def found_by_key(self, address: str, key: str, *, unique: bool = False) -> list[StoredMessage]:
        """Return what a query by key finds at a broker; `unique`: by a message's own id."""
        fields = {
            "topic": self.topic,
            "key": key,
            "maxNum": "32",
            "beginTimestamp": "0",
            "endTimestamp": str(2**63 - 1),
        }
        ask = request(RequestCode.QUERY_MESSAGE, ext_fields=fields | ({"_UNIQUE_KEY_QUERY": "true"} if unique else {}))
        answer = await self.client.invoke(address, ask, timeout_seconds=SEND_SECONDS)
        return decode_records(answer.body or b"") if answer.code == ResponseCode.SUCCESS else []

    async def messages(self, address: str, topic: str = "") -> list[StoredMessage]:
        return await read_messages(address, topic or self.topic, 1 if topic else self.queues)

    async def stop(self, *, last: str) -> None:
        """Stop all members by SIGTERM, the leader last: alone it takes no message, and no other is elected."""
        members = [one for name, one in self.rig.programs.items() if name not in {"namesrv", last}]
        await asyncio.gather(*(asyncio.to_thread(one.process.stop, STOP_SECONDS) for one in members))
        await asyncio.to_thread(self.rig.programs[last].process.stop, STOP_SECONDS)


def restart(group: DLedgerGroup, member: str) -> None:
    """Start a killed member again in its folder: its address for clients is another one, its place among the peers the same."""
    lines = (group.rig.folder / member / "broker.conf").read_text("utf-8").splitlines()
    settings = dict(line.split("=", 1) for line in lines if "istenPort=" not in line)
    group.rig.start_broker(member, controllers="127.0.0.1:1", **settings)


def _quoted(text: bytes) -> str:
    """Java's JSON has numbers as the keys of a table."""
    return re.sub(r'([{,])(\d+):"', r'\1"\2":"', text.decode())
