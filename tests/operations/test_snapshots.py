"""Backup by VolumeSnapshots: what is made when, when a set is whole, and what it is given up for. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.backup_fields import BackupResult
from brokergroup_operator.api.times import rfc3339
from brokergroup_operator.reconcile.operations.plan import (
    CompareMetadata,
    Done,
    Fail,
    GoOn,
    HoldPod,
    Outcome,
    Reject,
    SealSnapshots,
    Start,
    TakeSnapshots,
    Verdict,
    Wait,
)
from brokergroup_operator.reconcile.operations.procedures.backups import begin_backup
from brokergroup_operator.reconcile.operations.procedures.premises import Case
from tests.operations.test_backups import HELD as COPIED
from tests.operations.test_backups import WITHOUT_3, changed, goes_on
from tests.operations.world import NOW, begun, expect, group, judged, operation, record, running, scene, thing

STORE, LOG = "backup-1", "backup-1-commitlog"
POD_UID = COPIED["podUid"]
MARK = f"uid-of-backup-1/{POD_UID}"
HELD = {**{key: value for key, value in COPIED.items() if key != "claim"}, "snapshots": [STORE, LOG]}
IS_CUT = HELD | {"cutAt": rfc3339(NOW - 1)}
EVERYONE = {name: thing(name, created=NOW - 5) for name in ("orders-1", "orders-2", "orders-3")}
SECTION: dict[str, Any] = {"claim": None, "snapshot": {"className": "fast"}}
TWO_CLAIMS = group(storage={"commitLog": {"size": "8Gi"}})
CUT, EARLY = rfc3339(NOW - 2), rfc3339(NOW - 90)


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


def cut(name: str, **more: Any) -> dict[str, Any]:
    return snapshot(name, readyToUse=False, creationTime=CUT, restoreSize="1Gi", **more)


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


def uploaded(*snapshots: dict[str, Any], outcome: Outcome | None = None, **changes: Any) -> Verdict:
    """What is done when these are there, all were cut before, and the member runs again."""
    return after(*snapshots, outcome=outcome, **{"backup": IS_CUT, "pods": EVERYONE} | changes)


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
        "volume volume-of-orders-3 was attached to node node-1 before all VolumeSnapshots were cut"
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


def with_error(one: dict[str, Any], at: float) -> dict[str, Any]:
    return one | {"status": {**one["status"], "error": {"message": "busy", "time": rfc3339(at)}}}


def test_an_error_from_before_it_was_ready_is_over() -> None:
    over = with_error(ready(LOG), NOW - 90)
    assert isinstance(goes_on(uploaded(ready(STORE), over)).effect, SealSnapshots)


def early(at: float) -> dict[str, Any]:
    """What the status of the backup has once an error of that time was seen on a snapshot that was not cut yet."""
    return {"earlyErrors": [f"{LOG} {rfc3339(at)}"]}


def test_an_error_on_a_snapshot_that_is_not_cut_is_noted_once() -> None:
    busy = failing(LOG, since=NOW - 5)
    found = changed(after(ready(STORE), busy))
    assert (found["earlyErrors"], found["cutAt"], found["failed"]) == (early(NOW - 5)["earlyErrors"], None, "")
    assert goes_on(after(ready(STORE), busy, backup=HELD | early(NOW - 5))).effect is None
    later = changed(after(ready(STORE), failing(LOG, since=NOW - 2), backup=HELD | early(NOW - 5)))
    assert later["earlyErrors"] == early(NOW - 2)["earlyErrors"]


@pytest.mark.parametrize("at", [NOW - 90, NOW + 3600], ids=["the storage's clock is right", "it is an hour behind"])
def test_an_error_from_before_it_was_cut_is_over(at: float) -> None:
    """The first try failed, the next one has cut it: the snapshotter leaves the error there until it is ready."""
    over, noted = with_error(cut(LOG), at), early(at)
    assert changed(after(cut(STORE), over, backup=HELD | noted))["cutAt"] == rfc3339(NOW)
    waits = goes_on(uploaded(cut(STORE), over, backup=IS_CUT | noted))
    assert waits.message == f"waits until VolumeSnapshot {STORE}, {LOG} is ready to use"


@pytest.mark.parametrize("noted", [{}, early(NOW - 91)], ids=["the first", "another than before the cut"])
def test_an_error_that_came_after_the_cut_is_not_over_by_a_storage_whose_clock_is_ahead(noted: dict[str, Any]) -> None:
    """`creationTime` is the storage's word, and the error's time the snapshotter's: the member must not start for it."""
    since = with_error(cut(LOG), NOW - 90)
    waits = goes_on(after(cut(STORE), with_error(cut(LOG), NOW - 59), backup=HELD | noted))
    assert (waits.effect, waits.message) == (None, f"waits until VolumeSnapshot {LOG} is cut: busy")
    assert "busy" in changed(after(cut(STORE), since, backup=HELD | noted))["failed"], "it stands for 60 s"
    assert "may be cut anew: busy" in changed(uploaded(cut(STORE), since, backup=IS_CUT | noted))["failed"]


def test_an_error_of_a_snapshotter_whose_clock_is_ahead_keeps_no_member_stopped() -> None:
    """It would not be 60 s old for hours. Then it counts from the snapshot's beginning."""
    ahead = NOW + 3600
    for created, is_given_up in ((NOW - 59, False), (NOW - 60, True)):
        verdict = after(ready(STORE), failing(LOG, since=ahead, creationTime=CUT, created=created))
        assert bool(expect(GoOn, verdict).figures) == is_given_up


def test_a_manifest_that_it_has_not_written_is_replaced() -> None:
    forged = sealed().replace('"masterEpoch":5', '"masterEpoch":0')
    assert isinstance(goes_on(uploaded(*(ready(name, manifest=forged) for name in (STORE, LOG)))).effect, SealSnapshots)


def test_a_status_that_another_client_has_changed_ends_it() -> None:
    for names_ in ([STORE], [LOG, STORE]):
        for before in (HELD, IS_CUT):
            failed = changed(after(ready(STORE), ready(LOG), backup=before | {"snapshots": names_}))["failed"]
            assert "was changed by another client" in failed


@pytest.mark.parametrize(
    ("log", "is_cut"),
    [
        (cut(LOG), True),
        # A driver that says no time, or late.
        (snapshot(LOG, readyToUse=True), True),
        (snapshot(LOG, readyToUse=False), False),
        (snapshot(LOG), False),
        (failing(LOG, since=NOW - 1, creationTime=CUT), False),
    ],
    ids=["cut", "ready", "in work", "new", "cut and failing"],
)
def test_the_member_starts_when_all_are_cut_and_not_when_all_are_uploaded(log: dict[str, Any], *, is_cut: bool) -> None:
    """An upload may take an hour."""
    verdict = after(cut(STORE), log)
    if is_cut:
        found = changed(verdict)
        assert (found["cutAt"], found["takenAt"], found["failed"]) == (rfc3339(NOW), None, "")
    else:
        waits = goes_on(verdict)
        assert waits.message.startswith(f"waits until VolumeSnapshot {LOG} is cut")
        assert waits.effect is None


def test_then_it_waits_until_all_are_ready() -> None:
    waits = goes_on(uploaded(ready(STORE), cut(LOG)))
    assert (waits.effect, waits.message) == (None, f"waits until VolumeSnapshot {LOG} is ready to use")


def test_an_error_after_the_cut_ends_it_at_once() -> None:
    """The next try may cut the running member's volume, and the snapshotter keeps the first `creationTime` for it."""
    failed = changed(uploaded(ready(STORE), failing(LOG, since=NOW - 1, creationTime=CUT)))["failed"]
    assert failed.startswith(f"VolumeSnapshot {LOG} failed after it was cut, and may be cut anew: disk is busy")


def test_what_happens_to_the_group_after_the_cut_is_nothing_to_the_snapshots() -> None:
    """A failover, a drain, a pause, and the volume attached again, as the member runs."""
    anything: dict[str, Any] = {
        "record": record(master=2, epoch=6),
        "attached_volumes": {"volume-of-orders-3": "node-1"},
        "group": TWO_CLAIMS | {"spec": {**TWO_CLAIMS["spec"], "maintenance": {"paused": True}}},
    }
    for pods in (EVERYONE, WITHOUT_3):
        waits = goes_on(uploaded(ready(STORE), cut(LOG), pods=pods, **anything))
        assert waits.message == f"waits until VolumeSnapshot {LOG} is ready to use"
    seal = goes_on(uploaded(ready(STORE), ready(LOG), **anything)).effect
    assert isinstance(seal, SealSnapshots)
    assert seal.manifest.backup.master_epoch == 6, "a restored group begins above it"


def test_a_member_that_has_left_since_the_cut_is_not_waited_for() -> None:
    left: dict[str, Any] = {"record": record(in_sync=(1, 2), members=(1, 2)), "pods": WITHOUT_3, "claims": {}}
    seal = goes_on(uploaded(ready(STORE), ready(LOG), **left)).effect
    assert isinstance(seal, SealSnapshots)
    assert [one.size for one in seal.manifest.snapshots] == ["1Gi", "1Gi"], "what is restored from them at least"
    assert isinstance(after(backup=IS_CUT | {"takenAt": CUT}, **left), Done)


def test_that_they_are_not_marked_is_said_and_tried_again() -> None:
    refused = goes_on(uploaded(ready(STORE), ready(LOG), outcome=Outcome(failed="ApiError: PATCH: 503")))
    assert isinstance(refused.effect, SealSnapshots)
    assert refused.message == f"VolumeSnapshot {STORE}, {LOG} is not marked as whole: ApiError: PATCH: 503"
    assert goes_on(uploaded(ready(STORE), ready(LOG), outcome=Outcome(running=True))).effect is None


UNREAD: dict[str, Any] = {"snapshots_unread": "VolumeSnapshots can't be read now: 503"}


@pytest.mark.parametrize("before", [HELD | {"comparedAt": None}, HELD, IS_CUT], ids=["before", "stopped", "cut"])
def test_while_they_cannot_be_read_nothing_is_decided(before: dict[str, Any]) -> None:
    """No snapshot is made or given up, and no member is stopped; the deadline is as ever."""
    waits = goes_on(after(backup=before, **UNREAD))
    assert (waits.effect, waits.message) == (None, "waits: VolumeSnapshots can't be read now: 503")
    assert "not within 3600 s" in changed(after(backup=before, started=NOW - 3601, **UNREAD))["failed"]


def test_it_does_not_begin_while_they_cannot_be_read() -> None:
    scene_: dict[str, Any] = {"group": TWO_CLAIMS, "claims": CLAIMS} | UNREAD
    for age_seconds, kind in ((29, Wait), (31, Reject)):
        item = operation("Backup", created=NOW - age_seconds, **SECTION)
        verdict = begin_backup(Case(seen=scene(item, **scene_), operation=item))
        assert isinstance(verdict, kind), verdict
        assert "VolumeSnapshots can't be read now: 503" in verdict.message


def held_pod(**metadata: Any) -> dict[str, Any]:
    one = thing("orders-3")
    one["metadata"] |= {"resourceVersion": "7", "finalizers": ["foregroundDeletion"]} | metadata
    return one


def test_the_members_pod_is_held_before_it_is_stopped() -> None:
    """By a forced deletion its object would be gone while its container writes; not every driver attaches a volume."""
    new = HELD | {"comparedAt": None}
    holds = goes_on(after(backup=new, pods={**WITHOUT_3, "orders-3": held_pod()}))
    assert holds.effect == HoldPod(name="orders-3", resource_version="7", finalizers=["foregroundDeletion"])
    is_held = held_pod(finalizers=[names.FINALIZER_BACKUP])
    assert goes_on(after(backup=new, pods={**WITHOUT_3, "orders-3": is_held})).effect == CompareMetadata(broker_id=3)
    refused = goes_on(after(backup=new, pods={**WITHOUT_3, "orders-3": held_pod()}, outcome=Outcome(failed="403: no")))
    assert (refused.effect, refused.message) == (holds.effect, "pod orders-3 can't be held: 403: no")
    asked = after(backup=new, pods={**WITHOUT_3, "orders-3": held_pod()}, outcome=Outcome(running=True))
    assert goes_on(asked).effect is None
    going = held_pod(deletionTimestamp=rfc3339(NOW))
    waits = goes_on(after(backup=new, pods={**WITHOUT_3, "orders-3": going}))
    assert (waits.effect, waits.message) == (
        None,
        "waits until pod orders-3 is back: it is not stopped by this operation",
    )


@pytest.mark.parametrize(
    ("late_seconds", "state", "is_given_up"),
    [(59, "running", False), (60, "running", True), (600, "terminated", False)],
)
def test_of_a_silent_node_no_snapshot_is_cut(late_seconds: int, state: str, *, is_given_up: bool) -> None:
    """Its container may run on: also of a pod that a controller says has failed."""
    pod = held_pod(finalizers=[names.FINALIZER_BACKUP], deletionTimestamp=rfc3339(NOW - late_seconds))
    pod["spec"] = {"nodeName": "node-1"}
    pod["status"] = {"phase": "Failed", "containerStatuses": [{"name": "broker", "state": {state: {}}}]}
    verdict = after(pods={**WITHOUT_3, "orders-3": pod})
    if is_given_up:
        failed = changed(verdict)["failed"]
        assert failed.startswith(
            "pod orders-3 was to be stopped 60 s ago, and the kubelet of node node-1 does not say so: its broker may run on"
        )
    else:
        assert goes_on(verdict).message == "waits until pod orders-3 is stopped"


def test_a_node_that_falls_silent_after_the_end_keeps_no_member_stopped() -> None:
    """The finalizer stays on the pod while the node is silent, so without this the pod would be kept for an hour."""
    pod = held_pod(finalizers=[names.FINALIZER_BACKUP], deletionTimestamp=rfc3339(NOW - 60))
    pod["spec"] = {"nodeName": "node-1"}
    pod["status"] = {"phase": "Running", "containerStatuses": [{"name": "broker", "state": {"terminated": {}}}]}
    pods = {**WITHOUT_3, "orders-3": pod}
    for ready_, is_given_up in (("True", False), ("Unknown", True)):
        node = thing("node-1") | {"status": {"conditions": [{"type": "Ready", "status": ready_}]}}
        verdict = after(pods=pods, nodes={"node-1": node})
        if is_given_up:
            assert changed(verdict)["failed"].startswith("pod orders-3 was to be stopped 60 s ago")
        else:
            assert goes_on(verdict).message == "waits until pod orders-3 is stopped"


def sealed() -> str:
    seal = expect(SealSnapshots, goes_on(uploaded(ready(STORE), ready(LOG))).effect)
    return msgspec.json.encode(seal.manifest).decode()


def test_the_manifest_comes_on_a_set_of_which_all_are_ready_and_the_status_after_it() -> None:
    seal = expect(SealSnapshots, goes_on(uploaded(ready(STORE), ready(LOG))).effect)
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
        assert goes_on(uploaded(*parts)).effect == seal, "a kill between two writes"
    whole = changed(uploaded(ready(STORE, manifest=manifest), ready(LOG, manifest=manifest)))
    assert (whole["takenAt"], whole["offset"], whole["failed"]) == (CUT, None, "")


def test_then_the_member_starts_and_it_is_done() -> None:
    whole = IS_CUT | {"takenAt": CUT}
    assert isinstance(after(backup=whole), GoOn), "the member is not back"
    done = expect(Done, after(backup=whole, pods=EVERYONE))
    assert done.message == f"VolumeSnapshot {STORE}, {LOG} has the log up to 70 at least"


@pytest.mark.parametrize(
    ("snapshots", "changes", "why"),
    [
        ([ready(STORE), failing(LOG, since=NOW - 60, creationTime=EARLY)], {}, f"VolumeSnapshot {LOG}: disk is busy"),
        ([ready(STORE), failing(LOG, since=NOW - 60, creationTime=EARLY)], {"backup": IS_CUT}, "disk is busy"),
        ([ready(STORE)], {"backup": IS_CUT}, f"VolumeSnapshot {LOG} was deleted before all were ready"),
        ([ready(STORE), ready(LOG, mark="another")], {"backup": IS_CUT}, "has not made it since the member was stopped"),
        ([ready(STORE), cut(LOG)], {"backup": IS_CUT, "started": NOW - 3601}, "not within 3600 s: begun"),
        ([failing(STORE, since=NOW - 5)], {"started": NOW - 3601}, "not within 3600 s: begun"),
        ([ready(STORE, mark="another")], {}, f"VolumeSnapshot {STORE} is there, and this Backup has not made it"),
        # Of the same operation, before another has started the member in between.
        ([ready(STORE, mark="uid-of-backup-1/an-earlier-pod")], {}, "has not made it since the member was stopped"),
        ([], {"snapshots_problem": "VolumeSnapshots are not installed"}, "are not installed"),
        ([ready(STORE)], {"pods": EVERYONE}, f"pod orders-3 was started again before VolumeSnapshot {STORE} was cut"),
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
