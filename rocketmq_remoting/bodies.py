"""Every typed body in one place; they live in one module per part of the system they come from."""

from __future__ import annotations

from rocketmq_remoting.broker_bodies import (
    OPEN_END_OFFSET,
    BrokerRuntimeInfoBody,
    ConsumerData,
    ConsumerListBody,
    EpochCacheBody,
    EpochEntry,
    HAClientRuntimeInfo,
    HAConnectionRuntimeInfo,
    HARuntimeInfoBody,
    HeartbeatDataBody,
    ProducerData,
    SubscriptionData,
)
from rocketmq_remoting.controller_bodies import (
    BrokerMemberGroup,
    BrokerReplicasInfoBody,
    ElectMasterResponseBody,
    ReplicaIdentity,
    ReplicasInfo,
    SyncStateSetBody,
    decode_broker_names,
    encode_broker_names,
)
from rocketmq_remoting.nameserver_bodies import (
    BrokerData,
    BrokerMemberGroupBody,
    ClusterInfoBody,
    DataVersion,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigBody,
    TopicRouteBody,
    body_crc32,
)
from rocketmq_remoting.properties import (
    decode_properties,
    encode_properties,
)

__all__ = [
    "OPEN_END_OFFSET",
    "BrokerData",
    "BrokerMemberGroup",
    "BrokerMemberGroupBody",
    "BrokerReplicasInfoBody",
    "BrokerRuntimeInfoBody",
    "ClusterInfoBody",
    "ConsumerData",
    "ConsumerListBody",
    "DataVersion",
    "ElectMasterResponseBody",
    "EpochCacheBody",
    "EpochEntry",
    "HAClientRuntimeInfo",
    "HAConnectionRuntimeInfo",
    "HARuntimeInfoBody",
    "HeartbeatDataBody",
    "ProducerData",
    "QueueData",
    "RegisterBrokerBody",
    "ReplicaIdentity",
    "ReplicasInfo",
    "SubscriptionData",
    "SyncStateSetBody",
    "TopicConfig",
    "TopicConfigBody",
    "TopicRouteBody",
    "body_crc32",
    "decode_broker_names",
    "decode_properties",
    "encode_broker_names",
    "encode_properties",
]
