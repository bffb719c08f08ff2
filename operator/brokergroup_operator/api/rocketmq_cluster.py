"""RocketMQCluster: NameServers, broker groups and proxies that belong together, as one object.

The groups are BrokerGroups made from a template; `brokergroup.py` alone defines its fields. NameServers and proxies keep nothing
on disk, so they are sections here and no kinds: a StatefulSet (brokers know each NameServer by its own name) and a Deployment.
"""

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from msgspec import Meta, Struct, field

from brokergroup_operator.api import bounds
from brokergroup_operator.api.acl_fields import AclSpec
from brokergroup_operator.api.brokergroup import BrokerGroupSpec
from brokergroup_operator.api.brokergroup_status import Condition
from brokergroup_operator.api.consumer_group_fields import MAX_CONSUMER_GROUPS, ONLY_JAVA, ConsumerGroupSpec
from brokergroup_operator.api.names import API_VERSION, ROCKETMQ_CLUSTER_KIND
from brokergroup_operator.api.network_fields import ClusterNetworkSpec
from brokergroup_operator.api.pod_fields import (
    AntiAffinitySpec,
    ImagePullPolicy,
    LocalReference,
    PlacementTemplate,
    ResourceRequirements,
)
from brokergroup_operator.api.policy_fields import MAX_PEERS
from brokergroup_operator.api.proxy_fields import RESERVED_PROXY_KEYS, config_meta
from brokergroup_operator.api.rules import (
    CONFIG_RULES,
    HAS_ACL,
    RUNS_WITH_A_CONTROLLER,
    Rule,
    label_keys,
    validations,
)
from brokergroup_operator.api.tls_fields import TlsSpec

MAX_GROUPS = 64
MAX_TOPICS = 256
# A broker creates these itself, and refuses a request to create one (TopicValidator of RocketMQ 5.5.0).
SYSTEM_TOPICS: Final = (
    "TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
)  # fmt: skip
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"


class NameServerSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """The NameServers. Each broker registers at every one of them, so clients need one that answers."""

    replicas: Annotated[
        int, Meta(ge=1, le=9, description="Number of NameServers; in a rolling update one at a time is restarted.")
    ] = 2
    resources: ResourceRequirements = ResourceRequirements()
    anti_affinity: AntiAffinitySpec = AntiAffinitySpec()
    pod_template: PlacementTemplate = PlacementTemplate()


class ProxySpec(Struct, frozen=True, rename="camel", kw_only=True):
    """RocketMQ's Proxy in cluster mode, to which clients of the gRPC protocol connect."""

    replicas: Annotated[
        Annotated[int, Meta(ge=0, le=64)] | None,
        Meta(description="Number of proxies. Absent: the operator leaves it to a HorizontalPodAutoscaler."),
    ] = None
    resources: ResourceRequirements = ResourceRequirements()
    anti_affinity: AntiAffinitySpec = AntiAffinitySpec()
    pod_template: PlacementTemplate = PlacementTemplate()
    config: Annotated[dict[str, bounds.ConfigValue], config_meta("proxy.config", RESERVED_PROXY_KEYS)] = {}


class GroupOverride(Struct, frozen=True, rename="camel", kw_only=True):
    """How one group differs from the template."""

    index: Annotated[
        int, Meta(ge=0, le=MAX_GROUPS - 1, description="Index of the group: the number at the end of its name.")
    ]
    replicas: Annotated[
        Annotated[int, Meta(ge=1, le=bounds.MAX_REPLICAS)] | None,
        Meta(description="Number of brokers of this group, instead of template.replicas. Absent: template.replicas."),
    ] = None
    config: Annotated[
        dict[str, bounds.ConfigValue],
        Meta(
            max_length=bounds.MAX_CONFIG_ENTRIES,
            description="Further keys of broker.conf of this group; they override template.config key by key.",
            extra_json_schema=validations(*CONFIG_RULES),
        ),
    ] = {}
    labels: Annotated[
        dict[str, bounds.LabelValue],
        Meta(
            max_length=16,
            description="Further labels of the BrokerGroup, for example its tenant.",
            extra_json_schema=validations(label_keys("labels")),
        ),
    ] = {}


class BrokerGroupsSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """The broker groups, each a BrokerGroup object: `<cluster>-0`, `<cluster>-1` and so on."""

    count: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_GROUPS,
            description="Number of groups. A lower number deletes none, because they may hold messages: condition Stalled"
            " names those to delete by hand.",
        ),
    ] = 1
    template: Annotated[
        BrokerGroupSpec,
        Meta(
            description="The spec of each BrokerGroup. nameServers and brokerName stay empty: the groups use the cluster's"
            " NameServers, and the BrokerGroup's name."
        ),
    ] = BrokerGroupSpec()
    overrides: Annotated[
        list[GroupOverride],
        Meta(
            max_length=MAX_GROUPS,
            description="How single groups differ from the template.",
            extra_json_schema=bounds.map_list("index"),
        ),
    ] = []

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.template.bootstrap)",
            "template.bootstrap must be absent: every group of the cluster would begin with one backup; restore a BrokerGroup",
            field_path=".template.bootstrap",
        ),
        Rule(
            "size(self.template.nameServers) == 0",
            "template.nameServers must be empty: the groups register with the cluster's own NameServers",
            field_path=".template.nameServers",
        ),
        Rule(
            "!has(self.template.brokerName)",
            "template.brokerName must be absent: each group's brokerName is its own name",
            field_path=".template.brokerName",
        ),
        Rule(
            "!has(self.template.tls)",
            "template.tls must be absent: spec.tls of the cluster covers NameServers, groups and proxies",
            field_path=".template.tls",
        ),
        Rule(
            "self.overrides.all(one, one.index < self.count)",
            "overrides: an index must be below count",
            field_path=".overrides",
        ),
    )


class MessageType(StrEnum):
    """What a topic's messages are; RocketMQ's Proxy refuses a message of another type."""

    NORMAL = "Normal"
    FIFO = "Fifo"
    DELAY = "Delay"
    TRANSACTION = "Transaction"


class TopicSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """A topic of every group of the cluster. A topic that is no longer declared is kept, because it may hold messages."""

    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=127,
            pattern="^[A-Za-z0-9_-]{1,127}$",
            description="Name of the topic. Names that RocketMQ uses itself are rejected.",
        ),
    ]
    queues: Annotated[
        int,
        Meta(
            ge=1,
            le=1024,
            description="Number of queues in each group. A lower number stops writing to the queues beyond it; they can still"
            " be read.",
        ),
    ] = 8
    message_type: Annotated[
        MessageType,
        Meta(
            description="The type of its messages: Proxy rejects a message of another type. An existing topic keeps its type;"
            " if this field says another one, condition Stalled names the topic."
        ),
    ] = MessageType.NORMAL

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!self.name.startsWith('{SYSTEM_TOPIC_PREFIX}') && !self.name.startsWith('{SYSTEM_TOPIC_PREFIX.upper()}')"
            f" && !(self.name in [{', '.join(repr(name) for name in SYSTEM_TOPICS)}])",
            "topics: RocketMQ uses this name itself, choose another",
            field_path=".name",
        ),
    )


class ClusterSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """The desired state of the cluster."""

    version: Annotated[
        bounds.VersionText | None,
        Meta(
            description="RocketMQ version of NameServers and proxies, such as 5.3.2, and of groups whose template names"
            " neither version nor image. Absent: the operator's default (chart: brokers.version)."
        ),
    ] = None
    image: Annotated[
        bounds.ImageText | None,
        Meta(
            description="Container image of NameServers and proxies, instead of version. Absent: the image of version."
        ),
    ] = None
    image_pull_policy: Annotated[
        ImagePullPolicy,
        Meta(
            description="When the kubelet pulls the image of NameServers and proxies, as in a container of a PodSpec."
        ),
    ] = ImagePullPolicy.IF_NOT_PRESENT
    image_pull_secrets: Annotated[
        list[LocalReference],
        Meta(
            max_length=16,
            description="Secrets in the same namespace with which NameServers and proxies pull the image, as in a PodSpec.",
            extra_json_schema=bounds.map_list("name"),
        ),
    ] = []
    name_server: NameServerSpec = NameServerSpec()
    broker_groups: BrokerGroupsSpec = BrokerGroupsSpec()
    topics: Annotated[
        list[TopicSpec],
        Meta(
            max_length=MAX_TOPICS,
            description="Topics that every group has, also a group that is added later.",
            extra_json_schema=bounds.map_list("name"),
        ),
    ] = []
    consumer_groups: Annotated[
        list[ConsumerGroupSpec],
        Meta(
            max_length=MAX_CONSUMER_GROUPS,
            description="Consumer groups (subscription groups) that every broker group has, also one that is added later, where"
            " they read the declared topics from the beginning. One that is no longer declared is kept.",
            extra_json_schema=bounds.map_list("name"),
        ),
    ] = []
    acl: Annotated[
        AclSpec | None,
        Meta(
            description="Users and policies of RocketMQ's ACL 2.0 at every broker (Java 5.3.0 or later). Given, also empty, it"
            " turns authentication and authorization on in the brokers' configuration, which restarts them one by"
            " one; template.config overrides it key by key. It excludes proxy. Absent: the brokers' own"
            " configuration decides, and the operator changes no user."
        ),
    ] = None
    proxy: Annotated[ProxySpec | None, Meta(description="Proxies for clients of the gRPC protocol. Absent: none.")] = (
        None
    )
    tls: Annotated[
        TlsSpec | None,
        Meta(
            description="TLS of NameServers, groups (Java) and proxies, with one Secret for all. The operator must serve TLS"
            " (chart: security.tls) with a certificate of the same authority. Absent: RocketMQ's defaults."
        ),
    ] = None
    network: Annotated[
        ClusterNetworkSpec,
        Meta(
            description="IP families of the Services of NameServers and proxies, and NetworkPolicies; both also of groups"
            " whose template names none."
        ),
    ] = ClusterNetworkSpec()

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!(has(self.version) && has(self.image))",
            "version and image exclude each other: the image says which version it is",
            field_path=".image",
        ),
        Rule(
            "!has(self.version) || self.brokerGroups.template.implementation != 'Java'"
            " || has(self.brokerGroups.template.version) || has(self.brokerGroups.template.image)"
            f" || {RUNS_WITH_A_CONTROLLER.replace('self.', 'self.version.')}",
            "version must be 5.1.1 or later, and not 5.1.2, where the groups take it: earlier brokers have no persistent"
            " broker id, and 5.1.2 does not start in controller mode",
            field_path=".version",
        ),
        Rule(
            "!has(self.acl) || !has(self.version) || has(self.brokerGroups.template.version)"
            " || has(self.brokerGroups.template.image)"
            f" || {HAS_ACL.replace('self.', 'self.version.')}",
            "acl needs version 5.3.0 or later, where the groups take it: earlier brokers have no ACL 2.0",
            field_path=".version",
        ),
        Rule(
            "!has(self.acl) || !has(self.brokerGroups.template.version)"
            f" || {HAS_ACL.replace('self.', 'self.brokerGroups.template.version.')}",
            "acl needs brokerGroups.template.version 5.3.0 or later: earlier brokers have no ACL 2.0",
            field_path=".brokerGroups.template.version",
        ),
        Rule(
            "!has(self.network.policy) || !(self.brokerGroups.template.network.addressing in ['NodePort', 'LoadBalancer'])",
            "network.policy does not work on groups with addressing NodePort and LoadBalancer: members reach each other at"
            " nodes, which may change the source's address. Close the ports by a firewall, and leave policy out",
            field_path=".network.policy",
        ),
        Rule(
            "!has(self.proxy) || !has(self.brokerGroups.template.network.policy)"
            " || !has(self.brokerGroups.template.network.policy.clientsFrom)"
            f" || size(self.brokerGroups.template.network.policy.clientsFrom) <= {MAX_PEERS}",
            f"clientsFrom takes at most {MAX_PEERS} sources with proxy: the operator adds the proxies as one more",
            field_path=".brokerGroups.template.network.policy.clientsFrom",
        ),
        Rule(
            "!has(self.network.policy) || self.brokerGroups.template.network.addressing != 'HostNetwork'",
            "network.policy has no effect on groups with addressing HostNetwork: close the nodes' ports by their firewall,"
            " and leave policy out",
            field_path=".network.policy",
        ),
        Rule(
            "!has(self.acl) || self.brokerGroups.template.implementation == 'Java'",
            "acl needs brokerGroups.template.implementation Java: Python replicas have no users",
            field_path=".acl",
        ),
        Rule(
            "!has(self.acl) || has(self.brokerGroups.template.security.credentialsSecretRef)",
            "acl needs brokerGroups.template.security.credentialsSecretRef: with its key brokers and operator sign what they"
            " send each other, and brokers refuse what is not signed",
            field_path=".acl",
            reason="FieldValueRequired",
        ),
        Rule(
            "!has(self.tls) || self.brokerGroups.template.implementation == 'Java'",
            "tls needs brokerGroups.template.implementation Java: a Python replica takes TLS from the tls keys of its config",
            field_path=".tls",
        ),
        Rule(
            "!has(self.acl) || !has(self.proxy)",
            "acl and proxy exclude each other: the operator gives no Proxy a key to sign with, and none checks its own"
            " clients, so brokers would refuse it, or take its key for every client",
            field_path=".proxy",
        ),
        Rule(
            "!has(self.acl) || !has(self.brokerGroups.template.localProxy)",
            "acl and brokerGroups.template.localProxy exclude each other: the Proxy in a broker's process hands requests to"
            " it past the broker's checks",
            field_path=".brokerGroups.template.localProxy",
        ),
        Rule(
            "self.brokerGroups.template.implementation == 'Java' || self.consumerGroups.all(group, "
            f"{' && '.join(f'!has(group.{name})' for name in ONLY_JAVA)})",
            f"consumerGroups: {', '.join(ONLY_JAVA)} need brokerGroups.template.implementation Java: Python replicas do not act on"
            " them",
            field_path=".consumerGroups",
        ),
        # A broker makes these itself (TopicConfigManager of RocketMQ 5.5.0), and refuses to make them when it is asked.
        Rule(
            "self.topics.all(topic, topic.name != self.brokerGroups.template.brokerClusterName"
            " && topic.name != self.brokerGroups.template.brokerClusterName + '_REPLY_TOPIC')",
            "topics: brokers use brokerClusterName, and it with _REPLY_TOPIC, as topics of their own; choose another name",
            field_path=".topics",
        ),
    )


class PartStatus(Struct, frozen=True, rename="camel", kw_only=True):
    """How many of this part's pods, groups or topics are wanted, and how many are ready."""

    desired: Annotated[int, Meta(ge=0, description="How many are wanted.")]
    ready: Annotated[int, Meta(ge=0, description="How many are ready.")]
    summary: Annotated[str, Meta(max_length=32, description="ready/desired as text, for a column of kubectl get.")]


class GroupSummary(Struct, frozen=True, rename="camel", kw_only=True):
    """One broker group, as its own status says."""

    name: Annotated[bounds.NameText, Meta(description="metadata.name of the BrokerGroup.")]
    master: Annotated[bounds.NameText | None, Meta(description="The pod of its master. Absent: it has no master.")] = (
        None
    )
    ready: Annotated[bounds.WordText, Meta(description="Its condition Ready: True, False or Unknown.")]
    available: Annotated[bounds.WordText, Meta(description="Its condition Available: True, False or Unknown.")]
    failover_safe: Annotated[bounds.WordText, Meta(description="Its condition FailoverSafe: True, False or Unknown.")]


class ClientAddresses(Struct, frozen=True, rename="camel", kw_only=True):
    """Where clients of the cluster connect, from inside Kubernetes."""

    name_server: Annotated[
        bounds.AddressText, Meta(description="For clients of the remoting protocol (namesrvAddr), host:port.")
    ]
    proxy: Annotated[
        bounds.AddressText | None,
        Meta(
            description="For clients of the gRPC protocol (endpoints), host:port. With template.localProxy and without spec.proxy"
            " it is the first group's master: while that group has no master, no client can start with it, and running ones"
            " keep the route they have. <group>-master:8081 of another group answers the same."
        ),
    ] = None


class ClusterStatus(Struct, frozen=True, rename="camel", kw_only=True):
    """The observed state of the cluster, written by the operator."""

    observed_generation: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="The generation of the spec that this status is about.")
    ] = None
    name_servers: PartStatus | None = None
    broker_groups: PartStatus | None = None
    proxies: PartStatus | None = None
    topics: Annotated[
        PartStatus | None, Meta(description="How many of the declared topics exist in every group as declared.")
    ] = None
    consumer_groups: Annotated[
        PartStatus | None,
        Meta(description="How many of the declared consumer groups exist in every broker group as declared."),
    ] = None
    users: Annotated[
        PartStatus | None, Meta(description="How many of the declared users every broker has as declared.")
    ] = None
    policies: Annotated[
        PartStatus | None, Meta(description="How many of the declared policies every broker has as declared.")
    ] = None
    clients: Annotated[ClientAddresses | None, Meta(description="Where clients connect.")] = None
    groups: Annotated[
        list[GroupSummary],
        Meta(
            max_length=2 * MAX_GROUPS,
            description="The broker groups, also those beyond count that are not deleted yet.",
            extra_json_schema=bounds.map_list("name"),
        ),
    ] = []
    conditions: (
        Annotated[
            list[Condition],
            Meta(
                max_length=8,
                description="Ready, Available, Reconciling and Stalled; the last two are abnormal while True, as kstatus has it.",
                extra_json_schema=bounds.map_list("type"),
            ),
        ]
        | None
    ) = None


class RocketMQCluster(Struct, frozen=True, rename="camel", kw_only=True):
    """A RocketMQ cluster: NameServers, broker groups, and proxies where they are asked for."""

    api_version: str = API_VERSION
    kind: str = ROCKETMQ_CLUSTER_KIND
    metadata: bounds.JsonObject = field(default_factory=dict)
    spec: ClusterSpec = ClusterSpec()
    status: ClusterStatus | None = None
