"""`spec.updateStrategy.windows` under load: outside them nothing that works is restarted, within them, and by an operation, it is.

Runs in the sandbox and at a real API server.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
import pytest_asyncio

from brokergroup_operator.kube.resources import PODS
from brokergroup_operator.reconcile.decide.windows import WEEKDAYS
from tests.e2e.house import NAMESPACE, House, WholeGroup
from tests.e2e.stories import a_slave, change, condition, done, events, holds, objects_of, pod_uids, up_to_date

pytestmark = [pytest.mark.longer, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]
ALWAYS: dict[str, Any] = {"start": "00:00", "durationMinutes": 1440}
# Long enough for the group to be seen outside its window, even on a busy machine.
AWAY = dt.timedelta(seconds=90)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(any_house: House) -> House:
    """Each house in turn."""
    return any_house


def days_away() -> dict[str, Any]:
    """A window that is closed now, and for the next days."""
    return ALWAYS | {"days": [WEEKDAYS[(dt.datetime.now(dt.UTC).weekday() + 3) % 7]]}


def with_another_size(size: str, *windows: dict[str, Any]) -> dict[str, Any]:
    """A cold key: each pod has to be replaced for it."""
    return {"spec": {"config": {"maxMessageSize": size}, "updateStrategy": {"windows": list(windows)}}}


async def test_outside_its_windows_no_pod_is_restarted_but_what_is_lost_comes_back(group: WholeGroup) -> None:
    """And a user's operations are carried out. Within its window, the rest is rolled."""
    before, epoch, lost = await pod_uids(group), group.seen.master_epoch, f"{group.name}-{a_slave(group)}"
    async with group.lossless():
        await change(group, with_another_size("4194304", days_away()))
        await group.until(lambda: condition(group, "UpToDate") == ("False", "OutsideWindow"), "it says that it waits")
        await group.until_acknowledged()
        await group.house.api.delete(PODS, lost, namespace=NAMESPACE)
        await holds(group, "the lost pod is made again", lambda: is_another(group, lost, before[lost]))
        await group.until_settled()
        await done(group, "Switchover")
        await group.until(lambda: group.seen.master_epoch == epoch + 1, "the master moved, as it was asked to")
        await group.until(lambda: condition(group, "UpToDate") == ("False", "OutsideWindow"), "the rest still waits")
        after = await pod_uids(group)
        assert {name for name, uid in after.items() if uid != before[name]} == {lost}
        await change(group, {"spec": {"updateStrategy": {"windows": [ALWAYS]}}})
        await group.until(up_to_date(group), "the window is open: the rest is rolled", deadline_seconds=120)
    rolled = await pod_uids(group)
    assert {name for name, uid in rolled.items() if uid != after[name]} == set(before) - {lost}


async def is_another(group: WholeGroup, pod: str, old_uid: str) -> bool:
    return (await pod_uids(group)).get(pod, old_uid) != old_uid


async def test_a_restart_does_not_wait(group: WholeGroup) -> None:
    before = await pod_uids(group)
    async with group.lossless():
        await change(group, with_another_size("4194305", days_away()))
        await group.until(lambda: condition(group, "UpToDate") == ("False", "OutsideWindow"), "it says that it waits")
        assert await pod_uids(group) == before
        await done(group, "Restart")
        await group.until(up_to_date(group), "every pod has the spec", deadline_seconds=120)
    assert not set((await pod_uids(group)).values()) & set(before.values())


async def test_an_update_begins_by_itself_when_its_window_opens(group: WholeGroup) -> None:
    before, opens = await pod_uids(group), (dt.datetime.now(dt.UTC) + AWAY).replace(second=0, microsecond=0)
    async with group.lossless():
        await change(group, with_another_size("4194306", {"start": f"{opens:%H:%M}", "durationMinutes": 600}))
        await group.until(up_to_date(group), "every pod has the spec", deadline_seconds=240)
    assert "RollingUpdateWaits" in await events(group)
    pods = await objects_of(group, PODS)
    assert not {pod["metadata"]["uid"] for pod in pods.values()} & set(before.values())
    made = [dt.datetime.fromisoformat(pod["metadata"]["creationTimestamp"]) for pod in pods.values()]
    assert min(made) >= opens, "none was replaced before"
