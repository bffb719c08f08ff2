"""The status of a group: when it is written, its members, alarms that wait for a person, and what keeps a pod from being ready."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_status import STANDING_CONDITIONS, Reason
from brokergroup_operator.api.credentials import CredentialsError, secret_not_found
from brokergroup_operator.reconcile.evaluate import UNSETTLED_SECONDS, evaluate
from brokergroup_operator.reconcile.plan import WriteStatus
from brokergroup_operator.reconcile.see.observed import pod_trouble
from controller_core.model import LiveReplica
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.passes import conditions, message, run, status_of

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed
    from controller_core.model import BrokerGroupRecord


WRITTEN = "2026-11-21T00:00:00Z"


def lagging(seen: Observed, behind: int) -> Observed:
    """Broker 2 is so many bytes behind the master."""
    assert seen.snapshot is not None
    live = {one: LiveReplica(broker_id=one, epoch=7, max_offset=10**9) for one in (1, 2, 3)}
    live[2] = live[2]._replace(max_offset=10**9 - behind)
    return replace(seen, snapshot=replace(seen.snapshot, live=live))


def shown(seen: Observed, now: str) -> list[dict[str, Any]]:
    plan = evaluate(seen, b.SETTINGS, now=now)
    return [action.status for action in plan.actions if isinstance(action, WriteStatus)]


def written(seen: Observed) -> Observed:
    """As the API server has it after the first write."""
    [status] = shown(seen, WRITTEN)
    managed = [{"manager": names.FIELD_MANAGER_STATUS, "operation": "Apply", "time": WRITTEN}]
    metadata = {**seen.group_object["metadata"], "managedFields": managed}
    return replace(seen, group_object={**seen.group_object, "metadata": metadata, "status": status})


def lag_of(statuses: list[dict[str, Any]]) -> list[int]:
    return [member["lagBytes"] for status in statuses for member in status["members"] if member["brokerId"] == 2]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("2026-11-21T00:00:01Z", []),
        ("2026-11-21T00:00:09Z", []),
        ("2026-11-21T00:00:10Z", [2**23]),
        ("2026-11-20T23:59:59Z", [2**23]),
    ],
)
def test_a_lag_alone_is_written_once_in_ten_seconds(now: str, expected: list[int]) -> None:
    seen = written(lagging(b.settled(), 2**24))
    assert lag_of(shown(lagging(seen, 2**23), now)) == expected


def test_whatever_else_changes_is_written_at_once_and_the_lag_with_it() -> None:
    seen = written(lagging(b.settled(), 2**24))
    pods = {**seen.pods, "orders-3": b.running_pod(seen.group, 3, role="slave", ready=False)}
    assert lag_of(shown(replace(lagging(seen, 2**23), pods=pods), "2026-11-21T00:00:01Z")) == [2**23]


def test_without_a_time_of_the_last_write_nothing_is_held_back() -> None:
    seen = written(lagging(b.settled(), 2**24))
    metadata = b.without(seen.group_object["metadata"], "managedFields")
    seen = replace(seen, group_object={**seen.group_object, "metadata": metadata})
    assert lag_of(shown(lagging(seen, 2**23), "2026-11-21T00:00:01Z")) == [2**23]


def second(seen: Observed) -> dict[str, Any]:
    member: dict[str, Any] = status_of(seen)["members"][1]
    return member


@pytest.mark.parametrize(
    ("master", "slave", "lag"),
    [
        (5_000_000, 5_000_000, 0),
        (5_000_000, 4_500_000, 0),
        (5_000_000, 5_100_000, 0),
        (5_000_000, 0, 4 * 2**20),
        (9 * 2**20, 2**20, 8 * 2**20),
        (9 * 2**20, 0, 8 * 2**20),
        (-1, 0, None),
        (0, -1, None),
    ],
)
def test_lag_is_coarse(master: int, slave: int, lag: int | None) -> None:
    seen = c.settled()
    assert seen.snapshot is not None
    live = {
        1: LiveReplica(broker_id=1, epoch=7, max_offset=master),
        2: LiveReplica(broker_id=2, epoch=7, max_offset=slave),
    }
    assert second(replace(seen, snapshot=replace(seen.snapshot, live=live))).get("lagBytes") == lag


def test_node_and_zone_where_nodes_can_be_read() -> None:
    told = second(c.on_nodes(c.settled(), node_2=c.node("node-2")))
    assert (told["node"], told["zone"]) == ("node-2", "zone-of-node-2")
    assert "zone" not in second(c.on_nodes(c.settled()))


def test_a_fenced_and_a_sleeping_member() -> None:
    fenced = c.with_pods(
        c.settled(), lambda pod: pod["metadata"].update(finalizers=[names.FINALIZER_FENCE]), "orders-2"
    )
    assert second(fenced)["state"] == "Fenced"
    asleep = c.without_pods(c.settled(maintenance={"hibernated": True}), "orders-2")
    assert second(asleep)["state"] == "Stopped"


def test_an_outdated_pod_shows_what_it_runs() -> None:
    status = status_of(c.outdated(c.settled(), "orders-2"))
    assert status["members"][1]["revision"] == "older"
    assert status["members"][0]["revision"] == status["updateRevision"]
    assert (status["updatedReplicas"], "currentRevision" in status) == (2, False)


def test_an_outdated_pod_that_is_going_still_runs_what_it_ran() -> None:
    """Counted as updated, it would show progress while the first pod is only being deleted."""
    seen = c.going(c.outdated(c.settled(), "orders-2"), "orders-2")
    status = status_of(seen)
    assert status["members"][1]["revision"] == "older"
    assert (status["updatedReplicas"], "currentRevision" in status) == (2, False)


def test_a_pod_that_is_going_and_runs_what_the_spec_says_is_counted() -> None:
    status = status_of(c.going(c.settled(), "orders-2"))
    assert status["members"][1]["revision"] == status["updateRevision"] == status["currentRevision"]
    assert status["updatedReplicas"] == 3


def test_an_update_whose_last_pod_has_yet_to_come_is_not_complete() -> None:
    missing = c.live(c.rolling(c.without_pods(c.settled(), "orders-2")), 1, 3)
    status = status_of(missing)
    assert (status["updatedReplicas"], "currentRevision" in status) == (2, False)
    assert status_of(c.rolling(c.settled()))["currentRevision"] == status["updateRevision"]


ALWAYS = {str(kind) for kind in STANDING_CONDITIONS}


def alarms_of(seen: Observed) -> dict[str, dict[str, Any]]:
    return {kind: item for kind, item in conditions(seen).items() if kind not in ALWAYS}


def with_record(record: BrokerGroupRecord, **snapshot: Any) -> Observed:
    return b.changed(b.settled(), record=record, snapshot=b.snapshot(record, **snapshot))


def behind(**fields: Any) -> BrokerGroupRecord:
    """As the epoch floor leaves a record: above the brokers, and no member holds a seat."""
    return replace(b.record(master=None, in_sync=()), **fields)


def test_a_group_in_order_has_no_alarm() -> None:
    assert alarms_of(b.settled()) == {}
    assert alarms_of(b.changed(b.settled(), record=b.reserved(1, 2, 3))) == {}, "nor has a new one"


def test_an_epoch_jump_shows_the_command_that_accepts_it() -> None:
    seen = with_record(b.record(), epoch_jump=25_000)
    alarm = alarms_of(seen)["EpochJump"]

    assert (alarm["status"], alarm["reason"]) == ("True", "EpochFarAboveRecord")
    assert "epoch 25000, the record says 7" in alarm["message"]
    assert "kubectl annotate brokergroup orders -n shop brokergroup.dev/accept-epoch=25000" in alarm["message"]
    assert status_of(seen)["controller"]["epochJump"] == 25_000


def annotated(seen: Observed, text: str) -> Observed:
    metadata = seen.group_object["metadata"] | {"annotations": {names.ANNOTATION_ACCEPT_EPOCH: text}}
    return b.changed(seen, group_object=seen.group_object | {"metadata": metadata})


def test_an_acceptance_is_shown_and_an_unreadable_one_is_named() -> None:
    seen = with_record(b.record(), epoch_jump=25_000)

    assert status_of(annotated(seen, "30000"))["controller"]["acceptedEpoch"] == 30_000
    misspelt = annotated(seen, "25k")
    assert "acceptedEpoch" not in status_of(misspelt)["controller"]
    expected = "brokergroup.dev/accept-epoch is '25k', expected a number up to 2147483647"
    assert expected in message(misspelt, "EpochJump")


def test_a_record_behind_its_brokers_names_the_brokers_it_waits_for() -> None:
    alarm = alarms_of(with_record(behind(), live=(1, 3), writable=False))["Recovering"]

    assert alarm["reason"] == "RecordBehindBrokers"
    assert "above epoch 7" in alarm["message"]
    assert "waiting for brokers 2 (one that is gone for good: mqadmin cleanBrokerMetadata)" in alarm["message"]


def test_a_record_rebuilt_from_its_brokers_says_so() -> None:
    """Everything was lost: ids are known again by adoption, from the epoch that the brokers report."""
    record = behind()
    adopted = {
        broker_id: replace(replica, register_check_code=f"{replica.address};adopted")
        for broker_id, replica in list(record.replicas.items())[:2]
    }
    alarm = alarms_of(with_record(replace(record, replicas=adopted, master_epoch=0), live=(1, 2), writable=False))

    assert alarm["Recovering"]["reason"] == "RecordRebuiltFromBrokers"
    assert "every registered broker is heard, and for 1 that have not registered" in alarm["Recovering"]["message"]


def test_lost_seats_show_both_ways_out() -> None:
    record = behind(lost_seats=frozenset({1, 2}))
    marked = {
        broker_id: replace(replica, held_epoch=7, held_offset=broker_id * 1000)
        for broker_id, replica in record.replicas.items()
    }
    seen = with_record(replace(record, replicas=marked), writable=False)
    alarms = alarms_of(seen)

    assert set(alarms) == {"SeatLost"}, "no member is being recovered: this waits for a person"
    message = alarms["SeatLost"]["message"]
    assert "broker 1 (epoch 7, offset 1000), broker 2 (epoch 7, offset 2000)" in message
    assert "give one of them its volume back" in message
    assert "spec.failover.uncleanElection" in message
    assert [item["seat"] for item in status_of(seen)["members"]] == ["Lost", "Lost", "None"]


def test_members_show_their_seats_and_the_group_its_unclean_elections() -> None:
    record = replace(b.record(in_sync=(1,)), eligible=frozenset({2}), unclean_elections=3)
    status = status_of(with_record(record))

    assert [item["seat"] for item in status["members"]] == ["InSyncStateSet", "Eligible", "None"]
    assert status["uncleanElections"] == 3


@pytest.mark.parametrize(
    ("signature", "consequence"),
    [
        ("Disabled", "Brokers wait for it before they start"),
        ("Accepted", "running ones are known by their address"),
        ("Required", "No request of this group's brokers is heard until then"),
    ],
)
def test_missing_credentials_say_what_follows(signature: str, consequence: str) -> None:
    security = {"signature": signature, "credentialsSecretRef": {"name": "keys"}}
    seen = b.changed(b.settled(security=security), credentials_problem=secret_not_found("shop", "keys"))
    alarm = alarms_of(seen)["CredentialsMissing"]

    assert alarm["reason"] == "SecretNotFound"
    assert "Secret shop/keys does not exist" in alarm["message"]
    assert consequence in alarm["message"]


def test_a_missing_secret_is_looked_for_again_although_no_watch_reports_it() -> None:
    security = {"credentialsSecretRef": {"name": "keys"}}
    in_order = b.settled(security=security)
    problem = CredentialsError(
        Reason.SECRET_INCOMPLETE, "Secret shop/keys has no key secretKey, expected a text under it"
    )

    assert run(in_order).look_again_seconds is None
    waiting = run(b.changed(in_order, credentials_problem=problem))
    assert waiting.look_again_seconds == UNSETTLED_SECONDS


def pod(status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    made = b.running_pod(b.group(), 2)
    made["metadata"] |= metadata
    made["status"] = {"phase": "Pending"} | status
    return made


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {
        "containerStatuses": [
            {"name": "broker", "image": "x:1", "state": {"waiting": {"reason": reason, "message": message}}}
        ]
    }


def started(times: int, *, ready: bool) -> dict[str, Any]:
    return {"containerStatuses": [{"restartCount": times, "ready": ready, "state": {"running": {}}}]}


def first(status: dict[str, Any]) -> dict[str, Any]:
    """Return the same status of an init container; the broker waits for it."""
    return waiting("PodInitializing") | {"initContainerStatuses": status["containerStatuses"]}


UNSCHEDULABLE = {
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]
}
TROUBLES: list[tuple[str, dict[str, Any], str | None]] = [
    ("on its way", pod(waiting("ContainerCreating")), None),
    ("ready", b.running_pod(b.group(), 2), None),
    ("no image", pod(waiting("ImagePullBackOff", "not found")), "ImageUnavailable"),
    ("a bad name of an image", pod(waiting("InvalidImageName")), "ImageUnavailable"),
    ("crashing", pod(waiting("CrashLoopBackOff", "back-off 40s")), "MemberCrashes"),
    ("a missing Secret", pod(waiting("CreateContainerConfigError", 'secret "keys" not found')), "ReferenceMissing"),
    ("a missing key", pod(waiting("CreateContainerConfigError", "couldn't find key k in Secret a/b")), "ReferenceMissing"),
    ("a user that may not be", pod(waiting("CreateContainerConfigError", "image will run as root")), "ContainerNotCreated"),
    ("between two crashes", pod(started(3, ready=False)), "MemberCrashes"),
    ("crashed once", pod(started(1, ready=False)), None),
    ("crashed often and ready", pod(started(9, ready=True)), None),
    ("a mount that cannot be made", pod(waiting("CreateContainerError", "no such path")), "ContainerNotCreated"),
    ("no image of what runs first", pod(first(waiting("ErrImagePull", "not found"))), "ImageUnavailable"),
    ("what runs first fails", pod(first(waiting("CrashLoopBackOff"))), "MemberCrashes"),
    ("what runs first is at work", pod(first(started(0, ready=False))), None),
    ("no node", pod(UNSCHEDULABLE), "MemberNotScheduled"),
    ("stopping", pod(waiting("CrashLoopBackOff"), deletionTimestamp="2026-11-20T23:59:30Z"), None),
    ("its node is lost", pod({}, deletionTimestamp="2026-11-20T23:58:59Z"), "PodStuckTerminating"),
    (
        "it has stopped, and its object goes in a moment",
        pod({"containerStatuses": [{"state": {"terminated": {}}}]}, deletionTimestamp="2026-11-20T23:00:00Z"),
        None,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "expected"), [case[1:] for case in TROUBLES], ids=[case[0] for case in TROUBLES])
def test_trouble(seen: dict[str, Any], expected: str | None) -> None:
    trouble = pod_trouble(seen, now=b.NOW)

    assert (trouble.reason.value if trouble else None) == expected


def test_a_lost_node_is_named_with_both_ways_out() -> None:
    """Strimzi #13101: a pod stuck in Terminating on a dead node."""
    trouble = pod_trouble(pod({}, deletionTimestamp="2026-11-20T23:00:00Z"), now=b.NOW)
    assert trouble is not None
    for text in ("node-1", "kubectl taint node node-1 node.kubernetes.io/out-of-service", "Rebuild for broker id 2"):
        assert text in trouble.message


def test_what_is_missing_is_named_as_the_kubelet_names_it() -> None:
    trouble = pod_trouble(pod(waiting("CreateContainerConfigError", 'secret "orders-keys" not found')), now=b.NOW)
    assert trouble is not None
    assert trouble.message == 'Pod orders-2: CreateContainerConfigError: secret "orders-keys" not found'
