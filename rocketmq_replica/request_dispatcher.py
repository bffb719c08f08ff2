"""The requests that this replica answers, and their handlers.

All others are answered REQUEST_CODE_NOT_SUPPORTED: no request is accepted and then ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.handler import not_supported

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rocketmq_remoting.command import RemotingCommand
    from rocketmq_remoting.connection import RemotingConnection
    from rocketmq_remoting.handler import LaterAnswer
    from rocketmq_replica.clients.client_requests import ClientRequests
    from rocketmq_replica.clients.metadata_requests import MetadataRequests, TopicRequests
    from rocketmq_replica.clients.read_requests import PullRequests, ReadRequests
    from rocketmq_replica.clients.send_requests import RetryRequests, SendRequests
    from rocketmq_replica.clients.statistics_requests import StatisticsRequests
    from rocketmq_replica.controller.operator_requests import OperatorRequests, SignatureCheck


_SENDS = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})


class RequestDispatcher:
    """The RemotingHandler of the broker port."""

    def __init__(  # noqa: PLR0913 (one argument a module of handlers)
        self,
        *,
        sends: SendRequests,
        retries: RetryRequests,
        pulls: PullRequests,
        reads: ReadRequests,
        clients: ClientRequests,
        topics: TopicRequests,
        metadata: MetadataRequests,
        statistics: StatisticsRequests,
        operators: OperatorRequests,
        signatures: SignatureCheck,
    ) -> None:
        """Register every handler under its code."""
        self._sends = sends
        self._clients = clients
        self._signatures = signatures
        self._handlers: dict[
            int, Callable[[RemotingCommand], RemotingCommand | LaterAnswer | Awaitable[RemotingCommand]]
        ] = {
            RequestCode.PULL_MESSAGE: pulls.pull,
            RequestCode.LITE_PULL_MESSAGE: pulls.pull,
            RequestCode.QUERY_MESSAGE: reads.query,
            RequestCode.QUERY_CONSUMER_OFFSET: clients.query_consumer_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: clients.update_consumer_offset,
            RequestCode.UPDATE_AND_CREATE_TOPIC: topics.create,
            RequestCode.DELETE_TOPIC_IN_BROKER: topics.delete,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: clients.search_offset,
            RequestCode.GET_MAX_OFFSET: clients.max_offset,
            RequestCode.GET_MIN_OFFSET: clients.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: reads.earliest_store_time,
            RequestCode.VIEW_MESSAGE_BY_ID: reads.view_message,
            RequestCode.CONSUMER_SEND_MSG_BACK: retries.send_back,
            RequestCode.LOCK_BATCH_MQ: clients.lock_queues,
            RequestCode.UNLOCK_BATCH_MQ: clients.unlock_queues,
            RequestCode.UNREGISTER_CLIENT: clients.unregister_client,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: clients.consumer_list,
            RequestCode.GET_ALL_TOPIC_CONFIG: metadata.all_topics,
            RequestCode.UPDATE_BROKER_CONFIG: operators.update_configuration,
            RequestCode.GET_BROKER_CONFIG: operators.configuration,
            RequestCode.GET_BROKER_RUNTIME_INFO: operators.runtime_info,
            RequestCode.GET_TOPIC_STATS_INFO: statistics.topic_stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: statistics.topic_readers,
            RequestCode.GET_ALL_CONSUMER_OFFSET: metadata.all_consumer_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: metadata.all_delay_offsets,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: metadata.create_subscription_group,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: metadata.all_subscription_groups,
            RequestCode.GET_TOPIC_CONFIG: metadata.topic,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: metadata.subscription_group,
            RequestCode.EXCHANGE_BROKER_HA_INFO: operators.exchange_ha_info,
            RequestCode.GET_BROKER_HA_STATUS: operators.ha_status,
            RequestCode.GET_BROKER_EPOCH_CACHE: operators.epoch_cache,
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED: operators.role_changed,
        }

    @property
    def codes(self) -> frozenset[int]:
        """Every supported request code."""
        return _SENDS | {RequestCode.HEART_BEAT} | self._handlers.keys()

    def handle(
        self, request: RemotingCommand, connection: RemotingConnection
    ) -> RemotingCommand | LaterAnswer | Awaitable[RemotingCommand]:
        """Answer now, or later."""
        if request.code in _SENDS:
            return self._sends.send(request, connection)
        if request.code == RequestCode.HEART_BEAT:
            return self._signatures.refusal(request, connection) or self._clients.client_heartbeat(request, connection)
        handler = self._handlers.get(request.code)
        if handler is None:
            return not_supported(request)
        return self._signatures.refusal(request, connection) or handler(request)

    def connection_opened(self, connection: RemotingConnection) -> None:
        """Nothing is kept per connection."""

    def connection_closed(self, connection: RemotingConnection) -> None:
        """Remove the consumers of this connection."""
        self._clients.connection_closed(connection)
