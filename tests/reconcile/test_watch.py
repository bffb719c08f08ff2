"""Kopf inside our loop: at its end it leaves no connection open, whenever that comes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import kopf

from brokergroup_operator.reconcile.access import ClusterAccess
from brokergroup_operator.reconcile.watch import Watcher
from tests.reconcile.world import until

if TYPE_CHECKING:
    from pathlib import Path

    import aiohttp
    import pytest

    from brokergroup_operator.sandbox.api_server.server import SandboxApiServer


async def test_at_its_end_every_connection_is_closed(
    sandbox: SandboxApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[aiohttp.BaseConnector] = []
    log_in = ClusterAccess.kopf_credentials

    def told(self: ClusterAccess, settings: kopf.OperatorSettings) -> Any:
        credentials = log_in(self, settings)
        assert isinstance(credentials, kopf.AiohttpSession)
        assert credentials.aiohttp_session.connector is not None
        given.append(credentials.aiohttp_session.connector)
        return credentials

    monkeypatch.setattr(ClusterAccess, "kopf_credentials", told)
    sandbox.write_kubeconfig(tmp_path / "kubeconfig")
    access = ClusterAccess(kubeconfig=tmp_path / "kubeconfig")

    async def has_logged_in() -> bool:
        return len(given) > before

    for turns in (0, 10, 100, 1000):
        before = len(given)
        watcher = Watcher(access, namespace=None, on_change=lambda key: None)
        watcher.start()
        await until("kopf has logged in", has_logged_in)
        for _ in range(turns):
            await asyncio.sleep(0)
        await watcher.stop()
        assert all(connector.closed for connector in given), f"{turns} turns after it logged in"
