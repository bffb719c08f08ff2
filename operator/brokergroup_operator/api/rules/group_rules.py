"""Rules of BrokerGroup.spec as a whole: what of its parts contradicts what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api.brokergroup import BrokerGroupSpec
from brokergroup_operator.api.fields.time_zones import EXPECTED, TIME_ZONES
from brokergroup_operator.api.rules.reserved_keys import RESERVED_CONFIG_KEYS
from brokergroup_operator.api.rules.rule import Rule, immutable, immutable_optional

if TYPE_CHECKING:
    from msgspec import Struct


# On a whole object, by its type.
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
            "!self.monitoring.canary.enabled || size(self.nameServers) > 0",
            "monitoring.canary.enabled needs nameServers: the canary finds the master by them, as clients do",
            field_path=".monitoring.canary.enabled",
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
}

# Of a version: 5.1.0 and before have no persistent broker ids, and a pod that came back would be another broker.
HAS_BROKER_IDS: Final = "!self.matches('^0*([0-4][.]|5[.]0+[.]|5[.]0*1[.]0+([^0-9]|$))')"
# Of spec.config, wherever it stands.
CONFIG_RULES: Final = (
    # A key is a Java property name; a line break in it would smuggle in another key.
    Rule("self.all(key, key.matches('^[A-Za-z][A-Za-z0-9_.-]{0,127}$'))", "config keys must be Java property names"),
    *(
        Rule(f"!('{key}' in self)", f"config.{key} is set by the operator: {instead}", reason="FieldValueForbidden")
        for key, instead in RESERVED_CONFIG_KEYS.items()
    ),
)

# On a single field, by its object's type and its name on the wire.
FIELD_RULES: Final[dict[tuple[str, str], tuple[Rule, ...]]] = {
    ("BrokerGroupSpec", "brokerClusterName"): (
        immutable("brokerClusterName is immutable: it is written on the disks of the group"),
    ),
    ("BrokerGroupSpec", "implementation"): (
        immutable("implementation is immutable: a group's disks stay with the broker that wrote them"),
    ),
    ("BrokerGroupSpec", "version"): (
        Rule(
            HAS_BROKER_IDS,
            "version must be 5.1.1 or later: earlier brokers have no persistent broker id",
        ),
    ),
    ("BrokerGroupSpec", "config"): CONFIG_RULES,
    ("SloSpec", "timeZone"): (
        Rule(
            f"self in [{', '.join(repr(one) for one in TIME_ZONES)}]",
            f"timeZone is no time zone: {EXPECTED}",
        ),
    ),
}
