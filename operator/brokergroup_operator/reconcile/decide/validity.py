"""What the API server cannot check: that a group fits to the record and the disks of its name, its ConfigMaps, and other groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.render.broker_config import broker_name
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.verdict import no

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.verdict import Verdict


def invalid_spec(seen: Observed) -> Verdict | None:
    """Why the group can't be as its spec says, naming field, value and what was expected; None where it can."""
    if seen.broker_name_taken and not _lives(seen):
        # No object is made for it, and none that an older operator made is deleted.
        return no(Reason.BROKER_NAME_TAKEN, seen.broker_name_taken)
    if complaint := seen.config_problem or _not_as_recorded(seen):
        return no(Reason.INVALID_SPEC, complaint)
    return None


def _lives(seen: Observed) -> bool:
    """Whether the group's brokers have registered: then messages are on its disks, and it runs on (`api/broker_names.py`)."""
    has_begun = names.FINALIZER_BROKER_GROUP in observed.finalizers_of(seen.group_object)
    return has_begun and seen.record is not None and seen.record.has_registered


def _not_as_recorded(seen: Observed) -> str:
    record = seen.record
    if record is None:
        return ""
    for field, value, kept in (
        ("spec.brokerClusterName", seen.group.spec.broker_cluster_name, record.cluster_name),
        ("spec.brokerName", broker_name(identity.name_of(seen.group), seen.group.spec), record.broker_name),
    ):
        if value != kept:
            return (
                f"{field} is {value!r}, but the record kept from an earlier group of this name says {kept!r}."
                f" Use {kept!r}, another metadata.name, or delete the BrokerGroupState together with the claims."
            )
    return ""
