"""What a pass decides, case by case; and one evaluation derives each fact of a group once."""

from __future__ import annotations

import copy
import sys
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.reconcile import plan as plans
from brokergroup_operator.reconcile.evaluate import evaluate
from brokergroup_operator.reconcile.plan import WriteStatus
from brokergroup_operator.reconcile.see.observed import Observed
from brokergroup_operator.reconcile.tell import alarms
from controller_core.model import Replica
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.cases import condition, conditions, describe, lines_of, message, run, status_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


SHARED = [
    "apply ConfigMap orders-broker",
    "apply Service orders-members",
    "apply Service orders-master",
    "apply Service orders-slaves",
    "apply PodDisruptionBudget orders.master",
]


def test_a_new_group_is_held_and_its_ids_are_reserved_before_any_pod() -> None:
    seen = c.with_metadata(Observed(group=b.group(), group_object=b.group_object()), finalizers=[])
    assert lines_of(run(seen)) == [
        "finalizers BrokerGroup orders ['brokergroup.dev/brokergroup']",
        *SHARED,
        *(f"reserve orders-{number}" for number in (1, 2, 3)),
    ]


def test_reserved_ids_get_their_claims_and_pods() -> None:
    seen = b.changed(b.settled(), record=b.reserved(1, 2, 3), pods={}, claims={}, snapshot=None)
    assert lines_of(run(seen)) == [
        f"apply {kind} orders-{broker_id}" for broker_id in (1, 2, 3) for kind in ("PersistentVolumeClaim", "Pod")
    ]


def test_a_restart_between_reservation_and_creation_reserves_only_what_is_missing() -> None:
    """Whatever number of reservations were made before the operator died, no second id is handed out."""
    for done in range(4):
        seen = b.changed(b.settled(), record=b.reserved(*range(1, done + 1)), pods={}, claims={}, snapshot=None)
        lines = [line for line in lines_of(run(seen)) if line.startswith("reserve")]
        assert lines == [f"reserve orders-{number}" for number in range(done + 1, 4)]


SMALL = b.settled(storage={"size": "1Gi"})
GROWN = b.changed(SMALL, group=b.group(storage={"size": "2Gi"}))
UNBOUND = c.with_claims(GROWN, lambda one: one["status"].update(phase="Pending"), "orders-2")
CLAIMS = [f"apply PersistentVolumeClaim orders-{n}" for n in (1, 2, 3)]
SAME_SIZE = c.with_claims(SMALL, lambda one: one["spec"]["resources"]["requests"].update(storage="1024Mi"), "orders-1")
MASTER_LOST = b.changed(b.settled(), record=replace(b.record(), master_process_lost=True))
# A broker registered under our brokerName without a reservation: its id is not ours to run.
STRANGER = Replica(broker_id=1, register_check_code="stranger", address="10.9.9.9:10911", registered=True)
OF_A_STRANGER = replace(b.reserved(), next_broker_id=2, replicas={1: STRANGER})
BESIDE_A_STRANGER = b.changed(b.settled(), pods={}, claims={}, record=OF_A_STRANGER)
TO_TWO = b.changed(b.settled(), group=b.group(replicas=2, durability="Strict"))
HOT = b.changed(b.settled(), group=b.group(config={"fileReservedTime": "24"}))
COLD = b.changed(b.settled(), group=b.group(config={"maxMessageSize": "1000"}))
DECISIONS: list[tuple[str, Observed, list[str]]] = [
    ("settled", b.settled(), []),
    ("a pod that is going is waited for", c.going(b.settled(), "orders-2"), []),
    ("a claim grows", GROWN, CLAIMS),
    ("an equal size in other words is no drift", SAME_SIZE, []),
    # The API server refuses the growth of an unbound claim.
    ("an unbound claim waits", UNBOUND, [CLAIMS[0], CLAIMS[2]]),
    # While the pod runs its disk is there, whatever became of the claim.
    ("a claim deleted under a running pod", b.changed(b.settled(), claims=b.without(b.settled().claims, "orders-1")), CLAIMS[:1]),
    ("roles follow the record", b.changed(b.settled(), record=b.record(master=2)), ["role orders-1 slave", "role orders-2 master"]),
    ("a lost master process has no role until it is granted again", MASTER_LOST, ["role orders-1 slave"]),
    ("scaling out", b.changed(b.settled(), group=b.group(replicas=5)), ["reserve orders-4", "reserve orders-5"]),
    ("scaling in notes which slave leaves", TO_TWO, ["apply PersistentVolumeClaim orders-3"]),
    ("a stranger's id is stepped over", BESIDE_A_STRANGER, ["reserve orders-2", "reserve orders-3", "reserve orders-4"]),
    ("a record of another broker name stops everything", b.settled(brokerName="other"), []),
    ("a hot key is given to every broker", HOT, [
        "apply ConfigMap orders-broker", *(f"give orders-{n} [('fileReservedTime', '24')]" for n in (1, 2, 3)),
    ]),
    ("any other key restarts the first slave", COLD, ["apply ConfigMap orders-broker", "delete Pod orders-2"]),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "expected"), c.table(DECISIONS))
def test_decisions(seen: Observed, expected: list[str]) -> None:
    assert lines_of(run(seen)) == expected


@pytest.mark.parametrize(
    ("seen", "kind", "expected"),
    [
        (c.going(b.settled(), "orders-2"), "Reconciling", ("True", "RepairingMembers")),
        (c.going(b.settled(), "orders-2"), "Ready", ("False", "MembersPending")),
        (MASTER_LOST, "Available", ("False", "NoMaster")),
        (TO_TWO, "Reconciling", ("True", "ScalingIn")),
        (b.settled(brokerName="other"), "Ready", ("False", "InvalidSpec")),
        (HOT, "UpToDate", ("True", "AllUpToDate")),
        (COLD, "UpToDate", ("False", "RollingUpdate")),
    ],
)
def test_what_is_said_of_decisions(seen: Observed, kind: str, expected: tuple[str, str]) -> None:
    assert condition(seen, kind) == expected


def test_the_broker_name_of_the_record_is_named() -> None:
    assert "spec.brokerName is 'other'" in message(b.settled(brokerName="other"), "Ready")
    assert status_of(c.going(b.settled(), "orders-2"))["readyReplicas"] == 2


def test_a_settled_group_gets_its_status_and_then_nothing() -> None:
    """Also if the server keeps members in another order."""
    status = status_of(b.settled())
    assert run(c.with_status(b.settled(), status)) == plans.Plan()
    backwards = {field: status[field][::-1] for field in ("members", "conditions")}
    assert run(c.with_status(b.settled(), status | backwards)) == plans.Plan()


@pytest.mark.parametrize(
    ("field", "missing", "expected"),
    [
        ("config_maps", "orders-broker", "apply ConfigMap orders-broker"),
        ("services", "orders-members", "apply Service orders-members"),
        ("services", "orders-master", "apply Service orders-master"),
        ("services", "orders-slaves", "apply Service orders-slaves"),
        ("disruption_budgets", "orders.master", "apply PodDisruptionBudget orders.master"),
        ("pods", "orders-2", "apply Pod orders-2"),
    ],
)
def test_a_deleted_child_comes_back(field: str, missing: str, expected: str) -> None:
    seen = b.settled()
    assert lines_of(run(b.changed(seen, **{field: b.without(getattr(seen, field), missing)}))) == [expected]


def test_a_pod_comes_back_with_its_name_claim_and_id() -> None:
    created = c.applied(c.without_pods(b.settled(), "orders-2"), "Pod")["orders-2"]
    assert created["metadata"]["labels"][names.LABEL_BROKER_ID] == "2"
    assert created["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "orders-2"}


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_pod_that_will_not_run_again_is_deleted(phase: str) -> None:
    seen = c.with_pods(b.settled(), lambda pod: pod["status"].update(phase=phase), "orders-3")
    [deletion] = c.actions(seen, plans.DeleteObject)
    assert (deletion.name, deletion.uid) == ("orders-3", "pod-uid-3")


def test_a_pod_that_its_kubelet_refuses_is_made_again_only_after_a_while() -> None:
    """UnexpectedAdmissionError, NodeAffinity: Failed before any container was made. Each new pod was refused in the same second."""

    def refuse(pod: dict[str, Any]) -> None:
        pod["status"] = {"phase": "Failed", "reason": "UnexpectedAdmissionError"}
        pod["metadata"]["creationTimestamp"] = b.NOW

    refused = c.with_pods(b.settled(), refuse, "orders-3")
    plan = run(refused)
    assert lines_of(plan) == []
    assert plan.look_again_seconds is not None
    later = evaluate(refused, b.SETTINGS, now="2026-11-21T00:00:10Z")
    assert "delete Pod orders-3" in lines_of(later)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda service: service["spec"]["selector"].update({names.LABEL_ROLE: "slave"}), True),
        (lambda service: service["spec"]["ports"].pop(), True),
        (lambda service: service["metadata"].update(ownerReferences=[]), True),
        (lambda service: service["metadata"]["annotations"].clear(), True),
        (lambda service: service["spec"].update(clusterIP="10.96.1.1", sessionAffinity="None"), False),
        (lambda service: service["metadata"]["labels"].update(team="payments"), False),
    ],
    ids=["selector", "port", "owner", "revision", "server defaults", "foreign label"],
)
def test_drift_is_repaired_and_what_others_add_is_left_alone(change: Any, expected: bool) -> None:
    seen = b.settled()
    services = copy.deepcopy(dict(seen.services))
    change(services["orders-master"])
    # A group says that it takes something back before it does.
    marked = [f"finalizers BrokerGroup orders {[names.FINALIZER_BROKER_GROUP]}"]
    unowned = not services["orders-master"]["metadata"]["ownerReferences"]
    wanted = [*(marked if unowned else []), *(["apply Service orders-master"] if expected else [])]
    assert lines_of(run(b.changed(seen, services=services))) == wanted


def test_a_lost_volume_gets_a_new_id_not_an_empty_disk_under_the_old_one() -> None:
    seen = b.settled()
    seen = b.changed(seen, pods=b.without(seen.pods, "orders-1"), claims=b.without(seen.claims, "orders-1"))
    plan = run(seen)
    assert lines_of(plan) == ["reserve orders-4"]
    assert plan.actions[0].note is not None
    assert plan.actions[0].note.reason == "VolumeLost"


def test_a_pod_that_lost_its_disk_keeps_its_name_under_a_new_id() -> None:
    """It asked for an id again and, being registered before, got the next one (rule 4)."""
    seen = c.seen_with(b.settled(), b.wiped(in_sync=(2, 3, 4)), live=(2, 3, 4))
    [_, relabelled] = c.actions(seen, plans.SetRole)

    assert (relabelled.pod, relabelled.broker_id, relabelled.role) == ("orders-1", 4, "slave")
    expected = [(2, "orders-2", "InSync"), (3, "orders-3", "InSync"), (4, "orders-1", "InSync")]
    assert [(item["brokerId"], item["pod"], item["state"]) for item in status_of(seen)["members"]] == expected
    assert condition(seen, "Ready") == ("True", "AllMembersInSync")


MASTER_ALONE = b.record(in_sync=(1,))
STRICT_ALONE = c.seen_with(b.settled(), MASTER_ALONE, writable=False)
UNCONFIRMED = c.seen_with(b.settled(), MASTER_ALONE, writable=False, last_failover=c.elected(epoch=7))
CONFIRMED = c.seen_with(b.settled(), MASTER_ALONE, writable=False, last_failover=c.elected(epoch=7, confirmed=True))
SERVES, TOO_FEW = ("True", "MasterServesWrites"), ("False", "NotEnoughInSyncReplicas")
PENDING, NO_MASTER, NOT_READY = ("False", "MembersPending"), ("False", "NoMaster"), ("False", "MasterNotReady")
LAGS = ("False", "MembersOutOfSync")
CASES: list[tuple[str, Observed, tuple[str, str], tuple[str, str]]] = [
    ("all in order", b.settled(), ("True", "AllMembersInSync"), SERVES),
    ("a slave is not ready", c.not_ready(b.settled(), "orders-2"), PENDING, SERVES),
    ("the master is not ready", c.not_ready(b.settled(), "orders-1"), PENDING, NOT_READY),
    ("no master", b.changed(b.settled(), record=b.record(master=None)), NO_MASTER, NO_MASTER),
    ("a slave lags", b.changed(b.settled(), record=b.record(in_sync=(1, 3))), LAGS, SERVES),
    ("only the master is in sync, Strict", STRICT_ALONE, TOO_FEW, TOO_FEW),
    ("the master lives alone in a set of three, Strict", c.live(b.settled(), 1, writable=False), TOO_FEW, TOO_FEW),
    ("the new master, alone in the set, has not confirmed its role, Strict", UNCONFIRMED, NOT_READY, NOT_READY),
    ("the new master has confirmed its role, and is alone in the set, Strict", CONFIRMED, TOO_FEW, TOO_FEW),
    ("only the master is in sync, Available", b.changed(b.settled(durability="Available"), record=MASTER_ALONE), LAGS, SERVES),
    ("the master has not confirmed its role", c.live(b.settled(), 1, 2, 3, writable=False), NOT_READY, NOT_READY),
    ("failing over", c.live(b.settled(), 1, 2, 3, in_progress=c.failing_over()), ("False", "FailingOver"), SERVES),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "ready", "available"), c.table(CASES))
def test_conditions(seen: Observed, ready: tuple[str, str], available: tuple[str, str]) -> None:
    assert (condition(seen, "Ready"), condition(seen, "Available")) == (ready, available)


def test_unfenced_is_present_only_while_true() -> None:
    seen = b.settled()
    assert "Unfenced" not in conditions(seen)
    seen = b.changed(seen, record=replace(b.record(), unfenced=frozenset({2})))
    assert condition(seen, "Unfenced") == ("True", "FenceNotConfirmed")
    expected = "broker 2 was replaced as master, and no failover could confirm its death"
    assert message(seen, "Unfenced").startswith(expected)
    assert status_of(seen)["unfenced"] is True


def test_an_unfenced_java_master_has_a_fence_of_its_own_and_the_status_says_so() -> None:
    seen = b.changed(b.settled(), record=replace(b.record(), unfenced=frozenset({2})))
    for implementation, says_so in ((Implementation.PYTHON, False), (Implementation.JAVA, True)):
        spec = msgspec.structs.replace(seen.group.spec, implementation=implementation)
        verdict = alarms.unfenced(b.changed(seen, group=msgspec.structs.replace(seen.group, spec=spec)))
        told = "the fence inside it kills a master that has heard no controller for 2.5 s, at the latest after 4.5 s"
        assert verdict is not None
        assert (told in verdict.message) is says_so


def test_repairs_come_before_the_status_and_what_takes_a_turn_after_it() -> None:
    """The status says that the group rolls before it begins: after a crash in between the status still has the turn."""
    seen = replace(c.outdated(c.settled()), config_maps={})
    lines = [describe(action) for action in run(seen).actions]
    repair = lines.index("apply ConfigMap orders-broker")
    assert repair < lines.index("status") < lines.index("delete Pod orders-2")


def test_the_transition_time_moves_only_with_the_status() -> None:
    seen = b.settled()
    earlier = status_of(seen)
    for item in earlier["conditions"]:
        item["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    seen = b.changed(c.with_status(seen, earlier), record=b.record(in_sync=(1, 2)))
    times = {item["type"]: item["lastTransitionTime"] for item in status_of(seen)["conditions"]}
    moved = {kind for kind, time in times.items() if time == b.NOW}
    assert moved == {"Ready", "FailoverSafe", "ReplicationHealthy"}
    assert {times[kind] for kind in times.keys() - moved} == {"2026-01-01T00:00:00Z"}


def test_status_names_each_members_role() -> None:
    status = status_of(b.settled())

    expected = {"brokerId": 1, "pod": "orders-1", "address": "10.1.0.1:10911", "epoch": 7, "since": b.NOW}
    assert status["master"] == expected
    assert status["syncStateSet"] == {"brokerIds": [1, 2, 3], "epoch": 9}
    assert (status["replicas"], status["readyReplicas"], status["inSyncReplicas"]) == (3, 3, 3)
    assert status["selector"] == "brokergroup.dev/broker-group=orders"
    assert status["durability"] == "Strict"
    assert status["members"][1] == {
        "brokerId": 2,
        "pod": "orders-2",
        "podUID": "pod-uid-2",
        "node": "node-1",
        "podIP": "10.1.0.2",
        "address": "10.1.0.2:10911",
        "claim": "orders-2",
        "revision": status["updateRevision"],
        "role": "slave",
        "state": "InSync",
        "seat": "InSyncStateSet",
    }
    assert status["uncleanElections"] == 0
    assert status["controller"] == {
        "addresses": list(b.SETTINGS.controller_addresses),
        "electionPolicy": "most-data",
        "signature": "Accepted",
    }


RESERVED = b.changed(b.settled(), record=b.reserved(1, 2, 3), snapshot=None)
STATES: list[tuple[str, Observed, str]] = [
    ("in sync", b.settled(), "InSync"),
    ("silent", c.live(b.settled(), 1, 3), "OutOfSync"),
    ("catching up", b.changed(b.settled(), record=b.record(in_sync=(1, 3))), "CatchingUp"),
    ("registering", RESERVED, "Registering"),
    ("pending", b.changed(RESERVED, pods={}), "Pending"),
    ("lost", c.live(c.without_pods(b.settled(), "orders-2"), 1), "Lost"),
]


@pytest.mark.parametrize(("seen", "state"), c.table(STATES))
def test_member_states(seen: Observed, state: str) -> None:
    assert status_of(seen)["members"][1]["state"] == state


def test_the_reconcile_plane_leaves_the_failovers_of_the_status_alone() -> None:
    """The pod that carried out a failover writes them; the pod that reconciles may not have seen it."""
    shown = status_of(b.settled())
    assert c.actions(c.with_status(b.settled(), shown | {"failovers": [{"epoch": 8}]}), plans.WriteStatus) == []
    assert "failovers" not in shown


MEMBERS = 3
OF_THE_GROUP, OF_EACH_MEMBER = 1, MEMBERS
# The function that derives it, and how often one evaluation of a settled group of three may call it.
ALLOWED = {
    "reconcile/see/members.py:membership": OF_THE_GROUP,
    "reconcile/see/members.py:carried": OF_THE_GROUP,
    "reconcile/see/members.py:wanted_learners": OF_THE_GROUP,
    "reconcile/see/members.py:never_masters": OF_THE_GROUP,
    "reconcile/see/members.py:learning": OF_THE_GROUP,
    "reconcile/see/members.py:standings": OF_THE_GROUP,
    "reconcile/see/members.py:_standing": OF_EACH_MEMBER,
    "reconcile/see/observed.py:going_claims": OF_EACH_MEMBER,
    "reconcile/render/broker_config.py:broker_properties": OF_THE_GROUP,
    "reconcile/render/broker_config.py:render": 2,  # the whole broker.conf, and what only a start reads of it
    "reconcile/decide/rollout.py:wanted_pod": OF_EACH_MEMBER,
    # The group's own is of the revision in its status.
    "reconcile/render/pods.py:build_pod": OF_EACH_MEMBER + OF_THE_GROUP,
    "reconcile/render/pods.py:pod_revision": OF_EACH_MEMBER + OF_THE_GROUP,
    "reconcile/decide/configuration_drift.py:drifted_keys": OF_THE_GROUP,
    "reconcile/see/foreign.py:made_here": 5,  # once for each kind that has an owner
}


def calls_of(work: Callable[[], object]) -> Counter[str]:
    """Return how often each Python function was called, by the end of its path and its name."""
    counted: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            path = frame.f_code.co_filename.rpartition("brokergroup_operator/")[2]
            counted[f"{path}:{frame.f_code.co_qualname}"] += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counted


@pytest.fixture(scope="module")
def at_rest() -> Observed:
    """A group of three with the status that it should have: nothing is to do."""
    seen = b.settled()
    (written,) = evaluate(seen, b.SETTINGS, now=b.NOW).actions
    assert isinstance(written, WriteStatus)
    return c.with_status(seen, written.status)


@pytest.mark.parametrize("function", ALLOWED)
def test_an_evaluation_derives_each_fact_once(at_rest: Observed, function: str) -> None:
    seen = replace(at_rest, group=msgspec.structs.replace(at_rest.group))  # as the next pass reads it
    plans = []
    counted = calls_of(lambda: plans.append(evaluate(seen, b.SETTINGS, now=b.NOW)))
    assert plans[0].actions == ()
    assert 0 < counted[function] <= ALLOWED[function]
