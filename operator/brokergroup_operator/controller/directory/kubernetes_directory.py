"""The directory in Kubernetes: BrokerGroups say what is wanted, pods which process is at an address and which is dead.

Both are copies kept by watches, so they may be old: an address that no known pod has is looked up at the API before a new broker
is refused a reservation. The Secrets of credentials and the zones of nodes are read by name (`look_ups.py`).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import structlog

from brokergroup_operator.api import names
from brokergroup_operator.api.broker_names import NameClaim, claim_of, holder_before
from brokergroup_operator.api.credentials import CredentialsError, credentials_in, secret_not_found, secret_not_readable
from brokergroup_operator.api.durability import runs_as_learner
from brokergroup_operator.api.pod_fence import kills_after_seconds
from brokergroup_operator.controller.directory import pods
from brokergroup_operator.controller.directory.group_directory import GroupBinding, GroupDirectory
from brokergroup_operator.controller.directory.kubernetes_binding import NodePlace, binding_of, member_facts
from brokergroup_operator.controller.directory.look_ups import LookUps
from brokergroup_operator.controller.peers.services import BackgroundTasks
from brokergroup_operator.kube.errors import ApiError, Backoff, NotFoundError
from brokergroup_operator.kube.pods import pod_ips
from brokergroup_operator.kube.reflector import EVENTS_PER_TURN, ObjectKey, Reflector, key_of
from brokergroup_operator.kube.resources import BROKER_GROUPS, NODES, PODS, SECRETS
from brokergroup_operator.records.store import GroupKey
from rocketmq_remoting.signature import Credentials

if TYPE_CHECKING:
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
            wanted=lambda: {secret for one in self._declared.values() if (secret := _secret_of(one)) is not None},
            read=self._read_credentials,
            on_change=self._credentials_changed,
            refresh_seconds=CREDENTIALS_REFRESH_SECONDS,
            missing_seconds=missing_seconds,
        )
        self._zones: LookUps[NodePlace] = LookUps(
            wanted=lambda: {("", node) for pod in self.pods.all() if (node := pods.node_of(pod))},
            read=self._read_zone,
            on_change=self._zone_changed,
            refresh_seconds=ZONES_REFRESH_SECONDS,
            missing_seconds=missing_seconds,
        )
        self._nodes_are_readable = True
        # Between the start and the first lists no binding is composed: each pod of a group would compose it once more.
        self._is_listing = False
        self._complaints: dict[ObjectKey, str] = {}
        # As declared; and with credentials and zones, which is what others see: by key, and by brokerName.
        self._declared: dict[GroupKey, GroupBinding] = {}
        self._bindings: dict[GroupKey, GroupBinding] = {}
        self._by_name: pods.Table[str, GroupKey, GroupBinding] = pods.Table()
        self._claims: dict[GroupKey, NameClaim] = {}
        # The groups that name each NameServer.
        self._name_servers: pods.Table[str, GroupKey, None] = pods.Table()
        self._unknown_until_seconds: dict[str, float] = {}
        self._all_listed: asyncio.Task[dict[str, set[pods.Peer]]] | None = None
        self._all_listed_until_seconds = 0.0
        self._look_up_backoff = Backoff(FIRST_LOOK_UP_PAUSE_SECONDS, LONGEST_LOOK_UP_PAUSE_SECONDS)
        self._tasks = BackgroundTasks()

    async def start(self) -> None:
        self._is_listing = True
        self._tasks.start(self._groups.run(), "rmq:directory-groups")
        self._tasks.start(self._pods.run(), "rmq:directory-pods")
        await self._groups.wait_synced(SYNC_DEADLINE_SECONDS)
        await self._pods.wait_synced(SYNC_DEADLINE_SECONDS)
        self._is_listing = False
        for count, key in enumerate(list(self._declared)):
            if key not in self._bindings:
                self._compose(key)
            if count % EVENTS_PER_TURN == 0:
                await asyncio.sleep(0)
        await self._credentials.refresh()
        self._tasks.start(self._credentials.run(), "rmq:directory-credentials")
        self._tasks.start(self._zones.run(), "rmq:directory-zones")

    async def stop(self) -> None:
        if self._all_listed is not None:
            self._all_listed.cancel()
            await asyncio.gather(self._all_listed, return_exceptions=True)
        await self._tasks.stop()

    def bindings(self) -> list[GroupBinding]:
        return list(self._bindings.values())

    def binding(self, key: GroupKey) -> GroupBinding | None:
        return self._bindings.get(key)

    def find(self, broker_name: str, *, cluster_name: str = "", peer: pods.Peer | None = None) -> GroupBinding | None:
        """Return the group of that name. If several share it: the peer's own, if its brokers have registered; else the holder's."""
        named = self._by_name.get(broker_name, {}).values()
        found = [one for one in named if cluster_name in ("", one.cluster_name)]
        return found[0] if len(found) == 1 else self._of_several(found, peer)

    def _of_several(self, found: list[GroupBinding], peer: pods.Peer | None) -> GroupBinding | None:
        """Compare the few groups that share a name. A caller whose group has to wait gets the holder's."""
        claims = {one.key: self._claims[one.key] for one in found}
        keeping = {key for key, own in claims.items() if own.lives or holder_before(own, claims.values()) is None}
        if peer is not None and peer.group in keeping:
            return self._bindings[peer.group]
        first = {key for key in keeping if holder_before(claims[key], claims.values()) is None}
        near = {key for key in first if peer is not None and key.namespace == peer.namespace} or first
        return self._bindings[near.pop()] if len(near) == 1 else None

    async def peer(self, host: str) -> pods.Peer | None:
        """Return the pod with this IP; an unknown one is looked up at the API, because a pod may be younger than the last event."""
        now_seconds = asyncio.get_running_loop().time()
        if (known := self.pods.peers_at(host)) or self._unknown_until_seconds.get(host, 0.0) > now_seconds:
            return pods.only(known)
        try:
            found = (await self._peers(f"status.podIP={host}")).get(host)
            if not found and self.pods.with_two_addresses:
                found = (await self._all_peers()).get(host)
        except ApiError as error:
            log.warning("peer not looked up", host=host, error=str(error))
            pause_seconds = self._look_up_backoff.next_seconds(error.retry_after_seconds)
            self._unknown_until_seconds[host] = now_seconds + pause_seconds
            return None
        self._look_up_backoff.reset()
        if found:
            return pods.only(found)
        if len(self._unknown_until_seconds) >= UNKNOWN_PEERS_LIMIT:
            self._unknown_until_seconds.clear()
        self._unknown_until_seconds[host] = now_seconds + UNKNOWN_PEER_SECONDS
        return None

    async def _all_peers(self) -> dict[str, set[pods.Peer]]:
        """One list of all pods for all look-ups within `UNKNOWN_PEER_SECONDS`: the API selects by first addresses only."""
        clock = asyncio.get_running_loop().time
        if self._all_listed is None or clock() >= self._all_listed_until_seconds:
            self._all_listed_until_seconds = clock() + UNKNOWN_PEER_SECONDS
            self._all_listed = asyncio.create_task(self._peers(""), name="rmq:directory-all-pods")
        return await asyncio.shield(self._all_listed)

    async def _peers(self, field_selector: str) -> dict[str, set[pods.Peer]]:
        listed = await self._api.list(
            PODS,
            namespace=self._namespace,
            label_selector=names.LABEL_BROKER_GROUP,
            field_selector=field_selector,
            timeout_seconds=LOOK_UP_DEADLINE_SECONDS,
        )
        peers: dict[str, set[pods.Peer]] = {}
        for pod in listed.items:
            for host in pod_ips(pod) if not pods.is_over(pod) else ():
                peers.setdefault(host, set()).add(pods.peer_of(pod))
        return peers

    def is_name_server(self, address: str) -> bool:
        return address in self._name_servers

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
            self._bind(key, None)
            self._claims.pop(key, None)
            return
        try:
            self._declared[key] = binding_of(event.object)
        except msgspec.ValidationError as error:
            # The API server validates; this is a CRD newer than this operator. What we knew of the group stays in force.
            log.error("BrokerGroup not understood", group=str(key), error=str(error))  # noqa: TRY400
            return
        before = self._claims.get(key)
        self._claims[key] = claim_of(event.object, has_registered=before is not None and before.has_registered)
        if (secret := _secret_of(self._declared[key])) is not None:
            self._credentials.look_again(secret)
        self._compose(key)

    def _bind(self, key: GroupKey, binding: GroupBinding | None) -> None:
        """Index a group by its key, its brokerName and its pods' addresses; None: remove it."""
        before = self._bindings.pop(key, None)
        if before is not None:
            self._by_name.drop(before.broker_name, key)
            for pod, place in before.places.items():
                self._known_by.drop(place.address, (key, pod))
            for server in before.name_servers:
                self._name_servers.drop(server, key)
        if binding is not None:
            self._bindings[key] = binding
            self._by_name.put(binding.broker_name, key, binding)
            for pod, place in binding.places.items():
                self._known_by.put(place.address, (key, pod), None)
            for server in binding.name_servers:
                self._name_servers.put(server, key, None)
        self.revision += 1

    def _compose(self, key: GroupKey) -> None:
        """Compose the binding of the spec, the Secret and the pods' places."""
        declared = self._declared.get(key)
        if declared is None or self._is_listing:
            return
        own = self.pods.of_group(key)
        # One that was removed by force may run on, so it counts until another takes its place; but nothing is reached through it.
        there = [*self.pods.removed(key).values(), *own.values()]
        places = {
            name: at for name, pod in own.items() if (at := pods.place_of(pod)) and at.ip and not pods.is_over(pod)
        }
        nodes = {name: self._zones.get(("", name)) for name in map(pods.node_of, there)}
        zones = {
            one: node.zone
            for pod in there
            if (one := pods.broker_id_of(pod)) and (node := nodes[pods.node_of(pod)]) and node.zone
        }
        learners = frozenset(one for pod in there if (one := pods.broker_id_of(pod)) and runs_as_learner(pod))
        secret, before, settings = _secret_of(declared), self._bindings.get(key, declared), declared.settings
        if zones or learners:
            settings = replace(settings, zones=zones, never_elect=learners)
        binding = replace(
            declared,
            told_fence_seconds=max(map(kills_after_seconds, there), default=0.0),
            settings=settings,
            credentials=self._credentials.get(secret) if secret is not None else None,
            translated=declared.translated or bool(places),
            places=places,
            removed_places=dict(self.pods.removed_places(key)),
            leaving_hosts=self.pods.leaving_hosts(key),
            removed_hosts=self.pods.removed_hosts(key),
            member_facts=member_facts(before.member_facts, there, nodes, declared.tenant),
        )
        self._bind(key, binding)
        if (before.leaving_hosts, before.removed_hosts) != (binding.leaving_hosts, binding.removed_hosts):
            for callback in self.on_leaving:
                callback(key)

    async def _read_credentials(self, secret: ObjectKey) -> Credentials | None:
        namespace, name = secret
        why: CredentialsError
        try:
            found = await self._api.get(SECRETS, name, namespace=namespace, timeout_seconds=LOOK_UP_DEADLINE_SECONDS)
            pair = credentials_in(found)
        except NotFoundError:
            why = secret_not_found(namespace, name)
        except CredentialsError as error:
            why = error
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            why = secret_not_readable(namespace, name)
        else:
            self._complaints.pop(secret, None)
            return Credentials(access_key=pair.access_key, secret_key=pair.secret_key)
        if self._complaints.get(secret) != str(why):  # logged once, not at every look-up
            self._complaints[secret] = str(why)
            log.warning("credentials not usable", reason=why.reason.value, error=str(why))
        return None

    def _credentials_changed(self, secret: ObjectKey) -> None:
        is_usable = self._credentials.get(secret) is not None
        for key, one in self._declared.items():
            if _secret_of(one) == secret:
                self._compose(key)
                log.info("credentials read", group=str(key), secret=secret[1], usable=is_usable)

    async def _read_zone(self, node: ObjectKey) -> NodePlace | None:
        try:
            found = await self._api.get(NODES, node[1], timeout_seconds=LOOK_UP_DEADLINE_SECONDS)
        except NotFoundError:
            return None
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            if self._nodes_are_readable:
                log.info("nodes may not be read, so nothing is known of zones: the role lacks the verb get on nodes")
            self._nodes_are_readable = False
            return NodePlace()
        return NodePlace(pods.label_of(found, names.LABEL_ZONE), pods.label_of(found, names.LABEL_RACK))

    def _zone_changed(self, node: ObjectKey) -> None:
        for key in {pods.peer_of(pod).group for pod in self.pods.all() if pods.node_of(pod) == node[1]}:
            if key is not None:
                self._compose(key)

    def _on_pod(self, event: WatchEvent) -> None:
        pod = event.object
        previous, concerned = self.pods.take(event)
        group, node = pods.peer_of(pod).group, ("", pods.node_of(pod))
        if node[1] and not self._zones.is_known(node):
            self._zones.look_again(node)
        if group is not None:
            self._notice_death(group, event.type, pod, previous)
            if previous is None or _composed_of(previous) != _composed_of(pod):
                concerned.add(group)
        for key in concerned:
            self._compose(key)

    def _notice_death(self, group: GroupKey, event_type: str, pod: JsonObject, previous: JsonObject | None) -> None:
        broker_id, has_ended = pods.broker_id_of(pod), pods.termination(pod) is not None
        if previous is None:
            is_news = has_ended
        else:
            restarted = event_type != "DELETED" and pods.restarts(pod) > pods.restarts(previous)
            is_news = (has_ended or restarted) and pods.termination(previous) is None
        if is_news and broker_id is not None:
            for callback in self.on_gone:
                callback(group, broker_id)


def _secret_of(binding: GroupBinding) -> ObjectKey | None:
    return (binding.key.namespace, binding.credentials_secret) if binding.credentials_secret else None


def _composed_of(pod: JsonObject) -> tuple[object, ...]:
    """Return what a group's binding has of this pod, as far as it may change."""
    return pods.broker_id_of(pod), pods.node_of(pod), pods.pod_ip(pod), pods.place_of(pod), pods.is_leaving(pod)
