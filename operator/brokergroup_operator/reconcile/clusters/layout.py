"""What a cluster's parts are called and where they are reached. Pure.

Brokers get each NameServer by a name of its own (a StatefulSet's pod keeps its name), and register with all of them; clients get
one Service, since every NameServer has all routes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject

NAME_SERVER_PORT: Final = 9876
GRPC_PORT: Final = 8081
REMOTING_PORT: Final = 8080
COMPONENT_NAME_SERVER: Final = "nameserver"
COMPONENT_PROXY: Final = "proxy"


def name_server(cluster: str) -> str:
    """The StatefulSet, and the Service for clients."""
    return f"{cluster}-nameserver"


def name_server_pods(cluster: str) -> str:
    """The headless Service that gives each NameServer's pod its name."""
    return f"{cluster}-nameservers"


def proxy(cluster: str) -> str:
    """The Deployment, its Service and its ConfigMap."""
    return f"{cluster}-proxy"


def group(cluster: str, index: int) -> str:
    """The BrokerGroup of this index."""
    return f"{cluster}-{index}"


def is_group(cluster: str, name: str) -> bool:
    """Whether a BrokerGroup of this name is one of the cluster's."""
    index = name.removeprefix(f"{cluster}-")
    return index != name and index.isdecimal() and group(cluster, int(index)) == name


def groups(cluster: str, count: int) -> list[str]:
    """The BrokerGroups that are asked for."""
    return [group(cluster, index) for index in range(count)]


def name_server_addresses(cluster: str, namespace: str, replicas: int) -> list[str]:
    """The address of each NameServer, for brokers and proxies."""
    pods = f"{name_server_pods(cluster)}.{namespace}.svc"
    return [f"{name_server(cluster)}-{ordinal}.{pods}:{NAME_SERVER_PORT}" for ordinal in range(replicas)]


def clients_name_server(cluster: str, namespace: str) -> str:
    """The NameServers' one address for clients of the remoting protocol."""
    return f"{name_server(cluster)}.{namespace}.svc:{NAME_SERVER_PORT}"


def clients_proxy(cluster: str, namespace: str) -> str:
    """The proxies' one address for clients of the gRPC protocol."""
    return f"{proxy(cluster)}.{namespace}.svc:{GRPC_PORT}"


def labels(cluster: str, component: str) -> dict[str, str]:
    """On everything that a cluster is made of, but its BrokerGroups."""
    return {
        names.LABEL_ROCKETMQ_CLUSTER: cluster,
        names.LABEL_APP_NAME: names.APP_NAME_SERVER if component == COMPONENT_NAME_SERVER else names.APP_PROXY,
        names.LABEL_APP_COMPONENT: component,
        names.LABEL_APP_MANAGED_BY: names.MANAGED_BY,
    }


def pod_labels(cluster: str, component: str) -> dict[str, str]:
    """On pods alone, as ever: without the instance label every NameServer and Proxy would be restarted by an upgrade.

    A pod always has an owner, so no GitOps tool prunes it by that label.
    """
    return {**labels(cluster, component), names.LABEL_APP_INSTANCE: cluster}


def selector(cluster: str, component: str) -> dict[str, str]:
    """Which pods are a cluster's of this component: these labels never change, for a StatefulSet's selector may not."""
    return {names.LABEL_ROCKETMQ_CLUSTER: cluster, names.LABEL_APP_COMPONENT: component}


def owner(cluster_object: JsonObject) -> JsonObject:
    """The owner reference of each part: what is deleted with the cluster, by Kubernetes' garbage collector."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.ROCKETMQ_CLUSTER_KIND,
        "name": cluster_object["metadata"]["name"],
        "uid": cluster_object["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
