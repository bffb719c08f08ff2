"""BrokerGroup: one brokerName, one master and its slaves.

The types below are the source of `crds/brokergroup.dev_brokergroups.yaml`: field, default, bound and description are
written once, here; rules that look at several fields or at the previous object are in `rules.py`.
Absent optional values are None and are left out on the wire.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct, field

from brokergroup_operator.api import bounds
from brokergroup_operator.api.brokergroup_status import BrokerGroupStatus, Durability
from brokergroup_operator.api.fields.election_policies import (
    DEFAULT_ELECTION_POLICY,
    ELECTION_POLICIES_TEXT,
    ElectionPolicy,
)
from brokergroup_operator.api.fields.host_and_port import HostAndPort
from brokergroup_operator.api.fields.pod_fields import (
    ImagePullPolicy,
    LocalReference,
    MonitoringSpec,
    NetworkSpec,
    PodTemplateSpec,
    SchedulingSpec,
)
from brokergroup_operator.api.fields.replication_fields import ReplicationSpec
from brokergroup_operator.api.fields.slo_fields import SloSpec
from brokergroup_operator.api.fields.storage_fields import StorageSpec
from brokergroup_operator.api.names import API_VERSION, BROKER_GROUP_KIND


class Implementation(StrEnum):
    """What runs in the pods."""

    ROCKETMQ = "rocketmq"
    REPLICA = "replica"


class UncleanElection(StrEnum):
    """May a replica outside the SyncStateSet be elected when nobody of the set is left?"""

    NEVER = "Never"
    ALLOWED = "Allowed"


class Signature(StrEnum):
    """What requests of a group's brokers must carry (docs/concepts/security.md)."""

    OFF = "Off"
    ACCEPTED = "Accepted"
    REQUIRED = "Required"


class UpdateType(StrEnum):
    """Who restarts a pod that runs something else than the spec says."""

    ROLLING = "Rolling"
    ON_DELETE = "OnDelete"


class MasterUpdate(StrEnum):
    """How the master's turn is taken in a rolling update."""

    SWITCHOVER = "Switchover"
    RESTART = "Restart"
    SUPERVISED = "Supervised"


class BrokerPriority(Struct, frozen=True, rename="camel", kw_only=True):
    """The election priority of one broker id."""

    broker_id: Annotated[bounds.BrokerId, Meta(description="The broker id, as in status.members.")]
    priority: Annotated[
        int,
        Meta(
            ge=0,
            le=bounds.JAVA_INT_MAX,
            description="The lower number is preferred. 0: never a master, not even when nobody else is left; it still is a copy"
            " that acknowledges, and hands over if it is master when it gets it.",
        ),
    ]


class IsolationSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """The fence inside the pod, for nodes that nobody can reach from outside (docs/concepts/architecture.md, rule 7)."""

    enabled: Annotated[
        bool,
        Meta(
            description="A second container in each pod kills a stopped broker whose pod is deleted; a Java broker also when"
            " no controller can be reached from the pod for timeoutMilliseconds, or when it was frozen: a Python master asks"
            " the controller anew before it acknowledges. The container has no access to the Kubernetes API."
        ),
    ] = True
    timeout_milliseconds: Annotated[
        int,
        Meta(
            ge=500,
            le=60_000,
            description="How long a Java broker may run without its pod reaching any controller. At least 100 ms below the"
            " heartbeat timeout plus fenceTimeoutMilliseconds less heartbeatIntervalMilliseconds: by then another master may be"
            " elected.",
        ),
    ] = 2500


class FailoverSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """When a master is given up, and what may replace it."""

    heartbeat_timeout_milliseconds: Annotated[
        int, Meta(ge=500, le=60_000, description="A broker silent for this long is lost. At least twice the interval.")
    ] = 3000
    minimum_heartbeat_timeout_milliseconds: Annotated[
        Annotated[int, Meta(ge=500, le=60_000)] | None,
        Meta(
            description="Lower bound of the adaptive timeout: a broker whose heartbeats come evenly is given up sooner"
            " than after heartbeatTimeoutMilliseconds, but never before this. Absent: not adaptive.",
        ),
    ] = None
    heartbeat_interval_milliseconds: Annotated[
        int, Meta(ge=100, le=30_000, description="How often a broker sends its heartbeat to the controller.")
    ] = 500
    fence_timeout_milliseconds: Annotated[
        int,
        Meta(
            ge=400,
            le=60_000,
            description="How long a failover of a silent master waits for the confirmation that its process is dead."
            " After that it elects and says Unfenced. A kubelet takes at least 2 s for a pod that does not end by itself,"
            " whatever grace is asked for.",
        ),
    ] = 3000
    isolation: Annotated[IsolationSpec, Meta(description="The fence inside the pod.")] = IsolationSpec()
    delay_seconds: Annotated[
        int,
        Meta(
            ge=0,
            le=3600,
            description="How long a lost master is waited for before another one is elected. 0: not at all."
            " Writes stand still for as long.",
        ),
    ] = 0
    preferred_master: Annotated[
        bounds.BrokerId | None,
        Meta(
            description="The broker id that should be master while it is in sync: it is switched to, by a planned switchover,"
            " when that is safe. Absent: whoever is master stays it."
        ),
    ] = None
    unclean_election: Annotated[
        UncleanElection,
        Meta(description="Allowed trades acknowledged messages for availability; refused with durability Strict."),
    ] = UncleanElection.NEVER
    election_policy: Annotated[
        ElectionPolicy,
        Meta(description=f"Who of the candidates becomes master. {ELECTION_POLICIES_TEXT}"),
    ] = DEFAULT_ELECTION_POLICY
    priorities: Annotated[
        list[BrokerPriority],
        Meta(
            max_length=bounds.MAX_KNOWN_REPLICAS,
            description="Election priority of broker ids, over what their heartbeats say (brokerElectionPriority)."
            " It decides between replicas with equal data; 0 bars a replica from mastership altogether.",
            extra_json_schema=bounds.map_list("brokerId"),
        ),
    ] = []
    preferred_zones: Annotated[
        list[bounds.ZoneText],
        Meta(
            max_length=16,
            description="Zones (node label topology.kubernetes.io/zone) in which a master is wanted, best first. It decides"
            " between replicas with equal data and priority. Absent: another zone than the lost master's."
            " Needs the right to read nodes (the chart's value rbac.readNodes, on by default).",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ] = []


class SecuritySpec(Struct, frozen=True, rename="camel", kw_only=True):
    """How the brokers of the group prove who they are, beside the address of their pod."""

    signature: Annotated[
        Signature,
        Meta(
            description='"Off" (in quotes: YAML reads a bare Off as false): signatures are not looked at.'
            " Accepted: a right signature identifies the group's brokers, a wrong one is refused, none is left to the pod's"
            " address. Required: only signed requests are heard; it needs credentialsSecretName, and brokers that have it:"
            " first Accepted, restart them, then Required."
        ),
    ] = Signature.ACCEPTED
    credentials_secret_name: Annotated[
        bounds.ObjectName | None,
        Meta(
            description="Absent: requests are not signed."
            " Secret in the same namespace with the keys accessKey and secretKey (printable ASCII without"
            " double quotes, backslashes and dollar signs),"
            " with which brokers sign their requests (innerClientAuthenticationCredentials). The operator needs the right to get"
            " it (the chart's value security.groupSecretNames)."
            " A changed Secret is used by a broker after its next restart, by the controller within a minute; so to change it,"
            ' set signature to "Off", change it, restart the pods one by one, and set signature back.'
        ),
    ] = None
    certificate_secret_name: Annotated[
        bounds.ObjectName | None,
        Meta(
            description="Absent: brokers and fences show no certificate."
            " Secret in the same namespace with the keys tls.crt and tls.key (PEM; the key PKCS#8 without a password), for the name"
            " <group>.<namespace> (CN or SAN): what the group's brokers, and the fences beside Java ones, show to controllers,"
            " which they then dial over TLS. Needed where the operator runs with --tls-client-certificates required."
            " The pods take it themselves, and wait for it; it is mounted at /etc/brokergroup/certificate. A changed Secret is used"
            " by a fence within minutes, by a broker after its next restart."
        ),
    ] = None


class ConfigSource(Struct, frozen=True, rename="camel", kw_only=True):
    """Where further keys of broker.conf come from."""

    config_map_ref: Annotated[
        LocalReference,
        Meta(description="A ConfigMap in the same namespace: each key of its data is one of broker.conf."),
    ]


class ResourceRequirements(Struct, frozen=True, rename="camel", kw_only=True):
    """Requests and limits of the broker's container."""

    requests: Annotated[
        dict[str, bounds.QuantityText],
        Meta(max_length=16, description="What the scheduler sets aside, by name: cpu, memory."),
    ] = {}
    limits: Annotated[
        dict[str, bounds.QuantityText],
        Meta(max_length=16, description="What the container may use at most; memory is what the JVM's shares are of."),
    ] = {}


class JvmSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """Memory of a Java broker, as shares of limits.memory; 512 MiB each when there is no limit.

    Of a small limit both are made smaller, in proportion: 224 MiB are left to the JVM itself.
    """

    heap_percent: Annotated[int, Meta(ge=10, le=80, description="Heap in percent of limits.memory.")] = 50
    direct_memory_percent: Annotated[
        int, Meta(ge=5, le=80, description="Direct memory in percent of limits.memory.")
    ] = 25
    extra_arguments: Annotated[
        list[Annotated[str, Meta(max_length=256, pattern=r"^-[^\s'\"\\$`]+$")]],
        Meta(max_length=32, description="Further JVM arguments, one per item.", extra_json_schema=bounds.ATOMIC_LIST),
    ] = []


class UpdateStrategySpec(Struct, frozen=True, rename="camel", kw_only=True):
    """How a change of the spec reaches the pods. One member at a time, and only while FailoverSafe is True."""

    type: Annotated[
        UpdateType,
        Meta(
            description="Rolling: slaves one by one, each back in sync before the next, the master last."
            " OnDelete: a pod changes when somebody deletes it."
        ),
    ] = UpdateType.ROLLING
    master_update: Annotated[
        MasterUpdate,
        Meta(
            description="Switchover: mastership is handed over before the old master restarts. Restart: it restarts as it is,"
            " and writes stand still meanwhile. Supervised: the update waits before the master until somebody switches over."
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


class BrokerGroupSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """What the user wants."""

    broker_cluster_name: Annotated[
        bounds.BrokerNameText, Meta(description="RocketMQ's brokerClusterName. Immutable: it is written on the disks.")
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
        Meta(description="rocketmq: Java brokers. replica: the Python replica of this project. Immutable."),
    ] = Implementation.ROCKETMQ
    version: Annotated[
        bounds.VersionText | None,
        Meta(description="RocketMQ version; excludes image. Absent: the operator's own (chart: rocketmq.version)."),
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
            description="NameServers as host:port; an IPv6 address in brackets: [fd00::10]:9876.",
            extra_json_schema=bounds.SET_LIST,
        ),
    ] = []
    durability: Annotated[
        Durability | None,
        Meta(
            description="What an acknowledgement promises. Absent: Strict from 3 voting replicas on (those that are no"
            " learners), Available below."
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
    scheduling: SchedulingSpec = SchedulingSpec()
    pod_template: PodTemplateSpec = PodTemplateSpec()
    update_strategy: UpdateStrategySpec = UpdateStrategySpec()
    disruption_budget: DisruptionBudgetSpec = DisruptionBudgetSpec()
    maintenance: MaintenanceSpec = MaintenanceSpec()
    slo: SloSpec = SloSpec()
    termination_grace_period_seconds: Annotated[
        int, Meta(ge=1, le=3600, description="Time a broker gets between SIGTERM and SIGKILL.")
    ] = 60


class BrokerGroup(Struct, frozen=True, rename="camel", kw_only=True):
    """A RocketMQ broker group: brokers that replicate one log, and one of them the master."""

    api_version: str = API_VERSION
    kind: str = BROKER_GROUP_KIND
    metadata: bounds.JsonObject = field(default_factory=dict)
    spec: BrokerGroupSpec
    status: BrokerGroupStatus | None = None
