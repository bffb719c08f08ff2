"""What a BrokerGroup says about its pods: where they run, how they are reached, and what is added to them."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from brokergroup_operator.api import bounds
from brokergroup_operator.api.fields.ip_families import IPFamiliesSpec

# A member's ports with addressing NodePort: its fast port, its own and its fence's, and what lies between.
NODE_PORTS_EACH = 5
# What Kubernetes itself checks, when the pod is made: a complaint of it is shown by condition Stalled.
OPEN_OBJECT = {"x-kubernetes-preserve-unknown-fields": True}


def named(what: str) -> bounds.JsonObject:
    """Items that are Kubernetes' own and known by their name alone to us."""
    name = {
        "type": "string",
        "minLength": 1,
        "maxLength": 63,
        "pattern": bounds.DNS_LABEL_PATTERN,
        "description": f"Name of the {what}.",
    }
    whole = f"One {what}, as in a PodSpec. Kubernetes checks it when the pod is made."
    return {"properties": {"name": name}, "required": ["name"], "description": whole, **OPEN_OBJECT}


class ImagePullPolicy(StrEnum):
    """As Kubernetes has it."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class Addressing(StrEnum):
    """By which address brokers are known to clients, to each other and to the controller."""

    POD_IP = "PodIP"
    SERVICE_IP = "ServiceIP"
    HOST_NETWORK = "HostNetwork"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"

    @property
    def has_member_services(self) -> bool:
        """Whether each member has a Service of its own, and is known by an address that is not its pod's."""
        return self in {Addressing.SERVICE_IP, Addressing.NODE_PORT, Addressing.LOAD_BALANCER}


class AntiAffinity(StrEnum):
    """Whether two pods of the group may share a topology domain."""

    REQUIRED = "Required"
    PREFERRED = "Preferred"
    NONE = "None"


class TolerationOperator(StrEnum):
    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(StrEnum):
    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class WhenUnsatisfiable(StrEnum):
    DO_NOT_SCHEDULE = "DoNotSchedule"
    SCHEDULE_ANYWAY = "ScheduleAnyway"


class LocalReference(Struct, frozen=True, rename="camel", kw_only=True):
    """An object in the same namespace."""

    name: Annotated[bounds.ObjectName, Meta(description="Its name.")]


class NetworkSpec(IPFamiliesSpec, frozen=True, rename="camel", kw_only=True):
    """How brokers are reached."""

    addressing: Annotated[
        Addressing,
        Meta(
            description="PodIP: brokers are known by the address of their pod. It changes with every start; who a broker is does"
            " not: that is its broker id, and the operator follows the address."
            " ServiceIP: each member has a ClusterIP Service of its own, named as its pod, and is known by that address for ever;"
            " message ids and routes that clients hold stay right over restarts."
            " HostNetwork: the pods use their node's network and address; one member a node (antiAffinity Required), and"
            " only signed requests (security.signature Required): whatever runs on the node has that address too."
            " NodePort: each member has a NodePort Service; it is known by its node's address and a port of its own (see"
            " firstNodePort). LoadBalancer: each member has a Service of type LoadBalancer and is known by what that is given;"
            " its pod is made once there is an address. With both, slaves reach the master's log at its pod's address."
            " A change restarts the pods one by one."
        ),
    ] = Addressing.POD_IP
    first_node_port: Annotated[
        Annotated[int, Meta(ge=30_000, le=32_767 - bounds.MAX_REPLICAS * NODE_PORTS_EACH)] | None,
        Meta(
            description="Given with addressing NodePort, absent otherwise: where the group's node ports begin."
            " Each member takes the next five for itself"
            " (the first is its fast port, the third the broker's, the fifth the fence's by UDP), and its broker listens on the"
            " same number, because RocketMQ tells clients the port that it listens on; listenPort is not used then. Keep"
            " 80 ports free (5 for each of 16), and open them to clients. A change restarts the pods."
        ),
    ] = None
    listen_port: Annotated[
        int,
        Meta(
            ge=1027,
            le=65_533,
            description="Where clients and the controller reach a broker. RocketMQ also takes the port two below it (the fast"
            " port), and the fence in the pod the UDP port two above it. A change restarts the pods.",
        ),
    ] = 10911
    ha_port: Annotated[
        int,
        Meta(ge=1024, le=65_535, description="Where slaves reach the master's log. A change restarts the pods."),
    ] = 10912


class CanarySpec(Struct, frozen=True, rename="camel", kw_only=True):
    """A message a second to the group from the operator's own producer, to know what a client saw of an outage."""

    enabled: Annotated[
        bool,
        Meta(
            description="True: the operator sends a message a second to the topic BROKERGROUP_CANARY, which it makes where the"
            " brokers do not. It finds the master by spec.nameServers, as clients do. The first message that a new master"
            " acknowledges is the step firstAck of the change of master."
        ),
    ] = False


class MonitoringSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """What of the brokers Prometheus can read. The operator's own metrics are there without it."""

    exporter: Annotated[
        bool,
        Meta(
            description="True: each Java broker serves its own metrics under /metrics (metricsExporterType PROM), on the"
            " container's port `metrics`; the chart's value metrics.brokerPodMonitor makes a PodMonitor that finds it."
        ),
    ] = False
    port: Annotated[int, Meta(ge=1024, le=65_535, description="The port of the exporter.")] = 5557
    canary: CanarySpec = CanarySpec()


class Toleration(Struct, frozen=True, rename="camel", kw_only=True):
    """A taint that the pods bear, as in a PodSpec."""

    key: Annotated[bounds.LabelKey | None, Meta(description="The taint; absent: all.")] = None
    operator: Annotated[TolerationOperator, Meta(description="Exists looks at the key alone.")] = (
        TolerationOperator.EQUAL
    )
    value: Annotated[
        bounds.LabelValue | None, Meta(description="The taint's value, for Equal; absent: the empty one.")
    ] = None
    effect: Annotated[TaintEffect | None, Meta(description="The taint's effect; absent: all.")] = None
    toleration_seconds: Annotated[
        Annotated[int, Meta(ge=0, le=bounds.JAVA_INT_MAX)] | None,
        Meta(description="How long NoExecute is borne; absent: for ever."),
    ] = None


class TopologySpread(Struct, frozen=True, rename="camel", kw_only=True):
    """How evenly the group's pods are spread, as in a PodSpec; the selector is the group's own."""

    topology_key: Annotated[bounds.LabelKey, Meta(description="The node label whose values are the domains.")]
    max_skew: Annotated[
        int, Meta(ge=1, le=bounds.MAX_REPLICAS, description="How many pods more one domain may have than another.")
    ] = 1
    when_unsatisfiable: Annotated[
        WhenUnsatisfiable, Meta(description="What the scheduler does with a pod that would make it uneven.")
    ] = WhenUnsatisfiable.SCHEDULE_ANYWAY


class SchedulingSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """Where the pods may run. A change moves them one by one, as a rolling update."""

    anti_affinity: Annotated[
        AntiAffinity,
        Meta(
            description="Whether two members may share a domain of topologyKey. Required: never, a pod rather stays pending."
            " Preferred: only where there is no other room. None: it does not matter."
        ),
    ] = AntiAffinity.PREFERRED
    topology_key: Annotated[
        bounds.LabelKey, Meta(description="The node label by whose values antiAffinity keeps members apart.")
    ] = "kubernetes.io/hostname"
    node_selector: Annotated[
        dict[str, bounds.LabelValue],
        Meta(max_length=32, description="Labels that a node must have, with their values."),
    ] = {}
    tolerations: Annotated[
        list[Toleration],
        Meta(max_length=32, description="Taints that the pods bear.", extra_json_schema=bounds.ATOMIC_LIST),
    ] = []
    affinity: Annotated[
        bounds.JsonObject,
        Meta(
            description="Affinity as in a PodSpec, beside what antiAffinity asks for. Kubernetes checks it when the pod is made.",
            extra_json_schema=OPEN_OBJECT,
        ),
    ] = {}
    topology_spread_constraints: Annotated[
        list[TopologySpread],
        Meta(
            max_length=8,
            description="How evenly the members are spread over domains.",
            extra_json_schema=bounds.map_list("topologyKey"),
        ),
    ] = []
    priority_class_name: Annotated[
        bounds.ObjectName | None, Meta(description="The PriorityClass of the pods; absent: the cluster's default.")
    ] = None


class TemplateMetadata(Struct, frozen=True, rename="camel", kw_only=True):
    """Further labels and annotations, beside the operator's own."""

    labels: Annotated[
        dict[str, bounds.LabelValue],
        Meta(max_length=32, description="Further labels. Not of brokergroup.dev/ and app.kubernetes.io/."),
    ] = {}
    annotations: Annotated[
        dict[str, Annotated[str, Meta(max_length=4096)]],
        Meta(max_length=32, description="Further annotations. Not of brokergroup.dev/."),
    ] = {}


class TemplateSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """What is added to the PodSpec, merged as kubectl's strategic merge does: items of a list by their name."""

    containers: Annotated[
        list[Annotated[bounds.JsonObject, Meta(extra_json_schema=named("container"))]],
        Meta(
            max_length=8,
            description="Further containers, as in a PodSpec; as restricted as the broker's where they don't say otherwise."
            " The operator's own (broker, fence) can't be changed here.",
            extra_json_schema=bounds.map_list("name"),
        ),
    ] = []
    init_containers: Annotated[
        list[Annotated[bounds.JsonObject, Meta(extra_json_schema=named("container"))]],
        Meta(
            max_length=8,
            description="Containers that end before the broker starts, as in a PodSpec.",
            extra_json_schema=bounds.map_list("name"),
        ),
    ] = []
    volumes: Annotated[
        list[Annotated[bounds.JsonObject, Meta(extra_json_schema=named("volume"))]],
        Meta(
            max_length=16,
            description="Further volumes, as in a PodSpec. The operator's own (store, commitlog, config, run,"
            " brokergroup-certificate) can't be changed here.",
            extra_json_schema=bounds.map_list("name"),
        ),
    ] = []
    host_aliases: Annotated[
        list[Annotated[bounds.JsonObject, Meta(extra_json_schema=OPEN_OBJECT)]],
        Meta(
            max_length=32,
            description="Lines of /etc/hosts, as in a PodSpec.",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ] = []
    dns_config: Annotated[
        bounds.JsonObject, Meta(description="DNS settings, as in a PodSpec.", extra_json_schema=OPEN_OBJECT)
    ] = {}
    runtime_class_name: Annotated[
        bounds.ObjectName | None, Meta(description="The RuntimeClass of the pods; absent: the node's default.")
    ] = None
    scheduler_name: Annotated[
        bounds.ObjectName | None, Meta(description="Who schedules the pods; the cluster's default when absent.")
    ] = None
    service_account_name: Annotated[
        bounds.ObjectName | None,
        Meta(
            description="The pods' service account, for image pulls and policies: its token is never mounted. Absent: `default`."
        ),
    ] = None


class PodTemplateSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """What is added to each pod. A change is rolled out."""

    metadata: TemplateMetadata = TemplateMetadata()
    spec: TemplateSpec = TemplateSpec()
