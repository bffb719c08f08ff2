"""How often the API is asked while it does not answer, in virtual time: each failure doubles the pause, Retry-After is kept."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import TYPE_CHECKING, Any

import looptime
import pytest

from brokergroup_operator.controller.directory.group_directory import GroupBinding
from brokergroup_operator.controller.group.group import Group
from brokergroup_operator.controller.settings import PlaneSettings
from brokergroup_operator.kube.backoff import Backoff
from brokergroup_operator.kube.errors import ApiUnavailableError
from brokergroup_operator.observe.observer import Observer
from brokergroup_operator.records.kubernetes import KubernetesRecordStore
from brokergroup_operator.records.serialize import record_to_json
from brokergroup_operator.records.store import GroupKey, RecordUnavailableError
from controller_core.model import BrokerGroupRecord
from controller_core.settings import ControllerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

KEY = GroupKey("shop", "orders")
RECORD = BrokerGroupRecord(cluster_name="c", broker_name="b", next_broker_id=1)


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs the test on a loop whose sleeps take no time."""

    @functools.wraps(test)
    def sync_test(**arguments: Any) -> None:
        loop = looptime.new_event_loop()
        try:
            loop.run_until_complete(test(**arguments))
        finally:
            loop.close()

    return sync_test


class AwayApi:
    """Counts GETs; each hangs until its time is up, or fails at once, perhaps with Retry-After."""

    url = "http://away"

    def __init__(self, *, hangs: bool = False, retry_after_seconds: float = 0.0) -> None:
        self.hangs, self.retry_after_seconds = hangs, retry_after_seconds
        self.asked: list[float] = []
        self.answers = False

    async def get(
        self, _resource: Any, _name: str, *, namespace: str | None = None, timeout_seconds: float = 5.0
    ) -> Any:
        self.asked.append(asyncio.get_running_loop().time())
        if self.answers:
            metadata = {"namespace": namespace, "name": _name, "uid": "u", "resourceVersion": "1"}
            return {"metadata": metadata, "record": record_to_json(RECORD)}
        if self.hangs:
            await asyncio.sleep(timeout_seconds)
        error = ApiUnavailableError("GET: no answer")
        error.retry_after_seconds = self.retry_after_seconds
        raise error


def _group(api: AwayApi) -> Group:
    binding = GroupBinding(key=KEY, cluster_name="c", broker_name="b", settings=ControllerSettings())
    store = KubernetesRecordStore(api)  # type: ignore[arg-type]
    return Group(binding, store=store, settings=PlaneSettings(), observer=Observer(), on_change=lambda _: None)


async def _polls(group: Group) -> None:
    """A broker that polls every half second, as three of them do."""
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
    """12 pollers of one group: their number does not count, for whoever waited for a read shares how it ended."""
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
    """A decision reads the store without regard to the pause of those that only look."""
    api = AwayApi()
    group = _group(api)
    with pytest.raises(RecordUnavailableError):
        await group.load()
    assert not group.store_may_be_asked
    api.answers = True
    asked, begun = len(api.asked), asyncio.get_running_loop().time()
    await group._read(1.8)
    assert len(api.asked) == asked + 1
    assert asyncio.get_running_loop().time() - begun < 0.001
    assert group.store_may_be_asked


@in_virtual_time
async def test_the_error_says_for_how_long_the_server_wants_to_be_left_alone() -> None:
    api = AwayApi(retry_after_seconds=10.0)
    with pytest.raises(RecordUnavailableError) as raised:
        await KubernetesRecordStore(api).read(KEY, deadline_seconds=1.8)  # type: ignore[arg-type]
    assert raised.value.retry_after_seconds > 9.0
    assert len(api.asked) == 2, "one last try within the deadline"


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
