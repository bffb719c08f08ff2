"""The operator is killed at an exact write and restarted; the end state is the same (issue 3, "Shown by").

Its API traffic runs through the test's proxy (`api_proxy.py`), which sends SIGKILL at the chosen moment. Each case
then checks the same: the group is Ready, one master, the epoch as without a kill, every acknowledged message present, no more
broker ids than pods, no duplicate pod, no finalizer left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from brokergroup_operator.api import names
from brokergroup_operator.demo.processes import hold
from brokergroup_operator.kube.resources import PODS
from tests.e2e.api_proxy import ApiProxy, Moment, Trap, Write
from tests.e2e.house import NAMESPACE, WholeGroup, kubeconfig_for, settled_group, whole_group
from tests.e2e.stories import a_slave, change, claims_of, holds, pod_uids, up_to_date

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from brokergroup_operator.demo.processes import ChildProcess
    from tests.e2e.house import House

pytestmark = [pytest.mark.longer, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@dataclass
class Mortal:
    """An operator behind a proxy that kills it at a write."""

    house: House
    proxy: ApiProxy
    child: ChildProcess | None = None

    async def start(self) -> None:
        path = kubeconfig_for(self.proxy.url, self.house.folder / "kubeconfig-of-the-proxy")
        self.child = await self.house.start_operator(kubeconfig=path)

    async def kill(self) -> None:
        assert self.child is not None
        await self.house.kill_operator(self.child)

    def dies_at(self, match: Callable[[Write], bool], moment: Moment) -> Trap:
        return self.proxy.set_trap(match, moment, self.kill)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mortal(house: House) -> AsyncIterator[Mortal]:
    """A running operator in this module's house."""
    async with ApiProxy(house.api.url).running() as proxy:
        mortal = Mortal(house, proxy)
        await mortal.start()
        yield mortal
        await mortal.kill()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_group(house: House, mortal: Mortal) -> AsyncIterator[WholeGroup]:
    """A settled group."""
    async with settled_group(house, "orders") as watched:
        yield watched


async def sprung(trap: Trap, group: WholeGroup) -> None:
    await group.until(trap.sprung.is_set, "the write at which the operator dies")


# ---- while a master is replaced


def commits_epoch(epoch: int) -> Callable[[Write], bool]:
    """The PUT of a record in this epoch."""

    def match(write: Write) -> bool:
        is_commit = (write.method, write.kind) == ("PUT", "brokergroupstates")
        return is_commit and write.body["record"]["masterEpoch"] == epoch

    return match


@pytest.mark.parametrize("moment", list(Moment), ids=lambda moment: moment.name.lower())
async def test_at_the_commit_of_an_election(group: WholeGroup, mortal: Mortal, moment: Moment) -> None:
    """ANSWERED is "between commit and notify": the record names a master that does not know its role."""
    epoch, master = group.seen.master_epoch, group.master
    async with group.lossless():
        trap = mortal.dies_at(commits_epoch(epoch + 1), moment)
        group.kill(master)
        await sprung(trap, group)
        await mortal.start()
        await group.until(lambda: group.seen.master_epoch > epoch, "a new epoch")
    # One loss, one epoch: the next process notifies brokers of the committed master instead of electing again.
    assert group.seen.master_epoch == epoch + 1
    assert group.seen.record["nextBrokerId"] == 4


def fences(write: Write) -> bool:
    if (write.method, write.kind) != ("PATCH", "pods") or not isinstance(write.body, dict):
        return False
    return names.FINALIZER_FENCE in write.body.get("metadata", {}).get("finalizers", [])


def deletes_a_pod(write: Write) -> bool:
    return (write.method, write.kind) == ("DELETE", "pods")


@pytest.mark.parametrize(
    ("match", "moment"),
    [(fences, Moment.ANSWERED), (deletes_a_pod, Moment.BEFORE), (deletes_a_pod, Moment.DONE_UNANSWERED)],
    ids=["finalizer placed", "before the kill", "killed, unheard"],
)
async def test_while_a_frozen_master_is_fenced(
    group: WholeGroup, mortal: Mortal, match: Callable[[Write], bool], moment: Moment
) -> None:
    """The fence is only partly set. No finalizer may stay, and the frozen master must not wake beside another one."""
    epoch, master = group.seen.master_epoch, group.master
    async with group.lossless():
        with hold(group.pids()[master] or 0) as frozen:
            trap = mortal.dies_at(match, moment)
            frozen.freeze()
            await sprung(trap, group)
            await mortal.start()
            await group.until(lambda: group.seen.master_epoch > epoch, "a new epoch")
            assert not frozen.thaw(), "the frozen master was alive when another was elected"
    assert group.seen.master_epoch == epoch + 1
    assert group.seen.record["nextBrokerId"] == 4


# ---- while a pod is replaced


def creates_pod(name: str) -> Callable[[Write], bool]:
    return lambda write: write.method in {"POST", "PATCH"} and write.kind == "pods" and write.name == name


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.DONE_UNANSWERED], ids=lambda moment: moment.name.lower())
async def test_while_a_pod_comes_back(group: WholeGroup, mortal: Mortal, moment: Moment) -> None:
    pod = f"orders-{a_slave(group)}"
    uid = (await group.house.api.get(PODS, pod, namespace=NAMESPACE))["metadata"]["uid"]
    epoch = group.seen.master_epoch
    async with group.under_load():

        def is_new(write: Write) -> bool:
            # An apply of the whole pod, not of the role label of an existing one.
            return creates_pod(pod)(write) and "containers" in (write.body or {}).get("spec", {})

        trap = mortal.dies_at(is_new, moment)
        await group.house.api.delete(PODS, pod, namespace=NAMESPACE, grace_period_seconds=0)
        await sprung(trap, group)
        await mortal.start()
        await group.until_settled()
    await group.verify()
    assert (await group.house.api.get(PODS, pod, namespace=NAMESPACE))["metadata"]["uid"] != uid
    assert (group.seen.master_epoch, group.seen.record["nextBrokerId"]) == (epoch, 4)


async def test_as_a_pod_is_told_to_end_by_an_update(group: WholeGroup, mortal: Mortal) -> None:
    """Its replica is in the SyncStateSet, which no operator can change now: until one can, it keeps running, and sends succeed."""
    epoch, before = group.seen.master_epoch, await pod_uids(group)
    async with group.under_load():
        trap = mortal.dies_at(deletes_a_pod, Moment.DONE_UNANSWERED)
        await change(group, {"spec": group.house.newer})
        await sprung(trap, group)
        await group.until_acknowledged()
        await mortal.start()
        await group.until(up_to_date(group), "every pod is a new one", deadline_seconds=120)
    await group.verify()
    assert not set((await pod_uids(group)).values()) & set(before.values())
    assert group.seen.master_epoch == epoch + 1, "mastership moved once, by a switchover"


def orders_a_stop(kind: str) -> Callable[[Write], bool]:
    """The order to a pod's fence, or its note on the claim, and the removal of either."""

    def match(write: Write) -> bool:
        if (write.method, write.kind) != ("PATCH", kind) or not isinstance(write.body, dict):
            return False
        metadata = write.body.get("metadata", {})
        return "spec" not in write.body and names.ANNOTATION_STOPPED in (metadata.get("annotations") or {})

    return match


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.DONE_UNANSWERED], ids=lambda moment: moment.name.lower())
@pytest.mark.parametrize("kind", ["pods", "persistentvolumeclaims"])
async def test_while_a_broker_is_stopped_and_started_again(
    group: WholeGroup, mortal: Mortal, kind: str, moment: Moment
) -> None:
    """Killed at the order, and at its removal: the end is the same, and its pod stays."""
    slave, before, epoch = a_slave(group), await pod_uids(group), group.seen.master_epoch

    def state() -> str:
        return next((one.state for one in group.seen.members() if one.broker_id == slave), "")

    async with group.under_load():
        trap = mortal.dies_at(orders_a_stop(kind), moment)
        await change(group, {"spec": {"maintenance": {"stoppedBrokers": [slave]}}})
        await sprung(trap, group)
        await mortal.start()
        await group.until(lambda: state() == "Stopped" and slave not in group.seen.sync_state_set, "it is stopped")
        await group.until_acknowledged()

        async def noted() -> bool:
            claim = (await claims_of(group))[group.pod_of(slave)]
            return names.ANNOTATION_STOPPED in (claim["metadata"].get("annotations") or {})

        await holds(group, "its claim says so", noted)
        trap = mortal.dies_at(orders_a_stop(kind), moment)
        await change(group, {"spec": {"maintenance": {"stoppedBrokers": []}}})
        await sprung(trap, group)
        await mortal.start()
        await group.until(group.is_settled, "it is in sync again")
    await group.verify()
    assert await pod_uids(group) == before
    assert group.seen.master_epoch == epoch
    assert not await noted()


# ---- while a group is created: each case creates its own group of two, which starts faster than three


def record_of(name: str, holds: Callable[[dict[str, Any]], bool]) -> Callable[[Write], bool]:
    def match(write: Write) -> bool:
        written = write.kind == "brokergroupstates" and write.method in {"POST", "PUT"} and write.name == name
        return written and holds(write.body["record"])

    return match


def replica_of(record: dict[str, Any], broker_id: int) -> dict[str, Any]:
    return next((item for item in record["replicas"] if item["brokerId"] == broker_id), {})


BIRTHS: dict[str, tuple[Callable[[str], Callable[[Write], bool]], Moment]] = {
    # Between the id's reservation and the pod's creation.
    "id-reserved": (lambda name: record_of(name, lambda record: record["nextBrokerId"] == 2), Moment.ANSWERED),
    "id-reserved-unheard": (
        lambda name: record_of(name, lambda record: record["nextBrokerId"] == 2),
        Moment.DONE_UNANSWERED,
    ),
    # Between the pod's creation and its entry in the record.
    "pod-created": (lambda name: creates_pod(f"{name}-1"), Moment.DONE_UNANSWERED),
    "id-claimed-unheard": (
        lambda name: record_of(name, lambda record: bool(replica_of(record, 1).get("registerCheckCode"))),
        Moment.DONE_UNANSWERED,
    ),
    "first-master-unheard": (
        lambda name: record_of(name, lambda record: record["masterEpoch"] == 1),
        Moment.DONE_UNANSWERED,
    ),
}


@pytest.mark.parametrize("birth", list(BIRTHS))
async def test_while_a_group_is_made(house: House, mortal: Mortal, birth: str) -> None:
    name = f"g-{birth}"
    matching, moment = BIRTHS[birth]
    async with whole_group(house, name, replicas=2) as group:
        trap = mortal.dies_at(matching(name), moment)
        await house.create_group(name, replicas=2)
        await sprung(trap, group)
        await mortal.start()
        async with group.under_load():
            await group.until_settled()
        await group.verify()
        assert group.seen.record["nextBrokerId"] == 3
        # A master that did not get its role registers again, as a new process would: rule 6.
        assert group.seen.master_epoch <= (2 if birth == "first-master-unheard" else 1)
        await house.delete_group(name)
