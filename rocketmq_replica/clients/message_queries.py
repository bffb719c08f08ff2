"""QUERY_MESSAGE (12): messages of a topic by key, for tools.

There is no index of keys: the topic's queues are read from the newest message back, within the time asked for, a few hundred
messages at a time so that sends do not wait. A query that would read too much is refused and says how to ask for less.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rocketmq_remoting.client_protocol import QueryMessageRequestHeader, QueryMessageResponseHeader
from rocketmq_remoting.codes import ResponseCode
from rocketmq_remoting.message_record import MessageRecordError, decode_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_replica.log.consume_queues import ConsumeQueue
    from rocketmq_replica.term.broker import Broker

MOST_READ = 200_000
"""Messages that one query may read."""
_AT_ONCE = 200
_MOST_FOUND = 64
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"


class MessageQueries:
    """The handler of 12."""

    def __init__(self, broker: Broker) -> None:
        """Keep what it reads."""
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
        """Where the topic's confirmed messages of that time stand, of each queue from the newest back."""
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
