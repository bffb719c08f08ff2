"""The status of a group, alarms that wait for a person, and why a member went: each cause by its proof."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_status import STANDING_CONDITIONS, Reason
from brokergroup_operator.api.credentials import CredentialsError, secret_not_found
from brokergroup_operator.reconcile.evaluate import UNSETTLED_SECONDS, evaluate
from brokergroup_operator.reconcile.other_groups import BrokerNames, RollingTurns
from brokergroup_operator.reconcile.plan import DeleteObject, WriteStatus
from brokergroup_operator.reconcile.reconciler import Reconciler
from brokergroup_operator.reconcile.see.circumstances import CircumstanceWatch, circumstances_of, circumstances_of_plan
from brokergroup_operator.reconcile.see.pod_trouble import pod_trouble
from controller_core.model import LiveReplica
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.cases import conditions, message, run, status_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brokergroup_operator.observe.incidents import Circumstance
    from brokergroup_operator.reconcile.plan import Plan
    from brokergroup_operator.reconcile.see.observed import Observed
    from controller_core.model import BrokerGroupRecord


WRITTEN = "2026-11-21T00:00:00Z"


def lagging(seen: Observed, behind: int) -> Observed:
    """Broker 2 is so many bytes behind the master."""
    return at_offsets(seen, {1: 10**9, 2: 10**9 - behind, 3: 10**9})


def at_offsets(seen: Observed, offsets: dict[int, int]) -> Observed:
    return c.seeing(seen, live={one: LiveReplica(broker_id=one, epoch=7, max_offset=at) for one, at in offsets.items()})


@pytest.mark.parametrize(
    ("master", "slave", "lag"),
    [
        (5_000_000, 5_000_000, 0), (5_000_000, 4_500_000, 0), (5_000_000, 5_100_000, 0), (5_000_000, 0, 4 * 2**20),
        (9 * 2**20, 2**20, 8 * 2**20), (9 * 2**20, 0, 8 * 2**20), (-1, 0, None), (0, -1, None),
    ],
)  # fmt: skip
def test_lag_is_coarse(master: int, slave: int, lag: int | None) -> None:
    assert second(at_offsets(c.settled(), {1: master, 2: slave})).get("lagBytes") == lag


OUTDATED = c.outdated(c.settled(), "orders-2")


@pytest.mark.parametrize(
    ("seen", "updated", "is_complete", "second_runs"),
    [
        (OUTDATED, 2, False, "older"),
        # Counted as updated, it would show progress while the first pod is only being deleted.
        (c.going(OUTDATED, "orders-2"), 2, False, "older"),
        (c.going(c.settled(), "orders-2"), 3, True, None),
        (c.live(c.rolling(c.without_pods(c.settled(), "orders-2")), 1, 3), 2, False, ""),
        (c.rolling(c.settled()), 3, True, None),
    ],
    ids=["outdated", "outdated and going", "going", "the last has yet to come", "all have come"],
)
def test_which_revision_each_pod_runs(seen: Observed, updated: int, is_complete: bool, second_runs: str | None) -> None:
    status = status_of(seen)
    assert status["updatedReplicas"] == updated
    assert status.get("currentRevision") == (status["updateRevision"] if is_complete else None)
    assert status["members"][0]["revision"] == status["updateRevision"]
    expected = status["updateRevision"] if second_runs is None else second_runs
    assert status["members"][1].get("revision", "") == expected


def shown(seen: Observed, now: str) -> list[dict[str, Any]]:
    actions = evaluate(seen, b.SETTINGS, now=now).actions
    return [action.status for action in actions if isinstance(action, WriteStatus)]


def written(seen: Observed) -> Observed:
    """As the API server has it after the first write."""
    [status] = shown(seen, WRITTEN)
    managed = [{"manager": names.FIELD_MANAGER_STATUS, "operation": "Apply", "time": WRITTEN}]
    return c.with_status(c.with_metadata(seen, managedFields=managed), status)


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
    """Without a time of the last write nothing is held back either."""
    seen = written(lagging(b.settled(), 2**24))
    for changed in (c.not_ready(seen, "orders-3"), c.with_metadata(seen, managedFields=[])):
        assert lag_of(shown(lagging(changed, 2**23), "2026-11-21T00:00:01Z")) == [2**23]


def second(seen: Observed) -> dict[str, Any]:
    member: dict[str, Any] = status_of(seen)["members"][1]
    return member


def test_node_and_zone_where_nodes_can_be_read() -> None:
    told = second(c.on_nodes(c.settled(), node_2=c.node("node-2")))
    assert (told["node"], told["zone"]) == ("node-2", "zone-of-node-2")
    assert "zone" not in second(c.on_nodes(c.settled()))


def test_a_fenced_and_a_sleeping_member() -> None:
    def fence(pod: dict[str, Any]) -> None:
        pod["metadata"]["finalizers"] = [names.FINALIZER_FENCE]

    assert second(c.with_pods(c.settled(), fence, "orders-2"))["state"] == "Fenced"
    asleep = c.without_pods(c.settled(maintenance={"hibernated": True}), "orders-2")
    assert second(asleep)["state"] == "Stopped"


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
    return c.with_metadata(seen, annotations={names.ANNOTATION_ACCEPT_EPOCH: text})


def test_an_acceptance_is_shown_and_an_unreadable_one_is_named() -> None:
    seen = with_record(b.record(), epoch_jump=25_000)
    assert status_of(annotated(seen, "30000"))["controller"]["acceptedEpoch"] == 30_000
    misspelt = annotated(seen, "25k")
    assert "acceptedEpoch" not in status_of(misspelt)["controller"]
    expected = "brokergroup.dev/accept-epoch is '25k', expected a number up to 2147483647"
    assert expected in message(misspelt, "EpochJump")


def rebuilt() -> BrokerGroupRecord:
    """Everything was lost: ids are known again by adoption, from the epoch that the brokers report."""
    known = list(behind().replicas.items())[:2]
    adopted = {one: replace(replica, register_check_code=f"{replica.address};adopted") for one, replica in known}
    return behind(replicas=adopted, master_epoch=0)


RECOVERING: list[tuple[str, Observed, str, list[str]]] = [
    (
        "behind its brokers", with_record(behind(), live=(1, 3), writable=False), "RecordBehindBrokers",
        ["above epoch 7", "waiting for brokers 2 (one that is gone for good: mqadmin cleanBrokerMetadata)"],
    ),
    (
        "rebuilt from its brokers", with_record(rebuilt(), live=(1, 2), writable=False), "RecordRebuiltFromBrokers",
        ["every registered broker is heard, and for 1 that have not registered"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "reason", "told"), c.table(RECOVERING))
def test_a_record_that_is_being_recovered_says_what_it_waits_for(seen: Observed, reason: str, told: list[str]) -> None:
    alarm = alarms_of(seen)["Recovering"]
    assert alarm["reason"] == reason
    assert [one for one in told if one not in alarm["message"]] == []


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
    problem = CredentialsError(Reason.SECRET_INCOMPLETE, "Secret shop/keys has no key secretKey, expected a text")
    assert run(in_order).look_again_seconds is None
    assert run(b.changed(in_order, credentials_problem=problem)).look_again_seconds == UNSETTLED_SECONDS


def pod(status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    made = b.running_pod(b.group(), 2)
    made["metadata"] |= metadata
    made["status"] = {"phase": "Pending"} | status
    return made


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"containerStatuses": [{"name": "broker", "image": "x:1", "state": state}]}


def started(times: int, *, ready: bool) -> dict[str, Any]:
    return {"containerStatuses": [{"restartCount": times, "ready": ready, "state": {"running": {}}}]}


def first(status: dict[str, Any]) -> dict[str, Any]:
    """Return the same status of an init container; the broker waits for it."""
    return waiting("PodInitializing") | {"initContainerStatuses": status["containerStatuses"]}


def not_mounted(since: str, *, status: str = "False") -> dict[str, Any]:
    """As the kubelet says that the pod's volumes and network are not there yet."""
    condition = {"type": "PodReadyToStartContainers", "status": status, "lastTransitionTime": since}
    return waiting("ContainerCreating") | {"conditions": [condition]}


NO_NODE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
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
    ("no node", pod({"conditions": [NO_NODE]}), "MemberNotScheduled"),
    ("its volumes are not mounted", pod(not_mounted("2026-11-20T23:59:00Z")), "ContainerNotCreated"),
    ("they may be, in a moment", pod(not_mounted("2026-11-20T23:59:01Z")), None),
    ("mounted long ago, its image is pulled", pod(not_mounted("2026-11-20T23:00:00Z", status="True")), None),
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


def test_what_is_not_mounted_is_named_since_the_kubelet_does_not_say_it() -> None:
    """A missing Secret of a volume: the group only said that it waits for the pod, and the kubelet says it in Events alone."""
    tls = {"certificateSecretRef": {"name": "orders-tls"}}
    waits = b.running_pod(b.group(implementation="Java", tls=tls), 2)
    waits["status"] = {"phase": "Pending"} | not_mounted("2026-11-20T23:50:00Z")
    trouble = pod_trouble(waits, now=b.NOW)
    assert trouble is not None
    for text in (
        "Pod orders-2",
        "since 2026-11-20T23:50:00Z",
        "Secret orders-tls",
        "claim orders-2",
        "kubectl describe pod",
    ):
        assert text in trouble.message

    waits["spec"]["volumes"] = []
    bare = pod_trouble(waits, now=b.NOW)
    assert bare is not None
    assert "mounts" not in bare.message


AT = "2026-11-20T23:50:00Z"
LATER = "2026-11-20T23:55:00Z"


def condition(kind: str, status: str, since: str = AT) -> dict[str, Any]:
    return {"type": kind, "status": status, "lastTransitionTime": since, "message": "said"}


def ended(**terminated: Any) -> Observed:
    """Pod orders-2 runs again after its container ended so."""
    state = {"exitCode": 1, "finishedAt": AT, **terminated}

    def end(pod: dict[str, Any]) -> None:
        pod["status"]["containerStatuses"] = [
            {"name": "fence", "lastState": {"terminated": {"exitCode": 1, "finishedAt": AT}}},
            {"name": "broker", "state": {"running": {}}, "lastState": {"terminated": state}},
        ]

    return c.with_pods(c.settled(), end, "orders-2")


def disrupted(reason: str, message: str = "", **status: Any) -> Observed:
    target = condition("DisruptionTarget", "True") | {"reason": reason, "message": message}
    return c.with_pods(c.settled(), lambda pod: pod["status"].update(status, conditions=[target]), "orders-2")


def test_a_pod_that_is_being_deleted_does_not_crash_by_going() -> None:
    assert list(circumstances_of(c.going(ended(exitCode=1), "orders-2"))) == []
    assert [one.cause for one in circumstances_of(c.going(ended(reason="OOMKilled"), "orders-2"))] == ["oom"]


@pytest.mark.parametrize(("before", "after"), [("boot-1", "boot-1"), ("boot-1", "boot-2"), ("", "")])
def test_a_node_that_comes_back_without_a_boot_was_cut_off(before: str, after: str) -> None:
    watch = CircumstanceWatch()
    watch.look(on_node(condition("Ready", "Unknown"), boot_id=before))
    found = watch.look(on_node(condition("Ready", "True", LATER), boot_id=after))
    if not before or before != after:
        assert found == [], "that proves no partition"
        return
    [partition] = found
    assert (partition.cause, partition.broker_id) == ("partition", 2)
    assert partition.started_at == dt.datetime.fromisoformat(AT) - dt.timedelta(seconds=60)
    assert partition.ended_at == dt.datetime.fromisoformat(LATER)


def on_node(*conditions: dict[str, Any], boot_id: str = "boot-1") -> Observed:
    """Pod orders-2 is on a node with these conditions."""
    node = c.node("node-2") | {"status": {"conditions": list(conditions), "nodeInfo": {"bootID": boot_id}}}
    return c.on_nodes(c.settled(), node_2=node)


def drained(seen: Observed) -> Observed:
    return c.on_nodes(seen, node_2=c.node("node-2", unschedulable=True))


EVICTED = "The node was low on resource: {}. Threshold quantity: 1, available: 0."


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (ended(reason="OOMKilled", exitCode=137), [("oom", "OOMKilled")]),
        (ended(reason="Error", message="java.io.IOException: No space left on device"), [("disk", "NoSpaceLeft")]),
        (ended(reason="Error", exitCode=134), [("crash", "ContainerEnded")]),
        # Kubernetes does not say what killed it (a fence, a probe, a person).
        (ended(reason="Error", exitCode=137), [("unknown", "ContainerKilled")]),
        (disrupted("EvictionByEvictionAPI"), [("drain", "EvictionByEvictionAPI")]),
        (disrupted("PreemptionByScheduler"), [("drain", "PreemptionByScheduler")]),
        (drained(disrupted("DeletionByTaintManager")), [("drain", "DeletionByTaintManager")]),
        (disrupted("DeletionByTaintManager"), [("unknown", "DeletionByTaintManager")]),
        (disrupted("TerminationByKubelet", EVICTED.format("ephemeral-storage")), [("disk", "TerminationByKubelet")]),
        (disrupted("TerminationByKubelet", EVICTED.format("memory")), [("oom", "TerminationByKubelet")]),
        (
            disrupted("TerminationByKubelet", message="Pod was terminated in response to imminent node shutdown."),
            [("drain", "TerminationByKubelet")],
        ),
        (disrupted("TerminationByKubelet", EVICTED.format("pids")), [("unknown", "TerminationByKubelet")]),
        (on_node(condition("DiskPressure", "True")), [("disk", "DiskPressure")]),
        (on_node(condition("DiskPressure", "False")), []),
        (on_node(condition("Ready", "Unknown")), [("unknown", "NodeUnreachable")]),
        (on_node(condition("Ready", "False")), []),
        (c.settled(), []),
    ],
)
def test_each_cause_by_its_proof(seen: Observed, told: list[tuple[str, str]]) -> None:
    found = list(circumstances_of(seen))
    assert [(one.cause, one.what) for one in found] == told
    for one in found:
        assert (one.broker_id, one.pod, str(one.group), one.broker_name) == (2, "orders-2", "shop/orders", "orders")


def test_the_times_are_those_of_kubernetes() -> None:
    at = dt.datetime.fromisoformat(AT)
    [killed] = circumstances_of(ended(reason="OOMKilled"))
    assert (killed.started_at, killed.ended_at) == (at, at)
    assert killed.id == "shop/orders/orders-2/OOMKilled@2026-11-20T23:50:00.000Z"
    # What still goes on has lasted until now; noted again later it is the same record with a later end.
    [pressure] = circumstances_of(on_node(condition("DiskPressure", "True")))
    assert (pressure.started_at, pressure.ended_at) == (at, dt.datetime.fromisoformat(b.NOW))


def test_an_update_is_noted_until_the_pod_must_have_gone() -> None:
    seen = c.outdated(c.settled(), "orders-2")
    plan = run(seen)
    [update] = circumstances_of_plan(plan, seen)
    assert (update.cause, update.broker_id) == ("rollingUpgrade", 2)
    assert update.started_at == dt.datetime.fromisoformat(b.NOW)
    assert update.ended_at - update.started_at == dt.timedelta(seconds=seen.group.spec.termination_grace_period_seconds)
    for other in (c.settled(), c.wishing(c.settled(), replicas=2)):
        assert list(circumstances_of_plan(run(other), other)) == []


async def test_what_is_about_to_be_done_is_noted_before_it_is() -> None:
    """If the operator dies while it deletes a pod, the reason is already recorded."""
    seen = c.outdated(c.settled(), "orders-2")
    order: list[str] = []

    class Parts:
        """Records the order in which a pass uses its parts."""

        async def look(self, _: Any) -> None:
            """The cache is empty."""

        async def fetch(self, _: Any) -> Observed:
            return seen

        async def take(self, group_object: Any, *, operator: str | None, now: str) -> Any:
            assert operator == b.SETTINGS.operator
            assert now
            return group_object

        async def carry_out(self, _: Any, plan: Plan, __: Observed) -> int:
            order.extend(one.target for one in plan.actions if isinstance(one, DeleteObject))
            return 0

        async def note(self, told: Sequence[Circumstance]) -> None:
            order.extend(one.cause for one in told)

    parts: Any = Parts()
    turns = RollingTurns(0, wake=lambda _: None)
    await Reconciler(parts, parts, b.SETTINGS, turns, BrokerNames(), circumstances=parts).run_pass(b.KEY)
    assert order == ["rollingUpgrade", "Pod orders-2"]
