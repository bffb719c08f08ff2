"""Rules of the kinds that look at more than one field, or at the previous object, as CEL.

They are part of the CRD, so the API server refuses a bad object with a message that names the field; no webhook can be
down and no certificate can expire (docs/architecture.md). Rules of BrokerGroupState are transition rules: whatever writes the
record, also a person with kubectl, cannot make an epoch fall (docs/architecture.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api.brokergroup import BrokerGroupSpec, FailoverSpec, JvmSpec, SecuritySpec
from brokergroup_operator.api.brokergroup_operation import OperationSpec, OperationType
from brokergroup_operator.api.brokergroup_state import GroupRecord
from brokergroup_operator.api.names import OWN_CONTAINERS, OWN_VOLUMES
from brokergroup_operator.api.pod_fields import NetworkSpec, TemplateSpec, Toleration
from brokergroup_operator.api.storage_fields import CommitLogStorage, StorageSpec

if TYPE_CHECKING:
    from msgspec import Struct

# Keys of broker.conf that belong to the operator, and what a user writes instead.
RESERVED_CONFIG_KEYS: Final = {
    "allAckInSyncStateSet": "use spec.durability",
    "asyncLearner": "use spec.replication.learners",
    "bindAddress": "the operator sets where a broker listens",
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


@dataclass(frozen=True)
class Rule:
    """One entry of x-kubernetes-validations. `field_path` is relative to the object the rule is attached to."""

    rule: str
    message: str
    field_path: str = ""
    reason: str = "FieldValueInvalid"


def immutable(message: str) -> Rule:
    """A rule for a field that is always present (it is required or has a default)."""
    return Rule("self == oldSelf", message)


def immutable_optional(name: str, message: str) -> Rule:
    """An optional field may neither appear, change nor vanish, so the rule sits on its parent."""
    return Rule(
        f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})",
        message,
        field_path=f".{name}",
    )


def never_falls(name: str, why: str) -> Rule:
    return Rule(f"self.{name} >= oldSelf.{name}", f"{name} never falls: {why}", field_path=f".{name}")


def claimed(name: str) -> Rule:
    """Every id of this list is held by a broker."""
    return Rule(
        f"self.{name}.all(id, self.replicas.exists(replica, replica.brokerId == id && replica.registerCheckCode != ''))",
        f"{name} may name only broker ids that a broker holds",
        field_path=f".{name}",
    )


def not_of_the_operator(field: str, own: tuple[str, ...]) -> Rule:
    """Items of these names are the operator's; a pod template adds, it doesn't change them."""
    listed = ", ".join(f"'{name}'" for name in own)
    return Rule(
        f"self.{field}.all(item, !(item.name in [{listed}]))",
        f"{field} may not name {', '.join(own)}: those are the operator's own; use the fields of spec, or another name",
        field_path=f".{field}",
        reason="FieldValueForbidden",
    )


def only_the_section_of(kind: OperationType) -> Rule:
    """A section says how an operation of its type is done: there without its type, it would be ignored; absent, guessed."""
    section = kind.value.lower()
    return Rule(
        f"(self.type == '{kind.value}') == has(self.{section})",
        f"{section} is for type {kind.value}: exactly the section of spec.type must be given",
        field_path=f".{section}",
    )


# Rules on a whole object, by its type.
OBJECT_RULES: Final[dict[type[Struct], tuple[Rule, ...]]] = {
    BrokerGroupSpec: (
        immutable_optional("brokerName", "brokerName is immutable: it is written on the disks of the group"),
        Rule(
            "!has(self.durability) || self.durability != 'Strict' || self.replicas >= 2",
            "durability Strict needs replicas >= 2: it acknowledges a message only when two disks have it",
            field_path=".replicas",
        ),
        Rule(
            "self.replication.learners < self.replicas",
            "replication.learners must be below replicas: somebody has to be master, and a learner never is",
            field_path=".replication.learners",
        ),
        Rule(
            "!has(self.durability) || self.durability != 'Strict' || self.replication.learners == 0 ||"
            " self.replicas - self.replication.learners >= 2",
            "durability Strict needs 2 replicas that are no learners: it acknowledges a message only when two disks have it,"
            " and waits for no learner",
            field_path=".replication.learners",
        ),
        Rule(
            "self.failover.uncleanElection != 'Allowed' ||"
            " (has(self.durability) ? self.durability != 'Strict' : self.replicas - self.replication.learners < 3)",
            "failover.uncleanElection Allowed contradicts durability Strict (the default from 3 voting replicas on):"
            " it elects a replica that may lack acknowledged messages",
            field_path=".failover.uncleanElection",
        ),
        Rule(
            "self.failover.electionPolicy != 'preferred-zone' || !has(self.durability) || self.durability != 'Fast'",
            "failover.electionPolicy preferred-zone contradicts durability Fast:"
            " what one replica acknowledged is only in the longest log",
            field_path=".failover.electionPolicy",
        ),
        Rule(
            "!has(self.replication.minInSyncReplicas) || self.replication.minInSyncReplicas <="
            " self.replicas - self.replication.learners",
            "replication.minInSyncReplicas must not exceed replicas without learners: no write would ever be taken",
            field_path=".replication.minInSyncReplicas",
        ),
        Rule(
            "!has(self.replication.minInSyncReplicas) || self.replication.minInSyncReplicas >= 2 ||"
            " (has(self.durability) ? self.durability != 'Strict' : self.replicas - self.replication.learners < 3)",
            "replication.minInSyncReplicas 1 contradicts durability Strict (the default from 3 voting replicas on):"
            " it acknowledges a message only when two disks have it",
            field_path=".replication.minInSyncReplicas",
        ),
        Rule(
            "!has(self.replication.allAckInSyncStateSet) || self.replication.allAckInSyncStateSet ||"
            " (has(self.durability) && self.durability == 'Fast')",
            "replication.allAckInSyncStateSet false needs durability Fast: Strict and Available promise that every replica in sync"
            " has what was acknowledged",
            field_path=".replication.allAckInSyncStateSet",
        ),
        Rule(
            "!has(self.replication.allAckInSyncStateSet) || !self.replication.allAckInSyncStateSet ||"
            " !has(self.replication.inSyncReplicas)",
            "replication.inSyncReplicas is not looked at while replication.allAckInSyncStateSet is true: give one of them",
            field_path=".replication.inSyncReplicas",
        ),
        Rule(
            "!has(self.replication.inSyncReplicas) || (has(self.durability) && self.durability == 'Fast')",
            "replication.inSyncReplicas needs durability Fast: Strict and Available wait for every replica that is in sync",
            field_path=".replication.inSyncReplicas",
        ),
        Rule(
            "!has(self.replication.inSyncReplicas) || (self.replication.inSyncReplicas <="
            " self.replicas - self.replication.learners &&"
            " self.replication.inSyncReplicas >="
            " (has(self.replication.minInSyncReplicas) ? self.replication.minInSyncReplicas : 1))",
            "replication.inSyncReplicas must be between replication.minInSyncReplicas and replicas without learners",
            field_path=".replication.inSyncReplicas",
        ),
        Rule(
            "!has(self.replication.slaveNotCatchUpSeconds) || !('haMaxTimeSlaveNotCatchup' in self.config)",
            "replication.slaveNotCatchUpSeconds and config.haMaxTimeSlaveNotCatchup say the same: give one of them",
            field_path=".replication.slaveNotCatchUpSeconds",
        ),
        Rule(
            "!self.monitoring.exporter || self.implementation == 'rocketmq'",
            "monitoring.exporter needs implementation rocketmq: the Python replica serves no metrics of its own",
            field_path=".monitoring.exporter",
        ),
        Rule(
            "!self.monitoring.exporter || !(self.monitoring.port in [self.network.listenPort - 2, self.network.listenPort,"
            " self.network.listenPort + 2, self.network.haPort])",
            "monitoring.port is taken by network.listenPort or network.haPort, or by what lies two beside listenPort",
            field_path=".monitoring.port",
        ),
        Rule(
            "!self.monitoring.exporter || !self.config.exists(key, key.startsWith('metricsExporter') ||"
            " key.startsWith('metricsPromExporter'))",
            "monitoring.exporter and the metrics keys of config say the same: give one of them",
            field_path=".monitoring.exporter",
        ),
        Rule(
            "self.network.addressing != 'HostNetwork' || (self.scheduling.antiAffinity == 'Required'"
            " && self.scheduling.topologyKey == 'kubernetes.io/hostname')",
            "network.addressing HostNetwork needs scheduling.antiAffinity Required and topologyKey kubernetes.io/hostname:"
            " two members on one node would want the same ports",
            field_path=".scheduling.antiAffinity",
        ),
        Rule(
            "self.network.addressing != 'HostNetwork' ||"
            " (self.security.signature == 'Required' && has(self.security.credentialsSecretName))",
            "network.addressing HostNetwork needs security.signature Required and security.credentialsSecretName:"
            " whatever runs on the node has the member's address, and only a signature tells them apart",
            field_path=".security.signature",
        ),
        Rule(
            "self.implementation != 'replica' || (self.network.addressing in ['PodIP', 'HostNetwork'])"
            " == (oldSelf.network.addressing in ['PodIP', 'HostNetwork'])",
            "network.addressing of a group of Python replicas can't change between a pod's own address (PodIP, HostNetwork) and"
            " a Service's: a master that is known by its own lets only slaves in that are too",
            field_path=".network.addressing",
        ),
        Rule(
            "!self.maintenance.hibernated || !has(self.storage.ephemeral)",
            "maintenance.hibernated contradicts storage.ephemeral: without pods nothing would be left to wake",
            field_path=".maintenance.hibernated",
        ),
        Rule("!has(self.version) || !has(self.image)", "version and image exclude each other", field_path=".image"),
        Rule(
            "!has(self.version) || self.implementation == 'rocketmq'",
            "version is of RocketMQ and needs implementation rocketmq: the Python replica comes with the operator;"
            " image names another one",
            field_path=".version",
        ),
    ),
    FailoverSpec: (
        Rule(
            "self.heartbeatTimeoutMilliseconds >= 2 * self.heartbeatIntervalMilliseconds",
            "heartbeatTimeoutMilliseconds must be at least twice heartbeatIntervalMilliseconds:"
            " one lost heartbeat is no lost broker",
            field_path=".heartbeatTimeoutMilliseconds",
        ),
        Rule(
            "!has(self.minimumHeartbeatTimeoutMilliseconds) ||"
            " self.minimumHeartbeatTimeoutMilliseconds <= self.heartbeatTimeoutMilliseconds",
            "minimumHeartbeatTimeoutMilliseconds must not exceed heartbeatTimeoutMilliseconds:"
            " it is the lower bound of the timeout, the other one the upper",
            field_path=".minimumHeartbeatTimeoutMilliseconds",
        ),
        Rule(
            "!has(self.minimumHeartbeatTimeoutMilliseconds) ||"
            " self.minimumHeartbeatTimeoutMilliseconds >= 2 * self.heartbeatIntervalMilliseconds",
            "minimumHeartbeatTimeoutMilliseconds must be at least twice heartbeatIntervalMilliseconds:"
            " one lost heartbeat is no lost broker",
            field_path=".minimumHeartbeatTimeoutMilliseconds",
        ),
        Rule(
            "!self.isolation.enabled || self.isolation.timeoutMilliseconds < self.fenceTimeoutMilliseconds +"
            " (has(self.minimumHeartbeatTimeoutMilliseconds)"
            " ? self.minimumHeartbeatTimeoutMilliseconds : self.heartbeatTimeoutMilliseconds)"
            " - self.heartbeatIntervalMilliseconds",
            "isolation.timeoutMilliseconds must be below the heartbeat timeout (the minimum one, where it is given) plus"
            " fenceTimeoutMilliseconds, less heartbeatIntervalMilliseconds: an isolated master must be dead before another"
            " is elected, which is counted from its last heartbeat",
            field_path=".isolation.timeoutMilliseconds",
        ),
        Rule(
            "!has(self.preferredMaster) ||"
            " !self.priorities.exists(entry, entry.brokerId == self.preferredMaster && entry.priority == 0)",
            "preferredMaster has priority 0 in priorities, which bars it from mastership",
            field_path=".preferredMaster",
        ),
    ),
    SecuritySpec: (
        Rule(
            "self.signature != 'Required' || has(self.credentialsSecretName)",
            "signature Required needs credentialsSecretName: without it no broker could sign",
            field_path=".credentialsSecretName",
            reason="FieldValueRequired",
        ),
    ),
    NetworkSpec: (
        Rule(
            "!(self.haPort in [self.listenPort - 2, self.listenPort, self.listenPort + 2])",
            "haPort must not be listenPort, nor the fast port two below it, nor the fence's port two above it",
            field_path=".haPort",
        ),
        Rule(
            "(self.addressing == 'NodePort') == has(self.firstNodePort)",
            "firstNodePort belongs to addressing NodePort, and to it alone: each member needs a port that is known before"
            " its broker starts",
            field_path=".firstNodePort",
            reason="FieldValueRequired",
        ),
    ),
    Toleration: (
        Rule(
            "self.operator != 'Equal' || has(self.key)",
            "a toleration with operator Equal needs a key; operator Exists without a key bears every taint",
            field_path=".key",
            reason="FieldValueRequired",
        ),
        Rule(
            "self.operator != 'Exists' || !has(self.value)",
            "a toleration with operator Exists looks at no value",
            field_path=".value",
        ),
    ),
    TemplateSpec: (
        not_of_the_operator("containers", OWN_CONTAINERS),
        not_of_the_operator("initContainers", OWN_CONTAINERS),
        not_of_the_operator("volumes", OWN_VOLUMES),
    ),
    JvmSpec: (
        Rule(
            "self.heapPercent + self.directMemoryPercent <= 90",
            "heapPercent and directMemoryPercent together must leave 10 percent of limits.memory to the JVM itself",
            field_path=".heapPercent",
        ),
    ),
    StorageSpec: (
        immutable_optional("storageClassName", "storageClassName is immutable: claims cannot change their class"),
        Rule(
            "has(self.commitLog) == has(oldSelf.commitLog)",
            "commitLog can't be added or taken away: a broker that finds its log elsewhere has lost it",
            field_path=".commitLog",
        ),
        Rule(
            "has(self.ephemeral) == has(oldSelf.ephemeral)",
            "ephemeral can't be added or taken away: every member would lose its data at once",
            field_path=".ephemeral",
        ),
        Rule(
            "!has(self.ephemeral) || !(has(self.commitLog) || has(self.storageClassName))",
            "ephemeral excludes storageClassName and commitLog: there are no claims then",
            field_path=".ephemeral",
        ),
    ),
    CommitLogStorage: (
        immutable_optional("storageClassName", "storageClassName is immutable: claims cannot change their class"),
    ),
    OperationSpec: (
        *(only_the_section_of(kind) for kind in OperationType),
        Rule(
            "!has(self.elect) || self.elect.acknowledgeDataLoss == self.brokerGroupRef.name",
            "elect.acknowledgeDataLoss must be the name of the group: who elects a replica that may lack acknowledged"
            " messages says so in person",
            field_path=".elect.acknowledgeDataLoss",
        ),
    ),
    GroupRecord: (
        never_falls("schemaVersion", "an older operator would drop what it does not know"),
        never_falls("nextBrokerId", "broker ids are never reused"),
        never_falls("masterEpoch", "brokers ignore epochs that are not above their own"),
        never_falls("syncStateSetEpoch", "brokers ignore epochs that are not above their own"),
        never_falls("uncleanElections", "each of them may have lost acknowledged messages"),
        claimed("eligible"),
        claimed("lostSeats"),
        Rule(
            "!has(self.masterBrokerId) || self.masterBrokerId in self.syncStateSet",
            "the master must be in syncStateSet",
            field_path=".masterBrokerId",
        ),
        Rule(
            "!has(self.masterBrokerId) || !has(oldSelf.masterBrokerId) ||"
            " self.masterBrokerId == oldSelf.masterBrokerId || self.masterEpoch > oldSelf.masterEpoch",
            "another master needs a higher masterEpoch",
            field_path=".masterBrokerId",
        ),
        Rule(
            "self.replicas.all(replica, replica.brokerId < self.nextBrokerId)",
            "every brokerId must be below nextBrokerId",
            field_path=".replicas",
        ),
    ),
}

# Rules on a single field, by its object's type and its name on the wire.
FIELD_RULES: Final[dict[tuple[str, str], tuple[Rule, ...]]] = {
    ("BrokerGroupSpec", "brokerClusterName"): (
        immutable("brokerClusterName is immutable: it is written on the disks of the group"),
    ),
    ("BrokerGroupSpec", "implementation"): (
        immutable("implementation is immutable: a group's disks stay with the broker that wrote them"),
    ),
    ("BrokerGroupSpec", "version"): (
        # 5.1.0 and before have no persistent broker ids: a pod that came back would be another broker.
        Rule(
            "!self.matches('^0*([0-4][.]|5[.]0+[.]|5[.]0*1[.]0+([^0-9]|$))')",
            "version must be 5.1.1 or later: earlier brokers have no persistent broker id",
        ),
    ),
    ("BrokerGroupSpec", "config"): (
        # A key is a Java property name; a line break in it would smuggle in another key.
        Rule(
            "self.all(key, key.matches('^[A-Za-z][A-Za-z0-9_.-]{0,127}$'))", "config keys must be Java property names"
        ),
        *(
            Rule(f"!('{key}' in self)", f"config.{key} is set by the operator: {instead}", reason="FieldValueForbidden")
            for key, instead in RESERVED_CONFIG_KEYS.items()
        ),
    ),
    ("BrokerGroupOperation", "spec"): (
        immutable("an operation is immutable: what else is wanted is another BrokerGroupOperation"),
    ),
    ("TemplateMetadata", "labels"): (
        Rule(
            "self.all(key, key.matches('^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$')"
            " && !key.startsWith('brokergroup.dev/') && !key.startsWith('app.kubernetes.io/'))",
            "labels must be label names, and those of brokergroup.dev/ and app.kubernetes.io/ are the operator's own",
            reason="FieldValueForbidden",
        ),
    ),
    ("TemplateMetadata", "annotations"): (
        Rule(
            "self.all(key, key.matches('^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$')"
            " && !key.startsWith('brokergroup.dev/'))",
            "annotations must be annotation names, and those of brokergroup.dev/ are the operator's own",
            reason="FieldValueForbidden",
        ),
    ),
    ("SchedulingSpec", "nodeSelector"): (
        Rule(
            "self.all(key, key.matches('^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$'))",
            "nodeSelector keys must be label names",
        ),
    ),
    ("FailoverSpec", "preferredZones"): (
        # Not as FieldValueDuplicate: of that the API server tells the value only.
        Rule("self.all(zone, self.exists_one(other, other == zone))", "preferredZones names a zone twice"),
    ),
    ("CommitLogStorage", "size"): (
        Rule("quantity(self).compareTo(quantity(oldSelf)) >= 0", "storage.commitLog.size may grow but never shrink"),
    ),
    ("StorageSpec", "size"): (
        Rule(
            "quantity(self).compareTo(quantity(oldSelf)) >= 0",
            "storage.size may grow but never shrink",
        ),
    ),
    ("GroupRecord", "clusterName"): (immutable("clusterName is immutable"),),
    ("GroupRecord", "brokerName"): (immutable("brokerName is immutable"),),
    ("ReplicaRecord", "registerCheckCode"): (
        Rule(
            "oldSelf == '' || self == oldSelf",
            "registerCheckCode never changes once set: it tells who owns the broker id",
        ),
    ),
}
