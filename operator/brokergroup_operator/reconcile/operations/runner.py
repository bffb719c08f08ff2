"""One pass over the operations of one group: evaluate, apply. Called after each pass over the group itself, with what that saw.

It ends without a request if that leaves nothing to do. Otherwise the group is read anew, unless the pass read it from the API and
did nothing to it. Every step may be done twice, and a pass may stop after any of them: a status is written before the effect
that it announces, by PUT with the resourceVersion that was read, so that of two operators that decide at once only one goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_operation import OperationPhase
from brokergroup_operator.api.definitions.schema import without_nulls
from brokergroup_operator.kube import errors
from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError
from brokergroup_operator.kube.recipes import delete_held
from brokergroup_operator.kube.resources import BROKER_GROUP_OPERATIONS, BROKER_GROUPS, PODS, VOLUME_SNAPSHOTS
from brokergroup_operator.observe.group_view import ElectionRefusedError, GroupViewError, SwitchoverRefusedError
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.decide.unread import Look, look_at
from brokergroup_operator.reconcile.operations import plan as plans
from brokergroup_operator.reconcile.operations.evaluate import evaluate
from brokergroup_operator.reconcile.operations.procedures.retire import hindrance_of
from brokergroup_operator.reconcile.render.copy_pods import backup_pod
from brokergroup_operator.reconcile.render.snapshots import sealing, volume_snapshot
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.records.store import RecordStoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.observe.group_view import GroupView
    from brokergroup_operator.reconcile.plan import Note
    from brokergroup_operator.reconcile.see.observed import Observed, Operation
    from brokergroup_operator.reconcile.settings import ReconcileSettings
    from brokergroup_operator.records.store import GroupKey

log = structlog.get_logger(__name__)
# Of a request to the controller plane.
Answer = plans.Figures | plans.Compared | Look
# Each lost to a status that the kubelet wrote in between; after these the next pass goes on.
_KILL_ATTEMPTS: Final = 5


class OperationRunner:
    """Runs passes, on the groups of `operator` only (ADR 10).

    `read` reads a group with its operations (None: it has none); `wake` queues it when a request has ended.
    """

    def __init__(
        self,
        api: KubernetesApi,
        view: GroupView,
        *,
        operator: str | None,
        settings: ReconcileSettings,
        read: Callable[[GroupKey], Awaitable[Observed | None]],
        post: Callable[[JsonObject, Note], Awaitable[None]],
        wake: Callable[[GroupKey], None],
    ) -> None:
        self._operator = operator
        self._settings = settings
        self._read = read
        self._attempts = Attempts(wake)
        self._api = api
        self._view = view
        self._post = post

    def outcomes(self, key: GroupKey) -> Mapping[str, plans.Outcome]:
        """Of this process's requests. Before the record is read: none may be older than the record it is judged with."""
        return self._attempts.outcomes(key)

    async def run_pass(
        self,
        key: GroupKey,
        seen: Observed | None = None,
        outcomes: Mapping[str, plans.Outcome] | None = None,
        *,
        is_newest: bool = False,
    ) -> float | None:
        """Bring the group's operations one step on; returns in how many seconds to look again.

        `seen`: what the pass over the group saw (None: the API must be read), and `outcomes` those from before that. `is_newest`:
        it was read from the API, and nothing was done to the group since: only by such a view is anything begun or ended.
        """
        looked = self._judged(key, seen, outcomes or {}, is_newest=is_newest) if seen is not None else None
        if looked is not None and not looked[1].steps:
            return looked[1].look_again_seconds
        if looked is None or not is_newest or not self._is_as_seen(looked[0]):
            looked = await self._look(key)
        if looked is not None and looked[1].ends_badly:
            # There is no way back from Rejected or Failed, so it takes two looks: one answer may have been from the past.
            looked = await self._look(key)
        if looked is None:
            return None
        try:
            await self._carry_out(*looked)
        except ConflictError as error:
            # Another writer was first, perhaps another operator: look again at what there is now.
            log.info("operation.conflict", group=str(key), error=str(error))
            return 0.0
        return looked[1].look_again_seconds

    def _is_as_seen(self, seen: Observed) -> bool:
        """Whether the controller plane sees the group as when the pass began to read: its reads may have taken seconds."""
        now, then = self._view.snapshot(seen.key), seen.snapshot
        return now is then or (now is not None and then is not None and now.stands_as(then))

    async def _look(self, key: GroupKey) -> tuple[Observed, plans.PassPlan] | None:
        """Return what there is now and the plan for it; None where the group has no operation, or is another operator's."""
        outcomes = self.outcomes(key)
        seen = await self._read(key)
        if seen is None:
            self._attempts.forget_all_but(key, ())
            return None
        return self._judged(key, seen, outcomes, is_newest=True)

    def _judged(
        self, key: GroupKey, seen: Observed, outcomes: Mapping[str, plans.Outcome], *, is_newest: bool
    ) -> tuple[Observed, plans.PassPlan] | None:
        if seen.group_object and names.operator_of(seen.group_object) != self._operator:
            return None
        if not seen.operations and self.outcomes(key):
            # What is under way is given up only if a list of operations lacks it: the pass may have had none.
            return None
        if is_newest:
            self._attempts.forget_all_but(key, [item.uid for item in seen.operations if not item.finished])
        # Not to the second, as the status has it: deadlines and figures are in milliseconds.
        now = dt.datetime.fromtimestamp(time.time(), tz=dt.UTC).isoformat()
        seen = replace(seen, now=now)
        return seen, evaluate(seen, outcomes)

    async def stop(self) -> None:
        await self._attempts.stop()

    async def _carry_out(self, seen: Observed, plan: plans.PassPlan) -> None:
        """All steps in order. Raises ``ConflictError`` when an operation is no longer as it was read.

        An operation whose write is refused, by a policy say, or whose webhook can't be called, is left there, and the others go on:
        its error is raised at the end.
        """
        # What was read, or what the last write of this pass made of it, by uid.
        newest = {item.uid: item.raw for item in seen.operations}
        refused: dict[str, ApiError] = {}
        for step in plan.steps:
            if step.operation.uid in refused:
                continue  # no effect without the status that announces it
            try:
                await self._do(seen, step, newest)
            except NotFoundError:
                log.info("operation.gone", group=str(seen.key), name=step.operation.name)
            except ConflictError:
                raise
            except ApiError as error:
                if errors.is_away(error):
                    raise
                log.warning("operation.refused", group=str(seen.key), name=step.operation.name, error=str(error))
                refused[step.operation.uid] = error
        if refused:
            raise next(iter(refused.values()))

    async def _do(self, seen: Observed, step: plans.Step, newest: dict[str, JsonObject]) -> None:
        key, uid, name = seen.key, step.operation.uid, step.operation.name
        match step:
            case plans.Adopt():
                newest[uid] = await self._adopt(key, step, newest[uid])
            case plans.WriteStatus():
                newest[uid] = await self._write_status(newest[uid], step)
                message = step.status.result.message if step.status.result else ""
                log.info("operation.status", group=str(key), name=name, phase=step.status.phase, message=message)
                if step.note is not None and (about := seen.group_object or _left_by_its_group(newest[uid])):
                    await self._post(about, step.note)
            case plans.DoEffect():
                await self._effect(seen, step)
            case plans.Remove():
                log.info("operation.removed", group=str(key), name=name, reason=step.reason)
                await self._api.delete(BROKER_GROUP_OPERATIONS, name, namespace=key.namespace, uid=uid)

    async def _adopt(self, key: GroupKey, step: plans.Adopt, raw: JsonObject) -> JsonObject:
        metadata = raw["metadata"]
        kind = {"apiVersion": names.API_VERSION, "kind": names.BROKER_GROUP_KIND}
        owner = kind | {"name": key.name, "uid": step.group_uid}
        change = {
            "resourceVersion": metadata["resourceVersion"],
            "uid": metadata["uid"],
            "ownerReferences": [*(metadata.get("ownerReferences") or []), owner],
            "labels": {names.LABEL_BROKER_GROUP: key.name},
        }
        return await self._api.patch(
            BROKER_GROUP_OPERATIONS,
            step.operation.name,
            {"metadata": change},
            namespace=key.namespace,
            content_type=PatchType.MERGE,
            field_manager=names.FIELD_MANAGER_RECONCILE,
        )

    async def _write_status(self, raw: JsonObject, step: plans.WriteStatus) -> JsonObject:
        return await self._api.replace(
            BROKER_GROUP_OPERATIONS,
            raw | {"status": without_nulls(msgspec.to_builtins(step.status))},
            subresource="status",
            field_manager=names.FIELD_MANAGER_STATUS,
        )

    async def _effect(self, seen: Observed, step: plans.DoEffect) -> None:
        key = seen.key
        log.info("operation.effect", group=str(key), name=step.operation.name, effect=repr(step.effect))
        match step.effect:
            case plans.KillPod():
                await self._kill(key, step.effect)
            case plans.TakeBackup() | plans.HoldPod() | plans.TakeSnapshots() | plans.SealSnapshots():
                await self._back_up(seen, step.operation, step.effect)
            case plans.CompareMetadata():
                self._attempts.begin(key, step.operation.uid, self._compare(key, step.effect.broker_id))
            case plans.DeletePod():
                with contextlib.suppress(NotFoundError):
                    await self._api.delete(PODS, step.effect.name, namespace=key.namespace, uid=step.effect.uid)
            case plans.SwitchMaster():
                self._attempts.begin(key, step.operation.uid, self._switch_master(key, step.effect))
            case plans.ElectUnclean():
                self._attempts.begin(key, step.operation.uid, self._elect(key, step.effect))
            case plans.ReadOffsets():
                self._attempts.begin(key, step.operation.uid, self._read_offsets(key, step))
            case plans.DeleteDrained():
                self._attempts.begin(key, step.operation.uid, self._delete_drained(key, step))

    async def _back_up(
        self,
        seen: Observed,
        operation: Operation,
        effect: plans.TakeBackup | plans.HoldPod | plans.TakeSnapshots | plans.SealSnapshots,
    ) -> None:
        match effect:
            case plans.TakeBackup():
                await self._take_backup(seen, operation, effect)
            case plans.HoldPod():
                await self._ask(seen, operation, self._hold(seen.key, effect))
            case plans.SealSnapshots():
                await self._ask(seen, operation, self._seal(seen, effect))
            case plans.TakeSnapshots():
                await self._ask(seen, operation, self._take_snapshots(seen, effect))

    async def _take_backup(self, seen: Observed, operation: Operation, effect: plans.TakeBackup) -> None:
        """Make the copying pod, owned by its operation: without that it is collected."""
        owner = identity.plain_reference(names.BROKER_GROUP_OPERATION_KIND, operation.raw["metadata"])
        pod = backup_pod(
            seen.group,
            pod=effect.pod,
            claim=effect.claim,
            manifest=effect.manifest,
            owner=owner,
            settings=self._settings,
        )
        await self._ask(seen, operation, self._api.create(PODS, pod))

    async def _ask(self, seen: Observed, operation: Operation, request: Awaitable[JsonObject | None]) -> None:
        """Ask the API server; what it refuses, by a quota, a policy or its state, the status says, and it is asked for again.

        No error but a conflict ends the pass: it is the Backup's alone.
        """
        try:
            await request
        except AlreadyExistsError:
            pass  # the next pass sees it, and whose it is
        except ConflictError:
            raise
        except ApiError as error:
            self._attempts.note_refusal(seen.key, operation.uid, error)
        else:
            self._attempts.forget(operation.uid)

    async def _hold(self, key: GroupKey, effect: plans.HoldPod) -> None:
        """Raises ``ConflictError`` if the pod has changed since it was read."""
        held = {
            "resourceVersion": effect.resource_version,
            "finalizers": [*effect.finalizers, names.FINALIZER_BACKUP],
        }
        await self._api.patch(
            PODS,
            effect.name,
            {"metadata": held},
            namespace=key.namespace,
            content_type=PatchType.MERGE,
            field_manager=names.FIELD_MANAGER_RECONCILE,
        )

    async def _take_snapshots(self, seen: Observed, effect: plans.TakeSnapshots) -> None:
        for name, claim in effect.claims.items():
            wanted = volume_snapshot(seen.group, name=name, claim=claim, class_name=effect.class_name, mark=effect.mark)
            with contextlib.suppress(AlreadyExistsError):  # the next pass sees whose it is
                await self._api.create(VOLUME_SNAPSHOTS, wanted)

    async def _seal(self, seen: Observed, effect: plans.SealSnapshots) -> None:
        """Write what they are of on each snapshot: last on the one that a new group names, so that it is torn until then."""
        annotations = sealing(seen.group, effect.manifest, self._settings)
        for one in reversed(effect.manifest.snapshots):
            await self._api.patch(
                VOLUME_SNAPSHOTS,
                one.snapshot,
                {"metadata": {"uid": effect.uids[one.snapshot], "annotations": annotations}},
                namespace=seen.key.namespace,
                field_manager=names.FIELD_MANAGER_RECONCILE,
            )

    async def _kill(self, key: GroupKey, effect: plans.KillPod) -> None:
        """Kill as a fence does, under its finalizer: so the failover has proof of the death, not only a pod that is gone."""
        try:
            for _ in range(_KILL_ATTEMPTS):
                pod = await self._api.get(PODS, effect.name, namespace=key.namespace)
                if pod["metadata"]["uid"] != effect.uid:
                    log.info("operation.pod_gone", group=str(key), pod=effect.name, error="another pod has its name")
                    return
                with contextlib.suppress(ConflictError):
                    await delete_held(self._api, pod, finalizer=names.FINALIZER_FENCE)
                    return
        except NotFoundError as error:
            log.info("operation.pod_gone", group=str(key), pod=effect.name, error=str(error))

    async def _compare(self, key: GroupKey, broker_id: int) -> plans.Compared:
        await self._view.check_metadata(key, broker_id)
        return plans.Compared(at_seconds=time.time())

    async def _switch_master(self, key: GroupKey, effect: plans.SwitchMaster) -> plans.Figures:
        change = await self._view.switch_master(key, **msgspec.structs.asdict(effect))
        return plans.Figures(
            from_broker_id=change.from_broker_id,
            to_broker_id=change.to_broker_id,
            epoch=change.epoch,
            milliseconds=round(change.milliseconds),
            phases={name: round(value) for name, value in change.phases.items()},
        )

    async def _elect(self, key: GroupKey, effect: plans.ElectUnclean) -> plans.Figures:
        change = await self._view.elect(key, to_broker_id=effect.to_broker_id, unclean=True)
        return plans.Figures(
            to_broker_id=change.to_broker_id, epoch=change.epoch, milliseconds=round(change.milliseconds)
        )

    async def _read_offsets(self, key: GroupKey, step: plans.DoEffect) -> Look:
        assert isinstance(step.effect, plans.ReadOffsets)
        await asyncio.sleep(step.effect.pause_seconds)
        return await self._look_at_offsets(key, step)

    async def _look_at_offsets(self, key: GroupKey, step: plans.DoEffect) -> Look:
        """Read at the master and judge it in a thread: for many topics that takes seconds, in which heartbeats would wait."""
        offsets, request = await self._view.offsets(key), step.operation.asked.spec.retire
        assert request is not None, "the CRD demands the section of the type"
        known = step.operation.status.retirement
        return await asyncio.to_thread(
            look_at,
            offsets,
            abandoned=request.abandon_topics,
            without_groups=request.abandon_consumer_groups,
            readers=known.readers if known is not None else (),
        )

    async def _delete_drained(self, key: GroupKey, step: plans.DoEffect) -> Look:
        """Look once more, read what the API has after that, and delete the group right behind it if nothing stands against it."""
        assert isinstance(step.effect, plans.DeleteDrained)
        look = await self._look_at_offsets(key, step)
        seen = await self._read(key)
        hindrance = "the operation was deleted" if seen is None else hindrance_of(seen, step.operation.uid, look)
        if hindrance or seen is None:
            log.info("operation.group_kept", group=str(key), name=step.operation.name, why=hindrance)
            return look
        await self._note_deletion(seen, step.operation.uid)
        log.info("operation.group_deleted", group=str(key), name=step.operation.name, epoch=look.epoch)
        with contextlib.suppress(NotFoundError):
            # Of the very version that was just read: a pause, or another mark on the group, is a conflict, and the group stays.
            await self._api.delete(
                BROKER_GROUPS,
                key.name,
                namespace=key.namespace,
                uid=step.effect.group_uid,
                resource_version=str(observed.metadata(seen.group_object)["resourceVersion"]),
            )
        return look

    async def _note_deletion(self, seen: Observed, operation_uid: str) -> None:
        """Write that this operation deletes its group, before it does: a group that is gone was else deleted by another client.

        Raise ``NotFoundError`` or ``ConflictError`` if the operation was deleted or changed since it was read: also where the note
        is there from an earlier try, so it is written again.
        """
        raw = next(one for one in seen.operations if one.uid == operation_uid).raw
        status = raw["status"]
        noted = status | {"retirement": status["retirement"] | {"deleteSent": True}}
        await self._api.replace(
            BROKER_GROUP_OPERATIONS,
            raw | {"status": noted},
            subresource="status",
            field_manager=names.FIELD_MANAGER_STATUS,
        )


def _left_by_its_group(operation: JsonObject) -> JsonObject:
    """The operation that has deleted its group: its Event is about itself. Empty for one whose group does not exist."""
    is_done = operation["status"]["phase"] == OperationPhase.SUCCEEDED.value
    return operation if is_done else {}


# Between two requests of one operation, so that a refused one is not repeated in a tight loop.
ASK_AGAIN_SECONDS = 0.5


class Attempts:
    """The requests under way, at most one for each operation, by its uid."""

    def __init__(self, wake: Callable[[GroupKey], None]) -> None:
        self._wake = wake
        self._attempts: dict[str, tuple[GroupKey, asyncio.Task[Answer]]] = {}
        # Since when each has been asked for, by this machine's clock.
        self._since_unix_seconds: dict[str, float] = {}

    def begin(self, key: GroupKey, uid: str, request: Coroutine[None, None, Answer]) -> None:
        """Start it beside the passes; its end wakes the group. What was asked before, and has ended, is asked less eagerly."""
        pause_seconds = ASK_AGAIN_SECONDS if uid in self._attempts else 0.0
        self._follow(key, uid, _after(pause_seconds, request))

    def note_refusal(self, key: GroupKey, uid: str, error: ApiError) -> None:
        """What was asked of the API server itself has failed: the next outcome says so."""
        self._follow(key, uid, _refused(error))

    def _follow(self, key: GroupKey, uid: str, request: Coroutine[None, None, Answer]) -> None:
        task = asyncio.create_task(request, name=f"operation {key} {uid}")
        task.add_done_callback(lambda _: self._wake(key))
        self._attempts[uid] = key, task
        self._since_unix_seconds.setdefault(uid, time.time())

    def outcomes(self, key: GroupKey) -> dict[str, plans.Outcome]:
        """Return the outcomes so far of the requests for this group."""
        since = self._since_unix_seconds
        return {
            uid: msgspec.structs.replace(_outcome(task), asks_since_unix_seconds=since[uid])
            for uid, (of, task) in self._attempts.items()
            if of == key
        }

    def forget_all_but(self, key: GroupKey, uids: Iterable[str]) -> None:
        kept = set(uids)
        for uid in [uid for uid, (of, _) in self._attempts.items() if of == key and uid not in kept]:
            self.forget(uid)

    def forget(self, uid: str) -> None:
        if uid in self._attempts:
            self._attempts.pop(uid)[1].cancel()
            del self._since_unix_seconds[uid]

    async def stop(self) -> None:
        tasks = [task for _, task in self._attempts.values()]
        self._attempts.clear()
        self._since_unix_seconds.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _refused(error: ApiError) -> Answer:
    """As the outcome of a request that the API server has refused already: it is asked less eagerly."""
    await asyncio.sleep(ASK_AGAIN_SECONDS)
    raise error


async def _after(pause_seconds: float, request: Coroutine[None, None, Answer]) -> Answer:
    try:
        await asyncio.sleep(pause_seconds)
        return await request
    finally:
        request.close()  # where it was never begun: cancelled before its turn


def _outcome(task: asyncio.Task[Answer]) -> plans.Outcome:
    if not task.done():
        return plans.Outcome(running=True)
    if task.cancelled():
        return plans.Outcome(failed="the request was cancelled")
    error = task.exception()
    if error is None:
        answer = task.result()
        if isinstance(answer, plans.Compared):
            return plans.Outcome(compared=answer)
        return plans.Outcome(look=answer) if isinstance(answer, Look) else plans.Outcome(figures=answer)
    if isinstance(error, SwitchoverRefusedError | ElectionRefusedError):
        return plans.Outcome(refused=str(error))
    if not isinstance(error, GroupViewError | RecordStoreError | ApiError | TimeoutError):
        # A mistake in the program: it is logged with its traceback, and the operation fails at its deadline.
        log.error("operation.request_failed", exc_info=error)
    return plans.Outcome(failed=f"{type(error).__name__}: {error}")
