"""A network that enforces NetworkPolicies: kube-router's firewall on both nodes, until the block ends.

Two pods look at it, one that no policy admits and one with the label of an admitted client. Before the firewall starts the first
one reaches every port (else a closed port would show nothing); afterwards each port is open exactly to its sources.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml

from tests.node import faults
from tests.node.acts import RELEASE
from tests.node.bench import CheckError, expect
from tests.node.cluster import OPERATOR_NAMESPACE, say
from tests.node.kubectl import CHART, get, helm, kubectl, until
from tests.node.places import SERVICE_RANGE, SUBNET, kubeconfig, nodes
from tests.node.processes import NodeError, command, end, start
from tests.node.worker import PAUSE_IMAGE
from tests.real.parts import install

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Of `network.policy` in deployments.py. The clients of e2e.py are outside: on the machine, and on the network of a node.
CLIENT_LABEL = {"example.com/role": "rocketmq-client"}
SOURCES = [{"podSelector": {"matchLabels": CLIENT_LABEL}}, {"ipBlock": {"cidr": f"{SUBNET}.0/24"}}]
STRANGER, CLIENT = "stranger", "client"
# A port for clients, and one between members alone, by the component of the pods that have them.
FOR_CLIENTS: Final[Mapping[str, tuple[int, ...]]] = {
    "broker": (10911, 10909),
    "nameserver": (9876,),
    "proxy": (8080, 8081),
}
FOR_MEMBERS: Final[Mapping[str, tuple[int, ...]]] = {"broker": (10912,)}
CONTROLLER_PORT = 9878
# The firewall rebuilds its rules at each change of a pod or policy.
ENFORCED_SECONDS = 60.0
CONNECT = """
import json, socket, sys
open_ones = []
for host, port in json.loads(sys.argv[1]):
    try:
        socket.create_connection((host, port), timeout=1.5).close()
        open_ones.append([host, port])
    except OSError:
        pass
print(json.dumps(open_ones))
"""

Port = tuple[str, int]


@dataclass(frozen=True)
class Ports:
    """Every port that a policy is about: those that clients may open, and those that only members or brokers may."""

    for_clients: set[Port]
    for_members: set[Port]


@contextlib.contextmanager
def enforced(selector_of_part: dict[str, str]) -> Iterator[None]:
    """Have the policies of a deployment and of the operator's chart enforced. Raise CheckError if a port is open or closed wrongly.

    `selector_of_part`: the label selector of its pods, by component.
    """
    of_operator = operators_policy()
    try:
        kubectl("apply", "-f", "-", stdin=of_operator)
        for name, labels in ((STRANGER, {}), (CLIENT, CLIENT_LABEL)):
            kubectl("apply", "-f", "-", stdin=yaml.safe_dump(pod(name, labels)))
        until("both pods run", lambda: all(pid_of(name) for name in (STRANGER, CLIENT)))
        ports = ports_of(selector_of_part)
        every = ports.for_clients | ports.for_members
        expect(reached(STRANGER, every) == every, "without a firewall: the stranger does not reach every port")
        for node in nodes():
            start_firewall(node.number)
        until("no port is open to the stranger", lambda: not reached(STRANGER, every), ENFORCED_SECONDS)
        check(selector_of_part)
        say(f"  policies: {len(every)} ports closed to a stranger, {len(ports.for_clients)} open to a client")
        yield
        check(selector_of_part)
    finally:
        for node in nodes():
            end_firewall(node.number)
        kubectl("delete", "pod", STRANGER, CLIENT, "--ignore-not-found", "--grace-period=0", "--timeout=60s")
        kubectl("delete", "-f", "-", "--ignore-not-found", "--timeout=60s", stdin=of_operator)


def check(selector_of_part: dict[str, str]) -> None:
    """Raise CheckError unless each port is open exactly to its sources. New pods have new addresses: the ports are listed anew."""
    ports = ports_of(selector_of_part)

    wrong: list[str] = []

    def as_wanted() -> bool:
        every = ports.for_clients | ports.for_members
        by_stranger, by_client = reached(STRANGER, every), reached(CLIENT, every)
        wrong[:] = [
            *(f"{port} is open to the stranger" for port in by_stranger),
            *(f"{port} is closed to the client" for port in ports.for_clients - by_client),
            *(f"{port} is open to the client" for port in by_client & ports.for_members),
        ]
        return not wrong

    try:
        until("each port is open to its sources alone", as_wanted, ENFORCED_SECONDS)
    except NodeError as error:
        raise CheckError("; ".join(wrong)) from error


def ports_of(selector_of_part: dict[str, str]) -> Ports:
    """List the ports of all pods of the deployment, and the controller's of the operator's pods."""

    def of(table: Mapping[str, tuple[int, ...]]) -> set[Port]:
        found = {part: addresses(selector_of_part[part]) for part in table}
        expect(all(found.values()), f"expected pods of every part: {found}")
        return {(ip, port) for part, numbers in table.items() for ip in found[part] for port in numbers}

    controllers = addresses("app.kubernetes.io/name=brokergroup-operator", OPERATOR_NAMESPACE)
    expect(controllers, "no pod of the operator has an address")
    return Ports(of(FOR_CLIENTS), of(FOR_MEMBERS) | {(ip, CONTROLLER_PORT) for ip in controllers})


def addresses(selector: str, namespace: str = "default") -> list[str]:
    return [
        one["status"]["podIP"]
        for one in get("-n", namespace, "pods", "-l", selector)["items"]
        if "podIP" in one["status"]
    ]


def reached(name: str, ports: set[Port]) -> set[Port]:
    """Return those of the ports to which a pod can open a connection."""
    enter = ("nsenter", f"--net=/proc/{pid_of(name)}/ns/net", sys.executable, "-c", CONNECT)
    return {(host, port) for host, port in json.loads(command(*enter, json.dumps(sorted(ports)), seconds=120.0))}


def pid_of(name: str) -> int:
    """Return a process of a pod; 0 while none runs."""
    found = get("pods", "--field-selector", f"metadata.name={name},status.phase=Running")["items"]
    return next(iter(faults.pod_pids(found[0])), 0) if found else 0


def pod(name: str, labels: dict[str, str]) -> dict[str, Any]:
    container = {
        "name": "pause",
        "image": PAUSE_IMAGE,
        "imagePullPolicy": "Never",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "runAsUser": 65535,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def operators_policy() -> str:
    """Return the NetworkPolicy that the operator's chart has with `networkPolicy.create`."""
    only = ("--show-only", "templates/networkpolicy.yaml", "--set", "networkPolicy.create=true")
    version = ("--kube-version", install.KUBERNETES_VERSION)
    return helm("template", RELEASE, str(CHART), "--namespace", OPERATOR_NAMESPACE, *version, *only)


def start_firewall(number: int) -> None:
    """Start kube-router as a firewall alone."""
    node = nodes()[number - 1]
    options = {
        "kubeconfig": kubeconfig(),
        "hostname-override": node.name,
        "run-router": "false",
        "run-service-proxy": "false",
        "run-firewall": "true",
        "enable-ipv4": "true",
        # Of both families its rules are not written: "ip6tables-restore: Set … doesn't exist".
        "enable-ipv6": "false",
        "service-cluster-ip-range": SERVICE_RANGE,
        "health-port": 0,
        "metrics-port": 0,
    }
    arguments = [f"--{option}={value}" for option, value in options.items()]
    start(f"firewall{number}", [*node.enter, str(install.kube_router_program()), *arguments])


def end_firewall(number: int) -> None:
    """End it, and delete its rules, which would go on without it: nothing else of a node uses iptables."""
    end(f"firewall{number}")
    node = nodes()[number - 1]
    for words in ("iptables -F", "iptables -X", "ip6tables -F", "ip6tables -X", "ipset destroy"):
        subprocess.run([*node.enter, *words.split()], capture_output=True, check=False)
