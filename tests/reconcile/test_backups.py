"""A running Backup keeps one member stopped, and no more; a new group begins with a backup, or says why it can't. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.backup_fields import Manifest
from brokergroup_operator.api.brokergroup_operation import BrokerGroupOperation
from brokergroup_operator.reconcile.render import children, copy_pods
from brokergroup_operator.reconcile.see.observed import Observed
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.cases import condition, lines_of, message, run
from tests.reconcile.world import MANIFEST

HELD = {"brokerId": 3, "pod": "orders-3", "claim": "copies", "folder": "orders/nightly", "compared": True}
WHOLE = {"takenAt": b.NOW, "offset": 90}
FAILED = {"failed": "the copy is torn"}
COPYING = {("Pod", "orders-backup"): {"metadata": {"name": "orders-backup"}, "status": {"phase": "Running"}}}


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


@pytest.mark.parametrize(
    ("seen", "lines"),
    [
        (backing_up(c.settled()), ["delete Pod orders-3"]),
        # Not before it is known to have the master's topics; then it is an ordinary member.
        (backing_up(c.settled(), HELD | {"compared": False}), []),
        (backing_up(stopped(c.settled()), HELD | {"compared": False}), ["apply Pod orders-3"]),
        # Not while it is not FailoverSafe: another member is lost.
        (backing_up(c.live(c.settled(), 1, 3)), []),
        (backing_up(c.going(c.settled(), "orders-3")), []),
        # Kept stopped until the copy is whole, or given up, and the copying pod is gone.
        (backing_up(stopped(c.settled())), []),
        (backing_up(stopped(c.settled()), aside=COPYING), []),
        (backing_up(stopped(c.settled()), HELD | WHOLE, aside=COPYING), []),
        (backing_up(stopped(c.settled()), HELD | FAILED, aside=COPYING), []),
        (backing_up(stopped(c.settled()), HELD | WHOLE), ["apply Pod orders-3"]),
        (backing_up(stopped(c.settled()), HELD | FAILED), ["apply Pod orders-3"]),
        # The operation was deleted.
        (stopped(c.settled()), ["apply Pod orders-3"]),
        # It is not stopped once more.
        (backing_up(c.settled(), HELD | WHOLE), []),
        # Another member that is missing is made all the same.
        (backing_up(stopped(c.without_pods(c.settled(), "orders-2"))), ["apply Pod orders-2"]),
        # One thing at a time: a rolling update waits, and so does a scale in, which would take the stopped one first.
        (backing_up(stopped(c.outdated(c.settled(), "orders-2"))), []),
        (backing_up(stopped(c.wishing(c.settled(), replicas=2))), []),
    ],
    ids=[
        "stops it", "not compared", "not compared and lost", "unsafe",
        "it stops", "stopped", "copying", "whole, and the pod is there", "failed, and the pod is there",
        "whole", "failed", "no operation", "not again", "another is missing", "a rolling update", "a scale in",
    ],
)  # fmt: skip
def test_one_member_is_stopped_for_a_backup(seen: Observed, lines: list[str]) -> None:
    assert [line for line in lines_of(run(seen)) if "Pod " in line and "Budget" not in line] == lines


def test_the_group_says_what_it_waits_for() -> None:
    seen = backing_up(stopped(c.settled()))
    assert condition(seen, "Reconciling") == ("True", "BackingUp")
    assert message(seen, "Reconciling") == "Pod orders-3 is stopped until its store is copied"
    unsafe = backing_up(c.live(c.settled(), 1, 3))
    assert condition(unsafe, "Stalled")[0] == "True"
    assert "orders-3 is not stopped for a backup" in message(unsafe, "Stalled")


def test_the_only_member_is_stopped_if_the_operation_says_so() -> None:
    alone = c.settled(replicas=1)
    held = HELD | {"brokerId": 1, "pod": "orders-1"}
    assert "delete Pod orders-1" not in lines_of(run(backing_up(alone, held)))
    assert "delete Pod orders-1" in lines_of(run(backing_up(alone, held, stop_master=True)))


SOURCE = {"name": "copies", "folder": "lost/nightly"}
CLAIM = {("PersistentVolumeClaim", "copies"): {"metadata": {"name": "copies"}}}


def new_group(**fields: Any) -> Observed:
    """A group that begins with a backup, whose claims and pods are still to be made."""
    spec = {"bootstrap": {"fromBackup": {"claim": SOURCE}}} | fields.pop("spec", {})
    of = b.group(**spec)
    made: dict[str, Any] = {
        "services": b.by_name(
            b.stored(children.build_members_service(of)), b.stored(children.build_master_service(of))
        ),
        "config_maps": b.by_name(b.stored(children.build_config_map(of, b.SETTINGS))),
        "disruption_budgets": b.by_name(*map(b.stored, children.build_disruption_budgets(of, open_for_one=False))),
        "aside": CLAIM,
        "now": b.NOW,
    }
    return Observed(group=of, group_object=b.group_object(**spec), **(made | fields))


def with_claim(seen: Observed) -> Observed:
    return replace(seen, claims=b.by_name(b.bound(b.stored(children.build_claim(seen.group, b.member(1))))))


def ended(phase: str, said: str) -> dict[tuple[str, str], Any]:
    status = {"phase": phase, "containerStatuses": [{"name": "copy", "state": {"terminated": {"message": said}}}]}
    pod = {"metadata": {"name": "orders-restore", "uid": "restore-uid"}, "status": status}
    return CLAIM | {("Pod", "orders-restore"): pod}


def manifest(**changes: Any) -> str:
    return msgspec.json.encode(msgspec.structs.replace(MANIFEST, **changes)).decode()


BEGUN = replace(b.reserved(7, 8, 9), master_epoch=1041, restored_from="lost/nightly")


@pytest.mark.parametrize(
    ("seen", "lines"),
    [
        (new_group(), ["apply PersistentVolumeClaim orders-1", "apply Pod orders-restore"]),
        (with_claim(new_group()), ["apply Pod orders-restore"]),
        (with_claim(new_group(aside=ended("Running", ""))), []),
        (
            with_claim(new_group(aside=ended("Succeeded", manifest()))),
            ["begin with lost/nightly as 7 above 1041"],
        ),
        # The record has begun: no member starts on the claim while the copying pod may hold it.
        (
            with_claim(new_group(record=BEGUN, aside=ended("Succeeded", manifest()))),
            ["delete Pod orders-restore"],
        ),
    ],
    ids=["nothing is there", "the claim", "copying", "copied", "the record has begun"],
)
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


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (new_group(aside={}), "spec.bootstrap.fromBackup.claim.name: there is no claim copies in namespace shop"),
        (
            new_group(aside=ended("Failed", "lost/nightly is torn: it has no manifest.json")),
            "lost/nightly is torn: it has no manifest.json; to try again, delete pod orders-restore",
        ),
        (new_group(aside=ended("Succeeded", "no manifest")), "ended without a manifest"),
        (
            new_group(
                spec={"implementation": "Java", "nameServers": ["ns:9876"], "version": "5.3.3"},
                aside=ended("Succeeded", manifest(version="5.5.0")),
            ),
            "the backup is of RocketMQ 5.5.0, the group's brokers are 5.3.3",
        ),
        (new_group(aside=ended("Succeeded", manifest(master_epoch=2**31 - 2))), "there are none left above it"),
        (new_group(record=b.reserved(1)), "the record of orders has members"),
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


def test_the_record_of_an_earlier_group_is_not_taken_for_a_restored_one() -> None:
    kept = c.settled(bootstrap={"fromBackup": {"claim": SOURCE}})
    fresh = replace(
        kept, group_object={**kept.group_object, "metadata": {**kept.group_object["metadata"], "finalizers": []}}
    )
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
