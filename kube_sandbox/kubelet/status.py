"""A pod's status: container states, the phase and conditions that follow from them, and their way to the API. Events too.

Source: Pod Lifecycle (Kubernetes documentation) and PodStatus of the API reference. A status is built afresh for every post
and posted whole, so a repeated post does no harm and several changes become one post. The patch carries the pod's uid, so
the status of an earlier pod never lands on its successor. Events are dropped while the API is away for long.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog

from kube_sandbox.client import EVENTS, PODS, ApiError, ConflictError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kube_sandbox.client import JsonObject, KubeClient


def timestamp(when: datetime) -> str:
    """Return a ``metav1.Time``: UTC, whole seconds."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Waiting:
    """Waiting for its first start or a restart."""

    reason: str
    message: str = ""

    def as_json(self) -> JsonObject:
        """As ``ContainerState``."""
        return {"waiting": _without_empty({"reason": self.reason, "message": self.message})}


@dataclass(frozen=True, slots=True)
class Running:
    """The process runs; it may not be ready yet."""

    started_at: datetime

    def as_json(self) -> JsonObject:
        """As ``ContainerState``."""
        return {"running": {"startedAt": timestamp(self.started_at)}}


@dataclass(frozen=True, slots=True)
class Terminated:
    """The process ended; a killed one has exit code 128 + signal."""

    exit_code: int
    signal: int
    reason: str
    started_at: datetime
    finished_at: datetime
    container_id: str
    message: str = ""

    def as_json(self) -> JsonObject:
        """As ``ContainerState``."""
        state: dict[str, Any] = {
            "exitCode": self.exit_code,
            "reason": self.reason,
            "startedAt": timestamp(self.started_at),
            "finishedAt": timestamp(self.finished_at),
        }
        optional = {"signal": self.signal, "message": self.message, "containerID": self.container_id}
        return {"terminated": state | _without_empty(optional)}


ContainerState = Waiting | Running | Terminated


@dataclass(frozen=True, slots=True)
class ContainerReport:
    """One container as the status shows it."""

    name: str
    image: str
    state: ContainerState
    last_state: JsonObject
    restart_count: int
    ready: bool
    started: bool
    container_id: str

    @property
    def ended_well(self) -> bool:
        """Whether it ended with exit code 0."""
        return isinstance(self.state, Terminated) and self.state.exit_code == 0

    def as_json(self) -> JsonObject:
        """As ``ContainerStatus``."""
        report: JsonObject = {
            "name": self.name,
            "image": self.image,
            "imageID": "",
            "state": self.state.as_json(),
            "lastState": self.last_state,
            "restartCount": self.restart_count,
            "ready": self.ready,
            "started": self.started,
        }
        if self.container_id:
            report["containerID"] = self.container_id
        return report


def phase_of(init: Sequence[ContainerReport], main: Sequence[ContainerReport], restart_policy: str) -> str:
    """Return Pending, Running, Succeeded or Failed."""
    if any(_failed(report) for report in init) and restart_policy == "Never":
        return "Failed"
    if not all(report.ended_well for report in init):
        return "Pending"
    if all(isinstance(report.state, Terminated) for report in main):
        if restart_policy == "Never":
            return "Succeeded" if all(report.ended_well for report in main) else "Failed"
        if restart_policy == "OnFailure" and all(report.ended_well for report in main):
            return "Succeeded"
        return "Running"
    never_ran = [r for r in main if isinstance(r.state, Waiting) and not r.last_state]
    return "Pending" if never_ran else "Running"


def conditions_of(
    init: Sequence[ContainerReport],
    main: Sequence[ContainerReport],
    *,
    phase: str,
    known: Sequence[Mapping[str, Any]],
    now: datetime,
) -> list[JsonObject]:
    """Return our conditions, each with the time of its last change, after those of other writers (readiness gates)."""
    initialized = phase == "Succeeded" or all(report.ended_well for report in init)
    unready = [report.name for report in main if not report.ready]
    reason = "PodCompleted" if phase == "Succeeded" else "ContainersNotReady"
    message = f"containers with unready status: [{' '.join(unready)}]" if unready else ""
    wanted: list[tuple[str, bool, str, str]] = [
        ("PodScheduled", True, "", ""),
        ("Initialized", initialized, "" if initialized else "ContainersNotInitialized", ""),
        ("ContainersReady", not unready, reason if unready else "", message),
        ("Ready", not unready, reason if unready else "", message),
    ]
    ours = {name for name, *_ in wanted}
    before = {condition["type"]: condition for condition in known}
    foreign = [dict(condition) for condition in known if condition["type"] not in ours]
    return foreign + [_condition(entry, before.get(entry[0]), now) for entry in wanted]


def _condition(wanted: tuple[str, bool, str, str], before: Mapping[str, Any] | None, now: datetime) -> JsonObject:
    name, holds, reason, message = wanted
    status = "True" if holds else "False"
    unchanged = before is not None and before.get("status") == status
    since = (
        before["lastTransitionTime"] if unchanged and before and before.get("lastTransitionTime") else timestamp(now)
    )
    return {
        "type": name,
        "status": status,
        "lastTransitionTime": since,
        **_without_empty({"reason": reason, "message": message}),
    }


def _failed(report: ContainerReport) -> bool:
    return isinstance(report.state, Terminated) and report.state.exit_code != 0


def _without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value}


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

    def end(self, main: Sequence[ContainerReport]) -> None:
        """Make the phase final after the pod was stopped, whatever its restart policy is."""
        if self._final_phase is None:
            self._final_phase = "Succeeded" if all(report.ended_well for report in main) else "Failed"

    def build(
        self, pod: JsonObject, *, init: Sequence[ContainerReport], main: Sequence[ContainerReport], pod_ip: str | None
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
            "initContainerStatuses": [report.as_json() for report in init],
            "containerStatuses": [report.as_json() for report in main],
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
        namespace: str,
        name: str,
        uid: str,
        build: Callable[[], JsonObject],
        gone: Callable[[], None],
    ) -> None:
        self._api = api
        self._namespace, self._name, self._uid = namespace, name, uid
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
                await self._post_if_different()
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

    async def _post_if_different(self) -> None:
        status = self._build()
        if status != self._posted:
            patch = {"metadata": {"uid": self._uid}, "status": status}
            await self._api.patch(PODS, self._name, patch, namespace=self._namespace, subresource="status")
        async with self._was_posted:
            self._posted = status
            self._was_posted.notify_all()

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
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{metadata['name']}.{next(self._numbers):x}",
                "namespace": metadata["namespace"],
            },
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
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
