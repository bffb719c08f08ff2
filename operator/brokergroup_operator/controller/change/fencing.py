"""Killing a silent master before another one is elected (safety rule 7, ADR 6): a frozen Java broker that thaws acknowledges
what waits in its buffers, whatever its epoch.

Two ways begin together, and the first that confirms the death counts: the pod is deleted without grace, under a finalizer that
keeps the pod object until its containers are reported terminated (`kube/recipes.py`); and the fence inside the pod is
ordered to kill the broker (`PodFence`).
"""

from __future__ import annotations

import asyncio
import datetime as dt
import os
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from brokergroup_operator.api import names
from brokergroup_operator.controller.directory.pods import broker_status, has_ip_of, pod_ip
from brokergroup_operator.controller.peers.services import BackgroundTasks, wait_at_most
from brokergroup_operator.fence import datagrams
from brokergroup_operator.kube.client import JsonObject, KubernetesApi, PatchType
from brokergroup_operator.kube.errors import ApiError, Backoff, ConflictError, GoneError, InvalidError, NotFoundError
from brokergroup_operator.kube.pods import containers_are_terminated
from brokergroup_operator.kube.recipes import delete_held
from brokergroup_operator.kube.resources import PODS
from brokergroup_operator.observe.timeline import RAN_ON_WORDS

if TYPE_CHECKING:
    from brokergroup_operator.api.pod_fence import FenceKeys
    from brokergroup_operator.controller.directory.group_directory import GroupBinding
    from brokergroup_operator.records.store import GroupKey

POLL_SECONDS = 0.05
# While the API does not answer; the fence's deadline is short.
LONGEST_PAUSE_SECONDS = 0.5
ONE_CALL_SECONDS = 1.0
# Kubernetes tells whole seconds, of two clocks. A master that is fenced for its silence has been silent for longer.
_CLOCKS: Final = dt.timedelta(seconds=2)
# A datagram may be lost, and a fence may be just waking.
REPEAT_SECONDS: Final = 0.05
# An order that is not confirmed by then is asked anew: its challenge is no longer good, or the fence was started again.
ANEW_SECONDS: Final = 1.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FenceOutcome:
    """Whether the process is known to be dead, and the evidence."""

    confirmed: bool
    how: str
    # No process was found that could have been killed.
    untouched: bool = False


class Fencer(Protocol):
    """Kills a broker's process, or finds that it has ended."""

    async def fence(
        self, binding: GroupBinding, broker_id: int, address: str, *, deadline_seconds: float
    ) -> FenceOutcome:
        """Kill the process of this member at this address; return by the deadline.

        A failed fence is an outcome and never raises (`test_a_fence_that_the_api_refuses_ends_at_its_deadline`).
        """


class KubernetesFencer:
    """Deletes the pod without grace and waits for its containers to be reported terminated, or for its fence's signed word."""

    def __init__(self, api: KubernetesApi, keys: FenceKeys | None = None) -> None:
        """Without `keys` no fence is ordered to do anything."""
        self._api, self._keys = api, keys
        self._releases, self._deletions = BackgroundTasks(), BackgroundTasks()

    async def fence(
        self, binding: GroupBinding, broker_id: int, address: str, *, deadline_seconds: float
    ) -> FenceOutcome:
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
        await self._deletions.stop()
        await asyncio.gather(*self._releases.running, return_exceptions=True)

    async def _pod_at(self, key: GroupKey, address: str) -> str | None:
        """Return the group's pod at this address: a pod whose disk was lost has another broker id than its name says."""
        selector = f"{names.LABEL_BROKER_GROUP}={key.name}"
        try:
            pods = await self._api.list(
                PODS, namespace=key.namespace, label_selector=selector, timeout_seconds=ONE_CALL_SECONDS
            )
        except ApiError as error:
            log.warning("pod to fence not found yet", group=str(key), address=address, error=str(error))
            return None
        return next((pod["metadata"]["name"] for pod in pods.items if has_ip_of(pod, address)), None)

    async def _fence(self, name: str, namespace: str, address: str, seconds: float) -> FenceOutcome:
        found: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        deletion = asyncio.create_task(self._delete(name, namespace, address, found), name="rmq:fence-deletion")
        order = asyncio.create_task(self._order(found), name="rmq:fence-order")
        try:
            await asyncio.wait((deletion, order), return_when=asyncio.FIRST_COMPLETED)
            if deletion.done() and (deletion.result().confirmed or not found.done()):
                return deletion.result()
            # Also for a pod whose object is gone: if it still runs, its fence may yet confirm the kill.
            await asyncio.wait((order,))
            if (how := _confirmation(order, name)) is None:
                return await deletion
        except asyncio.CancelledError:
            deletion.cancel()
            raise
        finally:
            order.cancel()
        self._deletions.start(self._finish(deletion, seconds), "rmq:fence-deletion-end")
        return FenceOutcome(confirmed=True, how=how)

    async def _order(self, found: asyncio.Future[JsonObject]) -> str | None:
        """Order the fence of the pod that was found; return how the kill was confirmed, None if it was not."""
        fence = PodFence.of(await found, self._keys)
        return None if fence is None else await confirmed_kill(fence)

    async def _finish(self, deletion: asyncio.Task[FenceOutcome], seconds: float) -> None:
        """Let the deletion go on; what is left after that time is the reconcile plane's."""
        await asyncio.wait((deletion,), timeout=seconds)
        deletion.cancel()

    async def _delete(self, name: str, namespace: str, address: str, found: asyncio.Future[JsonObject]) -> FenceOutcome:
        """Delete the pod, and wait until its kubelet reports it dead; `found` gets it once it is known to run at this address."""
        backoff = Backoff(POLL_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            try:
                pod = await self._api.get(PODS, name, namespace=namespace, timeout_seconds=ONE_CALL_SECONDS)
                if not has_ip_of(pod, address):
                    # The address changed hands (safety rule 8): killing this pod would prove nothing about the silent one.
                    return FenceOutcome(confirmed=False, how=f"pod {name} is not the one at {address}", untouched=True)
                if containers_are_terminated(pod):
                    return self._dead(pod, was_deleted=False)
                if not found.done():
                    found.set_result(pod)
                held = await delete_held(
                    self._api, pod, finalizer=names.FINALIZER_FENCE, timeout_seconds=ONE_CALL_SECONDS
                )
                return await self._end_of(held)
            except NotFoundError:
                if found.done():  # it ended before this deletion, or the answer to an earlier one was lost
                    return await self._end_of(found.result())
                return FenceOutcome(confirmed=False, how=f"pod {name} is gone", untouched=True)
            except ConflictError:
                continue  # the kubelet wrote the pod's status in between: look again at once
            except ApiError as error:
                log.warning("fence not placed yet", pod=name, namespace=namespace, error=str(error))
                await asyncio.sleep(backoff.next_seconds(error.retry_after_seconds))

    async def _end_of(self, pod: JsonObject) -> FenceOutcome:
        """Wait until this pod, which is being deleted, is reported dead, or is gone without such a report.

        The reconcile plane takes the finalizer off a pod whose containers have ended. A person may do so before; and the control
        plane removes the pods of a node that is gone or out of service (PodGC), whatever their processes do.
        """
        name = pod["metadata"]["name"]
        backoff = Backoff(POLL_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            try:
                pod, is_gone = await self._state_of(pod)
            except GoneError:
                return FenceOutcome(confirmed=False, how=f"pod {name} is gone, and its last state is not known")
            except (ApiError, TimeoutError) as error:
                log.warning("end of a fenced pod not read yet", pod=name, error=str(error))
                await asyncio.sleep(backoff.next_seconds())
                continue
            if containers_are_terminated(pod):
                return self._dead(pod, is_gone=is_gone)
            if is_gone:
                return FenceOutcome(confirmed=False, how=f"pod {name} is gone, and its end was not reported")
            backoff.reset()
            await asyncio.sleep(POLL_SECONDS)

    async def _state_of(self, pod: JsonObject) -> tuple[JsonObject, bool]:
        """Return this pod as it is, or as it was when it went, which only the watch's events say; and whether it is gone.

        A load balancer's 404 shows no such event. Raises GoneError if the API server has forgotten the events, TimeoutError.
        """
        metadata = pod["metadata"]
        name, namespace = metadata["name"], metadata["namespace"]
        with suppress(NotFoundError):
            now = await self._api.get(PODS, name, namespace=namespace, timeout_seconds=ONE_CALL_SECONDS)
            if now["metadata"]["uid"] == metadata["uid"]:
                return now, False
        events = self._api.watch(
            PODS,
            namespace=namespace,
            field_selector=f"metadata.name={name}",
            resource_version=metadata["resourceVersion"],
            timeout_seconds=ONE_CALL_SECONDS,
        )
        async with asyncio.timeout(ONE_CALL_SECONDS), aclosing(events):
            async for event in events:
                if event.type == "DELETED" and event.object["metadata"]["uid"] == metadata["uid"]:
                    return event.object, True
        return pod, False

    def _dead(self, pod: JsonObject, *, was_deleted: bool = True, is_gone: bool = False) -> FenceOutcome:
        """Let a pod go whose containers are reported terminated; `was_deleted`: by this fence."""
        if not is_gone:
            self._releases.start(self._release(pod), "rmq:fence-release")
        name, ran_on = pod["metadata"]["name"], was_deleted and _ended_by_its_deletion(pod)
        how = f"pod {name} {RAN_ON_WORDS}" if ran_on else f"containers of pod {name} terminated"
        return FenceOutcome(confirmed=True, how=how)

    async def _release(self, pod: JsonObject) -> None:
        metadata = pod["metadata"]
        finalizers = metadata.get("finalizers", [])
        if names.FINALIZER_FENCE not in finalizers:
            return
        path = f"/metadata/finalizers/{finalizers.index(names.FINALIZER_FENCE)}"
        patch: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},  # not the next pod of this name
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
            return  # removed already
        except ApiError as error:
            log.warning("fence not released, the reconcile plane will", pod=metadata["name"], error=str(error))


def _confirmation(order: asyncio.Task[str | None], pod: str) -> str | None:
    """Return how the fence confirmed the kill; None if it did not: the kubelet's way remains."""
    if (error := order.exception()) is not None:
        log.warning("fence not ordered", pod=pod, error=repr(error))
        return None
    return order.result()


def _ended_by_its_deletion(pod: JsonObject) -> bool:
    """Whether the broker's container still ran when the pod was deleted, as its kubelet tells it."""
    deleted_at = pod["metadata"].get("deletionTimestamp")
    ended_at = ((broker_status(pod).get("state") or {}).get("terminated") or {}).get("finishedAt")
    if not deleted_at or not ended_at:
        return False
    return dt.datetime.fromisoformat(ended_at) >= dt.datetime.fromisoformat(deleted_at) - _CLOCKS


@dataclass(frozen=True, slots=True)
class PodFence:
    """Where the fence of one pod hears orders, and with which key."""

    pod: str
    pod_uid: str
    host: str
    port: int
    key: bytes = field(repr=False)

    @classmethod
    def of(cls, pod: JsonObject, keys: FenceKeys | None) -> PodFence | None:
        """Return the fence of this pod; None if it takes no orders of this operator."""
        key, host = keys.key_in(pod) if keys is not None else None, pod_ip(pod)
        fences = [one for one in pod["spec"].get("containers") or [] if one.get("name") == names.CONTAINER_FENCE]
        ports = [port for fence in fences for port in fence.get("ports") or [] if port.get("name") == names.PORT_FENCE]
        port = next((int(port["containerPort"]) for port in ports if port.get("protocol") == "UDP"), None)
        if key is None or not host or port is None:
            return None
        return cls(str(pod["metadata"]["name"]), str(pod["metadata"]["uid"]), host, port, key)


async def confirmed_kill(fence: PodFence) -> str | None:
    """Repeat the order until the fence confirms the kill; return the evidence, or None if the host cannot be reached.

    The caller sets the deadline: a fence that is cut off proves nothing.
    """
    order, loop = _Order(fence), asyncio.get_running_loop()
    try:
        transport, _ = await loop.create_datagram_endpoint(lambda: order, remote_addr=(fence.host, fence.port))
    except OSError:
        return None
    order.transport = transport
    try:
        while not order.confirmed.is_set():
            order.send()
            await wait_at_most(order.confirmed, REPEAT_SECONDS)
    finally:
        transport.close()
    return f"pod {fence.pod}: its fence has killed the broker, and signed that it is dead"


class _Order(asyncio.DatagramProtocol):
    """One order: ask for a challenge until it comes, then order the kill until it is confirmed."""

    def __init__(self, fence: PodFence) -> None:
        self._fence, self._loop = fence, asyncio.get_running_loop()
        self._said, self._began = _question(), self._loop.time()
        self.transport: asyncio.DatagramTransport | None = None
        self.confirmed = asyncio.Event()

    def datagram_received(self, data: bytes, addr: object) -> None:  # noqa: ARG002 (asyncio's own form)
        answer, asked = datagrams.open_sealed(data, self._fence.key, self._fence.pod_uid), self._said
        if answer is None or answer.nonce != asked.nonce:
            return
        tags = (asked.tag, answer.tag)
        if tags == (datagrams.QUESTION, datagrams.CHALLENGE):
            self._said = datagrams.Message(datagrams.ORDER, answer.nonce, answer.challenge)
            self.send()
        elif tags == (datagrams.ORDER, datagrams.CONFIRMATION) and answer.challenge == asked.challenge:
            self.confirmed.set()

    def send(self) -> None:
        """Send the question or the order again; an old order begins anew with a question."""
        if self._said.tag == datagrams.ORDER and self._loop.time() - self._began > ANEW_SECONDS:
            self._said, self._began = _question(), self._loop.time()
        if self.transport is not None:
            self.transport.sendto(datagrams.seal(self._said, self._fence.key, self._fence.pod_uid))


def _question() -> datagrams.Message:
    return datagrams.Message(datagrams.QUESTION, os.urandom(datagrams.NONCE_BYTES))
