"""What a pass decides, case by case: something observed, and the actions that follow."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import msgspec
import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.kube.resources import PODS
from brokergroup_operator.reconcile import plan as plans
from brokergroup_operator.reconcile.evaluate import evaluate
from brokergroup_operator.reconcile.see.observed import Observed
from brokergroup_operator.reconcile.tell import alarms
from controller_core.model import BrokerGroupRecord, Replica
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.passes import condition, conditions, describe, lines_of, message, run, status_of

SHARED = [
    "apply ConfigMap orders-broker",
    "apply Service orders-members",
    "apply Service orders-master",
    "apply Service orders-slaves",
    "apply PodDisruptionBudget orders.master",
]


def test_a_new_group_is_held_and_its_ids_are_reserved_before_any_pod() -> None:
    new = b.group_object()
    new["metadata"]["finalizers"] = []
    seen = Observed(group=b.group(), group_object=new)

    assert lines_of(run(seen)) == [
        "finalizers BrokerGroup orders ['brokergroup.dev/brokergroup']",
        *SHARED,
        "reserve orders-1",
        "reserve orders-2",
        "reserve orders-3",
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
        lines = lines_of(run(seen))
        assert [line for line in lines if line.startswith("reserve")] == [
            f"reserve orders-{n}" for n in range(done + 1, 4)
        ]


def test_a_settled_group_gets_its_status_and_then_nothing() -> None:
    seen = b.settled()
    assert lines_of(run(seen)) == []
    shown = b.group_object() | {"status": status_of(seen)}

    assert run(b.changed(seen, group_object=shown)) == plans.Plan()


def test_the_order_in_which_the_server_keeps_members_is_no_difference() -> None:
    seen = b.settled()
    status = status_of(seen)
    status["members"].reverse()
    status["conditions"].reverse()

    assert run(b.changed(seen, group_object=b.group_object() | {"status": status})) == plans.Plan()


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
    seen = b.settled()
    plan = run(b.changed(seen, pods=b.without(seen.pods, "orders-2")))
    [created] = [
        action.object for action in plan.actions if isinstance(action, plans.ApplyObject) and action.resource == PODS
    ]

    assert created["metadata"]["labels"][names.LABEL_BROKER_ID] == "2"
    assert created["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "orders-2"}


def test_a_pod_that_is_going_is_waited_for() -> None:
    seen = c.going(b.settled(), "orders-2")
    assert lines_of(run(seen)) == []
    assert condition(seen, "Reconciling") == ("True", "RepairingMembers")
    assert condition(seen, "Ready") == ("False", "MembersPending")
    assert status_of(seen)["readyReplicas"] == 2


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_pod_that_will_not_run_again_is_deleted(phase: str) -> None:
    seen = c.with_pods(b.settled(), lambda pod: pod["status"].update(phase=phase), "orders-3")
    [deletion] = [action for action in run(seen).actions if isinstance(action, plans.DeleteObject)]

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


def test_a_claim_grows_and_an_equal_size_in_other_words_is_no_drift() -> None:
    seen = b.settled(storage={"size": "1Gi"})
    same = copy.deepcopy(dict(seen.claims))
    same["orders-1"]["spec"]["resources"]["requests"]["storage"] = "1024Mi"
    grown = b.changed(seen, group=b.group(storage={"size": "2Gi"}))

    assert lines_of(run(b.changed(seen, claims=same))) == []
    assert lines_of(run(grown)) == [f"apply PersistentVolumeClaim orders-{n}" for n in (1, 2, 3)]


def test_an_unbound_claim_waits_with_its_growth() -> None:
    """The API server refuses the growth of an unbound claim."""
    seen = b.settled(storage={"size": "1Gi"})
    claims = copy.deepcopy(dict(seen.claims))
    claims["orders-2"]["status"]["phase"] = "Pending"
    grown = b.changed(seen, group=b.group(storage={"size": "2Gi"}), claims=claims)

    assert lines_of(run(grown)) == [f"apply PersistentVolumeClaim orders-{n}" for n in (1, 3)]


def test_roles_follow_the_record() -> None:
    seen = b.changed(b.settled(), record=b.record(master=2))

    assert lines_of(run(seen)) == ["role orders-1 slave", "role orders-2 master"]


def test_a_lost_master_process_has_no_role_until_it_is_granted_again() -> None:
    lost = b.record()
    seen = b.changed(
        b.settled(),
        record=BrokerGroupRecord(
            cluster_name=lost.cluster_name,
            broker_name=lost.broker_name,
            next_broker_id=4,
            replicas=lost.replicas,
            master_broker_id=1,
            master_epoch=7,
            sync_state_set=lost.sync_state_set,
            master_process_lost=True,
        ),
    )

    assert lines_of(run(seen)) == ["role orders-1 slave"]
    assert condition(seen, "Available") == ("False", "NoMaster")


def test_scaling_out_reserves_the_next_ids() -> None:
    assert lines_of(run(b.changed(b.settled(), group=b.group(replicas=5)))) == ["reserve orders-4", "reserve orders-5"]


def test_scaling_in_notes_which_slave_leaves() -> None:
    seen = b.changed(b.settled(), group=b.group(replicas=2, durability="Strict"))

    assert lines_of(run(seen)) == ["apply PersistentVolumeClaim orders-3"]
    assert condition(seen, "Reconciling") == ("True", "ScalingIn")


def test_an_id_taken_by_a_foreign_broker_is_stepped_over() -> None:
    """A broker registered under our brokerName without a reservation: its id is not ours to run."""
    strangers = {1: Replica(broker_id=1, register_check_code="stranger", address="10.9.9.9:10911", registered=True)}
    seen = b.changed(
        b.settled(),
        pods={},
        claims={},
        record=BrokerGroupRecord(
            cluster_name="DefaultCluster", broker_name="orders", next_broker_id=2, replicas=strangers
        ),
    )

    assert lines_of(run(seen)) == ["reserve orders-2", "reserve orders-3", "reserve orders-4"]


def test_a_lost_volume_gets_a_new_id_not_an_empty_disk_under_the_old_one() -> None:
    seen = b.settled()
    seen = b.changed(seen, pods=b.without(seen.pods, "orders-1"), claims=b.without(seen.claims, "orders-1"))
    plan = run(seen)

    assert lines_of(plan) == ["reserve orders-4"]
    assert plan.actions[0].note is not None
    assert plan.actions[0].note.reason == "VolumeLost"


def test_a_claim_deleted_under_a_running_pod_is_made_again() -> None:
    """While the pod runs its disk is there, whatever became of the claim."""
    seen = b.settled()

    assert lines_of(run(b.changed(seen, claims=b.without(seen.claims, "orders-1")))) == [
        "apply PersistentVolumeClaim orders-1"
    ]


def test_a_pod_that_lost_its_disk_keeps_its_name_under_a_new_id() -> None:
    """It asked for an id again and, being registered before, got the next one (rule 4)."""
    before = b.record()
    fourth = Replica(
        broker_id=4, register_check_code="code-4", address="10.1.0.1:10911", reserved_for="orders-1", registered=True
    )
    after = dataclasses.replace(
        before,
        next_broker_id=5,
        replicas={**before.replicas, 4: fourth},
        master_broker_id=2,
        sync_state_set=frozenset({2, 3, 4}),
    )
    seen = b.changed(b.settled(), record=after, snapshot=b.snapshot(after, live=(2, 3, 4)))
    [_, relabelled] = [action for action in run(seen).actions if isinstance(action, plans.SetRole)]

    assert (relabelled.pod, relabelled.broker_id, relabelled.role) == ("orders-1", 4, "slave")
    assert [(item["brokerId"], item["pod"], item["state"]) for item in status_of(seen)["members"]] == [
        (2, "orders-2", "InSync"),
        (3, "orders-3", "InSync"),
        (4, "orders-1", "InSync"),
    ]
    assert condition(seen, "Ready") == ("True", "AllMembersInSync")


def test_a_missing_claim_of_an_id_that_never_registered_is_created() -> None:
    seen = b.changed(b.settled(), record=b.reserved(1, 2, 3), claims={}, pods={}, snapshot=None)

    assert "apply PersistentVolumeClaim orders-1" in lines_of(run(seen))


def test_a_record_of_another_broker_name_stops_everything() -> None:
    seen = b.settled(brokerName="other")

    assert lines_of(run(seen)) == []
    assert condition(seen, "Ready") == ("False", "InvalidSpec")
    assert "spec.brokerName is 'other'" in message(seen, "Ready")


CASES: list[tuple[str, Observed, tuple[str, str], tuple[str, str]]] = [
    ("all in order", b.settled(), ("True", "AllMembersInSync"), ("True", "MasterServesWrites")),
    (
        "a slave is not ready",
        c.not_ready(b.settled(), "orders-2"),
        ("False", "MembersPending"),
        ("True", "MasterServesWrites"),
    ),
    (
        "the master is not ready",
        c.not_ready(b.settled(), "orders-1"),
        ("False", "MembersPending"),
        ("False", "MasterNotReady"),
    ),
    ("no master", b.changed(b.settled(), record=b.record(master=None)), ("False", "NoMaster"), ("False", "NoMaster")),
    (
        "a slave lags",
        b.changed(b.settled(), record=b.record(in_sync=(1, 3))),
        ("False", "MembersOutOfSync"),
        ("True", "MasterServesWrites"),
    ),
    (
        "only the master is in sync, Strict",
        c.seen_with(b.settled(), b.record(in_sync=(1,)), writable=False),
        ("False", "NotEnoughInSyncReplicas"),
        ("False", "NotEnoughInSyncReplicas"),
    ),
    (
        "the master lives alone in a SyncStateSet of three, Strict",
        c.live(b.settled(), 1, writable=False),
        ("False", "NotEnoughInSyncReplicas"),
        ("False", "NotEnoughInSyncReplicas"),
    ),
    (
        "the new master, alone in the SyncStateSet, has not confirmed its role, Strict",
        c.seen_with(b.settled(), b.record(in_sync=(1,)), writable=False, last_failover=c.elected(epoch=7)),
        ("False", "MasterNotReady"),
        ("False", "MasterNotReady"),
    ),
    (
        "the new master has confirmed its role, and is alone in the SyncStateSet, Strict",
        c.seen_with(
            b.settled(), b.record(in_sync=(1,)), writable=False, last_failover=c.elected(epoch=7, confirmed=True)
        ),
        ("False", "NotEnoughInSyncReplicas"),
        ("False", "NotEnoughInSyncReplicas"),
    ),
    (
        "only the master is in sync, Available",
        b.changed(b.settled(durability="Available"), record=b.record(in_sync=(1,))),
        ("False", "MembersOutOfSync"),
        ("True", "MasterServesWrites"),
    ),
    (
        "the master has not confirmed its role",
        b.changed(b.settled(), snapshot=b.snapshot(b.record(), writable=False)),
        ("False", "MasterNotReady"),
        ("False", "MasterNotReady"),
    ),
    (
        "failing over",
        b.changed(b.settled(), snapshot=b.snapshot(b.record(), in_progress=c.failing_over())),
        ("False", "FailingOver"),
        ("True", "MasterServesWrites"),
    ),
]


@pytest.mark.parametrize(("seen", "ready", "available"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_conditions(seen: Observed, ready: tuple[str, str], available: tuple[str, str]) -> None:
    assert (condition(seen, "Ready"), condition(seen, "Available")) == (ready, available)


def test_unfenced_is_present_only_while_true() -> None:
    seen = b.settled()
    assert "Unfenced" not in conditions(seen)
    seen = b.changed(seen, record=dataclasses.replace(b.record(), unfenced=frozenset({2})))

    assert condition(seen, "Unfenced") == ("True", "FenceNotConfirmed")
    expected = "broker 2 was replaced as master, and no failover could confirm its death"
    assert message(seen, "Unfenced").startswith(expected)
    assert status_of(seen)["unfenced"] is True


def test_an_unfenced_java_master_has_a_fence_of_its_own_and_the_status_says_so() -> None:
    seen = b.changed(b.settled(), record=dataclasses.replace(b.record(), unfenced=frozenset({2})))
    for implementation, says_so in ((Implementation.PYTHON, False), (Implementation.JAVA, True)):
        spec = msgspec.structs.replace(seen.group.spec, implementation=implementation)
        verdict = alarms.unfenced(b.changed(seen, group=msgspec.structs.replace(seen.group, spec=spec)))
        assert verdict is not None
        assert (
            "the fence inside it kills a master that has heard no controller for 2.5 s, at the latest after 4.5 s"
            in verdict.message
        ) is says_so


def test_repairs_come_before_the_status_and_what_takes_a_turn_after_it() -> None:
    """The status says that the group rolls before it begins: after a crash in between the status still has the turn."""
    seen = dataclasses.replace(c.outdated(c.settled()), config_maps={})
    lines = [describe(action) for action in run(seen).actions]
    repair = lines.index("apply ConfigMap orders-broker")
    assert repair < lines.index("status") < lines.index("delete Pod orders-2")


def test_the_transition_time_moves_only_with_the_status() -> None:
    seen = b.settled()
    earlier = status_of(seen)
    for item in earlier["conditions"]:
        item["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    seen = b.changed(seen, group_object=b.group_object() | {"status": earlier}, record=b.record(in_sync=(1, 2)))
    times = {item["type"]: item["lastTransitionTime"] for item in status_of(seen)["conditions"]}

    moved = {kind for kind, time in times.items() if time == b.NOW}
    assert moved == {"Ready", "FailoverSafe", "ReplicationHealthy"}
    assert {times[kind] for kind in times.keys() - moved} == {"2026-01-01T00:00:00Z"}


def test_status_names_each_members_role() -> None:
    status = status_of(b.settled())

    assert status["master"] == {
        "brokerId": 1,
        "pod": "orders-1",
        "address": "10.1.0.1:10911",
        "epoch": 7,
        "since": b.NOW,
    }
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


@pytest.mark.parametrize(
    ("seen", "state"),
    [
        (b.settled(), "InSync"),
        (b.changed(b.settled(), snapshot=b.snapshot(b.record(), live=(1, 3))), "OutOfSync"),
        (b.changed(b.settled(), record=b.record(in_sync=(1, 3))), "CatchingUp"),
        (b.changed(b.settled(), record=b.reserved(1, 2, 3), snapshot=None), "Registering"),
        (b.changed(b.settled(), record=b.reserved(1, 2, 3), snapshot=None, pods={}), "Pending"),
        (
            b.changed(
                b.settled(), pods=b.without(b.settled().pods, "orders-2"), snapshot=b.snapshot(b.record(), live=(1,))
            ),
            "Lost",
        ),
    ],
    ids=["in sync", "silent", "catching up", "registering", "pending", "lost"],
)
def test_member_states(seen: Observed, state: str) -> None:
    assert status_of(seen)["members"][1]["state"] == state


def test_a_hot_key_is_given_to_every_broker_and_restarts_none() -> None:
    seen = b.changed(b.settled(), group=b.group(config={"fileReservedTime": "24"}))

    assert lines_of(run(seen)) == [
        "apply ConfigMap orders-broker",
        *(f"give orders-{n} [('fileReservedTime', '24')]" for n in (1, 2, 3)),
    ]
    assert condition(seen, "UpToDate") == ("True", "AllUpToDate")


def test_any_other_key_restarts_the_first_slave() -> None:
    seen = b.changed(b.settled(), group=b.group(config={"maxMessageSize": "1000"}))

    assert lines_of(run(seen)) == ["apply ConfigMap orders-broker", "delete Pod orders-2"]
    assert condition(seen, "UpToDate") == ("False", "RollingUpdate")


def test_the_reconcile_plane_leaves_the_failovers_of_the_status_alone() -> None:
    """The pod that carried out a failover writes them; the pod that reconciles may not have seen it."""
    shown = status_of(b.changed(b.settled(), group_object=b.group_object()))
    failovers = {"failovers": [{"epoch": 8}]}
    written_by_another = b.changed(b.settled(), group_object=b.group_object() | {"status": shown | failovers})
    assert [action for action in run(written_by_another).actions if isinstance(action, plans.WriteStatus)] == []
    assert "failovers" not in shown
