"""What the API server refuses, and a group that the operator can't read: each is reported once, and ends with a whole pass."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kube.errors import ApiError, ApiUnavailableError, InvalidError, WebhookAwayError
from brokergroup_operator.kube.resources import BROKER_GROUPS, EVENTS, PERSISTENT_VOLUME_CLAIMS, PODS, SERVICES
from brokergroup_operator.observe.group_view import GroupUnknownError
from brokergroup_operator.reconcile import plan as plans
from brokergroup_operator.reconcile.act.refusals import NodePortTakenError
from brokergroup_operator.reconcile.other_groups import BrokerNames, RollingTurns
from brokergroup_operator.reconcile.reconciler import Reconciler
from brokergroup_operator.reconcile.see import fetch
from brokergroup_operator.reconcile.see.fetch import UnreadableGroupError
from brokergroup_operator.reconcile.see.foreign import NameTakenError
from brokergroup_operator.reconcile.see.observed import claim_size
from brokergroup_operator.reconcile.settings import LeaderElectionSettings
from kube_sandbox.api_server.errors import StatusError
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.world import uids_of, until

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed
    from kube_sandbox.api_server.server import SandboxApiServer
    from tests.reconcile.world import World


REFUSED = InvalidError("Pod orders-1: spec.nonsense")
AWAY = ApiUnavailableError("no answer in time")
WEBHOOK_IS_AWAY = (
    'Internal error occurred: failed calling webhook "mservice.elbv2.k8s.aws": failed to call webhook: Post'
    ' "https://webhook.kube-system.svc:443/mutate": no endpoints available for service "webhook"'
)


class Cluster:
    """One group, whose status is kept, and whose passes end as the test says: with an error, or carried out (None)."""

    def __init__(self) -> None:
        self.seen = b.settled()
        self.ends: list[Exception | None] = []
        self.events: list[str] = []

    async def look(self, _key: Any) -> None:
        """The cache is empty: each pass reads."""

    async def fetch(self, _key: Any) -> Observed:
        return self.seen

    async def take(self, group_object: Any, **_: Any) -> Any:
        return group_object

    async def carry_out(self, _key: Any, plan: plans.Plan, _seen: Observed) -> int:
        for action in plan.actions:
            if isinstance(action, plans.WriteStatus):
                self.seen = replace(self.seen, group_object=self.seen.group_object | {"status": action.status})
                self.events += [note.reason for note in action.notes]
        end = self.ends.pop(0)
        if end is not None:
            raise end
        return 0

    def new_reconciler(self) -> Reconciler:
        turns = RollingTurns(1, wake=lambda _: None)
        return Reconciler(cast("Any", self), cast("Any", self), b.SETTINGS, turns, BrokerNames())

    async def passes(self, reconciler: Reconciler, *ends: Exception | None) -> list[str]:
        """Return the reason of `Stalled` after each pass."""
        told = []
        for end in ends:
            self.ends.append(end)
            with contextlib.suppress(ApiError):
                await reconciler.run_pass(b.KEY)
            told.append(self.stalled())
        return told

    def stalled(self) -> str:
        conditions = self.seen.group_object["status"]["conditions"]
        [found] = [one for one in conditions if one["type"] == "Stalled"]
        return str(found["reason"])


@pytest.mark.parametrize("cut_short", [AWAY, GroupUnknownError("not yet")], ids=["the API is away", "unknown yet"])
async def test_a_pass_that_was_cut_short_proves_nothing(cut_short: Exception) -> None:
    cluster = Cluster()
    told = await cluster.passes(cluster.new_reconciler(), REFUSED, REFUSED, cut_short, REFUSED, REFUSED, None, None)
    assert told == ["NothingStalled", *5 * ["InvalidSpec"], "NothingStalled"]
    assert cluster.events == ["InvalidSpec"]


async def test_a_group_that_the_controller_plane_does_not_know_is_looked_at_ever_more_seldom() -> None:
    """It was looked at five times a second all that time."""
    cluster = Cluster()
    reconciler = cluster.new_reconciler()

    async def pauses(*ends: Exception | None) -> list[float | None]:
        cluster.ends += ends
        return [(await reconciler.run_pass(b.KEY)).look_again_seconds for _ in ends]

    assert await pauses(*8 * [GroupUnknownError("not yet")]) == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    await pauses(None)
    assert await pauses(GroupUnknownError("not yet")) == [0.2]


@pytest.mark.parametrize(
    "error", [REFUSED, NodePortTakenError("port 30001 is orders-b's"), NameTakenError("Service orders is taken")]
)
async def test_the_next_plane_goes_on_from_what_the_status_says(error: Exception) -> None:
    cluster = Cluster()
    [_, reason] = await cluster.passes(cluster.new_reconciler(), error, error)
    assert reason != "NothingStalled"
    told = await cluster.passes(cluster.new_reconciler(), error, error, None, None)
    assert told == [reason, reason, reason, "NothingStalled"]
    assert cluster.events == [reason]


async def test_what_was_said_of_an_earlier_spec_is_not_held_against_the_present_one() -> None:
    cluster = Cluster()
    await cluster.passes(cluster.new_reconciler(), REFUSED, REFUSED)
    cluster.seen = c.with_metadata(cluster.seen, generation=4)
    assert await cluster.passes(cluster.new_reconciler(), None) == ["NothingStalled"]


COMPLAINT = "Invalid enum value 'Cobol' - at `$.spec.implementation`"
PASSES = 4


@pytest.fixture
async def world(sandbox: SandboxApiServer, sandbox_world: World) -> World:
    await sandbox_world.bring_up(sandbox)
    return sandbox_world


async def conditions(world: World) -> dict[str, tuple[str, str]]:
    return {kind: (one["status"], one["reason"]) for kind, one in (await world.conditions()).items()}


async def events(world: World) -> Counter[str]:
    listed = await world.api.list(EVENTS, namespace=world.key.namespace)
    return Counter(one["reason"] for one in listed.items)


async def failing_passes(world: World, error: type[Exception]) -> None:
    reconciler = world.new_reconciler()
    for _ in range(PASSES):
        with pytest.raises(error):
            await reconciler.run_pass(world.key)


def refuse_to_read(group_object: dict[str, Any]) -> Any:
    raise UnreadableGroupError(f"BrokerGroup default/orders: {COMPLAINT}", group_object)


@pytest.fixture
def unreadable(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a downgrade: what is stored was admitted by the rules of a later version."""
    del world  # it was brought up before
    monkeypatch.setattr(fetch, "read_group", refuse_to_read)


@pytest.mark.usefixtures("unreadable")
async def test_a_group_that_cannot_be_read_says_so_by_one_event_and_in_its_status(world: World) -> None:
    before = await conditions(world)
    assert before["Ready"][0] == "True"
    await failing_passes(world, UnreadableGroupError)
    assert (await events(world))["GroupUnreadable"] == 1
    told = {
        "Ready": ("False", "InvalidSpec"),
        "Reconciling": ("False", "InvalidSpec"),
        "Stalled": ("True", "InvalidSpec"),
    }
    assert await conditions(world) == before | told
    assert COMPLAINT in (await world.conditions())["Stalled"]["message"]
    assert (await world.group())["status"]["master"], "the rest of the status stays as it was"


async def test_once_it_can_be_read_again_the_status_is_as_before(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before = await conditions(world)
    with monkeypatch.context() as patched:
        patched.setattr(fetch, "read_group", refuse_to_read)
        await failing_passes(world, UnreadableGroupError)
    await world.settle()
    assert await conditions(world) == before


@pytest.mark.usefixtures("unreadable")
async def test_where_the_server_takes_no_status_the_event_says_it_alone(
    world: World, sandbox: SandboxApiServer
) -> None:
    """The server validates the whole object, and the spec breaks its present rules too."""
    before = await conditions(world)

    def refuse(request: Any) -> None:
        if request.path.endswith("/brokergroups/orders/status"):
            raise StatusError(422, "Invalid", "spec.implementation: Unsupported value")

    sandbox.before_request = refuse
    await failing_passes(world, UnreadableGroupError)
    assert (await events(world))["GroupUnreadable"] == 1
    assert await conditions(world) == before


@pytest.mark.usefixtures("unreadable")
async def test_of_another_operators_group_nothing_is_said(world: World) -> None:
    """That operator may have a later version, which can read the group."""
    owner = {"metadata": {"annotations": {names.ANNOTATION_OPERATOR: "elsewhere/other"}}}
    await world.patch_group(owner)
    before = await conditions(world)
    await failing_passes(world, UnreadableGroupError)
    assert (await events(world))["GroupUnreadable"] == 0
    assert await conditions(world) == before


async def test_a_claim_that_may_not_grow_holds_no_update_up(world: World, sandbox: SandboxApiServer) -> None:
    """`storage.size` can't be lowered again: a group on a class that does not expand was never updated any more."""
    before, sizes = await uids_of(world, PODS), await sizes_and_teams(world)

    async def refuse(request: Any) -> None:
        if request.method == "PATCH" and "/persistentvolumeclaims/" in request.path and b"64Gi" in await request.read():
            raise StatusError(403, "Forbidden", "only dynamically provisioned pvc can be resized")

    sandbox.before_request = refuse
    storage = {"size": "64Gi", "claimTemplate": {"metadata": {"labels": {"team": "trade"}}}}
    await world.patch_group({"spec": {"storage": storage, "resources": {"requests": {"cpu": "100m"}}}})

    reconciler = world.new_reconciler()

    async def all_are_new() -> bool:
        with contextlib.suppress(ApiError):
            await reconciler.run_pass(world.key)
        await world.run_kubelet()
        await world.run_brokers()
        now = await uids_of(world, PODS)
        return now.keys() == before.keys() and not now.items() & before.items()

    await until("an update", all_are_new, deadline_seconds=30.0)
    assert (await conditions(world))["Stalled"] == ("True", "InvalidSpec")
    told = (await world.conditions())["Stalled"]["message"]
    assert "only dynamically provisioned pvc can be resized" in told
    assert "allowVolumeExpansion" in told
    assert "spec.storage.size is 64Gi, and claim orders-" in told
    assert "has 8Gi: it grows only" in told
    teams = {name: (size, "trade") for name, (size, _) in sizes.items()}
    assert await sizes_and_teams(world) == teams, "the rest of a claim is no matter of its size"
    with pytest.raises(ApiError):
        await world.new_reconciler().run_pass(world.key)
    assert (await world.conditions())["Stalled"]["message"] == told, "the next plane goes on from there"
    sandbox.before_request = world.observe
    for _ in range(2):
        await reconciler.run_pass(world.key)
    assert await sizes_and_teams(world) == dict.fromkeys(sizes, ("64Gi", "trade")), "it is asked for again until then"
    assert (await conditions(world))["Stalled"] == ("False", "NothingStalled")


async def sizes_and_teams(world: World) -> dict[str, tuple[str, str | None]]:
    claims = await world.items(PERSISTENT_VOLUME_CLAIMS)
    return {one["metadata"]["name"]: (claim_size(one), one["metadata"]["labels"].get("team")) for one in claims}


@pytest.mark.parametrize(
    "election",
    [None, LeaderElectionSettings(namespace="rocketmq-system", identity="operator-0")],
    ids=["its finalizer", "the name of its operator"],
)
async def test_a_group_whose_own_object_may_not_be_written_says_so(
    sandbox_world: World, sandbox: SandboxApiServer, election: LeaderElectionSettings | None
) -> None:
    """It had no status at all, and nothing but the operator's log said why."""
    world = sandbox_world
    world.settings, world.brokers_run = replace(world.settings, leader_election=election), True
    await world.create_group()

    def refuse(request: Any) -> None:
        if request.method == "PATCH" and request.path.endswith("/brokergroups/orders"):
            raise StatusError(403, "Forbidden", 'admission webhook "policy.example" denied the request')

    sandbox.before_request = refuse
    await failing_passes(world, ApiError)
    assert (await conditions(world))["Stalled"] == ("True", "InvalidSpec")
    assert 'webhook "policy.example" denied the request' in (await world.conditions())["Stalled"]["message"]
    assert (await events(world))["GroupWriteRefused"] == 1
    sandbox.before_request = world.observe
    await world.settle()
    assert (await conditions(world))["Stalled"] == ("False", "NothingStalled")


async def test_a_deleted_group_whose_finalizer_may_not_be_taken_off_says_so(
    world: World, sandbox: SandboxApiServer
) -> None:
    """It said that nothing was done for it, while all that it had was gone."""
    await world.api.delete(BROKER_GROUPS, world.key.name, namespace=world.key.namespace)

    async def refuse(request: Any) -> None:
        world.observe(request)
        if request.method == "PATCH" and request.path.endswith("/brokergroups/orders"):
            raise StatusError(403, "Forbidden", 'admission webhook "policy.example" denied the request')

    sandbox.before_request = refuse
    reconciler = world.new_reconciler()
    for _ in range(PASSES):
        with contextlib.suppress(ApiError):
            await reconciler.run_pass(world.key)
        await world.run_kubelet()
    told = (await world.conditions())["Stalled"]["message"]
    assert told.startswith("This group is deleted but for its finalizer brokergroup.dev/")
    assert 'webhook "policy.example" denied the request' in told
    assert (await events(world))["GroupWriteRefused"] == 1
    sandbox.before_request = world.observe
    await reconciler.run_pass(world.key)
    assert await world.items(BROKER_GROUPS) == []


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        (403, "Forbidden", 'pods "orders-3" is forbidden: exceeded quota: small, used: pods={number}, limited: pods=2'),
        (422, "Invalid", 'admission webhook "policy.example" denied the request ({number})'),
        (400, "BadRequest", 'admission webhook "policy.example" denied the request ({number})'),
    ],
    ids=["a quota", "a webhook", "a webhook without a reason"],
)
async def test_a_pod_that_is_not_admitted_is_reported_once(
    world: World, sandbox: SandboxApiServer, status: int, reason: str, message: str
) -> None:
    """Also if the text of each refusal differs."""
    tries = 0

    def refuse(request: Any) -> None:
        nonlocal tries
        if request.method in {"POST", "PATCH"} and "/pods" in request.path:
            tries += 1
            raise StatusError(status, reason, message.format(number=tries))

    await world.lose_pod("orders-3")
    before = await events(world)
    sandbox.before_request = refuse
    await failing_passes(world, ApiError)

    assert tries == PASSES
    more = await events(world) - before
    assert more["InvalidSpec"] == 1
    assert max(more.values()) == 1, more
    assert (await conditions(world))["Stalled"] == ("True", "InvalidSpec")


async def test_a_webhook_that_is_away_keeps_nothing_else_from_being_repaired(
    world: World, sandbox: SandboxApiServer
) -> None:
    """A load balancer's controller has one for Services: while it was down no pod came back, and no Service followed the master."""
    await world.delete(SERVICES, "orders-slaves")
    await world.lose_pod("orders-3")
    await world.patch(PODS, "orders-1", {"metadata": {"labels": {names.LABEL_ROLE: "slave"}}})

    def refuse(request: Any) -> None:
        if request.method == "PATCH" and "/services/" in request.path:
            raise StatusError(500, "InternalError", WEBHOOK_IS_AWAY)

    sandbox.before_request = refuse
    with pytest.raises(ApiError, match="failed calling webhook"):
        await world.new_reconciler().run_pass(world.key)
    pods = {one["metadata"]["name"]: one for one in await world.items(PODS)}
    assert "orders-3" in pods
    assert pods["orders-1"]["metadata"]["labels"][names.LABEL_ROLE] == "master"
    sandbox.before_request = world.observe
    await world.new_reconciler().run_pass(world.key)
    assert "orders-slaves" in {one["metadata"]["name"] for one in await world.items(SERVICES)}


async def test_no_pod_is_made_on_a_configuration_that_a_webhook_has_kept_from_being_written(
    world: World, sandbox: SandboxApiServer
) -> None:
    """Each pod was replaced, started with the old file, and bore the new one's hash: nothing ever restarted it."""
    before = await uids_of(world, PODS)
    await world.patch_group({"spec": {"config": {"maxMessageSize": "1000"}}})

    def refuse(request: Any) -> None:
        world.observe(request)
        if request.method == "PATCH" and "/configmaps/" in request.path:
            raise StatusError(500, "InternalError", WEBHOOK_IS_AWAY)

    sandbox.before_request = refuse
    for _ in range(4):
        with pytest.raises(WebhookAwayError):
            await world.new_reconciler().run_pass(world.key)
    assert await uids_of(world, PODS) == before
    await world.lose_pod("orders-3")
    with pytest.raises(WebhookAwayError):
        await world.new_reconciler().run_pass(world.key)
    assert "orders-3" not in await uids_of(world, PODS)
    sandbox.before_request = world.observe
    await world.settle()
    after = await uids_of(world, PODS)
    assert after.keys() == before.keys()
    assert not after.items() & before.items()
