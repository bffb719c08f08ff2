"""Reads one group and all that is its own: from the API server, or what the watches last said of it (`GroupCache`)."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from brokergroup_operator.api import names
from brokergroup_operator.api.bounds import MAX_CONFIG_ENTRIES
from brokergroup_operator.api.brokergroup import BrokerGroup, BrokerGroupSpec
from brokergroup_operator.api.brokergroup_operation import BrokerGroupOperation, OperationType
from brokergroup_operator.api.credentials import CredentialsError, credentials_in, secret_not_found
from brokergroup_operator.api.durability import with_durability
from brokergroup_operator.api.proxy_fields import acl_complaint
from brokergroup_operator.api.rules import RESERVED_CONFIG_KEYS
from brokergroup_operator.api.service_names import as_brokers_mean
from brokergroup_operator.api.tls_steps import made_of
from brokergroup_operator.kube import resources
from brokergroup_operator.kube.errors import ApiError, ApiUnavailableError, NotFoundError, is_forbidden
from brokergroup_operator.kube.pods import is_over, node_of
from brokergroup_operator.reconcile.identity import claim_names
from brokergroup_operator.reconcile.see import bundles, certificates, foreign, lost_bundles, observed, snapshots
from brokergroup_operator.reconcile.see.bundles import HandshakingServers
from brokergroup_operator.reconcile.see.copies import wanted_aside
from brokergroup_operator.reconcile.see.members import carried
from brokergroup_operator.reconcile.see.observed import Observed, Operation
from brokergroup_operator.records.group_cache import GroupCache
from brokergroup_operator.records.kubernetes import GroupObjects
from brokergroup_operator.records.serialize import record_of_state
from brokergroup_operator.records.store import GroupKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.tls_steps import Trust
    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.observe.group_view import GroupView
    from brokergroup_operator.reconcile.see.bundles import Servers
    from brokergroup_operator.reconcile.see.served_certificates import ServedCertificates
    from rocketmq_remoting.tls import Validity

log = structlog.get_logger(__name__)
# Well below a pass's own time limit: what a Backup alone needs keeps no pod from being made.
SNAPSHOTS_SECONDS: Final = 3.0
# What the group's pods need beside their claims, by the field of the view.
CHILDREN: Final = {
    resources.SERVICES: "services",
    resources.CONFIG_MAPS: "config_maps",
    resources.POD_DISRUPTION_BUDGETS: "disruption_budgets",
    resources.NETWORK_POLICIES: "network_policies",
}


class UnreadableGroupError(Exception):
    """The BrokerGroup does not fit its type: it was stored under other rules than ours. A person must look at it."""

    def __init__(self, message: str, group_object: JsonObject) -> None:
        super().__init__(message)
        self.group_object = group_object


class GroupFetcher:
    """Fetches groups through one client, which has the deadline of every request."""

    def __init__(
        self,
        api: KubernetesApi,
        view: GroupView,
        *,
        cache: GroupCache | None = None,
        servers: Servers | None = None,
        served: ServedCertificates | None = None,
        controllers: Sequence[str] = (),
    ) -> None:
        self._api, self._served = api, served
        self._servers, self._controllers = servers or HandshakingServers(), controllers
        self._view = view
        self._objects = GroupObjects(api)
        self._cache = cache or GroupCache()

    async def look(self, key: GroupKey) -> Observed | None:
        """Return what the watches last said, with the Secrets and ConfigMaps that are not watched; None: the API must be read."""
        cache = self._cache
        group_object, state = cache.one(resources.BROKER_GROUPS, key), cache.one(resources.BROKER_GROUP_STATES, key)
        if not cache.is_complete or group_object is None or observed.being_deleted(group_object):
            return None
        seen = seen_of(
            key,
            group_object,
            state,
            snapshot=self._view.snapshot(key),
            operations=operations_of(cache.all(resources.BROKER_GROUP_OPERATIONS, key), key),
            pods=cache.by_name(resources.PODS, key),
            claims=cache.by_name(resources.PERSISTENT_VOLUME_CLAIMS, key),
        )
        if wanted_aside(seen):
            return None  # these are not watched
        if seen.unreadable or (seen.snapshot is not None and seen.snapshot.record != seen.record):
            return None  # or the controller plane knows a newer record
        nodes = {name: cache.node(name) for name in _node_names(seen.pods)}
        seen = await self._whole(
            await self._with_cluster(seen),
            nodes={name: node for name, node in nodes.items() if node is not None},
            **{field: cache.by_name(resource, key) for resource, field in CHILDREN.items()},
        )
        return None if _unlisted_claims(seen) or foreign.has_unowned(seen) else seen

    async def fetch(self, key: GroupKey) -> Observed | None:
        """What there is now, or None if the group is gone. Raises UnreadableGroupError."""
        try:
            operations = await self._operations(key)
        except NotFoundError:
            operations = ()  # the kind is not installed, or not at this moment
        seen = await self._judged_by(key, operations)
        if not seen.group_object:
            return None
        if seen.unreadable:
            raise UnreadableGroupError(seen.unreadable, seen.group_object)
        *children, nodes = await asyncio.gather(
            *(self._objects.labelled(resource, key) for resource in CHILDREN), self._nodes(_node_names(seen.pods))
        )
        seen = await self._whole(seen, nodes=nodes, **dict(zip(CHILDREN.values(), children, strict=True)))
        # Those without the label by which they are listed are there too: none of them is a lost disk.
        unlabelled = await self._find_all(resources.PERSISTENT_VOLUME_CLAIMS, key.namespace, _unlisted_claims(seen))
        seen = replace(seen, claims={**seen.claims, **unlabelled})
        return await self.fetch(key) if await self._is_stale(key, seen) else seen

    async def fetch_for_operations(self, key: GroupKey) -> Observed | None:
        """What a group's operations are judged by, or None where it has none: then that costs one request."""
        operations = await self._operations(key)
        return await self._judged_by(key, operations) if operations else None

    async def _operations(self, key: GroupKey) -> tuple[Operation, ...]:
        """Raises NotFoundError where operations are not installed."""
        listed = await self._api.list(resources.BROKER_GROUP_OPERATIONS, namespace=key.namespace)
        return operations_of(listed.items, key)

    async def _judged_by(self, key: GroupKey, operations: tuple[Operation, ...]) -> Observed:
        """As much of the view as operations are judged by."""
        group_object = await self._objects.find(resources.BROKER_GROUPS, key)
        self._refuse_an_older(key, group_object)
        # The record before the claims: a registered id whose claim is listed later must still have it, so a claim that is
        # missing then is lost, and not one that was created in between.
        state = await self._objects.find(resources.BROKER_GROUP_STATES, key)
        snapshot = self._view.snapshot(key)
        pods, claims = await asyncio.gather(
            self._objects.labelled(resources.PODS, key), self._objects.labelled(resources.PERSISTENT_VOLUME_CLAIMS, key)
        )
        seen = seen_of(key, group_object, state, snapshot=snapshot, operations=operations, pods=pods, claims=claims)
        wanted = wanted_aside(seen)
        found = await asyncio.gather(
            *(self._objects.find(resource, GroupKey(key.namespace, name)) for resource, name in wanted)
        )
        aside = {
            (resource.kind, name): obj for (resource, name), obj in zip(wanted, found, strict=True) if obj is not None
        }
        seen = replace(seen, aside=aside) if aside else seen
        return await self._with_cluster(await self._with_snapshots(seen))

    async def _with_snapshots(self, seen: Observed) -> Observed:
        """With the VolumeSnapshots that a Backup takes or the group begins with, and the volumes that are attached.

        Each is listed by its name: of a kind that is not there no list is answered, and of a missing object an empty one. A Backup
        that they can't be read for waits, and the group's pass goes on: so they have a short deadline of their own.
        """
        wanted = snapshots.wanted(seen)
        if not wanted:
            return seen
        try:
            listed = await self._snapshots_named(seen.key.namespace, wanted)
            # After them: a volume that another pod has mounted before one of them was cut is seen attached.
            attached = await self._attached_volumes(seen)
        except NotFoundError:
            return replace(seen, snapshots_problem=snapshots.NOT_INSTALLED)
        except ApiError as error:
            if is_forbidden(error):
                return replace(seen, snapshots_problem=f"the operator has no right to them: {error}")
            if not snapshots.are_taken(seen):
                raise
            return replace(seen, snapshots_unread=f"VolumeSnapshots can't be read now: {error}")
        kind = resources.VOLUME_SNAPSHOTS.kind
        found = {(kind, str(one["metadata"]["name"])): one for one in listed}
        return replace(seen, aside={**seen.aside, **found}, attached_volumes=attached)

    async def _snapshots_named(self, namespace: str, wanted: Iterable[str]) -> list[JsonObject]:
        pages = await asyncio.gather(
            *(
                self._api.list(
                    resources.VOLUME_SNAPSHOTS,
                    namespace=namespace,
                    field_selector=f"metadata.name={name}",
                    timeout_seconds=SNAPSHOTS_SECONDS,
                )
                for name in wanted
            )
        )
        return [one for page in pages for one in page.items]

    async def _attached_volumes(self, seen: Observed) -> dict[str, str]:
        """By PersistentVolume, the node. Empty where no step depends on it."""
        if not snapshots.needs_attached(seen):
            return {}
        found = (await self._api.list(resources.VOLUME_ATTACHMENTS, timeout_seconds=SNAPSHOTS_SECONDS)).items
        volumes = ((one["spec"].get("source") or {}, str(one["spec"].get("nodeName", ""))) for one in found)
        return {str(source.get("persistentVolumeName") or ""): node for source, node in volumes}

    def _refuse_an_older(self, key: GroupKey, group_object: JsonObject | None) -> None:
        """Raise ApiUnavailableError for a spec older than the one that the watch has shown: by it a new member would leave."""
        shown = self._cache.one(resources.BROKER_GROUPS, key)
        if group_object is None or shown is None or observed.uid(shown) != observed.uid(group_object):
            return
        read, known = observed.generation(group_object), observed.generation(shown)
        if read < known:
            what = f"BrokerGroup {key} was read in generation {read}, and its watch has shown {known}"
            raise ApiUnavailableError(f"{what}: expected the same or a later one")

    async def _with_cluster(self, seen: Observed) -> Observed:
        """With what the group's cluster wants, if a Retire asks whether the group may go: the count may change at any time."""
        unfinished = (one for one in seen.operations if not one.finished)
        if not any(one.asked.spec.type is OperationType.RETIRE for one in unfinished):
            return seen
        owners = observed.owners_of(seen.group_object)
        clusters = [str(one["name"]) for one in owners if one.get("kind") == resources.ROCKETMQ_CLUSTERS.kind]
        found = await self._find_all(resources.ROCKETMQ_CLUSTERS, seen.key.namespace, clusters)
        wanted = (wanted_by(cluster, seen.key.name) for cluster in found.values())
        return replace(seen, wanted_by_cluster=next(filter(None, wanted), ""))

    async def _whole(self, seen: Observed, **further: Any) -> Observed:
        """With these fields, and the keys of the ConfigMaps and the state of the Secret that the spec names; neither is watched."""
        tls = seen.group.spec.tls
        named = [tls.trust_bundle_ref.name] if tls is not None and tls.trust_bundle_ref is not None else []
        sources = sorted({*(source.config_map_ref.name for source in seen.group.spec.config_from), *named})
        found = await self._find_all(resources.CONFIG_MAPS, seen.key.namespace, sources)
        group, config_problem = with_sources(seen.group, found)
        bundle, trust_problem = await bundles.read(tls, found)
        seen = replace(seen, **further)
        trust = await self._trust(seen, bundle, trust_problem)
        problem, changed_at = await self._credentials(seen.key, group.spec.security.credentials_secret_name)
        return replace(
            seen,
            group=group,
            config_problem=config_problem or trust_problem,
            credentials_problem=problem,
            credentials_changed_at=changed_at,
            trust=trust,
            served=self._served_by_brokers(seen),
        )

    def _served_by_brokers(self, seen: Observed) -> dict[str, Validity]:
        """By pod. A handshake goes to those brokers alone whose client certificate nears its end, and no pass waits for it."""
        if self._served is None:
            return {}
        asked = certificates.to_ask(seen, now_seconds=time.time())
        found = ((pod, self._served.served(address)) for pod, address in asked.items())
        return {pod: validity for pod, validity in found if validity is not None}

    async def _trust(self, seen: Observed, bundle: str, problem: str) -> Trust:
        """The bundle, and whether every server that the group's pods connect to is verified by it."""
        pods, tls = [pod for pod in seen.pods.values() if not is_over(pod)], seen.group.spec.tls
        made, kept = [made_of(pod) for pod in pods], seen.config_map
        if tls is not None and tls.trust_bundle_ref is not None:
            kept = await lost_bundles.with_lost(self._api, seen.key.namespace, kept, made, bundle)
        return await bundles.trust_of(
            tls,
            bundle,
            problem=problem,
            made=made,
            pods=pods,
            kept=kept,
            servers=self._servers,
            addresses=[as_brokers_mean(one, seen.key.namespace) for one in seen.group.spec.name_servers],
            controllers=self._controllers,
        )

    async def _is_stale(self, key: GroupKey, seen: Observed) -> bool:
        """Whether the group was deleted after it was read, with `--cascade=orphan`: children must not get an owner then."""
        if observed.being_deleted(seen.group_object) or not foreign.has_unowned(seen):
            return False
        now = await self._objects.find(resources.BROKER_GROUPS, key)
        return now is None or observed.being_deleted(now) or observed.uid(now) != observed.uid(seen.group_object)

    async def _find_all(self, resource: Resource, namespace: str, wanted: Iterable[str]) -> dict[str, JsonObject]:
        """Those of these names that there are."""
        found = await asyncio.gather(*(self._objects.find(resource, GroupKey(namespace, name)) for name in wanted))
        return {str(obj["metadata"]["name"]): obj for obj in found if obj is not None}

    async def _nodes(self, wanted: Iterable[str]) -> dict[str, JsonObject]:
        """Empty where the operator may not read nodes (chart value rbac.readNodes)."""
        try:
            return await self._find_all(resources.NODES, "", wanted)
        except ApiError as error:
            if not is_forbidden(error):
                raise
            return {}

    async def _credentials(self, key: GroupKey, name: str | None) -> tuple[CredentialsError | None, str]:
        """What is wrong with the Secret, and when it last changed. Nothing of it is kept: pods mount their own."""
        if name is None:
            return None, ""
        secret = await self._objects.secret(key.namespace, name)
        if isinstance(secret, CredentialsError):
            return secret, ""
        if secret is None:
            return secret_not_found(key.namespace, name), ""
        problem: CredentialsError | None = None
        try:
            credentials_in(secret)
        except CredentialsError as error:
            problem = error
        return problem, observed.data_changed_at(secret)


def _unlisted_claims(seen: Observed) -> list[str]:
    return sorted(
        name
        for pod, replica in carried(seen).items()
        if replica.registered
        for name in claim_names(seen.group, pod)
        if name not in seen.claims
    )


def wanted_by(cluster: JsonObject, group: str) -> str:
    """Why the cluster wants this group, and would create it again; empty if it is beyond the cluster's count."""
    name, count = str(cluster["metadata"]["name"]), int(cluster["spec"]["brokerGroups"]["count"])
    wanted = [names.group_of_cluster(name, index) for index in range(count)]
    if observed.being_deleted(cluster) or group not in wanted:
        return ""
    return f"RocketMQCluster {name} wants it: spec.brokerGroups.count is {count}, so {wanted[-1]} is its last group"


def _node_names(pods: Mapping[str, JsonObject]) -> list[str]:
    return sorted({node_of(pod) for pod in pods.values()} - {""})


def seen_of(
    key: GroupKey,
    group_object: JsonObject | None,
    state: JsonObject | None,
    operations: tuple[Operation, ...],
    **read: Any,
) -> Observed:
    """The view of these; `read` are fields as they are."""
    stored = group_object or {"metadata": {"name": key.name, "namespace": key.namespace}, "spec": {}}
    try:
        group, unreadable = read_group(stored), ""
    except UnreadableGroupError as error:
        group, unreadable = _readable_part(stored), str(error)
    return Observed(
        group=group,
        group_object=group_object or {},
        unreadable=unreadable,
        state_object=state,
        record=record_of_state(state),
        operations=operations,
        # Of an earlier group of this name none counts: its Rebuild would cost this one a volume.
        operation=next((one.asked for one in operations if one.is_running and one.is_of(stored)), None),
        **read,
    )


def operations_of(items: Iterable[JsonObject], key: GroupKey) -> tuple[Operation, ...]:
    """The operations of this group, by their spec and not by a label: YAML written by hand has none."""
    found = []
    for raw in items:
        if ((raw.get("spec") or {}).get("brokerGroupRef") or {}).get("name") != key.name:
            continue
        try:
            found.append(read_operation(raw))
        except msgspec.ValidationError as error:
            log.warning("operation.unreadable", group=str(key), name=raw["metadata"]["name"], error=str(error))
    return tuple(found)


def read_operation(raw: JsonObject) -> Operation:
    """Raises ``msgspec.ValidationError`` for an object that was stored under other rules than ours."""
    return Operation(raw=raw, asked=msgspec.convert(raw, BrokerGroupOperation))


def _readable_part(group_object: JsonObject) -> BrokerGroup:
    """The group with those fields of its spec that fit their types: one without a master may have to be given one by an Elect."""
    spec: JsonObject = {}
    for name, value in (group_object.get("spec") or {}).items():
        with contextlib.suppress(msgspec.ValidationError):
            msgspec.convert({name: value}, BrokerGroupSpec)
            spec[name] = value
    return BrokerGroup(metadata=group_object["metadata"], spec=msgspec.convert(spec, BrokerGroupSpec))


def read_group(group_object: JsonObject) -> BrokerGroup:
    try:
        return with_durability(msgspec.convert(group_object, BrokerGroup))
    except msgspec.ValidationError as error:
        metadata = group_object.get("metadata") or {}
        raise UnreadableGroupError(
            f"BrokerGroup {metadata.get('namespace')}/{metadata.get('name')}: {error}", group_object
        ) from error


KEY: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}")
VALUE: Final = re.compile(r"[^\r\n]{0,1024}")


def with_sources(group: BrokerGroup, found: Mapping[str, JsonObject | None]) -> tuple[BrokerGroup, str]:
    """The group with the keys of its ConfigMaps in spec.config, later ones and spec.config itself winning; and the complaint.

    Checked here as the API server checks spec.config. While one is missing or bad, no object of the group is changed.
    """
    merged: dict[str, str] = {}
    for source in group.spec.config_from:
        name = source.config_map_ref.name
        config_map = found.get(name)
        if config_map is None:
            return group, f"spec.configFrom names ConfigMap {name}, which does not exist: create it, or take it out"
        values: dict[str, str] = config_map.get("data") or {}
        if complaint := _complaint(name, values):
            return group, complaint
        merged |= values
    merged |= group.spec.config
    if len(merged) > MAX_CONFIG_ENTRIES:
        keys = f"spec.config and spec.configFrom have {len(merged)} keys together"
        return group, f"{keys}, expected at most {MAX_CONFIG_ENTRIES}"
    proxy = group.spec.local_proxy
    if proxy is not None and (complaint := acl_complaint(merged, proxy.config)):
        return group, f"of spec.config and spec.configFrom together: {complaint}"
    return msgspec.structs.replace(group, spec=msgspec.structs.replace(group.spec, config=merged)), ""


def _complaint(name: str, values: Mapping[str, str]) -> str:
    for key, value in sorted(values.items()):
        if instead := RESERVED_CONFIG_KEYS.get(key):
            return f"ConfigMap {name}: {key} is set by the operator: {instead}"
        if not KEY.fullmatch(key):
            return f"ConfigMap {name}: {key!r} is no Java property name"
        if not VALUE.fullmatch(value):
            return f"ConfigMap {name}: {key} has a value of {len(value)} characters, expected one line of at most 1024"
    return ""
