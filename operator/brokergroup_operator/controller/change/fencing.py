"""Killing a silent master before somebody else becomes master (docs/concepts/architecture.md, rule 7).

A silent master may be dead, cut off, or only frozen. A frozen Java broker that thaws acknowledges what waits in its buffers
although no replica has it, and no epoch keeps it from that: measured, 7 of 12 freezes lost acknowledged messages without a fence
and none of 8 with one. So its process is killed first, and only a confirmed death lets a failover
promise that nothing acknowledged is lost. A fence that is not confirmed in time does not stop the failover; it is told.

In Kubernetes two ways are gone at the same time, and the first that confirms the death counts: the pod is deleted without grace,
with a finalizer that keeps the pod object until its containers are reported terminated (``kube/held_deletion.py``), and the fence
inside the pod is ordered to kill the broker (``fence_order.py``).
"""

from __future__ import annotations

import asyncio
import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from brokergroup_operator.api import names
from brokergroup_operator.controller.change.fence_order import PodFence, confirmed_kill
from brokergroup_operator.controller.directory.kubernetes_binding import has_ip_of
from brokergroup_operator.kube.backoff import Backoff
from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.errors import ApiError, ConflictError, InvalidError, NotFoundError
from brokergroup_operator.kube.held_deletion import delete_held
from brokergroup_operator.kube.resources import PODS
from brokergroup_operator.observe.timeline import RAN_ON_WORDS

if TYPE_CHECKING:
    from brokergroup_operator.api.meaning.fence_keys import FenceKeys
    from brokergroup_operator.controller.directory.group_directory import GroupBinding
    from brokergroup_operator.kube.client import JsonObject, KubernetesApi
    from brokergroup_operator.records.store import GroupKey

POLL_SECONDS = 0.05
# While the API does not answer; the fence's deadline is short.
LONGEST_PAUSE_SECONDS = 0.5
ONE_CALL_SECONDS = 1.0
# Kubernetes tells whole seconds, of two clocks. A master that is fenced for its silence has been silent for longer.
_CLOCKS: Final = dt.timedelta(seconds=2)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FenceOutcome:
    """Whether the process is known to be dead, and how we know, or why not."""

    confirmed: bool
    how: str
    # No process was found that could have been killed.
    untouched: bool = False


class Fencer(Protocol):
    """Something that can make sure a broker's process runs no more."""

    async def fence(
        self, binding: GroupBinding, broker_id: int, address: str, *, deadline_seconds: float
    ) -> FenceOutcome:
        """Kill the process of this member at this address; returns by the deadline, and never raises for a failed fence."""
        ...


class NoFencer:
    """Nothing to fence with, as outside Kubernetes: says so at once."""

    async def fence(
        self,
        binding: GroupBinding,  # noqa: ARG002
        broker_id: int,  # noqa: ARG002
        address: str,  # noqa: ARG002
        *,
        deadline_seconds: float,  # noqa: ARG002
    ) -> FenceOutcome:
        """Confirm nothing."""
        return FenceOutcome(confirmed=False, how="there is nothing to fence with here")


class KubernetesFencer:
    """Deletes the pod without grace and waits for its containers to be reported terminated, or for its fence's signed word."""

    def __init__(self, api: KubernetesApi, keys: FenceKeys | None = None) -> None:
        """Without `keys` no fence is ordered to do anything."""
        self._api = api
        self._keys = keys
        self._releases: set[asyncio.Task[None]] = set()
        self._deletions: set[asyncio.Task[None]] = set()

    async def fence(
        self, binding: GroupBinding, broker_id: int, address: str, *, deadline_seconds: float
    ) -> FenceOutcome:
        """Kill the pod of this member, if it is the one at this address."""
        name = names.pod_name(binding.key.name, broker_id)
        try:
            async with asyncio.timeout(deadline_seconds):
                outcome = await self._fence(name, binding.key.namespace, address, deadline_seconds)
                if outcome.untouched and (other := await self._pod_at(binding.key, address)) not in (None, name):
                    name = other or name
                    outcome = await self._fence(name, binding.key.namespace, address, deadline_seconds)
                return outcome
        except TimeoutError:
            return FenceOutcome(confirmed=False, how=f"pod {name} not reported dead within {deadline_seconds} s")

    async def close(self) -> None:
        """Wait until the finalizers of fenced pods are gone; the reconcile plane takes those whose pods still end."""
        for deletion in self._deletions:
            deletion.cancel()
        await asyncio.gather(*self._deletions, return_exceptions=True)
        await asyncio.gather(*self._releases, return_exceptions=True)

    async def _pod_at(self, key: GroupKey, address: str) -> str | None:
        """The group's pod at this address: a pod whose disk was lost has another broker id than its name says."""
        selector = f"{names.LABEL_BROKER_GROUP}={key.name}"
        try:
            pods = await self._api.list(
                PODS, namespace=key.namespace, label_selector=selector, timeout_seconds=ONE_CALL_SECONDS
            )
        except ApiError as error:
            log.warning("pod to fence not found yet", group=str(key), address=address, error=str(error))
            return None
        found = (pod["metadata"]["name"] for pod in pods.items if has_ip_of(pod, address))
        return next(found, None)

    async def _fence(self, name: str, namespace: str, address: str, seconds: float) -> FenceOutcome:
        """Both ways at once; the first that confirms counts, and an order that comes to nothing costs nothing."""
        found: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        deletion = asyncio.create_task(self._delete(name, namespace, address, found), name="rmq:fence-deletion")
        order = asyncio.create_task(self._order(found), name="rmq:fence-order")
        try:
            await asyncio.wait((deletion, order), return_when=asyncio.FIRST_COMPLETED)
            if deletion.done() or (how := _confirmation(order, name)) is None:
                return await deletion
        except asyncio.CancelledError:
            deletion.cancel()
            raise
        finally:
            order.cancel()
        self._finish_later(deletion, seconds)
        return FenceOutcome(confirmed=True, how=how)

    async def _order(self, found: asyncio.Future[JsonObject]) -> str | None:
        """As soon as the pod is known to be the right one."""
        fence = PodFence.of(await found, self._keys)
        return None if fence is None else await confirmed_kill(fence)

    def _finish_later(self, deletion: asyncio.Task[FenceOutcome], seconds: float) -> None:
        """The pod goes all the same, beside the failover; what is left of it after that time is the reconcile plane's."""

        async def wait() -> None:
            await asyncio.wait((deletion,), timeout=seconds)
            deletion.cancel()

        task = asyncio.create_task(wait(), name="rmq:fence-deletion-end")
        self._deletions.add(task)
        task.add_done_callback(self._deletions.discard)

    async def _delete(self, name: str, namespace: str, address: str, found: asyncio.Future[JsonObject]) -> FenceOutcome:
        """The kubelet's way. `found` gets the pod as soon as it is known to be the one at this address, and to run."""
        deleted_uid: str | None = None
        backoff = Backoff(POLL_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            try:
                pod = await self._api.get(PODS, name, namespace=namespace, timeout_seconds=ONE_CALL_SECONDS)
                uid = pod["metadata"]["uid"]
                if deleted_uid is not None and uid != deleted_uid:
                    # Gone in spite of the finalizer: whoever removed it does so only for a pod whose containers have ended.
                    return FenceOutcome(confirmed=True, how=f"pod {name} deleted and replaced")
                if deleted_uid is None and not has_ip_of(pod, address):
                    # The address changed hands (safety rule 8): killing this pod would prove nothing about the silent one.
                    return FenceOutcome(confirmed=False, how=f"pod {name} is not the one at {address}", untouched=True)
                if containers_are_terminated(pod):
                    self._release_later(pod)
                    ran_on = deleted_uid is not None and _ended_by_its_deletion(pod)
                    how = f"pod {name} {RAN_ON_WORDS}" if ran_on else f"containers of pod {name} terminated"
                    return FenceOutcome(confirmed=True, how=how)
                if deleted_uid is None:
                    if not found.done():
                        found.set_result(pod)
                    await delete_held(self._api, pod, finalizer=names.FINALIZER_FENCE, timeout_seconds=ONE_CALL_SECONDS)
                    deleted_uid = uid
                    continue
            except NotFoundError:
                how = f"pod {name} is gone"
                return FenceOutcome(confirmed=deleted_uid is not None, how=how, untouched=deleted_uid is None)
            except ConflictError:
                continue  # the kubelet wrote the pod's status in between: look again at once
            except ApiError as error:
                log.warning("fence not placed yet", pod=name, namespace=namespace, error=str(error))
                await asyncio.sleep(backoff.next_seconds(error.retry_after_seconds))
                continue
            backoff.reset()
            await asyncio.sleep(POLL_SECONDS)

    def _release_later(self, pod: JsonObject) -> None:
        """Take our finalizer away, beside the failover; the reconcile plane does the same for what is left behind."""
        task = asyncio.create_task(self._release(pod), name="rmq:fence-release")
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release(self, pod: JsonObject) -> None:
        metadata = pod["metadata"]
        finalizers = metadata.get("finalizers", [])
        if names.FINALIZER_FENCE not in finalizers:
            return
        index = finalizers.index(names.FINALIZER_FENCE)
        path = f"/metadata/finalizers/{index}"
        patch: list[dict[str, Any]] = [
            {"op": "test", "path": path, "value": names.FINALIZER_FENCE},
            {"op": "remove", "path": path},
        ]
        try:
            await self._api.patch(
                PODS,
                metadata["name"],
                patch,
                namespace=metadata["namespace"],
                content_type=PatchType.JSON,
                timeout_seconds=ONE_CALL_SECONDS,
            )
        except (NotFoundError, InvalidError):
            return  # somebody else was faster
        except ApiError as error:
            log.warning("fence not released, the reconcile plane will", pod=metadata["name"], error=str(error))


def _confirmation(order: asyncio.Task[str | None], pod: str) -> str | None:
    """How the fence's word is known; None where there is none: an order that fails, whyever, leaves it to the kubelet."""
    if (error := order.exception()) is not None:
        log.warning("fence not ordered", pod=pod, error=repr(error))
        return None
    return order.result()


def containers_are_terminated(pod: JsonObject) -> bool:
    """Whether every container of the pod was reported terminated (and at least one was reported at all)."""
    statuses = pod.get("status", {}).get("containerStatuses") or []
    return bool(statuses) and all((status.get("state") or {}).get("terminated") for status in statuses)


def _ended_by_its_deletion(pod: JsonObject) -> bool:
    """Whether the broker's container still ran when the pod was deleted, as its kubelet tells it."""
    deleted_at = pod["metadata"].get("deletionTimestamp")
    for status in pod.get("status", {}).get("containerStatuses") or []:
        ended_at = ((status.get("state") or {}).get("terminated") or {}).get("finishedAt")
        if status.get("name") == names.CONTAINER_BROKER and deleted_at and ended_at:
            return dt.datetime.fromisoformat(ended_at) >= dt.datetime.fromisoformat(deleted_at) - _CLOCKS
    return False
