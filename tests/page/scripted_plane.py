"""A controller plane with a test's groups, and a failover step by step."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from brokergroup_operator.kube.client import ObjectList, WatchEvent
from brokergroup_operator.observe.group_view import GroupSnapshot
from brokergroup_operator.observe.observer import Observer
from brokergroup_operator.observe.timeline import FailoverTimeline, Kind, Outcome, Step, Trigger
from brokergroup_operator.records.store import GroupKey
from controller_core.model import BrokerGroupRecord, LiveReplica, Replica

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from brokergroup_operator.kube.client import JsonObject
    from brokergroup_operator.kube.resources import Resource

MEBIBYTE = 1 << 20


def snapshot(key: GroupKey, *, nodes: int = 3, name: str | None = None, replicas: int = 3) -> GroupSnapshot:
    """A healthy group; broker 1 is master. Its nodes follow from its name."""
    ids = range(1, replicas + 1)
    record = BrokerGroupRecord(
        "DefaultCluster",
        name or key.name,
        next_broker_id=replicas + 1,
        replicas={
            one: Replica(one, f"c{one}", f"10.0.0.{one}:10911", reserved_for=f"{key.name}-{one}", registered=True)
            for one in ids
        },
        master_broker_id=1,
        master_epoch=7,
        sync_state_set=frozenset(ids),
        sync_state_set_epoch=12,
    )
    first = sum(map(ord, key.name)) % nodes
    return GroupSnapshot(
        key=key,
        record=record,
        live={one: LiveReplica(one, epoch=7, max_offset=5 * MEBIBYTE, confirm_offset=5 * MEBIBYTE) for one in ids},
        writable=True,
        heartbeat_age_seconds=dict.fromkeys(ids, 0.2),
        member_facts={
            one: {"node": f"node-{(first + one) % nodes}", "zone": f"zone-{(first + one) % nodes}"} for one in ids
        },
    )


class ScriptedPlane:
    """Keeps ShownGroups. ``show`` may be called from any place of its loop."""

    def __init__(self, groups: int = 0) -> None:
        self.shown: dict[GroupKey, GroupSnapshot] = {}
        self.looks = 0
        self.observer = Observer()
        self.manifests: dict[GroupKey, JsonObject] = {}
        self._callbacks: list[Callable[[GroupKey], None]] = []
        for number in range(groups):
            key = GroupKey(f"ns-{number % 7}", f"orders-{number:04d}")
            self.shown[key] = snapshot(key, nodes=40)

    def keys(self) -> list[GroupKey]:
        return list(self.shown)

    def snapshot(self, key: GroupKey) -> GroupSnapshot | None:
        self.looks += 1
        return self.shown.get(key)

    def subscribe(self, callback: Callable[[GroupKey], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def show(self, shown: GroupSnapshot) -> None:
        before = self.shown.get(shown.key)
        self.shown[shown.key] = shown
        if shown.record is not None and before is not None and before.record != shown.record:
            self.observer.record_changed(shown.key, before.record, shown.record, "the test says so")
        for callback in self._callbacks:
            callback(shown.key)

    def forget(self, key: GroupKey) -> None:
        del self.shown[key]


class ScriptedFailover:
    """One failover of a group, carried on by the test."""

    def __init__(self, plane: ScriptedPlane, key: GroupKey, *, evidence: str = "connection refused") -> None:
        self.plane, self.key = plane, key
        before = plane.shown[key]
        assert before.record is not None
        self.timeline = FailoverTimeline(
            group=key,
            cluster_name="DefaultCluster",
            broker_name=before.record.broker_name,
            kind=Kind.FAILOVER,
            trigger=Trigger.CONNECTION_REFUSED,
            from_broker_id=before.record.master_broker_id,
            epoch_before=before.record.master_epoch,
            started_at_unix_seconds=time.time(),
            evidence=[evidence],
        )
        self.timeline.reach(Step.DETECTED, time.monotonic())
        lost = before.record.master_broker_id
        live = {one: replica for one, replica in before.live.items() if one != lost}
        plane.show(replace(before, in_progress=self.timeline, writable=False, live=live))

    def reach(self, step: Step) -> None:
        self.timeline.reach(step, time.monotonic())
        self.plane.show(self.plane.shown[self.key])

    def commit(self, to: int) -> None:
        before = self.plane.shown[self.key]
        assert before.record is not None
        record = replace(
            before.record,
            master_broker_id=to,
            master_epoch=before.record.master_epoch + 1,
            sync_state_set=frozenset({to}),
            sync_state_set_epoch=before.record.sync_state_set_epoch + 1,
        )
        self.timeline.to_broker_id, self.timeline.epoch_after = to, record.master_epoch
        self.timeline.reach(Step.COMMITTED, time.monotonic())
        self.plane.show(replace(before, record=record))

    def end(self) -> None:
        before = self.plane.shown[self.key]
        assert before.record is not None
        self.timeline.reach(Step.ROLE_CHANGED, time.monotonic())
        self.timeline.reach(Step.IN_SYNC, time.monotonic())
        self.timeline.outcome = Outcome.COMPLETED
        record = replace(
            before.record,
            sync_state_set=frozenset(before.live),
            sync_state_set_epoch=before.record.sync_state_set_epoch + 1,
        )
        self.plane.show(replace(before, record=record, in_progress=None, last_failover=self.timeline, writable=True))


class ListedGroups:
    """The API as the page asks it: BrokerGroups that never change by themselves, and token reviews by a table."""

    def __init__(self, plane: ScriptedPlane) -> None:
        self._plane = plane

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    @property
    def url(self) -> str:
        return "scripted"

    async def list(self, resource: Resource, **_: object) -> ObjectList:
        return ObjectList([self._plane.manifests.get(key) or manifest(key) for key in self._plane.shown], "1")

    async def pages(self, resource: Resource, **_: object) -> AsyncGenerator[ObjectList, None]:
        yield await self.list(resource)

    async def watch(self, resource: Resource, **_: object) -> AsyncGenerator[WatchEvent, None]:
        await asyncio.Event().wait()
        yield WatchEvent("BOOKMARK", {})


def manifest(key: GroupKey, *, replicas: int = 3) -> JsonObject:
    """The BrokerGroup of a group, with a status."""
    since = "2026-11-24T20:00:00Z"
    return {
        "apiVersion": "brokergroup.dev/v1beta1",
        "kind": "BrokerGroup",
        "metadata": {"namespace": key.namespace, "name": key.name, "resourceVersion": "5"},
        "spec": {"implementation": "Python", "replicas": replicas, "nameServers": ["127.0.0.1:9876"]},
        "status": {
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "AllMembersInSync",
                    "message": "3 of 3",
                    "lastTransitionTime": since,
                }
            ]
        },
    }
