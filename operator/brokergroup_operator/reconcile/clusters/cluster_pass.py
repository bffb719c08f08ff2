"""One pass over one RocketMQCluster: fetch its parts, apply what differs, write the status.

An object is applied when it is not there, when the cluster asks for something else than last time, or when its generation has moved
since (another writer changed it). An object of such a name that is not the cluster's is left alone, and the cluster is Stalled.
A part that is no longer wanted is deleted, but no BrokerGroup is
(tests/reconcile/test_clusters.py::test_a_lower_count_deletes_no_group). What a cluster of the name has left that was deleted with
`--cascade=orphan` is taken back.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from brokergroup_operator.api import names
from brokergroup_operator.api.definitions.schema import without_nulls
from brokergroup_operator.api.rocketmq_cluster import RocketMQCluster
from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.errors import (
    ApiError,
    ApiUnavailableError,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
)
from brokergroup_operator.kube.resources import (
    BROKER_GROUPS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    NETWORK_POLICIES,
    POD_DISRUPTION_BUDGETS,
    ROCKETMQ_CLUSTERS,
    SERVICES,
    STATEFUL_SETS,
)
from brokergroup_operator.reconcile.act import ownership
from brokergroup_operator.reconcile.act.refusals import REFUSALS
from brokergroup_operator.reconcile.clusters import order, parts, standing
from brokergroup_operator.reconcile.clusters.acl_secrets import AclSecretReader
from brokergroup_operator.reconcile.clusters.consumer_groups import ConsumerGroupKeeper
from brokergroup_operator.reconcile.clusters.standing import ClusterCondition, ClusterReason, Seen
from brokergroup_operator.reconcile.clusters.tls_steps import TlsSteps, with_step
from brokergroup_operator.reconcile.clusters.topics import TopicKeeper
from brokergroup_operator.reconcile.clusters.users import UserKeeper, UsersStanding, wanted_users
from brokergroup_operator.reconcile.plan import Note
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.bundles import HandshakingServers
from brokergroup_operator.records.kubernetes import GroupObjects
from brokergroup_operator.records.store import GroupKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.observe.group_view import GroupView
    from brokergroup_operator.reconcile.clusters.acl_secrets import AclSecrets
    from brokergroup_operator.reconcile.see.bundles import Servers
    from brokergroup_operator.reconcile.settings import ReconcileSettings
    from brokergroup_operator.reconcile.tell.events import EventPoster

KINDS: Final = {
    one.kind: one
    for one in (
        SERVICES,
        STATEFUL_SETS,
        DEPLOYMENTS,
        CONFIG_MAPS,
        POD_DISRUPTION_BUDGETS,
        NETWORK_POLICIES,
        BROKER_GROUPS,
    )
}
# The pods of NameServers and Proxies are not watched, so they are looked at: often while one is waited for.
UNSETTLED_SECONDS: Final = 2.0
SETTLED_SECONDS: Final = 10.0
# A part's status may be written between the look and the apply; after these the next pass goes on.
APPLY_TRIES: Final = 5

# The Event that is posted when a person is needed, by the reason of condition Stalled.
STALLED_EVENTS: Final[dict[str, str]] = {
    ClusterReason.NOT_OURS: "ClusterNotOurs",
    ClusterReason.REFUSED: "ClusterRefused",
    ClusterReason.VERSION_REFUSED: "ClusterVersionRefused",
    ClusterReason.GROUPS_BEYOND_COUNT: "ClusterGroupsBeyondCount",
    ClusterReason.TOPIC_DIFFERS: "ClusterTopicDiffers",
    ClusterReason.USER_DIFFERS: "ClusterUserDiffers",
    ClusterReason.OPERATOR_WITHOUT_TLS: "ClusterOperatorWithoutTls",
    ClusterReason.AUTHORITIES_HELD: "ClusterAuthoritiesHeld",
}

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Applied:
    """What was applied last to one object, and which object it became."""

    digest: str
    uid: str
    version: str


class ClusterPass:
    """Runs passes. What it remembers only spares requests: a new process applies everything once, and changes nothing by it."""

    def __init__(
        self,
        api: KubernetesApi,
        events: EventPoster,
        settings: ReconcileSettings,
        view: GroupView,
        *,
        clock: Callable[[], float] = time.monotonic,
        servers: Servers | None = None,
    ) -> None:
        self._api = api
        self._events = events
        self._settings = settings
        self._applied: dict[GroupKey, dict[tuple[str, str], Applied]] = {}
        self._objects = GroupObjects(api, timeout_seconds=settings.api_timeout_seconds)
        self._topics = TopicKeeper(view, clock)
        self._consumer_groups = ConsumerGroupKeeper(view, clock)
        self._users = UserKeeper(view, clock)
        self._secrets = AclSecretReader(self._objects, clock)
        self._tls = TlsSteps(api, settings, servers or HandshakingServers(settings.authority_file))

    async def run(self, key: GroupKey) -> float | None:
        """Returns in how many seconds to look again; None where there is nothing to do any more."""
        found = await self._objects.find(ROCKETMQ_CLUSTERS, key)
        if found is None or "deletionTimestamp" in found["metadata"]:
            # Its parts are the garbage collector's, and each BrokerGroup goes by its own storage policy.
            applied = self._applied.pop(key, {})
            groups = [name for kind, name in applied if kind == BROKER_GROUPS.kind]
            self._topics.forget(key.namespace, groups)
            self._consumer_groups.forget(key.namespace, groups)
            self._users.forget(key.namespace, groups)
            self._secrets.forget(key)
            return None
        found = {**found, "kind": names.ROCKETMQ_CLUSTER_KIND}
        try:
            cluster = msgspec.convert(found, RocketMQCluster)
        except msgspec.ValidationError as error:
            message = f"Nothing is done for this cluster: {error}"
            await self._events.post_once(found, Note(reason="ClusterUnreadable", message=message, warning=True))
            return None
        if await self._take(found) is None:
            return SETTLED_SECONDS
        secrets = await self._secrets.read(key, cluster)
        seen = await self._brought_on(key, Seen(cluster=cluster, cluster_object=found), secrets)
        seen = await self._keep_users(key, await self._keep_topics(key, seen), secrets)
        status = await self._write_status(key, seen)
        return SETTLED_SECONDS if standing.is_settled(seen, status) else UNSETTLED_SECONDS

    async def _take(self, found: JsonObject) -> JsonObject | None:
        """Return the cluster once it is ours; where a policy refuses the operator's name on it, say so by an Event."""
        try:
            return await ownership.take(
                self._api, self._events, found, resource=ROCKETMQ_CLUSTERS, operator=self._settings.operator
            )
        except ApiError as error:
            if error.status in REFUSALS:
                message = f"Nothing is done for this cluster: {error}"
                await self._events.post_once(found, Note(reason="ClusterRefused", message=message, warning=True))
            raise

    # ---- the parts

    async def _brought_on(self, key: GroupKey, seen: Seen, secrets: AclSecrets) -> Seen:
        """Apply and delete what is needed; returns what is there after it."""
        there = await self._taken_back(key, seen, await self._there(key))
        held_back = _is_acl_held_back(_groups(seen, there), secrets)
        stored = there.get((CONFIG_MAPS.kind, parts.trust_name(key.name)))
        step = await self._tls.step(key, seen.cluster, _made_of_pods(seen, there), stored)
        cluster = with_step(seen.cluster, step)
        groups = parts.broker_groups(cluster, seen.cluster_object, with_acl=not held_back)
        name_servers = parts.name_servers(cluster, self._settings)
        proxies, waited_for = parts.proxies(cluster, self._settings), list[str]()
        if refused := order.refusal(cluster, self._settings):
            name_servers, proxies = (order.kept_back(one, there) for one in (name_servers, proxies))
        elif cluster.spec.image is None:
            proxies, waited_for = order.in_turn(proxies, groups, there, default_version=self._settings.rocketmq_version)
        wanted = [
            *parts.trusted(cluster, step.files),
            *parts.network_policies(cluster, self._settings),
            *name_servers,
            *groups,
            *proxies,
        ]
        strangers, refusals = list[str](), list[str]()
        for obj in wanted:
            place = _place(obj)
            if step.lost and order.makes_pods(obj):
                continue  # its next pods could not start: those that run go on
            try:
                there[place] = await self._applied_once(key, seen, obj, there.get(place))
            except _StrangerError:
                strangers.append(" ".join(place))
            except (ApiUnavailableError, OutcomeUnknownError):
                raise
            except ApiError as error:
                log.warning("cluster.refused", cluster=str(key), object=" ".join(place), error=str(error))
                refusals.append(f"{' '.join(place)}: {error}")
            if place == (CONFIG_MAPS.kind, parts.trust_name(key.name)) and (strangers or refusals):
                break  # of a file that is missing every part would end at its start
        refusals += await self._delete_unwanted(key, seen, there, {_place(one) for one in wanted})
        return replace(
            seen,
            name_servers=there.get((STATEFUL_SETS.kind, parts.name_server_name(key.name))),
            proxies=there.get((DEPLOYMENTS.kind, parts.proxy_name(key.name))),
            groups=_groups(seen, there),
            acl_held_back=held_back,
            proxies_wait_for=tuple(waited_for),
            version_refused=refused,
            tls=step,
            strangers=tuple(strangers),
            refusals=tuple(refusals),
        )

    async def _keep_topics(self, key: GroupKey, seen: Seen) -> Seen:
        """Consumer groups first: a topic that comes later gives them their offsets."""
        spec, namespace = seen.cluster.spec, key.namespace
        wanted = parts.group_names(key.name, spec.broker_groups.count)
        groups = {name: uid for name, uid in _uids(seen).items() if name in wanted}
        declared, count = tuple(spec.consumer_groups), len(wanted)
        consumer_groups = await self._consumer_groups.keep(namespace, declared, groups, count=count)
        topics = await self._topics.keep(
            namespace,
            tuple(spec.topics),
            groups,
            count=count,
            consumer_groups={
                name: self._consumer_groups.had(GroupKey(namespace, name), declared, uid)
                for name, uid in groups.items()
            },
        )
        return replace(seen, topics=topics, consumer_groups=consumer_groups)

    async def _keep_users(self, key: GroupKey, seen: Seen, secrets: AclSecrets) -> Seen:
        """Also at groups beyond count: those still serve, and a user that spec.acl no longer names would keep its rights there."""
        acl, groups = seen.cluster.spec.acl, _uids(seen)
        if acl is None:
            self._users.forget(key.namespace, groups)
            return seen
        wanted = wanted_users(acl, secrets.passwords)
        if secrets.own is None or seen.acl_held_back:
            # Without the key the brokers' own user is not known; and brokers that check nothing have no users.
            kept = UsersStanding(users=len(wanted), policies=sum(len(user.policies) for user in wanted))
        else:
            kept = await self._users.keep(key.namespace, wanted, groups, counted=_counted(seen), own=secrets.own)
        return replace(seen, users=kept, password_problems=secrets.problems)

    async def _there(self, key: GroupKey) -> dict[tuple[str, str], JsonObject]:
        """Everything that carries the cluster's label, by kind and name."""
        label = names.LABEL_ROCKETMQ_CLUSTER
        listed = await asyncio.gather(*(self._objects.labelled(resource, key, label) for resource in KINDS.values()))
        return {(kind, name): obj for kind, one in zip(KINDS, listed, strict=True) for name, obj in one.items()}

    async def _taken_back(
        self, key: GroupKey, seen: Seen, there: dict[tuple[str, str], JsonObject]
    ) -> dict[tuple[str, str], JsonObject]:
        """With the cluster as the owner of what an orphaned one of its name has left."""
        left = {place: obj for place, obj in there.items() if _is_left_behind(obj, key.name)}
        if not left or not await self._is_still_there(key, seen):
            return there
        owner = parts.owner_of(seen.cluster_object)
        for (kind, name), obj in left.items():
            owners = [*(obj["metadata"].get("ownerReferences") or []), owner]
            change = {"resourceVersion": obj["metadata"]["resourceVersion"], "ownerReferences": owners}
            try:
                there[kind, name] = await self._api.patch(
                    KINDS[kind],
                    name,
                    {"metadata": change},
                    namespace=key.namespace,
                    content_type=PatchType.MERGE,
                    field_manager=names.FIELD_MANAGER_CLUSTER,
                    timeout_seconds=self._settings.api_timeout_seconds,
                )
            except (ConflictError, NotFoundError) as error:
                log.info("cluster.not_taken_back_yet", cluster=str(key), kind=kind, name=name, error=str(error))
            else:
                log.info("cluster.taken_back", cluster=str(key), kind=kind, name=name)
        return there

    async def _is_still_there(self, key: GroupKey, seen: Seen) -> bool:
        """Whether the cluster is as it was read: an owner that is going would take everything with it."""
        now = await self._objects.find(ROCKETMQ_CLUSTERS, key)
        if now is None or "deletionTimestamp" in now["metadata"]:
            return False
        return bool(now["metadata"]["uid"] == seen.cluster_object["metadata"]["uid"])

    async def _applied_once(self, key: GroupKey, seen: Seen, obj: JsonObject, found: JsonObject | None) -> JsonObject:
        """The object as it is once it says what is wanted. Raises _StrangerError where it is not the cluster's."""
        resource, name = KINDS[str(obj["kind"])], str(obj["metadata"]["name"])
        if found is None:
            # It may be there without our label, and then it is not the cluster's.
            found = await self._objects.find(resource, GroupKey(key.namespace, name))
        if found is not None and not _is_owned(found, seen.cluster_object):
            raise _StrangerError(name)
        remembered = self._applied.setdefault(key, {})
        digest = hashlib.sha256(json.dumps(obj, sort_keys=True).encode()).hexdigest()
        if found is not None and remembered.get((resource.kind, name)) == _as_it_is(found, digest):
            return found
        made = await self._applied_as_found(key, seen, obj, found)
        log.info("cluster.applied", cluster=str(key), kind=resource.kind, name=name)
        remembered[resource.kind, name] = _as_it_is(made, digest)
        return made

    async def _applied_as_found(
        self, key: GroupKey, seen: Seen, obj: JsonObject, found: JsonObject | None
    ) -> JsonObject:
        """Apply onto the very version that was the cluster's, or onto nothing: an object orphaned meanwhile would be collected."""
        resource, name = KINDS[str(obj["kind"])], str(obj["metadata"]["name"])
        for _ in range(APPLY_TRIES):
            version = {} if found is None else {"resourceVersion": found["metadata"]["resourceVersion"]}
            try:
                return await self._api.apply(
                    resource,
                    obj | {"metadata": obj["metadata"] | version},
                    field_manager=names.FIELD_MANAGER_CLUSTER,
                    # Without force where no object was: one that another client creates meanwhile is a conflict.
                    force=found is not None,
                    timeout_seconds=self._settings.api_timeout_seconds,
                )
            except ConflictError as error:
                found = await self._objects.find(resource, GroupKey(key.namespace, name)) if found is not None else None
                if found is None or not _is_owned(found, seen.cluster_object):
                    raise _StrangerError(name) from error
        raise _StrangerError(name)

    async def _delete_unwanted(
        self, key: GroupKey, seen: Seen, there: Mapping[tuple[str, str], JsonObject], wanted: set[tuple[str, str]]
    ) -> list[str]:
        """Return what the API server refused: a part that stays holds nothing else up."""
        refusals = []
        for (kind, name), obj in there.items():
            if kind == BROKER_GROUPS.kind or (kind, name) in wanted or not _is_owned(obj, seen.cluster_object):
                continue
            try:
                await self._api.delete(
                    KINDS[kind],
                    name,
                    namespace=key.namespace,
                    uid=str(obj["metadata"]["uid"]),
                    propagation_policy="Background",
                    timeout_seconds=self._settings.api_timeout_seconds,
                )
            except (NotFoundError, ConflictError):
                continue  # it is gone, or another one has its name
            except (ApiUnavailableError, OutcomeUnknownError):
                raise
            except ApiError as error:
                log.warning("cluster.not_deleted", cluster=str(key), kind=kind, name=name, error=str(error))
                refusals.append(f"{kind} {name}: {error}")
            else:
                log.info("cluster.deleted", cluster=str(key), kind=kind, name=name)
        return refusals

    # ---- the status

    async def _write_status(self, key: GroupKey, seen: Seen) -> Any:
        before = seen.cluster_object.get("status") or {}
        status = standing.status_of(seen, now=rfc3339(time.time()))
        told = without_nulls(msgspec.to_builtins(status))
        if told == before:
            return status
        await self._api.apply(
            ROCKETMQ_CLUSTERS,
            {"metadata": {"name": key.name, "namespace": key.namespace}, "status": told},
            field_manager=names.FIELD_MANAGER_STATUS,
            subresource="status",
            timeout_seconds=self._settings.api_timeout_seconds,
        )
        for note in transitions(before.get("conditions") or (), told.get("conditions") or ()):
            await self._events.post(seen.cluster_object, note)
        return status


def _groups(seen: Seen, there: Mapping[tuple[str, str], JsonObject]) -> dict[str, JsonObject]:
    """The cluster's BrokerGroups, by name."""
    return {
        name: obj
        for (kind, name), obj in there.items()
        if kind == BROKER_GROUPS.kind and _is_owned(obj, seen.cluster_object)
    }


def _made_of_pods(seen: Seen, there: Mapping[tuple[str, str], JsonObject]) -> list[JsonObject]:
    """What pods of the cluster come from, of what is there."""
    name = str(seen.cluster.metadata["name"])
    places = ((STATEFUL_SETS.kind, parts.name_server_name(name)), (DEPLOYMENTS.kind, parts.proxy_name(name)))
    templates = [obj for place in places if (obj := there.get(place)) and _is_owned(obj, seen.cluster_object)]
    return [*templates, *_groups(seen, there).values()]


def _is_acl_held_back(groups: Mapping[str, JsonObject], secrets: AclSecrets) -> bool:
    """Whether brokers that check nothing yet go on so: a wrong Secret would shut out every client that they serve.

    Where none serves yet, or one checks already, a wrong Secret opens nothing.
    """
    return bool(secrets.problems and groups) and not any(map(parts.checks_access, groups.values()))


def _counted(seen: Seen) -> set[str]:
    """The groups whose members must have the users for the cluster to be Ready; a hibernated group has none that answers."""
    wanted = parts.group_names(str(seen.cluster.metadata["name"]), seen.cluster.spec.broker_groups.count)
    return {name for name in wanted if not parts.is_hibernated(seen.groups.get(name) or {})}


def _uids(seen: Seen) -> dict[str, str]:
    """Of the cluster's BrokerGroups, by name."""
    return {name: str(group["metadata"]["uid"]) for name, group in sorted(seen.groups.items())}


class _StrangerError(Exception):
    """An object of a name of ours is not the cluster's: it is left alone, and the status names it."""


def transitions(before: Any, after: Any) -> list[Note]:
    """The Events of what has changed: Ready came, Available went, a person is needed."""
    was = {one["type"]: one["status"] for one in before}
    notes = []
    for one in after:
        if was.get(one["type"]) == one["status"]:
            continue
        match one["type"], one["status"]:
            case ClusterCondition.READY, "True":
                notes.append(Note(reason="ClusterReady", message=one["message"]))
            case ClusterCondition.AVAILABLE, "False" if was:
                notes.append(Note(reason="ClusterUnavailable", message=one["message"], warning=True))
            case ClusterCondition.STALLED, "True":
                notes.append(Note(reason=STALLED_EVENTS[one["reason"]], message=one["message"], warning=True))
    return notes


def _place(obj: JsonObject) -> tuple[str, str]:
    return str(obj["kind"]), str(obj["metadata"]["name"])


def _is_owned(obj: JsonObject, cluster_object: JsonObject) -> bool:
    owners = obj["metadata"].get("ownerReferences") or []
    return any(owner.get("uid") == cluster_object["metadata"]["uid"] for owner in owners)


def _is_left_behind(obj: JsonObject, cluster: str) -> bool:
    """Whether it is a part that this operator made for a cluster of the name, and has no owner: that one was orphaned."""
    metadata = obj["metadata"]
    name, labels = str(metadata["name"]), metadata.get("labels") or {}
    parts_of_it = {parts.name_server_name(cluster), parts.name_server_pods(cluster)}
    parts_of_it |= {parts.proxy_name(cluster), parts.trust_name(cluster)}
    return (
        labels.get(names.LABEL_ROCKETMQ_CLUSTER) == cluster
        and labels.get(names.LABEL_APP_MANAGED_BY) == names.MANAGED_BY
        and (name in parts_of_it or parts.is_group(cluster, name))
        and observed.is_unowned(obj)
    )


def _as_it_is(obj: JsonObject, digest: str) -> Applied:
    """Services and ConfigMaps have no generation; their resourceVersion moves only when they are written."""
    metadata = obj["metadata"]
    return Applied(digest, str(metadata["uid"]), str(metadata.get("generation") or metadata["resourceVersion"]))
