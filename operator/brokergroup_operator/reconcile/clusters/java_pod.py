"""The pod of a Java program that keeps nothing on disk: a NameServer, a Proxy. As Pod Security "restricted" wants it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from brokergroup_operator.api.definitions.schema import without_nulls
from brokergroup_operator.reconcile.render.fence_container import restricted
from brokergroup_operator.reconcile.render.scheduling import scheduling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.pod_fields import AntiAffinitySpec, PlacementSpec, ResourceRequirements
    from brokergroup_operator.api.rocketmq_cluster import ClusterSpec

# The user of RocketMQ's own image.
USER: Final = 3000
RUN_DIR: Final = "/var/run/rocketmq"
# Without a limit of memory; with one the JVM takes half of it.
DEFAULT_HEAP: Final = "-Xms256m -Xmx256m"
HEAP_OF_LIMIT: Final = "-XX:InitialRAMPercentage=50 -XX:MaxRAMPercentage=50"


@dataclass(frozen=True, kw_only=True)
class Program:
    """What differs between the two."""

    name: str
    main_class: str
    arguments: str
    ports: Mapping[str, int]
    # Which of the ports says that it is ready.
    ready: str
    grace_seconds: int
    # A ConfigMap that is mounted at /etc/rocketmq; none where it is empty.
    config_map: str = ""


def template(
    program: Program,
    spec: ClusterSpec,
    *,
    image: str,
    resources: ResourceRequirements,
    apart: AntiAffinitySpec,
    wish: PlacementSpec,
    labels: Mapping[str, str],
    selector: Mapping[str, str],
) -> JsonObject:
    """The pod template of a StatefulSet or Deployment."""
    volumes: list[JsonObject] = [{"name": "run", "emptyDir": {}}]
    if program.config_map:
        volumes.append({"name": "config", "configMap": {"name": program.config_map}})
    pod: JsonObject = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": program.grace_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(program, spec, image=image, resources=resources)],
        "volumes": volumes,
        **scheduling(apart, wish, selector),
    }
    if spec.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": one.name} for one in spec.image_pull_secrets]
    return {"metadata": {"labels": dict(labels)}, "spec": pod}


def _container(program: Program, spec: ClusterSpec, *, image: str, resources: ResourceRequirements) -> JsonObject:
    heap = HEAP_OF_LIMIT if "memory" in resources.limits else DEFAULT_HEAP
    # `exec` makes the JVM process 1: SIGTERM reaches it.
    command = (
        f'exec java {heap} -XX:+UseSerialGC -XX:-UsePerfData -Duser.home="$RUN_DIR" -Djava.io.tmpdir="$RUN_DIR"'
        f' -Drocketmq.home.dir="$ROCKETMQ_HOME" -cp "$ROCKETMQ_HOME/lib/*" {program.main_class}{program.arguments}'
    )
    mounts: list[JsonObject] = [{"name": "run", "mountPath": RUN_DIR}]
    if program.config_map:
        mounts.append({"name": "config", "mountPath": "/etc/rocketmq", "readOnly": True})
    asked = without_nulls(msgspec.to_builtins(resources))
    return {
        "name": program.name,
        "image": image,
        "imagePullPolicy": spec.image_pull_policy.value,
        "command": ["sh", "-c", command],
        "env": [{"name": "RUN_DIR", "value": RUN_DIR}],
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in program.ports.items()],
        "readinessProbe": {"tcpSocket": {"port": program.ready}, "periodSeconds": 1, "failureThreshold": 3},
        # RocketMQ has no health request without a port that serves: a program that hangs for a minute is started anew.
        "livenessProbe": {
            "tcpSocket": {"port": program.ready},
            "initialDelaySeconds": 60,
            "periodSeconds": 10,
            "failureThreshold": 6,
        },
        "securityContext": restricted(),
        "volumeMounts": mounts,
    } | ({"resources": {key: value for key, value in asked.items() if value}} if any(asked.values()) else {})
