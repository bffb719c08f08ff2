"""A pod's whole status, built afresh for every post from what its containers report."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from .status import ContainerReport, conditions_of, phase_of, timestamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brokergroup_operator.kube.client import JsonObject

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
