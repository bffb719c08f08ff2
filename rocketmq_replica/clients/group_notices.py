"""NOTIFY_CONSUMER_IDS_CHANGED (40): the consumers of a group are told that one came or left, and share the queues anew at once.

Nobody answers it, and who misses it finds out within the 20 seconds of his own rebalance. However many come and go in one turn
of the event loop, each consumer is told once per group.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from rocketmq_remoting.client_protocol import NotifyConsumerIdsChangedRequestHeader
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from rocketmq_remoting.errors import RemotingError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocketmq_remoting.connection import RemotingConnection
    from rocketmq_replica.metadata.consumer_groups import Clients

logger = logging.getLogger(__name__)

_WRITE_SECONDS = 1.0


class GroupNotices:
    """Tells the clients of groups that changed."""

    def __init__(self, clients: Clients) -> None:
        """Nothing has changed yet."""
        self._clients = clients
        self._changed: set[str] = set()
        self._telling: set[asyncio.Task[None]] = set()

    def changed(self, groups: Iterable[str]) -> None:
        """Consumers came or left; the others are told soon."""
        before = len(self._changed)
        self._changed.update(groups)
        if self._changed and not before:
            asyncio.get_running_loop().call_soon(self._tell_all)

    def _tell_all(self) -> None:
        groups, self._changed = sorted(self._changed), set()
        for group in groups:
            for connection in self._clients.connections(group):
                task = asyncio.create_task(_tell(connection, group), name=f"tell a consumer of {group}")
                self._telling.add(task)
                task.add_done_callback(self._telling.discard)


async def _tell(connection: RemotingConnection, group: str) -> None:
    header = NotifyConsumerIdsChangedRequestHeader(consumer_group=group)
    command = request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext_fields=header.encode(), oneway=True)
    try:
        await connection.send_oneway(command, timeout_seconds=_WRITE_SECONDS)
    except RemotingError as error:
        logger.debug("group %s: a consumer was not told that it changed: %s", group, error)
