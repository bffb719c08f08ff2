"""Builds the fence inside a pod: the second container, which kills a broker that can't be reached from outside its pod. Pure.

It shares the pod's process namespace and the broker's user, so it needs no capability; it speaks to controllers and to the fences
of the group, never to the Kubernetes API. What it does: `brokergroup_operator.fence` (docs/concepts/architecture.md, rule 7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from brokergroup_operator.api import names, pod_fence
from brokergroup_operator.api.network_fields import Addressing
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.render import certificate
from brokergroup_operator.reconcile.render.addressing import environment, known_host, own_hosts, pod_addresses
from brokergroup_operator.reconcile.render.broker_config import broker_name, hand_over_seconds

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup, BrokerGroupSpec
    from brokergroup_operator.reconcile.render.addressing import Place
    from brokergroup_operator.reconcile.settings import ReconcileSettings

# Not `brokergroup fence`: the command line alone would need more memory than the fence.
COMMAND: Final = ("python", "-m", "brokergroup_operator.fence")
# Beside a Python broker: it sleeps until it is ordered to kill or the pod is deleted, and asks no peers (`fence/deletion.py`).
COMMAND_AT_DELETION: Final = ("python", "-m", "brokergroup_operator.fence.deletion")
PRE_STOP_STEPS_PER_SECOND: Final = 10
# A guarantee, with no limit beside it: a throttled fence is a frozen one. It uses 6m, and 10m while it asks; shares decide how
# soon it is woken.
# Beside 16 busy threads of a broker that asks for 2 CPUs, on 2 CPUs, it was late by 333 ms with 10m, and by 43 ms with 50m.
CPU_REQUEST: Final = "50m"


def restricted() -> JsonObject:
    """A container as Pod Security "restricted" wants it, with a read-only root file system."""
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def container(group: BrokerGroup, settings: ReconcileSettings, *, place: Place | None = None) -> JsonObject:
    """The fence as this group's brokers need it."""
    isolates = pod_fence.kills_the_isolated(group.spec)
    own = _for_java(group, settings, place) if isolates else _for_replica(group.spec, settings)
    requests = {"cpu": CPU_REQUEST, "memory": "32Mi"} if isolates else {"cpu": "5m", "memory": "24Mi"}
    return {
        "name": names.CONTAINER_FENCE,
        "image": settings.replica_image,
        "imagePullPolicy": group.spec.image_pull_policy.value,
        **own,
        "securityContext": restricted(),
        "resources": {"requests": requests, "limits": {"memory": "64Mi"}},
    }


def without_release(container: JsonObject) -> JsonObject:
    """A container as pods are compared: a fence without what the operator's release and its number of pods decide.

    A running fence learns other addresses from the controllers that it asks.
    """
    if container["name"] != names.CONTAINER_FENCE:
        return container
    kept = {field: value for field, value in container.items() if field not in {"image", "command", "resources"}}
    return kept | {"env": [entry for entry in container["env"] if entry["name"] != pod_fence.FENCE_CONTROLLERS]}


def knows_a_controller(pod: JsonObject, wanted: JsonObject) -> bool:
    """Whether the fence was given an address that the wanted one gets too, so that it can learn the others; or it asks none."""
    given, now = (set(pod_fence.controllers_of(each).split(";")) for each in (pod, wanted))
    return bool(given & now)


def _for_replica(spec: BrokerGroupSpec, settings: ReconcileSettings) -> JsonObject:
    """It waits for the pod's deletion, and where there is a key for the operator's order."""
    own: JsonObject = {"command": list(COMMAND_AT_DELETION), "env": _marks()}
    if settings.fence_keys is None:
        return own
    own["env"] += [
        *pod_addresses(spec),
        {"name": "FENCE_LOCAL_ADDRESS", "value": f"$({own_hosts(spec, 'POD_IP')}):{spec.network.listen_port}"},
        *certificate.key_environment(settings),
    ]
    return own | {"ports": [_port(spec)], "volumeMounts": certificate.key_mounts(settings)}


def _port(spec: BrokerGroupSpec) -> JsonObject:
    return {
        "name": names.PORT_FENCE,
        "containerPort": spec.network.listen_port + names.FENCE_PORT_OFFSET,
        "protocol": "UDP",
    }


def _for_java(group: BrokerGroup, settings: ReconcileSettings, place: Place | None) -> JsonObject:
    """It also kills a master that is cut off or was frozen, so it gets the addresses to ask and how long to wait."""
    spec = group.spec
    port, times = spec.network.listen_port, spec.failover.times
    return {
        "command": list(COMMAND),
        "env": [
            {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
            *pod_addresses(spec),
            {"name": "BROKERGROUP_CONTAINER", "value": names.CONTAINER_FENCE},
            {"name": "RUN_DIR", "value": names.RUN_DIR},
            {"name": "FENCE_BROKER_NAME", "value": broker_name(str(group.metadata["name"]), spec)},
            *environment(spec, place),
            {"name": "FENCE_BROKER_ADDRESS", "value": f"$({own_hosts(spec, known_host(spec))}):{port}"},
            {"name": "FENCE_LOCAL_ADDRESS", "value": f"$({own_hosts(spec, 'POD_IP')}):{port}"},
            {"name": pod_fence.FENCE_CONTROLLERS, "value": ";".join(settings.controller_addresses)},
            {"name": "FENCE_ISOLATION_MILLISECONDS", "value": str(times.isolation_milliseconds)},
            {"name": pod_fence.FENCE_TIMEOUT, "value": str(times.fence_milliseconds)},
            {"name": pod_fence.FENCE_HEARTBEAT_TIMEOUT, "value": str(times.heartbeat_timeout_milliseconds)},
            {
                "name": "FENCE_HEARTBEAT_INTERVAL_MILLISECONDS",
                "value": str(times.heartbeat_interval_milliseconds),
            },
            *_pods(group),
            *_tls(spec, settings),
            *certificate.key_environment(settings),
        ],
        "ports": [_port(spec)],
        "volumeMounts": [
            {"name": names.VOLUME_RUN, "mountPath": names.RUN_DIR},
            *_mounts(spec, settings),
            *certificate.key_mounts(settings),
        ],
    }


def with_times_of(group: BrokerGroup, pod: JsonObject) -> BrokerGroup:
    """The group with the heartbeat timeout that the pod was made with, if that is shorter than the present one: it may keep it.

    All that its fence does must be done before the operator elects; by shorter times it does so sooner, and its broker sends
    heartbeats more often. A fence with longer times would kill too late: its pod must be made anew. A pod whose fence was told no
    times keeps none.
    """
    told = pod_fence.told(pod, pod_fence.FENCE_HEARTBEAT_TIMEOUT)
    if told is None or told >= group.spec.failover.heartbeat_timeout_milliseconds:
        return group
    failover = replace(group.spec.failover, heartbeat_timeout_milliseconds=told)
    return replace(group, spec=replace(group.spec, failover=failover))


def _pods(group: BrokerGroup) -> list[JsonObject]:
    """Where fences find each other behind load balancers, which carry no UDP: else an outage would look like isolation to each."""
    if group.spec.network.addressing is not Addressing.LOAD_BALANCER:
        return []
    service = names.members_service_name(identity.name_of(group))
    return [{"name": "FENCE_PODS", "value": f"{service}.{identity.namespace_of(group)}"}]


def _tls(spec: BrokerGroupSpec, settings: ReconcileSettings) -> list[JsonObject]:
    """TLS as for connections to the operator, and from it to brokers. The same in both modes: `enforcing` restarts no pod."""
    entries: list[JsonObject] = []
    if settings.controller_tls:
        entries.append({"name": "FENCE_CONTROLLER_TLS", "value": "true"})
        if settings.controller_authority is not None:
            path = f"{names.CONFIG_DIR}/{names.AUTHORITY_FILE}"
            entries.append({"name": "FENCE_CONTROLLER_CA", "value": path})
        entries += certificate.fence_environment(spec)
    if settings.broker_tls:
        entries.append({"name": "FENCE_BROKER_TLS", "value": "true"})
    return entries


def _mounts(spec: BrokerGroupSpec, settings: ReconcileSettings) -> list[JsonObject]:
    """Whole volumes, not files: a single file would not follow a new authority or a renewed certificate."""
    authority = {"name": names.VOLUME_CONFIG, "mountPath": names.CONFIG_DIR, "readOnly": True}
    own = certificate.mounts(spec) if settings.controller_tls else []
    return [*([authority] if settings.controller_authority is not None else []), *own]


def broker_environment() -> list[JsonObject]:
    """The variable by which the fence finds the broker's processes among all that it sees."""
    return _marks(names.CONTAINER_BROKER)


def _marks(container_name: str = names.CONTAINER_FENCE) -> list[JsonObject]:
    return [
        {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": "BROKERGROUP_CONTAINER", "value": container_name},
    ]


def broker_lifecycle(spec: BrokerGroupSpec) -> JsonObject:
    """SIGTERM waits until the fence notes that the broker is no master, or a bound: a plain one leaves no master for about 9 s."""
    wait = (
        f"i=0; while [ $i -lt {hand_over_seconds(spec) * PRE_STOP_STEPS_PER_SECOND} ]"
        ' && [ "$(cat "$RUN_DIR/role" 2>/dev/null)" = master ]; do sleep 0.1; i=$((i+1)); done'
    )
    return {"preStop": {"exec": {"command": ["sh", "-c", wait]}}}
