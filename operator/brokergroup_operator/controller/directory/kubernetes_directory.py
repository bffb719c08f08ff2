"""The directory in Kubernetes: BrokerGroups say what is wanted, pods which process is at an address and which is dead.

Both are local copies kept by watches, so they may be old. An address that no known pod has is looked up at the API before a new
broker is refused a reservation. A container reported terminated stays evidence of that process's death.

The Secret of a group's credentials and the zones of its nodes are read by name (`look_ups.py`). Reading nodes is an optional
right: without it no zone is known.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import structlog

from brokergroup_operator.api import names
from brokergroup_operator.api.broker_names import NameClaim, claim_of, holder_before
from brokergroup_operator.api.credentials import (
    CredentialsError,
    credentials_in,
    secret_not_found,
    secret_not_readable,
)
from brokergroup_operator.api.durability import runs_as_learner
from brokergroup_operator.api.pod_fence import kills_after_seconds
from brokergroup_operator.controller.directory import kubernetes_binding as objects
from brokergroup_operator.controller.directory.group_directory import (
    GroupBinding,
    GroupDirectory,
    MemberGone,
    Peer,
    PodPlace,
)
from brokergroup_operator.controller.directory.look_ups import LookUps
from brokergroup_operator.kube.errors import ApiError, Backoff, NotFoundError
from brokergroup_operator.kube.pods import pod_ips
from brokergroup_operator.kube.reflector import ObjectKey, Reflector, key_of
from brokergroup_operator.kube.resources import BROKER_GROUPS, NODES, PODS, SECRETS
from brokergroup_operator.records.store import GroupKey
from rocketmq_remoting.signature import Credentials

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.kube.client import JsonObject, KubernetesApi, WatchEvent

SYNC_DEADLINE_SECONDS = 30.0
LOOK_UP_DEADLINE_SECONDS = 1.0
# A peer that is no pod of ours (mqadmin, say) is not looked up again at every request.
UNKNOWN_PEER_SECONDS = 2.0
# After a look-up that the API did not answer the same address is not looked up before this, then twice this, and so on.
FIRST_LOOK_UP_PAUSE_SECONDS, LONGEST_LOOK_UP_PAUSE_SECONDS = 0.1, 2.0
UNKNOWN_PEERS_LIMIT = 10_000
CREDENTIALS_REFRESH_SECONDS = 60.0
ZONES_REFRESH_SECONDS = 600.0
# What a group names and is not there yet is looked for this often.
MISSING_SECONDS = 5.0
FORBIDDEN = 403

log = structlog.get_logger(__name__)


class KubernetesDirectory(GroupDirectory):
    """BrokerGroups and pods, as the API last reported. `namespace=None` watches all of them."""

    def __init__(
        self, api: KubernetesApi, *, namespace: str | None = None, missing_seconds: float = MISSING_SECONDS
    ) -> None:
        super().__init__()
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
        self._zones: LookUps[objects.NodePlace] = LookUps(
            wanted=self._nodes_of_pods,
            read=self._read_zone,
            on_change=self._zone_changed,
            refresh_seconds=ZONES_REFRESH_SECONDS,
            missing_seconds=missing_seconds,
        )
        self._nodes_are_readable = True
        self._complaints: dict[ObjectKey, str] = {}
        # As declared; and with credentials and zones, which is what others see: by key, and by brokerName.
        self._declared: dict[GroupKey, GroupBinding] = {}
        self._bindings: dict[GroupKey, GroupBinding] = {}
        self._by_name: dict[str, dict[GroupKey, GroupBinding]] = {}
        self._claims: dict[GroupKey, NameClaim] = {}
        self._known_by: dict[str, set[tuple[GroupKey, str]]] = {}
        # How many groups name each NameServer.
        self._name_servers: Counter[str] = Counter()
        self._secrets: dict[GroupKey, ObjectKey] = {}
        self._index = objects.PodIndex()
        self._unknown_until_seconds: dict[str, float] = {}
        self._all_listed: asyncio.Task[dict[str, set[Peer]]] | None = None
        self._all_listed_until_seconds = 0.0
        self._look_up_backoff = Backoff(FIRST_LOOK_UP_PAUSE_SECONDS, LONGEST_LOOK_UP_PAUSE_SECONDS)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Watch both kinds; return when both were listed, and the Secrets that they name were read."""
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
        tasks = [*self._tasks, *([self._all_listed] if self._all_listed is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks = []

    def bindings(self) -> list[GroupBinding]:
        return list(self._bindings.values())

    def binding(self, key: GroupKey) -> GroupBinding | None:
        return self._bindings.get(key)

    def find(self, broker_name: str, *, cluster_name: str = "", peer: Peer | None = None) -> GroupBinding | None:
        """Return the group of that name.

        If several share it: the peer's own, if its brokers have registered; else the holder's.
        """
        named = self._by_name.get(broker_name)
        if named is None:
            return None
        if len(named) == 1:
            only = next(iter(named.values()))
            return only if cluster_name in ("", only.cluster_name) else None
        found = {key: one for key, one in named.items() if cluster_name in ("", one.cluster_name)}
        if len(found) == 1:
            return next(iter(found.values()))
        return self._of_several(found, peer)

    def _of_several(self, found: Mapping[GroupKey, GroupBinding], peer: Peer | None) -> GroupBinding | None:
        """Compare the few groups that share a name. A caller whose group has to wait gets the holder's."""
        claims = {key: self._claims[key] for key in found}
        keeping = {key for key, own in claims.items() if own.lives or holder_before(own, claims.values()) is None}
        if peer is not None and peer.group in keeping:
            return found[peer.group]
        first = {key for key in keeping if holder_before(claims[key], claims.values()) is None}
        near = {key for key in first if peer is not None and key.namespace == peer.namespace} or first
        return found[near.pop()] if len(near) == 1 else None

    def known_peer(self, host: str) -> Peer | None:
        """Return the pod with this IP in the local copy; None if several share it."""
        return self._index.peer_at(host)

    async def peer(self, host: str) -> Peer | None:
        """Return the pod with this IP; an unknown one is looked up at the API by this address, because pods are younger than
        watches.
        """
        now_seconds = asyncio.get_running_loop().time()
        if self._index.is_known_address(host) or self._unknown_until_seconds.get(host, 0.0) > now_seconds:
            return self._index.peer_at(host)
        try:
            found = (await self._peers(f"status.podIP={host}")).get(host)
            if not found and self._index.has_both_families():
                found = (await self._all_peers()).get(host)
        except ApiError as error:
            log.warning("peer not looked up", host=host, error=str(error))
            self._unknown_until_seconds[host] = now_seconds + self._look_up_backoff.next_seconds(
                error.retry_after_seconds
            )
            return None
        self._look_up_backoff.reset()
        if found:
            return next(iter(found)) if len(found) == 1 else None
        if len(self._unknown_until_seconds) >= UNKNOWN_PEERS_LIMIT:
            self._unknown_until_seconds.clear()
        self._unknown_until_seconds[host] = now_seconds + UNKNOWN_PEER_SECONDS
        return None

    async def _all_peers(self) -> dict[str, set[Peer]]:
        """One list of all pods for all look-ups within `UNKNOWN_PEER_SECONDS`: the API selects by first addresses only."""
        clock = asyncio.get_running_loop().time
        if self._all_listed is None or clock() >= self._all_listed_until_seconds:
            self._all_listed_until_seconds = clock() + UNKNOWN_PEER_SECONDS
            self._all_listed = asyncio.create_task(self._peers(""), name="rmq:directory-all-pods")
        return await asyncio.shield(self._all_listed)

    async def _peers(self, field_selector: str) -> dict[str, set[Peer]]:
        listed = await self._api.list(
            PODS,
            namespace=self._namespace,
            label_selector=names.LABEL_BROKER_GROUP,
            field_selector=field_selector,
            timeout_seconds=LOOK_UP_DEADLINE_SECONDS,
        )
        peers: dict[str, set[Peer]] = {}
        for pod in listed.items:
            for host in pod_ips(pod) if not objects.is_over(pod) else ():
                peers.setdefault(host, set()).add(objects.peer_of(pod))
        return peers

    def is_terminated(self, key: GroupKey, broker_id: int, *, address: str) -> str | None:  # noqa: ARG002 - see below
        """Return how the container at this address ended, if that was reported, also after its pod went.

        The address decides, not the broker id: the pod that carries an id may have just changed.
        """
        return self._index.termination_at(key, address)

    def pod_hosts(self, key: GroupKey) -> dict[str, str]:
        return self._index.hosts(key)

    def is_name_server(self, address: str) -> bool:
        return self._name_servers[address] > 0

    def pods_known_by(self, address: str) -> set[tuple[GroupKey, str]]:
        return self._known_by.get(address, set())

    def removed_hosts(self, key: GroupKey) -> frozenset[str]:
        return self._index.removed_hosts(key)

    def registered(self, binding: GroupBinding) -> None:
        """Of two groups with one broker name, the one with a registered broker keeps it."""
        claim = self._claims.get(binding.key)
        if claim is not None and not claim.has_registered:
            self._claims[binding.key] = replace(claim, has_registered=True)

    def _on_group(self, event: WatchEvent) -> None:
        namespace, name = key_of(event.object)
        key = GroupKey(namespace, name)
        if event.type == "DELETED":
            self._declared.pop(key, None)
            self._secrets.pop(key, None)
            self._bind(key, None)
            self._claims.pop(key, None)
            return
        try:
            self._declared[key] = replace(objects.binding_of(event.object), tenant=objects.tenant_of(event.object))
        except msgspec.ValidationError as error:
            # The API server validates; this is a CRD newer than this operator. What we knew of the group stays in force.
            log.error("BrokerGroup not understood", group=str(key), error=str(error))  # noqa: TRY400
            return
        before = self._claims.get(key)
        self._claims[key] = claim_of(event.object, has_registered=before is not None and before.has_registered)
        self._secrets.pop(key, None)
        if secret := objects.credentials_secret_of(event.object):
            self._secrets[key] = (namespace, secret)
            self._credentials.look_again((namespace, secret))
        self._compose(key)

    def _bind(self, key: GroupKey, binding: GroupBinding | None) -> None:
        """Index a group by its key, its brokerName and its pods' addresses; None: remove it."""
        before = self._bindings.pop(key, None)
        if before is not None:
            named = self._by_name[before.broker_name]
            del named[key]
            if not named:
                del self._by_name[before.broker_name]
            self._name_servers.subtract(before.name_servers)
            for server in before.name_servers:
                if not self._name_servers[server]:
                    del self._name_servers[server]
            for pod, place in before.places.items():
                self._known_by[place.address].discard((key, pod))
                if not self._known_by[place.address]:
                    del self._known_by[place.address]
        if binding is not None:
            self._bindings[key] = binding
            self._by_name.setdefault(binding.broker_name, {})[key] = binding
            self._name_servers.update(binding.name_servers)
            for pod, place in binding.places.items():
                self._known_by.setdefault(place.address, set()).add((key, pod))
        self.revision += 1

    def _compose(self, key: GroupKey) -> None:
        """Compose the binding of the spec, the Secret and the pods' places."""
        declared = self._declared.get(key)
        if declared is None:
            return
        zones: dict[int, str] = {}
        places: dict[str, PodPlace] = {}
        learners: set[int] = set()
        pods = list(self._index.of_group(key).values())
        nodes = {node: self._zones.get(("", node)) for node in {objects.node_of(pod) for pod in pods}}
        for pod in pods:
            place = objects.place_of(pod)
            if place is not None and place.ip and not objects.is_over(pod):
                places[str(pod["metadata"]["name"])] = place
            broker_id, at = objects.broker_id_of(pod), nodes.get(objects.node_of(pod))
            if broker_id is not None and at is not None and at.zone:
                zones[broker_id] = at.zone
            if broker_id is not None and runs_as_learner(pod):
                learners.add(broker_id)
        secret, before = self._secrets.get(key), self._bindings.get(key, declared)
        binding = replace(
            declared,
            told_fence_seconds=max(map(kills_after_seconds, pods), default=0.0),
            settings=replace(declared.settings, zones=zones, never_elect=frozenset(learners)),
            credentials=self._credentials.get(secret) if secret is not None else None,
            translated=declared.translated or bool(places),
            places=places,
            removed_places=dict(self._index.removed_places(key)),
            member_facts=objects.member_facts(before.member_facts, pods, nodes, declared.tenant),
        )
        self._bind(key, binding)

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
        """Log it once, not at every look-up."""
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
        return {("", objects.node_of(pod)) for pod in self._index.all() if objects.node_of(pod)}

    async def _read_zone(self, node: ObjectKey) -> objects.NodePlace | None:
        try:
            return objects.place_of_node(await self._api.get(NODES, node[1], timeout_seconds=LOOK_UP_DEADLINE_SECONDS))
        except NotFoundError:
            return None
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            if self._nodes_are_readable:
                log.info("nodes may not be read, so nothing is known of zones: the role lacks the verb get on nodes")
            self._nodes_are_readable = False
            return objects.NodePlace()

    def _zone_changed(self, node: ObjectKey) -> None:
        groups = {objects.peer_of(pod).group for pod in self._index.all() if objects.node_of(pod) == node[1]}
        for key in groups:
            if key is not None:
                self._compose(key)

    def _on_pod(self, event: WatchEvent) -> None:
        pod = event.object
        concerned = self._index.groups_with_removed_pods() | {objects.peer_of(pod).group}
        previous = self._index.take(event)
        self._notice_death(event.type, pod, previous)
        self._notice_place(pod, previous)
        for group in concerned:
            if group is not None:
                self._notice_removed(group)
                self._notice_leaving(group)

    def _notice_removed(self, key: GroupKey) -> None:
        binding = self._bindings.get(key)
        if binding is not None and binding.removed_places != self._index.removed_places(key):
            self._compose(key)

    def _notice_leaving(self, key: GroupKey) -> None:
        leaving = self._index.leaving_hosts(key)
        if leaving != self._leaving.get(key, frozenset()):
            self._report_leaving(key, leaving)

    def _notice_place(self, pod: JsonObject, previous: JsonObject | None) -> None:
        group, node = objects.peer_of(pod).group, ("", objects.node_of(pod))
        if node[1] and not self._zones.is_known(node):
            self._zones.look_again(node)
        if group is not None and (previous is None or _place(previous) != _place(pod)):
            self._compose(group)

    def _notice_death(self, event_type: str, pod: JsonObject, previous: JsonObject | None) -> None:
        peer = objects.peer_of(pod)
        broker_id = objects.broker_id_of(pod)
        if peer.group is None or broker_id is None:
            return
        how = objects.termination(pod)
        if (
            event_type != "DELETED"
            and how is None
            and previous is not None
            and objects.restarts(pod) > objects.restarts(previous)
        ):
            how = "container restarted"
        if how is not None and (previous is None or objects.termination(previous) is None):
            self._report_gone(MemberGone(key=peer.group, broker_id=broker_id, how=how))


def _place(pod: JsonObject) -> tuple[int | None, str, str, PodPlace | None]:
    return objects.broker_id_of(pod), objects.node_of(pod), objects.pod_ip(pod), objects.place_of(pod)
