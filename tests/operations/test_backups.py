"""Backup: which member is stopped, what its copying pod is made and deleted for, and how it ends. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from brokergroup_operator.api.backup_fields import Manifest
from brokergroup_operator.reconcile.operations.plan import (
    NO_FIGURES,
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
from tests.operations.test_types import begun, judged
from tests.operations.world import LONG_AGO, NOW, group, record, running, thing

HELD = {
    "brokerId": 3,
    "pod": "orders-3",
    "claim": "copies",
    "folder": "orders/backup-1",
    "confirmOffset": 70,
    "compared": True,
}
COPIES = {("PersistentVolumeClaim", "copies"): thing("copies")}
MANIFEST = Manifest(
    name="orders/backup-1", operation="uid-of-backup-1", group="orders", namespace="default", cluster_name="DefaultCluster",
    broker_name="orders", broker_id=3, next_broker_id=4, master_epoch=5, implementation="Java", confirm_offset=70,
    store_epoch=5, offset=90, bytes=4096, taken_at="2030-03-17T17:46:40Z",
)  # fmt: skip
WHOLE = HELD | {"offset": 90, "epoch": 5, "bytes": 4096, "takenAt": "2030-03-17T17:46:40Z"}
WITHOUT_3 = {name: thing(name) for name in ("orders-1", "orders-2")}


def copy_pod(phase: str, message: str = "", *, owner: str = "uid-of-backup-1") -> dict[tuple[str, str], Any]:
    pod = thing("orders-backup")
    pod["metadata"]["ownerReferences"] = [{"kind": "BrokerGroupOperation", "uid": owner}]
    ended = {"state": {"terminated": {"message": message}}} if phase in {"Succeeded", "Failed"} else {"state": {}}
    pod["status"] = {"phase": phase, "containerStatuses": [{"name": "copy", **ended}]}
    return COPIES | {("Pod", "orders-backup"): pod}


def going(name: str) -> dict[str, Any]:
    one = thing(name)
    one["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    return one


@pytest.mark.parametrize(
    ("section", "changes", "broker_id"),
    [
        ({}, {}, 3),
        ({"brokerId": 2}, {}, 2),
        ({}, {"alive": (1, 2)}, 2),
        ({}, {"record": record(in_sync=(1, 2))}, 2),
        ({"stopMaster": True}, {}, 3),
        ({"stopMaster": True}, {"group": group(replicas=1), "record": record(in_sync=(1,), members=(1,))}, 1),
    ],
    ids=["the highest", "the named", "one that is alive", "one in sync", "no need", "alone"],
)
def test_which_member_is_stopped(section: dict[str, Any], changes: dict[str, Any], broker_id: int) -> None:
    verdict = begun("Backup", section=section, **changes)
    assert isinstance(verdict, Start), verdict
    held = verdict.figures.backup
    assert held is not None
    assert (held.broker_id, held.pod, held.claim, held.folder) == (
        broker_id, f"orders-{broker_id}", "copies", "orders/backup-1",
    )  # fmt: skip
    assert held.taken_at is None


@pytest.mark.parametrize(
    ("section", "changes", "why"),
    [
        ({"brokerId": 1}, {}, "broker 1 is master: name a slave, or none"),
        ({"brokerId": 9}, {}, "broker 9 is not a member"),
        ({"brokerId": 2}, {"alive": (1, 3)}, "broker 2 is not alive"),
        ({}, {"group": group(maintenance={"paused": True})}, "orders is paused"),
        ({}, {"group": group(storage={"ephemeral": {}})}, "spec.storage.ephemeral"),
        ({}, {"group": group(replicas=1), "record": record(in_sync=(1,), members=(1,))}, "with backup.stopMaster"),
        ({}, {"aside": {}}, "there is no claim copies in namespace default"),
        ({}, {"aside": {("PersistentVolumeClaim", "copies"): going("copies")}}, "claim copies is being deleted"),
        ({"claim": {"name": "orders-2"}}, {}, "claim orders-2 is a member's own"),
    ],
)
def test_what_is_refused(section: dict[str, Any], changes: dict[str, Any], why: str) -> None:
    verdict = begun("Backup", section=section, **changes)
    assert isinstance(verdict, Reject), verdict
    assert why in verdict.message


def judged_with(backup: dict[str, Any], **changes: Any) -> Verdict:
    started = changes.pop("started", NOW - 10)
    return judged(running("Backup", started=started, result={"backup": backup}), **changes)


def test_a_slave_without_the_masters_topics_is_not_stopped() -> None:
    """A message whose topic the copy lacks would be read by none: seen with Java brokers, whose slaves copy topics every 10 s."""
    new = running("Backup", result={"backup": HELD | {"compared": False}})
    asks = judged(new)
    assert isinstance(asks, GoOn)
    assert asks.effect == CompareMetadata(broker_id=3)
    waits = judged(new, Outcome(running=True))
    assert isinstance(waits, GoOn)
    assert waits.effect is None
    lacks = judged(new, Outcome(failed="broker 3 lacks 1 of the master's metadata, as topic 'e2e'"))
    assert isinstance(lacks, GoOn)
    assert lacks.effect == CompareMetadata(broker_id=3)
    assert "as topic 'e2e'" in lacks.message
    found = judged(new, Outcome(figures=NO_FIGURES))
    assert isinstance(found, GoOn)
    assert found.effect is None
    assert found.figures is not None
    assert found.figures.backup is not None
    assert found.figures.backup.compared


def test_the_copying_pod_is_made_when_the_members_pod_is_gone() -> None:
    waits = judged_with(HELD)
    assert isinstance(waits, GoOn)
    assert (waits.effect, waits.message) == (None, "waits until pod orders-3 is stopped")
    begins = judged_with(HELD, pods=WITHOUT_3)
    assert isinstance(begins, GoOn)
    known = msgspec.structs.replace(MANIFEST, store_epoch=0, offset=-1, bytes=0, taken_at="")
    assert begins.effect == TakeBackup(pod="orders-3", claim="copies", manifest=known)
    goes_on = judged_with(HELD, pods=WITHOUT_3, aside=copy_pod("Running"))
    assert isinstance(goes_on, GoOn)
    assert goes_on.effect is None


def test_its_end_is_written_before_it_is_deleted_and_the_member_starts() -> None:
    said = msgspec.json.encode(MANIFEST).decode()
    ended = judged_with(HELD, pods=WITHOUT_3, aside=copy_pod("Succeeded", said))
    assert isinstance(ended, GoOn)
    assert ended.effect is None
    assert ended.figures is not None
    assert msgspec.to_builtins(ended.figures.backup) == WHOLE | {"failed": ""}
    deleted = judged_with(WHOLE, pods=WITHOUT_3, aside=copy_pod("Succeeded", said))
    assert isinstance(deleted, GoOn)
    assert isinstance(deleted.effect, DeletePod)
    assert isinstance(judged_with(WHOLE, pods=WITHOUT_3), GoOn), "the member is not back"
    over = judged_with(WHOLE)
    assert isinstance(over, Done)
    assert over.message == "orders/backup-1 on claim copies has the log up to 90, epoch 5, 4096 bytes"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"aside": copy_pod("Failed", "files of broker 3 changed")}, "files of broker 3 changed"),
        ({"aside": copy_pod("Failed")}, "pod orders-backup failed: it says nothing"),
        ({"aside": copy_pod("Succeeded", "{}")}, "ended without a manifest"),
        ({"record": record(master=None)}, "orders lost its master meanwhile, and may need broker 3"),
        ({"started": LONG_AGO}, "not within 3600 s"),
    ],
)
def test_what_it_is_given_up_for(changes: dict[str, Any], why: str) -> None:
    """The status says so first: only then the copying pod goes, the member starts, and the operation fails."""
    verdict = judged_with(HELD, pods=WITHOUT_3, **changes)
    assert isinstance(verdict, GoOn), verdict
    assert verdict.effect is None
    assert verdict.figures is not None
    assert verdict.figures.backup is not None
    assert why in verdict.figures.backup.failed
    given_up = HELD | {"failed": "the reason"}
    deleted = judged_with(given_up, pods=WITHOUT_3, aside=copy_pod("Failed"))
    assert isinstance(deleted, GoOn)
    assert isinstance(deleted.effect, DeletePod)
    failed = judged_with(given_up, pods=WITHOUT_3)
    assert isinstance(failed, Fail)
    assert failed.message == "the reason"


def test_a_pod_of_another_operation_is_deleted_and_says_nothing_for_this_one() -> None:
    said = msgspec.json.encode(MANIFEST).decode()
    verdict = judged_with(HELD, pods=WITHOUT_3, aside=copy_pod("Succeeded", said, owner="another"))
    assert isinstance(verdict, GoOn)
    assert isinstance(verdict.effect, DeletePod)
    assert verdict.figures is None
