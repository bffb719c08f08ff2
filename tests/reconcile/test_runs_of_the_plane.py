"""Of the runs of one plane: the next begins when every earlier one has ended, however often the Lease comes and goes meanwhile.

The rest of the plane is stood in for: a Lease that the test gives and takes, and a watcher that ends when the test lets it.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from brokergroup_operator.reconcile.access import ClusterAccess
from brokergroup_operator.reconcile.run import plane as plane_module
from brokergroup_operator.reconcile.run.plane import ReconcilePlane
from brokergroup_operator.reconcile.settings import LeaderElectionSettings, ReconcileSettings
from tests.reconcile.world import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from brokergroup_operator.kube.client import KubernetesApi


class Lease:
    """An elector whose Lease comes and goes as the test says."""

    leads_for_seconds = 60.0

    def __init__(
        self, _api: Any, _settings: Any, *, on_started: Callable[[], None], on_stopped: Callable[[], None]
    ) -> None:
        self.won, self.lost = on_started, on_stopped

    def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass


class Watchers:
    """How many watch at this moment; none of them ends before `may_end`."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.may_end = asyncio.Event()

    def make(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(start=self.start, stop=self.stop, trouble=lambda: None)

    def start(self) -> None:
        self.running += 1
        self.most = max(self.most, self.running)

    async def run(self) -> bool:
        return self.running > 0

    async def stop(self) -> None:
        await self.may_end.wait()
        self.running -= 1


class EmptyCluster:
    """An API without a group."""

    def guarded(self, _seconds: Any) -> EmptyCluster:
        return self

    async def list(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(items=[], resource_version="1")

    async def pages(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        yield await self.list()

    async def close(self) -> None:
        pass


@pytest.fixture
async def watchers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watchers]:
    made = Watchers()
    monkeypatch.setattr(plane_module, "LeaderElector", Lease)
    monkeypatch.setattr(plane_module, "Watcher", made.make)
    yield made
    made.may_end.set()


def new_plane() -> ReconcilePlane:
    settings = ReconcileSettings(
        controller_addresses=("127.0.0.1:9878",),
        leader_election=LeaderElectionSettings(namespace="ops", identity="pod-0"),
    )
    view = SimpleNamespace(subscribe=lambda _: lambda: None)
    access = ClusterAccess(url="http://127.0.0.1:1")
    return ReconcilePlane(cast("KubernetesApi", EmptyCluster()), access, cast("Any", view), settings)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_lease_lost_and_won_twice_while_a_run_ends_begins_no_second_one_beside_it(watchers: Watchers) -> None:
    plane = new_plane()
    await plane.start()
    lease = cast("Lease", plane._elector)
    lease.won()
    await until("the first run", watchers.run)
    for _ in range(2):
        lease.lost()
        await turns()
        lease.won()
        await turns()

    assert watchers.running == 1, "a second run began while the first had not ended"
    watchers.may_end.set()
    await turns()
    assert (watchers.running, watchers.most) == (1, 1)
    await plane.stop()
    assert watchers.running == 0


async def test_a_plane_that_stops_waits_for_the_run_that_lost_the_lease(watchers: Watchers) -> None:
    plane = new_plane()
    await plane.start()
    lease = cast("Lease", plane._elector)
    lease.won()
    await until("the first run", watchers.run)
    lease.lost()
    await turns()

    stopping = asyncio.create_task(plane.stop())
    await turns()
    assert not stopping.done(), "stopped, with a run of it still at work"
    watchers.may_end.set()
    await stopping
    assert watchers.running == 0
