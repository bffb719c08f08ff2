"""Where each kind lives in the Kubernetes API: group, version, plural, and the path built from them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind as the API server serves it. The core group is the empty string, as in Kubernetes."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` field of an object of this kind: ``v1`` or ``group/version``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def collection_path(self, namespace: str | None) -> str:
        """The path of the collection; without a namespace, of all namespaces."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if self.namespaced and namespace is not None:
            return f"{root}/namespaces/{namespace}/{self.plural}"
        return f"{root}/{self.plural}"

    def object_path(self, name: str, namespace: str | None, subresource: str = "") -> str:
        """The path of one object or of its subresource; a namespaced kind without a namespace is a caller's mistake."""
        if not name:
            raise ValueError(f"{self.kind}: name is empty, expected the object's name")
        if self.namespaced and not namespace:
            raise ValueError(f"{self.kind} {name!r}: namespace is {namespace!r}, expected the object's namespace")
        path = f"{self.collection_path(namespace)}/{name}"
        return f"{path}/{subresource}" if subresource else path


PODS = Resource("", "v1", "pods", "Pod")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
SERVICES = Resource("", "v1", "services", "Service")
PERSISTENT_VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
PERSISTENT_VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
EVENTS = Resource("", "v1", "events", "Event")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
BROKER_GROUPS = Resource("brokergroup.dev", "v1beta1", "brokergroups", "BrokerGroup")
BROKER_GROUP_STATES = Resource("brokergroup.dev", "v1beta1", "brokergroupstates", "BrokerGroupState")
BROKER_GROUP_OPERATIONS = Resource("brokergroup.dev", "v1beta1", "brokergroupoperations", "BrokerGroupOperation")
ROCKETMQ_CLUSTERS = Resource("brokergroup.dev", "v1beta1", "rocketmqclusters", "RocketMQCluster")
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
POD_DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
VOLUME_SNAPSHOTS = Resource("snapshot.storage.k8s.io", "v1", "volumesnapshots", "VolumeSnapshot")
VOLUME_ATTACHMENTS = Resource("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", namespaced=False)
CUSTOM_RESOURCE_DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
# A role that was written by hand for an earlier release has no right to these; groups that need none are kept without it.
MAY_LACK = (NETWORK_POLICIES,)
