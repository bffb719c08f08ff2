"""What a pod's status says about its containers: the states, and the conditions that follow from them. Pure.

Source: Pod Lifecycle (Kubernetes documentation) and PodStatus of the API reference; a container state is one of waiting,
running, terminated, and a restarted container keeps its last end in ``lastState``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kube_sandbox.client import JsonObject


def timestamp(when: datetime) -> str:
    """A ``metav1.Time``: UTC, whole seconds."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Waiting:
    """Not running yet, or not again yet."""

    reason: str
    message: str = ""

    def as_json(self) -> JsonObject:
        """As ``ContainerState``."""
        return {"waiting": _without_empty({"reason": self.reason, "message": self.message})}


@dataclass(frozen=True, slots=True)
class Running:
    """The process is there; whether it is ready is another question."""

    started_at: datetime

    def as_json(self) -> JsonObject:
        """As ``ContainerState``."""
        return {"running": {"startedAt": timestamp(self.started_at)}}


@dataclass(frozen=True, slots=True)
class Terminated:
    """It ended, with this exit code; a killed one has 128 + signal."""

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
    """Pending, Running, Succeeded or Failed."""
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
    """Our conditions, each with the time of its last change, after those that others have set (readiness gates)."""
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
    """Remembers what a status may not take back: the start time, a final phase, since when a condition holds."""

    def __init__(self, pod: JsonObject, *, node_ip: str) -> None:
        status = pod.get("status") or {}
        self._node_ip = node_ip
        self._conditions: list[JsonObject] = list(status.get("conditions") or [])
        self._start_time = status.get("startTime") or timestamp(datetime.now(UTC))
        phase = status.get("phase")
        self._final_phase: str | None = phase if phase in FINAL_PHASES else None

    @property
    def is_over(self) -> bool:
        """Whether the pod has reached its final phase: none of its containers runs again."""
        return self._final_phase is not None

    def end(self, main: Sequence[ContainerReport]) -> None:
        """The pod was stopped: its phase is final now, whatever its restart policy says."""
        if self._final_phase is None:
            self._final_phase = "Succeeded" if all(report.ended_well for report in main) else "Failed"

    def build(
        self, pod: JsonObject, *, init: Sequence[ContainerReport], main: Sequence[ContainerReport], pod_ip: str | None
    ) -> JsonObject:
        """The status as of now; called twice without a change in between it is the same."""
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
