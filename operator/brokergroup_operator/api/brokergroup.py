"""BrokerGroup: one brokerName, one master and its slaves.

The source of `crds/brokergroup.dev_brokergroups.yaml`, with the structs of `failover_fields.py`, `network_fields.py`,
`pod_fields.py`, `storage_fields.py` and `update_fields.py`. A field's default, bound, description and rules stand beside it, a
struct's rules across fields below them (`RULES`). The docstrings of structs are the CRD's descriptions. An absent optional value
is None, and is omitted on the wire.
"""

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct, field

from brokergroup_operator.api import bounds
from brokergroup_operator.api.backup_fields import BootstrapSpec
from brokergroup_operator.api.bounds import HostAndPort
from brokergroup_operator.api.brokergroup_status import BrokerGroupStatus, Durability
from brokergroup_operator.api.failover_fields import (
    FailoverSpec,
    ReplicationSpec,
)
from brokergroup_operator.api.names import API_VERSION, BROKER_GROUP_KIND
from brokergroup_operator.api.network_fields import NetworkSpec
from brokergroup_operator.api.pod_fields import (
    AntiAffinitySpec,
    ImagePullPolicy,
    JvmSpec,
    LocalReference,
    MonitoringSpec,
    PodTemplateSpec,
    ResourceRequirements,
)
from brokergroup_operator.api.proxy_fields import LocalProxySpec
from brokergroup_operator.api.rules import (
    CONFIG_RULES,
    RUNS_WITH_A_CONTROLLER,
    Rule,
    immutable,
    immutable_optional,
    meta_of_time_zone,
    validations,
)
from brokergroup_operator.api.storage_fields import StorageSpec
from brokergroup_operator.api.tls_fields import TlsSpec
from brokergroup_operator.api.update_fields import UpdateStrategySpec


class Implementation(StrEnum):
    """What runs in the pods."""

    JAVA = "Java"
    PYTHON = "Python"


class Signature(StrEnum):
    """What requests of a group's brokers must carry (docs/concepts/security.md)."""

    DISABLED = "Disabled"
    ACCEPTED = "Accepted"
    REQUIRED = "Required"


class SecuritySpec(Struct, frozen=True, rename="camel", kw_only=True):
    """How the operator recognizes requests of the group's brokers, beside the address of their pod
    (docs/concepts/security.md).
    """

    signature: Annotated[
        Signature,
        Meta(
            description="Disabled: signatures are not checked. Accepted: a valid signature identifies a broker of the group,"
            " an invalid one is rejected, and a request without one is judged by the pod's address. Required: a"
            " request without a valid signature is rejected. To switch it on, set credentialsSecretRef, restart"
            " the pods, then set Required."
        ),
    ] = Signature.ACCEPTED
    credentials_secret_ref: Annotated[
        LocalReference | None,
        Meta(
            description="Secret in the same namespace with the keys accessKey and secretKey, with which brokers sign their"
            " requests (RocketMQ's innerClientAuthenticationCredentials). Printable ASCII without double quotes,"
            " backslashes and dollar signs. The operator needs the right to get it (chart:"
            " security.groupSecretNames). The operator reads a changed Secret within a minute, a broker at its"
            " next restart. So to change the key: set signature to Disabled, change the Secret, restart the pods"
            " one by one, and set signature back. Brokers that check users (ACL) keep the former secretKey: there the"
            " key can't be changed. Absent: requests are not signed."
        ),
    ] = None
    certificate_secret_ref: Annotated[
        LocalReference | None,
        Meta(
            description="Secret in the same namespace with the keys tls.crt and tls.key (PEM, the key as PKCS#8 without a"
            " password). The certificate is for the name <group>.<namespace> (CN or SAN). Brokers, and the fences"
            " beside Java brokers, then connect to the operator over TLS and present it. Needed if the operator"
            " runs with --tls-client-certificates required. It is mounted at /etc/brokergroup/certificate, and a"
            " pod does not start before the Secret exists. A fence reads a changed Secret within minutes, a broker"
            " at its next restart: beside tls a user restarts it, else the operator does so before the end of a Java broker's"
            " certificate. Absent: no certificate."
        ),
    ] = None

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.signature != 'Required' || has(self.credentialsSecretRef)",
            "signature Required needs credentialsSecretRef: without it no broker could sign",
            field_path=".credentialsSecretRef",
            reason="FieldValueRequired",
        ),
    )

    @property
    def credentials_secret_name(self) -> str | None:
        """The name of the Secret, if one is referred to."""
        return self.credentials_secret_ref.name if self.credentials_secret_ref else None

    @property
    def certificate_secret_name(self) -> str | None:
        """The name of the Secret, if one is referred to."""
        return self.certificate_secret_ref.name if self.certificate_secret_ref else None


class ConfigSource(Struct, frozen=True, rename="camel", kw_only=True):
    """One source of further keys of broker.conf."""

    config_map_ref: Annotated[
        LocalReference,
        Meta(description="ConfigMap in the same namespace: each key of its data is a key of broker.conf."),
    ]


class MaintenanceSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """Switches for maintenance. A GitOps manifest that leaves a switch out does not reset what kubectl set."""

    paused: Annotated[
        bool,
        Meta(
            description="True: the operator leaves the group's pods, claims and configuration alone: a lost pod is not made"
            " again, a changed spec is not rolled out, and operations that stop pods are refused. Failovers,"
            " switchovers and the group's deletion go on. False: what was left undone is done."
        ),
    ] = False
    hibernated: Annotated[
        bool,
        Meta(
            description="True: all pods are stopped, the master first, and no message can be sent or consumed."
            " Claims, broker ids and the record stay; set to false, the pods start again with their data."
        ),
    ] = False
    stopped_brokers: Annotated[
        list[bounds.BrokerId],
        Meta(
            max_length=bounds.MAX_KNOWN_REPLICAS,
            description="Broker ids of members whose broker is stopped while pod and volumes stay, so that their disks can be"
            " looked at (kubectl exec). A master hands over first. A member is stopped only if the others acknowledge writes"
            " without it, and while FailoverSafe is True unless nothing rests on it; condition Stalled says what is in the"
            " way. It stays stopped through restarts of container, pod and node. Its pod is not updated, and no rolling"
            " update stops another member. Without its id here the broker starts again, as a slave."
            " Needs failover.isolation.enabled.",
            extra_json_schema=bounds.SET_LIST,
        ),
    ] = []


class DisruptionBudgetSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """Whether an eviction, as by kubectl drain, takes one member at a time."""

    enabled: Annotated[
        bool,
        Meta(
            description="True: PodDisruptionBudgets allow the eviction of one slave while FailoverSafe is True; the master's"
            " pod is evicted after another member has become master. To move the master off a node that is drained,"
            " the operator needs the right to read nodes (chart: rbac.readNodes, on by default). False: no"
            " PodDisruptionBudget, any eviction is allowed."
        ),
    ] = True


class SloSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """The availability objective (SLO) that reports and alerts compare the group with (docs/tasks/sla.md). It changes
    nothing about how the group runs.
    """

    availability_percent: Annotated[
        Annotated[str, Meta(min_length=2, max_length=8, pattern=r"^[1-9][0-9](\.[0-9]{1,5})?$")] | None,
        Meta(
            description="Share of the time in which the group accepts writes, in percent and in quotes: '99.95'. Absent: the"
            " group has no objective of its own."
        ),
    ] = None
    window: Annotated[
        # What each of them means is `sla_reports.measures.objectives.BudgetWindow`'s.
        Literal["7d", "28d", "30d", "90d", "1w", "1M", "1Q", "1Y"],
        Meta(
            description="Time over which availabilityPercent is measured. 7d, 28d, 30d, 90d: the last days. 1w, 1M, 1Q, 1Y:"
            " the calendar's week, month, quarter or year."
        ),
    ] = "30d"
    time_zone: Annotated[
        str,
        meta_of_time_zone(
            "Time zone in which the calendar's week, month, quarter or year begins, such as Asia/Shanghai."
        ),
    ] = "UTC"


class BrokerGroupSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """The desired state of the group."""

    broker_cluster_name: Annotated[
        bounds.BrokerNameText,
        Meta(
            description="RocketMQ's brokerClusterName. Immutable: it is written on the disks.",
            extra_json_schema=validations(
                immutable("brokerClusterName is immutable: it is written on the disks of the group")
            ),
        ),
    ] = "DefaultCluster"
    broker_name: Annotated[
        bounds.BrokerNameText | None,
        Meta(
            description="RocketMQ's brokerName. Absent: metadata.name. Immutable: it is written on the disks. It must be"
            " unique among the groups that register at one NameServer, and among those of one brokerClusterName in"
            " a namespace: clients take two groups of one name for one broker. The later group gets no pods until"
            " the name is free (condition Stalled, reason BrokerNameTaken)."
        ),
    ] = None
    replicas: Annotated[
        int,
        Meta(
            ge=1,
            le=bounds.MAX_REPLICAS,
            description="Number of brokers: one master, the others slaves. A lower number removes one member after another,"
            " each while FailoverSafe is True.",
        ),
    ] = 3
    implementation: Annotated[
        Implementation,
        Meta(
            description="Java: Apache RocketMQ's broker, for production. Python: this project's own, small, with fewer"
            " features (docs/concepts/replica-or-java.md). Immutable.",
            extra_json_schema=validations(
                # An object that was stored as v1alpha1 is written once under its implementation's new name (api/conversion.py).
                Rule(
                    "self == oldSelf || (self == 'Java' && oldSelf == 'rocketmq') || (self == 'Python' && oldSelf == 'replica')",
                    "implementation is immutable: a group's disks stay with the broker that wrote them",
                )
            ),
        ),
    ] = Implementation.JAVA
    version: Annotated[
        bounds.VersionText | None,
        Meta(
            description="RocketMQ version, such as 5.3.2; a change is a rolling update. Excludes image. Absent: the"
            " operator's default (chart: brokers.version).",
            extra_json_schema=validations(
                Rule(
                    RUNS_WITH_A_CONTROLLER,
                    "version must be 5.1.1 or later, and not 5.1.2: earlier brokers have no persistent broker id, and 5.1.2"
                    " does not start in controller mode",
                )
            ),
        ),
    ] = None
    image: Annotated[
        bounds.ImageText | None,
        Meta(description="Container image of the broker, instead of version. Absent: the image of version."),
    ] = None
    image_pull_policy: Annotated[
        ImagePullPolicy,
        Meta(
            description="When the kubelet pulls the image, as in a container of a PodSpec. Use Always with a tag that moves."
        ),
    ] = ImagePullPolicy.IF_NOT_PRESENT
    image_pull_secrets: Annotated[
        list[LocalReference],
        Meta(
            max_length=16,
            description="Secrets in the same namespace for the registry, as in a PodSpec.",
            extra_json_schema=bounds.map_list("name"),
        ),
    ] = []
    name_servers: Annotated[
        list[HostAndPort],
        Meta(
            max_length=16,
            description="NameServers at which the brokers register, as host:port, such as rocketmq-nameserver:9876; an IPv6"
            " address in brackets: [fd00::10]:9876. Required with implementation Java. In the template of a"
            " RocketMQCluster it stays empty: its groups use the cluster's own.",
            extra_json_schema=bounds.SET_LIST,
        ),
    ] = []
    durability: Annotated[
        Durability | None,
        Meta(
            description="What an acknowledgement promises. Strict: it survives the loss of any one disk, and writes wait for two"
            " members. Available: as long as one member in sync is left, writes go on. Fast: the master alone acknowledges. Absent:"
            " the operator writes it here when it first sees the group, Strict for 3 voting replicas (those that are no learners)"
            " or more, Available for fewer. A change of replicas leaves it as it is, and so does a manifest without it."
        ),
    ] = None
    replication: ReplicationSpec = ReplicationSpec()
    failover: FailoverSpec = FailoverSpec()
    security: SecuritySpec = SecuritySpec()
    tls: Annotated[
        TlsSpec | None,
        Meta(
            description="TLS of the brokers' ports and of all that they connect to (Java): their NameServers must accept it, and"
            " the operator must serve it (chart: security.tls). In the template of a RocketMQCluster it stays empty: spec.tls of"
            " the cluster covers its groups. Absent: RocketMQ's defaults."
        ),
    ] = None
    storage: StorageSpec = StorageSpec()
    bootstrap: Annotated[
        BootstrapSpec | None,
        Meta(
            description="How a new group begins. Absent: with empty disks. It can be neither added, changed nor removed later"
            " (docs/tasks/backup.md)."
        ),
    ] = None
    config: Annotated[
        dict[str, bounds.ConfigValue],
        Meta(
            max_length=bounds.MAX_CONFIG_ENTRIES,
            description="Further keys of broker.conf, each value in quotes: {transactionTimeOut: '6000'}. A key that the"
            " operator sets is rejected, with the field to use instead. Some keys reach running brokers, any other"
            " change is a rolling update (docs/concepts/life.md).",
            extra_json_schema=validations(*CONFIG_RULES),
        ),
    ] = {}
    config_from: Annotated[
        list[ConfigSource],
        Meta(
            max_length=8,
            description="Further keys of broker.conf from ConfigMaps. A later one overrides an earlier one, and spec.config"
            " overrides all. A key that the operator sets, or a missing ConfigMap, is shown by condition Stalled."
            " A change of a ConfigMap is noticed within half a minute and applied like one of spec.config.",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ] = []
    local_proxy: Annotated[
        LocalProxySpec | None,
        Meta(
            description="If set ({} is enough), each Java broker runs RocketMQ's Proxy in its process (local mode), at port 8081"
            " for clients of the gRPC protocol. Clients connect to the Service <group>-master, and the Proxy's route sends them to"
            " the masters' pods (docs/tasks/clusters.md). A change is a rolling update, and so is one of nameServers. If"
            " spec.config switches an ACL on, localProxy.config must do so too: a Proxy does not read the broker's ACL. Absent: no"
            " such Proxy."
        ),
    ] = None
    resources: ResourceRequirements = ResourceRequirements()
    jvm: JvmSpec = JvmSpec()
    network: NetworkSpec = NetworkSpec()
    monitoring: MonitoringSpec = MonitoringSpec()
    anti_affinity: AntiAffinitySpec = AntiAffinitySpec()
    pod_template: PodTemplateSpec = PodTemplateSpec()
    update_strategy: UpdateStrategySpec = UpdateStrategySpec()
    disruption_budget: DisruptionBudgetSpec = DisruptionBudgetSpec()
    maintenance: MaintenanceSpec = MaintenanceSpec()
    slo: SloSpec = SloSpec()
    termination_grace_period_seconds: Annotated[
        int,
        Meta(ge=1, le=3600, description="Seconds from SIGTERM until the kubelet kills the broker, as in a PodSpec."),
    ] = 60

    RULES: ClassVar[tuple[Rule, ...]] = (
        immutable_optional("brokerName", "brokerName is immutable: it is written on the disks of the group"),
        immutable_optional("bootstrap", "bootstrap can be neither added, changed nor removed: a group begins once"),
        Rule(
            "!has(self.bootstrap) || !has(self.storage.ephemeral)",
            "bootstrap contradicts storage.ephemeral: a restored log needs a claim",
            field_path=".bootstrap",
        ),
        Rule(
            "!has(self.durability) || self.durability != 'Strict' || self.replicas >= 2",
            "durability Strict needs replicas >= 2: it acknowledges a message only when two members have it;"
            " for one replica set durability: Available",
            field_path=".replicas",
        ),
        Rule(
            "self.replication.learners < self.replicas",
            "replication.learners must be below replicas: one member has to be master, and a learner never is",
            field_path=".replication.learners",
        ),
        Rule(
            "!has(self.durability) || self.durability != 'Strict' || self.replication.learners == 0 ||"
            " self.replicas - self.replication.learners >= 2",
            "durability Strict needs 2 replicas that are no learners: it acknowledges a message only when two members have it,"
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
            " it acknowledges a message only when two members have it",
            field_path=".replication.minInSyncReplicas",
        ),
        Rule(
            "!has(self.replication.slaveNotCatchUpSeconds) || !('haMaxTimeSlaveNotCatchup' in self.config)",
            "replication.slaveNotCatchUpSeconds and config.haMaxTimeSlaveNotCatchup say the same: give one of them",
            field_path=".replication.slaveNotCatchUpSeconds",
        ),
        Rule(
            "!self.monitoring.exporter || self.implementation == 'Java'",
            "monitoring.exporter needs implementation Java: the Python replica serves no metrics of its own",
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
        *LocalProxySpec.RULES_OF_GROUP,
        *TlsSpec.RULES_OF_GROUP,
        Rule(
            "self.network.addressing != 'HostNetwork' || (self.antiAffinity.type == 'Required'"
            " && self.antiAffinity.topologyKey == 'kubernetes.io/hostname')",
            "network.addressing HostNetwork needs antiAffinity.type Required and topologyKey kubernetes.io/hostname:"
            " two members on one node would want the same ports",
            field_path=".antiAffinity.type",
        ),
        Rule(
            "self.network.addressing != 'HostNetwork' ||"
            " (self.security.signature == 'Required' && has(self.security.credentialsSecretRef))",
            "network.addressing HostNetwork needs security.signature Required and security.credentialsSecretRef:"
            " whatever runs on the node has the member's address, and only a signature tells them apart",
            field_path=".security.signature",
        ),
        Rule(
            "!self.maintenance.hibernated || !has(self.storage.ephemeral)",
            "maintenance.hibernated contradicts storage.ephemeral: without pods nothing would be left to wake",
            field_path=".maintenance.hibernated",
        ),
        Rule("!has(self.version) || !has(self.image)", "version and image exclude each other", field_path=".image"),
        Rule(
            "!has(self.version) || self.implementation == 'Java'",
            "version is of RocketMQ and needs implementation Java: the Python replica comes with the operator;"
            " image names another one",
            field_path=".version",
        ),
    )


class BrokerGroup(Struct, frozen=True, rename="camel", kw_only=True):
    """A RocketMQ broker group: brokers that replicate one log, and one of them the master."""

    api_version: str = API_VERSION
    kind: str = BROKER_GROUP_KIND
    metadata: bounds.JsonObject = field(default_factory=dict)
    spec: Annotated[
        BrokerGroupSpec,
        # Here and not among BrokerGroupSpec's: a RocketMQCluster's template has none, the cluster sets them in its groups.
        Meta(
            extra_json_schema=validations(
                Rule(
                    "self.implementation != 'Java' || size(self.nameServers) > 0",
                    "nameServers must name a NameServer with implementation Java: a Java broker registers nowhere else, and no"
                    " client finds it",
                    field_path=".nameServers",
                    reason="FieldValueRequired",
                )
            )
        ),
    ]
    status: BrokerGroupStatus | None = None
