"""Carries out a plan, action by action. Everything it does may be done twice, and may stop after any action."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from brokergroup_operator.api import names
from brokergroup_operator.api.broker_keys import MINIMUM, QUIET_MINIMUM, same_value
from brokergroup_operator.kube import errors
from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.resources import BROKER_GROUPS, CONFIG_MAPS, PERSISTENT_VOLUME_CLAIMS, PODS, SECRETS
from brokergroup_operator.observe.group_view import GroupUnknownError, GroupViewError
from brokergroup_operator.reconcile import plan as plans
from brokergroup_operator.reconcile.act import ownership
from brokergroup_operator.reconcile.act.refusals import REFUSALS, NodePortOwners, first_of, of_claim
from brokergroup_operator.reconcile.decide.deletion import claims_mended
from brokergroup_operator.reconcile.see import foreign
from brokergroup_operator.reconcile.see.observed import being_deleted
from brokergroup_operator.reconcile.tell.status import unreadable_status
from brokergroup_operator.records.kubernetes import GroupObjects
from brokergroup_operator.records.store import GroupKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.kube.server_side_apply import ServerSideApplier
    from brokergroup_operator.observe.group_view import GroupView
    from brokergroup_operator.reconcile.see.fetch import UnreadableGroupError
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.tell.events import EventPoster


log = structlog.get_logger(__name__)
ASKED_OF_THE_CONTROLLER: Final = (
    plans.SwitchMaster,
    plans.RemoveMember,
    plans.SetBrokerConfig,
    plans.PutBackBrokerConfig,
)
NOTHING_DONE: Final = "Nothing is done for this group"
NOT_RELEASED: Final = "This group is deleted but for its finalizer"
# Well below a pass's own time limit, which would cut the switchover off before its end is reported.
SWITCHOVER_SECONDS: Final = 15.0


class PlanApplier:
    def __init__(
        self,
        *,
        api: KubernetesApi,
        applier: ServerSideApplier,
        view: GroupView,
        events: EventPoster,
        namespace: str | None = None,
    ) -> None:
        """`api` has the deadline of every request. `namespace`: the one that is served, None for all."""
        self._api = api
        self._applier = applier
        self._view = view
        self._events = events
        self._objects = GroupObjects(api)
        self._node_ports = NodePortOwners(api, namespace=namespace)

    async def take(self, group_object: JsonObject, *, operator: str | None, now: str) -> JsonObject | None:
        """Take the group if no operator owns it yet. Return None where another operator does."""
        try:
            return await ownership.take(self._api, self._events, group_object, operator=operator)
        except errors.ApiError as error:
            await self._tell_refused(error, group_object, now=now)
            raise

    async def mend_left_claims(self, key: GroupKey) -> None:
        """Mend the claims that an older version of the operator left of a group that is gone."""
        for action in claims_mended((await self._objects.labelled(PERSISTENT_VOLUME_CLAIMS, key)).values()):
            await self._patch_metadata(key, action)
            _log_done(key, action)

    async def tell_unreadable(self, error: UnreadableGroupError, *, now: str) -> None:
        """Say that nothing is done for this group, which does not fit its type, and why."""
        note = plans.Note(reason="GroupUnreadable", message=f"{NOTHING_DONE}: {error}", warning=True)
        await self._tell(note, error.group_object, now=now)

    async def _tell_refused(self, error: errors.ApiError, group_object: JsonObject, *, now: str) -> None:
        """Say that the group's own object may not be written, by a webhook, say: no other object of it is made before that.

        The last write to a deleted group takes the operator's finalizer off it.
        """
        if error.status in REFUSALS:
            done = f"{NOT_RELEASED} {names.FINALIZER_BROKER_GROUP}" if being_deleted(group_object) else NOTHING_DONE
            note = plans.Note(reason="GroupWriteRefused", message=f"{done}: {error}", warning=True)
            await self._tell(note, group_object, now=now)

    async def _tell(self, note: plans.Note, group_object: JsonObject, *, now: str) -> None:
        """By an Event; in the group's status too, if the API server takes that."""
        await self._events.post_once(group_object, note)
        status = unreadable_status(group_object, note.message, now=now)
        if status is None:
            return
        metadata = group_object["metadata"]
        try:
            await self._write_status(GroupKey(metadata["namespace"], metadata["name"]), status)
        except errors.ApiError as refused:
            # The server judges the whole object, spec included, by rules that it may break.
            log.warning("reconcile.status_refused", group=metadata["name"], error=str(refused))

    async def carry_out(self, key: GroupKey, plan: plans.Plan, seen: Observed) -> int:
        """Do all actions in order. Return how many broker ids were reserved.

        One object that is refused, or whose webhook can't be called, does not keep the others from being repaired: its error is
        raised at the end. A server that does not answer ends the pass at once.
        """
        reserved = 0
        refused: errors.ApiError | None = None
        unusable: dict[tuple[str, str], errors.ApiError] = {}
        for action in plan.actions:
            try:
                done = await self._do(key, action, seen, unusable)
            except GroupViewError as error:
                if not isinstance(action, ASKED_OF_THE_CONTROLLER) or isinstance(error, GroupUnknownError):
                    raise
                # What was asked for is voluntary: the next pass looks whether it is still wanted, and asks again.
                log.warning("reconcile.not_now", group=str(key), target=action.target, error=str(error))
                reason = "SwitchoverRejected" if isinstance(action, plans.SwitchMaster) else "NotNow"
                note = plans.Note(reason=reason, message=f"{action.target}: {error}", warning=True)
                await self._events.post_once(seen.group_object, note)
                continue
            except errors.ApiError as error:
                if errors.is_away(error):
                    raise
                log.warning(
                    "reconcile.refused",
                    group=str(key),
                    action=type(action).__name__,
                    target=action.target,
                    error=str(error),
                )
                explained = of_claim(action, await self._node_ports.explained(action, error), seen)
                refused = first_of(refused, explained)
                if isinstance(action, plans.SetFinalizers) and action.resource == BROKER_GROUPS:
                    # Nothing may be created for a group that is not ours, nor written to one that was released.
                    await self._tell_refused(error, seen.group_object, now=seen.now)
                    raise
                continue
            reserved += isinstance(action, plans.ReserveBrokerId | plans.BeginRestored)
            if done is not None:
                _log_done(key, done)
                for note in done.notes:
                    await self._events.post(seen.group_object, note)
        if refused is not None:
            raise refused
        return reserved

    async def _apply(
        self,
        key: GroupKey,
        action: plans.ApplyObject,
        seen: Observed,
        unusable: dict[tuple[str, str], errors.ApiError],
    ) -> None:
        """Apply it, but not over a foreign object; nor a pod that takes an object that is `unusable` (so far)."""
        name = str(action.object["metadata"]["name"])
        _raise_if_it_takes(action.resource, action.object, unusable)
        found = foreign.listed(seen, action.resource).get(name) or await self._objects.find(
            action.resource, GroupKey(key.namespace, name)
        )
        if found is not None and not foreign.is_ours(found, seen.group_object):
            stranger = unusable[action.resource.kind, name] = foreign.taken(action.resource, name, found)
            raise stranger
        # Without force where no object was: one that another client creates meanwhile is a conflict, and stays as it is.
        force = found is not None
        try:
            await self._applier.apply(action.resource, action.object, force=force)
        except errors.ApiError as error:
            if action.resource == CONFIG_MAPS and isinstance(error, errors.WebhookAwayError):
                # A pod made now reads the old file and is marked with the new file's hash: no later pass would replace it.
                unusable[action.resource.kind, name] = error
            if action.meanwhile is not None and error.status in REFUSALS:
                await self._applier.apply(action.resource, action.meanwhile, force=force)
            if action.otherwise is None or not isinstance(error, errors.InvalidError):
                raise
            log.warning("reconcile.otherwise", group=str(key), target=action.target, error=str(error))
            await self._applier.apply(action.resource, action.otherwise, force=force)

    async def _do(  # noqa: C901, PLR0912 (one case per action)
        self,
        key: GroupKey,
        action: plans.Action,
        seen: Observed,
        unusable: dict[tuple[str, str], errors.ApiError],
    ) -> plans.Action | None:
        """Carry out the action. Return it as it is to be reported, or None where there was nothing to do."""
        match action:
            case plans.ApplyObject():
                await self._apply(key, action, seen, unusable)
            case plans.PutBackBrokerConfig():
                note = await self._put_back(key, action)
                return None if note is None else replace(action, note=note)
            case plans.WriteDurability():
                return action if await self._write_durability(key, action) else None
            case plans.ReserveBrokerId():
                await self._view.reserve_broker_id(key, action.pod_name, broker_id=action.broker_id)
            case plans.BeginRestored():
                await self._view.restore_group(key, action.restored)
            case plans.SwitchMaster():
                await self._view.switch_master(
                    key,
                    from_broker_id=action.from_broker_id,
                    to_broker_id=action.to_broker_id,
                    deadline_seconds=SWITCHOVER_SECONDS,
                    cause=action.cause,
                )
            case plans.RemoveMember():
                await self._view.remove_member(key, action.broker_id)
            case plans.MakeSecret():
                with contextlib.suppress(errors.AlreadyExistsError):
                    await self._api.create(SECRETS, action.object)
            case plans.SetRole():
                labels = {names.LABEL_ROLE: action.role, names.LABEL_BROKER_ID: str(action.broker_id)}
                marks: JsonObject = {"uid": action.uid, "labels": labels}
                await self._patch(PODS, action.pod, key, marks, field_manager=names.FIELD_MANAGER_ROLE)
            case plans.DeleteObject():
                await self._delete(key, action, unusable)
            case plans.Rehearse():
                await rehearse(self._api, action.resource, action.object)
            case plans.SetFinalizers():
                await self._set_finalizers(key, action)
            case plans.PatchMetadata():
                await self._patch_metadata(key, action)
            case plans.WriteStatus():
                await self._write_status(key, action.status)
            case plans.SetBrokerConfig():
                kept = {name: value for name, value in action.noted.items() if name not in action.values}
                await self._note_config(key, action, kept)
                await self._view.set_broker_config(key, action.broker_id, action.values)
                await self._note_config(key, action, action.noted)
            case _:
                raise TypeError(f"{type(action).__name__} is no action this applier knows")
        return action

    async def _patch_metadata(self, key: GroupKey, action: plans.PatchMetadata) -> None:
        change = {"uid": action.uid, **action.change}
        # An API server merges lists of its own kinds alone: for ours it takes a plain merge, which replaces them.
        how = PatchType.MERGE if action.resource.group == names.GROUP else PatchType.STRATEGIC
        await self._patch(action.resource, action.name, key, change, content_type=how)

    async def _put_back(self, key: GroupKey, action: plans.PutBackBrokerConfig) -> plans.Note | None:
        """Put the keys back after reading them again: they may be right by now, or a switchover may hold the minimum up."""
        said = await self._view.broker_config(key, action.broker_id)
        others = {name: value for name, value in action.values.items() if not same_value(said.get(name, ""), value)}
        if said.get(MINIMUM) == QUIET_MINIMUM:
            others.pop(MINIMUM, None)
        if not others:
            return None
        note = plans.put_back_note(action, {name: said.get(name, "") for name in others})
        await self._view.set_broker_config(key, action.broker_id, others)
        with contextlib.suppress(GroupViewError):  # the controller plane reads it soon anyway
            await self._view.broker_config(key, action.broker_id)
        return note

    async def _note_config(self, key: GroupKey, action: plans.SetBrokerConfig, values: Mapping[str, str]) -> None:
        """Note the values on the pod whose process has them; an operator killed before that sends the same values again."""
        annotations: JsonObject = {
            names.ANNOTATION_HOT_CONFIG: json.dumps(dict(values), sort_keys=True),
            names.ANNOTATION_HOT_CONFIG_RESTARTS: str(action.restarts) if action.restarts else None,
        }
        await self._patch(PODS, action.pod, key, {"uid": action.uid, "annotations": annotations})

    async def _patch(
        self,
        resource: Resource,
        name: str,
        key: GroupKey,
        metadata: JsonObject,
        *,
        content_type: PatchType = PatchType.MERGE,
        field_manager: str = names.FIELD_MANAGER_RECONCILE,
    ) -> bool:
        """Patch the object with this uid or resourceVersion, and no other of its name. Return whether it is still there."""
        try:
            await self._api.patch(
                resource,
                name,
                {"metadata": metadata},
                namespace=key.namespace,
                content_type=content_type,
                field_manager=field_manager,
            )
        except errors.NotFoundError:
            return False
        return True

    async def _delete(
        self, key: GroupKey, action: plans.DeleteObject, unusable: Mapping[tuple[str, str], errors.ApiError]
    ) -> None:
        if action.successor is not None:
            _raise_if_it_takes(action.resource, action.successor, unusable)
            await rehearse(self._api, action.resource, action.successor)
        with contextlib.suppress(errors.NotFoundError):
            await self._api.delete(action.resource, action.name, namespace=key.namespace, uid=action.uid)

    async def _set_finalizers(self, key: GroupKey, action: plans.SetFinalizers) -> None:
        metadata: JsonObject = {
            "resourceVersion": action.resource_version,
            "finalizers": list(action.finalizers) or None,
        }
        if action.annotations:
            metadata["annotations"] = dict(action.annotations)
        is_there = await self._patch(action.resource, action.name, key, metadata)
        if not is_there and names.FINALIZER_BROKER_GROUP in action.finalizers:
            # Whatever is given an owner now goes with it.
            raise errors.NotFoundError(f"{action.target} is gone", status=404)

    async def _write_durability(self, key: GroupKey, action: plans.WriteDurability) -> bool:
        """Return whether the API server took it. An object that breaks a rule of now goes on by what its status says."""
        body = {
            "metadata": {"name": key.name, "namespace": key.namespace, "uid": action.uid},
            "spec": {"durability": action.durability},
        }
        try:
            await self._api.apply(
                BROKER_GROUPS,
                body,
                field_manager=names.FIELD_MANAGER_DURABILITY,
                # A value that another writer has set meanwhile is a conflict, and stays.
                force=False,
            )
        except errors.InvalidError as error:
            log.warning("reconcile.durability_not_written", group=str(key), error=str(error))
            return False
        return True

    async def _write_status(self, key: GroupKey, status: JsonObject) -> None:
        body = {"metadata": {"name": key.name, "namespace": key.namespace}, "status": status}
        with contextlib.suppress(errors.NotFoundError):
            await self._api.apply(BROKER_GROUPS, body, field_manager=names.FIELD_MANAGER_STATUS, subresource="status")


def _raise_if_it_takes(
    resource: Resource, obj: JsonObject, unusable: Mapping[tuple[str, str], errors.ApiError]
) -> None:
    """Raise the error of the first claim, ConfigMap or Service that this pod takes and that is foreign, or was not written."""
    for needed in foreign.stands_on(resource, obj):
        if needed in unusable:
            raise unusable[needed]


def _log_done(key: GroupKey, action: plans.Action) -> None:
    level = log.debug if isinstance(action, plans.WriteStatus) else log.info
    level("reconcile.done", group=str(key), action=type(action).__name__, target=action.target, reason=action.reason)


# A quota that the present object fills is free again when that is gone; and some webhooks refuse every dry run.
NO_ANSWER: Final = ("exceeded quota", "does not support dry run")
SET_BY_OTHERS: Final = frozenset({"nodeName", "ephemeralContainers"})


async def rehearse(api: KubernetesApi, resource: Resource, obj: JsonObject) -> None:
    """Return if the API would take the object, before the one in its place is deleted; else raise its `ApiError`.

    It is applied as a dry run, under a name of its own: a pod that runs can't be changed, so under its own name the answer would
    be about that. A refusal that concerns only dry runs is no answer: the object is then applied in earnest. So is an object that
    is refused in the same words as a copy of the present one: by a policy for names, say, or a quota.
    """
    refused = await _tried(api, resource, obj)
    if refused is None or any(text in str(refused) for text in NO_ANSWER):
        return
    try:
        present = await api.get(resource, obj["metadata"]["name"], namespace=obj["metadata"].get("namespace"))
    except errors.NotFoundError:
        raise refused from None
    same = await _tried(api, resource, _copy_of(present))
    if same is None or (same.status, str(same)) != (refused.status, str(refused)):
        raise refused


async def _tried(api: KubernetesApi, resource: Resource, obj: JsonObject) -> errors.ApiError | None:
    """Return the API's refusal of the object under the rehearsal's name; raise if the API does not answer."""
    metadata = obj["metadata"] | {"name": f"{obj['metadata']['name']}-rehearsal"}
    try:
        await api.apply(
            resource, obj | {"metadata": metadata}, field_manager=names.FIELD_MANAGER_RECONCILE, dry_run=True
        )
    except (errors.ApiUnavailableError, errors.OutcomeUnknownError):
        raise
    except errors.ApiError as error:
        return error
    return None


def _copy_of(present: JsonObject) -> JsonObject:
    """A copy that could be created again: without what only the server, a scheduler or a debugger writes."""
    kept = ("name", "namespace", "labels", "annotations", "ownerReferences")
    metadata = {field: present["metadata"][field] for field in kept if field in present["metadata"]}
    spec = {field: value for field, value in present["spec"].items() if field not in SET_BY_OTHERS}
    return {"apiVersion": present["apiVersion"], "kind": present["kind"], "metadata": metadata, "spec": spec}
