"""Reads the operations of one group and what they are judged by: from the API server, or what the watches last said."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec
import structlog

from brokergroup_operator.kube.resources import (
    BROKER_GROUP_OPERATIONS,
    BROKER_GROUP_STATES,
    BROKER_GROUPS,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
)
from brokergroup_operator.operations.scene import Operation, Scene, read_operation
from brokergroup_operator.records.group_cache import GroupCache
from brokergroup_operator.records.kubernetes import GroupObjects
from brokergroup_operator.records.serialize import record_of_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.observe.group_view import GroupSnapshot, GroupView
    from brokergroup_operator.records.store import GroupKey
    from controller_core.model import BrokerGroupRecord

    # (group, record, what the controllers see, pods) -> why the master can't be lost now, or nothing.
    UnsafeNow = Callable[[JsonObject, BrokerGroupRecord | None, GroupSnapshot | None, Mapping[str, JsonObject]], str]

log = structlog.get_logger(__name__)


class SceneFetcher:
    """Fetches through one client, with one deadline per request."""

    def __init__(
        self,
        api: KubernetesApi,
        view: GroupView,
        *,
        unsafe_now: UnsafeNow,
        timeout_seconds: float,
        clock: Callable[[], float] = time.time,
        cache: GroupCache | None = None,
    ) -> None:
        self._cache = cache or GroupCache()
        self._unsafe_now = unsafe_now
        self._api = api
        self._view = view
        self._timeout_seconds = timeout_seconds
        self._objects = GroupObjects(api, timeout_seconds=timeout_seconds)
        self._clock = clock

    async def fetch(self, key: GroupKey) -> Scene | None:
        """Return what there is, or None where the group has no operation: then a pass costs one request."""
        operations = await self._operations(key)
        if not operations:
            return None
        group = await self._objects.find(BROKER_GROUPS, key)
        state = await self._objects.find(BROKER_GROUP_STATES, key)
        pods, claims = await asyncio.gather(
            self._objects.labelled(PODS, key), self._objects.labelled(PERSISTENT_VOLUME_CLAIMS, key)
        )
        return self._scene(key, operations, group, record_of_state(state), self._view.snapshot(key), pods, claims)

    def look(self, key: GroupKey) -> Scene | None:
        """Return what the watches last said, with all operations of the group or none; None: the API must be read."""
        cache = self._cache
        if not cache.is_complete:
            return None
        operations = _operations(cache.all(BROKER_GROUP_OPERATIONS, key), key)
        if not operations:
            return Scene(key=key, now_seconds=self._clock())
        record, snapshot = record_of_state(cache.one(BROKER_GROUP_STATES, key)), self._view.snapshot(key)
        if snapshot is not None and snapshot.record != record:
            return None  # the controller plane knows a newer record
        return self._scene(
            key,
            operations,
            cache.one(BROKER_GROUPS, key),
            record,
            snapshot,
            cache.by_name(PODS, key),
            cache.by_name(PERSISTENT_VOLUME_CLAIMS, key),
        )

    def _scene(
        self,
        key: GroupKey,
        operations: list[Operation],
        group: JsonObject | None,
        record: BrokerGroupRecord | None,
        snapshot: GroupSnapshot | None,
        pods: Mapping[str, JsonObject],
        claims: Mapping[str, JsonObject],
    ) -> Scene:
        return Scene(
            key=key,
            now_seconds=self._clock(),
            group=group,
            record=record,
            snapshot=snapshot,
            pods=pods,
            claims=claims,
            operations=tuple(operations),
            unsafe_now=self._unsafe_now(group, record, snapshot, pods) if group is not None else "",
        )

    async def _operations(self, key: GroupKey) -> list[Operation]:
        """List them by the spec, not by a label: YAML written by hand has none."""
        listed = await self._api.list(
            BROKER_GROUP_OPERATIONS, namespace=key.namespace, timeout_seconds=self._timeout_seconds
        )
        return _operations(listed.items, key)


def _operations(items: Iterable[JsonObject], key: GroupKey) -> list[Operation]:
    found = []
    for raw in items:
        if ((raw.get("spec") or {}).get("brokerGroupRef") or {}).get("name") != key.name:
            continue
        try:
            found.append(read_operation(raw))
        except msgspec.ValidationError as error:
            log.warning("operation.unreadable", group=str(key), name=raw["metadata"]["name"], error=str(error))
    return found
