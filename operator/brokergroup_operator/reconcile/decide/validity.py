"""What the API server cannot check: that a group fits to the record and the disks of its name, its ConfigMaps, and other groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.render.broker_config import broker_name

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.see.observed import Observed


def invalid_spec(seen: Observed) -> str:
    """The complaint, naming field, value and what was expected; or the empty text."""
    if seen.config_problem:
        return seen.config_problem
    record = seen.record
    if seen.broker_name_taken and (record is None or not record.is_known):
        return seen.broker_name_taken
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
