"""Reading single messages: by their place (33), by key (12), and the oldest one's time (32)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketmq_remoting.client_protocol import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    ViewMessageRequestHeader,
)
from rocketmq_remoting.codes import ResponseCode
from rocketmq_remoting.message_record import BLANK_HEADER_BYTES, MessageRecordError
from rocketmq_replica.clients.message_queries import MessageQueries

if TYPE_CHECKING:
    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_replica.term.broker import Broker


class ReadRequests:
    """Handlers by the name of their request."""

    def __init__(self, broker: Broker) -> None:
        """Keep what they read."""
        self._broker = broker
        self.query = MessageQueries(broker).query

    def view_message(self, request: RemotingCommand) -> RemotingCommand:
        """33: only what is confirmed is shown, as to consumers."""
        offset = ViewMessageRequestHeader.decode(request.ext_fields).offset
        store = self._broker.store
        if offset is None or not store.log.min_offset <= offset < store.confirm_offset:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark=f"can not find message by the offset, {offset}")
        try:
            size = int.from_bytes(store.log.read(offset, BLANK_HEADER_BYTES)[:4], "big")
            record = store.read_record(offset, size)
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
