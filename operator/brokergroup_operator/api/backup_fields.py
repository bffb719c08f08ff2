"""Backup and restore: what a Backup is asked for and says, the manifest that lies beside a copy, and BrokerGroup.spec.bootstrap."""

import hashlib
import re
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from brokergroup_operator.api import bounds, names
from brokergroup_operator.api.rules import Rule

# The old group may have gone on after the backup was taken, under epochs and broker ids that no manifest knows: a restored group
# begins that many above them, times a number that is its own, so that two groups of one backup have none in common.
EPOCHS_LEFT_OUT = 1000
EPOCH_BLOCKS = 9_999
BROKER_IDS_LEFT_OUT = 100
BROKER_ID_BLOCKS = 999
# So far above where it began the brokers of a restored group are followed after its record was lost, as those of any group are
# above the record's beginning (`ControllerSettings.max_epoch_jump`, `max_ids_ahead`).
EPOCHS_SINCE = 10_000
BROKER_IDS_SINCE = 1000
# What must be left for the restored group's own elections.
EPOCHS_TO_COME = 1_000_000


def blocks_of(group_uid: str) -> tuple[int, int]:
    """Return the block of epochs and the block of broker ids in which a group begins that begins with a backup."""
    digest = hashlib.sha256(group_uid.encode()).digest()
    return 1 + int.from_bytes(digest[:8]) % EPOCH_BLOCKS, 1 + int.from_bytes(digest[8:16]) % BROKER_ID_BLOCKS


def begun_above(group: bounds.JsonObject) -> tuple[int, int]:
    """Return epoch and broker id above which this group began with its backup, by the note on the object.

    Without one: those of a backup whose own group began at 0.
    """
    text = str((group["metadata"].get("annotations") or {}).get(names.ANNOTATION_BEGUN_ABOVE, ""))
    if text.isascii() and (found := re.fullmatch(r"([0-9]{1,10})/([0-9]{1,10})", text)) is not None:
        return int(found[1]), int(found[2])
    epoch_block, id_block = blocks_of(str(group["metadata"].get("uid", "")))
    return epoch_block * EPOCHS_LEFT_OUT, id_block * BROKER_IDS_LEFT_OUT


class ClaimReference(Struct, frozen=True, rename="camel", kw_only=True):
    """A PersistentVolumeClaim in the same namespace."""

    name: Annotated[bounds.ObjectName, Meta(description="metadata.name of the PersistentVolumeClaim.")]


class SnapshotRequest(Struct, frozen=True, rename="camel", kw_only=True):
    """VolumeSnapshots of the member's claims, named after the operation."""

    class_name: Annotated[
        bounds.ObjectName | None,
        Meta(description="The VolumeSnapshotClass. Absent: the default one of the claims' driver."),
    ] = None


class BackupRequest(Struct, frozen=True, rename="camel", kw_only=True):
    """A copy of the whole store of one member: a slave in sync is stopped, its claims are copied, and it starts again."""

    claim: Annotated[
        ClaimReference | None,
        Meta(
            description="The claim that receives the copy, in a folder of its own, <group>/<operation>. A pod of the operator's"
            " image mounts it beside the member's claims. Absent: snapshot says how."
        ),
    ] = None
    snapshot: Annotated[
        SnapshotRequest | None,
        Meta(
            description="A VolumeSnapshot of each of the member's claims instead of a copy, by the claims' CSI driver. It has no"
            " owner: the deletion of the group or of the operation leaves it. Absent: claim says where."
        ),
    ] = None
    broker_id: Annotated[
        bounds.BrokerId | None,
        Meta(description="Broker id of the slave that is stopped. Absent: the slave in sync with the highest id."),
    ] = None
    stop_master: Annotated[
        bool,
        Meta(
            description="Whether the master of a group with one voting member may be stopped for it: the group takes no message"
            " until it is back. Other groups do not need it."
        ),
    ] = False
    deadline_seconds: Annotated[
        int,
        Meta(
            ge=1,
            le=7 * 24 * 3600,
            description="Seconds from its start within which the copy must be whole. After that it fails, and the member starts"
            " again.",
        ),
    ] = 3600

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.claim) != has(self.snapshot)",
            "exactly one of claim and snapshot must be given: where the backup goes",
            reason="FieldValueRequired",
        ),
    )


class BackupResult(Struct, frozen=True, rename="camel", kw_only=True):
    """The copy; while it is made, its member."""

    broker_id: Annotated[bounds.BrokerId, Meta(description="Broker id of the member whose store is copied.")]
    pod: Annotated[bounds.NameText, Meta(description="Name of its pod, and of its claim.")]
    pod_uid: Annotated[
        bounds.NameText, Meta(description="uid of that pod: one that was made since is not stopped, nor kept stopped.")
    ]
    claim: Annotated[bounds.NameText, Meta(description="The claim that has the copy. Empty for snapshots.")] = ""
    folder: Annotated[
        str,
        Meta(
            max_length=bounds.LONGEST_BACKUP_NAME,
            description="The copy's folder in that claim, for spec.bootstrap. Of snapshots: <group>/<operation>.",
        ),
    ]
    snapshots: Annotated[
        list[bounds.NameText],
        Meta(
            max_length=2,
            description="The VolumeSnapshots, the one that spec.bootstrap names first. Empty for a copy.",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ] = []
    confirm_offset: Annotated[
        int,
        Meta(
            ge=-1,
            description="How far the log was acknowledged right before the member was stopped, by its last heartbeat: every message"
            " below it is in the copy, or the operation fails. -1: not known.",
        ),
    ] = -1
    compared_at: Annotated[
        bounds.TimeText | None,
        Meta(
            description="When the member was last found to have the master's topics, subscription groups and offsets, which a slave"
            " copies beside the log. It is stopped only within 10 s of that; what lasts longer is compared again."
        ),
    ] = None
    early_errors: Annotated[
        list[Annotated[str, Meta(max_length=bounds.LONGEST_OBJECT_NAME + 41)]],
        Meta(
            max_length=2,
            description="Errors of the driver that were seen on VolumeSnapshots before they were cut, each as NAME TIME: one that"
            " still stands there afterwards is over. Any other counts as of a later try.",
            extra_json_schema=bounds.ATOMIC_LIST,
        ),
    ] = []
    cut_at: Annotated[
        bounds.TimeText | None,
        Meta(
            description="When all VolumeSnapshots were seen to be cut: from then on the member may run. Absent until then, and of"
            " a copy."
        ),
    ] = None
    offset: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Where the log ends in the copy, in bytes. Absent until the copy is whole, and of snapshots."),
    ] = None
    epoch: Annotated[bounds.Epoch | None, Meta(description="The last master epoch in the copy's log.")] = None
    bytes: Annotated[Annotated[int, Meta(ge=0)] | None, Meta(description="Size of the copied files.")] = None
    taken_at: Annotated[bounds.TimeText | None, Meta(description="When the copy was whole.")] = None
    failed: Annotated[
        str,
        Meta(max_length=1024, description="Why there is no copy; the member starts again, then the operation fails."),
    ] = ""


class FromClaim(Struct, frozen=True, rename="camel", kw_only=True):
    """A folder that a Backup filled."""

    name: Annotated[bounds.ObjectName, Meta(description="metadata.name of the claim that has the copy.")]
    folder: Annotated[
        bounds.BackupName, Meta(description="The copy's folder in it: status.result.backup.folder of the Backup.")
    ]


class FromSnapshot(Struct, frozen=True, rename="camel", kw_only=True):
    """What a Backup has taken."""

    name: Annotated[
        bounds.ObjectName,
        Meta(
            description="metadata.name of the VolumeSnapshot: the first of status.result.backup.snapshots of the Backup."
        ),
    ]


class FromBackup(Struct, frozen=True, rename="camel", kw_only=True):
    """Where the copy is."""

    claim: Annotated[
        FromClaim | None,
        Meta(description="A claim in the same namespace, and a folder in it. Absent: snapshot is given."),
    ] = None
    snapshot: Annotated[
        FromSnapshot | None,
        Meta(
            description="A VolumeSnapshot in the same namespace: the first member's claims are made from it and those of its"
            " set. Absent: claim is given."
        ),
    ] = None

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.claim) != has(self.snapshot)",
            "exactly one of claim and snapshot must be given: what the group begins with",
            reason="FieldValueRequired",
        ),
    )

    @property
    def backup(self) -> str:
        """The backup's name in the group's record: its folder, or its first VolumeSnapshot."""
        if self.claim is not None:
            return self.claim.folder
        return self.snapshot.name if self.snapshot is not None else ""


class BootstrapSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """How a new group begins. Once it has begun, this says where it came from."""

    from_backup: Annotated[
        FromBackup,
        Meta(
            description="The first member begins with the store of this backup, under broker ids and epochs above all that the"
            " backup's group had; no other member is elected before it, and the others copy it."
        ),
    ]


# Of a manifest: any client that may write its file, or the annotation, can make it as long as that may be.
_Text = Annotated[str, Meta(max_length=1024)]


class Manifest(Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=False):
    """What a copy is of. It lies in the copy's folder, and is what the copying pod says when it ends.

    `store_epoch` and `offset` are those of the log's end; `master_epoch` and `next_broker_id` those of the record when the member
    was stopped, or, of VolumeSnapshots, when these were ready. `operation` is the uid of the BrokerGroupOperation.
    """

    format: int = 1
    name: _Text
    operation: _Text
    group: _Text
    namespace: _Text
    cluster_name: _Text
    broker_name: _Text
    broker_id: bounds.BrokerId
    next_broker_id: bounds.BrokerId
    master_epoch: bounds.Epoch
    implementation: _Text
    # Of RocketMQ; empty where the group's image says none.
    version: _Text = ""
    confirm_offset: Annotated[int, Meta(ge=-1)] = -1
    # Filled in by the pod that copies.
    store_epoch: bounds.Epoch = 0
    offset: Annotated[int, Meta(ge=-1)] = -1
    bytes: Annotated[int, Meta(ge=0)] = 0
    taken_at: _Text = ""


class ClaimSnapshot(Struct, frozen=True, rename="camel", kw_only=True):
    """One claim of the member and its VolumeSnapshot. `size` is what the claim asked for."""

    claim: bounds.NameText
    snapshot: bounds.NameText
    size: _Text


class SnapshotManifest(Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=False):
    """What a set of VolumeSnapshots is of: the same text is an annotation of each, written when all of them are ready.

    `backup` is what is known without reading a file: its log reaches `confirm_offset` at least; where it ends is not known. The
    store's snapshot comes first, then that of the commit log, if it has a claim of its own.
    """

    backup: Manifest
    snapshots: Annotated[list[ClaimSnapshot], Meta(max_length=2)]
