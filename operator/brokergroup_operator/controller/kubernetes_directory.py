"""The directory in Kubernetes: BrokerGroups say what is wanted, pods say who speaks from which address and who is dead.

Both are local copies kept by watches, so they may be old; what that can cost is bounded by what they are used for. An address
that no known pod has is looked up at the API once more before a new broker is told that it has no reservation. A container
reported terminated is evidence of a death and stays true for ever, for that process: it is old news only when a newer process of
the same member is heard, which the failure detector knows better.

The Secret of a group's credentials and the zones of its nodes are read by name (``look_ups.py``). The right to read nodes is
optional: without it no zone is known and ties are decided without.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import structlog

from brokergroup_operator.api import names
from brokergroup_operator.api.credentials import CredentialsError, credentials_in, secret_not_found, secret_not_readable
from brokergroup_operator.api.learners import runs_as_learner
from brokergroup_operator.controller.directory import Credentials, GroupBinding, MemberGone, Peer, PodPlace
from brokergroup_operator.controller.kubernetes_binding import (
    binding_of,
    broker_id_of,
    credentials_secret_of,
    is_at,
    is_leaving,
    is_over,
    node_of,
    peer_of,
    place_of,
    pod_ip,
    restarts,
    termination,
)
from brokergroup_operator.controller.look_ups import LookUps
from brokergroup_operator.controller.member_facts import NodePlace, member_facts, place_of_node, tenant_of
from brokergroup_operator.kube.errors import ApiError, NotFoundError
from brokergroup_operator.kube.reflector import ObjectKey, Reflector, key_of
from brokergroup_operator.kube.resources import BROKER_GROUPS, NODES, PODS, SECRETS
from brokergroup_operator.records.store import GroupKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokergroup_operator.kube.client import JsonObject, KubernetesApi, WatchEvent

SYNC_DEADLINE_SECONDS = 30.0
LOOK_UP_DEADLINE_SECONDS = 1.0
# A peer that is no pod of ours (mqadmin, say) is not looked up again at every request.
UNKNOWN_PEER_SECONDS = 0.5
UNKNOWN_PEERS_LIMIT = 10_000
CREDENTIALS_REFRESH_SECONDS = 60.0
ZONES_REFRESH_SECONDS = 600.0
# What a group names and is not there yet is looked for this often.
MISSING_SECONDS = 5.0
FORBIDDEN = 403

log = structlog.get_logger(__name__)


class KubernetesDirectory:
    """BrokerGroups and pods, as the API last told. ``namespace=None`` watches all of them."""

    def __init__(
        self, api: KubernetesApi, *, namespace: str | None = None, missing_seconds: float = MISSING_SECONDS
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._groups = Reflector(api, BROKER_GROUPS, namespace=namespace, on_change=self._on_group)
        self._pods = Reflector(
            api, PODS, namespace=namespace, label_selector=names.LABEL_BROKER_GROUP, on_change=self._on_pod
        )
        self._credentials: LookUps[Credentials] = LookUps(
            wanted=lambda: set(self._secrets.values()),
            read=self._read_credentials,
            on_change=self._credentials_changed,
            refresh_seconds=CREDENTIALS_REFRESH_SECONDS,
            missing_seconds=missing_seconds,
        )
        self._zones: LookUps[NodePlace] = LookUps(
            wanted=self._nodes_of_pods,
            read=self._read_zone,
            on_change=self._zone_changed,
            refresh_seconds=ZONES_REFRESH_SECONDS,
            missing_seconds=missing_seconds,
        )
        self._nodes_are_readable = True
        self._complaints: dict[ObjectKey, str] = {}
        # As declared; and with credentials and zones, which is what others see.
        self._declared: dict[GroupKey, GroupBinding] = {}
        self._bindings: dict[GroupKey, GroupBinding] = {}
        self._secrets: dict[GroupKey, ObjectKey] = {}
        # The pods at each address: several, where pods share their node's.
        self._by_address: dict[str, set[Peer]] = {}
        self._unknown_until_seconds: dict[str, float] = {}
        # The pods whose end was reported before they went, and how they ended.
        self._ended: dict[ObjectKey, tuple[GroupKey, JsonObject, str]] = {}
        self._gone_callbacks: list[Callable[[MemberGone], None]] = []
        # The pods of each group as the watch last told, by their names.
        self._by_group: dict[GroupKey, dict[str, JsonObject]] = {}
        self._leaving: dict[GroupKey, frozenset[str]] = {}
        self._leaving_callbacks: list[Callable[[GroupKey], None]] = []
        self._previous_pods: dict[ObjectKey, JsonObject] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Watch both kinds; returns when both were listed once, and what they name was looked at."""
        self._tasks = [
            asyncio.create_task(self._groups.run(), name="rmq:directory-groups"),
            asyncio.create_task(self._pods.run(), name="rmq:directory-pods"),
        ]
        await self._groups.wait_synced(SYNC_DEADLINE_SECONDS)
        await self._pods.wait_synced(SYNC_DEADLINE_SECONDS)
        await self._credentials.refresh()
        self._tasks += [
            asyncio.create_task(self._credentials.run(), name="rmq:directory-credentials"),
            asyncio.create_task(self._zones.run(), name="rmq:directory-zones"),
        ]

    async def stop(self) -> None:
        """End the watches and the looking up."""
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
        """The pod with this IP in the local copy. Where several share it, the address tells nobody apart: then a key has to."""
        found = self._by_address.get(host, set())
        return next(iter(found)) if len(found) == 1 else None

    async def peer(self, host: str) -> Peer | None:
        """The pod with this IP; an unknown one is looked up at the API, since pods are younger than watches."""
        known = self.known_peer(host)
        now_seconds = asyncio.get_running_loop().time()
        if host in self._by_address or self._unknown_until_seconds.get(host, 0.0) > now_seconds:
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
        found = {peer_of(pod) for pod in listed.items if pod_ip(pod) == host and not is_over(pod)}
        if found:
            return found.pop() if len(found) == 1 else None
        if len(self._unknown_until_seconds) >= UNKNOWN_PEERS_LIMIT:
            self._unknown_until_seconds.clear()
        self._unknown_until_seconds[host] = now_seconds + UNKNOWN_PEER_SECONDS
        return None

    def is_terminated(self, key: GroupKey, broker_id: int, *, address: str) -> str | None:  # noqa: ARG002 - see below
        """Whether the container at this address was reported terminated, or was so before its pod went.

        The address decides, not the broker id: which pod carries an id is the record's to say, and may have just changed.
        """
        at_address = [termination(pod) for pod in self._pods_of(key) if is_at(pod, address)]
        if at_address:
            return None if None in at_address else at_address[0]
        return next((how for group, pod, how in self._ended.values() if group == key and is_at(pod, address)), None)

    def subscribe_gone(self, callback: Callable[[MemberGone], None]) -> None:
        """Be told when a container is reported terminated or was replaced by a new one."""
        self._gone_callbacks.append(callback)

    def pod_hosts(self, key: GroupKey) -> dict[str, str]:
        """Where the group's pods are."""
        pods = self._by_group.get(key, {})
        return {name: pod_ip(pod) for name, pod in pods.items() if pod_ip(pod) and not is_over(pod)}

    def leaving_hosts(self, key: GroupKey) -> frozenset[str]:
        """Where the group's pods are that are being deleted and whose brokers still run."""
        return self._leaving.get(key, frozenset())

    def subscribe_leaving(self, callback: Callable[[GroupKey], None]) -> None:
        """Be told when a pod begins to go, and when it is gone."""
        self._leaving_callbacks.append(callback)

    def _on_group(self, event: WatchEvent) -> None:
        namespace, name = key_of(event.object)
        key = GroupKey(namespace, name)
        if event.type == "DELETED":
            self._declared.pop(key, None)
            self._bindings.pop(key, None)
            self._secrets.pop(key, None)
            return
        try:
            self._declared[key] = replace(binding_of(event.object), tenant=tenant_of(event.object))
        except msgspec.ValidationError as error:
            # The API server validates; this is a CRD newer than this operator. What we knew of the group stays in force.
            log.error("BrokerGroup not understood", group=str(key), error=str(error))  # noqa: TRY400
            return
        self._secrets.pop(key, None)
        if secret := credentials_secret_of(event.object):
            self._secrets[key] = (namespace, secret)
            self._credentials.look_again((namespace, secret))
        self._compose(key)

    def _compose(self, key: GroupKey) -> None:
        """Put together what is declared, what the Secret says, and where the pods run."""
        declared = self._declared.get(key)
        if declared is None:
            return
        zones: dict[int, str] = {}
        places: dict[str, PodPlace] = {}
        learners: set[int] = set()
        pods = self._pods_of(key)
        nodes = {node: self._zones.get(("", node)) for node in {node_of(pod) for pod in pods}}
        for pod in pods:
            place = place_of(pod)
            if place is not None and place.ip and not is_over(pod):
                places[str(pod["metadata"]["name"])] = place
            broker_id, at = broker_id_of(pod), nodes.get(node_of(pod))
            if broker_id is not None and at is not None and at.zone:
                zones[broker_id] = at.zone
            if broker_id is not None and runs_as_learner(pod):
                learners.add(broker_id)
        secret, before = self._secrets.get(key), self._bindings.get(key, declared)
        self._bindings[key] = replace(
            declared,
            settings=replace(declared.settings, zones=zones, never_elect=frozenset(learners)),
            credentials=self._credentials.get(secret) if secret is not None else None,
            translated=declared.translated or bool(places),
            places=places,
            member_facts=member_facts(before.member_facts, pods, nodes, declared.tenant),
        )

    def _pods_of(self, key: GroupKey) -> list[JsonObject]:
        return [
            pod
            for (namespace, _), pod in self._pods.objects.items()
            if namespace == key.namespace and peer_of(pod).group == key
        ]

    async def _read_credentials(self, secret: ObjectKey) -> Credentials | None:
        namespace, name = secret
        try:
            found = await self._api.get(SECRETS, name, namespace=namespace, timeout_seconds=LOOK_UP_DEADLINE_SECONDS)
            pair = credentials_in(found)
        except NotFoundError:
            self._complain(secret, secret_not_found(namespace, name))
            return None
        except CredentialsError as error:
            self._complain(secret, error)
            return None
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            self._complain(secret, secret_not_readable(namespace, name))
            return None
        self._complaints.pop(secret, None)
        return Credentials(access_key=pair.access_key, secret_key=pair.secret_key)

    def _complain(self, secret: ObjectKey, why: CredentialsError) -> None:
        """Say it once, not every few seconds."""
        if self._complaints.get(secret) != str(why):
            self._complaints[secret] = str(why)
            log.warning("credentials not usable", reason=why.reason.value, error=str(why))

    def _credentials_changed(self, secret: ObjectKey) -> None:
        for key in [key for key, wanted in self._secrets.items() if wanted == secret]:
            self._compose(key)
            log.info(
                "credentials read", group=str(key), secret=secret[1], usable=self._credentials.get(secret) is not None
            )

    def _nodes_of_pods(self) -> set[ObjectKey]:
        return {("", node_of(pod)) for pod in self._pods.objects.values() if node_of(pod)}

    async def _read_zone(self, node: ObjectKey) -> NodePlace | None:
        try:
            return place_of_node(await self._api.get(NODES, node[1], timeout_seconds=LOOK_UP_DEADLINE_SECONDS))
        except NotFoundError:
            return None
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            if self._nodes_are_readable:
                log.info("nodes may not be read, so nothing is known of zones: the role lacks the verb get on nodes")
            self._nodes_are_readable = False
            return NodePlace()

    def _zone_changed(self, node: ObjectKey) -> None:
        groups = {peer_of(pod).group for pod in self._pods.objects.values() if node_of(pod) == node[1]}
        for key in groups:
            if key is not None:
                self._compose(key)

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
            address = pod_ip(pod)
            if address and not is_over(pod):
                # A new pod may have the address of one that is just going; only pods of a node's network share one.
                others = self._by_address.get(address, set()) if (pod.get("spec") or {}).get("hostNetwork") else set()
                self._by_address[address] = others | {peer_of(pod)}
            if self._ended:
                self._forget_ends(pod)
        self._notice_death(event.type, pod, previous)
        self._notice_place(pod, previous)
        group = peer_of(pod).group
        if group is not None:
            own = self._by_group.setdefault(group, {})
            own.pop(name, None)
            if event.type != "DELETED":
                own[name] = pod
            self._notice_leaving(group, own)

    def _notice_leaving(self, key: GroupKey, pods: dict[str, JsonObject]) -> None:
        leaving = frozenset(_known_by(one) for one in pods.values() if is_leaving(one) and pod_ip(one))
        if leaving != self._leaving.get(key, frozenset()):
            self._leaving[key] = leaving
            for callback in self._leaving_callbacks:
                callback(key)

    def _forget_ends(self, pod: JsonObject) -> None:
        """An address that has a pod again says nothing any more about the one that had it."""
        if not pod_ip(pod):
            return
        for key in [key for key, (_, ended, _) in self._ended.items() if _share_an_address(ended, pod)]:
            del self._ended[key]

    def _notice_place(self, pod: JsonObject, previous: JsonObject | None) -> None:
        group, node = peer_of(pod).group, ("", node_of(pod))
        if node[1] and not self._zones.is_known(node):
            self._zones.look_again(node)
        if group is not None and (previous is None or _place(previous) != _place(pod)):
            self._compose(group)

    def _notice_death(self, event_type: str, pod: JsonObject, previous: JsonObject | None) -> None:
        peer = peer_of(pod)
        broker_id = broker_id_of(pod)
        if peer.group is None or broker_id is None:
            return
        how = termination(pod)
        if event_type == "DELETED":
            # A pod removed by force vanishes before its process: only a reported end counts.
            if how is not None:
                self._ended[key_of(pod)] = (peer.group, pod, how)
        elif how is None and previous is not None and restarts(pod) > restarts(previous):
            how = "container restarted"
        if how is not None and (previous is None or termination(previous) is None):
            for callback in self._gone_callbacks:
                callback(MemberGone(key=peer.group, broker_id=broker_id, how=how))

    def _forget_address(self, pod: JsonObject) -> None:
        address = pod_ip(pod)
        there = self._by_address.get(address, set())
        there.discard(peer_of(pod))
        if address and not there:
            self._by_address.pop(address, None)


def _place(pod: JsonObject) -> tuple[int | None, str, str, PodPlace | None]:
    return broker_id_of(pod), node_of(pod), pod_ip(pod), place_of(pod)


def _known_by(pod: JsonObject) -> str:
    place = place_of(pod)
    return pod_ip(pod) if place is None else place.address


def _share_an_address(one: JsonObject, other: JsonObject) -> bool:
    places = place_of(one), place_of(other)
    if None in places:
        return places == (None, None) and pod_ip(one) == pod_ip(other)
    return places[0] is not None and places[1] is not None and places[0].address == places[1].address
