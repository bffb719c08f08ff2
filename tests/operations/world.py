"""Scenes for the pure evaluation; and a world around the operations pass: the embedded API, records, and the others' hands."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from brokergroup_operator.api import names
from brokergroup_operator.api.backup_fields import Manifest
from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.kube.errors import ApiError, NotFoundError
from brokergroup_operator.kube.resources import (
    BROKER_GROUP_OPERATIONS,
    BROKER_GROUPS,
    EVENTS,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    Resource,
)
from brokergroup_operator.observe.group_view import GroupSnapshot, SwitchoverFailedError
from brokergroup_operator.observe.timeline import FailoverTimeline, Kind, Step, Trigger
from brokergroup_operator.observe.timeline import Outcome as TimelineOutcome
from brokergroup_operator.reconcile import plan as plans
from brokergroup_operator.reconcile.act.apply import PlanApplier
from brokergroup_operator.reconcile.decide import retiring
from brokergroup_operator.reconcile.operations.evaluate import PROCEDURES
from brokergroup_operator.reconcile.operations.plan import NOTHING_ASKED, Outcome
from brokergroup_operator.reconcile.operations.procedures.premises import Case
from brokergroup_operator.reconcile.operations.runner import OperationRunner
from brokergroup_operator.reconcile.render.broker_config import hot_changes
from brokergroup_operator.reconcile.see.fetch import GroupFetcher, read_operation, seen_of
from brokergroup_operator.reconcile.see.observed import annotations_of, is_fenced
from brokergroup_operator.reconcile.tell.events import EventPoster
from brokergroup_operator.records.store import GroupKey
from controller_core.model import BrokerGroupRecord, LiveReplica, Replica
from kube_sandbox.api_server.errors import StatusError
from tests.operations.record_view import RecordView, elected
from tests.reconcile.builders import SETTINGS
from tests.reconcile.world import Namespaced

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from aiohttp import web

    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.reconcile.operations.plan import Verdict
    from brokergroup_operator.reconcile.see.observed import Observed, Operation


V = TypeVar("V")
WRITES = {"POST", "PUT", "PATCH", "DELETE"}
DEADLINE_SECONDS = 30.0
OVER = ("Succeeded", "Failed", "Rejected")
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
# The embedded API has no authentication; this token lets the tests identify the client.
OPERATOR_TOKEN = "operator"


class World(Namespaced):
    """One group `orders` of three in a namespace, and an operator that may be killed before its n-th write."""

    def __init__(self, hands: KubernetesApi, operator: KubernetesApi, key: GroupKey) -> None:
        """`operator` is the operations pass's client; `api` is the one of the test's hands."""
        super().__init__(hands, key)
        self._operator = operator
        self.view = RecordView(operator, hands, key)
        self.writes: list[str] = []
        # The pods whose end could be seen, by uid.
        self.fenced: list[str] = []
        self.kill_at: int | None = None
        self.was_killed = False
        self._dead = False
        # Whether the reconcile plane's part of a Retire is carried out too.
        self.configures = False
        # What each broker was given (25), by id.
        self.given: dict[int, dict[str, str]] = {}
        self.view.given = self.given
        # Why the API server refuses new pods of the operator, as by a quota; empty: it makes them.
        self.refuses_pods = ""
        self.runner = self._new_runner()

    def _new_runner(self) -> OperationRunner:
        fetcher = GroupFetcher(self._operator, self.view)  # type: ignore[arg-type]
        return OperationRunner(
            self._operator,
            self.view,  # type: ignore[arg-type]
            operator=None,
            settings=SETTINGS,
            read=fetcher.fetch_for_operations,
            post=EventPoster(self._operator, instance="test").post,
            wake=lambda _: None,
        )

    def observe(self, request: web.BaseRequest) -> None:
        """Observe a request before the API server handles it; the operator's requests have its token."""
        by_operator = request.headers.get("Authorization") == f"Bearer {OPERATOR_TOKEN}"
        if not by_operator or request.method not in WRITES or request.path.endswith("/events"):
            return
        if self._dead or (self.kill_at is not None and len(self.writes) >= self.kill_at):
            self._dead = self.was_killed = True
            raise StatusError(503, "ServiceUnavailable", "the operator is dead")
        if self.refuses_pods and (request.method, request.path.rpartition("/")[2]) == ("POST", "pods"):
            raise StatusError(403, "Forbidden", self.refuses_pods)
        self.writes.append(f"{request.method} {request.path}")

    async def run_pass(self) -> float | None:
        """Run one pass; restart a killed operator with only the API's state."""
        try:
            if self.configures:
                await self._configure()
            return await self.runner.run_pass(self.key)
        except ApiError:
            if not self._dead:
                raise
            return 0.0
        finally:
            if self._dead:
                await self.runner.stop()
                self._dead, self.kill_at = False, None
                self.runner = self._new_runner()

    async def _configure(self) -> None:
        """Mark the group and give its brokers what a running Retire wants, as the operator."""
        seen = await GroupFetcher(self._operator, self.view).fetch_for_operations(self.key)  # type: ignore[arg-type]
        if seen is None or not seen.group_object or retiring.retirement(seen) is None:
            return
        closed = retiring.is_closed(seen)
        wanted = {"brokerPermission": "4"} | (retiring.closing_values(seen) if closed else {})
        (running,) = (one for one in seen.operations if one.is_running)
        mark = {names.ANNOTATION_CLOSED_BY: running.uid if closed else None}
        actions: list[plans.Action] = []
        if annotations_of(seen.group_object).get(names.ANNOTATION_CLOSED_BY) != mark[names.ANNOTATION_CLOSED_BY]:
            metadata = seen.group_object["metadata"]
            actions.append(
                plans.SetFinalizers(
                    reason="closed",
                    resource=BROKER_GROUPS,
                    name=self.key.name,
                    finalizers=(),
                    annotations=mark,
                    resource_version=metadata["resourceVersion"],
                )
            )
        for name, pod in sorted(seen.pods.items()):
            if changed := hot_changes(pod, wanted):
                actions.append(
                    plans.SetBrokerConfig(
                        reason="retired",
                        broker_id=int(name[-1]),
                        pod=name,
                        uid=pod["metadata"]["uid"],
                        values=changed,
                        noted=wanted,
                        restarts=0,
                    )
                )
        applier = PlanApplier(
            api=self._operator,
            applier=None,  # type: ignore[arg-type]
            view=self.view,  # type: ignore[arg-type]
            events=EventPoster(self._operator, instance="test"),
        )
        await applier.carry_out(self.key, plans.Plan(actions=tuple(actions)), seen)

    async def until_over(self, *names_: str, hands: Callable[[], Any] | None = None) -> dict[str, dict[str, Any]]:
        """Run passes until these operations end; `hands` work between them."""
        end = asyncio.get_running_loop().time() + DEADLINE_SECONDS
        while True:
            await self.run_pass()
            await asyncio.sleep(0.02)
            if hands is not None:
                await hands()
            found = {name: await self.asked(name) for name in names_}
            if all((item.get("status") or {}).get("phase") in OVER for item in found.values()):
                return found
            assert asyncio.get_running_loop().time() < end, {name: item.get("status") for name, item in found.items()}

    async def ended(
        self, kind: str, section: dict[str, Any] | None = None, *, hands: Callable[[], Any] | None = None, **spec: Any
    ) -> tuple[str, dict[str, Any]]:
        """Ask for an operation `one`, and run passes until it ends; return its phase and its result."""
        await self.ask("one", kind, section or {}, **spec)
        return await self.end_of_one(hands=hands)

    async def end_of_one(self, *, hands: Callable[[], Any] | None = None) -> tuple[str, dict[str, Any]]:
        status = (await self.until_over("one", hands=hands))["one"]["status"]
        return status["phase"], status["result"]

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait until a condition holds."""
        end = asyncio.get_running_loop().time() + DEADLINE_SECONDS
        while not await condition():
            assert asyncio.get_running_loop().time() < end, condition
            await asyncio.sleep(0.02)

    async def names(self) -> set[str]:
        """Return the operations' names."""
        return {item["metadata"]["name"] for item in await self.items(BROKER_GROUP_OPERATIONS)}

    async def master_comes_back(self) -> None:
        """Act like the controller plane, the reconcile plane and the kubelet after a master was killed."""
        pods = {item["metadata"]["name"]: item for item in await self.items(PODS)}
        master = pods.get("orders-1")
        if master is None:
            await self.view.write(lambda record: elected(record, 2))
            await self.create_member(1)
        elif is_fenced(master):
            self.fenced.append(master["metadata"]["uid"])
            await self.patch(PODS, "orders-1", {"metadata": {"finalizers": None}})

    async def asked(self, name: str) -> dict[str, Any]:
        """Return the operation of this name."""
        return await self.get(BROKER_GROUP_OPERATIONS, name)

    async def create_group(self, *, safe: bool = True) -> None:
        metadata = {"name": self.key.name, "namespace": self.key.namespace}
        await self.api.create(BROKER_GROUPS, {"metadata": metadata, "spec": {"implementation": "Python"}})
        await self.set_safe(safe=safe)
        replicas = {
            number: Replica(
                broker_id=number,
                register_check_code=f"code-{number}",
                address=f"127.64.0.{number}:10911",
                registered=True,
                reserved_for=names.pod_name(self.key.name, number),
            )
            for number in (1, 2, 3)
        }
        await self.view.write(lambda before: elected(replace(before, next_broker_id=4, replicas=replicas), 1))
        for number in (1, 2, 3):
            await self.create_member(number)
        # The product lets pods created in the second of a start grow older; here that would only add or drop one status write.
        born = time.time()
        await self.until(lambda: _is_over(born + 1.0))

    async def set_safe(self, *, safe: bool) -> None:
        condition = {
            "type": "FailoverSafe",
            "status": "True" if safe else "False",
            "reason": "EnoughCandidates" if safe else "NotEnoughCandidates",
            "message": "as the test says",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        await self.patch(BROKER_GROUPS, self.key.name, {"status": {"conditions": [condition]}}, subresource="status")

    async def create_member(self, number: int) -> None:
        name = names.pod_name(self.key.name, number)
        metadata = {"name": name, "namespace": self.key.namespace, "labels": {names.LABEL_BROKER_GROUP: self.key.name}}
        if not await self._exists(PERSISTENT_VOLUME_CLAIMS, name):
            await self.api.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": metadata, "spec": CLAIM})
        if not await self._exists(PODS, name):
            spec = {"containers": [{"name": "broker", "image": "b"}]}
            await self.api.create(PODS, {"metadata": metadata, "spec": spec})
            ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
            await self.patch(PODS, name, ready, subresource="status")

    async def _exists(self, resource: Resource, name: str) -> bool:
        try:
            await self.get(resource, name)
        except NotFoundError:
            return False
        return True

    async def end_copy(self, pod: dict[str, Any]) -> None:
        """End the copying pod with its manifest, as its kubelet would."""
        asked = {one["name"]: one["value"] for one in pod["spec"]["containers"][0]["env"]}
        known = msgspec.json.decode(asked["BACKUP_MANIFEST"], type=Manifest)
        whole = msgspec.structs.replace(known, offset=90, store_epoch=1, bytes=4096, taken_at="2030-01-01T00:00:00Z")
        said = {"exitCode": 0, "message": msgspec.json.encode(whole).decode()}
        status = {"phase": "Succeeded", "containerStatuses": [{"name": "copy", "state": {"terminated": said}}]}
        await self.api.patch(
            PODS, pod["metadata"]["name"], {"status": status}, namespace=self.key.namespace, subresource="status"
        )

    async def status_of_one(self) -> dict[str, Any]:
        """Return the status of the operation `one`, with a result and a retirement: empty where it has none."""
        status = (await self.asked("one")).get("status") or {}
        return {"phase": ""} | status | {part: status.get(part) or {} for part in ("result", "retirement")}

    async def ask(self, name: str, kind: str, section: dict[str, Any], **spec: Any) -> None:
        named = {"brokerGroupRef": {"name": self.key.name}, "type": kind, kind.lower(): section}
        await self.ask_raw(name, named | spec)

    async def ask_raw(self, name: str, spec: dict[str, Any]) -> None:
        """Create an operation from any spec."""
        metadata = {"name": name, "namespace": self.key.namespace}
        await self.api.create(BROKER_GROUP_OPERATIONS, {"metadata": metadata, "spec": spec})

    async def delete_pod(self, name: str) -> None:
        await self.delete(PODS, name, grace_period_seconds=0)

    async def end_pod(self, name: str) -> None:
        """Stop a pod to its end, as the kubelet and the reconcile plane do: a Backup holds it until that is seen."""
        await self.delete_pod(name)
        if await self._exists(PODS, name):
            await self.patch(PODS, name, {"metadata": {"finalizers": None}})

    async def event_reasons(self) -> list[str]:
        return [item["reason"] for item in await self.items(EVENTS)]


async def _is_over(unix_seconds: float) -> bool:
    return time.time() > unix_seconds


GIVEN_UP = SwitchoverFailedError("the slaves did not catch up")


KEY = GroupKey("default", "orders")
NOW = 1_900_000_000.0
LONG_AGO = NOW - 10_000
GROUP_UID = "uid-of-orders"
SECTIONS: dict[str, dict[str, Any]] = {
    "Switchover": {"deadlineSeconds": 60},
    "Restart": {},
    "Rebuild": {"brokerId": 3},
    "Elect": {"toBrokerId": 2, "acknowledgeDataLoss": "orders"},
    "Decommission": {"brokerId": 3},
    "Drill": {"kind": "Switchover"},
    "Backup": {"claim": {"name": "copies"}},
    "Retire": {},
}


def operation(
    kind: str = "Switchover",
    /,
    *,
    name: str = "",
    created: float = LONG_AGO,
    status: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    **section: Any,
) -> Operation:
    """Return an operation as read from the API; keyword arguments change the section of its type."""
    name = name or f"{kind.lower()}-1"
    raw: dict[str, Any] = {
        "apiVersion": names.API_VERSION,
        "kind": names.BROKER_GROUP_OPERATION_KIND,
        "metadata": {
            "name": name,
            "namespace": KEY.namespace,
            "uid": f"uid-of-{name}",
            "generation": 1,
            "creationTimestamp": rfc3339(created),
            "ownerReferences": [{"kind": names.BROKER_GROUP_KIND, "name": KEY.name, "uid": GROUP_UID}],
        },
        "spec": {
            "brokerGroupRef": {"name": KEY.name},
            "type": kind,
            kind.lower(): SECTIONS[kind] | section,
            **(spec or {}),
        },
    }
    if status is not None:
        raw["status"] = status
    return read_operation(raw)


def running(
    kind: str = "Switchover", /, *, started: float = NOW - 10, result: dict[str, Any] | None = None, **more: Any
) -> Operation:
    """Return an operation that started when broker 1 was master in epoch 5."""
    status = {
        "phase": "Running",
        "startedAt": rfc3339(started),
        "observedGeneration": 1,
        "result": {"message": "begun", "fromBrokerId": 1, "epoch": 5} | (result or {}),
    }
    return operation(kind, status=status, **more)


def finished(name: str, *, completed: float, phase: str = "Succeeded", **spec: Any) -> Operation:
    status = {"phase": phase, "completedAt": rfc3339(completed), "result": {"message": "over"}}
    return operation(name=name, status=status, spec=spec)


def record(
    *, master: int | None = 1, epoch: int = 5, in_sync: Iterable[int] = (1, 2, 3), members: Iterable[int] = (1, 2, 3)
) -> BrokerGroupRecord:
    replicas = {
        number: Replica(
            broker_id=number, register_check_code=f"code-{number}", registered=True, reserved_for=f"orders-{number}"
        )
        for number in members
    }
    return BrokerGroupRecord(
        cluster_name="DefaultCluster",
        broker_name="orders",
        next_broker_id=max(replicas, default=0) + 1,
        replicas=replicas,
        master_broker_id=master,
        master_epoch=epoch,
        sync_state_set=frozenset(in_sync),
        sync_state_set_epoch=7,
    )


def expect(kind: type[V], verdict: object) -> V:
    """Return the verdict, which has to be of this type."""
    assert isinstance(verdict, kind), verdict
    return verdict


def thing(name: str, *, created: float = LONG_AGO, ready: bool = True) -> dict[str, Any]:
    """Return a pod or a claim."""
    return {
        "metadata": {
            "name": name,
            "namespace": KEY.namespace,
            "uid": f"uid-{name}-{created}",
            "creationTimestamp": rfc3339(created),
        },
        "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


def group(*, safe: bool | None = True, **spec: Any) -> dict[str, Any]:
    """Return a group of durability Available: two of its members suffice for FailoverSafe."""
    conditions = []
    if safe is not None:
        said = ("True", "EnoughCandidates", "2 needed") if safe else ("False", "NotEnoughCandidates", "broker 2 lags")
        condition = {"type": "FailoverSafe", "status": said[0], "reason": said[1], "message": said[2]}
        conditions = [condition | {"lastTransitionTime": rfc3339(LONG_AGO)}]
    return {
        "metadata": {"name": KEY.name, "namespace": KEY.namespace, "uid": GROUP_UID, "generation": 1},
        "spec": {"replicas": 3, "durability": "Available"} | spec,
        "status": {"conditions": conditions},
    }


def scene(*operations: Operation, **changes: Any) -> Observed:
    """Return a scene of three members, alive and in sync unless changed."""
    known: BrokerGroupRecord | None = changes.pop("record", record())
    alive = changes.pop("alive", tuple(known.replicas) if known else ())
    snapshot = GroupSnapshot(
        key=KEY,
        record=known,
        live={number: LiveReplica(broker_id=number, epoch=5) for number in alive},
        writable=changes.pop("writable", True),
        in_progress=changes.pop("in_progress", None),
        last_failover=changes.pop("last_failover", None),
        last_switchover=changes.pop("last_switchover", None),
        metadata_diverged=changes.pop("metadata_diverged", ()),
    )
    base = seen_of(
        KEY,
        changes.pop("group", group()),
        None,
        operations=operations,
        now=rfc3339(NOW),
        snapshot=snapshot,
        pods={f"orders-{number}": thing(f"orders-{number}") for number in (1, 2, 3)},
        claims={f"orders-{number}": thing(f"orders-{number}") for number in (1, 2, 3)},
        # The claim that a Backup of these scenes names.
        aside={("PersistentVolumeClaim", "copies"): thing("copies")},
    )
    return replace(base, record=known, **changes)


def begun(
    kind: str, *, spec: dict[str, Any] | None = None, section: dict[str, Any] | None = None, **changes: Any
) -> Verdict:
    """Return what a new operation of this type meets in a scene with these changes."""
    asked = operation(kind, spec=spec, **(section or {}))
    return PROCEDURES[asked.asked.spec.type].begin(Case(seen=scene(asked, **changes), operation=asked))


def judged(item: Any, outcome: Outcome = NOTHING_ASKED, **changes: Any) -> Verdict:
    """Return the verdict about a running operation in a scene with these changes."""
    case = Case(seen=scene(item, **changes), operation=item, outcome=outcome)
    return PROCEDURES[item.asked.spec.type].judge(case)


def timeline(*, from_id: int = 1, to_id: int = 2, epoch: int = 6, kind: Kind = Kind.SWITCHOVER) -> FailoverTimeline:
    made = FailoverTimeline(
        group=KEY,
        cluster_name="DefaultCluster",
        broker_name="orders",
        kind=kind,
        trigger=Trigger.REQUESTED,
        from_broker_id=from_id,
        epoch_before=epoch - 1,
        started_at_unix_seconds=NOW,
        to_broker_id=to_id,
        epoch_after=epoch,
        outcome=TimelineOutcome.COMPLETED,
    )
    made.reach(Step.DETECTED, 10.0)
    made.reach(Step.ROLE_CHANGED, 10.25)
    return made
