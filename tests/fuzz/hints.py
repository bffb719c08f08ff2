"""Facts outside the schema: the cluster's objects, and values of Kubernetes' own types.

The world (`world.py`) has the ConfigMaps, Secrets, images and node labels named here, except those like "no-such-secret".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

IMAGE, UNPULLABLE = "example.com/broker:1", "example.com/unpullable:1"
SECRET, MISSING_SECRET = "credentials", "no-such-secret"
CONFIG_MAP, RESERVED_CONFIG_MAP, MISSING_CONFIG_MAP = "more-config", "reserved-config", "no-such-config"
NODE_LABELS: Final = {"disk": "fast", "kubernetes.io/os": "linux"}
# Fields without support in the world: its brokers need claims, and a pod without one never starts there.
BEYOND_THIS_WORLD: Final = ("spec.storage.ephemeral",)
# Other differences if an irreversible field stays: a pod is created for a given address family.
KEPT_SHOWS_IN: Final = {"ipFamilies": ("/data/broker.conf:", "/brokergroup.dev/config-hash:", "/env:", "/command/")}
AMOUNTS = ("1", "250m", "0.5", "64Mi", "1Gi", "1.5Gi", "2G")


@dataclass(frozen=True)
class Hint:
    """Meaningful values of a field. `only`: no other value is meaningful."""

    values: tuple[Any, ...]
    only: bool = False


CONTAINERS = (
    {"name": "sidecar", "image": IMAGE},
    {"name": "sidecar", "image": IMAGE, "resources": {"limits": {"cpu": "1"}}},
    {"name": "other", "image": IMAGE, "env": [{"name": "A", "value": "b"}]},
    # Values that only Kubernetes refuses.
    {"name": "without-image"},
    {"name": "Bad_Name", "image": IMAGE},
    {"name": "mounts", "image": IMAGE, "volumeMounts": [{"name": "nowhere", "mountPath": "/x"}]},
    {"name": "unknown", "image": IMAGE, "imaginary": True},
)
HINTS: Final = {
    "spec.version": Hint(("5.1.1", "5.3.0", "5.5.0", "6.0.0", "5.1.0")),
    "spec.image": Hint((IMAGE, "example.com/broker:2", UNPULLABLE)),
    # Larger than anything a claim of the base has; a quantity is no text that a pattern could order.
    "spec.storage.size": Hint(("8Gi", "9Gi", "0.5Ti", "10G", "1Gi")),
    # No pattern orders them: the rule of an address is in CEL, for the sake of its words.
    "spec.nameServers[]": Hint(("ns:9876", "ns-0.mq.svc:9876", "10.0.0.1:9876", "[fd00::10]:9876", "fd00::10:9876")),
    # A name of the time zone database is nothing that a pattern draws.
    "spec.slo.timeZone": Hint(("UTC", "Asia/Shanghai", "Europe/Berlin", "Europe/Berln")),
    "spec.updateStrategy.windows[].timeZone": Hint(("UTC", "Europe/Berlin", "Europe/Berln"), only=True),
    "spec.replicas": Hint((1, 2, 3, 4, 5)),
    # As numbers of the same few replicas: larger ones are refused, whatever else is drawn.
    "spec.replication.learners": Hint((0, 1, 2)),
    "spec.replication.minInSyncReplicas": Hint((1, 2, 3)),
    "spec.resources.requests{key}": Hint(("cpu", "memory", "ephemeral-storage"), only=True),
    "spec.resources.limits{key}": Hint(("cpu", "memory", "ephemeral-storage"), only=True),
    "spec.resources.requests{}": Hint(AMOUNTS),
    "spec.resources.limits{}": Hint(AMOUNTS),
    "spec.config{key}": Hint(("fileReservedTime", "mappedFileSizeCommitLog", "haMaxTimeSlaveNotCatchup", "brokerId")),
    "spec.config{}": Hint(("48", "1048576", "5000")),
    "spec.configFrom[].configMapRef.name": Hint((CONFIG_MAP, RESERVED_CONFIG_MAP, MISSING_CONFIG_MAP), only=True),
    "spec.security.credentialsSecretRef.name": Hint((SECRET, SECRET, MISSING_SECRET), only=True),
    # No operator here has TLS: a named certificate is reported.
    "spec.security.certificateSecretRef.name": Hint(("certificate", "renewed"), only=True),
    "spec.failover.preferredMaster": Hint((1, 2, 3)),
    "spec.failover.priorities[].brokerId": Hint((1, 2, 3)),
    "spec.failover.priorities[].priority": Hint((0, 1, 7)),
    "spec.podTemplate.spec.nodeSelector{key}": Hint((*NODE_LABELS, "zone")),
    "spec.podTemplate.spec.nodeSelector{}": Hint((*NODE_LABELS.values(),)),
    "spec.podTemplate.spec.affinity": Hint(
        (
            {},
            {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack"}]}},
            {"podAntiAffinity": {"imaginary": []}},
        )
    ),
    "spec.podTemplate.spec.containers[]": Hint(CONTAINERS, only=True),
    "spec.podTemplate.spec.initContainers[]": Hint(CONTAINERS, only=True),
    "spec.podTemplate.spec.volumes[]": Hint(
        ({"name": "scratch", "emptyDir": {}}, {"name": "Bad_Volume", "emptyDir": {}}, {"name": "x", "imaginary": {}}),
        only=True,
    ),
    "spec.podTemplate.spec.broker.env[]": Hint(
        ({"name": "A", "value": "b"}, {"name": "STORE_DIR", "value": "/tmp"}, {"name": "C", "imaginary": 1}), only=True
    ),
    "spec.podTemplate.spec.broker.volumeMounts[]": Hint(
        ({"name": "scratch", "mountPath": "/scratch"}, {"name": "missing", "mountPath": "/a"}), only=True
    ),
    # The name of a volume above.
    "spec.podTemplate.spec.broker.volumeMounts[].name": Hint(("scratch",)),
    "spec.podTemplate.spec.hostAliases[]": Hint(({"ip": "10.0.0.9", "hostnames": ["ns"]}, {"imaginary": 1})),
    "spec.podTemplate.spec.dnsConfig": Hint(({}, {"nameservers": ["10.0.0.2"]}, {"imaginary": 1})),
}
