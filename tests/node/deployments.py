"""Every deployment of docs/deployments.md that `make e2e` makes on the two nodes: how it is made, broken, and deleted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from tests.node.cluster import condition
from tests.node.kubectl import get, helm, kubectl, kubectl_run
from tests.node.places import REPOSITORY
from tests.node.policies import SOURCES
from tests.node.whole_cluster import SMALL_BROKERS
from tests.node.whole_cluster import TOPIC as GRPC_TOPIC

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CHART = REPOSITORY / "charts" / "rocketmq-cluster"
MANIFESTS = REPOSITORY / "examples" / "deployments"
# The release, and so the cluster's name.
NAME = "shop"
# Of a cluster with TLS: its certificate, and the ConfigMap of the authorities that its parts trust.
SECRET, BUNDLE = "shop-tls", "authorities"
# Of Java's client; the gRPC client has its own, since it reads no bodies but its own.
TOPIC = "payments"
READY_SECONDS = 240.0
GONE_SECONDS = 180.0


@dataclass(frozen=True)
class Deployment:
    """One line of `make e2e`.

    `brokers`: how many of each broker name the NameServer has when it is ready. `struck`: the broker name whose master the faults
    meet. `faults`: kill, delete, drain, lose, in this order. `fails_over`: another broker leads after each; else the same one comes
    back.
    `may_lose`: an acknowledged message need not survive the faults. `in_sync`: how many slaves each master counts as in sync; None
    where a broker cannot say it. `proxy`: the gRPC client sends and receives too; `proxy_in_brokers`: it begins at the Service of
    the master. `reads_while_away`: everything can be read while the master's pod is away. `family`: of the addresses of brokers and
    NameServers; empty for the nodes' first one, IPv4. `policies`: a firewall enforces the NetworkPolicies of all its pods.
    `snapshots`: another group beside it, on volumes of a CSI driver, is backed up by VolumeSnapshots, lost with its disks, and
    begins anew. `new_authority`: all parts and the operator verify each other by TLS, and take another authority before the faults.
    """

    name: str
    brokers: Mapping[str, int]
    struck: str
    values: Mapping[str, Any] | None = None
    faults: tuple[str, ...] = ("kill",)
    fails_over: bool = True
    may_lose: bool = False
    in_sync: int | None = None
    proxy: bool = False
    proxy_in_brokers: bool = False
    reads_while_away: bool = False
    family: str = ""
    policies: bool = False
    snapshots: bool = False
    new_authority: bool = False

    @property
    def manifest(self) -> Path:
        """The file of a deployment that is no value of the chart."""
        return MANIFESTS / f"{self.name}.yaml"

    def part(self, component: str) -> str:
        """Return the selector of the pods of one of its parts."""
        if self.values is None:
            return f"app.kubernetes.io/part-of={self.name},app.kubernetes.io/component={component}"
        return f"brokergroup.dev/rocketmq-cluster={NAME},app.kubernetes.io/component={component}"

    def parts(self) -> dict[str, str]:
        """Return the selector of the pods of each part of a cluster of one group, by component."""
        return {part: self.part(part) for part in ("nameserver", "proxy")} | {
            "broker": f"brokergroup.dev/broker-group={self.struck}"
        }

    @property
    def proxy_service(self) -> str:
        """The Service at which the gRPC client begins."""
        return f"{self.struck}-master" if self.proxy_in_brokers else f"{NAME}-proxy"

    def apply(self, values: Path) -> None:
        """Make it. `values` is where a chart's go."""
        if self.values is None:
            kubectl("apply", "-f", str(self.manifest))
            return
        values.write_text(yaml.safe_dump(with_small_brokers(self.values)), encoding="utf-8")
        helm("install", NAME, str(CHART), "--values", str(values))

    def wait_until_ready(self) -> None:
        """Wait until Kubernetes or the operator calls all its parts ready."""
        timeout = (f"--timeout={READY_SECONDS:g}s",)
        if self.values is not None:
            kubectl("wait", "--for=condition=Ready", f"rmq/{NAME}", *timeout, seconds=READY_SECONDS + 10)
            return
        for part in kubectl(
            "get", "statefulsets,deployments", "-l", f"app.kubernetes.io/part-of={self.name}", "-o", "name"
        ).split():
            kubectl("rollout", "status", part, *timeout, seconds=READY_SECONDS + 10)

    def is_ready(self) -> bool:
        """Whether the operator calls it ready now; a manifest's parts are judged by the brokers' own words alone."""
        return self.values is None or condition(get("rmq", NAME), "Ready").get("status") == "True"

    def delete(self) -> None:
        """Delete it as its users do; the claims stay."""
        wait = ("--wait", f"--timeout={GONE_SECONDS:g}s")
        if self.values is None:
            kubectl("delete", "-f", str(self.manifest), "--ignore-not-found", *wait, seconds=GONE_SECONDS + 10)
            return
        helm("uninstall", NAME, "--ignore-not-found", *wait, seconds=GONE_SECONDS + 10)
        gone = ("--for=delete", f"--timeout={GONE_SECONDS:g}s")
        kubectl_run("wait", "brokergroups", "--all", *gone, seconds=GONE_SECONDS + 10)


def with_small_brokers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with less memory and processor time for each broker, and the topics of the clients."""
    groups = dict(values.get("brokerGroups", {}))
    template = {**SMALL_BROKERS, **groups.get("template", {})}
    return {
        **values,
        "topics": [{"name": TOPIC, "queues": 4}, {"name": GRPC_TOPIC, "queues": 4}],
        "brokerGroups": {**groups, "template": template},
    }


def layout(name: str, groups: int, replicas: int, **further: Any) -> Deployment:
    """Return a layout of the chart as it stands."""
    brokers = {f"{NAME}-{index}": replicas for index in range(groups)}
    return Deployment(name, brokers, f"{NAME}-0", **{"values": {"layout": name}, **further})


def replicated(
    name: str, *, replicas: int = 3, template: Any = None, values: Mapping[str, Any] | None = None, **further: Any
) -> Deployment:
    """Return the layout `replicated` with one group: `template` is the group's, `values` the chart's further ones."""
    groups: dict[str, Any] = {"count": 1} | ({} if template is None else {"template": template})
    made = {"layout": "replicated", "brokerGroups": groups, **(values or {})}
    return layout(name, 1, replicas, **{"values": made, "in_sync": 2, **further})


def manifest(name: str, brokers: int, **further: Any) -> Deployment:
    """Return a deployment of examples/deployments: one broker name, `broker-a`."""
    return Deployment(name, **{"brokers": {"broker-a": brokers}, "struck": "broker-a", **further})


DEPLOYMENTS = (
    layout("single", 1, 1, fails_over=False, faults=("kill", "delete"), in_sync=0),
    layout("multi-master", 2, 1, fails_over=False, in_sync=0),
    # Its promise: a lost master may take the newest messages with it.
    layout("2m-2s-async", 2, 2, may_lose=True, in_sync=1),
    layout("2m-2s-sync", 2, 2, in_sync=1),
    layout(
        "2m-2s-available",
        2,
        2,
        values={"layout": "2m-2s-sync", "brokerGroups": {"template": {"durability": "Available"}}},
        in_sync=1,
    ),
    layout("replicated", 2, 3, faults=("kill", "delete", "drain"), in_sync=2),
    replicated("replicated-proxy-cluster", values={"proxy": {"replicas": 2}}, faults=("kill", "delete"), proxy=True),
    replicated("replicated-proxy-local", template={"localProxy": {}}, proxy=True, proxy_in_brokers=True),
    replicated(
        "replicated-five",
        replicas=5,
        template={"replicas": 5, "replication": {"minInSyncReplicas": 3}},
        values={"nameServer": {"replicas": 3}},
        in_sync=4,
    ),
    replicated("replicated-learner", replicas=4, template={"replicas": 4, "replication": {"learners": 1}}),
    replicated(
        "replicated-ipv6", values={"network": {"ipFamilies": ["IPv6"]}}, faults=("kill", "delete"), family="IPv6"
    ),
    replicated(
        "replicated-dual-stack",
        values={"network": {"ipFamilies": ["IPv6", "IPv4"], "ipFamilyPolicy": "RequireDualStack"}},
        family="IPv6",
    ),
    replicated(
        "replicated-policies",
        values={
            "network": {"policy": {"clientsFrom": SOURCES, "proxyClientsFrom": SOURCES}},
            "proxy": {"replicas": 1},
        },
        faults=("kill", "delete"),
        proxy=True,
        policies=True,
    ),
    # Its own cluster has the NameServers; the group that is lost and restored is `snapshots.py`'s.
    layout(
        "replicated-snapshots",
        1,
        1,
        values={"layout": "single"},
        fails_over=False,
        faults=(),
        in_sync=0,
        snapshots=True,
    ),
    replicated(
        "tls-authority",
        # Beside tls the arguments of the other lines, which turn it off, are refused.
        template={"jvm": {"extraArguments": ["-XX:TieredStopAtLevel=1"]}},
        values={
            "proxy": {"replicas": 2},
            "tls": {
                "certificateSecretRef": {"name": SECRET},
                "mode": "Enforcing",
                "trustBundleRef": {"name": BUNDLE},
            },
        },
        proxy=True,
        new_authority=True,
    ),
    manifest("static-roles", 2, fails_over=False, in_sync=1, reads_while_away=True),
    manifest("slave-acting-master", 2, fails_over=False, in_sync=1, reads_while_away=True),
    Deployment(
        "broker-container",
        {"broker-a": 2, "broker-b": 2},
        "broker-a",
        fails_over=False,
        in_sync=1,
        reads_while_away=True,
    ),
    manifest("dledger-log", 3, faults=("lose",)),
    *(manifest(f"java-controller{kind}", 3, in_sync=2) for kind in ("", "-3", "-jraft", "-jraft-3", "-in-nameserver")),
)
