"""A pod's status: container states, the phase and conditions that follow from them, and their way to the API. Events too.

Source: Pod Lifecycle (Kubernetes documentation) and PodStatus of the API reference. A status is built afresh for every post
and posted whole, so a repeated post does no harm and several changes become one post. The patch carries the pod's uid, so
the status of an earlier pod never lands on its successor. Events are dropped while the API is away for long.
"""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from kube_sandbox.client import EVENTS, PODS, ApiError, ConflictError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kube_sandbox.client import JsonObject, KubeClient


def timestamp(when: datetime) -> str:
    """Return a ``metav1.Time``: UTC, whole seconds."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def waiting(reason: str, message: str = "") -> JsonObject:
    """Return the state of a container before a start."""
    return {"waiting": {"reason": reason} | ({"message": message} if message else {})}


def running(started_at: datetime) -> JsonObject:
    """Return the state of a container whose process runs."""
    return {"running": {"startedAt": timestamp(started_at)}}


def terminated(
    exit_code: int, reason: str, started_at: datetime, finished_at: datetime, **optional: str | int
) -> JsonObject:
    """Return the state of a container whose process ended; a killed one has exit code 128 + signal."""
    state = {"exitCode": exit_code, "reason": reason}
    state |= {"startedAt": timestamp(started_at), "finishedAt": timestamp(finished_at)}
    return {"terminated": state | {name: value for name, value in optional.items() if value}}


def exit_code_of(container: JsonObject) -> int | None:
    """Return the exit code of a ContainerStatus whose state is terminated."""
    ended = container["state"].get("terminated")
    return None if ended is None else int(ended["exitCode"])


def phase_of(init: Sequence[JsonObject], main: Sequence[JsonObject], restart_policy: str) -> str:
    """Return Pending, Running, Succeeded or Failed for the ContainerStatus of each container."""
    before, codes = [exit_code_of(container) for container in init], [exit_code_of(container) for container in main]
    if any(before) and restart_policy == "Never":
        return "Failed"
    if any(code != 0 for code in before):
        return "Pending"
    if None not in codes and restart_policy != "Always":
        if not any(codes):
            return "Succeeded"
        return "Failed" if restart_policy == "Never" else "Running"
    never_ran = [one for one in main if "waiting" in one["state"] and not one["lastState"]]
    return "Pending" if never_ran else "Running"


def conditions_of(
    init: Sequence[JsonObject], main: Sequence[JsonObject], *, phase: str, known: Sequence[JsonObject], now: datetime
) -> list[JsonObject]:
    """Return our conditions, each with the time of its last change, after those of other writers (readiness gates)."""
    initialized = phase == "Succeeded" or all(exit_code_of(container) == 0 for container in init)
    unready = [container["name"] for container in main if not container["ready"]]
    reason = "PodCompleted" if phase == "Succeeded" else "ContainersNotReady"
    why = {"reason": reason, "message": f"containers with unready status: [{' '.join(unready)}]"} if unready else {}
    ours: dict[str, tuple[bool, dict[str, str]]] = {
        "PodScheduled": (True, {}),
        "Initialized": (initialized, {} if initialized else {"reason": "ContainersNotInitialized"}),
        "ContainersReady": (not unready, why),
        "Ready": (not unready, why),
    }
    before = {condition["type"]: condition for condition in known}
    conditions = [condition for name, condition in before.items() if name not in ours]
    for name, (holds, details) in ours.items():
        status, earlier = str(holds), before.get(name) or {}
        since = earlier.get("lastTransitionTime") if earlier.get("status") == status else None
        entry = {"type": name, "status": status, "lastTransitionTime": since or timestamp(now)}
        conditions.append(entry | details)
    return conditions


FINAL_PHASES = ("Succeeded", "Failed")


class PodStatusBuilder:
    """Builds a pod's status. Start time, final phase and transition times of conditions are kept from earlier ones."""

    def __init__(self, pod: JsonObject, *, node_ip: str) -> None:
        status = pod.get("status") or {}
        self._node_ip = node_ip
        self._conditions: list[JsonObject] = list(status.get("conditions") or [])
        self._start_time = status.get("startTime") or timestamp(datetime.now(UTC))
        phase = status.get("phase")
        self._final_phase: str | None = phase if phase in FINAL_PHASES else None

    @property
    def is_over(self) -> bool:
        """Whether the pod has reached its final phase, after which no container runs again."""
        return self._final_phase is not None

    def end(self, main: Sequence[JsonObject]) -> None:
        """Make the phase final after the pod was stopped, whatever its restart policy is."""
        if self._final_phase is None:
            self._final_phase = "Failed" if any(exit_code_of(container) != 0 for container in main) else "Succeeded"

    def build(
        self, pod: JsonObject, *, init: Sequence[JsonObject], main: Sequence[JsonObject], pod_ip: str | None
    ) -> JsonObject:
        """Return the status as of now; a second call without a change returns the same."""
        phase = self._final_phase
        if phase is None:
            phase = phase_of(init, main, str(pod["spec"].get("restartPolicy") or "Always"))
            self._final_phase = phase if phase in FINAL_PHASES else None
        known = (pod.get("status") or {}).get("conditions") or []
        remembered = {condition["type"] for condition in self._conditions}
        self._conditions = conditions_of(
            init,
            main,
            phase=phase,
            known=[*self._conditions, *(condition for condition in known if condition["type"] not in remembered)],
            now=datetime.now(UTC),
        )
        status: JsonObject = {
            "phase": phase,
            "conditions": self._conditions,
            "hostIP": self._node_ip,
            "hostIPs": [{"ip": self._node_ip}],
            "startTime": self._start_time,
            "initContainerStatuses": init,
            "containerStatuses": main,
        }
        if pod_ip is not None:
            status["podIP"] = pod_ip
            status["podIPs"] = [{"ip": pod_ip}]
        return status


log = structlog.get_logger(__name__)

FIRST_BACKOFF_SECONDS = 0.05
LAST_BACKOFF_SECONDS = 2.0


class StatusPoster:
    """Run ``run()`` as a task; call ``changed()``; ``flush()`` waits until the API has the present status."""

    def __init__(
        self,
        api: KubeClient,
        *,
        pod: JsonObject,
        build: Callable[[], JsonObject],
        gone: Callable[[], None],
    ) -> None:
        self._api = api
        self._namespace, self._name, self._uid = (pod["metadata"][key] for key in ("namespace", "name", "uid"))
        self._build = build
        self._gone = gone
        self._dirty = asyncio.Event()
        self._posted: JsonObject | None = None
        self._was_posted = asyncio.Condition()

    def changed(self) -> None:
        """Post the status again soon."""
        self._dirty.set()

    async def flush(self) -> None:
        """Wait until the API has the present status. The caller sets the deadline."""
        wanted = self._build()
        self._dirty.set()
        async with self._was_posted:
            await self._was_posted.wait_for(lambda: self._posted == wanted or self._posted == self._build())

    async def run(self) -> None:
        """Post every change; retry with backoff while the API is away."""
        backoff_seconds = FIRST_BACKOFF_SECONDS
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                status = self._build()
                if status != self._posted:
                    patch = {"metadata": {"uid": self._uid}, "status": status}
                    await self._api.patch(PODS, self._name, patch, namespace=self._namespace, subresource="status")
                async with self._was_posted:
                    self._posted = status
                    self._was_posted.notify_all()
                backoff_seconds = FIRST_BACKOFF_SECONDS
            except NotFoundError:
                self._gone()
                return
            except ApiError as error:
                if isinstance(error, ConflictError) and await self._replaced():
                    self._gone()
                    return
                log.warning("pod status not posted", pod=self._name, error=str(error))
                self._dirty.set()
                await asyncio.sleep(backoff_seconds)
                backoff_seconds = min(backoff_seconds * 2, LAST_BACKOFF_SECONDS)

    async def _replaced(self) -> bool:
        """Whether the name belongs to another pod by now. A conflict may also be a concurrent write to this one."""
        try:
            pod = await self._api.get(PODS, self._name, namespace=self._namespace)
        except NotFoundError:
            return True
        except ApiError:
            return False
        return bool(pod["metadata"]["uid"] != self._uid)


WAITING_AT_MOST = 256


class EventRecorder:
    """Run ``run()`` as a task."""

    def __init__(self, api: KubeClient, node_name: str) -> None:
        self._api = api
        self._node_name = node_name
        self._queue: asyncio.Queue[JsonObject] = asyncio.Queue(WAITING_AT_MOST)
        self._numbers = itertools.count(int(datetime.now(UTC).timestamp() * 1_000_000))

    def tell(self, pod: JsonObject, kind: str, reason: str, message: str) -> None:
        """Queue an Event about a pod; dropped if the queue is full."""
        metadata, now = pod["metadata"], timestamp(datetime.now(UTC))
        about = {key: metadata[key] for key in ("name", "namespace", "uid")}
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata['name']}.{next(self._numbers):x}", "namespace": metadata["namespace"]},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", **about},
            "type": kind,
            "reason": reason,
            "message": message[:1024],
            "source": {"component": "process-kubelet", "host": self._node_name},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        if not self._queue.full():
            self._queue.put_nowait(event)

    async def run(self) -> None:
        """Send the queued Events in order."""
        while True:
            event = await self._queue.get()
            try:
                await self._api.create(EVENTS, event)
            except ApiError as error:
                log.debug("event not recorded", reason=event["reason"], error=str(error))
