"""The directory in Kubernetes: BrokerGroups say what is wanted, pods say who speaks from which address and who is dead.

Both are local copies kept by watches, so they may be old; what that can cost is bounded by what they are used for. An address
that no known pod has is looked up at the API once more before a new broker is told that it has no reservation. A container
reported terminated is evidence of a death and stays true for ever, for that process: it is old news only when a newer process of
the same member is heard, which the failure detector knows better.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup import BrokerGroup, UncleanElection
from brokergroup_operator.api.brokergroup_status import Durability
from brokergroup_operator.controller.directory import GroupBinding, MemberGone, Peer
from brokergroup_operator.kube.errors import ApiError
from brokergroup_operator.kube.reflector import Reflector, key_of
from brokergroup_operator.kube.resources import BROKER_GROUPS, PODS
from brokergroup_operator.records.store import GroupKey
from controller_core.settings import ControllerSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.kube.client import JsonObject, KubernetesApi, WatchEvent

SYNC_DEADLINE_SECONDS = 30.0
LOOK_UP_DEADLINE_SECONDS = 1.0
# A peer that is no pod of ours (mqadmin, say) is not looked up again at every request.
UNKNOWN_PEER_SECONDS = 0.5
UNKNOWN_PEERS_LIMIT = 10_000

log = structlog.get_logger(__name__)


class KubernetesDirectory:
    """BrokerGroups and pods, as the API last told. ``namespace=None`` watches all of them."""

    def __init__(self, api: KubernetesApi, *, namespace: str | None = None) -> None:
        self._api = api
        self._namespace = namespace
        self._groups = Reflector(api, BROKER_GROUPS, namespace=namespace, on_change=self._on_group)
        self._pods = Reflector(
            api, PODS, namespace=namespace, label_selector=names.LABEL_BROKER_GROUP, on_change=self._on_pod
        )
        self._bindings: dict[GroupKey, GroupBinding] = {}
        self._by_address: dict[str, Peer] = {}
        self._unknown_until_seconds: dict[str, float] = {}
        self._ended: dict[tuple[GroupKey, int], tuple[str, str]] = {}
        self._gone_callbacks: list[Callable[[MemberGone], None]] = []
        self._previous_pods: dict[tuple[str, str], JsonObject] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Watch both kinds; returns when both were listed once."""
        self._tasks = [
            asyncio.create_task(self._groups.run(), name="rmq:directory-groups"),
            asyncio.create_task(self._pods.run(), name="rmq:directory-pods"),
        ]
        await self._groups.wait_synced(SYNC_DEADLINE_SECONDS)
        await self._pods.wait_synced(SYNC_DEADLINE_SECONDS)

    async def stop(self) -> None:
        """End both watches."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def bindings(self) -> list[GroupBinding]:
        """Every BrokerGroup with a valid spec."""
        return list(self._bindings.values())

    def binding(self, key: GroupKey) -> GroupBinding | None:
        """The BrokerGroup of this key."""
        return self._bindings.get(key)

    def find(self, broker_name: str, *, cluster_name: str = "", peer: Peer | None = None) -> GroupBinding | None:
        """The one group of that name; where several share it, the one in the peer's namespace."""
        found = [
            binding
            for binding in self._bindings.values()
            if binding.broker_name == broker_name and cluster_name in ("", binding.cluster_name)
        ]
        if len(found) > 1 and peer is not None:
            found = [binding for binding in found if binding.key.namespace == peer.namespace]
        return found[0] if len(found) == 1 else None

    def known_peer(self, host: str) -> Peer | None:
        """The pod with this IP in the local copy."""
        return self._by_address.get(host)

    async def peer(self, host: str) -> Peer | None:
        """The pod with this IP; an unknown one is looked up at the API, since pods are younger than watches."""
        known = self._by_address.get(host)
        now_seconds = asyncio.get_running_loop().time()
        if known is not None or self._unknown_until_seconds.get(host, 0.0) > now_seconds:
            return known
        try:
            listed = await self._api.list(
                PODS,
                namespace=self._namespace,
                label_selector=names.LABEL_BROKER_GROUP,
                timeout_seconds=LOOK_UP_DEADLINE_SECONDS,
            )
        except ApiError as error:
            log.warning("peer not looked up", host=host, error=str(error))
            return None
        for pod in listed.items:
            if _pod_ip(pod) == host and not _is_over(pod):
                return _peer_of(pod)
        if len(self._unknown_until_seconds) >= UNKNOWN_PEERS_LIMIT:
            self._unknown_until_seconds.clear()
        self._unknown_until_seconds[host] = now_seconds + UNKNOWN_PEER_SECONDS
        return None

    def is_terminated(self, key: GroupKey, broker_id: int, *, address: str) -> str | None:
        """Whether the container at this address was reported terminated, or was so before its pod went."""
        host = address.rpartition(":")[0]
        pod = self._pods.objects.get((key.namespace, names.pod_name(key.name, broker_id)))
        if pod is not None and _pod_ip(pod) == host:
            return _termination(pod)
        ended_at, how = self._ended.get((key, broker_id), ("", ""))
        return how if ended_at == host else None

    def subscribe_gone(self, callback: Callable[[MemberGone], None]) -> None:
        """Be told when a container is reported terminated or was replaced by a new one."""
        self._gone_callbacks.append(callback)

    def _on_group(self, event: WatchEvent) -> None:
        namespace, name = key_of(event.object)
        key = GroupKey(namespace, name)
        if event.type == "DELETED":
            self._bindings.pop(key, None)
            return
        try:
            self._bindings[key] = binding_of(event.object)
        except msgspec.ValidationError as error:
            # The API server validates; this is a CRD newer than this operator. What we knew of the group stays in force.
            log.error("BrokerGroup not understood", group=str(key), error=str(error))  # noqa: TRY400

    def _on_pod(self, event: WatchEvent) -> None:
        pod = event.object
        namespace, name = key_of(pod)
        previous = self._previous_pods.get((namespace, name))
        if previous is not None:
            self._forget_address(previous)
        if event.type == "DELETED":
            self._previous_pods.pop((namespace, name), None)
        else:
            self._previous_pods[namespace, name] = pod
            address = _pod_ip(pod)
            if address and not _is_over(pod):
                self._by_address[address] = _peer_of(pod)
        self._notice_death(event.type, pod, previous)

    def _notice_death(self, event_type: str, pod: JsonObject, previous: JsonObject | None) -> None:
        peer = _peer_of(pod)
        broker_id = names.broker_id_of_pod_name(peer.group.name, peer.pod_name) if peer.group is not None else None
        if peer.group is None or broker_id is None:
            return
        how = _termination(pod)
        if event_type == "DELETED":
            # A pod removed by force vanishes before its process: only a reported end counts.
            if how is not None:
                self._ended[peer.group, broker_id] = (_pod_ip(pod), how)
        elif how is None and previous is not None and _restarts(pod) > _restarts(previous):
            how = "container restarted"
        if how is not None and (previous is None or _termination(previous) is None):
            for callback in self._gone_callbacks:
                callback(MemberGone(key=peer.group, broker_id=broker_id, how=how))

    def _forget_address(self, pod: JsonObject) -> None:
        address = _pod_ip(pod)
        if address and self._by_address.get(address) == _peer_of(pod):
            del self._by_address[address]


def binding_of(obj: JsonObject) -> GroupBinding:
    """Reduce a BrokerGroup to what the controller plane needs."""
    group = msgspec.convert(obj, BrokerGroup)
    namespace, name = key_of(obj)
    spec = group.spec
    durability = spec.durability or (Durability.STRICT if spec.replicas >= 3 else Durability.AVAILABLE)
    strict = durability is Durability.STRICT
    return GroupBinding(
        key=GroupKey(namespace, name),
        cluster_name=spec.broker_cluster_name,
        broker_name=spec.broker_name or name,
        settings=ControllerSettings(
            unclean_election_allowed=spec.failover.unclean_election is UncleanElection.ALLOWED,
            shrink_floor=strict,
            min_in_sync_replicas=2 if strict else 1,
        ),
        name_servers=tuple(spec.name_servers),
        heartbeat_timeout_seconds=spec.failover.heartbeat_timeout_milliseconds / 1000,
        fence_timeout_seconds=spec.failover.fence_timeout_milliseconds / 1000,
        deleting="deletionTimestamp" in obj["metadata"],
    )


def _peer_of(pod: JsonObject) -> Peer:
    namespace, name = key_of(pod)
    group = pod["metadata"].get("labels", {}).get(names.LABEL_BROKER_GROUP)
    return Peer(namespace=namespace, pod_name=name, group=GroupKey(namespace, group) if group else None)


def _pod_ip(pod: JsonObject) -> str:
    return str(pod.get("status", {}).get("podIP", ""))


def _is_over(pod: JsonObject) -> bool:
    return pod.get("status", {}).get("phase") in ("Failed", "Succeeded")


def _broker_status(pod: JsonObject) -> dict[str, Any]:
    for status in pod.get("status", {}).get("containerStatuses") or []:
        if status.get("name") == names.CONTAINER_BROKER:
            found: dict[str, Any] = status
            return found
    return {}


def _restarts(pod: JsonObject) -> int:
    return int(_broker_status(pod).get("restartCount", 0))


def _termination(pod: JsonObject) -> str | None:
    status = _broker_status(pod)
    state = status.get("state") or {}
    terminated = state.get("terminated")
    if "waiting" in state:  # between two processes (CrashLoopBackOff): the last one has ended, the next has not begun
        terminated = (status.get("lastState") or {}).get("terminated")
    if terminated:
        return f"container terminated (exit code {terminated.get('exitCode')})"
    return f"pod {pod['status']['phase']}" if _is_over(pod) else None
