"""Names this project puts on Kubernetes objects: group, labels, annotations, finalizers, field managers, and what annotations say.

Names are API: users' tools, dashboards and Services select by them, so they change only with a new API version.
Kubernetes' recommended labels describe an object; everything of ours has the group's own prefix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject


GROUP: Final = "brokergroup.dev"
VERSION: Final = "v1beta1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

BROKER_GROUP_KIND: Final = "BrokerGroup"
BROKER_GROUP_STATE_KIND: Final = "BrokerGroupState"
BROKER_GROUP_OPERATION_KIND: Final = "BrokerGroupOperation"
ROCKETMQ_CLUSTER_KIND: Final = "RocketMQCluster"

LABEL_CLUSTER: Final = f"{GROUP}/cluster"
# On everything that a RocketMQCluster is made of, its BrokerGroups too.
LABEL_ROCKETMQ_CLUSTER: Final = f"{GROUP}/rocketmq-cluster"
LABEL_BROKER_GROUP: Final = f"{GROUP}/broker-group"
LABEL_BROKER_ID: Final = f"{GROUP}/broker-id"
# On a pod that copies a group's store, which is none of its members, and on the VolumeSnapshots of a Backup.
LABEL_COPIES_FOR: Final = f"{GROUP}/copies-for"
# The role moves between pods at a failover; the Services `<group>-master` and `<group>-slaves` select by it.
LABEL_ROLE: Final = f"{GROUP}/role"
ROLE_MASTER: Final = "master"
ROLE_SLAVE: Final = "slave"
ROLE_LEARNER: Final = "learner"

LABEL_APP_NAME: Final = "app.kubernetes.io/name"
LABEL_APP_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_APP_PART_OF: Final = "app.kubernetes.io/part-of"
LABEL_APP_VERSION: Final = "app.kubernetes.io/version"
LABEL_APP_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
# Belongs to the release (Helm), and by default to Argo CD, which prunes unowned objects with this label. We do not set it, and
# remove it from objects of older versions.
LABEL_APP_INSTANCE: Final = "app.kubernetes.io/instance"
APP_NAME: Final = "rocketmq-broker"
APP_NAME_SERVER: Final = "rocketmq-nameserver"
APP_PROXY: Final = "rocketmq-proxy"
MANAGED_BY: Final = "brokergroup-operator"
# The Lease, unless `--lease-name` names another; the chart names it after its release.
DEFAULT_LEASE: Final = "brokergroup-operator"
# On the operator's own pods, by the chart: a release may change app.kubernetes.io/name (nameOverride), but not this.
LABEL_COMPONENT: Final = f"{GROUP}/component"
COMPONENT_OPERATOR: Final = "operator"

ANNOTATION_CONFIG_HASH: Final = f"{GROUP}/config-hash"
ANNOTATION_REVISION: Final = f"{GROUP}/revision"
# On a BrokerGroup: a person accepts that the brokers' master epoch is up to this number (docs/concepts/architecture.md, rule 3).
ANNOTATION_ACCEPT_EPOCH: Final = f"{GROUP}/accept-epoch"
# On a BrokerGroup: epoch and broker id, as `EPOCH/ID`, above which it began with a backup.
ANNOTATION_BEGUN_ABOVE: Final = f"{GROUP}/begun-above"
# On a BrokerGroup: a person accepts that its brokers go back to this version, although they lose state by it.
ANNOTATION_ACCEPT_VERSION: Final = f"{GROUP}/accept-version"
# On a claim: the version of the broker that has written it last. On a pod and on a claim: the keys of `api/versions.py` FEATURES
# with which that broker was made.
ANNOTATION_VERSION: Final = f"{GROUP}/version"
ANNOTATION_FEATURES: Final = f"{GROUP}/features"
# On a BrokerGroup: another value restarts its pods one by one. Kubernetes' own annotation.
ANNOTATION_RESTARTED_AT: Final = "kubectl.kubernetes.io/restartedAt"
# On a pod: the hot keys that its process was given last; the operation in whose course it was made; that it is to leave the group.
ANNOTATION_HOT_CONFIG: Final = f"{GROUP}/hot-config"
ANNOTATION_HOT_CONFIG_RESTARTS: Final = f"{GROUP}/hot-config-restarts"
ANNOTATION_OPERATION: Final = f"{GROUP}/operation"
ANNOTATION_LEAVING: Final = f"{GROUP}/leaving"
# On a claim: the deployment that its store was released to, and the group's spec.config of then, in JSON. No pod starts on it.
ANNOTATION_RELEASED_TO: Final = f"{GROUP}/released-to"
ANNOTATION_RELEASED_CONFIG: Final = f"{GROUP}/released-config"
# On a claim: `adopt claims` has made it, and has not written the group's record yet. No pod starts on it.
ANNOTATION_ADOPT_UNFINISHED: Final = f"{GROUP}/adopt-unfinished"
# On a pod: its fence stops the broker and keeps it stopped. On a claim: its broker was stopped so, and so is that of a later pod.
ANNOTATION_STOPPED: Final = f"{GROUP}/stopped"
# On a pod: when that order was taken back. Its container has run since long before.
ANNOTATION_STARTED_AT: Final = f"{GROUP}/started-at"
# On a pod: the address (host:port) by which its broker is known, where that is not the pod's own; ":port" is at its node's address.
ANNOTATION_ADDRESS: Final = f"{GROUP}/address"
# On a pod: the uid of the BrokerGroup that it was made for. Its fence's key is made from it, also after that group was orphaned.
ANNOTATION_GROUP_UID: Final = f"{GROUP}/group-uid"
# On a BrokerGroup whose brokers acknowledge nothing any more: the uid of the Retire operation that is about to delete it.
ANNOTATION_CLOSED_BY: Final = f"{GROUP}/closed-by"
# On a VolumeSnapshot: the uids of the Backup that has made it and of the pod that was stopped for it; and what all snapshots of
# that Backup are of, written when all are ready.
ANNOTATION_SNAPSHOT_OF: Final = f"{GROUP}/snapshot-of"
ANNOTATION_MANIFEST: Final = f"{GROUP}/backup-manifest"
# On a BrokerGroup that adopts unowned objects.
ANNOTATION_TAKES_BACK: Final = f"{GROUP}/takes-back"
# On a pod: "true" if its broker was started as an async learner.
# On an Event: its change of master.
ANNOTATION_INCIDENT: Final = f"{GROUP}/incident"
ANNOTATION_LEARNER: Final = f"{GROUP}/learner"
# On a pod: the mode of spec.tls with which it was made; absent without TLS.
ANNOTATION_TLS: Final = f"{GROUP}/tls"
# On a pod: the file of the authorities that it trusts; absent where it trusts those of its Secret, or any.
ANNOTATION_TRUST: Final = f"{GROUP}/trust"

# On a BrokerGroup: namespace and name of the Lease whose holder alone reconciles it (docs/adr/0010).
ANNOTATION_OWNER: Final = f"{GROUP}/owner"
ANNOTATION_OPERATOR: Final = f"{GROUP}/operator"

# Held by a BrokerGroup until its children are gone: nothing rests on the owner garbage collector.
FINALIZER_BROKER_GROUP: Final = f"{GROUP}/brokergroup"
# Held by the pod of a fenced master until its containers are reported terminated (docs/concepts/architecture.md, rule 7).
FINALIZER_FENCE: Final = f"{GROUP}/fence"
# Held by the pod that a Backup stops, until its kubelet reports that its containers have ended (docs/adr/0023).
FINALIZER_BACKUP: Final = f"{GROUP}/backup"

# On a BrokerGroupState: the id of the write, by which a write with an unknown outcome is found.
ANNOTATION_LAST_WRITE: Final = f"{GROUP}/last-write"

FIELD_MANAGER_CONTROLLER: Final = "brokergroup-controller"
FIELD_MANAGER_RECONCILE: Final = "brokergroup-reconcile"
FIELD_MANAGER_STATUS: Final = "brokergroup-status"
FIELD_MANAGER_FAILOVERS: Final = "brokergroup-failovers"
FIELD_MANAGER_ROLE: Final = "brokergroup-role"
FIELD_MANAGER_CLUSTER: Final = "brokergroup-cluster"
FIELD_MANAGER_DURABILITY: Final = "brokergroup-durability"

# The keys of the Secret that spec.security.credentialsSecretRef names.
CREDENTIALS_ACCESS_KEY: Final = "accessKey"
CREDENTIALS_SECRET_KEY: Final = "secretKey"  # noqa: S105 (the key of an entry)
# The keys of the Secret that spec.security.certificateSecretRef names: Kubernetes' own, of type kubernetes.io/tls.
CERTIFICATE_FILE: Final = "tls.crt"
CERTIFICATE_KEY_FILE: Final = "tls.key"
# Beside them in that of spec.tls.certificateSecretRef: as cert-manager writes it.
CERTIFICATE_AUTHORITY_FILE: Final = "ca.crt"
# The environment variables of a broker's container that carry the credentials.
ENVIRONMENT_ACCESS_KEY: Final = "BROKER_ACCESS_KEY"
ENVIRONMENT_SECRET_KEY: Final = "BROKER_SECRET_KEY"  # noqa: S105 (the name of a variable)
# The broker's known address, if that is not its pod's.
ENVIRONMENT_BROKER_HOST: Final = "BROKER_HOST"
ENVIRONMENT_LISTEN_PORT: Final = "LISTEN_PORT"
# Which of the pod's and the node's addresses it uses, if the group names an IP family.
ENVIRONMENT_IP_FAMILY: Final = "POD_IP_FAMILY"
ENVIRONMENT_POD_IPS: Final = "POD_IPS"
ENVIRONMENT_NODE_IPS: Final = "NODE_IPS"
# Not empty while the broker is to be stopped (`render/stop_gate.py`).
ENVIRONMENT_STOP_ORDER_FILE: Final = "STOP_ORDER_FILE"
# Of the fence alone.
ENVIRONMENT_STOP_GRACE: Final = "STOP_GRACE_SECONDS"
# A node's zone, by Kubernetes' own label.
LABEL_ZONE: Final = "topology.kubernetes.io/zone"
# A node's rack; not a standard label, but the most common one.
LABEL_RACK: Final = "topology.kubernetes.io/rack"
# A BrokerGroup's tenant; reports are divided by it.
LABEL_TENANT: Final = f"{GROUP}/tenant"

CONTAINER_BROKER: Final = "broker"
CONTAINER_FENCE: Final = "fence"
VOLUME_STORE: Final = "store"
VOLUME_COMMIT_LOG: Final = "commitlog"
VOLUME_CONFIG: Final = "config"
VOLUME_RUN: Final = "run"
VOLUME_CERTIFICATE: Final = "brokergroup-certificate"
VOLUME_TLS: Final = "brokergroup-tls"
VOLUME_TRUST: Final = "brokergroup-trust"
VOLUME_FENCE_KEY: Final = "brokergroup-fence-key"
VOLUME_ORDERS: Final = "brokergroup-orders"
# A pod template can't change these.
OWN_CONTAINERS: Final = (CONTAINER_BROKER, CONTAINER_FENCE)
OWN_VOLUMES: Final = (
    VOLUME_STORE,
    VOLUME_COMMIT_LOG,
    VOLUME_CONFIG,
    VOLUME_RUN,
    VOLUME_CERTIFICATE,
    VOLUME_TLS,
    VOLUME_TRUST,
    VOLUME_FENCE_KEY,
    VOLUME_ORDERS,
)
# Nor these of the broker's container: the variables that we set, and the folders that are on its claim or mounted by us.
OWN_VARIABLES: Final = (
    "POD_IP",
    ENVIRONMENT_POD_IPS,
    ENVIRONMENT_NODE_IPS,
    ENVIRONMENT_IP_FAMILY,
    "POD_NAME",
    "POD_UID",
    "STORE_DIR",
    "CONFIG_DIR",
    "RUN_DIR",
    "COMMIT_LOG_DIR",
    "CERTIFICATE_DIR",
    "TLS_DIR",
    "TRUST_DIR",
    ENVIRONMENT_BROKER_HOST,
    ENVIRONMENT_LISTEN_PORT,
    ENVIRONMENT_ACCESS_KEY,
    ENVIRONMENT_SECRET_KEY,
    "BROKERGROUP_CONTAINER",
    ENVIRONMENT_STOP_ORDER_FILE,
    "BROKERGROUP_PROCESS",
)
CONFIG_FILE: Final = "broker.conf"
# A Proxy's configuration: beside broker.conf for one in the broker's process, else in a ConfigMap of its own.
PROXY_CONFIG_FILE: Final = "rmq-proxy.json"
# The same in a broker's process with spec.tls: pods of before restart with the other one, since they mount no certificate.
PROXY_TLS_CONFIG_FILE: Final = "rmq-proxy-tls.json"
# Beside it, if the controllers use TLS: the certificate authority that the fence trusts. Public, re-read while the pod runs.
AUTHORITY_FILE: Final = "controller-ca.crt"

STORE_DIR: Final = "/var/lib/rocketmq/store"
COMMIT_LOG_DIR: Final = "/var/lib/rocketmq/commitlog"
CONFIG_DIR: Final = "/etc/rocketmq"
RUN_DIR: Final = "/var/run/rocketmq"
CERTIFICATE_DIR: Final = "/etc/brokergroup/certificate"
TLS_DIR: Final = "/etc/brokergroup/tls"
TRUST_DIR: Final = "/etc/brokergroup/trust"
FENCE_KEY_DIR: Final = "/etc/brokergroup/fence"
ORDERS_DIR: Final = "/etc/brokergroup/orders"
STOP_ORDER: Final = "stopped"
OWN_FOLDERS: Final = (STORE_DIR, COMMIT_LOG_DIR, CONFIG_DIR, RUN_DIR, CERTIFICATE_DIR, TLS_DIR, TRUST_DIR, ORDERS_DIR)

# Below a broker's port: RocketMQ's second listener for everything but sends and pulls.
FAST_PORT_OFFSET: Final = 2
# Above a broker's port: the fence's UDP port, for the group's other fences and for the operator's orders.
FENCE_PORT_OFFSET: Final = 2
# Names of a broker's ports: a Service finds them on each pod, also while the numbers change.
PORT_BROKER: Final = "broker"
PORT_HA: Final = "ha"
PORT_FAST: Final = "fast"
PORT_FENCE: Final = "fence"
PORT_METRICS: Final = "metrics"
# Of a Proxy, also of one in the broker's process.
PORT_PROXY_GRPC: Final = "grpc"
PORT_PROXY_REMOTING: Final = "remoting"


def pod_name(group: str, broker_id: int) -> str:
    """Return the name of a broker id's pod and claim: the volume belongs to the id."""
    return f"{group}-{broker_id}"


def broker_id_of_pod_name(group: str, name: str) -> int | None:
    """Return the broker id in a pod or claim name of this group, None if the name has another form."""
    prefix = f"{group}-"
    digits = name.removeprefix(prefix)
    if not name.startswith(prefix) or not digits.isdecimal() or digits.startswith("0"):
        return None
    return int(digits)


def commit_log_claim_name(pod: str) -> str:
    """Return the name of the claim for a commit log with its own volume."""
    return f"{pod}-commitlog"


def backup_pod_name(group: str) -> str:
    """Return the name of the pod that copies a member's store to a backup."""
    return f"{group}-backup"


def restore_pod_name(group: str) -> str:
    """Return the name of the pod that copies a backup to the group's first claim."""
    return f"{group}-restore"


def config_map_name(group: str) -> str:
    return f"{group}-broker"


def members_service_name(group: str) -> str:
    return f"{group}-members"


def group_of_cluster(cluster: str, index: int) -> str:
    """Return the name of a RocketMQCluster's BrokerGroup; `index` counts from 0."""
    return f"{cluster}-{index}"


def master_service_name(group: str) -> str:
    return f"{group}-master"


def slaves_service_name(group: str) -> str:
    return f"{group}-slaves"


def network_policy_name(group: str) -> str:
    return f"{group}-brokers"


def disruption_budget_name(group: str) -> str:
    return group


def master_disruption_budget_name(group: str) -> str:
    """Return a name with a dot, which no group's name has: a group `<group>-master` would have a budget of that name."""
    return f"{group}.master"


class AnnotationError(Exception):
    """The annotation's value is invalid; the message names it, its value and what was expected."""


def accepted_epoch(obj: JsonObject) -> int | None:
    """Return the highest epoch that a user accepts by annotation (docs/concepts/architecture.md, rule 3), or None.

    Raises AnnotationError.
    """
    from brokergroup_operator.api.bounds import JAVA_INT_MAX  # noqa: PLC0415 (the kubectl plugin starts without msgspec)

    text = (obj["metadata"].get("annotations") or {}).get(ANNOTATION_ACCEPT_EPOCH)
    if text is None:
        return None
    digits = text.isascii() and text.isdecimal() and len(text) <= len(str(JAVA_INT_MAX))
    if not digits or int(text) > JAVA_INT_MAX:
        raise AnnotationError(
            f"annotation {ANNOTATION_ACCEPT_EPOCH} is {text[:32]!r}, expected a number up to {JAVA_INT_MAX}"
        )
    return int(text)


def operator_of(group_object: JsonObject) -> str | None:
    """Return which operator reconciles the group, as `namespace/name` of its Lease; None before any has."""
    text = (group_object["metadata"].get("annotations") or {}).get(ANNOTATION_OPERATOR)
    return str(text) if text else None


def how_to_accept_version(namespace: str, name: str, version: str) -> str:
    """Return the command by which a user accepts what a step back to this version loses. An acceptance of before is overwritten."""
    annotation = f"{ANNOTATION_ACCEPT_VERSION}={version}"
    return f"kubectl annotate --overwrite brokergroup {name} -n {namespace} {annotation}"
