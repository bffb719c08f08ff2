"""Who is refused again and again fills no log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from structlog.testing import capture_logs

from brokergroup_operator.controller.access.authorization import RefusalLog
from rocketmq_remoting.command import request

if TYPE_CHECKING:
    import pytest

    from rocketmq_remoting.connection import RemotingConnection


def test_refusals_are_told_ten_times_a_minute_and_then_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now_seconds = 1000.0
    clock = SimpleNamespace(time=lambda: now_seconds)
    monkeypatch.setattr("brokergroup_operator.controller.access.authorization.asyncio.get_running_loop", lambda: clock)
    stranger = cast("RemotingConnection", SimpleNamespace(peer_host="10.0.0.66"))
    refusals = RefusalLog()
    with capture_logs() as lines:
        for _ in range(17):
            refusals.note(request(1003), stranger, "nobody knows it")
        now_seconds += 59.9
        refusals.note(request(1003), stranger, "nobody knows it")
    assert [line["event"] for line in lines] == ["request refused"] * 10
    now_seconds += 0.1
    with capture_logs() as lines:
        refusals.note(request(1003), stranger, "nobody knows it")
    assert [(line["event"], line.get("left_out")) for line in lines] == [
        ("more requests were refused", 8),
        ("request refused", None),
    ]
