"""The directory in Kubernetes: BrokerGroups say what is wanted, pods which process is at an address and which is dead.

Both are copies kept by watches, so they may be old: an address that no known pod has is looked up at the API before a new broker
is refused a reservation. The Secrets of credentials and the zones of nodes are read by name (`LookUps`).
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec
import structlog

import metric_names
from brokergroup_operator.api import credentials, names, pod_fence
from brokergroup_operator.api.broker_names import NameClaim, claim_of, holder_before
from brokergroup_operator.api.durability import runs_as_learner
from brokergroup_operator.api.tls_steps import mode_of, strictest
from brokergroup_operator.controller.directory import pods
from brokergroup_operator.controller.directory.group_directory import (
    GroupBinding,
    GroupDirectory,
    binding_of,
    is_closed,
)
from brokergroup_operator.controller.peers.services import BackgroundTasks, Patience, wait_at_most
from brokergroup_operator.kube.errors import ApiError, ApiUnavailableError, Backoff, NotFoundError, is_forbidden
from brokergroup_operator.kube.pods import is_over, label_of, node_of, pod_ips
from brokergroup_operator.kube.reflector import EVENTS_PER_TURN, ObjectKey, Reflector, key_of
from brokergroup_operator.kube.resources import BROKER_GROUPS, NODES, PODS, SECRETS
from brokergroup_operator.records.store import GroupKey
from rocketmq_remoting.address import host_of
from rocketmq_remoting.signature import Credentials

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from brokergroup_operator.api.tls_fields import TlsMode
    from brokergroup_operator.kube.client import JsonObject, KubernetesApi, WatchEvent

Value = TypeVar("Value")
SYNC_DEADLINE_SECONDS = 30.0
LOOK_UP_DEADLINE_SECONDS = 1.0
# A peer that is no pod of ours (mqadmin, say) is not looked up again at every request.
UNKNOWN_PEER_SECONDS = 2.0
# After a look-up that the API did not answer the same address is not looked up before this, then twice this, and so on.
FIRST_PEER_PAUSE_SECONDS, LONGEST_PEER_PAUSE_SECONDS = 0.1, 2.0
# The same for an object that is read by name.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 5.0
UNKNOWN_PEERS_LIMIT = 10_000
# The answer about one object; 429, 503 and 504 are the server's about itself.
CANNOT_GIVE = 500

log = structlog.get_logger(__name__)


class KubernetesDirectory(GroupDirectory):
    """`namespace=None` watches all of them. What a group names and is not there is looked for each `missing_seconds`."""

    def __init__(self, api: KubernetesApi, *, namespace: str | None = None, missing_seconds: float = 5.0) -> None:
        super().__init__()
        self._api = api
        self._namespace = namespace
        self._groups = Reflector(api, BROKER_GROUPS, namespace=namespace, on_change=self._on_group)
        self._pods = Reflector(
            api, PODS, namespace=namespace, label_selector=names.LABEL_BROKER_GROUP, on_change=self._on_pod
        )
        self._credentials: LookUps[Credentials] = LookUps(
            wanted=lambda: {secret for one in self._declared.values() if (secret := one.credentials_secret)},
            read=self._read_credentials,
            on_change=self._credentials_changed,
            refresh_seconds=60.0,
            missing_seconds=missing_seconds,
        )
        self._zones: LookUps[dict[str, str]] = LookUps(
            wanted=lambda: {("", node) for pod in self.pods.all() if (node := node_of(pod))},
            read=self._read_zone,
            on_change=self._zone_changed,
            refresh_seconds=600.0,
            missing_seconds=missing_seconds,
        )
        self._nodes_are_readable = True
        # Between the start and the first lists no binding is composed: each pod of a group would compose it once more.
        self._is_listing = False
        self._complaints: dict[ObjectKey, str] = {}
        # As declared; `_bindings` adds credentials and zones, which is what others see. And those by brokerName.
        self._declared: dict[GroupKey, GroupBinding] = {}
        self._by_name: pods.Table[str, GroupKey, GroupBinding] = pods.Table()
        self._claims: dict[GroupKey, NameClaim] = {}
        # The groups that name each NameServer.
        self._name_servers: pods.Table[str, GroupKey, None] = pods.Table()
        self._unknown_until_seconds: dict[str, float] = {}
        self._all_listed: asyncio.Task[dict[str, set[pods.Peer]]] | None = None
        self._all_listed_until_seconds = 0.0
        self._look_up_backoff = Backoff(FIRST_PEER_PAUSE_SECONDS, LONGEST_PEER_PAUSE_SECONDS)
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

    def find(self, broker_name: str, *, cluster_name: str = "", peer: pods.Peer | None = None) -> GroupBinding | None:
        """Return the group of that name. If several share it: the peer's own, if its brokers have registered; else the holder's."""
        named = self._by_name.get(broker_name, {}).values()
        found = [one for one in named if cluster_name in ("", one.cluster_name)]
        return found[0] if len(found) == 1 else self._of_several(found, peer)

    def _of_several(self, found: list[GroupBinding], peer: pods.Peer | None) -> GroupBinding | None:
        """A caller whose group has to wait gets the holder's."""
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
            for host in pod_ips(pod) if not is_over(pod) else ():
                peers.setdefault(host, set()).add(pods.peer_of(pod))
        return peers

    async def binding_now(self, key: GroupKey) -> GroupBinding | None:
        """Read the group from the API: a plane that is cut from it knows nothing. Zones and credentials are not in it."""
        try:
            found = await self._api.get(
                BROKER_GROUPS, key.name, namespace=key.namespace, timeout_seconds=LOOK_UP_DEADLINE_SECONDS
            )
        except ApiError as error:
            log.info("group not read", group=str(key), error=str(error))
            return None
        try:
            return binding_of(found)
        except msgspec.ValidationError:
            # As in `_on_group`: what we knew stays in force. Whether its brokers may acknowledge does not depend on the CRD.
            known = self.binding(key)
            deleting = "deletionTimestamp" in found["metadata"]
            return known and replace(known, closed=is_closed(found), deleting=known.deleting or deleting)

    def is_name_server(self, address: str) -> bool:
        return address in self._name_servers

    def tls_at(self, address: str) -> TlsMode | None:
        # The pod that is known there comes first: any group may name any address as its NameServer.
        pods_there = self._pods_with(address)
        if not pods_there and (groups := self._name_servers.get(address)):
            return strictest(self._bindings[key].tls for key in groups)
        return strictest(map(mode_of, pods_there))

    def _pods_with(self, address: str) -> list[JsonObject]:
        """Return the pods whose brokers listen at this address (host:port): those known by it, else those whose own host it is."""
        known = self.pods_known_by(address)
        peers = () if known else self.pods.peers_at(host_of(address))
        named = [*known, *((peer.group, peer.pod_name) for peer in peers if peer.group is not None)]
        found = [pod for group, name in named if (pod := self.pods.of_group(group).get(name)) is not None]
        return [pod for pod in found if known or pods.listens_at(pod, address)]

    def registered(self, binding: GroupBinding) -> None:
        """Mark the group's claim to its broker name: a broker has registered. `NameClaim.rank` settles a name of two groups."""
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
        if (secret := self._declared[key].credentials_secret) is not None:
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
        declared = self._declared.get(key)
        if declared is None or self._is_listing:
            return
        own = self.pods.of_group(key)
        # One that was removed by force may run on, so it counts until another takes its place; but nothing is reached through it.
        there = [*self.pods.removed(key).values(), *own.values()]
        places = {name: at for name, pod in own.items() if (at := pods.place_of(pod)) and at.ip and not is_over(pod)}
        nodes = {name: self._zones.get(("", name)) for name in map(node_of, there)}
        zones = {
            one: zone
            for pod in there
            if (one := pods.broker_id_of(pod)) and (zone := (nodes[node_of(pod)] or {}).get(metric_names.LABEL_ZONE))
        }
        learners = frozenset(one for pod in there if (one := pods.broker_id_of(pod)) and runs_as_learner(pod))
        kills_after_seconds = [
            pod_fence.kills_after_seconds(pod) for pod in there if pods.broker_id_of(pod) is not None
        ]
        # A pod that was made before its group had the fence has none until it is made anew.
        has_fences = bool(kills_after_seconds) and min(kills_after_seconds) > 0
        secret, before, settings = declared.credentials_secret, self._bindings.get(key, declared), declared.settings
        if zones or learners:
            settings = replace(settings, zones=zones, never_elect=learners)
        binding = replace(
            declared,
            told_fence_seconds=max(kills_after_seconds, default=0.0),
            unconfirmed_trust=declared.unconfirmed_trust if has_fences else "",
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
        why: credentials.CredentialsError
        try:
            found = await self._api.get(SECRETS, name, namespace=namespace, timeout_seconds=LOOK_UP_DEADLINE_SECONDS)
            pair = credentials.credentials_in(found)
        except NotFoundError:
            why = credentials.secret_not_found(namespace, name)
        except credentials.CredentialsError as error:
            why = error
        except ApiError as error:
            if not is_forbidden(error):
                raise
            why = credentials.secret_not_readable(namespace, name)
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
            if one.credentials_secret == secret:
                self._compose(key)
                log.info("credentials read", group=str(key), secret=secret[1], usable=is_usable)

    async def _read_zone(self, node: ObjectKey) -> dict[str, str] | None:
        try:
            found = await self._api.get(NODES, node[1], timeout_seconds=LOOK_UP_DEADLINE_SECONDS)
        except NotFoundError:
            return None
        except ApiError as error:
            if not is_forbidden(error):
                raise
            if self._nodes_are_readable:
                log.info("nodes may not be read, so nothing is known of zones: the role lacks the verb get on nodes")
            self._nodes_are_readable = False
            return {}
        labels = {metric_names.LABEL_ZONE: names.LABEL_ZONE, metric_names.LABEL_RACK: names.LABEL_RACK}
        return {fact: label_of(found, label) for fact, label in labels.items()}

    def _zone_changed(self, node: ObjectKey) -> None:
        for key in {pods.peer_of(pod).group for pod in self.pods.all() if node_of(pod) == node[1]}:
            if key is not None:
                self._compose(key)

    def _on_pod(self, event: WatchEvent) -> None:
        pod = event.object
        previous, concerned = self.pods.take(event)
        group, node = pods.peer_of(pod).group, ("", node_of(pod))
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


def _composed_of(pod: JsonObject) -> tuple[object, ...]:
    """Return what a group's binding has of this pod, as far as it may change."""
    return pods.broker_id_of(pod), node_of(pod), pods.pod_ip(pod), pods.place_of(pod), pods.is_leaving(pod)


def member_facts(
    before: Mapping[int, Mapping[str, str]],
    there: Iterable[JsonObject],
    nodes: Mapping[str, Mapping[str, str] | None],
    tenant: str,
) -> dict[int, Mapping[str, str]]:
    """Return the known facts of each member by its id; of a member whose pod is gone those from `before`, for its incident."""
    found = dict(before)
    for pod in there:
        broker_id, node = pods.broker_id_of(pod), node_of(pod)
        if broker_id is None or not node:
            continue
        facts = {
            metric_names.LABEL_NODE: node,
            **(nodes.get(node) or {}),
            metric_names.LABEL_VERSION: label_of(pod, names.LABEL_APP_VERSION),
            metric_names.LABEL_TENANT: tenant,
        }
        found[broker_id] = {name: value for name, value in facts.items() if value}
    return found


@dataclass(kw_only=True, eq=False)
class LookUps(Generic[Value]):
    """Objects that are read by name: a watch needs the right to list every Secret, and brings every heartbeat of every node.

    Values are by `(namespace, name)`. `read` returns None for what is missing and raises `ApiError` if it cannot tell. Names are
    read when they first come up, every few seconds while they are missing, and from time to time. The last value stays in force.

    An API that is away is tried with one name, with backoff. An API that answers 500 may be unable to give that one object (a
    Secret that it cannot decrypt): such names are retried one at a time, and no other name, and no failover, waits for them
    (`tests/simulate/test_look_ups.py`).
    """

    wanted: Callable[[], Iterable[ObjectKey]]
    read: Callable[[ObjectKey], Awaitable[Value | None]]
    on_change: Callable[[ObjectKey], None]
    refresh_seconds: float
    missing_seconds: float

    def __post_init__(self) -> None:
        self._values: dict[ObjectKey, Value | None] = {}
        # In the order in which they are read.
        self._asked: dict[ObjectKey, None] = {}
        # Those that the API could not give, the longest waiting first, and when the next of them is tried.
        self._failed: dict[ObjectKey, None] = {}
        self._patience = Patience(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._wake = asyncio.Event()

    def get(self, key: ObjectKey) -> Value | None:
        return self._values.get(key)

    def look_again(self, key: ObjectKey) -> None:
        self._asked[key] = None
        self._wake.set()

    def is_known(self, key: ObjectKey) -> bool:
        """Whether an answer about it was ever received."""
        return key in self._values

    async def refresh(self) -> ApiUnavailableError | None:
        """Read every wanted one now, and forget the others. Return the error of an API that is away."""
        wanted = set(self.wanted())
        for known in (self._values, self._failed):
            for key in known.keys() - wanted:
                del known[key]
        self._ask(wanted)
        return await self._read_due()

    async def run(self) -> None:
        """Read what is due, for ever; cancel the task to stop."""
        clock = asyncio.get_running_loop().time
        refresh_at_seconds, missing_at_seconds = clock() + self.refresh_seconds, clock() + self.missing_seconds
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            if clock() >= missing_at_seconds:
                missing_at_seconds = clock() + self.missing_seconds
                self._ask({key for key in self.wanted() if self._values.get(key) is None})
            if clock() >= refresh_at_seconds:
                refresh_at_seconds = clock() + self.refresh_seconds
                away = await self.refresh()
            else:
                away = await self._read_due()
            if away is not None:
                await asyncio.sleep(backoff.next_seconds(away.retry_after_seconds))
                continue
            backoff.reset()
            next_seconds = min(missing_at_seconds, self._patience.until_seconds if self._failed else math.inf)
            await wait_at_most(self._wake, max(0.0, next_seconds - clock()))
            self._wake.clear()

    def _ask(self, keys: set[ObjectKey]) -> None:
        self._asked |= dict.fromkeys(sorted(keys - self._failed.keys()))

    async def _read_due(self) -> ApiUnavailableError | None:
        """Read all that are asked for, then those that failed, if their time has come. Return the error of an API that is away."""
        while self._asked or (self._failed and self._patience.is_over):
            queue = self._asked or self._failed
            key = next(iter(queue))
            del queue[key]
            error = await self._try(key)
            if error is None:
                self._failed.pop(key, None)
                if queue is self._failed:
                    self._patience.answered()
            elif error.status == CANNOT_GIVE:
                if queue is self._failed or not self._failed:
                    self._patience.failed()
                self._failed[key] = None
            else:
                queue[key] = None  # the others first, the next time
                return error
        return None

    async def _try(self, key: ObjectKey) -> ApiUnavailableError | None:
        """Read one; return the error of an API that is away or cannot give it."""
        try:
            value = await self.read(key)
        except ApiError as error:
            log.warning("not read, what was known of it stays in force", what="/".join(key), error=str(error))
            return error if isinstance(error, ApiUnavailableError) else None
        changed = key not in self._values or self._values[key] != value
        self._values[key] = value
        if changed:
            self.on_change(key)
        return None
