"""Retries against an API that does not answer, in virtual time: each failure doubles the pause, Retry-After is respected."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.controller.detect.record_watch import HoldingsWatch
from brokergroup_operator.controller.directory.group_directory import GroupBinding
from brokergroup_operator.controller.directory.kubernetes_directory import LookUps
from brokergroup_operator.controller.group.group import Group
from brokergroup_operator.controller.peers.services import Services
from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.kube.errors import ApiError, ApiUnavailableError, Backoff
from brokergroup_operator.observe.failover_history import FailoverHistory
from brokergroup_operator.observe.observer import Observer
from brokergroup_operator.records.kubernetes import KubernetesRecordStore
from brokergroup_operator.records.serialize import record_to_json
from brokergroup_operator.records.store import GroupKey, RecordUnavailableError
from controller_core.model import BrokerGroupRecord, LiveReplica, Replica
from controller_core.settings import ControllerSettings
from tests.observe.test_metrics import timeline
from tests.support.virtual_loop import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from brokergroup_operator.kube.reflector import ObjectKey

KEY = GroupKey("shop", "orders")
RECORD = BrokerGroupRecord(cluster_name="c", broker_name="b", next_broker_id=1)


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs the test on a loop whose sleeps take no time."""

    @functools.wraps(test)
    def sync_test(**arguments: Any) -> None:
        loop = VirtualLoop()
        try:
            loop.run_until_complete(test(**arguments))
        finally:
            loop.close()

    return sync_test


class AwayApi:
    """Counts GETs; each hangs until its deadline, or fails at once, possibly with Retry-After."""

    url = "http://away"

    def __init__(self, *, hangs: bool = False, retry_after_seconds: float = 0.0) -> None:
        self.hangs, self.retry_after_seconds = hangs, retry_after_seconds
        self.asked: list[float] = []
        self.answers = False
        self.record = RECORD

    async def get(
        self, _resource: Any, _name: str, *, namespace: str | None = None, timeout_seconds: float = 5.0
    ) -> Any:
        self.asked.append(asyncio.get_running_loop().time())
        if self.answers:
            metadata = {"namespace": namespace, "name": _name, "uid": "u", "resourceVersion": "1"}
            return {"metadata": metadata, "record": record_to_json(self.record)}
        if self.hangs:
            await asyncio.sleep(timeout_seconds)
        error = ApiUnavailableError("GET: no answer")
        error.retry_after_seconds = self.retry_after_seconds
        raise error


def _group(api: AwayApi) -> Group:
    binding = GroupBinding(key=KEY, cluster_name="c", broker_name="b", settings=ControllerSettings())
    store = KubernetesRecordStore(api)  # type: ignore[arg-type]
    return Group(
        binding,
        store=store,
        settings=PlaneSettings(),
        observer=Observer(),
        on_change=lambda _: None,
        on_wake=lambda _: None,
    )


async def _polls(group: Group) -> None:
    """Poll every half second, as each of three brokers does."""
    while True:
        with contextlib.suppress(RecordUnavailableError):
            await group.load()
        await asyncio.sleep(0.5)


async def _look_for_15_seconds(api: AwayApi) -> int:
    group = _group(api)
    pollers = [asyncio.create_task(_polls(group)) for _ in range(12)]
    await asyncio.sleep(15)
    for poller in pollers:
        poller.cancel()
    await asyncio.gather(*pollers, return_exceptions=True)
    return len(api.asked)


@pytest.mark.parametrize(("hangs", "retry_after", "most"), [(True, 0.0, 16), (False, 0.0, 75), (False, 5.0, 6)])
@in_virtual_time
async def test_fifteen_seconds_without_an_answer(hangs: bool, retry_after: float, most: int) -> None:
    """12 pollers of one group: their number has no effect, as all waiters share a read's outcome."""
    api = AwayApi(hangs=hangs, retry_after_seconds=retry_after)
    assert 1 < await _look_for_15_seconds(api) <= most


@in_virtual_time
async def test_within_one_deadline_the_pauses_double() -> None:
    api = AwayApi()
    with pytest.raises(RecordUnavailableError):
        await KubernetesRecordStore(api).read(KEY, deadline_seconds=1.8)  # type: ignore[arg-type]
    assert len(api.asked) <= 12
    pauses = [later - earlier for earlier, later in zip(api.asked, api.asked[1:], strict=False)]
    assert pauses[0] <= 0.02
    assert max(pauses) > 0.2


@in_virtual_time
async def test_what_an_answer_grants_is_asked_for_at_once_whatever_failed_before() -> None:
    """A decision reads the store at once, without the pause of mere polls."""
    api = AwayApi()
    group = _group(api)
    with pytest.raises(RecordUnavailableError):
        await group.load()
    assert not group.patience.is_over
    api.answers = True
    asked, begun = len(api.asked), asyncio.get_running_loop().time()
    await group._read(1.8)
    assert len(api.asked) == asked + 1
    assert asyncio.get_running_loop().time() - begun < 0.001
    assert group.patience.is_over


@in_virtual_time
async def test_the_error_says_for_how_long_the_server_wants_to_be_left_alone() -> None:
    api = AwayApi(retry_after_seconds=10.0)
    with pytest.raises(RecordUnavailableError) as raised:
        await KubernetesRecordStore(api).read(KEY, deadline_seconds=1.8)  # type: ignore[arg-type]
    assert raised.value.retry_after_seconds > 9.0
    assert len(api.asked) == 2, "one last try within the deadline"


@in_virtual_time
async def test_what_brokers_report_of_their_disks_waits_for_the_store_s_pause() -> None:
    """Three members with a higher epoch than the record send ten heartbeats a second; the API's Retry-After is 5 s."""
    api = AwayApi(retry_after_seconds=5.0)
    members = {number: Replica(number, "code;1", f"10.0.0.{number}:10911", registered=True) for number in (1, 2, 3)}
    api.record, api.answers = replace(RECORD, replicas=members, next_broker_id=4, master_epoch=1), True
    group = _group(api)
    await group.load()
    api.answers, read = False, len(api.asked)
    recovery: Any = SimpleNamespace(find_incumbent=lambda _group: asyncio.sleep(0))
    services = Services(settings=PlaneSettings(), observer=Observer(), calls=recovery, planes=recovery)
    watch = HoldingsWatch(services, recovery=recovery, on_news=lambda _: None)
    now = asyncio.get_running_loop().time
    for _ in range(150):
        for number in members:
            heartbeat = LiveReplica(broker_id=number, epoch=2, max_offset=100, confirm_offset=100)
            group.table.heartbeat(now(), heartbeat, number)
            watch.heard(group, number)
        await asyncio.sleep(0.1)
    asked = len(api.asked) - read
    api.answers = True
    await asyncio.sleep(5)
    watch.heard(group, 1)
    await asyncio.sleep(1)
    assert len(api.asked) > asked + read, "it is reported once the API answers"
    await services.tasks.stop()
    assert 1 < asked <= 8


class LookedUp:
    """LookUps of twenty Secrets; reads of those in `unread` fail."""

    def __init__(self, error: ApiError, *unread: str) -> None:
        self.error = error
        self.keys: list[ObjectKey] = [("shop", f"secret-{number}") for number in range(20)]
        self.unread = {key for key in self.keys if not unread or key[1] in unread}
        self.asked = 0
        self.look_ups: LookUps[str] = LookUps(
            wanted=lambda: self.keys,
            read=self.read,
            on_change=lambda _: None,
            refresh_seconds=60.0,
            missing_seconds=0.5,
        )

    async def read(self, key: ObjectKey) -> str:
        self.asked += 1
        if key in self.unread:
            raise self.error
        return "key"

    def known(self) -> set[ObjectKey]:
        return {key for key in self.keys if self.look_ups.get(key) == "key"}

    async def run(self, seconds: float) -> None:
        task = asyncio.create_task(self.look_ups.run())
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(("retry_after", "most"), [(0.0, 15), (5.0, 4)])
@in_virtual_time
async def test_an_api_that_is_away_is_not_asked_for_every_secret(retry_after: float, most: int) -> None:
    error = ApiUnavailableError("GET: no answer")
    error.retry_after_seconds = retry_after
    looked_up = LookedUp(error)
    await looked_up.run(15)
    assert 1 < looked_up.asked <= most
    looked_up.unread.clear()
    await looked_up.run(1)
    assert looked_up.known() == set(looked_up.keys)


@pytest.mark.parametrize(
    "error", [ApiError("forbidden", status=403), ApiUnavailableError("cannot decrypt", status=500)]
)
@in_virtual_time
async def test_a_secret_that_cannot_be_read_keeps_no_other_waiting(error: ApiError) -> None:
    looked_up = LookedUp(error, "secret-0")
    await looked_up.run(3)
    assert looked_up.known() == set(looked_up.keys[1:])
    looked_up.keys.append(("shop", "new"))
    looked_up.look_ups.look_again(("shop", "new"))
    await looked_up.run(6)
    assert ("shop", "new") in looked_up.known()


@in_virtual_time
async def test_secrets_that_cannot_be_read_are_asked_for_one_at_a_time_and_keep_no_other_waiting() -> None:
    """Unreadable Secrets come first in each order; the others are still read at once, and so is a new one at any time."""
    looked_up = LookedUp(ApiUnavailableError("cannot decrypt", status=500))
    looked_up.unread = set(sorted(looked_up.keys)[:5])
    assert await looked_up.look_ups.refresh() is None, "the API is there"
    assert looked_up.known() == set(looked_up.keys) - looked_up.unread
    task = asyncio.create_task(looked_up.look_ups.run())
    asked = looked_up.asked
    for second in range(30):
        await asyncio.sleep(1)
        looked_up.keys.append(("shop", f"new-{second}"))
        looked_up.look_ups.look_again(looked_up.keys[-1])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert looked_up.keys[-1] in looked_up.known()
    assert looked_up.asked - asked - 30 <= 12, "5 s between two tries, regardless of new Secrets"
    looked_up.unread.clear()
    await asyncio.sleep(30)
    assert looked_up.known() == set(looked_up.keys)
    task.cancel()


class AwayGroups:
    """An API without answers that counts requests; once it answers, it keeps writes."""

    def __init__(self, retry_after_seconds: float) -> None:
        self.asked = 0
        self.away = True
        self.written: list[str] = []
        self.error = ApiUnavailableError("GET: no answer")
        self.error.retry_after_seconds = retry_after_seconds

    async def get(self, _resource: Any, name: str, **_: Any) -> Any:
        self.asked += 1
        if self.away:
            raise self.error
        return {"metadata": {"resourceVersion": "1"}, "status": {}}

    async def patch(self, _resource: Any, name: str, _patch: Any, **_: Any) -> None:
        self.written.append(name)


@pytest.mark.parametrize(("retry_after", "most"), [(0.0, 14), (10.0, 6)])
@in_virtual_time
async def test_a_minute_without_an_answer_costs_a_few_tries_to_write_twenty_failovers(
    retry_after: float, most: int
) -> None:
    api = AwayGroups(retry_after)
    history = FailoverHistory(api)  # type: ignore[arg-type]
    history.start()
    for number in range(20):
        history.master_changed(timeline(group=GroupKey("shop", f"g{number}"), epoch_after=5))
    await asyncio.sleep(60)
    asked, api.away = api.asked, False
    await asyncio.sleep(20)
    await history.stop()
    assert sorted(api.written) == sorted(f"g{number}" for number in range(20))
    assert 1 < asked <= most


def test_pauses_double_up_to_the_longest_and_begin_anew_after_an_answer() -> None:
    backoff = Backoff(0.1, 1.0, jitter=lambda: 1.0)
    assert [backoff.next_seconds() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff.next_seconds(7.0) == 7.0
    backoff.reset()
    assert backoff.next_seconds() == 0.1


def test_two_callers_do_not_ask_in_step() -> None:
    pauses = {Backoff(1.0, 8.0).next_seconds() for _ in range(50)}
    assert len(pauses) > 40
    assert all(0.5 <= pause <= 1.0 for pause in pauses)
