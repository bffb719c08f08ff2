"""A group of Java brokers on a node that can be cut off, for the fault runners: an API, the process kubelet with network
namespaces, one operator process or several, a NameServer.

With the sandbox's API each operator has a network namespace: a pod can be cut off from it, but not from clients, which run on
the host. A real kube-apiserver listens only on the host's loopback address, so there the operators run on the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from brokergroup_operator.demo.our_sandbox import our_definitions
from brokergroup_operator.demo.watched_group import WatchedGroup
from brokergroup_operator.kube import ApiError, KubernetesApi, NotFoundError, Reflector
from brokergroup_operator.kube.resources import BROKER_GROUP_STATES, BROKER_GROUPS, PODS
from kube_sandbox.kubelet.network import NetworkNamespaces
from kube_sandbox.sandbox import sandbox
from tests.fence.gate import Gate
from tests.real.clusters import images
from tests.real.parts.java import NO_TLS, SPARING_BROKER
from tests.real.parts.process import RealProcess, start
from tests.support.places import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from kube_sandbox.kubelet import ProcessKubelet
    from kube_sandbox.real_api_server import ApiServerPrograms

NAMESPACE = "default"
GROUP = "orders"
CONTROLLER_PORT = 9878
READY_SECONDS = 180.0
JVM = ["-Xms256m", "-Xmx256m", "-XX:MaxDirectMemorySize=256m", "-XX:+UseSerialGC", "-XX:-UseG1GC", NO_TLS]
NAME_SERVER_SECONDS = 90.0


class ClusterError(Exception):
    """A part that the run needs did not start or restart: there is no verdict."""


def say(text: str) -> None:
    """Print progress to stderr: stdout has only the verdict."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


@dataclass
class Operators:
    """The operator processes of a cluster, started and killed together. `places`: each operator's address and command prefix."""

    folder: Path
    kubeconfig: Path
    places: list[tuple[str, tuple[str, ...]]]
    processes: list[RealProcess] = field(default_factory=list)

    @property
    def hosts(self) -> list[str]:
        return [address.rpartition(":")[0] for address, _ in self.places]

    def start(self) -> None:
        """Start each operator, at its earlier address if it had one."""
        known = [word for address, _ in self.places for word in ("--controller-address", address)]
        if len(self.places) > 1:
            known += ["--leader-election-namespace", NAMESPACE]
        self.processes = [
            self._start(number, address, prefix, known) for number, (address, prefix) in enumerate(self.places)
        ]

    def _start(self, number: int, address: str, prefix: tuple[str, ...], known: list[str]) -> RealProcess:
        host = address.rpartition(":")[0]
        command = [
            *prefix,
            *(sys.executable, "-m", "brokergroup_operator.cli.main", "operator", "--kubeconfig", str(self.kubeconfig)),
            *("--namespace", NAMESPACE, "--listen", address, *known, "--identity", f"operator-{number}"),
            *("--metrics-listen", f"{host}:0", "--incident-log", str(self.folder / f"incidents-{number}.jsonl")),
        ]
        return start(f"operator-{number}", command, log=self.folder / f"operator-{number}.log")

    def kill(self) -> None:
        """Send SIGKILL to the running operators."""
        for process in self.processes:
            process.kill()

    def check(self) -> None:
        """Raise ClusterError if an operator has ended."""
        for process in self.processes:
            if process.process.poll() is not None:
                raise ClusterError(f"{process.name} ended: {process.tail()}")


@dataclass
class JavaCluster:
    """The group under test."""

    folder: Path
    api: KubernetesApi
    kubelet: ProcessKubelet
    network: NetworkNamespaces
    gate: Gate
    group: WatchedGroup
    replicas: int
    name_server: str
    operators: Operators
    # (time, master epoch, members in sync): one entry a change of the record.
    history: list[tuple[float, int, int]] = field(default_factory=list)

    def address_of(self, broker_id: int) -> str | None:
        """Return a broker's address for sends, by the record."""
        for replica in self.group.record.get("replicas", []):
            if replica["brokerId"] == broker_id:
                return replica.get("address") or None
        return None

    def broker_ids(self) -> list[int]:
        return sorted(replica["brokerId"] for replica in self.group.record.get("replicas", []))

    def pod_of(self, broker_id: int) -> str:
        return f"{GROUP}-{broker_id}"

    def pids(self, broker_id: int) -> dict[str, int]:
        """Return the main processes of a member's pod by container."""
        found = {
            name: self.kubelet.container_pid(NAMESPACE, self.pod_of(broker_id), name) for name in ("broker", "fence")
        }
        return {name: pid for name, pid in found.items() if pid is not None}

    def incidents(self) -> list[dict[str, Any]]:
        files = sorted(self.folder.glob("incidents-*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]

    def fence_log(self) -> list[dict[str, Any]]:
        """Return the logs of all pods' fences."""
        files = sorted(self.folder.glob("node/logs/*/fence/*.log"))
        lines = (line for file in files for line in file.read_text(encoding="utf-8", errors="replace").splitlines())
        return [json.loads(line) for line in lines if line.startswith("{")]

    def namespace_of(self, broker_id: int) -> str:
        """Return the network namespace of a member's pod."""
        address = self.address_of(broker_id)
        assert address is not None
        return self.network.namespace_of(address.rpartition(":")[0])

    async def until(self, what: str, holds: Callable[[], bool], seconds: float = READY_SECONDS) -> None:
        """Wait for a condition; raise ClusterError at the deadline."""
        deadline = time.monotonic() + seconds
        while not holds():
            self.operators.check()
            if time.monotonic() > deadline:
                raise ClusterError(f"{what}: not within {seconds} s: {self.group.record} {self.group.status}")
            await asyncio.sleep(0.02)

    async def until_whole(self, what: str, *, settled_seconds: float = 1.0) -> None:
        """Wait until all replicas are in sync and Ready is True, both for a while."""
        since: float | None = None

        def holds() -> bool:
            nonlocal since
            whole = self.group.is_ready() and len(self.group.sync_state_set) == self.replicas
            whole = whole and all("broker" in self.pids(broker_id) for broker_id in self.broker_ids())
            if not whole:
                since = None
            elif since is None:
                since = time.monotonic()
            return since is not None and time.monotonic() - since >= settled_seconds

        await self.until(what, holds)


def manifest(name_server: str, *, replicas: int, spec: dict[str, Any]) -> dict[str, Any]:
    """Return the BrokerGroup with `spec`'s fields replaced (None: removed)."""
    own: dict[str, Any] = {
        "implementation": "Java",
        "version": "5.5.0",
        "replicas": replicas,
        "nameServers": [name_server],
        "durability": "Strict",
        "storage": {"size": "8Gi"},
        "jvm": {"extraArguments": JVM},
        "config": {"mappedFileSizeCommitLog": "67108864", **{key: str(value) for key, value in SPARING_BROKER.items()}},
    }
    return {
        "apiVersion": "brokergroup.dev/v1beta1",
        "kind": "BrokerGroup",
        "metadata": {"name": GROUP, "namespace": NAMESPACE},
        "spec": {key: value for key, value in (own | spec).items() if value is not None},
    }


@contextlib.asynccontextmanager
async def java_cluster(
    folder: Path,
    *,
    bridge: str,
    subnet: str,
    name_server: dict[str, Any],
    replicas: int = 3,
    spec: dict[str, Any],
    planes: int = 1,
    programs: ApiServerPrograms | None = None,
) -> AsyncIterator[JavaCluster]:
    """Start all parts and wait for the whole group; stop all at the end. `programs`: a real kube-apiserver and etcd as the API."""
    network = NetworkNamespaces(folder / "next-address", bridge=bridge, subnet=ipaddress.IPv4Network(subnet))
    gate = Gate()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(gate.close)
        running = await stack.enter_async_context(
            sandbox(
                data_dir=folder / "node",
                images=images(),
                definitions=our_definitions(),
                host="0.0.0.0",
                network=network,
                node_url=gate.start,
                programs=programs,
            )
        )
        api = await stack.enter_async_context(KubernetesApi.from_kubeconfig(running.kubeconfig))
        there = folder / "operator.kubeconfig"
        kubeconfig = running.kubeconfig.read_text(encoding="utf-8")
        there.write_text(kubeconfig.replace("0.0.0.0", network.node_ip), encoding="utf-8")
        operators = Operators(folder, there, await _places(network, planes, on_the_host=programs is not None))
        stack.callback(operators.kill)
        operators.start()
        server = await _start_name_server(api, name_server)
        await _apply(api, manifest(server, replicas=replicas, spec=spec))
        cluster = JavaCluster(
            folder,
            api,
            running.kubelet,
            network,
            gate,
            WatchedGroup(NAMESPACE, GROUP, {}, {}),
            replicas,
            server,
            operators,
        )
        stack.push_async_callback(_stop_watching, await _watch(cluster))
        await cluster.until_whole("start")
        say(f"the group is whole: {cluster.group.record['syncStateSet']}, master {cluster.group.master_id}")
        try:
            yield cluster
        finally:
            gate.open.set()
            _kill_brokers(cluster)


def _kill_brokers(cluster: JavaCluster) -> None:
    """Kill the brokers: a Java broker's own shutdown takes ten seconds or more, and no test needs it."""
    for broker_id in cluster.broker_ids():
        for pid in cluster.pids(broker_id).values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def _places(network: NetworkNamespaces, planes: int, *, on_the_host: bool) -> list[tuple[str, tuple[str, ...]]]:
    """Return an address for each operator, and the command prefix that starts a program there."""
    if on_the_host:
        return [(f"{network.node_ip}:{free_port(network.node_ip)}", ()) for _ in range(planes)]
    attached = [await network.attach(f"operator-{number}") for number in range(planes)]
    return [(f"{place.ip}:{CONTROLLER_PORT}", place.command_prefix) for place in attached]


async def _start_name_server(api: KubernetesApi, pod: dict[str, Any]) -> str:
    pod["metadata"]["namespace"] = NAMESPACE
    await api.create(PODS, pod)
    deadline = time.monotonic() + NAME_SERVER_SECONDS
    while True:
        with contextlib.suppress(NotFoundError):
            seen = (await api.get(PODS, pod["metadata"]["name"], namespace=NAMESPACE)).get("status", {})
            conditions = {entry["type"]: entry["status"] for entry in seen.get("conditions", [])}
            if conditions.get("Ready") == "True":
                return f"{seen['podIP']}:9876"
        if time.monotonic() > deadline:
            raise ClusterError("the NameServer was not ready in time")
        await asyncio.sleep(0.1)


async def _apply(api: KubernetesApi, group: dict[str, Any]) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            await api.apply(BROKER_GROUPS, group, field_manager="tests")
        except ApiError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)
        else:
            return


async def _watch(cluster: JavaCluster) -> list[asyncio.Task[None]]:
    def changed(event: Any) -> None:
        record = event.object.get("record", {})
        cluster.history.append((time.time(), int(record.get("masterEpoch", 0)), len(record.get("syncStateSet", []))))

    groups = Reflector(cluster.api, BROKER_GROUPS, namespace=NAMESPACE, on_change=lambda _: None)
    states = Reflector(cluster.api, BROKER_GROUP_STATES, namespace=NAMESPACE, on_change=changed)
    tasks = [asyncio.create_task(reflector.run()) for reflector in (groups, states)]
    for reflector in (groups, states):
        await reflector.wait_synced(10.0)
    cluster.group = WatchedGroup(NAMESPACE, GROUP, groups.objects, states.objects)
    return tasks


async def _stop_watching(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def cut_off(namespace: str, addresses: list[str]) -> None:
    """Silently drop all packets between a pod and some addresses, both ways."""
    those = ", ".join(addresses)
    rules = (
        "table inet cut {\n"
        f" chain out {{ type filter hook output priority 0; ip daddr {{ {those} }} drop;\n }}\n"
        f" chain in {{ type filter hook input priority 0; ip saddr {{ {those} }} drop;\n }}\n"
        "}\n"
    )
    _nft(namespace, rules)


def heal(namespace: str) -> None:
    """End the cut; a no-op if the pod is gone with its namespace."""
    with contextlib.suppress(subprocess.CalledProcessError):
        _nft(namespace, "delete table inet cut\n")


def _nft(namespace: str, rules: str) -> None:
    subprocess.run(
        ["ip", "netns", "exec", namespace, "nft", "-f", "-"], input=rules, text=True, check=True, capture_output=True
    )


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the first document of a manifest."""
    first: dict[str, Any] = next(iter(yaml.safe_load_all(path.read_text(encoding="utf-8"))))
    return first
