"""A group's operations go by the view of the pass over the group: what that has read is not read a second time."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kube.errors import NotFoundError
from brokergroup_operator.kube.resources import BROKER_GROUP_OPERATIONS, PODS
from brokergroup_operator.reconcile.access import ClusterAccess
from brokergroup_operator.reconcile.act.apply import PlanApplier
from brokergroup_operator.reconcile.operations.runner import OperationRunner
from brokergroup_operator.reconcile.other_groups import BrokerNames
from brokergroup_operator.reconcile.reconciler import GroupPass, Reconciler
from brokergroup_operator.reconcile.see.fetch import GroupFetcher
from brokergroup_operator.reconcile.tell.events import EventPoster
from brokergroup_operator.records.group_cache import LABELLED, WATCHED, GroupCache
from brokergroup_operator.records.store import GroupKey
from kube_sandbox.api_server.errors import StatusError
from tests.reconcile.world import SETTINGS, World, applier_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from brokergroup_operator.kube.client import KubernetesApi
    from kube_sandbox.api_server.server import SandboxApiServer

KEY = GroupKey("default", "orders")
OVER = {"Succeeded", "Failed", "Rejected"}
MOST_PASSES = 60


class OperatedWorld(World):
    """A settled group of three whose operations are run too, and what each pass reads."""

    async def begin_to_operate(self, sandbox: SandboxApiServer) -> None:
        self.reads: list[str] = []
        self._counts = False
        # Of a kind's plural: what happens as it is listed.
        self.as_listed: dict[str, Callable[[], None]] = {}
        sandbox.before_request = self._note
        fetcher = GroupFetcher(self.api, self.view, cache=self.cache)
        events = EventPoster(self.api, instance="test")
        applier = PlanApplier(api=self.api, applier=self.applier, view=self.view, events=events)
        reconciler = Reconciler(fetcher, applier, SETTINGS, self.turns, BrokerNames())
        self.runner = OperationRunner(
            self.api,
            self.view,
            operator=None,
            read=fetcher.fetch_for_operations,
            post=events.post,
            wake=lambda _key: None,
        )
        self._both = GroupPass(reconciler, self.runner)

    def _note(self, request: Any) -> None:
        if self._counts and request.method == "GET":
            self.reads.append(request.path)
            self.as_listed.get(request.path.rsplit("/", 1)[-1], lambda: None)()

    def lose(self, broker_id: int) -> None:
        """The controller plane does not hear it any more."""
        snapshot = self.view.snapshots[KEY]
        live = {one: heard for one, heard in snapshot.live.items() if one != broker_id}
        self.view.snapshots[KEY] = replace(snapshot, live=live)

    async def watched(self) -> None:
        """The watches have said everything."""
        for resource in WATCHED:
            selector = names.LABEL_BROKER_GROUP if resource in LABELLED else ""
            listed = await self.api.list(resource, namespace=KEY.namespace, label_selector=selector)
            self.cache.take_in(resource, listed.items, heard=self.cache.heard)

    async def pass_over_both(self) -> list[str]:
        """One pass; returns what it read."""
        self.reads, self._counts = [], True
        await self._both.run(KEY)
        self._counts = False
        return self.reads

    async def ask(self, kind: str, **section: Any) -> None:
        spec = {"brokerGroupRef": {"name": KEY.name}, "type": kind, kind.lower(): section}
        metadata = {"name": "asked", "namespace": KEY.namespace}
        await self.api.create(BROKER_GROUP_OPERATIONS, {"metadata": metadata, "spec": spec})

    async def phase(self) -> str:
        found = await self.api.get(BROKER_GROUP_OPERATIONS, "asked", namespace=KEY.namespace)
        return str((found.get("status") or {}).get("phase", ""))


@pytest.fixture
async def world(sandbox: SandboxApiServer, api: KubernetesApi) -> AsyncIterator[OperatedWorld]:
    applier = applier_for(ClusterAccess(url=sandbox.url))
    made = OperatedWorld(api, applier, KEY)
    await made.bring_up(sandbox)
    made.cache = GroupCache()
    await made.begin_to_operate(sandbox)
    yield made
    await made.runner.stop()
    await applier.close()


def of(reads: list[str], plural: str) -> int:
    return Counter(path.rsplit("/", 1)[-1] for path in reads)[plural]


async def test_a_pass_that_changed_nothing_has_read_for_its_operations(world: OperatedWorld) -> None:
    await world.ask("Switchover", toBrokerId=2)
    reads = await world.pass_over_both()
    assert await world.phase() == "Running"
    assert {plural: of(reads, plural) for plural in ("brokergroupoperations", "pods", "persistentvolumeclaims")} == {
        "brokergroupoperations": 1,
        "pods": 1,
        "persistentvolumeclaims": 1,
    }


async def test_what_the_watches_said_begins_no_operation(world: OperatedWorld) -> None:
    """The group has nothing to do by its cache; what is asked of it is begun by a read of the API, and of no more than it needs."""
    await world.ask("Switchover", toBrokerId=2)
    await world.watched()
    reads = await world.pass_over_both()
    assert await world.phase() == "Running"
    assert len(reads) == 5, reads
    assert of(reads, "services") == 0


async def test_what_a_pass_changed_is_read_anew_before_an_operation_begins(world: OperatedWorld) -> None:
    await world.api.delete(PODS, "orders-3", namespace=KEY.namespace)
    await world.stop_pod("orders-3")
    await world.ask("Switchover", toBrokerId=2)
    reads = await world.pass_over_both()
    assert of(reads, "brokergroupoperations") == 2


async def test_a_group_that_changed_while_it_was_read_is_read_anew_before_an_operation_begins(
    world: OperatedWorld,
) -> None:
    """A read may take seconds; by then a master that an operation would stop may be the only member left."""
    await world.ask("Switchover", toBrokerId=2)
    world.as_listed["services"] = lambda: world.lose(2)
    reads = await world.pass_over_both()
    assert of(reads, "brokergroupoperations") >= 2
    assert await world.phase() != "Running"


async def test_a_list_of_operations_that_is_not_there_gives_up_nothing(
    world: OperatedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kind may be missing for a moment, while its definition is written anew."""

    async def never(*_args: Any, **_options: Any) -> Any:
        await asyncio.Event().wait()

    def missing() -> None:
        raise StatusError(404, "NotFound", "no such kind")

    monkeypatch.setattr(world.view, "switch_master", never)
    await world.ask("Switchover", toBrokerId=2)
    await world.pass_over_both()
    await world.pass_over_both()
    assert [one.running for one in world.runner.outcomes(KEY).values()] == [True]
    world.as_listed["brokergroupoperations"] = missing
    with pytest.raises(NotFoundError):
        await world.pass_over_both()
    assert [one.running for one in world.runner.outcomes(KEY).values()] == [True]


async def test_a_rejection_takes_two_looks(world: OperatedWorld) -> None:
    """One answer may have been from the past, and there is no way back."""
    await world.ask("Switchover", toBrokerId=9)
    reads = await world.pass_over_both()
    assert await world.phase() == "Rejected"
    assert of(reads, "brokergroupoperations") == 2


@pytest.mark.parametrize(
    ("kind", "section", "is_watched", "most"),
    [
        ("Switchover", {"toBrokerId": 2}, True, 26),
        ("Switchover", {"toBrokerId": 2}, False, 36),
        ("Decommission", {"brokerId": 3}, True, 46),
        ("Decommission", {"brokerId": 3}, False, 52),
    ],
)
async def test_the_reads_of_an_operation(
    world: OperatedWorld, kind: str, section: dict[str, Any], is_watched: bool, most: int
) -> None:
    """From its creation to its end. `is_watched`: the watches have said everything before each pass; else they say nothing."""
    await world.ask(kind, **section)
    reads, passes = 0, 0
    while await world.phase() not in OVER:
        assert passes < MOST_PASSES
        if is_watched:
            await world.watched()
        reads, passes = reads + len(await world.pass_over_both()), passes + 1
        await world.run_kubelet()
        await world.run_brokers()
    assert await world.phase() == "Succeeded"
    print(f"{kind}: {reads} reads in {passes} passes")
    assert reads <= most
