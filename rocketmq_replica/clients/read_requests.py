"""Reading messages: pulls with long polling (11, 361), by offset (33), by key (12), and the time of the oldest (32).

Consumers only see confirmed messages, which the whole SyncStateSet has. A pull at the end of its queue is held until the next
message is confirmed or its time is up. So is a pull of a message that is not confirmed yet: after a failover that is normal, and
the consumer keeps its offset.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocketmq_remoting.client_protocol import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)
from rocketmq_remoting.codes import ResponseCode
from rocketmq_remoting.message_record import MessageRecordError, decode_record
from rocketmq_replica.broker import Broker, Role
from rocketmq_replica.clients.consumers import Subscription
from rocketmq_replica.topics import PERMISSION_READ

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_replica.clients.consumers import Clients
    from rocketmq_replica.log.consume_queues import ConsumeQueue
    from rocketmq_replica.tables import ConsumerOffsets


logger = logging.getLogger(__name__)

_SYS_FLAG_COMMIT_OFFSET = 1
_SYS_FLAG_SUSPEND = 2
_SYS_FLAG_SUBSCRIPTION = 4
_MOST_MESSAGES = 1024
_MOST_BYTES = 1 << 20
_LONGEST_HOLD_SECONDS = 30.0
_REJECTED = "[REJECTREQUEST]system busy, start flow control for a while"


@dataclass(frozen=True)
class _Page:
    """The result of one pull."""

    code: int
    next_offset: int
    body: bytes = b""
    remark: str | None = None


@dataclass(frozen=True, eq=False)
class _Held:
    future: asyncio.Future[None]
    queue_offset: int


class PullRequests:
    """Pulls, and those that are held."""

    def __init__(self, broker: Broker, offsets: ConsumerOffsets, clients: Clients) -> None:
        """``clients`` has the groups' subscriptions."""
        self._clients = clients
        self._broker = broker
        self._offsets = offsets
        self._held: dict[tuple[str, int], set[_Held]] = {}
        self._waking = False

    def pull(self, request: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand]:
        """11 and 361."""
        header = PullMessageRequestHeader.decode(request.ext_fields)
        refusal = self._refusal(request, header)
        if refusal is not None:
            return refusal
        sys_flag = header.sys_flag or 0
        if sys_flag & _SYS_FLAG_COMMIT_OFFSET and (header.commit_offset or 0) > 0 and header.consumer_group:
            self._commit(header.consumer_group, header.topic or "", header.queue_id or 0, header.commit_offset or 0)
        page = self._read(header)
        hold_seconds = min((header.suspend_timeout_ms or 0) / 1000, _LONGEST_HOLD_SECONDS)
        if page.code == ResponseCode.PULL_NOT_FOUND and sys_flag & _SYS_FLAG_SUSPEND and hold_seconds > 0:
            return self._hold(request, header, hold_seconds)
        return self._answer(request, header, page)

    def _commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit the consumer's offset as 15 does. On a slave an offset beyond the queue is ignored."""
        if self._broker.role is Role.MASTER:
            self._offsets.put(group, topic, queue_id, offset)
        elif offset <= self._broker.store.queues.end(topic, queue_id):
            self._offsets.take(group, topic, queue_id, offset)

    def confirmed(self) -> None:
        """After a move of the confirm offset: wake the held pulls with a message, once per turn of the event loop."""
        if self._held and not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_soon(self._wake_held)

    def _wake_held(self) -> None:
        self._waking = False
        for (topic, queue_id), waiting in self._held.items():
            queue = self._broker.store.queues.find(topic, queue_id)
            if queue is None or not waiting:
                continue
            end = queue.visible_end(self._broker.store.confirm_offset)
            for held in waiting:
                if held.queue_offset < end and not held.future.done():
                    held.future.set_result(None)

    def release_all(self) -> None:
        """Answer all held pulls: this replica stops or changes its role."""
        for waiting in self._held.values():
            for held in waiting:
                if not held.future.done():
                    held.future.set_result(None)

    def _refusal(self, request: RemotingCommand, header: PullMessageRequestHeader) -> RemotingCommand | None:
        broker = self._broker
        slave_serves = broker.role is Role.SLAVE and broker.configuration.slave_read_enable
        if broker.role is not Role.MASTER and not slave_serves:
            return request.answer(ResponseCode.SYSTEM_BUSY, remark=_REJECTED)
        name = header.topic or ""
        topic = broker.topics.find(name)
        if topic is None:
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{name}] not exist")
        if not topic.permission & PERMISSION_READ & broker.live.broker_permission:
            return request.answer(ResponseCode.NO_PERMISSION, remark=f"reading topic[{name}] is forbidden")
        if not 0 <= (header.queue_id or 0) < topic.read_queues:
            return request.answer(
                ResponseCode.SYSTEM_ERROR, remark=f"queueId[{header.queue_id}] is illegal, topic {topic}"
            )
        expression_type = self._subscription(header).expression_type
        if expression_type not in ("", "TAG"):
            remark = f"expressionType {expression_type}: this broker filters by TAG only"
            return request.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
        return None

    def _subscription(self, header: PullMessageRequestHeader) -> Subscription:
        """Return the pull's subscription; without one, as from Java's push consumers, that of the group's heartbeats."""
        if not (header.sys_flag or 0) & _SYS_FLAG_SUBSCRIPTION:
            known = self._clients.subscription(header.consumer_group or "", header.topic or "")
            if known is not None:
                return known
        text = (header.subscription or "*").strip()
        tags = () if text in ("", "*") else (tag.strip() for tag in text.split("||") if tag.strip())
        return Subscription(frozenset(tags), header.expression_type or "", 0)

    async def _hold(
        self, request: RemotingCommand, header: PullMessageRequestHeader, seconds: float
    ) -> RemotingCommand:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        key = (header.topic or "", header.queue_id or 0)
        page = self._read(header)
        while page.code == ResponseCode.PULL_NOT_FOUND and loop.time() < deadline:
            held = _Held(loop.create_future(), page.next_offset)
            waiting = self._held.setdefault(key, set())
            waiting.add(held)
            timer = loop.call_at(deadline, _wake, held.future)
            try:
                await held.future
            finally:
                timer.cancel()
                waiting.discard(held)
                if not waiting and self._held.get(key) is waiting:
                    del self._held[key]
            refusal = self._refusal(request, header)
            if refusal is not None:
                return refusal
            page = self._read(header)
        return self._answer(request, header, page)

    def _read(self, header: PullMessageRequestHeader) -> _Page:
        store = self._broker.store
        queue = store.queues.find(header.topic or "", header.queue_id or 0)
        offset = header.queue_offset or 0
        if queue is None:
            code = ResponseCode.PULL_NOT_FOUND if offset == 0 else ResponseCode.PULL_OFFSET_MOVED
            return _Page(code, 0)
        if offset < queue.min_offset:
            return _Page(ResponseCode.PULL_OFFSET_MOVED, queue.min_offset)
        if offset > queue.next_offset:
            return _Page(ResponseCode.PULL_OFFSET_MOVED, queue.visible_end(store.confirm_offset))
        if offset >= queue.visible_end(store.confirm_offset):
            return _Page(ResponseCode.PULL_NOT_FOUND, offset)
        return self._collect(queue, offset, header)

    def _collect(self, queue: ConsumeQueue, offset: int, header: PullMessageRequestHeader) -> _Page:
        store = self._broker.store
        most_messages = min(max(header.max_msg_nums or 1, 1), _MOST_MESSAGES)
        most_bytes = min(header.max_msg_bytes or _MOST_BYTES, _MOST_BYTES)
        wanted_tags = self._subscription(header).tags
        end = min(queue.visible_end(store.confirm_offset), offset + most_messages)
        parts: list[bytes] = []
        size = 0
        while offset < end:
            place = queue.locate(offset)
            if place is not None:
                if parts and size + place[1] > most_bytes:
                    break
                try:
                    record = store.read_record(*place, stored_as=(header.topic or "", header.queue_id or 0, offset))
                except MessageRecordError as error:
                    if parts:
                        break
                    logger.error("damaged log: %s", error)  # noqa: TRY400 - the traceback says nothing
                    return _Page(ResponseCode.SYSTEM_ERROR, offset, remark=f"damaged log: {error}")
                if not wanted_tags or decode_record(record).properties.get("TAGS") in wanted_tags:
                    parts.append(record)
                    size += len(record)
            offset += 1
        if not parts:
            return _Page(ResponseCode.PULL_RETRY_IMMEDIATELY, offset)
        return _Page(ResponseCode.SUCCESS, offset, b"".join(parts))

    def _answer(self, request: RemotingCommand, header: PullMessageRequestHeader, page: _Page) -> RemotingCommand:
        store = self._broker.store
        queue = store.queues.find(header.topic or "", header.queue_id or 0)
        fields = PullMessageResponseHeader(
            suggest_which_broker_id=0,
            next_begin_offset=page.next_offset,
            min_offset=queue.min_offset if queue is not None else 0,
            max_offset=queue.visible_end(store.confirm_offset) if queue is not None else 0,
        )
        return request.answer(page.code, remark=page.remark, ext_fields=fields.encode(), body=page.body or None)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class ReadRequests:
    """Handlers of requests for single messages."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.query = MessageQueries(broker).query

    def view_message(self, request: RemotingCommand) -> RemotingCommand:
        """33: a confirmed message by its physical offset."""
        try:
            record = self._broker.store.read_confirmed(ViewMessageRequestHeader.decode(request.ext_fields).offset)
        except MessageRecordError as error:
            remark = f"can not find message by the offset, {error}"
            return request.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
        return request.answer(ResponseCode.SUCCESS, body=record)

    def earliest_store_time(self, request: RemotingCommand) -> RemotingCommand:
        """32."""
        header = GetEarliestMsgStoretimeRequestHeader.decode(request.ext_fields)
        queue = self._broker.store.queues.find(header.topic or "", header.queue_id or 0)
        timestamp = -1 if queue is None else queue.earliest_store_timestamp_ms
        fields = GetEarliestMsgStoretimeResponseHeader(timestamp=timestamp)
        return request.answer(ResponseCode.SUCCESS, ext_fields=fields.encode())


MOST_READ = 200_000
"""The limit of messages that one query reads."""
_AT_ONCE = 200
_MOST_FOUND = 64
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"


class MessageQueries:
    """The handler of 12, a query by key, for tools.

    There is no index of keys: the topic's queues are read from the newest message back, within the requested time, a few hundred
    messages at a time so that sends do not wait. A query that would read too much is refused.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def query(self, request: RemotingCommand) -> RemotingCommand:
        """12."""
        header = QueryMessageRequestHeader.decode(request.ext_fields)
        if not header.topic or not header.key:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark="12: topic and key are needed")
        unique = (request.ext_fields or {}).get(_UNIQUE_KEY_QUERY, "").lower() == "true"
        most = min(max(header.max_num or 1, 1), _MOST_FOUND)
        found: list[bytes] = []
        for read, place in enumerate(self._places(header), 1):
            if read > MOST_READ:
                remark = f"more than {MOST_READ} messages of {header.topic} in this time: ask for a shorter one"
                return request.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
            if read % _AT_ONCE == 0:
                await asyncio.sleep(0)
            record = self._read(place, header.key, unique=unique)
            if record is not None:
                found.append(record)
                if len(found) >= most:
                    break
        if not found:
            return request.answer(
                ResponseCode.QUERY_NOT_FOUND, remark="can not find message, maybe time range not correct"
            )
        fields = QueryMessageResponseHeader(index_last_update_timestamp=0, index_last_update_phyoffset=0)
        return request.answer(ResponseCode.SUCCESS, ext_fields=fields.encode(), body=b"".join(found))

    def _places(self, header: QueryMessageRequestHeader) -> Iterator[tuple[int, int]]:
        """Yield the places of the topic's confirmed messages of that time, for each queue from the newest back."""
        queues = self._broker.store.queues
        for topic, queue_id in list(queues.names()):
            queue = queues.find(topic, queue_id) if topic == header.topic else None
            if queue is not None:
                yield from _newest_first(queue, header, self._broker.store.confirm_offset)

    def _read(self, place: tuple[int, int], key: str, *, unique: bool) -> bytes | None:
        try:
            record = self._broker.store.read_record(*place)
            properties = decode_record(record, physical_offset=place[0]).properties
        except MessageRecordError:
            return None  # deleted or damaged meanwhile
        keys = [properties.get("UNIQ_KEY", "")] if unique else properties.get("KEYS", "").split(" ")
        return record if key in keys else None


def _newest_first(
    queue: ConsumeQueue, header: QueryMessageRequestHeader, confirm_offset: int
) -> Iterator[tuple[int, int]]:
    begin = queue.first_stored_at_or_after(max(header.begin_timestamp or 0, 0))
    end = queue.visible_end(confirm_offset)
    if header.end_timestamp is not None and header.end_timestamp < 1 << 62:
        end = min(end, queue.first_stored_at_or_after(header.end_timestamp + 1))
    for offset in range(end - 1, begin - 1, -1):
        place = queue.locate(offset)
        if place is not None:
            yield place
