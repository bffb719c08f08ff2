"""Carries out the steps of a pass. Everything may be done twice, and may stop after any of them.

A status is written before the effect that it announces; written by PUT with the resourceVersion that was read, so that of two
operators that decide at once only one goes on to the effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from brokergroup_operator.api import names
from brokergroup_operator.api.definitions.schema import without_nulls
from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.errors import ApiError, ConflictError, NotFoundError
from brokergroup_operator.kube.recipes import delete_held
from brokergroup_operator.kube.resources import BROKER_GROUP_OPERATIONS, EVENTS, PODS
from brokergroup_operator.observe.events import GroupEvent, event_object
from brokergroup_operator.operations.attempts import figures_of_election, figures_of_switchover
from brokergroup_operator.operations.plan import Adopt, DoEffect, Remove, WriteStatus
from brokergroup_operator.operations.verdicts import ElectUnclean, KillPod, SwitchMaster

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.observe.group_view import GroupView
    from brokergroup_operator.operations.attempts import Attempts
    from brokergroup_operator.operations.plan import Note, PassPlan, Step
    from brokergroup_operator.operations.scene import Scene
    from brokergroup_operator.operations.verdicts import Figures
    from brokergroup_operator.records.store import GroupKey

# Each lost to a status that the kubelet wrote in between; after these the next pass goes on.
_KILL_ATTEMPTS: Final = 5

log = structlog.get_logger(__name__)


class StepApplier:
    """Carries out the steps of plans."""

    def __init__(self, api: KubernetesApi, view: GroupView, attempts: Attempts, *, timeout_seconds: float) -> None:
        self._api = api
        self._view = view
        self._attempts = attempts
        self._timeout_seconds = timeout_seconds

    async def carry_out(self, scene: Scene, plan: PassPlan) -> None:
        """All steps in order. Raises ``ConflictError`` when an operation is no longer as it was read."""
        # What was read, or what the last write of this pass made of it, by uid.
        newest = {item.uid: item.raw for item in scene.operations}
        for step in plan.steps:
            try:
                await self._do(scene, step, newest)
            except NotFoundError:
                log.info("operation.gone", group=str(scene.key), name=step.operation.name)

    async def _do(self, scene: Scene, step: Step, newest: dict[str, JsonObject]) -> None:
        uid = step.operation.uid
        match step:
            case Adopt():
                newest[uid] = await self._adopt(scene, step, newest[uid])
            case WriteStatus():
                newest[uid] = await self._write_status(newest[uid], step)
                log.info(
                    "operation.status",
                    group=str(scene.key),
                    name=step.operation.name,
                    phase=step.status.phase,
                    message=step.status.result.message if step.status.result else "",
                )
                await self._tell(scene, step.note)
            case DoEffect():
                await self._effect(scene.key, step)
            case Remove():
                log.info("operation.removed", group=str(scene.key), name=step.operation.name, reason=step.reason)
                await self._remove(scene.key, step)

    async def _adopt(self, scene: Scene, step: Adopt, raw: JsonObject) -> JsonObject:
        metadata = raw["metadata"]
        owner = {
            "apiVersion": names.API_VERSION,
            "kind": names.BROKER_GROUP_KIND,
            "name": scene.key.name,
            "uid": step.group_uid,
        }
        change = {
            "resourceVersion": metadata["resourceVersion"],
            "uid": metadata["uid"],
            "ownerReferences": [*(metadata.get("ownerReferences") or []), owner],
            "labels": {names.LABEL_BROKER_GROUP: scene.key.name},
        }
        return await self._api.patch(
            BROKER_GROUP_OPERATIONS,
            step.operation.name,
            {"metadata": change},
            namespace=scene.key.namespace,
            content_type=PatchType.MERGE,
            field_manager=names.FIELD_MANAGER_RECONCILE,
            timeout_seconds=self._timeout_seconds,
        )

    async def _write_status(self, raw: JsonObject, step: WriteStatus) -> JsonObject:
        return await self._api.replace(
            BROKER_GROUP_OPERATIONS,
            raw | {"status": without_nulls(msgspec.to_builtins(step.status))},
            subresource="status",
            field_manager=names.FIELD_MANAGER_STATUS,
            timeout_seconds=self._timeout_seconds,
        )

    async def _remove(self, key: GroupKey, step: Remove) -> None:
        await self._api.delete(
            BROKER_GROUP_OPERATIONS,
            step.operation.name,
            namespace=key.namespace,
            uid=step.operation.uid,
            timeout_seconds=self._timeout_seconds,
        )

    async def _effect(self, key: GroupKey, step: DoEffect) -> None:
        log.info("operation.effect", group=str(key), name=step.operation.name, effect=repr(step.effect))
        match step.effect:
            case KillPod():
                await self._kill(key, step.effect)
            case SwitchMaster():
                self._attempts.begin(key, step.operation.uid, self._switch_master(key, step.effect))
            case ElectUnclean():
                self._attempts.begin(key, step.operation.uid, self._elect(key, step.effect))

    async def _kill(self, key: GroupKey, effect: KillPod) -> None:
        """Kill as a fence does, under its finalizer: so the failover has proof of the death, not only a pod that is gone."""
        try:
            for _ in range(_KILL_ATTEMPTS):
                if await self._is_killed(key, effect):
                    return
        except NotFoundError as error:
            log.info("operation.pod_gone", group=str(key), pod=effect.name, error=str(error))

    async def _is_killed(self, key: GroupKey, effect: KillPod) -> bool:
        """Whether it is, or needs no killing; not where the kubelet wrote the pod's status in between."""
        pod = await self._api.get(PODS, effect.name, namespace=key.namespace, timeout_seconds=self._timeout_seconds)
        if pod["metadata"]["uid"] != effect.uid:
            log.info("operation.pod_gone", group=str(key), pod=effect.name, error="another pod has its name")
            return True
        try:
            await delete_held(self._api, pod, finalizer=names.FINALIZER_FENCE, timeout_seconds=self._timeout_seconds)
        except ConflictError:
            return False
        return True

    async def _switch_master(self, key: GroupKey, effect: SwitchMaster) -> Figures:
        return figures_of_switchover(
            await self._view.switch_master(
                key,
                from_broker_id=effect.from_broker_id,
                to_broker_id=effect.to_broker_id,
                deadline_seconds=effect.deadline_seconds,
            )
        )

    async def _elect(self, key: GroupKey, effect: ElectUnclean) -> Figures:
        return figures_of_election(await self._view.elect(key, to_broker_id=effect.to_broker_id, unclean=True))

    async def _tell(self, scene: Scene, note: Note | None) -> None:
        """An Event that cannot be posted is logged and forgotten: nothing waits for one."""
        if note is None or scene.group is None:
            return
        event = event_object(GroupEvent(scene.key, note.reason, note.message, note.warning), scene.group)
        try:
            await self._api.create(EVENTS, event, timeout_seconds=self._timeout_seconds)
        except ApiError as error:
            log.warning("operation.event_not_posted", reason=note.reason, error=str(error))
