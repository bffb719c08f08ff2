"""What a pass reads: nothing if the watches know enough, everything before it acts, and operations read nothing twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kube.errors import ApiUnavailableError, NotFoundError
from brokergroup_operator.kube.resources import (
    BROKER_GROUP_OPERATIONS,
    BROKER_GROUP_STATES,
    BROKER_GROUPS,
    CONFIG_MAPS,
    PERSISTENT_VOLUME_CLAIMS,
    POD_DISRUPTION_BUDGETS,
    PODS,
    SERVICES,
)
from brokergroup_operator.kube.trimmed import trimmed_all
from brokergroup_operator.reconcile.access import ClusterAccess
from brokergroup_operator.reconcile.act.apply import PlanApplier
from brokergroup_operator.reconcile.operations.runner import OperationRunner
from brokergroup_operator.reconcile.other_groups import BrokerNames
from brokergroup_operator.reconcile.reconciler import GroupPass, Reconciler
from brokergroup_operator.reconcile.run.plane import ReconcilePlane
from brokergroup_operator.reconcile.see.fetch import GroupFetcher
from brokergroup_operator.reconcile.tell.events import EventPoster
from brokergroup_operator.records.group_cache import LABELLED, MANAGERS, WATCHED, GroupCache
from kube_sandbox.api_server.errors import StatusError
from tests.reconcile.world import KEY, SETTINGS, World, applier_for, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.kube.resources import Resource
    from kube_sandbox.api_server.server import SandboxApiServer


W = TypeVar("W", bound="CachedWorld")


class CachedWorld(World):
    """A settled group of three, and a cache that has seen it."""

    sandbox: SandboxApiServer

    async def requests(self) -> Requests:
        """Run a pass, and return what it requested."""
        found = Requests(self.sandbox)
        await self.run_pass()
        return found

    async def only_reads(self) -> None:
        """Assert that a pass looks at the API, and writes nothing."""
        requests = await self.requests()
        assert requests.reads != []
        assert requests.writes == []

    async def fill(self) -> None:
        """Fill the cache as the watches would have done by now."""
        for resource in WATCHED:
            selector = names.LABEL_BROKER_GROUP if resource in LABELLED else ""
            listed = await self.api.list(resource, namespace=KEY.namespace, label_selector=selector)
            self.cache.take_in(resource, await trimmed_all(listed.items, MANAGERS), heard=self.cache.heard)


class Requests:
    """What was requested, by method."""

    def __init__(self, sandbox: SandboxApiServer) -> None:
        self.reads: list[str] = []
        self.writes: list[str] = []
        sandbox.before_request = self._note

    def _note(self, request: Any) -> None:
        (self.reads if request.method == "GET" else self.writes).append(f"{request.method} {request.path}")


@asynccontextmanager
async def brought_up(made: W, sandbox: SandboxApiServer) -> AsyncIterator[W]:
    made.sandbox = sandbox
    await made.bring_up(sandbox)
    made.cache = GroupCache()
    yield made
    await made.close()


@pytest.fixture
async def world(sandbox: SandboxApiServer, api: KubernetesApi) -> AsyncIterator[CachedWorld]:
    async with brought_up(CachedWorld(api, applier_for(ClusterAccess(url=sandbox.url)), KEY), sandbox) as made:
        await made.fill()
        yield made


async def test_a_settled_group_costs_no_request(world: CachedWorld) -> None:
    requests = await world.requests()
    assert (requests.reads, requests.writes) == ([], [])


async def test_what_the_plane_lists_is_trimmed(world: CachedWorld, sandbox: SandboxApiServer) -> None:
    """Objects that were listed stay in the cache until a watch brings newer ones."""
    plane = ReconcilePlane(world.api, ClusterAccess(url=sandbox.url), world.view, SETTINGS)
    for resource in (BROKER_GROUPS, PODS, SERVICES):
        whole = (await world.api.list(resource)).items
        assert any(
            set(entry) > {"manager", "time", "fieldsV1"} for obj in whole for entry in obj["metadata"]["managedFields"]
        )
        for obj in await plane._list(resource):
            for entry in obj["metadata"].get("managedFields", []):
                assert entry["manager"] in MANAGERS
                assert set(entry) <= {"manager", "time", "fieldsV1"}


@pytest.mark.parametrize(
    "resource",
    [BROKER_GROUPS, BROKER_GROUP_STATES, PODS, PERSISTENT_VOLUME_CLAIMS, SERVICES, CONFIG_MAPS, POD_DISRUPTION_BUDGETS],
    ids=lambda resource: resource.plural,
)
async def test_what_a_cache_lacks_is_looked_for_and_not_made_again(world: CachedWorld, resource: Resource) -> None:
    """A wrongly assumed absence costs most: a pod made twice, a claim taken for lost, another id reserved."""
    world.cache.hold(resource, world.cache.all(resource, KEY)[0], is_gone=True)
    await world.only_reads()


async def test_what_a_cache_still_shows_is_not_deleted_nor_counted_on(world: CachedWorld) -> None:
    """An older spec has fewer members: only a read of the API may decide that a member leaves."""
    (group,) = world.cache.all(BROKER_GROUPS, KEY)
    older = group | {"spec": group["spec"] | {"replicas": 2}}
    world.cache.hold(BROKER_GROUPS, older | {"metadata": group["metadata"] | {"resourceVersion": "1"}})
    await world.only_reads()


async def test_nothing_is_concluded_before_every_kind_was_listed(world: CachedWorld) -> None:
    world.cache = GroupCache()
    await world.only_reads()


async def test_a_spec_older_than_the_watch_has_shown_decides_nothing(world: CachedWorld) -> None:
    """By the spec of before, a member that was just added would have to leave."""
    (group,) = world.cache.all(BROKER_GROUPS, KEY)
    later = {"resourceVersion": "999999", "generation": group["metadata"]["generation"] + 1}
    newer = group | {"spec": group["spec"] | {"replicas": 4}, "metadata": group["metadata"] | later}
    world.cache.hold(BROKER_GROUPS, newer)
    requests = Requests(world.sandbox)
    with pytest.raises(ApiUnavailableError, match="was read in generation 2, and its watch has shown 3"):
        await world.run_pass()
    assert requests.writes == []


async def test_a_record_that_the_controller_plane_knows_to_be_newer_is_read(world: CachedWorld) -> None:
    """Otherwise the role label of a new master, by which its Service selects, would wait for the watch."""
    await world.view.make_master(KEY, 3)
    requests = await world.requests()
    assert any(path.startswith("PATCH") and "/pods/" in path for path in requests.writes)


async def test_a_lost_pod_comes_back_once_the_cache_shows_it(world: CachedWorld) -> None:
    await world.lose_pod("orders-2")
    world.cache.hold(PODS, world.cache.by_name(PODS, KEY)["orders-2"], is_gone=True)
    requests = await world.requests()
    assert any(path.startswith("PATCH") and path.endswith("/pods/orders-2") for path in requests.writes)


async def test_a_pod_deleted_between_the_planes_list_and_the_watchs_own_is_made_again_at_once(
    world: CachedWorld, sandbox: SandboxApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache has the pod from the plane's list; the watch lists after the deletion, and brings no event of it."""
    has_listed, was_deleted = asyncio.Event(), asyncio.Event()

    def wait_for_deletion(request: Any) -> Any:
        of_kopf = request.headers.get("User-Agent", "").startswith("kopf")
        return was_deleted.wait() if of_kopf and request.path.endswith("/pods") else None

    sandbox.before_request = wait_for_deletion
    plane = ReconcilePlane(
        world.api, ClusterAccess(url=sandbox.url), world.view, replace(SETTINGS, resync_seconds=600.0)
    )
    resync = plane._resync

    async def listed(*arguments: Any) -> None:
        await resync(*arguments)
        has_listed.set()

    monkeypatch.setattr(plane, "_resync", listed)
    await plane.start()
    try:
        await has_listed.wait()
        await world.lose_pod("orders-2")
        was_deleted.set()
        await until("orders-2 again", lambda: has_pod(world, "orders-2"))
    finally:
        was_deleted.set()
        await plane.stop()


async def has_pod(world: CachedWorld, name: str) -> bool:
    return any(pod["metadata"]["name"] == name for pod in (await world.api.list(PODS, namespace=KEY.namespace)).items)


OVER = {"Succeeded", "Failed", "Rejected"}
MOST_PASSES = 60


class OperatedWorld(CachedWorld):
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
            settings=SETTINGS,
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
        """The controller plane no longer hears this broker."""
        snapshot = self.view.snapshots[KEY]
        live = {one: heard for one, heard in snapshot.live.items() if one != broker_id}
        self.view.snapshots[KEY] = replace(snapshot, live=live)

    async def pass_over_both(self) -> list[str]:
        """Run one pass over group and operations; return the paths that it read."""
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
async def operated(sandbox: SandboxApiServer, api: KubernetesApi) -> AsyncIterator[OperatedWorld]:
    async with brought_up(OperatedWorld(api, applier_for(ClusterAccess(url=sandbox.url)), KEY), sandbox) as made:
        await made.begin_to_operate(sandbox)
        yield made
        await made.runner.stop()


def count_of(reads: list[str], plural: str) -> int:
    return Counter(path.rsplit("/", 1)[-1] for path in reads)[plural]


async def test_a_pass_that_changed_nothing_has_read_for_its_operations(operated: OperatedWorld) -> None:
    await operated.ask("Switchover", toBrokerId=2)
    reads = await operated.pass_over_both()
    assert await operated.phase() == "Running"
    for plural in ("brokergroupoperations", "pods", "persistentvolumeclaims"):
        assert count_of(reads, plural) == 1, plural


async def test_what_the_watches_said_begins_no_operation(operated: OperatedWorld) -> None:
    """By its cache the group has nothing to do. A requested operation begins after a read of the API, and of only what it needs."""
    await operated.ask("Switchover", toBrokerId=2)
    await operated.fill()
    reads = await operated.pass_over_both()
    assert await operated.phase() == "Running"
    assert len(reads) == 5, reads
    assert count_of(reads, "services") == 0


async def test_what_a_pass_changed_is_read_anew_before_an_operation_begins(operated: OperatedWorld) -> None:
    await operated.lose_pod("orders-3")
    await operated.ask("Switchover", toBrokerId=2)
    reads = await operated.pass_over_both()
    assert count_of(reads, "brokergroupoperations") == 2


async def test_a_group_that_changed_while_it_was_read_is_read_anew_before_an_operation_begins(
    operated: OperatedWorld,
) -> None:
    """A read may take seconds; by then a master that an operation would stop may be the only member left."""
    await operated.ask("Switchover", toBrokerId=2)
    operated.as_listed["services"] = lambda: operated.lose(2)
    reads = await operated.pass_over_both()
    assert count_of(reads, "brokergroupoperations") >= 2
    assert await operated.phase() != "Running"


async def test_a_list_of_operations_that_is_not_there_gives_up_nothing(
    operated: OperatedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kind may be missing for a moment, while its definition is written anew."""

    async def never(*_args: Any, **_options: Any) -> Any:
        await asyncio.Event().wait()

    def missing() -> None:
        raise StatusError(404, "NotFound", "no such kind")

    monkeypatch.setattr(operated.view, "switch_master", never)
    await operated.ask("Switchover", toBrokerId=2)
    await operated.pass_over_both()
    await operated.pass_over_both()
    assert [one.running for one in operated.runner.outcomes(KEY).values()] == [True]
    operated.as_listed["brokergroupoperations"] = missing
    with pytest.raises(NotFoundError):
        await operated.pass_over_both()
    assert [one.running for one in operated.runner.outcomes(KEY).values()] == [True]


async def test_a_rejection_takes_two_looks(operated: OperatedWorld) -> None:
    """One answer may be stale, and a rejection is final."""
    await operated.ask("Switchover", toBrokerId=9)
    reads = await operated.pass_over_both()
    assert await operated.phase() == "Rejected"
    assert count_of(reads, "brokergroupoperations") == 2


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
    operated: OperatedWorld, kind: str, section: dict[str, Any], is_watched: bool, most: int
) -> None:
    """From its creation to its end. `is_watched`: the watches have delivered everything before each pass; otherwise nothing."""
    await operated.ask(kind, **section)
    reads, passes = 0, 0
    while await operated.phase() not in OVER:
        assert passes < MOST_PASSES
        if is_watched:
            await operated.fill()
        reads, passes = reads + len(await operated.pass_over_both()), passes + 1
        await operated.run_kubelet()
        await operated.run_brokers()
    assert await operated.phase() == "Succeeded"
    print(f"{kind}: {reads} reads in {passes} passes")
    assert reads <= most


@pytest.mark.parametrize(("owner", "counts"), [(None, True), ("this", True), ("another", False)])
async def test_a_rebuild_of_an_earlier_group_of_this_name_costs_the_new_one_no_volume(
    sandbox_world: World, api: KubernetesApi, owner: str | None, counts: bool
) -> None:
    """Deleted and made again between two passes: what ran stays Running until the garbage collector comes."""
    world, key = sandbox_world, sandbox_world.key
    await world.create_group()
    await world.run_operation("Rebuild", rebuild={"brokerId": 1})
    fetcher = GroupFetcher(api, world.view)
    before = await fetcher.fetch(key)
    assert before is not None
    if owner is not None:
        uid = before.group_object["metadata"]["uid"] if owner == "this" else "of-an-earlier-one"
        reference = {"apiVersion": names.API_VERSION, "kind": names.BROKER_GROUP_KIND, "name": key.name, "uid": uid}
        owned = {"metadata": {"ownerReferences": [reference]}}
        await world.patch(BROKER_GROUP_OPERATIONS, "rebuild", owned)
    after = await fetcher.fetch(key)
    assert after is not None
    assert (after.operation is not None) == counts
