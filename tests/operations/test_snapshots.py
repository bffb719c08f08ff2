"""Backup by VolumeSnapshots: what is made when, when a set is whole, and what it is given up for. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.backup_fields import BackupResult
from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.reconcile.operations.plan import (
    Done,
    Fail,
    GoOn,
    Outcome,
    Reject,
    SealSnapshots,
    Start,
    TakeSnapshots,
    Verdict,
)
from brokergroup_operator.reconcile.operations.procedures.backups import begin_backup
from brokergroup_operator.reconcile.operations.procedures.premises import Case
from tests.operations.test_backups import HELD as COPIED
from tests.operations.test_backups import WITHOUT_3, changed, goes_on
from tests.operations.world import NOW, begun, expect, group, judged, operation, running, scene, thing

STORE, LOG = "backup-1", "backup-1-commitlog"
POD_UID = COPIED["podUid"]
MARK = f"uid-of-backup-1/{POD_UID}"
HELD = {**{key: value for key, value in COPIED.items() if key != "claim"}, "snapshots": [STORE, LOG]}
SECTION: dict[str, Any] = {"claim": None, "snapshot": {"className": "fast"}}
TWO_CLAIMS = group(storage={"commitLog": {"size": "8Gi"}})
CUT = rfc3339(NOW - 2)


def claim(name: str, size: str) -> dict[str, Any]:
    one = thing(name)
    one["spec"] = {"resources": {"requests": {"storage": size}}, "volumeName": f"volume-of-{name}"}
    return one


CLAIMS = {"orders-3": claim("orders-3", "1Gi"), "orders-3-commitlog": claim("orders-3-commitlog", "8Gi")}


def snapshot(
    name: str, *, mark: str = MARK, manifest: str | None = None, created: float = NOW - 10, **status: Any
) -> dict[str, Any]:
    one = thing(name, created=created)
    one["metadata"]["annotations"] = {names.ANNOTATION_SNAPSHOT_OF: mark}
    if manifest is not None:
        one["metadata"]["annotations"][names.ANNOTATION_MANIFEST] = manifest
    return one | {"status": status}


def ready(name: str, **more: Any) -> dict[str, Any]:
    return snapshot(name, readyToUse=True, creationTime=CUT, restoreSize="1Gi", **more)


def failing(name: str, *, since: float, **more: Any) -> dict[str, Any]:
    return snapshot(name, readyToUse=False, error={"message": "disk is busy", "time": rfc3339(since)}, **more)


def beside(*snapshots: dict[str, Any]) -> dict[tuple[str, str], Any]:
    return {("VolumeSnapshot", one["metadata"]["name"]): one for one in snapshots}


def after(*snapshots: dict[str, Any], outcome: Outcome | None = None, **changes: Any) -> Verdict:
    """What is done when these are there and the member is stopped."""
    backup = changes.pop("backup", HELD)
    item = running("Backup", started=changes.pop("started", NOW - 10), result={"backup": backup}, **SECTION)
    scene: dict[str, Any] = {"group": TWO_CLAIMS, "claims": CLAIMS, "pods": WITHOUT_3, "aside": beside(*snapshots)}
    return judged(item, *([outcome] if outcome is not None else []), **scene | changes)


def test_one_is_taken_of_each_claim() -> None:
    begins = expect(Start, begun("Backup", section=SECTION, group=TWO_CLAIMS, claims=CLAIMS))
    held = expect(BackupResult, begins.figures.backup)
    assert (held.claim, held.folder, held.snapshots) == ("", "orders/backup-1", [STORE, LOG])
    assert begins.message == f"copies the store of broker 3 to VolumeSnapshot {STORE}, {LOG}"
    take = TakeSnapshots(claims={STORE: "orders-3", LOG: "orders-3-commitlog"}, class_name="fast", mark=MARK)
    for there in ((), (snapshot(STORE),), (snapshot(LOG),)):
        assert goes_on(after(*there)).effect == take
    one = expect(Start, begun("Backup", section=SECTION))
    assert expect(BackupResult, one.figures.backup).snapshots == [STORE]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"snapshots_problem": "VolumeSnapshots are not installed"}, "spec.backup.snapshot: VolumeSnapshots are not installed"),
        ({"aside": beside(snapshot(STORE))}, f"VolumeSnapshot {STORE} is there already"),
        ({"aside": beside(snapshot(LOG))}, f"VolumeSnapshot {LOG} is there already"),
        ({"group": group(storage={"ephemeral": {}})}, "spec.storage.ephemeral"),
    ],
)  # fmt: skip
def test_what_is_refused(changes: dict[str, Any], why: str) -> None:
    verdict = begun("Backup", section=SECTION, **{"group": TWO_CLAIMS, "claims": CLAIMS} | changes)
    assert why in expect(Reject, verdict).message


def test_a_name_that_its_snapshots_could_not_have_is_refused() -> None:
    for length, is_refused in ((243, False), (244, True)):
        item = operation("Backup", name="n" * length, **SECTION)
        verdict = begin_backup(Case(seen=scene(item, group=TWO_CLAIMS, claims=CLAIMS), operation=item))
        assert isinstance(verdict, Reject) == is_refused, verdict
        if is_refused:
            assert "metadata.name of the operation is too long" in verdict.message
            assert "with 254 characters, expected at most 253" in verdict.message


def test_a_volume_that_is_attached_may_lack_what_was_written_last() -> None:
    """Its file system writes it at the latest when its node takes it off; a snapshot before that would not have it."""
    attached = {"volume-of-orders-3-commitlog": "node-1", "another": "node-2"}
    waits = goes_on(after(attached_volumes=attached))
    assert waits.effect is None
    assert waits.message.startswith("waits until volume volume-of-orders-3-commitlog is off node node-1")
    assert isinstance(goes_on(after(attached_volumes={"another": "node-2"})).effect, TakeSnapshots)


def test_without_a_volume_a_claim_is_not_taken_for_an_attached_one() -> None:
    """A volume that is inline in a pod is attached without a name."""
    unbound = CLAIMS | {"orders-3-commitlog": {"metadata": {"name": "orders-3-commitlog"}, "spec": {}}}
    assert isinstance(goes_on(after(claims=unbound, attached_volumes={"": "node-1"})).effect, TakeSnapshots)


@pytest.mark.parametrize("there", [[snapshot(STORE)], [ready(STORE), snapshot(LOG)], [ready(STORE), ready(LOG)]])
def test_another_pod_on_the_volume_meanwhile_is_noticed(there: list[dict[str, Any]]) -> None:
    """Its own pod, started by another client and gone again between two looks, or a debugging one: the node has it for longer."""
    failed = changed(after(*there, attached_volumes={"volume-of-orders-3": "node-1"}))["failed"]
    assert failed.startswith(
        "volume volume-of-orders-3 was attached to node node-1 before all VolumeSnapshots were ready"
    )


@pytest.mark.parametrize(
    ("one", "is_given_up"),
    [
        (snapshot(LOG, created=NOW - 59), False),
        (snapshot(LOG, created=NOW - 60), True),
        (snapshot(LOG, created=NOW - 60, readyToUse=False), False),
    ],
)
def test_without_a_snapshot_controller_the_member_is_not_kept_stopped(
    one: dict[str, Any], *, is_given_up: bool
) -> None:
    """The kind alone is installed: no status ever comes."""
    verdict = after(ready(STORE), one)
    if is_given_up:
        assert f"VolumeSnapshot {LOG} has no status: no snapshot controller answers" in changed(verdict)["failed"]
    else:
        assert goes_on(verdict).effect is None


def test_an_error_whose_text_changes_stands_too() -> None:
    """As one with the number of the request: each has a time of its own. What is cut already only has to become ready."""
    old = {"since": NOW - 1, "created": NOW - 60}
    assert "disk is busy" in changed(after(ready(STORE), failing(LOG, **old)))["failed"]
    assert goes_on(after(ready(STORE), failing(LOG, creationTime=CUT, **old))).effect is None


def test_an_error_from_before_it_was_ready_is_over() -> None:
    over = ready(LOG) | {"status": {**ready(LOG)["status"], "error": {"message": "busy", "time": rfc3339(NOW - 90)}}}
    assert isinstance(goes_on(after(ready(STORE), over)).effect, SealSnapshots)


def test_a_manifest_that_it_has_not_written_is_replaced() -> None:
    forged = sealed().replace('"masterEpoch":5', '"masterEpoch":0')
    assert isinstance(goes_on(after(*(ready(name, manifest=forged) for name in (STORE, LOG)))).effect, SealSnapshots)


def test_a_status_that_another_client_has_changed_ends_it() -> None:
    for names_ in ([STORE], [LOG, STORE]):
        failed = changed(after(ready(STORE), ready(LOG), backup=HELD | {"snapshots": names_}))["failed"]
        assert "was changed by another client" in failed


def test_it_waits_until_all_are_ready() -> None:
    waits = goes_on(after(ready(STORE), snapshot(LOG)))
    assert (waits.effect, waits.message) == (None, f"waits until VolumeSnapshot {LOG} is ready to use")
    tries = goes_on(after(ready(STORE), failing(LOG, since=NOW - 59)))
    assert tries.message == f"waits until VolumeSnapshot {LOG} is ready to use: disk is busy"


def sealed() -> str:
    seal = expect(SealSnapshots, goes_on(after(ready(STORE), ready(LOG))).effect)
    return msgspec.json.encode(seal.manifest).decode()


def test_the_manifest_comes_on_a_set_of_which_all_are_ready_and_the_status_after_it() -> None:
    seal = expect(SealSnapshots, goes_on(after(ready(STORE), ready(LOG))).effect)
    assert seal.uids == {name: ready(name)["metadata"]["uid"] for name in (STORE, LOG)}
    backup = seal.manifest.backup
    assert (backup.name, backup.confirm_offset, backup.offset, backup.taken_at) == ("orders/backup-1", 70, -1, CUT)
    assert (backup.next_broker_id, backup.master_epoch, backup.broker_name) == (4, 5, "orders")
    assert [(one.claim, one.snapshot, one.size) for one in seal.manifest.snapshots] == [
        ("orders-3", STORE, "1Gi"), ("orders-3-commitlog", LOG, "8Gi"),
    ]  # fmt: skip
    manifest = sealed()
    other = manifest.replace('"nextBrokerId":4', '"nextBrokerId":9')
    for torn in ((None, None), (None, manifest), (manifest, other), ("{", manifest)):
        parts = [ready(name, manifest=said) for name, said in zip((STORE, LOG), torn, strict=True)]
        assert goes_on(after(*parts)).effect == seal, "a kill between two writes"
    whole = changed(after(ready(STORE, manifest=manifest), ready(LOG, manifest=manifest)))
    assert (whole["takenAt"], whole["offset"], whole["failed"]) == (CUT, None, "")


def test_then_the_member_starts_and_it_is_done() -> None:
    whole = HELD | {"takenAt": CUT}
    assert isinstance(after(backup=whole), GoOn), "the member is not back"
    everyone = {name: thing(name) for name in ("orders-1", "orders-2", "orders-3")}
    done = expect(Done, after(backup=whole, pods=everyone))
    assert done.message == f"VolumeSnapshot {STORE}, {LOG} has the log up to 70 at least"


@pytest.mark.parametrize(
    ("snapshots", "changes", "why"),
    [
        ([ready(STORE), failing(LOG, since=NOW - 60, creationTime=CUT)], {}, f"VolumeSnapshot {LOG}: disk is busy"),
        ([failing(STORE, since=NOW - 5)], {"started": NOW - 3601}, "not within 3600 s: begun"),
        ([ready(STORE, mark="another")], {}, f"VolumeSnapshot {STORE} is there, and this Backup has not made it"),
        # Of the same operation, before another has started the member in between.
        ([ready(STORE, mark="uid-of-backup-1/an-earlier-pod")], {}, "has not made it since the member was stopped"),
        ([], {"snapshots_problem": "VolumeSnapshots are not installed"}, "are not installed"),
        ([ready(STORE), ready(LOG)], {"claims": {"orders-3": CLAIMS["orders-3"]}}, "a claim of pod orders-3 is gone"),
        (
            [ready(STORE)],
            {"pods": {name: thing(name, created=NOW - 5) for name in ("orders-1", "orders-2", "orders-3")}},
            f"pod orders-3 was started again before VolumeSnapshot {STORE} was whole",
        ),
    ],
)  # fmt: skip
def test_what_it_is_given_up_for(snapshots: list[dict[str, Any]], changes: dict[str, Any], why: str) -> None:
    """The status says so first, then the member starts, and the operation fails. Nothing is deleted."""
    failed = changed(after(*snapshots, **changes))
    assert why in failed["failed"]
    assert why in expect(Fail, after(*snapshots, backup=failed)).message


def test_one_that_is_being_deleted_is_no_backup() -> None:
    going = ready(STORE)
    going["metadata"]["deletionTimestamp"] = rfc3339(NOW)
    assert f"VolumeSnapshot {STORE} is being deleted" in changed(after(going))["failed"]


def test_that_it_is_refused_is_said_and_it_is_asked_for_again() -> None:
    refused = goes_on(after(outcome=Outcome(failed="ApiError: exceeded quota: count/volumesnapshots=3")))
    assert isinstance(refused.effect, TakeSnapshots)
    assert (
        refused.message
        == f"VolumeSnapshot {STORE}, {LOG} is not made: ApiError: exceeded quota: count/volumesnapshots=3"
    )
    assert goes_on(after(outcome=Outcome(running=True))).effect is None
