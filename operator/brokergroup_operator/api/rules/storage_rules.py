"""Rules of spec.storage: what is on disks already can't be wished away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api.fields.storage_fields import CommitLogStorage, StorageSpec
from brokergroup_operator.api.rules.rule import Rule, immutable_optional

if TYPE_CHECKING:
    from msgspec import Struct


# On a whole object, by its type.
OBJECT_RULES: Final[dict[type[Struct], tuple[Rule, ...]]] = {
    StorageSpec: (
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
    ),
    CommitLogStorage: (
        immutable_optional("storageClassName", "storageClassName is immutable: claims cannot change their class"),
    ),
}

# On a single field, by its object's type and its name on the wire.
FIELD_RULES: Final[dict[tuple[str, str], tuple[Rule, ...]]] = {
    ("CommitLogStorage", "size"): (
        Rule("quantity(self).compareTo(quantity(oldSelf)) >= 0", "storage.commitLog.size may grow but never shrink"),
    ),
    ("StorageSpec", "size"): (
        Rule(
            "quantity(self).compareTo(quantity(oldSelf)) >= 0",
            "storage.size may grow but never shrink",
        ),
    ),
}
