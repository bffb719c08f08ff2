"""What a pod's status proves about the process in it."""

from __future__ import annotations

from typing import Any

import pytest

from brokergroup_operator.controller.directory.kubernetes_binding import termination

ENDED = {"terminated": {"exitCode": 137}}


@pytest.mark.parametrize(
    ("status", "dead"),
    [
        ({"state": {"running": {}}}, False),
        ({"state": ENDED}, True),
        ({"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ENDED}, True),
        ({"state": {"waiting": {"reason": "ContainerCreating"}}, "lastState": {}}, False),
        ({"state": {"running": {}}, "lastState": ENDED}, False),
        ({}, False),
    ],
)
def test_a_container_between_two_processes_is_dead(status: dict[str, Any], dead: bool) -> None:
    """An operator that starts while a killed master waits for its restart must not wait for heartbeats to be missed."""
    pod = {"status": {"phase": "Running", "containerStatuses": [{"name": "broker", **status}]}}
    assert (termination(pod) is not None) == dead
