"""Where the kinds live that the plugin looks at. Not `kube.resources`: that package brings the operator's HTTP client along."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from brokergroup_operator.api import names


@dataclass(frozen=True)
class Kind:
    """One kind."""

    api_version: str
    plural: str
    name: str

    def path(self, namespace: str | None, name: str = "") -> str:
        """The collection (of all namespaces without one), or one object. Names come from a command line: none leads elsewhere."""
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        place = f"{root}/namespaces/{quote(namespace, safe='')}" if namespace is not None else root
        return f"{place}/{self.plural}/{quote(name, safe='')}" if name else f"{place}/{self.plural}"


BROKER_GROUPS: Final = Kind(names.API_VERSION, "brokergroups", "BrokerGroup")
BROKER_GROUP_STATES: Final = Kind(names.API_VERSION, "brokergroupstates", "BrokerGroupState")
BROKER_GROUP_OPERATIONS: Final = Kind(names.API_VERSION, "brokergroupoperations", "BrokerGroupOperation")
PODS: Final = Kind("v1", "pods", "Pod")
PERSISTENT_VOLUME_CLAIMS: Final = Kind("v1", "persistentvolumeclaims", "PersistentVolumeClaim")
EVENTS: Final = Kind("v1", "events", "Event")
LEASES: Final = Kind("coordination.k8s.io/v1", "leases", "Lease")
