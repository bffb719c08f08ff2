"""BrokerGroup: one brokerName, one master and its slaves.

The source of `crds/brokergroup.dev_brokergroups.yaml`, with the structs of `failover_fields.py`, `network_fields.py`,
`pod_fields.py` and `storage_fields.py`. A field's default, bound, description and rules stand beside it, a struct's rules across
fields below them (`RULES`). The docstrings of structs are the CRD's descriptions. An absent optional value is None, and is
omitted on the wire.
"""

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct, field

from brokergroup_operator.api import bounds
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
from brokergroup_operator.api.rules import (
    CONFIG_RULES,
    HAS_BROKER_IDS,
    Rule,
    immutable,
    immutable_optional,
    validations,
)
from brokergroup_operator.api.storage_fields import StorageSpec
from brokergroup_operator.api.times import EXPECTED_ZONE, TIME_ZONES


class Implementation(StrEnum):
    """What runs in the pods."""

    JAVA = "Java"
    PYTHON = "Python"


class Signature(StrEnum):
    """What requests of a group's brokers must carry (docs/concepts/security.md)."""

    DISABLED = "Disabled"
    ACCEPTED = "Accepted"
    REQUIRED = "Required"


class UpdateType(StrEnum):
    """Whether the operator replaces a pod that runs something else than the spec says, or a user does."""

    ROLLING = "Rolling"
    ON_DELETE = "OnDelete"


class MasterUpdate(StrEnum):
    """How the master's turn is taken in a rolling update."""

    SWITCHOVER = "Switchover"
    RESTART = "Restart"
    SUPERVISED = "Supervised"


class SecuritySpec(Struct, frozen=True, rename="camel", kw_only=True):
    """How the brokers of the group authenticate, beside the address of their pod."""

    signature: Annotated[
        Signature,
        Meta(
            description="Disabled: signatures are not looked at."
            " Accepted: a right signature identifies the group's brokers, a wrong one is refused, none is left to the pod's"
            " address. Required: only signed requests are heard; it needs credentialsSecretRef, and brokers that have it:"
            " first Accepted, restart them, then Required."
        ),
    ] = Signature.ACCEPTED
    credentials_secret_ref: Annotated[
        LocalReference | None,
        Meta(
            description="Absent: requests are not signed."
            " Secret in the same namespace with the keys accessKey and secretKey (printable ASCII without"
            " double quotes, backslashes and dollar signs),"
            " with which brokers sign their requests (innerClientAuthenticationCredentials). The operator needs the right to get"
            " it (the chart's value security.groupSecretNames)."
            " A changed Secret is used by a broker after its next restart, by the controller within a minute; so to change it,"
            " set signature to Disabled, change it, restart the pods one by one, and set signature back."
        ),
    ] = None
    certificate_secret_ref: Annotated[
        LocalReference | None,
        Meta(
            description="Absent: brokers and fences show no certificate."
            " Secret in the same namespace with the keys tls.crt and tls.key (PEM; the key PKCS#8 without a password), for the name"
            " <group>.<namespace> (CN or SAN): what the group's brokers, and the fences beside Java ones, show to controllers,"
            " which they then dial over TLS. Needed where the operator runs with --tls-client-certificates required."
            " The pods take it themselves, and wait for it; it is mounted at /etc/brokergroup/certificate. A changed Secret is used"
            " by a fence within minutes, by a broker after its next restart."
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
    """Where further keys of broker.conf come from."""

    config_map_ref: Annotated[
        LocalReference,
        Meta(description="A ConfigMap in the same namespace: each key of its data is one of broker.conf."),
    ]


class UpdateStrategySpec(Struct, frozen=True, rename="camel", kw_only=True):
    """How a change of the spec reaches the pods. One member at a time, and only while FailoverSafe is True."""

    type: Annotated[
        UpdateType,
        Meta(
            description="Rolling: slaves one by one, each back in sync before the next, the master last."
            " OnDelete: a pod changes once a user deletes it."
        ),
    ] = UpdateType.ROLLING
    master_update: Annotated[
        MasterUpdate,
        Meta(
            description="Switchover: mastership is handed over before the old master restarts. Restart: it restarts as it is,"
            " and writes stand still meanwhile. Supervised: the update waits before the master until a user switches over."
        ),
    ] = MasterUpdate.SWITCHOVER


class MaintenanceSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """Switches for people at work. Fields that git leaves out keep what kubectl set."""

    paused: Annotated[
        bool,
        Meta(
            description="True: nothing of the group is changed but its status. Failovers go on: they are not maintenance."
        ),
    ] = False
    hibernated: Annotated[
        bool,
        Meta(
            description="True: all pods are stopped, the master first, so that every member keeps its seat. Claims, ids and"
            " record stay, and the group wakes as it was."
        ),
    ] = False


class DisruptionBudgetSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """Whether evictions (drained nodes) are let through one by one."""

    enabled: Annotated[
        bool,
        Meta(
            description="True: PodDisruptionBudgets let one slave go at a time, and only while FailoverSafe is True; a master's"
            " pod goes once another is master. False: none; evictions are not held back."
        ),
    ] = True


class SloSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """The objective that reports and alerts hold the group against (docs/tasks/sla.md). The operator does not act on it."""

    availability_percent: Annotated[
        Annotated[str, Meta(min_length=2, max_length=8, pattern=r"^[1-9][0-9](\.[0-9]{1,5})?$")] | None,
        Meta(
            description='The share of the time in which the group takes writes, in percent and in quotes, as "99.95".'
            " Absent: the group has no objective of its own."
        ),
    ] = None
    window: Annotated[
        # What each of them means is `sla_reports.measures.objectives.BudgetWindow`'s.
        Literal["7d", "28d", "30d", "90d", "1w", "1M", "1Q", "1Y"],
        Meta(
            description="Over which time: 7d, 28d, 30d and 90d are the last days; 1w, 1M, 1Q and 1Y a week, month, quarter or year"
            " of the calendar."
        ),
    ] = "30d"
    time_zone: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=64,
            pattern=r"^[A-Za-z0-9_+/-]{1,64}$",
            description="In which a calendar's week, month, quarter or year begins, as Asia/Shanghai.",
            extra_json_schema=validations(
                Rule(
                    f"self in [{', '.join(repr(one) for one in TIME_ZONES)}]",
                    f"timeZone is no time zone: {EXPECTED_ZONE}",
                )
            ),
        ),
    ] = "UTC"


class BrokerGroupSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """What the user wants."""

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
            description="RocketMQ's brokerName; metadata.name when absent. Immutable: it is written on the disks. Two groups"
            " with one broker name would be taken for one broker at a NameServer that both name, and in one cluster of one"
            " namespace: the first keeps it, the other gets no members until it is free (condition Stalled, BrokerNameTaken)."
        ),
    ] = None
    replicas: Annotated[
        int, Meta(ge=1, le=bounds.MAX_REPLICAS, description="Brokers of the group: one master, the others slaves.")
    ] = 3
    implementation: Annotated[
        Implementation,
        Meta(
            description="Java: RocketMQ's own brokers. Python: the replica of this project. Immutable.",
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
            description="RocketMQ version; excludes image. Absent: the operator's own (chart: rocketmq.version).",
            extra_json_schema=validations(
                Rule(HAS_BROKER_IDS, "version must be 5.1.1 or later: earlier brokers have no persistent broker id")
            ),
        ),
    ] = None
    image: Annotated[
        bounds.ImageText | None, Meta(description="Container image; excludes version. Absent: what version says.")
    ] = None
    image_pull_policy: Annotated[
        ImagePullPolicy, Meta(description="When the image is pulled. Always only for tags that move.")
    ] = ImagePullPolicy.IF_NOT_PRESENT
    image_pull_secrets: Annotated[
        list[LocalReference],
        Meta(
            max_length=16,
            description="Secrets with which images are pulled.",
            extra_json_schema=bounds.map_list("name"),
        ),
    ] = []
    name_servers: Annotated[
        list[HostAndPort],
        Meta(
            max_length=16,
            description="NameServers as host:port; an IPv6 address in brackets: [fd00::10]:9876. Java brokers need one."
            " In a RocketMQCluster they are the cluster's own.",
            extra_json_schema=bounds.SET_LIST,
        ),
    ] = []
    durability: Annotated[
        Durability | None,
        Meta(
            description="What an acknowledgement promises. Strict: it survives the loss of any one disk, and writes wait for two"
            " disks. Available: as long as one disk in sync is left, writes go on. Fast: the master alone acknowledges. Absent: the"
            " operator writes it here when it first sees the group, Strict for 3 voting replicas (those that are no learners) or"
            " more, Available for fewer. A change of replicas leaves it as it is, and so does a manifest without it."
        ),
    ] = None
    replication: ReplicationSpec = ReplicationSpec()
    failover: FailoverSpec = FailoverSpec()
    security: SecuritySpec = SecuritySpec()
    storage: StorageSpec = StorageSpec()
    config: Annotated[
        dict[str, bounds.ConfigValue],
        Meta(
            max_length=bounds.MAX_CONFIG_ENTRIES,
            description="Further keys of broker.conf. Keys that the operator sets are refused.",
            extra_json_schema=validations(*CONFIG_RULES),
        ),
    ] = {}
    config_from: Annotated[
        list[ConfigSource],
        Meta(
            max_length=8,
            description="Further keys of broker.conf from ConfigMaps; later ones win, and config wins over all of them. The same"
            " keys are refused (condition Stalled). A change of a ConfigMap is seen within half a minute, and treated as one of"
            " config.",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ] = []
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
        int, Meta(ge=1, le=3600, description="Time a broker gets between SIGTERM and SIGKILL.")
    ] = 60

    RULES: ClassVar[tuple[Rule, ...]] = (
        immutable_optional("brokerName", "brokerName is immutable: it is written on the disks of the group"),
        Rule(
            "!has(self.durability) || self.durability != 'Strict' || self.replicas >= 2",
            "durability Strict needs replicas >= 2: it acknowledges a message only when two disks have it;"
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
