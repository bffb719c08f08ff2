"""BrokerGroup.spec.storage: where the data lies: a claim per broker id, another for its commit log, or the disk of the pod's
node."""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from brokergroup_operator.api import bounds
from brokergroup_operator.api.pod_fields import TemplateMetadata
from brokergroup_operator.api.rules import (
    Rule,
    immutable_optional,
    validations,
)

ClaimSize = Annotated[
    bounds.SizeText,
    Meta(
        description="Size of each claim, such as 100Gi. It may be raised, if the storage class allows it, and not"
        " lowered."
    ),
]
StorageClassName = Annotated[
    bounds.ClassName | None,
    Meta(
        description="Storage class of the claims, as in a PersistentVolumeClaim. Absent: the cluster's default."
        " Immutable."
    ),
]


class RetentionPolicy(StrEnum):
    """What happens to claims, and with them to the data."""

    RETAIN = "Retain"
    DELETE = "Delete"


class StorageRetention(Struct, frozen=True, rename="camel", kw_only=True):
    """What happens to claims, and so to the data, when their member goes."""

    when_deleted: Annotated[
        RetentionPolicy,
        Meta(
            description="When the BrokerGroup is deleted. Retain: claims and record stay, and a new group of the same name"
            " continues with them. Delete: both are deleted, WITH THE DATA."
        ),
    ] = RetentionPolicy.RETAIN
    when_scaled: Annotated[
        RetentionPolicy,
        Meta(
            description="When a member is removed, by a lower spec.replicas or a Decommission. Retain: its claim stays,"
            " unused, until a user deletes it. Delete: it is deleted WITH ITS DATA."
        ),
    ] = RetentionPolicy.RETAIN


class ClaimTemplate(Struct, frozen=True, rename="camel", kw_only=True):
    """What is added to each claim of the group. A change reaches existing claims, without a restart."""

    metadata: TemplateMetadata = TemplateMetadata()


def _may_only_grow(name: str) -> Rule:
    return Rule("quantity(self).compareTo(quantity(oldSelf)) >= 0", f"{name} may grow but never shrink")


class CommitLogStorage(Struct, frozen=True, rename="camel", kw_only=True):
    """A separate volume for the commit log."""

    size: Annotated[ClaimSize, Meta(extra_json_schema=validations(_may_only_grow("storage.commitLog.size")))] = "8Gi"
    storage_class_name: StorageClassName = None

    RULES: ClassVar[tuple[Rule, ...]] = (
        immutable_optional("storageClassName", "storageClassName is immutable: claims cannot change their class"),
    )


class EphemeralStorage(Struct, frozen=True, rename="camel", kw_only=True):
    """Volumes that are deleted with their pods."""

    size_limit: Annotated[
        bounds.QuantityText | None,
        Meta(
            description="Size above which the kubelet evicts the pod, which deletes its data, as sizeLimit of an emptyDir."
            " Absent: no limit but the node's disk."
        ),
    ] = None


class StorageSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """The volume of each broker: one PersistentVolumeClaim per broker id, which stays when the pod is deleted."""

    size: Annotated[ClaimSize, Meta(extra_json_schema=validations(_may_only_grow("storage.size")))] = "8Gi"
    storage_class_name: StorageClassName = None
    commit_log: Annotated[
        CommitLogStorage | None,
        Meta(
            description="Given: the commit log has a second claim, `<pod>-commitlog`, for example on a faster storage class."
            " It can be neither added nor removed later: a broker would not find its log."
        ),
    ] = None
    claim_template: Annotated[
        ClaimTemplate | None,
        Meta(
            description="Given: further labels and annotations of all claims, the commit logs' too, for example for a backup"
            " tool, or so that a GitOps tool does not prune them."
        ),
    ] = None
    ephemeral: Annotated[
        EphemeralStorage | None,
        Meta(
            description="Given: no claims. Each broker writes to an emptyDir on its node, and a deleted pod takes its data"
            " and its broker id with it: the pod that replaces it copies the whole log from the master. If all"
            " pods are deleted, all messages are lost. For tests, or for data that can be produced again. `size`"
            " is ignored. It can be neither added nor removed later."
        ),
    ] = None
    retention: StorageRetention = StorageRetention()

    RULES: ClassVar[tuple[Rule, ...]] = (
        immutable_optional("storageClassName", "storageClassName is immutable: claims cannot change their class"),
        Rule(
            "has(self.commitLog) == has(oldSelf.commitLog)",
            "commitLog can't be added or taken away: a broker that finds its log elsewhere has lost it",
            field_path=".commitLog",
        ),
        Rule(
            "has(self.ephemeral) == has(oldSelf.ephemeral)",
            "ephemeral can't be added or taken away: every member would lose its data at once",
            field_path=".ephemeral",
        ),
        Rule(
            "!has(self.ephemeral) || !(has(self.commitLog) || has(self.storageClassName) || has(self.claimTemplate))",
            "ephemeral excludes storageClassName, commitLog and claimTemplate: there are no claims then",
            field_path=".ephemeral",
        ),
    )
