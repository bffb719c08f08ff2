"""Kopf's supervisor: a user without a name, and when `/healthz` is to say that no watch lives."""

from __future__ import annotations

import asyncio
import getpass
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.reconcile.access import ClusterAccess
from brokergroup_operator.reconcile.run import watch
from brokergroup_operator.reconcile.run.watch import FAILING_SECONDS, LASTED_SECONDS, Watcher

if TYPE_CHECKING:
    from brokergroup_operator.records.store import GroupKey
    from kube_sandbox.api_server.server import SandboxApiServer


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class EndingKopf:
    """Stands for kopf: each run ends when the test says so, with what the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._begun = asyncio.Event()
        monkeypatch.setattr(Watcher, "_run_kopf", self._run)
        monkeypatch.setattr(watch, "RESPAWN_SECONDS", 0.0)

    async def _run(self) -> None:
        self._end = asyncio.get_running_loop().create_future()
        self._begun.set()
        await self._end

    async def begins(self) -> None:
        await self._begun.wait()

    async def ends(self, error: Exception) -> None:
        """Returns when the next run has begun."""
        self._begun.clear()
        self._end.set_exception(error)
        await self._begun.wait()

    async def stop(self, watching: Watcher) -> None:
        self._end.set_result(None)
        await watching.stop()


def watcher(access: ClusterAccess, clock: Clock, changes: list[GroupKey]) -> Watcher:
    return Watcher(
        access,
        namespace=None,
        on_change=changes.append,
        on_cluster_change=changes.append,
        identity="operator-0",
        clock=clock,
    )


async def test_the_watch_runs_where_the_user_has_no_name(
    sandbox: SandboxApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image runs as 65532; kopf, asked for no identity, raised KeyError there once a second and watched nothing."""

    def no_name() -> str:
        raise KeyError("getpwuid(): uid not found: 65532")

    monkeypatch.setattr(getpass, "getuser", no_name)
    spawned = asyncio.Event()
    ended: list[str] = []

    def note_end(self: Watcher, error: BaseException | None) -> None:
        ended.append(repr(error))
        spawned.set()

    monkeypatch.setattr(Watcher, "_note_end", note_end)
    watching = Watcher(
        ClusterAccess(url=sandbox.url),
        namespace=None,
        on_change=lambda key: None,
        on_cluster_change=lambda key: None,
        identity="operator-0",
        after_spawn=spawned.set,
    )
    watching.start()
    async with asyncio.timeout(20):
        await spawned.wait()
    await watching.stop()
    assert ended == []


@pytest.mark.parametrize("error", [KeyError("getpwuid()"), PermissionError(30, "Read-only file system")])
async def test_a_watch_that_cannot_live_is_a_trouble_after_a_minute(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, kopf = Clock(), EndingKopf(monkeypatch)
    watching = watcher(ClusterAccess(url="http://127.0.0.1:1"), clock, [])
    watching.start()
    await kopf.begins()
    while clock.now < 1000 + FAILING_SECONDS:
        await kopf.ends(error)
        assert watching.trouble() is None
        clock.now += 10
    await kopf.ends(error)
    assert repr(error) in (watching.trouble() or "")

    clock.now += LASTED_SECONDS
    assert watching.trouble() is None, "this run lasts"
    await kopf.ends(KeyError("once more"))
    assert watching.trouble() is None, "counted anew after a run that lasted"
    await kopf.stop(watching)


async def test_an_outage_of_the_api_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart would not end it, and would take the controller from all brokers."""
    clock, kopf = Clock(), EndingKopf(monkeypatch)
    watching = watcher(ClusterAccess(url="http://127.0.0.1:1"), clock, [])
    watching.start()
    await kopf.begins()
    for _ in range(20):
        await kopf.ends(ConnectionRefusedError("the API server is away"))
        clock.now += 10
        assert watching.trouble() is None
    await kopf.stop(watching)
