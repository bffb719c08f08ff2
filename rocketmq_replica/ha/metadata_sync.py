"""A slave's copy of the master's tables: consumers' offsets, topics, consumer groups, delay offsets.

Pulled from the master every few seconds, as in Java (requests 43, 21, 201 and 45). After a failover consumers continue at the last
copy: a few seconds of messages may come twice, none is skipped. Offsets committed at this slave are reported to the master (15).
Topics that the master does not list are dropped; those with messages in the log return when this replica becomes master, unless
the master listed them as deleted. A Python master also sends where the queues ended whose messages it has deleted, since the log of
a rebuilt slave begins after them: once for each master and beginning of the log, because there may be many thousand. So a slave
with an empty log copies the tables before its first link: it may be elected soon after.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from rocketmq_remoting.client_protocol import UpdateConsumerOffsetRequestHeader
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.errors import BodyError, RemotingError
from rocketmq_remoting.serialization import load_json
from rocketmq_replica.broker import Broker, Role, wall_clock_ms
from rocketmq_replica.configuration import signed
from rocketmq_replica.log.side_files import WITH_QUEUE_OFFSETS, deletions_in, queue_offsets_in
from rocketmq_replica.topics import topics_from_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocketmq_remoting.client import RemotingClient
    from rocketmq_replica.role_change import MasterSeen
    from rocketmq_replica.tables import Metadata

logger = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 2.0
_ATTEMPTS = 3
_MOST_REPORTED = 1000
"""Offsets reported to the master in one round."""
_NOT_NOW = (ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY)
"""Codes of a process that is not master again yet."""


class MetadataSync:
    """Copies the tables while this replica is a slave."""

    def __init__(
        self, broker: Broker, metadata: Metadata, client: RemotingClient, *, period_seconds: float = 5.0
    ) -> None:
        self._broker = broker
        self._metadata = metadata
        self._period_seconds = period_seconds
        self._client = client
        # The master that sent the queue offsets last, and where this log began when they were requested.
        self._queue_offsets_of: tuple[MasterSeen, int] | None = None

    async def run(self) -> None:
        """Copy regularly until cancelled."""
        while True:
            if self._broker.role is Role.SLAVE:
                await self.copy()
            await asyncio.sleep(self._period_seconds)

    async def copy_before_first_link(self) -> None:
        """Copy the tables with the queue offsets, once for each master. Return also after a few attempts without an answer."""
        for _ in range(_ATTEMPTS):
            if self._queue_offsets_of == self._beginning():
                return
            await self.copy()

    def _beginning(self) -> tuple[MasterSeen, int]:
        return self._broker.master, self._broker.store.log.min_offset

    async def copy(self) -> None:
        """Copy each table once. A table that fails is left for the next round."""
        takers: dict[RequestCode, Callable[[dict[str, Any]], None]] = {
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._take_offsets,
            RequestCode.GET_ALL_TOPIC_CONFIG: self._take_topics,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._metadata.groups.replace_all,
            RequestCode.GET_ALL_DELAY_OFFSET: self._metadata.delay_offsets.replace,
        }
        master = self._broker.master
        beginning = self._beginning()
        for code, take in takers.items():
            try:
                document = await self._ask(master.address, code, self._fields(code, beginning))
                if self._broker.role is not Role.SLAVE or self._broker.master != master:
                    return  # the role changed during the request: the answer is no longer the master's
                if isinstance(document, dict):
                    take(document)
                    if code == RequestCode.GET_ALL_TOPIC_CONFIG:
                        self._queue_offsets_of = beginning
                    if code == RequestCode.GET_ALL_CONSUMER_OFFSET:
                        await self._report_offsets(master)
            except RemotingError as error:
                logger.debug("metadata of %s: %s", master.address, error)
                return
            except (BodyError, ValueError, KeyError, TypeError, AttributeError, OSError) as error:
                logger.warning(
                    "metadata of %s: %s: unusable answer, or not saved: %r", master.address, code.name, error
                )

    def _fields(self, code: RequestCode, beginning: tuple[MasterSeen, int]) -> dict[str, str]:
        wants = code == RequestCode.GET_ALL_TOPIC_CONFIG and beginning != self._queue_offsets_of
        return {WITH_QUEUE_OFFSETS: "true"} if wants else {}

    def _take_offsets(self, document: dict[str, Any]) -> None:
        if document.get("offsetTable"):
            self._metadata.offsets.replace_all(document["offsetTable"])

    async def _report_offsets(self, master: MasterSeen) -> None:
        """Report offsets committed at this slave to the master, each once unless the master cannot take it now."""
        offsets, credentials = self._metadata.offsets, self._broker.configuration.credentials
        for one in offsets.taken()[:_MOST_REPORTED]:
            fields = UpdateConsumerOffsetRequestHeader(
                consumer_group=one.group,
                topic=one.topic,
                queue_id=one.queue_id,
                commit_offset=one.offset,
                only_forward=True,
            )
            report = signed(request(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=fields.encode()), credentials)
            answer = await self._client.invoke(master.address, report, timeout_seconds=_TIMEOUT_SECONDS)
            if self._broker.role is not Role.SLAVE or self._broker.master != master:
                return
            if answer.code != ResponseCode.SUCCESS:
                logger.warning("%s: not taken by %s: code %d, %s", one, master.address, answer.code, answer.remark)
            if answer.code in _NOT_NOW:
                offsets.report_last(one)
                return
            offsets.reported(one)

    def _take_topics(self, document: dict[str, Any]) -> None:
        """Take deletions, then topics: without its deletion, a topic that is no longer listed would be found in the log again.

        Our own mark stays until the master lists that topic: a Java master lists no marks, and one elected before it copied the
        deletion serves the topic with all messages. It also stays if the master's log begins above the mark: that master has none
        of these messages, and may have dropped the mark.
        """
        topics, begins_at = topics_from_json(document), int(document.get("logBeginsAt", 0))
        queue_offsets = queue_offsets_in(document)
        store, listed = self._broker.store, {topic.name for topic in topics}
        own = {
            name: mark
            for name, mark in store.deleted_topics.items()
            if name not in listed or mark.end_offset <= begins_at
        }
        store.take_deleted_topics(own | deletions_in(document))
        store.take_queue_offsets(queue_offsets)
        self._broker.topics.replace_all(topics, now_ms=wall_clock_ms())
        self._metadata.offsets.forget_topics(store.deleted_topics.keys() - listed)

    async def _ask(self, address: str, code: RequestCode, fields: dict[str, str]) -> object:
        question = signed(request(code, ext_fields=fields or None), self._broker.configuration.credentials)
        answer = await self._client.invoke(address, question, timeout_seconds=_TIMEOUT_SECONDS)
        if answer.code != ResponseCode.SUCCESS:
            raise ValueError(f"{code.name}: code {answer.code}, {answer.remark}")
        return load_json(answer.body or b"{}")
