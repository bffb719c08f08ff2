"""Builds the pod of one member: pure, from the group, the member and the settings.

The pod is restricted (no root, no writable root file system, no capabilities, no API token). Where a process has no mount
namespace of its own, all paths reach it through the environment, so nothing here names a path twice.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.reconcile import identity, quantities
from brokergroup_operator.reconcile.broker_config import CREDENTIALS_FORM, CREDENTIALS_KEY, broker_conf, content_hash

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup, BrokerGroupSpec
    from brokergroup_operator.reconcile.identity import Member
    from brokergroup_operator.reconcile.settings import ReconcileSettings

# The user of the image apache/rocketmq (ha-and-deployment.md F.1).
BROKER_UID: Final = 3000
JAVA_MAIN_CLASS: Final = "org.apache.rocketmq.broker.BrokerStartup"
DEFAULT_JAVA_MEBIBYTES: Final = 512
# Properties know no substitution, so sed fills in what only the pod knows.
JAVA_RENDER: Final = (
    r'sed -e "s|\${POD_IP}|$POD_IP|g" -e "s|\${STORE_DIR}|$STORE_DIR|g"'
    ' "$CONFIG_DIR/broker.conf" > "$RUN_DIR/broker.conf"'
)
# The secret is written by the shell itself: as an argument of another program it would stand in the process list.
JAVA_RENDER_CREDENTIALS: Final = (
    f"printf '{CREDENTIALS_KEY}={CREDENTIALS_FORM.format('%s', '%s')}\\n'"
    f' "${names.ENVIRONMENT_ACCESS_KEY}" "${names.ENVIRONMENT_SECRET_KEY}" >> "$RUN_DIR/broker.conf"'
)


def build_pod(group: BrokerGroup, member: Member, settings: ReconcileSettings) -> JsonObject:
    spec = _pod_spec(group, member, settings)
    metadata = identity.object_metadata(group, member.pod, identity.member_labels(group, member))
    metadata["annotations"] = {
        names.ANNOTATION_CONFIG_HASH: content_hash(broker_conf(group, settings)),
        names.ANNOTATION_REVISION: pod_revision(spec),
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def pod_revision(spec: JsonObject) -> str:
    """Changes when the pod should run something else; what API servers add to a pod does not count."""
    return content_hash(json.dumps(spec, sort_keys=True))


def image(spec: BrokerGroupSpec, settings: ReconcileSettings) -> str:
    if spec.image is not None:
        return spec.image
    if spec.implementation is Implementation.REPLICA:
        return settings.replica_image
    return f"{settings.rocketmq_image_repository}:{spec.version or settings.rocketmq_version}"


def _pod_spec(group: BrokerGroup, member: Member, settings: ReconcileSettings) -> JsonObject:
    return {
        "containers": [_container(group.spec, settings)],
        "volumes": [
            {"name": names.VOLUME_STORE, "persistentVolumeClaim": {"claimName": member.pod}},
            {"name": names.VOLUME_CONFIG, "configMap": {"name": names.config_map_name(identity.name_of(group))}},
            {"name": names.VOLUME_RUN, "emptyDir": {}},
        ],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": group.spec.termination_grace_period_seconds,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # A stable name `<pod>.<group>-members`; the pod's address changes with every start.
        "hostname": member.pod,
        "subdomain": names.members_service_name(identity.name_of(group)),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": BROKER_UID,
            "runAsGroup": BROKER_UID,
            "fsGroup": BROKER_UID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "affinity": _spread_over_nodes(group),
    }


def _spread_over_nodes(group: BrokerGroup) -> JsonObject:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": identity.selector_labels(group)}}
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def _container(spec: BrokerGroupSpec, settings: ReconcileSettings) -> JsonObject:
    container: JsonObject = {
        "name": names.CONTAINER_BROKER,
        "image": image(spec, settings),
        "command": command(spec),
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "STORE_DIR", "value": names.STORE_DIR},
            {"name": "CONFIG_DIR", "value": names.CONFIG_DIR},
            {"name": "RUN_DIR", "value": names.RUN_DIR},
            *_credentials(spec),
        ],
        "ports": [
            {"name": "broker", "containerPort": names.BROKER_PORT},
            {"name": "ha", "containerPort": names.HA_PORT},
        ],
        "volumeMounts": [
            {"name": names.VOLUME_STORE, "mountPath": names.STORE_DIR},
            {"name": names.VOLUME_CONFIG, "mountPath": names.CONFIG_DIR, "readOnly": True},
            {"name": names.VOLUME_RUN, "mountPath": names.RUN_DIR},
        ],
        # Never the HA port: each probe of it would make a Java broker keep an HA connection (ha-and-deployment.md F.3).
        "readinessProbe": {
            "tcpSocket": {"port": names.BROKER_PORT},
            "periodSeconds": 1,
            "timeoutSeconds": 1,
            "failureThreshold": 3,
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    resources = {
        name: values
        for name, values in (("requests", spec.resources.requests), ("limits", spec.resources.limits))
        if values
    }
    return container | ({"resources": resources} if resources else {})


def _credentials(spec: BrokerGroupSpec) -> list[JsonObject]:
    """From the Secret itself: the pod waits for it, and no object of ours repeats it."""
    secret = spec.security.credentials_secret_name
    if secret is None:
        return []
    return [
        {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for variable, key in (
            (names.ENVIRONMENT_ACCESS_KEY, names.CREDENTIALS_ACCESS_KEY),
            (names.ENVIRONMENT_SECRET_KEY, names.CREDENTIALS_SECRET_KEY),
        )
    ]


def command(spec: BrokerGroupSpec) -> list[str]:
    if spec.implementation is Implementation.REPLICA:
        return ["brokergroup", "replica", "--config", f"{names.CONFIG_DIR}/{names.CONFIG_FILE}"]
    # `exec` makes the JVM process 1: SIGTERM reaches it (ha-and-deployment.md F.3, "Shutdown").
    start = (
        f"exec java {' '.join(java_arguments(spec))}"
        ' -Duser.home="$RUN_DIR" -Djava.io.tmpdir="$RUN_DIR" -Drocketmq.home.dir="$ROCKETMQ_HOME"'
        f' -cp "$ROCKETMQ_HOME/lib/*" {JAVA_MAIN_CLASS} -c "$RUN_DIR/broker.conf"'
    )
    render = JAVA_RENDER
    if spec.security.credentials_secret_name is not None:
        render = f"(umask 077 && {JAVA_RENDER} && {JAVA_RENDER_CREDENTIALS})"
    return ["sh", "-c", f"{render} && {start}"]


def java_arguments(spec: BrokerGroupSpec) -> list[str]:
    """Heap and direct memory as shares of limits.memory, then what the user adds, which therefore wins."""
    heap = direct = DEFAULT_JAVA_MEBIBYTES
    if limit := spec.resources.limits.get("memory"):
        mebibytes = quantities.parse(limit) / 2**20
        heap = int(mebibytes * spec.jvm.heap_percent / 100)
        direct = int(mebibytes * spec.jvm.direct_memory_percent / 100)
    return [
        f"-Xms{heap}m",
        f"-Xmx{heap}m",
        f"-XX:MaxDirectMemorySize={direct}m",
        "-XX:+UseG1GC",
        "-XX:-UseLargePages",
        "-XX:-UsePerfData",
        *spec.jvm.extra_arguments,
    ]
