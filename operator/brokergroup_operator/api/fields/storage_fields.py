"""Where the data of a group lies: a claim for each broker id, one more for its commit log, or the disk of its pod's node."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from brokergroup_operator.api import bounds
from brokergroup_operator.api.fields.pod_fields import TemplateMetadata

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
    """Claims are kept unless someone asks for their deletion."""

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


class CommitLogStorage(Struct, frozen=True, rename="camel", kw_only=True):
    """A volume of its own for the commit log, beside the one for everything else."""

    size: ClaimSize = "8Gi"
    storage_class_name: StorageClassName = None


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

    size: ClaimSize = "8Gi"
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
            description="Given: labels and annotations of every claim, the commit logs' too: for backups, or to tell GitOps tools"
            " that a claim is not theirs to prune."
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
