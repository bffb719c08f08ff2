"""The disks of members: their claims, a volume for the commit log, ephemeral disks, and when a disk counts as lost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_status import ConditionType, Reason
from brokergroup_operator.kube.resources import EVENTS, PERSISTENT_VOLUME_CLAIMS, PODS
from brokergroup_operator.reconcile.decide.claims import growing_claims, marked_as_leaving
from brokergroup_operator.reconcile.other_groups import Turn
from brokergroup_operator.reconcile.plan import ApplyObject, DeleteObject
from brokergroup_operator.reconcile.render import children
from brokergroup_operator.reconcile.render.broker_config import broker_properties
from brokergroup_operator.reconcile.render.pods import build_pod
from brokergroup_operator.reconcile.see.foreign import NameTakenError
from brokergroup_operator.reconcile.see.members import membership
from brokergroup_operator.reconcile.tell.events import transition_notes
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.cases import applied, compare, conditions, lines_of, run, shown, with_pods
from tests.reconcile.world import SANDBOX, named, ready, uids_of, until

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed
    from kube_sandbox.api_server.server import SandboxApiServer
    from tests.reconcile.world import World


EPHEMERAL: dict[str, Any] = {"storage": {"ephemeral": {"sizeLimit": "2Gi"}}}
COMMIT_LOG: dict[str, Any] = {"storage": {"commitLog": {"size": "100Gi", "storageClassName": "fast"}}}
LOGS = [names.commit_log_claim_name(f"orders-{one}") for one in (1, 2, 3)]


def settled(**spec: Any) -> Observed:
    seen = b.settled(**spec)
    if "ephemeral" in spec["storage"]:
        return replace(seen, claims={})
    logs = (b.bound(b.stored(children.build_commit_log_claim(seen.group, b.member(one)))) for one in (1, 2, 3))
    return replace(seen, claims={**seen.claims, **b.by_name(*logs)})


def without_log(seen: Observed) -> Observed:
    return replace(seen, claims=b.without(seen.claims, LOGS[1]))


@pytest.mark.parametrize("implementation", ["Java", "Python"])
def test_the_pod_and_the_claim_of_a_commit_log_of_its_own(implementation: str) -> None:
    of = b.group(implementation=implementation, **COMMIT_LOG)
    shown = [children.build_commit_log_claim(of, b.member(2)), build_pod(of, b.member(2), b.SETTINGS)]
    compare(f"commitlog-{implementation.lower()}.yaml", yaml.safe_dump_all(shown, sort_keys=False, width=120))
    properties = broker_properties("orders", of.spec, b.SETTINGS)
    assert properties["storePathCommitLog"] == "${COMMIT_LOG_DIR}/commitlog"
    assert properties["storePathEpochFile"].startswith("${STORE_DIR}/")


def test_an_ephemeral_pod_has_no_claim() -> None:
    pod = build_pod(b.group(**EPHEMERAL), b.member(1), b.SETTINGS)
    assert pod["spec"]["volumes"][0] == {"name": "store", "emptyDir": {"sizeLimit": "2Gi"}}
    assert "persistentVolumeClaim" not in str(pod)


def test_the_loss_of_an_ephemeral_pod_or_of_a_commit_log_is_the_loss_of_the_disk() -> None:
    """The id is never used again: the next pod has an empty disk."""
    members = membership(c.without_pods(settled(**EPHEMERAL), "orders-2"))
    assert [one.broker_id for one in members.volume_lost] == [2]
    assert [one.pod for one in members.to_reserve] == ["orders-4"]
    seen = settled(**COMMIT_LOG)
    gone = without_log(c.without_pods(seen, "orders-2"))
    assert [one.broker_id for one in membership(gone).volume_lost] == [2]
    assert membership(replace(gone, claims=seen.claims)).volume_lost == ()


def sizes(seen: Observed) -> dict[str, str]:
    """Return the size that the pass asks for, by claim."""
    claims = c.applied(seen, "PersistentVolumeClaim")
    return {name: claim["spec"]["resources"]["requests"]["storage"] for name, claim in claims.items()}


def test_each_claim_of_a_member_grows_by_its_own_wish() -> None:
    larger = c.wishing(settled(**COMMIT_LOG), storage={"commitLog": {"size": "200Gi", "storageClassName": "fast"}})
    assert sizes(larger) == dict.fromkeys(LOGS, "200Gi")


def released(seen: Observed, claim: str, annotation: str = names.ANNOTATION_RELEASED_TO) -> Observed:
    """The same, after `brokergroup adopt claims-back`, or `claims`, has marked this claim."""
    return c.with_claims(
        seen, lambda one: one["metadata"]["annotations"].update({annotation: "java-controller"}), claim
    )


ALL = ("orders-1", "orders-2", "orders-3")


def makes_nothing(seen: Observed, *told: str) -> None:
    """Assert that no broker is started and no id given, and that the group is stalled for a claim, with these words."""
    assert [line for line in lines_of(run(seen)) if line.startswith(("apply", "reserve"))] == []
    assert c.condition(seen, "Stalled") == ("True", "NameTaken")
    assert [one for one in told if one not in c.message(seen, "Stalled")] == []


def test_no_broker_starts_on_a_claim_that_was_released_to_another_deployment() -> None:
    """Its store has no id any more, and brokers of that deployment may use it."""
    seen = released(c.without_pods(b.settled(), *ALL), "orders-2")
    makes_nothing(seen, "claim orders-2", "java-controller")
    # Without a record, as after the last step, ids are not given anew for it either.
    makes_nothing(replace(seen, record=None, state_object=None, snapshot=None))
    # A run that was killed after its marks is begun again: until then the group is Hibernated, and nothing of it runs.
    asleep = c.without_pods(b.settled(maintenance={"hibernated": True}), *ALL)
    assert c.shown(released(asleep, "orders-2"), "Hibernated") == ("True", "NothingRuns")


def test_no_broker_starts_before_the_takeover_of_its_claim_has_ended() -> None:
    """Without the record that it writes last, any disk could be elected first."""
    seen = replace(c.without_pods(b.settled(), *ALL), record=None, snapshot=None)
    makes_nothing(released(seen, "orders-2", names.ANNOTATION_ADOPT_UNFINISHED), "run brokergroup adopt claims again")


@pytest.mark.parametrize("annotation", [names.ANNOTATION_RELEASED_TO, names.ANNOTATION_ADOPT_UNFINISHED])
def test_a_claim_that_adopt_has_outlives_a_group_that_was_made_again_and_deleted(annotation: str) -> None:
    """Its manifest may say whenDeleted Delete and hibernated; brokers of another deployment run on the claim."""
    wish = {"maintenance": {"hibernated": True}, "storage": {"retention": {"whenDeleted": "Delete"}}}
    seen = c.without_pods(b.settled(**wish), *ALL)
    seen = c.with_metadata(seen, deletionTimestamp=b.NOW)
    bare = replace(seen, services={}, config_maps={}, disruption_budgets={})
    assert [line for line in lines_of(run(bare)) if "PersistentVolumeClaim" in line] != []
    held = lines_of(run(released(bare, "orders-2", annotation)))
    assert [line for line in held if "PersistentVolumeClaim" in line or "BrokerGroupState" in line] == []
    assert any(line.startswith("finalizers BrokerGroup") for line in held)


def test_the_master_of_a_group_that_was_woken_after_the_marks_is_still_labelled() -> None:
    seen = c.with_pods(b.settled(), lambda pod: pod["metadata"]["labels"].pop(names.LABEL_ROLE), "orders-1")
    assert any("orders-1" in line and "master" in line for line in lines_of(run(released(seen, "orders-2"))))


@pytest.mark.parametrize("phase", ["Failed", "Pending"])
def test_an_empty_commit_log_never_joins_the_identity_of_the_old_one(phase: str) -> None:
    """The log's claim was made anew while the failed pod still stood there; the next one found its old id, and no messages."""
    seen = without_log(with_pods(settled(**COMMIT_LOG), lambda pod: pod["status"].update(phase=phase), "orders-2"))
    actions = run(seen).actions
    assert [action.name for action in actions if isinstance(action, DeleteObject)] == ["orders-2"]
    assert LOGS[1] not in [action.object["metadata"]["name"] for action in actions if isinstance(action, ApplyObject)]
    after = membership(replace(seen, pods=b.without(seen.pods, "orders-2")))
    assert [one.broker_id for one in after.volume_lost] == [2]
    assert [one.pod for one in after.to_reserve] == ["orders-4"]


def test_an_ephemeral_group_says_so_when_it_is_made() -> None:
    seen = settled(**EPHEMERAL)
    notes = [action.note.reason for action in run(c.with_metadata(seen, finalizers=[])).actions if action.note]
    assert notes == ["EphemeralStorage"]


DELETE: dict[str, Any] = {"storage": {"retention": {"whenScaled": "Delete"}}}
DELETE_BOTH: dict[str, Any] = {"storage": COMMIT_LOG["storage"] | DELETE["storage"]}


def with_copy(seen: Observed, claim: str, name: str, *, marked: bool = True) -> Observed:
    """Beside it there is such a claim of another name, with or without the mark of a member that has left."""
    found = seen.claims[claim]
    annotations = {names.ANNOTATION_LEAVING: "4"} if marked else {}
    return replace(
        seen,
        claims={
            **seen.claims,
            name: found | {"metadata": found["metadata"] | {"name": name, "annotations": annotations}},
        },
    )


def marked_by_a_pass(seen: Observed, broker_id: int) -> Observed:
    """The member's claim has the mark of one that leaves, as a pass writes it."""
    [marked] = [one for one in marked_as_leaving(seen, b.member(broker_id)) if isinstance(one, ApplyObject)]
    return replace(seen, claims={**seen.claims, f"orders-{broker_id}": b.bound(marked.object)})


ONE_MORE = replace(b.record(), next_broker_id=5, replicas={**b.record().replicas, 4: b.reserved(4).replicas[4]})
BOTH_LEFT = with_copy(
    with_copy(settled(**DELETE_BOTH), "orders-1", "orders-4"), LOGS[0], "orders-4-commitlog", marked=False
)
LEAVES = c.live(c.without_pods(c.wishing(c.settled(replicas=4), replicas=3), "orders-4"), 1, 2, 3)
CLAIMS: list[tuple[str, Observed, list[str]]] = [
    ("in order, ephemeral", settled(**EPHEMERAL), []),
    ("in order, a commit log of its own", settled(**COMMIT_LOG), []),
    ("a pod that runs without a claim for its log", without_log(settled(**COMMIT_LOG)), []),
    ("the mark comes before the id is forgotten", LEAVES, ["apply PersistentVolumeClaim orders-4"]),
    ("it is marked", c.marked(LEAVES, "orders-4"), ["forget 4"]),
    ("Delete", with_copy(c.settled(**DELETE), "orders-1", "orders-4"), ["delete PersistentVolumeClaim orders-4"]),
    ("Retain", with_copy(c.settled(), "orders-1", "orders-4"), []),
    ("no mark: perhaps a lost record", with_copy(c.settled(**DELETE), "orders-1", "orders-4", marked=False), []),
    # Made with `kubectl get -o yaml` and another name, it carries our labels and even the mark.
    ("a copy is a user's backup", with_copy(c.settled(**DELETE), "orders-1", "orders-4-backup"), []),
    (
        "no commit log is left behind", BOTH_LEFT,
        ["delete PersistentVolumeClaim orders-4-commitlog", "delete PersistentVolumeClaim orders-4"],
    ),
    (
        "a mark on a member that stays is taken off", marked_by_a_pass(c.settled(**DELETE), 3),
        ["apply PersistentVolumeClaim orders-3"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "expected"), c.table(CLAIMS))
def test_claims_of_members_that_leave_or_stay(seen: Observed, expected: list[str]) -> None:
    assert lines_of(run(seen)) == expected


def test_a_claim_keeps_the_mark_of_the_operation_in_whose_course_it_was_made() -> None:
    """By it a Rebuild knows its new member, whatever the operator's clock says."""
    four = c.wishing(settled(**COMMIT_LOG), replicas=4, **COMMIT_LOG)
    new = c.running(c.seen_with(four, ONE_MORE), "Rebuild", brokerId=3)
    made = applied(new, "PersistentVolumeClaim")
    assert {name: mark_of(one) for name, one in made.items()} == {
        "orders-4": c.OPERATION_UID, "orders-4-commitlog": c.OPERATION_UID,
    }  # fmt: skip
    there = replace(new, claims={**new.claims, **b.by_name(*map(b.bound, made.values()))})
    for later in (there, replace(there, operation=None)):
        assert applied(later, "PersistentVolumeClaim") == {}, "neither it nor a claim of before is applied again"
    assert mark_of(marked_by_a_pass(there, 4).claims["orders-4"]) == c.OPERATION_UID


def test_a_member_that_stays_loses_its_mark_where_its_claim_may_not_grow() -> None:
    """It stayed a claim that counts for nothing after a lost record, and that is discarded then."""
    larger = c.wishing(marked_by_a_pass(c.settled(), 3), storage={"size": "64Gi"})
    [grown] = [one for one in c.actions(larger, ApplyObject) if one.target.endswith("orders-3")]
    assert grown.meanwhile is not None
    assert grown.meanwhile["spec"]["resources"]["requests"]["storage"] == "8Gi"
    assert names.ANNOTATION_LEAVING not in grown.meanwhile["metadata"]["annotations"]
    kept = replace(larger, claims={**larger.claims, "orders-3": b.bound(grown.meanwhile)})
    [again] = [one for one in c.actions(kept, ApplyObject) if one.target.endswith("orders-3")]
    assert again.object["spec"]["resources"]["requests"]["storage"] == "64Gi", "it is asked for again"
    assert again.meanwhile is None, "and nothing else is written for it"


def mark_of(claim: dict[str, Any]) -> str | None:
    found: str | None = claim["metadata"]["annotations"].get(names.ANNOTATION_OPERATION)
    return found


def test_a_claim_that_a_higher_id_carries_is_not_marked() -> None:
    assert list(marked_as_leaving(c.seen_with(c.settled(), b.wiped(in_sync=(2, 3, 4))), b.member(1))) == []


@pytest.mark.parametrize(("capacity", "growing"), [("8Gi", []), ("8192Mi", []), ("4Gi", ["orders-2"]), (None, [])])
def test_a_claim_grows_until_its_volume_has_the_size(capacity: str | None, growing: list[str]) -> None:
    seen = c.settled()
    claim = seen.claims["orders-2"]
    status = {"phase": "Bound"} | ({"capacity": {"storage": capacity}} if capacity else {})
    assert growing_claims(replace(seen, claims={**seen.claims, "orders-2": claim | {"status": status}})) == growing


def test_a_claim_that_was_made_larger_stays_so() -> None:
    """An autoscaler of volumes: asking for the smaller size would be refused in every pass."""
    seen, name = c.settled(), "orders-1"
    larger = c.with_claims(seen, lambda claim: claim["spec"]["resources"]["requests"].update(storage="64Gi"), name)
    assert sizes(larger)[name] == "64Gi"


POD = "orders-2"


@pytest.fixture
async def settled_world(sandbox: SandboxApiServer, sandbox_world: World) -> World:
    """Its three pods run."""
    await sandbox_world.bring_up(sandbox)
    return sandbox_world


async def ids(world: World) -> list[int]:
    stored = await world.view.store.read(world.key)
    return sorted(stored.record.replicas) if stored else []


async def test_a_claim_without_the_label_is_no_lost_disk(settled_world: World) -> None:
    uid = (await settled_world.get(PERSISTENT_VOLUME_CLAIMS, POD))["metadata"]["uid"]
    await settled_world.patch(PERSISTENT_VOLUME_CLAIMS, POD, {"metadata": {"labels": {names.LABEL_BROKER_GROUP: None}}})
    await settled_world.stop_pod(POD)
    await settled_world.settle()
    assert await ids(settled_world) == [1, 2, 3]
    metadata = (await settled_world.get(PERSISTENT_VOLUME_CLAIMS, POD))["metadata"]
    assert (metadata["uid"], metadata["labels"][names.LABEL_BROKER_GROUP]) == (uid, "orders")


async def test_a_claim_that_a_person_made_again_waits_for_the_person(settled_world: World) -> None:
    """With no label at all it may be a user's: it is not taken over, and the id is not given up."""
    await settled_world.delete(PERSISTENT_VOLUME_CLAIMS, POD)
    bare = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await settled_world.stop_pod(POD)
    metadata = {"name": POD, "namespace": settled_world.key.namespace}
    await settled_world.api.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": metadata, "spec": bare})
    with pytest.raises(NameTakenError, match=f"PersistentVolumeClaim {POD} is there and is none of this group's"):
        await settled_world.run_pass()
    assert await ids(settled_world) == [1, 2, 3]

    ours = {names.LABEL_BROKER_GROUP: "orders", names.LABEL_APP_MANAGED_BY: names.MANAGED_BY}
    await settled_world.patch(PERSISTENT_VOLUME_CLAIMS, POD, {"metadata": {"labels": ours}})
    await settled_world.settle()
    assert await ids(settled_world) == [1, 2, 3]
    assert POD in await named(settled_world, PODS)


IMAGE = {"image": "example/other:2"}
RESTARTED = {names.ANNOTATION_RESTARTED_AT: "2026-11-27T08:00:00Z"}


HELD = c.claims_going(c.settled(), "orders-2")
COPY = c.claims_going(with_copy(c.settled(), "orders-2", "orders-2-backup", marked=False), "orders-2-backup")


def test_it_is_a_condition_that_names_claim_pod_and_the_way_out() -> None:
    alarm = conditions(HELD)[ConditionType.CLAIM_TERMINATING]
    assert (alarm["status"], alarm["reason"]) == ("True", Reason.CLAIM_BEING_DELETED)
    way_out = ("kubectl brokergroup rebuild orders 2 -n shop", "Retain", "gitops.md")
    for part in ("claim orders-2.", "pod orders-2", *way_out):
        assert part in alarm["message"]
    log = conditions(c.claims_going(settled(**COMMIT_LOG), LOGS[2]))[ConditionType.CLAIM_TERMINATING]
    assert f"claim {LOGS[2]}." in log["message"]


@pytest.mark.parametrize(
    "seen",
    [c.settled(), c.going(HELD, "orders-2"), c.without_pods(HELD, "orders-2"), COPY],
    ids=["in order", "the pod is going", "no pod", "another's claim"],
)
def test_what_is_no_danger_is_no_alarm(seen: Observed) -> None:
    assert ConditionType.CLAIM_TERMINATING not in conditions(seen)


LAST = c.outdated(c.settled(), "orders-2")


def test_a_rolling_update_passes_over_its_pod_and_then_waits_for_a_person() -> None:
    outdated = c.wishing(c.settled(), **IMAGE)
    assert lines_of(run(outdated))[-1] == "delete Pod orders-2"
    assert lines_of(run(c.claims_going(outdated, "orders-2")))[-1] == "delete Pod orders-3"
    alone = c.claims_going(LAST, "orders-2")
    assert not [line for line in lines_of(run(alone)) if "Pod" in line]
    assert c.told(alone, "Stalled")[:2] == ("True", Reason.CLAIM_BEING_DELETED)
    assert "orders-2: a claim is being deleted" in c.told(alone, "Stalled")[2]


def test_it_keeps_no_other_group_waiting() -> None:
    """An update that has come to its last pod, and may not stop that one, gives its turn back."""
    assert run(c.rolling(LAST)).turn is Turn.HOLDS
    held = c.rolling(c.claims_going(LAST, "orders-2"))
    assert run(held).turn is Turn.NONE
    assert shown(held, ConditionType.UP_TO_DATE) == ("False", Reason.CLAIM_BEING_DELETED)


def test_an_asked_for_restart_is_refused_as_well() -> None:
    seen = c.claims_going(c.settled(), *ALL)
    seen = c.with_metadata(seen, annotations=RESTARTED)
    assert not [line for line in lines_of(run(seen)) if "Pod" in line or "switch" in line]
    assert c.told(seen, "Stalled")[1] == Reason.CLAIM_BEING_DELETED


@pytest.mark.parametrize(
    "seen",
    [
        # Usually a replaced pod keeps its disk; here it would lose it.
        c.not_ready(c.live(c.claims_going(c.wishing(c.settled(), **IMAGE), "orders-2"), 1, 3), "orders-2"),
        c.with_pods(HELD, lambda pod: pod["status"].update(phase="Failed"), "orders-2"),
        c.with_pods(c.outdated(HELD, "orders-2"), lambda pod: pod["status"].update(phase="Pending"), "orders-2"),
    ],
    ids=["not heard", "Failed", "Pending"],
)
def test_a_pod_that_does_not_run_is_left_alone_too(seen: Observed) -> None:
    assert "delete Pod orders-2" not in lines_of(run(seen))


def test_a_group_is_not_put_to_sleep_on_it() -> None:
    """All its pods would stop, and wake without those disks. Nor is its master kept from acknowledging meanwhile."""
    asleep = c.wishing(c.settled(), maintenance={"hibernated": True})
    assert lines_of(run(asleep)) != []
    held = c.claims_going(asleep, "orders-3")
    assert lines_of(run(held)) == []
    assert c.told(held, "Stalled")[:2] == ("True", Reason.CLAIM_BEING_DELETED)
    assert c.told(held, "Stalled")[2].startswith("Not hibernated: orders-3")


def test_every_further_claim_is_an_event() -> None:
    seen = (c.settled(), HELD, c.claims_going(c.settled(), "orders-2", "orders-3"))
    settled, one, two = (list(conditions(each).values()) for each in seen)

    def events(before: Any, after: Any) -> list[str]:
        return [note.reason for note in transition_notes(before, after) if note.reason == "ClaimBeingDeleted"]

    assert events(settled, one) == ["ClaimBeingDeleted"]
    assert events(one, one) == []
    assert events(one, two) == ["ClaimBeingDeleted"]
    assert events(two, settled) == []


def test_a_rebuild_is_the_way_out() -> None:
    """Its pod is stopped, because a person asked for just that; the claim is gone by then, and the id follows."""
    seen = c.running(c.claims_going(c.settled(), "orders-3"), "Rebuild", brokerId=3)
    assert lines_of(run(seen))[-1] == "delete Pod orders-3"
    stopped = c.live(b.changed(seen, pods=b.without(seen.pods, "orders-3")), 1, 2)
    assert c.steps(stopped) == []
    gone = b.changed(stopped, claims=b.without(seen.claims, "orders-3"))
    assert lines_of(run(gone)) == ["reserve orders-4"]


@SANDBOX
async def test_it_is_reported_at_once_and_the_claim_stays_until_the_pod_stops(world: World) -> None:
    """What an Argo CD that prunes does: all claims at once. Reports: argo-cd #1250."""
    await ready(world, resync_seconds=600.0)
    pods = await uids_of(world, PODS)
    for name in pods:
        await world.delete(PERSISTENT_VOLUME_CLAIMS, name)

    async def alarm() -> Any:
        found = (await world.conditions()).get("ClaimTerminating")
        return found and found["message"].count("rebuild") == 3

    await until("the alarm names all three", alarm)
    events = [one for one in (await named(world, EVENTS)).values() if one["reason"] == "ClaimBeingDeleted"]
    assert events
    assert {one["type"] for one in events} == {"Warning"}
    assert await uids_of(world, PODS) == pods
    assert sorted(await named(world, PERSISTENT_VOLUME_CLAIMS)) == sorted(pods)
