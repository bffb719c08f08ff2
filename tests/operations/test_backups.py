"""Backup: which member is stopped, what its copying pod is made and deleted for, and how it ends. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from brokergroup_operator.api.backup_fields import BackupResult, Manifest
from brokergroup_operator.api.names import LABEL_BROKER_GROUP, LABEL_COPIES_FOR
from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.reconcile.operations.evaluate import evaluate
from brokergroup_operator.reconcile.operations.plan import (
    Compared,
    CompareMetadata,
    DeletePod,
    Done,
    Fail,
    GoOn,
    Outcome,
    Reject,
    Start,
    TakeBackup,
    Verdict,
)
from brokergroup_operator.reconcile.operations.procedures.backups import judge_backup
from brokergroup_operator.reconcile.operations.procedures.premises import Case
from brokergroup_operator.reconcile.see.copies import held_for_backup
from controller_core.model import LiveReplica
from tests.operations.world import LONG_AGO, NOW, begun, expect, group, judged, record, running, scene, thing

HELD = {
    "brokerId": 3,
    "pod": "orders-3",
    "podUid": thing("orders-3")["metadata"]["uid"],
    "claim": "copies",
    "folder": "orders/backup-1",
    "confirmOffset": 70,
    "comparedAt": rfc3339(NOW - 1),
}
COPIES = {("PersistentVolumeClaim", "copies"): thing("copies")}
MANIFEST = Manifest(
    name="orders/backup-1", operation="uid-of-backup-1", group="orders", namespace="default", cluster_name="DefaultCluster",
    broker_name="orders", broker_id=3, next_broker_id=4, master_epoch=5, implementation="Java", confirm_offset=70,
    store_epoch=5, offset=90, bytes=4096, taken_at="2030-03-17T17:46:40Z",
)  # fmt: skip
WHOLE = HELD | {"offset": 90, "epoch": 5, "bytes": 4096, "takenAt": "2030-03-17T17:46:40Z"}
WITHOUT_3 = {name: thing(name) for name in ("orders-1", "orders-2")}


def copy_pod(
    phase: str, message: str = "", *, owner: str = "uid-of-backup-1", label: str = "orders"
) -> dict[tuple[str, str], Any]:
    pod = thing("orders-backup")
    pod["metadata"]["ownerReferences"] = [{"kind": "BrokerGroupOperation", "uid": owner}]
    pod["metadata"]["labels"] = {LABEL_COPIES_FOR: label}
    ended = {"state": {"terminated": {"message": message}}} if phase in {"Succeeded", "Failed"} else {"state": {}}
    pod["status"] = {"phase": phase, "containerStatuses": [{"name": "copy", **ended}]}
    return COPIES | {("Pod", "orders-backup"): pod}


def not_available(since: float) -> dict[str, Any]:
    found = group()
    found["status"]["conditions"].append(
        {
            "type": "Available",
            "status": "False",
            "reason": "NotEnoughInSyncReplicas",
            "lastTransitionTime": rfc3339(since),
        }
    )
    return found


def going(name: str) -> dict[str, Any]:
    one = thing(name)
    one["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    return one


def of_a_member(claim: str, group_name: str) -> dict[tuple[str, str], Any]:
    one = thing(claim)
    one["metadata"]["labels"] = {LABEL_BROKER_GROUP: group_name}
    return {("PersistentVolumeClaim", claim): one}


@pytest.mark.parametrize(
    ("section", "changes", "broker_id"),
    [
        ({}, {}, 3),
        ({"brokerId": 2}, {}, 2),
        ({"stopMaster": True}, {}, 3),
        ({"stopMaster": True}, {"group": group(replicas=1), "record": record(in_sync=(1,), members=(1,))}, 1),
    ],
    ids=["the highest", "the named", "no need", "alone"],
)
def test_which_member_is_stopped(section: dict[str, Any], changes: dict[str, Any], broker_id: int) -> None:
    held = expect(BackupResult, expect(Start, begun("Backup", section=section, **changes)).figures.backup)
    assert (held.broker_id, held.pod, held.claim, held.folder) == (
        broker_id, f"orders-{broker_id}", "copies", "orders/backup-1",
    )  # fmt: skip
    assert held.pod_uid == thing(f"orders-{broker_id}")["metadata"]["uid"]
    assert (held.taken_at, held.compared_at) == (None, None)


@pytest.mark.parametrize(
    ("section", "changes", "why"),
    [
        ({"brokerId": 1}, {}, "broker 1 is master: name a slave, or none"),
        ({"brokerId": 9}, {}, "broker 9 is not a member"),
        ({"brokerId": 2}, {"alive": (1, 3)}, "broker 2 is not alive"),
        # FailoverSafe by the durability Available, and the only slave that is left.
        ({}, {"alive": (1, 2)}, "broker 2 is not stopped while another is away: broker 3: "),
        ({}, {"record": record(in_sync=(1, 2))}, "broker 2 is not stopped while another is away: broker 3: "),
        ({}, {"group": group(maintenance={"paused": True})}, "orders is paused"),
        ({}, {"group": group(storage={"ephemeral": {}})}, "spec.storage.ephemeral"),
        ({}, {"group": group(replicas=1), "record": record(in_sync=(1,), members=(1,))}, "with backup.stopMaster"),
        (
            {},
            {"group": group(replicas=2, durability="Strict"), "record": record(in_sync=(1, 2), members=(1, 2))},
            "with one member stopped 1 is left, and a message needs 2",
        ),
        ({}, {"aside": {}}, "there is no claim copies in namespace default"),
        ({}, {"aside": {("PersistentVolumeClaim", "copies"): going("copies")}}, "claim copies is being deleted"),
        ({"claim": {"name": "orders-2"}}, {}, "claim orders-2 is a member's own"),
        # Of a member that has left, and of another group: it may be deleted with its member, and the copies with it.
        ({"claim": {"name": "orders-7"}}, {"aside": of_a_member("orders-7", "orders")}, "is that of pod orders-7"),
        ({"claim": {"name": "pay-1"}}, {"aside": of_a_member("pay-1", "pay")}, "is that of pod pay-1"),
        ({"claim": {"name": "pay-1-commitlog"}}, {"aside": of_a_member("pay-1-commitlog", "pay")}, "is that of pod pay-1"),
        ({}, {"aside": COPIES | {("Pod", "orders-backup"): thing("orders-backup")}}, "was not made by the operator"),
    ],
)  # fmt: skip
def test_what_is_refused(section: dict[str, Any], changes: dict[str, Any], why: str) -> None:
    assert why in expect(Reject, begun("Backup", section=section, **changes)).message


def judged_with(backup: dict[str, Any], **changes: Any) -> Verdict:
    started = changes.pop("started", NOW - 10)
    return judged(running("Backup", started=started, result={"backup": backup}), **changes)


NOT_COMPARED = HELD | {"comparedAt": None}


def changed(verdict: Verdict) -> dict[str, Any]:
    """What the status says of the backup after this verdict, which does nothing else."""
    going_on = expect(GoOn, verdict)
    assert going_on.effect is None
    assert going_on.figures is not None, going_on.message
    return expect(dict, msgspec.to_builtins(going_on.figures.backup))


def goes_on(verdict: Verdict) -> GoOn:
    """Return the verdict, which changes nothing of what the status says of the backup."""
    assert expect(GoOn, verdict).figures is None
    return expect(GoOn, verdict)


def test_a_slave_without_the_masters_topics_is_not_stopped() -> None:
    """A message whose topic the copy lacks would be read by none: seen with Java brokers, whose slaves copy topics every 10 s."""
    new = running("Backup", result={"backup": NOT_COMPARED})
    compare = CompareMetadata(broker_id=3)
    assert goes_on(judged(new)).effect == compare
    assert goes_on(judged(new, Outcome(running=True))).effect is None
    lacks = goes_on(judged(new, Outcome(failed="broker 3 lacks 1 of the master's metadata, as topic 'e2e'")))
    assert lacks.effect == compare
    assert "as topic 'e2e'" in lacks.message
    found = changed(judged(new, Outcome(compared=Compared(at_seconds=NOW - 2))))
    assert found["comparedAt"] == rfc3339(NOW - 2)


def test_the_last_slave_is_not_stopped() -> None:
    """Another was lost since the operation began."""
    new = running("Backup", result={"backup": NOT_COMPARED})
    waits = goes_on(judged(new, Outcome(compared=Compared(at_seconds=NOW)), alive=(1, 3)))
    assert waits.effect is None
    assert waits.message.startswith("waits: broker 2: ")


def test_it_is_compared_when_the_stop_begins_and_not_once() -> None:
    """What the master gets after a comparison may be missing at the slave: a stop that could not begin is compared anew."""
    late = HELD | {"comparedAt": rfc3339(NOW - 11)}
    assert changed(judged_with(late))["comparedAt"] is None
    # The outcome of that old comparison is still known to this process.
    old = judged(running("Backup", result={"backup": NOT_COMPARED}), Outcome(compared=Compared(at_seconds=NOW - 11)))
    assert goes_on(old).effect == CompareMetadata(broker_id=3)
    assert goes_on(judged_with(late, pods=WITHOUT_3)).effect is not None, "it was stopped in time"
    stopping = {**WITHOUT_3, "orders-3": going("orders-3")}
    assert goes_on(judged_with(late, pods=stopping)).message == "waits until pod orders-3 is stopped"


def test_a_comparison_by_a_clock_that_was_ahead_lets_no_member_be_stopped() -> None:
    """An operator before this one, on another machine, wrote it: it may be minutes old, and topics have come since."""
    ahead = HELD | {"comparedAt": rfc3339(NOW + 300)}
    assert changed(judged_with(ahead))["comparedAt"] is None


def test_how_far_its_log_is_confirmed_is_read_when_the_stop_begins() -> None:
    unknown = judged(running("Backup", result={"backup": NOT_COMPARED | {"confirmOffset": -1}}))
    assert "waits until broker 3 says how far its log is confirmed" in goes_on(unknown).message
    heard = {3: LiveReplica(broker_id=3, epoch=5, confirm_offset=95)}
    item = running("Backup", result={"backup": NOT_COMPARED})
    seen = scene(item)
    assert seen.snapshot is not None
    seen = replace(seen, snapshot=replace(seen.snapshot, live={**seen.snapshot.live, **heard}))
    case = Case(seen=seen, operation=item, outcome=Outcome(compared=Compared(at_seconds=NOW)))
    assert changed(judge_backup(case))["confirmOffset"] == 95


def test_a_member_that_another_has_stopped_is_not_kept_stopped() -> None:
    """Its pod was evicted before the operation has stopped it: it comes back, and is the one that is stopped then."""
    gone = goes_on(judged_with(NOT_COMPARED, pods=WITHOUT_3))
    assert (gone.effect, gone.message) == (
        None,
        "waits until pod orders-3 is back: it is not stopped by this operation",
    )
    again = {**WITHOUT_3, "orders-3": thing("orders-3", created=NOW - 5)}
    new_uid = again["orders-3"]["metadata"]["uid"]
    for before in (NOT_COMPARED, HELD):
        found = changed(judged_with(before, pods=again))
        assert (found["podUid"], found["comparedAt"]) == (new_uid, None)
    # Beside the copying pod: what that has copied counts for nothing.
    expect(DeletePod, goes_on(judged_with(HELD, pods=again, aside=copy_pod("Running"))).effect)


def test_the_copying_pod_is_made_when_the_members_pod_is_gone() -> None:
    waits = expect(GoOn, judged_with(HELD))
    assert (waits.effect, waits.message) == (None, "waits until pod orders-3 is stopped")
    known = msgspec.structs.replace(MANIFEST, store_epoch=0, offset=-1, bytes=0, taken_at="")
    begins = TakeBackup(pod="orders-3", claim="copies", manifest=known)
    assert expect(GoOn, judged_with(HELD, pods=WITHOUT_3)).effect == begins
    assert goes_on(judged_with(HELD, pods=WITHOUT_3, aside=copy_pod("Running"))).effect is None


def test_why_its_pod_does_not_run_is_said() -> None:
    """The member was kept stopped until the deadline, and nothing said why."""
    pulls = copy_pod("Pending")
    waiting = {"reason": "ImagePullBackOff", "message": "no such tag"}
    pulls["Pod", "orders-backup"]["status"]["containerStatuses"] = [
        {"name": "copy", "image": "operator:9", "state": {"waiting": waiting}}
    ]
    told = goes_on(judged_with(HELD, pods=WITHOUT_3, aside=pulls)).message
    assert told == "copies the store of broker 3: Pod orders-backup: ImagePullBackOff operator:9: no such tag"
    nowhere = copy_pod("Pending")
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "volume node affinity conflict",
    }
    nowhere["Pod", "orders-backup"]["status"] = {"phase": "Pending", "conditions": [condition]}
    told = goes_on(judged_with(HELD, pods=WITHOUT_3, aside=nowhere)).message
    assert told == "copies the store of broker 3: Pod orders-backup: volume node affinity conflict"
    began = running("Backup", started=LONG_AGO, result={"backup": HELD, "message": told})
    late = judged(began, pods=WITHOUT_3, aside=nowhere)
    assert changed(late)["failed"] == f"not within 3600 s: {told}"


CORDON = "node.kubernetes.io/unschedulable"


def drained(name: str, *, taint: str = CORDON, since: float = NOW - 5) -> dict[str, Any]:
    """The pod is on a node of its own, which is cordoned, or has this taint."""
    pods, nodes = {}, {}
    for one in WITHOUT_3:
        node = f"node-{one.rpartition('-')[2]}"
        pods[one] = {**thing(one), "spec": {"nodeName": node}}
        taints = [{"key": taint, "effect": "NoSchedule", "timeAdded": rfc3339(since)}]
        spec = {"unschedulable": taint == CORDON, "taints": taints} if one == name else {}
        nodes[node] = {"metadata": {"name": node}, "spec": spec}
    return {"pods": pods, "nodes": nodes}


def test_a_node_that_was_cordoned_before_ends_no_backup() -> None:
    """It may be so for days, and nothing is evicted from it: every Backup failed."""
    for name in ("orders-1", "orders-2"):
        before = goes_on(judged_with(HELD, **drained(name, since=NOW - 11)))
        assert isinstance(before.effect, TakeBackup)
        just_now = drained(name)
        for node in just_now["nodes"].values():
            node["spec"].pop("taints", None)
        assert isinstance(goes_on(judged_with(HELD, **just_now)).effect, TakeBackup), "its taint says since when"


def test_its_end_is_written_before_it_is_deleted_and_the_member_starts() -> None:
    said = msgspec.json.encode(MANIFEST).decode()
    ended = judged_with(HELD, pods=WITHOUT_3, aside=copy_pod("Succeeded", said))
    assert changed(ended) == WHOLE | {"failed": "", "snapshots": [], "earlyErrors": [], "cutAt": None}
    stale = judged_with(HELD, pods=WITHOUT_3, aside=copy_pod("Succeeded", said.replace("uid-of-backup-1", "another")))
    assert "manifest of another operation" in changed(stale)["failed"]
    deleted = judged_with(WHOLE, pods=WITHOUT_3, aside=copy_pod("Succeeded", said))
    expect(DeletePod, expect(GoOn, deleted).effect)
    assert isinstance(judged_with(WHOLE, pods=WITHOUT_3), GoOn), "the member is not back"
    over = expect(Done, judged_with(WHOLE))
    assert over.message == "orders/backup-1 on claim copies has the log up to 90, epoch 5, 4096 bytes"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"aside": copy_pod("Failed", "files of broker 3 changed")}, "files of broker 3 changed"),
        ({"aside": copy_pod("Failed")}, "pod orders-backup failed: it says nothing"),
        ({"aside": copy_pod("Succeeded", "{}")}, "ended without a manifest"),
        ({"record": record(master=None)}, "orders lost its master meanwhile, and may need broker 3"),
        ({"record": record(master=2, epoch=6)}, "the master of orders changed meanwhile, from epoch 5 to 6"),
        ({"record": record(epoch=6)}, "the master of orders changed meanwhile, from epoch 5 to 6"),
        ({"record": record(master=3, epoch=6)}, "the master of orders changed meanwhile"),
        ({"writable": False, "group": not_available(NOW - 31)}, "orders takes no messages without broker 3"),
        ({"aside": copy_pod("Running", label="")}, "pod orders-backup is there and was not made by the operator"),
        ({"started": LONG_AGO}, "not within 3600 s"),
        (drained("orders-1"), "node-1 is being drained, and pod orders-1 on it waits for the backup's end"),
        (drained("orders-2"), "node-2 is being drained, and pod orders-2 on it waits for the backup's end"),
        (drained("orders-2", taint="ToBeDeletedByClusterAutoscaler", since=LONG_AGO), "node-2 is being drained"),
    ],
)
def test_what_it_is_given_up_for(changes: dict[str, Any], why: str) -> None:
    """The status says so first: only then the copying pod goes, the member starts, and the operation fails."""
    assert why in changed(judged_with(HELD, **({"pods": WITHOUT_3} | changes)))["failed"]
    given_up = HELD | {"failed": "the reason"}
    deleted = judged_with(given_up, pods=WITHOUT_3, aside=copy_pod("Failed"))
    expect(DeletePod, expect(GoOn, deleted).effect)
    assert expect(Fail, judged_with(given_up, pods=WITHOUT_3)).message == "the reason"


def test_a_copying_pod_on_a_lost_node_is_waited_for_only_a_while() -> None:
    """Its end is never reported: the member would stay stopped, and no other operation of the group would have its turn."""
    given_up = HELD | {"failed": "the reason"}
    for overdue_seconds, is_over in ((10, False), (3600, True)):
        aside = copy_pod("Running")
        aside["Pod", "orders-backup"]["metadata"]["deletionTimestamp"] = rfc3339(NOW - overdue_seconds)
        aside["Pod", "orders-backup"]["spec"] = {"nodeName": "a-lost-one"}
        item = running("Backup", result={"backup": given_up})
        seen = scene(item, pods=WITHOUT_3, aside=aside)
        assert (held_for_backup(seen) is None) == is_over
        assert isinstance(judge_backup(Case(seen=seen, operation=item)), Fail) == is_over
    # Before it is given up or whole it is not let go.
    assert held_for_backup(scene(running("Backup", result={"backup": HELD}), pods=WITHOUT_3, aside=aside)) is not None


def test_an_operator_that_has_just_started_does_not_give_up() -> None:
    """It has not heard the brokers yet, so it knows of no write that would be taken (sieve: killed while the pod copied)."""
    copying = {"pods": WITHOUT_3, "aside": copy_pod("Running")}
    for started in ({}, {"group": not_available(NOW - 29)}, {"group": not_available(NOW - 31), "writable": True}):
        goes_on(judged_with(HELD, **({"writable": False} | copying | started)))


def test_a_paused_group_is_not_stopped_for_it_and_what_was_stopped_stays_as_it_is() -> None:
    paused = group(maintenance={"paused": True})
    assert "is paused" in changed(judged_with(HELD, group=paused))["failed"]
    copying = goes_on(judged_with(HELD, group=paused, pods=WITHOUT_3, aside=copy_pod("Running")))
    assert copying.message == "copies the store of broker 3"
    whole = goes_on(judged_with(WHOLE, group=paused, pods=WITHOUT_3, record=record(in_sync=(1, 2)), started=LONG_AGO))
    assert "broker 3 stays as it is: BrokerGroup orders is paused" in whole.message


def test_an_operation_that_is_being_deleted_keeps_no_member_stopped() -> None:
    """Its copying pod goes with it; also one that an owner's foreground deletion keeps for a while."""
    item = running("Backup", result={"backup": HELD})
    assert held_for_backup(scene(item, pods=WITHOUT_3)) is not None
    item.raw["metadata"]["deletionTimestamp"] = rfc3339(NOW)
    seen = scene(item, pods=WITHOUT_3)
    assert held_for_backup(seen) is None
    assert evaluate(seen, {}).steps == ()


def test_the_only_voting_member_is_without_a_master_while_it_is_stopped() -> None:
    """Its loss raises the epoch: another member could be elected, and none can."""
    lost = record(master=None, epoch=6, in_sync=(1,), members=(1,))
    alone: dict[str, Any] = {"group": group(replicas=1), "record": lost, "writable": False}
    held = HELD | {"brokerId": 1, "pod": "orders-1", "podUid": thing("orders-1")["metadata"]["uid"]}
    item = running("Backup", result={"backup": held}, stopMaster=True)
    assert isinstance(goes_on(judged(item, **alone, pods={})).effect, TakeBackup)
    stopping = judged(item, **alone, pods={"orders-1": going("orders-1")})
    assert goes_on(stopping).message == "waits until pod orders-1 is stopped"
    crashed = judged(item, **alone, pods={"orders-1": thing("orders-1")})
    assert "the master of orders changed meanwhile" in changed(crashed)["failed"]
    here = held | {"comparedAt": None}
    runs: dict[str, Any] = {"group": group(replicas=1), "record": record(in_sync=(1,), members=(1,))}
    compared = judged(running("Backup", result={"backup": here}, stopMaster=True), **runs)
    assert changed(compared)["comparedAt"] == rfc3339(NOW), "there is no other to compare with"


def test_that_its_pod_is_refused_is_said() -> None:
    """By a quota or an admission policy: seen in the status, and asked again until the deadline, whose message has it too."""
    item = running("Backup", result={"backup": HELD})
    outcome = Outcome(failed="ForbiddenError: exceeded quota: pods=3")
    refused = expect(GoOn, judged(item, outcome, pods=WITHOUT_3))
    expect(TakeBackup, refused.effect)
    assert refused.message == "pod orders-backup is not made: ForbiddenError: exceeded quota: pods=3"
    kept = running("Backup", result={"backup": HELD, "message": refused.message})
    assert goes_on(judged(kept, Outcome(running=True), pods=WITHOUT_3)).message == refused.message
    ended = running("Backup", started=LONG_AGO, result={"backup": HELD, "message": refused.message})
    assert "not within 3600 s: pod orders-backup is not made" in changed(judged(ended, pods=WITHOUT_3))["failed"]


def test_a_pod_of_another_operation_is_deleted_and_says_nothing_for_this_one() -> None:
    said = msgspec.json.encode(MANIFEST).decode()
    verdict = judged_with(HELD, pods=WITHOUT_3, aside=copy_pod("Succeeded", said, owner="another"))
    expect(DeletePod, goes_on(verdict).effect)
