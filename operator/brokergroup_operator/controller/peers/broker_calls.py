"""What the controller plane asks of brokers and NameServers: each request has a method and a deadline, and is tried once.

Measured on Java brokers 5.5.0:

* 1008 answers when the role change is done, or at once with 0 if the epoch is not above the broker's own: a 0 says "received";
  only the master's 907 or a heartbeat says "done".
* 906 before the 1008 answer is wiped, and does not close a link that lives.
* 104 must reach every NameServer before a slave is told, or the slave is sent back to the old master.

Requests are signed with the group's credentials: a broker with `authenticationEnabled` refuses an unsigned 1008.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from brokergroup_operator.api.broker_keys import ACCEPTS_SENDS_FROM
from brokergroup_operator.controller.peers.metadata import Metadata, Offsets, offsets_of, read_metadata
from rocketmq_remoting import broker_protocol as protocol
from rocketmq_remoting.acl_protocol import AccessChange, BrokerAccess, read_access
from rocketmq_remoting.client_protocol import CreateTopicRequestHeader, UpdateConsumerOffsetRequestHeader
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import MQ_VERSION_5_5_0, RemotingCommand, request
from rocketmq_remoting.controller_protocol import NotifyBrokerRoleChangedRequestHeader, SyncStateSetBody
from rocketmq_remoting.errors import BodyError, RemotingError
from rocketmq_remoting.serialization import decode_properties, dump_json, encode_properties, load_json
from rocketmq_remoting.signature import Credentials, sign_command

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from brokergroup_operator.controller.settings import PlaneSettings
    from controller_core.model import BrokerGroupRecord
    from rocketmq_remoting.client import RemotingClient

# More in-sync replicas than any group has: a master with this setting acknowledges nothing (measured: within 5 ms), also after a
# restart.
FENCING_MIN_IN_SYNC_REPLICAS = 99
MIN_IN_SYNC_REPLICAS = "minInSyncReplicas"
# ACCEPTS_SENDS_FROM: 99 counts only while a Java broker is master, and not for sends with WAIT=false. A send that is between the
# two checks of the role when it becomes a slave is acknowledged alone. `Switchover` prolongs it; short enough for a broker that
# nothing restores.
REFUSES_SENDS_SECONDS = 30.0
# Comes and goes at a slave, whose tables are then of another version than the master's. No client may write, read or consume with
# it, if ever it stays: a slave that is made master right then may keep the group, and its own slaves copy it.
PASSING_NAME = "BROKERGROUP_OPERATOR_PASSING"

Body = TypeVar("Body")

log = structlog.get_logger(__name__)

# StoreStatsService.getFormatRuntime writes all of it, with a comma in a number above 999; a Python broker the seconds.
_PART = r"(?:([0-9,]{1,12}) "
_RUNTIME = re.compile(rf"(?:\[ )?{_PART}days, )?{_PART}hours, )?{_PART}minutes, )?{_PART}seconds)(?: \])?")

# As which a NameServer knows a master, whatever its id in the record.
MASTER_ID = 0
# A topic's permission in Java's bits.
WRITE_AND_READ = 6
# Java's int and its long have no more.
_DIGITS_OF_INT = 10
_DIGITS_OF_LONG = 19


class BrokerCallError(Exception):
    """A broker did not do what it was asked, or did not answer."""


class RefusedError(BrokerCallError):
    """A broker answered that it does not do what it was asked."""


class NotPermittedError(RefusedError):
    """A broker refuses a request for its user or its subject, and will until a person changes that."""

    def __init__(self, address: str, code: int, remark: str, access_key: str | None) -> None:
        super().__init__(f"{address}: {code} answered {ResponseCode.NO_PERMISSION.value}: {remark}")
        self.address, self.code, self.remark = address, code, remark
        # The key it was signed with; None: unsigned.
        self.access_key = access_key


class NoSuchTopicError(RefusedError):
    """A broker has no topic of the name that the request is about."""


class BrokerCalls:
    """Brokers are named by the addresses in the record.

    `credentials_of` returns the key for an address, `dialled_at` where its process listens now, `receiver_check` why a broker
    there must not be changed.
    """

    def __init__(
        self,
        client: RemotingClient,
        settings: PlaneSettings,
        *,
        credentials_of: Callable[[str], Credentials | None] = lambda _: None,
        dialled_at: Callable[[str], str] = lambda address: address,
        receiver_check: Callable[[str, Callable[[], Awaitable[dict[str, str]]]], Awaitable[str | None]] | None = None,
    ) -> None:
        self._client, self._settings = client, settings
        self._credentials_of, self._dialled_at, self._receiver_check = credentials_of, dialled_at, receiver_check

    def signed_by(self, credentials: Credentials | None) -> BrokerCalls:
        """Return the same calls, all signed by these credentials, whatever address the broker has."""
        same = copy(self)
        same._credentials_of = lambda _: credentials  # noqa: SLF001 - its own
        return same

    async def change_role(self, address: str, record: BrokerGroupRecord) -> None:
        """1008: notify a broker of the master; return when it has changed its role (or had)."""
        header = NotifyBrokerRoleChangedRequestHeader(
            master_address=record.address_of(record.master_broker_id),
            master_broker_id=record.master_broker_id,
            master_epoch=record.master_epoch,
            sync_state_set_epoch=record.sync_state_set_epoch,
        )
        body = SyncStateSetBody(record.sync_state_set, record.sync_state_set_epoch).encode()
        command = request(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, ext_fields=header.encode(), body=body)
        await self._tell(address, command, self._settings.role_change_deadline_seconds)

    async def unregister(
        self, name_servers: Iterable[str], record: BrokerGroupRecord, address: str
    ) -> dict[str, BrokerCallError]:
        """104: take an old master off every NameServer, side by side; return the failures."""
        header = protocol.UnRegisterBrokerRequestHeader(
            cluster_name=record.cluster_name, broker_addr=address, broker_name=record.broker_name, broker_id=MASTER_ID
        )
        command = request(RequestCode.UNREGISTER_BROKER, ext_fields=header.encode(), version=MQ_VERSION_5_5_0)
        failed: dict[str, BrokerCallError] = {}

        async def ask(server: str) -> None:
            try:
                await self._ask(server, command, self._settings.name_server_deadline_seconds)
            except BrokerCallError as error:
                failed[server] = error

        await asyncio.gather(*map(ask, name_servers))
        return failed

    async def push_ha_address(self, address: str, ha_address: str) -> None:
        """906: point a slave's HA client at the master."""
        fields = protocol.ExchangeHAInfoRequestHeader(master_ha_address=ha_address).encode()
        await self._tell(address, request(RequestCode.EXCHANGE_BROKER_HA_INFO, ext_fields=fields))

    async def ha_status(self, address: str) -> protocol.HARuntimeInfoBody:
        """907: which slaves are linked to this broker, and how far behind each is."""
        return await self._read(address, request(RequestCode.GET_BROKER_HA_STATUS), protocol.HARuntimeInfoBody.decode)

    async def masters(self, addresses: Mapping[int, str | None]) -> dict[int, protocol.HARuntimeInfoBody]:
        """907, side by side: what those of these members say that act as master."""
        found = await asyncio.gather(*map(self.ha_status_if_any, addresses.values()))
        answers = zip(addresses, found, strict=True)
        return {one: status for one, status in answers if status is not None and status.master}

    async def ha_status_if_any(self, address: str | None) -> protocol.HARuntimeInfoBody | None:
        """907; None if it does not answer, or an address is not known. A slave without an HA client answers code 1."""
        try:
            return await self.ha_status(address) if address is not None else None
        except BrokerCallError:
            return None

    async def end_of_log(
        self, address: str, cluster_name: str, broker_name: str, broker_id: int
    ) -> tuple[int, int] | None:
        """1007: the last epoch and the end of this member's log, as in its heartbeats; None unless this very member answers."""
        command = request(RequestCode.GET_BROKER_EPOCH_CACHE)
        try:
            found = await self._read(address, command, protocol.EpochCacheBody.decode)
        except BrokerCallError:
            return None
        # As a NameServer knows it: a master has no id, nor has a broker without a role.
        is_another = found.broker_id > MASTER_ID and found.broker_id != broker_id
        if (found.cluster_name, found.broker_name) != (cluster_name, broker_name) or is_another:
            return None
        return found.epoch_list[-1].epoch if found.epoch_list else -1, found.max_offset

    async def runtime_numbers(self, address: str) -> dict[str, int]:
        """28: those of its values that are whole numbers; `runtime`, which is a text, in seconds by the broker's own clock."""
        command = request(RequestCode.GET_BROKER_RUNTIME_INFO)
        found = await self._read(address, command, protocol.BrokerRuntimeInfoBody.decode)
        numbers = {name: _number(text, _DIGITS_OF_LONG) for name, text in found.table.items()}
        numbers["runtime"] = seconds_of_runtime(found.table.get("runtime", ""))
        return {name: number for name, number in numbers.items() if number is not None}

    async def bytes_behind_dispatch(self, address: str) -> int | None:
        """28: how much of its log is not in consume queues and index yet; None if the broker does not say."""
        return (await self.runtime_numbers(address)).get("dispatchBehindBytes")

    async def topic_names(self, address: str) -> frozenset[str]:
        """21: the names of all topics that the broker has."""
        return await self._table(
            address, RequestCode.GET_ALL_TOPIC_CONFIG, lambda body: frozenset(map(str, body["topicConfigTable"]))
        )

    async def topic_stats(self, address: str, topic: str) -> dict[int, protocol.QueueOffsets]:
        """202: the ends of a topic's queues, by queue id. `NoSuchTopicError`."""
        command = request(RequestCode.GET_TOPIC_STATS_INFO, ext_fields={"topic": topic})
        return await self._read(address, command, protocol.decode_topic_stats)

    async def topic_readers(self, address: str, topic: str) -> frozenset[str]:
        """300: the consumer groups that subscribe to a topic, or have an offset of it."""
        command = request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, ext_fields={"topic": topic})
        return frozenset((await self._read(address, command, protocol.GroupListBody.decode)).group_list)

    async def delay_offsets(self, address: str) -> dict[int, int]:
        """45: by delay level, the offset that is delivered next."""
        command = request(RequestCode.GET_ALL_DELAY_OFFSET)
        return (await self._read(address, command, protocol.DelayOffsetBody.decode)).offset_table

    async def routed_master(self, name_server: str, cluster_name: str, broker_name: str) -> str | None:
        """901: the address to which a NameServer sends the group's producers; None while it knows no master."""
        header = protocol.GetBrokerMemberGroupRequestHeader(cluster_name=cluster_name, broker_name=broker_name)
        command = request(RequestCode.GET_BROKER_MEMBER_GROUP, ext_fields=header.encode(), version=MQ_VERSION_5_5_0)
        deadline_seconds = self._settings.name_server_deadline_seconds
        found = await self._read(name_server, command, protocol.BrokerMemberGroupBody.decode, deadline_seconds)
        return found.broker_member_group.broker_addrs.get(MASTER_ID)

    async def broker_config(self, address: str) -> dict[str, str]:
        """26: the broker's configuration."""
        return await self._read(address, request(RequestCode.GET_BROKER_CONFIG), decode_properties)

    async def update_broker_config(self, address: str, values: Mapping[str, str]) -> None:
        """25: change these, live and in the broker's file."""
        await self._tell(address, request(RequestCode.UPDATE_BROKER_CONFIG, body=encode_properties(dict(values))))

    async def set_min_in_sync_replicas(
        self, address: str, value: int, *, shown: Mapping[str, str] | None = None
    ) -> None:
        """25: change minInSyncReplicas. With 99 a Java broker also refuses sends, until its clock is 30 s beyond this plane's.

        `shown` is its configuration (26), if that was just read: a Python replica refuses keys that it does not show.
        """
        values = {MIN_IN_SYNC_REPLICAS: str(value)}
        found = await self.broker_config(address) if shown is None else shown
        if ACCEPTS_SENDS_FROM in found:
            until_ms = 0
            if value == FENCING_MIN_IN_SYNC_REPLICAS:
                # A broker that a Retire has closed goes on refusing for as long as that says.
                held_ms = _number(found[ACCEPTS_SENDS_FROM], _DIGITS_OF_LONG) or 0
                until_ms = max(held_ms, int((time.time() + REFUSES_SENDS_SECONDS) * 1000))
            values[ACCEPTS_SENDS_FROM] = str(until_ms)
        await self.update_broker_config(address, values)

    async def metadata(self, address: str) -> Metadata:
        """21, 201, 43: topics, groups and offsets. Asked without a page, 5.5.0 answers all of it."""
        deadline_seconds = self._settings.metadata_deadline_seconds
        codes = (
            RequestCode.GET_ALL_TOPIC_CONFIG,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            RequestCode.GET_ALL_CONSUMER_OFFSET,
        )
        bodies = [(await self._ask(address, request(code), deadline_seconds)).body for code in codes]
        try:
            if sum(len(body or b"") for body in bodies) < 256 * 1024:
                return read_metadata(*bodies)
            # Here it would hold up heartbeats.
            return await asyncio.to_thread(read_metadata, *bodies)
        except BodyError as error:
            raise BrokerCallError(f"{address}: {error}") from error

    async def deliver(self, address: str, message: RemotingCommand) -> bool:
        """310: True if the broker acknowledged the message, False if it has no such topic; else `BrokerCallError`."""
        try:
            await self._ask(address, message)
        except NoSuchTopicError:
            return False
        return True

    async def topic(self, address: str, name: str) -> protocol.TopicConfig | None:
        """351: a topic as the broker has it; None where it has none."""
        command = request(RequestCode.GET_TOPIC_CONFIG, ext_fields={"topic": name})
        try:
            return await self._read(address, command, protocol.TopicAnswerBody.decode)
        except NoSuchTopicError:
            return None

    async def put_topic(self, address: str, topic: protocol.TopicConfig) -> None:
        """17: make a topic, or change one; attributes that `topic` does not name stay."""
        header = CreateTopicRequestHeader(
            topic=topic.topic_name,
            default_topic=topic.topic_name,
            read_queue_nums=topic.read_queue_nums,
            write_queue_nums=topic.write_queue_nums,
            perm=topic.perm,
            topic_filter_type=topic.topic_filter_type,
            topic_sys_flag=topic.topic_sys_flag,
            order=topic.order,
            attributes=",".join(f"+{name}={value}" for name, value in sorted(topic.attributes.items())) or None,
        )
        await self._tell(address, request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=header.encode()))

    async def consumer_groups(
        self, address: str, names: Collection[str]
    ) -> dict[str, protocol.SubscriptionGroupConfig]:
        """201: those of these consumer groups that the broker has. (352 makes one that it does not have.)"""

        def read(body: Mapping[str, Any]) -> dict[str, protocol.SubscriptionGroupConfig]:
            table = body["subscriptionGroupTable"]
            return {name: dict(table[name]) for name in names if name in table}

        return await self._table(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, read)

    async def put_consumer_group(self, address: str, group: protocol.SubscriptionGroupConfig) -> None:
        """200: make a consumer group, or replace its settings: what `group` does not name gets RocketMQ's default."""
        body = dump_json(group)
        await self._tell(address, request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body))

    async def consumer_offsets(self, address: str) -> Offsets:
        """43: the offsets of all consumer groups."""
        return await self._table(address, RequestCode.GET_ALL_CONSUMER_OFFSET, offsets_of)

    async def commit_offset(self, address: str, *, topic: str, queue_id: int, group: str, offset: int) -> None:
        """15: set the offset that a consumer group reads next. A Java broker refuses groups and topics that it does not have."""
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
        )
        await self._tell(address, request(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=header.encode()))

    async def access(self, address: str) -> BrokerAccess:
        """3005, 3010: the users and rules of this broker, passwords too."""
        users = await self._ask(address, request(RequestCode.AUTH_LIST_USER))
        acls = await self._ask(address, request(RequestCode.AUTH_LIST_ACL))
        try:
            return read_access(users.body, acls.body)
        except BodyError as error:
            raise BrokerCallError(f"{address}: {error}") from error

    async def change_access(self, address: str, change: AccessChange) -> None:
        """3001, 3002, 3003, 3007, 3008."""
        await self._tell(address, request(change.code, ext_fields=dict(change.fields), body=change.body))

    async def copy_topics_again(self, address: str) -> None:
        """17 and 215: create and delete a topic at this slave only, so that its next copy finds another version and replaces all.

        Not at a broker that registers each topic by itself: it would leave the name with the NameServers.
        """
        if (await self.config_of_slave(address)).get("enableSingleTopicRegister") == "true":
            raise BrokerCallError(
                f"{address}: 17 not sent: with enableSingleTopicRegister the topic would have a route"
            )
        passing = protocol.TopicConfig(topic_name=PASSING_NAME, read_queue_nums=1, write_queue_nums=1, perm=0)
        await self.put_topic(address, passing)
        try:
            await self._tell(address, request(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": PASSING_NAME}))
        except BrokerCallError as error:  # the next copy takes the topic away as well
            log.info("passing topic not deleted", address=address, error=str(error))

    async def copy_groups_again(self, address: str) -> None:
        """200: the same with a subscription group, which the copy takes away (207 makes it anew, measured on 5.5.0)."""
        await self.config_of_slave(address)
        body = json.dumps({"groupName": PASSING_NAME, "consumeEnable": False}).encode()
        await self._tell(address, request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body))

    async def config_of_slave(self, address: str) -> dict[str, str]:
        """26. A broker that was made master meanwhile copies from no other: what is written there would stay, and be copied."""
        configuration = await self.broker_config(address)
        if (role := configuration.get("brokerRole", "")).endswith("_MASTER"):
            raise BrokerCallError(f"{address}: nothing written as at a slave, its brokerRole is {role}")
        return configuration

    async def _tell(self, address: str, command: RemotingCommand, deadline_seconds: float = 0.0) -> None:
        """Send what changes a broker only to the broker that is meant (safety rule 8, `ReceiverCheck`)."""
        if self._receiver_check is not None:
            reason = await self._receiver_check(address, lambda: self.broker_config(address))
            if reason is not None:
                raise BrokerCallError(f"{address}: {command.code} not sent: {reason}")
        await self._ask(address, command, deadline_seconds)

    async def _read(
        self,
        address: str,
        command: RemotingCommand,
        decode: Callable[[bytes | None], Body],
        deadline_seconds: float = 0.0,
    ) -> Body:
        answer = await self._ask(address, command, deadline_seconds)
        try:
            return decode(answer.body)
        except BodyError as error:
            raise BrokerCallError(f"{address}: {command.code} answered something unreadable: {error}") from error

    async def _table(self, address: str, code: RequestCode, read: Callable[[Any], Body]) -> Body:
        """Return what `read` finds in the body, parsed in a thread: a large table would hold up heartbeats."""
        answer = await self._ask(address, request(code), self._settings.metadata_deadline_seconds)
        try:
            return read(await asyncio.to_thread(load_json, answer.body or b""))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BrokerCallError(f"{address}: {code} answered something unreadable: {error!r}") from error

    async def _ask(self, address: str, command: RemotingCommand, deadline_seconds: float = 0.0) -> RemotingCommand:
        """Return the answer, which is a success; without a deadline of its own (0.0), the request has that of small ones."""
        credentials = self._credentials_of(address)
        if credentials is not None:
            command = sign_command(command, credentials)
        timeout_seconds = deadline_seconds or self._settings.small_rpc_deadline_seconds
        try:
            answer = await self._client.invoke(self._dialled_at(address), command, timeout_seconds=timeout_seconds)
        except (RemotingError, ValueError) as error:
            raise BrokerCallError(f"{address}: {command.code}: {error}") from error
        if answer.code == ResponseCode.NO_PERMISSION:
            access_key = credentials.access_key if credentials is not None else None
            raise NotPermittedError(address, command.code, answer.remark or "", access_key)
        if answer.code != ResponseCode.SUCCESS:
            kind = NoSuchTopicError if answer.code == ResponseCode.TOPIC_NOT_EXIST else RefusedError
            raise kind(f"{address}: {command.code} answered {answer.code}: {answer.remark}")
        return answer


def live_minimum(properties: Mapping[str, str]) -> int | None:
    """Return minInSyncReplicas of a broker's answer; None if it is no number (`int` raises for thousands of digits)."""
    return _number(properties.get(MIN_IN_SYNC_REPLICAS, ""), _DIGITS_OF_INT)


def refuses_sends_seconds(properties: Mapping[str, str]) -> float | None:
    """Return the seconds until a Java broker's ACCEPTS_SENDS_FROM, by this plane's clock; 0 if that time has passed.

    None if its configuration (26) has no such time, as a Python replica's, or one that is no number.
    """
    until_ms = _number(properties.get(ACCEPTS_SENDS_FROM, ""), _DIGITS_OF_LONG)
    return None if until_ms is None else max(0.0, until_ms / 1000 - time.time())


def seconds_of_runtime(text: str) -> int | None:
    """Return a broker's `runtime` (28) in seconds, as `[ 0 days, 1 hours, 2 minutes, 3 seconds ]`; None if it is no such text."""
    found = _RUNTIME.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int((part or "0").replace(",", "")) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _number(text: str, most_digits: int) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= most_digits else None
