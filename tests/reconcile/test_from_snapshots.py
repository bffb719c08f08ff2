"""A new group begins with VolumeSnapshots: its first claims are made from a whole set, or it says why they can't be. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.backup_fields import ClaimSnapshot, Manifest, SnapshotManifest
from brokergroup_operator.reconcile.plan import BeginRestored
from brokergroup_operator.reconcile.render import children
from tests.reconcile import builders as b
from tests.reconcile.cases import applied, condition, lines_of, message, run, with_metadata
from tests.reconcile.test_backups import BEGUN, FIRST_EPOCH, FIRST_ID, JAVA, NOTED, ended, new_group
from tests.reconcile.world import MANIFEST

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed

STORE, LOG = "nightly", "nightly-commitlog"
KNOWN = msgspec.structs.replace(MANIFEST, confirm_offset=4000, offset=-1, store_epoch=0, bytes=0)
ONE = SnapshotManifest(backup=KNOWN, snapshots=[ClaimSnapshot(claim="lost-3", snapshot=STORE, size="1Gi")])
TWO = msgspec.structs.replace(
    ONE, snapshots=[*ONE.snapshots, ClaimSnapshot(claim="lost-3-commitlog", snapshot=LOG, size="8Gi")]
)
FROM = {"bootstrap": {"fromBackup": {"snapshot": {"name": STORE}}}}
COMMIT_LOG = FROM | {"storage": {"size": "1Gi", "commitLog": {"size": "8Gi"}}}
Aside = dict[tuple[str, str], Any]


def snapshot(name: str, manifest: SnapshotManifest | str | None, **status: Any) -> Aside:
    said = msgspec.json.encode(manifest).decode() if isinstance(manifest, SnapshotManifest) else manifest
    metadata = {"name": name, "annotations": {} if said is None else {names.ANNOTATION_MANIFEST: said}}
    return {
        ("VolumeSnapshot", name): {"metadata": metadata, "status": {"readyToUse": True, "restoreSize": "1Gi"} | status}
    }


WHOLE = snapshot(STORE, TWO) | snapshot(LOG, TWO, restoreSize="8Gi")
ADOPTED = msgspec.structs.replace(KNOWN, offset=5000, store_epoch=40, bytes=1)


def only_pods(aside: Aside) -> Aside:
    return {key: one for key, one in aside.items() if key[0] == "Pod"}


def of_lost(**changes: Any) -> Aside:
    """The store's snapshot with another manifest."""
    return snapshot(STORE, msgspec.structs.replace(ONE, backup=msgspec.structs.replace(KNOWN, **changes)))


def begins(aside: Aside, spec: dict[str, Any] | None = None, **fields: Any) -> Observed:
    return new_group(spec=FROM if spec is None else spec, aside=aside, **fields)


def source(name: str) -> dict[str, str]:
    return {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name}


def with_claims(seen: Observed, *snapshots: str | None) -> Observed:
    sources = [None if name is None else source(name) for name in snapshots]
    made = [children.build_claim(seen.group, b.member(1), source=sources[0])]
    if len(sources) > 1:
        made.append(children.build_commit_log_claim(seen.group, b.member(1), source=sources[1]))
    return replace(seen, claims=b.by_name(*(b.bound(b.stored(one)) for one in made)))


def test_each_claim_is_made_from_its_snapshot_and_then_adopted() -> None:
    claims = applied(begins(WHOLE, COMMIT_LOG), "PersistentVolumeClaim")
    assert {name: one["spec"]["dataSource"] for name, one in claims.items()} == {
        "orders-1": source(STORE), "orders-1-commitlog": source(LOG),
    }  # fmt: skip
    (pod,) = applied(begins(WHOLE, COMMIT_LOG), "Pod").values()
    (container,) = pod["spec"]["containers"]
    assert container["command"][-1] == "adopt"
    assert {one["name"]: one["readOnly"] for one in container["volumeMounts"]} == {"store": False, "commitlog": False}
    environment = {one["name"]: one["value"] for one in container["env"]}
    assert msgspec.json.decode(environment["BACKUP_MANIFEST"], type=Manifest) == KNOWN
    lone = begins(snapshot(STORE, ONE))
    assert list(applied(lone, "PersistentVolumeClaim")) == ["orders-1"]
    assert condition(lone, "Reconciling") == ("True", "Restoring")
    assert message(lone, "Reconciling") == f"Copying VolumeSnapshot {STORE} to claim orders-1"


def test_its_record_begins_when_the_claim_is_adopted_as_with_a_copy() -> None:
    seen = with_claims(
        begins(snapshot(STORE, ONE) | only_pods(ended("Succeeded", msgspec.json.encode(ADOPTED).decode()))), STORE
    )
    (begun,) = [
        one.restored for one in run(with_metadata(seen, annotations=NOTED)).actions if isinstance(one, BeginRestored)
    ]
    assert (begun.backup, begun.broker_id, begun.master_epoch) == (STORE, FIRST_ID, FIRST_EPOCH)
    assert (begun.held_epoch, begun.held_offset) == (40, 5000)


def test_the_source_of_a_claim_stays_in_what_is_applied() -> None:
    """The API server refuses to take it off; a claim without one does not get one."""
    record = replace(
        BEGUN, restored_from=STORE, replicas={**BEGUN.replicas, 7: replace(BEGUN.replicas[7], reserved_for="orders-1")}
    )
    grown = FROM | {"storage": {"size": "9Ti"}}
    for kept, expected in ((STORE, source(STORE)), (None, None)):
        seen = with_claims(begins({}, grown, record=record), kept)
        small = b.changed(seen, claims={"orders-1": _smaller(seen.claims["orders-1"])})
        claims = applied(small, "PersistentVolumeClaim")
        assert claims["orders-1"]["spec"]["resources"]["requests"]["storage"] == "9Ti"
        assert claims["orders-1"]["spec"].get("dataSource") == expected
        assert "dataSource" not in claims["orders-8"]["spec"], "the others copy the first"


def _smaller(claim: dict[str, Any]) -> dict[str, Any]:
    return {**claim, "spec": {**claim["spec"], "resources": {"requests": {"storage": "1Gi"}}}}


def _with(field: str, value: object) -> str:
    """The manifest of one claim, with this text as the field's value."""
    said = msgspec.json.encode(ONE).decode()
    changed, found = re.subn(f'"{field}":[^,}}]+', f'"{field}":{value}', said)
    return changed if found else f'{said[:-1]},"{field}":{value}}}'


def _listing(*snapshots: str) -> Aside:
    parts = [ClaimSnapshot(claim="lost-3", snapshot=name, size="1Gi") for name in snapshots]
    manifest = msgspec.structs.replace(ONE, snapshots=parts)
    return snapshot(STORE, manifest) | snapshot(LOG, manifest)


def _deleted(aside: Aside) -> Aside:
    return {key: one | {"metadata": one["metadata"] | {"deletionTimestamp": b.NOW}} for key, one in aside.items()}


@pytest.mark.parametrize("size", ["1e9", "+1Gi", ".5Gi", "1.Gi", "-1Gi", "9" * 5000], ids=range(6))
def test_a_size_that_is_not_understood_is_left_to_the_provisioner(size: str) -> None:
    """The kind lets any client write it, in forms that Kubernetes itself writes to no claim; the provisioner compares too."""
    assert list(applied(begins(snapshot(STORE, ONE, restoreSize=size)), "PersistentVolumeClaim")) == ["orders-1"]


def test_what_a_driver_says_fits_into_a_status() -> None:
    said = message(begins(snapshot(STORE, ONE, readyToUse=False, error={"message": "x" * 100_000})), "Stalled")
    assert len(said) < 2000


NAME = "spec.bootstrap.fromBackup.snapshot.name: "


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (begins({}), f"{NAME}there is no VolumeSnapshot {STORE} in namespace shop"),
        (
            begins({}, snapshots_problem="VolumeSnapshots (snapshot.storage.k8s.io/v1) are not installed in this cluster"),
            "spec.bootstrap.fromBackup.snapshot: VolumeSnapshots (snapshot.storage.k8s.io/v1) are not installed",
        ),
        (begins(snapshot(STORE, None)), f"{NAME}VolumeSnapshot {STORE} is torn: it has no annotation {names.ANNOTATION_MANIFEST}"),
        (begins(snapshot(STORE, "{}")), f"{NAME}VolumeSnapshot {STORE} is damaged: annotation"),
        (begins(of_lost(format=2)), "has a manifest of format 2, this operator reads 1"),
        (
            begins(snapshot(LOG, TWO), {"bootstrap": {"fromBackup": {"snapshot": {"name": LOG}}}}),
            f"VolumeSnapshot {LOG} is not the first of its set, expected {STORE}",
        ),
        (begins(snapshot(STORE, TWO), COMMIT_LOG), f"VolumeSnapshot {LOG} is missing in namespace shop: the set is torn"),
        (begins(snapshot(STORE, TWO) | snapshot(LOG, None), COMMIT_LOG), f"VolumeSnapshot {LOG} has not the manifest of {STORE}"),
        (begins(snapshot(STORE, TWO) | snapshot(LOG, ONE), COMMIT_LOG), f"VolumeSnapshot {LOG} has not the manifest of {STORE}"),
        (
            begins(snapshot(STORE, ONE, readyToUse=False, error={"message": "the disk is gone"})),
            f"VolumeSnapshot {STORE} is not ready to use: the disk is gone",
        ),
        (begins(snapshot(STORE, ONE), FROM | JAVA), "spec.implementation: Java, expected Python"),
        (
            begins(snapshot(STORE, ONE), COMMIT_LOG),
            "spec.storage.commitLog: the backup has the claims lost-3, expected it to be absent",
        ),
        (begins(WHOLE), "the backup has the claims lost-3, lost-3-commitlog, expected it to be given"),
        (
            begins(snapshot(STORE, ONE, restoreSize="2Gi"), FROM | {"storage": {"size": "2000M"}}),
            f"spec.storage.size: 2000M is smaller than VolumeSnapshot {STORE}, expected 2Gi or more",
        ),
        (
            begins(snapshot(STORE, TWO) | snapshot(LOG, TWO, restoreSize="9Gi"), COMMIT_LOG),
            f"spec.storage.commitLog.size: 8Gi is smaller than VolumeSnapshot {LOG}, expected 9Gi or more",
        ),
        (
            with_claims(begins(snapshot(STORE, ONE)), None),
            f"claim orders-1 is there, and was not made from VolumeSnapshot {STORE}: delete the claim",
        ),
        (with_claims(begins(snapshot(STORE, ONE)), "weekly"), "was not made from VolumeSnapshot nightly"),
        (begins(of_lost(master_epoch=2**31 - 2)), "too few are left above it"),
        # Another client has written the annotation, or changed it.
        *((begins(snapshot(STORE, _with("masterEpoch", forged))), "$.backup.masterEpoch") for forged in (2**31, -1, '"7"', 1.5)),
        *((begins(snapshot(STORE, _with("nextBrokerId", forged))), "$.backup.nextBrokerId") for forged in (0, -1, "null")),
        (begins(of_lost(next_broker_id=2**31)), "too few are left above it"),
        (begins(snapshot(STORE, _with("more", "[" * 100_000 + "]" * 100_000))), f"VolumeSnapshot {STORE} is damaged"),
        (begins(of_lost(version="9" * 5000)), "$.backup.version"),
        (begins(_listing(STORE, LOG, STORE), COMMIT_LOG), "$.snapshots"),
        (begins(_listing(STORE, STORE), COMMIT_LOG), f"VolumeSnapshot {STORE} is in its set twice"),
        (begins(_listing("x" * 254)), "$.snapshots[0].snapshot"),
        (begins(_deleted(snapshot(STORE, ONE))), f"VolumeSnapshot {STORE} is being deleted"),
        (begins(of_lost(confirm_offset=-1)), "does not say where its log ends"),
        (
            begins(snapshot(STORE, ONE) | only_pods(ended("Failed", "the claim is empty"))),
            "the claim is empty; it is tried again 60 s later",
        ),
    ],
)  # fmt: skip
def test_why_it_cannot_begin(seen: Observed, why: str) -> None:
    assert lines_of(run(seen)) == []
    assert condition(seen, "Stalled") == ("True", "InvalidSpec")
    assert why in message(seen, "Stalled")


def test_the_record_of_another_beginning_is_not_taken_for_it() -> None:
    seen = begins({}, record=replace(BEGUN, restored_from="weekly"))
    assert "the record of orders began with weekly" in message(with_metadata(seen, finalizers=[]), "Stalled")
