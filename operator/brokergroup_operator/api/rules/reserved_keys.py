"""Keys of broker.conf that a user may not give. A key that comes with a feature of ours is added here."""

from __future__ import annotations

from typing import Final

# Keys of broker.conf that belong to the operator, and what a user writes instead.
RESERVED_CONFIG_KEYS: Final = {
    "allAckInSyncStateSet": "use spec.durability",
    "asyncLearner": "use spec.replication.learners",
    "bindAddress": "the operator sets where a broker listens",
    "listenAddress": "the operator sets where a broker listens",
    "brokerClusterName": "use spec.brokerClusterName",
    "brokerHeartbeatInterval": "use spec.failover.heartbeatIntervalMilliseconds",
    "brokerIP1": "use spec.network.addressing",
    "brokerIP2": "use spec.network.addressing",
    "brokerId": "the controller assigns the broker id",
    "brokerName": "use spec.brokerName",
    "brokerRole": "the controller assigns the role",
    "controllerAddr": "the operator is the controller",
    "controllerHeartBeatTimeoutMills": "use spec.failover.heartbeatTimeoutMilliseconds",
    "enableControllerMode": "the operator is the controller",
    "enableDLegerCommitLog": "DLedger logs are not supported",
    "enableElectUncleanMaster": "use spec.failover.uncleanElection",
    "enableSlaveActingMaster": "the controller elects masters",
    "fetchControllerAddrByDnsLookup": "the operator is the controller",
    "fetchNamesrvAddrByAddressServer": "use spec.nameServers",
    "haListenPort": "use spec.network.haPort",
    "inSyncReplicas": "use spec.durability, and spec.replication.inSyncReplicas",
    "innerClientAuthenticationCredentials": "use spec.security.credentialsSecretName",
    "listenPort": "use spec.network.listenPort",
    "minInSyncReplicas": "use spec.durability, and spec.replication.minInSyncReplicas",
    "namesrvAddr": "use spec.nameServers",
    "rocketmqHome": "the operator sets the paths",
    "storePathBrokerIdentity": "the operator sets the paths",
    "storePathCommitLog": "the operator sets the paths",
    "storePathEpochFile": "the operator sets the paths",
    "storePathRootDir": "the operator sets the paths",
    "totalReplicas": "use spec.replicas",
}
