"""The objects of a cluster: NameServers, proxies, BrokerGroups. Pure: the same cluster gives the same objects.

NameServers and proxies are Java programs that keep nothing on disk, in pods as Pod Security "restricted" wants them. Brokers get
each NameServer by a name of its own (a StatefulSet's pod keeps its name), and register with all of them; clients get one Service,
since every NameServer has all routes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.api.definitions.schema import without_nulls
from brokergroup_operator.api.proxy_fields import PROXY_PORTS
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.render import network_policies as policies
from brokergroup_operator.reconcile.render import tls
from brokergroup_operator.reconcile.render.containers import restricted
from brokergroup_operator.reconcile.render.pods import scheduling
from brokergroup_operator.reconcile.render.proxy_config import cluster_mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.pod_fields import ResourceRequirements
    from brokergroup_operator.api.rocketmq_cluster import (
        ClusterSpec,
        GroupOverride,
        NameServerSpec,
        ProxySpec,
        RocketMQCluster,
    )
    from brokergroup_operator.api.tls_fields import TlsSpec
    from brokergroup_operator.reconcile.settings import ReconcileSettings


# The Proxy ends its clients' streams for 30 s (grpcShutdownTimeSeconds).
PROXY_GRACE_SECONDS: Final = 45
NAME_SERVER_GRACE_SECONDS: Final = 10
# A pod that ends is taken out of its Service's rules on each node a moment later: until then it must listen, or the Service refuses
# connections, for about a second as was seen. The image has `sleep`; the API's own (`preStop.sleep`) is off in Kubernetes 1.29.
LEAVES_SERVICE_SECONDS: Final = 5
# Until every broker has registered with a NameServer at a new address: a JVM keeps the former one for 30 s, and a broker registers
# every 10 s. Measured on two nodes: 26 s.
NAME_SERVER_FOUND_SECONDS: Final = 45


_AUTH: Final = "org.apache.rocketmq.auth"
# The broker makes its own user, Super, from the key of spec.security: no password stands here.
ACL_CONFIG: Final = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationEnabled": "true",
    "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}


def name_servers(cluster: RocketMQCluster, settings: ReconcileSettings) -> list[JsonObject]:
    """The StatefulSet, both Services and the disruption budget."""
    name, component, wish = _name(cluster), COMPONENT_NAME_SERVER, cluster.spec.name_server
    ports = {component: NAME_SERVER_PORT}
    program = Program(
        name=component,
        main_class="org.apache.rocketmq.namesrv.NamesrvStartup",
        arguments="",
        ports=ports,
        ready=component,
        grace_seconds=NAME_SERVER_GRACE_SECONDS,
    )
    stateful_set: JsonObject = {
        "replicas": wish.replicas,
        "serviceName": name_server_pods(name),
        # All start at once; an update still goes one by one.
        "podManagementPolicy": "Parallel",
        # Else an update ends the last NameServer with brokers before the new ones have any: 14 s without a route were measured.
        "minReadySeconds": NAME_SERVER_FOUND_SECONDS,
        "selector": {"matchLabels": part_selector(name, component)},
        "template": template(program, cluster, wish, settings),
    }
    # A NameServer's name must lead to it before it is ready: the brokers that register are what makes it useful.
    headless = {"clusterIP": "None", "publishNotReadyAddresses": True}
    return [
        _service(cluster, component, name_server_pods(name), ports, headless),
        _service(cluster, component, name_server_name(name), ports),
        _object(cluster, "apps/v1", "StatefulSet", name_server_name(name), part_labels(name, component), stateful_set),
        _budget(cluster, component, name_server_name(name)),
    ]


def proxies(cluster: RocketMQCluster, settings: ReconcileSettings) -> list[JsonObject]:
    """ConfigMap, Deployment, Service and disruption budget; nothing where no proxies are asked for."""
    wish, name, component = cluster.spec.proxy, _name(cluster), COMPONENT_PROXY
    if wish is None:
        return []
    labels = part_labels(name, component)
    # Both, whatever is wanted: a pod of before may start again ahead of its turn, and has a certificate mounted or has not.
    files = {names.PROXY_CONFIG_FILE: False, names.PROXY_TLS_CONFIG_FILE: True}
    texts = {file: proxy_config(cluster, wish, with_tls=with_tls) for file, with_tls in files.items()}
    config = texts[_proxy_file(cluster)]
    program = Program(
        name=component,
        main_class="org.apache.rocketmq.proxy.ProxyStartup",
        arguments=f" -pc /etc/rocketmq/{_proxy_file(cluster)}",
        ports=PROXY_PORTS,
        ready=names.PORT_PROXY_GRPC,
        grace_seconds=PROXY_GRACE_SECONDS,
        config_map=proxy_name(name),
    )
    pod = template(program, cluster, wish, settings)
    # A Proxy reads its configuration when it starts.
    pod["metadata"]["annotations"] = {
        **pod["metadata"].get("annotations", {}),
        names.ANNOTATION_CONFIG_HASH: hashlib.sha256(config.encode()).hexdigest()[:16],
    }
    deployment: JsonObject = {
        "selector": {"matchLabels": part_selector(name, component)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": pod,
    }
    if wish.replicas is not None:
        deployment["replicas"] = wish.replicas
    return [
        _object(cluster, "v1", "ConfigMap", proxy_name(name), labels, None) | {"data": texts},
        _object(cluster, "apps/v1", "Deployment", proxy_name(name), labels, deployment),
        _service(cluster, component, proxy_name(name), PROXY_PORTS),
        _budget(cluster, component, proxy_name(name)),
    ]


def trusted(cluster: RocketMQCluster, files: Mapping[str, str]) -> list[JsonObject]:
    """The ConfigMap of `trust_name`; nothing where no part reads a file of it."""
    labels = part_labels(_name(cluster), COMPONENT_NAME_SERVER)
    made = _object(cluster, "v1", "ConfigMap", trust_name(_name(cluster)), labels, None)
    return [made | {"data": dict(files)}] if files else []


def network_policies(cluster: RocketMQCluster, settings: ReconcileSettings) -> list[JsonObject]:
    """Those of NameServers and proxies, where they are asked for; a group's own is its BrokerGroup's."""
    wish, name = cluster.spec.network.policy, _name(cluster)
    if wish is None:
        return []
    # Every broker of the namespace: a BrokerGroup beside the cluster may name its NameServers too.
    brokers = policies.pods({names.LABEL_APP_NAME: names.APP_NAME})
    beside = [brokers, _proxy_pods(cluster), policies.operator(settings)]
    of_name_servers = policies.sources(wish.clients_from, beside=beside)
    made = [_policy(cluster, COMPONENT_NAME_SERVER, name_server_name(name), [NAME_SERVER_PORT], of_name_servers)]
    if cluster.spec.proxy is not None:
        of_proxies = policies.sources(wish.proxy_clients_from, beside=[])
        made.append(_policy(cluster, COMPONENT_PROXY, proxy_name(name), PROXY_PORTS.values(), of_proxies))
    return made


def _policy(
    cluster: RocketMQCluster, component: str, name: str, ports: Iterable[int], peers: list[JsonObject] | None
) -> JsonObject:
    rule = policies.rule([policies.tcp(port) for port in ports], peers)
    spec = policies.policy_spec(part_selector(_name(cluster), component), [rule])
    labels = part_labels(_name(cluster), component)
    return _object(cluster, "networking.k8s.io/v1", "NetworkPolicy", name, labels, spec)


def _proxy_pods(cluster: RocketMQCluster) -> JsonObject:
    """The cluster's proxies, as a source."""
    return policies.pods(part_selector(_name(cluster), COMPONENT_PROXY))


def _proxy_file(cluster: RocketMQCluster) -> str:
    return names.PROXY_CONFIG_FILE if cluster.spec.tls is None else names.PROXY_TLS_CONFIG_FILE


def proxy_config(cluster: RocketMQCluster, wish: ProxySpec, *, with_tls: bool) -> str:
    """rmq-proxy.json: ours win, for what they say must be so."""
    return cluster_mode(
        wish.config,
        broker_cluster_name=cluster.spec.broker_groups.template.broker_cluster_name,
        name_servers=name_server_addresses(_name(cluster), _namespace(cluster), cluster.spec.name_server.replicas),
        with_tls=with_tls,
    )


def broker_groups(cluster: RocketMQCluster, cluster_object: JsonObject, *, with_acl: bool = True) -> list[JsonObject]:
    """The BrokerGroups from 0 to count. Their spec is the template as the API server holds it, so that nothing is left out.

    Without `with_acl` brokers check nothing yet, whatever spec.acl says.
    """
    wanted = cluster.spec.broker_groups
    raw = ((cluster_object.get("spec") or {}).get("brokerGroups") or {}).get("template") or {}
    overrides = {one.index: one for one in wanted.overrides}
    config = ACL_CONFIG if with_acl and cluster.spec.acl is not None else {}
    return [_broker_group(cluster, raw, index, overrides.get(index), config) for index in range(wanted.count)]


def _tls_of_groups(cluster: RocketMQCluster, now: TlsSpec) -> JsonObject:
    """Of the bundle the cluster's own copy: it changes for all parts in their turn."""
    file = tls.trusted_file(now)
    spec: JsonObject = {"certificateSecretRef": {"name": now.certificate_secret_ref.name}, "mode": now.mode.value}
    return spec | ({"trustBundleRef": {"name": trust_name(_name(cluster)), "key": file}} if file else {})


def checks_access(group: JsonObject) -> bool:
    """Whether the brokers of a BrokerGroup have ACL_CONFIG, with whatever values."""
    return ACL_CONFIG.keys() <= ((group.get("spec") or {}).get("config") or {}).keys()


def is_hibernated(group: JsonObject) -> bool:
    return bool(((group.get("spec") or {}).get("maintenance") or {}).get("hibernated"))


def _broker_group(
    cluster: RocketMQCluster,
    raw: Mapping[str, Any],
    index: int,
    override: GroupOverride | None,
    config: Mapping[str, str],
) -> JsonObject:
    name, namespace = _name(cluster), _namespace(cluster)
    spec: JsonObject = {
        **raw,
        "nameServers": name_server_addresses(name, namespace, cluster.spec.name_server.replicas),
    }
    is_java = cluster.spec.broker_groups.template.implementation is Implementation.JAVA
    if is_java and cluster.spec.version is not None and "version" not in spec and "image" not in spec:
        spec["version"] = cluster.spec.version
    spec.pop("tls", None)
    if cluster.spec.tls is not None:
        spec["tls"] = _tls_of_groups(cluster, cluster.spec.tls)
    network = raw.get("network") or {}
    if families := {key: value for key, value in cluster.spec.network.on_services().items() if not network.get(key)}:
        spec["network"] = network = {**network, **families}
    if (policy := _policy_of_groups(cluster)) is not None:
        spec["network"] = {**network, "policy": policy}
    # What is not asked for is left to `kubectl brokergroup pause` and `hibernate`, group by group.
    asked = {key: value for key, value in (raw.get("maintenance") or {}).items() if value}
    spec.pop("maintenance", None)
    if asked:
        spec["maintenance"] = asked
    if config:
        spec["config"] = {**config, **(spec.get("config") or {})}
    labels = {names.LABEL_ROCKETMQ_CLUSTER: name, names.LABEL_APP_MANAGED_BY: names.MANAGED_BY}
    if override is not None:
        labels = {**override.labels, **labels}
        if override.replicas is not None:
            spec["replicas"] = override.replicas
        if override.config:
            spec["config"] = {**(spec.get("config") or {}), **override.config}
    return _object(
        cluster, names.API_VERSION, names.BROKER_GROUP_KIND, names.group_of_cluster(name, index), labels, spec
    )


def _policy_of_groups(cluster: RocketMQCluster) -> JsonObject | None:
    """The template's own, or the cluster's, with the proxies among the clients."""
    wish = cluster.spec.broker_groups.template.network.policy or cluster.spec.network.policy
    if wish is None:
        return None
    proxies = [_proxy_pods(cluster)] if cluster.spec.proxy is not None else []
    asked = {
        "clientsFrom": policies.sources(wish.clients_from, beside=proxies),
        "metricsFrom": policies.sources(wish.metrics_from, beside=[]),
    }
    return {key: value for key, value in asked.items() if value is not None}


def _service(
    cluster: RocketMQCluster, component: str, name: str, ports: Mapping[str, int], further: JsonObject | None = None
) -> JsonObject:
    spec: JsonObject = {
        "selector": part_selector(_name(cluster), component),
        "ports": [{"name": key, "port": port, "targetPort": key, "protocol": "TCP"} for key, port in ports.items()],
        **cluster.spec.network.on_services(),
        **(further or {}),
    }
    return _object(cluster, "v1", "Service", name, part_labels(_name(cluster), component), spec)


def _budget(cluster: RocketMQCluster, component: str, name: str) -> JsonObject:
    spec: JsonObject = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": part_selector(_name(cluster), component)},
    }
    return _object(cluster, "policy/v1", "PodDisruptionBudget", name, part_labels(_name(cluster), component), spec)


def _object(
    cluster: RocketMQCluster,
    api_version: str,
    kind: str,
    name: str,
    labels: Mapping[str, str],
    spec: JsonObject | None,
) -> JsonObject:
    metadata = {
        "name": name,
        "namespace": _namespace(cluster),
        "labels": dict(labels),
        "ownerReferences": [owner_of({"metadata": cluster.metadata})],
    }
    made: JsonObject = {"apiVersion": api_version, "kind": kind, "metadata": metadata}
    return made if spec is None else made | {"spec": spec}


def _name(cluster: RocketMQCluster) -> str:
    return str(cluster.metadata["name"])


def _namespace(cluster: RocketMQCluster) -> str:
    return str(cluster.metadata["namespace"])


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
    program: Program, cluster: RocketMQCluster, wish: NameServerSpec | ProxySpec, settings: ReconcileSettings
) -> JsonObject:
    spec, name = cluster.spec, _name(cluster)
    image = spec.image or settings.catalogue.image(spec.version or settings.rocketmq_version)
    volumes: list[JsonObject] = [{"name": "run", "emptyDir": {}}, *tls.volumes(spec.tls, trust_name(name))]
    if program.config_map:
        volumes.append({"name": "config", "configMap": {"name": program.config_map}})
    pod: JsonObject = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": LEAVES_SERVICE_SECONDS + program.grace_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(program, spec, image=image, resources=wish.resources)],
        "volumes": volumes,
        **scheduling(wish.anti_affinity, wish.pod_template.spec, part_selector(name, program.name)),
    }
    if spec.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": one.name} for one in spec.image_pull_secrets]
    metadata: JsonObject = {"labels": part_pod_labels(name, program.name)}
    if annotations := tls.pod_annotations(spec.tls):
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": pod}


def _container(program: Program, spec: ClusterSpec, *, image: str, resources: ResourceRequirements) -> JsonObject:
    heap = HEAP_OF_LIMIT if "memory" in resources.limits else DEFAULT_HEAP
    # `exec` makes the JVM process 1: SIGTERM reaches it.
    arguments = " ".join([heap, *tls.java_arguments(spec.tls)])
    command = (
        f'exec java {arguments} -XX:+UseSerialGC -XX:-UsePerfData -Duser.home="$RUN_DIR" -Djava.io.tmpdir="$RUN_DIR"'
        f' -Drocketmq.home.dir="$ROCKETMQ_HOME" -cp "$ROCKETMQ_HOME/lib/*" {program.main_class}{program.arguments}'
    )
    mounts: list[JsonObject] = [{"name": "run", "mountPath": RUN_DIR}, *tls.mounts(spec.tls)]
    if program.config_map:
        mounts.append({"name": "config", "mountPath": "/etc/rocketmq", "readOnly": True})
    asked = without_nulls(msgspec.to_builtins(resources))
    return {
        "name": program.name,
        "image": image,
        "imagePullPolicy": spec.image_pull_policy.value,
        "command": ["sh", "-c", command],
        "env": [{"name": "RUN_DIR", "value": RUN_DIR}, *tls.environment(spec.tls)],
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in program.ports.items()],
        "readinessProbe": {"tcpSocket": {"port": program.ready}, "periodSeconds": 1, "failureThreshold": 3},
        # RocketMQ has no health request without a port that serves: a program that hangs for a minute is started anew.
        "livenessProbe": {
            "tcpSocket": {"port": program.ready},
            "initialDelaySeconds": 60,
            "periodSeconds": 10,
            "failureThreshold": 6,
        },
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(LEAVES_SERVICE_SECONDS)]}}},
        "securityContext": restricted(),
        "volumeMounts": mounts,
    } | ({"resources": {key: value for key, value in asked.items() if value}} if any(asked.values()) else {})


NAME_SERVER_PORT: Final = 9876
COMPONENT_NAME_SERVER: Final = "nameserver"
COMPONENT_PROXY: Final = "proxy"


def name_server_name(cluster: str) -> str:
    """The StatefulSet, and the Service for clients."""
    return f"{cluster}-nameserver"


def name_server_pods(cluster: str) -> str:
    """The headless Service that gives each NameServer's pod its name."""
    return f"{cluster}-nameservers"


def proxy_name(cluster: str) -> str:
    """The Deployment, its Service and its ConfigMap."""
    return f"{cluster}-proxy"


def trust_name(cluster: str) -> str:
    """The ConfigMap with the authorities that the cluster's parts trust, a file for each that one of them reads."""
    return f"{cluster}-trust"


def is_group(cluster: str, name: str) -> bool:
    index = name.removeprefix(f"{cluster}-")
    return index != name and index.isdecimal() and names.group_of_cluster(cluster, int(index)) == name


def group_names(cluster: str, count: int) -> list[str]:
    return [names.group_of_cluster(cluster, index) for index in range(count)]


def name_server_addresses(cluster: str, namespace: str, replicas: int) -> list[str]:
    pods = f"{name_server_pods(cluster)}.{namespace}.svc"
    return [f"{name_server_name(cluster)}-{ordinal}.{pods}:{NAME_SERVER_PORT}" for ordinal in range(replicas)]


def part_labels(cluster: str, component: str) -> dict[str, str]:
    """On everything that a cluster is made of, but its BrokerGroups."""
    return {
        names.LABEL_ROCKETMQ_CLUSTER: cluster,
        names.LABEL_APP_NAME: names.APP_NAME_SERVER if component == COMPONENT_NAME_SERVER else names.APP_PROXY,
        names.LABEL_APP_COMPONENT: component,
        names.LABEL_APP_MANAGED_BY: names.MANAGED_BY,
    }


def part_pod_labels(cluster: str, component: str) -> dict[str, str]:
    """With the instance label: an upgrade without it would restart all pods. Pods have an owner, so no tool prunes them."""
    return {**part_labels(cluster, component), names.LABEL_APP_INSTANCE: cluster}


def part_selector(cluster: str, component: str) -> dict[str, str]:
    """Which pods are a cluster's of this component: these labels never change, for a StatefulSet's selector may not."""
    return {names.LABEL_ROCKETMQ_CLUSTER: cluster, names.LABEL_APP_COMPONENT: component}


def owner_of(cluster_object: JsonObject) -> JsonObject:
    """The owner reference of each part: what is deleted with the cluster, by Kubernetes' garbage collector."""
    return identity.controller_reference(names.ROCKETMQ_CLUSTER_KIND, cluster_object["metadata"])
