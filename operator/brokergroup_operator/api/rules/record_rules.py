"""Rules of BrokerGroupState, most of them transition rules: whatever writes the record, also a person with kubectl, cannot make
an epoch fall (docs/concepts/architecture.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api.brokergroup_state import GroupRecord
from brokergroup_operator.api.rules.rule import Rule, immutable

if TYPE_CHECKING:
    from msgspec import Struct


def never_falls(name: str, why: str) -> Rule:
    return Rule(f"self.{name} >= oldSelf.{name}", f"{name} never falls: {why}", field_path=f".{name}")


def claimed(name: str) -> Rule:
    """Every id of this list is held by a broker."""
    return Rule(
        f"self.{name}.all(id, self.replicas.exists(replica, replica.brokerId == id && replica.registerCheckCode != ''))",
        f"{name} may name only broker ids that a broker holds",
        field_path=f".{name}",
    )


# On a whole object, by its type.
OBJECT_RULES: Final[dict[type[Struct], tuple[Rule, ...]]] = {
    GroupRecord: (
        never_falls("schemaVersion", "an older operator would drop what it does not know"),
        never_falls("nextBrokerId", "broker ids are never reused"),
        never_falls("masterEpoch", "brokers ignore epochs that are not above their own"),
        never_falls("syncStateSetEpoch", "brokers ignore epochs that are not above their own"),
        never_falls("uncleanElections", "each of them may have lost acknowledged messages"),
        never_falls("changeId", "it names one change of master in the record, in Events and in the incident log"),
        Rule(
            "!has(self.change) || self.change.id == self.changeId",
            "change must be the last change that began: its id is changeId",
            field_path=".change",
        ),
        Rule(
            "!has(self.change) || !has(oldSelf.change) || self.change.id != oldSelf.change.id ||"
            " (self.change.kind == oldSelf.change.kind && (!(oldSelf.change.phase in ['Telling', 'Restoring']) ||"
            " self.change.phase in ['Telling', 'Restoring']))",
            "a change under way keeps its kind, and once it has its election it does not wait for one again",
            field_path=".change",
        ),
        Rule(
            "!has(self.change) || self.change.phase != 'Telling' ||"
            " (has(oldSelf.change) && self.change.id == oldSelf.change.id && oldSelf.change.phase == 'Telling') ||"
            " (has(self.masterBrokerId) && has(self.change.to) && self.change.to == self.masterBrokerId &&"
            " self.change.epoch == self.masterEpoch && self.masterEpoch > oldSelf.masterEpoch)",
            "a change that begins to be told names the record's master under a new masterEpoch",
            field_path=".change",
        ),
        claimed("eligible"),
        claimed("lostSeats"),
        Rule(
            "!has(self.masterBrokerId) || self.masterBrokerId in self.syncStateSet",
            "the master must be in syncStateSet",
            field_path=".masterBrokerId",
        ),
        Rule(
            "!has(self.masterBrokerId) || !has(oldSelf.masterBrokerId) ||"
            " self.masterBrokerId == oldSelf.masterBrokerId || self.masterEpoch > oldSelf.masterEpoch",
            "another master needs a higher masterEpoch",
            field_path=".masterBrokerId",
        ),
        Rule(
            "self.replicas.all(replica, replica.brokerId < self.nextBrokerId)",
            "every brokerId must be below nextBrokerId",
            field_path=".replicas",
        ),
    ),
}

# On a single field, by its object's type and its name on the wire.
FIELD_RULES: Final[dict[tuple[str, str], tuple[Rule, ...]]] = {
    ("GroupRecord", "clusterName"): (immutable("clusterName is immutable"),),
    ("GroupRecord", "brokerName"): (immutable("brokerName is immutable"),),
    ("ReplicaRecord", "registerCheckCode"): (
        Rule(
            "oldSelf == '' || self == oldSelf",
            "registerCheckCode never changes once set: it tells who owns the broker id",
        ),
    ),
}
