"""What a BrokerGroup says about its pods: where they run, their resources and metrics, and what is added to them."""

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from msgspec import Meta, Struct

from brokergroup_operator.api import bounds, names
from brokergroup_operator.api.rules import (
    IS_LABEL_KEY,
    Rule,
    label_keys,
    validations,
)

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
    whole = f"One {what}, as in a PodSpec. Kubernetes checks it when the pod is created."
    return {"properties": {"name": name}, "required": ["name"], "description": whole, **OPEN_OBJECT}


class ImagePullPolicy(StrEnum):
    """As Kubernetes has it."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


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
    """A reference to an object in the same namespace."""

    name: Annotated[bounds.ObjectName, Meta(description="Its metadata.name.")]


# Resources that a container may request less of than its limit.
_SHARED: Final = "['cpu', 'memory', 'ephemeral-storage']"
# A quota on a device is called requests.DOMAIN/NAME.
_LONGEST_RESOURCE: Final = bounds.LONGEST_LABEL_KEY - len("requests.")
_RESOURCE_NAMES: Final = Rule(
    f"self.all(key, {IS_LABEL_KEY} && size(key) <= {_LONGEST_RESOURCE} && !key.startsWith('requests.')"
    f" && (key in {_SHARED} || key.startsWith('hugepages-') || key.contains('/')))",
    "resources are cpu, memory, ephemeral-storage, hugepages-SIZE, or a device's as DOMAIN/NAME",
)


class ResourceRequirements(Struct, frozen=True, rename="camel", kw_only=True):
    """Resource requests and limits of the container, as in a PodSpec."""

    requests: Annotated[
        dict[str, bounds.QuantityText],
        Meta(
            max_length=16,
            description="What the scheduler reserves on the node, by resource: {cpu: '2', memory: 8Gi}.",
            extra_json_schema=validations(_RESOURCE_NAMES),
        ),
    ] = {}
    limits: Annotated[
        dict[str, bounds.QuantityText],
        Meta(
            max_length=16,
            description="The most that the container may use, by resource: {memory: 8Gi}. Above limits.memory the kernel"
            " kills the container. The percentages of spec.jvm are of limits.memory.",
            extra_json_schema=validations(_RESOURCE_NAMES),
        ),
    ] = {}

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.requests.all(key, !(key in self.limits) || quantity(self.requests[key]).compareTo(quantity(self.limits[key]))"
            " <= 0)",
            "resources.requests must not exceed resources.limits",
            field_path=".requests",
        ),
        Rule(
            f"self.requests.all(key, key in {_SHARED} || (key in self.limits && self.limits[key] == self.requests[key]))",
            "of hugepages and devices resources.requests must be what resources.limits has: Kubernetes gives out no more",
            field_path=".requests",
        ),
        Rule(
            "self.limits.all(key, !key.contains('/') || quantity(self.limits[key]).isInteger())",
            "of a device resources.limits must be a whole number",
            field_path=".limits",
        ),
        Rule(
            "!self.limits.exists(key, key.startsWith('hugepages-')) || 'cpu' in self.requests || 'memory' in self.requests"
            " || 'cpu' in self.limits || 'memory' in self.limits",
            "hugepages need cpu or memory beside them",
            field_path=".limits",
        ),
    )


class JvmSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """Memory of a Java broker's JVM, in percent of resources.limits.memory. Without that limit, heap and direct memory
    are 512 MiB each. With a small limit both are reduced in proportion, so that 224 MiB are left to the JVM itself
    (352 with localProxy).
    """

    heap_percent: Annotated[
        int, Meta(ge=10, le=80, description="Heap (-Xms and -Xmx) in percent of limits.memory.")
    ] = 50
    direct_memory_percent: Annotated[
        int, Meta(ge=5, le=80, description="Direct memory (-XX:MaxDirectMemorySize) in percent of limits.memory.")
    ] = 25
    extra_arguments: Annotated[
        list[Annotated[str, Meta(max_length=256, pattern=r"^-[^\s'\"\\$`]+$")]],
        Meta(
            max_length=32,
            description="Further JVM arguments, one per item, such as -XX:+UseG1GC. A change is a rolling update.",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ] = []

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.heapPercent + self.directMemoryPercent <= 90",
            "heapPercent and directMemoryPercent together must leave 10 percent of limits.memory to the JVM itself",
            field_path=".heapPercent",
        ),
    )


class CanarySpec(Struct, frozen=True, rename="camel", kw_only=True):
    """A probe of the group by messages of the operator's own producer: it measures how long clients could not send."""

    enabled: Annotated[
        bool,
        Meta(
            description="True: the operator sends one message per second to the topic BROKERGROUP_CANARY, which it creates if"
            " the brokers do not. It finds the master by spec.nameServers, as clients do. A change of master then"
            " also has the phase firstAck: the first message that the new master acknowledged."
        ),
    ] = False


class MonitoringSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """Metrics of the brokers themselves. The operator's metrics of the group exist without it."""

    exporter: Annotated[
        bool,
        Meta(
            description="True: each Java broker serves RocketMQ's metrics for Prometheus (metricsExporterType PROM) at"
            " /metrics, on the container's port named `metrics`. The chart's value metrics.brokerPodMonitor"
            " creates a PodMonitor for it."
        ),
    ] = False
    port: Annotated[int, Meta(ge=1024, le=65_535, description="TCP port of the exporter.")] = 5557
    canary: CanarySpec = CanarySpec()


class Toleration(Struct, frozen=True, rename="camel", kw_only=True):
    """A taint that the pods tolerate, as in a PodSpec."""

    key: Annotated[
        bounds.LabelKey | None, Meta(description="The taint's key. Absent: every taint, with operator Exists.")
    ] = None
    operator: Annotated[
        TolerationOperator, Meta(description="Equal: key and value must match. Exists: the key is enough.")
    ] = TolerationOperator.EQUAL
    value: Annotated[
        bounds.LabelValue | None, Meta(description="The taint's value, with operator Equal. Absent: the empty value.")
    ] = None
    effect: Annotated[
        TaintEffect | None, Meta(description="The taint's effect that is tolerated. Absent: every effect.")
    ] = None
    toleration_seconds: Annotated[
        Annotated[int, Meta(ge=0, le=bounds.JAVA_INT_MAX)] | None,
        Meta(
            description="Seconds for which the pod tolerates a NoExecute taint before it is evicted. Absent: it is not"
            " evicted."
        ),
    ] = None

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.operator != 'Equal' || has(self.key)",
            "a toleration with operator Equal needs a key; operator Exists without a key tolerates every taint",
            field_path=".key",
            reason="FieldValueRequired",
        ),
        Rule(
            "self.operator != 'Exists' || !has(self.value)",
            "a toleration with operator Exists looks at no value",
            field_path=".value",
        ),
        Rule(
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "tolerationSeconds needs effect NoExecute: of the other effects none ends",
            field_path=".effect",
        ),
    )


class TopologySpread(Struct, frozen=True, rename="camel", kw_only=True):
    """How evenly the pods are spread over nodes or zones, as in a PodSpec; its label selector is set by the operator."""

    topology_key: Annotated[
        bounds.LabelKey,
        Meta(description="The node label whose values are the domains, such as topology.kubernetes.io/zone."),
    ]
    max_skew: Annotated[
        int, Meta(ge=1, le=bounds.MAX_REPLICAS, description="How many pods more one domain may have than another.")
    ] = 1
    when_unsatisfiable: Annotated[
        WhenUnsatisfiable,
        Meta(
            description="What happens to a pod that would exceed maxSkew. DoNotSchedule: it stays Pending. ScheduleAnyway: it"
            " is scheduled all the same."
        ),
    ] = WhenUnsatisfiable.SCHEDULE_ANYWAY


# Beside podTemplate and not in it: a PodSpec has no such field, and it is about the pods among each other.
class AntiAffinitySpec(Struct, frozen=True, rename="camel", kw_only=True):
    """Whether two pods of the group may share a node, a rack or a zone. A change is a rolling update."""

    type: Annotated[
        AntiAffinity,
        Meta(
            description="Required: two pods do not share a domain of topologyKey; a pod without a domain of its own stays"
            " Pending. Preferred: they share one if there is no other room. None: no rule."
        ),
    ] = AntiAffinity.PREFERRED
    topology_key: Annotated[
        bounds.LabelKey,
        Meta(
            description="The node label whose values are the domains that pods do not share: kubernetes.io/hostname for"
            " nodes, topology.kubernetes.io/zone for zones."
        ),
    ] = "kubernetes.io/hostname"


class PlacementSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """Where the pods may run, as in a PodSpec. A change is a rolling update."""

    node_selector: Annotated[
        dict[str, bounds.LabelValue],
        Meta(
            max_length=32,
            description="Labels that a node must have, with their values, as in a PodSpec: {disk: nvme}.",
            extra_json_schema=validations(label_keys("nodeSelector keys")),
        ),
    ] = {}
    tolerations: Annotated[
        list[Toleration],
        Meta(
            max_length=32,
            description="Taints of nodes that the pods tolerate, as in a PodSpec.",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ] = []
    affinity: Annotated[
        bounds.JsonObject,
        Meta(
            description="Affinity, as in a PodSpec, in addition to the rule that antiAffinity makes. Kubernetes checks it"
            " when the pod is created; an error is shown by condition Stalled.",
            extra_json_schema=OPEN_OBJECT,
        ),
    ] = {}
    topology_spread_constraints: Annotated[
        list[TopologySpread],
        Meta(
            max_length=8,
            description="How evenly the pods are spread over nodes or zones, as in a PodSpec.",
            extra_json_schema=bounds.map_list("topologyKey"),
        ),
    ] = []
    priority_class_name: Annotated[
        bounds.ObjectName | None, Meta(description="PriorityClass of the pods. Absent: the cluster's default.")
    ] = None


class PlacementTemplate(Struct, frozen=True, rename="camel", kw_only=True):
    """What is added to each pod that the operator creates. A change is a rolling update."""

    spec: PlacementSpec = PlacementSpec()


class TemplateMetadata(Struct, frozen=True, rename="camel", kw_only=True):
    """Further labels and annotations, in addition to the operator's own."""

    labels: Annotated[
        dict[str, bounds.LabelValue],
        Meta(
            max_length=32,
            description="Further labels. The prefixes brokergroup.dev/ and app.kubernetes.io/ are the operator's own.",
            extra_json_schema=validations(label_keys("labels", "brokergroup.dev/", "app.kubernetes.io/")),
        ),
    ] = {}
    annotations: Annotated[
        dict[str, Annotated[str, Meta(max_length=4096)]],
        Meta(
            max_length=32,
            description="Further annotations. The prefix brokergroup.dev/ is the operator's own.",
            extra_json_schema=validations(label_keys("annotations", "brokergroup.dev/")),
        ),
    ] = {}


def _not_of_the_operator(field: str, own: tuple[str, ...]) -> Rule:
    """A pod template adds items; it does not change the operator's own."""
    listed = ", ".join(f"'{name}'" for name in own)
    return Rule(
        f"self.{field}.all(item, !(item.name in [{listed}]))",
        f"{field} may not name {', '.join(own)}: those are the operator's own; use podTemplate.spec.broker, other fields"
        " of spec, or another name",
        field_path=f".{field}",
        reason="FieldValueForbidden",
    )


class ReadinessProbe(Struct, frozen=True, rename="camel", kw_only=True):
    """Timing of the broker's readiness probe, as in a PodSpec; the probe itself is set by the operator."""

    period_seconds: Annotated[int, Meta(ge=1, le=30, description="Seconds between two probes.")] = 1
    timeout_seconds: Annotated[
        int, Meta(ge=1, le=30, description="Seconds without an answer after which a probe has failed.")
    ] = 1
    failure_threshold: Annotated[
        int, Meta(ge=1, le=30, description="How many probes in a row must fail before the pod is not ready.")
    ] = 3


class LivenessProbe(Struct, frozen=True, rename="camel", kw_only=True):
    """How long a disk may hang before the broker's container is restarted: periodSeconds times failureThreshold, 60 s by default.

    A try writes and syncs a small file on each disk. It fails if it does not end in time; an error, such as a full disk, is no
    failure.
    """

    period_seconds: Annotated[int, Meta(ge=1, le=300, description="Seconds from one try to the next.")] = 20
    timeout_seconds: Annotated[int, Meta(ge=1, le=300, description="Seconds after which a try has failed.")] = 20
    failure_threshold: Annotated[
        int, Meta(ge=1, le=30, description="How many tries in a row must fail before the container is restarted.")
    ] = 3


def _env_name() -> bounds.JsonObject:
    name = {
        "type": "string",
        "minLength": 1,
        "maxLength": 253,
        "pattern": "^[-._a-zA-Z][-._a-zA-Z0-9]*$",
        "description": "Name of the variable.",
    }
    whole = "One variable, as in a PodSpec. Kubernetes checks it when the pod is created."
    return {"properties": {"name": name}, "required": ["name"], "description": whole, **OPEN_OBJECT}


def _mount() -> bounds.JsonObject:
    volume = named("volume")["properties"]["name"]
    path = {
        "type": "string",
        "minLength": 2,
        "maxLength": 256,
        # One spelling of a path: a rule compares its beginning.
        "pattern": "^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$",
        "description": "Path in the container, without a slash at its end.",
    }
    whole = "One mount, as in a PodSpec. Kubernetes checks it when the pod is created."
    both = {"name": volume, "mountPath": path}
    return {"properties": both, "required": ["name", "mountPath"], "description": whole, **OPEN_OBJECT}


_OWN_VARIABLES: Final = ", ".join(f"'{name}'" for name in names.OWN_VARIABLES)
_OWN_FOLDERS: Final = ", ".join(f"'{folder}'" for folder in names.OWN_FOLDERS)


# Not an item of `containers`: a rule sees only fields that the schema lists, so it could not refuse another image or command there.
class BrokerContainerSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """What is added to the container `broker`. Its image, command, ports and security context are set by the operator."""

    env: Annotated[
        list[Annotated[bounds.JsonObject, Meta(extra_json_schema=_env_name())]],
        Meta(
            max_length=32,
            description="Further environment variables of the broker, as in a PodSpec. The operator's own cannot be changed"
            " here.",
            extra_json_schema=bounds.map_list("name"),
        ),
    ] = []
    volume_mounts: Annotated[
        list[Annotated[bounds.JsonObject, Meta(extra_json_schema=_mount())]],
        Meta(
            max_length=16,
            description="Mounts of podTemplate.spec.volumes, as in a PodSpec. Not in the operator's own folders"
            f" ({', '.join(names.OWN_FOLDERS)}), nor above them.",
            extra_json_schema=bounds.map_list("mountPath"),
        ),
    ] = []
    readiness_probe: ReadinessProbe = ReadinessProbe()
    liveness_probe: LivenessProbe = LivenessProbe()

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"self.env.all(item, !(item.name in [{_OWN_VARIABLES}]))",
            f"env may not name {', '.join(names.OWN_VARIABLES)}: those are the operator's own",
            field_path=".env",
            reason="FieldValueForbidden",
        ),
        Rule(
            f"self.volumeMounts.all(item, [{_OWN_FOLDERS}].all(own,"
            " !(item.mountPath + '/').startsWith(own + '/') && !own.startsWith(item.mountPath + '/')))",
            f"volumeMounts may not lie in or above {', '.join(names.OWN_FOLDERS)}: what a broker writes there must be on its"
            " claim",
            field_path=".volumeMounts",
            reason="FieldValueForbidden",
        ),
    )


class TemplateSpec(PlacementSpec, frozen=True, rename="camel", kw_only=True):
    """What is added to the PodSpec, merged as kubectl's strategic merge patch does: items of a list by name."""

    containers: Annotated[
        list[Annotated[bounds.JsonObject, Meta(extra_json_schema=named("container"))]],
        Meta(
            max_length=8,
            description="Sidecar containers, as in a PodSpec. What their securityContext leaves out is set as restrictively"
            " as the broker's. The operator's own (broker, fence) cannot be changed here.",
            extra_json_schema=bounds.map_list("name"),
        ),
    ] = []
    broker: BrokerContainerSpec = BrokerContainerSpec()
    init_containers: Annotated[
        list[Annotated[bounds.JsonObject, Meta(extra_json_schema=named("container"))]],
        Meta(
            max_length=8,
            description="Init containers: they run and end before the broker starts, as in a PodSpec.",
            extra_json_schema=bounds.map_list("name"),
        ),
    ] = []
    volumes: Annotated[
        list[Annotated[bounds.JsonObject, Meta(extra_json_schema=named("volume"))]],
        Meta(
            max_length=16,
            description="Further volumes, as in a PodSpec. The operator's own (store, commitlog, config, run,"
            " brokergroup-certificate) cannot be changed here.",
            extra_json_schema=bounds.map_list("name"),
        ),
    ] = []
    host_aliases: Annotated[
        list[Annotated[bounds.JsonObject, Meta(extra_json_schema=OPEN_OBJECT)]],
        Meta(
            max_length=32,
            description="Further lines of /etc/hosts, as in a PodSpec.",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ] = []
    dns_config: Annotated[
        bounds.JsonObject, Meta(description="DNS settings of the pods, as in a PodSpec.", extra_json_schema=OPEN_OBJECT)
    ] = {}
    runtime_class_name: Annotated[
        bounds.ObjectName | None, Meta(description="RuntimeClass of the pods. Absent: the node's default.")
    ] = None
    scheduler_name: Annotated[
        bounds.ObjectName | None, Meta(description="Scheduler of the pods. Absent: the cluster's default.")
    ] = None
    service_account_name: Annotated[
        bounds.ObjectName | None,
        Meta(
            description="ServiceAccount of the pods, for image pull secrets and admission policies; its token is not mounted."
            " Absent: `default`."
        ),
    ] = None

    RULES: ClassVar[tuple[Rule, ...]] = (
        _not_of_the_operator("containers", names.OWN_CONTAINERS),
        _not_of_the_operator("initContainers", names.OWN_CONTAINERS),
        _not_of_the_operator("volumes", names.OWN_VOLUMES),
        Rule(
            "self.initContainers.all(item, !self.containers.exists(other, other.name == item.name))",
            "initContainers and containers may not have one name: a pod's containers are told apart by it",
            field_path=".initContainers",
        ),
        Rule(
            "self.broker.volumeMounts.all(item, self.volumes.exists(volume, volume.name == item.name))",
            "broker.volumeMounts must name volumes of podTemplate.spec.volumes",
            field_path=".broker.volumeMounts",
        ),
    )


class PodTemplateSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """What is added to each pod that the operator creates. A change is a rolling update."""

    metadata: TemplateMetadata = TemplateMetadata()
    spec: TemplateSpec = TemplateSpec()
