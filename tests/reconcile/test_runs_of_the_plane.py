"""The runs of one plane: the next begins after every earlier one has ended, however often the Lease comes and goes meanwhile.
A run that ends by a fault gives the Lease back, turns `/healthz` red, and is begun again after a pause that grows.

The rest of the plane is replaced: a Lease that the test gives and takes, and a watcher that ends when the test lets it.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from structlog.testing import capture_logs

from brokergroup_operator.reconcile.access import ClusterAccess
from brokergroup_operator.reconcile.run import plane as plane_module
from brokergroup_operator.reconcile.run.plane import ReconcilePlane
from brokergroup_operator.reconcile.run.watch import LASTED_SECONDS
from brokergroup_operator.reconcile.settings import LeaderElectionSettings, ReconcileSettings
from tests.reconcile.world import until
from tests.support.virtual_loop import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from brokergroup_operator.kube.client import KubernetesApi


class Lease:
    """An elector whose Lease comes and goes as the test says."""

    leads_for_seconds = 60.0

    def __init__(
        self, _api: Any, _settings: Any, *, on_started: Callable[[], None], on_stopped: Callable[[], None]
    ) -> None:
        self.won, self.lost = on_started, on_stopped
        self.told: list[tuple[str, float]] = []
        self.campaign: asyncio.Future[None] = asyncio.Future()

    def start(self) -> asyncio.Future[None]:
        self.told.append(("asked for", asyncio.get_running_loop().time()))
        self.campaign = asyncio.Future()
        return self.campaign

    async def stop(self) -> None:
        self.told.append(("given back", asyncio.get_running_loop().time()))

    @property
    def pauses(self) -> list[float]:
        """Return the seconds from each release of the Lease to the next request for it."""
        times = [seconds for _, seconds in self.told[1:]]
        return [asked - given for given, asked in zip(times[::2], times[1::2], strict=False)]


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

    def guarded(self, _seconds: Any, **_: Any) -> EmptyCluster:
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


def new_plane(cluster: EmptyCluster | None = None, *, with_lease: bool = True, **more: Any) -> ReconcilePlane:
    election = LeaderElectionSettings(namespace="ops", identity="pod-0") if with_lease else None
    settings = ReconcileSettings(controller_addresses=("127.0.0.1:9878",), leader_election=election, **more)
    view = SimpleNamespace(subscribe=lambda _: lambda: None, wait_until_master_is_told=None)
    access = ClusterAccess(url="http://127.0.0.1:1")
    return ReconcilePlane(cast("KubernetesApi", cluster or EmptyCluster()), access, cast("Any", view), settings)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_lease_lost_and_won_twice_while_a_run_ends_begins_no_second_one_beside_it(watchers: Watchers) -> None:
    plane, lease, _ = await started()
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
    plane, lease, _ = await started()
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


class FaultyCluster(EmptyCluster):
    """An API whose answers a run cannot read, as often as the test says."""

    def __init__(self) -> None:
        self.faults = 0

    async def pages(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        if self.faults:
            self.faults -= 1
            raise KeyError("metadata")
        yield await self.list()


async def started() -> tuple[ReconcilePlane, Lease, FaultyCluster]:
    cluster = FaultyCluster()
    plane = new_plane(cluster)
    await plane.start()
    return plane, cast("Lease", plane._elector), cluster


def in_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[pytest.MonkeyPatch], None]:
    """Run the test on a loop whose clock jumps, with watchers that end at once."""

    def sync_test(monkeypatch: pytest.MonkeyPatch) -> None:
        made = Watchers()
        made.may_end.set()
        monkeypatch.setattr(plane_module, "LeaderElector", Lease)
        monkeypatch.setattr(plane_module, "Watcher", made.make)
        loop = VirtualLoop()
        try:
            loop.run_until_complete(test())
        finally:
            loop.finish()

    sync_test.__name__, sync_test.__doc__ = test.__name__, test.__doc__
    return sync_test


@in_virtual_time
async def test_a_run_that_fails_gives_the_lease_back_at_once_and_says_so() -> None:
    plane, lease, cluster = await started()
    cluster.faults = 1
    with capture_logs() as told:
        lease.won()
        await turns()

    assert [what for what, _ in lease.told] == ["asked for", "given back"]
    assert not plane.is_leading
    assert "KeyError('metadata')" in (plane.trouble() or "")
    [line] = [one for one in told if one["event"] == "reconcile.ended"]
    assert (line["log_level"], line["error"]) == ("error", "KeyError('metadata')")
    await plane.stop()


@in_virtual_time
async def test_it_asks_for_the_lease_again_later_and_later() -> None:
    """Not before another pod can have taken it; a run that lasted is followed by the first pause again."""
    plane, lease, cluster = await started()
    for _ in range(9):
        cluster.faults = 1
        lease.won()
        await asyncio.sleep(100.0)
    lasting = LeaderElectionSettings(namespace="ops", identity="pod-0").lease_duration_seconds
    assert min(lease.pauses) >= lasting
    assert lease.pauses[5] > 3 * lease.pauses[0]
    assert max(lease.pauses) <= 60.0

    lease.won()
    await asyncio.sleep(LASTED_SECONDS)
    cluster.faults = 1
    plane._look_at_all.set()
    await asyncio.sleep(100.0)
    assert lease.pauses[-1] == lease.pauses[0]
    await plane.stop()


@in_virtual_time
async def test_healthz_is_red_until_a_run_lasts_or_another_pod_may_have_the_lease() -> None:
    plane, lease, cluster = await started()
    assert plane.trouble() is None
    cluster.faults = 1
    lease.won()
    await turns()
    assert plane.trouble()
    await asyncio.sleep(10.0)
    assert [what for what, _ in lease.told][-1] == "asked for"
    assert plane.trouble() is None, "it follows: another pod may have the Lease"
    lease.won()
    await turns()
    assert plane.trouble(), "it runs again, and may end again at once"
    await asyncio.sleep(LASTED_SECONDS)
    assert plane.trouble() is None
    await plane.stop()


@in_virtual_time
async def test_an_election_that_fails_is_begun_again() -> None:
    """If its task ended, the process would follow for ever while `/healthz` reports ok."""
    plane, lease, _ = await started()
    lease.won()
    await turns()
    lease.campaign.set_exception(TypeError("leaseDurationSeconds"))
    await turns()
    assert "TypeError('leaseDurationSeconds')" in (plane.trouble() or "")
    assert not plane.is_leading
    await asyncio.sleep(10.0)
    assert [what for what, _ in lease.told] == ["asked for", "given back", "asked for"]
    await plane.stop()


@in_virtual_time
async def test_a_plane_without_a_lease_begins_again_too() -> None:
    cluster = FaultyCluster()
    cluster.faults = 1
    plane = new_plane(cluster, with_lease=False)
    await plane.start()
    await turns()
    assert "KeyError('metadata')" in (plane.trouble() or "")
    await asyncio.sleep(10.0 + LASTED_SECONDS)
    assert plane.trouble() is None
    assert plane._watcher is not None, "the second run watches"
    await plane.stop()


@pytest.mark.parametrize("count", range(5))
async def test_a_run_that_is_woken_in_the_moment_of_its_end_ends(watchers: Watchers, count: int) -> None:
    """`asyncio.wait_for` of Python 3.11 swallows a cancellation that comes when it ends: `stop` waited for ever, and a plane that
    had lost its Lease would have gone on.
    """
    plane = new_plane(with_lease=False)
    watchers.may_end.set()
    await plane.start()
    await until("the plane to watch", watchers.run)
    await asyncio.sleep(0.1)  # it waits for the next look now
    plane._look_at_all.set()
    await turns(count)
    async with asyncio.timeout(10):
        await plane.stop()
    assert watchers.running == 0


async def test_a_run_that_loses_its_lease_while_a_limit_of_its_own_expires_ends(watchers: Watchers) -> None:
    """`asyncio.timeout` counts as a cancellation for a turn of the loop: the loss of the Lease was taken for a second one, and the
    run went on without it.
    """
    plane = new_plane(resync_seconds=0.05)
    watchers.may_end.set()
    await plane.start()
    lease = cast("Lease", plane._elector)
    lease.won()
    await until("the plane to watch", watchers.run)
    run = plane._run
    assert run is not None
    for _ in range(1_000_000):
        if run.cancelling():
            break
        await asyncio.sleep(0)
    lease.lost()
    async with asyncio.timeout(10):
        await asyncio.wait({run})
    assert watchers.running == 0
    await plane.stop()
