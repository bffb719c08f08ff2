"""A running Backup keeps one member stopped, and no more; a new group begins with a backup, or says why it can't. Pure."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.backup_fields import Manifest
from brokergroup_operator.api.brokergroup_operation import BrokerGroupOperation
from brokergroup_operator.kube.resources import BROKER_GROUPS, PERSISTENT_VOLUME_CLAIMS
from brokergroup_operator.reconcile.plan import BeginRestored, PatchMetadata
from brokergroup_operator.reconcile.render import children, copy_pods
from brokergroup_operator.reconcile.see.observed import Observed
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.cases import condition, lines_of, message, run
from tests.reconcile.world import MANIFEST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.observe.group_view import RestoredStore

HELD = {
    "brokerId": 3, "pod": "orders-3", "podUid": "pod-uid-3", "claim": "copies",
    "folder": "orders/nightly", "comparedAt": b.NOW,
}  # fmt: skip
LONG_BEFORE = c.EARLIER
NOT_COMPARED = HELD | {"comparedAt": None}
WHOLE = {"takenAt": b.NOW, "offset": 90}
FAILED = {"failed": "the copy is torn"}
COPIES_FOR = {names.LABEL_COPIES_FOR: "orders"}
COPYING = {
    ("Pod", "orders-backup"): {
        "metadata": {"name": "orders-backup", "labels": COPIES_FOR},
        "status": {"phase": "Running"},
    }
}
# A pod of the copying pod's name that the operator did not make.
FOREIGN = {("Pod", "orders-backup"): {"metadata": {"name": "orders-backup"}, "status": {"phase": "Running"}}}


def backing_up(seen: Observed, backup: dict[str, Any] = HELD, *, stop_master: bool = False, **fields: Any) -> Observed:
    operation = msgspec.convert(
        {
            "metadata": {"name": "nightly", "namespace": b.KEY.namespace, "uid": c.OPERATION_UID},
            "spec": {
                "brokerGroupRef": {"name": b.KEY.name},
                "type": "Backup",
                "backup": {"claim": {"name": "copies"}, "stopMaster": stop_master},
            },
            "status": {"phase": "Running", "startedAt": b.NOW, "result": {"message": "", "backup": backup}},
        },
        BrokerGroupOperation,
    )
    return replace(seen, operation=operation, **fields)


def stopped(seen: Observed) -> Observed:
    return c.live(c.without_pods(seen, "orders-3"), 1, 2)


STOPS: list[tuple[str, Observed, list[str]]] = [
    ("stops it", backing_up(c.settled()), ["delete Pod orders-3"]),
    # Not before it is known to have the master's topics, nor long after; till then it is an ordinary member.
    ("not compared", backing_up(c.settled(), NOT_COMPARED), []),
    ("compared long ago", backing_up(c.settled(), HELD | {"comparedAt": LONG_BEFORE}), []),
    ("not compared and lost", backing_up(stopped(c.settled()), NOT_COMPARED), ["apply Pod orders-3"]),
    # It was stopped in time, and takes long to end.
    ("stopped in time", backing_up(stopped(c.settled()), HELD | {"comparedAt": LONG_BEFORE}), []),
    # Another pod of its name: it was started again by another, and is not the one that was compared.
    ("another pod", backing_up(c.settled(), HELD | {"podUid": "another"}), []),
    ("another name", backing_up(c.settled(), HELD | {"pod": "orders-9"}), []),
    # Not after it became master, whatever the group's safety, nor one that fell out of the set.
    ("it is master", backing_up(c.recorded(c.settled(), master_broker_id=3)), []),
    ("it is master, and one may be stopped", backing_up(c.recorded(c.settled(), master_broker_id=3), stop_master=True), []),
    ("out of the set", backing_up(c.recorded(c.settled(), sync_state_set=frozenset({1, 2}))), []),
    # Not while it is not FailoverSafe: another member is lost.
    ("unsafe", backing_up(c.live(c.settled(), 1, 3)), []),
    # Nor the last slave, though durability Available needs one alone.
    ("the last slave", backing_up(c.live(c.settled(durability="Available"), 1, 3)), []),
    ("it stops", backing_up(c.going(c.settled(), "orders-3")), []),
    # Kept stopped until the copy is whole, or given up, and the copying pod is gone.
    ("stopped", backing_up(stopped(c.settled())), []),
    ("copying", backing_up(stopped(c.settled()), aside=COPYING), []),
    ("whole, and the pod is there", backing_up(stopped(c.settled()), HELD | WHOLE, aside=COPYING), []),
    ("failed, and the pod is there", backing_up(stopped(c.settled()), HELD | FAILED, aside=COPYING), []),
    ("whole", backing_up(stopped(c.settled()), HELD | WHOLE), ["apply Pod orders-3"]),
    ("whole, and a foreign pod", backing_up(stopped(c.settled()), HELD | WHOLE, aside=FOREIGN), ["apply Pod orders-3"]),
    ("failed", backing_up(stopped(c.settled()), HELD | FAILED), ["apply Pod orders-3"]),
    # The operation was deleted.
    ("no operation", stopped(c.settled()), ["apply Pod orders-3"]),
    # It is not stopped once more.
    ("not again", backing_up(c.settled(), HELD | WHOLE), []),
    # Another member that is missing is made all the same.
    ("another is missing", backing_up(stopped(c.without_pods(c.settled(), "orders-2"))), ["apply Pod orders-2"]),
    # One thing at a time: a rolling update waits, and so does a scale in, which would take the stopped one first.
    ("a rolling update", backing_up(stopped(c.outdated(c.settled(), "orders-2"))), []),
    ("a scale in", backing_up(stopped(c.wishing(c.settled(), replicas=2))), []),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "lines"), c.table(STOPS))
def test_one_member_is_stopped_for_a_backup(seen: Observed, lines: list[str]) -> None:
    assert [line for line in lines_of(run(seen)) if "Pod " in line and "Budget" not in line] == lines


def held_pod(seen: Observed, *, state: str = "running", phase: str = "Running", ready: str = "True") -> Observed:
    """The Backup holds orders-3 by a finalizer; its kubelet has said this of it."""

    def hold(pod: dict[str, Any]) -> None:
        pod["metadata"]["finalizers"] = [names.FINALIZER_BACKUP]
        pod["spec"]["nodeName"] = "node-3"
        pod["status"] |= {"phase": phase, "containerStatuses": [{"name": "broker", "state": {state: {}}}]}

    node = c.node("node-3") | {"status": {"conditions": [{"type": "Ready", "status": ready}]}}
    return replace(c.with_pods(seen, hold, "orders-3"), nodes={**seen.nodes, "node-3": node})


GOING = c.going(c.settled(), "orders-3")
OF_SNAPSHOTS = HELD | {"claim": "", "snapshots": ["nightly"]}
LET_GO = ["finalizers Pod orders-3 []"]
DELETED = c.with_metadata(GOING, deletionTimestamp=b.NOW)


HOLDS: list[tuple[str, Observed, list[str]]] = [
    ("not compared", backing_up(held_pod(c.settled()), NOT_COMPARED), []),
    ("stops it", backing_up(held_pod(c.settled())), ["delete Pod orders-3"]),
    # Its finalizer was taken off after the comparison: by its absence nothing would be proved.
    ("not held", backing_up(c.settled(), OF_SNAPSHOTS), []),
    ("held", backing_up(held_pod(c.settled()), OF_SNAPSHOTS), ["delete Pod orders-3"]),
    ("it stops", backing_up(held_pod(GOING)), []),
    ("it has ended", backing_up(held_pod(GOING, state="terminated")), LET_GO),
    ("its node is silent", backing_up(held_pod(GOING, state="terminated", ready="Unknown")), []),
    # Deleted by force, and its node gone: a controller says that it failed, and its container may run.
    ("its node is gone", backing_up(held_pod(GOING, phase="Failed")), []),
    ("given up", backing_up(held_pod(GOING), HELD | FAILED), LET_GO),
    ("another pod", backing_up(held_pod(GOING), HELD | {"podUid": "another"}), LET_GO),
    ("no operation", held_pod(GOING), LET_GO),
    ("no operation, and it runs", held_pod(c.settled()), LET_GO),
    ("the group goes", backing_up(held_pod(DELETED)), LET_GO),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "lines"), c.table(HOLDS))
def test_the_object_of_the_stopped_pod_stays_until_its_kubelet_has_said_that_it_ended(
    seen: Observed, lines: list[str]
) -> None:
    """By its absence no other proof is needed that nothing writes to the volumes, whatever drives them."""
    assert [line for line in lines_of(run(seen)) if "Pod orders-3" in line] == lines


def test_an_orphaned_group_goes_only_once_no_pod_of_it_is_held() -> None:
    """The request that lets the pod go may be refused, and without the group no operator would repeat it."""
    finalizers = [names.FINALIZER_BROKER_GROUP, "orphan"]
    freed = freed_of_owners(c.with_metadata(c.settled(), deletionTimestamp=b.NOW, finalizers=finalizers))
    for seen, goes in ((held_pod(freed), False), (freed, True)):
        assert any(line.startswith("finalizers BrokerGroup") for line in lines_of(run(seen))) == goes


def freed_of_owners(seen: Observed) -> Observed:
    """As the garbage collector leaves an orphaned group's objects."""
    return replace(
        seen,
        pods=without_owners(seen.pods),
        config_maps=without_owners(seen.config_maps),
        services=without_owners(seen.services),
        disruption_budgets=without_owners(seen.disruption_budgets),
        network_policies=without_owners(seen.network_policies),
    )


def without_owners(objects: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: obj | {"metadata": {key: value for key, value in obj["metadata"].items() if key != "ownerReferences"}}
        for name, obj in objects.items()
    }


def test_the_group_says_what_it_waits_for() -> None:
    seen = backing_up(stopped(c.settled()))
    assert condition(seen, "Reconciling") == ("True", "BackingUp")
    assert message(seen, "Reconciling") == "Pod orders-3 is stopped until its store is copied"
    unsafe = backing_up(c.live(c.settled(), 1, 3))
    assert condition(unsafe, "Stalled")[0] == "True"
    assert "orders-3 is not stopped for a backup" in message(unsafe, "Stalled")


def test_the_only_member_is_stopped_if_the_operation_says_so() -> None:
    alone = c.settled(replicas=1)
    held = HELD | {"brokerId": 1, "pod": "orders-1", "podUid": "pod-uid-1"}
    assert "delete Pod orders-1" not in lines_of(run(backing_up(alone, held)))
    assert "delete Pod orders-1" in lines_of(run(backing_up(alone, held, stop_master=True)))
    # By the spec it is alone now, and another voting member runs still: that one could take over.
    shrinking = c.wishing(c.settled(), replicas=1)
    for unsafe in (shrinking, c.live(shrinking, 1, 2)):
        assert "delete Pod orders-1" not in lines_of(run(backing_up(unsafe, held, stop_master=True)))
    three = c.live(c.settled(), 1)
    assert "delete Pod orders-1" not in lines_of(run(backing_up(three, held, stop_master=True)))


JAVA = {"implementation": "Java", "nameServers": ["ns:9876"]}
UNLABELLED = {("Pod", "orders-restore"): {"metadata": {"name": "orders-restore"}, "status": {"phase": "Running"}}}
SOURCE = {"name": "copies", "folder": "lost/nightly"}
CLAIM = {("PersistentVolumeClaim", "copies"): {"metadata": {"name": "copies"}}}


def new_group(**fields: Any) -> Observed:
    """A group that begins with a backup, whose claims and pods are still to be made."""
    spec = {"bootstrap": {"fromBackup": {"claim": SOURCE}}} | fields.pop("spec", {})
    of = b.group(**spec)
    made: dict[str, Any] = {
        "services": b.by_name(*map(b.stored, children.build_services(of))),
        "config_maps": b.by_name(b.stored(children.build_config_map(of, b.SETTINGS))),
        "disruption_budgets": b.by_name(*map(b.stored, children.build_disruption_budgets(of, open_for_one=False))),
        "aside": CLAIM,
        "now": b.NOW,
    }
    return Observed(group=of, group_object=b.group_object(**spec), **(made | fields))


def with_claim(seen: Observed) -> Observed:
    return replace(seen, claims=b.by_name(b.bound(b.stored(children.build_claim(seen.group, b.member(1))))))


def ended(phase: str, said: str, *, owner: str = "group-uid", at: str = b.NOW) -> dict[tuple[str, str], Any]:
    status = {
        "phase": phase,
        "containerStatuses": [{"name": "copy", "state": {"terminated": {"message": said, "finishedAt": at}}}],
    }
    metadata = {
        "name": "orders-restore", "uid": "restore-uid", "labels": COPIES_FOR, "creationTimestamp": b.NOW,
        "ownerReferences": [{"kind": "BrokerGroup", "uid": owner}],
    }  # fmt: skip
    pod = {"metadata": metadata, "status": status}
    return CLAIM | {("Pod", "orders-restore"): pod}


def manifest(**changes: Any) -> str:
    return msgspec.json.encode(msgspec.structs.replace(MANIFEST, **changes)).decode()


# In the block of ids and the block of epochs that this group's uid gives.
ID_BLOCK, EPOCH_BLOCK = 682, 2581
FIRST_ID, FIRST_EPOCH = 7 + 100 * ID_BLOCK, 41 + 1000 * EPOCH_BLOCK
BEGUN = replace(b.reserved(7, 8, 9), master_epoch=FIRST_EPOCH, restored_from="lost/nightly")
NOTED = {names.ANNOTATION_BEGUN_ABOVE: f"{FIRST_EPOCH}/{FIRST_ID}"}


def copied(**changes: Any) -> Observed:
    """A group whose first claim has the backup, and which has noted where it begins."""
    return c.with_metadata(with_claim(new_group(aside=ended("Succeeded", manifest(**changes)))), annotations=NOTED)


@pytest.mark.parametrize(
    ("seen", "lines"),
    [
        (new_group(), ["apply PersistentVolumeClaim orders-1", "apply Pod orders-restore"]),
        (with_claim(new_group()), ["apply Pod orders-restore"]),
        (with_claim(new_group(aside=ended("Running", ""))), []),
        (copied(), [f"begin with lost/nightly as {FIRST_ID} above {BEGUN.master_epoch}"]),
        # The record has begun: no member starts on the claim while the copying pod may hold it.
        (with_claim(new_group(record=BEGUN, aside=ended("Succeeded", manifest()))), ["delete Pod orders-restore"]),
    ],
    ids=["nothing is there", "the claim", "copying", "copied", "the record has begun"],
)  # fmt: skip
def test_a_new_group_begins_with_its_backup_step_by_step(seen: Observed, lines: list[str]) -> None:
    plan = run(seen)
    assert lines_of(plan) == lines
    assert plan.look_again_seconds == 1.0


def test_then_it_is_a_group_as_any_other() -> None:
    first = replace(BEGUN.replicas[7], reserved_for="orders-1")
    seen = with_claim(new_group(record=replace(BEGUN, replicas={**BEGUN.replicas, 7: first})))
    pods = [line for line in lines_of(run(seen)) if line.startswith("apply Pod ")]
    assert pods == ["apply Pod orders-1", "apply Pod orders-8", "apply Pod orders-9"]


def test_what_it_waits_for_is_said() -> None:
    assert condition(with_claim(new_group(aside=ended("Running", ""))), "Reconciling") == ("True", "Restoring")


def test_why_the_copying_pod_does_not_run_is_said() -> None:
    """The group said Restoring for ever."""
    pod = ended("Pending", "")
    waiting = {"reason": "ErrImagePull", "message": "no such tag"}
    pod["Pod", "orders-restore"]["status"] = {
        "phase": "Pending",
        "containerStatuses": [{"name": "copy", "image": "operator:9", "state": {"waiting": waiting}}],
    }
    seen = with_claim(new_group(aside=pod))
    assert condition(seen, "Stalled") == ("True", "ImageUnavailable")
    assert message(seen, "Stalled") == "Pod orders-restore: ErrImagePull operator:9: no such tag"
    assert condition(with_claim(new_group(aside=ended("Running", ""))), "Stalled") == ("False", "NothingStalled")


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (new_group(aside={}), "spec.bootstrap.fromBackup.claim.name: there is no claim copies in namespace shop"),
        (
            new_group(aside=ended("Failed", "lost/nightly is torn: it has no manifest.json")),
            "is torn: it has no manifest.json; it is tried again 60 s later, or at once when pod orders-restore is deleted",
        ),
        (new_group(aside=ended("Succeeded", "no manifest")), "ended without a manifest"),
        (new_group(aside=ended("Succeeded", manifest(broker_id=0))), "Expected `int` >= 1 - at `$.brokerId`"),
        (new_group(aside=ended("Succeeded", manifest(offset=-1))), "does not say where its log ends"),
        (new_group(aside=CLAIM | UNLABELLED), "pod orders-restore is there and was not made by the operator"),
        (
            new_group(spec=JAVA | {"version": "5.3.3"}, aside=ended("Succeeded", manifest(version="5.5.0"))),
            "the backup is of RocketMQ 5.5.0, the group's brokers are 5.3.3",
        ),
        (new_group(aside=ended("Succeeded", manifest(master_epoch=2**31 - 2))), "too few are left above it"),
        (new_group(aside=ended("Succeeded", manifest(store_epoch=2**31 - 2))), "too few are left above it"),
        (new_group(aside=ended("Succeeded", manifest(next_broker_id=2**31))), "too few are left above it"),
        (new_group(record=b.reserved(1)), "the record of orders has members"),
        # Its own first claim: that goes with the group's data.
        (
            new_group(spec={"bootstrap": {"fromBackup": {"claim": SOURCE | {"name": "orders-1"}}}}),
            "orders-1 is the claim that the backup is copied to",
        ),
        (
            new_group(claims={"orders-2": {"metadata": {"name": "orders-2"}}}),
            "orders-2 is there already: a backup is restored into a new group only",
        ),
    ],
)
def test_why_it_cannot_begin(seen: Observed, why: str) -> None:
    plan = run(seen)
    assert lines_of(plan) == []
    assert condition(seen, "Stalled") == ("True", "InvalidSpec")
    assert why in message(seen, "Stalled")


def test_two_groups_of_one_backup_have_no_id_and_no_epoch_in_common() -> None:
    """Each begins in blocks of its own, which its uid gives: also in another cluster, with a copy of the folder."""
    begun: list[RestoredStore] = []
    for uid in ("group-uid", "another-uid", "a-third-uid"):
        seen = with_claim(new_group(aside=ended("Succeeded", manifest(), owner=uid)))
        plan = run(c.with_metadata(seen, uid=uid, annotations=NOTED))
        begun += [action.restored for action in plan.actions if isinstance(action, BeginRestored)]
    for numbers, width in (([one.broker_id for one in begun], 100), ([one.master_epoch for one in begun], 1000)):
        assert len(numbers) == 3
        assert all(after - before >= width for before, after in itertools.pairwise(sorted(numbers)))
    assert min(one.broker_id for one in begun) >= 7 + 100, "the backup's group may have given out ids after it"
    assert min(one.master_epoch for one in begun) >= 41 + 1000, "and had elections"


def beginning_noted(seen: Observed) -> list[Any]:
    return [
        one.change["annotations"]
        for one in run(seen).actions
        if isinstance(one, PatchMetadata) and one.resource == BROKER_GROUPS
    ]


def test_the_group_notes_where_it_began_before_its_record_does() -> None:
    """If the record is lost, its brokers are followed up to there, and no farther: a forged epoch must not be.

    A record that began although the note was refused was noted later, with ids that were reserved meanwhile.
    """
    begins = with_claim(new_group(aside=ended("Succeeded", manifest())))
    assert beginning_noted(begins) == [NOTED]
    assert BeginRestored not in map(type, run(begins).actions)
    assert BeginRestored in map(type, run(copied()).actions)
    begun = with_claim(new_group(record=replace(BEGUN, next_broker_id=FIRST_ID + 1)))
    assert beginning_noted(begun) == [{names.ANNOTATION_BEGUN_ABOVE: f"{FIRST_EPOCH}/{FIRST_ID + 1}"}], (
        "begun by an earlier release"
    )
    assert beginning_noted(c.with_metadata(begun, annotations=NOTED)) == []


def test_a_note_that_the_pass_has_not_read_stays() -> None:
    """The pass may read the record's beginning and the group of before it."""
    begun = c.with_metadata(with_claim(new_group(record=BEGUN)), resourceVersion="17")
    (patch,) = [one for one in run(begun).actions if isinstance(one, PatchMetadata) and one.resource == BROKER_GROUPS]
    assert patch.change["resourceVersion"] == "17"


def test_epochs_go_on_above_those_of_the_log_too() -> None:
    assert f"begin with lost/nightly as {FIRST_ID} above {5000 + FIRST_EPOCH - 41}" in lines_of(
        run(copied(store_epoch=5000))
    )


def test_the_pod_of_an_earlier_group_is_not_believed() -> None:
    """A group of this name was deleted and made again while its pod copied: another claim, or another backup."""
    for phase, said in (("Running", ""), ("Succeeded", manifest()), ("Failed", "the claim is not empty")):
        seen = with_claim(new_group(aside=ended(phase, said, owner="an-earlier-uid")))
        assert lines_of(run(seen)) == ["delete Pod orders-restore"]
        assert condition(seen, "Stalled")[0] == "False"


@pytest.mark.parametrize(
    ("pod", "again"),
    [
        (ended("Failed", "the claim is not empty"), False),
        (ended("Failed", "the claim is not empty", at=c.EARLIER), True),
        (ended("Failed", "", at=c.EARLIER), True),  # evicted, or its node is lost
        (ended("Succeeded", manifest(version="9.0.0"), at=c.EARLIER), False),
    ],
)
def test_a_restore_that_failed_is_tried_again(pod: dict[tuple[str, str], Any], *, again: bool) -> None:
    """Nothing else would: the field can't be changed, and the cause may be gone."""
    seen = with_claim(new_group(spec=JAVA, aside=pod))
    assert lines_of(run(seen)) == (["delete Pod orders-restore"] if again else [])
    assert condition(seen, "Stalled") == ("True", "InvalidSpec")


def test_a_group_that_cannot_be_restored_can_be_deleted() -> None:
    seen = with_claim(new_group(aside=ended("Failed", "there is no folder lost/nightly in the claim")))
    assert "delete Pod orders-restore" in lines_of(run(c.with_metadata(seen, deletionTimestamp=b.NOW)))


def test_the_record_of_an_earlier_group_is_not_taken_for_a_restored_one() -> None:
    kept = c.settled(bootstrap={"fromBackup": {"claim": SOURCE}})
    fresh = c.with_metadata(kept, finalizers=[])
    assert "the record of orders began with empty disks" in message(fresh, "Stalled")
    other = replace(kept, record=replace(kept.record or BEGUN, restored_from="lost/weekly"))
    assert "the record of orders began with lost/weekly" in message(other, "Stalled")


def test_a_restored_group_goes_on_and_also_after_its_record_was_lost() -> None:
    """Its disks are those that were restored, long since: a record made again from its brokers knows of no backup."""
    lost = c.settled(bootstrap={"fromBackup": {"claim": SOURCE}})
    restored = replace(lost, record=replace(lost.record or BEGUN, restored_from="lost/nightly"))
    for seen in (restored, lost, replace(lost, record=None)):
        assert condition(seen, "Stalled")[0] == "False"
        assert not [line for line in lines_of(run(seen)) if "restore" in line]


DISKS = ("orders-1", "orders-68208", "orders-68209")


def all_lost(**spec: Any) -> Observed:
    """A restored group whose record and pods are gone; its claims were noted while its brokers ran."""
    ran = c.settled(bootstrap={"fromBackup": {"claim": SOURCE}}, **spec)
    claims, pods = {}, {}
    for name, claim, pod in zip(DISKS, ran.claims.values(), ran.pods.values(), strict=True):
        claims[name] = claim | {"metadata": claim["metadata"] | {"name": name}}
        pods[name] = pod | {"metadata": pod["metadata"] | {"name": name}}
    for one in run(replace(ran, claims=claims, pods=pods)).actions:
        if isinstance(one, PatchMetadata) and one.resource == PERSISTENT_VOLUME_CLAIMS:
            claims[one.name]["metadata"].setdefault("annotations", {}).update(one.change["annotations"])
    return replace(ran, claims=claims, pods={}, record=None, snapshot=None, state_object=None, aside=CLAIM)


def test_a_restored_group_that_lost_record_and_pods_goes_on_with_its_disks() -> None:
    """They are not those of the backup any more. Its ids lie far above those that a new record begins with."""
    lines = lines_of(run(all_lost()))
    assert not [line for line in lines if "restore" in line or "reserve" in line]
    assert [line for line in lines if line.startswith("apply Pod ")] == [f"apply Pod {name}" for name in DISKS]
    assert condition(all_lost(), "Stalled")[0] == "False"


def test_a_new_group_on_the_disks_of_an_earlier_one_is_refused() -> None:
    """The group was deleted and made anew; its claims were retained."""
    seen = all_lost()
    fresh = c.with_metadata(seen, uid="another-uid")
    assert not [line for line in lines_of(run(fresh)) if "Pod" in line and "Budget" not in line]
    assert "orders-68208, orders-68209 is there already" in message(fresh, "Stalled")


def test_a_claim_whose_member_left_does_not_come_back() -> None:
    seen = all_lost()
    lines = lines_of(run(c.marked(seen, "orders-68209")))
    assert "apply Pod orders-68208" in lines
    assert "apply Pod orders-68209" not in lines


def test_the_copying_pod_has_no_rights_and_is_no_member() -> None:
    of = b.group(storage={"commitLog": {"size": "1Gi"}})
    pod = copy_pods.backup_pod(
        of, pod="orders-3", claim="copies", manifest=MANIFEST, owner={"uid": "op"}, settings=b.SETTINGS
    )
    assert names.LABEL_BROKER_GROUP not in pod["metadata"]["labels"]
    spec, [container] = pod["spec"], pod["spec"]["containers"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    mounted = {
        volume["persistentVolumeClaim"]["claimName"]: mount.get("readOnly", False)
        for volume in spec["volumes"]
        for mount in container["volumeMounts"]
        if mount["name"] == volume["name"]
    }
    assert mounted == {"orders-3": True, "orders-3-commitlog": True, "copies": False}
    environment = {one["name"]: one["value"] for one in container["env"]}
    assert msgspec.json.decode(environment["BACKUP_MANIFEST"], type=Manifest) == MANIFEST
    assert environment["COMMIT_LOG_DIR"] == names.COMMIT_LOG_DIR
    restores = copy_pods.restore_pod(of, pod="orders-1", claim="copies", folder="lost/nightly", settings=b.SETTINGS)
    [container] = restores["spec"]["containers"]
    assert {one["name"]: one["readOnly"] for one in container["volumeMounts"]} == {
        "store": False, "commitlog": False, "backup": True,
    }  # fmt: skip
