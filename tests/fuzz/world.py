"""The sieve's world with brokers that run by their pods and broker.conf, and pods that fail for a bad spec.

A broker reads the ConfigMap at its start and takes changes by request 25, so a test can query its real settings. A pod
whose image can't be pulled, whose Secret is missing or whose node selector fits no node has the status of a real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any

from brokergroup_operator.api import names
from brokergroup_operator.api.durability import acknowledgement_rule, voting_replicas
from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.errors import ApiError, NotFoundError
from brokergroup_operator.kube.reflector import Reflector
from brokergroup_operator.kube.resources import BROKER_GROUP_STATES, BROKER_GROUPS, CONFIG_MAPS, PODS, SECRETS, SERVICES
from brokergroup_operator.reconcile.see.fetch import read_group
from rocketmq_remoting.serialization import decode_properties
from rocketmq_remoting.signature import Credentials, sign_command
from tests.fuzz import hints
from tests.sieve.cluster import Broker, Disk, Node
from tests.sieve.world import NAME, NAMESPACE, World

if TYPE_CHECKING:
    from brokergroup_operator.kube.resources import Resource
    from rocketmq_remoting.command import RemotingCommand
    from tests.fuzz.admission import Spec
    from tests.support.memory_api import MemoryApi
    from tests.support.virtual_loop import VirtualLoop

# Longer than the product watches a recovery (`recovery_watch_seconds`).
LONGEST_INCIDENT_SECONDS = 60.0
KEYS = Credentials(access_key="fuzz", secret_key="fuzz-secret")
PRESENT: tuple[tuple[Resource, str, dict[str, str]], ...] = (
    (CONFIG_MAPS, hints.CONFIG_MAP, {"maxMessageSize": "1000000", "fileReservedTime": "12"}),
    (CONFIG_MAPS, hints.RESERVED_CONFIG_MAP, {"brokerId": "0"}),
    (SECRETS, hints.SECRET, {"accessKey": KEYS.access_key, "secretKey": KEYS.secret_key}),
)
# The group's own keys of broker.conf that the scripted broker applies.
MINIMUM, HEARTBEAT, PORT, HA_PORT = "minInSyncReplicas", "brokerHeartbeatInterval", "listenPort", "haListenPort"


class _Signing:
    """A client that signs its requests."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def invoke(self, address: str, command: RemotingCommand, **options: Any) -> RemotingCommand:
        answer: RemotingCommand = await self._client.invoke(address, sign_command(command, KEYS), **options)
        return answer

    async def invoke_oneway(self, address: str, command: RemotingCommand, **options: Any) -> None:
        await self._client.invoke_oneway(address, sign_command(command, KEYS), **options)


class ConfiguredBroker(Broker):
    """A broker with these properties."""

    def __init__(
        self,
        *arguments: Any,
        properties: dict[str, str],
        environment: dict[str, str],
        signs: bool,
        learner: bool,
        **options: Any,
    ) -> None:
        filled = {key: _filled_in(text, environment) for key, text in properties.items()}
        super().__init__(
            *arguments,
            port=int(filled[PORT]),
            minimum=int(filled[MINIMUM]),
            heartbeat_seconds=int(filled[HEARTBEAT]) / 1000,
            **options,
        )
        self.async_learner = learner
        self.known_host = filled["brokerIP1"]
        self.served_ha_address = f"{filled['brokerIP2']}:{filled[HA_PORT]}"
        # Of one group all have the same, and none of them ever changes.
        self.group.cluster, self.group.name = properties["brokerClusterName"], properties["brokerName"]
        self.config = {key: value for key, value in properties.items() if key != MINIMUM}
        if signs:
            client: Any = _Signing(self._client)
            self._client = client

    @property
    def runs_with(self) -> dict[str, str]:
        """Return every key of broker.conf in the process."""
        return {**self.config, MINIMUM: str(self.minimum)}

    @property
    def address(self) -> str:
        """Return the broker's advertised address."""
        return f"{self.known_host}:{self._server.port}"

    def ha_address_of_master(self) -> str:
        for other in self.group.brokers.values():
            if isinstance(other, ConfiguredBroker) and other.address == self.master_address:
                return other.served_ha_address
        return ""

    def serves_ha_at(self, ha_address: str) -> bool:
        return self.served_ha_address == ha_address


class FaithfulNode(Node):
    """Starts the pods' brokers, or sets the status of a failed start. Load balancers have addresses as long as their type."""

    def __init__(self, loop: VirtualLoop, api: MemoryApi, namespace: str) -> None:
        super().__init__(loop, api, namespace)
        self._reserved: dict[str, str] = {}
        self._services = Reflector(api, SERVICES, namespace=namespace, on_change=self._wake)

    async def _broker(self, pod: dict[str, Any], disk: Disk, *, host: str) -> Broker:
        config_map = await self._api.get(CONFIG_MAPS, names.config_map_name(NAME), namespace=self._namespace)
        broker = ConfiguredBroker(
            self.group,
            properties=decode_properties(config_map["data"][names.CONFIG_FILE].encode()),
            environment=_environment(pod, address=host),
            signs=bool(_secrets_of(pod)),
            learner=_is_learner(pod),
            broker_id=disk.broker_id,
            epoch_file=disk.epoch_file,
            max_offset=disk.max_offset,
            host=host,
        )
        # As kube-proxy: connections to its Service arrive at the pod.
        self._loop.aliases[broker.known_host, broker.port] = (host, broker.port)
        return broker

    async def run(self) -> None:
        following = asyncio.create_task(self._services.run())
        try:
            await super().run()
        finally:
            following.cancel()

    async def _follow(self) -> None:
        for service in list(self._services.objects.values()):
            balances, has_address = service["spec"].get("type") == "LoadBalancer", _has_address(service)
            if balances and not has_address:
                address = {"ingress": [{"ip": self._address_of(service["metadata"]["name"])}]}
                await self._set_address(service["metadata"]["name"], address)
            elif has_address and not balances:
                await self._set_address(service["metadata"]["name"], {"ingress": None})
        await super()._follow()

    def _address_of(self, service: str) -> str:
        """Return the pod's earlier address if it had one: a change and its reversal must end at the same address."""
        return self._reserved.setdefault(service, f"192.0.2.{len(self._reserved) + 1}")

    async def _set_address(self, service: str, address: dict[str, Any]) -> None:
        """Set a load balancer's address, as a cloud's controller does."""
        status = {"status": {"loadBalancer": address}}
        with contextlib.suppress(NotFoundError):
            await self._api.patch(SERVICES, service, status, namespace=self._namespace, subresource="status")

    async def _begin(self, pod: dict[str, Any]) -> None:
        selector = pod["spec"].get("nodeSelector", {})
        if not selector.items() <= hints.NODE_LABELS.items():
            await self._say(pod, {"conditions": [_unschedulable(selector)]})
            return
        waiting = await self._why_it_waits(pod)
        if waiting is None:
            await super()._begin(pod)
            return
        status = {"name": names.CONTAINER_BROKER, "ready": False, "restartCount": 0, "image": "", "imageID": ""}
        await self._say(pod, {"containerStatuses": [status | {"state": {"waiting": waiting}}]})

    async def _why_it_waits(self, pod: dict[str, Any]) -> dict[str, str] | None:
        containers = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]
        if any(hints.UNPULLABLE in one["image"] for one in containers):
            return {"reason": "ErrImagePull", "message": f"{hints.UNPULLABLE}: not found"}
        for secret in _secrets_of(pod):
            try:
                await self._api.get(SECRETS, secret, namespace=self._namespace)
            except NotFoundError:
                return {"reason": "CreateContainerConfigError", "message": f'secret "{secret}" not found'}
        return None

    async def _say(self, pod: dict[str, Any], status: dict[str, Any]) -> None:
        """Write a message once: a repetition would be a change."""
        if pod.get("status", {}).get("phase") == "Pending" and status.items() <= pod["status"].items():
            return
        with contextlib.suppress(ApiError):
            await self._api.patch(
                PODS,
                pod["metadata"]["name"],
                {"status": {"phase": "Pending", **status}},
                namespace=self._namespace,
                subresource="status",
                content_type=PatchType.MERGE,
            )


def _has_address(service: dict[str, Any]) -> bool:
    return bool(service.get("status", {}).get("loadBalancer"))


def _environment(pod: dict[str, Any], *, address: str) -> dict[str, str]:
    """Return the broker container's environment. Each pod has its own node here, so the node's address is the pod's."""
    return {one["name"]: one.get("value", address) for one in pod["spec"]["containers"][0].get("env", [])}


def _is_learner(pod: dict[str, Any]) -> bool:
    """Whether the broker starts as a learner, by its own settings."""
    started = " ".join(pod["spec"]["containers"][0]["command"])
    return "--async-learner" in started or "echo asyncLearner=true >>" in started


def _filled_in(text: str, environment: dict[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda match: environment.get(match[1], ""), text)


def _secrets_of(pod: dict[str, Any]) -> list[str]:
    environment = pod["spec"]["containers"][0].get("env", [])
    found = {
        one["valueFrom"]["secretKeyRef"]["name"] for one in environment if "secretKeyRef" in one.get("valueFrom", {})
    }
    return sorted(found)


def _floor_of(group: dict[str, Any]) -> int:
    """Return the number of members in sync that planned steps must keep; a group too small for it may lose one."""
    spec = read_group(group).spec
    if spec.maintenance.hibernated or "deletionTimestamp" in group["metadata"]:
        return 0
    return min(acknowledgement_rule(spec).minimum_in_sync, voting_replicas(spec) - 1)


def _unschedulable(selector: dict[str, str]) -> dict[str, str]:
    message = f"0/1 nodes are available: 1 node(s) didn't match the node selector {selector}"
    return {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}


class FuzzWorld(World):
    """The world of a fuzz story."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._floor = 0
        self._in_sync: set[int] = set()
        self._going: set[int] = set()
        super().__init__(loop, None)
        self.node = FaithfulNode(loop, self.api, NAMESPACE)

    async def begin(self) -> None:
        await super().begin()
        for resource, name, data in PRESENT:
            field = "stringData" if resource == SECRETS else "data"
            await self.api.create(resource, {"metadata": {"name": name, "namespace": NAMESPACE}, field: data})

    def _committed(self, key: Any, name: Any, change: Any) -> None:
        super()._committed(key, name, change)
        obj = change.version.obj
        match obj.get("kind"):
            case names.BROKER_GROUP_KIND:
                self._floor = _floor_of(obj)
            case names.BROKER_GROUP_STATE_KIND:
                self._in_sync = set(obj["record"].get("syncStateSet", []))
            case "Pod":
                self._judge_going(obj, is_gone=change.type == "DELETED")

    def _judge_going(self, pod: dict[str, Any], *, is_gone: bool) -> None:
        """Check that no pod is stopped while fewer members would remain than a write needs."""
        broker_id = names.broker_id_of_pod_name(NAME, pod["metadata"]["name"])
        if broker_id is None:
            return
        going = is_gone or "deletionTimestamp" in pod["metadata"]
        if going and broker_id not in self._going:
            before = self._in_sync - self._going
            if len(before) >= self._floor > len(before - {broker_id}):
                self.laws_broken.append(f"broker {broker_id} is stopped, {self._floor} of {sorted(before)} must stay")
        (self._going.add if going else self._going.discard)(broker_id)

    async def wish(self, spec: Spec) -> None:
        """Create the group with the user's whole spec, or replace its spec. Raises `InvalidError`."""
        group = await self.group()
        if not group:
            metadata = {"name": NAME, "namespace": NAMESPACE}
            kind = {"apiVersion": names.API_VERSION, "kind": names.BROKER_GROUP_KIND}
            await self.api.create(BROKER_GROUPS, {**kind, "metadata": metadata, "spec": spec})
            return
        # A replace without conflicts: no other writer changes the spec, and status has its own subresource.
        await self.api.replace(BROKER_GROUPS, {**group, "spec": spec})

    async def rest(self) -> dict[str, Any]:
        """Let the group settle, and return it."""
        self.loop.allow_more_turns()
        await self.settle()
        ends_at = self.loop.time() + LONGEST_INCIDENT_SECONDS
        while await self._has_change() and self.loop.time() < ends_at:
            await asyncio.sleep(1.0)
            await self.settle()
        return await self.group()

    async def _has_change(self) -> bool:
        """Whether the record has a change: an open incident keeps it, and writes nothing while the plane watches the recovery."""
        states = (await self.api.list(BROKER_GROUP_STATES, namespace=NAMESPACE)).items
        return any(state["record"].get("change") for state in states)
