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

ClaimSize = Annotated[bounds.SizeText, Meta(description="Size of each claim, more than 0. It may grow, never shrink.")]
StorageClassName = Annotated[
    bounds.ClassName | None,
    Meta(description="Storage class of the claims; the cluster's default when absent. Immutable."),
]


class RetentionPolicy(StrEnum):
    """What happens to claims, and with them to the data."""

    RETAIN = "Retain"
    DELETE = "Delete"


class StorageRetention(Struct, frozen=True, rename="camel", kw_only=True):
    """Claims are kept unless a user asks for their deletion."""

    when_deleted: Annotated[
        RetentionPolicy, Meta(description="What happens to the claims when the BrokerGroup is deleted.")
    ] = RetentionPolicy.RETAIN
    when_scaled: Annotated[
        RetentionPolicy,
        Meta(description="What happens to the claim of a member that is removed because spec.replicas was lowered."),
    ] = RetentionPolicy.RETAIN


class ClaimTemplate(Struct, frozen=True, rename="camel", kw_only=True):
    """What is added to each claim of the group. A change reaches the claims that are there, without a restart."""

    metadata: TemplateMetadata = TemplateMetadata()


def _may_only_grow(name: str) -> Rule:
    return Rule("quantity(self).compareTo(quantity(oldSelf)) >= 0", f"{name} may grow but never shrink")


class CommitLogStorage(Struct, frozen=True, rename="camel", kw_only=True):
    """A volume of its own for the commit log, beside the one for everything else."""

    size: Annotated[ClaimSize, Meta(extra_json_schema=validations(_may_only_grow("storage.commitLog.size")))] = "8Gi"
    storage_class_name: StorageClassName = None

    RULES: ClassVar[tuple[Rule, ...]] = (
        immutable_optional("storageClassName", "storageClassName is immutable: claims cannot change their class"),
    )


class EphemeralStorage(Struct, frozen=True, rename="camel", kw_only=True):
    """Disks that go with their pods."""

    size_limit: Annotated[
        bounds.QuantityText | None,
        Meta(
            description="A pod that fills more than that is evicted, and its data with it. Absent: what the node has."
        ),
    ] = None


class StorageSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """The volume of each replica: one claim per broker id, kept over pod deletions."""

    size: Annotated[ClaimSize, Meta(extra_json_schema=validations(_may_only_grow("storage.size")))] = "8Gi"
    storage_class_name: StorageClassName = None
    commit_log: Annotated[
        CommitLogStorage | None,
        Meta(
            description="Given: the commit log has a claim of its own (`<pod>-commitlog`), on a faster class for example."
            " Immutable: it is given when the group is made, because a broker that finds its log elsewhere has lost it."
        ),
    ] = None
    claim_template: Annotated[
        ClaimTemplate | None,
        Meta(
            description="Given: labels and annotations of every claim, the commit logs' too: for backups, or so that GitOps"
            " tools prune no claim."
        ),
    ] = None
    ephemeral: Annotated[
        EphemeralStorage | None,
        Meta(
            description="Given: no claims; each broker writes on its node's disk (emptyDir), and a pod that goes takes its data and"
            " its broker id with it. Every restart is a full copy from the master, and the loss of all pods is the loss of all"
            " messages. For tests, and for caches that can be filled anew. size is not used then. Immutable but for sizeLimit."
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
