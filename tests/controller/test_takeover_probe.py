"""Whether the plane that carries a change of master out still lives: asked before another one takes the change over."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import AsyncMock

import pytest

from brokergroup_operator.controller.change.takeover import PROBES, Takeover
from brokergroup_operator.controller.peers.services import Services
from brokergroup_operator.observe.observer import Observer

if TYPE_CHECKING:
    from brokergroup_operator.controller.change.executor import Executor
    from brokergroup_operator.controller.group.group import Group
    from brokergroup_operator.controller.settings import PlaneSettings
    from controller_core.plan import Change

SETTINGS = cast("PlaneSettings", SimpleNamespace(probe_seconds=0.2, takeover_from_living_seconds=15.0))
GROUP = cast("Group", SimpleNamespace(changes=SimpleNamespace(unmoved_seconds=5.0)))
CHANGE = cast("Change", SimpleNamespace(carried_out_by="operator-0:9878", is_told=False))


@pytest.mark.parametrize(
    ("answers", "lives", "asked"),
    [
        ([None], True, 1),
        ([TimeoutError(), None], True, 2),
        ([TimeoutError()] * PROBES, False, PROBES),
        ([ConnectionRefusedError()], False, 1),
        ([TimeoutError(), OSError("no route")], False, 2),
    ],
    ids=["listens", "late once", "never answers", "refuses", "no way to it"],
)
async def test_a_plane_that_misses_one_probe_is_not_taken_for_dead(
    answers: list[Exception | None], lives: bool, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list(answers)

    async def open_connection(host: str, port: int) -> tuple[Any, Any]:
        assert (host, port) == ("operator-0", 9878)
        answer = left.pop(0)
        if answer is not None:
            raise answer
        return None, SimpleNamespace(close=lambda: None, wait_closed=AsyncMock())

    monkeypatch.setattr(asyncio, "open_connection", open_connection)
    planes: Any = SimpleNamespace(own_address="operator-1:9878")
    services = Services(settings=SETTINGS, observer=Observer(), calls=planes, planes=planes)
    takeover = Takeover(services, cast("Executor", None))
    assert await takeover._is_carried_out(GROUP, CHANGE) is lives
    assert len(answers) - len(left) == asked
